//! Files of a sandbox from the command line. What is inside names its files as it likes, so a name from there is one
//! name and nothing else before it reaches our own file system.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use belljar::SpecError;
use belljar::sandbox::{FileInfo, FileKind};
use belljar::units::show_bytes;
use belljar_server::wire;
use http_body_util::BodyExt;
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::{Called, at};
use crate::args::sandbox::{Copy, PathInside};
use crate::remote::sandboxes::{Lines, contents, empty, lost};
use crate::remote::{Failure, escaped};
use crate::render;

/// Entries of one copy, and how deep they may lie: a tree inside may be made to have no end.
const MAX_ENTRIES: usize = 100_000;
const MAX_DEPTH: usize = 64;

#[derive(Serialize, Deserialize)]
struct Listing {
    entries: Vec<FileInfo>,
}

pub(super) async fn list(called: &Called, args: &PathInside) -> Result<u8, Failure> {
    let found: Listing = listing(called, &args.name, &args.path).await?;
    if called.json {
        return Ok(render::json(&found));
    }
    let mut rows = Vec::new();
    for one in &found.entries {
        let mark = match one.kind {
            FileKind::File => "-",
            FileKind::Directory => "d",
            FileKind::Symlink => "l",
            FileKind::Other => "?",
        };
        let name = match &one.target {
            Some(target) => format!("{} -> {target}", one.name),
            None => one.name.clone(),
        };
        rows.push([format!("{mark}{:04o}", one.mode), show_bytes(one.bytes), name]);
    }
    Ok(render::table(&rows))
}

async fn listing(called: &Called, name: &str, path: &str) -> Result<Listing, Failure> {
    called.way.get(&at(name, &format!("/files{}?list=true", inside(path)))).await
}

/// A path inside as it may stand in an address. Relative ones are below /workspace.
fn inside(path: &str) -> String {
    let absolute = if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") };
    absolute.split('/').map(escaped).collect::<Vec<_>>().join("/")
}

/// `NAME:PATH`, or a path of the host.
enum Side<'a> {
    Inside { name: &'a str, path: &'a str },
    Host(&'a Path),
}

fn side(text: &str) -> Side<'_> {
    match text.split_once(':') {
        // As docker and scp have it: a path of ours that has a colon is written ./with:colon.
        Some((name, path)) if !name.is_empty() && !name.contains('/') => Side::Inside { name, path },
        Some(_) | None => Side::Host(Path::new(text)),
    }
}

/// What one copy has come to.
#[derive(Default, Serialize)]
struct Copied {
    files: usize,
    bytes: u64,
    /// What was neither a file nor a directory.
    skipped: Vec<String>,
}

pub(super) async fn copy(called: &Called, args: &Copy) -> Result<u8, Failure> {
    let mut copied = Copied::default();
    match (side(&args.from), side(&args.to)) {
        (Side::Host(from), Side::Inside { name, path }) => {
            upload(called, from, name, path, &mut copied).await?;
        }
        (Side::Inside { name, path }, Side::Host(to)) => {
            download(called, name, path, to, &mut copied).await?;
        }
        (Side::Host(_), Side::Host(_)) => {
            let reason = "or the other must be NAME:PATH: both are paths of this host";
            return Err(SpecError::new("A", reason).into());
        }
        (Side::Inside { .. }, Side::Inside { .. }) => {
            let reason = "or the other must be a path of this host: both are in sandboxes";
            return Err(SpecError::new("A", reason).into());
        }
    }
    if called.json {
        return Ok(render::json(&copied));
    }
    for path in &copied.skipped {
        render::words(&format!("not copied: {path} (neither a file nor a directory)"));
    }
    Ok(0)
}

fn here(path: &Path, error: &std::io::Error) -> Failure {
    SpecError::new("path", format!("{}: {error}", path.display())).into()
}

fn too_many() -> Failure {
    let reason = format!("has more than {MAX_ENTRIES} entries, or is deeper than {MAX_DEPTH}");
    SpecError::new("path", reason).into()
}

