//! Execs: one, many at once, and what they leave behind.

use std::time::{Duration, Instant};

use belljar::sandbox::{ExecRequest, SandboxRequest};
use belljar::{Layer, Level, RunRequest, Verdict};
use belljar_tests::{asked, block_on, is_root};

use crate::rig::{House, bash, until};

#[test]
fn an_exec_runs_and_its_files_stay() {
    let house = House::new();
    let first = house
        .bash("a", "echo hello; echo oops >&2; echo kept > file; mkdir /app; hostname; id -u")
        .ok();
    assert_eq!(first.text(), "hello\nbox\n1000\n");
    assert_eq!(first.err, b"oops\n");
    let second = house.bash("b", "cat file; pwd; ls -d /app; exit 3");
    assert_eq!(second.text(), "kept\n/workspace\n/app\n");
    assert_eq!(second.end().verdict, Verdict::Exited { code: 3 });
    block_on(house.living.stop(Duration::from_secs(5))).expect("it stops");
    assert!(house.again().is_none());
    let living =
        block_on(belljar::runtime::raise(&house.engine, house.raise.clone())).expect("again");
    block_on(living.exec("c", &bash("cat file"))).expect("it runs");
    assert_eq!(house.again().map(|_| ()), Some(()));
    drop(living);
    let house2 = house.again().expect("it stands");
    let came = block_on(async {
        crate::rig::collect(house2.follow("c", [0, 0]).await.expect("followed")).await
    });
    assert_eq!(came.ok().text(), "kept\n");
}

#[test]
fn the_receipt_has_the_layers_of_a_run() {
    let house = House::new();
    let request = RunRequest { level: Level::Standard, ..RunRequest::code("bash", "true") };
    let run = block_on(house.engine.run(asked(request))).expect("a run");
    let names = |layers: &[belljar::Check]| layers.iter().map(|one| one.name).collect::<Vec<_>>();
    let living = house.living.receipt();
    assert_eq!(names(&living.layers), names(&run.receipt.layers));
    assert!(living.layers.iter().all(|check| check.verified));
    let begun = block_on(house.living.exec("a", &bash("true"))).expect("an exec");
    assert_eq!(names(&begun.checks), names(&living.layers));
    let disk = living.layers.iter().find(|check| check.name == Layer::Disk).expect("a disk");
    assert!(disk.mechanism.contains("can be exceeded"), "{disk:?}");
}

