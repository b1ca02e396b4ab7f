//! The document as one page, which fetches nothing and runs nothing: contents, operations, problems, schemas.

use std::collections::BTreeMap;
use std::fmt::{Result, Write};

use serde_json::Value;

use super::{document, tag};
use crate::api::{Listed, Table};
use crate::problem::CODES;

const STYLE: &str = include_str!("page.css");
/// A schema's name follows.
const REFERENCE: &str = "#/components/schemas/";

pub(crate) fn page(table: &Table) -> String {
    let mut html = String::new();
    write_page(&mut html, table).ok(); // Writing to memory does not fail.
    html
}

fn write_page(to: &mut String, table: &Table) -> Result {
    let whole = document(table);
    let mut by_tag: BTreeMap<&str, Vec<&Listed>> = BTreeMap::new();
    for listed in &table.listed {
        by_tag.entry(tag(&listed.path)).or_default().push(listed);
    }
    write_head(to, &whole, by_tag.keys())?;
    for (tag, all) in by_tag {
        write!(to, "<h2 id=\"{0}\">{0}</h2>", escaped(tag))?;
        for listed in all {
            write_operation(to, listed, &whole)?;
        }
    }
    write_problems(to)?;
    write!(to, "<h2 id=schemas>Schemas</h2>")?;
    for (name, schema) in fields(&whole["components"]["schemas"]) {
        write_schema(to, name, schema)?;
    }
    write!(to, "</main></html>")
}

fn write_head<'a>(
    to: &mut String,
    whole: &Value,
    tags: impl Iterator<Item = &'a &'a str>,
) -> Result {
    let info = &whole["info"];
    write!(
        to,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport \
         content=\"width=device-width,initial-scale=1\"><title>Belljar API</title><style>{STYLE}</style>\
         <nav><a href=#top>Belljar</a>"
    )?;
    for name in tags.copied().chain(["problems-table", "schemas"]) {
        let shown = if name == "problems-table" { "codes" } else { name };
        write!(to, "<a href=\"#{}\">{}</a>", escaped(name), escaped(shown))?;
    }
    write!(
        to,
        "</nav><main><h1 id=top>Belljar API {}</h1><p>{}</p><p>The same as \
         <a href=/openapi.json>/openapi.json</a>. Over TCP send <code>Authorization: Bearer KEY</code>; the Unix \
         socket needs none.</p><pre>curl -H \"Authorization: Bearer $KEY\" -H Content-Type:application/json \\\n  \
         -d '{{&quot;language&quot;: &quot;python&quot;, &quot;code&quot;: &quot;print(6*7)&quot;}}' \\\n  \
         127.0.0.1:7070/v1/runs</pre>",
        words(&info["version"]),
        prose(&info["description"])
    )
}

fn write_operation(to: &mut String, listed: &Listed, whole: &Value) -> Result {
    let path = listed.path.replace("{*", "{");
    let method = listed.method.as_str();
    let told = &whole["paths"][&path][method.to_ascii_lowercase()];
    // A browser opens what a link leads into, but not what it leads to: so the name stands inside.
    write!(
        to,
        "<details><summary><b>{method}</b> <code>{}</code> <span>{}</span></summary><div id=\"op-{}\">",
        escaped(&path),
        escaped(listed.operation.summary),
        words(&told["operationId"])
    )?;
    if told["x-scope"].is_string() {
        write!(to, "<p>A key needs the scope <code>{}</code>.</p>", words(&told["x-scope"]))?;
    }
    let parameters = told["parameters"].as_array().filter(|all| !all.is_empty());
    if let Some(parameters) = parameters {
        write!(to, "<h4>Parameters</h4><table>")?;
        for one in parameters {
            let description = if one["description"].is_string() { one } else { &one["schema"] };
            let needed = if one["required"] == true { "" } else { ", optional" };
            let (name, place) = (words(&one["name"]), words(&one["in"]));
            let (kind, about) = (kind(&one["schema"]), prose(&description["description"]));
            write!(to, "<tr><td><code>{name}</code><td>{place}{needed}<td>{kind}<td>{about}</tr>")?;
        }
        write!(to, "</table>")?;
    }
    if told["requestBody"].is_object() {
        write!(to, "<h4>Body</h4>")?;
        write_content(to, &told["requestBody"]["content"])?;
    }
    write_answers(to, &told["responses"])?;
    write!(to, "</div></details>")
}

