//! Code in contexts, from the command line.

use base64::Engine as _;
use belljar::sandbox::{CodeRequest, CodeResult, ContextInfo, Interrupted, Interruption};
use belljar::{Error, Stream};
use belljar_server::{Problem, wire};
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::super::run::{read_bounded, text};
use super::{Called, at};
use crate::args::sandbox::{Code, Contexts};
use crate::remote::sandboxes::{Lines, empty, json};
use crate::remote::{Failure, escaped};
use crate::render::{self, Live};

/// The exit code of code that failed.
const FAILED: u8 = 1;

pub(super) async fn code(called: &Called, args: Code) -> Result<u8, Failure> {
    let code = match (args.code, args.file) {
        (Some(code), _) => code,
        (None, Some(file)) if file.as_os_str() == "-" => {
            text("FILE", "standard input", read_bounded(std::io::stdin()))?
        }
        (None, Some(file)) => {
            let shown = file.display().to_string();
            text("FILE", &shown, std::fs::File::open(&file).and_then(read_bounded))?
        }
        (None, None) => String::new(),
    };
    let request = CodeRequest {
        code,
        context: args.context,
        language: args.language,
        timeout_ms: args.timeout,
        ..CodeRequest::default()
    };
    let path = at(&args.name, "/code");
    if called.json {
        let result: CodeResult = called.way.post(&path, &request).await?;
        let printed = render::json(&result);
        return Ok(if printed == 0 { u8::from(!result.ok) * FAILED } else { printed });
    }
    let response = called.way.send(Method::POST, &path, wire::NDJSON, json(&request)?).await?;
    called.way.let_go();
    follow(Lines::of(response)).await
}

/// One line of what code does.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Told {
    Started {},
    Output {
        stream: Stream,
        text: String,
    },
    /// Shown with all others, at the end.
    Result {},
    Ended(Box<CodeResult>),
    Error(Problem),
}

async fn follow(mut lines: Lines) -> Result<u8, Failure> {
    let mut live = Live::new(false);
    loop {
        let next = tokio::select! {
            next = lines.next::<Told>() => next?,
            () = super::super::interrupted() => return Err(Error::Cancelled.into()),
        };
        match next {
            Some(Told::Started {} | Told::Result {}) => {}
            Some(Told::Output { stream, text }) => {
                if live.write(stream, text.as_bytes()).is_err() {
                    return Ok(0); // nobody reads any more
                }
            }
            Some(Told::Ended(result)) => {
                live.finish().ok(); // as above
                return Ok(show(&result));
            }
            Some(Told::Error(problem)) => return Err(Failure::Told(problem)),
            None => return Err(Error::Lost { what: "the server went away before the end" }.into()),
        }
    }
}

/// Values as text; what is a picture is named with its size.
fn show(result: &CodeResult) -> u8 {
    for value in &result.results {
        let plain = value.data.get("text/plain").and_then(|text| text.as_str());
        for (kind, data) in value.data.iter().filter(|(kind, _)| kind.starts_with("image/")) {
            let encoded = data.as_str().unwrap_or_default();
            let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim());
            let size = decoded.map_or(encoded.len(), |bytes| bytes.len());
            render::words(&format!("[{kind}, {size} bytes: --json has it]"));
        }
        if let Some(plain) = plain {
            render::line(&render::visible(plain));
        }
    }
    match &result.error {
        Some(error) => {
            let words = if error.traceback.is_empty() {
                format!("{}: {}", error.name, error.value)
            } else {
                error.traceback.clone()
            };
            render::words(words.trim_end());
            FAILED
        }
        None => 0,
    }
}

#[derive(Serialize, Deserialize)]
struct All {
    contexts: Vec<ContextInfo>,
}

pub(super) async fn contexts(called: &Called, args: &Contexts) -> Result<u8, Failure> {
    let one = |id: &str, rest: &str| at(&args.name, &format!("/contexts/{}{rest}", escaped(id)));
    if let Some(language) = &args.create {
        let asked = serde_json::json!({ "language": language });
        let made: ContextInfo = called.way.post(&at(&args.name, "/contexts"), &asked).await?;
        return Ok(if called.json { render::json(&made) } else { render::line(&made.id) });
    }
    if let Some(id) = &args.interrupt {
        let came: Interruption =
            called.way.post(&one(id, "/interrupt"), &serde_json::json!({})).await?;
        if called.json {
            return Ok(render::json(&came));
        }
        render::words(match came.outcome {
            Interrupted::Idle => "nothing ran in it",
            Interrupted::Heard => "the code has heard it",
            Interrupted::Ended => "the code has ended",
            Interrupted::Restarted => "the code did not heed it: its context is a fresh one now",
        });
        return Ok(0);
    }
    let order = match (&args.restart, &args.remove) {
        (Some(id), _) => Some((Method::POST, one(id, "/restart"))),
        (None, Some(id)) => Some((Method::DELETE, one(id, ""))),
        (None, None) => None,
    };
    if let Some((method, path)) = order {
        called.way.tell(method, &path, empty()).await?;
        return Ok(0);
    }
    let all: All = called.way.get(&at(&args.name, "/contexts")).await?;
    if called.json {
        return Ok(render::json(&all));
    }
    let mut rows = vec![["CONTEXT", "LANGUAGE", "RUNS", "NOW"].map(String::from)];
    rows.extend(all.contexts.iter().map(|one| {
        let now = if one.busy { "busy" } else { "waits" };
        [one.id.clone(), one.language.clone(), one.count.to_string(), now.to_owned()]
    }));
    Ok(render::table(&rows))
}
