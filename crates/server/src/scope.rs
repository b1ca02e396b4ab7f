//! What a key may be used for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Runs, batches, grades and evolutions.
    #[serde(rename = "runs")]
    Runs,
    /// Looking at sandboxes: states, files, logs, snapshots.
    #[serde(rename = "sandboxes:read")]
    SandboxesRead,
    /// Making, using and removing them; includes looking.
    #[serde(rename = "sandboxes:write")]
    SandboxesWrite,
    /// The records of the tenant's own runs.
    #[serde(rename = "audit:read")]
    AuditRead,
    /// All of the above, of every tenant, and the server itself.
    #[serde(rename = "admin")]
    Admin,
}

impl Scope {
    pub const ALL: [Self; 5] =
        [Self::Runs, Self::SandboxesRead, Self::SandboxesWrite, Self::AuditRead, Self::Admin];

    /// What a key has unless it is told.
    pub const USUAL: [Self; 4] =
        [Self::Runs, Self::SandboxesRead, Self::SandboxesWrite, Self::AuditRead];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::SandboxesRead => "sandboxes:read",
            Self::SandboxesWrite => "sandboxes:write",
            Self::AuditRead => "audit:read",
            Self::Admin => "admin",
        }
    }

    /// Whether who has this may do what needs that.
    pub(crate) fn covers(self, needed: Self) -> bool {
        self == needed
            || self == Self::Admin
            || (self == Self::SandboxesWrite && needed == Self::SandboxesRead)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        let all = Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("\"{text}\" is no scope: there are {all}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
            assert_eq!(serde_json::to_string(&scope).unwrap(), format!("\"{scope}\""));
            assert!(Scope::Admin.covers(scope) && scope.covers(scope));
        }
        assert!(Scope::SandboxesWrite.covers(Scope::SandboxesRead));
        assert!(!Scope::SandboxesRead.covers(Scope::SandboxesWrite));
        assert!(!Scope::Runs.covers(Scope::AuditRead));
        assert!("root".parse::<Scope>().unwrap_err().contains("sandboxes:read"));
    }
}
