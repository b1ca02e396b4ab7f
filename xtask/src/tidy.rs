//! The house rules that no other tool checks. Each rule is a function from the text of the repository to what is
//! wrong with it, so that it is tested on a few lines of made-up source.
//!
//! A rule that needs a file which is not there fails: a rule that checks nothing would look kept.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Passed;
use crate::shell;
use crate::test::Counts;

mod coverage;
mod documents;
mod layering;
mod rust_text;
mod source;

/// A kept rule is silent, so its name here is its description.
const RULES: [(&str, Rule); 12] = [
    ("dependencies point one way", layering::one_way),
    ("unsafe only in crates/sys", source::unsafe_only_in_sys),
    ("nothing unfinished", source::nothing_unfinished),
    ("no ignored test", source::no_ignored_test),
    ("no mod.rs", source::no_mod_rs),
    ("files keep to one idea", source::size),
    ("every step has a fault test", coverage::steps),
    ("every layer has an escape test", coverage::layers),
    ("every specified number has a test", coverage::specification),
    ("every threat has a test", coverage::threat_model),
    ("documents are short and their links resolve", documents::lengths_and_links),
    ("no registry address", documents::no_registry_address),
];
/// Directories that are not ours to check.
const SKIPPED: [&str; 4] = [".git", "target", "node_modules", "__pycache__"];
/// Larger files are data.
const LARGEST_BYTES: u64 = 4 << 20;

type Rule = fn(&Tree) -> Vec<Finding>;

/// The repository as text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: Vec<File>,
}

#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with `/`.
    path: String,
    /// Empty for what is not text.
    text: String,
}

/// Something that breaks a rule, or comes near it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// `path` or `path:line`.
    place: String,
    what: String,
    weight: Weight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Failure,
    Warning,
}

/// `cargo xtask tidy`.
pub(crate) fn run() -> Result<Passed> {
    let counts = check()?;
    counts.why.iter().for_each(shell::say);
    shell::say(format!("{} rules kept, {} broken", counts.passed, counts.failed));
    Ok(if counts.failed == 0 { Passed::Yes } else { Passed::No })
}

/// One count per rule.
pub(crate) fn check() -> Result<Counts> {
    let tree = Tree::read(&shell::repo_root())?;
    let mut counts = Counts::default();
    for (name, rule) in RULES {
        let (failures, warnings): (Vec<_>, Vec<_>) =
            rule(&tree).into_iter().partition(|finding| finding.weight == Weight::Failure);
        for warning in warnings {
            shell::say(format!("warning: {}: {}", warning.place, warning.what));
        }
        if failures.is_empty() {
            counts.passed += 1;
        } else {
            counts.failed += 1;
        }
        counts.why.extend(
            failures.iter().map(|found| format!("{name}: {}: {}", found.place, found.what)),
        );
    }
    Ok(counts)
}

impl Finding {
    fn failure(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into(), weight: Weight::Failure }
    }

    fn warning(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into(), weight: Weight::Warning }
    }

    fn missing(path: &str) -> Self {
        Self::failure(path, "the file does not exist, and this rule reads it")
    }
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        tree.files.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(tree)
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> Result<()> {
        let entries = fs::read_dir(directory)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && entry.metadata()?.len() <= LARGEST_BYTES {
                let bytes =
                    fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
                self.files.push(File { path, text: String::from_utf8(bytes).unwrap_or_default() });
            }
        }
        Ok(())
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether it is a file, or a directory that holds one.
    fn has(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty()
            || self.files.iter().any(|file| file.path == path || file.path.starts_with(&below))
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".md"))
    }
}

#[cfg(test)]
impl Tree {
    fn of(files: &[(&str, &str)]) -> Self {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Self { files: files.iter().map(file).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_files_exist_and_prefixes_of_names_do_not() {
        let tree = Tree::of(&[("docs/guides/start.md", "")]);
        assert!(tree.has("docs/guides") && tree.has("docs/guides/start.md") && tree.has(""));
        assert!(!tree.has("docs/gui"));
    }

    #[test]
    fn a_rule_whose_file_is_missing_fails() {
        let tree = Tree::of(&[]);
        for rule in [coverage::steps, coverage::layers, coverage::specification] {
            assert!(rule(&tree).iter().any(|found| found.what.contains("does not exist")));
        }
    }
}
