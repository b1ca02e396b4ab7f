//! Programs that look names up by themselves, and protocols of which nothing is known: Java, musl, HTTP/2, servers that
//! speak first or ask back.

use belljar_tests::Program;

use crate::clients::with_authority;
use crate::rig::{Web, World, echo, prints};

const JAVA: &str = "
import java.net.*;
public class Probe {
    public static void main(String[] words) throws Exception {
        System.out.println(InetAddress.getByName(\"a.test\").getHostAddress().startsWith(\"198.18.\"));
        var url = new URL(\"http://a.test:\" + words[0] + \"/\");
        System.out.println(((HttpURLConnection) url.openConnection(Proxy.NO_PROXY)).getResponseCode());
        try { InetAddress.getByName(\"b.test\"); System.out.println(\"found\"); }
        catch (UnknownHostException unknown) { System.out.println(\"unknown\"); }
    }
}";

/// Reads resolv.conf, and sends its questions from a socket that it never connects: as musl does.
const MUSL: &str = r#"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    char text[64], answer[16] = {0};
    int failed = getaddrinfo("a.test", words[1], &hints, &found);
    if (failed) { puts(gai_strerror(failed)); return 1; }
    inet_ntop(AF_INET, &((struct sockaddr_in *)found->ai_addr)->sin_addr, text, sizeof text);
    int stream = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(stream, found->ai_addr, found->ai_addrlen) || write(stream, "ping", 4) != 4) return 2;
    printf("%s %zd %s\n", text, read(stream, answer, 4), answer);
    puts(gai_strerror(getaddrinfo("b.test", "80", &hints, &found)));
}
"#;

#[test]
fn java_finds_the_names_that_are_allowed() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let source = world.directory.file("Probe.java", JAVA);
    let javac = Program::new("/usr/bin/javac").args(["-J-XX:TieredStopAtLevel=1", "-d"]);
    let compiled = javac.arg(world.directory.join("")).arg(source).run();
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    let class = format!("{}:Probe.class", world.directory.join("Probe.class").display());
    let sandbox = world.sandbox(&["a.test"], &[web.port]).with(["--file", &class]);
    let code = format!("java -XX:TieredStopAtLevel=1 -Xmx64m -cp . Probe {}", web.port);
    prints(&sandbox.with(["--timeout", "100s"]).run_bash(&code), "true\n200\nunknown");
}

#[test]
fn musl_finds_the_names_that_are_allowed_and_its_program_is_named() {
    let (world, port) = (World::with(&["a.test"]), echo(b""));
    let source = world.directory.file("probe.c", MUSL);
    let compiler = Program::new("/usr/bin/musl-gcc").args(["-static", "-o"]);
    let compiled = compiler.arg(world.directory.join("probe")).arg(source).run();
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    let program = format!("{}:probe", world.directory.join("probe").display());
    let sandbox = world.sandbox(&["a.test"], &[port]).with(["--file", &program]);
    let code = format!("cp probe /tmp/resolve; chmod +x /tmp/resolve; /tmp/resolve {port}");
    let outcome = sandbox.run_bash(&code);
    prints(&outcome, "198.18.1.0 4 ping\nName does not resolve");
    let event = crate::rig::refusal(&outcome, "name");
    let who = event.process.as_ref().map(|one| one.command.as_str());
    assert!(who.is_some_and(|command| command.starts_with("/tmp/resolve")), "{event:?}");
}

/// HTTP/2 over TLS, and without at the port after it, in node: says for whom each request was.
pub(crate) const HTTP2: &str = "
const http2 = require('http2'), fs = require('fs');
const answer = (stream, headers) => { stream.respond({ ':status': 200 }); stream.end(`h2 ${headers[':authority']}${headers[':path']}\\n`); };
const plain = http2.createServer().on('stream', answer).listen(0, '127.0.0.1', () => {
  const secure = http2.createSecureServer({ key: fs.readFileSync('server.key'), cert: fs.readFileSync('server.pem') });
  secure.on('stream', (stream, headers) => headers[':path'] === '/plain'
    ? (stream.respond({ ':status': 200 }), stream.end(`${plain.address().port}`)) : answer(stream, headers));
  secure.listen(0, '127.0.0.1', () => console.log(secure.address().port));
});";

#[test]
fn http2_inside_tls_works_for_curl_and_node() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/node", HTTP2, &[]);
    let sandbox = with_authority(&world, &world.sandbox(&["a.test"], &[port]));
    let code = format!(
        "for way in '--noproxy *' ''; do set -f
curl -sS -m 30 --http2 $way --cacert ca.pem -w '%{{http_version}}\\n' https://a.test:{port}/c; done
node -e '
const session = require(\"http2\").connect(\"https://a.test:{port}\", {{ ca: require(\"fs\").readFileSync(\"ca.pem\") }});
const get = path => new Promise((done, no) => {{ const one = session.request({{ \":path\": path }}); let text = \"\";
  one.on(\"data\", some => text += some); one.on(\"end\", () => done(text.trim())); one.on(\"error\", no); }});
Promise.all([get(\"/x\"), get(\"/y\")]).then(both => {{ console.log(both.join(\" \")); session.close(); }})'"
    );
    let c = format!("h2 a.test:{port}/c\n2");
    let both = format!("h2 a.test:{port}/x h2 a.test:{port}/y");
    prints(&sandbox.run_bash(&code), &[&*c, &*c, &*both].join("\n"));
}

/// Of a database: the client asks for TLS in a word of its own, is told no, and goes on; then the server speaks.
const DATABASE: &str = "
import socket, struct, threading
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
def serve(s):
    if s.recv(8) != struct.pack('>II', 8, 80877103): return s.close()
    s.sendall(b'N')
    length = struct.unpack('>I', s.recv(4))[0]
    user = s.recv(length - 4)[4:].split(b'\\0')[1]
    s.sendall(b'R' + struct.pack('>II', 8, 0) + b'Z' + struct.pack('>I', 5) + b'I' + user); s.close()
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()";

#[test]
fn protocols_where_sides_take_turns_pass_by_name_connect_and_socks() {
    let world = World::with(&["a.test"]);
    let (_server, database) = world.serve("/usr/bin/python3", DATABASE, &[]);
    let shell = echo(b"SSH-2.0-probe\r\n");
    let code = "
import socket, struct, sys
database, shell = int(sys.argv[1]), int(sys.argv[2])
def direct(port): return socket.create_connection(('a.test', port), 30)
def connect(port):
    s = socket.create_connection(('198.18.0.1', 3128), 30)
    s.sendall(f'CONNECT a.test:{port} HTTP/1.1\\r\\nHost: a.test:{port}\\r\\n\\r\\n'.encode())
    head = b''
    while not head.endswith(b'\\r\\n\\r\\n'): head += s.recv(1)
    assert b' 200 ' in head, head
    return s
def socks(port):
    s = socket.create_connection(('198.18.0.1', 1080), 30)
    s.sendall(b'\\5\\1\\0'); assert s.recv(2) == b'\\5\\0'
    s.sendall(b'\\5\\1\\0\\3\\6a.test' + struct.pack('>H', port)); assert s.recv(10)[1] == 0
    return s
for way in direct, connect, socks:
    s = way(database); s.sendall(struct.pack('>II', 8, 80877103)); assert s.recv(1) == b'N'
    words = struct.pack('>I', 196608) + b'user\\0probe\\0\\0'
    s.sendall(struct.pack('>I', len(words) + 4) + words)
    answer = b''
    while (more := s.recv(100)): answer += more
    t = way(shell); greeting = t.recv(15); t.sendall(b'SSH-2.0-client\\r\\n')
    print(answer[-5:].decode(), greeting.decode().strip(), t.recv(100).decode().strip())";
    let sandbox = world.sandbox(&["a.test"], &[database, shell]);
    let outcome = sandbox.args([database.to_string(), shell.to_string()]).run_python(code);
    prints(&outcome, &["probe SSH-2.0-probe SSH-2.0-client"; 3].join("\n"));
}
