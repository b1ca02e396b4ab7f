//! One-shots: a sandbox is made, one program runs in it, and it is torn down again, however that went: after the
//! program's end, after an error, after its time limit, and when nobody waits for it any more.

use super::owed::Debt;
use super::{Following, Force, Sandboxes};
use crate::model::error::{Error, SpecError};
use crate::model::outcome::Captured;
use crate::model::sandbox::{ExecEvent, ExecInfo, ExecRequest, OneShotRequest, SandboxRequest};
use crate::native::living;

/// What a one-shot's sandbox may outlive its time limit by, should whoever asked for it be killed: it is removed then
/// as if it had been made with a time to live.
const MARGIN_MS: u64 = 60_000;

/// A one-shot that runs. To drop it is to end it and to tear its sandbox down.
#[derive(Debug)]
pub struct OneShot {
    following: Following,
    tear_down: Option<TearDown>,
}

/// What a one-shot came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    pub exec: ExecInfo,
    pub stdout: Captured,
    pub stderr: Captured,
}

/// A sandbox that does not outlive this.
#[derive(Debug)]
pub(super) struct TearDown {
    sandboxes: Sandboxes,
    /// `None` once it is gone.
    id: Option<String>,
    debt: Option<Debt>,
}

impl TearDown {
    pub(super) fn new(sandboxes: Sandboxes, id: String) -> Self {
        let debt = Some(sandboxes.owed.one_more());
        Self { sandboxes, id: Some(id), debt }
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Removes it now.
    pub(super) async fn now(mut self) -> Result<(), Error> {
        let Some(id) = self.id.take() else { return Ok(()) };
        gone(self.sandboxes.remove(&id, Force::Yes).await)
    }
}

impl Drop for TearDown {
    fn drop(&mut self) {
        if let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) {
            let (sandboxes, debt) = (self.sandboxes.clone(), self.debt.take());
            runtime.spawn(async move {
                // Nobody is left to be told. What cannot be removed now has a time to live.
                sandboxes.remove(&id, Force::Yes).await.ok();
                drop(debt);
            });
        }
    }
}

/// One whose time to live was over first is gone too.
fn gone(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(Error::NotFound { .. }) => Ok(()),
        removed => removed,
    }
}

impl Sandboxes {
    /// Runs Python code in a sandbox of its own, which is gone when this returns.
    pub async fn run_python(&self, request: OneShotRequest) -> Result<Ran, Error> {
        self.start_python(request).await?.collect().await
    }

    /// Runs a script by bash in a sandbox of its own, which is gone when this returns.
    pub async fn run_shell(&self, request: OneShotRequest) -> Result<Ran, Error> {
        self.start_shell(request).await?.collect().await
    }

    /// As [`Self::run_python`], with output as it comes.
    pub async fn start_python(&self, request: OneShotRequest) -> Result<OneShot, Error> {
        self.once(&["python3", "-c"], request).await
    }

    /// As [`Self::run_shell`], with output as it comes.
    pub async fn start_shell(&self, request: OneShotRequest) -> Result<OneShot, Error> {
        self.once(&["/bin/bash", "-c"], request).await
    }

    async fn once(&self, program: &[&str], request: OneShotRequest) -> Result<OneShot, Error> {
        let OneShotRequest { code, sandbox, cwd, env, stdin, timeout_ms } = request;
        if code.is_empty() {
            return Err(SpecError::new("code", "is empty: give what is to run").into());
        }
        let mut cmd: Vec<String> = program.iter().map(|&word| word.to_owned()).collect();
        cmd.push(code);
        let exec = ExecRequest { cmd, cwd, env, stdin, timeout_ms, ..ExecRequest::default() };
        let sandbox = short_lived(sandbox, timeout_ms)?;
        // Also when we are dropped while it is made, the one who holds it is there to let it go.
        let tear_down = self
            .whole(|this| async move {
                let info = this.make(sandbox).await?;
                Ok(TearDown::new(this, info.id))
            })
            .await?;
        let id = tear_down.id.clone().unwrap_or_default();
        match self.exec(&id, exec).await {
            Ok(following) => Ok(OneShot { following, tear_down: Some(tear_down) }),
            Err(error) => {
                tear_down.now().await?;
                Err(error)
            }
        }
    }
}

/// The sandbox of a one-shot. It is removed though we be killed.
fn short_lived(
    sandbox: SandboxRequest,
    timeout_ms: Option<u64>,
) -> Result<SandboxRequest, SpecError> {
    let spec = living::spec(&sandbox)?;
    let longest = timeout_ms.unwrap_or(spec.limits.wall_ms).saturating_add(MARGIN_MS);
    let ttl_ms = Some(sandbox.ttl_ms.unwrap_or(longest).min(longest));
    Ok(SandboxRequest { ttl_ms, ..sandbox })
}

impl OneShot {
    /// The next of it; nothing after its end. When the end is told, the sandbox is gone.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        let next = self.following.next().await;
        let goes_on = matches!(&next, Ok(Some(event)) if !matches!(event, ExecEvent::Ended(_)));
        if !goes_on && let Some(tear_down) = self.tear_down.take() {
            tear_down.now().await?;
        }
        next
    }

    /// To the end.
    pub async fn collect(self) -> Result<Ran, Error> {
        let Self { following, tear_down } = self;
        let ended = following.collect().await;
        if let Some(tear_down) = tear_down {
            tear_down.now().await?;
        }
        let (exec, [stdout, stderr]) = ended?;
        Ok(Ran { exec, stdout, stderr })
    }
}
