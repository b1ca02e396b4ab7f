//! Reading one stream, byte by byte, with every beginning of a value kept in mind until it is one or is none.

use super::{FILLING, Kind, MASK, Patterns, Spelling, Unit, four, six};

/// Line ends and the like between two letters.
const MOST_BETWEEN: u8 = 8;
/// From so many on, beginnings that have come to the same are made one.
const MANY: usize = 16;

/// Where a value stands, by offsets from the beginning of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub start: u64,
    pub end: u64,
    /// The place of the value in its [`Patterns`].
    pub value: usize,
    /// The letter before it has bits of it too, if it is one of base64.
    pub(super) before: bool,
    /// Nothing but the last bits of a value that was told already.
    pub is_rest: bool,
}

/// A beginning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    spelling: u32,
    unit: u32,
    /// Forms of the letter that are still possible, a bit for each, and how far they have come.
    forms: u16,
    at: u8,
    /// What stood between this letter and the one before; a zero that may belong to `0x`.
    between: u8,
    zero: bool,
    start: u64,
}

/// What has been read of one stream.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    threads: Vec<Thread>,
    next: Vec<Thread>,
    /// Bytes read so far.
    at: u64,
}

impl Scanner {
    /// One that begins in the middle of things.
    pub(super) fn after_cut(patterns: &Patterns) -> Self {
        let mut scanner = Self::default();
        let all = (0u32..).zip(&patterns.spellings);
        for (number, spelling) in all.filter(|(_, spelling)| !spelling.whole_only) {
            let last = spelling.units.len().saturating_sub(spelling.least_piece());
            for unit in 1..=last {
                let unit = u32::try_from(unit).unwrap_or(u32::MAX);
                scanner.threads.push(Thread::new(number, unit, 0));
            }
        }
        scanner
    }

    /// Reads on, and tells what is whole.
    pub fn feed(&mut self, patterns: &Patterns, bytes: &[u8], marks: &mut Vec<Mark>) {
        if patterns.is_empty() {
            self.at += bytes.len() as u64;
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.threads.is_empty() {
                // Nothing has begun: on to the next byte that could be a beginning.
                let begins = |byte: &u8| !patterns.begins[usize::from(*byte)].is_empty();
                let skipped = rest.iter().position(begins).unwrap_or(rest.len());
                self.at += skipped as u64;
                rest = &rest[skipped..];
            }
            let Some((byte, later)) = rest.split_first() else { return };
            self.step(patterns, *byte, marks);
            rest = later;
        }
    }

    fn step(&mut self, patterns: &Patterns, byte: u8, marks: &mut Vec<Mark>) {
        let known = marks.len();
        let end = self.at + 1;
        let mut next = std::mem::take(&mut self.next);
        let begun = patterns.begins[usize::from(byte)].iter();
        let begun = begun.map(|number| Thread::new(*number, 0, self.at));
        for thread in self.threads.drain(..).chain(begun) {
            let Some(spelling) = patterns.spellings.get(thread.spelling as usize) else { continue };
            if let Some(mark) = thread.step(spelling, byte, end, &mut next) {
                let told = |one: &Mark| one.value == mark.value && one.is_rest == mark.is_rest;
                match marks[known..].iter_mut().find(|one| told(one)) {
                    Some(same) => same.start = same.start.min(mark.start),
                    None => marks.push(mark),
                }
            }
        }
        if next.len() > MANY {
            // The earliest of those that have come to the same is the one that counts.
            next.sort_unstable();
            next.dedup_by(|one, kept| Thread { start: 0, ..*one } == Thread { start: 0, ..*kept });
        }
        (self.next, self.threads) = (std::mem::take(&mut self.threads), next);
        self.at = end;
    }

