//! Where evolutions are kept: one directory each, in it one file that only grows.
//!
//! A line is a digest and a JSON object; the digest is over the line before and this one, so that a line that was
//! changed, or is missing, is found. Every line is on the disk before anything follows from it. A line that was
//! being written when the machine or the process died is at the end and not whole: it is dropped.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar::{Error, SpecError};
use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::step::{End, Graded, Proposal, StepId};
use crate::syntax::hex;
use crate::task::{Budget, Task};

const LOG: &str = "log.jsonl";
/// The longest line: an answer, a program and the results of ten thousand cases.
const MAX_LINE_BYTES: u64 = 256 << 20;
const ID_BYTES: usize = 8;
/// The longest id that is looked for.
const MAX_ID_CHARS: usize = 64;

/// What is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    Begun { id: String, unix_ms: u64, version: String, task: Box<Task> },
    Proposed(Box<Proposal>),
    Graded(Box<Graded>),
    Resumed { unix_ms: u64, max_iterations: u32, budget: Budget },
    Ended { end: End, why: Option<String> },
    Promoted { unix_ms: u64, step: StepId, to: PathBuf },
}

/// A line: a record, and how long the evolution had been running by then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    pub clock_ms: u64,
    #[serde(flatten)]
    pub record: Record,
}

/// An evolution's file, open for writing. Nobody else has it open so.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    digest: Vec<u8>,
    path: PathBuf,
}

fn broken(operation: &'static str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    let source = io::Error::other(format!("{}: {error}", path.display()));
    Error::Backend { operation, source }
}

impl Store {
    /// Begins a new one below this directory.
    pub(crate) fn create(root: &Path) -> Result<(Self, String), Error> {
        let mut bytes = [0; ID_BYTES];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| broken("make an id", root, &errno))?;
        let id = hex(&bytes);
        let directory = root.join(&id);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.and_then(|()| DirBuilder::new().mode(0o700).create(&directory))
            .map_err(|error| broken("make a directory for the evolution", &directory, &error))?;
        let path = directory.join(LOG);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| broken("begin the evolution's file", &path, &error))?;
        lock(&file, &path)?;
        Ok((Self { file, digest: Vec::new(), path }, id))
    }

    /// Opens one to go on with it; what a torn line left is cut off.
    pub(crate) fn open(root: &Path, id: &str) -> Result<(Self, Vec<Line>), Error> {
        let path = path_of(root, id)?;
        let file = OpenOptions::new().append(true).read(true).open(&path);
        let file = file.map_err(|error| missing(root, id, &error))?;
        lock(&file, &path)?;
        let read = read_file(&file, &path)?;
        let cut = file.set_len(read.whole_bytes).and_then(|()| file.sync_all());
        cut.map_err(|error| broken("cut off a torn line", &path, &error))?;
        Ok((Self { file, digest: read.digest, path }, read.lines))
    }

    /// Writes a line, to the disk itself.
    pub(crate) fn append(&mut self, line: &Line) -> Result<(), Error> {
        let told =
            |error: &dyn std::fmt::Display| broken("write the evolution's file", &self.path, error);
        let json = serde_json::to_string(line).map_err(|error| told(&error))?;
        let digest = chain(&self.digest, json.as_bytes());
        let text = format!("{} {json}\n", hex(&digest));
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| told(&error))?;
        self.digest = digest;
        Ok(())
    }
}

/// All lines of an evolution, as it is now.
pub(crate) fn read(root: &Path, id: &str) -> Result<Vec<Line>, Error> {
    let path = path_of(root, id)?;
    let file = File::open(&path).map_err(|error| missing(root, id, &error))?;
    read_file(&file, &path).map(|read| read.lines)
}

/// Whether somebody is going on with it right now.
pub(crate) fn is_running(root: &Path, id: &str) -> bool {
    let file = path_of(root, id).ok().and_then(|path| File::open(path).ok());
    file.is_some_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// The ids below this directory, the newest first.
pub(crate) fn list(root: &Path) -> Result<Vec<String>, Error> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(broken("list evolutions", root, &error)),
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let made = entry.metadata().and_then(|status| status.modified()).ok()?;
            Some((made, entry.file_name().into_string().ok()?))
        })
        .filter(|(_, id)| is_id(id) && root.join(id).join(LOG).is_file())
        .collect();
    found.sort();
    Ok(found.into_iter().rev().map(|(_, id)| id).collect())
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID_CHARS && id.bytes().all(|one| one.is_ascii_alphanumeric())
}

/// The file of an id. Nothing but letters and digits becomes part of a path.
fn path_of(root: &Path, id: &str) -> Result<PathBuf, SpecError> {
    if !is_id(id) {
        return Err(SpecError::new(
            "id",
            "must be letters and digits, as `belljar evolve` told it",
        ));
    }
    Ok(root.join(id).join(LOG))
}

