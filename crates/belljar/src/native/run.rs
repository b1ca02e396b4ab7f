//! Carrying a plan through: start a keeper, hand it the plan, read the program's output, hear the end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use belljar_jail::keeper::Inherited;
use belljar_jail::plan::Plan;
use belljar_jail::redact::{Patterns, Redactor};
use belljar_jail::report::{Cause, Command, Message, Report, Started};
use belljar_jail::{KEEPER_ROLE, wire};
use belljar_sys::process::{Child, SingleThreaded, fork};
use belljar_sys::{fd, spawn};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::alive::Alive;
use super::exit::Exit;
use super::failure::explain;
use super::park::Holdings;
use crate::capture::Capture;
use crate::events::Tally;
use crate::model::error::{Error, SpecError};
use crate::model::outcome::Stream;
use crate::model::spec::{Contents, PlacedFile, Source, Spec};

/// One read from a stream; the kernel's pipe holds this much.
const CHUNK_BYTES: usize = 64 << 10;
/// What could be the beginning of a secret is held back for so long, if it is short.
const HELD_BACK: std::time::Duration = std::time::Duration::from_millis(100);

/// How a run talks with whoever asked for it.
pub(crate) struct Talk<'a> {
    /// Gets the output as it comes.
    pub sink: &'a mut (dyn FnMut(Stream, &[u8]) + Send),
    /// What is written to standard input as it comes, in place of what the Spec holds; closed with it.
    pub input: Option<mpsc::Receiver<Vec<u8>>>,
    /// What is to be done once the program runs.
    pub beside: Option<Beside>,
    /// Is told the keeper's process id when the sandbox stands, and before any input comes.
    pub standing: &'a mut (dyn FnMut(u32) + Send),
}

/// Something that must not wait, nor be waited for.
pub(crate) type Beside = Box<dyn FnOnce() + Send>;

/// What came of a plan.
pub(crate) struct Finished {
    pub started: Started,
    pub report: Report,
    pub stdout: Capture,
    pub stderr: Capture,
    pub workspace: Option<OwnedFd>,
}

/// A keeper that exists before there is an engine; see [`start_ahead`].
#[derive(Debug)]
pub struct Ahead {
    // Dropped first: to a keeper its closed socket means the end.
    control: OwnedFd,
    child: Option<Child>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).ok();
            child.wait();
        }
    }
}

/// Starts a keeper by a mere copy of this process, for the one run that it will make: half a
/// millisecond sooner than by starting the binary again. `None` when that cannot be done; a keeper is
/// then started in the ordinary way.
///
/// Call it first in `main`, after [`crate::enter_role`]: before any thread exists, and before anything
/// is read that a sandbox has no business with. The copy forgets the environment.
pub fn start_ahead() -> Option<Ahead> {
    let single = SingleThreaded::prove().ok()?;
    let (control, theirs) = wire::control_pair().ok()?;
    rustix::io::ioctl_fionbio(&control, true).ok()?;
    match fork(&single).ok()? {
        Some(child) => Some(Ahead { control, child: Some(child) }),
        None => {
            drop(control);
            belljar_jail::keeper::main_as_copy(theirs, Inherited::default())
        }
    }
}

/// A keeper that was started before its plan is made, so that both happen at once.
#[derive(Debug)]
pub(crate) struct Spare {
    // Dropped first: to a keeper its closed socket means the end.
    control: OwnedFd,
    process: Process,
}

/// The process of a keeper. When dropped it is not waited for: a thread reaps it.
#[derive(Debug)]
struct Process {
    child: Option<Child>,
    alive: Alive,
    /// What nobody else may have until it is gone.
    holdings: Option<Holdings>,
}

impl Spare {
    /// Starts the binary in its keeper's role.
    pub(crate) fn start(launcher: &Path, alive: &Alive) -> io::Result<Self> {
        let (control, theirs) = wire::control_pair()?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let child = spawn::with_socket(launcher, &[KEEPER_ROLE], theirs)?;
        Ok(Self::of(control, child, alive))
    }

