//! Levels: graded contracts. Each lists the layers that it keeps; a missing layer is an error.

use std::fmt;
use std::str::FromStr;

use belljar_jail::layer::Layer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How strongly a run is confined.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No confinement: a deadline, an output cap, a clean environment and an end for the whole tree.
    None,
    /// Confinement that needs no namespace: Landlock, seccomp, resource limits, no privileges.
    Basic,
    /// A world of its own: namespaces, a private read-only root, cgroup limits, no network.
    #[default]
    Standard,
    /// Standard with fewer system calls, a host id per run, and only its own processes in /proc.
    Strict,
    /// Strict inside a second kernel.
    Maximum,
}

/// What every level keeps.
const ALWAYS: &[Layer] = &[
    Layer::WallTimeout,
    Layer::OutputCap,
    Layer::Environment,
    Layer::Descriptors,
    Layer::TreeKill,
    Layer::Session,
];

/// What basic and all above it add.
const FROM_BASIC: &[Layer] = &[
    Layer::Rlimits,
    Layer::NoNewPrivileges,
    Layer::Capabilities,
    Layer::Identity,
    Layer::Landlock,
    Layer::Seccomp,
];

/// Basic alone: what the namespaces do above it.
const ONLY_BASIC: &[Layer] = &[Layer::Scopes];

const FROM_STANDARD: &[Layer] = &[
    Layer::UserNamespace,
    Layer::PidNamespace,
    Layer::MountNamespace,
    Layer::NetNamespace,
    Layer::IpcNamespace,
    Layer::UtsNamespace,
    Layer::CgroupNamespace,
    Layer::Root,
    Layer::Proc,
    Layer::Devices,
    Layer::Disk,
    Layer::CgroupMemory,
    Layer::CgroupPids,
    Layer::CgroupCpu,
];

const FROM_STRICT: &[Layer] = &[Layer::UidPerRun];

impl Level {
    pub const ALL: [Self; 5] =
        [Self::None, Self::Basic, Self::Standard, Self::Strict, Self::Maximum];

    /// The layers that this level promises, in the order of a receipt.
    pub fn layers(self) -> Vec<Layer> {
        let parts: &[&[Layer]] = match self {
            Self::None => &[ALWAYS],
            Self::Basic => &[ALWAYS, FROM_BASIC, ONLY_BASIC],
            Self::Standard => &[ALWAYS, FROM_BASIC, FROM_STANDARD],
            Self::Strict | Self::Maximum => &[ALWAYS, FROM_BASIC, FROM_STANDARD, FROM_STRICT],
        };
        parts.concat()
    }

    /// Whether the program has a root, processes and a network of its own.
    pub fn has_namespaces(self) -> bool {
        self >= Self::Standard
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic => "basic",
            Self::Standard => "standard",
            Self::Strict => "strict",
            Self::Maximum => "maximum",
        }
    }

    /// The contract in one sentence.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::None => {
                "no confinement: a deadline, an output cap, a clean environment, and the whole \
                 process tree is ended"
            }
            Self::Basic => {
                "needs no namespaces: files by Landlock, few system calls, no sockets, no \
                 privileges, resource limits"
            }
            Self::Standard => {
                "a world of its own: namespaces, a private read-only root, a bounded disk, cgroup \
                 limits, no network"
            }
            Self::Strict => {
                "standard with fewer system calls, a host id for each run, and only its own \
                 processes in /proc"
            }
            Self::Maximum => "strict inside a second kernel (gVisor or a microVM)",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| {
            format!("\"{text}\" is not a level: use none, basic, standard, strict or maximum")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_keeps_all_that_the_one_below_keeps() {
        for pair in Level::ALL.windows(2) {
            let (lower, upper) = (pair[0].layers(), pair[1].layers());
            for layer in lower {
                let replaced = layer == Layer::Scopes && upper.contains(&Layer::PidNamespace);
                assert!(upper.contains(&layer) || replaced, "{:?} loses {layer:?}", pair[1]);
            }
        }
    }

    #[test]
    fn a_level_is_read_by_its_name() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("high".parse::<Level>().unwrap_err().contains("standard"));
    }
}
