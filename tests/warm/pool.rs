//! The pool: bounded, refilled, mended when any part of it dies, and never the reason that a run fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use belljar::{Config, Engine, Hold, PoolConfig, PoolStats, RunRequest, StartRequest};
use belljar_tests::{
    Level, Sandbox, Server, Start, TempDir, Verdict, belljar_bin, block_on, children, each_level,
    is_root, name_of, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

fn kill(process: u32) {
    let pid = Pid::from_raw(process.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is ours");
}

/// Waits until a killed process is one no more.
fn gone(pid: u32) {
    let lives = || {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    wait_until("a killed process is gone", || !lives());
}

fn ok(sandbox: &Sandbox) -> Start {
    let outcome = sandbox.run_python("print(6 * 7)");
    assert_eq!(
        (outcome.verdict.clone(), outcome.stdout.as_str()),
        (Verdict::Exited { code: 0 }, "42\n")
    );
    outcome.start
}

#[test]
fn zygote_that_dies_is_replaced_and_no_run_fails() {
    // No more than these: else what demand has added must wait to be let go.
    let server = Server::with(&["--warm", "python", "--pool-floor", "2", "--pool", "2"]);
    for _ in 0..3 {
        let stats = server.wait_until_full(2);
        let zygote = stats.zygotes[0].process_id.expect("there is one");
        kill(zygote);
        // Those that it made live on, and the next ones come from another.
        for _ in 0..6 {
            assert_eq!(ok(&server.warm(Level::Standard)), Start::Warm);
        }
        let stats = server.wait_until("another zygote", |stats| {
            stats.waiting == 2 && stats.zygotes[0].process_id.is_some_and(|id| id != zygote)
        });
        assert_eq!(stats.failed, 0, "{stats:#?}");
    }
}

#[test]
fn nursery_that_dies_is_replaced_and_no_run_fails() {
    let server = Server::with(&["--warm", "python", "--pool-floor", "1", "--pool", "1"]);
    let nurseries = || {
        let children = server.children().into_iter();
        children.filter(|pid| name_of(*pid) == "belljar-nursery").collect::<Vec<_>>()
    };
    for _ in 0..3 {
        server.wait_until_full(1);
        let [nursery] = nurseries()[..] else {
            panic!("not one nursery: {:?}", nurseries());
        };
        kill(nursery);
        gone(nursery);
        for level in [Level::Standard, Level::Strict] {
            assert_eq!(ok(&server.warm(level)), Start::Warm);
        }
        wait_until("another nursery", || nurseries().iter().any(|one| *one != nursery));
    }
}

each_level!(sandbox_that_dies_while_it_waits_fails_no_run, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python", "--pool-floor", "2", "--pool", "4"]);
    assert_eq!(ok(&server.warm(level)), Start::Warm);
    // Its keeper, its init, the interpreter that waits.
    for victim in 0..3 {
        server.wait_until("some wait", |stats| {
            stats.making == 0
                && stats.shelves.iter().any(|one| one.level == level && one.waiting > 0)
        });
        let mut killed = 0;
        for keeper in server.children().into_iter().filter(|pid| name_of(*pid) == "belljar-keeper")
        {
            let init = children(keeper).first().copied();
            let program = init.and_then(|init| children(init).first().copied());
            if let Some(pid) = [Some(keeper), init, program][victim] {
                kill(pid);
                killed += 1;
                // What is being ended as a run comes to it may take the run along: it cannot be told
                // whether it had begun. What ended before may not.
                gone(pid);
            }
        }
        assert!(killed > 0, "nothing waits at {level}: {:#?}", server.stats());
        for _ in 0..3 {
            assert_eq!(ok(&server.warm(level)), Start::Warm);
            ok(&server.any(level));
        }
    }
});

#[test]
fn runs_at_once_with_a_dying_zygote_all_succeed() {
    let server = Server::with(&["--warm", "python", "--max-runs", "16"]);
    let warm = server.warm(Level::Standard);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(ok(&warm), Start::Warm);
                }
            });
        }
        for _ in 0..5 {
            let stats = server.wait_until("a zygote", |stats| {
                stats.zygotes.first().is_some_and(|one| one.process_id.is_some())
            });
            let zygote = stats.zygotes[0].process_id.expect("there is one");
            // It may have been replaced since; then it is nobody's.
            if name_of(zygote) == "belljar-zygote" {
                kill(zygote);
            }
        }
    });
}

