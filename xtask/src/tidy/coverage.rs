//! Rules that tie a promise to a test that exists: steps, layers, numbers, threats.

use std::collections::BTreeSet;

use super::rust_text::{code_only, snake_case, test_names, variants, words};
use super::{Finding, Tree};
use crate::tidy::documents::without_code_blocks;

pub(super) fn steps(tree: &Tree) -> Vec<Finding> {
    each_variant_is_tested(tree, "Step", "crates/jail/src/report.rs", "faults")
}

pub(super) fn layers(tree: &Tree) -> Vec<Finding> {
    each_variant_is_tested(tree, "Layer", "crates/jail/src/layer.rs", "escape")
}

pub(super) fn specification(tree: &Tree) -> Vec<Finding> {
    each_row_names_a_test(tree, "SPECIFICATION.md")
}

pub(super) fn threat_model(tree: &Tree) -> Vec<Finding> {
    each_row_names_a_test(tree, "docs/threat-model.md")
}

/// Each variant of the enum must appear in the suite, as `Step::Name` or as `"its_name"`.
fn each_variant_is_tested(tree: &Tree, name: &str, path: &str, suite: &str) -> Vec<Finding> {
    let Some(file) = tree.file(path) else {
        return vec![Finding::missing(path)];
    };
    let code = code_only(&file.text);
    let Some(variants) = variants(&code, name) else {
        return vec![Finding::failure(path, format!("has no `enum {name}`"))];
    };
    let of_suite: Vec<_> = tree.rust().filter(|file| belongs_to(&file.path, suite)).collect();
    if of_suite.is_empty() {
        return vec![Finding::missing(&format!("tests/{suite}.rs"))];
    }
    let untested = |variant: &&str| {
        let quoted = format!("\"{}\"", snake_case(variant));
        !of_suite.iter().any(|file| {
            mentions(&code_only(&file.text), name, variant) || file.text.contains(&quoted)
        })
    };
    let finding = |variant| {
        Finding::failure(path, format!("{name}::{variant} has no test in the suite {suite}"))
    };
    variants.into_iter().filter(untested).map(finding).collect()
}

/// `tests/…/faults.rs`, `tests/…/faults_mounts.rs` and anything in `tests/…/faults/`.
fn belongs_to(path: &str, suite: &str) -> bool {
    path.strip_prefix("tests/")
        .is_some_and(|below| below.split('/').any(|part| part.starts_with(suite)))
}

/// Whether the code has `Enum::Variant` as whole words.
fn mentions(code: &str, name: &str, variant: &str) -> bool {
    let mark = format!("{name}::{variant}");
    code.match_indices(&mark).any(|(at, _)| {
        words(&code[at + name.len() + 2..]).next().is_some_and(|(_, word)| word == variant)
    })
}

/// Each row of each table must name a test in its last column, as `suite::test`, and each one named must exist.
fn each_row_names_a_test(tree: &Tree, path: &str) -> Vec<Finding> {
    let Some(file) = tree.file(path) else {
        return vec![Finding::missing(path)];
    };
    let sources: Vec<_> = tree.rust().map(|file| code_only(&file.text)).collect();
    let existing: BTreeSet<_> = sources.iter().flat_map(|code| test_names(code)).collect();
    let rows = rows(&file.text);
    if rows.is_empty() {
        return vec![Finding::failure(path, "has no table")];
    }
    let mut found = Vec::new();
    for (line, cell) in rows {
        let place = format!("{path}:{line}");
        let tests: Vec<_> = named_tests(&cell).collect();
        if tests.is_empty() {
            found.push(Finding::failure(&place, "the last column names no test as `suite::test`"));
        }
        for test in tests {
            let name = test.rsplit("::").next().unwrap_or_default();
            if !existing.contains(name) {
                found.push(Finding::failure(&place, format!("`{test}` does not exist")));
            }
        }
    }
    found
}

/// The line and last cell of every row below a table's head.
fn rows(markdown: &str) -> Vec<(usize, String)> {
    let text = without_code_blocks(markdown);
    let mut found = Vec::new();
    let mut below_head = false;
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if !line.starts_with('|') {
            below_head = false;
        } else if line.chars().all(|letter| matches!(letter, '|' | '-' | ':' | ' ')) {
            below_head = true;
        } else if below_head {
            found.push((at + 1, last_cell(line)));
        }
    }
    found
}

/// A pipe inside a cell is written `\|`.
fn last_cell(row: &str) -> String {
    let row = row.replace("\\|", " ");
    row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim().to_owned()
}

fn named_tests(cell: &str) -> impl Iterator<Item = &str> {
    let is_path = |text: &&str| {
        text.contains("::")
            && text
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':'))
    };
    cell.split('`').skip(1).step_by(2).filter(is_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "pub enum Step {\n    Clone,\n    NoNewPrivileges,\n    Root,\n}\n";

    fn whats(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.what.as_str()).collect()
    }

    #[test]
    fn untested_steps_are_named() {
        let tree = Tree::of(&[
            ("crates/jail/src/report.rs", REPORT),
            ("tests/tests/faults.rs", "case(Step::Clone); other(Step::RootMount); // Step::Root"),
            ("tests/tests/faults/late.rs", "case(\"no_new_privileges\");"),
            ("tests/tests/escape.rs", "Step::Root"),
        ]);
        assert_eq!(whats(&steps(&tree)), ["Step::Root has no test in the suite faults"]);
    }

    #[test]
    fn a_layer_needs_the_escape_suite() {
        let layer = ("crates/jail/src/layer.rs", "pub enum Layer { Seccomp }");
        let found = layers(&Tree::of(&[layer]));
        assert_eq!(found[0].place, "tests/escape.rs");
        assert!(layers(&Tree::of(&[layer, ("tests/escape.rs", "f(Layer::Seccomp)")])).is_empty());
    }

    #[test]
    fn rows_must_name_live_tests() {
        let table = "# Numbers\n\n| what | value | test |\n|---|--:|---|\n\
            | a | 1 \\| 2 | `cli::limits::is_kept`, `escape::gone` |\n| b | 2 | by hand |\n\
            | c | 3 | `escape::in_catalogue` |\n\n```\n| not | a | row |\n```\n";
        let tree = Tree::of(&[
            ("SPECIFICATION.md", table),
            ("tests/cli.rs", "fn is_kept() {} escape!(in_catalogue, |a| {}); // fn gone()"),
        ]);
        let found = specification(&tree);
        let places: Vec<_> = found.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(places, ["SPECIFICATION.md:5", "SPECIFICATION.md:6"]);
        assert_eq!(found[0].what, "`escape::gone` does not exist");
        assert!(found[1].what.contains("names no test"));
    }
}
