//! An endpoint behind TLS, with certificates of the test's own making: asked only if it is who it should be.

use std::path::{Path, PathBuf};

use belljar_tests::{Program, Running, TempDir};
use serde_json::{Value, json};

use crate::rig::Rig;

const KEY: &str = "sk-belljar-tls-0123456789abcdef";
const CURVE: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

/// Writes a certificate and its key; signed by itself, or by an authority.
fn certificate(directory: &Path, name: &str, extensions: &[&str], authority: Option<&str>) {
    let path = |name: &str, end: &str| directory.join(format!("{name}.{end}"));
    let mut openssl = Program::new("/usr/bin/openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=belljar test"])
        .args(CURVE)
        .arg("-keyout")
        .arg(path(name, "key"))
        .arg("-out")
        .arg(path(name, "pem"));
    for extension in extensions {
        openssl = openssl.args(["-addext", extension]);
    }
    if let Some(authority) = authority {
        openssl = openssl.arg("-CA").arg(path(authority, "pem"));
        openssl = openssl.arg("-CAkey").arg(path(authority, "key"));
    }
    let ended = openssl.run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// A model with a certificate for `localhost`, by the authority `ours`.
struct Secure {
    directory: TempDir,
    port: String,
    _server: Running,
}

impl Secure {
    fn start() -> Self {
        let directory = TempDir::new();
        for authority in ["ours", "other"] {
            let is_one = "basicConstraints=critical,CA:TRUE";
            certificate(&directory.join(""), authority, &[is_one], None);
        }
        let extensions = ["subjectAltName=DNS:localhost", "basicConstraints=critical,CA:FALSE"];
        certificate(&directory.join(""), "server", &extensions, Some("ours"));
        directory.file("serve.py", include_str!("serve_tls.py"));
        let mut server = Program::new("/usr/bin/python3")
            .arg(directory.join("serve.py"))
            .directory(&directory.join(""))
            .start_interactive();
        let port = server.read_line().trim().to_owned();
        Self { directory, port, _server: server }
    }

    /// Every request that came through, as text.
    fn asked(&self) -> String {
        std::fs::read_to_string(self.directory.join("asked")).unwrap_or_default()
    }

    fn certificate(&self, name: &str) -> PathBuf {
        self.directory.join(&format!("{name}.pem"))
    }

    fn ask(&self, host: &str, more: &str) -> Value {
        let rig = Rig::new().env("BELLJAR_TEST_KEY", KEY);
        rig.evolve(&task(&rig, &format!("https://{host}:{}/v1", self.port), more))
    }
}

fn task(rig: &Rig, url: &str, more: &str) -> PathBuf {
    let table = format!(
        "[proposer]\nkind = \"openai\"\nmodel = \"m\"\nurl = \"{url}\"\nkey_env = \"BELLJAR_TEST_KEY\"\n\
         stream = false\nretries = 0\n{more}"
    );
    rig.adding("max_iterations = 1", &table)
}

#[test]
fn endpoint_is_asked_over_tls_only_if_it_is_who_it_should_be() {
    let model = Secure::start();
    let trust = |name: &str| format!("ca_file = \"{}\"", model.certificate(name).display());
    for (host, more, why) in [
        ("localhost", String::new(), "no authority of this host vouches for it"),
        ("localhost", trust("other"), "another authority does"),
        ("127.0.0.1", trust("ours"), "its certificate is for another name"),
    ] {
        let summary = model.ask(host, &more);
        let told = summary.to_string();
        assert!(
            summary["target_reached"] == false && told.contains("certificate"),
            "{why}: {told}"
        );
        assert_eq!(model.asked(), "", "{why}, and it was asked all the same");
    }
    let summary = model.ask("localhost", &trust("ours"));
    assert_eq!(summary["end"], json!("target"), "{summary}");
    let asked = model.asked();
    assert!(asked.contains("POST /v1/chat/completions") && asked.contains(KEY), "{asked}");
}

#[test]
fn certificates_that_cannot_be_used_are_told_before_anything_runs() {
    let rig = Rig::new().env("BELLJAR_TEST_KEY", KEY);
    let empty = rig.directory.file("empty.pem", "nothing");
    for (file, words) in [("none.pem", "No such file"), ("empty.pem", "PEM")] {
        let more = format!("ca_file = \"{file}\""); // from where the task lies
        let task = task(&rig, "https://localhost:1/v1", &more);
        let ended = rig.run(&[&task.display().to_string()]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let told = ended.err();
        assert!(told.contains("proposer.ca_file") && told.contains(words), "{told}");
        assert!(empty.exists() && !rig.state().exists(), "something was begun");
    }
}
