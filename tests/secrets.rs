//! Secrets: programs have them, and nothing else of what there is shows them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "secrets/answers.rs"]
mod answers;
#[path = "secrets/decoys.rs"]
mod decoys;
#[path = "secrets/ended.rs"]
mod ended;
#[path = "secrets/hall.rs"]
mod hall;
#[path = "secrets/kept.rs"]
mod kept;
#[path = "secrets/leaving.rs"]
mod leaving;
#[path = "secrets/living.rs"]
mod living;
#[path = "secrets/placeholders.rs"]
mod placeholders;
#[allow(dead_code, reason = "the way out's own tests use all of it")]
#[path = "egress/rig.rs"]
mod rig;
#[path = "secrets/runs.rs"]
mod runs;
#[path = "secrets/streams.rs"]
mod streams;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_tests::{Ended, Program, TempDir};

/// A host of a test's own: a state directory, a file of sources, and no server.
pub(crate) struct Host {
    pub directory: TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new() }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    pub(crate) fn belljar(&self) -> Program {
        Program::belljar()
            .env("BELLJAR_STATE", self.state())
            .env("BELLJAR_SOCKET", self.directory.join("no.sock"))
            .env("BELLJAR_SECRETS", self.directory.join("secrets.toml"))
    }

    /// Keeps a secret, whose value goes in by standard input.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let ended = self.belljar().args(["secret", "set", name]).stdin(value).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// A file that describes sources.
    pub(crate) fn sources(&self, text: &str) {
        let path = self.directory.join("secrets.toml");
        std::fs::write(&path, text).expect("a file of sources");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its mode");
    }

    /// A command that must work.
    pub(crate) fn ok(&self, arguments: &[&str]) -> Ended {
        let ended = self.belljar().args(arguments).run();
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended
    }

    /// Files below the state directory that hold a text.
    pub(crate) fn files_with(&self, text: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        look(&self.state(), text.as_bytes(), &mut found);
        found
    }
}

/// What is larger is a disk of a sandbox, whose files are its programs' own.
const MOST_BYTES: u64 = 8 << 20;

fn look(directory: &Path, text: &[u8], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            look(&path, text, found);
        } else if kind.is_file() && entry.metadata().is_ok_and(|one| one.len() <= MOST_BYTES) {
            // What vanishes meanwhile, or nobody may read, holds nothing for anybody.
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(text.len()).any(|part| part == text) {
                found.push(path);
            }
        }
    }
}

/// Says the secret in `KEY` in every way there is, in one piece and in many, and what it is by its digest.
pub(crate) const TELLING: &str = "
import base64, hashlib, json, os, sys, time, urllib.parse
key = os.environ['KEY']
raw = key.encode()
print('digest', hashlib.sha256(raw).hexdigest()[:12])
print(key); print('<' + key + '>', file=sys.stderr)
for before in (b'', b'x', b'xy'):
    print(base64.b64encode(before + raw).decode(), base64.urlsafe_b64encode(before + raw).decode())
print(raw.hex(), raw.hex().upper(), raw.hex(' '), repr(raw))
print(urllib.parse.quote(key, safe=''), urllib.parse.quote_plus(key), json.dumps(key))
sys.stdout.flush()
for byte in raw:
    os.write(1, bytes([byte]))
os.write(1, b'\\n')
for half in (raw[:len(raw) // 2], raw[len(raw) // 2:]):
    os.write(2, half); time.sleep(0.15)
try: os.chroot('/' + key)
except OSError: pass
print('done')
";

/// Every way that [`TELLING`] says it, and pieces of them.
pub(crate) fn spellings(secret: &str) -> Vec<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let url: String = secret
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    let mut all = vec![secret.to_owned(), secret[secret.len() / 2..].to_owned()];
    all.extend([hex[8..].to_owned(), hex[8..].to_uppercase(), url]);
    for before in ["", "x", "xy"] {
        let text = STANDARD.encode(format!("{before}{secret}"));
        all.push(text[4..text.len() - 4].to_owned());
        let text = URL_SAFE.encode(format!("{before}{secret}"));
        all.push(text[4..text.len() - 4].to_owned());
    }
    all
}

#[track_caller]
pub(crate) fn assert_unseen(secret: &str, text: &str) {
    for spelling in spellings(secret) {
        assert!(!text.contains(&spelling), "{spelling:?} in {text}");
    }
}
