//! Spec to Plan: every choice is made here, in ordinary code, before anything is started.

use std::path::{Path, PathBuf};

use belljar_jail::egress::EgressPlan;
use belljar_jail::layer::Layer;
use belljar_jail::plan::{
    Cgroup, Fault, Files, Hold, Identity, Landlock, LandlockRule, Lockdown, Placed, Plan, Program,
    Resource, Rlimit, Root, Scratch, Text, pack,
};
use belljar_sys::landlock::{SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL, access};

use super::cgroups::{self, Places};
use super::host::Host;
use super::layout::{self, HostWorkspace, WITNESS, WRITABLE};
use crate::egress;
use crate::events::{self, Recorded, Rules};
use crate::languages::{Interpreter, Language, Warm};
use crate::model::error::{Error, SpecError};
use crate::model::level::Level;
use crate::model::receipt::Missing;
use crate::model::spec::{self, CODE, Spec, WORKSPACE};
use crate::seccomp::{self, Adjust, Hearing, Profile};
use crate::secrets::TRUST;

/// The sandbox's own search path; the host's is the host's business.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a plan is made from.
pub(crate) struct Inputs<'a> {
    pub id: &'a str,
    /// Names the run's cgroup and scratch directory; see [`super::sweep`].
    pub name: &'a str,
    pub spec: &'a Spec,
    pub host: &'a Host,
    /// Where the run's cgroup is made, or why it cannot be.
    pub cgroups: &'a Result<Places, String>,
    pub language: Option<&'a Language>,
    pub interpreter: Option<&'a Interpreter>,
    pub workspace: Option<&'a HostWorkspace>,
    pub identity: Identity,
    pub keep_workspace: bool,
    /// Make a sandbox that waits, and what waits in it.
    pub hold: Option<Hold>,
    pub zygote_uid: Option<u32>,
    pub egress: Option<EgressPlan>,
    pub fault: Option<Fault>,
}

/// A plan, and what the level would have had but the request allows to be absent.
#[derive(Clone)]
pub(crate) struct Planned {
    pub plan: Plan,
    pub missing: Vec<Missing>,
}

pub(crate) fn make(inputs: &Inputs<'_>) -> Result<Planned, Error> {
    let spec = inputs.spec;
    let (expect, missing) = layers(inputs)?;
    let places = Paths::new(inputs);
    let mut files = files(inputs)?;
    let mut program = program(spec, inputs.language, inputs.interpreter, &places)?;
    if let (Some(Hold::Started), Some(warm)) = (inputs.hold, warm_of(inputs)) {
        program.argv = waiting(&program, warm);
        if let Files::Root(root) = &mut files {
            let (path, contents) = (script_path(warm), warm.text.clone());
            root.texts.push(Text { path, contents });
        }
    }
    let cgroup = expect.contains(&Layer::CgroupMemory).then(|| cgroup(inputs)).flatten();
    let lockdown = match spec.level {
        Level::None => None,
        Level::Basic | Level::Standard | Level::Strict | Level::Maximum => {
            Some(lockdown(inputs, &places, &files, &expect)?)
        }
    };
    let plan = Plan {
        id: inputs.id.to_owned(),
        identity: inputs.identity.clone(),
        files,
        cgroup,
        lockdown,
        program,
        placed: spec.all_placed().map(|file| placed(&file.path, inputs, &places)).collect(),
        wall_ms: spec.limits.wall_ms,
        cpu_ms: spec.limits.cpu_ms,
        millicpus: spec.limits.millicpus,
        expect,
        keep_workspace: inputs.keep_workspace,
        hold: inputs.hold,
        egress: inputs.egress.clone(),
        sealed: spec.sealing.is_some(),
        owner_uid: inputs.zygote_uid,
        fault: inputs.fault,
    };
    Ok(Planned { plan, missing })
}

