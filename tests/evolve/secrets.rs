//! Keys by the name of a secret: described in the task, got when they are needed, seen by the endpoint alone.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::model::{Model, Reaction, saying};
use crate::rig::{Rig, holds};

const KEY: &str = "sk-belljar-named-0123456789abcdef";

fn tables(port: u16, source: &str) -> String {
    format!(
        "[proposer]\nkind = \"openai\"\nmodel = \"m\"\nurl = \"http://127.0.0.1:{port}/v1\"\n\
         secret = \"model-key\"\nstream = false\n{source}"
    )
}

/// Echoes the key, as a candidate and as an error would.
fn model() -> Model {
    let text = format!("```python\n# {KEY}\ndef add(a, b):\n    return a + b\n```");
    Model::new(vec![Reaction::Answer(200, "", saying("openai", false, &text))])
}

fn key_file(rig: &Rig, mode: u32) {
    let path = rig.directory.file("key", format!("{KEY}\n"));
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("our own file");
}

#[test]
fn key_comes_by_the_name_of_a_secret_and_is_kept_nowhere() {
    for source in [
        "[secrets.model-key]\nfile = \"key\"",
        "[secrets.model-key]\nenv = \"BELLJAR_TEST_SECRET\"",
        "[secrets.model-key]\ncommand = [\"cat\", \"KEY\"]",
    ] {
        let rig = Rig::new().env("BELLJAR_TEST_SECRET", KEY);
        key_file(&rig, 0o600);
        let source = source.replace("KEY\"", &format!("{}\"", rig.directory.join("key").display()));
        let model = model();
        let task = rig.adding("max_iterations = 1", &tables(model.port, &source));
        let ended = rig.run(&[&task.display().to_string(), "--json"]);
        let summary = ended.json();
        assert_eq!(summary["end"], json!("target"), "{source}: {ended:?}");
        let head = &model.asked()[0].head;
        assert!(head.contains(&format!("authorization: Bearer {KEY}")), "{source}: {head}");
        assert!(!holds(&rig.stored(), KEY), "{source}: it was kept");
        assert!(!holds(&ended.stdout, KEY) && !holds(&ended.stderr, KEY), "{source}: it was told");
        let best = rig.run(&["best", summary["id"].as_str().expect("an id")]);
        assert!(best.out().contains("[secret]"), "control: the answer held it: {best:?}");
    }
}

#[test]
fn secret_that_cannot_be_had_is_told_before_anything_runs() {
    for (source, words) in [
        ("", ["proposer.secret", "[secrets.model-key]"]),
        ("[secrets.other]\nenv = \"HOME\"", ["there are: other", "[secrets.model-key]"]),
        ("[secrets.model-key]\nfile = \"key\"", ["secrets.model-key.file", "chmod 600"]),
        ("[secrets.model-key]\nfile = \"none\"", ["secrets.model-key.file", "No such file"]),
        ("[secrets.model-key]\nenv = \"BELLJAR_NO_SUCH\"", ["secrets.model-key.env", "export"]),
        ("[secrets.model-key]\ncommand = [\"false\"]", ["secrets.model-key.command", "code 1"]),
        ("[secrets.model-key]\nenv = \"A\"\nfile = \"b\"", ["secrets.model-key", "one of"]),
        ("[secrets.model-key]\nvalue = \"plain\"", ["value", "unknown field"]),
        ("key_env = \"HOME\"\n[secrets.model-key]\nenv = \"HOME\"", ["proposer.secret", "key_env"]),
    ] {
        let rig = Rig::new();
        key_file(&rig, 0o644);
        let task = rig.adding("", &tables(1, source));
        let ended = rig.run(&[&task.display().to_string()]);
        assert_eq!(ended.code, Some(2), "{source}: {ended:?}");
        let told = ended.err();
        assert!(words.iter().all(|word| told.contains(word)), "{source}: {told}");
        assert!(!rig.state().exists(), "{source}: something was begun");
    }
}