/// Into a directory if there is one, or if the path says so by its end.
async fn upload(
    called: &Called,
    from: &Path,
    name: &str,
    path: &str,
    copied: &mut Copied,
) -> Result<(), Failure> {
    let own_name = from.file_name().and_then(|one| one.to_str());
    let is_directory = path.ends_with('/') || listing(called, name, path).await.is_ok();
    let target = match own_name {
        Some(own) if is_directory => format!("{}/{own}", path.trim_end_matches('/')),
        Some(_) | None => path.to_owned(),
    };
    let mut waiting = vec![(from.to_owned(), target, 0)];
    while let Some((from, to, depth)) = waiting.pop() {
        let about = fs::symlink_metadata(&from).map_err(|error| here(&from, &error))?;
        if copied.files + copied.skipped.len() + waiting.len() > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(too_many());
        }
        if about.is_dir() {
            let made = at(name, &format!("/files{}?make=directory", inside(&to)));
            called.way.tell(Method::POST, &made, empty()).await?;
            for entry in fs::read_dir(&from).map_err(|error| here(&from, &error))?.flatten() {
                match entry.file_name().to_str() {
                    Some(one) => waiting.push((entry.path(), format!("{to}/{one}"), depth + 1)),
                    None => copied.skipped.push(entry.path().display().to_string()),
                }
            }
        } else if about.is_file() {
            let file = File::open(&from).map_err(|error| here(&from, &error))?;
            let mode = about.permissions().mode() & 0o777;
            let path = at(name, &format!("/files{}?mode={mode}", inside(&to)));
            called.way.tell(Method::PUT, &path, contents(file)).await?;
            copied.files += 1;
            copied.bytes += about.len();
        } else {
            copied.skipped.push(from.display().to_string());
        }
    }
    Ok(())
}

async fn download(
    called: &Called,
    name: &str,
    path: &str,
    to: &Path,
    copied: &mut Copied,
) -> Result<(), Failure> {
    let about: FileInfo = called.way.get(&at(name, &format!("/files{}?stat=true", inside(path)))).await?;
    let target = if to.is_dir() { to.join(one_name(&about.name)?) } else { to.to_owned() };
    let mut waiting = vec![(path.to_owned(), target, about, 0)];
    while let Some((from, to, about, depth)) = waiting.pop() {
        if copied.files + copied.skipped.len() + waiting.len() > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(too_many());
        }
        match about.kind {
            FileKind::Directory => {
                match fs::create_dir(&to) {
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                        // A link would lead elsewhere.
                        let found = fs::symlink_metadata(&to).map_err(|error| here(&to, &error))?;
                        if !found.is_dir() {
                            return Err(here(&to, &std::io::ErrorKind::NotADirectory.into()));
                        }
                    }
                    made => made.map_err(|error| here(&to, &error))?,
                }
                for entry in listing(called, name, &from).await?.entries {
                    let target = to.join(one_name(&entry.name)?);
                    waiting.push((format!("{from}/{}", entry.name), target, entry, depth + 1));
                }
            }
            FileKind::File => {
                copied.bytes += fetch(called, name, &from, &to, about.mode).await?;
                copied.files += 1;
            }
            FileKind::Symlink | FileKind::Other => copied.skipped.push(from),
        }
    }
    Ok(())
}

/// A name from inside: one component that leads nowhere else.
fn one_name(name: &str) -> Result<&Path, SpecError> {
    let path = Path::new(name);
    let mut parts = path.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == path.as_os_str() => Ok(path),
        _ => Err(SpecError::new("path", format!("{name:?} is no name for a file here"))),
    }
}

/// One file, put in place when it is whole. Its right to be executed comes along, and nothing else.
async fn fetch(
    called: &Called,
    name: &str,
    from: &str,
    to: &Path,
    mode: u32,
) -> Result<u64, Failure> {
    let path = at(name, &format!("/files{}", inside(from)));
    let response = called.way.send(Method::GET, &path, wire::JSON, empty()).await?;
    let part: PathBuf = to.with_added_extension("belljar-part");
    let open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(if mode & 0o100 == 0 { 0o644 } else { 0o755 })
        .open(&part);
    let mut file = open.map_err(|error| here(&part, &error))?;
    let mut written = 0;
    let mut body = response.into_body();
    let received = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| lost(std::io::Error::other(error)))?;
            if let Some(data) = frame.data_ref() {
                file.write_all(data).map_err(|error| here(&part, &error))?;
                written += data.len() as u64;
            }
        }
        fs::rename(&part, to).map_err(|error| here(to, &error))
    };
    let received = received.await;
    if received.is_err() {
        // Half a file is none; if it cannot be removed the error above says enough.
        fs::remove_file(&part).ok();
    }
    received.map(|()| written)
}

/// Lines of JSON, one for each change.
pub(super) async fn watch(called: &Called, args: &PathInside) -> Result<u8, Failure> {
    let path = at(&args.name, &format!("/watch{}", inside(&args.path)));
    let mut lines = Lines::of(called.way.send(Method::GET, &path, wire::NDJSON, empty()).await?);
    loop {
        let next = tokio::select! {
            next = lines.next::<serde_json::Value>() => next?,
            () = super::super::interrupted() => return Ok(0),
        };
        let Some(change) = next else { return Ok(0) };
        let printed = render::line(&render::compact(&change).unwrap_or_default());
        if printed != 0 {
            return Ok(printed);
        }
    }
}
