//! The table's verbs through the library.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar::Error;
use belljar::living::{Force, InsidePath, Offsets, PutOptions, Sandboxes};
use belljar::sandbox::{CodeRequest, ExecRequest, SandboxState};
use belljar_tests::{TempDir, block_on, engine};

use super::{PATH, POINT, Surface, Verb, parents};

pub(super) struct Library {
    sandboxes: Sandboxes,
    _directory: TempDir,
}

impl Library {
    pub(super) fn new() -> Self {
        let directory = TempDir::new();
        let (home, requests) = parents(&directory);
        let sandboxes = block_on(async {
            let state = directory.join("state");
            let sandboxes = Sandboxes::open(&engine(), &state).await.expect("it is opened");
            for request in requests {
                let info = sandboxes.create(request).await.expect("it is made");
                if info.name == "parent" {
                    let files = sandboxes.files("parent").await.expect("it has files");
                    let path = InsidePath::new(PATH).expect("a path");
                    files.put(&path, &b"x"[..], PutOptions::default()).await.expect("a file");
                }
                sandboxes.snapshot(&info.name, Some(POINT.into())).await.expect("a point");
                sandboxes.kill(&info.name).await.expect("it stops");
            }
            sandboxes
        });
        std::fs::remove_dir(home).expect("it is there");
        Self { sandboxes, _directory: directory }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        block_on(async {
            for one in self.sandboxes.list(None, None).await.unwrap_or_default() {
                self.sandboxes.remove(&one.name, Force::Yes).await.ok();
            }
        });
    }
}

fn exec(background: bool) -> ExecRequest {
    ExecRequest { cmd: vec!["true".into()], background, ..ExecRequest::default() }
}

impl Surface for Library {
    fn act(&self, verb: Verb, name: &str) -> Result<(), String> {
        let told = |error: Error| format!("{}: {error}", error.kind());
        block_on(async {
            match self.lifecycle(verb, name).await {
                Some(done) => done,
                None => match self.files_and_code(verb, name).await {
                    Some(done) => done,
                    None => self.points(verb, name).await,
                },
            }
        })
        .map_err(told)
    }

    fn fork(&self, parent: &str, name: &str) {
        block_on(self.sandboxes.fork(parent, 1, Some(name.to_owned()))).expect("a fork");
    }

