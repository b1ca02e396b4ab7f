//! What every level bounds, and what the receipt says of it: time, output, the tree, the session.

use std::time::{Duration, Instant};

use belljar_tests::{
    FaultDomain, Layer, Level, Outcome, Program, Sandbox, Token, Verdict, each_level, is_root,
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
    let code = "import os\nwhile True: os.write(1, b'x' * 65536)";
    let outcome =
        Sandbox::at(level).with(["--output-total", "1m", "--timeout", "60s"]).run_python(code);
    assert_eq!(outcome.verdict.kind(), "output_limit", "{}", outcome.verdict.kind());
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
    let mut victim = Program::new("/bin/cat").start_interactive();
    let code = "import os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                for target in (-1, 0, int(sys.argv[1])):\n try: os.kill(target, signal.SIGTERM)\n \
                except OSError as error: print(target == int(sys.argv[1]), error.errno)";
    let outcome = Sandbox::at(level).args([victim.id().to_string()]).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    victim.write(b"alive\n");
    assert_eq!(victim.read_line(), "alive\n");
    if level == Level::Basic {
        // EPERM for the victim: by Landlock's scope, and as root by the other id as well.
        assert!(outcome.stdout.contains("True 1"), "{outcome:?}");
        assert_layer(&outcome, Layer::Scopes);
    } else {
        assert!(outcome.stdout.contains("True 3"), "{outcome:?}");
        assert_layer(&outcome, Layer::PidNamespace);
    }
    // The control: outside, the same signal ends it.
    let killed = Program::new("/bin/kill").arg(victim.id().to_string()).run();
    assert_eq!(killed.code, Some(0));
    assert_eq!(victim.wait().signal, Some(15));
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
    let uid = |sandbox: &Sandbox| {
        let outcome = sandbox.run_python("import os; print(os.getuid())");
        assert_eq!(outcome.stdout, "1000\n", "inside it is always the same: {outcome:?}");
        assert_layer(&outcome, Layer::UidPerRun);
        let check = outcome.receipt.layers.iter().find(|one| one.name == Layer::UidPerRun);
        check.expect("it is there").mechanism.clone()
    };
    let first = uid(&Sandbox::at(Level::Strict));
    let own = rustix::process::geteuid().as_raw();
    assert!(!first.contains(&format!("uid {own},")), "{first}");
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
    let code = "import errno, os\nfor path in ('/x', '/usr/x', '/etc/x', '/bin/x', '/dev/x', '/home/x', '/proc/sys/kernel/hostname'):\n \
                try: os.open(path, os.O_CREAT | os.O_WRONLY); print(path)\n \
                except OSError as error: print(errno.errorcode[error.errno])";
    let outcome = Sandbox::at(level).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    let refused = ["EROFS", "EACCES", "ENOENT"];
    assert_eq!(outcome.stdout.lines().count(), 7);
    assert!(outcome.stdout.lines().all(|line| refused.contains(&line)), "{outcome:?}");
    assert_layer(&outcome, Layer::Root);
});
