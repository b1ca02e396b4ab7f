//! Secrets by name: where a value comes from is described, the value itself is written down nowhere.
//!
//! A source is one of four: a variable of this process's environment, a file that only its owner may read, a command
//! that prints it, or the encrypted store of `belljar secret set` ([`SecretStore`]). Whoever needs the value asks for it
//! when it is needed ([`SecretSource::resolve`]) and gets a [`Secret`], which shows itself in no log and no error. Sandboxes
//! ask by names alone, which [`SecretPlaces`] leads to their sources.

mod places;
mod sealing;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_sys::spawn::talker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::model::error::SpecError;
use crate::model::secret::{SecretMode, SecretRequest};

pub(crate) use places::Given;
pub use places::SecretPlaces;
pub use sealing::Sealing;
pub(crate) use sealing::{TRUST, renewal};
pub use store::{Kept, SecretStore, StoredName};

/// The longest value.
const MAX_BYTES: usize = 64 << 10;
const TOO_LONG: &str = "holds more than 65536 bytes";
/// How long a command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// Variables that a command gets of our environment.
const ALWAYS: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"];

/// Descriptions by their names, as in `[secrets.NAME]`.
pub type SecretSources = BTreeMap<String, SecretSource>;

/// Where a value comes from: exactly one of the four.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretSource {
    /// A variable of our environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A file of ours that nobody else may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// A program and its arguments, which prints it. No shell reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// A name in the encrypted store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Requests may ask for it in this mode alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<SecretMode>,
    /// Requests may bind it to these hosts alone, and not have it otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Headers that it may stand in besides those by which everybody authorizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
}

/// A value. It is never shown, and never written.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Secret {
    /// The value, for the one place that it is meant for.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A text without it: whoever was given it may well repeat it in an error.
    pub fn scrub(&self, text: &str) -> String {
        text.replace(&self.0, "[secret]")
    }

    fn of(bytes: Vec<u8>) -> Result<Self, &'static str> {
        if bytes.len() > MAX_BYTES {
            return Err(TOO_LONG);
        }
        let text = String::from_utf8(bytes).map_err(|_| "holds no UTF-8")?;
        match text.trim() {
            "" => Err("holds nothing"),
            value if value.chars().any(char::is_control) => Err("holds more than one line"),
            value => Ok(Self(value.to_owned())),
        }
    }

    /// The same for a program's own use, which may be a key of many lines. The last line's end is not part of it.
    pub fn for_program(bytes: Vec<u8>) -> Result<Self, &'static str> {
        if bytes.len() > MAX_BYTES {
            return Err(TOO_LONG);
        }
        let text = String::from_utf8(bytes).map_err(|_| "holds no UTF-8")?;
        let value = text.strip_suffix('\n').unwrap_or(&text);
        let value = value.strip_suffix('\r').unwrap_or(value);
        match value.len() {
            0 => Err("holds nothing"),
            _ if value.contains('\0') => Err("holds a NUL byte"),
            length if length < belljar_jail::redact::LEAST_BYTES => Err(
                "is shorter than 4 bytes: that stands in too many texts by chance to be hidden in them",
            ),
            _ => Ok(Self(value.to_owned())),
        }
    }
}

impl SecretSource {
    /// A variable of the environment.
    pub fn variable(name: impl Into<String>) -> Self {
        Self { env: Some(name.into()), ..Self::default() }
    }

