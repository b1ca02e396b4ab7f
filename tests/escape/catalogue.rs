//! The catalogue of probes, layer by layer: what each level promises against each act.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use belljar::RunRequest;
use belljar::attack::fixture::Fixture;
use belljar::attack::{
    Attempt, CATALOGUE, Control, Expect, HIDDEN, Probe, ROLE, Shown, collect, collect_outcome,
    expected, layer_at, request, shown,
};
use belljar_tests::{LEVELS, Layer, Level, Program, asked, block_on, engine, is_root, warm};

/// How every probe ended, in the order of the catalogue.
type Tried = Vec<(&'static Probe, Attempt)>;

/// One at a time: probes of resources would disturb each other's clocks.
static TURN: Mutex<()> = Mutex::new(());

/// What every probe comes to at a level; tried once for all tests.
fn inside(level: Level) -> &'static Tried {
    static TRIED: [OnceLock<Tried>; 4] = [const { OnceLock::new() }; 4];
    let index = LEVELS.iter().position(|one| *one == level);
    TRIED[index.expect("a level that runs")].get_or_init(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = Fixture::prepare().expect("the host side can be prepared");
        let engine = engine();
        let all = request(&engine, level, "all", &prepared).expect("a request");
        let outcome = block_on(engine.run(carried(all))).expect("the attacker runs");
        collect_outcome(&outcome)
    })
}

/// The attacker as this pass wants it. A sandbox that waits runs code, not a command, so there a program
/// that was delivered like any other becomes the attacker.
fn carried(mut request: RunRequest) -> RunRequest {
    if warm::server().is_some() && warm::level_has_pool(request.level) {
        let argv = request.command.take().expect("the attacker is a command");
        // Python ignores two signals, and what is ignored stays so.
        let code = "import os, signal, sys\nfor number in (signal.SIGPIPE, signal.SIGXFSZ): \
                    signal.signal(number, signal.SIG_DFL)\n\
                    os.chmod(sys.argv[1], 0o700)\nos.execv(sys.argv[1], sys.argv[1:])";
        request.args = argv;
        (request.language, request.code) = (Some("python".to_owned()), Some(code.to_owned()));
    }
    asked(request)
}

/// What every probe comes to where nothing stands in its way: the control.
fn outside() -> &'static Tried {
    static TRIED: OnceLock<Tried> = OnceLock::new();
    TRIED.get_or_init(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = Fixture::prepare().expect("the host side can be prepared");
        let fixture = prepared.outside();
        let json = serde_json::to_string(&fixture).expect("a fixture is plain data");
        let ended = Program::belljar().directory(&fixture.scratch).args([ROLE, "all", &json]).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        collect(&ended.out(), None)
    })
}

/// Whether the act works outside; a probe that cannot show it here is no proof, but no fault either.
fn control(probe: &Probe) -> Result<Shown, String> {
    if probe.control != Control::Works {
        return Ok(Shown::NotHere);
    }
    let tried = outside().iter().find(|(one, _)| one.name == probe.name);
    let (_, attempt) = tried.expect("the whole catalogue was tried");
    let user = rustix::process::geteuid().as_raw();
    match shown(probe, user, attempt) {
        Shown::Broken => Err(format!("{}: outside it gives {attempt:?}", probe.name)),
        fine @ (Shown::Works | Shown::NotHere) => Ok(fine),
    }
}

/// Nothing, or what is wrong with how the probe ended at that level.
fn fault(probe: &Probe, level: Level, attempt: &Attempt) -> Option<String> {
    let promise = expected(probe, level.name())?;
    let outside = match control(probe) {
        Ok(outside) => outside,
        Err(why) => return Some(why),
    };
    let pointless = matches!(attempt, Attempt::NotApplicable { .. }) && outside == Shown::NotHere;
    let kept = pointless || promise.fits(attempt) && attempt.stopped_by() == exact(probe, level);
    (!kept).then(|| {
        let exactly = exact(probe, level);
        format!("{}: promised {promise:?}, here {exactly:?}, found {attempt:?}", probe.name)
    })
}