    fn look(&self, name: &str) -> Option<(String, Option<String>)> {
        match block_on(self.sandboxes.info(name)) {
            Ok(info) => Some((word(info.state).to_owned(), info.error)),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn word(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Created => "created",
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        SandboxState::Stopped => "stopped",
        SandboxState::Failed => "failed",
        SandboxState::Removing => "removing",
    }
}

impl Library {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the verbs of the table are shared out among three"
    )]
    async fn lifecycle(&self, verb: Verb, name: &str) -> Option<Result<(), Error>> {
        let all = &self.sandboxes;
        Some(match verb {
            Verb::Info => all.info(name).await.map(drop),
            Verb::Start => all.start(name).await.map(drop),
            Verb::Stop => all.stop(name, Duration::from_secs(5)).await.map(drop),
            Verb::Kill => all.kill(name).await.map(drop),
            Verb::Pause => all.pause(name).await.map(drop),
            Verb::Resume => all.resume(name).await.map(drop),
            Verb::Remove => all.remove(name, Force::No).await,
            Verb::RemoveByForce => all.remove(name, Force::Yes).await,
            Verb::Exec | Verb::Shell => match all.exec(name, exec(false)).await {
                Ok(following) => following.collect().await.map(drop),
                Err(error) => Err(error),
            },
            Verb::ExecInBackground => match all.exec(name, exec(true)).await {
                Ok(following) => following.collect().await.map(drop),
                Err(error) => Err(error),
            },
            Verb::Execs => all.execs(name).await.map(drop),
            Verb::ExecInfo => all.exec_info(name, "NONE").await.map(drop),
            Verb::Follow => all.follow(name, "NONE", Offsets::default()).await.map(drop),
            Verb::Signal => all.signal(name, "NONE", "TERM").await,
            Verb::Input => all.input(name, "NONE", b"x").await,
            Verb::Resize => {
                let size = belljar::sandbox::TerminalSize { rows: 1, columns: 1 };
                all.resize(name, "NONE", size).await
            }
            Verb::Logs => all.logs(name, None, false).await.map(drop),
            _ => return None,
        })
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the verbs of the table are shared out among three"
    )]
    async fn files_and_code(&self, verb: Verb, name: &str) -> Option<Result<(), Error>> {
        let all = &self.sandboxes;
        let path = InsidePath::new(PATH).expect("a path");
        Some(match verb {
            Verb::Code => {
                let code = CodeRequest { code: "1".into(), ..CodeRequest::default() };
                all.code(name, code, &mut |_| {}).await.map(drop)
            }
            Verb::Contexts => all.contexts(name).await.map(drop),
            Verb::CreateContext => {
                all.create_context(name, Some("bash".into()), None, BTreeMap::new()).await.map(drop)
            }
            Verb::InterruptContext => all.interrupt_context(name, "none").await.map(drop),
            Verb::RestartContext => all.restart_context(name, "none").await,
            Verb::RemoveContext => all.remove_context(name, "none").await,
            Verb::ReadFile
            | Verb::WriteFile
            | Verb::ListFiles
            | Verb::MakeDirectory
            | Verb::MoveFile
            | Verb::RemoveFile
            | Verb::Download
            | Verb::Watch => {
                let files = match all.files(name).await {
                    Ok(files) => files,
                    Err(error) => return Some(Err(error)),
                };
                let inside = |path: &str| InsidePath::new(path).expect("a path");
                let (above, other) = (inside("/workspace"), inside("/workspace/other"));
                let done = match verb {
                    Verb::ReadFile => files.read(&path, 10).await.map(drop),
                    Verb::WriteFile => {
                        files.put(&path, &b"y"[..], PutOptions::default()).await.map(drop)
                    }
                    Verb::ListFiles => files.list(&above).await.map(drop),
                    Verb::MakeDirectory => files.make_directory(&other, 0o755, false).await,
                    Verb::MoveFile => files.rename(&path, &other, false).await,
                    Verb::RemoveFile => files.remove(&path, false).await.map(drop),
                    Verb::Download => {
                        files.download_tar(&path, tokio::io::sink(), 1 << 20).await.map(drop)
                    }
                    _ => files.watch(&above, false).await.map(drop),
                };
                done.unwrap_or_else(|error| panic!("{verb:?} of {name}: {error}"));
                Ok(())
            }
            _ => return None,
        })
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the verbs of the table are shared out among three"
    )]
    async fn points(&self, verb: Verb, name: &str) -> Result<(), Error> {
        let all = &self.sandboxes;
        let point = || Some(POINT.to_owned());
        match verb {
            Verb::Snapshot => all.snapshot(name, None).await.map(drop),
            Verb::TakenTag => all.snapshot(name, point()).await.map(drop),
            Verb::Snapshots => all.snapshots(name).await.map(drop),
            Verb::RemoveSnapshot => all.remove_snapshot(name, POINT).await,
            Verb::RemoveNoSnapshot => all.remove_snapshot(name, "none").await,
            Verb::Rollback => all.rollback(name, POINT).await.map(drop),
            Verb::RollbackToNothing => all.rollback(name, "none").await.map(drop),
            Verb::Diff => all.diff(name, point(), None).await.map(drop),
            Verb::DiffFromNothing => all.diff(name, Some("none".into()), None).await.map(drop),
            Verb::Undo => all.undo(name).await.map(drop),
            Verb::Redo => all.redo(name).await.map(drop),
            Verb::Fork => all.fork(name, 1, None).await.map(drop),
            Verb::ForkToTaken => all.fork(name, 1, Some("parent".into())).await.map(drop),
            Verb::CheckFork => all.check_fork(name, &[]).await.map(drop),
            Verb::Promote => all.promote(name, &format!("{name}-new")).await.map(drop),
            Verb::Export => all.export(name, None).await.map(drop),
            Verb::Changes => all.workspace_changes(name).await.map(drop),
            Verb::Commit => all.workspace_commit(name, Vec::new(), false).await.map(drop),
            Verb::Discard => all.workspace_discard(name).await.map(drop),
            _ => panic!("{verb:?} is not in the table of the library"),
        }
    }
}
