//! The dependency line: `cli → server → evolve → belljar → egress → jail → sys`, and nothing the other way.

use super::{File, Finding, Tree};

/// From the bottom up. A crate may depend only on those before it.
const ORDER: [&str; 9] = [
    "belljar-sys",
    "belljar-jail",
    "belljar-zygote",
    "belljar-swap",
    "belljar-egress",
    "belljar",
    "belljar-evolve",
    "belljar-server",
    "belljar-cli",
];
/// What drives the product from outside; no part of the product may depend on it.
const OUTSIDE: [&str; 2] = ["belljar-tests", "xtask"];
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(super) fn one_way(tree: &Tree) -> Vec<Finding> {
    let manifests: Vec<_> = tree.files.iter().filter(|file| is_crate(&file.path)).collect();
    if manifests.is_empty() {
        return vec![Finding::missing("crates/*/Cargo.toml")];
    }
    manifests.into_iter().flat_map(violations).collect()
}

fn is_crate(path: &str) -> bool {
    path.strip_prefix("crates/")
        .and_then(|path| path.strip_suffix("/Cargo.toml"))
        .is_some_and(|name| !name.contains('/'))
}

fn violations(manifest: &File) -> Vec<Finding> {
    let failure = |what: String| Finding::failure(&manifest.path, what);
    let table: toml::Table = match manifest.text.parse() {
        Ok(table) => table,
        Err(error) => return vec![failure(format!("is not TOML: {error}"))],
    };
    let name =
        table.get("package").and_then(|package| package.get("name")).and_then(|n| n.as_str());
    let Some(name) = name else {
        return vec![failure("names no package".into())];
    };
    let Some(own) = rank(name) else {
        let what = format!("{name} has no place in the line {}", ORDER.join(" ← "));
        return vec![failure(what)];
    };
    dependencies(&table)
        .into_iter()
        .filter(|on| OUTSIDE.contains(&on.as_str()) || rank(on).is_some_and(|on| on >= own))
        .map(|on| failure(format!("{name} depends on {on}, which stands above it")))
        .collect()
}

fn rank(package: &str) -> Option<usize> {
    ORDER.iter().position(|name| *name == package)
}

/// The packages depended on by any of the tables, for all targets or for some. `package = "…"` renames one.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let for_targets = manifest.get("target").and_then(toml::Value::as_table);
    let for_targets = for_targets.into_iter().flat_map(|targets| targets.values());
    let holders = std::iter::once(manifest).chain(for_targets.filter_map(toml::Value::as_table));
    holders
        .flat_map(|holder| TABLES.iter().filter_map(|table| holder.get(*table)?.as_table()))
        .flatten()
        .map(|(name, value)| {
            value.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/any/Cargo.toml", manifest)]);
        one_way(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn downward_dependencies_are_fine() {
        let manifest = "[package]\nname = \"belljar\"\n[dependencies]\nbelljar-jail.workspace = true\nserde = \"1\"\n";
        assert!(found(manifest).is_empty());
    }

    #[test]
    fn upward_dependencies_are_found_in_every_table() {
        for table in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.build-dependencies"] {
            let manifest = format!(
                "[package]\nname = \"belljar-jail\"\n[{table}]\nbelljar = {{ path = \"../belljar\" }}\n"
            );
            let found = found(&manifest);
            assert_eq!(found, ["belljar-jail depends on belljar, which stands above it"]);
        }
    }

    #[test]
    fn a_renamed_upward_dependency_is_found() {
        let manifest = "[package]\nname = \"belljar-sys\"\n[dependencies]\nx = { package = \"xtask\", path = \"x\" }\n";
        assert_eq!(found(manifest).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_line_is_refused() {
        assert!(found("[package]\nname = \"belljar-utils\"\n")[0].contains("no place"));
    }
}
