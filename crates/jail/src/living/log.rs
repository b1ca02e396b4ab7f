//! The output of an exec on the disk: segments of one size, of which the last two are kept. Offsets count from the
//! first byte ever written.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use belljar_sys::{Errno, Result};
use rustix::fs::{AtFlags, Mode, OFlags};

/// One segment; a stream keeps between one and two of them.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Segments that are kept.
const KEPT: u64 = 2;

/// The names of the two streams' segments, before their number.
pub const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// One stream that is written.
#[derive(Debug)]
pub(crate) struct Log {
    name: &'static str,
    /// The number of the segment, and the segment.
    open: Option<(u64, OwnedFd)>,
    /// Bytes ever written.
    pub(crate) length: u64,
}

impl Log {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, open: None, length: 0 }
    }

    /// Appends all of it, or says why not: then nothing of it counts.
    pub(crate) fn append(&mut self, directory: &OwnedFd, bytes: &[u8]) -> Result<()> {
        let mut at = self.length;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, within) = (at / SEGMENT_BYTES, at % SEGMENT_BYTES);
            let room = usize::try_from(SEGMENT_BYTES - within).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(room));
            let segment = self.segment(directory, number)?;
            write_all(segment, now, within)?;
            at += now.len() as u64;
            rest = later;
        }
        self.length = at;
        Ok(())
    }

    fn segment(&mut self, directory: &OwnedFd, number: u64) -> Result<&OwnedFd> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = format!("{}.{number}", self.name);
            let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
            self.open = Some((number, file));
            if let Some(old) = number.checked_sub(KEPT) {
                let name = format!("{}.{old}", self.name);
                rustix::fs::unlinkat(directory, name, AtFlags::empty()).ok();
            }
        }
        self.open.as_ref().map(|(_, file)| file).ok_or(Errno::BADF)
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, at))?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins: beyond what was asked for if that is no longer kept.
    pub offset: u64,
    pub data: Vec<u8>,
}

/// Reads a stream of the exec in this directory from an offset on; `None` where nothing is written yet.
pub fn read(directory: &Path, stream: &str, offset: u64, most: usize) -> io::Result<Option<Piece>> {
    // A segment may be dropped between the look and the open, but only so often while we look.
    for _ in 0..16 {
        let Some((first, end)) = extent(directory, stream)? else {
            return Ok(None);
        };
        let offset = offset.max(first);
        if offset >= end {
            return Ok(None);
        }
        let (number, within) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
        let file = match File::open(directory.join(format!("{stream}.{number}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let here = (end.min((number + 1) * SEGMENT_BYTES) - offset).min(most as u64);
        let mut data = vec![0; usize::try_from(here).unwrap_or(most)];
        let read = file.read_at(&mut data, within)?;
        data.truncate(read);
        return Ok((read > 0).then_some(Piece { offset, data }));
    }
    Ok(None)
}

/// Where what is kept begins and ends; `None` if nothing was ever written.
pub fn extent(directory: &Path, stream: &str) -> io::Result<Option<(u64, u64)>> {
    let mut found: Option<(u64, u64, u64)> = None;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(stream)?.strip_prefix('.'));
        let Some(number) = number.and_then(|text| text.parse::<u64>().ok()) else {
            continue;
        };
        let length = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?.len(),
        };
        let (first, last, of_last) = found.unwrap_or((number, number, length));
        let newest = if number >= last { (number, length) } else { (last, of_last) };
        found = Some((first.min(number), newest.0, newest.1));
    }
    Ok(found.map(|(first, last, length)| (first * SEGMENT_BYTES, last * SEGMENT_BYTES + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_by_offset_and_what_was_dropped_is_told() {
        let path = std::env::temp_dir().join(format!("bj-log-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let directory = OwnedFd::from(File::open(&path).unwrap());
        let mut log = Log::new("stdout");
        assert_eq!(read(&path, "stdout", 0, 10).unwrap(), None);
        log.append(&directory, b"hello").unwrap();
        let piece = |offset, data: &[u8]| Some(Piece { offset, data: data.to_vec() });
        assert_eq!(read(&path, "stdout", 1, 3).unwrap(), piece(1, b"ell"));
        assert_eq!(read(&path, "stdout", 5, 3).unwrap(), None);
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..24 {
            log.append(&directory, &chunk).unwrap();
        }
        assert_eq!(log.length, (24 << 20) + 5);
        let kept = extent(&path, "stdout").unwrap().unwrap();
        assert_eq!(kept, (2 * SEGMENT_BYTES, log.length), "the first is gone");
        assert_eq!(read(&path, "stdout", 0, 1).unwrap(), piece(2 * SEGMENT_BYTES, b"x"));
        assert_eq!(read(&path, "stderr", 0, 1).unwrap(), None);
        fs::remove_dir_all(&path).unwrap();
    }
}
