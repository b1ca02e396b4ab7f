//! The keeper's ear: answers the calls that the program's filter brings to us, and tells of them.
//!
//! The answer is what the filter itself says (its low 16 bits, which the kernel ignores): an errno, or
//! zero for a call that is allowed and only looked at. Nothing that is read decides anything. The work
//! is bounded: so many things are told, the rest is counted and answered at once.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_sys::fd;
use belljar_sys::notify::{self, Waiting};
use belljar_sys::seccomp::Instruction;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::plan::{Lockdown, unpack};
use crate::report::Message;
use crate::tried::{Answer, Counted, GRAVEST, Listen, Look, Seen, Tried, Untold, WEIGHTS, What};

/// Refused calls told one by one, over a whole run,
const MAX_TOLD: usize = 256;
/// and, when those are used up, of each weight: a flood of what is harmless must not hide what is not.
const MAX_TOLD_OF_WEIGHT: usize = 32;
/// Of one thread, one call and one weight; the rest of them is counted unread.
const MAX_TOLD_EACH: u64 = 8;
/// Different allowed calls told one by one where the run is recorded,
const MAX_RECORDED: usize = 4096;
/// and where only connections are looked at,
const MAX_SEEN: usize = 128;
/// and those that raise an alarm, when the others are used up.
const MAX_ALARMS: usize = 32;
/// Threads, calls and weights that are counted apart.
const MAX_COUNTED: usize = 1024;
/// Answers before the clocks are looked at again, in number and in time.
const BATCH: usize = 256;
const BATCH_TIME: Duration = Duration::from_millis(2);
/// A caller in a loop comes back within this.
const NEXT_CALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// What is read of a text, of a list of texts, of bytes, and of a command line.
const MAX_TEXT: usize = 512;
const MAX_TEXTS: usize = 16;
const MAX_BYTES: usize = 128;
const MAX_COMMAND: usize = 512;
const MAX_STATUS: usize = 4096;

/// What waits for an engine that is behind, in bytes; more than that is only counted.
const MAX_LATE_BYTES: usize = 1 << 20;

/// The counts in one message: it must fit the wire.
const COUNTS_AT_ONCE: usize = 256;

/// For a call that the filter should not have brought to us.
const REFUSED: Answer = Answer { errno: 1, weight: 0 };
/// "From the working directory", where a descriptor is expected.
const AT_FDCWD: i32 = -100;

/// One sandbox's notifications.
#[derive(Debug)]
pub(crate) struct Ear {
    listener: OwnedFd,
    filter: Vec<Instruction>,
    listen: Listen,
    /// All who could call are gone.
    deaf: bool,
    /// What was told, with how often it came, and the sum of the third argument of all but the first.
    counts: Vec<(u64, u64)>,
    /// Where a thing that was told is counted.
    known: HashMap<u64, usize>,
    /// Refusals of one thread, one call and one weight.
    each: HashMap<(u32, u32, u8), u64>,
    /// What is not told, by call and weight.
    untold: HashMap<(u32, u8), Untold>,
    told: usize,
    told_of: [usize; WEIGHTS],
    recorded: usize,
    alarms: usize,
    unrecorded: u64,
    /// What the engine had no room for yet, in order.
    late: VecDeque<Vec<u8>>,
    late_bytes: usize,
}

impl Ear {
    pub(crate) fn new(listener: OwnedFd, lockdown: &Lockdown, listen: &Listen) -> Self {
        notify::hurry(&listener);
        Self {
            listener,
            filter: lockdown.filter.iter().map(|one| unpack(*one)).collect(),
            listen: listen.clone(),
            deaf: false,
            counts: Vec::new(),
            known: HashMap::new(),
            each: HashMap::new(),
            untold: HashMap::new(),
            told: 0,
            told_of: [0; WEIGHTS],
            recorded: 0,
            alarms: 0,
            unrecorded: 0,
            late: VecDeque::new(),
            late_bytes: 0,
        }
    }

