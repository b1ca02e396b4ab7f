//! Names that lead elsewhere later, or stand for others: rebinding, HTTP/2 for another host, names cut by a NUL.

use belljar_tests::Program;

use crate::attacks::on_host;
use crate::clients::with_authority;
use crate::resolvers::HTTP2;
use crate::rig::{Web, World, echo, prints, refusal};

/// Asks the name server itself, and dials what it says, time after time: what a client that resolves anew would do.
const NAIVE: &str = "
import socket, struct, sys
dns, port = int(sys.argv[1]), int(sys.argv[2])
for _ in range(2):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
    s.sendto(bytes(5) + b'\\1' + bytes(6) + b'\\6rebind\\4test\\0\\0\\1\\0\\1', ('127.0.0.1', dns))
    address = socket.inet_ntoa(s.recv(512)[-4:])
    c = socket.create_connection((address, port), 20)
    c.sendall(b'GET / HTTP/1.1\\r\\nHost: rebind.test\\r\\nConnection: close\\r\\n\\r\\n')
    print(address, c.recv(15)[9:12].decode())";

#[test]
fn second_answer_that_leads_elsewhere_is_never_dialled() {
    let (world, good) = (World::with(&[]), Web::start());
    let port = good.port;
    let inner = Web::at(&format!("127.0.0.2:{port}"));
    let answers = [
        &["127.0.0.1".parse().expect("an address")][..],
        &["127.0.0.2".parse().expect("an address")],
    ];
    world.name("rebind.test", &answers);
    let words = [world.dns_port().to_string(), port.to_string()];
    let control = Program::new("/usr/bin/python3").args(["-c", NAIVE]).args(&words).run();
    assert_eq!(control.out().trim(), "127.0.0.1 200\n127.0.0.2 200", "{control:?}");
    assert_eq!(inner.requests().len(), 1);
    world.name("rebind.test", &answers);
    // The first answer is held for a while, whatever it says itself; then the second is checked as the first was.
    let code = format!(
        "
import time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
served, end = 0, time.time() + 60
try:
    while time.time() < end:
        served += opener.open('http://rebind.test:{port}/', timeout=60).status == 200
        time.sleep(0.2)
    print('never checked')
except OSError as error: print(served > 1, getattr(error, 'code', 'cut'))"
    );
    let set = format!(
        "hosts = [\"rebind.test\"]\nports = [{port}]\naddresses = [\"127.0.0.1/32\"]\nprotocol = \"web\""
    );
    let outcome = world.sandbox_with(&set).with(["--timeout", "100s"]).run_python(&code);
    prints(&outcome, "True 502");
    assert!(refusal(&outcome, "address").detail.contains("127.0.0.2"));
    assert_eq!(inner.requests().len(), 1, "{:?}", inner.requests());
}

#[test]
fn http2_without_tls_is_refused_to_a_real_client() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, secure) = world.serve("/usr/bin/node", HTTP2, &[]);
    let find = format!(
        "curl -sk --http2 --resolve a.test:{secure}:127.0.0.1 https://a.test:{secure}/plain"
    );
    let plain = on_host(&find);
    let get = |way: &str, authority: &str| {
        format!(
            "curl -s -m 30 {way} --http2-prior-knowledge -H 'Host: {authority}' http://a.test:{plain}/x; echo \" $?\""
        )
    };
    let here = format!("--resolve a.test:{plain}:127.0.0.1");
    assert_eq!(on_host(&get(&here, "evil.test")), "h2 evil.test/x\n 0");
    let port = plain.parse().expect("a port");
    // Also where anything may be spoken, though its server speaks first.
    for protocol in ["web", "tcp"] {
        let rule = world.rule(&["a.test"], &[port], &format!("protocol = \"{protocol}\""));
        for way in ["--noproxy '*'", "-p", "--proxy socks5h://198.18.0.1:1080"] {
            let outcome = world.sandbox_with(&rule).run_bash(&get(way, "a.test"));
            assert!(!outcome.stdout.contains("h2"), "{protocol} {way}: {outcome:#?}");
            refusal(&outcome, "protocol");
        }
    }
}

