//! From what is asked to what is carried out: a sandbox's plan, and an exec's order.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use belljar_jail::agent;
use belljar_jail::layer::Layer;
use belljar_jail::living::talk::{ENDED, Hidden, LivingPlan, MAX_AGENTS, MAX_EXECS, Order};
use belljar_jail::plan::{
    Bind, BindKind, Bound, CgroupVersion, Files, Hierarchy, Identity, MapWriter, Plan, Resource,
    Root, pack,
};
use belljar_jail::report::{Failed, Message, Step};
use belljar_jail::{LIVING_ROLE, wire};
use belljar_sys::{fd, spawn};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::kept::{self, RAISED, Raised};
use super::{DiskBound, Living, Raise};
use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::receipt::Versions;
use crate::model::request::{RunRequest, Workspace};
use crate::model::sandbox::{ExecRequest, SandboxRequest};
use crate::model::secret::{SecretMode, SecretRequest};
use crate::model::spec::{Spec, WORKSPACE};
use crate::native::cgroups::Places;
use crate::native::identity::INSIDE;
use crate::native::plan::{self, Inputs, PATH, Planned, USE, WORK, rule};
use crate::native::run::open_placed;
use crate::native::{cgroups, failure, layout, sweep};
use crate::seccomp;
use crate::secrets::{Given, Sealing};

/// What runs in a sandbox that has no program yet.
const NOTHING: &str = "/bin/true";
/// The one user there is.
const USER: &str = "sandbox";

/// The Spec of a sandbox, checked as a run's is.
pub(super) fn spec(request: &SandboxRequest) -> Result<Spec, SpecError> {
    if !request.level.has_namespaces() {
        let reason = "must be standard or strict: a sandbox that lives has a root of its own";
        return Err(SpecError::new("level", reason));
    }
    if request.image.as_deref().is_some_and(|image| image != "host") {
        return Err(SpecError::new("image", "must be host, the only one there is"));
    }
    let run = RunRequest {
        command: Some(vec![NOTHING.to_owned()]),
        level: request.level,
        limits: request.limits.clone(),
        env: request.env.clone(),
        secrets: request.secrets.clone(),
        labels: request.labels.clone(),
        allow_missing: request.allow_missing.clone(),
        allow_syscalls: request.allow_syscalls.clone(),
        deny_syscalls: request.deny_syscalls.clone(),
        egress: request.egress.clone(),
        ..RunRequest::default()
    };
    Spec::resolve(run, None)
}

/// Starts a keeper for it and waits until it stands: every layer was verified on a payload that ran nothing.
pub async fn raise(engine: &Engine, mut raise: Raise) -> Result<Living, Error> {
    seal(engine, &mut raise).await?;
    // What killed keepers left: whoever lives long meets many of them.
    sweep::sweep(engine.host());
    let (control, theirs) = wire::control_pair().map_err(backend("make a socket"))?;
    rustix::io::ioctl_fionbio(&control, true).map_err(backend("make a socket"))?;
    let first = spawn::with_socket(engine.launcher(), &[LIVING_ROLE], theirs)
        .map_err(Error::backend("start a keeper"))?;
    let control =
        UnixDatagram::from_std(control.into()).map_err(Error::backend("start a keeper"))?;
    let hello = hear(&control).await;
    // It has left its place to the keeper by now, or failed.
    first.wait();
    let hello = hello?.0;
    let pid = <[u8; 4]>::try_from(&hello[..]).map(u32::from_le_bytes);
    let keeper = pid.map_err(|_| Error::Lost { what: "its keeper did not say who it is" })?;
    let places = engine.cgroups(&raise.spec, &raise.id, keeper).await;
    let planned = make(engine, &raise, keeper, &places)?;
    write_down(engine, &raise, &planned)?;
    let living = LivingPlan {
        plan: planned.plan,
        agent_filter: seccomp::compile_only(&[agent::SETTLING_CALLS, agent::CALLS].concat())
            .into_iter()
            .map(pack)
            .collect(),
        directory: raise.directory.clone(),
        idle_ms: raise.idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)),
        expires_at_ms: raise.expires_at.map(|at| {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        }),
        decoys: raise.spec.sealing.as_ref().map_or_else(Vec::new, |one| one.sealed.decoys.clone()),
    };
    let memory = memory(&living)?;
    let placed = open_placed(raise.spec.all_placed())?;
    let fds: Vec<_> = [&memory].into_iter().chain(&placed).map(AsFd::as_fd).collect();
    fd::send(&control, b"living", &fds).map_err(backend("hand the plan to the keeper"))?;
    if let Some(sealing) = &raise.spec.sealing {
        wire::send_secrets(&control, sealing.memory()?.as_fd())
            .map_err(Error::backend("hand its secrets to the keeper"))?;
    }
    let stood = await_standing(&control, &living.plan).await;
    if let Err(error) = stood {
        if matches!(error, Error::Lost { .. }) {
            sweep::remove_run(&living.plan);
        }
        return Err(error);
    }
    let lost = Error::Lost { what: "its keeper died as soon as it stood" };
    Living::connect(&raise.directory).await?.ok_or(lost)
}