/// The one way in which the probe is stopped. The catalogue is for any host, and allows several where
/// they depend on it or on which layer comes first; here both are known.
fn exact(probe: &Probe, level: Level) -> Option<&'static str> {
    match expected(probe, level.name())? {
        Expect::Errno(name) | Expect::Absent(name) | Expect::Signal(name) => Some(name),
        Expect::Hidden => Some(HIDDEN),
        Expect::OneOf(_) => exact_of_several(probe.name, level),
    }
}

fn exact_of_several(probe: &str, level: Level) -> Option<&'static str> {
    Some(match (probe, level) {
        // The filter, where it refuses the call; otherwise an id that does not exist inside.
        ("become_root" | "become_root_group", Level::Standard) => "EINVAL",
        ("become_root" | "become_root_group", _) => "EPERM",
        ("make_block_device" | "make_char_device", _) => "EPERM",
        ("raise_priority", _) => "EACCES",
        // Nobody of that number is inside.
        (
            "join_victim" | "limit_victim" | "signal_victim_by_pidfd" | "take_victim_descriptor",
            _,
        ) => "ESRCH",
        // At strict /proc shows nothing that the program may not look into.
        ("join_mounts" | "join_net" | "read_secret_by_init_root", Level::Strict) => "ENOENT",
        ("join_mounts" | "join_net" | "read_secret_by_init_root", _) => "EACCES",
        // Basic has Landlock around the host's terminals; above it there is none to open.
        ("open_controlling_terminal", Level::Basic) => "EACCES",
        ("open_controlling_terminal", _) => "ENXIO",
        // The user's own secret may be linked, but not to where it would have other rights; of other
        // people's files the kernel itself allows no link (fs.protected_hardlinks).
        ("link_secret", Level::Basic) if !is_root() => "EXDEV",
        ("link_secret" | "link_system_file", _) => "EPERM",
        // The one that runs is busy before anybody asks for rights.
        ("open_own_program_for_writing", _) => "ETXTBSY",
        ("open_passwd_for_writing", _) => "EROFS",
        ("open_program_for_writing", _) => "EACCES",
        ("xattr_host_file", _) => "ENOENT",
        ("shared_memory", Level::Strict) => "EPERM",
        ("shared_memory", _) => "ENOENT",
        ("large_file" | "large_shared_memory", _) => "ENOSPC",
        ("memory_bomb", _) => "SIGKILL",
        ("host_tcp" | "host_tcp_mapped", _) => "ECONNREFUSED",
        ("world_tcp6", _) => "ENETUNREACH",
        ("leaked_descriptor", _) => "ENOENT",
        // Entries of /proc: closed by Landlock at basic, covered above it. What is opened for writing is
        // not the program's to write. A kernel without modules has no list of them.
        ("kallsyms", Level::Basic) | ("core_pattern" | "sysrq_trigger", _) => "EACCES",
        ("kallsyms" | "kcore" | "kmsg" | "proc_keys", _) => HIDDEN,
        ("modules", _) if Path::new("/proc/modules").exists() => HIDDEN,
        ("modules", _) => "ENOENT",
        _ => return None,
    })
}

fn name_of(layer: Layer) -> String {
    let name = serde_json::to_value(layer).expect("a layer has a name");
    name.as_str().expect("which is a word").to_owned()
}