#[test]
fn without_memory_to_spare_nothing_is_kept_and_runs_go_on() {
    let server = Server::with(&["--warm", "python", "--memory-reserve", "900g"]);
    for _ in 0..3 {
        assert_eq!(ok(&server.any(Level::Standard)), Start::Cold);
    }
    let stats = server.stats();
    assert!(stats.memory_short, "{stats:#?}");
    assert_eq!((stats.waiting, stats.making, stats.made, stats.misses), (0, 0, 0, 3), "{stats:#?}");
    assert!(server.stats_as(&[]).out().contains("memory is short"));
    // Who insists gets one, made for it.
    assert_eq!(ok(&server.warm(Level::Standard)), Start::Warm);
    assert_eq!(server.stats().waiting, 0);
}

#[test]
fn floor_is_kept_and_refilled_and_the_ceiling_holds() {
    let server = Server::with(&["--warm", "python", "--pool-floor", "3", "--pool", "5"]);
    server.wait_until_full(3);
    for _ in 0..5 {
        assert_eq!(ok(&server.any(Level::Standard)), Start::Warm);
        let stats = server.wait_until_full(3);
        assert!(stats.waiting <= stats.ceiling, "{stats:#?}");
    }
    // Other kinds want their share, and get what room there is.
    for memory in ["65m", "66m", "67m", "68m", "69m"] {
        ok(&server.any(Level::Standard).with(["--memory", memory]));
        let stats = server.stats();
        assert!(stats.waiting + stats.making <= 5, "{stats:#?}");
    }
    let stats =
        server.wait_until("as many as may", |stats| stats.waiting == 5 && stats.making == 0);
    let python = stats.shelves.iter().map(|one| one.waiting).max();
    assert_eq!(python, Some(3), "{stats:#?}");
}

#[test]
fn kind_that_nobody_had_asked_for_is_copied_or_cold_first_and_waits_then() {
    let server = Server::with(&["--warm", "python"]);
    for (level, options, first) in [
        // A copy of the zygote is made for it; what must be started is no sooner for that.
        (Level::Standard, ["--memory", "200m"], Start::Warm),
        (Level::Strict, ["--pids", "20"], Start::Cold),
    ] {
        let odd = server.any(level).with(options);
        assert_eq!(ok(&odd), first);
        server.wait_until("one waits", |stats| {
            stats.shelves.iter().any(|one| one.misses == 1 && one.level == level && one.waiting > 0)
        });
        assert_eq!(ok(&odd), Start::Warm);
    }
    // Time and output are the run's own: no other kind.
    let timed = server.any(Level::Standard).with(["--timeout", "7s", "--output", "2k"]);
    server.wait_until("python waits", |stats| {
        stats.shelves.iter().any(|one| one.misses == 0 && one.waiting > 0)
    });
    assert_eq!(ok(&timed), Start::Warm);
}

#[test]
fn server_without_a_pool_runs_cold_and_says_so() {
    let server = Server::with(&["--pool", "0"]);
    assert_eq!(ok(&server.any(Level::Standard)), Start::Cold);
    let refused = server.warm(Level::Standard).plain("python", "print(1)");
    assert_eq!((refused.code, refused.out()), (Some(2), String::new()), "{refused:?}");
    assert!(refused.err().contains("cannot be warm"), "{refused:?}");
    let stats = server.stats_as(&[]);
    assert_eq!(stats.code, Some(0), "{stats:?}");
    assert!(stats.out().contains("recorded runs") && !stats.out().contains("pool"), "{stats:?}");
}

#[test]
fn what_cannot_be_warm_is_refused_by_name_and_runs_cold_by_itself() {
    let server = Server::with(&["--warm", "python"]);
    for (level, options) in [
        (Level::None, &[][..]),
        (Level::Basic, &[]),
        (Level::Standard, &["--env", "PYTHONHASHSEED=1"]),
        (Level::Strict, &["--env", "MALLOC_ARENA_MAX=1"]),
    ] {
        let refused = server.warm(level).with(options.iter().copied()).plain("python", "print(1)");
        assert_eq!((refused.code, refused.out()), (Some(2), String::new()), "{refused:?}");
        assert!(refused.err().contains("cannot be warm"), "{refused:?}");
        assert_eq!(ok(&server.any(level).with(options.iter().copied())), Start::Cold);
    }
}

