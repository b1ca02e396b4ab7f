//! Rules against one text: a query finds the places, the language says what stands there, the rules say whether
//! that is worth telling.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Instant;

use regex::Regex;
use streaming_iterator::StreamingIterator;
use tree_sitter::{
    Node, Query, QueryCursor, QueryCursorOptions, QueryMatch, QueryPredicateArg, Tree,
};

use super::grammar::{self, Grammar};
use super::javascript::Javascript;
use super::meaning::Meaning;
use super::python::Python;
use super::rules::{Rule, Ruleset};
use super::shell::{self, Invocation, Shell};
use super::value::Value;

/// Matches of a query that may be unfinished at once; tree-sitter drops the oldest beyond that.
const MAX_UNFINISHED: u32 = 1024;
/// Findings of one text that are kept before they are sorted and cut.
pub(super) const MAX_HITS: usize = 10_000;
/// Places between two looks at the clock.
const LOOKS_AT_CLOCK: usize = 256;
/// Pieces of code in texts, of one text.
const MAX_NESTED: usize = 32;

/// One place and the rule for it.
#[derive(Debug)]
pub(super) struct Hit<'s> {
    pub rule: &'s Rule,
    pub name: String,
    pub at: usize,
}

/// Code in a text of the code.
#[derive(Debug)]
pub(super) struct Nested {
    pub grammar: Grammar,
    pub text: String,
    pub at: usize,
}

/// What one text holds.
#[derive(Debug, Default)]
pub(super) struct Hits<'s> {
    pub all: Vec<Hit<'s>>,
    pub nested: Vec<Nested>,
    /// Where the grammar lost its way.
    pub lost_at: Option<usize>,
    /// There was more to find out than time allows.
    pub gave_up: bool,
    seen: HashSet<(*const Rule, usize)>,
}

/// Reads a text and finds what the rules speak of. The error says why it could not be read.
pub(super) fn find<'s>(
    grammar: Grammar,
    text: &str,
    set: &'s Ruleset,
    deadline: Instant,
) -> Result<Hits<'s>, String> {
    let tree = grammar::parse(grammar, text, deadline)?;
    let mut hits = Hits { lost_at: first_error(&tree), ..Hits::default() };
    let seen_all = match grammar {
        Grammar::Bash => {
            let shell = Shell::read(text, &tree)?;
            let told = each_place(&tree, set, deadline, |capture, node| {
                in_shell(&shell, set, capture, node, &mut hits);
            }) && each_match(&tree, text, set, deadline, |rule, found| {
                let names = |node: Node<'_>| shell.words(node);
                by_query(rule, found, text, &names, &mut hits);
            });
            hits.gave_up = shell.gave_up();
            told
        }
        Grammar::Python => {
            let python = Python::read(text, &tree)?;
            in_language(&python, &tree, text, set, deadline, &mut hits)
        }
        Grammar::Javascript => {
            let script = Javascript::read(text, &tree)?;
            in_language(&script, &tree, text, set, deadline, &mut hits)
        }
    };
    hits.gave_up |= !seen_all;
    Ok(hits)
}

/// What a rule's own query found in one place.
struct Match<'q, 't> {
    query: &'q Query,
    pattern: usize,
    captures: Vec<(&'q str, Node<'t>)>,
}

/// Shows every node that rules may speak of, and as what it may matter; false if time ran out first.
fn each_place<'t>(
    tree: &'t Tree,
    set: &Ruleset,
    deadline: Instant,
    mut tell: impl FnMut(&'static str, Node<'t>),
) -> bool {
    let mut late = false;
    let mut places = 0_usize;
    let walked = grammar::walk(tree, |node, _| {
        if let Some(capture) = set.places.get(&node.kind_id()).filter(|_| !late) {
            tell(capture, node);
            places += 1;
            late = places.is_multiple_of(LOOKS_AT_CLOCK) && Instant::now() >= deadline;
        }
    });
    walked.is_ok() && !late
}