    /// Relative paths are meant from here.
    pub fn from_directory(&mut self, base: &Path) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            *file = std::path::absolute(base.join(&*file))?;
        }
        Ok(())
    }

    /// Says what is wrong with a description; `field` is where it stands.
    pub fn check(&self, field: &str) -> Result<(), SpecError> {
        let given =
            [self.env.is_some(), self.file.is_some(), self.command.is_some(), self.store.is_some()];
        if given.iter().filter(|one| **one).count() != 1 {
            let reason = "must say one of env = \"VARIABLE\", file = \"PATH\", command = [\"PROGRAM\", …], \
                          store = \"NAME\"";
            return Err(SpecError::new(field, reason));
        }
        if self.command.as_ref().is_some_and(|words| words.first().is_none_or(String::is_empty)) {
            return Err(SpecError::new(
                format!("{field}.command"),
                "is empty: give the program and its arguments as a list",
            ));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_name = |name: &&String| !name.is_empty() && name.bytes().all(plain);
        if let Some(header) = self.headers.iter().find(|name| !is_name(name)) {
            let reason = format!("has {header:?}, which is no header's name");
            return Err(SpecError::new(format!("{field}.headers"), reason));
        }
        Ok(())
    }

    /// Whether a request may have it so, by what its description says; `name` is what that is called.
    fn check_request(&self, request: &SecretRequest) -> Result<(), SpecError> {
        let name = &request.name;
        let wrong = |reason: String| SpecError::new("secrets", reason);
        let is_bound = request.mode() == SecretMode::Placeholder;
        let wants_other = self.mode.is_some_and(|mode| mode != request.mode());
        if wants_other || !self.hosts.is_empty() && !is_bound {
            let mode = if self.hosts.is_empty() { self.mode } else { None };
            let how = match mode {
                Some(SecretMode::Env) => format!("{name}=env:VARIABLE, without hosts"),
                _ => format!("{name}@{}", self.hosts.first().map_or("HOST", String::as_str)),
            };
            return Err(wrong(format!(
                "has {name} in a way that its table [{name}] in secrets.toml does not allow: ask for it as {how}"
            )));
        }
        let covers = |known: &String, host: &str| {
            let below = known.strip_prefix('*').is_some_and(|end| {
                host.len() > end.len()
                    && host.to_ascii_lowercase().ends_with(&end.to_ascii_lowercase())
            });
            known.eq_ignore_ascii_case(host) || below
        };
        let strange = |host: &&String| !self.hosts.iter().any(|known| covers(known, host));
        match request.hosts.iter().find(|host| !self.hosts.is_empty() && strange(host)) {
            Some(host) => Err(wrong(format!(
                "has {name} for {host}, which its table [{name}] in secrets.toml does not allow: only {}",
                self.hosts.join(", ")
            ))),
            None => Ok(()),
        }
    }

    /// Gets the value, now. Waits for a command, so it is nothing for a thread that must not wait.
    pub fn resolve(&self, field: &str) -> Result<Secret, SpecError> {
        self.resolve_as(field, Secret::of)
    }

    /// The same, for values of another kind. The store is not asked here: see [`SecretPlaces`].
    fn resolve_as(
        &self,
        field: &str,
        of: fn(Vec<u8>) -> Result<Secret, &'static str>,
    ) -> Result<Secret, SpecError> {
        self.check(field)?;
        protect_memory();
        if self.store.is_some() {
            let reason = "is for the secrets of runs and sandboxes: use env, file or command here";
            return Err(SpecError::new(format!("{field}.store"), reason));
        }
        if let Some(name) = &self.env {
            let value = std::env::var_os(name).unwrap_or_default().into_encoded_bytes();
            let told = |why| format!("names {name}, which {why}: export {name}=…");
            return of(value).map_err(|why| SpecError::new(format!("{field}.env"), told(why)));
        }
        if let Some(path) = &self.file {
            let told = |why| format!("is {}, which {why}", path.display());
            let value = read_own(path).and_then(|value| Ok(of(value)?));
            return value.map_err(|why| SpecError::new(format!("{field}.file"), told(why)));
        }
        let words = self.command.as_deref().unwrap_or_default();
        let value = printed(words).and_then(|value| Ok(of(value)?));
        let told = |why| format!("is {}, which {why}", words.first().map_or("", String::as_str));
        value.map_err(|why| SpecError::new(format!("{field}.command"), told(why)))
    }
}

/// From the first value on, no copy of our memory is left on the disk when we crash, nor read by others of this user.
fn protect_memory() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // Neither is refused to anybody; and a process that is not dumpable needs no limit.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).ok();
    });
}

/// Reads a file that is ours, or root's, and that nobody else may read.
fn read_own(path: &Path) -> Result<Vec<u8>, String> {
    let told = |error: io::Error| format!("cannot be read: {error}");
    // Opened first, without waiting for a FIFO's other end, and then looked at.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| told(errno.into()))?;
    let file = File::from(file);
    let status = file.metadata().map_err(told)?;
    if !status.is_file() {
        return Err("is no regular file".to_owned());
    }
    let own = rustix::process::geteuid().as_raw();
    if status.uid() != own && status.uid() != 0 {
        let owner = status.uid();
        return Err(format!("belongs to user {owner}: it must belong to user {own}; chown it"));
    }
    if status.mode() & 0o077 != 0 {
        let mode = status.mode() & 0o7777;
        return Err(format!("others may use (mode {mode:04o}): chmod 600 {}", path.display()));
    }
    let mut value = Vec::new();
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
    file.take(most).read_to_end(&mut value).map_err(told)?;
    Ok(value)
}