/// The layers that must be found in place, and those that the request lets go.
fn layers(inputs: &Inputs<'_>) -> Result<(Vec<Layer>, Vec<Missing>), Error> {
    let (spec, host) = (inputs.spec, inputs.host);
    let mut expect = spec.level.layers();
    let mut missing = Vec::new();
    let unavailable = |missing: String, hint: String| {
        Err(Error::Unavailable { level: spec.level, missing, hint })
    };
    let mut let_go = |layer: Layer, stand_in: &str| {
        let before = expect.len();
        expect.retain(|one| *one != layer);
        if expect.len() < before {
            missing.push(Missing { name: layer, stand_in: stand_in.to_owned() });
        }
    };
    let may_lack = |layer: Layer| spec.allow_missing.contains(&layer);
    if let Err(why) = inputs.cgroups
        && spec.level.has_namespaces()
    {
        if !may_lack(Layer::CgroupMemory) {
            let hint = "run \"belljar doctor\" for the command that delegates one, or say \
                        --allow-missing cgroup to let per-process limits stand in";
            return unavailable(format!("a cgroup: {why}"), hint.to_owned());
        }
        let_go(Layer::CgroupMemory, "RLIMIT_DATA: bounds each process, not the run");
        let_go(Layer::CgroupPids, "RLIMIT_NPROC: bounds the run's user namespace");
        let_go(
            Layer::CgroupCpu,
            "none: the run may use every core; the keeper counts the time of its processes",
        );
    }
    let abi = host.landlock_abi.unwrap_or(0);
    if spec.level >= Level::Basic && abi == 0 {
        if !may_lack(Layer::Landlock) || spec.level == Level::Basic {
            let hint = "boot with landlock in lsm= (Linux 5.13 or later)".to_owned();
            return unavailable("Landlock".to_owned(), hint);
        }
        let_go(Layer::Landlock, "none: the private root is the only wall around files");
    }
    if spec.level == Level::Basic && abi < 6 {
        if host.is_root() {
            let_go(Layer::Scopes, "a host id of its own: nobody else's processes can be signalled");
        } else if may_lack(Layer::Scopes) {
            let_go(Layer::Scopes, "none: the caller's other processes can be signalled");
        } else {
            let hint = "Linux 6.12 or later has them; level standard does not need them; \
                        --allow-missing scopes leaves them out";
            let what = "Landlock's bounds on signals (ABI 6)".to_owned();
            return unavailable(what, hint.to_owned());
        }
    }
    if spec.level == Level::Strict && !host.is_root() && may_lack(Layer::UidPerRun) {
        let_go(Layer::UidPerRun, "the caller's own id, in a user namespace of its own");
    }
    Ok((expect, missing))
}

/// How paths inside are spelled where the program really runs.
struct Paths {
    /// Set for levels that have no root of their own.
    scratch: Option<PathBuf>,
    host_workspace: Option<PathBuf>,
}

impl Paths {
    fn new(inputs: &Inputs<'_>) -> Self {
        let level = inputs.spec.level;
        let scratch = (!level.has_namespaces()).then(|| scratch(inputs).path());
        let host_workspace = inputs.workspace.map(|one| one.path.clone());
        Self { scratch, host_workspace }
    }

    fn real(&self, inside: &Path) -> PathBuf {
        let Some(scratch) = &self.scratch else {
            return inside.to_owned();
        };
        if let (Some(host), Ok(rest)) = (&self.host_workspace, inside.strip_prefix(WORKSPACE)) {
            return join(host, rest);
        }
        let moved = WRITABLE.iter().chain(&[("code", CODE)]).find_map(|(name, target)| {
            inside.strip_prefix(target).ok().map(|rest| join(&scratch.join(name), rest))
        });
        moved.unwrap_or_else(|| inside.to_owned())
    }
}

/// `join` that leaves no slash at the end when there is nothing to join.
fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

fn scratch(inputs: &Inputs<'_>) -> Scratch {
    let directories = WRITABLE.iter().map(|(name, _)| (*name).to_owned());
    Scratch {
        parent: inputs.host.scratch_parent.clone(),
        name: inputs.name.to_owned(),
        directories: directories.chain(["code".to_owned()]).collect(),
    }
}

fn files(inputs: &Inputs<'_>) -> Result<Files, Error> {
    if inputs.spec.level.has_namespaces() {
        check_not_covered(inputs)?;
        let root = layout::root(inputs.spec, inputs.interpreter, inputs.workspace)?;
        return Ok(Files::Root(root));
    }
    Ok(Files::Host { scratch: scratch(inputs) })
}

