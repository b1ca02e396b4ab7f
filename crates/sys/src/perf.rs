//! Counters of the kernel for another process and all that it starts from then on (`perf_event_open(2)`).

use std::os::fd::{FromRawFd, OwnedFd};

use crate::{Errno, Result, check};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Machine instructions of the program itself, without those of the kernel.
    Instructions,
    /// Nanoseconds on a processor: what every kernel can count, with or without hardware for it.
    TaskClock,
}

/// A counter. It holds its count when what it counted is gone.
#[derive(Debug)]
pub struct Counter(OwnedFd);

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const HARDWARE_INSTRUCTIONS: u64 = 1;
const SOFTWARE_TASK_CLOCK: u64 = 1;
/// Children are counted as well.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_CLOEXEC: libc::c_ulong = 1 << 3;

/// The first form of `struct perf_event_attr`, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

impl Counter {
    /// Counts from now on what this process does, and whatever it starts later.
    pub fn open(pid: u32, counted: Counted) -> Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
        let (kind, config) = match counted {
            Counted::Instructions => (TYPE_HARDWARE, HARDWARE_INSTRUCTIONS),
            Counted::TaskClock => (TYPE_SOFTWARE, SOFTWARE_TASK_CLOCK),
        };
        let attributes = Attributes {
            kind,
            size: 64,
            config,
            flags: INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        // SAFETY: `attributes` is of the size that it says and outlives the call, which only reads it.
        let fd = check(unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                pid,
                -1 as libc::c_int, // on every processor
                -1 as libc::c_int, // in no group
                FLAG_CLOEXEC,
            )
        })?;
        let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The count so far.
    pub fn read(&self) -> Result<u64> {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count)? {
            8 => Ok(u64::from_ne_bytes(count)),
            _ => Err(Errno::IO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::talker;

    /// The same way for both kinds; hardware for the second is not on every machine.
    #[test]
    fn a_process_and_what_it_starts_is_counted_from_outside() {
        let script = "read go; sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'";
        let args = ["-c".to_owned(), script.to_owned()];
        let mut shell = talker("sh".as_ref(), &args, &[], "/".as_ref()).unwrap();
        let (stdin, stdout, _stderr) = shell.streams().unwrap();
        let pid = shell.id();
        let clock = Counter::open(pid, Counted::TaskClock).unwrap();
        let instructions = Counter::open(pid, Counted::Instructions);
        let before = clock.read().unwrap();
        rustix::io::write(&stdin, b"go\n").unwrap();
        let mut end = [0; 1];
        assert_eq!(rustix::io::read(&stdout, &mut end).unwrap(), 0, "its output ends with it");
        assert_eq!(shell.end(), Some(0));
        let counted = clock.read().unwrap() - before;
        assert!(counted > 1_000_000, "{counted} ns for 20000 rounds of a shell's loop");
        match instructions {
            Ok(counter) => assert!(counter.read().unwrap() > 1_000_000),
            Err(errno) => {
                let without_hardware =
                    [Errno::NOENT, Errno::OPNOTSUPP, Errno::NODEV, Errno::ACCESS];
                assert!(without_hardware.contains(&errno), "{errno}");
            }
        }
    }

    #[test]
    fn nobody_is_counted_who_is_not_there() {
        let none = Counter::open(u32::try_from(i32::MAX).unwrap(), Counted::TaskClock);
        assert_eq!(none.unwrap_err(), Errno::SRCH);
    }
}
