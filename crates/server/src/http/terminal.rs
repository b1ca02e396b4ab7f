//! A program's terminal over a WebSocket: bytes in both directions as binary messages, and words about it as text
//! messages with JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use belljar::living::{Following, Offsets, Sandboxes};
use belljar::sandbox::{ExecEvent, TerminalSize};
use serde::Deserialize;
use serde_json::json;

use crate::api::{Access, Api, look};
use crate::http::sandboxes::Seen;
use crate::http::{Mine, Server, Who};
use crate::problem::Problem;
use crate::scope::Scope;
use crate::shares::Shares;
use crate::stop::Stop;
use crate::wire;

/// Terminals at once, of all and of one tenant.
const MOST_TERMINALS: u64 = 256;
const SHARE: u64 = 64;
/// The longest message; a larger paste is several.
const MOST_MESSAGE: usize = 1 << 20;
/// A client that does not answer is gone: so often it is asked.
const PING: Duration = Duration::from_secs(15);
/// How many questions may stay without an answer.
const MOST_SILENT: u32 = 3;

pub(crate) fn terminals() -> Arc<Shares> {
    Shares::new(MOST_TERMINALS, SHARE)
}

pub(super) fn enter(api: &mut Api) {
    let write = Access::Scope(Scope::SandboxesWrite);
    let one = look("exec_attach", write, "A program's terminal, by WebSocket");
    let path = format!("{}/{{name}}/execs/{{id}}/attach", wire::SANDBOXES);
    api.get(&path, attach, one.gives_as(101, "").refuses(&[409, 426]));
}

/// What a client may say beside input.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    Resize {
        rows: u16,
        columns: u16,
    },
    Signal {
        signal: String,
    },
    /// No more input comes.
    CloseInput,
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_word(text: &str) {
    drop(serde_json::from_str::<Said>(text));
}

async fn attach(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let stdout = match crate::http::lines::last_event(request.headers()) {
        Some(id) => Seen::read(id)?.stdout,
        None => 0,
    };
    // What is wrong with the sandbox is told before what is wrong with the connection.
    let following = sandboxes.follow(&name, &id, Offsets { stdout, stderr: 0 }).await;
    let following = following.map_err(|error| Problem::from(&error))?;
    let upgrade = upgrade.map_err(|error| {
        Problem::coded("upgrade_required", format!("this is for WebSocket clients: {error}"))
    })?;
    let room = server.terminals.take(principal.tenant.name(), 1).ok_or_else(|| {
        Problem::coded("busy", "as many terminals are open as may be: close one first")
    })?;
    let stop = server.stop.clone();
    Ok(upgrade.max_message_size(MOST_MESSAGE).max_frame_size(MOST_MESSAGE).on_upgrade(
        move |socket| async move {
            Terminal { sandboxes, name, id, socket, silent: 0 }.carry(following, stop).await;
            drop(room);
        },
    ))
}

struct Terminal {
    sandboxes: Sandboxes,
    name: String,
    id: String,
    socket: WebSocket,
    /// Questions since the client last said anything.
    silent: u32,
}

impl Terminal {
    /// Passes on what comes from either side, until the program has ended or the client is gone.
    async fn carry(mut self, mut following: Following, stop: Stop) {
        let mut ping = tokio::time::interval(PING);
        loop {
            let goes_on = tokio::select! {
                biased;
                () = stop.draining() => {
                    self.close(close_code::AWAY, "the server is stopped").await;
                    return;
                }
                heard = self.socket.recv() => match heard {
                    Some(Ok(message)) => self.heard(message).await,
                    Some(Err(_)) | None => return,
                },
                event = following.next() => match event {
                    Ok(Some(event)) => self.tell(event).await,
                    Ok(None) => {
                        self.close(close_code::NORMAL, "it has ended").await;
                        return;
                    }
                    Err(error) => {
                        let problem = serde_json::to_string(&Problem::from(&error)).unwrap_or_default();
                        // Who is gone need not be told.
                        self.socket.send(Message::Text(problem.into())).await.ok();
                        self.close(close_code::ERROR, "it was lost").await;
                        return;
                    }
                },
                _ = ping.tick() => {
                    self.silent += 1;
                    self.silent <= MOST_SILENT
                        && self.socket.send(Message::Ping(bytes::Bytes::new())).await.is_ok()
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn tell(&mut self, event: ExecEvent) -> bool {
        let message = match event {
            ExecEvent::Output { data, .. } => Message::Binary(data.0.into()),
            event @ (ExecEvent::Started { .. } | ExecEvent::Gap { .. } | ExecEvent::Ended(_)) => {
                match serde_json::to_string(&event) {
                    Ok(text) => Message::Text(text.into()),
                    Err(_) => return true,
                }
            }
        };
        self.socket.send(message).await.is_ok()
    }

    async fn heard(&mut self, message: Message) -> bool {
        self.silent = 0;
        let done = match message {
            Message::Binary(bytes) => self.sandboxes.input(&self.name, &self.id, &bytes).await,
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(said) => self.act(said).await,
                Err(error) => return self.complain(&format!("cannot be read: {error}")).await,
            },
            Message::Ping(_) | Message::Pong(_) => return true,
            Message::Close(_) => return false,
        };
        match done {
            Ok(()) => true,
            Err(error) => self.complain(&error.to_string()).await,
        }
    }

    async fn act(&mut self, said: Said) -> Result<(), belljar::Error> {
        let (name, id) = (&self.name, &self.id);
        match said {
            Said::Resize { rows, columns } => {
                self.sandboxes.resize(name, id, TerminalSize { rows, columns }).await
            }
            Said::Signal { signal } => self.sandboxes.signal(name, id, &signal).await,
            Said::CloseInput => self.sandboxes.close_input(name, id).await,
        }
    }

    async fn complain(&mut self, why: &str) -> bool {
        let text = json!({ "type": "error", "detail": why }).to_string();
        self.socket.send(Message::Text(text.into())).await.is_ok()
    }

    async fn close(&mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame { code, reason: reason.into() };
        // Who is gone need not be told.
        self.socket.send(Message::Close(Some(frame))).await.ok();
    }
}
