//! Taking more than its share. Every bomb is bounded, and leaves nothing behind outside either.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, expected, find, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::{host, special};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use Category::Resources;

type Tried = Result<Attempt, Errno>;

const EPERM: Expect = Expect::Errno("EPERM");
const TOO_LARGE: Expect = Expect::Signal("SIGXFSZ");
/// The disk and one file have the same bound by default; which is met first depends on the rest.
const NO_ROOM: Expect = Expect::OneOf(&["SIGXFSZ", "ENOSPC", "EFBIG", "EDQUOT"]);

const FORKS: usize = 200;
const THREADS: usize = 200;
const DESCRIPTORS: usize = 5000;
/// Past the default bound of 10,000.
const FILES: usize = 12_000;
const FILE_BYTES: usize = 200 * MIB;
const SPARSE_BYTES: u64 = 1 << 40;
const MEMORY_BYTES: usize = 1024 * MIB;
const BURN: Duration = Duration::from_millis(600);
const MIB: usize = 1024 * 1024;

const RLIMIT_FSIZE: i64 = 1;
const RLIMIT_CORE: i64 = 4;
const RLIMIT_NOFILE: i64 = 7;

/// The last one may take the whole sandbox with it.
pub(super) const PROBES: &[Probe] = &[
    Probe::new("fork_bomb", Resources, "cgroup_pids", "Keeps 200 children at once", |_| {
        let made = special::fork_many(FORKS)?;
        Attempt::allowed(format!("{made} children"))
    })
    .boxed(Expect::Errno("EAGAIN")),
    Probe::new("thread_bomb", Resources, "cgroup_pids", "Keeps 200 threads at once", |_| threads())
        .boxed(Expect::Errno("EAGAIN")),
    Probe::new("descriptor_bomb", Resources, "rlimits", "Opens 5000 files at once", |_| {
        descriptors()
    })
    .walled(Expect::Errno("EMFILE")),
    Probe::new("large_file", Resources, "disk", "Writes a file of 200 MB", |f| {
        write_zeros(File::create(f.own_scratch()?.join("large"))?)
    })
    .basic(TOO_LARGE)
    .boxed(NO_ROOM),
    Probe::new("large_shared_memory", Resources, "disk", "Writes 200 MB to /dev/shm", |_| {
        let path = format!("/dev/shm/belljar-attack-{}", std::process::id());
        let file = File::create_new(&path)?;
        // Nameless before it grows: a probe that dies of a limit leaves nothing behind.
        fs::remove_file(&path)?;
        write_zeros(file)
    })
    .boxed(NO_ROOM),
    Probe::new("sparse_file", Resources, "rlimits", "Makes a sparse file of 1 TiB", |f| {
        File::create(f.own_scratch()?.join("sparse"))?.set_len(SPARSE_BYTES)?;
        Attempt::allowed("made")
    })
    .walled(TOO_LARGE),
    Probe::new("inode_bomb", Resources, "disk", "Makes 12000 files", |f| {
        let own = f.own_scratch()?;
        for number in 0..FILES {
            File::create(own.join(number.to_string()))?;
        }
        Attempt::allowed(format!("{FILES} files"))
    })
    // A slow disk outside takes its time; inside, on a tmpfs, it is over at once.
    .within(Duration::from_secs(20))
    .boxed(Expect::Errno("ENOSPC")),
    Probe::new("raise_limit", Resources, "rlimits", "Raises its own limit of open files", |_| {
        let (_, hard) = limit(RLIMIT_NOFILE)?;
        reached(set_limit(RLIMIT_NOFILE, hard.saturating_add(1)), &[])
    })
    .no_control("a host's hard limit may already be the kernel's ceiling")
    .walled(EPERM),
    Probe::new("core_dumps", Resources, "rlimits", "Turns core dumps on", |f| {
        let (_, hard) = limit(RLIMIT_CORE)?;
        if f.is_outside() && hard == 0 {
            return Ok(Attempt::not_applicable("the host has turned them off for good"));
        }
        reached(set_limit(RLIMIT_CORE, hard.max(4096)), &[])
    })
    .walled(EPERM),
    Probe::new("unlimited", Resources, "rlimits", "Has a limit of files without an end", |_| {
        let unlimited = |resource| limit(resource).map(|(_, hard)| hard == u64::MAX);
        if unlimited(RLIMIT_FSIZE)? || unlimited(RLIMIT_NOFILE)? {
            Attempt::allowed("file size or open files are unlimited")
        } else {
            Attempt::hidden("both are finite")
        }
    })
    .walled(Expect::Hidden),
    Probe::new("processor_hog", Resources, "cgroup_cpu", "Uses two processors at once", |_| hog())
        .no_control("needs two idle processors to show anything")
        .boxed(Expect::Hidden),
    Probe::new("memory_bomb", Resources, "cgroup_memory", "Touches 1 GiB of memory", memory)
        .boxed(Expect::OneOf(&["SIGKILL", "ENOMEM"])),
];

