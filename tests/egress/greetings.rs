//! Ports where anything may be spoken: servers that speak first, sides that end first, and HTTP/2 that hides among them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::mpsc::{Receiver, channel};

use belljar_tests::Program;

use crate::attacks::on_host;
use crate::resolvers::HTTP2;
use crate::rig::{World, echo, prints, refusal};

/// Waits for what a server of HTTP/2 says first, then begins as its clients do. What kind of frame came first, and whether
/// its own settings were taken.
const PATIENT: &str = r"
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.settimeout(60)
f = s.makefile('rb')
def frame():
    head = f.read(9)
    f.read(int.from_bytes(head[:3], 'big') if head[:4] != b'HTTP' else 0)
    return head
first = frame()
for piece in b'PRI * HT', b'TP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]): s.sendall(piece)
then = frame()
print(first[3], 'taken' if then[3:5] == b'\4\1' else then.decode())";

#[test]
fn http2_is_refused_to_a_client_that_waits_for_its_server_to_speak() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, secure) = world.serve("/usr/bin/node", HTTP2, &[]);
    let find = format!("curl -sk --http2 https://127.0.0.1:{secure}/plain");
    let port: u16 = on_host(&find).parse().expect("a port");
    let here = Program::new("/usr/bin/python3").args(["-c", PATIENT, "127.0.0.1"]);
    assert_eq!(here.arg(port.to_string()).run().out().trim(), "4 taken", "without us it is served");
    let sandbox = world.sandbox(&["a.test"], &[port]);
    let outcome = sandbox.args(["a.test".to_owned(), port.to_string()]).run_python(PATIENT);
    prints(&outcome, "4 HTTP/1.1");
    assert!(refusal(&outcome, "protocol").detail.contains("HTTP/2 without TLS"), "{outcome:#?}");
}

/// Longer than is passed on while its client is listened for.
static LONG: [u8; 200_000] = [b'-'; 200_000];

/// Hears a greeting of so many bytes, says a line, and hears that again.
const TALK: &str = "
import socket, sys
for port, length in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    s = socket.create_connection(('a.test', int(port)), 60); s.settimeout(60)
    f = s.makefile('rb')
    heard = f.read(length)
    s.sendall(b'EHLO me\\r\\n')
    print(len(heard), f.readline().decode().strip(), flush=True)";

