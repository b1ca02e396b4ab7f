//! The loop: propose, screen, grade, score, keep, and again with what was learned.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use belljar::audit::Caller;
use belljar::{Engine, Error, Queue, SpecError};
use futures_util::future::join_all;

use crate::candidate::{judge, propose, refused, screen};
use crate::cascade::{Grader, milliseconds};
use crate::history::History;
use crate::proposer::Proposer;
use crate::step::{End, Graded, Proposal, Status, StepId};
use crate::store::{self, Line, Record, Store};
use crate::summary::Summary;
use crate::task::{Budget, Task};

/// Hears of every line as it is written, and of the state after it.
pub type Told<'a> = &'a mut (dyn FnMut(&Line, &Summary) + Send);

/// An evolution that can be gone on with. Nobody else can, meanwhile.
#[derive(Debug)]
pub struct Evolution {
    root: PathBuf,
    store: Arc<Mutex<Store>>,
    history: History,
    /// When this part of it began, and how long the parts before it took.
    started: Instant,
    before_ms: u64,
    caller: Caller,
}

/// Ids below a directory, the newest first.
pub fn list(root: &Path) -> Result<Vec<String>, Error> {
    store::list(root)
}

impl Evolution {
    /// Begins one, after everything about its task was found right.
    pub fn begin(engine: &Engine, root: &Path, task: Task) -> Result<Self, Error> {
        task.check()?;
        let caller = Caller::own();
        Grader { engine, queue: None, caller: &caller, task: &task }.check()?;
        // A key that is not there is told now, not after the seed program was graded.
        Proposer::open(&task.proposer)?;
        let (mut store, id) = Store::create(root)?;
        let record = Record::Begun {
            id,
            unix_ms: unix_ms(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            task: Box::new(task),
        };
        let line = Line { clock_ms: 0, record };
        store.append(&line)?;
        Ok(Self::of(root, store, History::of(vec![line])?))
    }

    /// Goes on with one that ended, was cut short, or was killed. Numbers that are given replace the task's.
    pub fn resume(
        root: &Path,
        id: &str,
        max_iterations: Option<u32>,
        budget: Budget,
    ) -> Result<Self, Error> {
        let (store, lines) = Store::open(root, id)?;
        let mut one = Self::of(root, store, History::of(lines)?);
        let mut task = one.history.task.clone();
        let old = task.budget;
        task.max_iterations = max_iterations.unwrap_or(task.max_iterations);
        task.budget = Budget {
            executions: budget.executions.or(old.executions),
            seconds: budget.seconds.or(old.seconds),
            tokens: budget.tokens.or(old.tokens),
            money: budget.money.or(old.money),
        };
        task.check()?;
        // As at the beginning: a key that is not there is told now.
        Proposer::open(&task.proposer)?;
        let record = Record::Resumed {
            unix_ms: unix_ms(),
            max_iterations: task.max_iterations,
            budget: task.budget,
        };
        one.note_now(record)?;
        Ok(one)
    }

    /// What it is to do, as its store tells it now.
    pub fn task_of(root: &Path, id: &str) -> Result<Task, Error> {
        Ok(History::of(store::read(root, id)?)?.task)
    }

    /// An evolution in short, as its store tells it now.
    pub fn summary_of(root: &Path, id: &str) -> Result<Summary, Error> {
        let history = History::of(store::read(root, id)?)?;
        Ok(Summary::of(&history, store::is_running(root, id)))
    }

    /// All lines, as they are now, without what hidden cases hold.
    pub fn lines(root: &Path, id: &str) -> Result<Vec<Line>, Error> {
        let mut lines = store::read(root, id)?;
        for line in &mut lines {
            if let Record::Begun { task, .. } = &mut line.record {
                // What asserts need first may be a hidden file's, with tests in it.
                if !task.hidden.is_empty() {
                    task.assert_setup = None;
                }
                task.hidden.clear();
            }
        }
        Ok(lines)
    }

    /// Reads it whole, for a report.
    pub(crate) fn history_of(root: &Path, id: &str) -> Result<History, Error> {
        Ok(History::of(store::read(root, id)?)?)
    }

    /// The program of a step, or of the best one.
    pub fn program_of(
        root: &Path,
        id: &str,
        step: Option<StepId>,
    ) -> Result<(StepId, String), Error> {
        choose(&History::of(store::read(root, id)?)?, step)
    }

    /// Lets a program out: writes it to a file, and that to the store. An existing file is not written over.
    pub fn promote(
        root: &Path,
        id: &str,
        step: Option<StepId>,
        to: &Path,
    ) -> Result<StepId, Error> {
        let (store, lines) = Store::open(root, id)?;
        let mut one = Self::of(root, store, History::of(lines)?);
        let (step, code) = choose(&one.history, step)?;
        let told =
            |error: std::io::Error| SpecError::new("out", format!("{}: {error}", to.display()));
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(to);
        let mut file = made.map_err(told)?;
        file.write_all(code.as_bytes()).and_then(|()| file.sync_all()).map_err(told)?;
        let to = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
        one.note_now(Record::Promoted { unix_ms: unix_ms(), step, to })?;
        Ok(step)
    }

    /// The answers, as a recording for a `replay` proposer: one a line, in the order of the steps.
    pub fn recording_of(root: &Path, id: &str) -> Result<String, Error> {
        let history = Self::history_of(root, id)?;
        let line = |one: &Proposal| serde_json::json!({ "answer": one.answer }).to_string() + "\n";
        Ok(history.proposals.values().map(line).collect())
    }

    fn of(root: &Path, store: Store, history: History) -> Self {
        let before_ms = history.spent.clock_ms;
        Self {
            root: root.to_owned(),
            store: Arc::new(Mutex::new(store)),
            history,
            started: Instant::now(),
            before_ms,
            caller: Caller::own(),
        }
    }

    /// Has what it runs recorded as asked for by somebody else than the user of this process.
    #[must_use]
    pub fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    pub fn id(&self) -> &str {
        &self.history.id
    }

    pub fn summary(&self) -> Summary {
        Summary::of(&self.history, true)
    }

    /// Where it is kept.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Goes on until it ends. In turn with others, if there is a queue. Dropping the future stops it; what was
    /// stored by then is not done again.
    pub async fn run(
        &mut self,
        engine: &Engine,
        queue: Option<&Queue>,
        tell: Told<'_>,
    ) -> Result<Summary, Error> {
        let proposer = Proposer::open(&self.history.task.proposer)?;
        self.started = Instant::now();
        let left = self.history.task.budget.seconds.map(|most| most - self.history.spent.seconds());
        let (end, why) = match left {
            Some(left) => {
                let left = Duration::try_from_secs_f64(left).unwrap_or_default();
                let all = tokio::time::timeout(left, self.iterate(engine, queue, &proposer, tell));
                all.await.unwrap_or(Ok((End::Seconds, None)))?
            }
            None => self.iterate(engine, queue, &proposer, tell).await?,
        };
        self.note(Record::Ended { end, why }, tell).await?;
        Ok(Summary::of(&self.history, false))
    }

    async fn iterate(
        &mut self,
        engine: &Engine,
        queue: Option<&Queue>,
        proposer: &Proposer,
        tell: Told<'_>,
    ) -> Result<(End, Option<String>), Error> {
        let task = self.history.task.clone();
        let caller = self.caller.clone();
        let grader = Grader { engine, queue, caller: &caller, task: &task };
        if task.program.is_some() && !self.history.graded.contains_key(&StepId::SEED) {
            self.grade_all(grader, &[StepId::SEED], tell).await?;
        }
        loop {
            if let Some(end) = self.history.over() {
                return Ok((end, None));
            }
            let steps: Vec<StepId> = self.history.steps(self.history.whole + 1).collect();
            if let Some(end) = self.propose_all(proposer, &steps, tell).await? {
                return Ok(end);
            }
            self.grade_all(grader, &steps, tell).await?;
        }
    }

    /// Asks for the proposals that are not there yet, side by side. Each is stored as it comes.
    async fn propose_all(
        &mut self,
        proposer: &Proposer,
        steps: &[StepId],
        tell: Told<'_>,
    ) -> Result<Option<(End, Option<String>)>, Error> {
        let missing = steps.iter().filter(|step| !self.history.proposals.contains_key(step));
        let clock = self.clock();
        let asked = missing.map(|step| async {
            let proposed = propose(&self.history, proposer, *step).await;
            let proposal = match proposed {
                Ok(proposal) => proposal,
                Err(end) => return Ok(Err(end)),
            };
            let line = Line { clock_ms: clock(), record: Record::Proposed(Box::new(proposal)) };
            append(&self.store, line).await.map(Ok)
        });
        let all: Vec<Result<Result<Line, _>, Error>> = join_all(asked).await;
        let mut end = None;
        for one in all {
            match one? {
                Ok(line) => self.take(line, tell),
                Err(ended) => end = Some(ended),
            }
        }
        Ok(end)
    }

    /// Screens and grades what is not graded yet, side by side, and takes the results in in their order.
    async fn grade_all(
        &mut self,
        grader: Grader<'_>,
        steps: &[StepId],
        tell: Told<'_>,
    ) -> Result<(), Error> {
        let waiting: Vec<StepId> =
            steps.iter().copied().filter(|step| !self.history.graded.contains_key(step)).collect();
        let best = self.history.best().map(|(_, measures)| measures);
        // Two of one iteration may be the same program as well.
        let mut new: Vec<(StepId, String)> = Vec::new();
        let mut screened = Vec::new();
        for step in waiting {
            let verdict = screen(&self.history, &new, step);
            if let Ok(digest) = &verdict {
                new.push((step, digest.clone()));
            }
            screened.push((step, verdict));
        }
        let history = &self.history;
        let judging = screened.into_iter().map(|(step, verdict)| async move {
            let started = Instant::now();
            let mut graded = match verdict {
                Err((status, why)) => refused(step, status, why),
                Ok(_) => judge(grader, step, history.code(step), best.as_ref()).await?,
            };
            graded.elapsed_ms = milliseconds(started.elapsed());
            Ok::<Graded, Error>(graded)
        });
        let all = join_all(judging).await;
        for graded in all {
            let mut graded = graded?;
            let island = self.history.proposals.get(&graded.step).map_or(0, |one| one.island);
            if let (Status::Scored, Some(measures)) = (graded.status, graded.measures) {
                // On a copy: the history decides the same when it takes the line in.
                graded.accepted =
                    self.history.population.clone().admit(graded.step, island, measures);
            }
            self.note(Record::Graded(Box::new(graded)), tell).await?;
        }
        Ok(())
    }

    /// How long it has been running, in all its parts.
    fn clock(&self) -> impl Fn() -> u64 + use<> {
        let (started, before) = (self.started, self.before_ms);
        move || before + u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }

    async fn note(&mut self, record: Record, tell: Told<'_>) -> Result<(), Error> {
        let line = Line { clock_ms: self.clock()(), record };
        let line = append(&self.store, line).await?;
        self.take(line, tell);
        Ok(())
    }

    fn note_now(&mut self, record: Record) -> Result<(), Error> {
        let line = Line { clock_ms: self.clock()(), record };
        self.store.lock().unwrap_or_else(PoisonError::into_inner).append(&line)?;
        self.history.take(line);
        Ok(())
    }

    fn take(&mut self, line: Line, tell: Told<'_>) {
        self.history.take(line.clone());
        tell(&line, &Summary::of(&self.history, true));
    }
}

/// Writes a line where waiting for the disk keeps nobody else waiting.
async fn append(store: &Arc<Mutex<Store>>, line: Line) -> Result<Line, Error> {
    let store = Arc::clone(store);
    let written = tokio::task::spawn_blocking(move || {
        store.lock().unwrap_or_else(PoisonError::into_inner).append(&line).map(|()| line)
    });
    written.await.unwrap_or(Err(Error::Lost { what: "the evolution's file was not written" }))
}

fn choose(history: &History, step: Option<StepId>) -> Result<(StepId, String), Error> {
    let step = match step {
        Some(step) => step,
        None => history.best().map(|(step, _)| step).ok_or_else(|| {
            SpecError::new("id", "has no program with a score yet: resume it, or see its steps")
        })?,
    };
    let scored = history.graded.get(&step).is_some_and(|one| one.status == Status::Scored);
    match history.code(step).filter(|_| scored) {
        Some(code) => Ok((step, code.to_owned())),
        None => {
            Err(SpecError::new("step", format!("is {step}, which has no program with a score"))
                .into())
        }
    }
}

pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
