//! Answers that go on: what a host sends piece by piece comes piece by piece, though its values are looked for.

use belljar_tests::Program;

use crate::hall::Hall;
use crate::placeholders::VALUE;

/// Sends a record, and the next one only when somebody has said that it has come.
const STREAM: &str = r"
import json, threading
said = [threading.Event() for _ in range(5)]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        kind = self.path.strip('/')
        if kind.isdigit():
            said[int(kind)].set()
            self.send_response(204)
            return self.end_headers()
        for one in said: one.clear()
        key = self.headers.get('authorization') or '-'
        self.send_response(200)
        self.send_header('content-type', {'sse': 'text/event-stream', 'json': 'application/x-ndjson'}.get(kind, 'text/plain'))
        self.send_header('transfer-encoding', 'chunked')
        self.end_headers()
        for number in range(5):
            text = json.dumps({'number': number, 'key': key})
            record = f'event: one\ndata: {text}\n\n' if kind == 'sse' else text + '\n'
            self.wfile.write(b'%x\r\n%s\r\n' % (len(record), record.encode())); self.wfile.flush()
            if not said[number].wait(5):
                self.wfile.write(b'a\r\nnot heard\n\r\n'); break
        self.wfile.write(b'0\r\n\r\n')
    def log_message(self, *_): pass
";

/// Says of each record that it has come, on a connection of its own, and prints what came.
const CLIENT: &str = r"
import http.client, os, socket, ssl, sys
port = int(sys.argv[1])
def ask(path):
    context = ssl.create_default_context(cafile=sys.argv[2] if len(sys.argv) > 2 else None)
    line = http.client.HTTPSConnection('a.test', port, timeout=60, context=context)
    if len(sys.argv) > 2:
        line._create_connection = lambda *_: socket.create_connection(('127.0.0.1', port), 60)
    line.request('GET', path, headers={'Authorization': os.environ.get('KEY', '-')})
    return line.getresponse()
for kind in ('sse', 'json', 'text'):
    answer, number = ask('/' + kind), 0
    while line := answer.readline():
        print(kind, line.decode().strip(), flush=True)
        if b'number' in line:
            ask(f'/{number}').read(); number += 1
";

#[test]
fn each_event_of_a_stream_arrives_before_the_next_is_sent() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let (_server, port) = hall.world.serve_tls(STREAM);
    hall.allow("", &[port]);
    let count = |text: &str, what: &str| text.lines().filter(|line| line.contains(what)).count();
    // The control: nobody stands between them.
    let direct = Program::new("/usr/bin/python3").args(["-c", CLIENT, &port.to_string()]);
    let direct = direct.arg(hall.world.directory.join("ca.pem")).run().out();
    assert_eq!((count(&direct, "number"), count(&direct, "not heard")), (15, 0), "{direct}");
    let code = format!("import sys\nsys.argv = ['', '{port}']\n{CLIENT}");
    let told = hall.run("key@a.test", &code);
    for kind in ["sse", "json"] {
        let lines: String = told
            .stdout
            .lines()
            .filter(|one| one.starts_with(kind))
            .map(|one| format!("{one}\n"))
            .collect();
        assert_eq!((count(&lines, "number"), count(&lines, "not heard")), (5, 0), "{told:#?}");
        assert_eq!(count(&lines, "[secret]"), 5, "{told:#?}");
    }
    // Of a text nobody knows where it may be cut: its end waits for more.
    assert_eq!(count(&told.stdout, "text not heard"), 1, "{told:#?}");
    assert!(told.ok() && told.events.is_empty(), "{told:#?}");
}
