//! Living sandboxes from the engine's side: raising one, finding one that stands, and speaking with its keeper.
//!
//! [`raise`] starts a keeper that outlives us; [`Living::connect`] finds it again by the socket in its sandbox's
//! directory. What execs wrote and how they ended is read from files there ([`records`], [`output`]), so it is known
//! when nothing lives any more, too.

mod begin;
mod follow;
mod furnish;
mod kept;
mod line;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belljar_jail::egress::EgressPlan;
use belljar_jail::layer::Check;
use belljar_jail::living::talk::{Answer, Ask, MAX_INPUT_BYTES, NetworkState, Refusal};
use belljar_jail::plan::Tree;

use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::receipt::Receipt;
use crate::model::sandbox::{ExecRequest, SandboxRequest, SandboxUsage, TerminalSize};
use crate::model::secret::{SecretMode, SecretRequest};
use crate::model::spec::Spec;
use crate::secrets::{Given, SecretPlaces, renewal};

pub use begin::raise;
pub use follow::Follow;
pub use furnish::{furnish_base, furnish_upper};
pub use kept::{ended, events, output, records};

use kept::Raised;
use line::Line;

/// Where sandboxes are in a state directory.
const SANDBOXES: &str = "sandboxes";
/// Input that was not taken is offered again after this.
const INPUT_AGAIN: Duration = Duration::from_millis(10);
/// How often a keeper that hangs up is asked to end.
const MOST_ASKED: usize = 8;
/// How long a keeper that hung up may take to turn out dead.
const HUNG_UP: Duration = Duration::from_millis(250);
/// How long one that has said that all is done may take to leave.
const LEAVING: Duration = Duration::from_secs(10);

/// What a sandbox is raised from.
#[derive(Clone, Debug)]
pub struct Raise {
    /// Never changes.
    pub id: String,
    /// Its host name.
    pub name: String,
    /// Level, limits, variables, system calls; see [`spec`].
    pub spec: Spec,
    /// Its files: one overlay for `/`, one for `/usr`, perhaps one for `/workspace` (copy-on-write).
    pub trees: Vec<Tree>,
    /// A host directory or volume at /workspace, as it is.
    pub workspace: Option<Shared>,
    /// Where programs may write; everywhere when empty.
    pub write_paths: Vec<PathBuf>,
    /// `STATE/sandboxes/ID`, which exists and is ours alone.
    pub directory: PathBuf,
    /// The host id that its files belong to; see [`owner`].
    pub owner: (u32, u32),
    pub disk: DiskBound,
    pub idle: Option<Duration>,
    pub expires_at: Option<SystemTime>,
}

/// A host directory that is shown at /workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    pub path: PathBuf,
    pub writable: bool,
    /// Device and inode of the directory that was meant, with `path` as it really is: another one in its place, or a link
    /// on the way to it, is refused. Nothing for directories of our own.
    pub identity: Option<(u64, u64)>,
}

/// What bounds the files that a sandbox writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskBound {
    /// The uppers are on a file system of that size, mounted here: full is `ENOSPC`, by the kernel.
    FileSystem(PathBuf),
    /// The keeper measures the uppers while something runs.
    Measured,
}

/// A sandbox that stands, and the line to its keeper. Dropping it changes nothing: the sandbox goes on.
#[derive(Clone, Debug)]
pub struct Living {
    directory: PathBuf,
    raised: Raised,
    receipt: Receipt,
    line: Line,
    places: SecretPlaces,
}

/// An exec that was released.
#[derive(Clone, Debug)]
pub struct Begun {
    pub id: String,
    /// Every layer, as it was found just before the release.
    pub checks: Vec<Check>,
}

/// The Spec of a sandbox. Levels without a root of their own have none that could live.
pub fn spec(request: &SandboxRequest) -> Result<Spec, SpecError> {
    begin::spec(request)
}

/// The host id for files of a sandbox: the caller's own, or for root one of a range that nobody else has. Sandboxes
/// that share sheets must share `number`.
pub fn owner(engine: &Engine, number: u32) -> (u32, u32) {
    super::identity::living_ids(engine.host(), number)
}