/// Every probe that this layer stops at that level ends as promised.
fn holds(layer: Layer, level: Level) {
    let name = name_of(layer);
    let faults: Vec<String> = inside(level)
        .iter()
        .filter(|(probe, _)| layer_at(probe, level.name()) == name)
        .filter_map(|(probe, attempt)| fault(probe, level, attempt))
        .collect();
    let tried = promised(level).filter(|probe| layer_at(probe, level.name()) == name);
    assert!(tried.count() > 0, "no probe of {name} at {level}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn promised(level: Level) -> impl Iterator<Item = &'static Probe> {
    CATALOGUE.iter().filter(move |probe| expected(probe, level.name()).is_some())
}

/// `escape!(name, Layer::Which, [levels])`: every probe that the layer stops, one test a level.
macro_rules! escape {
    ($name:ident, $layer:expr, [$($level:ident),+]) => {
        mod $name {
            use super::*;

            $(
                #[test]
                fn $level() {
                    holds($layer, stringify!($level).parse().expect("a level of that name"));
                }
            )+
        }
    };
}

// What every level keeps.
escape!(callers_variables_do_not_arrive, Layer::Environment, [none, basic, standard, strict]);
escape!(callers_descriptors_do_not_arrive, Layer::Descriptors, [none, basic, standard, strict]);
// What basic adds.
escape!(terminal_and_session_are_not_the_callers, Layer::Session, [basic, standard, strict]);
escape!(limits_are_finite_and_cannot_be_raised, Layer::Rlimits, [basic, standard, strict]);
escape!(privileges_cannot_be_gained, Layer::NoNewPrivileges, [basic, standard, strict]);
escape!(no_capability_is_held, Layer::Capabilities, [basic, standard, strict]);
escape!(nobody_inside_is_root, Layer::Identity, [basic, standard, strict]);
escape!(host_files_are_closed_by_landlock, Layer::Landlock, [basic]);
escape!(sharp_edges_of_the_kernel_are_refused, Layer::Seccomp, [basic, standard, strict]);
// What standard adds.
escape!(ids_mean_nothing_outside, Layer::UserNamespace, [standard, strict]);
escape!(host_processes_are_out_of_sight, Layer::PidNamespace, [standard, strict]);
escape!(host_mounts_are_out_of_reach, Layer::MountNamespace, [standard, strict]);
escape!(host_network_is_out_of_reach, Layer::NetNamespace, [standard, strict]);
escape!(host_ipc_is_out_of_reach, Layer::IpcNamespace, [standard, strict]);
escape!(host_name_is_hidden, Layer::UtsNamespace, [standard, strict]);
escape!(host_control_groups_are_hidden, Layer::CgroupNamespace, [standard, strict]);
escape!(host_files_do_not_exist, Layer::Root, [standard, strict]);
escape!(kernel_files_are_covered, Layer::Proc, [standard, strict]);
escape!(host_devices_do_not_exist, Layer::Devices, [standard, strict]);
escape!(disk_is_bounded, Layer::Disk, [standard, strict]);
escape!(memory_is_bounded, Layer::CgroupMemory, [standard, strict]);
escape!(processes_are_bounded, Layer::CgroupPids, [standard, strict]);
escape!(processors_are_bounded, Layer::CgroupCpu, [standard, strict]);

/// Layers of the catalogue that have a test above: at all levels where a probe names them.
const FROM_BASIC: [Layer; 7] = [
    Layer::Session,
    Layer::Rlimits,
    Layer::NoNewPrivileges,
    Layer::Capabilities,
    Layer::Identity,
    Layer::Landlock,
    Layer::Seccomp,
];
const FROM_STANDARD: [Layer; 14] = [
    Layer::UserNamespace,
    Layer::PidNamespace,
    Layer::MountNamespace,
    Layer::NetNamespace,
    Layer::IpcNamespace,
    Layer::UtsNamespace,
    Layer::CgroupNamespace,
    Layer::Root,
    Layer::Proc,
    Layer::Devices,
    Layer::Disk,
    Layer::CgroupMemory,
    Layer::CgroupPids,
    Layer::CgroupCpu,
];

#[test]
fn no_probe_is_left_out() {
    for level in LEVELS {
        let mut tested = vec![Layer::Environment, Layer::Descriptors];
        if level >= Level::Basic {
            tested.extend(FROM_BASIC);
        }
        if level >= Level::Standard {
            tested.extend(FROM_STANDARD);
        }
        let tested: Vec<String> = tested.into_iter().map(name_of).collect();
        for probe in promised(level) {
            let layer = layer_at(probe, level.name());
            assert!(tested.iter().any(|one| one == layer), "{}: {layer}", probe.name);
        }
    }
}

#[test]
fn every_promise_has_one_exact_answer() {
    for level in LEVELS {
        for probe in promised(level) {
            let answer = exact(probe, level);
            let several = expected(probe, level.name());
            let fits = |name: &str| match several {
                Some(Expect::OneOf(names)) => names.contains(&name),
                _ => true,
            };
            assert!(answer.is_some_and(fits), "{} at {level}: {answer:?}", probe.name);
        }
    }
}

#[test]
fn most_acts_are_shown_to_work_outside() {
    let works = CATALOGUE.iter().filter(|probe| control(probe) == Ok(Shown::Works));
    let least = if is_root() { 100 } else { 40 };
    assert!(works.count() >= least, "{:#?}", outside());
}
