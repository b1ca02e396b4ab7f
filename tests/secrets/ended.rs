//! TLS that ends on the way out: every client works as ever, and what is refused is refused inside as well.

use belljar::EventKind;
use belljar_tests::outcome;

use crate::hall::Hall;
use crate::placeholders::{VALUE, asking};
use crate::rig::refusal;

/// One program for each client that people use. Each prints what came back, behind its name.
const CLIENTS: &str = r#"
A="Authorization: $KEY"
at="https://a.test:$PORT"
show() { printf '%s ' "$1"; tail -n 1; echo; }
curl -s -m 60 -H "$A" $at/curl | show curl
curl -s -m 60 --noproxy '*' -H "$A" $at/direct | show direct
curl -s -m 60 --noproxy '*' -x socks5h://198.18.0.1:1080 -H "$A" $at/socks | show socks
/usr/bin/python3 - <<'P' | show urllib
import os, urllib.request
request = urllib.request.Request(f'https://a.test:{os.environ["PORT"]}/urllib', headers={'Authorization': os.environ['KEY']})
print(urllib.request.urlopen(request, timeout=60).read().decode())
P
node -e '
const at = { host: "a.test", port: process.env.PORT, path: "/node", headers: { authorization: process.env.KEY } };
require("https").get(at, answer => answer.pipe(process.stdout)).on("error", error => console.log(error.message));
' | show node
printf 'GET /openssl HTTP/1.1\r\nHost: a.test:%s\r\nAuthorization: %s\r\nConnection: close\r\n\r\n' $PORT $KEY |
    openssl s_client -quiet -verify_return_error -connect a.test:$PORT -servername a.test 2>/dev/null | show openssl
GIT_TERMINAL_PROMPT=0 /usr/bin/git -c http.extraHeader="$A" ls-remote $at/git >/dev/null 2>&1
if [ -x /usr/bin/java ]; then
cat > /tmp/T.java <<'J'
public class T { public static void main(String[] none) throws Exception {
    var at = new java.net.URL("https://a.test:" + System.getenv("PORT") + "/java").openConnection();
    at.setRequestProperty("Authorization", System.getenv("KEY"));
    System.out.println(new String(at.getInputStream().readAllBytes()));
} }
J
/usr/bin/java /tmp/T.java 2>/dev/null | show java
fi
"#;

#[test]
fn clients_believe_the_sandbox_as_they_are() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let port = hall.port.to_string();
    let arguments =
        ["run", "--json", "--egress", "@test", "--secret", "key@a.test", "--screen", "off"];
    let limits = ["--memory", "2g", "--pids", "200", "--timeout", "5m", "--cpu-time", "2m"];
    let program = ["--env", &format!("PORT={port}"), "-l", "bash", "-c", CLIENTS];
    let told = outcome(&hall.ok(&[&arguments[..], &limits, &program].concat()));
    let mut clients = vec!["curl", "direct", "socks", "urllib", "node", "openssl"];
    if std::path::Path::new("/usr/bin/java").exists() {
        clients.push("java");
    }
    for client in clients {
        let line = format!("{client} GET /{client} [secret]");
        assert!(told.stdout.contains(&line), "{client}: {told:#?}");
        hall.assert_heard(&format!("GET /{client} "), VALUE);
    }
    hall.assert_heard("GET /git/info/refs?service=git-upload-pack ", VALUE);
    let refused = told.events.iter().find(|one| one.rule.starts_with("egress/"));
    assert_eq!(refused, None, "{told:#?}");
}

/// Who signed what the host shows.
const ISSUER: &str = r#"
for name in $NAMES; do
    openssl s_client -connect $name:$PORT -servername $name </dev/null 2>/dev/null | openssl x509 -noout -issuer
    curl -s -m 60 -H "Authorization: $KEY" https://$name:$PORT/$name
    echo
done
"#;