#[test]
fn what_a_server_says_first_comes_at_once_and_is_counted_once() {
    let world = World::with(&["a.test"]);
    let greetings: [&'static [u8]; 4] = [b"", b"220 ready\r\n", &LONG[..60_000], &LONG];
    let ports = greetings.map(echo);
    let words = ports
        .iter()
        .zip(greetings)
        .flat_map(|(port, greeting)| [port.to_string(), greeting.len().to_string()]);
    let outcome = world.sandbox(&["a.test"], &ports).args(words).run_python(TALK);
    let lines = greetings.map(|greeting| format!("{} EHLO me", greeting.len()));
    prints(&outcome, &lines.join("\n"));
    for (port, greeting) in ports.iter().zip(greetings) {
        let found = outcome.reached.iter().find(|line| line.port == *port);
        let line = found.unwrap_or_else(|| panic!("{port}: {outcome:#?}"));
        let passed = (line.connections, line.sent_bytes, line.received_bytes);
        assert_eq!(passed, (1, 9, greeting.len() as u64 + 9), "{line:?}");
    }
}

#[test]
fn greeting_is_held_to_the_budget() {
    let world = World::with(&["a.test"]);
    let port = echo(&LONG[..60_000]);
    let set = world.rule(&["a.test"], &[port], "");
    let words = [port.to_string(), "60000".to_owned()];
    let within = world.settings_with(&set, "[network.budget]\nbytes = 70000");
    prints(&world.sandbox_of(&within).args(words.clone()).run_python(TALK), "60000 EHLO me");
    let beyond = world.settings_with(&set, "[network.budget]\nbytes = 50000");
    let outcome = world.sandbox_of(&beyond).args(words).run_python(TALK);
    assert!(!outcome.ok() && outcome.stdout.is_empty(), "{outcome:#?}");
    assert!(refusal(&outcome, "budget").detail.contains("bytes"), "{outcome:#?}");
}

/// Asks for another host in words that many servers take for a request, in one piece and in two, and for none in a line that
/// ends with all that is said.
const OTHERWISE: &str = r"
import socket, sys
for first in '\r\nGET / HTTP/1.1', 'GET\t/\tHTTP/1.1', 'get / HTTP/1.1':
    for cut in 0, len(first):
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.settimeout(60)
        words = f'{first}\r\nHost: evil.test\r\nConnection: close\r\n\r\n'.encode()
        try:
            s.sendall(words[:cut]); s.sendall(words[cut:])
            print(s.recv(12)[9:].decode() or 'cut')
        except OSError: print('cut')
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.settimeout(60)
    try:
        s.sendall(first.encode()); s.shutdown(socket.SHUT_WR)
        print(s.recv(12)[9:].decode() or 'cut')
    except OSError: print('cut')";

/// Takes tabs for blanks, and methods as they are written.
const LENIENT: &str = "
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open('heard', 'a') as heard: print(self.headers['Host'], file=heard)
        self.send_response(204); self.end_headers()
    do_get = do_GET
    def log_message(self, *_): pass
    def parse_request(self):
        while self.raw_requestline in (b'\\r\\n', b'\\n'): self.raw_requestline = self.rfile.readline()
        return super().parse_request()
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()";

#[test]
fn requests_that_are_not_written_as_such_do_not_pass_as_something_else() {
    let world = World::with(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/python3", LENIENT, &[]);
    let here = Program::new("/usr/bin/python3").args(["-c", OTHERWISE, "127.0.0.1"]);
    let here = here.arg(port.to_string()).run();
    assert_eq!(here.out().trim(), ["204"; 9].join("\n"), "without us each is served: {here:?}");
    let heard = || std::fs::read_to_string(world.directory.join("heard")).unwrap_or_default();
    let served = "evil.test\nevil.test\nNone\n".repeat(3);
    assert_eq!(heard(), served);
    let sandbox = world.sandbox(&["a.test"], &[port]);
    let outcome = sandbox.args(["a.test".to_owned(), port.to_string()]).run_python(OTHERWISE);
    prints(&outcome, &["cut"; 9].join("\n"));
    assert_eq!(refusal(&outcome, "protocol").count, 9, "{outcome:#?}");
    assert_eq!(heard(), served, "nothing more arrived");
}

/// Greets, says that it is done, and hears all that its client says.
fn ends_first() -> (u16, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, heard) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                stream.write_all(b"hello and goodbye").ok()?;
                stream.shutdown(Shutdown::Write).ok()?;
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).ok()?;
                sender.send(bytes).ok()
            });
        }
    });
    (port, heard)
}

/// Hears its server to the end, and only then speaks, or the other way round; through a proxy as well.
const HALVES: &str = r"
import socket, sys
first, echoes, web = map(int, sys.argv[1:4])
def direct(port): return socket.create_connection((sys.argv[4], port), 60)
def connect(port):
    s = socket.create_connection(('198.18.0.1', 3128), 60)
    s.sendall(f'CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n'.encode())
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += s.recv(1)
    return s
def rest(s):
    heard = b''
    while (more := s.recv(4096)): heard += more
    return heard
for way in (direct,) if sys.argv[4] != 'a.test' else (direct, connect):
    s = way(first); heard = rest(s); s.sendall(b'late'); s.sendall(b'r' * 100_000); s.close()
    t = way(echoes); t.sendall(b'\0once'); t.shutdown(socket.SHUT_WR)
    u = way(web); u.sendall(f'GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n'.encode()); u.shutdown(socket.SHUT_WR)
    print(heard.decode(), rest(t), rest(u)[9:12].decode())";

#[test]
fn half_that_is_open_goes_on_to_its_end() {
    let (world, (first, heard)) = (World::with(&["a.test"]), ends_first());
    let ports = [first, echo(b""), crate::rig::Web::start().port];
    let words =
        |host: &str| ports.map(|port| port.to_string()).into_iter().chain([host.to_owned()]);
    let line = "hello and goodbye b'\\x00once' 200";
    let here = Program::new("/usr/bin/python3").args(["-c", HALVES]).args(words("127.0.0.1")).run();
    assert_eq!(here.out().trim(), line, "{here:?}");
    let outcome = world.sandbox(&["a.test"], &ports).args(words("a.test")).run_python(HALVES);
    prints(&outcome, &[line; 2].join("\n"));
    for _ in 0..3 {
        let said = heard.recv().expect("a client was heard to its end");
        assert!(said.starts_with(b"later") && said.len() == 100_004, "{} bytes", said.len());
    }
}
