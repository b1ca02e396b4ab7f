//! Who may speak: this user and root on the socket, who has the token on TCP, and no page in a browser.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_tests::{Level, Program, TempDir, is_root, wait_until};
use serde_json::json;

use crate::running::{self, Server, bash, python};

/// Starts a program under another uid than ours: as root any, else one of our subordinate range.
fn as_another(program: &str) -> Program {
    let setpriv = ["/usr/bin/setpriv", "--reuid=1", "--regid=1", "--clear-groups", program];
    if is_root() {
        return Program::new(setpriv[0]).args(&setpriv[1..]);
    }
    let unshare = ["--user", "--map-auto", "--map-root-user", "--"];
    Program::new("/usr/bin/unshare").args(unshare).args(setpriv)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

#[test]
fn tcp_needs_the_token() {
    let server = Server::start();
    let run = |headers: &[(&str, &str)]| server.tcp().post("/v1/runs", headers, &bash("echo in"));
    let right = format!("Bearer {}", server.token());
    assert_eq!(run(&[("Authorization", &right)]).json()["stdout"], "in\n");
    let wrong = format!("Bearer {}", "0".repeat(64));
    for headers in [&[][..], &[("Authorization", wrong.as_str())], &[("Authorization", "Bearer ")]]
    {
        let answer = run(headers);
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(answer.header("www-authenticate").is_some_and(|one| one.starts_with("Bearer")));
        assert_eq!(answer.json()["kind"], "unauthorized");
    }
    assert_eq!(server.tcp().get("/v1/nothing", &[]).status, 401, "not even what there is");
}

#[test]
fn health_needs_no_token() {
    let server = Server::start();
    for mut connection in [server.tcp(), server.unix()] {
        let answer = connection.get("/healthz", &[("Host", "localhost")]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"));
    }
}

#[test]
fn name_of_another_host_is_refused() {
    let server = Server::start();
    let token = format!("Bearer {}", server.token());
    for (host, status) in [
        ("evil.example".to_owned(), 403),
        (format!("evil.example:{}", server.port), 403),
        ("localhost:1".to_owned(), 403),
        (format!("localhost:{}", server.port), 200),
        (format!("127.0.0.1:{}", server.port), 200),
        ("localhost".to_owned(), 200),
    ] {
        let headers = [("Host", host.as_str()), ("Authorization", token.as_str())];
        let answer = server.tcp().post("/v1/runs", &headers, &bash("echo in"));
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}

#[test]
fn token_and_socket_are_ours_alone() {
    let server = Server::start();
    assert_eq!(mode(&server.path().join("state")), 0o700);
    assert_eq!(mode(&server.path().join("state/token")), 0o600);
    assert_eq!(mode(&server.socket()), 0o600);
    let token = server.token();
    assert_eq!(token.len(), 64);
    server.signal(rustix::process::Signal::TERM);
    let (ended, directory) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let again = Server::started(directory, &[], &[]);
    assert_eq!(again.token(), token, "made once and kept");
}

#[test]
fn token_can_be_given_by_the_environment() {
    let variables = [("BELLJAR_TOKEN", "a-token-of-our-own-choice")];
    let server = Server::started(TempDir::new(), &[], &variables);
    assert!(!server.path().join("state/token").exists());
    let headers = [("Authorization", "Bearer a-token-of-our-own-choice")];
    assert_eq!(server.tcp().post("/v1/runs", &headers, &bash("echo in")).status, 200);
}

#[test]
fn weak_or_open_tokens_are_refused_with_the_fix() {
    let directory = TempDir::new();
    let ended = running::program(&directory, &[]).env("BELLJAR_TOKEN", "short").run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out().contains("BELLJAR_TOKEN must hold at least 16"), "{ended:?}");
    let token = directory.file("state/token", "0123456789abcdef0123456789abcdef");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).expect("it is ours");
    fs::set_permissions(directory.join("state"), fs::Permissions::from_mode(0o700)).expect("ours");
    let ended = running::program(&directory, &[]).run();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.out().contains("others may read it"), "{ended:?}");
    fs::set_permissions(directory.join("state"), fs::Permissions::from_mode(0o777)).expect("ours");
    let ended = running::program(&directory, &[]).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out().contains("writable by you alone"), "{ended:?}");
}

