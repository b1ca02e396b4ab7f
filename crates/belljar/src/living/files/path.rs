//! Paths inside a sandbox, as bytes: a file's name need not be text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_jail::agent::wire::{Bytes, Kind, MAX_PATH_BYTES, Meta, Place};

use crate::model::error::SpecError;
use crate::model::sandbox::{FileInfo, FileKind};

/// Where relative paths begin, as programs do.
const HOME: &[u8] = b"/workspace";

/// An absolute path that is resolved inside the sandbox, by its own kernel calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsidePath(Vec<u8>);

impl InsidePath {
    /// Relative ones are below /workspace.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, SpecError> {
        let path = path.as_ref();
        if path.is_empty() {
            return Err(SpecError::new("path", "is empty; / is the sandbox's root"));
        }
        if path.contains(&0) {
            return Err(SpecError::new("path", "has a NUL, which no file's name can have"));
        }
        let full = if path[0] == b'/' { path.to_vec() } else { [HOME, b"/", path].concat() };
        if full.len() > MAX_PATH_BYTES {
            let reason = format!("is longer than {MAX_PATH_BYTES} bytes");
            return Err(SpecError::new("path", reason));
        }
        Ok(Self(full))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Resolved as for a program inside.
    pub(super) fn place(&self) -> Place {
        Place { base: None, path: Bytes(self.0.clone()) }
    }

    /// A place below this directory, to which no link leads.
    pub(super) fn below(&self, path: &[u8]) -> Place {
        Place { base: Some(Bytes(self.0.clone())), path: Bytes::from(path) }
    }

    pub(super) fn child(&self, name: &[u8]) -> Vec<u8> {
        join(self.trimmed(), name)
    }

    /// Without slashes at its end.
    fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        &self.0[..end]
    }

    /// Its last name, if it has one of its own.
    pub(super) fn name(&self) -> Option<&[u8]> {
        let name = self.trimmed().rsplit(|byte| *byte == b'/').next()?;
        (!name.is_empty() && name != b"." && name != b"..").then_some(name)
    }

    /// The directory that holds it.
    pub(super) fn parent(&self) -> Self {
        let path = self.trimmed();
        match path.iter().rposition(|byte| *byte == b'/') {
            None | Some(0) => Self(b"/".to_vec()),
            Some(slash) => Self(path[..slash].to_vec()),
        }
    }
}

pub(super) fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above == b"/" { [b"/", name].concat() } else { [above, b"/", name].concat() }
}

/// What is told of a file.
pub(super) fn info(path: &[u8], meta: &Meta, target: Option<&Bytes>) -> FileInfo {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let name = path[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let millis = i64::from(meta.modified.nanos / 1_000_000);
    FileInfo {
        name: if name.is_empty() { "/".to_owned() } else { text(name) },
        path: text(path),
        raw_path: std::str::from_utf8(path).is_err().then(|| STANDARD.encode(path)),
        kind: match meta.kind {
            Kind::File => FileKind::File,
            Kind::Directory => FileKind::Directory,
            Kind::Symlink => FileKind::Symlink,
            Kind::Other => FileKind::Other,
        },
        bytes: meta.bytes,
        mode: meta.mode & 0o7777,
        modified_ms: meta.modified.seconds.saturating_mul(1000).saturating_add(millis),
        target: target.map(|target| text(&target.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_have_parents() {
        let path = |text: &str| InsidePath::new(text).unwrap();
        assert_eq!(path("a/b").bytes(), b"/workspace/a/b");
        assert_eq!(path("/a/b/").parent().bytes(), b"/a");
        assert_eq!(path("/a/b/").name(), Some(&b"b"[..]));
        assert_eq!(path("/a").parent().bytes(), b"/");
        assert_eq!(path("/").name(), None);
        assert_eq!(path("/a/..").name(), None);
        assert_eq!(path("/").child(b"x"), b"/x");
        assert_eq!(path("/a//").child(b"x"), b"/a/x");
    }

    #[test]
    fn paths_that_are_none_are_refused() {
        for (path, word) in [("", "empty"), ("a\0b", "NUL"), (&*"x/".repeat(3000), "longer")] {
            let error = InsidePath::new(path).unwrap_err();
            assert_eq!(error.field, "path");
            assert!(error.reason.contains(word), "{error}");
        }
    }
}
