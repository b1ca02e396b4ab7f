//! The tools as they are listed: few, each with what it takes, what it answers and what it may do.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde_json::Value;

use super::{arguments, results};

/// What a tool may do, as a client shows it.
#[derive(Clone, Copy)]
enum Effect {
    /// Looks on.
    Reads,
    /// Adds something.
    Adds,
    /// May change or remove what is there.
    Destroys,
}

/// All of them, always in the same order.
pub(super) fn all() -> Vec<Tool> {
    [running(), sandboxes(), files_and_points(), judging()].into_iter().flatten().collect()
}

fn running() -> Vec<Tool> {
    vec![
        tool::<arguments::RunCode, results::Ran>(
            "run_code",
            "Run code",
            "Runs Python, bash or node code in a sandbox without network and without any file of the host, and \
             answers with its output. Without `sandbox` it starts from nothing and leaves nothing. With the name of \
             a sandbox it keeps variables and files between calls, and shows the value of the last expression and \
             pictures (matplotlib figures too).",
            Effect::Adds,
        ),
        tool::<arguments::RunCommand, results::Ran>(
            "run_command",
            "Run a command",
            "Runs a command line or script with bash in a sandbox, without network and without any file of the \
             host. With the name of a sandbox its files stay.",
            Effect::Destroys,
        ),
    ]
}

fn sandboxes() -> Vec<Tool> {
    vec![
        tool::<arguments::CreateSandbox, results::Sandbox>(
            "create_sandbox",
            "Create a sandbox",
            "Makes a sandbox that keeps files and variables between calls, and answers with its name. It is removed \
             after `ttl_s` seconds (four hours unless told) or by remove_sandbox.",
            Effect::Adds,
        ),
        tool::<arguments::Nothing, results::Sandboxes>(
            "list_sandboxes",
            "List sandboxes",
            "The sandboxes there are, with their state and when they expire.",
            Effect::Reads,
        ),
        tool::<arguments::OneSandbox, results::Done>(
            "remove_sandbox",
            "Remove a sandbox",
            "Ends everything in a sandbox and removes its files for good.",
            Effect::Destroys,
        ),
    ]
}

fn files_and_points() -> Vec<Tool> {
    vec![
        tool::<arguments::ReadFile, results::FileRead>(
            "read_file",
            "Read a file",
            "Reads a file of a sandbox: text, PNG and JPEG as images, anything else as a blob.",
            Effect::Reads,
        ),
        tool::<arguments::WriteFile, results::FileWritten>(
            "write_file",
            "Write a file",
            "Writes a whole file in a sandbox, replacing one that is there.",
            Effect::Destroys,
        ),
        tool::<arguments::ListFiles, results::Listed>(
            "list_files",
            "List files",
            "What is in a directory of a sandbox.",
            Effect::Reads,
        ),
        tool::<arguments::Snapshot, results::Point>(
            "snapshot_sandbox",
            "Take a snapshot",
            "Keeps the files of a sandbox as they are now, as a point that rollback_sandbox comes back to. Cheap, \
             however many files there are: take one before something that may go wrong.",
            Effect::Adds,
        ),
        tool::<arguments::Rollback, results::Done>(
            "rollback_sandbox",
            "Roll back",
            "Brings the files of a sandbox back to a snapshot, exactly, and ends what runs in it. What was changed \
             since then is lost.",
            Effect::Destroys,
        ),
    ]
}

fn judging() -> Vec<Tool> {
    vec![
        tool::<arguments::TestCode, results::Graded>(
            "test_code",
            "Test code",
            "Runs code against test cases and answers with a score, each case's verdict and what to change. \
             Expected values are compared outside of the code's sandbox.",
            Effect::Reads,
        ),
        tool::<arguments::ExplainBlock, results::Explained>(
            "explain_block",
            "Explain what was refused",
            "Says how a run of run_code or run_command (without sandbox) ended, what was refused and why, and what \
             would allow it.",
            Effect::Reads,
        ),
    ]
}

fn tool<I: JsonSchema + 'static, O: JsonSchema + 'static>(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    effect: Effect,
) -> Tool {
    // What is in a sandbox has no way out: nothing that these tools do meets an open world.
    let hints = ToolAnnotations::with_title(title).open_world(false);
    let hints = match effect {
        Effect::Reads => hints.read_only(true),
        Effect::Adds => hints.read_only(false).destructive(false),
        Effect::Destroys => hints.read_only(false).destructive(true),
    };
    let mut tool = Tool::new_with_raw(name, Some(description.into()), serde_json::Map::new())
        .with_title(title)
        .with_input_schema::<I>()
        .with_output_schema::<O>()
        .with_annotations(hints);
    for schema in std::iter::once(&mut tool.input_schema).chain(&mut tool.output_schema) {
        Arc::make_mut(schema).values_mut().for_each(leave_formats_out);
    }
    tool
}

/// The widths of Rust's numbers are no formats that JSON Schema knows, and clients complain of each.
fn leave_formats_out(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("format").is_some_and(Value::is_string) {
                members.remove("format");
            }
            members.values_mut().for_each(leave_formats_out);
        }
        Value::Array(all) => all.iter_mut().for_each(leave_formats_out),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_all_that_a_model_and_a_client_want_to_know() {
        let all = all();
        assert_eq!(all.len(), 12);
        for tool in &all {
            let schema = &tool.input_schema;
            assert_eq!(schema["type"], "object", "{}", tool.name);
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            let properties = schema.get("properties").and_then(|all| all.as_object());
            for (name, property) in properties.into_iter().flatten() {
                assert!(property.get("description").is_some(), "{}.{name}", tool.name);
            }
            assert!(tool.output_schema.as_ref().is_some_and(|one| one["type"] == "object"));
            let text = format!("{schema:?} {:?}", tool.output_schema);
            assert!(!text.contains("uint64") && !text.contains("double"), "{text}");
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!(hints.open_world_hint, Some(false));
            assert!(hints.read_only_hint.is_some() && tool.title.is_some());
            let is_snake = tool.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(is_snake && tool.description.as_ref().is_some_and(|text| text.len() > 30));
        }
    }
}
