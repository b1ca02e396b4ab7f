//! Every verb in every state: what it leads to, or how it is refused, through the library and over HTTP alike.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belljar::Error;
use belljar::living::{Force, InsidePath, Offsets, PutOptions, Sandboxes};
use belljar::sandbox::{CodeRequest, ExecRequest, SandboxRequest, SandboxState, SandboxWorkspace};
use belljar_tests::{TempDir, block_on, engine};
use serde_json::json;

use crate::speaking::{Client, Spoken};
use crate::verbs::Desk;

/// The columns of the table: a sandbox that there is not, and one in each state that lasts.
const STATES: [&str; 6] = ["absent", "created", "running", "paused", "stopped", "failed"];
/// A point that every sandbox here has.
const POINT: &str = "base";
const PATH: &str = "/workspace/file";

/// What a verb comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// It is done, and nothing changes.
    Stays,
    /// It is done, and the sandbox is in this state then, or gone.
    To(&'static str),
    /// It is refused for this reason, and nothing changes.
    No(&'static str),
}

use Comes::{No, Stays, To};

const NONE: Comes = No("not_found");
const WRONG: Comes = No("conflict");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Info,
    Start,
    Stop,
    Kill,
    Pause,
    Resume,
    Remove,
    RemoveByForce,
    Exec,
    ExecInBackground,
    Shell,
    Execs,
    ExecInfo,
    Follow,
    Signal,
    Input,
    Resize,
    Logs,
    Code,
    Contexts,
    CreateContext,
    InterruptContext,
    RestartContext,
    RemoveContext,
    ReadFile,
    WriteFile,
    ListFiles,
    MakeDirectory,
    MoveFile,
    RemoveFile,
    Download,
    Watch,
    Snapshot,
    Snapshots,
    TakenTag,
    RemoveSnapshot,
    RemoveNoSnapshot,
    Rollback,
    RollbackToNothing,
    Diff,
    DiffFromNothing,
    Undo,
    Redo,
    Fork,
    ForkToTaken,
    CheckFork,
    Promote,
    Export,
    Changes,
    Commit,
    Discard,
}

/// Verbs that need something to run in: what was never started is started for them.
const USES: [Comes; 6] = [NONE, To("running"), Stays, WRONG, WRONG, WRONG];
/// The same of something that is not there once it runs.
const USES_NOTHING: [Comes; 6] = [NONE, To("running"), NONE, WRONG, WRONG, WRONG];
/// Verbs that only read what is written down.
const READS: [Comes; 6] = [NONE, Stays, Stays, Stays, Stays, Stays];
/// The same of something that is not there.
const READS_NOTHING: [Comes; 6] = [NONE, NONE, NONE, NONE, NONE, NONE];

fn gone(state: bool) -> Comes {
    if state { To("gone") } else { WRONG }
}

/// Absent, created, running, paused, stopped, failed.
fn row(verb: Verb) -> [Comes; 6] {
    match verb {
        Verb::Info | Verb::Execs | Verb::Logs | Verb::Contexts | Verb::Snapshots => READS,
        Verb::Diff | Verb::Fork | Verb::Snapshot | Verb::RemoveSnapshot | Verb::Export => READS,
        Verb::Start => [NONE, To("running"), WRONG, WRONG, To("running"), No("backend")],
        Verb::Stop | Verb::Kill => [NONE, WRONG, To("stopped"), To("stopped"), WRONG, WRONG],
        Verb::Pause => [NONE, WRONG, To("paused"), WRONG, WRONG, WRONG],
        Verb::Resume => [NONE, WRONG, WRONG, To("running"), WRONG, WRONG],
        Verb::Remove => [NONE, gone(true), gone(false), gone(false), gone(true), gone(true)],
        Verb::RemoveByForce => {
            let gone = To("gone");
            [NONE, gone, gone, gone, gone, gone]
        }
        Verb::Exec | Verb::ExecInBackground | Verb::Shell | Verb::Code => USES,
        Verb::CreateContext | Verb::CheckFork => USES,
        Verb::ReadFile | Verb::WriteFile | Verb::ListFiles | Verb::MakeDirectory => USES,
        Verb::MoveFile | Verb::RemoveFile | Verb::Download | Verb::Watch => USES,
        Verb::Signal | Verb::Input | Verb::Resize => USES_NOTHING,
        Verb::InterruptContext | Verb::RestartContext | Verb::RemoveContext => USES_NOTHING,
        Verb::ExecInfo | Verb::Follow | Verb::RemoveNoSnapshot => READS_NOTHING,
        Verb::DiffFromNothing => READS_NOTHING,
        Verb::TakenTag | Verb::ForkToTaken => [NONE, WRONG, WRONG, WRONG, WRONG, WRONG],
        Verb::Rollback => [NONE, Stays, Stays, WRONG, Stays, Stays],
        Verb::RollbackToNothing => [NONE, NONE, NONE, WRONG, NONE, NONE],
        Verb::Undo | Verb::Redo => [NONE, WRONG, WRONG, WRONG, WRONG, WRONG],
        // Its name is another then.
        Verb::Promote => READS,
        // Of a sandbox whose workspace is not copied there is nothing to bring back.
        Verb::Changes | Verb::Commit => {
            let none = No("spec");
            [NONE, none, none, none, none, none]
        }
        Verb::Discard => [NONE, No("spec"), No("spec"), WRONG, No("spec"), No("spec")],
    }
}

