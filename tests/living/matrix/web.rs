//! The table's verbs over HTTP.

use serde_json::json;

use super::{PATH, POINT, Surface, Verb, parents};
use crate::speaking::{Client, Spoken};
use crate::verbs::Desk;

/// The same by HTTP.
pub(super) struct Web {
    client: Client,
    // Before the desk, which clears away by commands of its own.
    _server: belljar_tests::Running,
    _desk: Desk,
}

impl Web {
    pub(super) fn new() -> Self {
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
