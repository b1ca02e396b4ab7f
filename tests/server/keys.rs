//! Keys: made and revoked beside a running server, for what their scopes say, until they expire.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_tests::TempDir;
use serde_json::{Value, json};

use crate::running::{self, Server, bash};

#[test]
fn key_works_at_once_and_not_after_it_was_revoked() {
    let server = Server::start();
    let key = server.key("ci", &[]);
    let run = || server.as_key(&key, "POST", "/v1/runs", &bash("echo in"));
    assert_eq!(run().json()["stdout"], "in\n");
    let named = server.tcp().post("/v1/runs", &[("X-API-Key", &key)], &bash("echo in"));
    assert_eq!(named.json()["stdout"], "in\n", "as the header that others send too");
    let listed = server.keys(&["list", "--json"]).run().json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["tenant"]),
        (&json!("ci"), &json!("ci")),
        "{listed}"
    );
    assert!(!listed.to_string().contains(&key[16..]), "{listed}");
    assert_eq!(server.keys(&["revoke", "ci"]).run().code, Some(0));
    let refused = run();
    assert_eq!((refused.status, &refused.json()["code"]), (401, &json!("unauthorized")));
    assert_eq!(server.keys(&["revoke", "ci"]).run().code, Some(2), "it is gone");
}

#[test]
fn only_a_digest_is_kept_and_nobody_else_may_read_it() {
    let server = Server::start();
    let key = server.key("ci", &[]);
    let directory = server.path().join("state/keys");
    let mode = |path: &std::path::Path| {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    };
    assert_eq!(mode(&directory), 0o700);
    for entry in fs::read_dir(&directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600);
        let text = fs::read_to_string(&path).expect("text");
        let secret = key.rsplit('_').next().expect("a secret");
        assert!(!text.contains(secret), "{text}");
        // A file that others could have written is no key.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        let touched = fs::File::open(&path).expect("ours");
        touched.set_modified(std::time::SystemTime::now()).expect("ours");
    }
    assert_eq!(server.as_key(&key, "GET", "/v1/levels", &Value::Null).status, 401);
}

#[test]
fn expired_keys_and_mistakes_are_told() {
    let server = Server::start();
    let key = server.key("brief", &["--expires", "1s"]);
    belljar_tests::wait_until("it has expired", || {
        server.as_key(&key, "GET", "/v1/levels", &Value::Null).status == 401
    });
    for (words, word) in [
        (&["create", "Upper"][..], "name must be"),
        (&["create", "brief"], "which a key has"),
        (&["create", "x", "--scope", "root"], "is no scope"),
        (&["create", "x", "--expires", "soon"], "is no time"),
        (&["revoke", "nobody"], "no key has the name"),
    ] {
        let ended = server.keys(words).run();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err().contains(word), "{ended:?}");
    }
}

#[test]
fn socket_takes_a_key_as_less_than_its_owner() {
    let server = Server::start();
    let key = server.key("reader", &["--scope", "audit:read"]);
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str())];
    let refused = server.unix().post("/v1/runs", &headers, &bash("echo in"));
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("scope")));
    assert_eq!(server.run(&bash("echo in")).status, 200, "without it the owner speaks");
    let wrong = [("Authorization", "Bearer bj_000000000000_00")];
    assert_eq!(server.unix().get("/v1/levels", &wrong).status, 401);
}

#[test]
fn address_that_others_can_reach_needs_a_key() {
    let directory = TempDir::new();
    let options = ["--listen", "0.0.0.0:0", "--listen-anywhere"];
    let ended = running::program(&directory, &options).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out().contains("belljar key create"), "{ended:?}");
}
