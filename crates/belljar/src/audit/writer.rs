//! The one thread that writes. Runs hand their records over and wait for the word that they are kept; what
//! waits at the same time is written in one transaction, so that a busy engine pays for few of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::entry::{Asked, Subject, closed};
use super::{AuditConfig, Caller, now_us};
use crate::model::error::Error;
use crate::model::outcome::Outcome;
use crate::model::spec::Spec;
use crate::native::{engine_is_dead, engine_name};
use crate::store::{Append, FILE, RunIs, Store, StoreError, spool};

/// Runs that may have a record under way at once; each has at most two of them here.
const MOST_RUNS: usize = 4096;
/// Records in one transaction.
const MAX_BATCH: usize = 512;
/// A power failure takes what was recorded in this time, and no more; for an engine that lives long.
pub(super) const SYNC_EVERY: Duration = Duration::from_secs(1);
/// A log longer than this is brought into the file beside the runs; the next engine has to read it.
const LONG_LOG_BYTES: u64 = 512 << 10;
/// A log longer than this is brought into the file before anything is added.
const LONGEST_LOG_BYTES: u64 = 16 << 20;

type Kept = Result<(), Arc<StoreError>>;

struct Message {
    append: Option<Append>,
    told: Option<oneshot::Sender<Kept>>,
    /// Free again when the record is kept.
    room: Option<OwnedSemaphorePermit>,
}

/// Hands records to the thread. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    config: AuditConfig,
    sender: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
    engine: Arc<str>,
}

impl Recorder {
    /// Starts the thread, which opens the trail beside whatever the caller does next.
    pub(crate) fn start(config: AuditConfig) -> std::io::Result<Self> {
        let (sender, messages) = mpsc::channel();
        let theirs = config.clone();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        thread.spawn(move || Writer::new(&theirs).serve(&messages))?;
        let (room, engine) = (Arc::new(Semaphore::new(MOST_RUNS)), engine_name().into());
        Ok(Self { config, sender, room, engine })
    }

    /// Waits until everything that was handed over is kept; says why it cannot be.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let (told, answer) = oneshot::channel();
        self.send(Message { append: None, told: Some(told), room: None });
        self.heard(answer).await
    }

    /// Hands over the start of a run. Its end is recorded whatever happens to what is returned.
    pub(crate) fn begin(
        &self,
        run: &str,
        spec: &Spec,
        asked: &Asked,
        caller: &Caller,
    ) -> Result<Recording, Error> {
        let full = |_| Error::Busy { running: MOST_RUNS, waiting: 0 };
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(full)?;
        let mut subject = Subject::new(run, spec, asked, caller, &self.config);
        let entry = subject.start(spec, asked, &self.engine, now_us());
        let (told, answer) = oneshot::channel();
        let run_is = RunIs::Begun { engine: self.engine.to_string() };
        let append = Some(Append { entry, run_is });
        self.send(Message { append, told: Some(told), room: None });
        Ok(Recording {
            recorder: self.clone(),
            subject: Some(subject),
            start: Some(answer),
            room: Some(room),
        })
    }

    fn send(&self, message: Message) {
        // Without the thread nobody will be told, and whoever waits takes that for a failure.
        self.sender.send(message).ok();
    }

    async fn heard(&self, answer: oneshot::Receiver<Kept>) -> Result<(), Error> {
        let store = self.config.directory.join(FILE);
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(Error::Audit { what: why.to_string() }),
            Err(_) => {
                let what = format!("{}: the thread that writes it has ended", store.display());
                Err(Error::Audit { what })
            }
        }
    }
}

/// A run that is being recorded. Dropped before its end was told, it was cancelled.
#[derive(Debug)]
pub(crate) struct Recording {
    recorder: Recorder,
    /// Until the end was handed over.
    subject: Option<Subject>,
    /// Until the start is known to be kept.
    start: Option<oneshot::Receiver<Kept>>,
    room: Option<OwnedSemaphorePermit>,
}

impl Recording {
    /// Waits until the start is kept. Nothing of the program may run before.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        match self.start.take() {
            Some(answer) => self.recorder.heard(answer).await,
            None => Ok(()),
        }
    }

    /// Hands over the end, and waits until it is kept. Nobody is told of the end before.
    pub(crate) async fn end(mut self, result: &Result<Outcome, Error>) -> Result<(), Error> {
        let unrecorded = matches!(result, Err(Error::Audit { .. }));
        match self.hand_over(result) {
            // It did not even begin: that is told already.
            Some(_) if unrecorded => Ok(()),
            Some(answer) => self.recorder.heard(answer).await,
            None => Ok(()),
        }
    }

    fn hand_over(&mut self, result: &Result<Outcome, Error>) -> Option<oneshot::Receiver<Kept>> {
        let subject = self.subject.take()?;
        let entry = subject.end(result, now_us());
        let (told, answer) = oneshot::channel();
        let append = Some(Append { entry, run_is: RunIs::Ended });
        self.recorder.send(Message { append, told: Some(told), room: self.room.take() });
        Some(answer)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(self.hand_over(&Err(Error::Cancelled)));
    }
}