/// Has new values of secrets count in all sandboxes of a state directory that live, where placeholders stand for them.
/// What a command would have to print is not asked for: it counts from the next exec on. How many were told.
pub async fn renew_secrets(state: &Path, places: &SecretPlaces) -> usize {
    let mut told = 0;
    for entry in std::fs::read_dir(state.join(SANDBOXES)).into_iter().flatten().flatten() {
        // One that cannot be reached, or whose secret is gone, has the values that it had.
        let Ok(Some(living)) = Living::connect(&entry.path()).await else { continue };
        told += usize::from(living.with_secrets_from(places.clone()).renew_secrets().await);
    }
    told
}

impl Living {
    /// The keeper of the sandbox in this directory; `None` when none lives.
    pub async fn connect(directory: &Path) -> Result<Option<Self>, Error> {
        let Some(line) = Line::open(directory).map_err(Error::backend("reach the sandbox"))? else {
            return Ok(None);
        };
        let (raised, receipt) =
            kept::raised(directory).map_err(Error::backend("read what is known of the sandbox"))?;
        let places = SecretPlaces::default();
        Ok(Some(Self { directory: directory.to_owned(), raised, receipt, line, places }))
    }

    /// Looks for the secrets of its programs there.
    #[must_use]
    pub fn with_secrets_from(mut self, places: SecretPlaces) -> Self {
        self.places = places;
        self
    }

    /// The values of its secrets, as they are now; from now on they are hidden in all that its programs say.
    pub(crate) async fn secrets(&self) -> Result<Vec<Given>, Error> {
        // Decoys were made up when it was raised, and are what they are.
        let asked = self.raised.secrets.iter().filter(|one| one.mode() != SecretMode::Canary);
        let asked: Vec<SecretRequest> = asked.cloned().collect();
        let given = crate::engine::given(&self.places, &asked).await?;
        if !given.is_empty() {
            let memory = begin::memory(&begin::hidden(&given))?;
            let (answer, _) = self.line.ask(Ask::Hide, &[], Some(&memory)).await?;
            if !matches!(answer, Answer::Done) {
                return Err(unexpected(answer));
            }
        }
        if given.iter().any(|one| one.mode == SecretMode::Placeholder) {
            let newer = renewal(&asked, &given, &self.raised.tokens())?;
            let answer = self.line.ask(Ask::Renew, &[], Some(&newer)).await?.0;
            if !matches!(answer, Answer::Done) {
                return Err(unexpected(answer));
            }
        }
        Ok(given)
    }

    /// Has new values count where placeholders stand for them. Whether that was done.
    pub(crate) async fn renew_secrets(&self) -> bool {
        self.has_placeholders() && self.secrets().await.is_ok()
    }

    /// Whether something stands for a secret in it whose value can be had without starting a command.
    fn has_placeholders(&self) -> bool {
        let sources = self.places.sources().unwrap_or_default();
        let by_command = |one: &SecretRequest| {
            sources.get(&one.name).is_some_and(|source| source.command.is_some())
        };
        let secrets = &self.raised.secrets;
        secrets.iter().any(|one| one.mode() == SecretMode::Placeholder)
            && !secrets.iter().any(by_command)
    }

    /// What was verified when it was raised.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Starts a program; answers when it was released. `id` names it for good ([`crate::execution_id::new_id`]).
    pub async fn exec(&self, id: &str, request: &ExecRequest) -> Result<Begun, Error> {
        let given = self.secrets().await?;
        let order = begin::order(id, request, &self.raised, &given)?;
        let memory = begin::memory(&order)?;
        let (answer, _) = self.line.ask(Ask::Exec, &[], Some(&memory)).await?;
        if let Answer::Failed(failed) = answer {
            return Err(begin::explain(failed, &order));
        }
        let Answer::Begun { checks } = answer else { return Err(unexpected(answer)) };
        if let Some(data) = &request.stdin {
            let (living, id, data) = (self.clone(), id.to_owned(), data.0.clone());
            let keep = request.keep_stdin;
            // Beside all else: a program that does not read is not waited for.
            tokio::spawn(async move {
                let fed = living.input(&id, &data).await;
                if fed.is_ok() && !keep {
                    living.close_input(&id).await.ok();
                }
            });
        }
        Ok(Begun { id: id.to_owned(), checks })
    }