    /// Takes over one that was there before the engine.
    pub(crate) fn take_over(mut ahead: Ahead, alive: &Alive) -> Option<Self> {
        let child = ahead.child.take()?;
        let control = ahead.control.try_clone().ok()?;
        Some(Self::of(control, child, alive))
    }

    /// One that somebody else made for us.
    pub(super) fn of(control: OwnedFd, child: Child, alive: &Alive) -> Self {
        alive.started();
        Self {
            control,
            process: Process { child: Some(child), alive: alive.clone(), holdings: None },
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let holdings = self.holdings.take();
            self.alive.see_off(child, move || drop(holdings));
        }
    }
}

/// A keeper of ours. When dropped, its socket closes and it ends everything.
pub(crate) struct Keeper {
    /// A sequenced-packet socket; tokio has no type of that name, and readiness is all we want of it.
    pub(super) control: UnixDatagram,
    process: Process,
}

impl Keeper {
    /// Keeps these until it is gone.
    pub(super) fn hold(&mut self, holdings: Holdings) {
        self.process.holdings = Some(holdings);
    }

    /// And this, which its sandbox uses.
    pub(super) fn hold_exit(&mut self, exit: Option<Exit>) {
        if let Some(holdings) = &mut self.process.holdings {
            holdings.exit = exit;
        }
    }

    /// Nothing has been heard of it since it was last listened to: it lives, and waits.
    pub(super) fn is_quiet(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        self.lives() && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
    }

    /// It has not exited. Its init may hold the socket for a moment longer than a killed keeper does.
    fn lives(&self) -> bool {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Pid::from_raw(self.id().cast_signed())
            .is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Takes a started keeper into the runtime that will hear it.
    pub(crate) fn adopt(spare: Spare) -> io::Result<Self> {
        let control = UnixDatagram::from_std(spare.control.into())?;
        Ok(Self { control, process: spare.process })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.child.as_ref().map_or(0, Child::id)
    }

    /// The next message; `None` when the keeper is gone.
    pub(super) async fn next(&self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut bytes = Vec::new();
        let mut was_reset = false;
        let received = loop {
            self.control.readable().await?;
            // Not before there is something to read: this future is made anew for every event.
            bytes.resize(wire::MAX_MESSAGE_BYTES, 0);
            let read = || Ok(fd::receive(&self.control, &mut bytes)?);
            match self.control.try_io(Interest::READABLE, read) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It left without reading what we said last; its own last word comes after this.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                    was_reset = true;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                result => break result?,
            }
        };
        if received.length == 0 {
            return Ok(None);
        }
        let message = serde_json::from_slice(&bytes[..received.length])?;
        Ok(Some((message, received.fds)))
    }

    fn order_end(&self, cause: Cause) {
        if let Ok(json) = serde_json::to_vec(&Command::End(cause)) {
            // A keeper that cannot be told has ended, which the next message shows.
            fd::send(&self.control, &json, &[]).ok();
        }
    }

    /// Ends it if it is still at it and waits for its exit, so that nothing is left when the Outcome
    /// is told.
    pub(crate) fn reap(mut self) {
        // To the keeper a closed socket means the end. One that has exited does not mind.
        rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).ok();
        if let Some(child) = self.process.child.take() {
            child.wait();
            self.process.alive.reaped();
        }
    }
}

/// Runs a plan to its end. Dropping the future ends the run. `beside` is done while the keeper is at
/// work.
pub(crate) async fn carry_out(
    keeper: Keeper,
    plan: &Plan,
    spec: &Spec,
    beside: impl FnOnce(),
    talk: &mut Talk<'_>,
    tally: &mut Tally,
) -> Result<Finished, Error> {
    let finished = hand_over(&keeper, plan, spec, beside, talk, tally).await;
    keeper.reap();
    if matches!(finished, Err(Error::Lost { .. })) {
        super::sweep::remove_run(plan);
    }
    finished
}

