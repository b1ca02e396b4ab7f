//! Decoys in what an exec says: values that stand in its variables, and that no honest program prints.

use std::rc::Rc;

use crate::notify::now_ms;
use crate::redact::{Patterns, Scanner};
use crate::tried::Spilled;

/// Looks at both streams of one exec, before anything is hidden in them.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    decoys: Rc<Patterns>,
    scanners: [Scanner; 2],
    /// One for each decoy and stream, in the order in which they were first seen.
    found: Vec<Spilled>,
    told: usize,
}

impl Lookout {
    pub(crate) fn new(decoys: Rc<Patterns>) -> Self {
        Self { decoys, ..Self::default() }
    }

    pub(crate) fn look(&mut self, stream: usize, bytes: &[u8]) {
        let Some(scanner) = self.scanners.get_mut(stream).filter(|_| !self.decoys.is_empty())
        else {
            return;
        };
        let mut marks = Vec::new();
        scanner.feed(&self.decoys, bytes, &mut marks);
        for mark in marks.into_iter().filter(|mark| !mark.is_rest) {
            let same = |one: &&mut Spilled| (one.decoy, one.stream) == (mark.value, stream);
            match self.found.iter_mut().find(same) {
                Some(known) => known.count += 1,
                None => {
                    let decoy = mark.value;
                    self.found.push(Spilled { time_ms: now_ms(), decoy, stream, count: 1 });
                }
            }
        }
    }

    /// What was seen for the first time since the last look here.
    pub(crate) fn news(&mut self) -> Vec<Spilled> {
        let told = std::mem::replace(&mut self.told, self.found.len());
        self.found[told..].to_vec()
    }

    /// The same, and how often all of them were seen that were seen again.
    pub(crate) fn finish(&mut self) -> Vec<Spilled> {
        let again = self.found[..self.told].iter().filter(|one| one.count > 1).copied();
        let again: Vec<Spilled> = again.collect();
        again.into_iter().chain(self.news()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_for_each_stream_and_then_counted() {
        let mut lookout = Lookout::new(Rc::new(Patterns::new(["decoy-0123", "other-4567"])));
        let seen = |some: Vec<Spilled>| {
            some.iter().map(|one| (one.decoy, one.stream, one.count)).collect::<Vec<_>>()
        };
        lookout.look(0, b"nothing decoy-01");
        assert_eq!(seen(lookout.news()), []);
        lookout.look(0, b"23 and 6f746865722d34353637");
        assert_eq!(seen(lookout.news()), [(0, 0, 1), (1, 0, 1)]);
        lookout.look(1, b"decoy-0123");
        lookout.look(0, b"decoy-0123 ZGVjb3ktMDEyMw==");
        assert_eq!(seen(lookout.finish()), [(0, 0, 3), (0, 1, 1)]);
        assert_eq!(seen(lookout.news()), []);
    }

    #[test]
    fn without_decoys_nothing_is_looked_for() {
        let mut lookout = Lookout::default();
        lookout.look(0, b"decoy-0123");
        assert_eq!(lookout.finish(), []);
    }
}
