//! One call: from the request to the word that it has ended, or to the end of the context.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Settings;
use super::channel::{Channel, Heard};
use super::frames::{Frames, Piece};
use super::gathered::{Gathered, Told};
use crate::model::error::Error;
use crate::model::outcome::Stream;
use crate::model::sandbox::{CodeError, CodeEvent, ExecEnd, Interrupted};

/// The mark on the second stream comes right after the one on the first, unless the code closed it.
const MARK_WAIT: Duration = Duration::from_millis(500);
/// How long the end of a context that was killed may take.
const ENDING: Duration = Duration::from_secs(10);
const SIGINT: i32 = 2;

/// What somebody else wants of a call.
#[derive(Debug)]
pub(super) enum Act {
    /// And to know what came of it.
    Interrupt(oneshot::Sender<Interrupted>),
    Kill,
}

/// Why we stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Somebody asked for it. Code that has heard it may refuse: then there is `restart`.
    Asked,
    /// Somebody asked for it, and it was not heard.
    Deaf,
    Time(Duration),
    Output(u64),
    /// Nobody waits for it any more.
    Abandoned,
    Killed,
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Ended {
    Told(Told),
    /// The context's process ended. Whether the code had begun is known from its own word.
    Died {
        end: Option<ExecEnd>,
        begun: bool,
    },
    /// It said what our program does not say.
    Strange,
}

/// A context's process and what was read of it.
#[derive(Debug)]
pub(super) struct Line {
    pub channel: Box<dyn Channel>,
    pub stdout: Frames,
    pub stderr: Frames,
    /// The one before it had died, which is still to be told.
    pub restarted: bool,
}

