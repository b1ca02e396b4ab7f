//! TLS that an operator has ended: rules and the host's name hold inside it, for real clients of a real index.

use belljar::{EventKind, Severity};
use belljar_tests::{Outcome, Program, Sandbox};

use crate::attacks::on_host;
use crate::clients::with_authority;
use crate::living::Place;
use crate::resolvers::HTTP2;
use crate::rig::{World, prints, refusal};
use crate::tools::PACKAGES;

/// Files of its directory over TLS, which also takes what is published, and writes down what that was.
const INDEX: &str = "
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_PUT(self):
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        with open('published', 'a') as told: print(self.command, self.path, file=told)
        self.send_response(201)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'{}')
    do_POST = do_PUT
    def log_message(self, *args): pass";

/// Installs a package with npm and one with pip, publishes one with npm and uploads one as Python's tools do.
const INSTALL_AND_PUBLISH: &str = r#"
at=https://a.test:PORT
export npm_config_fetch_retries=0
npm install --no-audit --no-fund --loglevel error --registry $at/npm/ bjprobe >/dev/null && node -p 'require("bjprobe")'
python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --index-url $at/simple/ --target lib bjprobe &&
    PYTHONPATH=lib python3 -c 'import bjprobe; print(bjprobe.word)'
mkdir mine && cd mine
echo '{"name": "bjmine", "version": "1.0.0"}' > package.json
printf "//a.test:PORT/npm/:_authToken=x\nregistry=$at/npm/\n" > .npmrc
npm publish --loglevel error >/dev/null 2>error && echo published || grep -o 'E4[0-9]*' error | head -n 1
curl -s -m 60 -o /dev/null -w '%{http_code}\n' -F :action=file_upload -F content=@package.json $at/simple/
"#;

impl World {
    /// A sandbox whose set has this beside its hosts and ports, and whose real hosts are believed.
    fn looking(&self, ports: &[u16], more: &str) -> Sandbox {
        let rule = self.rule(&["a.test"], ports, more);
        let sandbox = self.sandbox_of(&self.settings_with(&rule, "ca_file = \"ca.pem\""));
        sandbox.with(["--timeout", "100s"])
    }
}

/// Programs that are not looked into believe the test's authority by the same variables.
fn believing(world: &World, sandbox: &Sandbox) -> Sandbox {
    let names =
        ["npm_config_cafile", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];
    let variables = names.map(|name| format!("{name}=/workspace/ca.pem"));
    let options = variables.iter().flat_map(|one| ["--env".to_owned(), one.clone()]);
    with_authority(world, sandbox).with(options)
}

#[test]
fn install_yes_publish_no_holds_for_an_index_over_https() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve_tls(INDEX);
    let made = Program::new("/usr/bin/python3").args(["-c", PACKAGES, &port.to_string()]);
    assert_eq!(made.directory(&world.directory.join("")).run().code, Some(0));
    let code = INSTALL_AND_PUBLISH.replace("PORT", &port.to_string());
    let published = || {
        let path = world.directory.join("published");
        let told = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::remove_file(path).ok();
        told
    };
    let control = believing(&world, &world.looking(&[port], "")).run_bash(&code);
    prints(&control, "from the registry\nfrom the index\npublished\n201");
    assert_eq!(published(), "PUT /npm/bjmine\nPOST /simple/\n");
    let only = "methods = [\"GET\", \"HEAD\"]\npath_prefixes = [\"/simple/\", \"/npm/\"]";
    // Without a look inside, such a rule lets no TLS pass at all.
    let blind = believing(&world, &world.looking(&[port], only)).run_bash(&code);
    assert!(!blind.stdout.contains("from"), "{blind:#?}");
    assert!(refusal(&blind, "protocol").fix.contains("\"inspect\": true"), "{blind:#?}");
    let told = world.looking(&[port], &format!("{only}\ninspect = true")).run_bash(&code);
    prints(&told, "from the registry\nfrom the index\nE403\n403");
    assert_eq!(published(), "");
    let refused = told.events.iter().filter(|event| event.rule.starts_with("egress/"));
    let refused: Vec<_> = refused.map(|event| (&*event.rule, &*event.detail)).collect();
    assert_eq!(refused.len(), 2, "{told:#?}");
    for request in ["PUT /npm/bjmine", "POST /simple/"] {
        let is_told = |one: &(&str, &str)| one.0 == "egress/method" && one.1.ends_with(request);
        assert!(refused.iter().any(is_told), "{request}: {refused:?}");
    }
}

