//! What a call came to so far, in bounded memory. Everything here was said by the code's own side.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::capture::Capture;
use crate::model::outcome::Stream;
use crate::model::sandbox::{CodeError, RichResult};

/// Results of one call.
pub(super) const MAX_RESULTS: usize = 100;
/// All forms of all results of a call, as they travel.
pub(super) const MAX_RESULT_BYTES: usize = 10 << 20;
/// One picture.
pub(super) const MAX_IMAGE_BYTES: usize = 5 << 20;
/// Forms of one result, and letters of a form's name.
const MAX_FORMS: usize = 32;
const MAX_NAME_BYTES: usize = 200;

/// A message of our program. Which fields are there depends on what it tells.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Told {
    pub begin: bool,
    /// It takes an interrupt.
    pub heard: bool,
    pub end: bool,
    pub error: Option<CodeError>,
    /// Of bash: the status of the last command, and whether an interrupt ended it.
    pub status: Option<i32>,
    pub stopped: Option<u8>,
    main: bool,
    dropped: Vec<String>,
    pub result: Option<BTreeMap<String, Box<RawValue>>>,
}

#[derive(Debug)]
pub(super) struct Gathered {
    stdout: Kept,
    stderr: Kept,
    pub results: Vec<RichResult>,
    result_bytes: usize,
    pub dropped_results: u64,
}

#[derive(Debug)]
struct Kept {
    capture: Capture,
    /// The beginning of a character whose end has not come.
    unfinished: Vec<u8>,
}

impl Gathered {
    pub(super) fn new(kept_bytes: u64) -> Self {
        let kept = || Kept { capture: Capture::new(kept_bytes), unfinished: Vec::new() };
        Self {
            stdout: kept(),
            stderr: kept(),
            results: Vec::new(),
            result_bytes: 0,
            dropped_results: 0,
        }
    }

    /// Keeps output, and gives what of it is whole characters.
    pub(super) fn output(&mut self, stream: Stream, bytes: &[u8]) -> String {
        let kept = self.kept(stream);
        kept.capture.push(bytes);
        kept.unfinished.extend_from_slice(bytes);
        let whole = whole_characters(&kept.unfinished);
        let rest = kept.unfinished.split_off(whole);
        let text = String::from_utf8_lossy(&kept.unfinished).into_owned();
        kept.unfinished = rest;
        text
    }

    pub(super) fn bytes(&self) -> u64 {
        self.stdout.capture.total_bytes().saturating_add(self.stderr.capture.total_bytes())
    }

    fn kept(&mut self, stream: Stream) -> &mut Kept {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Keeps a result as far as there is room; it is given back as it was kept.
    pub(super) fn result(&mut self, told: Told) -> Option<&RichResult> {
        let forms = told.result?;
        if self.results.len() >= MAX_RESULTS || self.result_bytes >= MAX_RESULT_BYTES {
            self.dropped_results += 1;
            return None;
        }
        let dropped = told.dropped.into_iter().take(MAX_FORMS).map(cut).collect();
        let mut result = RichResult { main: told.main, data: BTreeMap::new(), dropped };
        for (mime, form) in forms.into_iter().take(MAX_FORMS) {
            let bytes = form.get().len();
            let is_image = mime.starts_with("image/") && mime != "image/svg+xml";
            let is_large = is_image && bytes / 4 * 3 > MAX_IMAGE_BYTES
                || self.result_bytes + bytes > MAX_RESULT_BYTES;
            // Deeper than anybody should be made to read.
            let value = serde_json::from_str(form.get());
            match value {
                Ok(value) if !is_large && mime.len() <= MAX_NAME_BYTES => {
                    self.result_bytes += bytes;
                    result.data.insert(mime, value);
                }
                _ => result.dropped.push(format!("{} of {bytes} bytes", cut(mime))),
            }
        }
        // The value of the last expression comes first, whatever was shown before.
        let at = if result.main { 0 } else { self.results.len() };
        self.results.insert(at, result);
        self.results.get(at)
    }

    /// Both streams as text, and whether something of them was dropped.
    pub(super) fn finish(self) -> ((String, bool), (String, bool), Vec<RichResult>, u64) {
        let told = |kept: Kept| {
            let captured = kept.capture.finish();
            (captured.text(), captured.dropped_bytes > 0)
        };
        (told(self.stdout), told(self.stderr), self.results, self.dropped_results)
    }
}

fn cut(mut name: String) -> String {
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES).rev().find(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or(0));
    }
    name
}

/// How many bytes to leave for later: the last character may not have come whole.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let begin = (tail..bytes.len()).rev().find(|at| bytes[*at] & 0xC0 != 0x80);
    match begin {
        Some(at) if std::str::from_utf8(&bytes[at..]).is_err_and(|e| e.error_len().is_none()) => at,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> Told {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn characters_are_told_whole() {
        let mut gathered = Gathered::new(100);
        let bytes = "aé𝄞b".as_bytes();
        let text: String =
            bytes.iter().map(|byte| gathered.output(Stream::Stdout, &[*byte])).collect();
        assert_eq!(text, "aé𝄞b");
        assert_eq!(gathered.output(Stream::Stderr, b"\xff\x80z\xe2\x82"), "\u{fffd}\u{fffd}z");
        assert_eq!(gathered.output(Stream::Stderr, b"\xac"), "€");
        assert_eq!(gathered.finish().0.0, "aé𝄞b");
    }

    #[test]
    fn results_are_bounded_in_number_and_bytes_and_what_is_dropped_is_told() {
        let mut gathered = Gathered::new(100);
        let image = "A".repeat(MAX_IMAGE_BYTES / 3 * 4 + 100);
        let json = format!(r#"{{"result":{{"text/plain":"x","image/png":"{image}"}}}}"#);
        let kept = gathered.result(told(&json)).unwrap();
        assert!(kept.data.contains_key("text/plain") && !kept.data.contains_key("image/png"));
        assert!(kept.dropped[0].starts_with("image/png of "), "{:?}", kept.dropped);
        let half = format!(r#"{{"result":{{"text/html":"{}"}}}}"#, "h".repeat(6 << 20));
        assert!(gathered.result(told(&half)).unwrap().dropped.is_empty());
        assert_eq!(gathered.result(told(&half)).unwrap().dropped.len(), 1);
        for _ in 0..MAX_RESULTS {
            gathered.result(told(r#"{"result":{"text/plain":"y"}}"#));
        }
        gathered.result(told(r#"{"result":{},"main":true}"#));
        assert_eq!((gathered.results.len(), gathered.dropped_results), (MAX_RESULTS, 4));
    }

    #[test]
    fn the_last_value_comes_first_and_depth_is_dropped() {
        let mut gathered = Gathered::new(100);
        gathered.result(told(r#"{"result":{"text/plain":"shown"}}"#));
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let main =
            format!(r#"{{"main":true,"result":{{"text/plain":"v","application/json":{deep}}}}}"#);
        gathered.result(told(&main));
        assert!(gathered.results[0].main && !gathered.results[1].main);
        assert_eq!(gathered.results[0].dropped, ["application/json of 2000 bytes"]);
    }
}