/// Finds out what stands for its secrets, what its decoys are, and who speaks for hosts that are looked into. What there was
/// before stays: it may stand in files that programs have written.
async fn seal(engine: &Engine, raise: &mut Raise) -> Result<(), Error> {
    let made_up = raise.spec.secrets.iter().any(|one| one.mode() != SecretMode::Env);
    if !made_up && !raise.spec.egress.iter().any(|rule| rule.inspect) {
        return Ok(());
    }
    let given = engine.secrets(&raise.spec.secrets).await?;
    let known = kept::raised(&raise.directory).map(|(before, _)| before.tokens());
    let known = known.unwrap_or_default();
    let mut decoys = Vec::new();
    for one in given.iter().filter(|one| one.mode == SecretMode::Canary) {
        let value = known.get(&one.variable).map_or(one.value.reveal(), String::as_str);
        raise.spec.give(one.variable.clone(), value)?;
        decoys.push(value.to_owned());
    }
    let ca_file = engine.network().ca_file.as_deref();
    let (rules, secrets) = (&raise.spec.egress, &raise.spec.secrets);
    let sealing = Sealing::new(rules, secrets, &given, decoys, &known, ca_file)?;
    raise.spec.sealing = sealing.map(Arc::new);
    Ok(())
}

async fn await_standing(control: &UnixDatagram, plan: &Plan) -> Result<(), Error> {
    let (message, _) = hear(control).await?;
    match serde_json::from_slice(&message) {
        Ok(Message::Started(_)) => Ok(()),
        Ok(Message::Failed(failed)) => Err(failure::explain(failed, plan)),
        _ => Err(Error::Lost { what: "its keeper said something else" }),
    }
}

/// One message of the keeper.
async fn hear(control: &UnixDatagram) -> Result<(Vec<u8>, Option<OwnedFd>), Error> {
    let mut bytes = vec![0; wire::MAX_MESSAGE_BYTES];
    loop {
        control.readable().await.map_err(Error::backend("hear the keeper"))?;
        let received = control.try_io(Interest::READABLE, || Ok(fd::receive(control, &mut bytes)?));
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(received) if received.length > 0 => {
                bytes.truncate(received.length);
                return Ok((bytes, received.fds.into_iter().next()));
            }
            Ok(_) | Err(_) => {
                return Err(Error::Lost { what: "its keeper died before it stood" });
            }
        }
    }
}

fn backend(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::Backend { operation, source: errno.into() }
}

/// Anything in the form in which it travels.
pub(super) fn memory(value: &impl serde::Serialize) -> Result<OwnedFd, Error> {
    let json = serde_json::to_vec(value).map_err(io::Error::from);
    json.and_then(|json| wire::sealed_memory("living", &json))
        .map_err(Error::backend("write the plan down"))
}

/// The plan of a run, with the files of a sandbox.
fn make(
    engine: &Engine,
    raise: &Raise,
    keeper: u32,
    places: &Result<Places, String>,
) -> Result<Planned, Error> {
    let host = engine.host();
    // A shared directory may hold sockets of the host: the filter then refuses what could reach them.
    let shared = raise.workspace.as_ref();
    let workspace = shared.map(|one| Workspace { path: one.path.clone(), writable: one.writable });
    let spec = &Spec { workspace, ..raise.spec.clone() };
    let (uid, gid) = raise.owner;
    if spec.level >= Level::Strict
        && !host.is_root()
        && !spec.allow_missing.contains(&Layer::UidPerRun)
    {
        return Err(Error::Unavailable {
            level: spec.level,
            missing: "an id of its own, which files that stay cannot have without root".to_owned(),
            hint: "say --allow-missing uid_per_run, or use level standard".to_owned(),
        });
    }
    let identity = Identity::Mapped { inside: INSIDE, uid, gid, writer: MapWriter::Keeper };
    let mut planned = plan::make(&Inputs {
        id: &raise.id,
        name: &sweep::name_after(keeper, &raise.id),
        spec,
        host,
        cgroups: places,
        language: None,
        interpreter: None,
        workspace: None,
        identity,
        keep_workspace: false,
        hold: None,
        zygote_uid: None,
        egress: engine.network().plan(&raise.spec.egress, engine.host(), keeper),
        fault: engine.fault(),
    })?;
    let plan = &mut planned.plan;
    plan.files = Files::Root(root(raise)?);
    if let Some(cgroup) = &mut plan.cgroup {
        for hierarchy in &mut cgroup.hierarchies {
            // One exec that runs out of memory does not take the others along.
            hierarchy.knobs.retain(|knob| knob.file != "memory.oom.group");
        }
        if cgroup.hierarchies.iter().all(|one| one.version == CgroupVersion::V1) {
            cgroup.hierarchies.extend(cgroups::freezer(host.uid).map(|place| Hierarchy {
                version: place.version,
                controllers: place.controllers,
                place: place.place,
                knobs: Vec::new(),
            }));
        }
    }
    if let Some(lockdown) = &mut plan.lockdown {
        for limit in lockdown.rlimits.iter_mut().filter(|one| one.resource == Resource::Processes) {
            // Shepherds are counted with the programs that they look after.
            limit.value += (MAX_EXECS + MAX_AGENTS) as u64;
        }
        if let Some(landlock) = &mut lockdown.landlock {
            landlock.rules = rules(raise);
            landlock.witness = PathBuf::from("witness");
        }
    }
    Ok(planned)
}

