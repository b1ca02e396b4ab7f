//! Files of a sandbox from the command line: listed, watched, and copied as archives, which `belljar::living` packs and
//! unpacks.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar::SpecError;
use belljar::living::{FileError, FileEvent, FileEventKind, pack_host, unpack_host};
use belljar::sandbox::{FileInfo, FileKind};
use belljar::units::show_bytes;
use belljar_server::{Problem, wire};
use http_body_util::BodyExt;
use hyper::Method;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::{Called, at};
use crate::args::sandbox::{Copy, PathInside, Watch};
use crate::remote::sandboxes::{Lines, empty, lost, piped, read};
use crate::remote::{Failure, escaped};
use crate::render;

/// What is under way at once.
const PIPE_BYTES: usize = 256 << 10;
/// Written to the host by one copy, at most.
const MOST_BYTES: u64 = 64 << 30;

#[derive(Serialize)]
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
    let path = at(name, &format!("/files{}?list=true", inside(path)));
    Ok(Listing { entries: called.way.all(&path, "entries").await? })
}

/// A path inside as it may stand in an address. Relative ones are below /workspace.
fn inside(path: &str) -> String {
    let absolute =
        if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") };
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
        Some((name, path)) if !name.is_empty() && !name.contains('/') => {
            Side::Inside { name, path }
        }
        Some(_) | None => Side::Host(Path::new(text)),
    }
}

/// What one copy has come to.
#[derive(Default, Serialize)]
struct Copied {
    files: u64,
    bytes: u64,
    /// What was neither a file nor a directory.
    skipped: Vec<String>,
}

pub(super) async fn copy(called: &Called, args: &Copy) -> Result<u8, Failure> {
    let copied = match (side(&args.from), side(&args.to)) {
        (Side::Host(from), Side::Inside { name, path }) => upload(called, from, name, path).await?,
        (Side::Inside { name, path }, Side::Host(to)) => download(called, name, path, to).await?,
        (Side::Host(_), Side::Host(_)) => {
            let reason = "or the other must be NAME:PATH: both are paths of this host";
            return Err(SpecError::new("A", reason).into());
        }
        (Side::Inside { .. }, Side::Inside { .. }) => {
            let reason = "or the other must be a path of this host: both are in sandboxes";
            return Err(SpecError::new("A", reason).into());
        }
    };
    if called.json {
        return Ok(render::json(&copied));
    }
    for path in &copied.skipped {
        render::words(&format!("not copied: {path}"));
    }
    Ok(0)
}

fn wrong(error: FileError) -> Failure {
    SpecError::new("path", error.to_string()).into()
}

#[derive(Deserialize)]
struct Uploaded {
    files: u64,
    bytes: u64,
}

/// Into a directory if there is one, or if the path says so by its end; else under the new name.
async fn upload(called: &Called, from: &Path, name: &str, path: &str) -> Result<Copied, Failure> {
    let own = from.file_name().map(|one| one.as_bytes().to_vec());
    let own =
        own.ok_or_else(|| SpecError::new("A", "has no name of its own: give its full path"))?;
    let is_directory = path.is_empty() || path.ends_with('/') || {
        let about = at(name, &format!("/files{}?stat=true", inside(path)));
        let about = called.way.get::<FileInfo>(&about).await;
        about.is_ok_and(|about| about.kind == FileKind::Directory)
    };
    let (below, packed) = match path.rsplit_once('/') {
        _ if is_directory => (path, own),
        Some(("", last)) => ("/", last.as_bytes().to_vec()),
        Some((parent, last)) => (parent, last.as_bytes().to_vec()),
        None => ("", path.as_bytes().to_vec()),
    };
    let (reader, writer) = tokio::io::simplex(PIPE_BYTES);
    let (source, address) = (from.to_owned(), at(name, &format!("/tar{}", inside(below))));
    let packing = async { pack_host(&source, &packed, writer).await.map_err(wrong) };
    let sending = async {
        let response = called.way.send(Method::PUT, &address, wire::JSON, piped(reader)).await?;
        read::<Uploaded>(response).await
    };
    tokio::pin!(packing, sending);
    // A server that refuses has the better reason than a pipe that broke for it.
    let (skipped, done) = tokio::select! {
        biased;
        // One that was refused needs no more packing, which nobody would read.
        done = &mut sending => {
            let done = done?;
            (packing.await, done)
        }
        packed = &mut packing => (packed, sending.await?),
    };
    let skipped = skipped?.into_iter().map(|one| format!("{} ({})", one.path, one.reason));
    Ok(Copied { files: done.files, bytes: done.bytes, skipped: skipped.collect() })
}

async fn download(called: &Called, name: &str, path: &str, to: &Path) -> Result<Copied, Failure> {
    let address = at(name, &format!("/tar{}", inside(path)));
    let response = called.way.send(Method::GET, &address, wire::JSON, empty()).await?;
    let (reader, mut writer) = tokio::io::simplex(PIPE_BYTES);
    let mut body = response.into_body();
    let receiving = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| lost(std::io::Error::other(error)))?;
            if let Some(data) = frame.data_ref() {
                // Who unpacks has stopped, and says why.
                if writer.write_all(data).await.is_err() {
                    return Ok(());
                }
            }
        }
        writer.shutdown().await.map_err(lost)
    };
    let unpacking = unpack_host(reader, to, MOST_BYTES);
    let (received, done) = tokio::join!(receiving, unpacking);
    received?;
    let done = done.map_err(wrong)?;
    let skipped = done.skipped.into_iter().map(|one| format!("{} ({})", one.path, one.reason));
    Ok(Copied { files: done.files, bytes: done.bytes, skipped: skipped.collect() })
}

/// One line of a watch.
#[derive(Deserialize)]
#[serde(untagged)]
enum Changed {
    Event(FileEvent),
    Error(Problem),
}

const fn kind_word(kind: FileEventKind) -> &'static str {
    match kind {
        FileEventKind::Created => "created",
        FileEventKind::Written => "written",
        FileEventKind::Metadata => "metadata",
        FileEventKind::Removed => "removed",
        FileEventKind::MovedFrom => "moved from",
        FileEventKind::MovedTo => "moved to",
        FileEventKind::Overflow => "overflow",
        FileEventKind::Gone => "gone",
    }
}

/// A line for each change.
pub(super) async fn watch(called: &Called, args: &Watch) -> Result<u8, Failure> {
    let PathInside { name, path } = &args.place;
    let path = at(name, &format!("/watch{}?recursive={}", inside(path), args.recursive));
    let mut lines = Lines::of(called.way.send(Method::GET, &path, wire::NDJSON, empty()).await?);
    called.way.let_go();
    loop {
        let next = tokio::select! {
            next = lines.next::<Changed>() => next?,
            () = super::super::interrupted() => return Ok(0),
        };
        let change = match next {
            Some(Changed::Event(change)) => change,
            Some(Changed::Error(problem)) => return Err(Failure::Told(problem)),
            None => return Ok(0),
        };
        let text = if called.json {
            render::compact(&change).unwrap_or_default()
        } else {
            let slash = if change.directory { "/" } else { "" };
            format!("{:<10} {}{slash}", kind_word(change.kind), render::visible(&change.path))
        };
        let printed = render::line(&text);
        if printed != 0 {
            return Ok(printed);
        }
    }
}
