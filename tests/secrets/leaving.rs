//! What is on its way out beside requests: names, raw streams; and what becomes of values when the egress process is not there.

use belljar::{EventKind, Severity};
use belljar_tests::{outcome, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::hall::{Hall, NAMES};
use crate::placeholders::{Stays, VALUE, asking};
use crate::rig::{echo, egress_in, refusal};

/// Each way in which a program names a host without asking for its address.
const NAMING: [(&str, &str); 4] = [
    (
        "connect",
        "say(3128, f'CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n'.encode())",
    ),
    (
        "absolute",
        "say(3128, f'GET http://{name}:{port}/ HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n'.encode())",
    ),
    (
        "socks",
        "say(1080, b'\\5\\1\\0\\5\\1\\0\\3' + bytes([len(name)]) + name.encode() + struct.pack('>H', port))",
    ),
    ("handshake", "greet()"),
];

const SAY: &str = "
import os, socket, ssl, struct, time
name, port = WORD + '.a.test', PORT
def say(at, bytes):
    s = socket.create_connection(('198.18.0.1', at), 60)
    if at == 1080: # what is asked for comes after the greeting
        s.sendall(bytes[:3]); s.recv(2); bytes = bytes[3:]
    s.sendall(bytes)
    while s.recv(4096): pass
def greet():
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
    try: context.wrap_socket(socket.create_connection(('c.a.test', port), 60), server_hostname=name)
    except OSError: pass
";

#[test]
fn decoy_or_token_in_the_name_of_a_host_is_told_whichever_way_it_is_named() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let rule = hall.world.rule(&["a.test", "*.a.test"], &[hall.port], "");
    hall.world.settings_with(&rule, "ca_file = \"ca.pem\"");
    for (way, act) in NAMING {
        let run = |word: &str| {
            let code = SAY.replace("WORD", word).replace("PORT", &hall.port.to_string());
            let options = ["run", "--json", "--egress", "@test", "--timeout", "2m"];
            let secrets = ["--secret", "bait=canary:BAIT", "--secret", "key@a.test"];
            let program = ["-c", &format!("{code}{act}")];
            outcome(&hall.ok(&[&options[..], &secrets, &program].concat()))
        };
        let control = run("'x' * 40");
        assert!(!control.events.iter().any(|one| one.rule == "egress/canary"), "{control:#?}");
        let told = run("os.environ['BAIT']");
        let event = refusal(&told, "canary");
        assert_eq!(event.severity, Severity::Critical, "{way}: {told:#?}");
        assert!(event.detail.contains("a host in whose name it stands"), "{way}: {event:?}");
        let told = run("os.environ['KEY'].replace('_', '-')");
        assert!(
            !told.events.iter().any(|one| one.rule == "egress/placeholder"),
            "another: {told:?}"
        );
        let told = run("os.environ['KEY']");
        assert_eq!(
            refusal(&told, "placeholder").kind,
            EventKind::EscapeAttempt,
            "{way}: {told:#?}"
        );
    }
    // Only the controls' names were asked for outside.
    let long: Vec<String> = hall.world.asked().into_iter().filter(|one| one.len() > 20).collect();
    let known = |one: &String| one.starts_with("xxxx") || one.starts_with("bjph-");
    assert!(!long.is_empty() && long.iter().all(known), "{long:?}");
}

/// Says it in two pieces to a server that repeats what it hears.
const RAW: &str = "
import os, socket
s = socket.create_connection(('b.test', PORT), 60); s.settimeout(60)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
text, heard = b'\\0\\1' + WORD + b'.', b''
try:
    s.sendall(text[:20]); heard += s.recv(100); s.sendall(text[20:])
    while len(heard) < len(text) and (more := s.recv(100)): heard += more
except OSError: pass
print('repeated' if heard == text else 'cut')
";

