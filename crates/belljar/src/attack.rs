//! Hostile probes, each one act that a program inside a sandbox may try. `belljar doctor --attack`
//! runs them at each level and counts; the escape tests show each working outside first, then the
//! exact refusal inside.
//!
//! Every probe is harmless where it succeeds: it opens but does not write, or hands the kernel
//! arguments that are refused only after permission was granted.

mod devices;
mod files;
pub mod fixture;
mod inside;
mod kernel;
mod leaks;
mod mounts;
mod network;
mod privileges;
mod processes;
mod resources;
mod writes;

pub use inside::{ROLE, collect_outcome, request, run_level};

use belljar_sys::attempt::child::{Ended, in_child};
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::special;
use fixture::Fixture;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

/// What a probe may take unless it says otherwise.
pub const BOUND: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Files,
    Processes,
    Kernel,
    Network,
    Resources,
    Leaks,
}

impl Category {
    pub const ALL: [Category; 6] = [
        Category::Files,
        Category::Processes,
        Category::Kernel,
        Category::Network,
        Category::Resources,
        Category::Leaks,
    ];
}

/// One hostile act, and what each level says about it.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub name: &'static str,
    pub category: Category,
    /// One plain sentence.
    pub what: &'static str,
    /// The layer that stops it first, or most: others may stand behind it.
    pub layer: &'static str,
    pub control: Control,
    /// Outside, only root can do it.
    pub needs_root: bool,
    /// What it may take; it is then killed, and counts as unanswered.
    pub bound: Duration,
    promise: Promise,
    act: Act,
}

/// Whether the act can be shown to work outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Works,
    /// Never run where no layer is promised to stop it: the reason.
    Unsafe(&'static str),
}

/// An error of the kernel is a refusal; everything else is for the act to tell.
type Act = fn(&Fixture) -> Result<Attempt, Errno>;

/// What each level promises; nothing where it promises nothing.
#[derive(Clone, Copy, Debug)]
struct Promise {
    none: Option<Expect>,
    basic: Option<Expect>,
    standard: Option<Expect>,
    strict: Option<Expect>,
}

/// The exact way in which a level stops an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The call answers with this error.
    Errno(&'static str),
    /// What the act is after does not exist inside: the call answers with this error.
    Absent(&'static str),
    /// The process dies by this signal.
    Signal(&'static str),
    /// The call works and shows something that is not the host's.
    Hidden,
    /// One of these names: which one depends on the host or on which layer is first.
    OneOf(&'static [&'static str]),
}

/// Stands for [`Attempt::Hidden`] among the names of [`Expect::OneOf`].
pub const HIDDEN: &str = "hidden";

impl Expect {
    /// True if the attempt ended in exactly this way.
    pub fn fits(&self, attempt: &Attempt) -> bool {
        let Some(ended) = attempt.stopped_by() else {
            return false;
        };
        match self {
            Expect::Errno(name) | Expect::Absent(name) | Expect::Signal(name) => ended == *name,
            Expect::Hidden => ended == HIDDEN,
            Expect::OneOf(names) => names.contains(&ended),
        }
    }
}

/// How one attempt went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Attempt {
    /// The act worked.
    Allowed { detail: String },
    /// The call worked, but what it showed or gave was not the host's.
    Hidden { detail: String },
    /// The kernel refused, with this error.
    Refused { errno: String },
    /// The process died by this signal.
    Killed { signal: String },
    /// There is nothing here to try it on.
    NotApplicable { why: String },
    /// It came to no answer: never counted as contained.
    Unanswered { why: String },
}

impl Attempt {
    fn allowed(detail: impl Into<String>) -> Result<Attempt, Errno> {
        Ok(Attempt::Allowed { detail: detail.into() })
    }

    fn hidden(detail: impl Into<String>) -> Result<Attempt, Errno> {
        Ok(Attempt::Hidden { detail: detail.into() })
    }

    fn not_applicable(why: impl Into<String>) -> Attempt {
        Attempt::NotApplicable { why: why.into() }
    }

    /// The error, signal or [`HIDDEN`] that stopped it; nothing if it was not stopped.
    pub fn stopped_by(&self) -> Option<&str> {
        match self {
            Attempt::Refused { errno } => Some(errno),
            Attempt::Killed { signal } => Some(signal),
            Attempt::Hidden { .. } => Some(HIDDEN),
            Attempt::Allowed { .. }
            | Attempt::NotApplicable { .. }
            | Attempt::Unanswered { .. } => None,
        }
    }
}

/// What an attempt means for the level it was made at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    Contained,
    /// It worked, or was not shown to fail, though the level promises to stop it.
    Escaped,
    /// Not promised at this level, or nothing here to try it on.
    NotApplicable,
}

/// What a run outside shows about a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The act works outside: a refusal inside means something.
    Works,
    /// This host, kernel or user cannot show it.
    NotHere,
    /// The probe itself is wrong.
    Broken,
}