    /// What to poll; nothing when nobody is left to call.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.deaf).then(|| self.listener.as_fd())
    }

    /// Answers what waits, for a bounded while; tells `engine` if there is one to tell.
    pub(crate) fn attend(&mut self, found: PollFlags, engine: Option<&OwnedFd>) {
        if !found.contains(PollFlags::IN) {
            self.deaf = true; // hung up, or broken: it never gets better
            return;
        }
        if let Some(engine) = engine {
            self.send_late(engine);
        }
        let until = Instant::now() + BATCH_TIME;
        for _ in 0..BATCH {
            // An error: it was killed while it waited, and waits no more.
            if let Ok(call) = notify::take(&self.listener) {
                self.answer(&call, engine);
            }
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            let more = poll(&mut fds, Some(&NEXT_CALL));
            if more != Ok(1) || !fds[0].revents().contains(PollFlags::IN) || Instant::now() >= until
            {
                return;
            }
        }
    }

    fn answer(&mut self, call: &Waiting, engine: Option<&OwnedFd>) {
        let answer = judge(&self.filter, call);
        if let Some(engine) = engine {
            match answer.errno {
                0 => self.see_allowed(call, engine),
                _ => self.see_refused(call, answer, engine),
            }
        }
        // ENOENT: killed meanwhile, which needs no answer.
        let _gone = match answer.errno {
            0 => notify::let_go_on(&self.listener, call),
            errno => notify::refuse(&self.listener, call, errno),
        };
    }

    fn see_refused(&mut self, call: &Waiting, answer: Answer, engine: &OwnedFd) {
        let weight = usize::from(answer.weight).min(WEIGHTS - 1);
        let spare = self.told_of[weight] < MAX_TOLD_OF_WEIGHT;
        let room = self.each.len() < MAX_COUNTED;
        let times = match self.each.entry((call.thread, call.number, answer.weight)) {
            Entry::Occupied(mut times) => {
                *times.get_mut() += 1;
                *times.get()
            }
            Entry::Vacant(place) if room => *place.insert(1),
            Entry::Vacant(_) if spare => 1,
            Entry::Vacant(_) => u64::MAX,
        };
        if times <= MAX_TOLD_EACH && (spare || self.told < MAX_TOLD) {
            let read = self.read(call);
            let known = self.identity(call, &read);
            if self.count_again(known, call) {
                return;
            }
            if self.tell(call, answer, read, known, engine) {
                self.told += 1;
                self.told_of[weight] += 1;
                return;
            }
        }
        let (call, weight) = (call.number, answer.weight);
        let first = || Untold { call, weight, time_ms: now_ms(), count: 0 };
        self.untold.entry((call, weight)).or_insert_with(first).count += 1;
    }

    fn see_allowed(&mut self, call: &Waiting, engine: &OwnedFd) {
        let read = self.read(call);
        let alarms = self.listen.alarms.iter().any(|alarm| alarm.rings(call.number, &read));
        if !alarms && self.listen.only_alarms.binary_search(&call.number).is_ok() {
            return;
        }
        let known = self.identity(call, &read);
        if self.count_again(known, call) {
            return;
        }
        let most = if self.listen.record { MAX_RECORDED } else { MAX_SEEN };
        let room = self.recorded < most || alarms && self.alarms < MAX_ALARMS;
        // For all that we know it is as grave as anything can be.
        let answer = Answer { errno: 0, weight: if alarms { GRAVEST } else { 0 } };
        if room && self.tell(call, answer, read, known, engine) {
            self.recorded += 1;
            self.alarms += usize::from(alarms);
        } else {
            self.unrecorded += 1;
        }
    }

    fn count_again(&mut self, known: u64, call: &Waiting) -> bool {
        let Some((count, sum)) = self.known.get(&known).and_then(|at| self.counts.get_mut(*at))
        else {
            return false;
        };
        *count += 1;
        *sum = sum.saturating_add(call.args[2]);
        true
    }

    /// What the engine has room for by now.
    fn send_late(&mut self, engine: &OwnedFd) {
        while let Some(json) = self.late.pop_front() {
            if fd::try_send(engine, &json).is_err() {
                self.late.push_front(json);
                return;
            }
            self.late_bytes -= json.len();
        }
    }

    /// Tells the engine, at once or when it listens: we do not wait for it.
    fn tell(
        &mut self,
        call: &Waiting,
        answer: Answer,
        read: Vec<Option<Vec<u8>>>,
        known: u64,
        engine: &OwnedFd,
    ) -> bool {
        let process = seen(call.thread);
        if !notify::still_waits(&self.listener, call) {
            return false; // what was read may be of another by now
        }
        let Ok(number) = u32::try_from(self.counts.len()) else {
            return false;
        };
        let Answer { errno, weight } = answer;
        let (call, args, time_ms) = (call.number, call.args, now_ms());
        let tried = Tried { number, time_ms, process, call, args, read, errno, weight };
        let Ok(json) = serde_json::to_vec(&Message::Tried(tried)) else {
            return false;
        };
        self.send_late(engine);
        if !self.late.is_empty() || fd::try_send(engine, &json).is_err() {
            if self.late_bytes + json.len() > MAX_LATE_BYTES {
                return false;
            }
            self.late_bytes += json.len();
            self.late.push_back(json);
        }
        self.known.insert(known, self.counts.len());
        self.counts.push((1, 0));
        true
    }

    /// What makes two calls the same thing. Addresses differ where their contents are the same, so only
    /// what means something is looked at.
    fn identity(&self, call: &Waiting, read: &[Option<Vec<u8>>]) -> u64 {
        let mut hasher = DefaultHasher::new();
        (call.thread, call.number, read).hash(&mut hasher);
        let distinct = &self.listen.distinct;
        let first = distinct.partition_point(|(number, _)| *number < call.number);
        let own = distinct[first..].iter().take_while(|(number, _)| *number == call.number);
        for (_, argument) in own {
            let value = call.args.get(usize::from(*argument)).map(|value| value & 0xffff_ffff);
            value.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn read(&self, call: &Waiting) -> Vec<Option<Vec<u8>>> {
        let looks = &self.listen.looks;
        let first = looks.partition_point(|look| look.call < call.number);
        let own = looks[first..].iter().take_while(|look| look.call == call.number);
        own.map(|look| read(call, look)).collect()
    }

    /// What is left to say when all is over. An engine that does not listen any more is not told.
    pub(crate) fn finish(&self, engine: &OwnedFd) {
        for json in &self.late {
            fd::send(engine, json, &[]).ok();
        }
        let again = self.counts.iter().zip(0..).filter(|((count, _), _)| *count > 1);
        let counts: Vec<_> = again.map(|((count, sum), number)| (number, *count, *sum)).collect();
        let mut untold: Vec<Untold> = self.untold.values().copied().collect();
        // The gravest first.
        untold.sort_unstable_by_key(|one| (std::cmp::Reverse(one.weight), one.call));
        let last = Counted { unrecorded: self.unrecorded, ..Counted::default() };
        let counts = counts.chunks(COUNTS_AT_ONCE);
        let counts = counts.map(|some| Counted { counts: some.to_vec(), ..Counted::default() });
        let untold = untold.chunks(COUNTS_AT_ONCE);
        let untold = untold.map(|some| Counted { untold: some.to_vec(), ..Counted::default() });
        for part in untold.chain(counts).chain([last]).filter(|part| *part != Counted::default()) {
            if let Ok(json) = serde_json::to_vec(&Message::Counted(part)) {
                fd::send(engine, &json, &[]).ok();
            }
        }
    }
}

/// What the filter keeps in the low bits of its answer. Anything but a notification is not for us.
fn judge(filter: &[Instruction], call: &Waiting) -> Answer {
    let data = evaluate(filter, call).filter(|found| found >> 16 == notify::RET_USER_NOTIF >> 16);
    let bits = data.and_then(|found| u16::try_from(found & 0xffff).ok());
    bits.map_or(REFUSED, Answer::from_bits)
}

/// Runs a filter as the kernel does. Jumps only go forwards, so it ends.
fn evaluate(filter: &[Instruction], call: &Waiting) -> Option<u32> {
    let load = |place: u32| -> Option<u32> {
        let (argument, high) = ((place.checked_sub(16)).map(|at| at / 8), place % 8 == 4);
        Some(match (place, argument) {
            (0, _) => call.number,
            (4, _) => call.architecture,
            (_, argument) => {
                let whole = call.args.get(usize::try_from(argument?).ok()?)?;
                u32::try_from(if high { whole >> 32 } else { whole & 0xffff_ffff }).ok()?
            }
        })
    };
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let Instruction { code, jump_true, jump_false, k } = *filter.get(at)?;
        let branch = |holds: bool| usize::from(if holds { jump_true } else { jump_false });
        at += 1;
        match code {
            0x20 => accumulator = load(k)?,
            0x54 => accumulator &= k,
            0x05 => at += usize::try_from(k).ok()?,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x06 => return Some(k),
            _ => return None,
        }
    }
}

