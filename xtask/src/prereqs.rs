//! What the suites need from the host, by Debian package. Root installs what is missing; anyone else is told.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// A package, and the file that shows it is there: suites name these paths, whatever `PATH` says.
pub(crate) type Package = (&'static str, &'static str);

const NEEDED: [Package; 22] = [
    ("python3", "/usr/bin/python3"),
    // Not what programs need: the one module that keeps a random state which is not Python's.
    ("python3-numpy", "/usr/lib/python3/dist-packages/numpy/__init__.py"),
    // Its figures are results of code contexts.
    ("python3-matplotlib", "/usr/lib/python3/dist-packages/matplotlib/__init__.py"),
    // Real tools, which must be found innocent.
    ("python3-pip", "/usr/bin/pip3"),
    ("python3-pytest", "/usr/lib/python3/dist-packages/pytest/__init__.py"),
    ("git", "/usr/bin/git"),
    ("npm", "/usr/bin/npm"),
    ("sqlite3", "/usr/bin/sqlite3"),
    ("nodejs", "/usr/bin/node"),
    ("strace", "/usr/bin/strace"),
    ("binutils", "/usr/bin/strip"),
    // Makes the certificates of the endpoints that tests talk to.
    ("openssl", "/usr/bin/openssl"),
    // For the way out: clients, networks, and programs that look names up in ways of their own.
    ("curl", "/usr/bin/curl"),
    ("iproute2", "/usr/sbin/ip"),
    ("musl-tools", "/usr/bin/musl-gcc"),
    ("openjdk-17-jdk-headless", "/usr/bin/javac"),
    ("dbus", "/usr/bin/dbus-daemon"),
    // Formats the disks of sandboxes that stay.
    ("e2fsprogs", "/usr/sbin/mkfs.ext4"),
    ("bubblewrap", "/usr/bin/bwrap"),
    ("uidmap", "/usr/bin/newuidmap"),
    ("passwd", "/usr/sbin/useradd"),
    ("util-linux", "/usr/bin/setpriv"),
];

/// Makes the host ready, or says what is missing and how to get it.
pub(crate) fn provide() -> Result<()> {
    provide_these(&NEEDED)
}

/// The same for what only one suite needs.
pub(crate) fn provide_these(needed: &[Package]) -> Result<()> {
    let missing = missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !shell::is_root() {
        bail!("missing packages: {packages}. hint: sudo apt-get install {packages}");
    }
    shell::say(format!("installing what is missing: {packages}"));
    shell::run(apt_get().args(["update", "--quiet=2"]))?;
    install(&missing)?;
    let still = self::missing(needed);
    if !still.is_empty() {
        bail!("installed, but their files are still absent: {}", still.join(" "));
    }
    Ok(())
}

/// For what is welcome but not needed: what cannot be installed is said, and stays absent.
pub(crate) fn install_what_can_be(welcome: &[Package]) {
    let missing = missing(welcome);
    if missing.is_empty() {
        return;
    }
    shell::say(format!("installing what is missing: {}", missing.join(" ")));
    if let Err(error) = shell::run(apt_get().args(["update", "--quiet=2"])) {
        shell::say(format!("{error:#}"));
    }
    // One at a time: a host may know some of them only.
    for package in missing {
        if let Err(error) = install(&[package]) {
            shell::say(format!("{error:#}"));
        }
    }
}

fn apt_get() -> Command {
    let mut command = shell::command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn install(packages: &[&str]) -> Result<()> {
    let options = ["install", "--yes", "--quiet=2", "--no-install-recommends"];
    shell::run(apt_get().args(options).args(packages))
}

fn missing(needed: &[Package]) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(package, _)| *package)
        .collect()
}
