//! What every level bounds, and what the receipt says of it: time, output, the tree, the session.

use std::time::{Duration, Instant};

use belljar::Stream;
use belljar_tests::{
    FaultDomain, Layer, Level, Outcome, Program, Sandbox, TempDir, Token, Verdict, each_level,
    is_root,
};

/// The receipt names the layer, and it was read back.
pub(crate) fn assert_layer(outcome: &Outcome, layer: Layer) {
    let checks = &outcome.receipt.layers;
    let found = checks.iter().find(|check| check.name == layer);
    assert!(found.is_some_and(|check| check.verified), "{layer:?}: {checks:?}");
}

each_level!(wall_time_is_bounded, |level| {
    // The control is the same program with more time.
    let code = "import time; time.sleep(1); print('woke')";
    let control = Sandbox::at(level).with(["--timeout", "60s"]).run_python(code);
    assert_eq!(control.stdout, "woke\n", "{control:?}");
    let started = Instant::now();
    let code = "import signal, time\nfor n in range(1, 32):\n try: signal.signal(n, signal.SIG_IGN)\n except OSError: pass\ntime.sleep(100)";
    let outcome = Sandbox::at(level).with(["--timeout", "300ms"]).run_python(code);
    assert_eq!(outcome.verdict, Verdict::WallTimeLimit { limit_ms: 300 }, "{outcome:?}");
    assert_eq!(outcome.fault_domain, FaultDomain::Limit);
    assert!(started.elapsed() < Duration::from_secs(60));
    assert_layer(&outcome, Layer::WallTimeout);
});

each_level!(output_is_bounded, |level| {
    let code = "import os\nfor _ in range(64): os.write(1, b'x' * 65536)";
    // The control: outside, all four megabytes arrive.
    let control = Program::new("/usr/bin/python3").args(["-c", code]).run();
    assert_eq!((control.code, control.stdout.len()), (Some(0), 4 << 20));
    let outcome =
        Sandbox::at(level).with(["--output-total", "1m", "--timeout", "60s"]).run_python(code);
    let verdict = Verdict::OutputLimit { stream: Stream::Stdout, limit_bytes: 1 << 20 };
    assert_eq!(outcome.verdict, verdict, "{:?}", outcome.verdict);
    assert!(outcome.stdout.len() < 200 << 10 && outcome.stdout_dropped_bytes > 0);
    assert_layer(&outcome, Layer::OutputCap);
});

each_level!(no_process_survives_the_program, |level| {
    let token = Token::new();
    let daemon = daemon(&token);
    // The control: started by a plain interpreter, the daemon does survive.
    let control = Program::new("/usr/bin/python3").args(["-c", &daemon]).run();
    assert_eq!(control.code, Some(0), "{control:?}");
    let survivors = belljar_tests::processes_with(token.as_str());
    assert!(!survivors.is_empty(), "the daemon did not start");
    for (pid, _) in survivors {
        // It may have ended between the look and the signal.
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
    token.wait_until_gone();
    let outcome = Sandbox::at(level).run_python(&daemon);
    assert!(outcome.ok(), "{outcome:?}");
    token.assert_gone();
    assert_layer(&outcome, Layer::TreeKill);
});

/// Leaves a daemon: double fork, its own session, every signal ignored, no stream held. The pipe closes
/// when the daemon is what it wants to be.
fn daemon(token: &Token) -> String {
    format!(
        "import os, signal\nr, w = os.pipe()\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  \
         for n in range(1, 32):\n   try: signal.signal(n, signal.SIG_IGN)\n   except OSError: pass\n  \
         null = os.open('/dev/null', os.O_RDWR)\n  for n in range(3): os.dup2(null, n)\n  \
         os.execv('/bin/sleep', ['{}', '100'])\n os._exit(0)\n\
         os.close(w)\nassert os.read(r, 1) == b''",
        token.as_str()
    )
}

each_level!(session_is_its_own, |level| {
    let code = "import os; print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())";
    // The control: a plain child stays in its caller's session.
    let control = Program::new("/usr/bin/python3").args(["-c", code]).run();
    assert_eq!(control.out(), "False False\n");
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "True True\n", "{outcome:?}");
    assert_layer(&outcome, Layer::Session);
});

each_level!(signals_to_everyone_stay_inside, [basic, standard, strict], |level| {
    // A process of the same user is the victim; signalling all that one may reach must not reach it.
    let code = "import errno, os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                for target in sys.argv[1:]:\n try: os.kill(int(target), signal.SIGTERM); print('sent')\n \
                except OSError as error: print(errno.errorcode[error.errno])";
    let start = || Program::new("/bin/cat").start_interactive();
    // The control: outside, the signal ends another process at once. Not tried on everyone there.
    let victim = start();
    let id = victim.id().to_string();
    let control = Program::new("/usr/bin/python3").args(["-c", code, &id]).run();
    assert_eq!(control.out(), "sent\n", "{control:?}");
    assert_eq!(victim.wait().signal, Some(15));
    let mut victim = start();
    let id = victim.id().to_string();
    let outcome = Sandbox::at(level).args(["-1", "0", &id]).run_python(code);
    // Its own group may be signalled. In a world of its own there is nobody else; at basic all others
    // are refused, by Landlock's scope, and as root by the other id as well.
    let (expected, layer) = if level == Level::Basic {
        ("EPERM\nsent\nEPERM\n", Layer::Scopes)
    } else {
        ("ESRCH\nsent\nESRCH\n", Layer::PidNamespace)
    };
    assert_eq!(outcome.stdout, expected, "{outcome:?}");
    assert_layer(&outcome, layer);
    victim.write(b"alive\n");
    assert_eq!(victim.read_line(), "alive\n");
});

