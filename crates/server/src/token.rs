//! The bearer token of the TCP listener: from the environment, or made once and kept in a file that
//! only its owner may read.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar::{Error, SpecError};

pub(crate) const VARIABLE: &str = "BELLJAR_TOKEN";
const FILE: &str = "token";
/// Of a made token: 256 bits cannot be guessed.
const RANDOM_BYTES: usize = 32;
/// Of a given token: fewer characters could be tried out.
const LEAST_CHARACTERS: usize = 16;
/// Longer ones are a file that was given by mistake.
const MOST_BYTES: u64 = 4096;

/// Who knows this may run programs.
#[derive(Clone)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

/// Where a token came from; a file is told to the user, a variable is known to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Variable,
    File(PathBuf),
}

impl Token {
    /// The token of the environment, else that of the state directory, else a new one kept there.
    pub(crate) fn provide(state: &Path) -> Result<(Self, Origin), Error> {
        if let Some(given) = std::env::var_os(VARIABLE) {
            let given = given.into_string().unwrap_or_default();
            return Ok((Self::check(VARIABLE, &given)?, Origin::Variable));
        }
        let path = state.join(FILE);
        let failed = |source| Error::Backend { operation: "keep a token", source };
        let token = match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(state, &path).map_err(|error| failed(at(&path, &error)))?
            }
            result => result.map_err(|error| failed(at(&path, &error)))?,
        };
        let token = Self::check(&path.display().to_string(), token.trim())?;
        Ok((token, Origin::File(path)))
    }

    pub(crate) fn check(field: &str, text: &str) -> Result<Self, SpecError> {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if plain && text.len() >= LEAST_CHARACTERS {
            return Ok(Self(text.to_owned()));
        }
        let reason = format!(
            "must hold at least {LEAST_CHARACTERS} visible ASCII characters: \
             try $(head -c 32 /dev/urandom | base64)"
        );
        Err(SpecError::new(field, reason))
    }

    /// Compares in a time that does not tell how many characters were right.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        same(self.0.as_bytes(), given)
    }
}

/// Compares in a time that does not tell how many bytes were right.
pub(crate) fn same(own: &[u8], given: &[u8]) -> bool {
    let pairs = own.iter().zip(given);
    let differing = pairs.fold(0, |sum, (one, other)| std::hint::black_box(sum | (one ^ other)));
    differing == 0 && own.len() == given.len()
}

/// Makes the state directory if it is not there: ours alone. One that others may write is refused, as
/// they could replace what is in it.
pub(crate) fn state_directory(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let failed = |source| Error::Backend { operation: "make the state directory", source };
    made.map_err(|error| failed(at(path, &error)))?;
    let status = fs::metadata(path).map_err(|error| failed(at(path, &error)))?;
    let own = status.uid() == rustix::process::geteuid().as_raw();
    if own && status.mode() & 0o022 == 0 {
        return Ok(());
    }
    let reason = format!(
        "{} must be your own and writable by you alone (it has mode {:o}, owner {}): \
         give a directory of its own",
        path.display(),
        status.mode() & 0o7777,
        status.uid()
    );
    Err(SpecError::new("state", reason).into())
}

pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Reads a token that only its owner can have read before.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_own(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a file that only its owner, and that is us, can have read or written.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let status = file.metadata()?;
    if !status.is_file() || status.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("is not a file of your own: remove it"));
    }
    if status.mode() & 0o077 != 0 {
        let advice = "others may read it: remove it, and a new one is made";
        return Err(io::Error::other(advice));
    }
    Ok(file)
}

/// Makes a token and keeps it. It appears whole or not at all, so that of two servers that start at
/// once the later one reads what the first wrote.
fn make(state: &Path, path: &Path) -> io::Result<String> {
    let mut random = [0; RANDOM_BYTES];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let draft = state.join(format!(".{FILE}.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let kept = write_and_link(&mut file, &text, &draft, path);
    fs::remove_file(&draft)?;
    match kept {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path),
        result => result.map(|()| text),
    }
}

fn write_and_link(file: &mut File, text: &str, draft: &Path, path: &Path) -> io::Result<()> {
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::hard_link(draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token("0123456789abcdef".to_owned());
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [&b""[..], b"0123456789abcdeg", b"0123456789abcde", b"0123456789abcdef0"] {
            assert!(!token.is(wrong));
        }
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_weak_token_is_refused_with_the_way_to_a_strong_one() {
        for weak in ["", "short", "fifteen-letters", "with a space in it, but long"] {
            let error = Token::check(VARIABLE, weak).unwrap_err();
            assert!(error.to_string().contains("BELLJAR_TOKEN must hold at least 16"), "{error}");
        }
    }
}