fn read(call: &Waiting, look: &Look) -> Option<Vec<u8>> {
    let argument = |index: u8| call.args.get(usize::from(index)).copied();
    let value = argument(look.argument)?;
    let bytes = |length: usize| {
        let mut bytes = vec![0; length.min(MAX_BYTES)];
        let read = notify::read_memory(call.thread, value, &mut bytes).ok()?;
        bytes.truncate(read);
        Some(bytes)
    };
    match look.what {
        What::Text => notify::read_text(call.thread, value, MAX_TEXT).ok(),
        What::Texts => read_texts(call.thread, value),
        What::Bytes(length) => bytes(usize::from(length)),
        What::BytesOf(other) => bytes(usize::try_from(argument(other)?).unwrap_or(MAX_BYTES)),
        What::Descriptor => {
            // The kernel reads 32 bits of it.
            let number = u32::try_from(value & 0xffff_ffff).ok()?.cast_signed();
            let target = match number {
                AT_FDCWD => link(&format!("/proc/{}/cwd", call.thread)),
                number => link(&format!("/proc/{}/fd/{number}", call.thread))
                    .or_else(|| link_of_copy(call.thread, number)),
            }?;
            Some(target[..target.len().min(MAX_TEXT)].to_vec())
        }
    }
}

fn link(path: &str) -> Option<Vec<u8>> {
    rustix::fs::readlinkat(CWD, path, Vec::new()).ok().map(std::ffi::CString::into_bytes)
}

