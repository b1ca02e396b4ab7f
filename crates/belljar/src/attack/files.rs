//! Looking at the host's files: by name, by link, by someone else's view of them, by handle.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use Category::Files;

type Tried = Result<Attempt, Errno>;

const EACCES: Expect = Expect::Errno("EACCES");
const EPERM: Expect = Expect::Errno("EPERM");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// Unreadable because init is not dumpable, or nothing there because its root is the sandbox's.
const NOT_THROUGH_INIT: Expect = Expect::OneOf(&["EACCES", "ENOENT"]);

pub(super) const PROBES: &[Probe] = &[
    Probe::new("read_secret", Files, "root", "Reads a host file by its absolute path", |f| {
        read_canary(f, &f.secret)
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("stat_secret", Files, "root", "Asks whether a host file exists", |f| {
        fs::metadata(&f.secret)?;
        Attempt::allowed("it exists")
    })
    .boxed(ABSENT),
    Probe::new("list_host_directory", Files, "root", "Lists a directory of the host", |f| {
        list(f.secret.parent().unwrap_or(Path::new("/tmp")))
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_symlink",
        Files,
        "root",
        "Reads a host file through a link made inside",
        |f| {
            let link = f.own_scratch()?.join("link");
            symlink(&f.secret, &link)?;
            read_canary(f, &link)
        },
    )
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_dots",
        Files,
        "root",
        "Climbs above the root by its parent directories",
        |f| read_canary(f, &below(&"../".repeat(32), &f.secret)),
    )
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_cwd",
        Files,
        "root",
        "Climbs out of a working directory left outside the root (CVE-2024-21626)",
        |f| read_canary(f, &below(&format!("/proc/self/cwd/{}", "../".repeat(32)), &f.secret)),
    )
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_own_root",
        Files,
        "root",
        "Reads a host file above its own /proc/self/root",
        |f| read_canary(f, &below("/proc/self/root/../../", &f.secret)),
    )
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_init_root",
        Files,
        "pid_namespace",
        "Reads a host file through the root of process 1",
        |f| read_canary(f, &below(&format!("/proc/{}/root", f.init()), &f.secret)),
    )
    .needs_root()
    .basic(EACCES)
    .boxed(NOT_THROUGH_INIT),
    Probe::new(
        "read_secret_by_victim_root",
        Files,
        "pid_namespace",
        "Reads a host file through the root of another process",
        |f| read_canary(f, &below(&format!("/proc/{}/root", f.victim), &f.secret)),
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_victim_cwd",
        Files,
        "pid_namespace",
        "Reads a host file through the working directory of another process",
        |f| read_canary(f, Path::new(&format!("/proc/{}/cwd/secret", f.victim))),
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "read_secret_by_handle",
        Files,
        "seccomp",
        "Opens a host file by its handle, without a path (the shocker exploit)",
        by_handle,
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("open_shadow", Files, "root", "Opens the password file", |f| {
        if !f.has("/etc/shadow") {
            return Ok(Attempt::not_applicable("the host has none"));
        }
        File::open("/etc/shadow")?;
        Attempt::allowed("opened, not read")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("list_root_home", Files, "root", "Lists the home of root", |f| {
        list_if_present(f, Path::new("/root"))
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("list_home", Files, "root", "Lists the user's own home on the host", |f| {
        list_if_present(f, &f.home)
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("list_ssh_keys", Files, "root", "Lists the user's SSH directory", |f| {
        list_if_present(f, &f.home.join(".ssh"))
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("list_run", Files, "root", "Lists /run, where sockets and secrets lie", |f| {
        list_if_present(f, Path::new("/run"))
    })
    .basic(EACCES)
    .boxed(ABSENT),
];

/// Reads the file and looks for the canary in it: another file of that name is no escape.
fn read_canary(fixture: &Fixture, path: &Path) -> Tried {
    let mut text = String::new();
    File::open(path)?.take(4096).read_to_string(&mut text)?;
    if text.contains(&fixture.canary) {
        Attempt::allowed("read the host's file")
    } else {
        Attempt::hidden("another file has that name")
    }
}

fn below(start: &str, path: &Path) -> PathBuf {
    PathBuf::from(format!("{start}{}", path.display()))
}

fn list(directory: &Path) -> Tried {
    let count = fs::read_dir(directory)?.take(10_000).count();
    Attempt::allowed(format!("{count} entries"))
}

fn list_if_present(fixture: &Fixture, directory: &Path) -> Tried {
    if fixture.present.iter().any(|present| present == directory) {
        list(directory)
    } else {
        Ok(Attempt::not_applicable("the host has no such directory"))
    }
}

fn by_handle(fixture: &Fixture) -> Tried {
    if fixture.secret_handle.is_empty() {
        return Ok(Attempt::not_applicable("the host's file system gives no handles"));
    }
    let system = File::open("/usr")?;
    let mount = Arg::Int(system.as_raw_fd().into());
    let handle = Arg::Bytes(&fixture.secret_handle);
    let opened = syscall(Call::OPEN_BY_HANDLE_AT, &mut [mount, handle, Arg::Int(0)]);
    // /usr may be another file system than the secret's: the handle is stale there, after the check.
    reached(opened, &["ESTALE"])
}
