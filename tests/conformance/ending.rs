//! The end of a run is the end of everything it started, whoever causes it.

use std::path::PathBuf;

use belljar_tests::{
    Level, Running, Sandbox, Token, Verdict, children, directories_of, each_level, name_of,
    processes_with,
};
use rustix::process::{Pid, Signal, kill_process};

/// A child that nothing but SIGKILL ends, and that holds the program's stdout open. All carry the word as
/// their name: a program that was delivered has not its arguments where others can see them.
const FOREVER: &str = "
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
def forever():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while True: signal.pause()
";

fn assert_nothing_survives(level: Level, body: &str) {
    let token = Token::new();
    let code = format!("{FOREVER}{body}");
    let outcome = Sandbox::at(level).args([token.as_str()]).run_python(&code);
    token.assert_gone();
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "ended\n");
    assert!(outcome.elapsed_ms < 20_000.0, "nobody was waited for: {}", outcome.elapsed_ms);
}

each_level!(daemon_ends_with_its_program, |level| {
    assert_nothing_survives(
        level,
        "
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(tell, b'x')
        forever()
    os._exit(0)
os.wait()
os.read(ready, 1)
print('ended', flush=True)",
    );
});

each_level!(stopped_child_ends_with_its_program, |level| {
    assert_nothing_survives(
        level,
        "
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()
os.waitpid(child, os.WUNTRACED)
print('ended', flush=True)",
    );
});

each_level!(tree_of_processes_ends_with_its_program, |level| {
    assert_nothing_survives(
        level,
        "
ready, tell = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        for _ in range(4):
            if os.fork() == 0:
                os.setpgid(0, 0)
                os.write(tell, b'x')
                forever()
        forever()
for _ in range(16): os.read(ready, 1)
print('ended', flush=True)",
    );
});

each_level!(threads_do_not_delay_the_end, |level| {
    assert_nothing_survives(
        level,
        "
import threading
for _ in range(8): threading.Thread(target=threading.Event().wait).start()
print('ended', flush=True)
os._exit(0)",
    );
});

each_level!(background_of_a_shell_ends_with_it, |level| {
    let token = Token::new();
    let code = "trap '' HUP TERM
for i in 1 2 3; do (exec -a \"$1\" nohup sleep 1000) & disown; done
(exec -a \"$1\" setsid sleep 1000) &
echo ended";
    let outcome = Sandbox::at(level).args([token.as_str()]).run_bash(code);
    token.assert_gone();
    assert_eq!(outcome.stdout, "ended\n", "{outcome:?}");
});

each_level!(chain_of_forks_is_caught_at_the_deadline, |level| {
    let token = Token::new();
    // Each process forks the next and ends: there is never one to aim at for long.
    let code = "import os
print('began', flush=True)
for _ in range(100_000):
    if os.fork(): os._exit(0)
    os.setsid()
while True: pass";
    let wait = format!("{FOREVER}\nif os.fork() == 0:\n    exec({code:?})\nforever()");
    let outcome =
        Sandbox::at(level).with(["--timeout", "1s"]).args([token.as_str()]).run_python(&wait);
    token.assert_gone();
    assert_eq!(outcome.verdict, Verdict::WallTimeLimit { limit_ms: 1000 }, "{outcome:?}");
    assert_eq!(outcome.stdout, "began\n");
});

each_level!(whole_tree_ends_at_the_deadline, |level| {
    let token = Token::new();
    let body = "
for _ in range(3): os.fork()
if os.getpgid(0) != os.getpid(): os.setsid()
forever()";
    let outcome = Sandbox::at(level)
        .with(["--timeout", "1s"])
        .args([token.as_str()])
        .run_python(&format!("{FOREVER}{body}"));
    token.assert_gone();
    assert_eq!(outcome.verdict.kind(), "wall_time_limit", "{outcome:?}");
});

/// A run with a daemon that is known to be up, seen from outside.
fn running(sandbox: Sandbox, token: &Token) -> Running {
    let body = "
ready, tell = os.pipe()
os.mkdir('closed', 0)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        os.write(tell, b'x')
        forever()
os.read(ready, 1); os.read(ready, 1)
print('ready', flush=True)
forever()";
    let mut running = sandbox.args([token.as_str()]).start("python", &format!("{FOREVER}{body}"));
    assert_eq!(running.read_line(), "ready\n");
    // belljar itself and the three processes of the program.
    assert!(processes_with(token.as_str()).len() >= 4);
    running
}

/// The next start removes what killed ones left.
fn assert_swept(level: Level, owner: u32) {
    assert!(Sandbox::at(level).alone().run_python("pass").ok());
    assert_eq!(directories_of(owner), Vec::<PathBuf>::new());
}

each_level!(interrupt_ends_everything, |level| {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let token = Token::new();
        let running = running(Sandbox::at(level), &token);
        let owner = running.id();
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        assert!(ended.err().contains("cancelled"), "{ended:?}");
        token.wait_until_gone();
        assert_swept(level, owner);
    }
});

each_level!(killing_belljar_ends_everything, |level| {
    let token = Token::new();
    let running = running(Sandbox::at(level), &token);
    let owner = running.id();
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal, Some(9));
    token.wait_until_gone();
    assert_swept(level, owner);
});

fn keeper_of(belljar: u32) -> Pid {
    let keeper = children(belljar).into_iter().find(|pid| name_of(*pid) == "belljar-keeper");
    let keeper = keeper.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    keeper.expect("belljar has a keeper")
}

each_level!(killing_the_keeper_ends_everything, |level| {
    let token = Token::new();
    let running = running(Sandbox::at(level).alone(), &token);
    let owner = running.id();
    kill_process(keeper_of(owner), Signal::KILL).expect("a keeper is its caller's");
    let ended = running.wait();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("the sandbox was lost"), "{ended:?}");
    token.wait_until_gone();
    assert_swept(level, owner);
});

each_level!(killing_both_ends_everything, |level| {
    let token = Token::new();
    let running = running(Sandbox::at(level).alone(), &token);
    let owner = running.id();
    let keeper = keeper_of(owner);
    running.signal(Signal::STOP);
    kill_process(keeper, Signal::KILL).expect("a keeper is its caller's");
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal, Some(9));
    token.wait_until_gone();
    assert_swept(level, owner);
});
