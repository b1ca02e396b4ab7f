//! The three programs for real, as processes of this host: what is tried here is harmless.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::channel::Soon;
use super::{Contexts, MAX_CONTEXTS, MAX_WAITING, Settings};
use crate::model::error::Error;
use crate::model::outcome::Stream;
use crate::model::sandbox::{CodeEvent, CodeRequest, CodeResult, Interrupted, RichResult};

mod bash;
mod contexts;
mod local;
mod node;
mod python;

/// Long enough for a busy machine; nothing here waits for it to pass.
const PATIENCE_MS: u64 = 60_000;

fn contexts() -> Arc<Contexts> {
    contexts_with(Settings { timeout: Duration::from_millis(PATIENCE_MS), ..Settings::default() })
}

fn contexts_with(settings: Settings) -> Arc<Contexts> {
    let keep = Box::new(|_| Box::pin(async { Ok(()) }) as Soon<'static, ()>);
    Arc::new(Contexts::new(Arc::new(local::Local::new()), keep, settings))
}

fn asked(language: &str, code: &str) -> CodeRequest {
    CodeRequest {
        code: code.to_owned(),
        language: Some(language.to_owned()),
        ..CodeRequest::default()
    }
}

async fn run(contexts: &Arc<Contexts>, language: &str, code: &str) -> CodeResult {
    contexts.run(asked(language, code), &mut |_| ()).await.unwrap()
}

/// Runs it and interrupts it as soon as it has printed something.
async fn run_and_interrupt(contexts: &Arc<Contexts>, language: &str, code: &str) -> CodeResult {
    let mut sink = |event| {
        if matches!(event, CodeEvent::Output { .. }) {
            let (contexts, language) = (Arc::clone(contexts), language.to_owned());
            tokio::spawn(async move { contexts.interrupt(&language).await.unwrap() });
        }
    };
    contexts.run(asked(language, code), &mut sink).await.unwrap()
}

fn plain(result: &RichResult) -> &str {
    result.data["text/plain"].as_str().unwrap()
}

/// The value of the last expression.
fn value(result: &CodeResult) -> &str {
    assert!(result.ok, "{result:?}");
    assert!(result.results.first().is_some_and(|first| first.main), "{result:?}");
    plain(&result.results[0])
}

fn error_name(result: &CodeResult) -> &str {
    assert!(!result.ok, "{result:?}");
    &result.error.as_ref().unwrap().name
}