/// The sandbox's own writable places cover what the host has there.
fn check_not_covered(inputs: &Inputs<'_>) -> Result<(), SpecError> {
    let prefix = inputs.interpreter.and_then(|one| one.prefix.as_deref());
    let covered = |path: &&Path| WRITABLE.iter().any(|(_, target)| path.starts_with(target));
    prefix.filter(covered).map_or(Ok(()), |path| {
        let reason = format!(
            "has its interpreter in {}, where the sandbox has a place of its own: move it elsewhere",
            path.display()
        );
        Err(SpecError::new("language", reason))
    })
}

fn cgroup(inputs: &Inputs<'_>) -> Option<Cgroup> {
    let places = inputs.cgroups.as_ref().ok()?;
    Some(cgroups::plan(places, inputs.name, &inputs.spec.limits))
}

fn lockdown(
    inputs: &Inputs<'_>,
    paths: &Paths,
    files: &Files,
    expect: &[Layer],
) -> Result<Lockdown, Error> {
    let Rules { profile, adjust, hearing } = rules(inputs.spec);
    let filter = seccomp::compile(profile, &adjust, hearing)
        .map_err(|unknown| SpecError::new("allow_syscalls", unknown.to_string()))?;
    let landlock = expect.contains(&Layer::Landlock).then(|| Landlock {
        abi: inputs.host.landlock_abi.unwrap_or(0),
        rules: match files {
            Files::Root(root) => rules_inside(inputs, root),
            Files::Host { .. } => rules_on_host(inputs, paths),
        },
        scopes: if expect.contains(&Layer::Scopes) {
            SCOPE_SIGNAL | SCOPE_ABSTRACT_UNIX_SOCKET
        } else {
            0
        },
        witness: PathBuf::from(match files {
            Files::Root(_) => WITNESS,
            Files::Host { .. } => "/proc/version",
        }),
    });
    Ok(Lockdown {
        rlimits: rlimits(inputs, expect),
        landlock,
        filter: filter.into_iter().map(pack).collect(),
        listen: Some(events::listen(match hearing {
            Hearing::Record => Recorded::Yes,
            Hearing::Nothing | Hearing::Refusals => Recorded::No,
        })),
    })
}

/// Which filter a Spec asks for.
pub(crate) fn rules(spec: &Spec) -> Rules {
    let profile = match spec.level {
        Level::None | Level::Basic => Profile::Basic,
        Level::Standard => Profile::Standard,
        Level::Strict | Level::Maximum => Profile::Strict,
    };
    let adjust = Adjust {
        allow: spec.allow_syscalls.clone(),
        deny: spec.deny_syscalls.clone(),
        refuse_unix_sockets: spec.workspace.is_some(),
    };
    let hearing = if spec.record { Hearing::Record } else { Hearing::Refusals };
    Rules { profile, adjust, hearing }
}

const LOOK: u64 = access::READ_FILE | access::READ_DIR;
pub(crate) const USE: u64 = LOOK | access::EXECUTE;
const DEVICE: u64 = LOOK | access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV;
/// What the kernel looks for on every open, beside what was asked for: where it is not granted it walks on up to the
/// root, which costs a fifth of a microsecond each time. In our own root the system's trees are read-only and have no
/// devices, and its files are not the program's, so neither right is of use there.
const SOUGHT: u64 = access::TRUNCATE | access::IOCTL_DEV;
/// Everything but making device nodes.
pub(crate) const WORK: u64 = USE
    | access::WRITE_FILE
    | access::REMOVE_DIR
    | access::REMOVE_FILE
    | access::MAKE_DIR
    | access::MAKE_REG
    | access::MAKE_SOCK
    | access::MAKE_FIFO
    | access::MAKE_SYM
    | access::REFER
    | access::TRUNCATE
    | access::IOCTL_DEV;

const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

pub(crate) fn rule(path: impl Into<PathBuf>, access: u64) -> LandlockRule {
    LandlockRule { path: path.into(), access }
}

