//! Kinds of sandbox: what all that wait for the same programs have in common is planned, and written down,
//! once for all of them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_jail::plan::Own;
use belljar_jail::wire;

use super::identity::{self, Chosen};
use super::plan::Planned;
use super::{Prepared, sweep};
use crate::model::error::Error;

/// How long the host is believed to be as it was: what a plan names of it is looked at when it is made.
const BELIEVED: Duration = Duration::from_secs(1);

/// The plan of a kind. It is nobody's before it has adopted what is one sandbox's own.
pub(crate) struct Kind {
    planned: Planned,
    /// The plan as it travels.
    pub memory: OwnedFd,
    made: Instant,
    /// The zygote that its sandboxes belong to.
    zygote_uid: Option<u32>,
}

impl Kind {
    /// From what one sandbox of it would be made with.
    pub(crate) fn make(prepared: &Prepared<'_>) -> Result<Self, Error> {
        let (planned, _claim) = prepared.plan()?;
        let memory = wire::plan_memory(&planned.plan);
        Ok(Self {
            planned,
            memory: memory.map_err(Error::backend("write the plan down"))?,
            made: Instant::now(),
            zygote_uid: prepared.zygote_uid,
        })
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.made.elapsed() < BELIEVED
    }

    pub(crate) fn serves(&self, zygote_uid: Option<u32>) -> bool {
        self.zygote_uid == zygote_uid && self.is_fresh()
    }

    /// The plan of one sandbox, what of it travels beside the kind's, and the claim on its host id.
    pub(crate) fn adopt(&self, prepared: &Prepared<'_>) -> Result<(Planned, Own, Chosen), Error> {
        let claim = identity::choose(prepared.spec, prepared.host, prepared.keeper, None)?;
        let own = Own {
            id: prepared.id.to_owned(),
            identity: claim.identity.clone(),
            name: sweep::name(prepared.id),
        };
        let mut planned = self.planned.clone();
        planned.plan.adopt(own.clone());
        Ok((planned, own, claim))
    }
}
