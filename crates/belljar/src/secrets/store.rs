//! Secrets that `belljar secret set` keeps: one file in the state directory, each value encrypted and bound to its name.
//!
//! A change is a whole new file that takes the place of the old one, so a crash leaves the one or the other. The key is a
//! file beside it unless the operator keeps it elsewhere ([`Key`]); what that protects from is said in SECURITY.md.

mod key;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

use super::Secret;
use crate::model::secret::check_name;
use key::Key;

const FILE: &str = "secrets.json";
const DRAFT: &str = "secrets.json.new";
const LOCK: &str = "secrets.lock";
const VERSION: u32 = 1;
/// Names that are kept.
const MOST_NAMES: usize = 1000;
/// Values of one name: the one that counts and those before it, which may still be about and must be hidden too.
const MOST_VALUES: usize = 4;
/// The whole file.
const MAX_FILE_BYTES: u64 = 64 << 20;
const NONCE_BYTES: usize = 24;
/// A value is filled up to a multiple of this, so that its length says little.
const PADDING: usize = 64;

/// The store of one state directory. Nothing is held open: each use reads the file.
#[derive(Clone, Debug)]
pub struct SecretStore {
    state: PathBuf,
}

/// The values of a name, the one that counts first.
pub type Kept = Vec<Secret>;

/// What is told of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredName {
    pub name: String,
    /// RFC 3339.
    pub set_at: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// Which key it is for; says nothing about the key.
    key: String,
    secrets: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    set_ms: u64,
    /// Each a nonce and what it seals, in base64. The first counts.
    values: Vec<String>,
}

impl SecretStore {
    pub fn in_state(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    /// Keeps a value; the ones before it are kept for a while to be hidden.
    pub fn set(&self, name: &str, value: Secret) -> Result<(), String> {
        check_name(name).map_err(|why| format!("a secret {why}"))?;
        let _lock = self.lock()?;
        let contents = self.read()?;
        let key = Key::for_writing(&self.state, contents.as_ref().map(|one| one.key.as_str()))?;
        let mut contents = contents.unwrap_or_else(|| Contents {
            version: VERSION,
            key: key.name(),
            secrets: BTreeMap::new(),
        });
        if !contents.secrets.contains_key(name) && contents.secrets.len() >= MOST_NAMES {
            return Err(format!("{MOST_NAMES} secrets are kept, which is all: remove one"));
        }
        let sealed = seal(&key, name, &value)?;
        let entry = contents.secrets.entry(name.to_owned());
        let entry = entry.or_insert_with(|| Entry { set_ms: 0, values: Vec::new() });
        // The same again is no new one.
        let before = entry.values.first().and_then(|first| open(&key, name, first).ok());
        if before.is_none_or(|before| before != value) {
            entry.values.insert(0, sealed);
            entry.values.truncate(MOST_VALUES);
        }
        entry.set_ms = now_ms();
        self.write(&contents)
    }

    /// The values of a name; nothing if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Kept>, String> {
        let Some(contents) = self.read()? else { return Ok(None) };
        let Some(entry) = contents.secrets.get(name) else { return Ok(None) };
        let key = Key::find(&self.state, &contents.key)?;
        entry
            .values
            .iter()
            .map(|sealed| open(&key, name, sealed))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// What is kept, by name; needs no key.
    pub fn list(&self) -> Result<Vec<StoredName>, String> {
        let secrets = self.read()?.map(|one| one.secrets).unwrap_or_default();
        let told = secrets.into_iter().map(|(name, entry)| {
            let at = UNIX_EPOCH + std::time::Duration::from_millis(entry.set_ms);
            StoredName { name, set_at: humantime::format_rfc3339_seconds(at).to_string() }
        });
        Ok(told.collect())
    }

    /// Whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, String> {
        let _lock = self.lock()?;
        let Some(mut contents) = self.read()? else { return Ok(false) };
        if contents.secrets.remove(name).is_none() {
            return Ok(false);
        }
        self.write(&contents)?;
        Ok(true)
    }

    /// One who changes it at a time.
    fn lock(&self) -> Result<File, String> {
        crate::store::own_directory(&self.state).map_err(|error| error.to_string())?;
        let path = self.state.join(LOCK);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(told(&path))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| told(&path)(errno.into()))?;
        Ok(file)
    }

    fn read(&self) -> Result<Option<Contents>, String> {
        let path = self.state.join(FILE);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(told(&path))?,
        };
        check_own(&file, &path)?;
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(told(&path))?;
        let damaged = |why: String| format!("{}: {why}", path.display());
        let contents: Contents = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("is damaged (line {})", error.line())))?;
        if contents.version != VERSION {
            return Err(damaged(format!(
                "has version {}, which this build cannot read",
                contents.version
            )));
        }
        Ok(Some(contents))
    }

    fn write(&self, contents: &Contents) -> Result<(), String> {
        let (path, draft) = (self.state.join(FILE), self.state.join(DRAFT));
        let text = serde_json::to_vec(contents).map_err(|error| error.to_string())?;
        replace(&draft, &path, &text).map_err(told(&path))
    }
}

/// Writes a file that nobody else can read, under another name first.
fn replace(draft: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn told(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// It is ours, or root's, and nobody else may read it.
fn check_own(file: &File, path: &Path) -> Result<(), String> {
    let status = file.metadata().map_err(told(path))?;
    let own = [0, rustix::process::geteuid().as_raw()];
    if own.contains(&status.uid()) && status.mode() & 0o077 == 0 && status.is_file() {
        return Ok(());
    }
    let mode = status.mode() & 0o7777;
    Err(format!(
        "{0}: others may use it (mode {mode:04o}): it must be yours, chmod 600 {0}",
        path.display()
    ))
}

/// What a sealed value is bound to: one cannot be put in the place of another.
fn bound_to(name: &str) -> String {
    format!("belljar secret {VERSION} {name}")
}

fn seal(key: &Key, name: &str, value: &Secret) -> Result<String, String> {
    let mut nonce = [0u8; NONCE_BYTES];
    random(&mut nonce)?;
    let value = value.reveal().as_bytes();
    let length = u32::try_from(value.len()).map_err(|error| error.to_string())?;
    let mut text = [length.to_le_bytes().as_slice(), value].concat();
    text.resize(text.len().next_multiple_of(PADDING), 0);
    let bound = bound_to(name);
    let payload = Payload { msg: &text, aad: bound.as_bytes() };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let sealed = cipher.encrypt(XNonce::from_slice(&nonce), payload);
    let sealed = sealed.map_err(|_| "it cannot be encrypted".to_owned())?;
    Ok(BASE64.encode([nonce.as_slice(), &sealed].concat()))
}

fn open(key: &Key, name: &str, sealed: &str) -> Result<Secret, String> {
    let damaged = || format!("the store's value of {name} is damaged: belljar secret set {name}");
    let bytes = BASE64.decode(sealed).map_err(|_| damaged())?;
    let (nonce, sealed) = bytes.split_at_checked(NONCE_BYTES).ok_or_else(damaged)?;
    let bound = bound_to(name);
    let payload = Payload { msg: sealed, aad: bound.as_bytes() };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let text = cipher.decrypt(XNonce::from_slice(nonce), payload).map_err(|_| damaged())?;
    let (length, value) = text.split_first_chunk::<4>().ok_or_else(damaged)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| damaged())?;
    let value = value.get(..length).ok_or_else(damaged)?;
    String::from_utf8(value.to_vec()).map(Secret).map_err(|_| damaged())
}

fn random(bytes: &mut [u8]) -> Result<(), String> {
    let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err("the kernel has no randomness to give".to_owned()),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