    /// The stream ends here: pieces that are long enough are told as the value.
    pub(super) fn cut(&mut self, patterns: &Patterns, marks: &mut Vec<Mark>) {
        for thread in self.threads.drain(..) {
            let Some(spelling) = patterns.spellings.get(thread.spelling as usize) else { continue };
            if !spelling.whole_only && thread.is_long(spelling) && !thread.is_whole(spelling) {
                marks.push(thread.mark(spelling, self.at, false));
            }
        }
    }

    /// Where the earliest beginning stands that may still become a value.
    fn earliest(&self, patterns: &Patterns, long_only: bool) -> u64 {
        let waiting = self.threads.iter().filter(|thread| {
            let spelling = patterns.spellings.get(thread.spelling as usize);
            spelling.is_some_and(|spelling| {
                let counts = !long_only || thread.is_long(spelling);
                !spelling.whole_only && !thread.is_whole(spelling) && counts
            })
        });
        waiting.map(|thread| thread.start).min().unwrap_or(self.at)
    }
}

impl Thread {
    fn new(spelling: u32, unit: u32, start: u64) -> Self {
        Self { spelling, unit, forms: u16::MAX, at: 0, between: 0, zero: false, start }
    }

    fn is_long(&self, spelling: &Spelling) -> bool {
        self.unit as usize >= spelling.least_piece()
    }

    /// All of it was there; only the letter after it may have bits of it too.
    fn is_whole(&self, spelling: &Spelling) -> bool {
        self.unit as usize >= spelling.units.len()
    }

    fn mark(&self, spelling: &Spelling, end: u64, is_rest: bool) -> Mark {
        let Self { start, .. } = *self;
        let before = spelling.before && !is_rest;
        Mark { start, end, value: spelling.value, before, is_rest }
    }

    /// Takes one byte: what it may still become goes to `next`, and what it is now is told.
    fn step(self, spelling: &Spelling, byte: u8, end: u64, next: &mut Vec<Self>) -> Option<Mark> {
        let Some(unit) = spelling.units.get(self.unit as usize) else {
            let rest = Self { start: end - 1, ..self };
            return six(byte).map(|_| rest.mark(spelling, end, true));
        };
        let taken = match unit {
            Unit::Letter(forms) => {
                let has = |number: &usize| {
                    self.forms >> number & 1 == 1
                        && forms.get(*number).is_some_and(|form| form.has(self.at, byte))
                };
                let (mut left, mut whole) = (0, false);
                for number in (0..forms.len().min(16)).filter(has) {
                    if forms[number].len == self.at + 1 {
                        whole = true;
                    } else {
                        left |= 1 << number;
                    }
                }
                if left != 0 {
                    next.push(Self { forms: left, at: self.at + 1, ..self });
                }
                whole
            }
            Unit::Six(value) => {
                self.stay(spelling, byte, next);
                six(byte) == Some(*value)
            }
            Unit::Four(value) => {
                self.stay(spelling, byte, next);
                !self.zero && four(byte) == Some(*value)
            }
        };
        taken.then_some(())?;
        let on = Self { unit: self.unit + 1, ..Self::new(self.spelling, 0, self.start) };
        let is_whole = on.is_whole(spelling);
        if !is_whole || spelling.after {
            next.push(on);
        }
        is_whole.then(|| on.mark(spelling, end, false))
    }

    /// What stands between two letters leaves it where it is.
    fn stay(self, spelling: &Spelling, byte: u8, next: &mut Vec<Self>) {
        if self.unit == 0 || self.between >= MOST_BETWEEN {
            return;
        }
        let stayed = Self { between: self.between + 1, zero: false, ..self };
        if self.zero {
            // Of `0x` the x.
            if matches!(byte, b'x' | b'X') {
                next.push(stayed);
            }
        } else if spelling.is_between(byte) {
            next.push(stayed);
        } else if spelling.kind == Kind::Hex && self.between > 0 && byte == b'0' {
            next.push(Self { zero: true, ..stayed });
        }
    }
}

/// One stream without the values. What may be the beginning of one is held back until it is known.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    scanner: Scanner,
    /// What was read and not yet given.
    held: Vec<u8>,
    marks: Vec<Mark>,
}