const VERBS: [Verb; 51] = [
    Verb::Info,
    Verb::Start,
    Verb::Stop,
    Verb::Kill,
    Verb::Pause,
    Verb::Resume,
    Verb::Remove,
    Verb::RemoveByForce,
    Verb::Exec,
    Verb::ExecInBackground,
    Verb::Shell,
    Verb::Execs,
    Verb::ExecInfo,
    Verb::Follow,
    Verb::Signal,
    Verb::Input,
    Verb::Resize,
    Verb::Logs,
    Verb::Code,
    Verb::Contexts,
    Verb::CreateContext,
    Verb::InterruptContext,
    Verb::RestartContext,
    Verb::RemoveContext,
    Verb::ReadFile,
    Verb::WriteFile,
    Verb::ListFiles,
    Verb::MakeDirectory,
    Verb::MoveFile,
    Verb::RemoveFile,
    Verb::Download,
    Verb::Watch,
    Verb::Snapshot,
    Verb::Snapshots,
    Verb::TakenTag,
    Verb::RemoveSnapshot,
    Verb::RemoveNoSnapshot,
    Verb::Rollback,
    Verb::RollbackToNothing,
    Verb::Diff,
    Verb::DiffFromNothing,
    Verb::Undo,
    Verb::Redo,
    Verb::Fork,
    Verb::ForkToTaken,
    Verb::CheckFork,
    Verb::Promote,
    Verb::Export,
    Verb::Changes,
    Verb::Commit,
    Verb::Discard,
];

/// One way to the verbs.
trait Surface {
    /// Does it; the answer is why not.
    fn act(&self, verb: Verb, name: &str) -> Result<(), String>;
    fn fork(&self, parent: &str, name: &str);
    /// State and error, or nothing when there is no such sandbox.
    fn look(&self, name: &str) -> Option<(String, Option<String>)>;
}

/// Puts a new sandbox into a state, and gives its name.
fn stage(surface: &impl Surface, state: &str, number: usize) -> String {
    let name = format!("{state}-{number}");
    let parent = if state == "failed" { "homeless" } else { "parent" };
    if state != "absent" {
        surface.fork(parent, &name);
    }
    let verbs: &[Verb] = match state {
        "running" => &[Verb::Start],
        "paused" => &[Verb::Start, Verb::Pause],
        "stopped" => &[Verb::Start, Verb::Kill],
        "failed" => {
            surface.act(Verb::Start, &name).expect_err("its workspace is gone");
            &[]
        }
        _ => &[],
    };
    for verb in verbs {
        surface.act(*verb, &name).unwrap_or_else(|error| panic!("{verb:?} {name}: {error}"));
    }
    name
}

