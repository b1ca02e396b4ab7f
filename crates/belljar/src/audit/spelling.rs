//! How a secret may stand in a text: as it is, escaped for a URL or a string, in base64, in hexadecimal. What is
//! spelled otherwise (encrypted, backwards, a letter a line) is beyond this.

use std::ops::Range;

/// A piece of a secret at a cut is taken for the secret from so many units on.
const LEAST_PIECE: usize = 4;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// One way to write one secret.
#[derive(Clone)]
pub(super) struct Spelling {
    units: Vec<Unit>,
    kind: Kind,
    /// A letter before and after them has some bits of the secret too.
    before: bool,
    after: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Base64,
    Hex,
}

/// The smallest part of a spelling.
#[derive(Clone)]
enum Unit {
    /// One of these.
    Letter(Vec<String>),
    /// The value of six bits, in either alphabet.
    Six(u8),
    /// The value of four bits, in either case.
    Four(u8),
}

impl Spelling {
    /// Every way that is known.
    pub(super) fn all(secret: &str) -> Vec<Self> {
        let bytes = secret.as_bytes();
        let text = secret.chars().map(|letter| Unit::Letter(spelled(letter))).collect();
        let hex = bytes.iter().flat_map(|byte| [Unit::Four(byte >> 4), Unit::Four(byte & 15)]);
        let mut all = vec![Self::new(Kind::Text, text), Self::new(Kind::Hex, hex.collect())];
        all.extend((0..3).map(|offset| Self::base64(bytes, offset)));
        all
    }

    fn new(kind: Kind, units: Vec<Unit>) -> Self {
        Self { units, kind, before: false, after: false }
    }

    /// As it stands in base64 behind so many other bytes, whatever those are: the letters that have bits of the
    /// secret alone.
    fn base64(bytes: &[u8], offset: usize) -> Self {
        let bit = |at: usize| {
            let byte = bytes.get(at / 8).copied().unwrap_or(0);
            byte >> (7 - at % 8) & 1
        };
        let (begin, end) = (offset * 8, (offset + bytes.len()) * 8);
        let six = |letter: usize| {
            let bits = (0..6).map(|place| bit(letter * 6 + place - begin));
            Unit::Six(bits.fold(0, |value, bit| value << 1 | bit))
        };
        Self {
            units: (begin.div_ceil(6)..end / 6).map(six).collect(),
            kind: Kind::Base64,
            before: begin % 6 != 0,
            after: end % 6 != 0,
        }
    }

    /// Where it stands in a text, from `at` on.
    pub(super) fn find(&self, text: &[u8], at: usize) -> Option<Range<usize>> {
        (at..text.len()).find_map(|start| {
            let end = self.eat(&self.units, text, start).ok()?;
            Some(self.with_neighbours(text, start..end))
        })
    }

    /// Where its beginning stands at the very end of a text.
    pub(super) fn begun_at_end(&self, text: &[u8]) -> Option<usize> {
        let farthest = self.units.len() * MOST_BYTES;
        (text.len().saturating_sub(farthest)..text.len()).find(|start| {
            matches!(self.eat(&self.units, text, *start), Err(eaten) if eaten >= LEAST_PIECE)
        })
    }

    /// How much of a text's beginning is its end.
    pub(super) fn ended_at_start(&self, text: &[u8]) -> Option<usize> {
        let last = self.units.len().saturating_sub(LEAST_PIECE);
        let end = (1..=last).find_map(|from| self.eat(&self.units[from..], text, 0).ok())?;
        Some(self.with_neighbours(text, 0..end).end)
    }

    /// Reads the units from `at` on: where they end, or how many there were if the text ended too soon (zero if
    /// there was something else).
    fn eat(&self, units: &[Unit], text: &[u8], at: usize) -> Result<usize, usize> {
        let mut place = at;
        for (done, unit) in units.iter().enumerate() {
            while done > 0 && text.get(place).is_some_and(|byte| self.is_between(*byte)) {
                place += 1;
            }
            let rest = text.get(place..).unwrap_or_default();
            match unit.eat(rest) {
                Some(eaten) => place += eaten,
                None if rest.len() < MOST_BYTES && unit.may_begin(rest) => return Err(done),
                None => return Err(0),
            }
        }
        Ok(place)
    }

    /// What programs put between the letters: the ends of lines, and what parts the bytes of a dump.
    fn is_between(&self, byte: u8) -> bool {
        match self.kind {
            Kind::Text => false,
            Kind::Base64 => matches!(byte, b'\n' | b'\r'),
            Kind::Hex => matches!(byte, b'\n' | b'\r' | b' ' | b':' | b'-' | b',' | b'\\' | b'x'),
        }
    }

    fn with_neighbours(&self, text: &[u8], found: Range<usize>) -> Range<usize> {
        let is_letter = |at: usize| text.get(at).is_some_and(|byte| six(*byte).is_some());
        let start = found.start.wrapping_sub(1);
        let start = if self.before && is_letter(start) { start } else { found.start };
        let end = if self.after && is_letter(found.end) { found.end + 1 } else { found.end };
        start..end
    }
}

/// No unit takes more: a letter of four bytes, each as `%F0`.
const MOST_BYTES: usize = 12;

impl Unit {
    /// How many bytes of the text it takes, if it stands there.
    fn eat(&self, text: &[u8]) -> Option<usize> {
        match self {
            Self::Letter(forms) => forms.iter().find_map(|form| {
                let there = text.get(..form.len())?;
                (there == form.as_bytes() || is_escape(form, there)).then_some(form.len())
            }),
            Self::Six(value) => (six(*text.first()?)? == *value).then_some(1),
            Self::Four(value) => {
                let digit = char::from(*text.first()?).to_digit(16)?;
                (digit == u32::from(*value)).then_some(1)
            }
        }
    }

