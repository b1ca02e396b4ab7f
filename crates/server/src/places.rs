//! Where the server's socket and its state are, unless somebody says otherwise. `belljar run` looks for
//! a server in the same place as `belljar serve` puts it.

use std::env;
use std::path::PathBuf;

/// Names another socket for both `belljar serve` and `belljar run`.
pub const SOCKET_VARIABLE: &str = "BELLJAR_SOCKET";
/// Names another state directory, for every command.
pub const STATE_VARIABLE: &str = "BELLJAR_STATE";
/// `on`, `digests` or `off`: what is recorded where no flag says so.
pub const AUDIT_VARIABLE: &str = "BELLJAR_AUDIT";

/// Where evolutions are kept, in the state directory.
pub const EVOLUTIONS: &str = "evolutions";

/// The operator's policy, in the state directory, unless another file is named.
pub const POLICY: &str = "belljar.toml";

const NAME: &str = "belljar";
const SOCKET: &str = "belljar.sock";

/// The socket: named by the environment, else in the user's runtime directory (which is the user's own
/// and goes when the last session ends), else where services of root are, else beside the state.
pub fn socket() -> Option<PathBuf> {
    if let Some(path) = env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    if let Some(runtime) = absolute("XDG_RUNTIME_DIR") {
        return Some(runtime.join(NAME).join(SOCKET));
    }
    if is_root() {
        return Some(PathBuf::from("/run").join(NAME).join(SOCKET));
    }
    Some(state()?.join(SOCKET))
}

/// The state directory, which holds the token and the audit trail. Nothing when neither a variable nor /etc/passwd tells
/// where the home is.
pub fn state() -> Option<PathBuf> {
    if let Some(state) = absolute(STATE_VARIABLE) {
        return Some(state);
    }
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return Some(state.join(NAME));
    }
    if is_root() {
        return Some(PathBuf::from("/var/lib").join(NAME));
    }
    Some(home()?.join(".local/state").join(NAME))
}

/// The user's home. Programs on a desktop start others with hardly a variable, HOME not among them.
fn home() -> Option<PathBuf> {
    absolute("HOME").or_else(|| {
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        home_of(&users, rustix::process::geteuid().as_raw())
    })
}

/// The home of a user in the words of passwd(5).
fn home_of(users: &str, uid: u32) -> Option<PathBuf> {
    let found = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_own = fields.get(2)?.parse() == Ok(uid);
        is_own.then(|| fields.get(5).map(PathBuf::from))?
    });
    found.filter(|home| home.is_absolute())
}

/// A directory from the environment. A relative one is no place: the XDG specification says to ignore it.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_variable_the_home_is_the_one_that_the_host_knows() {
        let users = "root:x:0:0:root:/root:/bin/sh\nx:broken\nu:x:7:7::/home/u:/bin/sh\nv:x:8:8::none:/bin/sh\n";
        assert_eq!(home_of(users, 7), Some("/home/u".into()));
        assert_eq!((home_of(users, 8), home_of(users, 9)), (None, None));
    }
}