/// What is answered when it went well, and by which statuses one is refused.
fn write_answers(to: &mut String, answers: &Value) -> Result {
    let (well, refused): (Vec<_>, Vec<_>) =
        fields(answers).partition(|(status, _)| status.as_str() < "400");
    for (status, answer) in well {
        write!(to, "<h4>{} {}</h4>", escaped(status), words(&answer["description"]))?;
        write_content(to, &answer["content"])?;
    }
    if !refused.is_empty() {
        write!(to, "<h4>Refusals</h4><p>A <a href=\"#Problem\">Problem</a> with status")?;
        for (status, answer) in refused {
            write!(
                to,
                " <span title=\"{}\">{}</span>",
                words(&answer["description"]),
                escaped(status)
            )?;
        }
        write!(to, ": <a href=#problems-table>codes</a>.</p>")?;
    }
    Ok(())
}

fn write_content(to: &mut String, content: &Value) -> Result {
    write!(to, "<table>")?;
    for (media, one) in fields(content) {
        write!(to, "<tr><td><code>{}</code><td>{}</tr>", escaped(media), kind(&one["schema"]))?;
    }
    write!(to, "</table>")
}

fn write_problems(to: &mut String) -> Result {
    write!(
        to,
        "<h2 id=problems-table>Codes of problems</h2><div class=wide><table>\
         <tr><th>code<th>status<th>later?<th>what it means, what to do</tr>"
    )?;
    for one in &CODES {
        let later = if one.retryable { "yes" } else { "" };
        let (title, hint) = (escaped(one.title), escaped(one.hint));
        write!(
            to,
            "<tr><td><code>{}</code><td>{}<td>{later}<td>{title}: {hint}</tr>",
            one.code, one.status
        )?;
    }
    write!(to, "</table></div>")
}

fn write_schema(to: &mut String, name: &str, schema: &Value) -> Result {
    let name = escaped(name);
    write!(to, "<details><summary><code>{name}</code></summary><div id=\"{name}\">")?;
    if schema["description"].is_string() {
        write!(to, "<p>{}</p>", prose(&schema["description"]))?;
    }
    let needed = |field: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == field))
    };
    if fields(&schema["properties"]).next().is_none() {
        write!(to, "<p>{}</p>", kind(schema))?;
    } else {
        write!(to, "<table>")?;
        for (field, one) in fields(&schema["properties"]) {
            let optional = if needed(field) { "" } else { "optional" };
            let plain =
                |usual: &&Value| usual.is_string() || usual.is_number() || usual.is_boolean();
            let usual = one.get("default").filter(plain);
            let usual = usual.map_or(String::new(), |usual| {
                format!(" Usually <code>{}</code>.", escaped(&usual.to_string()))
            });
            let (field, kind, about) = (escaped(field), kind(one), prose(&one["description"]));
            write!(
                to,
                "<tr><td><code>{field}</code><td>{optional}<td>{kind}<td>{about}{usual}</tr>"
            )?;
        }
        write!(to, "</table>")?;
        // What it may be beside its fields.
        for also in ["oneOf", "anyOf"].iter().filter(|also| schema[**also].is_array()) {
            write!(to, "<p>And {}</p>", any_of(&schema[*also]))?;
        }
    }
    write!(to, "</div></details>")
}