/// Nothing of a program runs before the start of its run is recorded.
pub(crate) async fn begun(recording: &mut Option<Recording>) -> Result<(), Error> {
    match recording {
        Some(recording) => recording.begun().await,
        None => Ok(()),
    }
}

/// The thread's own side.
struct Writer {
    directory: PathBuf,
    /// Records go to the spool, as long as there is no reason to open the trail.
    spooled: bool,
    store: Option<Store>,
    /// The runs of dead engines have been closed.
    tidied: bool,
    /// Something was added since the last word to the syncer.
    unsynced: bool,
    synced: Instant,
    shortened: Instant,
    syncer: Option<mpsc::SyncSender<()>>,
}

impl Writer {
    fn new(config: &AuditConfig) -> Self {
        let (directory, spooled) = (config.directory.clone(), config.spooled);
        // Why it could not be opened is told to whoever wants to record something.
        let store = (!spooled).then(|| Store::open(&directory, now_us()).ok()).flatten();
        let now = Instant::now();
        Self {
            directory,
            spooled,
            store,
            tidied: false,
            unsynced: false,
            synced: now,
            shortened: now,
            syncer: None,
        }
    }

    /// Until every recorder is gone.
    fn serve(mut self, messages: &mpsc::Receiver<Message>) {
        loop {
            let first = match messages.recv_timeout(SYNC_EVERY) {
                Ok(first) => Some(first),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            if let Some(first) = first {
                let more = messages.try_iter().take(MAX_BATCH - 1);
                self.write(std::iter::once(first).chain(more).collect());
            }
            self.keep_house();
        }
    }

    fn write(&mut self, batch: Vec<Message>) {
        let (mut appends, mut told, mut rooms) = (Vec::new(), Vec::new(), Vec::new());
        for message in batch {
            appends.extend(message.append);
            told.extend(message.told);
            rooms.extend(message.room);
        }
        let kept = self.append(appends).map_err(Arc::new);
        drop(rooms);
        for one in told {
            // Whoever asked may have been dropped since.
            one.send(kept.clone()).ok();
        }
    }

    /// What failed once is tried anew with the next records: a disk has room again, a file is back.
    fn append(&mut self, mut all: Vec<Append>) -> Result<(), StoreError> {
        if self.spooled && self.store.is_none() {
            self.unsynced = true;
            match spool::append(&self.directory, all)? {
                Ok(_) => return Ok(()),
                Err(left) => all = left,
            }
        }
        if !matches!(&self.store, Some(store) if store.is_there()) {
            self.store = Some(Store::open(&self.directory, now_us())?);
        }
        let Some(store) = &mut self.store else { return Ok(()) };
        if all.is_empty() {
            return Ok(());
        }
        if self.shortened.elapsed() > SYNC_EVERY && log_bytes(&self.directory) > LONGEST_LOG_BYTES {
            self.shortened = Instant::now();
            // While others read an old state of it, it stays as long as it is.
            store.shorten().ok();
        }
        self.unsynced = true;
        store.append(all).map(drop)
    }

    /// What nobody waits for: the runs of dead engines, and the way to the disk.
    fn keep_house(&mut self) {
        if let (false, Some(store)) = (self.tidied, &mut self.store) {
            self.tidied = true;
            // What cannot be closed now is closed by the next engine.
            close_dead(store).ok();
        }
        let due = self.synced.elapsed() >= SYNC_EVERY
            || (self.syncer.is_none() && log_bytes(&self.directory) > LONG_LOG_BYTES);
        if self.unsynced && due {
            (self.unsynced, self.synced) = (false, Instant::now());
            let syncer = self.syncer.get_or_insert_with(|| start_syncer(&self.directory));
            // One that is still at it will be asked again in a second.
            self.unsynced = syncer.try_send(()).is_err();
        }
    }
}

fn log_bytes(directory: &Path) -> u64 {
    std::fs::metadata(directory.join(format!("{FILE}-wal"))).map_or(0, |status| status.len())
}

/// A thread that brings the log to the disk whenever it is told to; the writer goes on meanwhile.
fn start_syncer(directory: &Path) -> mpsc::SyncSender<()> {
    let (sender, asked) = mpsc::sync_channel(1);
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        for () in asked {
            // What does not reach the disk now does so later; nothing was promised about when.
            Store::read(&directory).and_then(|store| store.sync()).ok();
        }
    });
    sender
}

/// Closes the runs whose engines are gone.
pub(super) fn close_dead(store: &mut Store) -> Result<(), StoreError> {
    let open = store.open_runs()?;
    let dead = open.into_iter().filter(|(_, engine)| engine_is_dead(engine));
    for (run, engine) in dead.take(MAX_BATCH).collect::<Vec<_>>() {
        let start = store.of_run(&run)?.into_iter().next();
        let entry = closed(&run, start.as_ref().map(|record| &record.entry), &engine, now_us());
        // Another engine may have closed it in this moment.
        store.append_if_open(&run, Append { entry, run_is: RunIs::Ended })?;
    }
    Ok(())
}
