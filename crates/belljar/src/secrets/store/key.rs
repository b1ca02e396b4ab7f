//! The key of the store: 32 random bytes, as 64 hexadecimal digits.
//!
//! It is looked for in `$BELLJAR_SECRETS_KEY_FILE`, in the credential `belljar-secrets-key` that systemd passes to a service
//! ($CREDENTIALS_DIRECTORY), and in `secrets.key` in the state directory, which is made when the first secret is set.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{check_own, random, replace, told};

const FILE: &str = "secrets.key";
const DRAFT: &str = "secrets.key.new";
const FILE_VARIABLE: &str = "BELLJAR_SECRETS_KEY_FILE";
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
const CREDENTIAL: &str = "belljar-secrets-key";
const BYTES: usize = 32;

pub(super) struct Key([u8; BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key(…)")
    }
}

impl Key {
    pub(super) fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// By which it is known which key a store is for; the key cannot be found from it.
    pub(super) fn name(&self) -> String {
        hex(&Sha256::digest([b"belljar secrets key", self.0.as_slice()].concat())[..8])
    }

    /// The key of a store that has values.
    pub(super) fn find(state: &Path, wanted: &str) -> Result<Self, String> {
        let path = place(state);
        let key = read(&path)?.ok_or_else(|| {
            format!(
                "{} is not there, without which no secret of the store can be read: put it back",
                path.display()
            )
        })?;
        if key.name() != wanted {
            return Err(format!(
                "{} is not the key that the secrets were stored with",
                path.display()
            ));
        }
        Ok(key)
    }

    /// The same for one that is changed: with the first value a key is made, where it is ours to make.
    pub(super) fn for_writing(state: &Path, known: Option<&str>) -> Result<Self, String> {
        if let Some(known) = known {
            return Self::find(state, known);
        }
        let path = place(state);
        if let Some(key) = read(&path)? {
            return Ok(key);
        }
        if path != state.join(FILE) {
            return Err(format!(
                "{0} is not there: make it with  head -c 32 /dev/urandom | xxd -p -c 64 > {0}; chmod 600 {0}",
                path.display()
            ));
        }
        let mut bytes = [0; BYTES];
        random(&mut bytes)?;
        replace(&state.join(DRAFT), &path, hex(&bytes).as_bytes()).map_err(told(&path))?;
        Ok(Self(bytes))
    }
}

fn place(state: &Path) -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|one| !one.is_empty()).map(PathBuf::from);
    if let Some(path) = from(FILE_VARIABLE) {
        return path;
    }
    let credential = from(CREDENTIALS_VARIABLE).map(|directory| directory.join(CREDENTIAL));
    credential.filter(|path| path.exists()).unwrap_or_else(|| state.join(FILE))
}

fn read(path: &Path) -> Result<Option<Key>, String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(told(path))?,
    };
    check_own(&file, path)?;
    let mut text = String::new();
    file.take(1024).read_to_string(&mut text).map_err(told(path))?;
    let digits = text.trim();
    let wrong = || format!("{} must hold 64 hexadecimal digits", path.display());
    if digits.len() != 2 * BYTES || !digits.is_ascii() {
        return Err(wrong());
    }
    let mut key = [0; BYTES];
    for (place, byte) in key.iter_mut().enumerate() {
        let pair = digits.get(2 * place..2 * place + 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(Some(Key(key)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