#[test]
fn tokens_and_decoys_in_raw_streams_are_cut_and_told() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let port = echo(b"");
    hall.allow("", &[port]);
    let run = |word: &str| {
        let code = RAW.replace("WORD", word).replace("PORT", &port.to_string());
        let options = ["run", "--json", "--egress", "@test", "--timeout", "2m"];
        let secrets = ["--secret", "bait=canary:BAIT", "--secret", "key@a.test", "-c", &code];
        outcome(&hall.ok(&[&options[..], &secrets].concat()))
    };
    let control = run("b'x' * 45");
    assert!(control.stdout == "repeated\n" && control.events.is_empty(), "{control:#?}");
    for word in ["os.environb[b'KEY']", "os.environb[b'KEY'].hex().encode()"] {
        let told = run(word);
        assert_eq!(told.stdout, "cut\n", "{told:#?}");
        let event = refusal(&told, "placeholder");
        assert!(
            event.kind == EventKind::EscapeAttempt && event.detail.contains("b.test"),
            "{event:?}"
        );
    }
    let told = run("os.environb[b'BAIT']");
    assert_eq!(told.stdout, "cut\n", "{told:#?}");
    assert_eq!(refusal(&told, "canary").severity, Severity::Critical);
}

impl Hall {
    /// The egress process of the sandbox `box`.
    fn egress(&self) -> u32 {
        let info = self.ok(&["sandbox", "info", "box", "--json"]).json();
        egress_in(&self.host.state().join("sandboxes").join(info["id"].as_str().expect("an id")))
    }

    fn kill_egress(&self) -> u32 {
        let number = self.egress();
        let pid = Pid::from_raw(number.cast_signed()).expect("a process");
        kill_process(pid, Signal::KILL).expect("it is ours to kill");
        number
    }

    /// Asks from within the sandbox `box`, until it is answered: what was open is cut with the process.
    fn ask_from_box(&self, path: &str) {
        let code = asking(&format!(
            "import time\nend = time.time() + 60\nwhile time.time() < end:\n    \
             said = ask('{}', Authorization=key)\n    \
             if said.startswith('GET'): break\n    time.sleep(0.1)\nprint(said)",
            self.url("a.test", path)
        ));
        let said = self.ok(&["sandbox", "exec", "box", "--", "python3", "-c", &code]).out();
        assert!(said.starts_with(&format!("GET {path} [secret]")), "{said}");
    }
}

#[test]
fn new_value_outlives_a_crash_of_the_egress_process_and_one_that_comes_meanwhile_counts() {
    let hall = Hall::new();
    hall.host.set("key", "value-number-0-of-the-key");
    hall.ok(&["sandbox", "create", "box", "--egress", "@test", "--secret", "key@a.test"]);
    let _stays = Stays(&hall);
    hall.ask_from_box("/0");
    hall.assert_heard("GET /0", "value-number-0-of-the-key");
    hall.host.set("key", "value-number-1-of-the-key");
    let first = hall.kill_egress();
    wait_for("another", || Some(hall.egress()).filter(|pid| *pid != first));
    hall.ask_from_box("/1");
    hall.assert_heard("GET /1", "value-number-1-of-the-key");
    for number in 2..6 {
        // It is told while there is none, or while the next one locks itself down.
        let value = format!("value-number-{number}-of-the-key");
        hall.kill_egress();
        hall.host.set("key", &value);
        hall.ask_from_box(&format!("/{number}"));
        hall.assert_heard(&format!("GET /{number}"), &value);
    }
}

#[test]
fn way_out_that_could_not_be_opened_at_first_knows_the_secrets_when_it_can() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    hall.ok(&["sandbox", "create", "box", "--egress", "@test", "--secret", "key@a.test"]);
    let _stays = Stays(&hall);
    hall.ok(&["sandbox", "egress", "box"]);
    hall.ok(&["sandbox", "stop", "box"]);
    hall.ok(&["sandbox", "start", "box"]);
    // A program has the port that the way out needs.
    let code = format!(
        "import os, socket, time\ns = socket.create_server(('0.0.0.0', {}))\nopen('/tmp/has', 'w')\n\
         while not os.path.exists('/tmp/go'): time.sleep(0.02)",
        hall.port
    );
    hall.ok(&["sandbox", "exec", "box", "--background", "--", "python3", "-c", &code]);
    let shell = |script: &str| {
        hall.ok(&["sandbox", "exec", "box", "--", "bash", "-c", script]);
    };
    shell("while [ ! -e /tmp/has ]; do sleep 0.05; done");
    let open = || hall.belljar().args(["sandbox", "egress", "box", "@test"]).run();
    assert_ne!(open().code, Some(0), "it cannot listen there");
    shell("touch /tmp/go");
    wait_for("the port is free", || (open().code == Some(0)).then_some(()));
    hall.ask_from_box("/late");
    hall.assert_heard("GET /late", VALUE);
}

