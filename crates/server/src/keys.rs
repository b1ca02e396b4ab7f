//! Keys for those who speak over TCP: made by `belljar key create`, shown once, kept as a digest in a file each.
//!
//! A key is `bj_ID_SECRET`. Its file is named by the id, so that every request looks at that one file: a key that was
//! revoked beside a running server is gone with the file, at once, and no watcher can be late.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use belljar::{Error, SpecError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::scope::Scope;
use crate::token;

const DIRECTORY: &str = "keys";
pub(crate) const PREFIX: &str = "bj_";
/// 256 bits cannot be guessed, so a plain digest is all that is kept.
const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 6;
/// A key's file has some hundred bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Keys of one state directory.
const MOST_KEYS: usize = 10_000;
/// The same rules as for the names of sandboxes.
const MOST_NAME: usize = 63;
const FORMAT: u32 = 1;

/// A key as it is kept and listed: all but its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    format: u32,
    pub id: String,
    pub name: String,
    /// Whose sandboxes, runs and records it sees. Keys of one tenant see the same.
    pub tenant: String,
    pub scopes: Vec<Scope>,
    /// Seconds since 1970.
    pub created_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// SHA-256 of the whole key.
    digest: String,
}

/// A key that is to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub name: String,
    pub tenant: Option<String>,
    pub scopes: Vec<Scope>,
    pub expires_s: Option<u64>,
}

impl Key {
    /// Makes a key. The text is told to whoever asked, and kept nowhere.
    pub fn create(state: &Path, new: NewKey) -> Result<(Self, String), Error> {
        token::state_directory(state)?;
        check_name("name", &new.name)?;
        let tenant = new.tenant.unwrap_or_else(|| new.name.clone());
        check_name("tenant", &tenant)?;
        let known = Self::list(state)?;
        if known.iter().any(|key| key.name == new.name) {
            let reason = format!("is \"{}\", which a key has: revoke that one first", new.name);
            return Err(SpecError::new("name", reason).into());
        }
        if known.len() >= MOST_KEYS {
            return Err(SpecError::new("name", format!("is one more than {MOST_KEYS} keys")).into());
        }
        let failed = |source| Error::Backend { operation: "keep a key", source };
        let (id, secret) = (random::<ID_BYTES>().map_err(failed)?, random::<SECRET_BYTES>());
        let text = format!("{PREFIX}{id}_{}", secret.map_err(failed)?);
        let mut scopes = new.scopes;
        scopes.sort_unstable();
        scopes.dedup();
        let key = Self {
            format: FORMAT,
            id,
            name: new.name,
            tenant,
            scopes,
            created_s: now_s(),
            expires_s: new.expires_s,
            digest: hex(&Sha256::digest(text.as_bytes())),
        };
        key.write(state).map_err(failed)?;
        Ok((key, text))
    }

    /// All keys, by name.
    pub fn list(state: &Path) -> Result<Vec<Self>, Error> {
        let failed = |source| Error::Backend { operation: "read the keys", source };
        let entries = match fs::read_dir(state.join(DIRECTORY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut keys = Vec::new();
        for entry in entries.take(MOST_KEYS * 2) {
            let path = entry.map_err(failed)?.path();
            let is_key = path.extension().is_some_and(|one| one == "json");
            if is_key {
                keys.push(read(&path).map_err(|error| failed(token::at(&path, &error)))?.0);
            }
        }
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(keys)
    }

    /// Takes back the key of this name or id.
    pub fn revoke(state: &Path, which: &str) -> Result<Self, Error> {
        let found = Self::list(state)?.into_iter().find(|key| key.id == which || key.name == which);
        let Some(key) = found else {
            let what = format!("no key has the name or id {which:?}. hint: belljar key list");
            return Err(Error::NotFound { what });
        };
        let path = path_of(state, &key.id);
        let removed = fs::remove_file(&path);
        removed.map_err(|source| Error::Backend { operation: "revoke a key", source })?;
        Ok(key)
    }

    pub fn has_expired(&self) -> bool {
        self.expires_s.is_some_and(|at| at <= now_s())
    }

    /// It appears whole or not at all.
    fn write(&self, state: &Path) -> io::Result<()> {
        let directory = state.join(DIRECTORY);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let draft = directory.join(format!(".{}.new", self.id));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&draft, path_of(state, &self.id))
    }
}

/// Tells one file from another that took its place.
type Identity = (u64, u64, i64, i64);

/// The keys of a state directory, as a server looks at them.
#[derive(Debug)]
pub(crate) struct Keys {
    state: PathBuf,
    /// What was read, by id. Never more than there are keys.
    known: Mutex<HashMap<String, (Identity, Arc<Key>)>>,
}

impl Keys {
    pub(crate) fn new(state: PathBuf) -> Self {
        Self { state, known: Mutex::default() }
    }

