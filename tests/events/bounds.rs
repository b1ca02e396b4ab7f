//! A flood of refused calls costs a bounded number of events, and time that is the program's own.

use std::time::{Duration, Instant};

use belljar::{EventKind, Risk};
use belljar_tests::{Sandbox, Verdict};

use super::{calling, only};

/// Refused calls told one by one in a run.
const MOST_TOLD: usize = 256;
/// So many calls that each go to another process and back, on a machine that does much else.
const LONGEST: Duration = Duration::from_secs(110);

#[test]
fn a_flood_of_refused_calls_is_one_event_with_a_count() {
    let code = calling(
        "
refuse = libc.syscall
for _ in range(200000): refuse(272, 0x10000000)
print('done')
",
    );
    let begun = Instant::now();
    let sandbox = Sandbox::standard().with(["--timeout", "110s", "--cpu-time", "110s"]);
    let outcome = sandbox.run_python(&code);
    assert_eq!(outcome.stdout, "done\n", "{outcome:?}");
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    let event = only(&outcome, "seccomp/standard/unshare");
    assert_eq!(event.count, 200_000);
    let storm = only(&outcome, "pattern/denial_storm");
    assert_eq!(storm.kind, EventKind::SuspiciousBehavior);
    assert!(storm.detail.contains("200000") && storm.detail.contains("unshare"), "{storm:?}");
    assert_eq!(outcome.events.len(), 2);
    assert_eq!(outcome.risk, Risk::Medium, "it is what was tried that weighs");
}

#[test]
fn ever_different_calls_are_bounded_too_and_all_counted() {
    let code = calling(
        "
for n in range(3000): call(161, b'/%d' % n)
for n in range(40):
    if os.fork() == 0:
        for m in range(20): call(166, b'/%d-%d' % (n, m), 0)
        os._exit(0)
    os.wait()
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    assert!(outcome.ok(), "{outcome:?}");
    assert!(outcome.events.len() <= MOST_TOLD + 2, "{}", outcome.events.len());
    let count = |name| -> u64 {
        let own = outcome.events.iter().filter(|event| event.syscall.as_deref() == Some(name));
        own.map(|event| event.count).sum()
    };
    assert_eq!((count("chroot"), count("umount2")), (3000, 800));
}

#[test]
fn refused_calls_do_not_hold_up_the_clock() {
    let code = calling("while True: call(165, b'a', b'b', b'c', 0, 0)");
    let begun = Instant::now();
    let outcome = Sandbox::standard().with(["--timeout", "500ms"]).run_python(&code);
    assert_eq!(outcome.verdict, Verdict::WallTimeLimit { limit_ms: 500 }, "{outcome:?}");
    assert!(outcome.elapsed_ms < 2500.0, "{}", outcome.elapsed_ms);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

// Threads and processes that are killed while their call waits for its answer.
#[test]
fn callers_that_die_while_they_wait_harm_nobody() {
    let code = calling(
        "
import signal, time
for _ in range(30):
    child = os.fork()
    if child == 0:
        while True: call(161, b'/tmp')
    time.sleep(0.003); os.kill(child, signal.SIGKILL); os.wait()
print('alive')
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    assert_eq!(outcome.stdout, "alive\n", "{outcome:?}");
    assert!(outcome.ok());
}