/// Begins requests that never end, each on a connection of its own.
const BEGIN: &str = "
import socket, ssl
def begin():
    context = ssl.create_default_context()
    s = context.wrap_socket(socket.create_connection(('a.test', PORT), 60), server_hostname='a.test')
    s.sendall(b'GET / HTTP/1.1\\r\\nX: ' + b'a' * 60_000); s.close()
for _ in range(40):
    try: begin()
    except OSError: break
";

#[test]
fn bytes_into_tls_that_ends_are_charged_though_they_go_no_further() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let rule = hall.world.rule(&NAMES, &[hall.port], "");
    let url = hall.url("a.test", "/x");
    let code = BEGIN.replace("PORT", &hall.port.to_string());
    let code = asking(&format!("{code}\nprint(ask('{url}', Authorization=key))"));
    let run = |bytes: u64| {
        let budget = format!("ca_file = \"ca.pem\"\n[network.budget]\nbytes = {bytes}");
        hall.world.settings_with(&rule, &budget);
        hall.run("key@a.test", &code)
    };
    let control = run(100_000_000);
    assert!(control.stdout.starts_with("GET /x [secret]"), "{control:#?}");
    let told = run(1_000_000);
    assert!(!told.stdout.starts_with("GET"), "{told:#?}");
    assert!(refusal(&told, "budget").detail.contains("bytes"), "{told:#?}");
}

/// Greets with an extension as browsers do: a name that is encrypted, or looks so. What kind of record answers.
const GREASE: &str = r"
import socket, ssl, struct
def hello(name):
    inside, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try: ssl.create_default_context().wrap_bio(inside, out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    body = out.read()[9:]
    at = 34; at += 1 + body[at]; at += 2 + struct.unpack('>H', body[at:at + 2])[0]; at += 1 + body[at]
    extension = b'\0\0\1\0\1\7' + b'\0\x20' + bytes(32) + b'\0\x20' + bytes(32)
    all = body[at + 2:] + (b'\xfe\x0d' + struct.pack('>H', len(extension)) + extension if GREASED else b'')
    body = body[:at] + struct.pack('>H', len(all)) + all
    message = b'\1' + struct.pack('>I', len(body))[1:] + body
    return b'\x16\3\1' + struct.pack('>H', len(message)) + message
for name in 'a.test', 'b.test':
    s = socket.create_connection((name, PORT), 60); s.settimeout(60); s.sendall(hello(name))
    print(s.recv(1)[0])
";

#[test]
fn encrypted_name_is_refused_where_tls_passes_and_means_nothing_where_it_ends() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let run = |greased: &str| {
        let code = GREASE.replace("GREASED", greased).replace("PORT", &hall.port.to_string());
        hall.run("key@a.test", &code)
    };
    // A handshake is record 22, an alert 21.
    assert_eq!(run("False").stdout, "22\n22\n");
    let told = run("True");
    assert_eq!(told.stdout, "22\n21\n", "{told:#?}");
    assert!(refusal(&told, "sni").detail.contains("an encrypted name"), "{told:#?}");
}

#[test]
fn what_was_reached_and_refused_is_in_the_record_of_a_run() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let (good, bad) = (hall.url("a.test", "/x"), hall.url("elsewhere.test", "/x"));
    let code = asking(&format!("ask('{good}', Authorization=key); ask('{bad}')"));
    hall.run("key@a.test", &code);
    let record = hall.ok(&["audit", "show", "last", "--json"]).out();
    assert!(record.contains("\"reached\"") && record.contains("a.test"), "{record}");
    assert!(record.contains("egress/name") && record.contains("elsewhere.test"), "{record}");
}
