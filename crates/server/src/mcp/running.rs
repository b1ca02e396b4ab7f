//! `run_code` and `run_command`: alone in a sandbox of its own, or in one that stays.

use axum::body::Body;
use hyper::Method;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::arguments::{RunCode, RunCommand};
use super::calls::{Answered, Given, answer, at, mebibytes, milliseconds};
use super::lines::{Lines, Progress};
use super::reach::{Reach, inside, json as body};
use super::results::{Raised, Ran, blocked, text};
use super::told::Refused;
use crate::wire;

/// Kept of each stream for a model, half of its beginning and half of its end.
const KEPT_BYTES: usize = 40_000;

pub(super) async fn code(
    reach: &Reach,
    given: Given<RunCode>,
    progress: &mut Progress,
) -> Answered {
    let given = given?;
    let timeout = milliseconds("timeout_s", given.timeout_s)?;
    let Some(sandbox) = &given.sandbox else {
        let request = json!({
            "code": given.code,
            "language": given.language.as_deref().unwrap_or("python"),
            "stdin": given.stdin,
            "files": given.files,
            "limits": {
                "wall_ms": timeout,
                "memory_bytes": mebibytes("memory_mb", given.memory_mb)?,
                "output_bytes": KEPT_BYTES,
            },
        });
        return alone(reach, &request, progress).await;
    };
    if given.stdin.is_some() || given.memory_mb.is_some() {
        let words =
            "stdin and memory_mb are not for code in a sandbox: leave them out, or `sandbox`";
        return Err(Refused::mistake(words));
    }
    for (path, contents) in &given.files {
        let path = at(sandbox, &format!("/files/{}", inside(path)));
        reach.send(Method::PUT, &path, wire::JSON, Body::from(contents.clone())).await?;
    }
    let request = json!({ "code": given.code, "language": given.language, "timeout_ms": timeout });
    let path = at(sandbox, "/code");
    let response = reach.send(Method::POST, &path, wire::NDJSON, body(&request)?).await?;
    let mut lines = Lines::of(response);
    while let Some(line) = lines.next().await? {
        match line["type"].as_str() {
            Some("output") => advance(progress, &line["text"]).await,
            Some("ended") => return shown(&line),
            _ => {}
        }
    }
    Err(Refused::ours("the stream ended before the code did"))
}

pub(super) async fn command(
    reach: &Reach,
    given: Given<RunCommand>,
    progress: &mut Progress,
) -> Answered {
    let given = given?;
    let timeout = milliseconds("timeout_s", given.timeout_s)?;
    let Some(sandbox) = &given.sandbox else {
        if given.cwd.is_some() {
            let words = "cwd is for commands in a sandbox: use cd in the command";
            return Err(Refused::mistake(words));
        }
        let request = json!({
            "code": given.command,
            "language": "bash",
            "stdin": given.stdin,
            "env": given.env,
            "limits": { "wall_ms": timeout, "output_bytes": KEPT_BYTES },
        });
        return alone(reach, &request, progress).await;
    };
    let request = json!({
        "script": given.command,
        "cwd": given.cwd,
        "env": given.env,
        "stdin": given.stdin,
        "timeout_ms": timeout,
    });
    let path = at(sandbox, "/shell");
    let response = reach.send(Method::POST, &path, wire::NDJSON, body(&request)?).await?;
    let mut lines = Lines::of(response);
    let (mut out, mut err) = (Kept::default(), Kept::default());
    while let Some(line) = lines.next().await? {
        let kept = if line["stream"] == "stderr" { &mut err } else { &mut out };
        match line["type"].as_str() {
            Some("output") => {
                let bytes = data(&line["data"]);
                kept.push(&bytes);
                progress.advance(bytes.len(), &String::from_utf8_lossy(&bytes)).await;
            }
            Some("gap") => kept.dropped += 1,
            Some("ended") => return ended(&line, &out, &err),
            _ => {}
        }
    }
    Err(Refused::ours("the stream ended before the command did"))
}

/// A run in a sandbox of its own.
async fn alone(reach: &Reach, request: &Value, progress: &mut Progress) -> Answered {
    let response = reach.send(Method::POST, wire::RUNS, wire::NDJSON, body(request)?).await?;
    let mut lines = Lines::of(response);
    while let Some(line) = lines.next().await? {
        match line["type"].as_str() {
            Some("stdout" | "stderr") => {
                let bytes = data(&line["data"]);
                progress.advance(bytes.len(), &String::from_utf8_lossy(&bytes)).await;
            }
            Some("outcome") => return outcome(&line),
            _ => {}
        }
    }
    Err(Refused::ours("the stream ended before the outcome"))
}

async fn advance(progress: &mut Progress, text: &Value) {
    let text = text.as_str().unwrap_or_default();
    progress.advance(text.len(), text).await;
}

fn outcome(line: &Value) -> Answered {
    let verdict = &line["verdict"];
    let ran = Ran {
        ok: verdict["kind"] == "exited" && line["exit_code"] == 0,
        exit_code: line["exit_code"].as_i64(),
        stdout: text(line, "stdout"),
        stderr: text(line, "stderr"),
        truncated: line["stdout_truncated"] == true || line["stderr_truncated"] == true,
        elapsed_ms: line["elapsed_ms"].as_f64().unwrap_or_default(),
        execution_id: Some(text(line, "execution_id")),
        refused: blocked(line),
        ..ending(verdict)
    };
    finish(ran, Vec::new())
}

