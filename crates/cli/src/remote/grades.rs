//! `belljar test` through a server of the same user.

use std::io;
use std::path::{Path, PathBuf};

use belljar::grade::{CaseResult, Grade, GradeRequest};
use belljar::{Error, SpecError};
use belljar_server::places;
use belljar_server::wire::{self, GradeEvent, MAX_BODY_BYTES};
use tokio::io::BufReader;
use tokio::net::UnixStream;

use super::{Failure, MAX_PROBLEM_BYTES, cannot_reach, connect, has_own_languages};
use super::{read_head, read_line, read_rest, write};

/// One event: a case with its values, or the whole grade.
const MAX_EVENT_BYTES: u64 = 1 << 30;

/// The socket of the server that grades can go to; none if there is none and none was asked for.
pub(crate) fn server(named: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let wanted = named.is_some();
    let Some(path) = named.or_else(places::socket) else { return Ok(None) };
    match connect(&path) {
        Ok(_) if wanted || !has_own_languages() => Ok(Some(path)),
        Ok(_) => Ok(None),
        Err(error) if wanted => Err(cannot_reach(&path, &error)),
        Err(_) => Ok(None),
    }
}

/// Grades there. Dropping the future closes the connection, which ends the candidate.
pub(crate) async fn grade(
    path: &Path,
    request: &GradeRequest,
    tell: &mut (dyn FnMut(&CaseResult) + Send),
) -> Result<Grade, Failure> {
    let lost = |error: io::Error| {
        let text = format!("{}: {error}", path.display());
        let source = io::Error::new(error.kind(), text);
        Failure::Here(Error::Backend { operation: "hear the server", source })
    };
    let body = serde_json::to_vec(request).map_err(|error| lost(error.into()))?;
    if body.len() > MAX_BODY_BYTES {
        let reason = format!("takes {MAX_BODY_BYTES} bytes, not {}: use --no-server", body.len());
        return Err(SpecError::new("server", reason).into());
    }
    let stream = connect(path).and_then(UnixStream::from_std).map_err(lost)?;
    let mut stream = BufReader::new(stream);
    let head = format!(
        "POST {} HTTP/1.0\r\nHost: localhost\r\nAccept: {}\r\nContent-Type: {}\r\n\
         Content-Length: {}\r\n\r\n",
        wire::GRADES,
        wire::NDJSON,
        wire::JSON,
        body.len()
    );
    // A server that is full answers and closes before it has read all; the answer counts.
    let written = write(&mut stream, head.as_bytes(), &body).await;
    let status = match (read_head(&mut stream).await, written) {
        (Ok(status), _) => status,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(lost(error)),
    };
    if status != 200 {
        let text = read_rest(&mut stream, MAX_PROBLEM_BYTES).await.map_err(lost)?;
        let problem = serde_json::from_slice(&text).map_err(|error| lost(error.into()))?;
        return Err(Failure::Told(problem));
    }
    loop {
        let line = read_line(&mut stream, MAX_EVENT_BYTES).await.map_err(lost)?;
        match serde_json::from_slice(&line).map_err(|error| lost(error.into()))? {
            GradeEvent::Case(result) => tell(&result),
            GradeEvent::Grade(grade) => return Ok(*grade),
            GradeEvent::Error(problem) => return Err(Failure::Told(problem)),
        }
    }
}