    /// Writes to an exec's standard input, as its buffer takes it.
    pub async fn input(&self, exec: &str, data: &[u8]) -> Result<(), Error> {
        let mut rest = data;
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(MAX_INPUT_BYTES)];
            let ask = Ask::Input { exec: exec.to_owned() };
            let answer = self.line.ask(ask, now, None).await?.0;
            let Answer::Taken { bytes } = answer else { return Err(unfit(answer)) };
            rest = rest.get(bytes..).ok_or_else(|| unexpected(Answer::Taken { bytes }))?;
            if bytes < now.len() {
                tokio::time::sleep(INPUT_AGAIN).await;
            }
        }
        Ok(())
    }

    pub async fn close_input(&self, exec: &str) -> Result<(), Error> {
        self.done(Ask::CloseInput { exec: exec.to_owned() }).await
    }

    pub async fn resize(&self, exec: &str, size: TerminalSize) -> Result<(), Error> {
        let TerminalSize { rows, columns } = size;
        let ask = Ask::Resize { exec: exec.to_owned(), rows, columns };
        let answer = self.line.ask(ask, &[], None).await?.0;
        if matches!(answer, Answer::Done) { Ok(()) } else { Err(unfit(answer)) }
    }

    /// Sends a signal to an exec's process group; `SIGKILL` ends its whole tree.
    pub async fn signal(&self, exec: &str, signal: i32) -> Result<(), Error> {
        self.done(Ask::Signal { exec: exec.to_owned(), signal }).await
    }

    /// An exec from these offsets of stdout and stderr on, to its end.
    pub async fn follow(&self, exec: &str, from: [u64; 2]) -> Result<Follow, Error> {
        Follow::begin(self, exec, from).await
    }

    pub async fn usage(&self) -> Result<SandboxUsage, Error> {
        let used = self.used().await?;
        Ok(SandboxUsage {
            memory_bytes: used.memory_bytes,
            processes: used.processes,
            cpu_ms: used.cpu_us.map(|micros| micros / 1000),
            disk_bytes: used.disk_bytes,
            inodes: used.inodes,
            execs: used.execs,
        })
    }

    /// Whether it is frozen.
    pub async fn is_frozen(&self) -> Result<bool, Error> {
        Ok(self.used().await?.frozen)
    }

    async fn used(&self) -> Result<belljar_jail::living::talk::Usage, Error> {
        let answer = self.line.ask(Ask::Usage, &[], None).await?.0;
        let Answer::Usage(used) = answer else { return Err(unexpected(answer)) };
        Ok(used)
    }

    pub async fn freeze(&self) -> Result<(), Error> {
        self.done(Ask::Freeze).await
    }

    pub async fn thaw(&self) -> Result<(), Error> {
        self.done(Ask::Thaw).await
    }

    /// Starts a file agent; the socket is the other end of the one it serves. It ends when that is closed.
    pub async fn agent(&self) -> Result<OwnedFd, Error> {
        match self.line.ask(Ask::Agent, &[], None).await? {
            (Answer::Begun { .. }, Some(socket)) => Ok(socket),
            (Answer::Failed(failed), _) => Err(begin::explain_agent(failed)),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// From now on this may be reached, and nothing else: what is open is cut where it no longer may be.
    pub(crate) async fn set_egress(&self, plan: &EgressPlan) -> Result<(), Error> {
        if plan.rules.iter().any(|rule| rule.inspect) && !self.raised.ends_tls {
            let reason = "has a rule with inspect, and the sandbox was started without one: its programs do not believe \
                          who would end their TLS. Stop it, change it, and start it again";
            return Err(SpecError::new("egress", reason).into());
        }
        let memory = begin::memory(plan)?;
        let answer = self.line.ask(Ask::Egress, &[], Some(&memory)).await?.0;
        if matches!(answer, Answer::Done) { Ok(()) } else { Err(unexpected(answer)) }
    }

    /// What it may reach, what it reached, and what it was refused.
    pub(crate) async fn network(&self) -> Result<NetworkState, Error> {
        let (answer, memory) = self.line.ask(Ask::Network, &[], None).await?;
        let (Answer::Done, Some(memory)) = (&answer, memory) else {
            return Err(unexpected(answer));
        };
        let lost = |errno: rustix::io::Errno| Error::backend("read what was reached")(errno.into());
        belljar_jail::wire::read_memory(&memory).map_err(lost)
    }

    /// Says that the sandbox is in use: its idle time begins anew.
    pub async fn touch(&self) -> Result<(), Error> {
        self.done(Ask::Touch).await
    }

    /// Gives it another host name.
    pub async fn rename(&self, name: &str) -> Result<(), Error> {
        self.done(Ask::Rename { name: name.to_owned() }).await
    }

    /// SIGTERM to all, SIGKILL after `grace`; answers when nothing of it is left but its files.
    pub async fn stop(&self, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.end(Ask::Stop { grace_ms }).await
    }

    pub async fn kill(&self) -> Result<(), Error> {
        self.end(Ask::Kill).await
    }

    /// Returns when the keeper's process is gone, and says so of no other: one that is gone before it could answer has ended as
    /// well, but one that hung up on us has not. That one is asked again. One that does not answer is killed.
    async fn end(&self, ask: Ask) -> Result<(), Error> {
        let mut line = self.line.clone();
        for _ in 0..MOST_ASKED {
            let within = match line.ask(ask.clone(), &[], None).await {
                Ok((Answer::Done, _)) => LEAVING,
                Ok((answer, _)) => return Err(unexpected(answer)),
                Err(Error::Lost { what: line::MUTE }) => {
                    line.kill_keeper();
                    LEAVING
                }
                Err(Error::Lost { .. }) => HUNG_UP,
                Err(error) => return Err(error),
            };
            if line.ended(within).await {
                return Ok(());
            }
            match Line::open(&self.directory).map_err(Error::backend("reach the sandbox"))? {
                Some(again) => line = again,
                // It no longer listens: it is on its way out.
                None if line.ended(LEAVING).await => return Ok(()),
                None => break,
            }
        }
        Err(Error::Busy { running: belljar_jail::living::talk::MAX_CLIENTS, waiting: 0 })
    }

    async fn done(&self, ask: Ask) -> Result<(), Error> {
        let answer = self.line.ask(ask, &[], None).await?.0;
        if matches!(answer, Answer::Done) { Ok(()) } else { Err(unexpected(answer)) }
    }

    /// Returns when the keeper is gone, however.
    pub async fn gone(&self) {
        self.line.gone().await;
    }
}

/// The same where what the exec lacks, a terminal or an open input, is its state and no fault.
fn unfit(answer: Answer) -> Error {
    if let Answer::Refused { why: Refusal::Unable, message } = answer {
        return Error::Conflict { what: message };
    }
    unexpected(answer)
}

/// An answer that is not the one that was hoped for.
fn unexpected(answer: Answer) -> Error {
    match answer {
        Answer::Refused { why, message } => match why {
            Refusal::Unknown => Error::NotFound { what: message },
            Refusal::Full => {
                Error::Busy { running: belljar_jail::living::talk::MAX_EXECS, waiting: 0 }
            }
            Refusal::Frozen | Refusal::Ending => SpecError::new("sandbox", message).into(),
            Refusal::Wrong => SpecError::new("request", message).into(),
            Refusal::Unable => {
                let source = std::io::Error::other(message);
                Error::Backend { operation: "do that in the sandbox", source }
            }
        },
        Answer::Done
        | Answer::Begun { .. }
        | Answer::Failed(_)
        | Answer::Taken { .. }
        | Answer::List { .. }
        | Answer::Usage(_) => Error::Lost { what: "its keeper answered something else" },
    }
}
