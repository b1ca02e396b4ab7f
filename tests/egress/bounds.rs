//! What does not end by itself, and what ends too often: streams without end, readers that do not read, processes that
//! crash.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_tests::{TempDir, belljar_bin, wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::status;
use crate::rig::{Web, World, egress_of, prints, refusal};

/// Sends for as long as anybody takes it; how much it was so far.
fn endless() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let sent = Arc::new(AtomicU64::new(0));
    let counter = sent.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counter = counter.clone();
            std::thread::spawn(move || {
                stream.read_exact(&mut [0; 1]).ok()?;
                let bytes = [7; 64 << 10];
                while let Ok(length) = stream.write(&bytes) {
                    counter.fetch_add(length as u64, Ordering::Relaxed);
                }
                Some(())
            });
        }
    });
    (port, sent)
}

#[test]
fn stream_without_end_ends_with_the_budget() {
    let (world, (port, _)) = (World::with(&["a.test"]), endless());
    let set = world.rule(&["a.test"], &[port], "");
    let settings = world.settings_with(&set, "[network.budget]\nbytes = 20000000");
    let code = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.sendall(b'x')
total = 0
try:
    while total < 200_000_000 and (more := s.recv(1 << 16)): total += len(more)
except OSError: pass
print(total >= 200_000_000, total > 1_000_000)";
    let host = belljar_tests::Program::new("/usr/bin/python3");
    let control = host.args(["-c", code, "127.0.0.1", &port.to_string()]).run();
    assert_eq!(control.out().trim(), "True True", "without us it does not end: {control:?}");
    let sandbox = world.sandbox_of(&settings).args(["a.test".to_owned(), port.to_string()]);
    let outcome = sandbox.run_python(code);
    prints(&outcome, "False True");
    assert!(refusal(&outcome, "budget").detail.contains("bytes"));
}

#[test]
fn bytes_pass_at_the_pace_of_the_budget() {
    let (world, (port, _)) = (World::with(&["a.test"]), endless());
    let set = world.rule(&["a.test"], &[port], "");
    let settings = world.settings_with(&set, "[network.budget]\nbytes_per_second = 200000");
    let code = "
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.sendall(b'x')
total, start = 0, time.monotonic()
while total < 1_000_000: total += len(s.recv(1 << 14))
print(time.monotonic() - start > 2)";
    let host = belljar_tests::Program::new("/usr/bin/python3");
    let control = host.args(["-c", code, "127.0.0.1", &port.to_string()]).run();
    assert_eq!(control.out().trim(), "False", "without us it is quick: {control:?}");
    let sandbox = world.sandbox_of(&settings).args(["a.test".to_owned(), port.to_string()]);
    prints(&sandbox.with(["--timeout", "100s"]).run_python(code), "True");
}

#[test]
fn names_are_looked_up_at_the_pace_of_the_budget() {
    let world = World::with(&["a.test"]);
    let settings = world.settings_with(
        &world.rule(&["a.test"], &[443], ""),
        "[network.budget]\nlookups_per_second = 20",
    );
    let code = "
import socket, sys, time
question = bytes(5) + b'\\1' + bytes(6) + b'\\1a\\4test\\0\\0\\1\\0\\1'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
start = time.monotonic()
for _ in range(60): s.sendto(question, ('127.0.0.1', int(sys.argv[1]))); s.recv(512)
print(time.monotonic() - start > 1.5)";
    let host = belljar_tests::Program::new("/usr/bin/python3");
    let control = host.args(["-c", code, &world.dns_port().to_string()]).run();
    assert_eq!(control.out().trim(), "False", "without us it is quick: {control:?}");
    prints(&world.sandbox_of(&settings).args(["53"]).run_python(code), "True");
}

/// Holds connections that each cost memory, until they are cut or there are enough; then asks as everybody does.
const HUNGRY: &str = r"
import select, socket, sys, time, urllib.request
port, held = int(sys.argv[1]), []
def is_cut(): return bool(held and select.select(held[:1], [], [], 0)[0])
while len(held) < 700 and not is_cut():
    try:
        held.append(socket.create_connection(('a.test', port), 60))
        held[-1].sendall(b'GET / HTTP/1.1\r\nX: ' + b'a' * 60_000)
    except OSError: time.sleep(0.01)