/// Descriptors of a process with another host id are listed for that id only; a copy of one can be had
/// all the same, by whoever owns its user namespace.
fn link_of_copy(thread: u32, number: i32) -> Option<Vec<u8>> {
    if number < 0 {
        return None; // the program's own word: anything may be in it
    }
    let process = field(&status(thread), "Tgid:")?.parse::<i32>().ok()?;
    let process = pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()?;
    let copy = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    link(&format!("/proc/self/fd/{}", copy.as_raw_fd()))
}

fn read_texts(thread: u32, address: u64) -> Option<Vec<u8>> {
    let mut addresses = [0; MAX_TEXTS * 8];
    let read = notify::read_memory(thread, address, &mut addresses).ok()?;
    let mut all = Vec::new();
    for one in addresses[..read].chunks_exact(8) {
        let one = u64::from_le_bytes(one.try_into().ok()?);
        if one == 0 || all.len() >= MAX_TEXT {
            break;
        }
        all.extend(notify::read_text(thread, one, MAX_TEXT - all.len()).ok()?);
        all.push(0);
    }
    Some(all)
}

/// Who a thread belongs to, as the program sees it. What cannot be known is zero or empty.
pub(crate) fn seen(thread: u32) -> Seen {
    let own = status(thread);
    let parent = field(&own, "PPid:").and_then(|text| text.parse::<u32>().ok());
    let of_parent = parent.filter(|parent| *parent != 0).map(status);
    Seen {
        pid: inner_pid(&own, &own).unwrap_or(0),
        parent: of_parent.and_then(|theirs| inner_pid(&theirs, &own)).unwrap_or(0),
        command: head_of(&format!("/proc/{thread}/cmdline"), MAX_COMMAND),
    }
}

pub(crate) fn status(process: u32) -> String {
    let status = head_of(&format!("/proc/{process}/status"), MAX_STATUS);
    String::from_utf8_lossy(&status).into_owned()
}

/// The last of a process's ids, if it is in as many namespaces as `beside`: a parent further out is not
/// the program's to see.
fn inner_pid(status: &str, beside: &str) -> Option<u32> {
    let ids = |status| field(status, "NStgid:").map(|text| text.split_ascii_whitespace().count());
    let last = field(status, "NStgid:")?.split_ascii_whitespace().next_back()?.parse().ok();
    last.filter(|_| ids(status) == ids(beside))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The beginning of a small file; nothing if it cannot be read.
fn head_of(path: &str, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = opened.and_then(|file| rustix::io::read(file, &mut bytes[..]));
    bytes.truncate(read.unwrap_or(0));
    bytes
}

pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}
