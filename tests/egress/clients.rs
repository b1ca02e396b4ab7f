//! Clients as they are: those that know nothing of proxies, and those that want one.

use belljar_tests::{Program, Sandbox};

use crate::rig::{Web, World, echo, prints};

/// Speaks HTTP/1.1 over TLS, and says for whom each request was; below /file/ it has its directory.
pub(crate) const TLS_SERVER: &str = "
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path.startswith('/file/'):
            self.path = self.path[5:]
            return super().do_GET()
        body = ('secure ' + self.headers['Host'] + self.path).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass";

/// The authority's certificate, in the workspace.
pub(crate) fn with_authority(world: &World, sandbox: &Sandbox) -> Sandbox {
    let file = format!("{}:ca.pem", world.directory.join("ca.pem").display());
    sandbox.clone().with(["--file", &file])
}

#[test]
fn curl_reaches_http_and_tls_with_and_without_the_proxy() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    world.certificates(&["a.test"]);
    let (_server, tls) = world.serve_tls(TLS_SERVER);
    let sandbox = with_authority(&world, &world.sandbox(&["a.test"], &[web.port, tls]));
    let code = format!(
        "for way in '--noproxy *' '' '--proxy socks5h://198.18.0.1:1080 --noproxy none.test'; do\n\
         set -f; curl -sS -m 20 $way http://a.test:{}/p; echo\n\
         curl -sS -m 20 $way --cacert ca.pem https://a.test:{tls}/s; echo\ndone",
        web.port
    );
    let outcome = sandbox.run_bash(&code);
    let once = format!("hello from a.test:{}/p \nsecure a.test:{tls}/s", web.port);
    prints(&outcome, &[&*once, &*once, &*once].join("\n"));
    let through: u64 = outcome.reached.iter().map(|line| line.connections).sum();
    assert_eq!(through, 6, "{:?}", outcome.reached);
}

#[test]
fn node_fetch_and_its_own_resolver_work() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let code = format!(
        "const dns = require('dns').promises;
         (async () => {{
           const [address] = await dns.resolve4('a.test');
           const http = require('http');
           const get = url => new Promise((done, no) => http.get(url, r => {{ let t = ''; r.on('data', d => t += d); r.on('end', () => done(t)); }}).on('error', no));
           console.log(address.startsWith('198.1'), (await get('http://a.test:{port}/n')).trim());
           if (typeof fetch === 'function') console.log((await (await fetch('http://a.test:{port}/f')).text()).trim());
           else console.log('hello from a.test:{port}/f');
           await dns.resolve4('b.test').catch(e => console.log(e.code));
         }})();"
    );
    let outcome = world.sandbox(&["a.test"], &[port]).run_node(&code);
    let hello = format!("hello from a.test:{port}");
    prints(&outcome, &format!("true {hello}/n\n{hello}/f\nENOTFOUND"));
}

#[test]
fn resolvers_that_speak_dns_themselves_are_answered_by_both_ways() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let code = "
import socket, struct
def ask(name, kind):
    labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.'))
    return struct.pack('>HHHHHH', 7, 0x100, 1, 0, 0, 0) + labels + b'\\0' + struct.pack('>HH', kind, 1)
server = [l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0]
def udp(q):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.sendto(q, (server, 53))
    return s.recv(512)
def tcp(q):
    s = socket.create_connection((server, 53), 20); s.sendall(struct.pack('>H', len(q)) + q)
    n = struct.unpack('>H', s.recv(2))[0]; return s.recv(n)
for way in udp, tcp:
    a, aaaa, no = way(ask('A.test', 1)), way(ask('a.test', 28)), way(ask('b.test', 1))
    print(a[3] & 15, a[7], socket.inet_ntoa(a[-4:]), aaaa[3] & 15, aaaa[7], no[3] & 15)";
    let outcome = world.sandbox(&["a.test"], &[web.port]).run_python(code);
    prints(&outcome, "0 1 198.18.1.0 0 0 3\n0 1 198.18.1.0 0 0 3");
}

#[test]
fn raw_streams_pass_whoever_speaks_first() {
    let world = World::with(&["a.test"]);
    let (quiet, greeting) = (echo(b""), echo(b"220 ready\r\n"));
    let code = "
import socket, sys
def talk(port, first):
    s = socket.create_connection(('a.test', port), 20)
    said = s.recv(11) if first else b''
    s.sendall(b'\\x00\\x01raw\\xff'); s.shutdown(socket.SHUT_WR)
    back = b''
    while (more := s.recv(100)): back += more
    print(said, back)
talk(int(sys.argv[1]), False); talk(int(sys.argv[2]), True)";
    let sandbox = world.sandbox(&["a.test"], &[quiet, greeting]);
    let outcome = sandbox.args([quiet.to_string(), greeting.to_string()]).run_python(code);
    prints(&outcome, "b'' b'\\x00\\x01raw\\xff'\nb'220 ready\\r\\n' b'\\x00\\x01raw\\xff'");
}

#[test]
fn wildcard_allows_what_is_below_and_ten_thousand_names() {
    let (world, web) = (World::with(&["x.wild.test", "wild.test"]), Web::start());
    for number in 0..10_000 {
        world.name(&format!("n{number}.wild.test"), &[&[crate::rig::LOOPBACK]]);
    }
    let code = "
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30)
def ask(name):
    labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.'))
    s.sendto(struct.pack('>HHHHHH', 7, 0x100, 1, 0, 0, 0) + labels + b'\\0\\0\\1\\0\\1', ('127.0.0.1', 53))
    a = s.recv(512); return socket.inet_ntoa(a[-4:]) if a[7] else a[3] & 15
found = {ask(f'n{i}.wild.test') for i in range(10000)}
print(len(found), all(str(one).startswith('198.19.') for one in found), ask('wild.test'), ask('n1.other.test'))";
    // Whoever may ask the server itself learns the addresses, and tells it what it likes by names.
    let bare = code.replace("('127.0.0.1', 53)", &format!("('127.0.0.1', {})", world.dns_port()));
    let bare = Program::new("/usr/bin/python3").args(["-c", &bare]).run();
    assert_eq!(bare.out(), "1 False 127.0.0.1 3\n", "{bare:?}");
    assert!(world.asked().iter().any(|name| name == "n1.other.test"));
    let settings = world.settings_with(
        &world.rule(&["*.wild.test"], &[web.port], ""),
        "[network.budget]\nlookups_per_second = 1000000",
    );
    let outcome = world.sandbox_of(&settings).with(["--timeout", "100s"]).run_python(code);
    prints(&outcome, "10000 True 3 3");
    assert_eq!(world.asked().iter().filter(|name| *name == "n1.other.test").count(), 1);
}