/// Shows every match of the rules' own queries; false if time ran out first.
fn each_match<'t, 's>(
    tree: &'t Tree,
    text: &str,
    set: &'s Ruleset,
    deadline: Instant,
    mut tell: impl FnMut(&'s Rule, &Match<'_, 't>),
) -> bool {
    let mut own = set.queries.iter().filter_map(|one| Some((one.of(text)?, &set.rules[one.rule])));
    own.all(|(query, rule)| {
        each_of(tree, text, query, deadline, |pattern, captures| {
            tell(rule, &Match { query, pattern, captures });
        })
    })
}

fn each_of<'q, 't>(
    tree: &'t Tree,
    text: &str,
    query: &'q Query,
    deadline: Instant,
    mut tell: impl FnMut(usize, Vec<(&'q str, Node<'t>)>),
) -> bool {
    let mut late = false;
    let mut in_time = |_: &_| {
        late = Instant::now() >= deadline;
        if late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut cursor = QueryCursor::new();
    cursor.set_match_limit(MAX_UNFINISHED);
    let options = QueryCursorOptions::new().progress_callback(&mut in_time);
    let root = tree.root_node();
    let mut matches = cursor.matches_with_options(query, root, text.as_bytes(), options);
    while let Some(found) = StreamingIterator::next(&mut matches) {
        tell(found.pattern_index, captures(found, query.capture_names()));
    }
    drop(matches);
    !late && !cursor.did_exceed_match_limit()
}

fn captures<'q, 't>(found: &QueryMatch<'_, 't>, names: &[&'q str]) -> Vec<(&'q str, Node<'t>)> {
    let captures = found.captures().iter();
    captures.map(|one| (names[one.index as usize], one.node)).collect()
}

fn in_language<'t, 's>(
    meaning: &impl Meaning<'t>,
    tree: &'t Tree,
    text: &str,
    set: &'s Ruleset,
    deadline: Instant,
    hits: &mut Hits<'s>,
) -> bool {
    let told = each_place(tree, set, deadline, |capture, node| match capture {
        "call" => in_call(meaning, set, node, hits),
        "import" => in_modules(set, &meaning.imports(node), node.start_byte(), hits),
        "values" | "value" | "kept" => in_values(meaning, set, capture, node, hits),
        "subscript" => in_subscript(meaning, set, node, hits),
        _ => {}
    }) && each_match(tree, text, set, deadline, |rule, found| {
        by_query(rule, found, text, &|node| names_of(meaning, node), hits);
    });
    hits.gave_up |= meaning.gave_up();
    told
}

/// Full names that an expression may have.
fn names_of<'t>(meaning: &impl Meaning<'t>, node: Node<'t>) -> Vec<String> {
    let values = meaning.values(node);
    values.iter().filter_map(Value::name).map(ToOwned::to_owned).collect()
}

fn in_call<'t, 's>(
    meaning: &impl Meaning<'t>,
    set: &'s Ruleset,
    call: Node<'t>,
    hits: &mut Hits<'s>,
) {
    let callee = call.child_by_field_name("function");
    let Some(callee) = callee.or_else(|| call.child_by_field_name("constructor")) else { return };
    for name in names_of(meaning, callee) {
        for index in set.calls(&name) {
            let rule = &set.rules[index];
            if rule.when.is_some() && !holds(meaning, rule, call) {
                continue;
            }
            hits.add(rule, &name, call.start_byte());
            if let Some(code) = &rule.text.code
                && let Some(argument) = meaning.argument(call, Some(code.argument), None)
            {
                for value in meaning.values(argument) {
                    hits.nest(code.language, value.text(), argument.start_byte());
                }
            }
        }
        in_modules(set, &meaning.brought(call, &name), call.start_byte(), hits);
    }
}

fn holds<'t>(meaning: &impl Meaning<'t>, rule: &Rule, call: Node<'t>) -> bool {
    let Some(when) = &rule.when else { return true };
    let argument = meaning.argument(call, when.argument, when.keyword.as_deref());
    let values = argument.map(|one| meaning.values(one)).unwrap_or_default();
    let fits = |pattern: &Option<Regex>, said: Option<&str>| {
        pattern.as_ref().zip(said).is_some_and(|(pattern, said)| pattern.is_match(said))
    };
    values.iter().any(|one| fits(&when.matches, one.text()) || fits(&when.names, one.name()))
}

/// What a node hands on: an argument, an item, a result, a value that is kept in an object.
fn in_values<'t, 's>(
    meaning: &impl Meaning<'t>,
    set: &'s Ruleset,
    how: &str,
    node: Node<'t>,
    hits: &mut Hits<'s>,
) {
    match how {
        "values" => {
            let mut cursor = node.walk();
            let values = node.named_children(&mut cursor);
            values.filter(may_be_named).for_each(|one| in_use(meaning, set, one, hits));
        }
        "value" => {
            let value = node.child_by_field_name("value").filter(may_be_named);
            value.into_iter().for_each(|one| in_use(meaning, set, one, hits));
        }
        // What a name is bound to is known where the name is used; what an object keeps is not.
        _ => {
            let into_object = |left: &Node<'t>| left.kind() != "identifier" && may_be_named(left);
            let kept = node.child_by_field_name("left").filter(into_object);
            let value = kept.and_then(|_| node.child_by_field_name("right")).filter(may_be_named);
            value.into_iter().for_each(|one| in_use(meaning, set, one, hits));
        }
    }
}

/// Whether an expression can come to a function by its name.
fn may_be_named(node: &Node<'_>) -> bool {
    let kinds = ["identifier", "attribute", "subscript", "call"];
    let of_javascript = ["member_expression", "subscript_expression"];
    kinds.contains(&node.kind()) || of_javascript.contains(&node.kind())
}

fn in_use<'t, 's>(
    meaning: &impl Meaning<'t>,
    set: &'s Ruleset,
    node: Node<'t>,
    hits: &mut Hits<'s>,
) {
    for name in names_of(meaning, node) {
        for index in set.calls(&name) {
            let rule = &set.rules[index];
            // With which argument it will be called, nobody knows.
            if rule.when.is_none() {
                hits.add(rule, &name, node.start_byte());
            }
        }
    }
}

/// `sys.modules["name"]`.
fn in_subscript<'t, 's>(
    meaning: &impl Meaning<'t>,
    set: &'s Ruleset,
    node: Node<'t>,
    hits: &mut Hits<'s>,
) {
    let Some(object) = node.child_by_field_name("value") else { return };
    if names_of(meaning, object).iter().any(|name| name == "sys.modules") {
        in_modules(set, &names_of(meaning, node), node.start_byte(), hits);
    }
}

fn in_modules<'s>(set: &'s Ruleset, names: &[String], at: usize, hits: &mut Hits<'s>) {
    for name in names {
        for index in set.modules(name) {
            hits.add(&set.rules[index], name, at);
        }
    }
}