each_level!(abstract_sockets_of_the_host_are_out_of_reach, [basic, standard, strict], |level| {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let token = Token::new();
    let address = SocketAddr::from_abstract_name(token.as_str()).expect("a name");
    let _listener = UnixListener::bind_addr(&address).expect("nobody has that name");
    let code = "import errno, socket, sys\ntry:\n s = socket.socket(socket.AF_UNIX)\n \
                s.connect('\\0' + sys.argv[1])\n print('connected')\n\
                except OSError as error: print(errno.errorcode[error.errno])";
    let control = Program::new("/usr/bin/python3").args(["-c", code, token.as_str()]).run();
    assert_eq!(control.out(), "connected\n");
    let outcome = Sandbox::at(level).args([token.as_str()]).run_python(code);
    let expected = if level == Level::Basic { "EPERM\n" } else { "ECONNREFUSED\n" };
    assert_eq!(outcome.stdout, expected, "{outcome:?}");
});

#[test]
fn every_run_of_strict_has_a_host_id_of_its_own() {
    let code = "import os; print(os.getuid())";
    // The control: a plain child has its caller's id.
    let own = rustix::process::geteuid().as_raw();
    let control = Program::new("/usr/bin/python3").args(["-c", code]).run();
    assert_eq!(control.out(), format!("{own}\n"));
    let mechanism = || {
        let outcome = Sandbox::at(Level::Strict).run_python(code);
        assert_eq!(outcome.stdout, "1000\n", "inside it is always the same: {outcome:?}");
        assert_layer(&outcome, Layer::UidPerRun);
        let check = outcome.receipt.layers.iter().find(|one| one.name == Layer::UidPerRun);
        check.expect("it is there").mechanism.clone()
    };
    let (first, second) = (mechanism(), mechanism());
    assert_ne!(first, second);
    for one in [first, second] {
        assert!(!one.contains(&format!("uid {own},")), "{one}");
    }
}

#[test]
fn a_run_without_an_id_of_its_own_says_so() {
    let outcome =
        Sandbox::at(Level::Strict).with(["--allow-missing", "uid_per_run"]).run_python("print(1)");
    assert!(outcome.ok(), "{outcome:?}");
    let missing: Vec<Layer> = outcome.receipt.missing.iter().map(|one| one.name).collect();
    // Root always has ids to give, so nothing is missing there.
    let expected: &[Layer] = if is_root() { &[] } else { &[Layer::UidPerRun] };
    assert_eq!(missing, expected);
}

each_level!(root_cannot_be_written, [standard, strict], |level| {
    let code = "import errno, os, sys\nfor path in ('/x', '/usr/x', '/etc/x', '/bin/x', '/dev/x', '/home/x', '/proc/sys/kernel/hostname'):\n \
                try: os.open(sys.argv[1] + path, os.O_CREAT | os.O_WRONLY); print('opened')\n \
                except OSError as error: print(errno.errorcode[error.errno])";
    // The control: a tree like that which belongs to its user takes all of them.
    let tree = TempDir::new();
    for name in ["usr", "etc", "bin", "dev", "home"] {
        std::fs::create_dir(tree.join(name)).expect("it is ours");
    }
    tree.file("proc/sys/kernel/hostname", "host");
    let shown = tree.path().display().to_string();
    let control = Program::new("/usr/bin/python3").args(["-c", code, &shown]).run();
    assert_eq!(control.out(), "opened\n".repeat(7), "{control:?}");
    let outcome = Sandbox::at(level).args([""]).run_python(code);
    // The host's name is root's file; at strict /proc has nothing but processes.
    let name = if level == Level::Strict { "ENOENT\n" } else { "EACCES\n" };
    assert_eq!(outcome.stdout, "EROFS\n".repeat(6) + name, "{outcome:?}");
    assert_layer(&outcome, Layer::Root);
});

/// Leaves signals with itself, undelivered, until it may not or has more than enough; then terminals.
const HOARD: &str = r#"
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
info = (ctypes.c_int * 32)(40, 0, -1) # number, no error, SI_QUEUE
def queue():
    if libc.syscall(129, os.getpid(), 40, info) < 0: raise OSError(ctypes.get_errno(), '')
held = []
def terminal(): held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
for act, most in ((queue, 2000), (terminal, 200)):
    done = 0
    try:
        while done < most: act(); done += 1
        print(done, 'and more')
    except OSError as error: print(done, errno.errorcode[error.errno])
"#;

// Both are counted for the user who started us, or for the whole host: who takes all, takes them from others.
each_level!(signals_and_terminals_are_no_hoard, [basic, standard, strict], |level| {
    let control = Program::new("/usr/bin/python3").args(["-c", HOARD]).run();
    assert_eq!(control.out(), "2000 and more\n200 and more\n", "{control:?}");
    let outcome = Sandbox::at(level).run_python(HOARD);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let [signals, terminals] = lines[..] else { panic!("{outcome:?}") };
    // The user's own count is part of it: another of the same id may have some pending.
    let (queued, errno) = signals.split_once(' ').expect("two words");
    assert!(queued.parse::<u32>().is_ok_and(|one| one <= 1024), "{outcome:?}");
    assert_eq!(errno, "EAGAIN", "{outcome:?}");
    // At basic there are none at all.
    let expected = if level == Level::Basic { "0 EACCES" } else { "64 ENOSPC" };
    assert_eq!(terminals, expected, "{outcome:?}");
});