#[test]
fn execs_run_at_once_and_do_not_wait_for_each_other() {
    let house = House::new();
    house.start("waits", &bash("read line < <(sleep 60); echo never"));
    let begun = Instant::now();
    for number in 0..8 {
        house.start(&format!("e{number}"), &bash(&format!("sleep 0.3; echo {number}")));
    }
    for number in 0..8 {
        assert_eq!(house.wait(&format!("e{number}")).ok().text(), format!("{number}\n"));
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    block_on(house.living.signal("waits", 9)).expect("it is killed");
    assert_eq!(house.wait("waits").end().verdict, Verdict::Signaled { signal: 9 });
}

#[test]
fn more_than_may_run_at_once_is_busy() {
    let request = SandboxRequest {
        limits: belljar::LimitsRequest { processes: Some(400), ..Default::default() },
        ..Default::default()
    };
    let house = House::with(&request, |_| {});
    for number in 0..belljar::living_talk::MAX_EXECS {
        house.start(&format!("e{number}"), &bash("exec sleep 100"));
    }
    let refused = block_on(house.living.exec("more", &bash("true"))).expect_err("it is full");
    assert_eq!(refused.kind(), "busy");
    block_on(house.living.signal("e0", 9)).expect("one is killed");
    house.wait("e0");
    house.bash("more", "true").ok();
}

#[test]
fn a_timeout_ends_the_whole_tree_of_its_exec_and_no_other() {
    let house = House::new();
    house.start("other", &bash("sleep 4; echo alive"));
    let request = ExecRequest {
        timeout_ms: Some(600),
        ..bash(
            "(setsid sleep 98765 &) ; (setsid bash -c 'trap \"\" TERM; sleep 98764' &); sleep 100",
        )
    };
    let came = house.run("late", &request);
    assert_eq!(came.end().verdict, Verdict::WallTimeLimit { limit_ms: 600 });
    let left = house.bash("look", "pgrep -fc 'sleep 9876[45]'");
    assert_eq!(left.text(), "0\n", "nothing of it is left");
    assert_eq!(house.wait("other").ok().text(), "alive\n");
}

#[test]
fn what_an_exec_leaves_behind_goes_on_until_the_sandbox_stops() {
    let house = House::new();
    house.bash("leaves", "nohup sleep 98763 > /dev/null 2>&1 &").ok();
    assert_eq!(house.bash("look", "pgrep -fc 'sleep 98763'").text(), "1\n");
    let used = block_on(house.living.usage()).expect("usage");
    assert_eq!((used.processes, used.execs), (Some(1), 0));
    assert!(!belljar_tests::processes_with("98763").is_empty());
    block_on(house.living.stop(Duration::from_secs(5))).expect("it stops");
    assert!(belljar_tests::processes_with("98763").is_empty());
}

#[test]
fn a_shepherd_that_is_killed_takes_its_exec_and_what_nobody_owns_along() {
    let house = House::new();
    house.start("other", &bash("sleep 3; echo alive"));
    house.start("bad", &bash("sleep 0.2; kill -9 $PPID; sleep 98762"));
    let came = house.wait("bad");
    assert_eq!(came.end().verdict, Verdict::Signaled { signal: 9 });
    until("the remains are gone", || belljar_tests::processes_with("98762").is_empty());
    assert_eq!(house.wait("other").ok().text(), "alive\n");
    house.bash("after", "true").ok();
}

#[test]
fn a_program_that_is_not_there_is_told_as_that() {
    let house = House::new();
    let request = ExecRequest { cmd: vec!["no-such-program".to_owned()], ..Default::default() };
    let verdict = house.run("a", &request).end().verdict.clone();
    assert_eq!(verdict, Verdict::StartFailed { errno: "ENOENT".to_owned() });
    let request = ExecRequest { cwd: Some("/nowhere".into()), ..bash("true") };
    let error = block_on(house.living.exec("b", &request)).expect_err("no such directory");
    assert_eq!(error.to_string(), "cwd /nowhere: ENOENT");
    let error = block_on(house.living.exec("a", &bash("true"))).expect_err("taken");
    assert!(error.to_string().contains("there is an exec of that id"), "{error}");
    for (request, field) in [
        (ExecRequest::default(), "cmd"),
        (ExecRequest { timeout_ms: Some(0), ..bash("true") }, "timeout_ms"),
        (ExecRequest { user: Some("root".to_owned()), ..bash("true") }, "user"),
        (ExecRequest { cwd: Some("relative".into()), ..bash("true") }, "cwd"),
    ] {
        let error = block_on(house.living.exec("c", &request)).expect_err(field);
        assert!(error.to_string().starts_with(field), "{error}");
    }
}

#[test]
fn records_beyond_what_is_kept_are_swept() {
    let house = House::new();
    let most = belljar::living_talk::MAX_KEPT;
    for number in 0..most + 3 {
        house.run(
            &format!("e{number}"),
            &ExecRequest { cmd: vec!["/bin/true".to_owned()], ..Default::default() },
        );
    }
    let kept = belljar::runtime::records(&house.raise.directory, "box", true).expect("records");
    assert_eq!(kept.len(), most);
    assert!(kept.iter().all(|one| one.id != "e0" && one.id != "e2"));
    assert!(kept.iter().any(|one| one.id == "e3"));
}

#[test]
fn output_beyond_what_is_kept_of_all_execs_is_swept() {
    let house = House::new();
    // Less than is kept of each stream, so that all of it is.
    let fills = "head -c 16000000 /dev/zero; head -c 16000000 /dev/zero >&2";
    let fit = belljar::living_talk::MAX_KEPT_BYTES / 32_000_000;
    let kept = |first: u64, behind: u64| {
        let all = belljar::runtime::records(&house.raise.directory, "box", true);
        let mut ids: Vec<String> = all.expect("records").into_iter().map(|one| one.id).collect();
        ids.sort();
        assert_eq!(ids, (first..behind).map(|one| format!("e{one}")).collect::<Vec<_>>());
    };
    for number in 0..fit {
        house.bash(&format!("e{number}"), fills).ok();
    }
    kept(0, fit);
    for number in fit..fit + 2 {
        house.bash(&format!("e{number}"), fills).ok();
    }
    kept(2, fit + 2);
}

#[test]
fn strict_lives_too() {
    let mut request = SandboxRequest { level: Level::Strict, ..Default::default() };
    if !is_root() {
        request.allow_missing = vec!["uid_per_run".to_owned()];
    }
    let house = House::with(&request, |_| {});
    assert_eq!(house.bash("a", "echo $((6*7)); ls /proc | grep -c kmsg").text(), "42\n0\n");
}
