//! What comes back from a host that was sent a value, and where a value may stand on its way there.

use belljar::EventKind;

use crate::hall::Hall;
use crate::placeholders::{VALUE, asking};
use crate::rig::refusal;

/// Repeats what it was authorized by: in chunks cut within it, compressed, or as much of it as was asked for and then a guess.
const ECHO: &str = r"
import gzip, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        key = (self.headers.get('authorization') or '-').encode()
        self.send_response(200)
        if self.path == '/chunks':
            self.send_header('transfer-encoding', 'chunked')
            self.send_header('x-echo', key.decode())
            self.end_headers()
            for piece in [key[:5], key[5:11], key[11:], b' end']:
                self.wfile.write(b'%x;a=b\r\n%s\r\n' % (len(piece), piece)); self.wfile.flush()
            self.wfile.write(b'0\r\nx-late: ' + key + b'\r\n\r\n')
        elif self.path == '/gzip':
            body = gzip.compress(key)
            self.send_header('content-encoding', 'gzip')
            self.send_header('content-length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            body = urllib.parse.unquote(self.path[1:]).encode()
            self.send_header('content-length', str(len(body)))
            self.send_header('x-asked', self.headers.get('accept-encoding') or '-')
            self.end_headers()
            self.wfile.write(body)
    do_TRACE = do_GET
    def log_message(self, *_): pass
";

#[test]
fn echoes_in_chunks_are_hidden_and_compressed_ones_refused() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let (_server, port) = hall.world.serve_tls(ECHO);
    hall.allow("", &[port]);
    let at = format!("https://a.test:{port}");
    let code = asking(&format!(
        "import http.client
answer = urllib.request.urlopen(urllib.request.Request('{at}/chunks', headers={{'Authorization': key}}), timeout=60)
print(answer.read().decode(), answer.headers['x-echo'], answer.headers['x-late'])
print(ask('{at}/gzip', Authorization=key))
print(ask('{at}/x', method='TRACE', Authorization=key))
print(urllib.request.urlopen('{at}/x', timeout=60).headers['x-asked'])"
    ));
    let told = hall.run("key@a.test", &code);
    let lines: Vec<&str> = told.stdout.lines().collect();
    let mask = format!("[secret]{}", "*".repeat(VALUE.len() - 8));
    assert_eq!(lines[0], format!("{mask} end {mask} None"), "{told:#?}");
    assert!(
        lines[1].starts_with("502 belljar: the answer of a.test cannot be looked into"),
        "{told:#?}"
    );
    assert_eq!(lines[2], "403 belljar: TRACE /x is not allowed at a.test", "{told:#?}");
    assert_eq!(lines[3], "identity", "{told:#?}");
    let event = refusal(&told, "encoded");
    assert!(
        event.kind == EventKind::PermissionDenied && event.detail.contains("gzip"),
        "{event:?}"
    );
    assert!(event.fix.contains("!a.test"), "{event:?}");
}

#[test]
fn guesses_at_a_beginning_are_left_alone() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let (_server, port) = hall.world.serve_tls(ECHO);
    hall.allow("", &[port]);
    let guess = &VALUE[..VALUE.len() - 1];
    let quoted: String = guess.bytes().map(|byte| format!("%{byte:02x}")).collect();
    // Printed last of all: where output ends, a piece of what a program has is hidden.
    let code = asking(&format!(
        "print(ask('https://a.test:{port}/{quoted}'))\nprint({VALUE:?})\nprint({guess:?}, end='')"
    ));
    let told = hall.run("key@a.test", &code);
    let mask = format!("[secret]{}", "*".repeat(VALUE.len() - 8));
    assert_eq!(told.stdout, format!("{guess}\n{mask}\n{guess}"), "{told:#?}");
    // The control: of a value that the program has a piece is hidden there.
    let own = hall.run("key", &format!("print({guess:?}, end='')"));
    assert!(!own.stdout.contains(guess) && own.stdout.len() == guess.len(), "{own:#?}");
}

#[test]
fn token_in_a_header_that_does_not_authorize_is_stray() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let url = hall.url("a.test", "/x");
    let ask = |headers: &str| {
        let code = asking(&format!(
            "basic = lambda text: 'Basic ' + base64.b64encode(text.encode()).decode()\n\
             print(ask('{url}', None, None, **{{{headers}}}))"
        ));
        hall.run("key@a.test", &code)
    };
    let control = ask("'Authorization': 'Bearer ' + key");
    assert!(control.stdout.starts_with("GET /x Bearer [secret]"), "{control:#?}");
    let control = ask("'Authorization': basic('git:' + key)");
    assert!(
        control.stdout.starts_with("GET /x Basic ") && control.events.is_empty(),
        "{control:#?}"
    );
    for headers in [
        "'X-Amz-Meta-Note': key",
        "'User-Agent': 'tool/1 ' + key",
        "'Cookie': 'session=' + key",
        "'Authorization': 'Bearer x' + key",
    ] {
        let told = ask(headers);
        assert!(
            told.stdout.starts_with("403 belljar: the placeholder of key"),
            "{headers}: {told:#?}"
        );
        let event = refusal(&told, "placeholder");
        assert_eq!(event.kind, EventKind::EscapeAttempt, "{headers}: {event:?}");
    }
    let heard = hall.heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
}