#[test]
fn address_that_others_can_reach_is_refused_unless_meant() {
    let directory = TempDir::new();
    let ended = running::program(&directory, &["--listen", "0.0.0.0:0"]).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for word in ["127.0.0.1", "--listen-anywhere"] {
        assert!(ended.out().contains(word), "{ended:?}");
    }
}

#[test]
fn listen_none_has_no_tcp_and_no_token() {
    let server = Server::with(&["--listen", "none"]);
    assert_eq!(server.port, 0, "it says nothing of TCP");
    assert!(!server.path().join("state/token").exists());
    assert_eq!(server.run(&bash("echo in")).status, 200);
}

#[test]
fn other_user_is_refused_even_if_the_file_lets_them() {
    let server = Server::start();
    let asks = format!(
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect({:?})\n\
         except PermissionError: sys.exit('no way in')\n\
         s.sendall(b'GET /healthz HTTP/1.0\\r\\n\\r\\n')\nprint(s.makefile().read())",
        server.socket().display().to_string()
    );
    let ask = || as_another("/usr/bin/python3").args(["-c", &asks]).run();
    assert!(ask().err().contains("no way in"), "the file's mode is the first door");
    fs::set_permissions(server.socket(), fs::Permissions::from_mode(0o666)).expect("it is ours");
    let answer = ask().out();
    assert!(answer.starts_with("HTTP/1.0 403"), "{answer}");
    assert!(answer.contains("serves uid"), "{answer}");
}

#[test]
fn client_sends_nothing_to_a_server_of_another_user() {
    let directory = TempDir::new();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let socket = directory.join("theirs.sock");
    let listens = format!(
        "import socket, os\ns = socket.socket(socket.AF_UNIX)\ns.bind({0:?})\nos.chmod({0:?}, 0o777)\n\
         s.listen()\nprint('up', flush=True)\n\
         for _ in range(2): print(len(s.accept()[0].recv(1000)), flush=True)\nos.unlink({0:?})",
        socket.display().to_string()
    );
    let mut theirs = as_another("/usr/bin/python3").args(["-c", &listens]).start();
    assert_eq!(theirs.read_line(), "up\n");
    let run = || Program::belljar().args(["run", "-c", "print('here')"]);
    let ended = run().env("BELLJAR_SOCKET", &socket).run();
    assert_eq!((ended.code, ended.out()), (Some(0), "here\n".to_owned()), "{ended:?}");
    assert_eq!(theirs.read_line(), "0\n", "it was connected to and told nothing");
    let ended = run().arg("--server").arg(&socket).run();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("it runs as uid"), "{ended:?}");
    assert_eq!(theirs.read_line(), "0\n");
    wait_until("its socket is gone", || !socket.exists());
}

#[test]
fn sandbox_cannot_reach_the_server_that_runs_it() {
    let server = Server::start();
    // At none it can: there the program is the user.
    for (level, reached) in
        [(Level::None, "[0, 0]"), (Level::Basic, ""), (Level::Standard, ""), (Level::Strict, "")]
    {
        let code = format!(
            "import socket\nfound = []\nfor kind, place in (socket.AF_UNIX, {:?}), (socket.AF_INET, \
             ('127.0.0.1', {})):\n try: found.append(socket.socket(kind).connect_ex(place))\n \
             except OSError as error: found.append(error.errno)\n\
             if 0 in found: print(found)",
            server.socket().display().to_string(),
            server.port
        );
        let mut request = python(&code);
        request["level"] = level.name().into();
        let outcome = server.run(&request).json();
        assert_eq!(outcome["stdout"].as_str().map(str::trim), Some(reached), "{level}: {outcome}");
        assert_eq!(outcome["exit_code"], 0, "{outcome}");
    }
}

#[test]
fn body_of_a_stranger_is_not_read() {
    let server = Server::start();
    let mut connection = server.tcp();
    // More than the bound is announced, and still the answer is about the token.
    let head = "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    connection.write(head.as_bytes()).expect("it reads");
    assert_eq!(connection.answer().status, 401);
    assert_eq!(server.run(&json!({})).status, 400);
}