fn threads() -> Tried {
    let mut waiting = Vec::new();
    for _ in 0..THREADS {
        let (release, wait) = mpsc::channel::<()>();
        let stay = move || wait.recv().is_ok();
        let thread = std::thread::Builder::new().stack_size(64 * 1024).spawn(stay)?;
        waiting.push((release, thread));
    }
    let count = waiting.len();
    for (release, thread) in waiting {
        drop(release);
        // It only ever waits for that.
        let _ended = thread.join();
    }
    Attempt::allowed(format!("{count} threads"))
}

fn descriptors() -> Tried {
    let (soft, hard) = limit(RLIMIT_NOFILE)?;
    if hard > soft {
        set_limit(RLIMIT_NOFILE, hard)?;
    }
    let made = special::duplicate_many(std::io::stdin().as_fd(), DESCRIPTORS)?;
    Attempt::allowed(format!("{made} open"))
}

fn write_zeros(mut file: File) -> Tried {
    let block = vec![0_u8; MIB];
    for _ in 0..FILE_BYTES / MIB {
        file.write_all(&block)?;
    }
    Attempt::allowed(format!("{FILE_BYTES} bytes"))
}

/// Two threads that only count: more than one and a half processors is more than one share.
fn hog() -> Tried {
    let start = (Instant::now(), special::processor_time());
    let burn = move || while start.0.elapsed() < BURN {};
    let other = std::thread::Builder::new().spawn(burn)?;
    burn();
    // It cannot fail: it only counts.
    let _ended = other.join();
    let used = special::processor_time().saturating_sub(start.1).as_secs_f64();
    let share = used / start.0.elapsed().as_secs_f64();
    if share > 1.5 {
        Attempt::allowed(format!("{share:.2} processors"))
    } else {
        Attempt::hidden(format!("{share:.2} processors"))
    }
}

/// Where nothing promises to stop it, it is tried only on a machine that will not feel it.
fn memory(fixture: &Fixture) -> Tried {
    let promised = find("memory_bomb").and_then(|probe| expected(probe, &fixture.level));
    if promised.is_none() && host::free_memory_bytes() < 4 * MEMORY_BYTES as u64 {
        return Ok(Attempt::not_applicable("the host has less than 4 GiB free"));
    }
    special::touch_memory(MEMORY_BYTES)?;
    Attempt::allowed(format!("{MEMORY_BYTES} bytes"))
}

/// Soft and hard.
fn limit(resource: i64) -> Result<(u64, u64), Errno> {
    let mut words = [0_u8; 16];
    let args = &mut [Arg::Int(0), Arg::Int(resource), Arg::Null, Arg::Exchange(&mut words)];
    syscall(Call::PRLIMIT, args)?;
    let (soft, hard) = words.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    Ok((word(soft), word(hard)))
}

fn set_limit(resource: i64, both: u64) -> Result<i64, Errno> {
    let words = [both.to_ne_bytes(), both.to_ne_bytes()].concat();
    let args = &mut [Arg::Int(0), Arg::Int(resource), Arg::Bytes(&words), Arg::Null];
    syscall(Call::PRLIMIT, args)
}
