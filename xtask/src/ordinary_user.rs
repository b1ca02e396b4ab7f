//! The account without any privilege as which the real-kernel suites run a second time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell;

const NAME: &str = "belljar-test";
/// newuidmap(1) hands out what these files grant; 65536 is what distributions grant to a login user.
const RANGE: u64 = 65_536;
/// Where ranges begin when nobody has one, as in login.defs(5).
const FIRST: u64 = 100_000;

/// An account of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

impl User {
    /// The test account, made if it is not there. It stays afterwards: its files would otherwise belong to
    /// whoever gets the number next.
    pub(crate) fn provide() -> Result<Self> {
        if Self::find()?.is_none() {
            shell::say(format!("creating the user {NAME}"));
            shell::run(
                shell::command("/usr/sbin/useradd")
                    .args(["--system", "--user-group", "--create-home", "--shell", "/bin/sh"])
                    .arg("--home-dir")
                    .arg(Path::new("/home").join(NAME))
                    .arg(NAME),
            )?;
        }
        grant_range("/etc/subuid", "--add-subuids")?;
        grant_range("/etc/subgid", "--add-subgids")?;
        let user = Self::find()?.with_context(|| format!("useradd made no user {NAME}"))?;
        ensure!(user.uid != 0, "the user {NAME} has uid 0 in /etc/passwd: remove that line");
        Ok(user)
    }

    fn find() -> Result<Option<Self>> {
        let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        Ok(accounts.lines().find_map(|line| parse_account(line, NAME)))
    }

    /// `program` as this user: its groups, no capability, as after a login. The bounding set and new privileges
    /// stay, because a login has them and newuidmap is set-uid.
    pub(crate) fn command(&self, program: &Path, start_in: Option<&Path>) -> Command {
        let setpriv = "/usr/bin/setpriv";
        let mut command = match start_in {
            None => shell::command(setpriv),
            Some(cgroup) => {
                let mut shell = shell::command("/bin/sh");
                shell
                    .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
                    .arg(cgroup.join("cgroup.procs"));
                shell.arg(setpriv);
                shell
            }
        };
        command
            .arg(format!("--reuid={}", self.uid))
            .arg(format!("--regid={}", self.gid))
            .args(["--init-groups", "--inh-caps=-all", "--"])
            .arg(program);
        command
    }
}

fn parse_account(line: &str, name: &str) -> Option<User> {
    let fields: Vec<_> = line.split(':').collect();
    let [found, _, uid, gid, _, home, _] = fields[..] else {
        return None;
    };
    (found == name).then_some(())?;
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: PathBuf::from(home),
    })
}

/// Gives the account a range of subordinate ids unless it has one.
fn grant_range(file: &str, option: &str) -> Result<()> {
    let granted = fs::read_to_string(file).unwrap_or_default(); // Absent until the first range is granted.
    let prefix = format!("{NAME}:");
    if granted.lines().any(|line| line.starts_with(&prefix)) {
        return Ok(());
    }
    let first = free_range(&granted);
    let range = format!("{first}-{}", first + RANGE - 1);
    shell::say(format!("granting {NAME} the subordinate ids {range} in {file}"));
    shell::run(shell::command("/usr/sbin/usermod").args([option, &range, NAME]))
}

/// The first id after every range that somebody holds: two users that share one could signal each other's sandboxes.
fn free_range(granted: &str) -> u64 {
    let end = |line: &str| {
        let mut fields = line.split(':').skip(1);
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.trim().parse().ok()?;
        Some(first + count)
    };
    granted.lines().filter_map(end).max().unwrap_or(FIRST).max(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_range_overlaps_nobody() {
        assert_eq!(free_range(""), 100_000);
        assert_eq!(free_range("ann:100000:65536\nbob:231072:65536\n"), 296_608);
        assert_eq!(free_range("low:10:5\nnot a line\n"), 100_000);
    }

    #[test]
    fn only_the_named_account_is_taken() {
        let line = "belljar-test:x:998:997::/home/belljar-test:/bin/sh";
        let user = parse_account(line, "belljar-test").unwrap();
        assert_eq!((user.uid, user.gid), (998, 997));
        assert_eq!(parse_account(line, "belljar"), None);
        assert_eq!(parse_account("belljar-test:x", "belljar-test"), None);
    }
}
