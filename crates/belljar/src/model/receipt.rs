//! The receipt: what was really enforced, as read back before the program was released.

use belljar_jail::layer::{Check, Layer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::level::Level;

/// Proof of enforcement for one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    pub level: Level,
    #[schemars(with = "Vec<CheckShape>")]
    pub layers: Vec<Check>,
    /// Layers of the level that were absent because the request allowed it.
    pub missing: Vec<Missing>,
    /// SHA-256 of the resolved Spec: two runs with the same digest were asked to be the same.
    pub spec_digest: String,
    pub versions: Versions,
}

/// [`Check`] as it is on the wire: its own crate knows no schemas.
#[derive(JsonSchema)]
#[schemars(rename = "Check")]
#[expect(dead_code, reason = "only its shape is used")]
struct CheckShape {
    name: String,
    mechanism: String,
    verified: bool,
}

/// A layer that the request said may be absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    #[schemars(with = "String")]
    pub name: Layer,
    /// What does part of its work, and how far.
    pub stand_in: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    pub belljar: String,
    pub kernel: String,
    /// The program that was executed, as resolved on the host.
    pub interpreter: String,
}
