//! What bash code runs: words put together from quotes and variables, commands behind other commands.

use std::collections::{HashMap, HashSet};

use tree_sitter::{Node, Tree};

use super::grammar::walk;
use super::scopes::Fuel;
use super::value::{MAX_CANDIDATES, unescaped};

/// Expansions inside each other that are followed.
const MAX_STEPS: usize = 32;
/// Words of one command that are looked at.
const MAX_WORDS: usize = 1000;
/// Commands behind each other: `sudo env nice …`.
const MAX_WRAPPERS: usize = 8;

/// Commands that run the command that follows, and their options that take a word.
const WRAPPERS: [(&str, &[&str]); 16] = [
    ("command", &[]),
    ("builtin", &[]),
    ("exec", &["-a"]),
    ("sudo", &["-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "-U"]),
    ("doas", &["-u", "-C"]),
    ("env", &["-u", "-C", "-S"]),
    ("nohup", &[]),
    ("nice", &["-n"]),
    ("ionice", &["-c", "-n"]),
    ("time", &[]),
    ("timeout", &["-s", "-k"]),
    ("stdbuf", &["-i", "-o", "-e"]),
    ("setsid", &[]),
    ("xargs", &["-I", "-n", "-P", "-d", "-a", "-L", "-E", "-s"]),
    ("busybox", &[]),
    ("toybox", &[]),
];
/// Those of them that do not run a function of the same name.
const SHELLS: [&str; 6] = ["bash", "sh", "dash", "zsh", "ksh", "ash"];

/// A command as it would be run: what is not known is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Invocation {
    /// The command's name without its directory.
    pub name: String,
    pub words: Vec<Option<String>>,
}

/// A text with its variables.
#[derive(Debug)]
pub(super) struct Shell<'t> {
    text: &'t str,
    variables: HashMap<&'t str, Vec<Assigned<'t>>>,
    functions: HashSet<&'t str>,
    fuel: Fuel,
}