/// What a schema stands for, in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix(REFERENCE)) {
        return format!("<a href=\"#{0}\">{0}</a>", escaped(name));
    }
    for several in ["anyOf", "oneOf"] {
        if schema[several].is_array() {
            return any_of(&schema[several]);
        }
    }
    if let Some(all) = schema["enum"].as_array() {
        let all = all.iter().map(|one| format!("<code>{}</code>", words(one)));
        return all.collect::<Vec<_>>().join(" | ");
    }
    if !schema["const"].is_null() {
        return format!("<code>{}</code>", words(&schema["const"]));
    }
    let typed = |one| typed(&words(one), schema);
    match schema["type"].as_array() {
        Some(types) => types.iter().map(typed).collect::<Vec<_>>().join(" | "),
        None => typed(&schema["type"]),
    }
}

fn any_of(all: &Value) -> String {
    let all = all.as_array().into_iter().flatten().map(kind);
    all.collect::<Vec<_>>().join(" | ")
}

fn typed(name: &str, schema: &Value) -> String {
    match name {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of {}", kind(&schema["additionalProperties"]))
        }
        // A variant that says what it is by its fields.
        "object" if schema["properties"].is_object() => {
            let fields = fields(&schema["properties"]);
            let fields =
                fields.map(|(name, one)| format!("<code>{}</code>: {}", escaped(name), kind(one)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        "" => "anything".to_owned(),
        name => name.to_owned(),
    }
}

fn fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// A text of the document, fit for the page.
fn words(text: &Value) -> String {
    match text.as_str() {
        Some(text) => escaped(text),
        None if text.is_null() => String::new(),
        None => escaped(&text.to_string()),
    }
}

/// A description: its examples, which are Rust, are left out.
fn prose(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    let text: String = text.split("```").step_by(2).collect();
    let mut html = String::new();
    for (index, part) in text.split('`').enumerate() {
        let part = escaped(part);
        html += &if index % 2 == 1 { format!("<code>{part}</code>") } else { part };
    }
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shown() -> String {
        page(&crate::http::api().finish().1)
    }

    #[test]
    fn the_page_runs_and_fetches_nothing() {
        let page = shown();
        for word in ["<script", "http://", "https://", "src=", "@import", "url("] {
            let words = page.matches(word).count();
            // Schemas and descriptions may speak of addresses; elements may not use them.
            assert!(words == 0 || word.starts_with("http"), "{word}");
        }
        assert!(page.contains("/v1/runs") && page.contains("idempotency_mismatch"));
    }

    #[test]
    fn every_link_leads_to_something_that_is_there_once() {
        let page = shown();
        let after = |mark: &str| -> Vec<String> {
            let parts = page.split(mark).skip(1);
            let end = |one: char| matches!(one, '"' | '>' | ' ');
            parts.map(|part| part.split(end).next().unwrap().to_owned()).collect()
        };
        let names: Vec<String> = [after(" id=\""), after(" id=")].concat();
        let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let there: BTreeSet<&String> = names.iter().collect();
        assert_eq!(there.len(), names.len());
        let links = [after("href=\"#"), after("href=#")].concat();
        assert!(links.len() > 200, "{}", links.len());
        for link in &links {
            assert!(there.contains(link), "{link}");
        }
    }

    #[test]
    fn descriptions_are_words_and_names() {
        let told = prose(&Value::from("Of `a<b>` & `c`.\n\n```\nuse x;\n```\nMore."));
        assert_eq!(told, "Of <code>a&lt;b&gt;</code> &amp; <code>c</code>.\n\n\nMore.");
        assert!(!shown().contains("```"));
    }

    #[test]
    fn every_field_of_a_request_is_told_with_its_kind() {
        let page = shown();
        let request = page.split("id=\"RunRequest\"").nth(1).unwrap();
        let request = request.split("</details>").next().unwrap();
        assert!(request.contains("<code>limits</code><td>optional<td>"), "{request}");
        assert!(request.contains("<a href=\"#LimitsRequest\">LimitsRequest</a>"), "{request}");
    }
}
