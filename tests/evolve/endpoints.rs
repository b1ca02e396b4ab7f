//! Models behind HTTP: three ways of speaking, each streamed and not, and everything that goes wrong with them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::model::{Model, Reaction, saying};
use crate::rig::{Rig, holds};

const KEY: &str = "sk-belljar-test-0123456789abcdef";
const RIGHT: &str = "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\n";

/// Evolves once, by a model that reacts so.
fn ask(kind: &str, stream: bool, more: &str, model: &Model) -> (Rig, Value) {
    let rig = Rig::new().env("BELLJAR_TEST_KEY", KEY);
    let url =
        format!("http://127.0.0.1:{}{}", model.port, if kind == "openai" { "/v1" } else { "" });
    let table = format!(
        "[proposer]\nkind = \"{kind}\"\nmodel = \"m\"\nurl = \"{url}\"\nkey_env = \"BELLJAR_TEST_KEY\"\n\
         stream = {stream}\nprice = {{input = 1000.0, output = 10000.0}}\n{more}"
    );
    let task = rig.adding("max_iterations = 1", &table);
    let summary = rig.evolve(&task);
    (rig, summary)
}

fn answer(kind: &str, stream: bool, text: &str) -> Reaction {
    Reaction::Answer(200, "Content-Type: application/json\r\n", saying(kind, stream, text))
}

#[test]
fn every_endpoint_is_understood_streamed_and_not() {
    for kind in ["openai", "anthropic", "ollama"] {
        for stream in [false, true] {
            let model = Model::new(vec![answer(kind, stream, RIGHT)]);
            let (_rig, summary) = ask(kind, stream, "temperature = 0.5\nmax_tokens = 99", &model);
            assert_eq!(summary["end"], json!("target"), "{kind} {stream}: {summary}");
            let spent = &summary["spent"];
            assert_eq!(
                (&spent["input_tokens"], &spent["output_tokens"]),
                (&json!(100), &json!(10)),
                "{kind}"
            );
            // 100 tokens at 1000 a million and 10 at 10000.
            assert!((spent["money"].as_f64().expect("money") - 0.2).abs() < 1e-9, "{spent}");
            let asked = &model.asked()[0];
            let (path, limit) = match kind {
                "openai" => ("/v1/chat/completions", &asked.body["max_tokens"]),
                "anthropic" => ("/v1/messages", &asked.body["max_tokens"]),
                _ => ("/api/chat", &asked.body["options"]["num_predict"]),
            };
            assert_eq!((asked.path.as_str(), limit), (path, &json!(99)));
            assert_eq!(
                (&asked.body["model"], &asked.body["stream"]),
                (&json!("m"), &json!(stream))
            );
            let key = if kind == "anthropic" {
                format!("x-api-key: {KEY}")
            } else {
                format!("authorization: Bearer {KEY}")
            };
            assert!(asked.head.to_lowercase().contains(&key.to_lowercase()), "{}", asked.head);
        }
    }
}

#[test]
fn endpoint_that_does_not_stream_is_understood_all_the_same() {
    for kind in ["openai", "anthropic", "ollama"] {
        let model = Model::new(vec![answer(kind, false, RIGHT)]);
        let (_rig, summary) = ask(kind, true, "retries = 0", &model);
        assert_eq!(summary["end"], json!("target"), "{kind}: {summary}");
        assert_eq!(summary["spent"]["input_tokens"], json!(100), "{kind}: {summary}");
    }
}

#[test]
fn trouble_that_passes_is_waited_for() {
    let overloaded =
        "event: error\ndata: {\"type\": \"error\", \"error\": {\"message\": \"overloaded\"}}\n\n";
    let half = saying("anthropic", true, RIGHT);
    let half = &half[..half.len() * 2 / 3];
    let slow_down = "{\"error\": {\"message\": \"slow down\"}}".to_owned();
    for (name, reaction) in [
        ("a rate limit", Reaction::Answer(429, "Retry-After: 1\r\n", slow_down.clone())),
        ("overloaded", Reaction::Answer(529, "", slow_down)),
        ("an error of the server", Reaction::Answer(500, "", "<html>".to_owned())),
        ("a hang-up", Reaction::HangUp(half.to_owned())),
        ("half a stream", Reaction::Answer(200, "", half.to_owned())),
        ("an error in the stream", Reaction::Answer(200, "", overloaded.to_owned())),
        ("nonsense", Reaction::Answer(200, "", "data: nonsense\n\n".to_owned())),
        ("an empty answer", Reaction::Answer(200, "", saying("anthropic", true, " \n"))),
        ("silence", Reaction::Silence),
    ] {
        let model = Model::new(vec![reaction, answer("anthropic", true, RIGHT)]);
        let (rig, summary) = ask("anthropic", true, "", &model);
        assert_eq!(summary["end"], json!("target"), "{name}: {summary}");
        let asked = model.asked();
        assert_eq!(asked.len(), 2, "{name}: {summary}");
        let pause = asked[1].at - asked[0].at;
        if name == "a rate limit" {
            assert!(pause >= Duration::from_secs(1), "Retry-After was not honoured: {pause:?}");
        }
        assert!(pause >= Duration::from_millis(250), "{name}: asked again at once: {pause:?}");
        let id = summary["id"].as_str().expect("an id");
        let usage = &rig.of_type(id, "proposed")[0]["usage"];
        assert_eq!(usage["retries"], json!(1), "{name}");
        // An empty answer is paid for as well.
        let paid = if name == "an empty answer" { 200 } else { 100 };
        assert_eq!(usage["input_tokens"], json!(paid), "{name}");
    }
}