#[derive(Clone, Copy, Debug)]
enum Assigned<'t> {
    Value(Node<'t>),
    Added(Node<'t>),
    Empty,
    Unknown,
}

/// One piece of a command line: its words, each known or not.
type Words = Vec<Option<String>>;

impl<'t> Shell<'t> {
    pub(super) fn read(text: &'t str, tree: &'t Tree) -> Result<Self, String> {
        let (variables, functions) = (HashMap::new(), HashSet::new());
        let mut shell = Self { text, variables, functions, fuel: Fuel::new() };
        walk(tree, |node, _| shell.enter(node))?;
        Ok(shell)
    }

    fn of(&self, node: Node<'_>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The words that a node may be, as far as they are known.
    pub(super) fn words(&self, node: Node<'t>) -> Vec<String> {
        self.texts(node, 0).into_iter().flatten().collect()
    }

    pub(super) fn gave_up(&self) -> bool {
        self.fuel.is_used_up()
    }

    fn enter(&mut self, node: Node<'t>) {
        match node.kind() {
            "variable_assignment" => {
                let Some(name) = node.child_by_field_name("name") else { return };
                let adds = node.child(1).is_some_and(|one| one.kind() == "+=");
                let assigned = match node.child_by_field_name("value") {
                    _ if name.kind() != "variable_name" => Assigned::Unknown,
                    Some(value) if adds => Assigned::Added(value),
                    Some(value) => Assigned::Value(value),
                    None => Assigned::Empty,
                };
                self.variables.entry(self.of(name)).or_default().push(assigned);
            }
            "for_statement" => {
                let Some(name) = node.child_by_field_name("variable") else { return };
                let mut cursor = node.walk();
                let values = node.children_by_field_name("value", &mut cursor);
                let values = values.filter(Node::is_named).map(Assigned::Value);
                let values: Vec<_> = values.take(MAX_CANDIDATES).collect();
                self.variables.entry(self.of(name)).or_default().extend(values);
            }
            "function_definition" => {
                if let Some(name) = node.child_by_field_name("name") {
                    self.functions.insert(self.of(name));
                }
            }
            _ => {}
        }
    }

    /// The commands that a command node may run, with all that stands before them taken away.
    pub(super) fn commands(&self, node: Node<'t>) -> Vec<Invocation> {
        let Some(name) = node.child_by_field_name("name") else { return Vec::new() };
        let mut lines: Vec<Words> = self.expand(name.named_child(0).unwrap_or(name), 0);
        let arguments: Vec<_> =
            node.children_by_field_name("argument", &mut node.walk()).take(MAX_WORDS).collect();
        for argument in arguments {
            let more = self.expand(argument, 0);
            lines = lines
                .iter()
                .flat_map(|line| more.iter().map(move |words| [&line[..], &words[..]].concat()))
                .take(MAX_CANDIDATES)
                .collect();
        }
        lines.into_iter().filter_map(|line| self.unwrapped(line)).collect()
    }

    /// Looks behind `sudo`, `env` and the like.
    fn unwrapped(&self, mut line: Words) -> Option<Invocation> {
        let mut outermost = true;
        for _ in 0..MAX_WRAPPERS {
            let whole = line.first()?.clone()?;
            let name = whole.rsplit('/').next().unwrap_or(&whole).to_owned();
            let wrapper = WRAPPERS.iter().find(|(one, _)| *one == name);
            if outermost && self.functions.contains(whole.as_str()) {
                return None; // a function of the script, whatever it is called
            }
            let rest = line.split_off(1);
            let Some((_, with_word)) = wrapper else {
                return Some(Invocation { name, words: rest });
            };
            let inner = behind(&name, with_word, &rest);
            if inner.is_empty() {
                return Some(Invocation { name, words: rest });
            }
            line = inner;
            outermost = false;
        }
        None
    }

    /// The words that a node expands to, for each way in which that is known.
    fn expand(&self, node: Node<'t>, depth: usize) -> Vec<Words> {
        if matches!(node.kind(), "simple_expansion" | "expansion") {
            // Not in quotes: the value falls apart at blanks.
            let values = self.variable(node, depth);
            let split =
                |text: String| text.split_ascii_whitespace().map(|one| Some(one.into())).collect();
            return values.into_iter().map(|one| one.map_or_else(|| vec![None], split)).collect();
        }
        if node.kind() == "string"
            && node.named_child_count() == 1
            && let Some(inner) = node.named_child(0).filter(|one| self.of(*one).ends_with("[@]}"))
        {
            return self.variable(inner, depth).into_iter().map(split_array).collect();
        }
        self.texts(node, depth).into_iter().map(|one| vec![one]).collect()
    }

    /// The single word that a node is, for each way in which that is known.
    fn texts(&self, node: Node<'t>, depth: usize) -> Vec<Option<String>> {
        if depth > MAX_STEPS || !self.fuel.pay() {
            return vec![None];
        }
        let text = self.of(node);
        match node.kind() {
            "word" | "number" | "test_operator" | "variable_name" => vec![Some(bare(text))],
            "raw_string" => vec![Some(text.trim_matches('\'').to_owned())],
            "ansi_c_string" => {
                let inner = text.strip_prefix("$'").and_then(|one| one.strip_suffix('\''));
                vec![inner.map(unescaped)]
            }
            "string" | "translated_string" => self.quoted(node, depth),
            "concatenation" => {
                let parts = node.children(&mut node.walk()).collect::<Vec<_>>();
                self.together(parts.into_iter().map(|part| self.texts(part, depth + 1)))
            }
            "simple_expansion" | "expansion" => self.variable(node, depth),
            "command_substitution" => vec![self.said(node, depth)],
            "array" => {
                let mut cursor = node.walk();
                let parts = node.named_children(&mut cursor).take(MAX_WORDS);
                let words =
                    parts.map(|one| self.texts(one, depth + 1).into_iter().next().flatten());
                let words: Option<Vec<String>> = words.collect();
                vec![words.map(|words| words.join(ARRAY_BORDER))]
            }
            "string_content" | "heredoc_content" => vec![Some(text.to_owned())],
            _ if node.child_count() == 0 => vec![Some(bare(text))],
            _ => vec![None],
        }
    }

    /// A string in double quotes: what stands between its parts counts too.
    fn quoted(&self, node: Node<'t>, depth: usize) -> Vec<Option<String>> {
        let mut from = node.start_byte() + usize::from(self.of(node).starts_with('$')) + 1;
        let to = node.end_byte().saturating_sub(1);
        let mut parts = Vec::new();
        let between = |from: usize, to: usize| {
            vec![Some(dequoted(self.text.get(from..to).unwrap_or_default()))]
        };
        for part in node.named_children(&mut node.walk()) {
            if part.kind() == "string_content" || part.kind() == "string" {
                continue;
            }
            parts.push(between(from, part.start_byte()));
            parts.push(self.texts(part, depth + 1));
            from = part.end_byte();
        }
        parts.push(between(from, to));
        self.together(parts.into_iter())
    }

    fn together(&self, parts: impl Iterator<Item = Vec<Option<String>>>) -> Vec<Option<String>> {
        let mut whole = vec![Some(String::new())];
        for part in parts {
            let pairs = whole.iter().flat_map(|left| part.iter().map(move |right| (left, right)));
            whole = pairs
                .map(|(left, right)| Some(format!("{}{}", left.as_ref()?, right.as_ref()?)))
                .take(MAX_CANDIDATES)
                .collect();
        }
        whole
    }

    /// What a variable may hold. Those of the shell itself keep their names, as `$HOME`.
    fn variable(&self, node: Node<'t>, depth: usize) -> Vec<Option<String>> {
        let shown = self.of(node);
        let name = shown.trim_start_matches('$').trim_start_matches('{').trim_end_matches('}');
        let plain = name.trim_end_matches("[@]").trim_end_matches("[*]");
        let Some(assigned) = self.variables.get(plain) else {
            let of_the_shell = plain == "HOME" || plain == "PWD";
            return vec![of_the_shell.then(|| format!("${plain}"))];
        };
        let mut values: Vec<Option<String>> = Vec::new();
        for one in assigned.iter().take(MAX_CANDIDATES) {
            let more = match one {
                Assigned::Value(value) => self.texts(*value, depth + 1),
                Assigned::Added(value) => {
                    let added = self.texts(*value, depth + 1);
                    self.together([values.clone(), added].into_iter())
                }
                Assigned::Empty => vec![Some(String::new())],
                Assigned::Unknown => vec![None],
            };
            values.extend(more);
            values.truncate(MAX_CANDIDATES);
        }
        values
    }

    /// `$(echo …)` and `$(printf …)` say what they are told to.
    fn said(&self, node: Node<'t>, depth: usize) -> Option<String> {
        let command = node.named_child(0).filter(|one| {
            one.kind() == "command" && node.named_child_count() == 1 && depth < MAX_STEPS
        })?;
        let name = self.of(command.child_by_field_name("name")?);
        if !matches!(name, "echo" | "printf") {
            return None;
        }
        let mut cursor = command.walk();
        let words = command.children_by_field_name("argument", &mut cursor);
        let words = words.map(|one| self.texts(one, depth + 1).into_iter().next().flatten());
        let words: Option<Vec<String>> = words.take(MAX_WORDS).collect();
        let words = words?;
        let plain = words.iter().filter(|one| !one.starts_with('-')).cloned();
        Some(plain.collect::<Vec<_>>().join(" "))
    }

    /// The script in a here-document or here-string that is given to a shell.
    pub(super) fn fed_script(&self, statement: Node<'t>) -> Option<String> {
        let body = statement.child_by_field_name("body").unwrap_or(statement);
        let runs = self.commands(body).into_iter().any(|one| {
            SHELLS.contains(&one.name.as_str())
                && one.words.iter().all(|word| {
                    word.as_deref().is_some_and(|word| word.starts_with('-') && word != "-c")
                })
        });
        if !runs {
            return None;
        }
        let mut left: Vec<_> = statement.named_children(&mut statement.walk()).collect();
        while let Some(node) = left.pop() {
            match node.kind() {
                "heredoc_body" => return Some(self.of(node).to_owned()),
                "herestring_redirect" => {
                    return self.texts(node.named_child(0)?, 0).into_iter().next().flatten();
                }
                "heredoc_redirect" => left.extend(node.named_children(&mut node.walk())),
                _ => {}
            }
        }
        None
    }
}

/// The script that a command is given as an argument.
pub(super) fn script_of(command: &Invocation) -> Option<String> {
    let known: Option<Vec<&str>> = command.words.iter().map(Option::as_deref).collect();
    match command.name.as_str() {
        "eval" => Some(known?.join(" ")),
        "trap" => command.words.first()?.clone(),
        name if SHELLS.contains(&name) => {
            let mut words = command.words.iter();
            let flag = |word: &Option<String>| {
                word.as_deref().is_some_and(|one| one.starts_with('-') && one.ends_with('c'))
            };
            words.find(|word| flag(word))?;
            words.next()?.clone()
        }
        _ => None,
    }
}

/// Between the items of an array; no word holds it.
const ARRAY_BORDER: &str = "\u{0}";

fn split_array(text: Option<String>) -> Words {
    let Some(text) = text else { return vec![None] };
    text.split(ARRAY_BORDER).map(|one| Some(one.to_owned())).collect()
}

/// What follows the options of a wrapper.
fn behind(name: &str, with_word: &[&str], words: &[Option<String>]) -> Words {
    let mut rest = words.iter();
    // The first plain word of `timeout` is a time.
    let mut own = usize::from(name == "timeout");
    while let Some(word) = rest.as_slice().first() {
        let Some(text) = word else { break };
        if with_word.contains(&text.as_str()) {
            rest.next();
        } else if text.starts_with('-') || (name == "env" && text.contains('=')) {
        } else if own > 0 {
            own -= 1;
        } else {
            break;
        }
        rest.next();
    }
    rest.as_slice().to_vec()
}

/// A word without quotes: only a backslash means something.
fn bare(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        match one {
            '\\' => plain.extend(rest.next().filter(|next| *next != '\n')),
            other => plain.push(other),
        }
    }
    plain
}

/// In double quotes a backslash means something before few characters.
fn dequoted(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(one) = rest.next() {
        match (one, rest.peek()) {
            ('\\', Some('$' | '`' | '"' | '\\')) => plain.extend(rest.next()),
            ('\\', Some('\n')) => {
                rest.next();
            }
            (other, _) => plain.push(other),
        }
    }
    plain
}