fn missing(root: &Path, id: &str, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        let reason =
            format!("is \"{id}\", which is not in {}: see `belljar evolve list`", root.display());
        return SpecError::new("id", reason).into();
    }
    broken("open the evolution's file", &root.join(id), error)
}

fn lock(file: &File, path: &Path) -> Result<(), Error> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let reason =
            format!("is being gone on with by another process, which has {}", path.display());
        SpecError::new("id", reason).into()
    })
}

fn chain(before: &[u8], json: &[u8]) -> Vec<u8> {
    Sha256::new().chain_update(before).chain_update(json).finalize().to_vec()
}

struct Read {
    lines: Vec<Line>,
    digest: Vec<u8>,
    whole_bytes: u64,
}

fn read_file(file: &File, path: &Path) -> Result<Read, Error> {
    let mut reader = BufReader::new(file);
    let mut read = Read { lines: Vec::new(), digest: Vec::new(), whole_bytes: 0 };
    loop {
        let mut text = Vec::new();
        let count = io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut text);
        let count = count.map_err(|error| broken("read the evolution's file", path, &error))?;
        if count == 0 {
            break;
        }
        match parse(&text, &read.digest) {
            Some((line, digest)) => {
                read.lines.push(line);
                read.digest = digest;
                read.whole_bytes += count as u64;
            }
            // The last one, torn: its end was written last.
            None if !text.ends_with(b"\n")
                && !read.lines.is_empty()
                && (count as u64) < MAX_LINE_BYTES =>
            {
                break;
            }
            None => {
                let why = format!("is damaged at line {}", read.lines.len() + 1);
                return Err(broken("read the evolution's file", path, &why));
            }
        }
    }
    Ok(read)
}

fn parse(text: &[u8], before: &[u8]) -> Option<(Line, Vec<u8>)> {
    let text = std::str::from_utf8(text.strip_suffix(b"\n")?).ok()?;
    let (told, json) = text.split_once(' ')?;
    let digest = chain(before, json.as_bytes());
    if told != hex(&digest) {
        return None;
    }
    Some((serde_json::from_str(json).ok()?, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(clock_ms: u64) -> Line {
        Line { clock_ms, record: Record::Ended { end: End::Target, why: None } }
    }

    fn root(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bj-evolve-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_dropped() {
        let root = root("torn");
        let (mut store, id) = Store::create(&root).unwrap();
        store.append(&ended(1)).unwrap();
        store.append(&ended(2)).unwrap();
        assert!(is_running(&root, &id));
        assert!(Store::open(&root, &id).unwrap_err().to_string().contains("another process"));
        drop(store);
        assert!(!is_running(&root, &id));
        let path = path_of(&root, &id).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for torn in 1..whole.len() / 2 {
            std::fs::write(&path, &whole[..whole.len() - torn]).unwrap();
            assert_eq!(read(&root, &id).unwrap(), [ended(1)], "{torn}");
        }
        let (mut store, lines) = Store::open(&root, &id).unwrap();
        assert_eq!(lines, [ended(1)]);
        store.append(&ended(3)).unwrap();
        drop(store);
        assert_eq!(read(&root, &id).unwrap(), [ended(1), ended(3)]);
        assert_eq!(list(&root).unwrap(), [id]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_line_that_was_changed_is_found() {
        let root = root("changed");
        let (mut store, id) = Store::create(&root).unwrap();
        (1..4).for_each(|clock| store.append(&ended(clock)).unwrap());
        let path = path_of(&root, &id).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for changed in [
            text.replace("\"clock_ms\":2", "\"clock_ms\":9"),
            text.lines()
                .filter(|line| !line.contains("\"clock_ms\":2"))
                .map(|line| format!("{line}\n"))
                .collect(),
            "x".to_owned(),
        ] {
            std::fs::write(&path, changed).unwrap();
            assert!(read(&root, &id).unwrap_err().to_string().contains("damaged"));
        }
        std::fs::write(&path, text.replace("\"clock_ms\":1", "\"clock_ms\":9")).unwrap();
        assert!(read(&root, &id).unwrap_err().to_string().contains("line 1"));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_id_is_never_a_path() {
        for id in ["", "..", "a/b", "../x", "a.b", "\u{e9}"] {
            assert!(matches!(read(Path::new("/"), id), Err(Error::Spec(_))), "{id}");
        }
    }

    #[test]
    fn others_can_not_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let root = root("modes");
        let (_store, id) = Store::create(&root).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&root.join(&id)), mode(&path_of(&root, &id).unwrap())), (0o700, 0o600));
        std::fs::remove_dir_all(root).unwrap();
    }
}