/// HTTP/2 and HTTP/1.1, as the client likes; says which, and for which host it was asked.
const BOTH: &str = "
const http2 = require('http2'), fs = require('fs');
const options = { key: fs.readFileSync('server.key'), cert: fs.readFileSync('server.pem'), allowHTTP1: true };
const server = http2.createSecureServer(options, (request, answer) =>
  answer.end(`${request.httpVersion} ${request.authority || request.headers.host}${request.url}\\n`));
server.listen(0, '127.0.0.1', () => console.log(server.address().port));";

/// A real client of HTTP/2: two requests on one connection, of which the second is for another host.
fn two_streams(port: u16, more: &str) -> String {
    let one = "-s -m 30 --http2";
    format!(
        "curl {one} {more} https://a.test:{port}/one --next {one} {more} -H 'Host: evil.test' https://a.test:{port}/two"
    )
}

/// The same by a client that speaks nothing else.
const ONLY_HTTP2: &str = "
const session = require('http2').connect('https://a.test:PORT');
session.on('error', error => console.log('refused', error.code));
const get = authority => new Promise(done => { const one = session.request({ ':path': '/', ':authority': authority }); let text = '';
  one.on('data', some => text += some); one.on('end', () => done(text.trim())); one.on('error', () => done()); });
(async () => { for (const name of ['a.test', 'evil.test']) { const told = await get(name); if (told) console.log(told); } session.close(); })()";

#[test]
fn later_stream_for_another_host_is_refused_where_tls_is_looked_into() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/node", BOTH, &[]);
    let ca = world.directory.join("ca.pem").display().to_string();
    let both = format!("2.0 a.test:{port}/one\n2.0 evil.test/two");
    let here = format!("--cacert {ca} --resolve a.test:{port}:127.0.0.1");
    assert_eq!(on_host(&two_streams(port, &here)), both, "outside");
    let passed = believing(&world, &world.looking(&[port], ""));
    prints(&passed.run_bash(&two_streams(port, "")), &both);
    let only = ONLY_HTTP2.replace("PORT", &port.to_string());
    prints(&passed.run_node(&only), "2.0 a.test/\n2.0 evil.test/");
    let looked = world.looking(&[port], "inspect = true");
    let told = looked.run_bash(&two_streams(port, ""));
    let no = "belljar: the request is for another host than a.test";
    prints(&told, &format!("1.1 a.test:{port}/one\n{no}"));
    let event = refusal(&told, "host");
    assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::High));
    assert!(event.detail.contains("evil.test"), "{event:?}");
    // Who speaks nothing else is told so, in its handshake.
    let told = looked.run_node(&only);
    assert!(told.stdout.starts_with("refused ") && !told.stdout.contains("2.0"), "{told:#?}");
    assert!(refusal(&told, "protocol").detail.contains("HTTP/2 alone"), "{told:#?}");
}

/// Begins as HTTP/2 does, whatever was agreed on.
const PREFACE: &str = r"
import socket, ssl
context = ssl.create_default_context()
context.set_alpn_protocols(['h2', 'http/1.1'])
line = context.wrap_socket(socket.create_connection(('a.test', PORT), 30), server_hostname='a.test')
line.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
heard = line.recv(100)
print(line.selected_alpn_protocol(), 'settings' if heard[3] == 4 else heard[:12].decode())";

#[test]
fn http2_that_was_not_agreed_on_is_no_request() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/node", BOTH, &[]);
    let code = PREFACE.replace("PORT", &port.to_string());
    let passed = believing(&world, &world.looking(&[port], "")).run_python(&code);
    prints(&passed, "h2 settings");
    let told = world.looking(&[port], "inspect = true").run_python(&code);
    prints(&told, "http/1.1 HTTP/1.1 403");
    assert_eq!(refusal(&told, "framing").kind, EventKind::SuspiciousBehavior);
}

#[test]
fn host_that_speaks_http_2_only_is_told_as_that_where_tls_is_looked_into() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, port) = world.serve("/usr/bin/node", HTTP2, &[]);
    let get = format!("curl -s -m 30 https://a.test:{port}/x");
    let passed = believing(&world, &world.looking(&[port], "")).run_bash(&get);
    prints(&passed, &format!("h2 a.test:{port}/x"));
    let told = world.looking(&[port], "inspect = true").run_bash(&get);
    assert!(told.stdout.starts_with("belljar: a.test speaks no HTTP/1.1"), "{told:#?}");
    assert!(refusal(&told, "http2").fix.contains("no rule with inspect"), "{told:#?}");
}

