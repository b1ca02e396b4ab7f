//! A terminal inside a sandbox: our own is made raw, keys go in, what comes is shown as it is.

use std::io::{Read, Write};

use belljar::Error;
use belljar::sandbox::{ExecEvent, ExecInfo, ExecRequest, TerminalSize};
use belljar_server::wire;
use hyper::Method;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::execs::{Told, code_of};
use super::{Called, at};
use crate::remote::Failure;
use crate::remote::sandboxes::{Lines, bytes, empty, json, lost};
use crate::render;

/// Keys that wait to be sent; a paste is longer, and waits then.
const MAX_WAITING: usize = 16;
/// Read of our input at once.
const PIECE_BYTES: usize = 16 << 10;

/// Our standard input as it comes. A thread reads it: it may be anything, and reading it may wait for ever.
pub(super) fn input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    std::thread::spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(length) = std::io::stdin().read(&mut piece) {
            if length == 0 || sender.blocking_send(piece[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Our terminal as it was; it is that again when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What the program inside may have switched on: other screens, hidden cursors, mouse reports.
        let calm =
            b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m";
        std::io::stdout().write_all(calm).and_then(|()| std::io::stdout().flush()).ok();
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0).ok();
    }
}

fn size() -> TerminalSize {
    let found = tcgetwinsize(std::io::stdout());
    found.map_or(TerminalSize { rows: 24, columns: 80 }, |size| TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

pub(super) async fn open(
    called: &Called,
    name: &str,
    mut request: ExecRequest,
) -> Result<u8, Failure> {
    request.terminal = Some(size());
    (request.background, request.keep_stdin) = (true, true);
    let term = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned());
    request.env.entry("TERM".to_owned()).or_insert(term);
    let info: ExecInfo = called.way.post(&at(name, "/exec"), &request).await?;
    let exec = at(name, &format!("/execs/{}", info.id));
    let events = format!("{exec}/events");
    let response = called.way.send(Method::GET, &events, wire::NDJSON, empty()).await?;
    called.way.let_go();
    let raw = Raw::enter().map_err(lost)?;
    let ended = converse(called, &exec, Lines::of(response)).await;
    drop(raw);
    if ended.is_err() {
        // It was ours alone: nobody else will come for it. If it cannot be told, its time limit ends it.
        let asked = json(&serde_json::json!({ "signal": "KILL" }))?;
        called.way.tell(Method::POST, &format!("{exec}/signal"), asked).await.ok();
    }
    let info = ended?;
    let end = info.end.as_ref();
    if let Some(words) = end.and_then(|end| render::verdict_words(&end.verdict)) {
        render::trouble(&words, 0);
    }
    Ok(code_of(&info))
}

async fn converse(called: &Called, exec: &str, mut lines: Lines) -> Result<ExecInfo, Failure> {
    let mut keys = input();
    let mut resized = signal(SignalKind::window_change()).map_err(lost)?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(lost)?;
    loop {
        tokio::select! {
            next = lines.next::<Told>() => match next? {
                Some(Told::Event(ExecEvent::Output { data, .. })) => {
                    let mut out = std::io::stdout();
                    out.write_all(&data.0).and_then(|()| out.flush()).map_err(lost)?;
                }
                Some(Told::Event(ExecEvent::Ended(info))) => return Ok(info),
                Some(Told::Event(ExecEvent::Started { .. } | ExecEvent::Gap { .. })) => {}
                Some(Told::Error(problem)) => return Err(Failure::Told(problem)),
                None => return Err(Error::Lost { what: "the server went away" }.into()),
            },
            Some(piece) = keys.recv() => {
                called.way.tell(Method::POST, &format!("{exec}/stdin"), bytes(piece)).await?;
            }
            _ = resized.recv() => {
                let size = json(&size())?;
                called.way.tell(Method::POST, &format!("{exec}/resize"), size).await?;
            }
            _ = hung_up.recv() => return Err(Error::Cancelled.into()),
        }
    }
}
