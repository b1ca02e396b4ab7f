//! What an operator sees: readiness, counters, the log, traces, sockets from systemd, and the document.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use belljar_tests::{DEADLINE, Program, TempDir, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::running::{Server, bash};

#[test]
fn counters_tell_what_was_answered() {
    let server = Server::start();
    server.run(&bash("true"));
    server.run(&json!({}));
    server.unix().get("/v1/nothing", &[]);
    let answer = server.unix().get("/metrics", &[]);
    assert!(
        answer
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4"))
    );
    let text = answer.text();
    for line in [
        "belljar_http_requests_total{operation=\"run\",class=\"2xx\"} 1",
        "belljar_http_requests_total{operation=\"run\",class=\"4xx\"} 1",
        "belljar_http_requests_total{operation=\"none\",class=\"4xx\"} 1",
        "belljar_http_request_seconds_count{operation=\"run\"} 2",
        "belljar_http_request_seconds_bucket{operation=\"run\",le=\"+Inf\"} 2",
        "belljar_policy_stale 0",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    // Every line is a comment, or a name and a number, as the format has it.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a number");
        assert!(name.starts_with("belljar_") && value.parse::<f64>().is_ok(), "{line}");
    }
    let chroot = "import os\ntry: os.chroot('/tmp')\nexcept OSError: raise SystemExit(3)";
    server.run(&json!({ "language": "python", "code": chroot }));
    let slow = json!({ "language": "bash", "code": "sleep 60", "limits": { "wall_ms": 100 } });
    server.run(&slow);
    let text = server.unix().get("/metrics", &[]).text();
    for line in [
        "belljar_runs_total{verdict=\"exited\"} 2",
        "belljar_runs_total{verdict=\"wall_time_limit\"} 1",
        "belljar_events_total{kind=\"escape_attempt\"} 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    let key = server.key("ci", &[]);
    assert_eq!(server.as_key(&key, "GET", "/metrics", &Value::Null).status, 403, "not for tenants");
}

#[test]
fn request_ids_are_taken_over_or_made() {
    let server = Server::start();
    let own = server.unix().post("/v1/runs", &[("X-Request-Id", "mine-1")], &json!({}));
    assert_eq!(own.header("x-request-id"), Some("mine-1"));
    let problem = own.json();
    assert_eq!(
        (&problem["request_id"], &problem["instance"]),
        (&json!("mine-1"), &json!("/v1/runs"))
    );
    assert_eq!((&problem["code"], &problem["type"]), (&json!("spec"), &json!("/v1/problems/spec")));
    assert_eq!((&problem["retryable"], problem["hint"].is_string()), (&json!(false), true));
    let page = server.unix().get("/v1/problems/spec", &[]).json();
    assert_eq!((&page["code"], &page["status"]), (&json!("spec"), &json!(400)));
    assert_eq!(server.unix().get("/v1/problems/x", &[]).status, 404);
    let made = server.unix().get("/healthz", &[("X-Request-Id", "a b")]);
    assert!(made.header("x-request-id").is_some_and(|id| id.starts_with("req_")), "{made:?}");
}

#[test]
fn log_is_json_without_code_paths_or_keys() {
    let directory = TempDir::new();
    let log = directory.join("log");
    let script = format!("exec \"$@\" 2>{}", log.display());
    let state = directory.join("state").display().to_string();
    let socket = directory.join("s.sock").display().to_string();
    let options =
        ["serve", "--listen", "none", "--pool", "0", "--state", &state, "--socket", &socket];
    let more = ["--log", "json", "--log-level", "info", "--memory-reserve", "0"];
    let server =
        Program::new("/bin/sh").args(["-c", &script, "sh"]).arg(belljar_tests::belljar_bin());
    let server = server.args(options).args(more).start();
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    let ask = |head: &str, body: &str| {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        let text = format!(
            "{head} HTTP/1.0\r\nContent-Length: {}\r\nX-Request-Id: id-7\r\n\
             Authorization: Bearer not-logged\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).expect("it reads");
        stream.read_to_string(&mut String::new()).expect("it answers");
    };
    ask(
        "POST /v1/runs",
        r#"{"language": "bash", "code": "echo top-secret", "env": {"A": "hush"}}"#,
    );
    ask("GET /v1/sandboxes/private-name/files/private/path", "");
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    let requests = || lines().lines().filter(|line| line.starts_with('{')).count();
    wait_until("both are logged", || requests() == 2);
    let text = lines();
    for secret in ["top-secret", "hush", "private", "not-logged"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let first: Value =
        serde_json::from_str(text.lines().find(|line| line.starts_with('{')).expect("a line"))
            .expect("JSON");
    assert_eq!((&first["operation"], &first["status"]), (&json!("run"), &json!(200)), "{first}");
    assert_eq!(first["request_id"], "id-7");
    assert_eq!(first["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(first["elapsed_ms"].is_number() && first["time"].is_string(), "{first}");
    server.signal(Signal::TERM);
    server.ends_unread();
}

#[test]
fn spans_reach_a_collector_under_the_callers_trace() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", collector.local_addr().expect("an address"));
    let server = Server::with(&["--otlp", &address]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    server.unix().post("/v1/runs", &[("traceparent", &parent)], &bash("true"));
    let (stream, _) = collector.accept().expect("it comes");
    stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
    let mut reader = BufReader::new(stream);
    let (mut length, mut first) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a head");
        if first.is_empty() {
            first.clone_from(&line);
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    assert_eq!(first, "POST /v1/traces HTTP/1.1\r\n");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    reader
        .get_mut()
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        .expect("it hears");
    drop(reader);
    let told: Value = serde_json::from_slice(&body).expect("JSON");
    let spans = &told["resourceSpans"][0]["scopeSpans"][0]["spans"];
    let span = spans.as_array().and_then(|all| all.iter().find(|one| one["name"] == "run"));
    let span = span.unwrap_or_else(|| panic!("no span: {told}"));
    assert_eq!(
        (&span["traceId"], &span["parentSpanId"]),
        (&json!(trace), &json!("00f067aa0ba902b7"))
    );
    let has = |key: &str| {
        let found =
            span["attributes"].as_array().and_then(|all| all.iter().find(|one| one["key"] == key));
        found.map(|one| one["value"].clone())
    };
    assert_eq!(has("http.route"), Some(json!({ "stringValue": "/v1/runs" })));
    assert_eq!(has("http.response.status_code"), Some(json!({ "intValue": "200" })));
    wait_until("it is counted", || {
        server.unix().get("/metrics", &[]).text().contains("belljar_spans_sent_total 1")
    });
}

#[test]
fn host_under_pressure_begins_nothing_new_and_still_answers() {
    // More memory than any host has must stay free.
    let server = Server::with(&["--shed-memory", "1000000g"]);
    let shed = server.run(&bash("true"));
    let problem = shed.json();
    assert_eq!((shed.status, &problem["code"]), (503, &json!("overloaded")), "{problem}");
    assert_eq!((&problem["rule"], shed.header("retry-after")), (&json!("shed-memory"), Some("2")));
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({})).status, 503);
    assert_eq!(server.unix().get("/readyz", &[]).status, 503);
    assert_eq!(server.unix().get("/healthz", &[]).status, 200);
    assert_eq!(server.unix().get("/v1/sandboxes", &[]).status, 200);
    let text = server.unix().get("/metrics", &[]).text();
    assert!(
        text.contains("belljar_shed_total 2\n") && text.contains("belljar_overloaded 1\n"),
        "{text}"
    );
}

#[test]
fn sockets_of_systemd_are_served_and_kept() {
    let directory = TempDir::new();
    let path = directory.join("given.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let notify = directory.join("notify");
    let told = UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(DEADLINE)).expect("a limit");
    // As systemd does it: the socket is descriptor 3, and the environment names the process.
    let code = "import os, sys\nfd = int(sys.argv[1])\nos.dup2(fd, 3, inheritable=True)\n\
                os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()), NOTIFY_SOCKET=sys.argv[2])\n\
                os.execv(sys.argv[3], sys.argv[3:])";
    let fd = rustix::io::fcntl_dupfd_cloexec(&listener, 50).expect("a descriptor");
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).expect("ours");
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd).to_string();
    let state = directory.join("state").display().to_string();
    let server = Program::new("/usr/bin/python3")
        .args(["-c", code, &number, &notify.display().to_string()])
        .arg(belljar_tests::belljar_bin())
        .args([
            "serve",
            "--listen",
            "none",
            "--pool",
            "0",
            "--state",
            &state,
            "--memory-reserve",
            "0",
        ])
        .start();
    let mut word = [0; 64];
    let length = told.recv(&mut word).expect("it says that it is ready");
    assert_eq!(&word[..length], b"READY=1");
    let answer = crate::http::Connection::unix(&path).get("/healthz", &[]);
    assert_eq!(answer.text(), "ok\n");
    server.signal(Signal::TERM);
    let length = told.recv(&mut word).expect("it says that it stops");
    assert_eq!(&word[..length], b"STOPPING=1");
    server.ends_unread();
    assert!(path.exists(), "the file is not ours to remove");
    listener.set_nonblocking(true).expect("ours");
    let waiting = UnixStream::connect(&path).expect("systemd listens on");
    waiting.set_read_timeout(Some(Duration::from_millis(10))).expect("a limit");
}

#[test]
fn document_is_served_as_it_is_committed_and_needs_no_key() {
    let server = Server::start();
    for mut connection in [server.unix(), server.tcp()] {
        let told = connection.get("/openapi.json", &[("Host", "localhost")]);
        assert_eq!((told.status, &told.json()["openapi"]), (200, &json!("3.1.0")));
    }
    let printed = Program::belljar().args(["serve", "--print-openapi"]).run().json();
    assert_eq!(server.unix().get("/openapi.json", &[]).json(), printed);
    let page = server.unix().get("/docs", &[]);
    assert!(page.text().contains("/v1/sandboxes/{name}/exec"));
    assert!(
        page.header("content-security-policy")
            .is_some_and(|one| one.contains("default-src 'none'"))
    );
}

#[test]
fn lists_are_told_in_parts() {
    let server = Server::start();
    for name in ["a", "b", "c"] {
        assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": name })).status, 201);
        server.run(&bash("true"));
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    for _ in 0..3 {
        let part = server.unix().get(&format!("/v1/sandboxes?limit=2{cursor}"), &[]).json();
        let all = part["sandboxes"].as_array().expect("a list").clone();
        names.extend(all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()));
        match part["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
    wait_until("all are recorded", || {
        server.unix().get("/v1/audit", &[]).json()["runs"].as_array().map(Vec::len) == Some(3)
    });
    let first = server.unix().get("/v1/audit?limit=2", &[]).json();
    let next = first["next_cursor"].as_str().expect("there is more").to_owned();
    let second = server.unix().get(&format!("/v1/audit?limit=2&cursor={next}"), &[]).json();
    assert_eq!(
        (first["runs"].as_array().map(Vec::len), second["runs"].as_array().map(Vec::len)),
        (Some(2), Some(1))
    );
    assert!(second["next_cursor"].is_null(), "{second}");
    for wrong in ["limit=0", "limit=1001", "limit=x", "cursor=!", "colour=red"] {
        assert_eq!(server.unix().get(&format!("/v1/audit?{wrong}"), &[]).status, 400, "{wrong}");
        assert_eq!(
            server.unix().get(&format!("/v1/sandboxes?{wrong}"), &[]).status,
            400,
            "{wrong}"
        );
    }
}