#[test]
fn trouble_that_stays_ends_the_proposal_or_the_evolution() {
    let refused =
        "{\"error\": {\"message\": \"Incorrect API key provided: KEY\"}}".replace("KEY", KEY);
    let model = Model::new(vec![Reaction::Answer(401, "", refused)]);
    let (rig, summary) = ask("openai", false, "", &model);
    assert_eq!((&summary["end"], model.asked().len()), (&json!("proposer"), 1), "{summary}");
    let why = summary["why"].as_str().expect("why");
    assert!(why.contains("401") && why.contains("[secret]"), "{why}");
    assert!(!holds(&rig.stored(), KEY), "the key came back and was kept");
    for (reaction, words) in [
        (Reaction::Answer(200, "", "not json".to_owned()), "malformed"),
        (Reaction::Answer(200, "", "{\"choices\": []}".to_owned()), "no choices"),
        (
            Reaction::Answer(200, "", "{\"error\": {\"message\": \"no such model\"}}".to_owned()),
            "no such model",
        ),
        (Reaction::Answer(429, "Retry-After: 9999\r\n", "{}".to_owned()), "429"),
        (Reaction::Silence, "cannot reach"),
        (Reaction::Answer(302, "Location: http://127.0.0.1:1/\r\n", String::new()), "302"),
    ] {
        let model = Model::new(vec![reaction]);
        let (_rig, summary) = ask("openai", false, "retries = 1", &model);
        let told = summary.to_string();
        assert!(told.contains(words) && summary["target_reached"] == false, "{words}: {told}");
        assert!(model.asked().len() <= 2, "{words}");
    }
}

#[test]
fn answer_that_was_cut_off_is_no_answer() {
    let text = saying("openai", false, RIGHT).replace("\"stop\"", "\"length\"");
    let model = Model::new(vec![Reaction::Answer(200, "", text)]);
    let (_rig, summary) = ask("openai", false, "", &model);
    assert!(summary.to_string().contains("max_tokens"), "{summary}");
    assert_eq!((model.asked().len(), &summary["spent"]["input_tokens"]), (1, &json!(100)));
}

#[test]
fn key_is_in_no_reach_but_the_endpoints() {
    // A candidate that looks for it where it can, and says what it finds.
    let thief = "```python\nimport os\ndef add(a, b):\n    found = dict(os.environ)\n    for pid in os.listdir('/proc'):\n        \
         if pid.isdigit():\n            try:\n                found[pid] = open(f'/proc/{pid}/environ').read()\n            \
         except OSError:\n                pass\n    print(found)\n    return str(found)\n```";
    let model = Model::new(vec![answer("openai", true, thief)]);
    let (rig, summary) = ask("openai", true, "", &model);
    assert_eq!(summary["iterations"], json!(1));
    assert!(model.asked()[0].head.contains(KEY), "control: the endpoint has it");
    let stored = rig.stored();
    assert!(holds(&stored, "PATH"), "control: what the candidate found is kept");
    assert!(!holds(&stored, KEY));
    let id = summary["id"].as_str().expect("an id");
    for words in [vec!["show", id], vec!["export", id], vec!["best", id]] {
        let ended = rig.run(&words);
        assert!(!holds(&ended.stdout, KEY) && !holds(&ended.stderr, KEY), "{words:?}");
    }
}

#[test]
fn key_that_is_not_there_is_told_before_anything_runs() {
    let rig = Rig::new();
    let task = rig.adding(
        "",
        "[proposer]\nkind = \"anthropic\"\nmodel = \"m\"\nkey_env = \"BELLJAR_NO_SUCH_KEY\"",
    );
    let ended = rig.run(&[&task.display().to_string()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.err().contains("BELLJAR_NO_SUCH_KEY") && ended.err().contains("export"),
        "{ended:?}"
    );
    assert!(!rig.state().exists(), "something was begun");
}
