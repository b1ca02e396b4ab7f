//! The OpenAPI 3.1 document, made from the table of operations, and the page that shows it.

mod page;

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::{Access, Listed, Load, Operation, Table, Takes};
use crate::problem::CODES;
use crate::scope::Scope;
use crate::wire;

pub(crate) use page::page;

/// Where shared schemas are in the document.
const SCHEMAS: &str = "/components/schemas";

/// The whole document.
pub(crate) fn document(table: &Table) -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into());
    let mut generator = settings.into_generator();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for listed in &table.listed {
        let path = listed.path.replace("{*", "{");
        let method = listed.method.as_str().to_ascii_lowercase();
        let operation = operation(listed, &mut generator);
        paths.entry(path).or_default().insert(method, operation);
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Problem".to_owned(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs code that AI agents write where it can do no harm, and tells the truth about it. \
                            A program that fails, is killed or meets a limit is a result, not an error.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:7070" }],
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `belljar key create`, or the token. The header X-API-Key does as well, in its place.",
                },
            },
        },
    })
}

fn operation(listed: &Listed, generator: &mut SchemaGenerator) -> Value {
    let Operation { id, summary, access, once, takes, .. } = &listed.operation;
    let mut parameters = path_parameters(&listed.path);
    parameters.extend(query_parameters(&listed.operation, generator));
    if *once {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": "The same request with the same key is carried out once; later ones get the first one's answer.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$" },
        }));
    }
    let mut operation = json!({
        "operationId": id,
        "summary": summary,
        "tags": [tag(&listed.path)],
        "parameters": parameters,
        "responses": responses(&listed.operation, &listed.path, generator),
    });
    let body = match takes {
        Takes::Nothing => None,
        Takes::Json(schema) => Some((true, wire::JSON, json!(schema(generator)))),
        Takes::JsonOrNothing(schema) => Some((false, wire::JSON, json!(schema(generator)))),
        Takes::Bytes(kind) => Some((false, *kind, json!({ "type": "string", "format": "binary" }))),
    };
    if let Some((required, kind, schema)) = body {
        operation["requestBody"] =
            json!({ "required": required, "content": { kind: { "schema": schema } } });
    }
    match access {
        Access::Open => operation["security"] = json!([]),
        Access::Known => {}
        Access::Scope(scope) => operation["x-scope"] = scope.name().into(),
    }
    operation
}

fn tag(path: &str) -> &str {
    path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next()).unwrap_or("server")
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let whole = name.starts_with('*');
        let schema = if whole {
            json!({ "type": "string", "description": "A path inside, with its slashes as they are." })
        } else {
            json!({ "type": "string", "minLength": 1 })
        };
        json!({ "name": name.trim_start_matches('*'), "in": "path", "required": true, "schema": schema })
    };
    names.map(parameter).collect()
}

/// Each property of the question's schema is a parameter.
fn query_parameters(operation: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let Some(query) = operation.query else { return Vec::new() };
    let schema = json!(query(generator));
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let parameter = |(name, schema): (String, Value)| {
        let is_required = required.contains(&name.as_str());
        json!({ "name": name, "in": "query", "required": is_required, "schema": without_null(schema) })
    };
    properties.into_iter().map(parameter).collect()
}

/// A question has no word for nothing: what may be nothing is left out.
fn without_null(mut schema: Value) -> Value {
    let Some(object) = schema.as_object_mut() else { return schema };
    if let Some(types) = object.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|one| one != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            object.insert("type".to_owned(), one);
        }
    }
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if let Some(any) = object.get_mut("anyOf").and_then(Value::as_array_mut) {
        any.retain(|one| one["type"] != "null");
        if let [one] = &any[..] {
            return one.clone();
        }
    }
    schema
}

