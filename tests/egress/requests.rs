//! Methods, paths and hosts of requests, on every request of a connection.

use belljar_tests::{Program, wait_until};

use crate::rig::{Web, World, prints, refusal};

/// Sends these bytes to a.test, one after the other on one connection, and prints each answer's first line.
pub(crate) const TALK: &str = "
import socket, sys
s = socket.create_connection(('a.test', int(sys.argv[1])), 20); s.settimeout(20)
f = s.makefile('rb')
for request in sys.argv[2:]:
    try:
        s.sendall(request.encode().decode('unicode_escape').encode('latin-1'))
        status = f.readline().decode().strip()
        print(status[9:12] or 'closed')
        length = 0
        while (line := f.readline().strip()):
            if line.lower().startswith(b'content-length:'): length = int(line.split(b':')[1])
        f.read(length)
    except OSError as error: print('closed')";

/// The same from the host.
fn outside(port: u16, requests: &[&str]) -> String {
    let code = TALK.replace("'a.test'", "'127.0.0.1'");
    let program = Program::new("/usr/bin/python3").args(["-c", &code, &port.to_string()]);
    program.args(requests).run().out().trim().to_owned()
}

#[test]
fn every_request_of_a_kept_connection_is_for_the_host_that_was_allowed() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let talk = |requests: &[&str]| {
        let mut arguments = vec![port.to_string()];
        arguments.extend(requests.iter().map(|one| (*one).to_owned()));
        world.sandbox(&["a.test"], &[port]).args(arguments).run_python(TALK)
    };
    let good = r"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let absolute = format!(r"GET http://a.test:{port}/2 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    prints(&talk(&[good, &absolute, good]), "200\n200\n200");
    let forged = r"GET /control HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    assert_eq!(outside(port, &[good, forged]), "200\n200", "without us any Host is served");
    let control = web.requests().len();
    for (bad, rule) in [
        (r"GET /no HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_owned(), "host"),
        (format!(r"GET http://evil.test:{port}/no HTTP/1.1\r\nHost: a.test\r\n\r\n"), "host"),
        (r"GET /no HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n\r\n".to_owned(), "host"),
        (r"GET /no HTTP/1.1\r\n\r\n".to_owned(), "host"),
        (format!(r"CONNECT evil.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n"), "host"),
    ] {
        let outcome = talk(&[good, &bad]);
        prints(&outcome, "200\n403");
        refusal(&outcome, rule);
    }
    let asked = web.requests().split_off(control);
    assert!(!asked.iter().any(|one| one.contains("/no") || one.contains("evil")), "{asked:?}");
}

#[test]
fn smuggled_requests_are_refused_before_a_byte_of_them_passes() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let hidden = r"GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    // A server that believes the last of two headers serves the request that the first one hides.
    let both = r"POST /control HTTP/1.1\r\nHost: a.test\r\nContent-Length: 99\r\nContent-Length: 0";
    outside(port, &[&format!(r"{both}\r\n\r\n{hidden}")]);
    wait_until("both were served", || web.requests().len() == 2);
    assert_eq!(web.requests()[1], "GET /smuggled evil.test");
    for head in [
        r"Content-Length: 5\r\nTransfer-Encoding: chunked",
        r"Content-Length: 5\r\nContent-Length: 0",
        r"Transfer-Encoding: xchunked",
        r"Transfer-Encoding : chunked",
        r"X: 1\r\n Transfer-Encoding: chunked",
        r"X: 1\nTransfer-Encoding: chunked",
        r"Content-Length: +5",
        r"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    ] {
        let request =
            format!(r"POST /first HTTP/1.1\r\nHost: a.test\r\n{head}\r\n\r\n0\r\n\r\n{hidden}");
        let sandbox = world.sandbox(&["a.test"], &[port]).args([port.to_string(), request]);
        let outcome = sandbox.run_python(TALK);
        prints(&outcome, "403");
        refusal(&outcome, "framing");
    }
    assert_eq!(web.requests().len(), 2, "those of the control alone: {:?}", web.requests());
    // The second request, hidden in the body of one that is well framed, is a body and nothing else.
    let length = hidden.replace(r"\r\n", "..").len();
    let body =
        format!(r"POST /body HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n{hidden}");
    let outcome =
        world.sandbox(&["a.test"], &[port]).args([port.to_string(), body]).run_python(TALK);
    prints(&outcome, "200");
    assert_eq!(web.requests()[2..], ["POST /body a.test"]);
}

