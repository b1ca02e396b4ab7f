//! What a sandbox may reach: changed while it lives, and told.

use super::Sandboxes;
use crate::egress::inspected;
use crate::events::egress_event;
use crate::model::egress::EgressEntry;
use crate::model::error::Error;
use crate::model::sandbox::{NetworkInfo, SandboxInfo, SandboxRequest};
use crate::model::secret::SecretMode;

impl Sandboxes {
    /// From now on, and whenever it is started again: what is open is cut where it no longer may be.
    pub async fn set_egress(
        &self,
        name: &str,
        egress: Vec<EgressEntry>,
    ) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        let request = SandboxRequest { egress: egress.clone(), ..record.request.clone() };
        let rules = self.spec(&request)?.egress;
        if let Some(lines) = slot.lines().await? {
            let plan = self.engine.network().change(&rules, self.engine.host());
            lines.living.set_egress(&plan).await?;
        }
        let id = record.id.clone();
        self.stored(move |store| {
            store.update(&id, move |record| record.request.egress = egress).map(drop)
        })
        .await?;
        self.told(&record.id).await
    }

    /// What it may reach, and what it tried since it was started.
    pub async fn network(&self, name: &str) -> Result<NetworkInfo, Error> {
        let (record, slot) = self.find(name)?;
        let egress = record.request.egress.clone();
        let secrets = record.request.secrets.iter();
        let secrets =
            secrets.filter(|one| one.mode() == SecretMode::Placeholder).cloned().collect();
        let Some(lines) = slot.lines().await? else {
            // What its sets are by now is what it will be started with.
            let rules = self.spec(&record.request).map(|spec| spec.egress).unwrap_or_default();
            let inspected = inspected(&rules);
            return Ok(NetworkInfo { egress, secrets, inspected, ..NetworkInfo::default() });
        };
        let state = lines.living.network().await?;
        let refused = state.refused.iter().map(egress_event).collect();
        let inspected = inspected(&state.rules);
        Ok(NetworkInfo { egress, reached: state.reached, refused, secrets, inspected })
    }
}
