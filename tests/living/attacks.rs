//! What a run refuses, an exec of a living sandbox refuses.

use belljar::attack::fixture::Fixture;
use belljar::attack::{ROLE, collect, collect_outcome, request};
use belljar::sandbox::{ExecRequest, SandboxRequest};
use belljar::{Level, LimitsRequest, RunRequest, Verdict};
use belljar_tests::{block_on, is_root};

use crate::rig::House;

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
    std::fs::copy(belljar_tests::belljar_bin(), &attacker).expect("a copy");
    let (uid, gid) = house.raise.owner;
    std::os::unix::fs::chown(&attacker, Some(uid), Some(gid)).expect("given");
    let cmd = ["/workspace/attacker", ROLE, "all", &fixture].map(ToOwned::to_owned).to_vec();
    let came = house.run("attack", &ExecRequest { cmd, ..Default::default() });
    let memory = matches!(came.end().verdict, Verdict::MemoryLimit { .. });
    let tried = collect(&came.text(), memory.then_some("SIGKILL"));
    assert_eq!(tried.len(), run.len(), "{came:?}");
    let mut wrong = Vec::new();
    for ((probe, attempt), (_, in_run)) in tried.iter().zip(&run) {
        if in_run.stopped_by().is_some() && attempt.stopped_by().is_none() {
            wrong.push(format!("{}: {attempt:?}, in a run {in_run:?}", probe.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    house.bash("after", "true").ok();
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
