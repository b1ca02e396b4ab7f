//! Run code that AI agents write where it can do no harm, and be told the truth about it.
//!
//! The [`Engine`] is the one entry. A [`RunRequest`] says what to run, an [`Outcome`] says how it ended,
//! whose fault that was, and what was really enforced.
//!
//! ```no_run
//! # async fn example() -> Result<(), belljar::Error> {
//! let engine = belljar::Engine::open(belljar::Config::default())?;
//! let outcome = engine.run(belljar::RunRequest::code("python", "print(6 * 7)")).await?;
//! assert_eq!(outcome.stdout, "42\n");
//! # Ok(())
//! # }
//! ```
//!
//! A sandbox is set up by small processes of our own, which are this very binary started in another
//! role. So the `main` of a program that embeds Belljar begins with [`enter_role`]:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     if let Some(code) = belljar::enter_role() {
//!         return code;
//!     }
//!     // … the program itself
//!     std::process::ExitCode::SUCCESS
//! }
//! ```

pub mod attack;
pub mod audit;
mod batch;
mod capture;
pub mod doctor;
pub mod egress;
mod engine;
mod events;
mod execution_id;
pub mod explain;
pub mod grade;
pub mod languages;
pub mod living;
mod model;
mod native;
mod output_files;
mod policy;
mod pool;
mod queue;
pub mod report;
pub mod screen;
pub mod seccomp;
pub mod secrets;
pub mod store;
pub mod visible;

pub use batch::Budget;
pub use belljar_jail::egress::Reached;
pub use belljar_jail::layer::{Check, Layer};
#[doc(hidden)]
pub use belljar_jail::living::talk as living_talk;
pub use belljar_jail::plan::{Fault, FaultKind, Hold, Tree};
pub use belljar_jail::report::Step;
pub use engine::{ByWord, Config, Engine, Run, RunCounts, enter_role};
pub use events::EventSink;
pub use grade::Value;
pub use living::files::{
    Downloaded, FileError, FileEvent, FileEventKind, FileFault, Files, InsidePath, Position,
    PutOptions, Unpacked, Uploaded, Watching, pack_host, unpack_host,
};
pub use model::egress::{EgressEntry, EgressRule, Protocol};
pub use model::error::{Error, SpecError, step_name};
pub use model::event::{Event, EventKind, Process, Risk, Severity, Weighed};
pub use model::level::Level;
pub use model::limits::{Limits, LimitsRequest, Used};
pub use model::outcome::{
    Captured, DiskLimit, Evidence, FaultDomain, Outcome, Start, Stream, Verdict,
};
pub use model::receipt::{Missing, Receipt, Versions};
pub use model::recording::{Act, Entry, Recording};
pub use model::request::{Data, RunRequest, StartRequest, Workspace};
pub use model::sandbox;
pub use model::screening::{Finding, ScreenMode, Screening, SyntaxFault};
pub use model::secret::{SecretMode, SecretPlace, SecretRequest};
pub use model::spec::{MAX_CODE_BYTES, Spec};
pub use model::units;
pub use native::cgroups;
pub use native::host::Host;
/// Living sandboxes without their store: for the suites.
#[doc(hidden)]
pub use native::living as runtime;
pub use native::run::{Ahead, start_ahead};
pub use native::systemd::{Bus, BusKind};
pub use output_files::{CopiedOut, Skipped};
pub use policy::{Policy, Seen};
pub use pool::{PoolConfig, PoolStats, ShelfStats, ZygoteStats};
pub use queue::{Place, Queue, Turn};
