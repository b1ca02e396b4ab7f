//! What forks must not have in common, though they have the same files: names, chance, secrets, leases, ports.
//!
//! Most of it is so because a fork is stood up anew and nothing that runs is copied. What could still be common is what
//! lies in files and variables. [`Sandboxes::check_fork`] is the test that users can run: it looks from inside.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Sandboxes;
use super::following::Following;
use super::once::TearDown;
use super::store::Record;
use crate::execution_id::new_id;
use crate::model::error::{Error, SpecError};
use crate::model::outcome::Verdict;
use crate::model::sandbox::{ExecRequest, SandboxInfo};

/// Words that make a variable a secret, as parts of its name.
const SECRET_WORDS: [&str; 13] = [
    "APIKEY",
    "AUTH",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "KEY",
    "KEYS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "SECRET",
    "SECRETS",
    "TOKEN",
];

/// Made by a check when it is given none.
const MADE: usize = 2;
/// Compared at once.
const MOST: usize = 64;
const PROBE_MS: u64 = 20_000;
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];

/// What is seen from inside, as `name=value` lines.
const PROBE: &str = r#"
say() { printf '%s=%s\n' "$1" "$2"; }
say host_name "$(uname -n)"
for one in user pid mnt net ipc uts cgroup; do say "namespace $one" "$(readlink /proc/self/ns/$one)"; done
say chance "$(od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n')"
for one in / /usr /workspace; do say "device $one" "$(stat -c %d "$one")"; done
say memory "$(ls -A /dev/shm | wc -l)"
for one in /etc/machine-id /var/lib/dbus/machine-id /var/lib/systemd/random-seed \
    /etc/ssh/ssh_host_*_key ~/.rnd ~/.ssh/id_*; do
    if [ -s "$one" ]; then say "identity $one" "$(sha256sum < "$one")"; fi
done
"#;

/// Forks, and what they were not given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forked {
    pub sandboxes: Vec<SandboxInfo>,
    /// Variables of the parent that look like secrets, which no fork has unless it is named.
    pub withheld: Vec<String>,
}