    /// Whether a text that ends here could have gone on with it.
    fn may_begin(&self, text: &[u8]) -> bool {
        match self {
            Self::Letter(forms) => forms.iter().any(|form| {
                let there = form.as_bytes().get(..text.len());
                there.is_some_and(|there| there.eq_ignore_ascii_case(text))
            }),
            Self::Six(_) | Self::Four(_) => text.is_empty(),
        }
    }
}

/// Digits of an escape may be large or small.
fn is_escape(form: &str, there: &[u8]) -> bool {
    (form.starts_with('%') || form.starts_with("\\u"))
        && form.as_bytes().eq_ignore_ascii_case(there)
}

/// The forms of one letter: itself, as in a URL, as in a string of JSON or C.
fn spelled(letter: char) -> Vec<String> {
    let mut bytes = [0; 4];
    let percent = letter.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02x}"));
    let mut forms =
        vec![letter.to_string(), percent.collect(), format!("\\u{:04x}", letter as u32)];
    match letter {
        ' ' => forms.push("+".to_owned()),
        '\n' => forms.push("\\n".to_owned()),
        '\r' => forms.push("\\r".to_owned()),
        '\t' => forms.push("\\t".to_owned()),
        '"' | '\'' | '\\' | '/' => forms.push(format!("\\{letter}")),
        _ => {}
    }
    forms
}

/// The six bits of a letter, in the alphabet of RFC 4648 or in the one for URLs.
fn six(letter: u8) -> Option<u8> {
    let letter = match letter {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    };
    let place = BASE64.iter().position(|known| *known == letter)?;
    u8::try_from(place).ok()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    use super::*;

    const SECRET: &str = "s3cr&t ?ü/~~ß>?";

    fn found(text: &str) -> Option<String> {
        let all = Spelling::all(SECRET);
        let found = all.iter().find_map(|one| one.find(text.as_bytes(), 0))?;
        Some(format!("{}|{}", &text[..found.start], &text[found.end..]))
    }

    #[test]
    fn base64_is_seen_through_wherever_it_begins() {
        for before in 0..7 {
            for after in 0..4 {
                let bytes = format!("{}{SECRET}{}", "\0".repeat(before), "\0".repeat(after));
                for text in [STANDARD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
                    let left = found(&text).unwrap_or_else(|| panic!("{text}"));
                    // What is left are the letters of the zeros, and the filling.
                    assert!(
                        left.chars().all(|one| matches!(one, 'A' | '=' | '|')),
                        "{text}: {left}"
                    );
                }
            }
        }
    }

    #[test]
    fn lines_in_base64_and_gaps_in_dumps_do_not_hide_it() {
        let text = STANDARD.encode(format!("xxx{SECRET}"));
        let lines: Vec<&str> =
            (0..text.len()).step_by(5).map(|at| &text[at..text.len().min(at + 5)]).collect();
        assert!(found(&lines.join("\n")).is_some() && found(&lines.join("\r\n")).is_some());
        let bytes: Vec<String> = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        for gap in ["", " ", ":", "\\x", ", 0x", "\n"] {
            // Of "0x" the zero belongs to the number.
            let gap = gap.trim_end_matches("0x");
            assert_eq!(found(&bytes.join(gap)).as_deref(), Some("|"), "{gap:?}");
            assert_eq!(
                found(&bytes.join(gap).to_uppercase().replace('X', "x")).as_deref(),
                Some("|")
            );
        }
    }

    #[test]
    fn escapes_are_seen_through() {
        let percent = |letter: char| {
            letter.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
        };
        let all: String = SECRET.chars().map(percent).collect();
        let some: String = SECRET
            .chars()
            .map(|one| match one {
                ' ' => "+".to_owned(),
                one if one.is_ascii_alphanumeric() => one.to_string(),
                one => percent(one).to_lowercase(),
            })
            .collect();
        let json = SECRET.replace('ü', "\\u00fc").replace('ß', "\\u00DF").replace('/', "\\/");
        for text in [SECRET.to_owned(), all, some, json] {
            assert_eq!(found(&format!("a{text}b")).as_deref(), Some("a|b"), "{text}");
        }
    }

    #[test]
    fn what_is_like_it_is_left_alone() {
        for text in ["", "s3cr&t ?u/~~ss>?", "S3CR&T ?ü/~~ß>?", "czNjcg==", "7333", "s3cr%2"] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn a_piece_at_a_cut_is_seen_in_every_spelling() {
        let base64 = STANDARD.encode(SECRET);
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let url = "s3cr%26t+%3F%c3%bc";
        for text in [base64.as_str(), hex.as_str(), url] {
            let all = Spelling::all(SECRET);
            let begun =
                |cut: usize| all.iter().find_map(|one| one.begun_at_end(text[..cut].as_bytes()));
            for cut in 8..text.len() - 3 {
                assert_eq!(begun(cut), Some(0), "{}", &text[..cut]);
            }
        }
        for text in [base64.trim_end_matches('='), hex.as_str()] {
            let all = Spelling::all(SECRET);
            let ended =
                |cut: usize| all.iter().find_map(|one| one.ended_at_start(text[cut..].as_bytes()));
            for cut in 3..text.len() - 8 {
                assert_eq!(ended(cut), Some(text.len() - cut), "{}", &text[cut..]);
            }
        }
    }
}