each_level!(longest_arguments_and_variables_are_delivered, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python"]);
    let code = "import os, sys; print(len(sys.argv[1]), len(os.environ['LONG']))";
    let long = "a".repeat(65_000);
    let variable = format!("LONG={long}");
    let sandbox = server.warm(level).with(["--env", &variable]).args([&long]);
    let outcome = sandbox.run_python(code);
    assert_eq!((outcome.start, outcome.stdout.as_str()), (Start::Warm, "65000 65000\n"));
});

#[test]
fn module_that_is_not_there_is_left_out() {
    let server = Server::with(&["--warm", "python", "--preload", "python:no_such.module"]);
    assert_eq!(ok(&server.warm(Level::Standard)), Start::Warm);
    assert_eq!(server.stats().failed, 0);
}

/// An engine of our own, whose numbers are small enough to be reached.
fn small(change: impl FnOnce(&mut PoolConfig)) -> Engine {
    let mut pool = PoolConfig {
        floor: 1,
        from_start: vec!["python".to_owned()],
        memory_reserve_bytes: 0,
        ..PoolConfig::default()
    };
    change(&mut pool);
    let config = Config { launcher: belljar_bin(), pool: Some(pool), ..Config::default() };
    Engine::open(config).expect("an engine opens")
}

async fn warm(engine: &Engine, code: &str) -> String {
    let request = RunRequest { start: StartRequest::Warm, ..RunRequest::code("python", code) };
    let outcome = engine.run(request).await.expect("an outcome");
    assert_eq!(
        (outcome.start, outcome.verdict.clone()),
        (Start::Warm, Verdict::Exited { code: 0 })
    );
    outcome.stdout
}

/// Beside the pool's tending, and then everything is let go.
fn tended(engine: &Engine, body: impl Future<Output = ()>) {
    block_on(async {
        tokio::select! {
            () = engine.tend_pool() => panic!("it goes on for ever"),
            () = body => {}
        }
        engine.empty_pool();
        assert!(engine.settle(Duration::from_secs(30)).await, "sandboxes stay");
    });
}

#[test]
fn worn_zygote_is_replaced_and_its_layout_with_it() {
    let engine = small(|pool| pool.zygote_copies = 4);
    tended(&engine, async {
        let zygote = || engine.pool_stats()?.zygotes.first()?.process_id;
        let mut seeds = std::collections::BTreeSet::new();
        let mut zygotes = std::collections::BTreeSet::new();
        for _ in 0..200 {
            seeds.insert(warm(&engine, "print(hash('a'))").await);
            zygotes.extend(zygote());
            if seeds.len() >= 3 {
                break;
            }
        }
        assert!(seeds.len() >= 3 && zygotes.len() >= 3, "{seeds:?} {zygotes:?}");
    });
}

#[test]
fn old_sandboxes_are_replaced_unused() {
    let engine = small(|pool| pool.oldest = Duration::from_millis(50));
    tended(&engine, async {
        for _ in 0..3000 {
            let stats = engine.pool_stats().expect("a pool");
            if stats.let_go >= 3 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await; // nothing tells that one was let go
        }
        panic!("{:#?}", engine.pool_stats());
    });
}

#[test]
fn kinds_are_bounded_and_the_least_used_goes() {
    let engine = small(|pool| {
        pool.profiles = 3;
        pool.from_start = Vec::new();
    });
    tended(&engine, async {
        for megabytes in 64..72 {
            let mut request = RunRequest::code("bash", "echo x");
            request.limits.memory_bytes = Some(megabytes << 20);
            let outcome = engine.run(request).await.expect("an outcome");
            assert_eq!(outcome.stdout, "x\n");
            let stats = engine.pool_stats().expect("a pool");
            assert!(stats.shelves.len() <= 3, "{stats:#?}");
            assert!(stats.shelves.iter().all(|one| one.hold == Hold::Exec), "{stats:#?}");
        }
    });
}

