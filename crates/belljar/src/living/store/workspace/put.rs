//! Writing one change into the host's directory: beneath it, through no link, and whole or not at all.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, Uid};

use super::super::copy::{copy_data, new_file};
use super::super::diff::Difference;
use super::super::walk::{self, Kind, Meta, Place};
use super::{Commit, text_of};

const TEMPORARY: &str = ".belljar-commit";
const SET_ID: u32 = 0o6000;

impl Commit<'_> {
    pub(super) fn remove(&mut self, one: &Difference) -> Result<(), String> {
        self.check(&one.path)?;
        let (directory, name) = spot(&self.host, &one.path).map_err(words)?;
        self.check_conflict(&directory, &name, &one.path)?;
        let flags = match walk::look(&directory, &name).map_err(words)? {
            None => return Ok(()),
            Some(meta) if meta.kind == Kind::Directory => AtFlags::REMOVEDIR,
            Some(_) => AtFlags::empty(),
        };
        rustix::fs::unlinkat(&directory, name.as_c_str(), flags)
            .map_err(|errno| words(errno.into()))
    }

    pub(super) fn put(&mut self, one: &Difference) -> Result<(), String> {
        self.check(&one.path)?;
        let (source, name, meta) = self.source(&one.path)?;
        if meta.mode & SET_ID != 0 && meta.kind != Kind::Directory {
            return Err("setuid or setgid".to_owned());
        }
        let (directory, _) = spot(&self.host, &one.path).map_err(words)?;
        self.check_conflict(&directory, &name, &one.path)?;
        self.journal.begun(text_of(&one.path))?;
        match meta.kind {
            Kind::Directory => self.put_directory(&directory, &name, &meta),
            Kind::File => self.put_file(&source, &directory, &name, &meta),
            Kind::Symlink => self.put_link(&source, &directory, &name, &one.path),
            Kind::Fifo | Kind::Socket | Kind::Whiteout | Kind::Device => {
                Err(format!("a {} is not brought to the host", meta.kind.word()))
            }
        }?;
        let now = walk::look(&directory, &name).map_err(words)?;
        if let Some(now) = now.filter(|now| now.kind != Kind::Directory) {
            let seen = (now.changed, now.identity.1);
            self.journal.written(text_of(&one.path), seen)?;
            self.ours.files.insert(text_of(&one.path), seen);
        }
        Ok(())
    }

    /// Where the sandbox has it: in the highest sheet that names it.
    fn source(&self, path: &[u8]) -> Result<(OwnedFd, CString, Meta), String> {
        for place in &self.places {
            let Ok((directory, name)) = spot(place, path) else { continue };
            if let Some(meta) = walk::look(&directory, &name).map_err(words)? {
                return Ok((directory, name, meta));
            }
        }
        Err("it is no longer there".to_owned())
    }

    fn put_directory(
        &self,
        directory: &OwnedFd,
        name: &CString,
        meta: &Meta,
    ) -> Result<(), String> {
        let mode = Mode::from_raw_mode(meta.mode & 0o777);
        match walk::look(directory, name).map_err(words)? {
            Some(there) if there.kind == Kind::Directory => {}
            Some(_) => {
                rustix::fs::unlinkat(directory, name.as_c_str(), AtFlags::empty())
                    .map_err(|errno| words(errno.into()))?;
                rustix::fs::mkdirat(directory, name.as_c_str(), mode)
                    .map_err(|errno| words(errno.into()))?;
            }
            None => rustix::fs::mkdirat(directory, name.as_c_str(), mode)
                .map_err(|errno| words(errno.into()))?,
        }
        let open = walk::open_directory(directory, name).map_err(words)?;
        self.give(&open).map_err(words)?;
        rustix::fs::fchmod(&open, mode).map_err(|errno| words(errno.into()))
    }

    fn put_file(
        &self,
        source: &OwnedFd,
        directory: &OwnedFd,
        name: &CString,
        meta: &Meta,
    ) -> Result<(), String> {
        let write = || -> io::Result<()> {
            let from = walk::open_file(source, name)?;
            let to = self.temporary(directory)?;
            copy_data(&from, &to)?;
            self.give(&to)?;
            rustix::fs::fchmod(&to, Mode::from_raw_mode(meta.mode & 0o777))?;
            to.sync_all()
        };
        write().map_err(words)?;
        self.steps.reach("written beside").map_err(|error| error.to_string())?;
        rename(directory, name)
    }

    fn put_link(
        &self,
        source: &OwnedFd,
        directory: &OwnedFd,
        name: &CString,
        path: &[u8],
    ) -> Result<(), String> {
        let target = walk::read_link(source, name).map_err(words)?;
        if !stays_within(path, target.to_bytes()) {
            return Err("a link that leads out of the workspace".to_owned());
        }
        remove_temporary(directory);
        rustix::fs::symlinkat(target.as_c_str(), directory, TEMPORARY)
            .map_err(|errno| words(errno.into()))?;
        rename(directory, name)
    }

    fn temporary(&self, directory: &OwnedFd) -> io::Result<File> {
        remove_temporary(directory);
        new_file(directory, &CString::new(TEMPORARY)?)
    }

    /// What root writes is the directory's owner's, never root's.
    fn give(&self, open: &impl std::os::fd::AsFd) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let top = walk::look_at(&self.host.directory(b"")?)?;
        Ok(rustix::fs::fchown(open, Some(Uid::from_raw(top.uid)), Some(Gid::from_raw(top.gid)))?)
    }
}

/// Removes what a commit that was killed was about to put here.
pub(super) fn clear_beside(host: &Place, path: &[u8]) {
    if let Ok((directory, _)) = spot(host, path) {
        remove_temporary(&directory);
    }
}

fn remove_temporary(directory: &OwnedFd) {
    // One that a crash left; usually there is none.
    rustix::fs::unlinkat(directory, TEMPORARY, AtFlags::empty()).ok();
}

/// Puts what was written in the place of what was there; a link there is replaced, not followed.
fn rename(directory: &OwnedFd, name: &CString) -> Result<(), String> {
    let renamed = rustix::fs::renameat(directory, TEMPORARY, directory, name.as_c_str());
    renamed.map_err(|errno| {
        remove_temporary(directory);
        words(errno.into())
    })
}

/// The directory that a path is in, and its name there.
fn spot(place: &Place, path: &[u8]) -> io::Result<(OwnedFd, CString)> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let (above, name) = slash.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
    Ok((place.directory(above)?, CString::new(name)?))
}

fn words(error: io::Error) -> String {
    error.to_string()
}

/// Whether a link's target, as it is written, stays below the workspace.
fn stays_within(path: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    let mut below = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            // Behind a name it would lead up from wherever that name, itself a link perhaps, leads.
            b".." if depth == 0 || below => return false,
            b".." => depth -= 1,
            _ => below = true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_within_or_are_refused() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b", "./x/y")] {
            assert!(stays_within(path.as_bytes(), target.as_bytes()), "{path} {target}");
        }
        for (path, target) in [
            ("a", ".."),
            ("a", "/etc/passwd"),
            ("a/b", "../../c"),
            ("a", "x/../../y"),
            ("a/b/c", "x/../y"),
        ] {
            assert!(!stays_within(path.as_bytes(), target.as_bytes()), "{path} {target}");
        }
    }
}
