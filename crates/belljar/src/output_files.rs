//! Copying out what a program left in its workspace. The tree is hostile: it may hold anything but
//! regular files and directories, and none of that comes out.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_sys::Errno;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Deeper nesting is not somebody's result.
const MAX_DEPTH: usize = 64;
/// Entries copied or looked at; the inode limit of a run is usually far below.
const MAX_ENTRIES: usize = 100_000;

/// What was taken and what was left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopiedOut {
    pub files: u64,
    pub bytes: u64,
    pub skipped: Vec<Skipped>,
    /// What of our own side ended the copy early, if anything did: a full disk, a used-up quota.
    pub stopped: Option<String>,
}

/// An entry that was not copied, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    pub path: String,
    pub reason: String,
}

/// A file that was there before the program: left out when it is unchanged.
pub(crate) struct Known<'a> {
    /// Relative to the workspace.
    pub path: PathBuf,
    pub was: Was<'a>,
}

/// What a file held before the program ran.
pub(crate) enum Was<'a> {
    Bytes(&'a [u8]),
    CopyOf(&'a Path),
}

impl Known<'_> {
    fn is_unchanged(&self, file: &mut File) -> io::Result<bool> {
        match &self.was {
            Was::Bytes(bytes) => same(&mut &bytes[..], file),
            // One that the host changed or removed since is worth copying.
            Was::CopyOf(path) => {
                File::open(path).map_or(Ok(false), |mut host| same(&mut host, file))
            }
        }
    }
}

/// Whether two readers give the same bytes, read piece by piece: either may be large.
fn same(one: &mut dyn Read, other: &mut dyn Read) -> io::Result<bool> {
    let (mut left, mut right) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (a, b) = (left.fill_buf()?, right.fill_buf()?);
        let common = a.len().min(b.len());
        if common == 0 {
            return Ok(a.len() == b.len());
        }
        if a[..common] != b[..common] {
            return Ok(false);
        }
        left.consume(common);
        right.consume(common);
    }
}

/// Copies the regular files and directories below `workspace` into `target`, which must be new or
/// empty: nothing of the caller's is ever overwritten. The run is over by now and has its Outcome,
/// whatever becomes of its files, so trouble is told and no error.
pub(crate) fn copy_out(
    workspace: &OwnedFd,
    target: &Path,
    known: &[Known<'_>],
    most_bytes: u64,
) -> CopiedOut {
    let mut copy = Copy { known, done: CopiedOut::default(), entries: 0, most_bytes };
    let copied = prepare(target)
        .and_then(|()| Ok(open_directory(workspace, ".")?))
        .and_then(|open| copy.directory(&open, target, Path::new(""), 0));
    if let Err(error) = copied {
        copy.done.stopped = Some(format!("{}: {error}", target.display()));
    }
    copy.done
}

/// Checks the target before the run, so that a mistake does not cost a result.
pub(crate) fn prepare(target: &Path) -> io::Result<()> {
    match fs::create_dir(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    if fs::read_dir(target)?.next().is_some() {
        return Err(io::Error::other(
            "is not empty; results are copied to a new or empty directory",
        ));
    }
    Ok(())
}

struct Copy<'a> {
    known: &'a [Known<'a>],
    done: CopiedOut,
    entries: usize,
    most_bytes: u64,
}

impl Copy<'_> {
    fn directory(
        &mut self,
        from: &OwnedFd,
        to: &Path,
        shown: &Path,
        depth: usize,
    ) -> io::Result<()> {
        for entry in Dir::read_from(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            let text = name.to_string_lossy().into_owned();
            let shown = shown.join(&text);
            if self.entries > MAX_ENTRIES || depth > MAX_DEPTH {
                self.skip(&shown, "too many entries, or too deep");
                if self.entries > MAX_ENTRIES {
                    return Ok(());
                }
                continue;
            }
            let Ok(name) = name.to_str() else {
                self.skip(&shown, "its name is not UTF-8");
                continue;
            };
            if let Err(error) = self.entry(from, name, &to.join(name), &shown, depth) {
                self.skip(&shown, &error.to_string());
                // Our side's trouble ends the copy; the tree's is noted and passed over.
                if is_ours(&error) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: &OwnedFd,
        name: &str,
        to: &Path,
        shown: &Path,
        depth: usize,
    ) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let inner = open_directory(from, name)?;
                fs::create_dir(to)?;
                self.directory(&inner, to, shown, depth + 1)
            }
            FileType::RegularFile => self.file(from, name, to, shown),
            FileType::Symlink => {
                self.skip(shown, "a symbolic link");
                Ok(())
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                self.skip(shown, "not a regular file");
                Ok(())
            }
        }
    }

    fn file(&mut self, from: &OwnedFd, name: &str, to: &Path, shown: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(from, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let mut source = File::from(fd);
        if let Some(known) = self.known.iter().find(|known| known.path == shown) {
            if known.is_unchanged(&mut source)? {
                return Ok(());
            }
            source.rewind()?;
        }
        // A file full of holes is long inside a small disk, and would be as long on ours.
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if self.done.bytes.saturating_add(size) > self.most_bytes {
            self.skip(shown, "with it more than the disk limit would come out");
            return Ok(());
        }
        let mut target = fs::OpenOptions::new().write(true).create_new(true).open(to)?;
        match io::copy(&mut source, &mut target) {
            Ok(bytes) => self.done.bytes += bytes,
            Err(error) => {
                // Half a result could be taken for a whole one. If it stays, it is named as not copied.
                fs::remove_file(to).ok();
                return Err(error);
            }
        }
        self.done.files += 1;
        // Only "may be executed" survives of the mode: no setuid, setgid, sticky, nor closed files.
        let mode = if stat.st_mode & 0o100 == 0 { 0o644 } else { 0o755 };
        rustix::fs::fchmod(&target, Mode::from_raw_mode(mode))?;
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: &str) {
        let path = path.to_string_lossy().into_owned();
        self.done.skipped.push(Skipped { path, reason: reason.to_owned() });
    }
}

/// Whether the place that we write to is at fault: nothing that a program leaves behind gives these when
/// it is read.
fn is_ours(error: &io::Error) -> bool {
    let ours = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::ROFS, Errno::IO];
    ours.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()))
}

fn open_directory(at: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_regular_files_come_out_and_without_special_bits() {
        let base = std::env::temp_dir().join(format!("belljar-out-{}", std::process::id()));
        let tree = base.join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/result"), "42").unwrap();
        fs::write(tree.join("main.py"), "print(1)").unwrap();
        fs::set_permissions(tree.join("sub/result"), fs::Permissions::from_mode(0o4755)).unwrap();
        File::create(tree.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        symlink("/etc/passwd", tree.join("link")).unwrap();
        symlink("/", tree.join("rootlink")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, tree.join("fifo"), FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        let top = open_directory(rustix::fs::CWD, tree.to_str().unwrap()).unwrap();
        let known = [Known { path: "main.py".into(), was: Was::Bytes(b"print(1)") }];
        let done = copy_out(&top, &base.join("out"), &known, 1000);
        assert_eq!((done.files, done.bytes), (1, 2));
        assert_eq!(done.skipped.len(), 4, "{done:?}");
        let mode = fs::metadata(base.join("out/sub/result")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert!(!base.join("out/link").exists() && !base.join("out/main.py").exists());
        assert_eq!(done.stopped, None);
        let again = copy_out(&top, &base.join("out"), &known, 1000);
        assert!(again.stopped.is_some_and(|why| why.contains("not empty")));
        fs::remove_dir_all(&base).unwrap();
    }
}
