//! The warm pass: the same tests, in sandboxes that were made before there was a program.
//!
//! `cargo xtask test` starts a server for it and names its socket. What can be warm, by the rules that
//! the engine has, then must be; the rest runs as always. Each is noted, and xtask counts the notes.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar::{Level, PoolConfig};

/// The socket of the server to use; only in the warm pass.
const SERVER: &str = "BELLJAR_TEST_SERVER";
/// The file that gets a line for each run.
const NOTES: &str = "BELLJAR_TEST_NOTES";
/// Options with which a run has something of the caller's own, or is to break.
const COLD_OPTIONS: [&str; 6] =
    ["--workspace", "--out", "--break-at", "--no-server", "--server", "--record"];
/// Variables that the engine delivers too late: interpreters read them when they start.
const READ_AT_START: [&str; 3] = ["PYTHON", "NODE_", "LC_"];

/// How a run was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Warm,
    Cold,
}

/// The server of the warm pass; none in the other.
pub fn server() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| std::env::var_os(SERVER).map(PathBuf::from)).as_deref()
}

/// Whether sandboxes of this level are made ahead.
pub fn level_has_pool(level: Level) -> bool {
    matches!(level, Level::Standard | Level::Strict)
}

/// Whether `belljar run` with these options can be warm.
pub(crate) fn can_be(level: Level, options: &[OsString]) -> bool {
    let is_cold = |option: &OsString| {
        let text = option.to_string_lossy();
        COLD_OPTIONS.contains(&&*text) || READ_AT_START.iter().any(|name| text.starts_with(name))
    };
    level_has_pool(level) && !options.iter().any(is_cold)
}

/// A pool for an engine in the test's own process, which makes what is asked for and nothing else.
pub(crate) fn pool() -> Option<PoolConfig> {
    let config = PoolConfig { floor: 0, from_start: Vec::new(), ..PoolConfig::default() };
    server().map(|_| config)
}

/// Counts a run of a level that is kept ready. Lines this short are written whole, whoever else writes.
pub(crate) fn note(level: Level, pass: Pass) {
    let Some(path) = std::env::var_os(NOTES).filter(|_| level_has_pool(level)) else { return };
    let line: &[u8] = if pass == Pass::Warm { b"warm\n" } else { b"cold\n" };
    let file = File::options().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line)).expect("runs can be counted");
}