/// A call on its way.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Unlike any other's.
    pub id: String,
    deadline: Instant,
    timeout: Duration,
    grace: Duration,
    deaf: Duration,
    /// A signal may come where nothing takes it: between two of node's ways to take one, or to a program that bash is about to
    /// start. Until the code has heard it, it is sent again so far apart.
    again: Duration,
    /// When to send it next; from the first on.
    send_at: Option<Instant>,
    /// Somebody asked for an interrupt: if the code has not heard it by then, its context is ended.
    heard_by: Option<Instant>,
    heard: bool,
    /// Who wants to know what came of it.
    interrupters: Vec<oneshot::Sender<Interrupted>>,
    /// Most that it may write.
    output_bytes: u64,
    events: &'a mpsc::Sender<CodeEvent>,
    acts: mpsc::Receiver<Act>,
    pub gathered: Gathered,
    pub stop: Option<Stop>,
    /// What is said when the context takes up the code.
    started: Option<CodeEvent>,
    begun: bool,
    told: Option<Told>,
    is_marked: bool,
    is_strange: bool,
    is_muted: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        id: String,
        timeout: Duration,
        settings: &Settings,
        events: &'a mpsc::Sender<CodeEvent>,
        acts: mpsc::Receiver<Act>,
        started: CodeEvent,
    ) -> Self {
        Self {
            id,
            deadline: Instant::now() + timeout,
            timeout,
            grace: settings.grace,
            deaf: settings.deaf,
            again: settings.grace,
            send_at: None,
            heard_by: None,
            heard: false,
            interrupters: Vec::new(),
            output_bytes: settings.output_bytes,
            events,
            acts,
            gathered: Gathered::new(settings.kept_bytes),
            stop: None,
            started: Some(started),
            begun: false,
            told: None,
            is_marked: false,
            is_strange: false,
            is_muted: false,
        }
    }

    /// Interrupts until they are heard, so far apart.
    pub(super) fn interrupt_again(&mut self, after: Duration) {
        self.again = after;
    }

    /// Tells those who interrupted it what came of that.
    pub(super) fn answer(&mut self, outcome: Interrupted) {
        for interrupter in self.interrupters.drain(..) {
            interrupter.send(outcome).ok(); // who asked may be gone
        }
    }

    /// Listens until it has ended.
    pub(super) async fn follow(&mut self, line: &mut Line) -> Result<Ended, Error> {
        loop {
            let is_free = matches!(self.stop, None | Some(Stop::Asked));
            let (due, heard_by) = (self.due(), self.heard_by);
            tokio::select! {
                heard = line.channel.hear() => {
                    if let Some(ended) = self.take(line, heard?).await {
                        return Ok(ended);
                    }
                    if is_free && self.gathered.bytes() > self.output_bytes {
                        self.halt(Stop::Output(self.output_bytes));
                    }
                }
                () = sleep_until(self.deadline) => match self.stop {
                    _ if self.told.is_some() => return Ok(self.end()),
                    _ if is_free => self.halt(Stop::Time(self.timeout)),
                    _ => return self.kill(line).await,
                },
                Some(act) = self.acts.recv() => match act {
                    Act::Interrupt(answer) => {
                        self.stop = self.stop.or(Some(Stop::Asked));
                        self.interrupters.push(answer);
                        self.interrupt();
                        self.heard_by.get_or_insert_with(|| Instant::now() + self.deaf);
                    }
                    Act::Kill => {
                        self.stop = Some(Stop::Killed);
                        return self.kill(line).await;
                    }
                },
                () = moment(due) => {
                    self.send_at = Some(Instant::now() + self.again);
                    line.channel.signal(SIGINT).await?;
                }
                () = moment(heard_by) => {
                    self.stop = Some(Stop::Deaf);
                    return self.kill(line).await;
                }
                () = self.events.closed(), if is_free => self.halt(Stop::Abandoned),
            }
        }
    }

    fn halt(&mut self, why: Stop) {
        self.stop = Some(why);
        self.deadline = Instant::now() + self.grace;
        self.heard_by = None; // the deadline is nearer
        self.interrupt();
    }

    /// Has an interrupt sent, as soon as the context has taken up the code: before that it would meet what was before.
    fn interrupt(&mut self) {
        self.heard = false;
        self.send_at = Some(Instant::now());
    }

    /// When an interrupt is to be sent.
    fn due(&self) -> Option<Instant> {
        self.send_at.filter(|_| self.begun && !self.heard)
    }

    async fn kill(&mut self, line: &mut Line) -> Result<Ended, Error> {
        line.channel.kill().await?;
        let until = Instant::now() + ENDING;
        self.deadline = until; // what it still says is not waited with for anybody
        while let Ok(heard) = timeout_at(until, line.channel.hear()).await {
            if let Some(ended @ Ended::Died { .. }) = self.take(line, heard?).await {
                return Ok(ended);
            }
        }
        Err(Error::Lost { what: "a context that was killed did not end" })
    }

    /// Takes what was heard; the end, if that was it.
    async fn take(&mut self, line: &mut Line, heard: Heard) -> Option<Ended> {
        match heard {
            Heard::Ended(end) => {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    let rest = frames(line, stream).rest();
                    self.output(stream, &rest).await;
                }
                return Some(Ended::Died { end, begun: self.begun });
            }
            Heard::Gap(stream) => {
                let rest = frames(line, stream).rest();
                self.output(stream, &rest).await;
                self.output(stream, b"\n[belljar: output was lost here]\n").await;
            }
            Heard::Output(stream, bytes) => {
                for piece in frames(line, stream).push(&bytes) {
                    self.piece(stream, piece).await;
                }
            }
        }
        if self.is_strange {
            return Some(Ended::Strange);
        }
        if self.told.is_some() && !self.is_marked {
            self.deadline = self.deadline.min(Instant::now() + MARK_WAIT);
        }
        (self.told.is_some() && self.is_marked).then(|| self.end())
    }

    fn end(&mut self) -> Ended {
        self.told.take().map_or(Ended::Strange, Ended::Told)
    }

    async fn piece(&mut self, stream: Stream, piece: Piece) {
        match piece {
            Piece::Output(bytes) => self.output(stream, &bytes).await,
            Piece::Message { call, json } if call == self.id => {
                match serde_json::from_slice::<Told>(&json) {
                    Ok(told) => self.message(stream, told).await,
                    Err(_) => self.is_strange = true,
                }
            }
            Piece::TooLong { call } if call == self.id => self.gathered.dropped_results += 1,
            // Of a call that somebody asked for before us.
            Piece::Message { .. } | Piece::TooLong { .. } => {}
        }
    }

    async fn message(&mut self, stream: Stream, told: Told) {
        if stream == Stream::Stderr {
            self.is_marked |= told.end;
            if told.heard && self.stop.is_some() {
                (self.heard, self.heard_by) = (true, None);
                self.answer(Interrupted::Heard);
            }
        } else if told.end {
            self.told = Some(told);
        } else if told.begin {
            self.begun = true;
            if let Some(started) = self.started.take() {
                self.say(started).await;
            }
        } else if let Some(result) = self.gathered.result(told).cloned() {
            self.say(CodeEvent::Result(result)).await;
        }
    }

    async fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let text = self.gathered.output(stream, bytes);
        if !text.is_empty() {
            self.say(CodeEvent::Output { stream, text }).await;
        }
    }

    /// Who listens slowly is waited for, but not beyond the call's own time: the result has it all, in its bounds.
    async fn say(&mut self, event: CodeEvent) {
        if !self.is_muted {
            self.is_muted = timeout_at(self.deadline, self.events.send(event)).await.is_err();
        }
    }
}

/// That moment; never, where there is none.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn frames(line: &mut Line, stream: Stream) -> &mut Frames {
    match stream {
        Stream::Stdout => &mut line.stdout,
        Stream::Stderr => &mut line.stderr,
    }
}

/// What is said of code that we stopped, or whose context ended under it.
pub(super) fn stopped_error(stop: Stop, told: Option<CodeError>) -> CodeError {
    let traceback = told.as_ref().map(|told| told.traceback.clone()).unwrap_or_default();
    let line = told.as_ref().and_then(|told| told.line);
    let (name, value) = match stop {
        Stop::Asked | Stop::Deaf | Stop::Abandoned | Stop::Killed => {
            return told.unwrap_or_else(|| CodeError {
                name: "Interrupted".to_owned(),
                value: "the code was interrupted".to_owned(),
                ..CodeError::default()
            });
        }
        Stop::Time(limit) => {
            ("TimeLimit", format!("the code was stopped after {} ms", limit.as_millis()))
        }
        Stop::Output(limit) => {
            ("OutputLimit", format!("the code was stopped after it wrote {limit} bytes"))
        }
    };
    CodeError { name: name.to_owned(), value, traceback, line }
}
