//! What a run refuses, an exec of a living sandbox refuses.

use belljar::attack::fixture::Fixture;
use belljar::attack::{Attempt, Probe, ROLE, collect, collect_outcome, request};
use belljar::sandbox::{ExecRequest, SandboxRequest};
use belljar::{Level, LimitsRequest, RunRequest, Verdict};
use belljar_tests::{Program, block_on, is_root};

use crate::rig::House;

/// What a living sandbox lets programs do by design: these files are its own overlay's, and the host's are not touched.
const OWN_FILES: [&str; 2] = ["create_in_root", "create_in_usr"];

/// What is measured, not prevented: it is found some 20 ms later, by `limits::too_many_files_are_a_limit_too`, or at the end of
/// the exec, by `limits::a_limit_of_files_holds_to_the_end_of_an_exec_that_is_quicker_than_it_is_measured`; the probe may have
/// removed its files by then.
const MEASURED: [&str; 1] = ["inode_bomb"];

fn try_all(level: Level) {
    let mut wanted = SandboxRequest { level, ..Default::default() };
    wanted.limits = LimitsRequest { wall_ms: Some(120_000), ..Default::default() };
    if level == Level::Strict && !is_root() {
        wanted.allow_missing = vec!["uid_per_run".to_owned()];
    }
    let house = House::with(&wanted, |_| {});
    let prepared = Fixture::prepare().expect("the host side can be prepared");
    let all = request(&house.engine, level, "all", &prepared).expect("a request");
    let run = block_on(
        house.engine.run(RunRequest { allow_missing: wanted.allow_missing.clone(), ..all }),
    );
    let run = collect_outcome(&run.expect("the attacker runs"));
    let fixture = serde_json::to_string(&prepared.at(level.name())).expect("plain data");
    let attacker = house.raise.trees[0].upper.join("workspace/attacker");
    // By another process: a start in another test would keep a file of ours busy for a moment.
    let copied = Program::new("/bin/cp").args([&belljar_tests::belljar_bin(), &attacker]).run();
    assert_eq!(copied.code, Some(0), "{copied:?}");
    let (uid, gid) = house.raise.owner;
    std::os::unix::fs::chown(&attacker, Some(uid), Some(gid)).expect("given");
    let host_usr = listing("/usr");
    let (tried, _) = attack(&house, "all", &fixture);
    assert_eq!(tried.len(), run.len());
    let mut wrong = Vec::new();
    for ((probe, attempt), (_, in_run)) in tried.iter().zip(&run) {
        if in_run.stopped_by().is_none()
            || attempt.stopped_by().is_some()
            || OWN_FILES.contains(&probe.name)
            || MEASURED.contains(&probe.name)
        {
            continue;
        }
        // One before it ended them all, by a limit of the sandbox: once more, alone.
        let (alone, limited) = attack(&house, probe.name, &fixture);
        let again =
            alone.iter().find(|(one, _)| one.name == probe.name).map(|(_, attempt)| attempt);
        if !limited && again.is_none_or(|again| again.stopped_by().is_none()) {
            wrong
                .push(format!("{}: {attempt:?}, alone {again:?}, in a run {in_run:?}", probe.name));
        }
        house.bash(
            &format!("clear-{}", probe.name.replace('_', "-")),
            "find /workspace /tmp -mindepth 1 ! -name attacker -delete",
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(listing("/usr"), host_usr);
    house.bash("after", "true").ok();
}

/// Tries one probe or all; and whether a limit of the sandbox ended it.
fn attack(house: &House, which: &str, fixture: &str) -> (Vec<(&'static Probe, Attempt)>, bool) {
    let cmd = ["/workspace/attacker", ROLE, which, fixture].map(ToOwned::to_owned).to_vec();
    let came = house.run(&which.replace('_', "-"), &ExecRequest { cmd, ..Default::default() });
    let memory = matches!(came.end().verdict, Verdict::MemoryLimit { .. });
    let limited = memory || matches!(came.end().verdict, Verdict::DiskLimit { .. });
    (collect(&came.text(), memory.then_some("SIGKILL")), limited)
}

fn listing(directory: &str) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<_> = entries.map(|one| one.file_name()).collect();
    names.sort();
    names
}

#[test]
fn every_probe_is_refused_as_in_a_run_at_standard() {
    try_all(Level::Standard);
}

#[test]
fn every_probe_is_refused_as_in_a_run_at_strict() {
    try_all(Level::Strict);
}

#[test]
fn init_and_shepherds_cannot_be_looked_into() {
    let house = House::new();
    let script = "for p in 1 $PPID; do cat /proc/$p/environ /proc/$p/maps 2>&1; ls /proc/$p/fd /proc/$p/root/ 2>&1; \
                  done | grep -vc 'Permission denied'; kill -9 1; kill -0 1 && echo lives";
    let came = house.bash("looks", script);
    assert_eq!(came.text(), "0\nlives\n", "{came:?}");
}

#[test]
fn a_link_that_a_program_made_leads_no_mount_astray() {
    use std::os::unix::fs::symlink;
    let house = House::new();
    house.bash("a", "true").ok();
    tokio_stop(&house);
    let upper = &house.raise.trees[0].upper;
    // As an imported point could have it.
    let outside = house.directory.join("outside");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::remove_dir(upper.join("proc")).ok();
    symlink(&outside, upper.join("proc")).expect("a link");
    let error = block_on(belljar::runtime::raise(&house.engine, house.raise.clone()))
        .expect_err("it is not raised");
    assert!(error.to_string().contains("ELOOP"), "{error}");
    assert_eq!(std::fs::read_dir(&outside).expect("a directory").count(), 0);
}

fn tokio_stop(house: &House) {
    block_on(house.living.stop(std::time::Duration::from_secs(5))).expect("it stops");
}
