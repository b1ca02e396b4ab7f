//! The way out, from the operator's side: named sets, name servers, budgets, and what a sandbox's egress process is told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_jail::egress::{Budget, Confinement, EgressPlan, PROXY, PROXY_PORT, Rule};
use belljar_jail::plan::pack;
use serde::Deserialize;

use crate::model::egress::{self, EgressEntry, EgressRule};
use crate::model::error::SpecError;
use crate::native::egress_ids;
use crate::native::host::Host;
use crate::seccomp;

/// Name servers that are taken from a file.
const MAX_SERVERS: usize = 4;
/// The variable that names the one settings file to read.
const SETTINGS: &str = "BELLJAR_CONFIG";

/// What the operator decides about networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Who is asked for addresses; those of the host if empty.
    pub nameservers: Vec<String>,
    /// Whether a request may name addresses that are not public. Sets may in any case.
    pub private_by_request: bool,
    pub budget: Budget,
    /// Authorities of the operator's own, beside the host's, in PEM: for hosts that secrets are put in for.
    pub ca_file: Option<PathBuf>,
    /// `[egress.NAME]`, which a request names as `@NAME`.
    pub sets: BTreeMap<String, EgressRule>,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            nameservers: Vec::new(),
            private_by_request: true,
            budget: Budget::default(),
            ca_file: None,
            sets: BTreeMap::new(),
        }
    }
}

/// The part of `belljar.toml` that is about networks.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    network: NetworkSettings,
    egress: BTreeMap<String, EgressRule>,
}

/// What a file leaves out stays as it was.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkSettings {
    nameservers: Option<Vec<String>>,
    private_by_request: Option<bool>,
    budget: Option<Budget>,
    ca_file: Option<PathBuf>,
}

/// Where settings are looked for: the file that `BELLJAR_CONFIG` names, or the host's and then the user's.
pub(crate) fn settings_files(home: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(SETTINGS) {
        return vec![PathBuf::from(named)];
    }
    let own = home.map(|home| home.join("belljar/belljar.toml"));
    [PathBuf::from("/etc/belljar/belljar.toml")].into_iter().chain(own).collect()
}

impl Network {
    /// Reads the files that are there; later ones win.
    pub(crate) fn load(mut self, files: &[PathBuf]) -> Result<Self, SpecError> {
        for path in files {
            let wrong = |reason: String| {
                SpecError::new("settings", format!("{}: {reason}", path.display()))
            };
            let text = match std::fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                // Somebody else's home, as HOME still says after a change of user: whether there is one we cannot know.
                Err(_) if path.metadata().is_err() => continue,
                Err(error) => return Err(wrong(error.to_string())),
            };
            let Settings { network, egress } =
                toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            self.nameservers = network.nameservers.unwrap_or(self.nameservers);
            self.private_by_request = network.private_by_request.unwrap_or(self.private_by_request);
            self.budget = network.budget.unwrap_or(self.budget);
            let base = path.parent().unwrap_or(Path::new("/"));
            self.ca_file = network.ca_file.map(|file| base.join(file)).or(self.ca_file);
            for (name, rule) in egress {
                let entry = EgressEntry::Rule(rule.clone());
                egress::resolve(&[entry])
                    .map_err(|error| wrong(format!("[egress.{name}]: {error}")))?;
                self.sets.insert(name, rule);
            }
        }
        self.servers().map_err(|reason| SpecError::new("network.nameservers", reason))?;
        Ok(self)
    }

    /// What a request asks for, with the sets that it names.
    pub(crate) fn expand(&self, asked: &[EgressEntry]) -> Result<Vec<EgressEntry>, SpecError> {
        let mut all = Vec::new();
        for entry in asked {
            if let Some(name) = entry.set() {
                let set = self.sets.get(name).ok_or_else(|| self.no_such_set(name))?;
                all.push(EgressEntry::Rule(set.clone()));
                continue;
            }
            if !self.private_by_request
                && let Some(what) = egress::private_part(entry)?
            {
                let reason = format!(
                    "names {what}, which is not public: only a set of the operator's may \
                     ([egress.NAME] in belljar.toml)"
                );
                return Err(SpecError::new("egress", reason));
            }
            all.push(entry.clone());
        }
        Ok(all)
    }

    fn no_such_set(&self, name: &str) -> SpecError {
        let known: Vec<&str> = self.sets.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let reason =
            format!("names the set @{name}, which belljar.toml does not have (it has {known})");
        SpecError::new("egress", reason)
    }

    fn servers(&self) -> Result<Vec<SocketAddr>, String> {
        if self.nameservers.is_empty() {
            return Ok(host_servers(
                &std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
            ));
        }
        let parse = |text: &String| {
            let whole =
                text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
            whole.map_err(|_| format!("\"{text}\" is not ADDRESS or ADDRESS:PORT"))
        };
        self.nameservers.iter().map(parse).collect()
    }

    /// What it is told when only the rules change: of the rest it goes on with what it has.
    pub(crate) fn change(&self, rules: &[Rule], host: &Host) -> EgressPlan {
        let plan = self.plan(rules, host, 0);
        plan.unwrap_or_else(|| EgressPlan {
            rules: Vec::new(),
            nameservers: Vec::new(),
            budget: self.budget,
            ids: None,
            landlock_abi: 0,
            filter: Vec::new(),
        })
    }

    /// What the egress process of a sandbox is told; `None` where there shall be none.
    pub(crate) fn plan(&self, rules: &[Rule], host: &Host, keeper: u32) -> Option<EgressPlan> {
        (!rules.is_empty()).then(|| EgressPlan {
            rules: rules.to_vec(),
            nameservers: self.servers().unwrap_or_default(),
            budget: self.budget,
            ids: egress_ids(host, keeper),
            landlock_abi: host.landlock_abi.unwrap_or(0),
            filter: filter(),
        })
    }

    /// How an egress process locks itself down that is started before anybody wants one.
    pub(crate) fn confinement(host: &Host, process: u32) -> Confinement {
        let landlock_abi = host.landlock_abi.unwrap_or(0);
        let (ids, filter) = (egress_ids(host, process), filter());
        Confinement { ids, landlock_abi, filter, dies_with_parent: false }
    }
}