async fn hand_over(
    keeper: &Keeper,
    plan: &Plan,
    spec: &Spec,
    beside: impl FnOnce(),
    talk: &mut Talk<'_>,
    tally: &mut Tally,
) -> Result<Finished, Error> {
    let streams = Streams::open().map_err(Error::backend("make pipes"))?;
    let placed = open_placed(spec.all_placed())?;
    let fds: Vec<BorrowedFd<'_>> = placed.iter().map(AsFd::as_fd).collect();
    wire::plan_memory(plan)
        .and_then(|plan| {
            wire::send_plan(&keeper.control, plan.as_fd(), None, streams.theirs(), &fds)
        })
        .map_err(Error::backend("hand the plan to the keeper"))?;
    send_secrets(keeper, spec)?;
    drop(fds);
    drop(placed);
    beside();
    let ours = streams.ours().map_err(Error::backend("use pipes"))?;
    follow(keeper, plan, spec, ours, None, talk, tally).await
}

/// Reads both streams and the keeper's messages until the end. `started` is what was told of one that
/// waited.
pub(super) async fn follow(
    keeper: &Keeper,
    plan: &Plan,
    spec: &Spec,
    (stdin, stdout, stderr): OurStreams,
    mut started: Option<Started>,
    talk: &mut Talk<'_>,
    tally: &mut Tally,
) -> Result<Finished, Error> {
    let patterns = spec.patterns();
    let mut out = Reading::new(Stream::Stdout, stdout, spec, &patterns);
    let mut err = Reading::new(Stream::Stderr, stderr, spec, &patterns);
    let mut ended = None;
    let Talk { sink, input, beside, standing } = talk;
    let mut beside = beside.take();
    if let Some(beside) = beside.take_if(|_| started.is_some()) {
        beside();
    }
    if started.is_some() {
        standing(keeper.id());
    }
    let feed = feed(stdin, spec.stdin.as_ref(), input.take());
    tokio::pin!(feed);
    let mut feeding = true;
    while ended.is_none() {
        tokio::select! {
            message = keeper.next() => {
                match message.map_err(Error::backend("hear the keeper"))? {
                    // One that waited was told of before; what is told now was made for this run.
                    Some((Message::Started(one), _)) if started.is_some() => {
                        started.iter_mut().for_each(|known| known.checks.extend(one.checks.clone()));
                    }
                    Some((Message::Started(one), _)) => {
                        started = Some(one);
                        beside.take().into_iter().for_each(|beside| beside());
                        standing(keeper.id());
                    }
                    Some((Message::Tried(one), _)) => tally.take(&one),
                    Some((Message::Touched(one), _)) => tally.touch(&one),
                    Some((Message::Spilled(one), _)) => tally.spill(&one),
                    Some((Message::Egress(told), _)) => tally.hear_egress(&told),
                    Some((Message::Counted(some), _)) => tally.count(&some),
                    Some((Message::Ended(report), fds)) => {
                        ended = Some((report, fds.into_iter().next()));
                    }
                    Some((Message::Standing, _)) => {
                        return Err(Error::Lost { what: "its keeper asked for a zygote's copy twice" });
                    }
                    Some((Message::Failed(failed), _)) => return Err(explain(failed, plan)),
                    None if started.is_none() => {
                        return Err(Error::Lost { what: "its keeper died before the program was released" });
                    }
                    None => return Err(Error::Lost { what: "its keeper died, and the program with it" }),
                }
            }
            read = out.pipe.read(&mut out.buffer), if out.open => out.take(&read, *sink, keeper),
            read = err.pipe.read(&mut err.buffer), if err.open => err.take(&read, *sink, keeper),
            () = &mut feed, if feeding && started.is_some() => feeding = false,
            () = tokio::time::sleep(HELD_BACK), if out.waits() || err.waits() => {
                out.let_go(*sink);
                err.let_go(*sink);
            }
        }
    }
    // All that the program wrote is in the pipes by now. Their end is not waited for: at level none
    // somebody outside may hold the other one.
    out.drain(*sink, keeper);
    err.drain(*sink, keeper);
    out.finish(*sink);
    err.finish(*sink);
    match (started, ended) {
        (Some(started), Some((report, workspace))) => {
            Ok(Finished { started, report, stdout: out.capture, stderr: err.capture, workspace })
        }
        _ => Err(Error::Lost { what: "it ended before it was seen to start" }),
    }
}

