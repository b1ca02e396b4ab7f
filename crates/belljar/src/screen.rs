//! Reading code before it is run: advice, never a barrier. What is dangerous is told by what the code means
//! (aliases, scopes, texts put together), not by how it is spelled; what cannot be decided is not guessed.
//!
//! Rules are data (`screen/rules`): queries say which places matter, TOML says which names there are worth a
//! word. The Engine calls this beside or before a run; `belljar screen` alone.

mod check;
mod excerpt;
mod gate;
mod grammar;
mod javascript;
mod matching;
mod meaning;
mod python;
mod rules;
mod scopes;
mod shell;
mod sources;
#[cfg(test)]
mod tests;
mod value;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::model::error::SpecError;
use crate::model::event::Severity;
use crate::model::screening::{Finding, Screening};
pub(crate) use gate::{Advice, Gate};
use grammar::Grammar;
use rules::{PARTLY_READ, RuleText, Rulebook, Ruleset, UNREAD};
pub(crate) use sources::{SourceText, Sources};

/// Findings that are told; the rest is counted.
pub const MAX_FINDINGS: usize = 100;
/// Time for all texts of a run together. A text of a hundred lines takes a thousandth of it.
const TIME: Duration = Duration::from_millis(500);
/// Code in a text in a text.
const MAX_LEVELS: usize = 3;

/// Reads code by a set of rules. Cheap to make and to share by reference: what it needs is made when it is
/// first needed, for each language.
#[derive(Debug)]
pub struct Screener {
    /// With rules of the user's own, all rules.
    own: Option<Rulebook>,
    books: [OnceLock<Result<Rulebook, SpecError>>; 3],
    sets: [OnceLock<Result<Ruleset, SpecError>>; 3],
}

/// A rule, for those who want to know them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleFacts {
    pub id: String,
    pub severity: Severity,
    /// None for the rules of every language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<&'static str>,
    pub reason: String,
    pub advice: String,
}

impl Screener {
    /// The built-in rules and those of files; a mistake in one is told with the file, the rule and the place.
    pub fn new(files: &[PathBuf]) -> Result<Self, SpecError> {
        let own = if files.is_empty() { None } else { Some(Rulebook::load(files)?) };
        let (books, sets) = ([const { OnceLock::new() }; 3], [const { OnceLock::new() }; 3]);
        let screener = Self { own, books, sets };
        if screener.own.is_some() {
            // Now, and not at the first run, when nobody looks.
            Grammar::ALL.iter().try_for_each(|one| screener.set(*one).map(|_| ()))?;
        }
        Ok(screener)
    }

    /// Every rule, built-in ones first.
    pub fn rules(&self) -> Result<Vec<RuleFacts>, SpecError> {
        match &self.own {
            Some(book) => Ok(book.all().map(RuleFacts::of).collect()),
            None => Rulebook::built_in(&Grammar::ALL)
                .map(|book| book.all().map(RuleFacts::of).collect()),
        }
    }

    /// Whether code of this language can be read at all.
    pub fn reads(&self, language: &str) -> bool {
        Grammar::of_language(language).is_some()
    }

    /// The least severity that a run with `refuse` is refused for.
    pub fn refuses_at(&self) -> Severity {
        self.own.as_ref().map_or(rules::REFUSED, |book| book.refuse)
    }

    /// Reads one text. A language without a grammar has no findings.
    pub fn screen(&self, language: &str, source: &str, text: &str) -> Screening {
        let given = SourceText {
            language: language.to_owned(),
            source: source.to_owned(),
            text: Ok(text.to_owned()),
        };
        self.screen_all(&[given])
    }

    pub(crate) fn screen_all(&self, sources: &[SourceText]) -> Screening {
        let deadline = Instant::now() + TIME;
        let mut places = Vec::new();
        for source in sources {
            let Some(grammar) = Grammar::of_language(&source.language) else { continue };
            let before = places.len();
            match &source.text {
                Ok(text) => self.screen_one(Place { grammar, source, text }, deadline, &mut places),
                Err(why) => {
                    let place = Place { grammar, source, text: "" };
                    places.extend(self.by_id(UNREAD, place, 0, why));
                }
            }
            places[before..].sort_by_key(|one| one.at);
        }
        // Stable: within a severity the order of the texts and of the places stays.
        places.sort_by_key(|one| std::cmp::Reverse(one.rule.severity));
        places.dedup_by(|one, other| one.same_as(other));
        let left_out = places.len().saturating_sub(MAX_FINDINGS);
        let findings = places.iter().take(MAX_FINDINGS).map(Found::told).collect();
        Screening { findings, left_out, ..Screening::default() }
    }