/// The hosts into whose TLS rules look.
pub fn inspected(rules: &[Rule]) -> Vec<String> {
    let hosts = rules.iter().filter(|rule| rule.inspect).flat_map(|rule| &rule.hosts);
    let mut hosts: Vec<String> = hosts.map(ToString::to_string).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

/// The filter of every egress process. Compiled once: a run that waits for it would notice.
fn filter() -> Vec<u64> {
    static FILTER: OnceLock<Vec<u64>> = OnceLock::new();
    FILTER.get_or_init(|| seccomp::compile_egress().into_iter().map(pack).collect()).clone()
}

/// The servers of resolv.conf(5); this host itself if it names none, as the C library has it.
fn host_servers(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut servers: Vec<SocketAddr> = named
        .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, 53))
        .take(MAX_SERVERS)
        .collect();
    if servers.is_empty() {
        servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53));
    }
    servers
}

/// What programs find in their environment where there is a way out. All name the HTTP proxy: clients that know
/// SOCKS only by a library of its own break at the mere name of it.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    let proxy = format!("http://{PROXY}:{PROXY_PORT}");
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let proxies = names.into_iter().flat_map(move |name| {
        [name.to_owned(), name.to_ascii_lowercase()].map(|name| (name, proxy.clone()))
    });
    let own = "localhost,127.0.0.1,::1".to_owned();
    proxies.chain([("NO_PROXY".to_owned(), own.clone()), ("no_proxy".to_owned(), own)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Result<Network, SpecError> {
        let directory = std::env::temp_dir().join(format!("belljar-net-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{}.toml", crate::execution_id::new_id().unwrap()));
        std::fs::write(&path, text).unwrap();
        let loaded = Network::default().load(std::slice::from_ref(&path));
        std::fs::remove_file(path).unwrap();
        loaded
    }

    #[test]
    fn a_set_is_named_by_requests() {
        let network =
            network("[egress.index]\nhosts = [\"a.example\"]\nmethods = [\"GET\"]").unwrap();
        let found = network.expand(&["@index".into(), "b.example".into()]).unwrap();
        assert_eq!(egress::resolve(&found).unwrap()[0].methods, ["GET"]);
        assert_eq!(inspected(&egress::resolve(&found).unwrap()), [] as [&str; 0]);
        let error = network.expand(&["@indx".into()]).unwrap_err().to_string();
        assert!(error.contains("@indx") && error.contains("index"), "{error}");
    }

    #[test]
    fn what_is_not_public_is_the_operators_to_name() {
        let text = "[network]\nprivate_by_request = false\n[egress.db]\nhosts = [\"db.example\"]\naddresses = [\"10.0.0.0/8\"]";
        let network = network(text).unwrap();
        assert!(network.expand(&["@db".into(), "a.example".into(), "1.1.1.1".into()]).is_ok());
        for private in ["10.1.2.3", "127.0.0.1:8080", "169.254.169.254", "[::1]"] {
            let error = network.expand(&[private.into()]).unwrap_err().to_string();
            assert!(error.contains("not public"), "{error}");
        }
        let rule = EgressRule {
            hosts: vec!["a.example".into()],
            addresses: vec!["0.0.0.0/0".into()],
            ..EgressRule::default()
        };
        assert!(network.expand(&[EgressEntry::Rule(rule)]).is_err());
        assert!(Network::default().expand(&["10.1.2.3".into()]).is_ok());
    }

    #[test]
    fn a_wrong_file_is_told_by_its_name_and_place() {
        for (text, words) in [
            ("[egress.a]\nhosts = [\"https://x\"]", "[egress.a]"),
            ("[egress.a]\nhost = [\"x\"]", "host"),
            ("[network]\nnameserver = []", "nameserver"),
            ("[network]\nnameservers = [\"x\"]", "not ADDRESS"),
        ] {
            let error = network(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn the_hosts_servers_are_those_of_its_file() {
        let text = "# nameserver 9.9.9.9\nsearch x\nnameserver 192.0.2.1\n nameserver ::1\n";
        let found: Vec<String> = host_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[::1]:53"]);
        assert_eq!(host_servers("").len(), 1);
    }
}