/// The second wall inside a root of our own: what is shown may be read, what is writable written.
fn rules_inside(inputs: &Inputs<'_>, root: &Root) -> Vec<LandlockRule> {
    // Listing is harmless: nothing is in this root that was not put there to be seen.
    let mut rules = vec![rule("/", access::READ_DIR)];
    rules.extend(SYSTEM.map(|path| rule(path, USE | SOUGHT)));
    rules.extend(["/etc", "/proc", CODE].map(|path| rule(path, LOOK)));
    rules.push(rule("/dev", DEVICE));
    rules.extend(root.writable.directories.iter().map(|one| rule(&one.target, WORK)));
    rules.extend(outside_rules(inputs, &PathBuf::from(WORKSPACE)));
    rules
}

/// The only wall around files at basic: the host's own tree, and little of it.
fn rules_on_host(inputs: &Inputs<'_>, paths: &Paths) -> Vec<LandlockRule> {
    let mut rules: Vec<LandlockRule> = Vec::new();
    let shown = layout::root(inputs.spec, inputs.interpreter, None).map(|root| root.binds);
    for bind in shown.unwrap_or_default() {
        let is_file = bind.kind == belljar_jail::plan::BindKind::ReadOnlyFile;
        let wanted = if bind.target.starts_with("/etc") { LOOK } else { USE };
        rules.push(rule(bind.source, if is_file { wanted & access::ON_FILES } else { wanted }));
    }
    let devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    rules.extend(devices.map(|path| rule(path, DEVICE & access::ON_FILES)));
    rules.extend(["/proc/cpuinfo", "/proc/meminfo"].map(|path| rule(path, access::READ_FILE)));
    rules.extend(
        ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts"]
            .map(|path| rule(path, access::READ_FILE)),
    );
    for (name, _) in WRITABLE.iter().chain(&[("code", "")]) {
        rules.extend(paths.scratch.as_ref().map(|top| rule(top.join(name), WORK)));
    }
    let workspace = paths.host_workspace.clone().unwrap_or_default();
    rules.extend(outside_rules(inputs, &workspace));
    rules.retain(|one| !inputs.spec.block_paths.iter().any(|path| one.path.starts_with(path)));
    rules
}

/// The interpreter's prefix and the host's workspace, wherever they are.
fn outside_rules(inputs: &Inputs<'_>, workspace: &Path) -> Vec<LandlockRule> {
    let mut rules = Vec::new();
    if let Some(prefix) = inputs.interpreter.and_then(|one| one.prefix.as_deref()) {
        rules.push(rule(prefix, USE));
    }
    if let Some(shared) = inputs.workspace {
        rules.push(rule(workspace, if shared.writable { WORK } else { USE }));
    }
    rules
}

/// Signals that wait and timers, of all processes of the program. A user namespace has a count of its own, but each one
/// counts for who made it too: without a bound a program takes the caller's, which may be root's.
const PENDING_SIGNALS: u64 = 1024;

fn rlimits(inputs: &Inputs<'_>, expect: &[Layer]) -> Vec<Rlimit> {
    let limits = &inputs.spec.limits;
    let limit = |resource, value| Rlimit { resource, value };
    let grouped = expect.contains(&Layer::CgroupMemory);
    // The keeper counts the time of all processes. This one only backs it up, and well above: it counts
    // clock ticks, which on a busy host run ahead of the time that was really used.
    let cpu_seconds = 2 * limits.cpu_ms.div_ceil(1000) + 1;
    let mut all = vec![
        limit(Resource::Core, 0),
        limit(Resource::CpuSeconds, cpu_seconds),
        limit(Resource::FileBytes, limits.file_bytes),
        limit(Resource::OpenFiles, limits.open_files),
        limit(Resource::MessageQueueBytes, 0),
        limit(Resource::LockedBytes, 64 << 10),
        limit(Resource::PendingSignals, PENDING_SIGNALS),
    ];
    if !grouped {
        all.push(limit(Resource::DataBytes, limits.memory_bytes));
        all.push(limit(Resource::Processes, process_bound(inputs)));
    }
    all
}

/// RLIMIT_NPROC counts by user. A fresh user namespace or an id of its own counts from zero (init is
/// one); the caller's own id at basic counts all that the caller runs already.
fn process_bound(inputs: &Inputs<'_>) -> u64 {
    let limit = inputs.spec.limits.processes;
    match inputs.identity {
        Identity::Mapped { .. } => limit + 1,
        Identity::Host { .. } => limit,
        Identity::Caller => limit + running_of(inputs.host.uid),
    }
}

