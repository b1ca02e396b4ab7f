//! Limits of the sandbox as a whole and of single execs, freezing, and time to live.

use std::time::{Duration, Instant, SystemTime};

use belljar::living_talk::EndReason;
use belljar::runtime::{ended, events};
use belljar::sandbox::{ExecRequest, SandboxRequest};
use belljar::{DiskLimit, LimitsRequest, Severity, Verdict};
use belljar_tests::block_on;
use rustix::process::{Signal, kill_process};

use crate::rig::{House, bash, pause, until};
use crate::rounds::keeper_of;

fn limited(limits: LimitsRequest) -> House {
    House::with(&SandboxRequest { limits, ..Default::default() }, |_| {})
}

#[test]
fn an_exec_that_runs_out_of_memory_is_told_so_and_others_go_on() {
    let house = limited(LimitsRequest { memory_bytes: Some(64 << 20), ..Default::default() });
    house.start("other", &bash("sleep 5; echo alive"));
    let eats = "import sys\nx = bytearray(200 << 20)\nprint(len(x))";
    let request = ExecRequest {
        cmd: ["python3", "-c", eats].map(ToOwned::to_owned).to_vec(),
        ..Default::default()
    };
    let came = house.run("eats", &request);
    assert_eq!(came.end().verdict, Verdict::MemoryLimit { limit_bytes: 64 << 20 }, "{came:?}");
    assert_eq!(house.wait("other").ok().text(), "alive\n");
    let fails = house.bash("after", "exit 1");
    assert_eq!(
        fails.end().verdict,
        Verdict::Exited { code: 1 },
        "an old death is not blamed again"
    );
}

#[test]
fn forks_beyond_the_limit_are_refused() {
    let house = limited(LimitsRequest { processes: Some(8), ..Default::default() });
    let came = house.bash("forks", "for i in $(seq 20); do sleep 2 & done; wait");
    assert!(String::from_utf8_lossy(&came.err).contains("fork"), "{came:?}");
    house.bash("after", "true").ok();
}

#[test]
fn cpu_time_is_counted_over_the_tree_of_an_exec() {
    let house =
        limited(LimitsRequest { cpu_ms: Some(700), millicpus: Some(2000), ..Default::default() });
    let came = house.bash("burns", "(while :; do :; done) & while :; do :; done");
    assert_eq!(came.end().verdict, Verdict::CpuTimeLimit { limit_ms: 700 }, "{came:?}");
    house.bash("after", "true").ok();
}

#[test]
fn files_beyond_the_disk_limit_end_what_runs_and_can_be_removed() {
    let house = limited(LimitsRequest { disk_bytes: Some(8 << 20), ..Default::default() });
    let script = "for i in $(seq 200); do head -c 1000000 /dev/zero > big$i; done; sleep 100";
    let came = house.bash("fills", script);
    assert_eq!(came.end().verdict, Verdict::DiskLimit { limit: DiskLimit::DiskBytes }, "{came:?}");
    house.bash("clears", "rm -f big*; sleep 1; echo cleared").ok();
    house.bash("after", "sleep 1; head -c 1000000 /dev/zero > small").ok();
}

#[test]
fn too_many_files_are_a_limit_too() {
    let house = limited(LimitsRequest { inodes: Some(200), ..Default::default() });
    let came = house.bash("makes", "mkdir d; cd d; touch $(seq 400); sleep 100");
    assert_eq!(came.end().verdict, Verdict::DiskLimit { limit: DiskLimit::Inodes }, "{came:?}");
}

#[test]
fn a_limit_of_files_holds_to_the_end_of_an_exec_that_is_quicker_than_it_is_measured() {
    let house = limited(LimitsRequest { inodes: Some(200), ..Default::default() });
    house.bash("few", "mkdir few; cd few; touch $(seq 100)").ok();
    let came = house.bash("many", "mkdir many; cd many; touch $(seq 200)");
    assert_eq!(came.end().verdict, Verdict::DiskLimit { limit: DiskLimit::Inodes }, "{came:?}");
    // What was there is no reason to end what comes next, and what is removed makes room.
    house.bash("looks", "ls many | wc -l").ok();
    house.bash("clears", "rm -r many").ok();
    house.bash("fits", "touch one").ok();
}

#[test]
fn files_that_are_removed_again_before_the_end_are_a_limit_too() {
    let house = limited(LimitsRequest { inodes: Some(200), ..Default::default() });
    // Each shorter than the longest pause between two looks: one may be met by chance, not all of them.
    for round in 0..8 {
        let quick = "mkdir d; cd d; touch $(seq 400); sleep 0.1; rm -r ../d";
        let came = house.bash(&format!("quick{round}"), quick);
        let limit = Verdict::DiskLimit { limit: DiskLimit::Inodes };
        assert_eq!(came.end().verdict, limit, "round {round}: {came:?}");
        house.bash(&format!("clears{round}"), "rm -rf d; sleep 0.4").ok();
    }
}

#[test]
fn a_frozen_sandbox_does_nothing_and_its_clocks_stand_still() {
    let house = House::new();
    let script = "for i in $(seq 1000); do echo $i; sleep 0.02; done";
    let request = ExecRequest { timeout_ms: Some(4000), ..bash(script) };
    house.start("counts", &request);
    until("it counts", || house.info("counts").stdout_bytes > 4);
    block_on(house.living.freeze()).expect("it freezes");
    assert!(block_on(house.living.is_frozen()).expect("asked"));
    pause(Duration::from_millis(100));
    let before = house.info("counts").stdout_bytes;
    pause(Duration::from_secs(5));
    assert_eq!(house.info("counts").stdout_bytes, before);
    let refused = block_on(house.living.exec("new", &bash("true"))).expect_err("frozen");
    assert!(refused.to_string().contains("paused"), "{refused}");
    block_on(house.living.thaw()).expect("it thaws");
    until("it goes on", || house.info("counts").stdout_bytes > before);
    let came = house.wait("counts");
    assert_eq!(came.end().verdict, Verdict::WallTimeLimit { limit_ms: 4000 });
    house.start("again", &bash("sleep 100"));
    block_on(house.living.freeze()).expect("it freezes");
    block_on(house.living.kill()).expect("what is frozen can be killed");
    assert!(house.again().is_none());
}

