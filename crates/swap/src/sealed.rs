//! What the egress process must know of secrets, as it travels: in a sealed file of memory that only it reads.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::swap::Binding;

/// Everything that is secret about one sandbox's way out. Whoever carries it does not open it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// Who speaks for the hosts of the bindings. Absent where there are none, and when only values have changed.
    pub authority: Option<Pair>,
    /// By whom real hosts are verified: certificates in PEM.
    pub roots: String,
    pub bindings: Vec<Binding>,
    /// Values that nobody needs: one that leaves is an alarm.
    pub decoys: Vec<String>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Sealed({:?}, {} decoys)", self.bindings, self.decoys.len())
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Pair(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_not_shown() {
        let sealed = Sealed {
            authority: Some(Pair { certificate: "C3RT".into(), key: "K3Y".into() }),
            roots: String::new(),
            bindings: vec![Binding { value: "v4lue".into(), ..Binding::default() }],
            decoys: vec!["d3coy".into()],
        };
        let shown = format!("{sealed:?} {:?}", sealed.authority);
        for part in ["K3Y", "v4lue", "d3coy"] {
            assert!(!shown.contains(part), "{shown}");
        }
        let json = serde_json::to_string(&sealed).unwrap();
        assert_eq!(serde_json::from_str::<Sealed>(&json).unwrap(), sealed);
    }
}
