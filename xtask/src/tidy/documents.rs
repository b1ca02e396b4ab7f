//! Rules about documents, and about addresses in any file.

use super::{File, Finding, Tree};

/// What a reader can take in at one go.
const LONGEST: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 300)];
/// Where packages and images come from is the installer's choice, so no file pins one of these. Written in halves,
/// so that this file keeps its own rule.
const REGISTRIES: [&str; 14] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npm", "js.com"),
    concat!("npm", "js.org"),
    concat!("yarn", "pkg.com"),
    concat!("rubygems", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("docker", ".io"),
    concat!("quay", ".io"),
    concat!("ghcr", ".io"),
];
/// Cargo writes where each crate came from, and checks its digest.
const GENERATED: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

pub(super) fn lengths_and_links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, longest) in LONGEST {
        match tree.file(path).map(|file| file.text.lines().count()) {
            None => found.push(Finding::missing(path)),
            Some(lines) if lines > longest => {
                let what = format!("{lines} lines, and {longest} are the most");
                found.push(Finding::failure(path, what));
            }
            Some(_) => {}
        }
    }
    found.extend(tree.markdown().flat_map(|file| broken_links(tree, file)));
    found
}

pub(super) fn no_registry_address(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !GENERATED.contains(&file.path.as_str())) {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(host) = hosts(line).find_map(registry) {
                let what = format!("gives an address at {host}; name the package instead");
                found.push(Finding::failure(format!("{}:{}", file.path, at + 1), what));
            }
        }
    }
    found
}

/// The text with fenced blocks blanked out, line for line: what is in them is not markdown.
pub(super) fn without_code_blocks(markdown: &str) -> String {
    let mut inside = false;
    let mut text = String::with_capacity(markdown.len());
    for line in markdown.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fence && !inside {
            text.push_str(line);
        }
        inside ^= fence;
        text.push('\n');
    }
    text
}

fn broken_links(tree: &Tree, file: &File) -> Vec<Finding> {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut found = Vec::new();
    for (at, line) in without_code_blocks(&file.text).lines().enumerate() {
        for target in link_targets(line) {
            let path = target.split(['#', '?']).next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if elsewhere || path.is_empty() {
                continue;
            }
            if !resolve(directory, path).is_some_and(|path| tree.has(&path)) {
                let place = format!("{}:{}", file.path, at + 1);
                found.push(Finding::failure(
                    place,
                    format!("links to {target}, which is not there"),
                ));
            }
        }
    }
    found
}

/// What stands in `](…)`, outside of inline code and without a title.
fn link_targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .map(|target| target.trim_matches(['<', '>']).to_owned())
        .collect()
}

/// A path from the root of the repository, or nothing if it leads out of it.
fn resolve(directory: &str, target: &str) -> Option<String> {
    let (base, target) = match target.strip_prefix('/') {
        Some(from_root) => ("", from_root),
        None => (directory, target),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The host of every URL in a line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(|rest| {
        let end =
            |letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '.' | '-' | '@');
        let authority = rest.split(end).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default()
    })
}

fn registry(host: &str) -> Option<&'static str> {
    let names_it = |registry: &&str| {
        host.strip_suffix(*registry).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    REGISTRIES.into_iter().find(names_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_readme_is_refused_and_a_missing_one_too() {
        let long = "line\n".repeat(151);
        let found = lengths_and_links(&Tree::of(&[("README.md", &long)]));
        assert!(found[0].what.starts_with("151 lines"), "{found:?}");
        assert!(found[1].what.contains("does not exist"), "{found:?}");
    }

    #[test]
    fn links_resolve_from_their_own_directory() {
        let links = "[a](../README.md#top) [b](/docs/x.md) [c](gone.md \"title\") [d](#here)\n\
                     [e](https://example.org/x) `[f](code.md)` [g](../../out.md)\n```\n[h](fence.md)\n```\n![i](<x.md>)";
        let tree = Tree::of(&[("docs/x.md", links), ("README.md", ""), ("ARCHITECTURE.md", "")]);
        let whats: Vec<_> = lengths_and_links(&tree).into_iter().map(|found| found.what).collect();
        assert_eq!(
            whats,
            ["links to gone.md, which is not there", "links to ../../out.md, which is not there"]
        );
    }

    #[test]
    fn registry_addresses_are_found_as_urls_only() {
        let host = REGISTRIES[1];
        let text = format!(
            "install from {host}\nsee https://user@files.{host}/simple\nhttps://not{host}/x\n"
        );
        let found = no_registry_address(&Tree::of(&[("a.toml", &text), ("Cargo.lock", &text)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].place, "a.toml:2");
    }
}
