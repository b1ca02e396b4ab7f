//! Programs that improve by trying: propose, grade in sandboxes, keep the best, say what was wrong, propose again.
//!
//! A [`Task`] says what is wanted and who proposes; an [`Evolution`] carries it out with a [`belljar::Engine`], of
//! which this is a client like any other, and keeps every step, so that it can go on after any end.

mod answer;
mod candidate;
mod cascade;
mod chance;
mod evolution;
mod history;
mod prompt;
mod proposer;
mod regions;
mod report;
mod screening;
mod step;
mod store;
mod strategy;
mod summary;
mod syntax;
mod task;

pub use evolution::{Evolution, Told, list};
pub use proposer::{CommandSpec, Endpoint, NamedSpec, Price, ProposerSpec, ReplaySpec};
pub use report::page;
pub use step::{End, Graded, Measures, Prompt, Proposal, Stage, StageName, Status, StepId, Usage};
pub use store::{Line, Record};
pub use strategy::{Axis, StrategySpec};
pub use summary::{Spent, StepSummary, Summary};
pub use task::{AnswerForm, Budget, Cascade, Task, TaskFile};