#[test]
fn an_idle_sandbox_stops_itself_and_one_in_use_does_not() {
    let house = House::with(&SandboxRequest::default(), |raise| {
        raise.idle = Some(Duration::from_millis(1500));
    });
    house.start("works", &bash("sleep 3; echo done"));
    assert_eq!(house.wait("works").ok().text(), "done\n");
    block_on(async {
        tokio::time::timeout(Duration::from_secs(20), house.living.gone()).await.expect("it goes");
    });
    assert!(house.again().is_none());
    assert_eq!(ended(&house.raise.directory).expect("why").reason, EndReason::Idle);
}

#[test]
fn a_sandbox_whose_time_has_come_ends_though_nobody_is_there() {
    let begun = Instant::now();
    let house = House::with(&SandboxRequest::default(), |raise| {
        raise.expires_at = Some(SystemTime::now() + Duration::from_secs(4));
    });
    house.start("works", &bash("trap 'echo told; exit 0' TERM; sleep 100 & wait"));
    block_on(async {
        tokio::time::timeout(Duration::from_secs(30), house.living.gone()).await.expect("it goes");
    });
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert_eq!(ended(&house.raise.directory).expect("why").reason, EndReason::Expired);
    let info = house.info("works");
    assert_eq!((info.stdout_bytes, info.end.expect("an end").exit_code), (5, Some(0)));
}

#[test]
fn a_refused_call_is_an_event_of_its_exec() {
    let house = House::new();
    house.bash("tries", "unshare -U true; exit 0");
    let told = events(&house.raise.directory, "tries").expect("events");
    assert!(
        told.iter().any(|one| one
            .syscall
            .as_ref()
            .is_some_and(|call| format!("{call:?}").contains("unshare"))),
        "{told:?}"
    );
    house.bash("quiet", "true").ok();
    assert_eq!(events(&house.raise.directory, "quiet").expect("events"), []);
}

// Each is as long as can be, so that together they are more than is kept of an exec.
#[test]
fn a_flood_of_harmless_refusals_hides_no_grave_one_of_an_exec() {
    let house = House::new();
    let floods = r"
import ctypes, os
call = ctypes.CDLL(None).syscall
for n in range(40):
    if os.fork() == 0:
        for m in range(8): call(303, -100, b'%d-%d' % (n, m) + b'\xff' * 600, 0, 0, 0)
        os._exit(0)
    os.wait()
call(165, b'none', b'/mnt', b'tmpfs', 0, 0)
";
    let script = format!("exec python3 -c \"$1\" {}", "x".repeat(600));
    let cmd = ["bash", "-c", script.as_str(), "bash", floods].map(ToOwned::to_owned).to_vec();
    house.run("floods", &ExecRequest { cmd, ..Default::default() }).ok();
    let told = events(&house.raise.directory, "floods").expect("events");
    let grave: Vec<&str> = told
        .iter()
        .filter(|one| one.severity > Severity::Low)
        .map(|one| one.detail.as_str())
        .collect();
    assert_eq!(grave, [r#"mount(source="none", target="/mnt", type="tmpfs", flags=0)"#]);
    let harmless = told.iter().filter(|one| one.syscall.as_deref() == Some("name_to_handle_at"));
    assert!(harmless.count() >= 150, "{}", told.len());
}

#[test]
fn a_read_of_the_kernels_secrets_is_an_event() {
    let house = House::new();
    house.start("other", &bash("sleep 100"));
    let details = |exec: &str| -> Vec<String> {
        let told = events(&house.raise.directory, exec).expect("events");
        told.into_iter().map(|one| one.detail).collect()
    };
    let began = Instant::now();
    house.bash("looks", "cat /proc/kallsyms /proc/keys; cat /proc/kallsyms").ok();
    // The kernel gives a holder that does not let go 45 s.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let told = details("looks");
    let names = |told: &[String]| {
        ["kallsyms", "keys"].map(|name| told.iter().any(|one| one.contains(name)))
    };
    assert_eq!((told.len(), names(&told)), (2, [true, true]), "{told:?}");
    // Nobody can say whose it was: all that ran are told to have.
    assert_eq!(details("other").len(), 2);
    house.bash("quiet", "ls /proc").ok();
    assert_eq!(details("quiet"), Vec::<String>::new());
    house.bash("again", "cat /proc/keys").ok();
    assert_eq!(names(&details("again")), [false, true], "it is told again of the next program");
}

#[test]
fn what_was_touched_is_told_of_a_program_that_ended_before_anybody_listened() {
    let house = House::new();
    house.start("looks", &bash("sleep 1; cat /proc/kallsyms /proc/keys; true"));
    let keeper = keeper_of(&house.raise.directory).expect("it stands");
    kill_process(keeper, Signal::STOP).expect("it is stopped");
    // Long enough for all of it, and for its end: then the keeper finds all that was said at once.
    pause(Duration::from_millis(2500));
    kill_process(keeper, Signal::CONT).expect("it goes on");
    house.wait("looks");
    let told = events(&house.raise.directory, "looks").expect("events");
    let names = |name: &str| told.iter().any(|one| one.detail.contains(name));
    assert!(names("kallsyms") && names("keys"), "{told:?}");
}