/// One output stream being read.
struct Reading<'a> {
    stream: Stream,
    pipe: pipe::Receiver,
    buffer: Vec<u8>,
    capture: Capture,
    total_limit: u64,
    /// Bytes that were read.
    total: u64,
    /// What must not be seen of it, and what of it may be.
    patterns: &'a Patterns,
    redactor: Redactor,
    shown: Vec<u8>,
    open: bool,
}

impl<'a> Reading<'a> {
    fn new(stream: Stream, pipe: pipe::Receiver, spec: &Spec, patterns: &'a Patterns) -> Self {
        Self {
            stream,
            pipe,
            buffer: vec![0; CHUNK_BYTES],
            capture: Capture::new(spec.limits.output_bytes),
            total_limit: spec.limits.output_total_bytes,
            total: 0,
            patterns,
            redactor: Redactor::default(),
            shown: Vec::new(),
            open: true,
        }
    }

    /// Takes what is left, without waiting.
    fn drain(&mut self, sink: &mut (dyn FnMut(Stream, &[u8]) + Send), keeper: &Keeper) {
        while self.open {
            // By the call itself: tokio's view of what can be read may lag behind.
            let read = rustix::io::read(&self.pipe, &mut self.buffer).map_err(io::Error::from);
            if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                continue;
            }
            if read.is_err() {
                return; // nothing more is there, though somebody holds it open
            }
            self.take(&read, sink, keeper);
        }
    }

    /// Takes what was read; what goes over the limit ends the run.
    fn take(
        &mut self,
        read: &io::Result<usize>,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
        keeper: &Keeper,
    ) {
        let bytes = match read {
            Ok(length) if *length > 0 => &self.buffer[..*length],
            // The end; or an error on a pipe, after which nothing more can come either.
            Ok(_) | Err(_) => {
                self.open = false;
                return;
            }
        };
        let before = self.total;
        self.total = before.saturating_add(bytes.len() as u64);
        let bytes = if self.patterns.is_empty() {
            bytes
        } else {
            self.shown.clear();
            self.redactor.push(self.patterns, bytes, &mut self.shown);
            &self.shown
        };
        self.capture.push(bytes);
        if before > self.total_limit {
            return; // the end was ordered already; what still comes is only counted
        }
        if !bytes.is_empty() {
            sink(self.stream, bytes);
        }
        if self.total > self.total_limit {
            keeper.order_end(Cause::Output);
        }
    }

    /// Something is held back that may be shown when nothing follows.
    fn waits(&self) -> bool {
        self.redactor.holds_little(self.patterns)
    }

    fn let_go(&mut self, sink: &mut (dyn FnMut(Stream, &[u8]) + Send)) {
        self.shown.clear();
        self.redactor.release(self.patterns, &mut self.shown);
        self.show(sink);
    }

    fn finish(&mut self, sink: &mut (dyn FnMut(Stream, &[u8]) + Send)) {
        self.shown.clear();
        self.redactor.finish(self.patterns, &mut self.shown);
        self.show(sink);
    }

    fn show(&mut self, sink: &mut (dyn FnMut(Stream, &[u8]) + Send)) {
        self.capture.push(&self.shown);
        if !self.shown.is_empty() && self.total <= self.total_limit {
            sink(self.stream, &self.shown);
        }
    }
}

