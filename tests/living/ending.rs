//! Ends: orderly, by force, of the keeper, and of whoever raised it.

use std::time::Duration;

use belljar::living_talk::EndReason;
use belljar::runtime::ended;
use belljar::sandbox::{ExecState, SandboxRequest};
use belljar_tests::{block_on, cgroup_directories, name_of, processes_with, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{House, bash, pause, until};

#[test]
fn a_stop_asks_first_and_kills_then() {
    let house = House::new();
    house.start("polite", &bash("trap 'echo bye; exit 0' TERM; sleep 100 & wait"));
    house.start("deaf", &bash("trap '' TERM; while :; do sleep 0.1; done"));
    until("both are there", || {
        block_on(house.living.usage()).is_ok_and(|used| used.processes >= Some(4))
    });
    block_on(house.living.stop(Duration::from_secs(1))).expect("it stops");
    assert_eq!(ended(&house.raise.directory).expect("why").reason, EndReason::Stopped);
    let polite = house.info("polite");
    assert_eq!((polite.stdout_bytes, polite.end.expect("an end").exit_code), (4, Some(0)));
    let deaf = house.info("deaf").end.expect("an end");
    assert_eq!(format!("{:?}", deaf.verdict), "Signaled { signal: 9 }");
}

#[test]
fn nothing_is_left_of_a_sandbox_that_was_killed() {
    // A name of its own: others are raised beside it.
    let name = "01KILLED";
    let house = House::with(&SandboxRequest::default(), |raise| name.clone_into(&mut raise.id));
    let own = || {
        cgroup_directories().into_iter().filter(|one| one.to_string_lossy().contains(name)).count()
    };
    assert_ne!(own(), 0);
    house.start("a", &bash("sleep 98761 & sleep 98761"));
    until("it runs", || !processes_with("98761").is_empty());
    block_on(house.living.kill()).expect("it is killed");
    assert!(processes_with("98761").is_empty());
    assert_eq!(ended(&house.raise.directory).expect("why").reason, EndReason::Killed);
    assert!(!house.raise.directory.join("keeper.sock").exists());
    assert_eq!(own(), 0);
}

/// The keeper of a sandbox: who listens on its socket.
fn keeper(house: &House) -> u32 {
    let inside =
        processes_with("98760").first().map(|(pid, _)| pid.as_raw_nonzero().get().cast_unsigned());
    let mut at = inside.expect("a process inside");
    while name_of(at) != "belljar-keeper" {
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).expect("a parent");
        let rest = &stat[stat.rfind(')').expect("a name") + 1..];
        at = rest
            .split_ascii_whitespace()
            .nth(1)
            .and_then(|one| one.parse().ok())
            .expect("a number");
        assert_ne!(at, 1, "no keeper of {:?}", house.raise.directory);
    }
    at
}

#[test]
fn a_killed_keeper_takes_all_along_and_files_stay() {
    let house = House::new();
    house.bash("writes", "echo kept > file").ok();
    house.start("a", &bash("echo begun; sleep 98760 & sleep 98760"));
    until("it runs", || processes_with("98760").len() >= 2);
    let keeper = Pid::from_raw(keeper(&house).cast_signed()).expect("a process");
    kill_process(keeper, Signal::KILL).expect("it is killed");
    wait_until("all are gone", || processes_with("98760").is_empty());
    assert!(house.again().is_none());
    assert_eq!(ended(&house.raise.directory), None);
    let all = belljar::runtime::records(&house.raise.directory, "box", false).expect("records");
    let lost = all.iter().find(|one| one.id == "a").expect("a record");
    assert_eq!((lost.state, lost.stdout_bytes), (ExecState::Lost, 6));
    let living =
        block_on(belljar::runtime::raise(&house.engine, house.raise.clone())).expect("again");
    block_on(living.exec("b", &bash("cat file"))).expect("an exec");
    let came = block_on(async {
        crate::rig::collect(living.follow("b", [0, 0]).await.expect("followed")).await
    });
    assert_eq!(came.ok().text(), "kept\n");
}

/// Raises a sandbox for another process of this suite to find, and is killed.
#[test]
fn an_exec_goes_on_when_who_started_it_is_killed() {
    const WHERE: &str = "BELLJAR_LIVING_ORPHAN";
    if std::env::var_os(WHERE).is_some() {
        let house = House::new();
        house.start("a", &bash("for i in $(seq 20); do echo $i; sleep 0.1; done"));
        std::fs::write(
            std::env::var_os(WHERE).expect("a path"),
            house.raise.directory.to_str().expect("text"),
        )
        .expect("told");
        pause(Duration::from_secs(100));
        panic!("nobody killed us");
    }
    let told = belljar_tests::TempDir::new();
    let file = told.join("where");
    let own = std::env::current_exe().expect("our own name");
    let child = belljar_tests::Program::new(own)
        .args(["ending::an_exec_goes_on_when_who_started_it_is_killed", "--exact"])
        .env(WHERE, &file)
        .start();
    until("it is raised", || std::fs::read_to_string(&file).is_ok_and(|text| !text.is_empty()));
    child.signal(Signal::KILL);
    child.wait();
    let directory = std::path::PathBuf::from(std::fs::read_to_string(&file).expect("where"));
    let living =
        block_on(belljar::runtime::Living::connect(&directory)).expect("asked").expect("it stands");
    let came = block_on(async {
        crate::rig::collect(living.follow("a", [0, 0]).await.expect("followed")).await
    });
    let all: String = (1..=20).map(|number| format!("{number}\n")).collect();
    assert_eq!(came.ok().text(), all);
    block_on(living.kill()).expect("it is killed");
    let top = directory.parent().expect("a parent");
    crate::rig::open_up(top);
    std::fs::remove_dir_all(top).expect("removed");
}

#[test]
fn a_sweep_spares_the_cgroup_of_a_keeper_that_lives() {
    let house = House::with(&SandboxRequest::default(), |_| {});
    let other = belljar_tests::engine();
    // Its first run sweeps.
    block_on(other.run(belljar::RunRequest::code("bash", "true"))).expect("a run");
    house.bash("a", "echo alive").ok();
}
