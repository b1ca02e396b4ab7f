//! Reading programs by their grammar: whether two of them are the same. Whether one can be run is for its
//! interpreter to say, whose grammar may be newer than ours.
//!
//! Comments and layout are not part of what a program is; names and literals are.

use std::fmt::Write as _;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tree_sitter::{Language, Node, ParseOptions, Parser, Tree};

/// The time that reading one program may take; a hundred lines take less than a millisecond.
const PARSE_LIMIT: Duration = Duration::from_millis(500);
/// Parts that are looked at: about a hundred thousand lines.
const MAX_NODES: usize = 1 << 20;

/// The digest of what a program is, however it is laid out: of its syntax tree without comments where we know the
/// grammar, of its lines without white space at their ends elsewhere.
pub(crate) fn digest(language: &str, code: &str) -> String {
    let mut hash = Sha256::new();
    match leaves(language, code) {
        Some(found) => {
            for leaf in found.iter().filter(|leaf| !leaf.comment) {
                hash.update([u8::from(leaf.extra)]);
                hash.update(leaf.path.to_le_bytes());
                hash.update(leaf.text.as_bytes());
                hash.update([0]);
            }
        }
        None => {
            for line in code.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
                hash.update(line.as_bytes());
                hash.update([0]);
            }
        }
    }
    hex(&hash.finalize())
}

/// The kinds, places in the tree and texts of the tokens in some ranges, comments among them.
pub(crate) fn tokens_in(
    language: &str,
    code: &str,
    ranges: &[Range<usize>],
) -> Option<Vec<(u16, u64, String)>> {
    let found = leaves(language, code)?;
    let inside = |leaf: &&Leaf<'_>| {
        ranges.iter().any(|range| leaf.at.start < range.end && leaf.at.end > range.start)
    };
    let told = |leaf: &Leaf<'_>| {
        // A comment belongs to what is above it or to what follows, as the grammar likes.
        let path = if leaf.comment { 0 } else { leaf.path };
        (leaf.kind, path, leaf.text.to_owned())
    };
    Some(found.iter().filter(inside).map(told).collect())
}

struct Leaf<'a> {
    kind: u16,
    text: &'a str,
    at: Range<usize>,
    comment: bool,
    extra: bool,
    /// What it is part of, and how deep: two programs with the same tokens may differ in that alone, as by the
    /// indentation of Python.
    path: u64,
}

fn leaves<'a>(language: &str, code: &'a str) -> Option<Vec<Leaf<'a>>> {
    let tree = parse(language, code)?;
    let mut found = Vec::new();
    walk(&tree, |node, depth| {
        if node.child_count() == 0 {
            let at = node.byte_range();
            let parent = node.parent().map_or(0, |parent| parent.kind_id());
            found.push(Leaf {
                kind: node.kind_id(),
                text: code.get(at.clone()).unwrap_or_default(),
                at,
                comment: node.kind() == "comment",
                extra: node.is_extra(),
                path: (depth as u64) << 16 | u64::from(parent),
            });
        }
    })?;
    Some(found)
}

fn grammar(language: &str) -> Option<Language> {
    match language {
        "python" => Some(tree_sitter_python::LANGUAGE.into()),
        "bash" => Some(tree_sitter_bash::LANGUAGE.into()),
        "node" | "javascript" => Some(tree_sitter_javascript::LANGUAGE.into()),
        _ => None,
    }
}

fn parse(language: &str, code: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    parser.set_language(&grammar(language)?).ok()?;
    let deadline = Instant::now() + PARSE_LIMIT;
    let mut in_time = |_: &_| {
        if Instant::now() < deadline { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut in_time);
    let mut from = |offset: usize, _| code.as_bytes().get(offset..).unwrap_or_default();
    parser.parse_with_options(&mut from, None, Some(options))
}

/// Shows every node, outer before inner. Nothing comes of trees that would take too long.
fn walk(tree: &Tree, mut enter: impl FnMut(Node<'_>, usize)) -> Option<()> {
    if tree.root_node().descendant_count() > MAX_NODES {
        return None;
    }
    let mut cursor = tree.walk();
    let mut depth = 0;
    loop {
        enter(cursor.node(), depth);
        if cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Some(());
            }
            depth -= 1;
        }
    }
}

/// Bytes as people write digests.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to memory does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_and_comments_do_not_make_another_program() {
        let one = "def f(a, b):\n    return a + b\n";
        let same = "# adds\ndef f( a,b ):\n\n        # here\n        return a+b   # sum\n\n";
        assert_eq!(digest("python", one), digest("python", same));
        for other in ["def f(a, b):\n    return a - b\n", "def f(a, c):\n    return a + c\n"] {
            assert_ne!(digest("python", one), digest("python", other));
        }
    }

    #[test]
    fn indentation_that_means_something_does() {
        let inner = "def f():\n    if a:\n        b()\n        c()\n";
        let outer = "def f():\n    if a:\n        b()\n    c()\n";
        assert_ne!(digest("python", inner), digest("python", outer));
    }

    #[test]
    fn a_language_without_a_grammar_is_told_by_its_lines() {
        assert_eq!(digest("awk", "a \n\nb\n"), digest("awk", "a\nb\n"));
        assert_ne!(digest("awk", "a\nb\n"), digest("awk", "a\nc\n"));
    }
}
