//! Reading a manifest with suspicion, before anything is made of it.

use std::collections::HashMap;

use super::super::StoreError;
use super::super::record::Record;
use super::super::walk::{MOST_PATH, is_theirs};
use super::{FORMAT, ImportLimits, Item, Manifest, TREES, What, digest_of};

const MOST_NAME: usize = 255;
const MOST_TARGET: usize = 4095;
const MOST_ATTRIBUTES: usize = 64;

fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::Archive(reason.into())
}

/// Everything that can be known without reading contents.
pub(super) fn check(
    manifest: &Manifest,
    image: &str,
    record: &Record,
    limits: ImportLimits,
) -> Result<(), StoreError> {
    if manifest.format != FORMAT {
        return Err(refused(format!(
            "format {}, and this version knows {FORMAT}",
            manifest.format
        )));
    }
    if manifest.image != image {
        let of = super::super::shown(&manifest.image);
        return Err(refused(format!("it stands on image {of}, and the sandbox on {image}")));
    }
    if manifest.entries.len() > limits.entries {
        return Err(refused(format!("more than {} entries", limits.entries)));
    }
    let digest = digest_of(manifest).map_err(|error| refused(error.to_string()))?;
    if digest != manifest.digest {
        return Err(refused("its manifest does not have the digest that it states"));
    }
    check_sums(manifest, record)?;
    let mut seen: HashMap<(&str, &[u8]), bool> = HashMap::new();
    let mut next = 0;
    for item in &manifest.entries {
        let shown = || super::super::shown(&String::from_utf8_lossy(&item.path.0));
        check_item(item, &mut next).map_err(|why| refused(format!("{}: {why}", shown())))?;
        let tree = item.tree.as_str();
        let path = item.path.0.as_slice();
        if let Some(above) = above(path) {
            match seen.get(&(tree, above)) {
                Some(true) => {}
                Some(false) => return Err(refused(format!("{}: below no directory", shown()))),
                None => return Err(refused(format!("{}: its directory comes later", shown()))),
            }
        }
        let is_directory = matches!(item.what, What::Directory { .. });
        if seen.insert((tree, path), is_directory).is_some() {
            return Err(refused(format!("{}: named twice", shown())));
        }
    }
    Ok(())
}

/// What it would take of the disk: known before a byte is written.
fn check_sums(manifest: &Manifest, record: &Record) -> Result<(), StoreError> {
    let mut bytes = 0u64;
    for item in &manifest.entries {
        if let What::File { segments, .. } = &item.what {
            for (start, end) in segments {
                bytes = bytes.saturating_add(end.saturating_sub(*start));
            }
        }
    }
    if bytes > record.disk_bytes {
        let most = record.disk_bytes;
        return Err(refused(format!("it holds {bytes} bytes, and the disk limit is {most}")));
    }
    let inodes = manifest.entries.len() as u64;
    if inodes > record.inodes {
        let most = record.inodes;
        return Err(refused(format!("it holds {inodes} entries, and the inode limit is {most}")));
    }
    Ok(())
}

/// The directory that an entry is in; the top of a tree is in none.
pub(super) fn above(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    Some(path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |slash| &path[..slash]))
}

fn check_item(item: &Item, next: &mut u64) -> Result<(), &'static str> {
    if !TREES.contains(&item.tree.as_str()) {
        return Err("in a tree that does not exist");
    }
    check_path(&item.path.0)?;
    let is_top = item.path.0.is_empty();
    if is_top && !matches!(item.what, What::Directory { .. }) {
        return Err("the top of a tree must be a directory");
    }
    if item.mode & !0o7777 != 0 {
        return Err("a mode that no file has");
    }
    if !(0..1_000_000_000).contains(&item.modified.1) {
        return Err("a time that no clock shows");
    }
    if item.attributes.len() > MOST_ATTRIBUTES {
        return Err("too many attributes");
    }
    for (name, value) in &item.attributes {
        let fits = name.0.len() <= MOST_NAME && value.0.len() <= 65536;
        if !fits || name.0.contains(&0) || !is_theirs(&name.0) {
            return Err("an attribute that programs cannot set");
        }
    }
    match &item.what {
        What::File { bytes, segments, data, sha256 } => {
            if data != next {
                return Err("contents out of order");
            }
            *next += 1;
            check_segments(*bytes, segments)?;
            let is_digest = sha256.len() == 64
                && sha256
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            if !is_digest {
                return Err("its digest is none");
            }
        }
        What::Link { data } if data >= next => return Err("a link to what comes later, or never"),
        What::Symlink { target } => {
            let target = &target.0;
            if target.is_empty() || target.len() > MOST_TARGET || target.contains(&0) {
                return Err("a link with a target that no link can have");
            }
        }
        What::Directory { .. } | What::Link { .. } | What::Fifo | What::Socket | What::Removed => {}
    }
    Ok(())
}

fn check_path(path: &[u8]) -> Result<(), &'static str> {
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > MOST_PATH {
        return Err("too long");
    }
    for part in path.split(|byte| *byte == b'/') {
        if part.is_empty() || part == b"." || part == b".." {
            return Err("not a plain relative path");
        }
        if part.len() > MOST_NAME || part.contains(&0) {
            return Err("a name that no file can have");
        }
    }
    Ok(())
}

fn check_segments(bytes: u64, segments: &[(u64, u64)]) -> Result<(), &'static str> {
    if bytes > i64::MAX as u64 {
        return Err("larger than files can be");
    }
    let mut at = 0;
    for (index, (start, end)) in segments.iter().enumerate() {
        if start >= end || *end > bytes || (index > 0 && *start <= at) {
            return Err("contents that overlap or go beyond its end");
        }
        at = *end;
    }
    Ok(())
}
