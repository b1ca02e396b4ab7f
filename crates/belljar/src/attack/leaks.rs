//! Learning what the host would rather keep: its names, its environment, its descriptors, and who
//! this process really is.

use super::fixture::{Fixture, MOST_DESCRIPTORS, digest};
use super::{Attempt, Category, Expect, HIDDEN, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::{host, special};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use Category::Leaks;

type Tried = Result<Attempt, Errno>;

const EACCES: Expect = Expect::Errno("EACCES");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// Masked with an empty file, or not there.
const MASKED: Expect = Expect::OneOf(&[HIDDEN, "ENOENT", "EACCES"]);

pub(super) const PROBES: &[Probe] = &[
    Probe::new(
        "environment",
        Leaks,
        "environment",
        "Finds the host's variables in its own",
        environment,
    )
    .always(Expect::Hidden),
    Probe::new(
        "leaked_descriptor",
        Leaks,
        "descriptors",
        "Uses a file its launcher left open",
        |f| {
            let path = format!("/proc/self/fd/{}", f.leaked_fd);
            same_file(f, &path)
        },
    )
    .always(Expect::OneOf(&["ENOENT", "EACCES", HIDDEN])),
    Probe::new(
        "stray_descriptors",
        Leaks,
        "descriptors",
        "Starts with more than three files",
        |f| {
            let now = || special::open_descriptors(MOST_DESCRIPTORS);
            match f.open_at_start.clone().unwrap_or_else(now).as_slice() {
                [] => Attempt::hidden("only standard input, output and error"),
                open => Attempt::allowed(format!("open: {open:?}")),
            }
        },
    )
    .always(Expect::Hidden),
    Probe::new("hostname", Leaks, "uts_namespace", "Learns the host's name", |f| {
        let seen = host::hostname();
        if seen == f.hostname { Attempt::allowed(seen) } else { Attempt::hidden(seen) }
    })
    .boxed(Expect::Hidden),
    Probe::new("machine_id", Leaks, "root", "Reads the machine's unique number", |f| {
        if !f.has("/etc/machine-id") {
            return Ok(Attempt::not_applicable("the host has none"));
        }
        File::open("/etc/machine-id")?;
        Attempt::allowed("opened")
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("boot_id", Leaks, "proc", "Reads the number of this boot of the host", |f| {
        same_text("/proc/sys/kernel/random/boot_id", &f.boot_id)
    })
    .strict(ABSENT),
    Probe::new("kernel_command_line", Leaks, "proc", "Reads how the host was booted", |_| {
        not_empty("/proc/cmdline")
    })
    .boxed(Expect::Hidden)
    .strict(ABSENT),
    Probe::new("partitions", Leaks, "proc", "Reads the host's disks", |_| {
        not_empty("/proc/partitions")
    })
    .boxed(Expect::Hidden)
    .strict(ABSENT),
    Probe::new("modules", Leaks, "proc", "Reads the kernel's modules", |f| {
        // A kernel that loads no modules has no such file, and neither needs a mask for it.
        match not_empty("/proc/modules") {
            Err(errno) if errno.is("ENOENT") && f.is_outside() => {
                Ok(Attempt::not_applicable("the host's kernel has none"))
            }
            Ok(Attempt::Hidden { .. }) if f.is_outside() => {
                Ok(Attempt::not_applicable("the host has loaded none"))
            }
            answer => answer,
        }
    })
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("host_users", Leaks, "root", "Reads the host's list of users", |f| {
        let seen = fs::read_to_string("/etc/passwd")?;
        if digest(seen.trim().as_bytes()) == f.passwd_digest {
            Attempt::allowed("the host's own /etc/passwd")
        } else {
            Attempt::hidden("a list made for the sandbox")
        }
    })
    .boxed(Expect::Hidden),
    Probe::new(
        "host_arguments",
        Leaks,
        "pid_namespace",
        "Reads the arguments of its launcher",
        |f| not_empty(&format!("/proc/{}/cmdline", f.host_pid)),
    )
    .boxed(ABSENT),
    Probe::new("host_environ", Leaks, "pid_namespace", "Reads its launcher's environment", |f| {
        File::open(format!("/proc/{}/environ", f.host_pid))?;
        Attempt::allowed("opened, not read")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "cgroup_path",
        Leaks,
        "cgroup_namespace",
        "Learns its place among the host's groups",
        |f| {
            if f.cgroups.is_empty() {
                return Ok(Attempt::not_applicable("the host side is in the root group"));
            }
            let seen = fs::read_to_string("/proc/self/cgroup")?;
            match f.cgroups.iter().find(|path| seen.contains(path.as_str())) {
                Some(path) => Attempt::allowed(path),
                None => Attempt::hidden("its own root"),
            }
        },
    )
    .boxed(Expect::Hidden),
    Probe::new(
        "shared_memory",
        Leaks,
        "ipc_namespace",
        "Finds a shared-memory segment of the host",
        |f| {
            host::find_segment(f.segment_key)?;
            Attempt::allowed("found it")
        },
    )
    .boxed(Expect::OneOf(&["ENOENT", "EPERM", "ENOSYS"])),
    Probe::new("runs_as_root", Leaks, "identity", "Is root", |_| match host::user() {
        0 => Attempt::allowed("user 0"),
        user => Attempt::hidden(format!("user {user}")),
    })
    .needs_root()
    .walled(Expect::Hidden),
    Probe::new("holds_capabilities", Leaks, "capabilities", "Holds a capability", |_| {
        capabilities()
    })
    .needs_root()
    .walled(Expect::Hidden),
    Probe::new(
        "may_gain_privileges",
        Leaks,
        "no_new_privileges",
        "Could gain rights by exec",
        |_| {
            if special::no_new_privileges()? {
                Attempt::hidden("no_new_privs is set")
            } else {
                Attempt::allowed("no_new_privs is not set")
            }
        },
    )
    .walled(Expect::Hidden),
];

fn environment(fixture: &Fixture) -> Tried {
    if fixture.environment.is_empty() {
        return Ok(Attempt::not_applicable("the host side has only common variables"));
    }
    let is_seen = |(name, value): &(&String, &String)| {
        std::env::var_os(name).is_some_and(|own| digest(own.as_encoded_bytes()) == **value)
    };
    let seen: Vec<_> = fixture.environment.iter().filter(is_seen).map(|(name, _)| name).collect();
    match seen.as_slice() {
        [] => Attempt::hidden("none of them"),
        seen => Attempt::allowed(format!("{} of them, such as {}", seen.len(), seen[0])),
    }
}

/// Names are cheap and numbers are reused: only the same inode is the host's file.
fn same_file(fixture: &Fixture, path: &str) -> Tried {
    let metadata = fs::metadata(path)?;
    if (metadata.dev(), metadata.ino()) == fixture.secret_inode {
        Attempt::allowed("it is the host's file")
    } else {
        Attempt::hidden("another file has that number")
    }
}

fn same_text(path: &str, host: &str) -> Tried {
    if fs::read_to_string(path)?.trim() == host {
        Attempt::allowed("the host's own")
    } else {
        Attempt::hidden("not the host's")
    }
}

fn not_empty(path: &str) -> Tried {
    match fs::read(path)?.len() {
        0 => Attempt::hidden("empty"),
        bytes => Attempt::allowed(format!("{bytes} bytes")),
    }
}

fn capabilities() -> Tried {
    let header: Vec<u8> = [0x2008_0522_u32, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut sets = [0_u8; 24];
    reached(syscall(Call::CAPGET, &mut [Arg::Bytes(&header), Arg::Exchange(&mut sets)]), &[])?;
    if sets.iter().all(|byte| *byte == 0) {
        Attempt::hidden("none effective, permitted or inheritable")
    } else {
        Attempt::allowed("some of its sets are not empty")
    }
}
