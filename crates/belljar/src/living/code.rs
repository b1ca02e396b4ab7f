//! Code in the contexts of a sandbox. Which contexts there are is kept beside its execs, so that the next server speaks
//! with them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Sandboxes;
use super::contexts::{Contexts, Keep, Saved, Settings};
use super::lifecycle::Standing;
use super::store;
use crate::audit::Secrets;
use crate::model::error::Error;
use crate::model::sandbox::{
    CodeEvent, CodeRequest, CodeResult, ContextInfo, ExecState, Interruption, RichResult,
};
use crate::model::secret::SecretMode;
use crate::native::living::{self, Living};
use crate::secrets::Given;

const FILE: &str = "contexts.json";

impl Sandboxes {
    /// Runs code in a context; `sink` hears of it as it happens.
    pub async fn code(
        &self,
        name: &str,
        request: CodeRequest,
        sink: &mut (dyn FnMut(CodeEvent) + Send),
    ) -> Result<CodeResult, Error> {
        let standing = self.standing(name).await?;
        // Once its process runs nobody takes the sandbox for idle.
        standing.lines.contexts.begin(&request).await?;
        let lines = standing.lines;
        let given = lines.living.secrets().await?;
        if given.is_empty() {
            return lines.contexts.run(request, sink).await;
        }
        let mut request = request;
        for one in given.iter().filter(|one| one.mode != SecretMode::Placeholder) {
            // Its process began with the values of then.
            request.env.insert(one.variable.clone(), one.value.reveal().to_owned());
        }
        // The keeper has hidden them in the streams; in messages they may lie across two frames.
        let is_outside = |one: &&Given| one.mode == SecretMode::Placeholder;
        let inside = given.iter().filter(|one| !is_outside(one));
        let mut secrets = Secrets::new(inside.flat_map(Given::hidden));
        let outside = given.iter().filter(is_outside).flat_map(Given::hidden);
        outside.for_each(|value| secrets.add_outside(value));
        let mut sink = |event| sink(unseen_event(&secrets, event));
        let result = lines.contexts.run(request, &mut sink).await;
        result.map(|result| unseen(&secrets, result))
    }

    pub async fn contexts(&self, name: &str) -> Result<Vec<ContextInfo>, Error> {
        let (_, slot) = self.find(name)?;
        Ok(slot.lines().await?.map(|lines| lines.contexts.list()).unwrap_or_default())
    }

    pub async fn create_context(
        &self,
        name: &str,
        language: Option<String>,
        cwd: Option<PathBuf>,
        env: BTreeMap<String, String>,
    ) -> Result<ContextInfo, Error> {
        let Standing { lines, .. } = &self.standing(name).await?;
        lines.contexts.create(language.as_deref(), cwd, env).await
    }

    /// Interrupts what a context runs, and says what came of it. Its variables stay, unless the code does not hear it.
    pub async fn interrupt_context(&self, name: &str, id: &str) -> Result<Interruption, Error> {
        let (_, lines) = self.lines(name).await?;
        let outcome = lines.contexts.interrupt(id).await?;
        Ok(Interruption { context: id.to_owned(), outcome })
    }

    /// Begins a context anew, without its variables.
    pub async fn restart_context(&self, name: &str, id: &str) -> Result<(), Error> {
        let Standing { lines, .. } = &self.standing(name).await?;
        lines.contexts.restart(id).await.map(drop)
    }

    pub async fn remove_context(&self, name: &str, id: &str) -> Result<(), Error> {
        let (_, lines) = self.lines(name).await?;
        lines.contexts.remove(id).await
    }
}

/// What is told of a call, without its secrets.
fn unseen(secrets: &Secrets, mut result: CodeResult) -> CodeResult {
    (result.stdout, result.stderr) = (secrets.hide(&result.stdout), secrets.hide(&result.stderr));
    let results = std::mem::take(&mut result.results);
    result.results = results.into_iter().map(|one| unseen_result(secrets, one)).collect();
    if let Some(error) = &mut result.error {
        for text in [&mut error.name, &mut error.value, &mut error.traceback] {
            *text = secrets.hide(text);
        }
    }
    result
}

fn unseen_event(secrets: &Secrets, event: CodeEvent) -> CodeEvent {
    match event {
        CodeEvent::Output { stream, text } => {
            CodeEvent::Output { stream, text: secrets.hide(&text) }
        }
        CodeEvent::Result(result) => CodeEvent::Result(unseen_result(secrets, result)),
        started @ CodeEvent::Started { .. } => started,
    }
}

fn unseen_result(secrets: &Secrets, result: RichResult) -> RichResult {
    let data = result.data.into_iter();
    let data = data.map(|(mime, value)| (secrets.hide(&mime), secrets.clean(value))).collect();
    let dropped = result.dropped.iter().map(|one| secrets.hide(one)).collect();
    RichResult { main: result.main, data, dropped }
}

/// Writes down which contexts there are.
fn keep(directory: PathBuf) -> Keep {
    Box::new(move |saved| {
        let directory = directory.clone();
        Box::pin(super::blocking(move || {
            let text = serde_json::to_vec(&saved).map_err(std::io::Error::from);
            let text = text.map_err(Error::backend("write down the contexts of a sandbox"))?;
            Ok(store::replace(&directory, FILE, &text)?)
        }))
    })
}

/// The contexts of a sandbox that has just been raised, or found: those of before.
pub(super) async fn contexts_of(living: &Arc<Living>, directory: &Path) -> Result<Contexts, Error> {
    let place = Arc::new(Arc::clone(living));
    let contexts = Contexts::new(place, keep(directory.to_owned()), Settings::default());
    let text = match std::fs::read(directory.join(FILE)) {
        Ok(text) => text,
        Err(_) => return Ok(contexts), // none were made yet
    };
    let saved: Vec<Saved> = serde_json::from_slice(&text).unwrap_or_default();
    let execs = living::records(directory, "", true)
        .map_err(Error::backend("read what runs in a sandbox"))?;
    let reach = |id: &str| {
        let running = |exec: &&crate::model::sandbox::ExecInfo| {
            exec.id == id && exec.state == ExecState::Running
        };
        execs.iter().find(running).map(|exec| [exec.stdout_bytes, exec.stderr_bytes])
    };
    // Those whose program has ended too: the next call is told that it begins anew.
    contexts.adopt(saved, reach).await?;
    Ok(contexts)
}
