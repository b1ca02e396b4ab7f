//! Canaries: values that no honest program prints. One that comes out has been read, and carried off as
//! far as it could be.

use std::time::SystemTime;

use super::{EventSink, pattern};
use crate::model::event::{Event, Severity};
use crate::model::outcome::Stream;
use crate::model::wording;

/// Looks for values in both streams as they pass, also where one lies across two reads.
pub(crate) struct Canaries<'a> {
    values: &'a [String],
    /// The end of what has passed of each stream, short of a whole value.
    tails: [Vec<u8>; 2],
    longest: usize,
    events: Vec<Event>,
    sink: Option<EventSink>,
}

impl<'a> Canaries<'a> {
    pub(crate) fn new(values: &'a [String], sink: Option<EventSink>) -> Self {
        let longest = values.iter().map(String::len).max().unwrap_or(0);
        Self { values, tails: [Vec::new(), Vec::new()], longest, events: Vec::new(), sink }
    }

    pub(crate) fn look(&mut self, stream: Stream, bytes: &[u8]) {
        if self.values.is_empty() {
            return;
        }
        let mut text = std::mem::take(&mut self.tails[stream as usize]);
        let before = text.len();
        text.extend_from_slice(bytes);
        for (index, value) in self.values.iter().enumerate() {
            let value = value.as_bytes();
            // What ends in the old part has been seen.
            let from = (before + 1).saturating_sub(value.len());
            let found = text[from..].windows(value.len()).filter(|part| *part == value).count();
            if found > 0 {
                self.tell(index, stream, found as u64);
            }
        }
        self.tails[stream as usize] =
            text.split_off(text.len() - (self.longest - 1).min(text.len()));
    }

    fn tell(&mut self, index: usize, stream: Stream, times: u64) {
        let detail = wording::canary(index + 1, stream);
        if let Some(known) = self.events.iter_mut().find(|event| event.detail == detail) {
            known.count += times;
            return;
        }
        let event = pattern(SystemTime::now(), detail, "canary", None);
        let event = Event { severity: Severity::High, count: times, ..event };
        if let Some(sink) = &self.sink {
            sink(&event);
        }
        self.events.push(event);
    }

    pub(crate) fn finish(self) -> Vec<Event> {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(chunks: &[&str]) -> Vec<(String, u64)> {
        let values = ["canary-1234".to_owned(), "other-5678".to_owned()];
        let mut canaries = Canaries::new(&values, None);
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
    fn an_event_does_not_repeat_the_value() {
        assert!(!seen(&["canary-1234"])[0].0.contains("1234"));
    }
}
