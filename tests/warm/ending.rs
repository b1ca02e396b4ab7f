//! How warm runs end, and how a pool does: nothing of either outlives it.

use std::fs;
use std::path::PathBuf;

use belljar_tests::{
    Level, Server, Token, Verdict, children, directories_of, each_level, processes_with, wait_until,
};
use rustix::process::Signal;

each_level!(limits_hold_in_a_sandbox_that_waited, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python"]);
    let run = |options: &[&str], code: &str| {
        let outcome = server.warm(level).with(options.iter().copied()).run_python(code);
        outcome.verdict.kind().to_owned()
    };
    assert_eq!(run(&["--timeout", "300ms"], "import time; time.sleep(99)"), "wall_time_limit");
    assert_eq!(run(&["--cpu-time", "500ms"], "while True: pass"), "cpu_time_limit");
    let bomb = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    assert_eq!(run(&["--memory", "64m"], bomb), "memory_limit");
    let flood = "import os\nwhile True: os.write(1, b'x' * 65536)";
    assert_eq!(run(&["--output", "1k", "--output-total", "1m"], flood), "output_limit");
    let full = "open('a', 'wb').write(b'x' * (4 << 20))";
    assert_eq!(run(&["--disk", "2m"], full), "disk_limit");
    let forks = "import os\nfor _ in range(50):\n if os.fork() == 0: import time; time.sleep(99)";
    let outcome = server.warm(level).with(["--pids", "10"]).run_python(forks);
    assert!(outcome.stderr.contains("BlockingIOError"), "{outcome:?}");
    // Waiting is nobody's time: what the program used is its own.
    let outcome = server.warm(level).run_python("print(1)");
    assert_eq!(outcome.verdict, Verdict::Exited { code: 0 });
    assert!(outcome.elapsed_ms < 5_000.0, "{outcome:?}");
});

each_level!(client_that_goes_away_ends_its_warm_run, [standard, strict], |level| {
    let server = Server::with(&["--warm", "python"]);
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let token = Token::new();
        let code = format!(
            "import os\nif os.fork() == 0:\n os.setsid()\n os.execv('/bin/sleep', ['{0}', '99'])\n\
             print('up', flush=True)\nos.execv('/bin/sleep', ['{0}', '99'])",
            token.as_str()
        );
        let mut run = server.warm(level).with(["--timeout", "90s"]).start("python", &code);
        assert_eq!(run.read_line(), "up\n");
        run.signal(signal);
        run.wait();
        token.wait_until_gone();
    }
});

/// Below it, and below that: keepers, inits, interpreters, zygotes.
fn processes_below(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        left.extend(children(pid));
        found.push(pid);
    }
    found.split_off(1)
}

/// A process by its number and the moment of its start, so that another of that number is not meant.
fn started(pid: u32) -> Option<(u32, String)> {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = status.rsplit_once(") ")?;
    let is_zombie = rest.starts_with('Z');
    let moment = rest.split(' ').nth(19)?.to_owned();
    (!is_zombie).then_some((pid, moment))
}

/// A server with something of everything that can wait.
fn busy() -> Server {
    let server = Server::with(&["--pool-floor", "2"]);
    let strict = server.warm(Level::Strict).run_python("print(1)");
    assert!(strict.ok(), "{strict:?}");
    server.wait_until("all kinds wait", |stats| {
        stats.making == 0
            && stats.zygotes.len() == 1
            && stats.shelves.len() == 4
            && stats.shelves.iter().all(|one| one.waiting >= 1)
    });
    server
}

#[test]
fn server_that_ends_leaves_nothing_that_waited() {
    let server = busy();
    let pid = server.id();
    let below: Vec<_> = processes_below(pid).into_iter().filter_map(started).collect();
    assert!(below.len() > 4 * 3, "{below:?}");
    server.signal(Signal::TERM);
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // At once: it has waited for them.
    let left: Vec<_> = below.iter().filter(|one| started(one.0).as_ref() == Some(one)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(directories_of(pid), Vec::<PathBuf>::new());
}

#[test]
fn run_that_is_under_way_is_drained_warm_too() {
    let server = Server::with(&["--warm", "python"]);
    let code = "import time\nprint('up', flush=True)\ntime.sleep(0.5)\nprint('done')";
    let mut run = server.warm(Level::Standard).start("python", code);
    assert_eq!(run.read_line(), "up\n");
    server.signal(Signal::TERM);
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = run.wait();
    assert_eq!((run.code, run.out()), (Some(0), "done\n".to_owned()), "{run:?}");
}

#[test]
fn killed_server_leaves_nothing_that_waited() {
    let server = busy();
    let token = Token::new();
    let code = format!(
        "import os\nprint('up', flush=True)\nos.execv('/bin/sleep', ['{}', '99'])",
        token.as_str()
    );
    let mut run = server.warm(Level::Standard).with(["--timeout", "90s"]).start("python", &code);
    assert_eq!(run.read_line(), "up\n");
    let pid = server.id();
    let below: Vec<_> = processes_below(pid).into_iter().filter_map(started).collect();
    assert!(below.len() > 4 * 3, "{below:?}");
    server.signal(Signal::KILL);
    let (ended, directory) = server.wait();
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    wait_until("its processes are gone", || {
        !below.iter().any(|one| started(one.0).as_ref() == Some(one))
    });
    assert_eq!(run.wait().code, Some(125));
    assert!(processes_with(token.as_str()).is_empty());
    // What only a start can sweep the next start sweeps.
    let next = Server::in_directory(directory, &["--warm", "python"]);
    assert!(next.warm(Level::Standard).run_python("print(1)").ok());
    wait_until("its directories are gone", || directories_of(pid).is_empty());
}