print('cut' if is_cut() else 'held')
for one in held: one.close()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for _ in range(600):
    try: print(opener.open(f'http://a.test:{port}/after', timeout=60).status); break
    except OSError: time.sleep(0.1)";

#[test]
fn process_that_has_used_its_memory_is_replaced_and_the_run_not_blamed() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let set = world.rule(&["a.test"], &[web.port], "protocol = \"web\"");
    let settings = world.settings_with(&set, "[network.budget]\nconnections_at_once = 1000");
    // Under a limit of the host's own: where that is lower than ours it counts.
    let run = |mib: u64| {
        let limit = format!("--data={}", mib << 20);
        let program = belljar_tests::Program::new("/usr/bin/prlimit").arg(limit).arg(belljar_bin());
        let program = program.args(["run", "--json", "--timeout", "100s", "--egress", "@test"]);
        let program = program.args(["-c", HUNGRY, "--", &web.port.to_string()]);
        belljar_tests::outcome(&program.env("BELLJAR_CONFIG", &settings).run())
    };
    let roomy = run(512);
    prints(&roomy, "held\n200");
    assert!(roomy.events.is_empty(), "{roomy:#?}");
    let outcome = run(48);
    prints(&outcome, "cut\n200");
    assert!(refusal(&outcome, "crashed").count < 3, "{outcome:#?}");
    assert!(outcome.events.iter().all(|event| event.rule == "egress/crashed"), "{outcome:#?}");
    assert_eq!(web.requests().len(), 2, "{:?}", web.requests());
}

/// Begins and does not go on, in every way there is.
const SLOW: &str = r"
import socket, sys
port, ways = int(sys.argv[1]), {
    'silence': ('a.test', b''), 'head': ('a.test', b'GET / HTTP/1.1\r\nX: '), 'hello': ('a.test', b'\x16\3\1\2\0\1'),
    'proxy': ('198.18.0.1', b'CONNECT a'), 'socks': ('198.18.0.1', b'\5')}
held = {}
for name, (host, begin) in ways.items():
    held[name] = socket.create_connection((host, port if host == 'a.test' else 3128), 60)
    held[name].sendall(begin)
for name, s in held.items():
    s.settimeout(60)
    try:
        while s.recv(100): pass
        print(name, 'ended')
    except TimeoutError: print(name, 'held')
    except OSError: print(name, 'ended')";

#[test]
fn who_begins_and_does_not_go_on_is_waited_for_no_longer_than_half_a_minute() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let set = world.rule(&["a.test"], &[web.port], "protocol = \"web\"");
    let sandbox = world.sandbox_with(&set).with(["--timeout", "100s"]);
    let outcome = sandbox.args([web.port.to_string()]).run_python(SLOW);
    let all = ["silence", "head", "hello", "proxy", "socks"].map(|one| format!("{one} ended"));
    prints(&outcome, &all.join("\n"));
    let told = |what: &str| outcome.events.iter().any(|event| event.detail.contains(what));
    for what in
        ["nothing was said", "a head that does not end", "a TLS handshake that does not end"]
    {
        assert!(told(what), "{what}: {outcome:#?}");
    }
}

