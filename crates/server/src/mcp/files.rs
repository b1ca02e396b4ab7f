//! Files of a sandbox, for a model.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use rmcp::model::{ContentBlock, ResourceContents};
use serde_json::Value;

use super::arguments::{Encoding, ListFiles, ReadFile, WriteFile};
use super::calls::{Answered, Given, answer, at};
use super::reach::{Reach, inside};
use super::results::{Entry, FileRead, FileWritten, Listed, text};
use super::told::Refused;
use crate::wire;

/// Read at once unless told, and at most.
const USUAL_BYTES: u64 = 100_000;
const MOST_BYTES: u64 = 1_000_000;
/// A picture is of no use by halves.
const MOST_PICTURE_BYTES: u64 = 5 << 20;
/// Entries of a directory that are told.
const MOST_ENTRIES: usize = 1000;

pub(super) async fn read(reach: &Reach, given: Given<ReadFile>) -> Answered {
    let ReadFile { sandbox, path, offset, limit } = given?;
    let limit = limit.unwrap_or(USUAL_BYTES);
    if limit == 0 || limit > MOST_BYTES {
        return Err(Refused::mistake(format!("limit is {limit}; 1 to {MOST_BYTES} bytes")));
    }
    let place = at(&sandbox, &format!("/files/{}", inside(&path)));
    let info: Value = reach.get(&format!("{place}?stat=true")).await?;
    let bytes = info["bytes"].as_u64().unwrap_or_default();
    let found = reach.bytes(&format!("{place}?offset={offset}&length={limit}")).await?;
    let read_to = offset.saturating_add(u64::try_from(found.len()).unwrap_or(u64::MAX));
    let truncated = read_to < bytes;
    let mut told = FileRead { path, bytes, offset, truncated, text: None };
    if let Some(kind) = picture(&found).filter(|_| offset == 0 && bytes <= MOST_PICTURE_BYTES) {
        let whole = if truncated { reach.bytes(&place).await? } else { found };
        told.truncated = false;
        let mut result = answer(format!("{} is a picture of {bytes} bytes", told.path), &told)?;
        result.content.push(ContentBlock::image(STANDARD.encode(&whole), kind));
        return Ok(result);
    }
    if let Some(text) = as_text(&found, truncated) {
        let mut words = text.to_owned();
        if truncated {
            words = format!(
                "{words}\n[{bytes} bytes in all; read on from offset {}]",
                offset.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX))
            );
        }
        told.text = Some(text.to_owned());
        return answer(words, &told);
    }
    let mut result = answer(format!("{} is no text: {bytes} bytes", told.path), &told)?;
    let uri = format!("sandbox://{sandbox}/files/{}", inside(&told.path));
    result
        .content
        .push(ContentBlock::resource(ResourceContents::blob(STANDARD.encode(&found), uri)));
    Ok(result)
}

/// What kind of picture these are the first bytes of.
fn picture(bytes: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 2] =
        [(b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg")];
    kinds.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| kind)
}

/// Text, but for a character that was cut at the end.
pub(super) fn as_text(bytes: &[u8], cut: bool) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if cut && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

pub(super) async fn write(reach: &Reach, given: Given<WriteFile>) -> Answered {
    let WriteFile { sandbox, path, content, encoding, append } = given?;
    let contents =
        match encoding {
            Some(Encoding::Base64) => STANDARD
                .decode(content.split_whitespace().collect::<String>())
                .map_err(|error| Refused::mistake(format!("content is no base64: {error}")))?,
            Some(Encoding::Text) | None => content.into_bytes(),
        };
    let bytes = u64::try_from(contents.len()).unwrap_or(u64::MAX);
    let query = if append { "?append=true" } else { "" };
    let place = at(&sandbox, &format!("/files/{}{query}", inside(&path)));
    reach.send(Method::PUT, &place, wire::JSON, Body::from(contents)).await?;
    answer(format!("{bytes} bytes written to {path}"), &FileWritten { path, bytes })
}

pub(super) async fn list(reach: &Reach, given: Given<ListFiles>) -> Answered {
    let ListFiles { sandbox, path } = given?;
    let path = path.unwrap_or_else(|| "/workspace".to_owned());
    let place = at(&sandbox, &format!("/files/{}?list=true", inside(&path)));
    let (all, truncated) = reach.list(&place, "entries", MOST_ENTRIES).await?;
    let entry = |one: &Value| Entry {
        name: text(one, "name"),
        kind: text(one, "kind"),
        bytes: one["bytes"].as_u64().unwrap_or_default(),
    };
    let entries: Vec<Entry> = all.iter().map(entry).collect();
    let line = |one: &Entry| match one.kind.as_str() {
        "directory" => format!("{}/", one.name),
        _ => format!("{} ({} bytes)", one.name, one.bytes),
    };
    let mut words = entries.iter().map(line).collect::<Vec<_>>().join("\n");
    if entries.is_empty() {
        words = format!("{path} is empty");
    }
    if truncated {
        words.push_str("\n[and more]");
    }
    answer(words, &Listed { entries, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_was_cut_is_left_for_the_next_read() {
        let euro = "a€".as_bytes();
        assert_eq!(as_text(&euro[..2], true), Some("a"));
        assert_eq!(as_text(&euro[..2], false), None);
        assert_eq!(as_text(b"a\xff", true), None);
        assert_eq!(picture(b"\x89PNG\r\n\x1a\n..."), Some("image/png"));
    }
}