/// The line that is printed for one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub probe: String,
    pub attempt: Attempt,
}

/// All probes. The last ones may end the whole sandbox when they are stopped.
pub static CATALOGUE: &[Probe] = &joined();

/// The probe of that name.
pub fn find(name: &str) -> Option<&'static Probe> {
    CATALOGUE.iter().find(|probe| probe.name == name)
}

/// The exact end that the level promises; nothing where it promises none.
pub fn expected(probe: &Probe, level: &str) -> Option<Expect> {
    match level {
        "none" => probe.promise.none,
        "basic" => probe.promise.basic,
        "standard" => probe.promise.standard,
        "strict" | "maximum" => probe.promise.strict,
        _ => None,
    }
}

/// The layer that stops the probe at that level: `basic` has no namespaces and no root of its own,
/// so Landlock, the filter and the limits stand where those stand above it.
pub fn layer_at(probe: &Probe, level: &str) -> &'static str {
    match (level, probe.layer) {
        ("basic", "root" | "net_namespace") if probe.category == Category::Network => "seccomp",
        ("basic", "root" | "mount_namespace" | "pid_namespace" | "proc" | "devices") => "landlock",
        ("basic", "user_namespace") => "identity",
        ("basic", "disk") => "rlimits",
        (_, layer) => layer,
    }
}

/// Judges by the level's promise alone: an unpromised refusal earns nothing.
pub fn judge(probe: &Probe, level: &str, attempt: &Attempt) -> Finding {
    if expected(probe, level).is_none() || matches!(attempt, Attempt::NotApplicable { .. }) {
        return Finding::NotApplicable;
    }
    match attempt.stopped_by() {
        Some(_) => Finding::Contained,
        None => Finding::Escaped,
    }
}

