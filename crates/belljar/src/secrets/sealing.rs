//! Secrets that never enter a sandbox: what stands for them inside, what the egress process is told, and whom programs
//! inside believe. Rules that look into TLS need the last, too.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_jail::egress::Rule;
use belljar_jail::wire;
use belljar_swap::{Authority, Binding, Sealed, VARIABLES, bundle, java_store, placeholder};

use super::{Given, Secret};
use crate::model::error::{Error, SpecError};
use crate::model::secret::{SecretMode, SecretPlace, SecretRequest};
use crate::model::spec::{Contents, PlacedFile, Source};

/// Where files of certificates are inside: memory that every sandbox has, and that is gone with it.
pub(crate) const TRUST: &str = "/dev/shm/belljar";
const BUNDLE: &str = "/dev/shm/belljar/ca.pem";
const JAVA: &str = "/dev/shm/belljar/cacerts";
/// Where hosts keep the certificates of all authorities that they believe, in one file.
const HOST_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// An operator's own file of certificates.
const MAX_OWN_BYTES: u64 = 1 << 20;

/// What one sandbox has in place of secrets, and its egress process of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// Variables of its programs, and the token in each.
    pub(crate) tokens: BTreeMap<String, String>,
    /// Certificates that its programs believe.
    pub(crate) files: Vec<PlacedFile>,
    pub(crate) sealed: Sealed,
}

impl Sealing {
    /// `None` where nothing is to be replaced, watched for or looked into. Tokens that are `known` stay: they may stand in
    /// files of the sandbox.
    pub(crate) fn new(
        rules: &[Rule],
        requests: &[SecretRequest],
        given: &[Given],
        decoys: Vec<String>,
        known: &BTreeMap<String, String>,
        ca_file: Option<&Path>,
    ) -> Result<Option<Self>, SpecError> {
        let wrong = |reason: String| SpecError::new("secrets", reason);
        let mut tokens = BTreeMap::new();
        for one in given.iter().filter(|one| one.mode == SecretMode::Placeholder) {
            let token = match known.get(&one.variable) {
                Some(token) => token.clone(),
                None => placeholder().map_err(|why| wrong(format!("cannot be made up: {why}")))?,
            };
            tokens.insert(one.variable.clone(), token);
        }
        let ends_tls = !tokens.is_empty() || rules.iter().any(|rule| rule.inspect);
        if !ends_tls && decoys.is_empty() {
            return Ok(None);
        }
        let mut sealed = Sealed { decoys, ..Sealed::default() };
        let mut files = Vec::new();
        if ends_tls {
            let authority = Authority::new();
            let authority = authority.map_err(|why| wrong(format!("need an authority: {why}")))?;
            sealed.roots = roots(ca_file)?;
            let all = bundle(&sealed.roots, authority.pem());
            files = vec![file(JAVA, java_store(&all)), file(BUNDLE, all.into_bytes())];
            sealed.authority = Some(authority.pair());
            sealed.bindings = bindings(requests, given, &tokens);
        }
        // Whoever reads it reads no more than this, and a way out that never opens would not say why.
        let length = serde_json::to_vec(&sealed).map_or(usize::MAX, |json| json.len());
        if length > wire::MAX_PLAN_BYTES {
            let most = wire::MAX_PLAN_BYTES;
            return Err(wrong(format!(
                "with their older values and the host's authorities are {length} bytes, and {most} may be: bind fewer, \
                 or shorter ones"
            )));
        }
        Ok(Some(Self { tokens, files, sealed }))
    }

    /// Whether TLS can be ended for it: its programs believe who speaks then.
    pub(crate) fn ends_tls(&self) -> bool {
        self.sealed.authority.is_some()
    }

    /// Variables by which programs find the certificates. What a request sets itself goes before.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let java = format!("-Djavax.net.ssl.trustStore={JAVA}");
        let all = VARIABLES.into_iter().map(|name| (name.to_owned(), BUNDLE.to_owned()));
        let all = all.chain([("JAVA_TOOL_OPTIONS".to_owned(), java)]);
        all.filter(|_| self.ends_tls())
    }

    /// In the form in which it travels.
    pub(crate) fn memory(&self) -> Result<OwnedFd, Error> {
        memory(&self.sealed)
    }
}

fn memory(sealed: &Sealed) -> Result<OwnedFd, Error> {
    let json = serde_json::to_vec(sealed).map_err(std::io::Error::from);
    json.and_then(|json| wire::sealed_memory("secrets", &json))
        .map_err(Error::backend("hold its secrets"))
}

/// What is told when nothing but values has changed.
pub(crate) fn renewal(
    requests: &[SecretRequest],
    given: &[Given],
    tokens: &BTreeMap<String, String>,
) -> Result<OwnedFd, Error> {
    memory(&Sealed { bindings: bindings(requests, given, tokens), ..Sealed::default() })
}

fn bindings(
    requests: &[SecretRequest],
    given: &[Given],
    tokens: &BTreeMap<String, String>,
) -> Vec<Binding> {
    let bind = |(request, given): (&SecretRequest, &Given)| {
        Some(Binding {
            name: request.name.clone(),
            placeholder: tokens.get(&given.variable)?.clone(),
            value: given.value.reveal().to_owned(),
            older: given.older.iter().map(Secret::reveal).map(ToOwned::to_owned).collect(),
            hosts: request.hosts.clone(),
            exempt: request.exempt.clone(),
            headers: given.headers.clone(),
            in_query: request.replace.contains(&SecretPlace::Query),
            in_body: request.replace.contains(&SecretPlace::Body),
        })
    };
    let pairs = requests.iter().zip(given);
    pairs.filter(|(_, given)| given.mode == SecretMode::Placeholder).filter_map(bind).collect()
}