/// Everything beneath the root, and nothing beyond it; written where the request says.
fn rules(raise: &Raise) -> Vec<belljar_jail::plan::LandlockRule> {
    if raise.write_paths.is_empty() {
        return vec![rule("/", WORK)];
    }
    let mut rules = vec![rule("/", USE), rule("/dev", WORK)];
    rules.extend(raise.write_paths.iter().map(|path| rule(path, WORK)));
    rules
}

fn root(raise: &Raise) -> Result<Root, Error> {
    let real =
        |path: &Path| path.canonicalize().map_err(Error::backend("find a layer of the sandbox"));
    let mut root = layout::over_trees(&raise.spec, &raise.trees)?;
    root.hostname.clone_from(&raise.name);
    for tree in &mut root.trees {
        // Resolved here, so that no link is followed when they are opened.
        (tree.upper, tree.work) = (real(&tree.upper)?, real(&tree.work)?);
        tree.lowers = tree.lowers.iter().map(|one| real(one)).collect::<Result<_, _>>()?;
    }
    if let Some(shared) = &raise.workspace {
        root.binds.push(Bind {
            // One that was looked at before is not resolved again: whoever writes above it could lead us elsewhere.
            source: match shared.identity {
                Some(_) => shared.path.clone(),
                None => real(&shared.path)?,
            },
            target: PathBuf::from(WORKSPACE),
            kind: if shared.writable {
                BindKind::WritableDirectory
            } else {
                BindKind::ReadOnlyDirectory
            },
            identity: shared.identity,
        });
    }
    let (bytes, inodes) = (raise.spec.limits.disk_bytes, raise.spec.limits.inodes);
    root.bound = Some(match &raise.disk {
        DiskBound::Measured => Bound::Measured { bytes, inodes },
        DiskBound::FileSystem(mounted) => {
            Bound::FileSystem { mounted: real(mounted)?, bytes, inodes }
        }
    });
    Ok(root)
}

