//! `cargo xtask test vm`: a stock Debian with systemd, cgroup v2 and an older kernel, booted under QEMU.
//!
//! This machine's own kernel shows one of the worlds that users have; the guest shows the usual other one. Its
//! disk is made once and kept under `target/vm`; each boot throws its changes away. Software emulation only: a
//! /dev/kvm that exists may still boot nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::prereqs::{self, Package};
use crate::shell;
use crate::suites::build_belljar;
use crate::test::{Counts, libtest};

pub(crate) const NAME: &str = "vm";

/// A boot takes 15 s and the guest's tests some three minutes on two shared cores; past this it hangs.
const BOOT_LIMIT: Duration = Duration::from_secs(480);

const NEEDED: [Package; 6] = [
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
    ("mmdebstrap", "/usr/bin/mmdebstrap"),
    ("busybox-static", "/bin/busybox"),
    ("cpio", "/usr/bin/cpio"),
    ("binutils", "/usr/bin/strip"),
    ("e2fsprogs", "/usr/sbin/mke2fs"),
];

/// What a server with a login has, and what a run at each level needs.
const GUEST_PACKAGES: &str = "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3,uidmap,passwd,\
                              util-linux,procps,e2fsprogs";
/// The smallest of Debian's kernels: few drivers, quick to boot.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The kernel's modules that lead to the disk, and those that sandboxes which stay stand on. The guest finds out in which
/// order they go in.
const MODULES: [&str; 8] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "loop",
    "overlay",
];
/// Where they are in the kernel's tree.
const FOLDERS: [&str; 3] = ["drivers/virtio", "drivers/block", "fs/overlayfs"];
const DISK_SIZE: &str = "700M";
/// Raised when the recipe below changes in a way that its constants do not show.
const RECIPE: u32 = 2;

/// Makes the guest if need be, boots it, and reads what it says of its tests.
pub(crate) fn run(only: &[String]) -> Result<Counts> {
    prereqs::provide_these(&NEEDED)?;
    let belljar = build_belljar()?;
    let target = belljar.ancestors().nth(2).context("cargo built into no target directory")?;
    let guest = Guest::provide(&target.join("vm"))?;
    let first_files = guest.first_files(&belljar, only)?;
    libtest(guest.boot(&first_files), BOOT_LIMIT)
}

/// The guest's files on this host.
#[derive(Debug)]
struct Guest {
    directory: PathBuf,
}

impl Guest {
    fn provide(directory: &Path) -> Result<Self> {
        let guest = Self { directory: directory.to_owned() };
        let recipe = recipe()?;
        // Written last, so a recipe that matches means files that are whole.
        let stamp = guest.path("recipe");
        if fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
            return Ok(guest);
        }
        if !shell::is_root() {
            bail!(
                "no guest is in {}, and root makes it. hint: sudo cargo xtask test vm, once",
                directory.display()
            );
        }
        shell::say("making the guest's disk: some two minutes, once");
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        guest.fetch_kernel()?;
        guest.make_disk()?;
        fs::write(stamp, recipe)?;
        Ok(guest)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Unpacked, not installed: this host must not boot it.
    fn fetch_kernel(&self) -> Result<()> {
        shell::run(shell::command("apt-get").args(["update", "--quiet=2"]))?;
        let depends = shell::output(shell::command("apt-cache").args(["depends", KERNEL]))?;
        let package = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
            .with_context(|| format!("{KERNEL} names no kernel"))?;
        let download = format!("linux-image-{package}");
        let mut apt_get = shell::command("apt-get");
        apt_get.current_dir(&self.directory);
        shell::run(apt_get.args(["download", "--quiet=2", &download]))?;
        let archive = find(&self.directory, |name| name.ends_with(".deb"))?;
        let unpacked = self.path("kernel");
        shell::run(shell::command("dpkg-deb").arg("-x").args([&archive, &unpacked]))?;
        let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
        fs::rename(image, self.path("vmlinuz"))?;
        let modules = self.path("modules");
        fs::create_dir(&modules)?;
        let all = find(&unpacked.join("lib/modules"), |_| true)?.join("kernel");
        for module in MODULES {
            let file = format!("{module}.ko");
            let from = FOLDERS
                .map(|folder| all.join(folder).join(&file))
                .into_iter()
                .find(|path| path.exists())
                .with_context(|| format!("the kernel has no module {module}"))?;
            fs::copy(from, modules.join(file))?;
        }
        fs::remove_file(archive)?;
        fs::remove_dir_all(unpacked).context("cannot remove the unpacked kernel")
    }

