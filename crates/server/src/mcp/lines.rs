//! An answer line by line, and the progress that a client is told of meanwhile.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::Response;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;

use super::told::Refused;

/// One line of a stream; what is kept of a program's output is far less.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Progress is told no more often: a program may write a line each microsecond.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// Shown of a line.
const MAX_MESSAGE_CHARS: usize = 200;

#[derive(Debug)]
pub(super) struct Lines {
    body: Body,
    waiting: BytesMut,
}

impl Lines {
    pub(super) fn of(response: Response<Body>) -> Self {
        Self { body: response.into_body(), waiting: BytesMut::new() }
    }

    /// The next line; nothing at the end. A problem in the stream is an error.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, Refused> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.waiting[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.waiting.split_to(searched + at + 1);
                let value: Value = serde_json::from_slice(&line)
                    .map_err(|error| Refused::ours(&format!("a line cannot be read: {error}")))?;
                if value["type"] == "error" {
                    return Err(Refused::of(&value));
                }
                return Ok(Some(value));
            }
            searched = self.waiting.len();
            if searched > MAX_LINE_BYTES {
                return Err(Refused::ours("the server sent a line without an end"));
            }
            match self.body.frame().await {
                None if self.waiting.is_empty() => return Ok(None),
                None => return Err(Refused::ours("the stream was cut")),
                Some(Err(error)) => {
                    return Err(Refused::ours(&format!("the stream was cut: {error}")));
                }
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.waiting.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

/// Tells the client that something goes on, if it has asked to be told.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// Rises with each piece: bytes of output, or cases that have ended.
    done: f64,
    told: Option<Instant>,
    last: LastLine,
}

impl Progress {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        Self { peer: context.peer.clone(), token, done: 0.0, told: None, last: LastLine::default() }
    }

    /// Something more was done; the words say what.
    pub(super) async fn advance(&mut self, by: usize, words: &str) {
        #[expect(clippy::cast_precision_loss, reason = "nobody counts bytes beyond 2^53")]
        let by = by as f64;
        self.done += by;
        let Some(token) = self.token.clone() else { return };
        self.last.push(words);
        if self.told.is_some_and(|told| told.elapsed() < PROGRESS_PAUSE) {
            return;
        }
        self.told = Some(Instant::now());
        let message = self.last.shown().to_owned();
        let mut told = ProgressNotificationParam::new(token, self.done);
        if !message.is_empty() {
            told = told.with_message(message);
        }
        // A client that does not listen has not hung up yet: that is told elsewhere.
        self.peer.notify_progress(told).await.ok();
    }
}

/// The last line that was written: programs write lines in pieces.
#[derive(Debug, Default)]
struct LastLine {
    whole: String,
    begun: String,
}

impl LastLine {
    fn push(&mut self, words: &str) {
        for piece in words.split_inclusive('\n') {
            let room = MAX_MESSAGE_CHARS.saturating_sub(self.begun.chars().count());
            self.begun.extend(piece.chars().take(room));
            if piece.ends_with('\n') {
                let line = std::mem::take(&mut self.begun);
                if !line.trim().is_empty() {
                    self.whole = line.trim_end().to_owned();
                }
            }
        }
    }

    fn shown(&self) -> &str {
        if self.whole.is_empty() { self.begun.trim_end() } else { &self.whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_shown_whole() {
        let mut last = LastLine::default();
        last.push("st");
        assert_eq!(last.shown(), "st");
        last.push("ep 1\n");
        last.push("st");
        assert_eq!(last.shown(), "step 1");
        last.push("ep 2\n\n  \n");
        assert_eq!(last.shown(), "step 2");
        last.push(&"x".repeat(10_000));
        last.push("\n");
        assert_eq!(last.shown().len(), MAX_MESSAGE_CHARS);
    }
}
