//! Resources and prompts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::ErrorData;
use rmcp::model::{
    GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role,
};

use super::calls::at;
use super::files::as_text;
use super::reach::{Reach, inside};

const GUIDE: &str = "belljar://guide";
const GUIDE_TEXT: &str = include_str!("guide.md");
/// Files of sandboxes by their address.
const FILES: &str = "sandbox://";

pub(super) fn resources() -> Vec<Resource> {
    vec![
        Resource::new(GUIDE, "guide")
            .with_title("How to use the sandboxes")
            .with_description("Limits, sandboxes that stay, files, and how results read.")
            .with_mime_type("text/markdown"),
    ]
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("sandbox://{sandbox}/files/{+path}", "sandbox file")
            .with_title("A file of a sandbox")
            .with_description("Its contents; the path is absolute, without its first slash."),
    ]
}

pub(super) async fn read(reach: &Reach, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    if uri == GUIDE {
        let text = ResourceContents::text(GUIDE_TEXT, GUIDE).with_mime_type("text/markdown");
        return Ok(ReadResourceResult::new(vec![text]));
    }
    let absent = |words: String| ErrorData::resource_not_found(words, None);
    let place = uri.strip_prefix(FILES).and_then(|rest| rest.split_once("/files/"));
    let Some((sandbox, path)) = place.filter(|(name, path)| !name.is_empty() && !path.is_empty())
    else {
        let words = format!("{uri} is no resource: {GUIDE}, or sandbox://SANDBOX/files/PATH");
        return Err(absent(words));
    };
    let path = percent_decoded(path);
    let place = at(sandbox, &format!("/files/{}", inside(&format!("/{path}"))));
    let bytes = reach.bytes(&place).await.map_err(|refused| absent(refused.text()))?;
    let contents = match as_text(&bytes, false) {
        Some(text) => ResourceContents::text(text, uri),
        None => ResourceContents::blob(STANDARD.encode(&bytes), uri),
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// What an address says, as text; escapes that are none stay as they are.
fn percent_decoded(text: &str) -> String {
    // A plus is a plus in a path.
    let plain = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    let pair = form_urlencoded::parse(plain.as_bytes()).next();
    pair.map(|(name, _)| name.into_owned()).unwrap_or_default()
}

pub(super) fn prompts() -> Vec<Prompt> {
    let argument = |name: &str, words: &str, required| {
        PromptArgument::new(name).with_description(words).with_required(required)
    };
    vec![
        Prompt::new(
            "analyse_data",
            Some("Look into data with code, in a sandbox that keeps its variables"),
            Some(vec![
                argument("data", "The data itself, or where it is in a sandbox", true),
                argument("question", "What to find out", true),
            ]),
        )
        .with_title("Analyse data"),
        Prompt::new(
            "fix_code",
            Some("Make failing code pass, trying each change in a sandbox"),
            Some(vec![
                argument("code", "The code", true),
                argument("problem", "What is wrong with it, or what it should do", false),
            ]),
        )
        .with_title("Fix code"),
    ]
}

pub(super) fn prompt(request: &GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    let given = |name: &str| {
        let arguments = request.arguments.as_ref();
        arguments.and_then(|all| all.get(name)).and_then(|one| one.as_str()).unwrap_or_default()
    };
    let needed = |name: &str| match given(name) {
        "" => Err(ErrorData::invalid_params(format!("{name} is missing"), None)),
        text => Ok(text),
    };
    let text = match request.name.as_str() {
        "analyse_data" => format!(
            "Answer this question about the data below: {}\n\nCall create_sandbox once, put the data into a file with \
             write_file, and work step by step with run_code and its `sandbox`, so that variables stay. Look at \
             the data before you conclude anything. Show figures where they help.\n\n<data>\n{}\n</data>",
            needed("question")?,
            needed("data")?
        ),
        "fix_code" => format!(
            "Make this code work. {}\n\nRun it with run_code first and read the error. Then change as little as \
             possible, and run it again until it works; use test_code if there are cases to hold.\n\n<code>\n{}\n</code>",
            given("problem"),
            needed("code")?
        ),
        name => {
            let words = format!("no prompt is called {name}; there are: analyse_data, fix_code");
            return Err(ErrorData::invalid_params(words, None));
        }
    };
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_meant() {
        assert_eq!(percent_decoded("a%20b/c+d&e=f%C3%BC"), "a b/c+d&e=fü");
    }
}
