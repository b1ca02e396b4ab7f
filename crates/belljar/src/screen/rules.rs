//! Rules are data. The built-in ones and a user's own have the same form: a TOML file with an id, a severity,
//! a reason and an advice for each, and what it looks for, by name or by a tree-sitter query.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;
use tree_sitter::{Query, QueryError, QueryErrorKind};

use super::grammar::Grammar;
use crate::model::error::SpecError;
use crate::model::screening::Severity;

/// A file of rules; more is data.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Rules of one language.
const MAX_RULES: usize = 1000;

/// The rule for what could not be read at all, and for what was read in part.
pub(super) const UNREAD: &str = "unread";
pub(super) const PARTLY_READ: &str = "partly-read";

/// Findings of this severity and above are refused, unless a file of rules says another.
pub(super) const REFUSED: Severity = Severity::Medium;

/// A file of rules as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleFile {
    /// The least severity that `refuse` refuses.
    refuse: Option<Severity>,
    /// Rules that are switched off.
    off: Vec<String>,
    /// Other severities for rules that exist.
    severity: BTreeMap<String, Severity>,
    rule: Vec<RuleText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    pub id: String,
    /// Python, bash or javascript; only the rules for what cannot be read have none.
    #[serde(default)]
    pub language: Option<Grammar>,
    pub severity: Severity,
    pub reason: String,
    #[serde(default)]
    pub advice: String,
    /// Modules that are brought in, by whatever means.
    #[serde(default)]
    modules: Vec<String>,
    /// Functions that are called or handed on, by full name; `module.*` for all of a module.
    #[serde(default)]
    calls: Vec<String>,
    /// Only calls with such an argument.
    #[serde(default)]
    when: Option<WhenText>,
    /// The argument that is itself code, and is screened too.
    #[serde(default)]
    pub code: Option<NestedCode>,
    /// Commands of a shell, without their directory; `mkfs.*` for all that begin so.
    #[serde(default)]
    commands: Vec<String>,
    /// Only commands with one of these options.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Only commands with an argument like this.
    #[serde(default)]
    words: Option<String>,
    /// Files that output is sent to or input is taken from.
    #[serde(default)]
    redirects: Option<String>,
    /// Words and files that are meant by neither.
    #[serde(default)]
    except: Option<String>,
    /// Only commands that are fed by another.
    #[serde(default)]
    pub piped: bool,
    /// A tree-sitter query; what it captures as `@found` (or first) is the finding.
    #[serde(default)]
    query: Option<String>,
    /// The query is compiled, which takes milliseconds, only for a text in which this is found.
    #[serde(default)]
    needs: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenText {
    argument: Option<usize>,
    keyword: Option<String>,
    /// What its text is like.
    matches: Option<String>,
    /// What its full name is like, if it is a constant of a module.
    names: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NestedCode {
    pub argument: usize,
    pub language: Grammar,
}

/// A condition on an argument of a call.
#[derive(Debug)]
pub(super) struct When {
    pub argument: Option<usize>,
    pub keyword: Option<String>,
    pub matches: Option<Regex>,
    pub names: Option<Regex>,
}

/// A rule, checked.
#[derive(Debug)]
pub(super) struct Rule {
    pub text: RuleText,
    pub when: Option<When>,
    pub words: Option<Regex>,
    pub redirects: Option<Regex>,
    pub except: Option<Regex>,
}

/// A rule that is a query of its own.
#[derive(Debug)]
pub(super) struct OwnQuery {
    pub rule: usize,
    grammar: Grammar,
    text: String,
    needs: Option<Regex>,
    compiled: OnceLock<Option<Query>>,
}

impl OwnQuery {
    /// The query, if it is worth being asked of a text.
    pub(super) fn of(&self, text: &str) -> Option<&Query> {
        let needed = self.needs.as_ref().is_none_or(|needs| needs.is_match(text));
        let compile = || compiled(self.grammar, &self.text).ok(); // was checked, or is tested, before
        needed.then(|| self.compiled.get_or_init(compile).as_ref()).flatten()
    }
}

/// The rules of one language, ready to be used.
#[derive(Debug)]
pub(super) struct Ruleset {
    pub rules: Vec<Rule>,
    calls: HashMap<String, Vec<usize>>,
    modules: HashMap<String, Vec<usize>>,
    commands: HashMap<String, Vec<usize>>,
    command_prefixes: Vec<(String, usize)>,
    pub redirects: Vec<usize>,
    /// The places that rules speak of.
    pub places: HashMap<u16, &'static str>,
    pub queries: Vec<OwnQuery>,
}

/// What all files together say.
#[derive(Debug)]
pub(super) struct Rulebook {
    texts: Vec<(RuleText, String)>,
    pub refuse: Severity,
}

impl Rulebook {
    /// The built-in rules of some languages.
    pub(super) fn built_in(grammars: &[Grammar]) -> Result<Self, SpecError> {
        let mut book = Self { texts: Vec::new(), refuse: REFUSED };
        book.add(include_str!("rules/common.toml"), "common.toml")?;
        for grammar in grammars {
            book.add(grammar.rules(), &format!("{grammar}.toml"))?;
        }
        Ok(book)
    }

    /// All built-in rules and those of files, each of which may replace what is there.
    pub(super) fn load<P: AsRef<Path>>(files: &[P]) -> Result<Self, SpecError> {
        let mut book = Self::built_in(&Grammar::ALL)?;
        for file in files {
            let file = file.as_ref();
            let origin = file.display().to_string();
            book.add(&read(file, &origin)?, &origin)?;
        }
        // Now, and not at the first run, when nobody looks.
        for (rule, origin) in &book.texts {
            let (Some(grammar), Some(query)) = (rule.language, &rule.query) else { continue };
            let checked = compiled(grammar, query);
            checked.map_err(|why| wrong(origin, format!("rule {}: {why}", rule.id)))?;
        }
        Ok(book)
    }

    pub(super) fn add(&mut self, text: &str, origin: &str) -> Result<(), SpecError> {
        let file: RuleFile = toml::from_str(text)
            .map_err(|error| wrong(origin, error.to_string().trim_end().to_owned()))?;
        self.refuse = file.refuse.unwrap_or(self.refuse);
        for (position, rule) in file.rule.iter().enumerate() {
            let twin = file.rule[..position].iter().any(|other| other.id == rule.id);
            if twin {
                return Err(wrong(origin, format!("rule {}: is there twice", rule.id)));
            }
            check(rule).map_err(|why| wrong(origin, format!("rule {}: {why}", rule.id)))?;
        }
        for rule in file.rule {
            self.texts.retain(|(known, _)| known.id != rule.id);
            self.texts.push((rule, origin.to_owned()));
        }
        for id in &file.off {
            let known = self.texts.iter().position(|(rule, _)| rule.id == *id);
            let known = known.ok_or_else(|| unknown(origin, "off", id))?;
            self.texts.remove(known);
        }
        for (id, severity) in &file.severity {
            let known = self.texts.iter_mut().find(|(rule, _)| rule.id == *id);
            known.ok_or_else(|| unknown(origin, "severity", id))?.0.severity = *severity;
        }
        Ok(())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &RuleText> {
        self.texts.iter().map(|(rule, _)| rule)
    }

    /// A rule that is found by its id alone.
    pub(super) fn named(&self, id: &str) -> Option<&RuleText> {
        self.texts.iter().find(|(rule, _)| rule.id == id).map(|(rule, _)| rule)
    }

    /// Rules of a language; an error names the file and the rule.
    pub(super) fn compile(&self, grammar: Grammar) -> Result<Ruleset, SpecError> {
        let mine: Vec<_> =
            self.texts.iter().filter(|(one, _)| one.language == Some(grammar)).collect();
        if let Some((_, origin)) = mine.get(MAX_RULES) {
            return Err(wrong(origin, format!("has more than {MAX_RULES} rules for {grammar}")));
        }
        let mut set = Ruleset {
            rules: Vec::new(),
            calls: HashMap::new(),
            modules: HashMap::new(),
            commands: HashMap::new(),
            command_prefixes: Vec::new(),
            redirects: Vec::new(),
            places: grammar.places(),
            queries: Vec::new(),
        };
        for (index, (text, origin)) in mine.iter().enumerate() {
            let at = |why: String| wrong(origin, format!("rule {}: {why}", text.id));
            set.rules.push(rule(text).map_err(at)?);
            set.enter(index, text);
            if let Some(query) = &text.query {
                let needs = text.needs.as_deref().map(Regex::new).transpose();
                set.queries.push(OwnQuery {
                    rule: index,
                    grammar,
                    text: query.clone(),
                    needs: needs.map_err(|error| at(format!("needs: {error}")))?,
                    compiled: OnceLock::new(),
                });
            }
        }
        Ok(set)
    }
}

impl Ruleset {
    fn enter(&mut self, index: usize, text: &RuleText) {
        for name in &text.calls {
            self.calls.entry(name.clone()).or_default().push(index);
        }
        for name in &text.modules {
            self.modules.entry(name.clone()).or_default().push(index);
        }
        for name in &text.commands {
            match name.strip_suffix('*') {
                Some(prefix) => self.command_prefixes.push((prefix.to_owned(), index)),
                None => self.commands.entry(name.clone()).or_default().push(index),
            }
        }
        if text.redirects.is_some() {
            self.redirects.push(index);
        }
    }

    /// The rules for a function of that full name.
    pub(super) fn calls(&self, name: &str) -> Vec<usize> {
        let mut found = self.calls.get(name).cloned().unwrap_or_default();
        for (dot, _) in name.match_indices('.') {
            found.extend(self.calls.get(&format!("{}.*", &name[..dot])).into_iter().flatten());
        }
        found
    }

    /// The rules for a module of that full name, or one above it.
    pub(super) fn modules(&self, name: &str) -> Vec<usize> {
        let mut found = self.modules.get(name).cloned().unwrap_or_default();
        for (border, _) in name.match_indices(['.', '/']) {
            found.extend(self.modules.get(&name[..border]).into_iter().flatten());
        }
        found
    }

    pub(super) fn commands(&self, name: &str) -> Vec<usize> {
        let mut found = self.commands.get(name).cloned().unwrap_or_default();
        let by_prefix = self.command_prefixes.iter();
        found.extend(by_prefix.filter(|(prefix, _)| name.starts_with(prefix)).map(|(_, one)| *one));
        found
    }
}

fn read(file: &Path, origin: &str) -> Result<String, SpecError> {
    let length = std::fs::metadata(file).map_err(|error| wrong(origin, error.to_string()))?.len();
    if length > MAX_FILE_BYTES {
        return Err(wrong(origin, format!("has {length} bytes, more than {MAX_FILE_BYTES}")));
    }
    std::fs::read_to_string(file).map_err(|error| wrong(origin, error.to_string()))
}

fn wrong(origin: &str, reason: String) -> SpecError {
    SpecError::new(format!("screening rules {origin}"), reason)
}

fn unknown(origin: &str, key: &str, id: &str) -> SpecError {
    wrong(origin, format!("{key}: there is no rule \"{id}\": belljar screen --list tells them"))
}

fn check(rule: &RuleText) -> Result<(), String> {
    let plain = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '/' | '.');
    if rule.id.is_empty() || rule.id.len() > 64 || !rule.id.chars().all(plain) {
        return Err("its id must be 1 to 64 letters, digits, and - _ / .".to_owned());
    }
    if rule.reason.trim().is_empty() {
        return Err("needs a reason".to_owned());
    }
    let by_id = rule.id == UNREAD || rule.id == PARTLY_READ;
    if rule.language.is_none() && !by_id {
        return Err("needs a language: python, bash or javascript".to_owned());
    }
    let shell = rule.language == Some(Grammar::Bash);
    let of_shells = !rule.commands.is_empty() || rule.redirects.is_some();
    let of_others = !rule.calls.is_empty() || !rule.modules.is_empty();
    if of_shells && !shell {
        return Err("commands and redirects are for language bash; use calls and modules".into());
    }
    if of_others && shell {
        return Err("calls and modules are not for language bash; use commands".to_owned());
    }
    if !of_shells && !of_others && rule.query.is_none() && !by_id {
        return Err("looks for nothing: give modules, calls, commands, redirects or query".into());
    }
    if rule.commands.is_empty() && (rule.words.is_some() || !rule.flags.is_empty() || rule.piped) {
        return Err("words, flags and piped have no meaning without commands".to_owned());
    }
    let of_calls = rule.when.is_some() || (rule.code.is_some() && !shell);
    if rule.calls.is_empty() && of_calls {
        return Err("when and code have no meaning without calls".to_owned());
    }
    Ok(())
}

fn rule(text: &RuleText) -> Result<Rule, String> {
    let pattern = |field: &str, pattern: &Option<String>| {
        let compiled = pattern.as_deref().map(Regex::new).transpose();
        compiled.map_err(|error| format!("{field}: {error}"))
    };
    let when = text.when.as_ref().map(|when| {
        if when.argument.is_none() && when.keyword.is_none() {
            return Err("when: give argument (its place, from 0), keyword, or both".to_owned());
        }
        if when.matches.is_none() && when.names.is_none() {
            return Err("when: give matches, for a text, or names, for a constant".to_owned());
        }
        Ok(When {
            argument: when.argument,
            keyword: when.keyword.clone(),
            matches: pattern("when", &when.matches)?,
            names: pattern("when", &when.names)?,
        })
    });
    Ok(Rule {
        when: when.transpose()?,
        words: pattern("words", &text.words)?,
        redirects: pattern("redirects", &text.redirects)?,
        except: pattern("except", &text.except)?,
        text: text.clone(),
    })
}

/// A query that compiles and asks nothing that we do not answer; the error says where it goes wrong.
fn compiled(grammar: Grammar, text: &str) -> Result<Query, String> {
    let query = Query::new(&grammar.language(), text).map_err(|error| told(&error))?;
    for pattern in 0..query.pattern_count() {
        let asked = query.general_predicates(pattern);
        if let Some(other) = asked.iter().find(|one| &*one.operator != "names?") {
            return Err(format!(
                "query: #{} is not known: use #eq?, #match?, #any-of? or #names?",
                other.operator
            ));
        }
    }
    Ok(query)
}

fn told(error: &QueryError) -> String {
    let QueryError { row, column, message, kind, .. } = error;
    let what = match kind {
        QueryErrorKind::Syntax => "syntax error",
        QueryErrorKind::NodeType => "no such node",
        QueryErrorKind::Field => "no such field",
        QueryErrorKind::Capture => "no such capture",
        QueryErrorKind::Predicate => "bad predicate",
        QueryErrorKind::Structure => "impossible pattern",
        QueryErrorKind::Language => "wrong language version",
    };
    let detail = message.lines().next().unwrap_or_default().trim();
    format!("query line {} column {}: {what}: {detail}", row + 1, column + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let path = std::env::temp_dir().join(format!("belljar-{}-own.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let loaded = Rulebook::load(std::slice::from_ref(&path));
        std::fs::remove_file(&path).unwrap();
        let error = loaded.and_then(|book| book.compile(Grammar::Python).map(|_| ())).unwrap_err();
        assert!(error.field.contains("own.toml"), "{error}");
        error.reason
    }

    #[test]
    fn mistakes_in_own_rules_are_told_by_rule_and_place() {
        let with = |rest: &str| {
            format!(
                "[[rule]]\nid = \"mine\"\nlanguage = \"python\"\nseverity = \"low\"\nreason = \"r\"\n{rest}"
            )
        };
        for (text, words) in [
            (with("query = \"(call\\n  function: (nothing) @found)\""), "rule mine: query line 2"),
            (with("query = \"(call\""), "query line 1"),
            (with("query = \"((call) @a (#near? @a))\""), "#near?"),
            (with("calls = [\"a\"]\nwhen = { argument = 0, matches = \"(\" }"), "when"),
            (with("calls = [\"a\"]\nwhen = { matches = \"x\" }"), "argument"),
            (with("commands = [\"rm\"]"), "language bash"),
            (with(""), "looks for nothing"),
            (with("colour = 1"), "colour"),
            ("off = [\"python/nothing\"]".to_owned(), "python/nothing"),
            ("[severity]\nnothing = \"low\"".to_owned(), "nothing"),
        ] {
            let reason = refused(&text);
            assert!(reason.contains(words), "{words}: {reason}");
        }
    }

    #[test]
    fn every_built_in_rule_compiles_and_explains_itself() {
        let book = Rulebook::load::<&Path>(&[]).unwrap();
        for grammar in Grammar::ALL {
            let set = book.compile(grammar).unwrap();
            let compiles = |one: &OwnQuery| compiled(one.grammar, &one.text).is_ok();
            assert!(set.queries.iter().all(compiles));
        }
        for (rule, _) in &book.texts {
            assert!(!rule.advice.is_empty(), "{}", rule.id);
            assert!(!rule.reason.ends_with('.') && !rule.advice.ends_with('.'), "{}", rule.id);
        }
        assert!(book.named(UNREAD).is_some() && book.named(PARTLY_READ).is_some());
    }
}