    fn screen_one<'a>(&'a self, whole: Place<'a>, deadline: Instant, found: &mut Vec<Found<'a>>) {
        // Texts in texts are told where the outermost stands.
        let mut waiting = vec![(whole.grammar, Cow::Borrowed(whole.text), None, 0)];
        while let Some((grammar, text, outer, level)) = waiting.pop() {
            let place = Place { grammar, ..whole };
            let at = |inner: usize| outer.unwrap_or(inner);
            let read = self.set(grammar).map_err(|error| error.to_string());
            let hits = match read.and_then(|set| matching::find(grammar, &text, set, deadline)) {
                Ok(hits) => hits,
                Err(why) => {
                    found.extend(self.by_id(UNREAD, place, at(0), &why));
                    continue;
                }
            };
            let told = hits.all.into_iter();
            found.extend(told.map(|hit| Found {
                rule: &hit.rule.text,
                place,
                at: at(hit.at),
                name: hit.name,
            }));
            if let Some(lost_at) = hits.lost_at.filter(|_| outer.is_none()) {
                found.extend(self.by_id(PARTLY_READ, place, lost_at, "not understood here"));
            }
            if hits.gave_up {
                found.extend(self.by_id(UNREAD, place, at(0), "takes too long to follow"));
            }
            if level < MAX_LEVELS {
                let nested = hits.nested.into_iter();
                waiting.extend(
                    nested.map(|one| (one.grammar, one.text.into(), Some(at(one.at)), level + 1)),
                );
            }
        }
    }

    fn book(&self, grammar: Grammar) -> Result<&Rulebook, SpecError> {
        let built_in = || Rulebook::built_in(&[grammar]);
        match &self.own {
            Some(book) => Ok(book),
            None => {
                self.books[grammar as usize].get_or_init(built_in).as_ref().map_err(Clone::clone)
            }
        }
    }

    fn set(&self, grammar: Grammar) -> Result<&Ruleset, SpecError> {
        let compile = || self.book(grammar)?.compile(grammar);
        self.sets[grammar as usize].get_or_init(compile).as_ref().map_err(Clone::clone)
    }

    /// A finding that no query makes, unless its rule is switched off.
    fn by_id<'a>(&'a self, id: &str, place: Place<'a>, at: usize, name: &str) -> Option<Found<'a>> {
        let rule = self.book(place.grammar).ok()?.named(id)?;
        Some(Found { rule, place, at, name: name.to_owned() })
    }
}

/// The text that is told of.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    grammar: Grammar,
    source: &'a SourceText,
    text: &'a str,
}

/// A finding before it is written out, which takes as long as its text.
#[derive(Debug)]
struct Found<'a> {
    rule: &'a RuleText,
    place: Place<'a>,
    at: usize,
    name: String,
}

impl Found<'_> {
    fn same_as(&self, other: &Self) -> bool {
        let texts = std::ptr::eq(self.place.source, other.place.source);
        texts && (&self.rule.id, self.at) == (&other.rule.id, other.at)
    }

    fn told(&self) -> Finding {
        let Place { grammar, source, text } = self.place;
        let (line, column) = excerpt::position(text, self.at);
        Finding {
            rule: self.rule.id.clone(),
            severity: self.rule.severity,
            name: excerpt::name(&self.name),
            reason: self.rule.reason.clone(),
            advice: self.rule.advice.clone(),
            language: grammar.name().to_owned(),
            source: excerpt::name(&source.source),
            line,
            column,
            excerpt: excerpt::excerpt(text, self.at),
        }
    }
}

impl RuleFacts {
    fn of(rule: &RuleText) -> Self {
        Self {
            id: rule.id.clone(),
            severity: rule.severity,
            language: rule.language.map(Grammar::name),
            reason: rule.reason.clone(),
            advice: rule.advice.clone(),
        }
    }
}
