//! `POST /v1/runs`: one request, one Outcome, with the output as it comes if that is asked for.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use belljar::audit::Caller;
use belljar::{Error, EventSink, Outcome, Place, RunRequest, Stream};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::task::coop::poll_proceed;

use crate::api::{Access, Api, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Server, Who, body};
use crate::limits::{Admitted, Left};
use crate::policy::Running;
use crate::problem::Problem;
use crate::scope::Scope;
use crate::wire::{self, Told};

pub(super) fn enter(api: &mut Api) {
    let run_one = start("run", Access::Scope(Scope::Runs), "Run one program in a fresh sandbox");
    let run_one = run_one.takes::<RunRequest>().gives::<Outcome>(200).streams().refuses(&[422]);
    api.post(wire::RUNS, run, run_one);
}

pub(crate) async fn run(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    // Before the body is read, so that a full server holds no more bodies than it has places.
    let place = server.queue.enter().map_err(|error| Problem::from(&error))?;
    let (format, caller) = (Format::of(request.headers()), principal.caller.clone());
    let mut asked: RunRequest = body::json(request).await?;
    refuse_host_paths(&asked, "")?;
    let applied = server.policy.of(&principal, &asked.labels);
    applied.check_run(&mut asked, "")?;
    let running = server.policy.enter(&applied, 1)?;
    let rules = std::slice::from_ref(&applied);
    let admitted = server.limits.admit(&caller, std::slice::from_ref(&asked), rules)?;
    let left = admitted.left();
    let asked = Asked { request: asked, caller, admitted, running };
    let mut response = match format {
        Format::Json => document(&server, place, asked).await?,
        Format::Lines | Format::Events => stream(server, place, asked, format).await?,
    };
    Left::mark(left.as_ref(), &mut response);
    Ok(response)
}

/// A request, who sent it, and what is kept free for it.
struct Asked {
    request: RunRequest,
    caller: Caller,
    admitted: Admitted,
    running: Running,
}

/// Paths of the host are the server's, not the caller's: whoever may run code here may not therefore
/// read what this user can read.
pub(crate) fn refuse_host_paths(asked: &RunRequest, above: &str) -> Result<(), Problem> {
    let wrong = |field: &str, reason: &str| Err(Problem::field(&format!("{above}{field}"), reason));
    if !asked.copies.is_empty() {
        return wrong("copies", "names files of the server's host: send them in files");
    }
    if asked.workspace.is_some() {
        return wrong("workspace", "names a directory of the server's host: send files instead");
    }
    if asked.entry.is_some() {
        return wrong(
            "entry",
            "needs a workspace, which is not taken over HTTP: send code instead",
        );
    }
    Ok(())
}

async fn document(server: &Server, place: Place, asked: Asked) -> Result<Response, Problem> {
    let nobody: EventSink = Arc::new(|_| {});
    let begun = AtomicBool::new(false);
    let result = carry_out(server, place, asked, &begun, &mut |_, _| {}, nobody).await;
    let outcome = result.map_err(|error| problem(&error, &begun))?;
    let json = serde_json::to_vec(&outcome).map_err(|error| broken(error.into()))?;
    let mut response = json.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wire::JSON));
    Ok(response)
}

fn broken(source: std::io::Error) -> Problem {
    Problem::from(&Error::Backend { operation: "write the answer", source })
}

/// Why there is no Outcome. What the end of the server kept from beginning may be tried again, which is not so of what
/// it broke off.
fn problem(error: &Error, begun: &AtomicBool) -> Problem {
    if matches!(error, Error::Cancelled) && !begun.load(Ordering::Relaxed) {
        return Problem::coded("draining", "the server was stopped before this had its turn");
    }
    Problem::from(error)
}

/// Runs to the end, in turn, unless the server is stopped first. `begun` is set when the run itself
/// begins.
async fn carry_out(
    server: &Server,
    place: Place,
    asked: Asked,
    begun: &AtomicBool,
    sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
    events: EventSink,
) -> Result<Outcome, Error> {
    let Asked { request, caller, mut admitted, running } = asked;
    let work = async {
        // Checked before its turn: a mistake need not wait to be told.
        let run = server.engine.prepare(request)?.by(caller).on_event(events).screen().await?;
        let _turn = place.turn().await?;
        begun.store(true, Ordering::Relaxed);
        run.run(sink).await
    };
    let result = tokio::select! {
        biased;
        () = server.stop.cancelled() => Err(Error::Cancelled),
        result = work => result,
    };
    admitted.settle(0, &result);
    drop(running);
    result
}

