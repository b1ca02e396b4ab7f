//! What is told of a run, without the secrets that its program was given. The streams were cleaned as they came; here it is
//! the rest of what a program chooses: names of files, arguments of calls, command lines.

use crate::audit::Secrets;
use crate::model::event::{Event, Risk, Weighed};
use crate::model::outcome::Outcome;

pub(super) fn event(secrets: &Secrets, mut event: Event) -> Event {
    let texts = [&mut event.detail, &mut event.fix, &mut event.rule];
    for text in texts.into_iter().chain(event.process.as_mut().map(|one| &mut one.command)) {
        *text = secrets.hide(text);
    }
    event
}

pub(super) fn outcome(secrets: &Secrets, mut outcome: Outcome) -> Outcome {
    let events = std::mem::take(&mut outcome.events);
    outcome.events = events.into_iter().map(|one| event(secrets, one)).collect();
    let Weighed { risk, reasons } = Risk::of(&outcome.events);
    (outcome.risk, outcome.risk_reasons) = (risk, reasons);
    for fact in &mut outcome.evidence {
        fact.found = secrets.hide(&fact.found);
    }
    for line in &mut outcome.reached {
        line.host = secrets.hide(&line.host);
    }
    for entry in outcome.recording.iter_mut().flat_map(|one| &mut one.entries) {
        entry.target = secrets.hide(&entry.target);
        entry.command = entry.command.as_deref().map(|command| secrets.hide(command));
    }
    outcome
}
