//! Secrets in a request: by name. Where the values come from is the host's affair.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use belljar_jail::egress::{Host, Rule};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::SpecError;

/// Secrets of one run or sandbox.
pub(crate) const MAX_SECRETS: usize = 32;
/// Hosts that one is bound to.
const MAX_HOSTS: usize = 32;
const MAX_NAME_BYTES: usize = 64;

/// A secret that a program is to have. On the wire an object, or as it is typed:
/// `NAME[=MODE:VARIABLE][@HOST,…[+query][+body]]`, where `!HOST` is exempt.
///
/// ```
/// use belljar::{SecretMode, SecretRequest};
///
/// let typed: SecretRequest = "github=env:GITHUB_TOKEN".parse()?;
/// assert_eq!((typed.variable(), typed.mode()), ("GITHUB_TOKEN".to_owned(), SecretMode::Env));
/// # Ok::<(), belljar::SpecError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SecretRequest {
    /// By what the host knows it: a table of `secrets.toml`, or a name of `belljar secret set`.
    pub name: String,
    /// `env` unless hosts are named, `placeholder` otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<SecretMode>,
    /// The variable that holds it inside; its name in capitals when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    /// Where a placeholder is replaced by the value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Hosts whose TLS is passed on as it is, though it is one of `hosts`: their clients pin certificates, or show their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// Where in a request besides its headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<SecretPlace>,
}

/// What the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretMode {
    /// The value, in a variable; it is hidden in all that the program says.
    Env,
    /// A random token, which is replaced by the value on its way to the hosts of the secret.
    Placeholder,
    /// A decoy that nobody needs: one that leaves is an event.
    Canary,
}

/// A part of a request in which a placeholder is replaced only when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    Query,
    Body,
}

impl SecretRequest {
    pub fn mode(&self) -> SecretMode {
        let plain = if self.hosts.is_empty() { SecretMode::Env } else { SecretMode::Placeholder };
        self.mode.unwrap_or(plain)
    }

    /// The variable inside.
    pub fn variable(&self) -> String {
        let capital = |letter: char| match letter {
            '-' | '.' => '_',
            other => other.to_ascii_uppercase(),
        };
        self.variable.clone().unwrap_or_else(|| self.name.chars().map(capital).collect())
    }

    fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        let name = &self.name;
        let variable = self.variable();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if variable.is_empty()
            || variable.starts_with(|first: char| first.is_ascii_digit())
            || !variable.bytes().all(plain)
        {
            return Err(format!(
                "has {name}, whose variable {variable:?} is none: use A-Z, 0-9 and _"
            ));
        }
        if belljar_jail::NEVER_PASSED.contains(&variable.as_str()) {
            return Err(format!(
                "has {name}, whose variable {variable} changes what is loaded before the program: never passed"
            ));
        }
        let placeholder = self.mode() == SecretMode::Placeholder;
        if placeholder && self.hosts.is_empty() {
            return Err(format!(
                "has {name} as a placeholder without hosts: say where it is replaced, as {name}@api.example.com"
            ));
        }
        let is_bound =
            !self.hosts.is_empty() || !self.exempt.is_empty() || !self.replace.is_empty();
        if is_bound && !placeholder {
            return Err(format!(
                "has {name} with hosts, which only a placeholder has: leave them out, or the mode"
            ));
        }
        if self.hosts.len() + self.exempt.len() > MAX_HOSTS {
            return Err(format!("has {name} with more than {MAX_HOSTS} hosts"));
        }
        match self.hosts.iter().chain(&self.exempt).find(|host| !is_host(host)) {
            Some(host) => Err(format!(
                "has {name}, whose host {host:?} is no host name: as api.example.com or *.example.com"
            )),
            None => Ok(()),
        }
    }
}

/// Labels of letters, digits and hyphens; a wildcard stands for the first of them.
fn is_host(host: &str) -> bool {
    let bare = host.strip_prefix("*.").unwrap_or(host);
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('-')
    };
    bare.len() <= 253 && bare.split('.').all(label)
}

/// What a secret may be called.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first && name.len() <= MAX_NAME_BYTES && name.bytes().all(plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_BYTES).collect();
    Err(format!(
        "has {shown:?}: a name is 1 to {MAX_NAME_BYTES} letters, digits, _, - and ., a letter or _ first"
    ))
}