/// Answers with a stream once the run has begun. What fails before that still has a status of its own.
async fn stream(
    server: Arc<Server>,
    place: Place,
    asked: Asked,
    format: Format,
) -> Result<Response, Problem> {
    let (outbox, begun) = (Outbox::default(), Arc::new(AtomicBool::new(false)));
    let mut run: Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>> = Box::pin({
        let (mut output, begun) = (Output::new(format, outbox.clone()), Arc::clone(&begun));
        let told = outbox.clone();
        let events: EventSink = Arc::new(move |event| tell(format, &told, &Told::Event(event)));
        async move {
            let mut sink = |stream, bytes: &[u8]| output.push(stream, bytes);
            let result = carry_out(&server, place, asked, &begun, &mut sink, events).await;
            output.finish();
            result
        }
    });
    let ended = poll_fn(|context| match run.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending if begun.load(Ordering::Relaxed) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    let ended = ended.await;
    if let Some(Err(error)) = &ended {
        return Err(problem(error, &begun));
    }
    let told = outbox.clone();
    let work = Box::pin(async move {
        let result = match ended {
            Some(result) => result,
            None => run.await,
        };
        match &result {
            Ok(outcome) => tell(format, &told, &Told::Outcome(outcome)),
            Err(error) => {
                if matches!(error, Error::Cancelled) {
                    told.break_off();
                }
                tell(format, &told, &Told::Error(&Problem::from(error)));
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}

/// Writes one event in the stream's form.
fn tell(format: Format, to: &Outbox, event: &Told<'_>) {
    to.tell(format, event.name(), event);
}

/// The program's output on its way into a stream. A character that lies across two reads is kept whole,
/// so that text stays text.
struct Output {
    format: Format,
    outbox: Outbox,
    held: [Vec<u8>; 2],
}

impl Output {
    fn new(format: Format, outbox: Outbox) -> Self {
        Self { format, outbox, held: [Vec::new(), Vec::new()] }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        pay_for(bytes.len());
        let held = &mut self.held[stream as usize];
        if held.is_empty() && std::str::from_utf8(bytes).is_ok() {
            return tell(self.format, &self.outbox, &Told::output(stream, bytes));
        }
        held.extend_from_slice(bytes);
        let rest = held.split_off(held.len() - unfinished(held));
        let whole = std::mem::replace(held, rest);
        if !whole.is_empty() {
            tell(self.format, &self.outbox, &Told::output(stream, &whole));
        }
    }

    /// Tells what was held back for an end that never came.
    fn finish(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let held = std::mem::take(&mut self.held[stream as usize]);
            if !held.is_empty() {
                tell(self.format, &self.outbox, &Told::output(stream, &held));
            }
        }
    }
}

/// Output for which a connection pays one unit of its turn. Tokio gives 128 units, so that about half
/// a megabyte is read from the program before the connection has to send it on.
const BYTES_FOR_A_UNIT: usize = 4 << 10;

/// Makes a flood of output end this connection's turn: tokio counts reads, and a read of much costs no
/// more than one of little.
fn pay_for(bytes: usize) {
    // Whatever is polled next finds the turn over and sees to the wake-up.
    let mut nobody = Context::from_waker(Waker::noop());
    for _ in 0..bytes / BYTES_FOR_A_UNIT {
        if let Poll::Ready(unit) = poll_proceed(&mut nobody) {
            unit.made_progress();
        }
    }
}

/// How many bytes at the end are the beginning of a character; none if the rest is no text anyway.
fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Event;

    fn streamed(format: Format, chunks: &[&[u8]]) -> String {
        let outbox = Outbox::default();
        let mut output = Output::new(format, outbox.clone());
        chunks.iter().for_each(|chunk| output.push(Stream::Stdout, chunk));
        output.finish();
        outbox.text()
    }

    fn events(chunks: &[&[u8]]) -> Vec<Event> {
        let lines = streamed(Format::Lines, chunks);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_character_across_two_reads_is_kept_whole() {
        let euro = "€".as_bytes();
        let found = events(&[b"a", &euro[..2], &euro[2..], b"b"]);
        let text = |text: &str| Event::Stdout { data: text.into() };
        assert_eq!(found, [text("a"), text("€"), text("b")]);
    }

    #[test]
    fn bytes_that_are_no_text_lose_nothing() {
        let chunks: [&[u8]; 4] = [b"a\xff", b"\xe2", b"\x28z", b"\xe2\x82"];
        let mut all = Vec::new();
        for event in events(&chunks) {
            let Event::Stdout { data } = event else { panic!("{event:?}") };
            all.extend(data.0);
        }
        assert_eq!(all, chunks.concat());
    }

    #[test]
    fn server_sent_events_are_named_and_one_line() {
        let text = streamed(Format::Events, &[b"a\nb\r\n"]);
        let expected = r#"{"type":"stdout","data":"a\nb\r\n"}"#;
        assert_eq!(text, format!("id: 1\nevent: stdout\ndata: {expected}\n\n"));
    }
}