#[test]
fn methods_and_paths_are_those_of_the_rule() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let rule =
        world.rule(&["a.test"], &[port], "methods = [\"GET\"]\npath_prefixes = [\"/simple/\"]");
    let all = [
        (r"GET /simple/x HTTP/1.1\r\nHost: a.test\r\n\r\n", "200"),
        (r"POST /simple/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", "403"),
        (r"GET /upload HTTP/1.1\r\nHost: a.test\r\n\r\n", "403"),
        (r"GET /simple/../upload HTTP/1.1\r\nHost: a.test\r\n\r\n", "403"),
        (r"GET /simple/%2e%2e/upload HTTP/1.1\r\nHost: a.test\r\n\r\n", "403"),
    ];
    assert_eq!(outside(port, &all.map(|(request, _)| request)), ["200"; 5].join("\n"));
    let before = web.requests().len();
    for (request, answer) in all {
        let sandbox = world.sandbox_with(&rule).args([port.to_string(), request.to_owned()]);
        prints(&sandbox.run_python(TALK), answer);
    }
    let proxied = "curl -s -o /dev/null -w '%{http_code} ' -X $1 http://a.test:$0/$2";
    let code = format!(
        "for w in 'GET simple/x' 'PUT simple/x' 'GET upload'; do bash -c \"{}\" {port} $w; done",
        proxied.replace('$', "\\$")
    );
    prints(&world.sandbox_with(&rule).run_bash(&code), "200 403 403");
    assert_eq!(web.requests().len(), before + 2, "{:?}", web.requests());
}

#[test]
fn method_or_path_that_a_header_names_is_held_to_the_rule_too() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let delete = r"POST /simple/x HTTP/1.1\r\nHost: a.test\r\nX-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n";
    let admin = r"GET /simple/x HTTP/1.1\r\nHost: a.test\r\nX-Original-URL: /admin\r\n\r\n";
    assert_eq!(outside(port, &[delete, admin]), "200\n200");
    assert_eq!(web.requests(), ["DELETE /simple/x a.test", "GET /admin a.test"]);
    let more = "methods = [\"GET\", \"POST\"]\npath_prefixes = [\"/simple/\"]";
    let rule = world.rule(&["a.test"], &[port], more);
    for (request, answer, refused) in [
        (delete.replace("DELETE", "GET"), "200", None),
        (delete.to_owned(), "403", Some("method")),
        (delete.replace("X-HTTP", "x_http"), "403", Some("method")),
        (admin.to_owned(), "403", Some("path")),
        (admin.replace("/simple/x", "/simple/#/../../admin"), "403", Some("path")),
    ] {
        let sandbox = world.sandbox_with(&rule).args([port.to_string(), request.clone()]);
        let outcome = sandbox.run_python(TALK);
        prints(&outcome, answer);
        refused.map(|rule| refusal(&outcome, rule));
    }
    assert_eq!(web.requests().len(), 3, "{:?}", web.requests());
    // Where any method and path may be, such headers may name any.
    let open = world.sandbox(&["a.test"], &[port]).args([port.to_string(), delete.to_owned()]);
    prints(&open.run_python(TALK), "200");
}

#[test]
fn http2_without_tls_and_unknown_words_are_refused_at_a_web_port() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let rule = world.rule(&["a.test"], &[port], "protocol = \"web\"");
    for (bytes, rule_name) in [
        (r"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "protocol"),
        (r"\x00\x01\x02", "protocol"),
        (r"\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "protocol"),
        (r"SSH-2.0-x\r\n", "protocol"),
        (
            r"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
            "protocol",
        ),
    ] {
        let sandbox = world.sandbox_with(&rule).args([port.to_string(), bytes.to_owned()]);
        let outcome = sandbox.run_python(TALK);
        assert!(["closed", "403"].contains(&outcome.stdout.trim()), "{bytes}: {outcome:#?}");
        refusal(&outcome, rule_name);
    }
    assert_eq!(web.requests(), Vec::<String>::new());
}