/// Inside TLS nobody but the two ends sees what a later stream asks for. What is asked goes to the server that was
/// allowed all the same, and to no other.
#[test]
fn later_stream_for_another_host_reaches_no_other_server() {
    let world = World::with(&["a.test", "evil.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/node", HTTP2, &[]);
    let sandbox = with_authority(&world, &world.sandbox(&["a.test"], &[port]));
    let code = format!(
        "
const session = require('http2').connect('https://a.test:{port}', {{ ca: require('fs').readFileSync('ca.pem') }});
const get = authority => new Promise((done, no) => {{ const one = session.request({{ ':path': '/', ':authority': authority }}); let text = '';
  one.on('data', some => text += some); one.on('end', () => done(text.trim())); one.on('error', no); }});
(async () => {{ console.log(await get('a.test')); console.log(await get('evil.test')); session.close(); }})()"
    );
    let outcome = sandbox.run_node(&code);
    prints(&outcome, "h2 a.test/\nh2 evil.test/");
    let [line] = &outcome.reached[..] else { panic!("{outcome:#?}") };
    assert_eq!((line.host.as_str(), line.connections), ("a.test", 1));
    assert!(!world.asked().contains(&"evil.test".to_owned()), "{:?}", world.asked());
}

/// CONNECT by hand, to a proxy at the address that is named, with a hidden request right behind it.
const HIDDEN: &str = "
import socket, sys
host, proxy, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.create_connection((host, proxy), 60); s.settimeout(60)
s.sendall(f'CONNECT a.test:{port} HTTP/1.1\\r\\nHost: a.test:{port}\\r\\n\\r\\nGET /hidden HTTP/1.1\\r\\nHost: evil.test\\r\\nConnection: close\\r\\n\\r\\n'.encode())
said = b''
while (more := s.recv(4096)): said += more
print(said[9:12].decode())";

/// A proxy that passes on whatever it has, as many do.
const NAIVE_PROXY: &str = "
import socket, threading
listener = socket.create_server(('127.0.0.1', 0)); print(listener.getsockname()[1], flush=True)
def serve(s):
    head = b''
    while b'\\r\\n\\r\\n' not in head: head += s.recv(4096)
    head, _, rest = head.partition(b'\\r\\n\\r\\n')
    far = socket.create_connection(('127.0.0.1', int(head.split()[1].split(b':')[1])))
    s.sendall(b'HTTP/1.1 200 fine\\r\\n\\r\\n'); far.sendall(rest)
    while (more := far.recv(4096)): s.sendall(more)
    s.close()
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()";

#[test]
fn request_hidden_behind_a_connect_goes_nowhere_and_is_told() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let (_proxy, naive) = world.serve("/usr/bin/python3", NAIVE_PROXY, &[]);
    let words = ["127.0.0.1".to_owned(), naive.to_string(), web.port.to_string()];
    let control = Program::new("/usr/bin/python3").args(["-c", HIDDEN]).args(&words).run();
    assert_eq!(control.out().trim(), "200", "{control:?}");
    assert_eq!(web.requests(), ["GET /hidden evil.test"]);
    let words = ["198.18.0.1".to_owned(), "3128".to_owned(), web.port.to_string()];
    let outcome = world.sandbox(&["a.test"], &[web.port]).args(words).run_python(HIDDEN);
    prints(&outcome, "400");
    assert!(refusal(&outcome, "framing").detail.contains("before it was answered"));
    assert_eq!(web.requests().len(), 1, "{:?}", web.requests());
}

#[test]
fn names_with_a_nul_in_them_are_refused_by_socks() {
    let (world, port) = (World::with(&["a.test"]), echo(b""));
    let code = format!(
        "
import socket, struct
def ask(name):
    s = socket.create_connection(('198.18.0.1', 1080), 60)
    s.sendall(b'\\5\\1\\0'); s.recv(2)
    s.sendall(b'\\5\\1\\0\\3' + bytes([len(name)]) + name + struct.pack('>H', {port}))
    return s.recv(10)[1]
print(ask(b'a.test'), *(ask(name) for name in (b'a.test\\0', b'a.test\\0.evil.test', b'evil.test\\0.a.test', b'\\0', b'a.test\\n', b'')))"
    );
    let outcome = world.sandbox(&["a.test"], &[port]).run_python(&code);
    prints(&outcome, "0 2 2 2 2 2 2");
    assert_eq!(world.asked().iter().filter(|name| *name != "a.test").count(), 0);
}
