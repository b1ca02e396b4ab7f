//! A run, from the first record of it to its Outcome: warm where that can be, cold otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use belljar_jail::egress::EgressPlan;
use belljar_jail::layer::Layer;
use belljar_jail::plan::{Delivery, Hold};
use tokio::sync::mpsc;

use super::{Engine, unseen};
use crate::audit::{Asked, Caller, Recording, begun};
use crate::events::{Canaries, EventSink, Tally};
use crate::execution_id::new_id;
use crate::languages::{Interpreter, Language};
use crate::model::error::{Error, SpecError};
use crate::model::event::{Event, Risk, Weighed};
use crate::model::outcome::{Outcome, Start, Stream};
use crate::model::receipt::{Receipt, Versions};
use crate::model::request::StartRequest;
use crate::model::secret::SecretMode;
use crate::model::spec::{Source, Spec, WORKSPACE};
use crate::native::cgroups::Cgroups;
use crate::native::exit::Exit;
use crate::native::plan::Planned;
use crate::native::run::{Finished, Talk};
use crate::native::{self, Prepared};
use crate::output_files::{self, CopiedOut, Known, Was};
use crate::pool::{self, Made, Pool};
use crate::screen::{Advice, Gate};
use crate::secrets::Sealing;

/// Sandboxes that one run may find dead when it comes to them.
const MOST_TRIES: usize = 100;

/// A request that was checked and is ready to run.
pub struct Run<'a> {
    pub(super) engine: &'a Engine,
    pub(super) spec: Spec,
    pub(super) language: Option<&'a Language>,
    pub(super) interpreter: Option<Interpreter>,
    pub(super) out: Option<PathBuf>,
    pub(super) start: StartRequest,
    pub(super) gate: Gate,
    /// What is recorded of the request, when something is.
    pub(super) asked: Option<Asked>,
    pub(super) caller: Caller,
    pub(super) event_sink: Option<EventSink>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("spec", &self.spec).field("start", &self.start).finish()
    }
}

