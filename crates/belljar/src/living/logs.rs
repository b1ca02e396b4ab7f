//! What all execs of a sandbox wrote, one after the other; and what they write.

use std::collections::{HashSet, VecDeque};

use super::following::{Following, Offsets};
use super::{Sandboxes, blocking};
use crate::model::error::Error;
use crate::model::outcome::Stream;
use crate::model::sandbox::{ExecEvent, ExecInfo, ExecState};

/// How often it is looked for execs that have started since.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(200);
/// Read back for the last lines: more than people look at.
const MOST_TAIL_BYTES: usize = 4 << 20;

/// A sandbox's log, piece by piece: which exec, which stream, what.
#[derive(Debug)]
pub struct Log {
    sandboxes: Sandboxes,
    name: String,
    /// What is read before anything else.
    ready: VecDeque<Piece>,
    /// Execs that are read, the first of them to its end before the next.
    waiting: VecDeque<Following>,
    seen: HashSet<String>,
    follow: bool,
}

/// The exec, its stream, and what it wrote.
type Piece = (String, Stream, Vec<u8>);

impl Sandboxes {
    /// The log from its beginning, or the last lines of it; with `follow` it goes on until it is dropped.
    pub async fn logs(&self, name: &str, tail: Option<u64>, follow: bool) -> Result<Log, Error> {
        let mut log = Log {
            sandboxes: self.clone(),
            name: name.to_owned(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            seen: HashSet::new(),
            follow,
        };
        let execs = self.execs(name).await?;
        match tail {
            None => log.read(execs).await?,
            Some(lines) => log.skip_to(execs, lines).await?,
        }
        Ok(log)
    }
}

impl Log {
    /// The next piece; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Piece>, Error> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            let Some(first) = self.waiting.front_mut() else {
                if !self.follow {
                    return Ok(None);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                let execs = self.sandboxes.execs(&self.name).await?;
                self.read(execs).await?;
                continue;
            };
            match first.next().await? {
                Some(ExecEvent::Output { stream, data, .. }) => {
                    return Ok(Some((first.id().to_owned(), stream, data.0)));
                }
                Some(ExecEvent::Gap { stream, from, to }) => {
                    let told = format!("[belljar: bytes {from} to {to} are no longer kept]\n");
                    return Ok(Some((first.id().to_owned(), stream, told.into_bytes())));
                }
                Some(ExecEvent::Started { .. }) => {}
                Some(ExecEvent::Ended(_)) | None => drop(self.waiting.pop_front()),
            }
        }
    }

    /// Reads those that were not read yet; what still runs is followed only if that is wanted.
    async fn read(&mut self, execs: Vec<ExecInfo>) -> Result<(), Error> {
        for exec in execs {
            if self.seen.insert(exec.id.clone()) {
                self.add(&exec, Offsets::default()).await?;
            }
        }
        Ok(())
    }

    async fn add(&mut self, exec: &ExecInfo, from: Offsets) -> Result<(), Error> {
        let following = if exec.state == ExecState::Running && !self.follow {
            let (_, slot) = self.sandboxes.find(&self.name)?;
            Following::ended(slot.directory.clone(), exec.clone(), from)
        } else {
            self.sandboxes.follow(&self.name, &exec.id, from).await?
        };
        self.waiting.push_back(following);
        Ok(())
    }

    /// The last lines of what is there, and then what comes.
    async fn skip_to(&mut self, execs: Vec<ExecInfo>, lines: u64) -> Result<(), Error> {
        let (_, slot) = self.sandboxes.find(&self.name)?;
        let (directory, known) = (slot.directory.clone(), execs.clone());
        let most = usize::try_from(lines).unwrap_or(usize::MAX);
        self.ready = blocking(move || last_lines(&directory, &known, most)).await?.into();
        for exec in execs {
            self.seen.insert(exec.id.clone());
            if exec.state == ExecState::Running && self.follow {
                let from = Offsets { stdout: exec.stdout_bytes, stderr: exec.stderr_bytes };
                self.add(&exec, from).await?;
            }
        }
        Ok(())
    }
}

/// From the newest exec back, until there are enough lines.
fn last_lines(
    directory: &std::path::Path,
    execs: &[ExecInfo],
    most: usize,
) -> Result<Vec<Piece>, Error> {
    let mut found: VecDeque<Piece> = VecDeque::new();
    let (mut lines, mut bytes) = (0, 0);
    for exec in execs.iter().rev() {
        for (stream, length) in
            [(Stream::Stderr, exec.stderr_bytes), (Stream::Stdout, exec.stdout_bytes)]
        {
            if lines >= most || bytes >= MOST_TAIL_BYTES {
                return Ok(found.into());
            }
            let room = MOST_TAIL_BYTES - bytes;
            let from = length.saturating_sub(room as u64);
            let read = crate::native::living::output(directory, &exec.id, stream, from, room)
                .map_err(Error::backend("read the log of an exec"))?;
            let Some(piece) = read.filter(|piece| !piece.data.is_empty()) else { continue };
            let kept = tail_of(&piece.data, most - lines);
            lines += kept.split_inclusive(|byte| *byte == b'\n').count();
            bytes += kept.len();
            found.push_front((exec.id.clone(), stream, kept.to_vec()));
        }
    }
    Ok(found.into())
}

/// The last lines of a text.
fn tail_of(bytes: &[u8], lines: usize) -> &[u8] {
    let starts: Vec<usize> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .scan(0, |start, line| Some(std::mem::replace(start, *start + line.len())))
        .collect();
    let first = starts.len().saturating_sub(lines);
    starts.get(first).map_or(&[], |start| &bytes[*start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        let cases: [(&str, usize, &str); 6] = [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\n", 5, "a\n"),
            ("a\nb\n", 0, ""),
            ("", 3, ""),
            ("\n\n", 1, "\n"),
        ];
        for (text, lines, expected) in cases {
            assert_eq!(tail_of(text.as_bytes(), lines), expected.as_bytes(), "{text:?} {lines}");
        }
    }
}
