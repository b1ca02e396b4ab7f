//! The native backend: Linux's own barriers, no daemon and no root.
//!
//! [`host`] knows what this machine offers, [`systemd`] asks for what it does not give by itself, [`layout`] what a sandbox's root looks like, [`plan`] turns
//! a Spec into a Plan, [`run`] carries it through a keeper, [`verdict`] judges the facts.

pub(crate) mod alive;
pub mod cgroups;
pub(crate) mod exit;
mod failure;
#[cfg(test)]
mod golden;
pub(crate) mod host;
mod identity;
pub(crate) mod kind;
mod layout;
mod line;
pub mod living;
pub(crate) mod nursery;
pub(crate) mod park;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod sweep;
pub(crate) mod systemd;
mod verdict;
pub(crate) mod zygote;

use belljar_jail::egress::EgressPlan;
use belljar_jail::plan::{Fault, Hold};
use belljar_jail::report::{End, Report};

pub(crate) use identity::{egress_ids, subordinate_ranges, zygote_ids};
pub(crate) use sweep::{boot, engine_is_dead, engine_name, sweep};
pub(crate) use verdict::{Facts, judge, usage};

use crate::languages::{Interpreter, Language};
use crate::model::error::{Error, SpecError};
use crate::model::spec::Spec;
use host::Host;
use layout::HostWorkspace;

/// Everything that a plan is made from, once the keeper's process id is known.
pub(crate) struct Prepared<'a> {
    pub id: &'a str,
    pub spec: &'a Spec,
    pub host: &'a Host,
    pub cgroups: &'a Result<cgroups::Places, String>,
    pub language: Option<&'a Language>,
    pub interpreter: Option<&'a Interpreter>,
    pub keeper: u32,
    pub keep_workspace: bool,
    /// Make a sandbox that waits.
    pub hold: Option<Hold>,
    /// The user id of the zygote whose copy it will be, if it is not the caller's.
    pub zygote_uid: Option<u32>,
    pub egress: Option<&'a EgressPlan>,
    pub fault: Option<Fault>,
}

impl Prepared<'_> {
    /// The plan, and the claim on its host id, to be held until the run has ended.
    pub(crate) fn plan(&self) -> Result<(plan::Planned, identity::Chosen), Error> {
        let workspace = self
            .spec
            .workspace
            .as_ref()
            .map(|one| HostWorkspace::open(one, self.spec.level))
            .transpose()?;
        let chosen = identity::choose(self.spec, self.host, self.keeper, workspace.as_ref())?;
        check_readable(self.host, workspace.as_ref(), &chosen.identity)?;
        let name = sweep::name(self.id);
        let planned = plan::make(&plan::Inputs {
            id: self.id,
            name: &name,
            spec: self.spec,
            host: self.host,
            cgroups: self.cgroups,
            language: self.language,
            interpreter: self.interpreter,
            workspace: workspace.as_ref(),
            identity: chosen.identity.clone(),
            keep_workspace: self.keep_workspace,
            hold: self.hold,
            zygote_uid: self.zygote_uid,
            egress: self.egress.cloned(),
            fault: self.fault,
        })?;
        Ok((planned, chosen))
    }
}

/// A workspace that the run's id cannot look into is a mistake better told than found out.
fn check_readable(
    host: &Host,
    workspace: Option<&HostWorkspace>,
    identity: &belljar_jail::plan::Identity,
) -> Result<(), SpecError> {
    use belljar_jail::plan::Identity;
    let Some(workspace) = workspace else {
        return Ok(());
    };
    let (uid, gid) = match *identity {
        Identity::Caller => (host.uid, host.gid),
        Identity::Host { uid, gid } | Identity::Mapped { uid, gid, .. } => (uid, gid),
    };
    let shown = workspace.path.display();
    // The caller's own id comes with the caller's groups, in a user namespace too.
    let (readable, why) = if uid == host.uid {
        let why = format!("{shown} is closed to uid {uid}, as which the run would read it");
        (workspace.readable_by_us(), why)
    } else {
        let why = format!(
            "{shown} is closed to others, and the run has a host id of its own: chmod o+rx it, or \
             copy files in with --file"
        );
        (workspace.readable_by(uid, gid), why)
    };
    if readable { Ok(()) } else { Err(SpecError::new("workspace", why)) }
}

/// The exit code or the signal of a program that ended.
pub(crate) fn end_of(report: &Report) -> (Option<i32>, Option<i32>) {
    match report.end {
        End::Exited(code) => (Some(code), None),
        End::Signaled(signal) => (None, Some(signal)),
        End::NotExecuted(_) | End::Lost => (None, None),
    }
}
