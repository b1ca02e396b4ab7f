//! From the step where a set-up stopped to an error that says what to do.

use belljar_jail::plan::{Files, Identity, MapWriter, Plan};
use belljar_jail::report::{Failed, Step};

use crate::model::error::Error;

/// Names what the step worked on, and what to do about the usual causes.
pub(crate) fn explain(failed: Failed, plan: &Plan) -> Error {
    let Failed { stopped, checks } = failed;
    if stopped.step == Step::ReadBack && !checks.is_empty() {
        return Error::NotVerified { checks };
    }
    let errno = stopped.errno_name();
    let what = subject(stopped.step, usize::from(stopped.item), plan);
    let hint = hint(stopped.step, &errno, &plan.identity).map(ToOwned::to_owned);
    Error::Setup { step: stopped.step, errno, what, hint }
}

/// The thing that a step worked on.
fn subject(step: Step, item: usize, plan: &Plan) -> String {
    let named = match (step, &plan.files) {
        (Step::Sources | Step::Binds, Files::Root(root)) => {
            root.binds.get(item).map(|bind| bind.source.display().to_string())
        }
        (Step::Devices, Files::Root(root)) => {
            root.devices.get(item).map(|device| format!("/dev/{}", device.name))
        }
        (Step::Placed, _) => plan.placed.get(item).map(|file| file.path.display().to_string()),
        (Step::Directory, _) => Some(plan.program.directory.display().to_string()),
        (Step::Cgroup | Step::JoinCgroup, _) => plan.cgroup.as_ref().map(|one| one.name.clone()),
        (Step::Scratch, Files::Host { scratch }) => Some(scratch.path().display().to_string()),
        (Step::Exec, _) => Some(plan.program.path.display().to_string()),
        _ => None,
    };
    named.unwrap_or_else(|| "the sandbox".to_owned())
}

fn hint(step: Step, errno: &str, identity: &Identity) -> Option<&'static str> {
    let by_helpers = matches!(identity, Identity::Mapped { writer: MapWriter::Helpers, .. });
    Some(match (step, errno) {
        (Step::IdMap, "EPERM" | "EACCES") if by_helpers => {
            "newuidmap or newgidmap refused: both must be set-user-id root (as root: apt-get install \
             --reinstall uidmap), and may not be traced; or say --allow-missing uid_per_run"
        }
        (
            Step::Clone | Step::IdMap | Step::Sources | Step::Become,
            "EPERM" | "EACCES" | "ENOSPC",
        ) => "user namespaces may be restricted here; run \"belljar doctor\"",
        (Step::Clone, "ECHILD") => {
            "a process of the sandbox was killed while it was set up; is the host out of memory?"
        }
        (Step::Clone, "EAGAIN") => "this user runs too many processes already",
        (Step::Placed, "ENOSPC") => "the files do not fit: raise --disk",
        (Step::Proc, "EPERM") => {
            "the host's /proc is partly covered, as in a container; start that container with an \
             unmasked /proc, or use level basic"
        }
        (Step::Session, "EDQUOT") => {
            "this user's quota of keyrings is used up: run fewer at once, or raise \
             kernel.keys.maxkeys"
        }
        (Step::Rlimits, "EPERM") => "the caller's own hard limits are lower",
        (Step::Scratch, "EPERM") => {
            "the directory belongs to somebody else, or others may write to it: remove it, or set \
             TMPDIR"
        }
        _ => return None,
    })
}