/// Judges an attempt made outside, by the user of that id.
pub fn shown(probe: &Probe, user: u32, attempt: &Attempt) -> Shown {
    /// The kernel was built without it, or the file systems of this host rule it out.
    const LACKING: [&str; 6] =
        ["ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "EOPNOTSUPP", "EXDEV", "ENODEV"];
    match attempt {
        Attempt::Allowed { .. } => Shown::Works,
        Attempt::NotApplicable { .. } => Shown::NotHere,
        Attempt::Refused { errno } if LACKING.contains(&errno.as_str()) => Shown::NotHere,
        // A kernel without 32-bit calls has no gate at that interrupt.
        Attempt::Killed { signal } if probe.name == "int80" && signal == "SIGSEGV" => {
            Shown::NotHere
        }
        Attempt::Refused { .. } | Attempt::Hidden { .. } if probe.needs_root && user != 0 => {
            Shown::NotHere
        }
        Attempt::Refused { .. }
        | Attempt::Hidden { .. }
        | Attempt::Killed { .. }
        | Attempt::Unanswered { .. } => Shown::Broken,
    }
}

/// Makes one attempt in this process, which may not survive it; nothing if there is no such probe.
///
/// A probe without control is made only at a level that promises to stop it.
pub fn attempt(name: &str, fixture: &Fixture) -> Option<Attempt> {
    let probe = find(name)?;
    if let (Control::Unsafe(why), None) = (probe.control, expected(probe, &fixture.level)) {
        return Some(Attempt::not_applicable(format!("not tried without its layer: {why}")));
    }
    let tried = (probe.act)(fixture);
    Some(tried.unwrap_or_else(|errno| Attempt::Refused { errno: errno.name().to_owned() }))
}

/// Makes every attempt, each in a child of its own, and writes a [`Line`] of JSON for each at once:
/// if the sandbox ends midway, the first probe without a line is the one that ended it.
pub fn attempt_all(fixture: &Fixture, mut out: impl Write) -> io::Result<()> {
    // Taken before anything here opens a descriptor of its own.
    let mut fixture = fixture.clone();
    fixture.open_at_start = Some(special::open_descriptors(fixture::MOST_DESCRIPTORS));
    for probe in CATALOGUE {
        let line = Line { probe: probe.name.to_owned(), attempt: attempt_apart(probe, &fixture) };
        fixture.clear_scratch();
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn attempt_apart(probe: &Probe, fixture: &Fixture) -> Attempt {
    let ended = in_child(probe.bound, || {
        attempt(probe.name, fixture)
            .and_then(|made| serde_json::to_vec(&made).ok())
            .unwrap_or_default()
    });
    let unanswered = |why: String| Attempt::Unanswered { why };
    match ended {
        Ok(Ended::Answered(json)) => serde_json::from_slice(&json)
            .unwrap_or_else(|error| unanswered(format!("cannot read its answer: {error}"))),
        Ok(Ended::Signaled(signal)) => Attempt::Killed { signal: signal.to_owned() },
        Ok(Ended::Silent(code)) => unanswered(format!("left with code {code} and no answer")),
        Ok(Ended::Stalled) => unanswered(format!("no answer in {} s", probe.bound.as_secs())),
        Err(error) => unanswered(format!("cannot start a process for it: {error}")),
    }
}

/// Pairs the printed lines with the catalogue. A sandbox that ended early was ended by the first
/// probe without a line: `ended_by` names the signal, if any. What comes after it is unanswered.
pub fn collect(printed: &str, ended_by: Option<&str>) -> Vec<(&'static Probe, Attempt)> {
    let lines: Vec<Line> =
        printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut ended_by = ended_by;
    let answer = |probe: &'static Probe| {
        let line = lines.iter().find(|line| line.probe == probe.name);
        let made = line.map(|line| line.attempt.clone()).unwrap_or_else(|| match ended_by.take() {
            Some(signal) => Attempt::Killed { signal: signal.to_owned() },
            None => Attempt::Unanswered { why: "the sandbox ended before it".to_owned() },
        });
        (probe, made)
    };
    CATALOGUE.iter().map(answer).collect()
}

/// `belljar __attempt all|PROBE FIXTURE_JSON`, run inside: `args` is what follows `__attempt`.
/// Scratch files go to the working directory. Gives the exit code: 0 when all was tried, 2 for bad
/// arguments, 125 when the answers could not be written.
pub fn main_inside(args: &[OsString]) -> u8 {
    let [which, fixture] = args else { return 2 };
    let (Some(which), Some(fixture)) = (which.to_str(), fixture.to_str()) else {
        return 2;
    };
    let Ok(mut fixture) = serde_json::from_str::<Fixture>(fixture) else {
        return 2;
    };
    fixture.scratch = ".".into();
    let mut out = io::stdout();
    let written = if which == "all" {
        attempt_all(&fixture, &mut out)
    } else {
        fixture.open_at_start = Some(special::open_descriptors(fixture::MOST_DESCRIPTORS));
        let Some(probe) = find(which) else { return 2 };
        let line = Line { probe: which.to_owned(), attempt: attempt_apart(probe, &fixture) };
        fixture.clear_scratch();
        serde_json::to_writer(&mut out, &line)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
    };
    if written.is_ok() { 0 } else { 125 }
}

impl Probe {
    const fn new(
        name: &'static str,
        category: Category,
        layer: &'static str,
        what: &'static str,
        act: Act,
    ) -> Self {
        let promise = Promise { none: None, basic: None, standard: None, strict: None };
        Probe {
            name,
            category,
            what,
            layer,
            control: Control::Works,
            needs_root: false,
            bound: BOUND,
            promise,
            act,
        }
    }

    const fn basic(mut self, expect: Expect) -> Self {
        self.promise.basic = Some(expect);
        self
    }

    /// Standard, and strict above it.
    const fn boxed(mut self, expect: Expect) -> Self {
        self.promise.standard = Some(expect);
        self.promise.strict = Some(expect);
        self
    }

    const fn strict(mut self, expect: Expect) -> Self {
        self.promise.strict = Some(expect);
        self
    }

    /// Basic and all above it.
    const fn walled(self, expect: Expect) -> Self {
        self.basic(expect).boxed(expect)
    }

    /// Every level, none included.
    const fn always(mut self, expect: Expect) -> Self {
        self.promise.none = Some(expect);
        self.walled(expect)
    }

    const fn needs_root(mut self) -> Self {
        self.needs_root = true;
        self
    }

    const fn within(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    const fn no_control(mut self, why: &'static str) -> Self {
        self.control = Control::Unsafe(why);
        self
    }
}

/// A call that reached its function: with nothing wrong, or with an error that comes after the
/// permission check.
fn reached(result: Result<i64, Errno>, after_permission: &[&str]) -> Result<Attempt, Errno> {
    match result {
        Ok(_) => Attempt::allowed("the call worked"),
        Err(errno) if after_permission.contains(&errno.name()) => {
            Attempt::allowed(format!("reached the kernel's function: {}", errno.name()))
        }
        Err(errno) => Err(errno),
    }
}

const PROBES: usize = files::PROBES.len()
    + writes::PROBES.len()
    + processes::PROBES.len()
    + privileges::PROBES.len()
    + mounts::PROBES.len()
    + kernel::PROBES.len()
    + devices::PROBES.len()
    + network::PROBES.len()
    + leaks::PROBES.len()
    + resources::PROBES.len();

/// Resources come last: a memory limit may end the sandbox as a whole.
const fn joined() -> [Probe; PROBES] {
    let parts = [
        files::PROBES,
        writes::PROBES,
        processes::PROBES,
        privileges::PROBES,
        mounts::PROBES,
        kernel::PROBES,
        devices::PROBES,
        network::PROBES,
        leaks::PROBES,
        resources::PROBES,
    ];
    let mut all = [files::PROBES[0]; PROBES];
    let (mut next, mut part) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[next] = parts[part][index];
            next += 1;
            index += 1;
        }
        part += 1;
    }
    all
}

#[cfg(test)]
mod tests;