/// All of them, and against the other variables.
pub(crate) fn check(
    requests: &[SecretRequest],
    taken: impl Fn(&str) -> bool,
) -> Result<(), SpecError> {
    let wrong = |reason: String| SpecError::new("secrets", reason);
    if requests.len() > MAX_SECRETS {
        return Err(wrong(format!(
            "has {}; no more than {MAX_SECRETS} may be given",
            requests.len()
        )));
    }
    let mut seen = BTreeSet::new();
    for request in requests {
        request.check().map_err(wrong)?;
        let variable = request.variable();
        if taken(&variable) || !seen.insert(variable.clone()) {
            let reason = format!("has {}, whose variable {variable} is given twice", request.name);
            return Err(wrong(reason));
        }
    }
    Ok(())
}

/// The hosts of a secret as it is typed, and where else than in headers it is put in.
fn places(bound: &str) -> Result<(Option<&str>, Vec<SecretPlace>), String> {
    let mut parts = bound.split('+');
    let hosts = parts.next();
    let place = |part: &str| match part {
        "query" => Ok(SecretPlace::Query),
        "body" => Ok(SecretPlace::Body),
        other => Err(format!("has +{other} behind its hosts, where only +query and +body may be")),
    };
    Ok((hosts, parts.map(place).collect::<Result<_, _>>()?))
}

/// A placeholder is of use only where its hosts may be reached: what may be is said in one place, which is not this.
pub(crate) fn check_reach(requests: &[SecretRequest], rules: &[Rule]) -> Result<(), SpecError> {
    for request in requests.iter().filter(|one| one.mode() == SecretMode::Placeholder) {
        let reached = |host: &&String| rules.iter().any(|rule| reaches(rule, host));
        if let Some(host) = request.hosts.iter().find(|host| !reached(host)) {
            let name = &request.name;
            let reason =
                format!("has {name} for {host}, which may not be reached: add --egress {host}");
            return Err(SpecError::new("secrets", reason));
        }
    }
    Ok(())
}

/// Whether a rule lets something of it be reached.
fn reaches(rule: &Rule, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let bare = host.strip_prefix("*.");
    let below = |name: &str, above: &str| {
        name.strip_suffix(above).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    };
    rule.hosts.iter().any(|known| match (known, bare) {
        (Host::Exact(known), None) => *known == host,
        (Host::Exact(known), Some(above)) => below(known, above),
        (Host::Below(above), None) => below(&host, above),
        (Host::Below(known), Some(above)) => {
            known == above || below(known, above) || below(above, known)
        }
        (Host::Address(_), _) => false,
    })
}

impl FromStr for SecretRequest {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = |reason: String| SpecError::new("secrets", reason);
        let (rest, bound) =
            text.split_once('@').map_or((text, None), |(rest, bound)| (rest, Some(bound)));
        let (bound, replace) = match bound {
            Some(bound) => places(bound).map_err(wrong)?,
            None => (None, Vec::new()),
        };
        let all = bound.into_iter().flat_map(|bound| bound.split(','));
        let (exempt, hosts): (Vec<_>, Vec<_>) = all.partition(|host| host.starts_with('!'));
        let hosts = hosts.into_iter().map(ToOwned::to_owned).collect();
        let exempt = exempt.into_iter().map(|host| host[1..].to_owned()).collect();
        let (name, variable) = match rest.split_once('=') {
            Some((name, word)) => (name, Some(word)),
            None => (rest, None),
        };
        let (mode, variable) = match variable {
            None => (None, None),
            Some(word) => {
                let (kind, variable) = word.split_once(':').unwrap_or((word, ""));
                let mode = match kind {
                    "env" => None,
                    "placeholder" => Some(SecretMode::Placeholder),
                    "canary" => Some(SecretMode::Canary),
                    // The word itself is not told: it may well be the value.
                    _ => {
                        return Err(wrong(format!(
                            "has {name} with something behind = that is not env:VARIABLE, placeholder:VARIABLE \
                             or canary:VARIABLE: values are never given here, see belljar secret set"
                        )));
                    }
                };
                (mode, (!variable.is_empty()).then(|| variable.to_owned()))
            }
        };
        let name = name.to_owned();
        let request = Self { name, mode, variable, hosts, exempt, replace };
        request.check().map_err(wrong)?;
        Ok(request)
    }
}

/// The object, field by field.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SecretFields")]
struct Fields {
    name: String,
    #[serde(default)]
    mode: Option<SecretMode>,
    #[serde(default)]
    variable: Option<String>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    exempt: Vec<String>,
    #[serde(default)]
    replace: Vec<SecretPlace>,
}

impl JsonSchema for SecretRequest {
    fn schema_name() -> Cow<'static, str> {
        "SecretRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, generator.subschema_for::<Fields>()] })
    }
}

