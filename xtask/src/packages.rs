//! Packages of other languages that suites need, by name and version: installed once, in a directory that anyone may read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// For the Python package's own tests, the MCP client that the server is tried with, and what tries its OpenAPI document.
const PYTHON: [&str; 7] = [
    "httpx==0.28.1",
    "pytest==9.2.0",
    "mypy==2.4.1",
    "maturin==1.16.0",
    "mcp==2.3.0",
    "schemathesis==4.32.5",
    "vermin==1.9.2",
];
/// The other MCP client.
const NODE: [&str; 1] = ["@modelcontextprotocol/sdk@1.32.2"];
const NODE_SUITE: &str = "mcp";
/// The suites that need Python's.
const SUITES: [&str; 3] = ["sdk", "mcp", "server"];
/// The suite that installs the wheel.
pub(crate) const WHEEL_SUITE: &str = "sdk";

/// Installs what the wanted suites need and is not there yet.
pub(crate) fn provide(wanted: &BTreeSet<&str>) -> Result<()> {
    if SUITES.iter().any(|suite| wanted.contains(suite)) {
        python()?;
    }
    if wanted.contains(NODE_SUITE) {
        node()?;
    }
    Ok(())
}

/// What the suites are told of it.
pub(crate) fn variables() -> Vec<(&'static str, PathBuf)> {
    vec![
        ("BELLJAR_TEST_PYTHON", python_place().join("bin/python")),
        ("BELLJAR_TEST_NODE", node_place()),
    ]
}

/// Where root may write and everybody may read; for anyone else, beside what is built.
fn root() -> PathBuf {
    if shell::is_root() {
        return PathBuf::from("/var/cache/belljar-tests");
    }
    shell::repo_root().join("target/test-packages")
}

/// A place for each list, so that another version of it changes nothing that is in use.
fn python_place() -> PathBuf {
    root().join(format!("python-{:016x}", digest(&PYTHON)))
}

fn node_place() -> PathBuf {
    root().join(format!("node-{:016x}", digest(&NODE)))
}

/// FNV-1a: enough to tell lists apart that we have written ourselves.
fn digest(names: &[&str]) -> u64 {
    let bytes = names.iter().flat_map(|name| name.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn python() -> Result<()> {
    install(&python_place(), |place| {
        shell::run(
            shell::command("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(place),
        )?;
        let options = ["install", "--quiet", "--disable-pip-version-check"];
        let pip = ["-m", "pip", "--python"];
        let mut command = shell::command("/usr/bin/python3");
        command.args(pip).arg(place.join("bin/python")).args(options).args(PYTHON);
        shell::run(&mut command)
    })
}

fn node() -> Result<()> {
    install(&node_place(), |place| {
        let options = ["install", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix"];
        shell::run(shell::command("/usr/bin/npm").args(options).arg(place).args(NODE))
    })
}

/// Made beside its place and then renamed: whoever finds it finds it whole.
fn install(place: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if place.exists() {
        return Ok(());
    }
    let parent = place.parent().context("a place below the root")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let making = place.with_extension(format!("making-{}", std::process::id()));
    shell::say(format!("installing what is missing in {}", place.display()));
    let made = make(&making);
    if made.is_ok() && fs::rename(&making, place).is_ok() {
        return Ok(());
    }
    // Another run may have been quicker; what we made ourselves is of no use then.
    fs::remove_dir_all(&making).ok();
    if place.exists() { Ok(()) } else { made }
}

/// The wheel as users get it, but for the optimisation, in this directory.
pub(crate) fn build_wheel(into: &Path) -> Result<()> {
    let mut command = shell::command(python_place().join("bin/python"));
    command
        .current_dir(shell::repo_root().join("sdks/python"))
        .args(["-m", "maturin", "build", "--quiet", "--profile", "dev", "--out"])
        .arg(into);
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_has_another_place() {
        assert_ne!(digest(&["a==1", "b==2"]), digest(&["a==1", "b==3"]));
        assert_ne!(digest(&["ab"]), digest(&["a", "b"]));
    }
}
