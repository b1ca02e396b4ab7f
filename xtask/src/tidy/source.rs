//! Rules about source files.

use super::rust_text::{code_only, words};
use super::{Finding, Tree};

/// Written in halves, so that this file keeps its own rule.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
/// Files in which people leave notes to themselves. Documents may talk about such notes.
const SOURCE_ENDINGS: [&str; 8] = [".rs", ".toml", ".py", ".sh", ".js", ".ts", ".yml", ".ci/run"];
/// Past the first a reader loses the thread; past the second we stop.
const LONG_LINES: usize = 400;
const TOO_LONG_LINES: usize = 600;

/// To export a name is "unsafe" to Rust, as two could clash; nothing is done that could go wrong.
const EXPORT: &str = "#[unsafe(no_mangle)]";

pub(super) fn unsafe_only_in_sys(tree: &Tree) -> Vec<Finding> {
    let elsewhere = tree.rust().filter(|file| !file.path.starts_with("crates/sys/"));
    elsewhere
        .flat_map(|file| {
            let mut code = code_only(&file.text);
            if file.path.starts_with("crates/zygote/") {
                code = code.replace(EXPORT, "");
            }
            words(&code)
                .filter(|(_, word)| *word == "unsafe")
                .map(|(line, _)| {
                    let place = format!("{}:{line}", file.path);
                    Finding::failure(place, "`unsafe`: give crates/sys a safe door for it")
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

pub(super) fn nothing_unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        if !SOURCE_ENDINGS.iter().any(|ending| file.path.ends_with(ending)) {
            continue;
        }
        for (line, word) in words(&file.text).filter(|(_, word)| UNFINISHED.contains(word)) {
            found.push(Finding::failure(format!("{}:{line}", file.path), format!("says {word}")));
        }
        if file.path.ends_with(".rs") {
            for line in lines_with(&code_only(&file.text), "todo!") {
                found.push(Finding::failure(format!("{}:{line}", file.path), "calls todo!"));
            }
        }
    }
    found
}

pub(super) fn no_ignored_test(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .flat_map(|file| {
            lines_with(&code_only(&file.text), "#[ignore").into_iter().map(|line| {
                let place = format!("{}:{line}", file.path);
                Finding::failure(place, "ignores a test: what does not run proves nothing")
            })
        })
        .collect()
}

pub(super) fn no_mod_rs(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| file.path.rsplit('/').next() == Some("mod.rs"))
        .map(|file| Finding::failure(&file.path, "name it after its module: foo.rs beside foo/"))
        .collect()
}

pub(super) fn size(tree: &Tree) -> Vec<Finding> {
    // A test module is left out at the bottom of a file, so also in a file of its own.
    let is_test_module = |path: &str| path.starts_with("crates/") && path.ends_with("/tests.rs");
    tree.rust()
        .filter(|file| !is_test_module(&file.path))
        .filter_map(|file| {
            let lines = lines_of_code(&file.text);
            let what = format!("{lines} lines of code; past {LONG_LINES}, split it by idea");
            match lines {
                TOO_LONG_LINES.. => Some(Finding::failure(&file.path, what)),
                LONG_LINES.. => Some(Finding::warning(&file.path, what)),
                _ => None,
            }
        })
        .collect()
}

/// Lines with code on them, up to the tests at the bottom of the file.
fn lines_of_code(source: &str) -> usize {
    let code = code_only(source);
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

fn lines_with(text: &str, mark: &str) -> Vec<usize> {
    let marked = text.lines().enumerate().filter(|(_, line)| line.contains(mark));
    marked.map(|(at, _)| at + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.place.as_str()).collect()
    }

    #[test]
    fn unsafe_is_found_in_code_outside_sys_only() {
        let tree = Tree::of(&[
            ("crates/sys/src/lib.rs", "unsafe { call() }"),
            (
                "crates/jail/src/a.rs",
                "// unsafe {\nlet lint = \"unsafe {\"; #![forbid(unsafe_code)]",
            ),
            (
                "crates/jail/src/b.rs",
                "fn a() {\n    unsafe{ call() }\n}\nunsafe impl Send for A {}",
            ),
        ]);
        let found = unsafe_only_in_sys(&tree);
        assert_eq!(places(&found), ["crates/jail/src/b.rs:2", "crates/jail/src/b.rs:4"]);
    }

    #[test]
    fn notes_to_self_are_found_in_comments_too() {
        let note = format!("// {}: later\nlet t = \"/tmp/a-{}\";", UNFINISHED[0], "X".repeat(6));
        let call = format!("fn f() {{ {}!() }}", "todo");
        let tree = Tree::of(&[
            ("a.rs", note.as_str()),
            ("b.rs", call.as_str()),
            ("c.rs", "let s = \"todo!\";"),
            ("d.md", UNFINISHED[0]),
        ]);
        assert_eq!(places(&nothing_unfinished(&tree)), ["a.rs:1", "b.rs:1"]);
    }

    #[test]
    fn ignored_tests_and_mod_rs_are_found() {
        let tree = Tree::of(&[
            ("tests/escape.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}"),
            ("crates/cli/src/run/mod.rs", ""),
            ("crates/cli/src/pod_mod.rs", ""),
        ]);
        assert_eq!(places(&no_ignored_test(&tree)), ["tests/escape.rs:2"]);
        assert_eq!(places(&no_mod_rs(&tree)), ["crates/cli/src/run/mod.rs"]);
    }

    #[test]
    fn long_files_are_warned_of_and_too_long_ones_fail() {
        let code = |lines: usize| "let a = 1;\n".repeat(lines);
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", code(10), code(900));
        let commented = format!("{}{}", code(399), "// why\n\n".repeat(500));
        let tree = Tree::of(&[
            ("long.rs", &code(400)),
            ("too_long.rs", &code(600)),
            ("tested.rs", &tested),
            ("crates/belljar/src/seccomp/tests.rs", &code(900)),
            ("commented.rs", &commented),
        ]);
        let found = size(&tree);
        let weights: Vec<_> = found.iter().map(|f| (f.place.as_str(), f.weight)).collect();
        use super::super::Weight::{Failure, Warning};
        assert_eq!(weights, [("long.rs", Warning), ("too_long.rs", Failure)]);
    }
}
