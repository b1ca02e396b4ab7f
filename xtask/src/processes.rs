//! The process table: who is whose child. Used to find what a test left, to end it, and to weigh our own memory.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

/// One line of the process table.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) name: String,
}

/// Every process that could be read; one that ends meanwhile is left out.
pub(crate) fn table() -> Result<Vec<Process>> {
    Ok(fs::read_dir("/proc")
        .context("cannot read /proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect())
}

/// The children of `ancestor`, theirs, and so on.
pub(crate) fn below(ancestor: u32, table: &[Process]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for child in table.iter().filter(|process| process.parent == parent) {
            if found.insert(child.pid) {
                parents.push(child.pid);
            }
        }
    }
    found
}

/// Every descendant of this process.
pub(crate) fn descendants() -> Result<BTreeSet<u32>> {
    Ok(below(std::process::id(), &table()?))
}

fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, parent) = parse_stat(&stat)?;
    Some(Process { pid, parent, name })
}

/// proc(5): `pid (comm) state ppid …`, where comm may hold spaces and parentheses of its own.
fn parse_stat(stat: &str) -> Option<(String, u32)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name.to_owned(), tail.split_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_call_itself_anything() {
        let stat = "4242 (a ) b (c) S 17 4242 4242 0 -1";
        assert_eq!(parse_stat(stat), Some(("a ) b (c".to_owned(), 17)));
        assert_eq!(parse_stat("no process"), None);
    }

    #[test]
    fn grandchildren_are_found_and_strangers_are_not() {
        let process = |pid, parent| Process { pid, parent, name: String::new() };
        let table = [process(2, 1), process(3, 2), process(4, 3), process(9, 1)];
        assert_eq!(below(2, &table), BTreeSet::from([3, 4]));
    }
}
