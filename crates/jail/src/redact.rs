//! Finding secrets in what programs write, however it is cut into pieces and in every spelling that is known: as it is,
//! escaped for a URL, a string or HTML, in base64 (any alignment, either alphabet), in hexadecimal (either case). What is
//! spelled otherwise (encrypted, backwards, a letter a line) is beyond this.
//!
//! [`Patterns`] are the values; a [`Scanner`] reads one stream and says where they stand; a [`Redactor`] hides them. The
//! keeper of a living sandbox uses it on what it writes down, the engine on what a run says, the egress process on what
//! leaves.

mod forms;
mod scan;
#[cfg(test)]
mod tests;

use std::fmt;

pub use scan::{Mark, Redactor, Scanner};

use forms::{Form, spelled};

/// Values that are shorter stand in too many texts by chance.
pub const LEAST_BYTES: usize = 4;
/// What stands where a secret stood. It is as long as that was, so that nothing around it moves.
pub const MASK: &[u8] = b"[secret]";
const FILLING: u8 = b'*';

/// The values to look for. They only grow: a [`Scanner`] that has begun goes on with what was added.
#[derive(Clone, Default)]
pub struct Patterns {
    values: Vec<String>,
    spellings: Vec<Spelling>,
    /// Which spellings may begin with a byte.
    begins: Vec<Vec<u32>>,
    /// So many of the last bytes are held back whatever they are, for values of which no piece may be told from other text.
    tail: usize,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Patterns({})", self.values.len())
    }
}

/// One way to write one value.
#[derive(Clone)]
struct Spelling {
    /// The place of the value among all.
    value: usize,
    kind: Kind,
    units: Vec<Unit>,
    /// The letter before and after them has some bits of the value too.
    before: bool,
    after: bool,
    /// Hidden as a whole or not at all. Whoever does not know a value, and sees which of its guesses at a beginning are
    /// treated differently, finds it letter by letter.
    whole_only: bool,
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
    Letter(Vec<Form>),
    /// The value of six bits, in either alphabet.
    Six(u8),
    /// The value of four bits, in either case.
    Four(u8),
}

impl Patterns {
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut patterns = Self::default();
        for value in values {
            patterns.add(value);
        }
        patterns
    }

    /// One more, unless it is known or too short; its place.
    pub fn add(&mut self, value: &str) -> Option<usize> {
        if value.len() < LEAST_BYTES {
            return None;
        }
        if let Some(known) = self.values.iter().position(|one| one == value) {
            // Whoever has it need not guess.
            for spelling in self.spellings.iter_mut().filter(|one| one.value == known) {
                spelling.whole_only = false;
            }
            return Some(known);
        }
        self.begins.resize(256, Vec::new());
        let place = self.values.len();
        self.values.push(value.to_owned());
        for spelling in Spelling::all(place, value) {
            let number = u32::try_from(self.spellings.len()).ok()?;
            for byte in 0..=u8::MAX {
                if spelling.may_begin_with(byte) {
                    self.begins[usize::from(byte)].push(number);
                }
            }
            self.spellings.push(spelling);
        }
        Some(place)
    }

    /// One more that programs do not have, and must not learn by what becomes of their guesses: it is hidden where all of
    /// it stands, and no piece of it is treated in a way of its own.
    pub fn add_outside(&mut self, value: &str) -> Option<usize> {
        let is_new = !self.values.iter().any(|one| one == value);
        let place = self.add(value)?;
        if is_new {
            for spelling in self.spellings.iter_mut().filter(|one| one.value == place) {
                spelling.whole_only = true;
            }
            // As a text it is longest: six bytes a letter are more than base64 has, and as many as a dump in hexadecimal.
            let longest =
                self.spellings.iter().filter(|one| one.whole_only).map(Spelling::most_bytes);
            self.tail = longest.max().unwrap_or(0);
        }
        Some(place)
    }

    /// So many bytes are held back at the end of a stream that goes on.
    pub fn tail(&self) -> usize {
        self.tail
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Where they stand in a whole text.
    pub fn find(&self, text: &[u8]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut scanner = Scanner::default();
        scanner.feed(self, text, &mut marks);
        marks.iter_mut().for_each(|mark| self.widen(text, mark));
        marks
    }

    /// The same for a text that was cut at its end: a piece that is left of a value there counts too.
    pub fn find_before_cut(&self, text: &[u8]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut scanner = Scanner::default();
        scanner.feed(self, text, &mut marks);
        scanner.cut(self, &mut marks);
        marks.iter_mut().for_each(|mark| self.widen(text, mark));
        marks
    }

    /// The same for a text that was cut at its beginning.
    pub fn find_after_cut(&self, text: &[u8]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut scanner = Scanner::after_cut(self);
        scanner.feed(self, text, &mut marks);
        marks.iter_mut().for_each(|mark| self.widen(text, mark));
        marks
    }

    /// A letter of base64 before a value has bits of it too.
    fn widen(&self, text: &[u8], mark: &mut Mark) {
        let before = usize::try_from(mark.start).ok().and_then(|at| at.checked_sub(1));
        if mark.before && before.and_then(|at| text.get(at)).is_some_and(|one| six(*one).is_some())
        {
            mark.start -= 1;
        }
    }

    /// A text without them, each as `[secret]`.
    pub fn hide(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        replaced(text, self.find(text.as_bytes()))
    }

    /// Bytes of the same length without them; what is cut at their end counts as cut.
    pub fn mask(&self, bytes: &[u8]) -> Vec<u8> {
        let (mut redactor, mut out) = (Redactor::default(), Vec::with_capacity(bytes.len()));
        redactor.push(self, bytes, &mut out);
        redactor.finish(self, &mut out);
        out
    }

    /// Both sides of a text whose middle is gone.
    pub fn hide_at_cut(&self, before: &str, after: &str) -> (String, String) {
        if self.is_empty() {
            return (before.to_owned(), after.to_owned());
        }
        let at_end = replaced(before, self.find_before_cut(before.as_bytes()));
        (at_end, replaced(after, self.find_after_cut(after.as_bytes())))
    }
}

