//! Screening as part of a run: beside its start for advice, before it for a refusal.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::rules::PARTLY_READ;
use super::sources::Sources;
use super::{Screener, SourceText, check};
use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::screening::{ScreenMode, Screening};
use crate::native::run::Beside;

/// What a run is screened by.
#[derive(Debug)]
pub(crate) struct Gate {
    pub mode: ScreenMode,
    screener: Arc<Screener>,
    sources: Option<Sources>,
    found: Option<Screening>,
}

impl Gate {
    pub(crate) fn new(mode: ScreenMode, screener: &Arc<Screener>, sources: Sources) -> Self {
        Self { mode, screener: Arc::clone(screener), sources: Some(sources), found: None }
    }

    /// Screens now if findings would refuse the run. The second time costs nothing.
    pub(crate) async fn pass(&mut self, engine: &Engine) -> Result<(), Error> {
        let sources = self.sources.take_if(|_| self.mode == ScreenMode::Refuse);
        let Some(sources) = sources else { return Ok(()) };
        let screener = Arc::clone(&self.screener);
        let read = spawn_blocking(move || {
            let texts = sources.read();
            (screener.screen_all(&texts), texts)
        });
        let (mut screening, texts) =
            read.await.map_err(|_| Error::Lost { what: "our own screening broke" })?;
        for text in &texts {
            check_if_doubtful(engine, text, &mut screening).await;
        }
        let least = self.screener.refuses_at();
        let grave = screening.findings.iter().any(|one| one.severity >= least);
        if grave || !screening.syntax_errors.is_empty() {
            return Err(Error::Screened(Box::new(screening)));
        }
        self.found = Some(screening);
        Ok(())
    }

    /// What is known by now, or will be: then with what is to be done once the program runs. Not sooner: while
    /// a sandbox is made every processor has something to do.
    pub(crate) fn begin(&mut self) -> (Advice, Option<Beside>) {
        if let Some(found) = self.found.take() {
            return (Advice::Known(found), None);
        }
        let sources = self.sources.take_if(|_| self.mode == ScreenMode::Advise);
        let Some(sources) = sources.filter(|sources| !sources.is_empty()) else {
            return (Advice::None, None);
        };
        let screener = Arc::clone(&self.screener);
        let (told, coming) = oneshot::channel();
        let read = move || {
            // A run that was dropped meanwhile wants no advice.
            told.send(screener.screen_all(&sources.read())).ok();
        };
        (Advice::Coming(coming), Some(Box::new(|| drop(spawn_blocking(read)))))
    }
}

/// Asks the language itself about a text that our grammar does not understand. A sandbox that cannot be had
/// is told by the run, whose sandbox cannot be had either.
async fn check_if_doubtful(engine: &Engine, text: &SourceText, screening: &mut Screening) {
    let doubtful = |rule: &str, source: &str| rule == PARTLY_READ && *source == *text.source;
    if screening.findings.iter().any(|one| doubtful(&one.rule, &one.source))
        && let Ok(Some(fault)) = check::syntax(engine, text).await
    {
        screening.findings.retain(|one| !doubtful(&one.rule, &one.source));
        screening.syntax_errors.push(fault);
    }
}

/// Findings that are known, or will be.
#[derive(Debug)]
pub(crate) enum Advice {
    None,
    Known(Screening),
    Coming(oneshot::Receiver<Screening>),
}

impl Advice {
    /// What is worth telling.
    pub(crate) async fn told(self) -> Option<Screening> {
        let screening = match self {
            Self::None => None,
            Self::Known(known) => Some(known),
            // Advice that broke is none; the run is none the worse.
            Self::Coming(coming) => coming.await.ok(),
        };
        screening.filter(|one| !one.is_empty())
    }
}

impl Engine {
    /// Reads a text without running it, and asks the language itself, in a sandbox, whether it is one of its
    /// programs. `source` is the name that it is told by.
    ///
    /// Must be awaited in a tokio runtime with I/O enabled.
    pub async fn screen(&self, language: &str, source: &str, text: &str) -> Screening {
        let text = SourceText {
            language: language.to_owned(),
            source: source.to_owned(),
            text: Ok(text.to_owned()),
        };
        let mut screening = self.screener().screen_all(std::slice::from_ref(&text));
        match check::syntax(self, &text).await {
            Ok(None) => {}
            Ok(Some(fault)) => {
                screening.findings.retain(|one| one.rule != PARTLY_READ);
                screening.syntax_errors.push(fault);
            }
            Err(why) => screening.syntax_unchecked = Some(why),
        }
        screening
    }
}