impl<'de> Deserialize<'de> for SecretRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = SecretRequest;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a secret, as NAME[=env:VARIABLE][@HOST,…] or as an object with name")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<SecretRequest, E> {
                text.parse().map_err(|error: SpecError| E::custom(error.reason))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<SecretRequest, A::Error> {
                let fields = serde::de::value::MapAccessDeserializer::new(map);
                let fields = Fields::deserialize(fields)?;
                let Fields { name, mode, variable, hosts, exempt, replace } = fields;
                Ok(SecretRequest { name, mode, variable, hosts, exempt, replace })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_as_they_are_typed() {
        let read = |text: &str| text.parse::<SecretRequest>().unwrap();
        let plain = read("api-key");
        assert_eq!((plain.variable().as_str(), plain.mode()), ("API_KEY", SecretMode::Env));
        let bound = read("key=env:TOKEN@api.example.com,*.example.org");
        assert_eq!((bound.variable().as_str(), bound.mode()), ("TOKEN", SecretMode::Placeholder));
        assert_eq!(bound.hosts, ["api.example.com", "*.example.org"]);
        let pinned = read("key@*.example.org,!pinned.example.org");
        assert_eq!(pinned.hosts, ["*.example.org"]);
        assert_eq!(pinned.exempt, ["pinned.example.org"]);
        let everywhere = read("key@a.example+query+body");
        assert_eq!(everywhere.hosts, ["a.example"]);
        assert_eq!(everywhere.replace, [SecretPlace::Query, SecretPlace::Body]);
        assert_eq!(read("bait=canary:AWS_SECRET").mode(), SecretMode::Canary);
        let json = r#"["k", {"name": "k", "variable": "V", "mode": "env"}]"#;
        let both: Vec<SecretRequest> = serde_json::from_str(json).unwrap();
        assert_eq!(both[1].variable(), "V");
        let again: SecretRequest =
            serde_json::from_str(&serde_json::to_string(&bound).unwrap()).unwrap();
        assert_eq!(again, bound);
    }

    #[test]
    fn hosts_must_be_in_reach() {
        let rule = |hosts: &[Host]| Rule { hosts: hosts.to_vec(), ..Rule::default() };
        let (a, below) = (Host::Exact("a.example".into()), Host::Below("b.example".into()));
        let rules = [rule(&[a]), rule(&[below])];
        for (host, wanted) in [
            ("a.example", true),
            ("A.example", true),
            ("x.b.example", true),
            ("b.example", false),
            ("*.b.example", true),
            ("*.x.b.example", true),
            ("*.example", true),
            ("*.c.example", false),
            ("c.example", false),
        ] {
            let request: SecretRequest = format!("k@{host}").parse().unwrap();
            let checked = check_reach(&[request], &rules);
            assert_eq!(checked.is_ok(), wanted, "{host}");
            let words = format!("--egress {host}");
            assert!(checked.is_ok() || checked.unwrap_err().reason.contains(&words));
        }
        assert!(check_reach(&["k".parse().unwrap()], &[]).is_ok(), "only placeholders go out");
    }

    #[test]
    fn mistakes_are_told_and_a_value_in_the_wrong_place_is_not_repeated() {
        for (text, words) in [
            ("", "a name is"),
            ("1a", "a name is"),
            ("a b", "a name is"),
            ("k=env:A-B", "is none"),
            ("k=env:LD_PRELOAD", "never passed"),
            ("k=placeholder:V", "without hosts"),
            ("k@", "is no host name"),
            ("k@a..b", "is no host name"),
            ("k@a.example,!", "is no host name"),
            ("k@a.example+cookie", "only +query and +body"),
            ("k@!a.example", "only a placeholder"),
            ("k=canary:V@a.example", "only a placeholder"),
            ("k=s3cr3t-value", "values are never given here"),
        ] {
            let error = text.parse::<SecretRequest>().unwrap_err();
            assert!(error.reason.contains(words), "{text}: {error}");
            assert!(error.field == "secrets" && !error.reason.contains("s3cr3t"), "{error}");
        }
        let request = |text: &str| text.parse::<SecretRequest>().unwrap();
        let twice = check(&[request("a=env:X"), request("b=env:X")], |_| false).unwrap_err();
        assert!(twice.reason.contains("given twice"), "{twice}");
        assert!(check(&[request("a")], |name| name == "A").is_err());
        let many: Vec<_> = (0..=MAX_SECRETS).map(|n| request(&format!("k{n}"))).collect();
        assert!(check(&many, |_| false).unwrap_err().reason.contains("no more than 32"));
        for wrong in [r#"{"name": "a", "value": "x"}"#, "1", r#""a b""#] {
            assert!(serde_json::from_str::<SecretRequest>(wrong).is_err(), "{wrong}");
        }
    }
}
