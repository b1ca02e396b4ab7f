//! Hosts of a test's own that speak TLS, and what they heard.

use belljar_tests::{Ended, Program, Running};

use crate::Host;
use crate::rig::World;

/// Speaks HTTP over TLS under every name. Writes down what it was asked, and repeats it: `METHOD PATH AUTHORIZATION BODY`,
/// and as a header the digest of what it was authorized by.
const SERVER: &str = r#"
import hashlib, threading
lock = threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        body = self.rfile.read(int(self.headers.get('content-length') or 0))
        while self.headers.get('transfer-encoding') == 'chunked':
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size); self.rfile.readline()
            if not size: break
        key = self.headers.get('authorization') or '-'
        text = f'{self.command} {self.path} {key} {body.decode()}'
        with lock, open('heard', 'a') as heard: print(text, file=heard)
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.send_header('x-digest', hashlib.sha256(key.encode()).hexdigest()[:12])
        self.end_headers()
        self.wfile.write(text.encode())
    do_GET = do_POST = do_DELETE = answer
    def log_message(self, *_): pass
"#;

/// Every name there is; all are at the same server.
pub(crate) const NAMES: [&str; 4] = ["a.test", "b.test", "c.a.test", "pinned.a.test"];

/// A host for sandboxes, and hosts on the other side.
pub(crate) struct Hall {
    pub host: Host,
    pub world: World,
    pub port: u16,
    _server: Running,
}

impl Hall {
    pub(crate) fn new() -> Self {
        let world = World::with(&NAMES);
        world.certificates(&NAMES);
        let (server, port) = world.serve_tls(SERVER);
        let hall = Self { host: Host::new(), world, port, _server: server };
        hall.allow("", &[]);
        hall
    }

    /// What `@test` allows: all names at the server's port and at others, with more to the rule.
    pub(crate) fn allow(&self, more: &str, ports: &[u16]) {
        let ports = [&[self.port], ports].concat();
        let rule = self.world.rule(&NAMES, &ports, more);
        self.world.settings_with(&rule, "ca_file = \"ca.pem\"");
    }

    pub(crate) fn belljar(&self) -> Program {
        self.host.belljar().env("BELLJAR_CONFIG", self.world.directory.join("belljar.toml"))
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> Ended {
        let ended = self.belljar().args(arguments).run();
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended
    }

    /// An address at the server.
    pub(crate) fn url(&self, name: &str, path: &str) -> String {
        format!("https://{name}:{}{path}", self.port)
    }

    /// Every request that arrived.
    pub(crate) fn heard(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.world.directory.join("heard")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Whether a request with this in its first words arrived with this in its last ones.
    #[track_caller]
    pub(crate) fn assert_heard(&self, begin: &str, end: &str) {
        let heard = self.heard();
        let found = heard.iter().any(|one| one.starts_with(begin) && one.trim().ends_with(end));
        assert!(found, "{begin} … {end}: {heard:?}");
    }
}
