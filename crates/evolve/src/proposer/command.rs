//! A program of the user's that proposes: it reads one JSON object and writes the answer. It runs on the host, as the
//! user: it is trusted as whoever wrote the task is. What it is bounded in is time and output.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use belljar_sys::spawn::{Talker, talker};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::{Answer, Ask, CommandSpec, MAX_ANSWER_BYTES, NoAnswer};
use crate::step::Usage;

/// What is kept of its standard error.
const MAX_WORDS_BYTES: usize = 64 << 10;
/// What is told of it.
const MAX_WORDS_CHARS: usize = 500;
/// Variables that every program gets.
const ALWAYS: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];

pub(super) async fn ask(spec: &CommandSpec, ask: &Ask<'_>) -> Result<Answer, NoAnswer> {
    let failed = |why: String| NoAnswer::Failed { why, usage: Usage::default() };
    let started = start(spec).map_err(|error| NoAnswer::Fatal {
        why: format!("cannot start {}: {error}", spec.command.first().map_or("", String::as_str)),
    })?;
    let mut request = ask.context.to_string();
    request.push('\n');
    let limit = Duration::from_millis(spec.timeout_ms);
    let talked = tokio::time::timeout(limit, converse(started, request.as_bytes())).await;
    let (code, out, err) = match talked {
        Err(_) => {
            return Err(failed(format!("the command took longer than {} ms", spec.timeout_ms)));
        }
        Ok(Err(error)) => return Err(failed(format!("the command cannot be heard: {error}"))),
        Ok(Ok(all)) => all,
    };
    if out.len() > MAX_ANSWER_BYTES {
        return Err(failed(format!("the command wrote more than {MAX_ANSWER_BYTES} bytes")));
    }
    if code != Some(0) {
        let how = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        let words = String::from_utf8_lossy(&err);
        let last = words.trim_end().chars().rev().take(MAX_WORDS_CHARS).collect::<Vec<_>>();
        let last: String = last.into_iter().rev().collect();
        return Err(failed(format!("the command ended with {how}: {last}")));
    }
    let text =
        String::from_utf8(out).map_err(|_| failed("the command wrote no UTF-8".to_owned()))?;
    Ok(Answer { text, usage: Usage::default() })
}

fn start(spec: &CommandSpec) -> std::io::Result<Talker> {
    let names = ALWAYS.into_iter().chain(spec.env.iter().map(String::as_str));
    let environment: Vec<_> =
        names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect();
    let (program, args) = spec.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let directory = spec.directory.as_deref().unwrap_or(Path::new("/"));
    talker(program.as_ref(), args, &environment, directory)
}

/// Writes and reads at once, then waits for its end. Dropping this ends it and all it started.
async fn converse(
    mut talker: Talker,
    request: &[u8],
) -> std::io::Result<(Option<i32>, Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = talker.streams().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let mut input = pipe::Sender::from_owned_fd(stdin)?;
    let output = pipe::Receiver::from_owned_fd(stdout)?;
    let words = pipe::Receiver::from_owned_fd(stderr)?;
    let write = async move {
        // A program that does not want to know all of it is in its right.
        input.write_all(request).await.ok();
        drop(input);
    };
    let pidfd = talker.pidfd().try_clone()?;
    // A thread of its own waits: it ends with the program, and that ends with us.
    let end = tokio::task::spawn_blocking(move || {
        let mut waited = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut waited, None)).map(drop)
    });
    // What it leaves behind would hold the streams open: it goes along.
    let ended = async move {
        let ended = end.await;
        let code = talker.end();
        ended.map(|_| code)
    };
    let reads =
        async { tokio::join!(read(output, MAX_ANSWER_BYTES + 1), read(words, MAX_WORDS_BYTES)) };
    let ((), (out, err), code) = tokio::join!(write, reads, ended);
    Ok((code.map_err(std::io::Error::other)?, out?, err?))
}

/// Reads to the end, and keeps so much.
async fn read(mut from: impl AsyncRead + Unpin, most: usize) -> std::io::Result<Vec<u8>> {
    let (mut kept, mut piece) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(kept);
        }
        let room = most.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&piece[..room]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Prompt;

    fn run(script: &str, timeout_ms: u64) -> Result<Answer, NoAnswer> {
        let spec = CommandSpec {
            command: ["sh", "-c", script].map(ToOwned::to_owned).to_vec(),
            directory: None,
            env: vec!["CARGO_PKG_NAME".to_owned()],
            timeout_ms,
            price: super::super::Price::default(),
        };
        let prompt = Prompt::default();
        let asked =
            Ask { prompt: &prompt, context: serde_json::json!({"n": 7}), index: 0, seed: 1 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ask(&spec, &asked))
    }

    fn why(result: Result<Answer, NoAnswer>) -> String {
        match result {
            Err(NoAnswer::Failed { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_reads_json_and_writes_the_answer() {
        assert_eq!(run("cat", 10_000).unwrap().text, "{\"n\":7}\n");
        assert_eq!(run("exec <&-; echo hi", 10_000).unwrap().text, "hi\n");
        assert_eq!(
            run("sleep 300 & echo hi", 10_000).unwrap().text,
            "hi\n",
            "it does not wait for what is left"
        );
    }

    #[test]
    fn it_gets_only_the_variables_that_are_named() {
        let text = run("env", 10_000).unwrap().text;
        assert!(text.contains("CARGO_PKG_NAME=") && !text.contains("CARGO_PKG_VERSION="), "{text}");
    }

    #[test]
    fn what_goes_wrong_is_told() {
        assert!(why(run("echo broken >&2; exit 3", 10_000)).contains("exit code 3: broken"));
        assert!(why(run("kill -9 $$", 10_000)).contains("a signal"));
        assert!(why(run("printf '\\377'", 10_000)).contains("UTF-8"));
        assert!(why(run("head -c 5000000 /dev/zero", 10_000)).contains("more than"));
    }

    #[test]
    fn time_is_bounded_and_children_go_along() {
        let started = std::time::Instant::now();
        assert!(why(run("sleep 300 & sleep 300", 200)).contains("200 ms"));
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_that_is_not_there_is_fatal() {
        let spec = CommandSpec {
            command: vec!["/no/such/program".to_owned()],
            directory: None,
            env: Vec::new(),
            timeout_ms: 1000,
            price: super::super::Price::default(),
        };
        assert!(start(&spec).is_err());
    }
}