#[test]
fn decoys_are_seen_in_tls_that_is_looked_into_and_answers_may_be_compressed() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let server = BOTH.replace(
        "answer.end(",
        "(answer.setHeader('content-encoding', 'gzip'), answer).end(require('zlib').gzipSync(",
    );
    let (_server, port) = world.serve("/usr/bin/node", &server.replace("`));", "`)));"), &[]);
    let get = format!("curl -s -m 30 --compressed -H \"X: $BAIT\" https://a.test:{port}/x");
    let run = |sandbox: &Sandbox, code: &str| -> Outcome {
        sandbox.clone().with(["--secret", "bait=canary:BAIT"]).run_bash(code)
    };
    let passed = run(&believing(&world, &world.looking(&[port], "")), &get);
    prints(&passed, &format!("2.0 a.test:{port}/x"));
    assert!(passed.events.is_empty(), "nobody could look: {passed:#?}");
    let looked = world.looking(&[port], "inspect = true");
    let told = run(&looked, &get);
    assert_eq!(told.stdout.trim(), "belljar: a decoy was on its way to a.test", "{told:#?}");
    assert_eq!(refusal(&told, "canary").severity, Severity::Critical);
    let told = run(&looked, &get.replace("$BAIT", "nothing"));
    prints(&told, &format!("1.1 a.test:{port}/x"));
    assert!(told.events.is_empty(), "{told:#?}");
}

#[test]
fn living_sandbox_is_looked_into_from_its_start_and_is_told_so_later() {
    let world = World::with(&["a.test", "b.test"]);
    world.certificates(&["a.test", "b.test"]);
    let (_server, port) = world.serve("/usr/bin/node", BOTH, &[]);
    let (plain, looked) =
        (world.rule(&["a.test"], &[port], ""), "inspect = true\nprotocol = \"web\"");
    let both = world.rule(&["a.test", "b.test"], &[port], looked);
    let one = world.rule(&["b.test"], &[port], looked);
    let sets = format!("{plain}\n[egress.both]\n{both}\n[egress.one]\n{one}");
    world.settings_with(&sets, "ca_file = \"ca.pem\"");
    let place = Place::new(&world);
    let get = |name: &str| {
        let code = format!("curl -s -m 30 --http2 -k https://{name}:{port}/x");
        place.exec(&code)
    };
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    assert_eq!(get("a.test"), format!("2.0 a.test:{port}/x"), "control: it passes");
    let later = place.belljar(&["sandbox", "egress", "box", "@both"]).run();
    assert!(later.code == Some(2) && later.err().contains("start it again"), "{later:?}");
    assert_eq!(get("a.test"), format!("2.0 a.test:{port}/x"), "nothing has changed");
    place.done(&["sandbox", "stop", "box"]);
    place.done(&["sandbox", "egress", "box", "@test", "@one"]);
    place.done(&["sandbox", "start", "box"]);
    assert_eq!(
        (get("a.test"), get("b.test")),
        (format!("2.0 a.test:{port}/x"), format!("1.1 b.test:{port}/x"))
    );
    let told = place.done(&["net", "explain", "box"]).out();
    assert!(told.contains("is looked into") && told.contains("\n  b.test"), "{told}");
    assert!(!told.contains("\n  a.test\n"), "{told}");
    // One that believes the sandbox already may be looked into more; what passes is cut.
    let hold = format!(
        "import socket, ssl
context = ssl._create_unverified_context()
line = context.wrap_socket(socket.create_connection(('a.test', {port}), 30), server_hostname='a.test')
print('open', flush=True)
try: print('cut' if not line.recv(1) else 'alive')
except OSError: print('cut')"
    );
    let mut held =
        place.belljar(&["sandbox", "exec", "box"]).args(["--", "python3", "-c", &hold]).start();
    assert_eq!(held.read_line().trim(), "open");
    place.done(&["sandbox", "egress", "box", "@both"]);
    assert_eq!(held.read_line().trim(), "cut");
    assert_eq!(get("a.test"), format!("1.1 a.test:{port}/x"));
}