/// What a command prints. What it says on its standard error may hold the value, so it is not told.
fn printed(words: &[String]) -> Result<Vec<u8>, String> {
    let (program, args) = words.split_first().ok_or("is empty")?;
    let environment: Vec<_> = ALWAYS
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .collect();
    let started = talker(program.as_ref(), args, &environment, Path::new("/"));
    let mut talker = started.map_err(|error| format!("cannot be started: {error}"))?;
    let (stdin, stdout, stderr) = talker.streams().ok_or("cannot be heard")?;
    drop(stdin);
    let deadline = Instant::now() + COMMAND_LIMIT;
    let value = read_until([stdout, stderr], deadline)?;
    let mut waited = [PollFd::new(talker.pidfd(), PollFlags::IN)];
    if !is_ready(&mut waited, deadline)? {
        return Err(late());
    }
    match talker.end() {
        Some(0) => Ok(value),
        Some(code) => Err(format!("ended with exit code {code}: run it by hand to see why")),
        None => Err("was ended by a signal".to_owned()),
    }
}

fn late() -> String {
    format!("took longer than {} s", COMMAND_LIMIT.as_secs())
}

/// Reads both streams to their end, and keeps the first of them.
fn read_until(streams: [OwnedFd; 2], deadline: Instant) -> Result<Vec<u8>, String> {
    let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
    let mut open = [true, true];
    while open[0] || open[1] {
        let wanted: Vec<usize> = (0..2).filter(|one| open[*one]).collect();
        let mut waited: Vec<PollFd<'_>> =
            wanted.iter().map(|one| PollFd::new(&streams[*one], PollFlags::IN)).collect();
        if !is_ready(&mut waited, deadline)? {
            return Err(late());
        }
        let ready: Vec<usize> = wanted
            .iter()
            .zip(&waited)
            .filter(|(_, one)| !one.revents().is_empty())
            .map(|(one, _)| *one)
            .collect();
        for one in ready {
            let count = rustix::io::read(&streams[one], &mut piece)
                .map_err(|error| format!("cannot be heard: {error}"))?;
            open[one] = count > 0;
            if one == 0 {
                kept.extend_from_slice(&piece[..count]);
            }
            if kept.len() > MAX_BYTES {
                return Err(TOO_LONG.to_owned());
            }
        }
    }
    Ok(kept)
}

fn is_ready(waited: &mut [PollFd<'_>], deadline: Instant) -> Result<bool, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let ready = rustix::io::retry_on_intr(|| poll(waited, Some(&left)));
    ready.map(|count| count > 0).map_err(|error| format!("cannot be waited for: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command(words: &[&str]) -> SecretSource {
        let words = words.iter().map(|one| (*one).to_owned()).collect();
        SecretSource { command: Some(words), ..SecretSource::default() }
    }

    fn refused(source: &SecretSource) -> String {
        source.resolve("secrets.key").unwrap_err().to_string()
    }

    #[test]
    fn a_value_comes_from_the_environment_a_file_or_a_command() {
        let known = SecretSource::variable("CARGO_PKG_NAME").resolve("secrets.key").unwrap();
        assert_eq!(known.reveal(), "belljar");
        let path = std::env::temp_dir().join(format!("belljar-secret-{}", std::process::id()));
        std::fs::write(&path, "from a file\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let file = SecretSource { file: Some(path.clone()), ..SecretSource::default() };
        assert_eq!(file.resolve("secrets.key").unwrap().reveal(), "from a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = refused(&file);
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
        let error = refused(&file);
        assert!(error.contains("secrets.key.file") && error.contains("cannot be read"), "{error}");
        let printed = command(&["sh", "-c", "echo noise >&2; echo printed"]);
        assert_eq!(printed.resolve("secrets.key").unwrap().reveal(), "printed");
    }

    #[test]
    fn a_refusal_says_what_to_do_and_never_the_value() {
        let missing = refused(&SecretSource::variable("BELLJAR_NO_SUCH_VARIABLE"));
        assert!(missing.contains("export BELLJAR_NO_SUCH_VARIABLE="), "{missing}");
        for (words, told) in [
            (&["sh", "-c", "echo s3cret; exit 3"][..], "exit code 3"),
            (&["sh", "-c", "echo s3cret; kill -9 $$"], "signal"),
            (&["sh", "-c", "printf 's3cret\\nmore'"], "more than one line"),
            (&["sh", "-c", "yes s3cret | head -c 100000"], "65536"),
            (&["true"], "holds nothing"),
            (&["/no/such/program"], "cannot be started"),
            (&[], "is empty"),
        ] {
            let error = refused(&command(words));
            assert!(error.contains(told) && error.contains("secrets.key.command"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let both = SecretSource { env: Some("A".into()), ..command(&["true"]) };
        assert!(refused(&both).contains("must say one of"));
        assert!(refused(&SecretSource::default()).contains("must say one of"));
        let secret = Secret::of(b"s3cret".to_vec()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(secret.scrub("no s3cret here"), "no [secret] here");
    }
}
