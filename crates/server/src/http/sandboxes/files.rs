//! Files of a sandbox: `GET`, `PUT`, `DELETE` on their paths, and whole trees as archives.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::living::{FileError, FileFault, Files, InsidePath, Position, PutOptions, Sandboxes};
use belljar::sandbox::FileInfo;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::execs::{drained, tell_problem};
use super::{Paged, READ, WRITE, Word, at, question, told};
use crate::api::{Api, look};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Mine, Server, body, pipe};
use crate::problem::Problem;

const BYTES: &str = "application/octet-stream";
const TAR: &str = "application/x-tar";
/// Given out as one archive at most.
const MOST_ARCHIVE_BYTES: u64 = 64 << 30;

/// Statuses of what is wrong with files.
const FILE: &[u16] = &[409, 507];

pub(super) fn enter(api: &mut Api) {
    // The root has an empty path, which a wildcard does not match.
    for (root, rest) in [("_root", ""), ("", "{*path}")] {
        let named =
            |id: &'static str, of_root: &'static str| if root.is_empty() { id } else { of_root };
        let (files, tar) = (at(&format!("/files/{rest}")), at(&format!("/tar/{rest}")));
        let one = look(
            named("file_read", "root_read"),
            READ,
            "The bytes of a file; with stat or list what it is, or holds",
        );
        let one = one.asks::<Reading>().gives_as(200, BYTES).gives::<FileAnswer>(200).refuses(FILE);
        api.get(&files, read, one);
        let done = |id, summary| look(id, WRITE, summary).gives_nothing().refuses(FILE);
        let one = done(named("file_write", "root_write"), "Write a file").asks::<Writing>();
        api.put(&files, write, one.takes_bytes(BYTES).heavy());
        let what = "Make a directory, move a path, or change its mode";
        let one = done(named("file_change", "root_change"), what);
        api.post(&files, change, one.asks::<Changing>());
        let one = done(named("file_remove", "root_remove"), "Remove a path").asks::<Removing>();
        api.delete(&files, remove, one);
        let one = look(named("tar_get", "root_tar_get"), READ, "A file or a tree as an archive");
        api.get(&tar, pack, one.gives_as(200, TAR).refuses(FILE));
        let one = look(named("tar_put", "root_tar_put"), WRITE, "Unpack an archive below a path");
        let one = one.heavy().takes_bytes(TAR).gives::<Unpacked>(200).refuses(FILE);
        api.put(&tar, unpack, one);
        let one =
            look(named("watch", "root_watch"), READ, "What changes below a path, as it changes");
        let one = one.asks::<Watched>().streams().refuses(FILE);
        api.get(&at(&format!("/watch/{rest}")), watch, one);
    }
}

/// A sandbox, and a path in it without its first slash.
#[derive(Deserialize)]
struct Inside {
    name: String,
    #[serde(default)]
    path: String,
}

/// The files of a sandbox, and the path that a request means in there.
async fn files(
    sandboxes: &Sandboxes,
    name: &str,
    path: &str,
) -> Result<(Files, InsidePath), Problem> {
    let path = InsidePath::new(format!("/{path}")).map_err(|error| told(error.into()))?;
    Ok((sandboxes.files(name).await.map_err(told)?, path))
}