fn file(path: &str, contents: Vec<u8>) -> PlacedFile {
    PlacedFile { path: PathBuf::from(path), source: Source::Given(Contents(contents)) }
}

/// The authorities that this host believes, and those of the operator's own file.
fn roots(ca_file: Option<&Path>) -> Result<String, SpecError> {
    let read = |path: &&str| std::fs::read_to_string(path).ok();
    let host = HOST_BUNDLES.iter().find_map(read).unwrap_or_default();
    let own = ca_file.map(read_own).transpose()?.unwrap_or_default();
    let all = bundle(&host, &own);
    if all.contains(CERTIFICATE) {
        return Ok(all);
    }
    let reason = "with hosts, and rules with inspect, need authorities to verify hosts by, and none is known here: \
                  install ca-certificates, or name a ca_file in [network] of belljar.toml";
    Err(SpecError::new("secrets", reason))
}

fn read_own(path: &Path) -> Result<String, SpecError> {
    let wrong = |why: String| {
        SpecError::new("network.ca_file", format!("is {}, which {why}", path.display()))
    };
    let length = path.metadata().map_err(|error| wrong(format!("cannot be read: {error}")))?.len();
    if length > MAX_OWN_BYTES {
        return Err(wrong(format!("holds more than {MAX_OWN_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if text.contains(CERTIFICATE) {
        Ok(text)
    } else {
        Err(wrong("holds no certificate".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(variable: &str, mode: SecretMode, value: &str) -> Given {
        let value = Secret::for_program(value.into()).unwrap();
        Given { variable: variable.to_owned(), mode, value, older: Vec::new(), headers: Vec::new() }
    }

    #[test]
    fn tokens_stand_for_placeholders_alone_and_stay_where_they_are_known() {
        let requests: Vec<SecretRequest> =
            vec!["a@a.example".parse().unwrap(), "b".parse().unwrap()];
        let values = [
            given("A", SecretMode::Placeholder, "value-of-a"),
            given("B", SecretMode::Env, "value-of-b"),
        ];
        let none = BTreeMap::new();
        let seal = |known: &_| Sealing::new(&[], &requests, &values, Vec::new(), known, None);
        let sealing = seal(&none).unwrap().unwrap();
        assert_eq!(sealing.tokens.keys().collect::<Vec<_>>(), ["A"]);
        assert_eq!(sealing.sealed.bindings.len(), 1);
        assert_eq!(sealing.sealed.bindings[0].value, "value-of-a");
        assert_ne!(seal(&none).unwrap().unwrap().tokens, sealing.tokens, "fresh each time");
        let again = seal(&sealing.tokens).unwrap().unwrap();
        assert_eq!(again.tokens, sealing.tokens);
        assert_ne!(again.sealed.authority, sealing.sealed.authority);
        let shown = format!("{sealing:?}");
        assert!(!shown.contains("value-of"), "{shown}");
        assert_eq!(sealing.variables().count(), VARIABLES.len() + 1);
        let only_env = Sealing::new(&[], &requests[1..], &values[1..], Vec::new(), &none, None);
        assert_eq!(only_env.unwrap(), None);
        let decoys = vec!["decoy".into()];
        let decoy = Sealing::new(&[], &[], &[], decoys, &none, None).unwrap().unwrap();
        assert!(decoy.files.is_empty() && decoy.variables().count() == 0);
    }

    #[test]
    fn a_rule_that_looks_inside_needs_an_authority_and_no_secret() {
        let none = BTreeMap::new();
        let seal = |inspect| {
            let rule = Rule { inspect, ..Rule::default() };
            Sealing::new(&[rule], &[], &[], Vec::new(), &none, None).unwrap()
        };
        assert_eq!(seal(false), None);
        let sealing = seal(true).unwrap();
        assert!(sealing.ends_tls() && sealing.tokens.is_empty());
        assert_eq!((sealing.files.len(), sealing.variables().count()), (2, VARIABLES.len() + 1));
    }

    #[test]
    fn secrets_that_are_too_much_together_are_told() {
        let names: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
        let request = |name: &String| format!("{name}@a.example").parse().unwrap();
        let requests: Vec<SecretRequest> = names.iter().map(request).collect();
        let long = |name: &String| Given {
            older: vec![Secret::for_program(vec![b'y'; 65_000]).unwrap(); 3],
            ..given(name, SecretMode::Placeholder, &"x".repeat(65_000))
        };
        let values: Vec<Given> = names.iter().map(long).collect();
        let none = BTreeMap::new();
        let few = Sealing::new(&[], &requests[..2], &values[..2], Vec::new(), &none, None);
        assert!(few.is_ok());
        let error = Sealing::new(&[], &requests, &values, Vec::new(), &none, None).unwrap_err();
        assert!(error.reason.contains("bind fewer"), "{error}");
    }

    #[test]
    fn a_file_of_authorities_that_is_none_is_told() {
        for path in ["/nonexistent/ca.pem", "/proc/self/cmdline"] {
            let error = roots(Some(Path::new(path))).unwrap_err();
            assert!(error.field == "network.ca_file" && error.reason.contains(path), "{error}");
        }
    }
}
