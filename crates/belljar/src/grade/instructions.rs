//! Machine instructions of a sandbox, counted by the kernel and read outside of it; and the end of its program at a
//! moment of our choice, so that what it takes from then on is not counted.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_sys::errno_name;
use belljar_sys::perf::{Counted, Counter};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A count that may be wanted of a session, and what is known of it. Copies are the same count.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    state: State,
    program: Option<OwnedFd>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotWanted,
    Wanted,
    Counting(Counter),
    Not(String),
}

impl Counts {
    /// From the beginning of its session, which must not have begun.
    pub(super) fn want(&self) {
        self.watched().state = State::Wanted;
    }

    /// Its sandbox stands, and nothing was said to it yet.
    pub(super) fn begin(&self, keeper: u32) {
        let mut watched = self.watched();
        if matches!(watched.state, State::Wanted) {
            let counted = count(keeper, Counted::Instructions);
            watched.state = counted.map_or_else(State::Not, State::Counting);
            watched.program = handle(keeper);
        }
    }

    /// Ends the program where it is, with all that it started. One that is not known goes on to its own end.
    pub(super) fn end_program(&self) {
        if let Some(program) = &self.watched().program {
            // Gone by itself: as good.
            pidfd_send_signal(program, Signal::KILL).ok();
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The count, or why there is none.
    pub(super) fn read(&self) -> Result<u64, String> {
        match &self.watched().state {
            State::Counting(counter) => counter.read().map_err(|errno| {
                format!("not available here: the counter cannot be read ({})", errno_name(errno))
            }),
            State::Not(why) => Err(why.clone()),
            State::NotWanted | State::Wanted => Err("nothing was counted".to_owned()),
        }
    }
}

/// The program of this keeper's sandbox: the child of its init.
fn program_of(keeper: u32) -> Option<u32> {
    only_child(keeper).and_then(only_child)
}

fn handle(keeper: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(program_of(keeper)?).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn count(keeper: u32, counted: Counted) -> Result<Counter, String> {
    let program = program_of(keeper);
    let program = program.ok_or("not available here: its process was not found in /proc")?;
    Counter::open(program, counted).map_err(|errno| {
        let name = errno_name(errno);
        let why = match name.as_str() {
            "ENOENT" | "EOPNOTSUPP" | "ENODEV" => "this machine has no counter for instructions",
            "EACCES" | "EPERM" => {
                "the kernel does not let us count: sysctl kernel.perf_event_paranoid=2"
            }
            _ => "the kernel refused",
        };
        format!("not available here: {why} ({name})")
    })
}

fn only_child(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_wanted_is_not_counted() {
        let counts = Counts::default();
        counts.begin(std::process::id());
        assert_eq!(counts.read(), Err("nothing was counted".to_owned()));
        counts.want();
        counts.begin(u32::MAX);
        assert!(counts.read().unwrap_err().contains("not found in /proc"));
    }

    /// With the kind of counter that every machine has.
    #[test]
    fn a_keepers_program_is_found_and_counted() {
        let script = "sh -c 'read go < /dev/null; sh -c \"read go\"; true' ; true";
        let args = ["-c".to_owned(), script.to_owned()];
        let mut keeper =
            belljar_sys::spawn::talker("sh".as_ref(), &args, &[], "/".as_ref()).unwrap();
        let found = (0..1000).find_map(|_| {
            rustix::thread::sched_yield();
            count(keeper.id(), Counted::TaskClock).ok()
        });
        let (stdin, stdout, _stderr) = keeper.streams().unwrap();
        let counter = found.unwrap();
        drop(stdin);
        rustix::io::read(&stdout, &mut [0; 1]).unwrap();
        keeper.end();
        assert!(counter.read().is_ok());
    }
}