/// Writes the input and closes it. A program that does not read is not waited for.
async fn feed(
    mut pipe: pipe::Sender,
    input: Option<&Contents>,
    live: Option<mpsc::Receiver<Vec<u8>>>,
) {
    if let Some(Contents(bytes)) = input {
        // EPIPE: the program closed its input or ended, which is its right.
        pipe.write_all(bytes).await.ok();
    }
    if let Some(mut live) = live {
        while let Some(bytes) = live.recv().await {
            if pipe.write_all(&bytes).await.is_err() {
                return;
            }
        }
    }
}

/// Our ends of the program's standard streams.
pub(super) type OurStreams = (pipe::Sender, pipe::Receiver, pipe::Receiver);

/// The program's three streams, both ends of each.
pub(super) struct Streams {
    stdin: (OwnedFd, OwnedFd),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
}

impl Streams {
    pub(super) fn open() -> io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        Ok(Self { stdin: pipe()?, stdout: pipe()?, stderr: pipe()? })
    }

    pub(super) fn theirs(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.0.as_fd(), self.stdout.1.as_fd(), self.stderr.1.as_fd()]
    }

    /// Keeps our ends and closes the others, so that the end of the program is the end of its output.
    pub(super) fn ours(self) -> io::Result<OurStreams> {
        for end in [&self.stdin.1, &self.stdout.0, &self.stderr.0] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok((
            pipe::Sender::from_owned_fd(self.stdin.1)?,
            pipe::Receiver::from_owned_fd(self.stdout.0)?,
            pipe::Receiver::from_owned_fd(self.stderr.0)?,
        ))
    }
}

/// What the egress process must know of secrets, where there is something: in a packet of its own.
pub(super) fn send_secrets(keeper: &Keeper, spec: &Spec) -> Result<(), Error> {
    let Some(sealing) = &spec.sealing else { return Ok(()) };
    wire::send_secrets(&keeper.control, sealing.memory()?.as_fd())
        .map_err(Error::backend("hand its secrets to the keeper"))
}

/// Opens what is to be copied in. Only regular files: a device or FIFO has no end, or a side effect.
pub(crate) fn open_placed<'a>(
    files: impl Iterator<Item = &'a PlacedFile>,
) -> Result<Vec<OwnedFd>, Error> {
    let open = |file: &PlacedFile| -> io::Result<OwnedFd> {
        match &file.source {
            Source::Given(Contents(bytes)) => wire::sealed_memory("file", bytes),
            Source::Host(path) => {
                // Opened first, without waiting for a FIFO's other end, and then looked at.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
                if !file.metadata()?.is_file() {
                    return Err(io::Error::other("is not a regular file"));
                }
                Ok(file.into())
            }
        }
    };
    files
        .map(|file| {
            open(file).map_err(|error| match &file.source {
                Source::Host(path) if !is_shortage(&error) => {
                    SpecError::new("files", format!("{}: {error}", path.display())).into()
                }
                Source::Host(_) | Source::Given(_) => {
                    Error::backend("hold a file to copy in")(error)
                }
            })
        })
        .collect()
}

/// We have run out of something: nothing that the caller could change in its request.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO];
    ours.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel answers ECONNRESET first when the other end is closed with something unread in it.
    #[tokio::test]
    async fn last_word_of_a_keeper_is_heard_though_it_left_without_reading_ours() {
        let (control, theirs) = wire::control_pair().unwrap();
        rustix::io::ioctl_fionbio(&control, true).unwrap();
        let process = Process { child: None, alive: Alive::default(), holdings: None };
        let keeper = Keeper { control: UnixDatagram::from_std(control.into()).unwrap(), process };
        let started = Message::Started(Started { checks: Vec::new() });
        fd::send(&theirs, &serde_json::to_vec(&started).unwrap(), &[]).unwrap();
        keeper.order_end(Cause::Cancelled);
        drop(theirs);
        let heard = keeper.next().await.unwrap().map(|(message, _)| message);
        assert_eq!(heard, Some(started));
        assert!(keeper.next().await.unwrap().is_none());
    }
}