    fn make_disk(&self) -> Result<()> {
        let tree = self.path("tree");
        let mut mmdebstrap = shell::command("mmdebstrap");
        mmdebstrap
            .args(["--variant=essential", "--quiet"])
            .arg(format!("--include={GUEST_PACKAGES}"))
            .args(["man", "doc", "locale"].map(|what| {
                format!("--dpkgopt=path-exclude=/usr/share/{what}/*")
            }))
            .arg("--customize-hook=chroot \"$1\" useradd --create-home --uid 1000 --shell /bin/bash ann")
            .arg(codename()?)
            .arg(&tree);
        shell::run(&mut mmdebstrap)?;
        let mut mke2fs = shell::command("mke2fs");
        // No journal: every boot's changes are thrown away.
        mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"]);
        shell::run(mke2fs.arg(&tree).arg(self.path("disk")).arg(DISK_SIZE))?;
        fs::remove_dir_all(tree).context("cannot remove the guest's tree")
    }

    /// The archive that the kernel unpacks first: a shell, the way to the disk, and what is tested.
    fn first_files(&self, belljar: &Path, only: &[String]) -> Result<PathBuf> {
        let top = self.path("first");
        if top.exists() {
            fs::remove_dir_all(&top)?;
        }
        for directory in ["bin", "dev", "proc", "sys", "root", "payload"] {
            fs::create_dir_all(top.join(directory))?;
        }
        let source = shell::repo_root().join("tests/vm");
        fs::copy("/bin/busybox", top.join("bin/busybox"))?;
        fs::copy(source.join("init"), top.join("init"))?;
        fs::set_permissions(top.join("init"), fs::Permissions::from_mode(0o755))?;
        for module in MODULES {
            let file = format!("modules/{module}.ko");
            fs::create_dir_all(top.join("modules"))?;
            fs::copy(self.path(&file), top.join(&file))?;
        }
        for file in ["guest.py", "belljar-vm.service"] {
            fs::copy(source.join(file), top.join("payload").join(file))?;
        }
        fs::write(top.join("payload/only"), only.join("\n"))?;
        let stripped = top.join("payload/belljar");
        shell::run(shell::command("strip").arg("-o").args([&stripped, belljar]))?;
        let mut pack = shell::command("/bin/sh");
        pack.current_dir(&top).args(["-c", "find . | cpio --quiet -o -H newc > ../first.cpio"]);
        shell::run(&mut pack)?;
        Ok(self.path("first.cpio"))
    }

    fn boot(&self, first_files: &Path) -> std::process::Command {
        let mut qemu = shell::command("qemu-system-x86_64");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", "2", "-m", "1024"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(self.path("vmlinuz"))
            .arg("-initrd")
            .arg(first_files)
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,snapshot=on", self.path("disk").display()))
            .args([
                "-append",
                "console=ttyS0 quiet loglevel=3 mitigations=off panic=-1 systemd.show_status=no",
            ]);
        qemu
    }
}

/// What the guest is made from, as text.
fn recipe() -> Result<String> {
    let suite = codename()?;
    Ok(format!("{RECIPE} {suite} {KERNEL} {GUEST_PACKAGES} {DISK_SIZE}\n"))
}

/// The guest is the same release as this host: what was built here must find its libraries there.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    if value("ID").as_deref() != Some("debian") {
        bail!("the guest is made with Debian's tools, on a Debian host only");
    }
    value("VERSION_CODENAME").context("/etc/os-release names no release")
}

/// The one entry of a directory whose name fits.
fn find(directory: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&fits))
        .with_context(|| format!("what was wanted is not in {}", directory.display()))
}
