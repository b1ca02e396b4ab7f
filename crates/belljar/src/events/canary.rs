//! Canaries: values that no honest program prints. One that comes out has been read, and carried off as
//! far as it could be.

use std::time::{Duration, SystemTime};

use belljar_jail::redact::{Patterns, Scanner};
use belljar_jail::tried::Spilled;

use super::{EventSink, Tally, pattern};
use crate::model::event::{Event, Severity};
use crate::model::outcome::Stream;
use crate::model::wording;

/// Looks for values in both streams as they pass, in every spelling that is known, also where one lies across two reads.
pub(crate) struct Canaries {
    values: Patterns,
    scanners: [Scanner; 2],
    events: Vec<Event>,
    sink: Option<EventSink>,
}

impl Canaries {
    pub(crate) fn new<'a>(
        values: impl IntoIterator<Item = &'a str>,
        sink: Option<EventSink>,
    ) -> Self {
        Self { values: Patterns::new(values), scanners: <_>::default(), events: Vec::new(), sink }
    }

    pub(crate) fn look(&mut self, stream: Stream, bytes: &[u8]) {
        let mut marks = Vec::new();
        self.scanners[stream as usize].feed(&self.values, bytes, &mut marks);
        for mark in marks.into_iter().filter(|mark| !mark.is_rest) {
            self.tell(mark.value, stream);
        }
    }

    fn tell(&mut self, index: usize, stream: Stream) {
        let detail = wording::canary(index + 1, stream);
        if let Some(known) = self.events.iter_mut().find(|event| event.detail == detail) {
            known.count += 1;
            return;
        }
        let event = event(SystemTime::now(), detail);
        if let Some(sink) = &self.sink {
            sink(&event);
        }
        self.events.push(event);
    }

    pub(crate) fn finish(self) -> Vec<Event> {
        self.events
    }
}

fn event(time: SystemTime, detail: String) -> Event {
    Event { severity: Severity::Critical, ..pattern(time, detail, "canary", None) }
}

impl Tally {
    /// Takes that a keeper saw one in what an exec said; the same again says how often.
    pub(crate) fn spill(&mut self, spilled: &Spilled) {
        let stream = if spilled.stream == 0 { Stream::Stdout } else { Stream::Stderr };
        let detail = wording::canary(spilled.decoy + 1, stream);
        let same = |known: &&mut Event| known.rule == "pattern/canary" && known.detail == detail;
        if let Some(known) = self.events.iter_mut().find(same) {
            known.count = known.count.max(spilled.count);
            return;
        }
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(spilled.time_ms));
        let time = time.unwrap_or(SystemTime::UNIX_EPOCH);
        self.tell(Event { count: spilled.count, ..event(time, detail) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(chunks: &[&str]) -> Vec<(String, u64)> {
        let mut canaries = Canaries::new(["canary-1234", "other-5678"], None);
        chunks.iter().for_each(|chunk| canaries.look(Stream::Stdout, chunk.as_bytes()));
        canaries.finish().into_iter().map(|event| (event.detail, event.count)).collect()
    }

    #[test]
    fn values_are_found_across_reads_and_counted_once_each() {
        assert_eq!(seen(&["xx canary-1234 yy"]).len(), 1);
        let split: Vec<&str> = "a canary-1234 b".split_inclusive(|_: char| true).collect();
        assert_eq!(seen(&split)[0].1, 1);
        assert_eq!(seen(&["canary-12", "34canary-1234"])[0].1, 2);
        assert!(seen(&["canary-123", "5", "canary-124"]).is_empty());
    }

    #[test]
    fn a_value_is_found_in_every_spelling_and_is_critical() {
        for text in [
            "Y2FuYXJ5LTEyMzQ=",
            "63616e6172792d31323334",
            "%63%61nary-1234",
            "6361 6E61 7279 2D31 3233 34",
        ] {
            assert_eq!(seen(&[text]).len(), 1, "{text}");
        }
        let mut canaries = Canaries::new(["canary-1234"], None);
        canaries.look(Stream::Stderr, b"canary-1234");
        assert_eq!(canaries.finish()[0].severity, Severity::Critical);
    }

    #[test]
    fn an_event_does_not_repeat_the_value() {
        assert!(!seen(&["canary-1234"])[0].0.contains("1234"));
    }
}