/// The text with a mask for each mark; those that overlap are one.
fn replaced(text: &str, mut marks: Vec<Mark>) -> String {
    if marks.is_empty() {
        return text.to_owned();
    }
    marks.sort_by_key(|mark| mark.start);
    let bytes = text.as_bytes();
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    let (mut hidden, mut done) = (Vec::new(), 0);
    for mark in marks {
        let (start, end) = (place(mark.start), place(mark.end));
        // The last bits of a value belong to what was hidden just before.
        if start >= done && !(mark.is_rest && start == done && done > 0) {
            hidden.extend_from_slice(&bytes[done..start]);
            hidden.extend_from_slice(MASK);
        }
        done = done.max(end);
    }
    hidden.extend_from_slice(&bytes[done..]);
    String::from_utf8_lossy(&hidden).into_owned()
}

impl Spelling {
    /// Every way that is known.
    fn all(value: usize, secret: &str) -> Vec<Self> {
        let bytes = secret.as_bytes();
        let text = secret.chars().map(|letter| Unit::Letter(spelled(letter))).collect();
        let hex = bytes.iter().flat_map(|byte| [Unit::Four(byte >> 4), Unit::Four(byte & 15)]);
        let plain = |kind, units| Self {
            value,
            kind,
            units,
            before: false,
            after: false,
            whole_only: false,
        };
        let mut all = vec![plain(Kind::Text, text), plain(Kind::Hex, hex.collect())];
        all.extend((0..3).map(|offset| Self::base64(value, bytes, offset)));
        all
    }

    /// As it stands in base64 behind so many other bytes, whatever those are: the letters that have bits of the value
    /// alone.
    fn base64(value: usize, bytes: &[u8], offset: usize) -> Self {
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
            value,
            kind: Kind::Base64,
            units: (begin.div_ceil(6)..end / 6).map(six).collect(),
            before: begin % 6 != 0,
            after: end % 6 != 0,
            whole_only: false,
        }
    }

    /// How long it may be, without what stands between its letters.
    fn most_bytes(&self) -> usize {
        let longest = |unit: &Unit| match unit {
            Unit::Letter(forms) => {
                forms.iter().map(|form| usize::from(form.len)).max().unwrap_or(1)
            }
            Unit::Six(_) | Unit::Four(_) => 1,
        };
        self.units.iter().map(longest).sum()
    }

    fn may_begin_with(&self, byte: u8) -> bool {
        match self.units.first() {
            Some(Unit::Letter(forms)) => forms.iter().any(|form| form.has(0, byte)),
            Some(Unit::Six(value)) => six(byte) == Some(*value),
            Some(Unit::Four(value)) => four(byte) == Some(*value),
            None => false,
        }
    }

    /// A piece of so many units is taken for the value where a text is cut, and is not shown before it is known what
    /// follows.
    fn least_piece(&self) -> usize {
        match self.kind {
            Kind::Text => 4,
            Kind::Base64 => 6,
            Kind::Hex => 8,
        }
    }

    /// What programs put between the letters: the ends of lines, and what parts the bytes of a dump.
    fn is_between(&self, byte: u8) -> bool {
        match self.kind {
            Kind::Text => false,
            Kind::Base64 => matches!(byte, b'\n' | b'\r'),
            Kind::Hex => matches!(byte, b'\n' | b'\r' | b' ' | b':' | b'-' | b',' | b'\\' | b'x'),
        }
    }
}

/// The six bits of a letter, in the alphabet of RFC 4648 or in the one for URLs.
fn six(letter: u8) -> Option<u8> {
    match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

fn four(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