/// Runs a language of our own until a run is warm; what the pool says then.
fn until_warm(directory: &TempDir, language: &str) -> PoolStats {
    directory.file(
        "languages/own.toml",
        format!("name = \"own\"\nargs = [\"{{file}}\"]\nfile = \"main.own\"\n{language}"),
    );
    let pool =
        PoolConfig { from_start: Vec::new(), memory_reserve_bytes: 0, ..PoolConfig::default() };
    let config = Config {
        launcher: belljar_bin(),
        language_directories: vec![directory.join("languages")],
        pool: Some(pool),
        ..Config::default()
    };
    let engine = Engine::open(config).expect("an engine opens");
    let mut found = None;
    tended(&engine, async {
        for _ in 0..200 {
            let outcome = engine.run(RunRequest::code("own", "print(6 * 7)")).await;
            let outcome = outcome.expect("an outcome");
            assert_eq!(outcome.stdout, "42\n", "{outcome:?}");
            found = engine.pool_stats();
            if outcome.start == Start::Warm {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // until the pool has found out
        }
        panic!("never warm: {found:#?}");
    });
    found.expect("a pool")
}

/// What the run that was warm had waited as.
fn used(stats: &PoolStats) -> Vec<Hold> {
    stats.shelves.iter().filter(|one| one.hits > 0).map(|one| one.hold).collect()
}

fn why_no_zygote(stats: &PoolStats) -> Option<&str> {
    stats.zygotes.first().and_then(|one| one.last_error.as_deref())
}

/// A library user may have no zygote at all: then interpreters are started ahead, and the pool says why.
#[test]
fn language_whose_modules_start_threads_is_started_ahead_instead() {
    let directory = TempDir::new();
    directory.file("languages/thready.py", THREADY);
    let stats = until_warm(
        &directory,
        "commands = [\"/usr/bin/python3\"]\n[warm]\nhow = \"fork\"\nscript = \"thready.py\"\n\
         zygote = [\"-c\", \"{text}\", \"fork\"]\nstart = [\"-c\", \"{text}\", \"start\"]\n",
    );
    let why = why_no_zygote(&stats);
    assert!(why.is_some_and(|why| why.contains("start threads")), "{stats:#?}");
    assert_eq!(used(&stats), [Hold::Started], "{stats:#?}");
}

#[test]
fn interpreter_that_its_programs_could_change_is_never_copied() {
    // Not below /tmp, which a sandbox has of its own.
    let directory = TempDir::below(Path::new("/var/tmp"));
    let language = |command: &Path| {
        format!(
            "commands = [\"{}\"]\n[warm]\nhow = \"fork\"\nscript = \"python.py\"\n\
             zygote = [\"-c\", \"{{text}}\", \"fork\"]\nstart = [\"-c\", \"{{text}}\", \"start\"]\n",
            command.display()
        )
    };
    // The control: the system's interpreter, which is root's alone, is copied.
    let stats = until_warm(&directory, &language(Path::new("/usr/bin/python3")));
    assert!(stats.shelves.iter().all(|one| one.hold == Hold::Forked), "{stats:#?}");
    assert!(stats.zygotes.iter().any(|one| one.copies > 0), "{stats:#?}");
    let python = fs::read("/usr/bin/python3").expect("everyone may read it");
    let copy = directory.program("python/bin/python3", python);
    // Everybody may write it; and, for an ordinary user, it is the user's own.
    let modes: &[u32] = if is_root() { &[0o777, 0o775] } else { &[0o777, 0o775, 0o755, 0o555] };
    for mode in modes {
        fs::set_permissions(&copy, fs::Permissions::from_mode(*mode)).expect("it is ours");
        let stats = until_warm(&directory, &language(&copy));
        let why = why_no_zygote(&stats);
        assert!(why.is_some_and(|why| why.contains("belongs to the user")), "{stats:#?}");
        assert_eq!(used(&stats), [Hold::Started], "{mode:o}: {stats:#?}");
        assert!(stats.zygotes.iter().all(|one| one.process_id.is_none()), "{stats:#?}");
    }
}

/// As small as a start-up script can be, with a thread that is there before the first copy.
const THREADY: &str = r#"
import ctypes, os, sys, threading
def run():
    os.write(3, b"r")
    message = os.read(3, 1 << 18)
    os.close(3)
    if not message: os._exit(0)
    exec(open(message.split(b"\0")[2]).read())
    sys.stdout.flush()
    os._exit(0)
if sys.argv[1] == "fork":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    os.write(0, b"%d" % ctypes.PyDLL("/proc/self/fd/1").belljar_begin())
    os._exit(1)
run()
"#;