/// A rule that is a query: its own predicates hold by now, ours are looked at here.
fn by_query<'t, 's>(
    rule: &'s Rule,
    found: &Match<'_, 't>,
    text: &str,
    names: &dyn Fn(Node<'t>) -> Vec<String>,
    hits: &mut Hits<'s>,
) {
    for asked in found.query.general_predicates(found.pattern) {
        let mut wanted = Vec::new();
        let mut nodes = Vec::new();
        for argument in &asked.args {
            match argument {
                QueryPredicateArg::String(name) => wanted.push(&**name),
                QueryPredicateArg::Capture(index) => {
                    let name = found.query.capture_names()[*index as usize];
                    nodes.extend(found.captures.iter().filter(|(one, _)| *one == name));
                }
            }
        }
        let named = |node: &Node<'t>| names(*node).iter().any(|one| wanted.contains(&one.as_str()));
        if !nodes.iter().all(|(_, node)| named(node)) {
            return;
        }
    }
    let marked = found.captures.iter().find(|(name, _)| *name == "found");
    if let Some((_, node)) = marked.or(found.captures.first()) {
        let name = text.get(node.byte_range()).unwrap_or_default();
        hits.add(rule, name.lines().next().unwrap_or_default(), node.start_byte());
    }
}

fn in_shell<'t, 's>(
    shell: &Shell<'t>,
    set: &'s Ruleset,
    capture: &str,
    node: Node<'t>,
    hits: &mut Hits<'s>,
) {
    let at = node.start_byte();
    match capture {
        "command" => {
            for command in shell.commands(node) {
                in_command(set, &command, node, hits);
            }
            hits.nest(Grammar::Bash, shell.fed_script(node).as_deref(), at);
        }
        "redirect" => {
            let Some(target) = node.child_by_field_name("destination") else { return };
            for text in shell.words(target) {
                in_redirect(set, &text, target.start_byte(), hits);
            }
        }
        "fed" => hits.nest(Grammar::Bash, shell.fed_script(node).as_deref(), at),
        _ => {}
    }
}

fn in_command<'s>(set: &'s Ruleset, command: &Invocation, node: Node<'_>, hits: &mut Hits<'s>) {
    let at = node.start_byte();
    for index in set.commands(&command.name) {
        let rule = &set.rules[index];
        let words: Vec<&str> = command.words.iter().filter_map(Option::as_deref).collect();
        let meant = |word: &&&str| {
            let except = rule.except.as_ref().is_some_and(|except| except.is_match(word));
            !except && rule.words.as_ref().is_some_and(|wanted| wanted.is_match(word))
        };
        let flagged = rule.text.flags.is_empty()
            || rule.text.flags.iter().any(|flag| words.iter().any(|word| has_flag(word, flag)));
        let fits = rule.words.is_none() || words.iter().find(meant).is_some();
        if flagged && fits && (!rule.text.piped || is_fed(node)) {
            hits.add(rule, &command.name, at);
        }
    }
    hits.nest(Grammar::Bash, shell::script_of(command).as_deref(), at);
}

