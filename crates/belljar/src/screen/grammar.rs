//! The languages that can be read, and reading a text within bounds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Instant;

use serde::Deserialize;
use tree_sitter::{Language, Node, ParseOptions, Parser, Tree};

/// Nodes of a tree that are looked at: about a hundred thousand lines.
pub(super) const MAX_NODES: usize = 1 << 20;
/// Nodes inside each other: no person writes this, and interpreters give up far sooner.
pub(super) const MAX_DEPTH: usize = 10_000;

/// A language with a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Grammar {
    Python,
    Bash,
    #[serde(alias = "node")]
    Javascript,
}

impl Grammar {
    pub(super) const ALL: [Self; 3] = [Self::Python, Self::Bash, Self::Javascript];

    /// The built-in rules.
    pub(super) const fn rules(self) -> &'static str {
        match self {
            Self::Python => include_str!("rules/python.toml"),
            Self::Bash => include_str!("rules/bash.toml"),
            Self::Javascript => include_str!("rules/javascript.toml"),
        }
    }

    /// The grammar of a language of ours; none for those that we cannot read.
    pub(super) fn of_language(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "bash" => Some(Self::Bash),
            "node" | "javascript" => Some(Self::Javascript),
            _ => None,
        }
    }

    pub(super) fn language(self) -> Language {
        match self {
            Self::Python => tree_sitter_python::LANGUAGE.into(),
            Self::Bash => tree_sitter_bash::LANGUAGE.into(),
            Self::Javascript => tree_sitter_javascript::LANGUAGE.into(),
        }
    }

    /// Which kinds of node rules speak of, and as what.
    pub(super) fn places(self) -> HashMap<u16, &'static str> {
        let language = self.language();
        let patterns = self.shapes().lines().filter_map(|line| {
            let (kind, capture) = line.strip_prefix('(')?.split_once(") @")?;
            Some((language.id_for_node_kind(kind, true), capture))
        });
        patterns.collect()
    }

    /// The same as a query. Its patterns are single nodes, so that a walk over the tree answers it: to compile
    /// any query tree-sitter goes through all of a grammar, which takes longer than most runs.
    const fn shapes(self) -> &'static str {
        match self {
            Self::Python => include_str!("rules/python.scm"),
            Self::Bash => include_str!("rules/bash.scm"),
            Self::Javascript => include_str!("rules/javascript.scm"),
        }
    }

    /// The name on the wire.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Javascript => "javascript",
        }
    }
}

impl fmt::Display for Grammar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

thread_local! {
    /// Parsers are dear to make and cheap to keep, and no two threads may share one.
    static PARSERS: RefCell<[Option<Parser>; 3]> = const { RefCell::new([None, None, None]) };
}

/// Reads a text. The error says why there is no tree.
pub(super) fn parse(grammar: Grammar, text: &str, deadline: Instant) -> Result<Tree, String> {
    PARSERS.with_borrow_mut(|parsers| {
        let slot = &mut parsers[grammar as usize];
        let mut parser = match slot.take() {
            Some(parser) => parser,
            None => new_parser(grammar)?,
        };
        let mut in_time = |_: &_| {
            if Instant::now() < deadline {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let options = ParseOptions::new().progress_callback(&mut in_time);
        let bytes = text.as_bytes();
        let mut from = |offset: usize, _| bytes.get(offset..).unwrap_or_default();
        let tree = parser.parse_with_options(&mut from, None, Some(options));
        if tree.is_some() {
            *slot = Some(parser); // one that was stopped midway would go on from there
        }
        tree.ok_or_else(|| "takes too long to read".to_owned())
    })
}

fn new_parser(grammar: Grammar) -> Result<Parser, String> {
    let mut parser = Parser::new();
    let set = parser.set_language(&grammar.language());
    set.map_err(|error| format!("has a grammar that does not fit: {error}"))?;
    Ok(parser)
}

/// Shows every node, outer before inner, with its depth. Refuses trees that would take too long.
pub(super) fn walk<'t>(
    tree: &'t Tree,
    mut enter: impl FnMut(Node<'t>, usize),
) -> Result<(), String> {
    let nodes = tree.root_node().descendant_count();
    if nodes > MAX_NODES {
        return Err(format!("has {nodes} parts, more than {MAX_NODES}"));
    }
    let mut cursor = tree.walk();
    let mut depth = 0;
    loop {
        enter(cursor.node(), depth);
        if cursor.goto_first_child() {
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(format!("is nested deeper than {MAX_DEPTH}"));
            }
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Ok(());
            }
            depth -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use tree_sitter::Query;

    use super::*;

    #[test]
    fn shapes_are_queries_of_single_nodes_and_all_are_looked_for() {
        for grammar in Grammar::ALL {
            let query = Query::new(&grammar.language(), grammar.shapes()).unwrap();
            assert_eq!(query.pattern_count(), grammar.places().len(), "{grammar}");
            let captures = query.capture_names();
            assert!(grammar.places().values().all(|one| captures.contains(one)), "{grammar}");
        }
    }
}