impl Run<'_> {
    /// Records it as asked for by somebody else than the user of this process.
    #[must_use]
    pub fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Records this as its code: the program that runs is one of ours, which loads it.
    pub(crate) fn recorded_with(mut self, code: &str) -> Self {
        if let Some(asked) = &mut self.asked {
            asked.code = Some(code.to_owned());
        }
        self
    }

    /// Records what it says by its digest alone.
    pub(crate) fn recorded_without_words(mut self) -> Self {
        if let Some(asked) = &mut self.asked {
            asked.says_nothing = true;
        }
        self
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn language(&self) -> Option<&Language> {
        self.language
    }

    pub(crate) fn keeps_files(&self) -> bool {
        self.out.is_some()
    }

    pub(crate) fn can_fork(&self) -> bool {
        // Into a scope that systemd made around its keeper a zygote's copy would not be let.
        let in_scopes = matches!(self.engine.host.cgroups, Cgroups::Scope { .. });
        let pool = self.engine.pool.as_ref().filter(|_| !in_scopes);
        pool.zip(self.language).is_some_and(|(pool, one)| pool.can_fork(one))
    }

    /// Copies what the program leaves in /workspace to this directory, which must be new or empty.
    pub fn copy_out(mut self, directory: PathBuf) -> Result<Self, Error> {
        if self.spec.workspace.is_some() {
            let reason = "has no meaning with a host workspace: results are in it already";
            return Err(SpecError::new("out", reason).into());
        }
        if !self.spec.level.has_namespaces() {
            let reason = "needs a workspace of the sandbox's own: use level standard or strict";
            return Err(SpecError::new("out", reason).into());
        }
        output_files::prepare(&directory)
            .map_err(|error| SpecError::new("out", format!("{}: {error}", directory.display())))?;
        self.out = Some(directory);
        Ok(self)
    }

    /// Tells of events as they happen, beside what the Outcome keeps.
    #[must_use]
    pub fn on_event(mut self, sink: EventSink) -> Self {
        self.event_sink = Some(sink);
        self
    }

    /// The delivery with the way out, where there is one, and a process for it that was kept ready.
    fn with_way_out(
        &self,
        delivery: &Delivery,
        pool: &Pool,
        keeper: u32,
    ) -> (Delivery, Option<Exit>) {
        let mut egress = self.egress(keeper);
        let exit = egress.as_ref().and_then(|_| pool.take_exit());
        if let (Some(plan), Some(exit)) = (&mut egress, &exit) {
            plan.ids = exit.ids; // it is who it is
        }
        let number = exit.as_ref().map(Exit::id);
        (Delivery { egress, exit: number, ..delivery.clone() }, exit)
    }

    fn egress(&self, keeper: u32) -> Option<EgressPlan> {
        self.engine.config.network.plan(&self.spec.egress, &self.engine.host, keeper)
    }

    fn tally(&self) -> Tally {
        let tally = Tally::new(native::plan::rules(&self.spec), self.event_sink.clone());
        tally.with_egress(&self.spec.egress)
    }

    /// Reads the code now, if what is found may refuse the run: before it waits for anything. A run that
    /// was not screened so does it when it is run.
    pub async fn screen(mut self) -> Result<Self, Error> {
        self.gate.pass(self.engine).await?;
        Ok(self)
    }

    /// Runs it; `sink` gets the output as it comes, whole, beside what the Outcome keeps.
    pub async fn run(self, sink: &mut (dyn FnMut(Stream, &[u8]) + Send)) -> Result<Outcome, Error> {
        self.run_with_files(sink).await.map(|(outcome, _)| outcome)
    }

    /// The same, and what was copied out. [`CopiedOut::stopped`] says whether all of it could be.
    pub async fn run_with_files(
        self,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
    ) -> Result<(Outcome, Option<CopiedOut>), Error> {
        let mut run = self.screen().await?;
        // Beside the run: advice must not keep anybody waiting.
        let (advice, beside) = run.gate.begin();
        let mut talk = Talk { sink, input: None, beside, standing: &mut |_| {} };
        run.carry_out(&mut talk, advice).await
    }

    /// Runs it with a standard input that is written while it runs. What is read ahead of it is ours, so it
    /// is not screened. `standing` is told the keeper's process id before any of that input is sent.
    pub(crate) async fn converse(
        self,
        input: mpsc::Receiver<Vec<u8>>,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
        standing: &mut (dyn FnMut(u32) + Send),
    ) -> Result<Outcome, Error> {
        let mut talk = Talk { sink, input: Some(input), beside: None, standing };
        let ended = self.carry_out(&mut talk, Advice::None).await;
        ended.map(|(outcome, _)| outcome)
    }

    /// From the first record of it to the last.
    async fn carry_out(
        mut self,
        talk: &mut Talk<'_>,
        advice: Advice,
    ) -> Result<(Outcome, Option<CopiedOut>), Error> {
        self.take_secrets().await?;
        let id = new_id()?;
        let mut recording = match (&self.engine.audit, &self.asked) {
            (Some(audit), Some(asked)) => {
                Some(audit.begin(&id, &self.spec, asked, &self.caller)?)
            }
            _ => None,
        };
        let (result, copied) = match self.run_watched(&id, &mut recording, talk).await {
            Ok((mut outcome, copied)) => {
                outcome.screening = advice.told().await;
                (Ok(outcome), copied)
            }
            Err(error) => (Err(error), None),
        };
        self.engine.counts.ended(&result);
        if let Some(recording) = recording {
            recording.end(&result).await?;
        }
        result.map(|outcome| (outcome, copied))
    }

    /// Fills in the values of what the request names. From now on nothing that is told of this run shows them.
    async fn take_secrets(&mut self) -> Result<(), Error> {
        let given = self.engine.secrets(&self.spec.secrets).await?;
        for one in &given {
            match one.mode {
                SecretMode::Canary => {
                    one.hidden().for_each(|value| self.spec.hide(value));
                    self.spec.watch_for(one.value.reveal().to_owned());
                    self.spec.give(one.variable.clone(), one.value.reveal())?;
                }
                SecretMode::Env => {
                    one.hidden().for_each(|value| self.spec.hide(value));
                    self.spec.give(one.variable.clone(), one.value.reveal())?;
                }
                SecretMode::Placeholder => {
                    one.hidden().for_each(|value| self.spec.hide_outside(value));
                }
            }
        }
        if !self.spec.egress.is_empty() {
            let decoys = self.spec.canaries.iter().map(|one| one.0.clone()).collect();
            let ca_file = self.engine.config.network.ca_file.as_deref();
            let known = BTreeMap::new();
            let (rules, secrets) = (&self.spec.egress, &self.spec.secrets);
            let sealing = Sealing::new(rules, secrets, &given, decoys, &known, ca_file)?;
            self.spec.sealing = sealing.map(Arc::new);
        }
        if let Some(sink) = self.event_sink.take() {
            self.event_sink = Some(if self.spec.hides() {
                let secrets = self.spec.hidden_secrets();
                Arc::new(move |event: &Event| sink(&unseen::event(&secrets, event.clone())))
            } else {
                sink
            });
        }
        Ok(())
    }

    /// Warm or cold, with an eye on its output for what should never be in it.
    async fn run_watched(
        &self,
        id: &str,
        recording: &mut Option<Recording>,
        talk: &mut Talk<'_>,
    ) -> Result<(Outcome, Option<CopiedOut>), Error> {
        let values = self.spec.canaries.iter().map(|one| one.0.as_str());
        let mut canaries = Canaries::new(values, self.event_sink.clone());
        let mut watched = |stream, bytes: &[u8]| {
            canaries.look(stream, bytes);
            (talk.sink)(stream, bytes);
        };
        let (input, beside) = (talk.input.take(), talk.beside.take());
        let standing = &mut *talk.standing;
        let mut talk = Talk { sink: &mut watched, input, beside, standing };
        let (mut outcome, copied) = match self.try_warm(id, recording, &mut talk).await? {
            Some(warm) => (warm, None),
            None => self.run_cold(id, recording, &mut talk).await?,
        };
        let found = canaries.finish();
        if !found.is_empty() {
            outcome.events.extend(found);
            let Weighed { risk, reasons } = Risk::of(&outcome.events);
            (outcome.risk, outcome.risk_reasons) = (risk, reasons);
        }
        if self.spec.hides() {
            outcome = unseen::outcome(&self.spec.hidden_secrets(), outcome);
        }
        Ok((outcome, copied))
    }

    async fn run_cold(
        &self,
        id: &str,
        recording: &mut Option<Recording>,
        talk: &mut Talk<'_>,
    ) -> Result<(Outcome, Option<CopiedOut>), Error> {
        let keeper = self.engine.keeper().map_err(Error::backend("start a keeper"))?;
        let cgroups = self.engine.cgroups(&self.spec, id, keeper.id()).await;
        let egress = self.egress(keeper.id());
        let prepared = Prepared {
            id,
            spec: &self.spec,
            host: &self.engine.host,
            cgroups: &cgroups,
            language: self.language,
            interpreter: self.interpreter.as_ref(),
            keeper: keeper.id(),
            keep_workspace: self.out.is_some(),
            hold: None,
            zygote_uid: None,
            egress: egress.as_ref(),
            fault: self.engine.config.fault,
        };
        let (planned, _claim) = match prepared.plan() {
            Ok(planned) => planned,
            Err(error) => {
                keeper.reap();
                return Err(error);
            }
        };
        if let Err(error) = begun(recording).await {
            keeper.reap();
            return Err(error);
        }
        let beside = || self.engine.sweep_once();
        let mut tally = self.tally();
        let mut finished =
            native::run::carry_out(keeper, &planned.plan, &self.spec, beside, talk, &mut tally)
                .await?;
        let copied = match (&self.out, finished.workspace.take()) {
            (Some(target), Some(workspace)) => {
                let known = known_files(&self.spec);
                let most_bytes = self.spec.limits.disk_bytes;
                Some(output_files::copy_out(&workspace, target, &known, most_bytes))
            }
            _ => None,
        };
        let outcome = self.outcome(id, finished, tally, planned, Start::Cold)?;
        Ok((outcome, copied))
    }

    /// Runs in a sandbox that was made ahead, if that is possible and wanted.
    async fn try_warm(
        &self,
        id: &str,
        recording: &mut Option<Recording>,
        talk: &mut Talk<'_>,
    ) -> Result<Option<Outcome>, Error> {
        let Some(pool) = self.engine.pool.as_ref().filter(|_| self.start != StartRequest::Cold)
        else {
            return self.must_be_cold("no pool is kept here: start one with \"belljar serve\"");
        };
        let wanted = match pool::Wanted::new(self) {
            Ok(wanted) => wanted,
            Err(why) => return self.must_be_cold(why),
        };
        let program =
            native::plan::invocation(&self.spec, self.language, self.interpreter.as_ref())?;
        let delivery = Delivery {
            argv: program.argv,
            environment: program.environment,
            placed: native::park::placed(&self.spec),
            wall_ms: self.spec.limits.wall_ms,
            egress: None,
            exit: None,
            sealed: self.spec.sealing.is_some(),
        };
        // Before a sandbox is taken: a file that cannot be had is no reason to use one up.
        let placed = native::run::open_placed(self.spec.all_placed())?;
        // Before one is taken: what is made in its place stands back from now on.
        let _running = pool.running();
        for _ in 0..MOST_TRIES {
            let parked = match pool.take(&wanted) {
                Some(parked) => parked,
                None if self.start == StartRequest::Warm => {
                    match pool.make_or_take(&wanted).await {
                        Made::Meanwhile(parked) => *parked,
                        _right @ Made::ByYou(_) => {
                            self.engine.park_apart(pool, &wanted.profile).await?
                        }
                    }
                }
                // None waits, but to copy a zygote is sooner than to start an interpreter. If that
                // fails, a new sandbox will tell why, or work.
                None if wanted.profile.hold == Hold::Forked && !pool.lacks_memory() => {
                    match pool.make_or_take(&wanted).await {
                        Made::Meanwhile(parked) => *parked,
                        _right @ Made::ByYou(_) => {
                            match self.engine.park_apart(pool, &wanted.profile).await {
                                Ok(parked) => parked,
                                Err(_) => return Ok(None),
                            }
                        }
                    }
                }
                None => return Ok(None),
            };
            begun(recording).await?;
            let mut tally = self.tally();
            let (delivery, exit) = self.with_way_out(&delivery, pool, parked.keeper_id());
            match parked.run(&self.spec, &delivery, &placed, exit, talk, &mut tally).await {
                (Ok(finished), planned) => {
                    return self.outcome(id, finished, tally, planned, Start::Warm).map(Some);
                }
                (Err(Some(error)), _) => return Err(error),
                (Err(None), _) => {} // it died while it waited: another one
            }
        }
        Err(Error::Lost { what: "every sandbox that waited for a program died first" })
    }

    /// `None`, unless a warm start was insisted on.
    fn must_be_cold(&self, why: &str) -> Result<Option<Outcome>, Error> {
        match self.start {
            StartRequest::Any | StartRequest::Cold => Ok(None),
            StartRequest::Warm => {
                Err(SpecError::new("start", format!("cannot be warm: {why}")).into())
            }
        }
    }

    fn versions(&self, program: &std::path::Path) -> Versions {
        Versions {
            belljar: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: self.engine.host.kernel.clone(),
            interpreter: program.display().to_string(),
        }
    }

    fn outcome(
        &self,
        id: &str,
        finished: Finished,
        tally: Tally,
        planned: Planned,
        start: Start,
    ) -> Result<Outcome, Error> {
        let mut layers = finished.started.checks.clone();
        if let Some(clock) = layers.iter_mut().find(|check| check.name == Layer::WallTimeout) {
            // What was made ahead got its deadline with the program.
            clock.mechanism = format!("monotonic clock, {} ms", self.spec.limits.wall_ms);
        }
        let receipt = Receipt {
            level: self.spec.level,
            layers,
            missing: planned.missing,
            spec_digest: self.spec.digest(),
            versions: self.versions(&planned.plan.program.path),
        };
        let layers: Vec<Layer> = receipt.layers.iter().map(|check| check.name).collect();
        let now = SystemTime::now();
        let time = humantime::format_rfc3339_millis(now).to_string();
        let facts = native::Facts {
            report: &finished.report,
            limits: &self.spec.limits,
            level: self.spec.level,
            layers: &layers,
            output: [finished.stdout.total_bytes(), finished.stderr.total_bytes()],
            time: &time,
        };
        let judged = native::judge(&facts)
            .ok_or(Error::Lost { what: "its init died while the program ran" })?;
        let limits = native::usage(&facts);
        let (exit_code, signal) = native::end_of(&finished.report);
        let (stdout, stderr) = (finished.stdout.finish(), finished.stderr.finish());
        let reached = tally.reached();
        let (mut events, recording) = tally.finish(now);
        events.extend(judged.events);
        let Weighed { risk, reasons: risk_reasons } = Risk::of(&events);
        Ok(Outcome {
            execution_id: id.to_owned(),
            verdict: judged.verdict,
            exit_code,
            signal,
            stdout: stdout.text(),
            stderr: stderr.text(),
            stdout_base64: stdout.base64(),
            stderr_base64: stderr.base64(),
            stdout_dropped_bytes: stdout.dropped_bytes,
            stderr_dropped_bytes: stderr.dropped_bytes,
            stdout_truncated: stdout.dropped_bytes > 0,
            stderr_truncated: stderr.dropped_bytes > 0,
            elapsed_ms: milliseconds(finished.report.elapsed_us),
            cpu_ms: milliseconds(finished.report.cpu_us),
            memory_peak_bytes: finished.report.memory_peak_bytes,
            processes_peak: finished.report.processes_peak,
            fault_domain: judged.fault_domain,
            evidence: judged.evidence,
            limits,
            events,
            risk,
            risk_reasons,
            reached,
            recording,
            labels: self.spec.labels.clone(),
            start,
            receipt,
            screening: None,
        })
    }
}

/// What we put into the workspace ourselves, to be left out when it comes back unchanged.
fn known_files(spec: &Spec) -> Vec<Known<'_>> {
    let placed = spec.placed.iter().filter_map(|file| {
        let path = file.path.strip_prefix(WORKSPACE).ok()?.to_owned();
        let was = match &file.source {
            Source::Given(contents) => Was::Bytes(&contents.0),
            Source::Host(host) => Was::CopyOf(host),
        };
        Some(Known { path, was })
    });
    placed.collect()
}

/// Microseconds to milliseconds with three digits, for people who compare small runs.
#[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}
