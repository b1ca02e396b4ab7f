//! A model for tests: a server on loopback that speaks what the endpoints speak, and does what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

/// What it does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Reaction {
    /// An answer with this status, these header lines and this body.
    Answer(u16, &'static str, String),
    /// The beginning of an answer, and then nothing more.
    HangUp(String),
    /// Not even that.
    Silence,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub path: String,
    pub head: String,
    pub body: Value,
    pub at: Instant,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Model {
    /// Listens until the test ends; after the last reaction it goes on with that one.
    pub(crate) fn new(reactions: Vec<Reaction>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                let reaction = reactions.get(index).or(reactions.last()).expect("a reaction");
                serve(stream, reaction, &told);
            }
        });
        Self { port, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("nobody panicked").clone()
    }
}

fn serve(stream: TcpStream, reaction: &Reaction, told: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("a whole body");
    let path = head.split(' ').nth(1).expect("a path").to_owned();
    let body = serde_json::from_slice(&body).expect("JSON");
    told.lock().expect("nobody panicked").push(Asked { path, head, body, at: Instant::now() });
    let mut stream = reader.into_inner();
    // Who asked may be gone.
    match reaction {
        Reaction::Answer(status, headers, body) => {
            let head = format!(
                "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok();
        }
        Reaction::HangUp(body) => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunk = format!("{:x}\r\n{body}\r\n", body.len());
            stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(chunk.as_bytes()))
                .ok();
        }
        Reaction::Silence => {}
    }
}

fn events(all: &[Value]) -> String {
    all.iter().map(|one| format!("event: x\ndata: {one}\n\n")).collect()
}

/// A whole answer of each kind, streamed or not, that says this.
pub(crate) fn saying(kind: &str, stream: bool, text: &str) -> String {
    let (first, second) = text.split_at(text.len() / 2);
    match (kind, stream) {
        ("openai", false) => json!({
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10}
        })
        .to_string(),
        ("openai", true) => {
            let part = |text: &str| json!({"choices": [{"delta": {"content": text}, "finish_reason": null}]});
            events(&[
                part(first),
                part(second),
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}),
            ]) + "data: [DONE]\n\n"
        }
        ("anthropic", false) => json!({
            "type": "message",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10}
        })
        .to_string(),
        ("anthropic", true) => {
            let part = |text: &str| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
            events(&[
                json!({"type": "message_start", "message": {"usage": {"input_tokens": 100, "output_tokens": 1}}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "ping"}),
                part(first),
                part(second),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}}),
                json!({"type": "message_stop"}),
            ])
        }
        (_, false) => json!({
            "message": {"role": "assistant", "content": text},
            "done": true, "prompt_eval_count": 100, "eval_count": 10
        })
        .to_string(),
        (_, true) => {
            let part = |text: &str| json!({"message": {"content": text}, "done": false}).to_string() + "\n";
            let last = json!({"message": {"content": ""}, "done": true, "prompt_eval_count": 100, "eval_count": 10});
            part(first) + &part(second) + &last.to_string() + "\n"
        }
    }
}
