//! Where a record ends in answers that are streams of them: server-sent events, and JSON by lines.
//!
//! A client waits for each record, and the next may be long in coming, so the bytes that are held back behind a record would
//! keep it waiting. Where a record ends does not depend on any value, so that to let go of it there tells nothing of one.

use belljar_jail::redact::Patterns;

/// Both ends of a line: a value that holds one may stand across two records.
const LINE_ENDS: [char; 2] = ['\r', '\n'];
const LINES: [&str; 5] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
];

/// What a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Records {
    /// Events, each of which a blank line ends.
    Events,
    /// Values of JSON, each of which a line's end ends.
    Lines,
}

impl Records {
    /// By what the host says that it is.
    pub(crate) fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("text/event-stream") {
            return Some(Self::Events);
        }
        LINES.iter().any(|known| kind.eq_ignore_ascii_case(known)).then_some(Self::Lines)
    }
}

/// Reads one body for the ends of its records.
#[derive(Debug)]
pub(crate) struct RecordReader {
    records: Option<Records>,
    before: u8,
    /// The last end of a line ended a record, too.
    ended: bool,
}

impl RecordReader {
    pub(crate) fn new(records: Option<Records>) -> Self {
        Self { records, before: b'\n', ended: false }
    }

    /// Where the last record of a piece ends, if one does and no value could stand across it.
    pub(crate) fn end(&mut self, piece: &[u8], hidden: &Patterns) -> Option<usize> {
        let records = self.records?;
        let mut end = None;
        for (at, byte) in piece.iter().enumerate() {
            if self.ends(records, *byte) {
                end = Some(at + 1);
            }
        }
        end.filter(|_| !hidden.values().any(|value| value.contains(LINE_ENDS)))
    }

    fn ends(&mut self, records: Records, byte: u8) -> bool {
        let before = std::mem::replace(&mut self.before, byte);
        match byte {
            b'\n' if before == b'\r' => {} // of one line's end with it
            b'\r' | b'\n' => {
                self.ended = match records {
                    Records::Events => matches!(before, b'\r' | b'\n'),
                    // Behind these no spelling goes on; in base64 and hexadecimal a value may have lines.
                    Records::Lines => matches!(before, b'}' | b']' | b'"'),
                }
            }
            _ => return false,
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where records end, read a byte at a time.
    fn ends(kind: &str, text: &str, value: &str) -> Vec<usize> {
        let mut hidden = Patterns::default();
        hidden.add_outside(value);
        let mut reader = RecordReader::new(Records::of(kind));
        let bytes = text.as_bytes();
        let is_end = |at: &usize| reader.end(&bytes[*at..=*at], &hidden).is_some();
        (0..bytes.len()).filter(is_end).map(|at| at + 1).collect()
    }

    #[test]
    fn a_blank_line_ends_an_event_and_a_line_a_value_of_json() {
        let events = "text/event-stream; charset=utf-8";
        assert_eq!(ends(events, "data: a\ndata: b\n\n: c\n\n", "value"), [17, 22]);
        assert_eq!(ends(events, "data: a\r\n\r\ndata", "value"), [10, 11]);
        assert_eq!(ends(events, "data: a\r\rdata\n\r\n", "value"), [9, 15, 16]);
        for kind in ["application/x-ndjson", "Application/NDJSON;v=1", "application/jsonl"] {
            assert_eq!(ends(kind, "{\"a\": 1}\n[2]\r\n\"x\"\n", "value"), [9, 13, 14, 18]);
            // A line of a dump may go on in the next.
            assert_eq!(ends(kind, "dmFsdWU\n7661\n", "value"), [] as [usize; 0]);
        }
        for other in ["text/plain", "application/json", "", "text/event-stream-of-mine"] {
            assert_eq!(ends(other, "{}\n\n", "value"), [] as [usize; 0], "{other}");
        }
    }

    #[test]
    fn a_value_of_many_lines_lets_no_record_go() {
        for value in ["first\n\nsecond", "first\rsecond"] {
            assert_eq!(ends("text/event-stream", "data: a\n\n", value), [] as [usize; 0]);
        }
    }

    #[test]
    fn a_piece_goes_to_the_end_of_its_last_record() {
        let mut reader = RecordReader::new(Some(Records::Events));
        let none = Patterns::default();
        assert_eq!(reader.end(b"data: a\n\ndata: b\n\ndata", &none), Some(18));
        assert_eq!(reader.end(b": c\n", &none), None);
        assert_eq!(reader.end(b"\n", &none), Some(1));
    }
}