    /// Whether there is any, expired ones aside.
    pub(crate) fn any(&self) -> bool {
        Key::list(&self.state).is_ok_and(|keys| keys.iter().any(|key| !key.has_expired()))
    }

    /// The key that a text is. All that can be wrong with it has one answer.
    pub(crate) fn find(&self, text: &[u8]) -> Option<Arc<Key>> {
        let digest = hex(&Sha256::digest(text));
        let id = id_of(text)?;
        let key = self.look(id);
        // Compared even where there is nothing to compare with, so that the time does not tell.
        let kept = key.as_ref().map_or("", |key| key.digest.as_str());
        let same = token::same(kept.as_bytes(), digest.as_bytes());
        key.filter(|key| same && !key.has_expired())
    }

    fn look(&self, id: &str) -> Option<Arc<Key>> {
        let path = path_of(&self.state, id);
        let found = fs::symlink_metadata(&path).ok().map(|status| identity(&status));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = found else {
            known.remove(id);
            return None;
        };
        if let Some((_, key)) = known.get(id).filter(|(kept, _)| *kept == found) {
            return Some(Arc::clone(key));
        }
        let (key, identity) = read(&path).ok()?;
        let key = Arc::new(key);
        if known.len() >= MOST_KEYS {
            known.clear();
        }
        known.insert(id.to_owned(), (identity, Arc::clone(&key)));
        Some(key)
    }
}

fn id_of(text: &[u8]) -> Option<&str> {
    let rest = std::str::from_utf8(text).ok()?.strip_prefix(PREFIX)?;
    let (id, _) = rest.split_once('_')?;
    // It becomes the name of a file.
    let plain = id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (plain && id.len() == ID_BYTES * 2).then_some(id)
}

fn path_of(state: &Path, id: &str) -> PathBuf {
    state.join(DIRECTORY).join(format!("{id}.json"))
}

fn identity(status: &fs::Metadata) -> Identity {
    (status.dev(), status.ino(), status.mtime(), status.mtime_nsec())
}

/// Reads a key that only its owner can have written.
fn read(path: &Path) -> io::Result<(Key, Identity)> {
    let file = token::open_own(path)?;
    let identity = identity(&file.metadata()?);
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    let key: Key = serde_json::from_slice(&text)?;
    if key.format != FORMAT {
        return Err(io::Error::other(format!("it has format {}, not {FORMAT}", key.format)));
    }
    Ok((key, identity))
}

pub(crate) fn check_name(field: &str, name: &str) -> Result<(), SpecError> {
    let may = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let first = name.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if first && name.len() <= MOST_NAME && name.chars().all(may) && name != "token" {
        return Ok(());
    }
    let reason = format!(
        "must be 1 to {MOST_NAME} lower-case letters, digits and '-', a letter or digit first, and not \"token\""
    );
    Err(SpecError::new(field, reason))
}

fn random<const N: usize>() -> io::Result<String> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to memory does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bj-keys-{}-{name}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        path
    }

    fn new(name: &str) -> NewKey {
        NewKey { name: name.into(), tenant: None, scopes: vec![Scope::Runs], expires_s: None }
    }

    #[test]
    fn a_key_is_known_until_it_is_revoked() {
        let state = state("known");
        let keys = Keys::new(state.clone());
        assert!(!keys.any());
        let (key, text) = Key::create(&state, new("ci")).unwrap();
        assert!(keys.any());
        assert_eq!(keys.find(text.as_bytes()).unwrap().name, "ci");
        let kept = fs::read_to_string(path_of(&state, &key.id)).unwrap();
        assert!(!kept.contains(&text[20..]), "{kept}");
        assert_eq!(fs::metadata(path_of(&state, &key.id)).unwrap().mode() & 0o777, 0o600);
        let mut wrong = text.clone();
        wrong.pop();
        for wrong in [wrong.as_str(), "", "bj_", "bj_../../x_1", &text[..15], "bj_00_00"] {
            assert!(keys.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
        Key::revoke(&state, "ci").unwrap();
        assert!(keys.find(text.as_bytes()).is_none(), "at once");
        assert!(Key::revoke(&state, "ci").is_err());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn an_expired_key_is_no_key() {
        let state = state("expired");
        let expired = NewKey { expires_s: Some(now_s()), ..new("old") };
        let (_, text) = Key::create(&state, expired).unwrap();
        let keys = Keys::new(state.clone());
        assert!(keys.find(text.as_bytes()).is_none());
        assert!(!keys.any());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn names_are_plain_and_used_once() {
        let state = state("names");
        Key::create(&state, new("a")).unwrap();
        for wrong in ["a", "", "token", "A", "a/b", "-a", &"x".repeat(64)] {
            let error = Key::create(&state, new(wrong)).unwrap_err();
            assert!(error.to_string().starts_with("name "), "{error}");
        }
        fs::remove_dir_all(&state).unwrap();
    }
}
