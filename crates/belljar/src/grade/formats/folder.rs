//! A directory with `N.in` and `N.out`, as judges of programming contests keep it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::case::Case;
use super::Problem;
use crate::model::error::SpecError;

/// Files in the directory.
const MAX_FILES: usize = 20_000;
/// All of them together.
const MAX_BYTES: u64 = 256 << 20;
/// What an expected output may be called.
const OUTPUTS: [&str; 3] = ["out", "ans", "expected"];

pub(super) fn read(directory: &Path) -> Result<Problem, SpecError> {
    let wrong = |why: String| SpecError::new("cases", format!("{}: {why}", directory.display()));
    let entries = std::fs::read_dir(directory).map_err(|error| wrong(error.to_string()))?;
    let mut found: BTreeMap<Name, [Option<PathBuf>; 2]> = BTreeMap::new();
    for (index, entry) in entries.enumerate() {
        if index >= MAX_FILES {
            return Err(wrong(format!("has more than {MAX_FILES} files")));
        }
        let path = entry.map_err(|error| wrong(error.to_string()))?.path();
        let extension = path.extension().and_then(|one| one.to_str()).unwrap_or_default();
        let side = match extension {
            "in" => 0,
            _ if OUTPUTS.contains(&extension) => 1,
            _ => continue,
        };
        let stem = path.file_stem().and_then(|one| one.to_str()).unwrap_or_default();
        found.entry(Name::of(stem)).or_default()[side] = Some(path.clone());
    }
    let mut room = MAX_BYTES;
    let mut cases = Vec::new();
    for (name, [input, output]) in found {
        let name = name.1;
        let Some(output) = output else {
            return Err(wrong(format!("has {name}.in and no {name}.out")));
        };
        let mut take = |path: &Path| -> Result<Vec<u8>, SpecError> {
            let why = |why: String| wrong(format!("{}: {why}", path.display()));
            let bytes = std::fs::read(path).map_err(|error| why(error.to_string()))?;
            room = room
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| why(format!("with it there are more than {MAX_BYTES} bytes")))?;
            Ok(bytes)
        };
        // An output without an input belongs to a program that reads nothing.
        let stdin = input.as_deref().map(&mut take).transpose()?.unwrap_or_default();
        let expected = take(&output)?;
        cases.push(Case {
            name,
            stdin: Some(stdin.into()),
            expected_stdout: Some(expected.into()),
            ..Case::default()
        });
    }
    if cases.is_empty() {
        return Err(wrong("has no N.in with N.out".to_owned()));
    }
    Ok(Problem { cases, ..Problem::default() })
}

/// Sorted as people count: 2 before 10.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name(u64, String);

impl Name {
    fn of(stem: &str) -> Self {
        let digits: String = stem.chars().skip_while(|one| !one.is_ascii_digit()).collect();
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        Self(digits.parse().unwrap_or(u64::MAX), stem.to_owned())
    }
}