#[test]
fn readers_that_do_not_read_cost_a_bounded_memory() {
    let (world, (port, sent)) = (World::with(&["a.test"]), endless());
    let code = format!(
        "
import socket, time
held = []
for _ in range(40):
    s = socket.create_connection(('a.test', {port}), 60); s.sendall(b'x'); s.recv(1); held.append(s)
print('held', flush=True)
time.sleep(100)"
    );
    let sandbox = world.sandbox(&["a.test"], &[port]).with(["--timeout", "100s"]);
    let mut running = sandbox.start("python", &code);
    assert_eq!(running.read_line().trim(), "held");
    let egress = wait_for("the egress process", || egress_of(running.id()));
    // Every buffer on the way is full when the far side sends no more.
    let mut before = u64::MAX;
    wait_until("nothing moves", || {
        std::thread::park_timeout(std::time::Duration::from_millis(200));
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut before, now) == now
    });
    let peak = status(egress, "VmHWM");
    let kib: u64 = peak.split_whitespace().next().and_then(|one| one.parse().ok()).expect("KiB");
    assert!(kib < 64 << 10, "{peak} for 40 readers, of {before} bytes that were sent");
    running.signal(Signal::TERM);
    running.wait();
}

#[test]
fn connection_through_the_proxy_counts_once_and_a_crash_refills_no_budget() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let set = world.rule(&["a.test"], &[web.port], "");
    let settings = world.settings_with(&set, "[network.budget]\nconnections = 5");
    // By CONNECT, by SOCKS, and as they are.
    let code = "
import os, subprocess, sys, time
def get(*way):
    words = ['curl', '-s', '-m', '60', '-o', '/dev/null', '-w', '%{http_code}', *way, sys.argv[1]]
    return subprocess.run(words, capture_output=True, text=True).stdout
print(get('-p'), get('--proxy', 'socks5h://198.18.0.1:1080'), get('-p'))
time.sleep(2) # until it is told, which is once a second
print('told', flush=True)
while not os.path.exists('go'): time.sleep(0.02)
print(get('--noproxy', '*'), get('-p'), get('-p'))";
    let workspace = TempDir::new();
    let shared = workspace.path().display().to_string();
    let sandbox = world.sandbox_of(&settings).with(["--timeout", "100s", "--workspace", &shared]);
    let mut running = sandbox.args([format!("http://a.test:{}/", web.port)]).start("python", code);
    assert_eq!((running.read_line().trim(), running.read_line().trim()), ("200 200 200", "told"));
    let first = wait_for("the egress process", || egress_of(running.id()));
    let pid = Pid::from_raw(first.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is ours to kill");
    wait_for("another", || egress_of(running.id()).filter(|pid| *pid != first));
    workspace.file("go", "");
    assert_eq!(running.read_line().trim(), "200 200 000");
    assert_eq!(web.requests().len(), 5);
    running.wait();
}

#[test]
fn way_out_whose_process_crashes_again_and_again_stays_shut() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let code = "
import os, sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def get():
    try: return opener.open(sys.argv[1], timeout=60).status
    except Exception: return 'refused'
print(get())
get()
while not os.path.exists('go'): time.sleep(0.02)
print(get())";
    let workspace = TempDir::new();
    let shared = workspace.path().display().to_string();
    let sandbox = world.sandbox(&["a.test"], &[web.port]).with(["--timeout", "100s"]);
    let sandbox = sandbox.with(["--workspace", &shared]);
    let sandbox = sandbox.args([format!("http://a.test:{}/", web.port)]);
    let running = sandbox.start_json("python", code);
    // When the second comes, the first has been answered.
    wait_until("two requests came", || web.requests().len() == 2);
    let mut killed = Vec::new();
    // One after the other, until none comes any more: more often than anybody should have to.
    while killed.len() < 17 {
        let next = wait_for("the next egress process", || {
            let new = egress_of(running.id()).filter(|pid| !killed.contains(pid));
            new.filter(|pid| status(*pid, "Seccomp") == "2")
        });
        let pid = Pid::from_raw(next.cast_signed()).expect("a process");
        kill_process(pid, Signal::KILL).expect("it is ours to kill");
        killed.push(next);
        wait_until("it is gone", || egress_of(running.id()) != Some(next));
    }
    workspace.file("go", "");
    let outcome = belljar_tests::outcome(&running.wait());
    prints(&outcome, "200\nrefused");
    assert_eq!(web.requests().len(), 2, "nothing passes without it");
    let crashed = refusal(&outcome, "crashed");
    assert_eq!(crashed.count, 17, "{crashed:?}");
}
