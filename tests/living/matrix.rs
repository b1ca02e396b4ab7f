//! Every verb in every state: what it leads to, or how it is refused, through the library and over HTTP alike.

#[path = "matrix/library.rs"]
mod library;
#[path = "matrix/web.rs"]
mod web;

use std::path::PathBuf;

use belljar::sandbox::{SandboxRequest, SandboxWorkspace, WorkspaceMode};
use belljar_tests::TempDir;

use library::Library;
use web::Web;

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
        Verb::Start => [NONE, To("running"), WRONG, WRONG, To("running"), WRONG],
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
    let workspace =
        SandboxWorkspace { path: Some(home.clone()), volume: None, mode: WorkspaceMode::ReadOnly };
    let parent = SandboxRequest { name: Some("parent".into()), ..SandboxRequest::default() };
    let homeless = SandboxRequest {
        name: Some("homeless".into()),
        workspace: Some(workspace),
        ..SandboxRequest::default()
    };
    (home, [parent, homeless])
}

#[test]
fn every_verb_in_every_state_through_the_library() {
    walk(&Library::new());
}

#[test]
fn every_verb_in_every_state_over_http() {
    walk(&Web::new());
}