fn responses(operation: &Operation, path: &str, generator: &mut SchemaGenerator) -> Value {
    let mut all: BTreeMap<u16, Value> = BTreeMap::new();
    let id = json!({ "X-Request-Id": { "schema": { "type": "string" } } });
    for gives in &operation.gives {
        let response = all.entry(gives.status).or_insert_with(|| {
            let mut headers = id.clone();
            if operation.once {
                headers["Idempotent-Replayed"] = json!({
                    "description": "`true` where this is the answer to an earlier request with the same key.",
                    "schema": { "type": "string", "enum": ["true"] },
                });
            }
            json!({ "description": reason(gives.status), "headers": headers })
        });
        if !gives.kind.is_empty() {
            let schema =
                gives.schema.map_or(json!({ "type": "string" }), |of| json!(of(generator)));
            response["content"][gives.kind] = json!({ "schema": schema });
        }
    }
    for status in refusals(operation, path) {
        let content =
            json!({ wire::PROBLEM: { "schema": { "$ref": format!("#{SCHEMAS}/Problem") } } });
        let mut headers = id.clone();
        if matches!(status, 429 | 503) {
            headers["Retry-After"] = json!({
                "description": "Seconds after which another try is worth it, where one is.",
                "schema": { "type": "integer" },
            });
        }
        let problem =
            json!({ "description": reason(status), "headers": headers, "content": content });
        all.entry(status).or_insert(problem);
    }
    let named: Map<String, Value> =
        all.into_iter().map(|(status, response)| (status.to_string(), response)).collect();
    Value::Object(named)
}

/// The statuses of all problems that an operation can have.
pub(crate) fn refusals(operation: &Operation, path: &str) -> Vec<u16> {
    // The door and the questions of everybody.
    let mut statuses = vec![400, 403, 415, 431];
    if operation.access != Access::Open {
        statuses.extend([400, 401, 415, 429, 500]);
        if path.contains('{') {
            statuses.push(404);
        }
        if matches!(operation.access, Access::Scope(Scope::AuditRead)) {
            statuses.extend([404, 413]);
        }
    }
    if path == crate::door::READY
        || operation.load == Load::Heavy
        || operation.access != Access::Open
    {
        statuses.push(503);
    }
    if !matches!(operation.takes, Takes::Nothing) || operation.once {
        statuses.extend([408, 413]);
    }
    if operation.once {
        statuses.extend([409, 422]);
    }
    statuses.extend(operation.refuses);
    statuses.sort_unstable();
    statuses.dedup();
    statuses
}

fn reason(status: u16) -> &'static str {
    let status = hyper::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or("An answer")
}

/// RFC 9457, with what is ours.
fn problem_schema() -> Value {
    let codes: Vec<&str> = CODES.iter().map(|one| one.code).collect();
    json!({
        "type": "object",
        "description": "RFC 9457. Decide by `code`; the words are for people.",
        "required": ["status", "title", "detail", "code", "kind", "retryable", "hint"],
        "properties": {
            "type": { "type": "string", "description": "A page about the code, at this server." },
            "status": { "type": "integer" },
            "title": { "type": "string" },
            "detail": { "type": "string" },
            "instance": { "type": "string" },
            "code": { "type": "string", "enum": codes },
            "kind": { "type": "string", "description": "The same as code." },
            "retryable": { "type": "boolean", "description": "Whether the same request may succeed later." },
            "hint": { "type": "string" },
            "request_id": { "type": "string" },
            "field": { "type": "string", "description": "The field of the request that is wrong." },
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["pointer", "message"],
                    "properties": { "pointer": { "type": "string" }, "message": { "type": "string" } },
                },
            },
            "rule": { "type": "string", "description": "The operator's rule that was met." },
            "retry_after_s": { "type": "integer" },
            "step": { "type": "string" },
            "errno": { "type": "string" },
            "screening": { "type": "object" },
            "executions": {
                "type": "array",
                "items": { "type": "string" },
                "description": "The runs that a request began whose answer is unknown.",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_somewhere_and_every_id_is_used_once() {
        let (_, table) = crate::http::api().finish();
        let whole = document(&table);
        let text = whole.to_string();
        let mut found = 0;
        for part in text.split("\"$ref\":\"").skip(1) {
            let target = part.split('"').next().unwrap();
            let pointer = target.strip_prefix('#').unwrap();
            assert!(whole.pointer(pointer).is_some(), "{target}");
            found += 1;
        }
        assert!(found > 50, "{found}");
        let mut ids: Vec<&str> = table.listed.iter().map(|one| one.operation.id).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