impl Redactor {
    /// Reads on; what may be shown goes to `out`.
    pub fn push(&mut self, patterns: &Patterns, bytes: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() && patterns.is_empty() {
            self.scanner.at += bytes.len() as u64;
            out.extend_from_slice(bytes);
            return;
        }
        self.held.extend_from_slice(bytes);
        self.scanner.feed(patterns, bytes, &mut self.marks);
        let earliest = self.scanner.earliest(patterns, false);
        let tail = self.scanner.at.saturating_sub(patterns.tail() as u64);
        self.give(earliest.min(tail), out);
    }

    /// From now on with other values: what is held back is read again.
    pub fn renew(&mut self, patterns: &Patterns) {
        let given = self.given();
        self.scanner = Scanner { at: given, ..Scanner::default() };
        self.scanner.feed(patterns, &self.held, &mut self.marks);
    }

    /// Whether something is held back that [`Self::release`] would give.
    pub fn holds_little(&self, patterns: &Patterns) -> bool {
        !self.held.is_empty() && self.scanner.earliest(patterns, true) > self.given()
    }

    /// Nothing has come for a while: gives what is held back, but for what is too much of a value to be chance. What
    /// follows is still hidden if it turns out to be one.
    pub fn release(&mut self, patterns: &Patterns, out: &mut Vec<u8>) {
        let earliest = self.scanner.earliest(patterns, true);
        self.give(earliest, out);
    }

    /// The stream has ended: gives all that is left.
    pub fn finish(&mut self, patterns: &Patterns, out: &mut Vec<u8>) {
        self.scanner.cut(patterns, &mut self.marks);
        self.give(self.scanner.at, out);
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Everything before this was given.
    fn given(&self) -> u64 {
        self.scanner.at - self.held.len() as u64
    }

    /// Gives what stands before an offset, and what is hidden anyway.
    fn give(&mut self, before: u64, out: &mut Vec<u8>) {
        if self.marks.is_empty() && before <= self.given() {
            return;
        }
        let begin = self.given();
        let mut marks = std::mem::take(&mut self.marks);
        for mark in &mut marks {
            let neighbour =
                (mark.start.checked_sub(begin + 1)).and_then(|at| usize::try_from(at).ok());
            let neighbour = neighbour.and_then(|at| self.held.get(at));
            if mark.before && neighbour.is_some_and(|byte| six(*byte).is_some()) {
                mark.start -= 1;
            }
            mark.start = mark.start.max(begin);
        }
        marks.sort_by_key(|mark| mark.start);
        let (mut hidden, mut end) = (Vec::<(u64, u64)>::new(), before);
        for mark in &marks {
            match hidden.last_mut() {
                Some(last) if mark.start < last.1 => last.1 = last.1.max(mark.end),
                _ => hidden.push((mark.start, mark.end)),
            }
        }
        for (start, stop) in &hidden {
            if *start <= end {
                end = end.max(*stop);
            }
        }
        // What is marked behind something that waits, waits with it.
        self.marks = marks.into_iter().filter(|mark| mark.end > end).collect();
        let place = |at: u64| usize::try_from(at.saturating_sub(begin)).unwrap_or(usize::MAX);
        let count = place(end).min(self.held.len());
        let given: Vec<u8> = self.held.drain(..count).collect();
        let mut done = 0;
        for (start, stop) in hidden {
            let (start, stop) = (place(start).min(count), place(stop).min(count));
            out.extend_from_slice(&given[done..start.max(done)]);
            mask(stop - start.max(done), out);
            done = done.max(stop);
        }
        out.extend_from_slice(&given[done..]);
    }
}

/// As long as what it stands for.
fn mask(length: usize, out: &mut Vec<u8>) {
    if length >= MASK.len() {
        out.extend_from_slice(MASK);
        out.resize(out.len() + length - MASK.len(), FILLING);
    } else {
        out.resize(out.len() + length, FILLING);
    }
}
