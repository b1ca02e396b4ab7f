//! Changing files that are not its own to change, or its own in a way that outlives the sandbox.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use Category::Files;

type Tried = Result<Attempt, Errno>;

const EACCES: Expect = Expect::Errno("EACCES");
const EPERM: Expect = Expect::Errno("EPERM");
const EROFS: Expect = Expect::Errno("EROFS");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// Which one depends on who owns the synthesised file.
const NOT_WRITABLE: Expect = Expect::OneOf(&["EACCES", "EROFS"]);
/// Landlock's answer depends on the right that is missing; protected_hardlinks comes before it.
const NOT_LINKABLE: Expect = Expect::OneOf(&["EACCES", "EPERM", "EXDEV"]);

pub(super) const PROBES: &[Probe] = &[
    Probe::new("open_secret_for_writing", Files, "root", "Opens a host file to change it", |f| {
        OpenOptions::new().append(true).open(&f.secret)?;
        Attempt::allowed("opened, not written")
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "create_in_host_directory",
        Files,
        "root",
        "Makes a file in a host directory that everyone may write to",
        |f| create_and_remove(&f.host_dir.join("made")),
    )
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("delete_host_file", Files, "root", "Deletes a file of the host", delete_spare)
        .basic(EACCES)
        .boxed(ABSENT),
    Probe::new("rename_host_file", Files, "root", "Moves a file of the host away", rename_spare)
        .basic(EACCES)
        .boxed(ABSENT),
    Probe::new("chmod_host_file", Files, "root", "Changes the mode of a host file", |f| {
        fs::set_permissions(f.host_dir.join("spare"), Permissions::from_mode(0o666))?;
        Attempt::allowed("set to what it was")
    })
    .boxed(ABSENT),
    Probe::new("xattr_host_file", Files, "root", "Puts an attribute on a host file", |f| {
        let spare = f.host_dir.join("spare");
        reached(set_xattr(&spare, "user.belljar", b"1"), &["EOPNOTSUPP", "ENOTSUP"])
    })
    .boxed(Expect::OneOf(&["ENOENT", "EPERM"])),
    Probe::new("link_secret", Files, "root", "Makes a hard link to a host file", |f| {
        fs::hard_link(&f.secret, f.own_scratch()?.join("hard"))?;
        Attempt::allowed("linked")
    })
    .basic(NOT_LINKABLE)
    .boxed(ABSENT),
    Probe::new(
        "link_system_file",
        Files,
        "mount_namespace",
        "Makes a hard link to a read-only system file",
        |f| {
            fs::hard_link("/usr/bin/env", f.own_scratch()?.join("hard"))?;
            Attempt::allowed("linked")
        },
    )
    .needs_root()
    .basic(NOT_LINKABLE)
    .boxed(Expect::Errno("EXDEV")),
    Probe::new("create_in_usr", Files, "root", "Makes a file in /usr", |_| {
        create_and_remove(&unlikely("/usr"))
    })
    .needs_root()
    .basic(EACCES)
    .boxed(EROFS),
    Probe::new("create_in_bin", Files, "root", "Makes a program in /bin", |_| {
        create_and_remove(&unlikely("/bin"))
    })
    .needs_root()
    .basic(EACCES)
    .boxed(EROFS),
    Probe::new("create_in_root", Files, "root", "Makes a directory in /", |_| {
        let path = unlikely("/");
        fs::create_dir(&path)?;
        fs::remove_dir(&path)?;
        Attempt::allowed("made and removed")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(EROFS),
    Probe::new("open_passwd_for_writing", Files, "root", "Opens /etc/passwd to add a user", |_| {
        OpenOptions::new().append(true).open("/etc/passwd")?;
        Attempt::allowed("opened, not written")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(NOT_WRITABLE),
    Probe::new(
        "open_program_for_writing",
        Files,
        "root",
        "Opens a system program to replace its code",
        |_| {
            OpenOptions::new().append(true).open("/usr/bin/env")?;
            Attempt::allowed("opened, not written")
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(NOT_WRITABLE),
    Probe::new(
        "open_own_program_for_writing",
        Files,
        "root",
        "Opens the sandbox's own program through /proc/self/exe (CVE-2019-5736)",
        |_| {
            OpenOptions::new().append(true).open("/proc/self/exe")?;
            Attempt::allowed("opened, not written")
        },
    )
    .no_control("the file is in use by this very process, so ETXTBSY answers first")
    .walled(Expect::OneOf(&["EACCES", "EROFS", "ETXTBSY", "ENOENT"])),
    Probe::new("setuid_bit", Files, "seccomp", "Marks a file of its own setuid", |f| {
        mode_on_own_file(f, 0o4755)
    })
    .walled(EPERM),
    Probe::new("setgid_bit", Files, "seccomp", "Marks a file of its own setgid", |f| {
        mode_on_own_file(f, 0o2755)
    })
    .walled(EPERM),
    Probe::new("file_capability", Files, "capabilities", "Gives its own file capabilities", |f| {
        let file = own_file(f)?;
        // struct vfs_cap_data, version 2, with CAP_NET_RAW permitted.
        let mut value = [0_u8; 20];
        value[3] = 2;
        value[5] = 0x20;
        reached(set_xattr(&file, "security.capability", &value), &[])
    })
    .needs_root()
    .walled(EPERM),
];

/// A name in a system directory that nothing else has.
fn unlikely(directory: &str) -> PathBuf {
    Path::new(directory).join(format!("belljar-attack-{}", std::process::id()))
}

fn create_and_remove(path: &Path) -> Tried {
    OpenOptions::new().write(true).create_new(true).open(path)?;
    fs::remove_file(path)?;
    Attempt::allowed("made and removed")
}

fn delete_spare(fixture: &Fixture) -> Tried {
    let spare = fixture.host_dir.join("spare");
    fs::remove_file(&spare)?;
    restore_spare(&spare)?;
    Attempt::allowed("deleted, and put back")
}

fn rename_spare(fixture: &Fixture) -> Tried {
    let (spare, away) = (fixture.host_dir.join("spare"), fixture.host_dir.join("moved"));
    fs::rename(&spare, &away)?;
    fs::rename(&away, &spare)?;
    Attempt::allowed("moved, and moved back")
}

fn restore_spare(spare: &Path) -> Result<(), Errno> {
    fs::write(spare, "spare")?;
    Ok(fs::set_permissions(spare, Permissions::from_mode(0o666))?)
}

fn own_file(fixture: &Fixture) -> Result<PathBuf, Errno> {
    let path = fixture.own_scratch()?.join("own");
    fs::write(&path, "")?;
    Ok(path)
}

fn mode_on_own_file(fixture: &Fixture, mode: u32) -> Tried {
    let path = own_file(fixture)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))?;
    let got = fs::metadata(&path)?.permissions().mode() & 0o7777;
    if got == mode { Attempt::allowed(format!("mode {got:o}")) } else { Attempt::hidden("dropped") }
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<i64, Errno> {
    let length = i64::try_from(value.len()).unwrap_or(0);
    let path = path.to_string_lossy();
    syscall(
        Call::SETXATTR,
        &mut [Arg::Text(&path), Arg::Text(name), Arg::Bytes(value), Arg::Int(length), Arg::Int(0)],
    )
}
