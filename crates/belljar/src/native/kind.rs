//! Kinds of sandbox: what all that wait for the same programs have in common is planned, and written down,
//! once for all of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_jail::plan::{Own, Plan};
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
    pub memory: Arc<OwnedFd>,
    made: Instant,
    /// The zygote that its sandboxes belong to.
    zygote_uid: Option<u32>,
}

impl Kind {
    /// From what one sandbox of it would be made with. If that is planned as it was before, the same file goes on to
    /// hold it: who has read that need not read another.
    pub(crate) fn make(prepared: &Prepared<'_>, before: Option<&Self>) -> Result<Self, Error> {
        let (planned, _claim) = prepared.plan()?;
        let same = before.filter(|before| is_same(&before.planned.plan, &planned.plan));
        let memory = match same {
            Some(before) => Arc::clone(&before.memory),
            None => {
                let memory = wire::plan_memory(&planned.plan);
                Arc::new(memory.map_err(Error::backend("write the plan down"))?)
            }
        };
        Ok(Self { planned, memory, made: Instant::now(), zygote_uid: prepared.zygote_uid })
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

/// Whether two plans differ in nothing but what is one sandbox's own.
fn is_same(before: &Plan, now: &Plan) -> bool {
    let name = before.cgroup.as_ref().map_or_else(String::new, |cgroup| cgroup.name.clone());
    let own = Own { id: before.id.clone(), identity: before.identity.clone(), name };
    let mut now = now.clone();
    now.adopt(own);
    now == *before
}
