//! `belljar key`: who may speak to the server over TCP.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar::{Error, SpecError};
use belljar_server::{Key, NewKey, Scope, places};
use serde_json::json;

use crate::args::key::{self as args, Create, Listed, Place, Revoke};
use crate::render;

pub(crate) fn key(command: args::Key) -> u8 {
    let done = match command {
        args::Key::Create(args) => create(args),
        args::Key::List(args) => list(&args),
        args::Key::Revoke(args) => revoke(&args),
    };
    done.unwrap_or_else(|error| render::trouble(&error.to_string(), render::error_code(&error)))
}

fn state(place: &Place) -> Result<PathBuf, Error> {
    let found = place.state.clone().or_else(places::state);
    let reason = "has no default without HOME: give --state DIR";
    found.ok_or_else(|| SpecError::new("state", reason).into())
}

fn create(args: Create) -> Result<u8, Error> {
    let scopes = if args.scope.is_empty() { Scope::USUAL.to_vec() } else { args.scope };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let expires_s = args.expires.map(|time| now.saturating_add(time));
    let new = NewKey { name: args.name, tenant: args.tenant, scopes, expires_s };
    let (key, text) = Key::create(&state(&args.place)?, new)?;
    if args.place.json {
        let mut shown = shown(&key);
        shown["key"] = text.into();
        return Ok(render::json(&shown));
    }
    // The key alone on standard output, so that it can be put where it belongs.
    let code = render::line(&text);
    let advice = format!("key {} was made; it is not shown again", key.name);
    render::trouble(&advice, 0);
    Ok(code)
}

fn list(args: &Listed) -> Result<u8, Error> {
    let keys = Key::list(&state(&args.place)?)?;
    if args.place.json {
        return Ok(render::json(&keys.iter().map(shown).collect::<Vec<_>>()));
    }
    for key in &keys {
        let scopes = key.scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let expires = match key.expires_s {
            None => "never expires".to_owned(),
            Some(_) if key.has_expired() => "expired".to_owned(),
            Some(at) => format!("expires {}", time(at)),
        };
        render::line(&format!(
            "{}  {:<20} {:<20} {scopes}  {expires}",
            key.id, key.name, key.tenant
        ));
    }
    Ok(0)
}

fn revoke(args: &Revoke) -> Result<u8, Error> {
    let key = Key::revoke(&state(&args.place)?, &args.which)?;
    if args.place.json {
        return Ok(render::json(&shown(&key)));
    }
    Ok(render::trouble(&format!("key {} ({}) is revoked", key.name, key.id), 0))
}

/// A key without its digest.
fn shown(key: &Key) -> serde_json::Value {
    json!({
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": key.scopes,
        "created_at": time(key.created_s),
        "expires_at": key.expires_s.map(time),
        "expired": key.has_expired(),
    })
}

fn time(seconds: u64) -> String {
    belljar::audit::show_time(seconds.saturating_mul(1_000_000))
}