/// What whoever finds it later must know.
fn write_down(engine: &Engine, raise: &Raise, planned: &Planned) -> Result<(), Error> {
    let raised = Raised {
        sandbox: raise.name.clone(),
        level: raise.spec.level,
        limits: raise.spec.limits,
        environment: planned.plan.program.environment.clone(),
        secrets: raise.spec.secrets.clone(),
        allow_syscalls: raise.spec.allow_syscalls.clone(),
        deny_syscalls: raise.spec.deny_syscalls.clone(),
        refuse_unix_sockets: raise.workspace.is_some(),
        egress: raise.spec.egress.clone(),
        ends_tls: raise.spec.sealing.as_ref().is_some_and(|one| one.ends_tls()),
        missing: planned.missing.clone(),
        spec_digest: raise.spec.digest(),
        versions: Versions {
            belljar: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: engine.host().kernel.clone(),
            interpreter: String::new(),
        },
    };
    let write = || -> io::Result<()> {
        match fs::remove_file(raise.directory.join(ENDED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        // Nothing of it runs now: what has no end will never have one.
        kept::lose_open(&raise.directory)?;
        let new = raise.directory.join(format!("{RAISED}.new"));
        fs::write(&new, serde_json::to_vec(&raised)?)?;
        fs::rename(new, raise.directory.join(RAISED))
    };
    write().map_err(Error::backend("write down how the sandbox is raised"))
}

/// Checks what is asked of an exec, and says it in the keeper's words.
pub(super) fn order(
    id: &str,
    request: &ExecRequest,
    raised: &Raised,
    given: &[Given],
) -> Result<Order, Error> {
    let wrong = |field: &str, reason: &str| Err(SpecError::new(field, reason).into());
    if request.user.as_deref().is_some_and(|user| user != USER) {
        return wrong("user", "must be sandbox, the one user there is");
    }
    let directory = request.cwd.clone().unwrap_or_else(|| PathBuf::from(WORKSPACE));
    if !directory.is_absolute() || directory.as_os_str().as_encoded_bytes().contains(&0) {
        return wrong("cwd", "must be an absolute path inside");
    }
    if request.terminal.is_some_and(|size| size.rows == 0 || size.columns == 0) {
        return wrong("terminal", "must have at least one row and one column");
    }
    if request.terminal.is_some() && request.stdin.is_some() {
        return wrong("stdin", "has no meaning with a terminal: write to it once it runs");
    }
    let limits = LimitsRequest { wall_ms: request.timeout_ms, ..LimitsRequest::default() };
    // The same checks as of a run, under the names that an exec has.
    let run = RunRequest {
        command: Some(request.cmd.clone()),
        env: request.env.clone(),
        limits,
        ..RunRequest::default()
    };
    Spec::resolve(run, None).map_err(|error| match error.field.as_str() {
        "command" => SpecError::new("cmd", error.reason),
        "limits.wall_ms" | "wall_ms" => SpecError::new("timeout_ms", error.reason),
        _ => error,
    })?;
    let mut environment: std::collections::BTreeMap<_, _> =
        raised.environment.iter().cloned().collect();
    environment.extend(request.env.clone());
    let mut taken = raised.secrets.iter().map(SecretRequest::variable);
    if let Some(variable) = taken.find(|name| request.env.contains_key(name)) {
        return wrong("env", &format!("has {variable}, which is a secret of the sandbox"));
    }
    if request.terminal.is_some() {
        environment.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
    }
    let program = request.cmd.first().map_or("", String::as_str);
    let search = environment.get("PATH").map_or(PATH, String::as_str);
    let wall_ms = request.timeout_ms.unwrap_or(raised.limits.wall_ms);
    Ok(Order {
        exec: id.to_owned(),
        paths: paths(program, search),
        argv: request.cmd.clone(),
        environment: environment.into_iter().collect(),
        // What stays outside is not for the processes that read this; the keeper hides it all the same.
        secrets: inside(given).map(secret).collect(),
        hidden: inside(given).flat_map(Given::hidden).map(ToOwned::to_owned).collect(),
        directory,
        wall_ms,
        cpu_ms: raised.limits.cpu_ms.max(if request.timeout_ms.is_some() { wall_ms } else { 0 }),
        terminal: request.terminal.map(|size| (size.rows, size.columns)),
        keep_stdin: request.keep_stdin || request.stdin.is_some(),
        note: serde_json::Value::Null,
    })
}

/// Those whose values programs have.
fn inside(given: &[Given]) -> impl Iterator<Item = &Given> {
    given.iter().filter(|one| one.mode != SecretMode::Placeholder)
}

fn secret(given: &Given) -> (String, String) {
    (given.variable.clone(), given.value.reveal().to_owned())
}

/// What must be hidden of them.
pub(super) fn hidden(given: &[Given]) -> Hidden {
    let outside = given.iter().filter(|one| one.mode == SecretMode::Placeholder);
    Hidden {
        inside: inside(given).flat_map(Given::hidden).map(ToOwned::to_owned).collect(),
        outside: outside.flat_map(Given::hidden).map(ToOwned::to_owned).collect(),
    }
}

/// Where a program of that name may be: looked for inside, when it is started.
fn paths(program: &str, search: &str) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![PathBuf::from(program)];
    }
    search.split(':').map(|one| Path::new(one).join(program)).collect()
}

/// Why an exec was not released.
pub(super) fn explain(failed: Failed, order: &Order) -> Error {
    let Failed { stopped, checks } = failed;
    if stopped.step == Step::ReadBack && !checks.is_empty() {
        return Error::NotVerified { checks };
    }
    if stopped.step == Step::Directory {
        let reason = format!("{}: {}", order.directory.display(), stopped.errno_name());
        return SpecError::new("cwd", reason).into();
    }
    let what = order.argv.first().cloned().unwrap_or_default();
    Error::Setup { step: stopped.step, errno: stopped.errno_name(), what, hint: None }
}

pub(super) fn explain_agent(failed: Failed) -> Error {
    let Failed { stopped, checks } = failed;
    if stopped.step == Step::ReadBack && !checks.is_empty() {
        return Error::NotVerified { checks };
    }
    let what = "a file agent".to_owned();
    Error::Setup { step: stopped.step, errno: stopped.errno_name(), what, hint: None }
}
