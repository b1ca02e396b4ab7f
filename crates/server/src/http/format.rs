//! The form of an answer, as the Accept header asks for it.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

use crate::wire::{EVENT_STREAM, JSON, NDJSON};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One document.
    Json,
    /// One JSON object a line, as it comes.
    Lines,
    /// Server-sent events.
    Events,
}

impl Format {
    /// The first form asked for that we have; JSON for everybody else. Weights are not looked at: who
    /// can read a stream and wants a document says so first.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let asked = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let kinds = asked.flat_map(|value| value.split(','));
        let mut known = kinds.filter_map(|kind| {
            let name = kind.split(';').next().unwrap_or_default().trim();
            let all = [(JSON, Self::Json), (NDJSON, Self::Lines), (EVENT_STREAM, Self::Events)];
            all.into_iter().find(|(one, _)| one.eq_ignore_ascii_case(name))
        });
        known.next().map_or(Self::Json, |(_, format)| format)
    }

    /// The same for what is always a stream: lines for those who ask for no other.
    pub(crate) fn of_stream(headers: &HeaderMap) -> Self {
        if Self::of(headers) == Self::Events { Self::Events } else { Self::Lines }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Lines => NDJSON,
            Self::Events => EVENT_STREAM,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_we_have_is_taken() {
        let of = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            Format::of(&headers)
        };
        assert_eq!(of("*/*"), Format::Json);
        assert_eq!(of("application/x-ndjson"), Format::Lines);
        assert_eq!(of("Text/Event-Stream; charset=utf-8"), Format::Events);
        assert_eq!(of("text/html, text/event-stream, application/json"), Format::Events);
        assert_eq!(Format::of(&HeaderMap::new()), Format::Json);
    }
}