/// Whether a command reads what another says.
fn is_fed(node: Node<'_>) -> bool {
    let pipeline = node.parent().filter(|above| above.kind() == "pipeline");
    pipeline.is_some_and(|pipeline| pipeline.named_child(0) != Some(node))
}

/// `-rf` has `r`, `--recursive` has `recursive`.
fn has_flag(word: &str, flag: &str) -> bool {
    match (word.strip_prefix("--"), word.strip_prefix('-')) {
        (Some(long), _) => long == flag,
        (None, Some(short)) => flag.len() == 1 && short.contains(flag),
        (None, None) => false,
    }
}

fn in_redirect<'s>(set: &'s Ruleset, target: &str, at: usize, hits: &mut Hits<'s>) {
    for index in &set.redirects {
        let rule = &set.rules[*index];
        let except = rule.except.as_ref().is_some_and(|except| except.is_match(target));
        if !except && rule.redirects.as_ref().is_some_and(|wanted| wanted.is_match(target)) {
            hits.add(rule, target, at);
        }
    }
}

impl<'s> Hits<'s> {
    fn add(&mut self, rule: &'s Rule, name: &str, at: usize) {
        let new = self.all.len() < MAX_HITS && self.seen.insert((std::ptr::from_ref(rule), at));
        if new {
            self.all.push(Hit { rule, name: name.to_owned(), at });
        }
    }

    fn nest(&mut self, grammar: Grammar, text: Option<&str>, at: usize) {
        if let Some(text) = text.filter(|_| self.nested.len() < MAX_NESTED) {
            self.nested.push(Nested { grammar, text: text.to_owned(), at });
        }
    }
}

/// Where the grammar first lost its way.
fn first_error(tree: &Tree) -> Option<usize> {
    let mut cursor = tree.walk();
    loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return Some(node.start_byte());
        }
        let descended = node.has_error() && cursor.goto_first_child();
        if !descended && !cursor.goto_next_sibling() {
            // The way down leads through nodes that hold an error, so there is none above.
            return None;
        }
    }
}