fn ended(line: &Value, out: &Kept, err: &Kept) -> Answered {
    let end = &line["end"];
    let ran = Ran {
        ok: end["verdict"]["kind"] == "exited" && end["exit_code"] == 0,
        exit_code: end["exit_code"].as_i64(),
        stdout: out.text(),
        stderr: err.text(),
        truncated: out.dropped > 0 || err.dropped > 0,
        elapsed_ms: end["elapsed_ms"].as_f64().unwrap_or_default(),
        ..ending(&end["verdict"])
    };
    finish(ran, Vec::new())
}

/// Code in a context: its values and pictures too.
fn shown(line: &Value) -> Answered {
    let results = line["results"].as_array().map_or(&[][..], Vec::as_slice);
    let plain = |one: &Value| one["data"]["text/plain"].as_str().map(ToOwned::to_owned);
    let error = line["error"].as_object().map(|_| Raised {
        name: text(&line["error"], "name"),
        value: text(&line["error"], "value"),
        traceback: text(&line["error"], "traceback"),
    });
    let status = if error.is_some() { "raised" } else { "exited" };
    let limits = ["TimeLimit", "OutputLimit"];
    let limit = error.as_ref().and_then(|one| limits.iter().find(|name| one.name == **name));
    let ran = Ran {
        ok: line["ok"] == true,
        status: match limit {
            Some(&"TimeLimit") => "wall_time_limit",
            Some(_) => "output_limit",
            None => status,
        }
        .to_owned(),
        timed_out: limit == Some(&"TimeLimit"),
        exit_code: line["exit_code"].as_i64(),
        stdout: text(line, "stdout"),
        stderr: text(line, "stderr"),
        truncated: line["stdout_truncated"] == true || line["stderr_truncated"] == true,
        elapsed_ms: line["elapsed_ms"].as_f64().unwrap_or_default(),
        value: results.iter().filter(|one| one["main"] == true).find_map(plain),
        error,
        ..Ran::default()
    };
    let pictures = results.iter().flat_map(|one| {
        ["image/png", "image/jpeg"].into_iter().filter_map(|kind| {
            let data = one["data"][kind].as_str()?;
            Some(ContentBlock::image(data.split_whitespace().collect::<String>(), kind))
        })
    });
    finish(ran, pictures.collect())
}

fn ending(verdict: &Value) -> Ran {
    let status = text(verdict, "kind");
    let timed_out = status == "wall_time_limit" || status == "cpu_time_limit";
    Ran { status, timed_out, ..Ran::default() }
}

/// The text for a model, the structure for a program, and the pictures.
fn finish(ran: Ran, pictures: Vec<ContentBlock>) -> Answered {
    let mut result: CallToolResult = answer(words(&ran), &ran)?;
    result.content.extend(pictures);
    result.is_error = Some(!ran.ok);
    Ok(result)
}

fn words(ran: &Ran) -> String {
    let mut parts = Vec::new();
    let mut part = |text: &str| {
        if !text.trim().is_empty() {
            parts.push(text.trim_end().to_owned());
        }
    };
    part(&ran.stdout);
    if !ran.stderr.trim().is_empty() {
        part(&format!("[stderr]\n{}", ran.stderr));
    }
    if let Some(value) = &ran.value {
        part(&format!("[value] {value}"));
    }
    if let Some(error) = &ran.error {
        part(&error.traceback);
        if error.traceback.is_empty() {
            part(&format!("{}: {}", error.name, error.value));
        }
    }
    for one in &ran.refused {
        part(&format!("[refused by {}: {}. to allow it: {}]", one.rule, one.what, one.fix));
    }
    match (ran.ok, ran.exit_code) {
        (true, _) => {}
        (false, Some(code)) if ran.status == "exited" => part(&format!("[exit code {code}]")),
        (false, _) => part(&format!("[{} after {:.0} ms]", ran.status, ran.elapsed_ms)),
    }
    if parts.is_empty() {
        parts.push("[no output]".to_owned());
    }
    parts.join("\n")
}

fn data(value: &Value) -> Vec<u8> {
    let data: Result<belljar::Data, _> = serde_json::from_value(value.clone());
    data.map(|data| data.0).unwrap_or_default()
}

/// The beginning and the end of a stream.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    dropped: u64,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let room = (KEPT_BYTES / 2).saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(KEPT_BYTES / 2);
        self.tail.drain(..over);
        self.dropped += u64::try_from(over).unwrap_or(u64::MAX);
    }

    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[&self.head[..], &tail].concat()).into_owned();
        }
        let [head, tail] = [&self.head, &tail].map(|part| String::from_utf8_lossy(part));
        format!("{head}\n[belljar: {} bytes dropped here]\n{tail}", self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_its_beginning_and_its_end() {
        let mut kept = Kept::default();
        kept.push(b"begin");
        for _ in 0..100 {
            kept.push(&[b'x'; 1000]);
        }
        kept.push(b"end");
        let text = kept.text();
        assert!(text.starts_with("beginx") && text.ends_with("xend"), "{text}");
        assert!(text.contains("[belljar: 60008 bytes dropped here]"), "{}", text.len());
        assert!(kept.head.len() + kept.tail.len() == KEPT_BYTES);
    }

    #[test]
    fn words_tell_what_a_model_needs_and_no_more() {
        let fine = Ran { ok: true, stdout: "42\n".to_owned(), ..Ran::default() };
        assert_eq!(words(&fine), "42");
        let status = "exited".to_owned();
        let failed =
            Ran { exit_code: Some(3), stderr: "oops\n".to_owned(), status, ..Ran::default() };
        assert_eq!(words(&failed), "[stderr]\noops\n[exit code 3]");
        assert_eq!(words(&Ran { ok: true, ..Ran::default() }), "[no output]");
    }
}