/// Walks the whole table.
fn walk(surface: &impl Surface) {
    let mut number = 0;
    for (column, state) in STATES.into_iter().enumerate() {
        let mut name = stage(surface, state, number);
        for verb in VERBS {
            let before = surface.look(&name);
            let expected = row(verb)[column];
            let came = surface.act(verb, &name);
            let told = format!("{verb:?} in state {state}: {came:?}");
            match expected {
                No(kind) => {
                    assert_eq!(came.as_ref().map_err(|error| kind_of(error)), Err(kind), "{told}");
                    assert_eq!(surface.look(&name), before, "{told}");
                    continue;
                }
                Stays => {
                    assert_eq!(came, Ok(()), "{told}");
                    let after =
                        if verb == Verb::Promote { format!("{name}-new") } else { name.clone() };
                    assert_eq!(surface.look(&after), before, "{told}");
                    if !leaves_traces(verb) {
                        continue;
                    }
                }
                To("gone") => {
                    assert_eq!(came, Ok(()), "{told}");
                    assert_eq!(surface.look(&name), None, "{told}");
                }
                To(next) => {
                    // An error that is found inside is found by something that runs.
                    assert!(came.is_ok() || row(verb)[2] == NONE, "{told}");
                    assert_eq!(surface.look(&name), Some((next.to_owned(), None)), "{told}");
                }
            }
            number += 1;
            name = stage(surface, state, number);
        }
    }
}

/// What is not there any more, or is there already, the next time.
fn leaves_traces(verb: Verb) -> bool {
    matches!(verb, Verb::Promote | Verb::RemoveSnapshot | Verb::MoveFile | Verb::RemoveFile)
        || matches!(verb, Verb::MakeDirectory | Verb::ExecInBackground)
}

fn kind_of(error: &str) -> &str {
    error.split(':').next().unwrap_or(error)
}

/// Two parents with a file and a point: one as usual, one whose workspace vanishes.
fn parents(directory: &TempDir) -> (PathBuf, [SandboxRequest; 2]) {
    let home = directory.join("home");
    std::fs::create_dir(&home).expect("a directory");
    let workspace = SandboxWorkspace {
        path: Some(home.clone()),
        volume: None,
        mode: belljar::sandbox::WorkspaceMode::ReadOnly,
    };
    let parent = SandboxRequest { name: Some("parent".into()), ..SandboxRequest::default() };
    let homeless = SandboxRequest {
        name: Some("homeless".into()),
        workspace: Some(workspace),
        ..SandboxRequest::default()
    };
    (home, [parent, homeless])
}

struct Library {
    sandboxes: Sandboxes,
    _directory: TempDir,
}