fn running_of(uid: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.metadata().is_ok_and(|one| one.uid() == uid));
    own.map(|entry| {
        std::fs::read_dir(entry.path().join("task")).map_or(0, |tasks| tasks.count() as u64)
    })
    .sum()
}

fn warm_of<'a>(inputs: &Inputs<'a>) -> Option<&'a Warm> {
    inputs.language.and_then(|language| language.warm.as_ref())
}

/// Where an interpreter in its sandbox finds what it runs until its program comes.
fn script_path(warm: &Warm) -> PathBuf {
    Path::new(CODE).join(&warm.script)
}

/// The arguments that make an interpreter wait for a program.
fn waiting(program: &Program, warm: &Warm) -> Vec<String> {
    let script = script_path(warm).to_string_lossy().into_owned();
    let file = program.argv.get(1).cloned().unwrap_or_default();
    let own = warm.start.iter().map(|one| {
        one.replace("{text}", &warm.text).replace("{script}", &script).replace("{file}", &file)
    });
    let name = program.argv.first().cloned();
    name.into_iter().chain(own).chain(warm.modules.iter().cloned()).collect()
}

/// What a delivery says of a program that runs in a root of its own.
pub(crate) fn invocation(
    spec: &Spec,
    language: Option<&Language>,
    interpreter: Option<&Interpreter>,
) -> Result<Program, Error> {
    program(spec, language, interpreter, &Paths { scratch: None, host_workspace: None })
}

fn program(
    spec: &Spec,
    language: Option<&Language>,
    interpreter: Option<&Interpreter>,
    paths: &Paths,
) -> Result<Program, Error> {
    let (path, mut argv) = match &spec.program {
        spec::Program::Code { path, .. } => {
            let (Some(language), Some(interpreter)) = (language, interpreter) else {
                return Err(SpecError::new("language", "must be given with code").into());
            };
            let file = paths.real(path).to_string_lossy().into_owned();
            let shown = interpreter.path.to_string_lossy().into_owned();
            let rest = language.args.iter().map(|one| one.replace("{file}", &file));
            (interpreter.path.clone(), [shown].into_iter().chain(rest).collect::<Vec<_>>())
        }
        spec::Program::Command { argv } => {
            let first = argv.first().map_or("", String::as_str);
            (find_command(first, paths), argv.clone())
        }
    };
    argv.extend(spec.args.iter().cloned());
    Ok(Program {
        path,
        argv,
        environment: environment(spec, language, paths),
        directory: paths.real(Path::new(WORKSPACE)),
    })
}

/// A bare name is looked up as the sandbox would; a path is taken as it is.
fn find_command(name: &str, paths: &Paths) -> PathBuf {
    if name.contains('/') {
        return paths.real(Path::new(name));
    }
    let found = PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| Path::new("/usr/bin").join(name))
}

fn environment(spec: &Spec, language: Option<&Language>, paths: &Paths) -> Vec<(String, String)> {
    let real = |path: &str| paths.real(Path::new(path)).to_string_lossy().into_owned();
    let mut all = std::collections::BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), real("/home/sandbox")),
        ("TMPDIR".to_owned(), real("/tmp")),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("USER".to_owned(), "sandbox".to_owned()),
    ]);
    if !spec.egress.is_empty() {
        all.extend(egress::variables());
    }
    all.extend(spec.sealing.iter().flat_map(|one| one.variables()));
    all.extend(language.map(|one| one.environment.clone()).unwrap_or_default());
    all.extend(spec.variables().map(|(name, value)| (name.clone(), value.to_owned())));
    all.into_iter().collect()
}

fn placed(path: &Path, inputs: &Inputs<'_>, paths: &Paths) -> Placed {
    let command = match &inputs.spec.program {
        spec::Program::Command { argv } => argv.first().map(PathBuf::from),
        spec::Program::Code { .. } => None,
    };
    let executable = command.as_deref() == Some(path);
    Placed { path: paths.real(path), executable, read_only: path.starts_with(TRUST) }
}