/// Whether sandboxes with common files have anything else in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkReport {
    pub ok: bool,
    /// What was compared.
    pub sandboxes: Vec<String>,
    pub checks: Vec<ForkCheck>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkCheck {
    /// `host_name`, `namespaces`, `randomness`, `identity`, `secrets`, `leases`, `memory`.
    pub name: String,
    pub ok: bool,
    pub found: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Whether a variable is a secret, by its name or as an address with a password in it.
pub(in crate::living) fn is_secret(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let named = upper.split(['_', '-']).any(|word| SECRET_WORDS.contains(&word));
    let address = value.split_once("://").and_then(|(_, rest)| rest.split_once('@'));
    let login = address.is_some_and(|(login, _)| login.contains(':') && !login.contains('/'));
    named || login
}

/// The variables that a fork of it is not given.
fn secrets_of(record: &Record) -> BTreeSet<String> {
    let env = record.request.env.iter();
    env.filter(|(name, value)| is_secret(name, value)).map(|(name, _)| name.clone()).collect()
}

impl Sandboxes {
    /// Others with the same files, and with those secrets that are named here.
    pub async fn fork_keeping(
        &self,
        name: &str,
        count: u32,
        new_name: Option<String>,
        keep_env: &[String],
    ) -> Result<Forked, Error> {
        let (parent, _) = self.find(name)?;
        for kept in keep_env {
            if !parent.request.env.contains_key(kept) {
                let reason = format!("names {kept:?}, which is no variable of {name}");
                return Err(SpecError::new("keep_env", reason).into());
            }
        }
        let sandboxes = self.fork(name, count, new_name).await?;
        let secrets = secrets_of(&parent);
        let (kept, withheld): (Vec<String>, Vec<String>) =
            secrets.into_iter().partition(|name| keep_env.contains(name));
        for fork in sandboxes.iter().filter(|_| !kept.is_empty()) {
            let id = fork.id.clone();
            let pairs = kept.iter().filter_map(|name| parent.request.env.get_key_value(name));
            let pairs: BTreeMap<_, _> =
                pairs.map(|(name, value)| (name.clone(), value.clone())).collect();
            let give = move |record: &mut Record| record.request.env.extend(pairs);
            self.stored(move |store| store.update(&id, give).map(drop)).await?;
        }
        Ok(Forked { sandboxes, withheld })
    }

    /// Looks from inside whether a sandbox and its forks have anything in common but files. Without forks, two are made
    /// for it and removed again. What runs inside could lie to this check, and only about itself.
    pub async fn check_fork(&self, name: &str, forks: &[String]) -> Result<ForkReport, Error> {
        if forks.len() > MOST {
            let reason = format!("are {}; up to {MOST} can be compared", forks.len());
            return Err(SpecError::new("forks", reason).into());
        }
        // Refused now, where nothing need be cleared away.
        self.lines(name).await?;
        let made = if forks.is_empty() { self.throwaway(name).await? } else { Vec::new() };
        let ids = made.iter().filter_map(TearDown::id);
        let names = [name].into_iter().chain(forks.iter().map(String::as_str)).chain(ids);
        let mut seen = Vec::new();
        let mut failed = None;
        for one in names {
            match self.look(one).await {
                Ok(looks) => seen.push(looks),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        for one in made {
            one.now().await?;
        }
        failed.map_or_else(|| Ok(judge(&seen)), Err)
    }

    /// Two forks that do not outlive the check.
    async fn throwaway(&self, name: &str) -> Result<Vec<TearDown>, Error> {
        let names = vec![None; MADE];
        let made = self
            .held(name, move |store, id, taking| store.fork(id, names, taking))
            .await?
            .into_iter()
            .map(|fork| TearDown::new(self.clone(), fork.id));
        Ok(made.collect())
    }

    /// What is seen inside one.
    async fn look(&self, name: &str) -> Result<Looks, Error> {
        let (record, lines) = self.lines(name).await?;
        let id = new_id()?;
        let cmd = ["/bin/bash", "-c", PROBE].map(ToOwned::to_owned).to_vec();
        let probe = ExecRequest { cmd, timeout_ms: Some(PROBE_MS), ..ExecRequest::default() };
        lines.living.exec(&id, &probe).await?;
        let follow = lines.living.follow(&id, [0, 0]).await?;
        let following = Following::lives(id, follow).ends_with(lines.living, self.owed.one_more());
        let (exec, [stdout, stderr]) = following.collect().await?;
        if exec.end.is_none_or(|end| end.verdict != (Verdict::Exited { code: 0 })) {
            let told = stderr.text();
            let told = told.lines().next().unwrap_or("without a word").to_owned();
            let what = format!("the check could not look into {}: it ended {told}", record.name);
            return Err(Error::Conflict { what });
        }
        let text = stdout.text();
        let pair = |line: &str| {
            line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Ok(Looks {
            name: record.name.to_string(),
            seen: text.lines().filter_map(pair).collect(),
            secrets: {
                let env = record.request.env.into_iter();
                env.filter(|(name, value)| is_secret(name, value)).collect()
            },
            shares_workspace: record
                .request
                .workspace
                .is_some_and(|one| one.mode != crate::model::sandbox::WorkspaceMode::CopyOnWrite),
        })
    }
}

/// One of those that are compared.
#[derive(Debug, Default)]
struct Looks {
    name: String,
    seen: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    shares_workspace: bool,
}

impl Looks {
    fn get(&self, what: &str) -> &str {
        self.seen.get(what).map_or("", String::as_str)
    }
}

fn judge(all: &[Looks]) -> ForkReport {
    let checks = vec![
        host_names(all),
        namespaces(all),
        randomness(all),
        identity(all),
        secrets(all),
        leases(all),
        memory(all),
    ];
    ForkReport {
        ok: checks.iter().all(|check| check.ok),
        sandboxes: all.iter().map(|one| one.name.clone()).collect(),
        checks,
    }
}

fn check(name: &str, ok: bool, found: String, fix: &str) -> ForkCheck {
    let fix = (!ok).then(|| fix.to_owned());
    ForkCheck { name: name.to_owned(), ok, found, fix }
}

/// Whether each has one of its own.
fn differ(all: &[Looks], what: &str) -> bool {
    let values: BTreeSet<&str> = all.iter().map(|one| one.get(what)).collect();
    values.len() == all.len() && !values.contains("")
}

fn host_names(all: &[Looks]) -> ForkCheck {
    let own = |one: &Looks| one.get("host_name") == one.name;
    let found: Vec<&str> = all.iter().map(|one| one.get("host_name")).collect();
    let ok = all.iter().all(own) && differ(all, "host_name");
    check("host_name", ok, found.join(", "), "stop and start those whose host name is not theirs")
}

fn namespaces(all: &[Looks]) -> ForkCheck {
    let shared = NAMESPACES.into_iter().filter(|one| !differ(all, &format!("namespace {one}")));
    let shared: Vec<&str> = shared.collect();
    let found = match &*shared {
        [] => {
            "each has its own of all 7: processes, ports, sockets and queues are apart".to_owned()
        }
        shared => format!("not told apart: {}", shared.join(", ")),
    };
    check("namespaces", shared.is_empty(), found, "report this: it is a fault of belljar")
}

fn randomness(all: &[Looks]) -> ForkCheck {
    let whole = |one: &Looks| one.get("chance").len() == 32;
    let ok = all.iter().all(whole) && differ(all, "chance");
    let found = if ok { "16 bytes of /dev/urandom differ" } else { "the same bytes came twice" };
    check("randomness", ok, found.to_owned(), "report this: it is a fault of belljar")
}

/// Names of what at least two have with the same value.
fn common<'a>(maps: impl Iterator<Item = &'a BTreeMap<String, String>>) -> Vec<&'a str> {
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for (name, value) in maps.flatten() {
        if !seen.insert((name, value)) {
            twice.insert(name.as_str());
        }
    }
    twice.into_iter().collect()
}

fn identity(all: &[Looks]) -> ForkCheck {
    const PREFIX: &str = "identity ";
    let files: Vec<&str> = common(all.iter().map(|one| &one.seen))
        .into_iter()
        .filter_map(|name| name.strip_prefix(PREFIX))
        .collect();
    let found = match &*files {
        [] => "no key, seed or machine id in the files".to_owned(),
        files => format!("the same in several: {}", files.join(", ")),
    };
    let fix = "remove these files before forking, or make them anew in each fork";
    check("identity", files.is_empty(), found, fix)
}

fn secrets(all: &[Looks]) -> ForkCheck {
    let names = common(all.iter().map(|one| &one.secrets));
    let found = match &*names {
        [] => "no variable that is a secret is in two of them".to_owned(),
        names => format!("the same in several: {}", names.join(", ")),
    };
    check("secrets", names.is_empty(), found, "fork without --keep-env, and give each its own")
}

/// Locks and leases are of a file system's own files: two mounts have none in common.
fn leases(all: &[Looks]) -> ForkCheck {
    let mut places = vec!["/", "/usr"];
    // One that is the host's is the same for everybody, and says so by itself.
    if !all.iter().any(|one| one.shares_workspace) {
        places.push("/workspace");
    }
    let shared: Vec<&str> =
        places.into_iter().filter(|place| !differ(all, &format!("device {place}"))).collect();
    let one_directory = all.iter().filter(|one| one.shares_workspace).count() > 1;
    let found = match (&*shared, one_directory) {
        ([], false) => "each has file systems of its own: no lock or lease is common".to_owned(),
        ([], true) => {
            "/workspace is one directory of the host, with its locks and leases".to_owned()
        }
        (shared, _) => format!("not told apart: {}", shared.join(", ")),
    };
    let fix = "use a workspace that is copied on write (DIR:cow)";
    check("leases", shared.is_empty() && !one_directory, found, fix)
}

fn memory(all: &[Looks]) -> ForkCheck {
    // The first may have some of its own; what was made from it begins without.
    let full: Vec<&str> = all
        .iter()
        .skip(1)
        .filter(|one| one.get("memory") != "0")
        .map(|one| one.name.as_str())
        .collect();
    let found = match &*full {
        [] => "/dev/shm is empty in every fork".to_owned(),
        names => format!("/dev/shm holds something in {}", names.join(", ")),
    };
    check("memory", full.is_empty(), found, "compare forks before they have run anything")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(name: &str, number: u32) -> Looks {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        let mut say = |what: &str, value: String| seen.insert(what.to_owned(), value);
        say("host_name", name.to_owned());
        say("chance", format!("{number:032x}"));
        say("memory", "0".to_owned());
        for one in NAMESPACES {
            say(&format!("namespace {one}"), format!("{one}:[{number}]"));
        }
        for place in ["/", "/usr", "/workspace"] {
            say(&format!("device {place}"), format!("{number}{}", place.len()));
        }
        Looks { name: name.to_owned(), seen, ..Looks::default() }
    }

    /// The checks that are not passed when the second of two is changed so.
    fn broken(change: impl Fn(&mut Looks)) -> Vec<String> {
        let mut both = [looks("one", 1), looks("two", 2)];
        both.iter_mut().for_each(change);
        let report = judge(&both);
        let broken = report.checks.iter().filter(|check| !check.ok);
        assert!(broken.clone().all(|check| check.fix.is_some()));
        assert_eq!(report.ok, broken.clone().count() == 0);
        broken.map(|check| check.name.clone()).collect()
    }

    #[test]
    fn every_check_of_forks_can_fail() {
        let set = |what: &'static str, value: &'static str| {
            broken(|one| drop(one.seen.insert(what.to_owned(), value.to_owned())))
        };
        assert_eq!(broken(|_| {}), Vec::<String>::new());
        assert_eq!(set("host_name", "one"), ["host_name"]);
        assert_eq!(set("namespace net", "net:[1]"), ["namespaces"]);
        assert_eq!(set("namespace net", ""), ["namespaces"]);
        assert_eq!(set("chance", "00112233445566778899aabbccddeeff"), ["randomness"]);
        assert_eq!(set("chance", ""), ["randomness"]);
        assert_eq!(set("identity /etc/machine-id", "abc"), ["identity"]);
        assert_eq!(set("device /", "7"), ["leases"]);
        assert_eq!(set("memory", "3"), ["memory"]);
        assert_eq!(broken(|one| one.shares_workspace = true), ["leases"]);
        let secret = |one: &mut Looks| drop(one.secrets.insert("TOKEN".into(), "x".into()));
        assert_eq!(broken(secret), ["secrets"]);
    }

    #[test]
    fn secrets_are_known_by_name_and_by_shape() {
        for name in ["API_TOKEN", "OPENAI_API_KEY", "db_password", "AWS_SECRET_ACCESS_KEY", "AUTH"]
        {
            assert!(is_secret(name, "x"), "{name}");
        }
        for name in
            ["PATH", "PWD", "HOME", "KEYBOARD", "AUTHOR", "TOKENIZERS_PARALLELISM", "MONKEY"]
        {
            assert!(!is_secret(name, "x"), "{name}");
        }
        assert!(is_secret("DATABASE_URL", "postgres://me:word@host/db"));
        for value in ["http://host/path", "https://me@host/", "http://host/a:b@c", "a:b@c"] {
            assert!(!is_secret("URL", value), "{value}");
        }
    }
}