/// The one mapping from what is wrong with a file to HTTP.
fn wrong(error: FileError) -> Problem {
    let status = match &error.fault {
        FileFault::NotFound => StatusCode::NOT_FOUND,
        FileFault::Exists
        | FileFault::NotDirectory
        | FileFault::IsDirectory
        | FileFault::NotEmpty
        | FileFault::NotRegular
        | FileFault::Changed
        | FileFault::Ended
        | FileFault::Paused
        | FileFault::OtherFileSystem => StatusCode::CONFLICT,
        FileFault::Denied | FileFault::ReadOnly => StatusCode::FORBIDDEN,
        FileFault::Full => StatusCode::INSUFFICIENT_STORAGE,
        FileFault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FileFault::Links | FileFault::NameTooLong | FileFault::Refused(_) => {
            StatusCode::BAD_REQUEST
        }
        FileFault::Kernel(_) | FileFault::Agent(_) | FileFault::Ours(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    Problem::new(status, error.fault.kind(), error.to_string())
}

/// What `GET` may be asked: what a path is, what is in it, or some of its bytes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reading {
    #[serde(default)]
    stat: bool,
    #[serde(default)]
    list: bool,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
    /// Of a list.
    limit: Option<u64>,
    cursor: Option<Word>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FileList")]
struct Listing {
    entries: Vec<FileInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// What `stat` and `list` answer.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its shape is used")]
enum FileAnswer {
    Stat(FileInfo),
    List(Listing),
}

async fn read(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Reading = question(&request)?;
    let (files, path) = files(&sandboxes, &name, &path).await?;
    if asked.stat {
        return Ok(axum::Json(files.stat(&path).await.map_err(wrong)?).into_response());
    }
    if asked.list {
        let part = Paged { limit: asked.limit, cursor: asked.cursor }.part()?;
        let mut entries = files.list(&path).await.map_err(wrong)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        let page = part.of(entries, |one| one.name.clone());
        let listing = Listing { entries: page.items, next_cursor: page.next_cursor };
        return Ok(axum::Json(listing).into_response());
    }
    pipe::answer(BYTES, move |writer| async move {
        files.read_to(&path, asked.offset, asked.length, writer).await.map_err(wrong)?;
        Ok(())
    })
    .await
}

/// What `PUT` may be told: permission bits, where to write into a file that is there, whether it may be there.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Writing {
    /// In decimal: 493 is 0755.
    mode: Option<u32>,
    #[serde(default)]
    append: bool,
    offset: Option<u64>,
    #[serde(default)]
    exclusive: bool,
}

async fn write(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Writing = question(&request)?;
    let (files, path) = files(&sandboxes, &name, &path).await?;
    let position = match (asked.append, asked.offset) {
        (true, Some(_)) => return Err(Problem::field("offset", "and append exclude each other")),
        (true, None) => Some(Position::End),
        (false, offset) => offset.map(Position::Offset),
    };
    if let Some(position) = position {
        let bytes = body::bytes(request).await?;
        files.write_at(&path, position, &bytes).await.map_err(wrong)?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let options = PutOptions { mode: asked.mode, replace: !asked.exclusive, parents: true };
    pipe::receive(request.into_body(), |reader| async {
        files.put(&path, reader, options).await.map_err(wrong)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What `POST` does to a path: one of these.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Changing {
    /// `directory`, with those above it.
    make: Option<String>,
    /// The new path.
    move_to: Option<String>,
    #[serde(default)]
    replace: bool,
    mode: Option<u32>,
}

async fn change(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Changing = question(&request)?;
    let (files, path) = files(&sandboxes, &name, &path).await?;
    match (asked.make.as_deref(), asked.move_to, asked.mode) {
        (Some("directory"), None, mode) => {
            files.make_directory(&path, mode.unwrap_or(0o755), true).await.map_err(wrong)?;
        }
        (None, Some(to), None) => {
            let to = InsidePath::new(to).map_err(|error| told(error.into()))?;
            files.rename(&path, &to, asked.replace).await.map_err(wrong)?;
        }
        (None, None, Some(mode)) => files.set_mode(&path, mode).await.map_err(wrong)?,
        _ => {
            let reason = "must say one of make=directory, move_to=PATH, mode=BITS";
            return Err(Problem::field("query", reason));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Removing {
    #[serde(default)]
    recursive: bool,
}

async fn remove(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Removing = question(&request)?;
    let (files, path) = files(&sandboxes, &name, &path).await?;
    files.remove(&path, asked.recursive).await.map_err(wrong)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A file or a tree, as an archive.
async fn pack(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
) -> Result<Response, Problem> {
    let (files, path) = files(&sandboxes, &name, &path).await?;
    pipe::answer(TAR, move |writer| async move {
        files.download_tar(&path, writer, MOST_ARCHIVE_BYTES).await.map_err(wrong)?;
        Ok(())
    })
    .await
}

#[derive(Serialize, JsonSchema)]
struct Unpacked {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
}

/// Unpacks an archive below a path.
async fn unpack(
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<axum::Json<Unpacked>, Problem> {
    let (files, path) = files(&sandboxes, &name, &path).await?;
    let take = |reader| async { files.upload_tar(reader, &path).await.map_err(wrong) };
    let done = pipe::receive(request.into_body(), take).await?;
    let (files, directories) = (done.files, done.directories);
    Ok(axum::Json(Unpacked { files, directories, links: done.links, bytes: done.bytes }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Watched {
    #[serde(default)]
    recursive: bool,
}

/// What changes below a path, as it changes, until the client goes away.
async fn watch(
    State(server): State<Arc<Server>>,
    Mine(sandboxes): Mine,
    Path(Inside { name, path }): Path<Inside>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Watched = question(&request)?;
    let format = Format::of_stream(request.headers());
    let (files, path) = files(&sandboxes, &name, &path).await?;
    let mut watching = files.watch(&path, asked.recursive).await.map_err(wrong)?;
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        let until = drained(server.stop.clone());
        tokio::pin!(until);
        loop {
            let next = tokio::select! {
                biased;
                (_, problem) = &mut until => return tell_problem(format, &to, &problem),
                next = watching.next() => next,
            };
            match next {
                Ok(events) => {
                    for event in &events {
                        to.tell(format, "change", event);
                    }
                }
                Err(error) => return tell_problem(format, &to, &wrong(error)),
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}