#[test]
fn only_hosts_of_the_secret_are_looked_into_and_exempt_ones_are_not() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let port = format!("PORT={}", hall.port);
    let arguments =
        ["run", "--json", "--egress", "@test", "--secret", "key@*.a.test,!pinned.a.test"];
    let program =
        ["--env", &port, "--env", "NAMES=c.a.test pinned.a.test b.test", "--timeout", "2m"];
    let code = ["--screen", "off", "-l", "bash", "-c", ISSUER];
    let told = outcome(&hall.ok(&[&arguments[..], &program, &code].concat()));
    let lines: Vec<&str> = told.stdout.lines().collect();
    let [own, hidden, pinned, first, other, second] = lines[..] else { panic!("{told:#?}") };
    assert!(own.contains("Belljar sandbox") && hidden.contains("[secret]"), "{told:#?}");
    // Encrypted to its end: what was sent there is what the program has.
    assert!(pinned.contains("belljar test") && first.contains("bjph_"), "{told:#?}");
    assert!(other.contains("belljar test") && second.contains("bjph_"), "{told:#?}");
    hall.assert_heard("GET /c.a.test ", VALUE);
    assert_eq!(hall.heard().iter().filter(|one| one.contains(VALUE)).count(), 1);
}

#[test]
fn methods_and_paths_hold_inside() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    hall.allow("methods = [\"GET\"]\npath_prefixes = [\"/ok\"]", &[]);
    let (good, bad) = (hall.url("a.test", "/ok"), hall.url("a.test", "/other"));
    let code = asking(&format!(
        "print(ask('{good}', Authorization=key))\nprint(ask('{good}', method='DELETE', Authorization=key))\nprint(ask('{bad}', Authorization=key))"
    ));
    // The control: what cannot be looked into is refused as a whole.
    let blind = outcome(&hall.ok(&["run", "--json", "--egress", "@test", "-c", &code]));
    assert_eq!(blind.stdout.matches("refused").count(), 3, "{blind:#?}");
    assert!(refusal(&blind, "protocol").detail.contains("methods and paths"), "{blind:#?}");
    let told = hall.run("key@a.test", &code);
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert!(lines[0].starts_with("GET /ok [secret]"), "{told:#?}");
    assert_eq!(lines[1], "403 belljar: DELETE /ok is not allowed at a.test");
    assert_eq!(lines[2], "403 belljar: GET /other is not allowed at a.test");
    refusal(&told, "method");
    refusal(&told, "path");
    assert_eq!(hall.heard().len(), 1, "{:?}", hall.heard());
}

/// Says bytes over TLS, and tells the status of each answer.
const SAY: &str = r"
import os, re, socket, ssl, sys
key, port = os.environ['KEY'], PORT
def say(*parts, host='a.test', sni='a.test'):
    raw = socket.create_connection((host, port), 60)
    try: line = ssl.create_default_context().wrap_socket(raw, server_hostname=sni)
    except OSError as error: return type(error).__name__
    line.settimeout(60)
    line.sendall(''.join(parts).encode())
    heard = b''
    try:
        while len(re.findall(rb'HTTP/1.1 \d+', heard)) < len(parts) or b'refused' in heard:
            piece = line.recv(65536)
            if not piece: break
            heard += piece
    except OSError: pass
    return ' '.join(one.decode() for one in re.findall(rb'HTTP/1.1 (\d+)', heard))
def get(path, *headers, host='a.test'):
    return '\r\n'.join([f'GET {path} HTTP/1.1', f'Host: {host}:{port}', f'Authorization: {key}', *headers, '', ''])
print(say(get('/one'), get('/two')))
print(say(get('/three'), get('/four', host='b.test')))
print(say(get('/five', host='b.test')))
print(say(get('/six', 'Host: b.test')))
print(say(get('/seven', 'Content-Length: 5', 'Transfer-Encoding: chunked') + '0\r\n\r\n'))
print(say(get('/eight', 'Content-Length: 0', 'Content-Length: 50')))
print(say(get('/nine', 'X: a\nAuthorization: b')))
print(say('GET https://b.test/ten HTTP/1.1\r\nHost: a.test\r\n\r\n'))
print(say(get('/eleven', 'Upgrade: websocket', 'Connection: Upgrade')))
print(say(get('/twelve'), sni='b.test'))
print(say('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'))
";

