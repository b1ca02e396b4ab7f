//! What clients ask for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_sys::{Errno, errno_name};
use rustix::event::PollFlags;

use super::House;
use crate::living::clients::Said;
use crate::living::exec::{Exec, Kind};
use crate::living::records;
use crate::living::talk::{
    Answer, Ask, EXEC_BEGUN, EndReason, Hidden, MAX_AGENTS, MAX_EXECS, Order, Reach, Recorded,
    Refusal, Usage, is_exec_id,
};
use crate::notify::now_ms;
use crate::report::Cause;
use crate::wire::read_memory;

/// The longest that programs are asked politely.
const MAX_GRACE: Duration = Duration::from_secs(600);
const SIGKILL: i32 = 9;

/// An answer now, or none yet.
type Answered = Option<Answer>;

fn refuse(why: Refusal, message: impl Into<String>) -> Answer {
    Answer::Refused { why, message: message.into() }
}

impl House {
    /// A client has said something, or has room again.
    pub(super) fn attend(&mut self, number: u64, flags: PollFlags) {
        if flags.contains(PollFlags::OUT) {
            let execs = &self.execs;
            let reach = |id: &str| execs.iter().find(|one| one.id() == Some(id)).map(Exec::reach);
            if let Some(clients) = &mut self.clients {
                clients.catch_up(number, |id| reach(id).or(Some(ENDED_LONG_AGO)));
            }
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let Some(said) = self.clients.as_mut().and_then(|clients| clients.hear(number)) else {
            return;
        };
        let to = (number, said.request.id);
        // To look at it is not to use it.
        if !matches!(said.request.ask, Ask::Usage | Ask::List | Ask::Hide | Ask::Renew) {
            self.living.last_used = Instant::now();
        }
        if let Some(answer) = self.do_as_asked(to, said)
            && let Some(clients) = &mut self.clients
        {
            clients.answer(to, answer, &[]);
        }
    }

    fn do_as_asked(&mut self, to: (u64, u64), said: Said) -> Answered {
        let Said { request, bytes, fds } = said;
        Some(match request.ask {
            Ask::Exec => return self.begin(to, fds.into_iter().next()),
            Ask::Agent => return self.begin_agent(to),
            Ask::Input { exec } => match self.running(&exec) {
                Some(exec) if exec.input.to.is_some() => {
                    Answer::Taken { bytes: exec.input.take(&bytes) }
                }
                Some(_) => refuse(Refusal::Unable, "its input is closed"),
                None => unknown(&exec),
            },
            Ask::CloseInput { exec } => match self.running(&exec) {
                Some(exec) => {
                    exec.input.close();
                    Answer::Done
                }
                None => unknown(&exec),
            },
            Ask::Resize { exec, rows, columns } => match self.running(&exec) {
                Some(exec) => match exec.resize(rows, columns) {
                    Ok(()) => Answer::Done,
                    Err(_) => refuse(Refusal::Unable, "it has no terminal"),
                },
                None => unknown(&exec),
            },
            Ask::Signal { exec, signal } => return self.signal(to, &exec, signal),
            Ask::Follow { exec } => return self.follow(to, &exec),
            Ask::Unfollow { exec } => {
                self.clients.as_mut()?.unfollow(to.0, &exec);
                Answer::Done
            }
            Ask::List => {
                let running = self.execs.iter().filter(|exec| exec.runs());
                Answer::List {
                    execs: running.filter_map(|exec| exec.id().map(ToOwned::to_owned)).collect(),
                }
            }
            Ask::Usage => Answer::Usage(self.usage()),
            Ask::Freeze => self.freeze(),
            Ask::Thaw if self.cell.frozen => match self.thaw() {
                Ok(()) => Answer::Done,
                Err(errno) => {
                    refuse(Refusal::Unable, format!("cannot thaw it: {}", errno_name(errno)))
                }
            },
            Ask::Hide => self.hide(fds.into_iter().next()),
            Ask::Renew => self.renew(fds.into_iter().next()),
            Ask::Egress => self.reach(fds.first()),
            Ask::Network => return self.tell_network(to),
            Ask::Thaw | Ask::Touch => Answer::Done,
            Ask::Rename { name } => match self.init.rename(&name) {
                Ok(()) => Answer::Done,
                Err(errno) => cannot("give it that host name", errno),
            },
            Ask::Stop { grace_ms } => {
                let grace =
                    Duration::from_millis(grace_ms).clamp(Duration::from_millis(1), MAX_GRACE);
                self.begin_ending(EndReason::Stopped, grace, Some(to));
                return None;
            }
            Ask::Kill => {
                self.begin_ending(EndReason::Killed, Duration::ZERO, Some(to));
                return None;
            }
        })
    }

    /// Has another policy hold for its network.
    fn reach(&mut self, plan: Option<&OwnedFd>) -> Answer {
        match plan.map(read_memory).transpose() {
            Ok(Some(plan)) => match self.change_network(plan) {
                Ok(()) => Answer::Done,
                Err(errno) => cannot("change what may be reached", errno),
            },
            Ok(None) | Err(_) => refuse(Refusal::Wrong, "no policy came with it"),
        }
    }

    fn renew(&mut self, newer: Option<OwnedFd>) -> Answer {
        match newer.map(|newer| self.renew_secrets(newer)) {
            Some(Ok(())) => Answer::Done,
            Some(Err(errno)) => cannot("renew its secrets", errno),
            None => refuse(Refusal::Wrong, "no secrets came with it"),
        }
    }

    fn tell_network(&mut self, to: (u64, u64)) -> Answered {
        match self.network_state() {
            Ok(state) => {
                self.clients.as_mut()?.answer(to, Answer::Done, &[state.as_fd()]);
                None
            }
            Err(errno) => Some(cannot("say what was reached", errno)),
        }
    }

    fn running(&mut self, id: &str) -> Option<&mut Exec> {
        self.execs.iter_mut().find(|exec| exec.runs() && exec.id() == Some(id))
    }

    /// Why nothing may begin now.
    fn closed(&self) -> Option<Answer> {
        if self.ending.is_some() {
            return Some(refuse(Refusal::Ending, "the sandbox is about to end"));
        }
        self.cell.frozen.then(|| refuse(Refusal::Frozen, "the sandbox is paused: resume it first"))
    }

    fn begin(&mut self, to: (u64, u64), memory: Option<OwnedFd>) -> Answered {
        if let Some(closed) = self.closed() {
            return Some(closed);
        }
        if self.execs.iter().filter(|exec| exec.runs()).count() >= MAX_EXECS {
            let message = format!("{MAX_EXECS} execs run in it already, which is all that may");
            return Some(refuse(Refusal::Full, message));
        }
        let order = memory.as_ref().and_then(|memory| read_memory::<Order>(memory).ok());
        let (Some(memory), Some(order)) = (memory, order) else {
            return Some(refuse(Refusal::Wrong, "no order came with it"));
        };
        if !is_exec_id(&order.exec) {
            return Some(refuse(Refusal::Wrong, "an exec's id is 1 to 64 letters, digits and -"));
        }
        let directory = match self.records.make(&order.exec) {
            Ok(directory) => directory,
            Err(Errno::EXIST) => {
                return Some(refuse(Refusal::Wrong, "there is an exec of that id"));
            }
            Err(errno) => return Some(cannot("write the exec down", errno)),
        };
        let id = order.exec.clone();
        // Before it begins: nothing that it says comes before this.
        for value in order.secrets.iter().map(|(_, value)| value).chain(&order.hidden) {
            self.hidden.add(value);
        }
        let recorded =
            Recorded { order: order.without_secrets(&self.hidden), started_ms: now_ms() };
        let begun = records::write(&directory, EXEC_BEGUN, &recorded).and_then(|()| {
            self.launch(
                Kind::Program { order: Box::new(order), directory },
                Some(&memory),
                Some(to),
            )
        });
        match begun {
            Ok(_) => None,
            Err(errno) => {
                self.records.forget(&id);
                Some(cannot("start it", errno))
            }
        }
    }

    fn hide(&mut self, memory: Option<OwnedFd>) -> Answer {
        match memory.and_then(|memory| read_memory::<Hidden>(&memory).ok()) {
            Some(Hidden { inside, outside }) => {
                for value in inside {
                    self.hidden.add(&value);
                }
                for value in outside {
                    self.hidden.add_outside(&value);
                }
                Answer::Done
            }
            None => refuse(Refusal::Wrong, "nothing to hide came with it"),
        }
    }

    fn begin_agent(&mut self, to: (u64, u64)) -> Answered {
        if let Some(closed) = self.closed() {
            return Some(closed);
        }
        if self.execs.iter().filter(|exec| exec.is_agent() && !exec.ended).count() >= MAX_AGENTS {
            return Some(refuse(
                Refusal::Full,
                format!("{MAX_AGENTS} file agents are in it already"),
            ));
        }
        match self.launch(Kind::Agent { socket: None }, None, Some(to)) {
            Ok(_) => None,
            Err(errno) => Some(cannot("start a file agent", errno)),
        }
    }

    /// Whoever sends one is answered when it was sent: what he asks for next meets nothing that he asked for before.
    fn signal(&mut self, to: (u64, u64), id: &str, signal: i32) -> Answered {
        let Some(exec) = self.running(id) else {
            return Some(unknown(id));
        };
        Some(match u8::try_from(signal) {
            Ok(9) => {
                exec.order_end(Cause::Cancelled);
                Answer::Done
            }
            Ok(word) if (1..=31).contains(&signal) && signal != SIGKILL => {
                if exec.order_signal(word, to) {
                    return None;
                }
                refuse(Refusal::Unable, "whoever looks after it was stopped by somebody inside")
            }
            _ => refuse(Refusal::Wrong, "a signal is a number from 1 to 31"),
        })
    }

    /// From now on it is told how far it has come, and first where it is.
    fn follow(&mut self, to: (u64, u64), id: &str) -> Answered {
        let reach = self.execs.iter().find(|one| one.id() == Some(id)).map(Exec::reach);
        let clients = self.clients.as_mut()?;
        clients.follow(to.0, id);
        clients.answer(to, Answer::Done, &[]);
        // One that is not known has ended, or never was: its files tell.
        clients.tell(id, reach.unwrap_or(ENDED_LONG_AGO));
        None
    }

    fn freeze(&mut self) -> Answer {
        if let Some(closed) = self.closed() {
            return closed;
        }
        match self.cell.set_frozen(true) {
            Ok(()) => {
                self.living.frozen_at = Some(Instant::now());
                Answer::Done
            }
            Err(Errno::OPNOTSUPP) => refuse(
                Refusal::Unable,
                "it cannot be paused: this host gives it no cgroup that freezes (v1 freezer, or v2)",
            ),
            Err(errno) => {
                // Half of it may stand still.
                self.cell.set_frozen(false).ok();
                refuse(
                    Refusal::Unable,
                    format!("it does not come to a stand: {}", errno_name(errno)),
                )
            }
        }
    }

    fn usage(&mut self) -> Usage {
        let disk = self.gauge.usage();
        Usage {
            memory_bytes: self.cell.memory_bytes(),
            processes: self.cell.processes(),
            cpu_us: self.cell.cpu_us(),
            disk_bytes: disk.map(|used| used.bytes),
            inodes: disk.map(|used| used.inodes),
            execs: self.execs.iter().filter(|exec| exec.runs()).count() as u64,
            frozen: self.cell.frozen,
        }
    }
}

/// Told of an exec that is not here any more.
const ENDED_LONG_AGO: Reach = Reach { output: [0, 0], ended: true };

fn unknown(id: &str) -> Answer {
    refuse(Refusal::Unknown, format!("no exec {id} runs in it"))
}

fn cannot(what: &str, errno: Errno) -> Answer {
    refuse(Refusal::Unable, format!("cannot {what}: {}", errno_name(errno)))
}