impl Library {
    fn new() -> Self {
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
            Verb::InterruptContext => all.interrupt_context(name, "none").await,
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

/// The same by HTTP.
struct Web {
    client: Client,
    // Before the desk, which clears away by commands of its own.
    _server: belljar_tests::Running,
    _desk: Desk,
}

impl Web {
    fn new() -> Self {
        let desk = Desk::new();
        let (home, requests) = parents(&desk.directory);
        let server = desk.serve();
        let client = Client::new(&desk.socket);
        for request in requests {
            let name = request.name.clone().expect("a name");
            let request = serde_json::to_value(&request).expect("JSON");
            client.post("/v1/sandboxes", &request).is(201);
            let at = format!("/v1/sandboxes/{name}");
            if name == "parent" {
                client.put(&format!("{at}/files{PATH}"), b"x").is(204);
            }
            client.post(&format!("{at}/snapshots"), &json!({"tag": POINT})).is(201);
            client.post(&format!("{at}/kill"), &json!({})).is(200);
        }
        std::fs::remove_dir(home).expect("it is there");
        Self { client, _server: server, _desk: desk }
    }

    fn say(&self, verb: Verb, name: &str) -> Spoken {
        let at = |rest: &str| format!("/v1/sandboxes/{name}{rest}");
        let get = |rest: &str| self.client.get(&at(rest));
        let post = |rest: &str, body: serde_json::Value| self.client.post(&at(rest), &body);
        let delete = |rest: &str| self.client.delete(&at(rest));
        match verb {
            Verb::Info => get(""),
            Verb::Start => post("/start", json!({})),
            Verb::Stop => post("/stop", json!({})),
            Verb::Kill => post("/kill", json!({})),
            Verb::Pause => post("/pause", json!({})),
            Verb::Resume => post("/resume", json!({})),
            Verb::Remove => delete(""),
            Verb::RemoveByForce => delete("?force=true"),
            Verb::Exec => post("/exec", json!({"cmd": ["true"]})),
            Verb::ExecInBackground => post("/exec", json!({"cmd": ["true"], "background": true})),
            Verb::Shell => post("/shell", json!({"script": "true"})),
            Verb::Execs => get("/execs"),
            Verb::ExecInfo => get("/execs/NONE"),
            Verb::Follow => get("/execs/NONE/events"),
            Verb::Signal => post("/execs/NONE/signal", json!({"signal": "TERM"})),
            Verb::Input => post("/execs/NONE/stdin", json!("x")),
            Verb::Resize => post("/execs/NONE/resize", json!({"rows": 1, "columns": 1})),
            Verb::Logs => get("/logs"),
            Verb::Code => post("/code", json!({"code": "1"})),
            Verb::Contexts => get("/contexts"),
            Verb::CreateContext => post("/contexts", json!({"language": "bash"})),
            Verb::InterruptContext => post("/contexts/none/interrupt", json!({})),
            Verb::RestartContext => post("/contexts/none/restart", json!({})),
            Verb::RemoveContext => delete("/contexts/none"),
            Verb::ReadFile => get("/files/workspace/file"),
            Verb::WriteFile => self.client.put(&at("/files/workspace/file"), b"y"),
            Verb::ListFiles => get("/files/workspace?list=true"),
            Verb::MakeDirectory => post("/files/workspace/other?make=directory", json!({})),
            Verb::MoveFile => post("/files/workspace/file?move_to=/workspace/other", json!({})),
            Verb::RemoveFile => delete("/files/workspace/file"),
            Verb::Download => get("/tar/workspace/file"),
            Verb::Watch => self.client.begin(&at("/watch/workspace")).0,
            Verb::Snapshot => post("/snapshots", json!({})),
            Verb::TakenTag => post("/snapshots", json!({"tag": POINT})),
            Verb::Snapshots => get("/snapshots"),
            Verb::RemoveSnapshot => delete("/snapshots/base"),
            Verb::RemoveNoSnapshot => delete("/snapshots/none"),
            Verb::Rollback => post("/rollback", json!({"tag": POINT})),
            Verb::RollbackToNothing => post("/rollback", json!({"tag": "none"})),
            Verb::Diff => get("/diff?from=base"),
            Verb::DiffFromNothing => get("/diff?from=none"),
            Verb::Undo => post("/undo", json!({})),
            Verb::Redo => post("/redo", json!({})),
            Verb::Fork => post("/fork", json!({})),
            Verb::ForkToTaken => post("/fork", json!({"as": "parent"})),
            Verb::CheckFork => post("/check_fork", json!({})),
            Verb::Promote => post("/promote", json!({"as": format!("{name}-new")})),
            Verb::Export => get("/export"),
            Verb::Changes => get("/workspace/changes"),
            Verb::Commit => post("/workspace/commit", json!({})),
            Verb::Discard => post("/workspace/discard", json!({})),
        }
    }
}

impl Surface for Web {
    fn act(&self, verb: Verb, name: &str) -> Result<(), String> {
        let said = self.say(verb, name);
        if said.status < 300 {
            return Ok(());
        }
        let problem = said.json();
        let kind = problem["kind"].as_str().expect("a kind").to_owned();
        let status = match kind.as_str() {
            "conflict" => 409,
            "not_found" => 404,
            "spec" => 400,
            _ => 500,
        };
        assert_eq!(said.status, status, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        Err(format!("{kind}: {}", problem["detail"]))
    }

    fn fork(&self, parent: &str, name: &str) {
        self.client.post(&format!("/v1/sandboxes/{parent}/fork"), &json!({"as": name})).is(201);
    }

    fn look(&self, name: &str) -> Option<(String, Option<String>)> {
        let said = self.client.get(&format!("/v1/sandboxes/{name}"));
        if said.status == 404 {
            return None;
        }
        let info = said.json();
        let text = |field: &str| info[field].as_str().map(ToOwned::to_owned);
        Some((text("state").expect("a state"), text("error")))
    }
}

#[test]
fn every_verb_in_every_state_through_the_library() {
    walk(&Library::new());
}

#[test]
fn every_verb_in_every_state_over_http() {
    walk(&Web::new());
}