#[test]
fn split_requests_and_other_hosts_are_refused_inside() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let told = hall.run("key@a.test,b.test", &SAY.replace("PORT", &hall.port.to_string()));
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(lines[0], "200 200", "control: two in a row: {told:#?}");
    assert!(["403", "200 403"].contains(&lines[1]), "the second is another's: {told:#?}");
    assert_eq!(lines[2..9], ["403"; 7], "{told:#?}");
    // Not the name that was asked for: no handshake at all.
    assert!(lines[9].contains("SSL") || lines[9].contains("Connection"), "{told:#?}");
    assert_eq!(lines[10], "403", "the beginning of HTTP/2 is no request: {told:#?}");
    let hosts: Vec<_> = told.events.iter().filter(|one| one.rule == "egress/host").collect();
    assert!(!hosts.is_empty() && hosts[0].kind == EventKind::EscapeAttempt, "{told:#?}");
    assert!(told.events.iter().any(|one| one.rule == "egress/framing"), "{told:#?}");
    assert!(told.events.iter().any(|one| one.rule == "egress/sni"), "{told:#?}");
    let heard = hall.heard();
    for path in
        ["/four", "/five", "/six", "/seven", "/eight", "/nine", "/ten", "/eleven", "/twelve"]
    {
        assert!(!heard.iter().any(|one| one.contains(path)), "{path}: {heard:?}");
    }
}

#[test]
fn host_that_cannot_show_who_it_is_gets_nothing() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let code = asking(&format!("print(ask('{}', Authorization=key))", hall.url("a.test", "/x")));
    let known = hall.run("key@a.test", &code);
    assert!(known.stdout.starts_with("GET /x [secret]"), "control: {known:#?}");
    // Its authority is the operator's own, and nobody says so any more.
    hall.world.settings(&hall.world.rule(&crate::hall::NAMES, &[hall.port], ""));
    let told = hall.run("key@a.test", &code);
    assert!(told.stdout.starts_with("502 belljar: a.test is not who it should be"), "{told:#?}");
    assert!(refusal(&told, "certificate").fix.contains("ca_file"), "{told:#?}");
    assert_eq!(hall.heard().len(), 1, "{:?}", hall.heard());
}

/// Begins as HTTP/2 does, whatever it is asked.
const HTTP2: &str = r"
import socket, ssl, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.pem', 'server.key')
context.set_alpn_protocols(['h2'])
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
def serve(stream):
    try:
        stream = context.wrap_socket(stream, server_side=True)
        stream.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        while stream.recv(4096): pass
    except OSError: pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

#[test]
fn host_that_speaks_http_2_only_is_told_as_that() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let (_server, port) = hall.world.serve("/usr/bin/python3", HTTP2, &[]);
    hall.allow("", &[port]);
    let code = asking(&format!("print(ask('https://a.test:{port}/', Authorization=key))"));
    let told = hall.run("key@a.test", &code);
    assert!(told.stdout.starts_with("502 belljar: a.test speaks no HTTP/1.1"), "{told:#?}");
    assert!(refusal(&told, "http2").fix.contains("!a.test"), "{told:#?}");
}

#[test]
fn client_that_believes_nobody_else_is_told_how_to_be_let_through() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let code = format!(
        "
import socket, ssl
raw = socket.create_connection(('a.test', {}), 60)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations('/etc/ssl/certs/ca-certificates.crt')
try: context.wrap_socket(raw, server_hostname='a.test').recv(1)
except ssl.SSLCertVerificationError: print('not believed')",
        hall.port
    );
    let told = hall.run("key@a.test", &code);
    assert_eq!(told.stdout, "not believed\n", "{told:#?}");
    assert!(refusal(&told, "distrusted").fix.contains("!a.test"), "{told:#?}");
}
