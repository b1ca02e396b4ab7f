//! From raw facts to security events: what the keeper saw a program try, named, judged and counted.
//!
//! The keeper answers and tells numbers; here they get names, a kind, a severity and a fix. What is a
//! pattern only over time (storms of refusals, scans of ports) is looked for at the end.

mod address;
mod boundary;
mod canary;
mod describe;
mod egress;
mod flags;
mod record;
mod shapes;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belljar_jail::egress::{Reached, Rule};
use belljar_jail::tried::{Counted, Seen, Touched, Tried, Untold};

use crate::model::event::{Event, EventKind, Process, Severity};
use crate::model::recording::Recording;
use crate::model::wording;
use crate::seccomp::{self, Adjust, Hearing, Mark, Profile, Refusal};
use address::Address;
use describe::Call;
use record::Timeline;

pub(crate) use canary::Canaries;
pub(crate) use egress::event as egress_event;
pub(crate) use shapes::{Recorded, listen};

/// As much as the keeper reads of a command line.
const MAX_COMMAND: usize = 512;
/// So many different ports of one host, or hosts, are no ordinary client.
const SCAN: usize = 20;
/// So many refusals of what innocent programs do not try are a storm.
const DENIAL_STORM: u64 = 1000;

/// Under which filter a program runs: what is needed to say why a call was refused.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub profile: Profile,
    pub adjust: Adjust,
    pub hearing: Hearing,
}

/// Gets each event when it is first seen. It must not wait: the run's output is not read meanwhile.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;

/// What one program tried so far.
pub(crate) struct Tally {
    rules: Rules,
    sink: Option<EventSink>,
    events: Vec<Event>,
    /// Which event a number of the keeper's belongs to.
    numbers: BTreeMap<u32, usize>,
    targets: BTreeMap<IpAddr, BTreeSet<u16>>,
    recording: Option<Timeline>,
    /// The way out: what may be reached, what was, and which event each refusal is.
    rules_out: Vec<Rule>,
    reached: Vec<Reached>,
    refusals: BTreeMap<u32, usize>,
}

impl Tally {
    pub(crate) fn new(rules: Rules, sink: Option<EventSink>) -> Self {
        let recording = (rules.hearing == Hearing::Record).then(Timeline::default);
        Self {
            rules,
            sink,
            events: Vec::new(),
            numbers: BTreeMap::new(),
            targets: BTreeMap::new(),
            recording,
            rules_out: Vec::new(),
            reached: Vec::new(),
            refusals: BTreeMap::new(),
        }
    }

    /// Takes what was tried, and tells of it if it is new.
    pub(crate) fn take(&mut self, tried: &Tried) {
        let call = Call::of(tried);
        if let Some(recording) = &mut self.recording
            && tried.errno == 0
            && let Some(entry) = record::entry(tried, &call)
        {
            recording.take(tried.number, entry);
        }
        let event = match tried.errno {
            0 => self.allowed(tried, &call),
            _ => self.refused(tried, &call),
        };
        let Some(event) = event else { return };
        let known = self.events.iter().position(|known| known.is_like(&event));
        let place = known.unwrap_or(self.events.len());
        self.numbers.insert(tried.number, place);
        match known.and_then(|place| self.events.get_mut(place)) {
            Some(known) => known.count += 1,
            None => self.tell(event),
        }
    }

    fn tell(&mut self, event: Event) {
        if let Some(sink) = &self.sink {
            sink(&event);
        }
        self.events.push(event);
    }

    fn refused(&self, tried: &Tried, call: &Call) -> Option<Event> {
        let Rules { profile, adjust, .. } = &self.rules;
        let refusal = seccomp::refusal(*profile, adjust, tried.call, &tried.args)?;
        let Mark::Told(kind, severity) = refusal.mark else {
            return None;
        };
        let (rule, fix) = (rule(*profile, &refusal), fix(&refusal, &tried.args));
        let detail = call.describe(tried);
        Some(Event { kind, severity, detail, rule, fix, ..of_call(tried, call) })
    }

    /// An allowed call is an event only for where it leads.
    fn allowed(&mut self, tried: &Tried, call: &Call) -> Option<Event> {
        if let Some(entry) = record::entry(tried, call)
            && let Some(rule) = boundary::crossed(&entry)
        {
            return Some(boundary::event(tried, call, &entry, rule));
        }
        let address = call.address(tried).filter(|_| call.name == "connect")?;
        if let Address::Ip(target) = &address {
            self.targets.entry(target.ip()).or_default().insert(target.port());
        }
        if address.is_own() {
            return None;
        }
        if let (Address::Ip(target), false) = (&address, self.rules_out.is_empty()) {
            match egress::meaning(&self.rules_out, *target) {
                egress::Meaning::Passes => return None,
                egress::Meaning::Closed(host) => {
                    let event = egress::closed_port(&host, target.port());
                    return Some(of_call_with(event, of_call(tried, call)));
                }
                egress::Meaning::Elsewhere => {}
            }
        }
        let (kind, severity, fix) = if address.is_metadata() {
            (EventKind::EscapeAttempt, Severity::High, wording::metadata_fix())
        } else {
            (EventKind::PermissionDenied, Severity::Low, wording::no_network_fix())
        };
        let detail = wording::connection(&address.to_string(), address.is_metadata());
        let rule = "net_namespace".to_owned();
        Some(Event { kind, severity, detail, rule, fix, ..of_call(tried, call) })
    }

    /// Takes that what stands over a secret was opened.
    pub(crate) fn touch(&mut self, touched: &Touched) {
        let path = format!("/proc/{}", touched.name);
        let detail = wording::masked(&shown::plain(path.as_bytes()));
        let event = Event {
            kind: EventKind::EscapeAttempt,
            severity: Severity::Medium,
            time: time_of(touched.time_ms),
            process: None,
            syscall: None,
            detail,
            rule: "proc".to_owned(),
            fix: wording::boundary_fix(),
            count: 1,
        };
        self.tell(event);
    }

    /// Takes how often each thing was seen.
    pub(crate) fn count(&mut self, counted: &Counted) {
        if let Some(recording) = &mut self.recording {
            recording.count(counted);
        }
        for (number, count, _) in &counted.counts {
            if let Some(event) = self.numbers.get(number).and_then(|at| self.events.get_mut(*at)) {
                event.count += count - 1;
            }
        }
        counted.untold.iter().for_each(|one| self.count_untold(one));
    }

    /// Refusals of which no more is known than the call and how grave they were.
    fn count_untold(&mut self, untold: &Untold) {
        let Some(severity) = Severity::of_weight(untold.weight) else { return };
        let Rules { profile, adjust, .. } = &self.rules;
        let found = seccomp::refusal_so_grave(*profile, adjust, untold.call, severity);
        let Some(refusal) = found else { return };
        let Mark::Told(kind, _) = refusal.mark else { return };
        let rule = rule(*profile, &refusal);
        let is_same = |event: &&mut Event| event.rule == rule && event.severity == severity;
        if let Some(known) = self.events.iter_mut().rfind(is_same) {
            known.count += untold.count;
            return;
        }
        self.tell(Event {
            kind,
            severity,
            time: time_of(untold.time_ms),
            process: None,
            syscall: Some(refusal.name.to_owned()),
            detail: wording::untold(refusal.name),
            rule,
            fix: fix(&refusal, &[0; 6]),
            count: untold.count,
        });
    }

    /// All of it, with the patterns that show only now.
    pub(crate) fn finish(mut self, now: SystemTime) -> (Vec<Event>, Option<Recording>) {
        let patterns: Vec<Event> =
            self.denial_storm(now).into_iter().chain(self.port_scan(now)).collect();
        self.events.extend(patterns);
        (self.events, self.recording.map(Timeline::finish))
    }

    fn denial_storm(&self, now: SystemTime) -> Option<Event> {
        let grave = self.events.iter().filter(|event| event.severity > Severity::Info);
        let refused = grave.filter(|event| event.rule.starts_with("seccomp"));
        let (mut all, mut most): (u64, Option<&Event>) = (0, None);
        for event in refused {
            all = all.saturating_add(event.count);
            most = most.filter(|known| known.count >= event.count).or(Some(event));
        }
        let most = most.filter(|_| all >= DENIAL_STORM)?;
        let detail = wording::denial_storm(all, most.syscall.as_deref().unwrap_or_default());
        Some(pattern(now, detail, "denial_storm", most.process.clone()))
    }

    fn port_scan(&self, now: SystemTime) -> Option<Event> {
        let ports = self.targets.iter().max_by_key(|(_, ports)| ports.len());
        let detail = match ports {
            Some((host, ports)) if ports.len() >= SCAN => {
                wording::port_scan(&host.to_string(), ports.len())
            }
            _ if self.targets.len() >= SCAN => wording::host_scan(self.targets.len()),
            _ => return None,
        };
        Some(pattern(now, detail, "port_scan", None))
    }
}

/// What only shows over time.
pub(crate) fn pattern(
    now: SystemTime,
    detail: String,
    rule: &str,
    process: Option<Process>,
) -> Event {
    Event {
        kind: EventKind::SuspiciousBehavior,
        severity: Severity::Medium,
        time: humantime::format_rfc3339_millis(now).to_string(),
        process,
        syscall: None,
        detail,
        rule: format!("pattern/{rule}"),
        fix: wording::pattern_fix(),
        count: 1,
    }
}

fn time_of(milliseconds: u64) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds));
    humantime::format_rfc3339_millis(time.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}

fn process(seen: &Seen) -> Option<Process> {
    (seen.pid != 0).then(|| Process {
        pid: seen.pid,
        command: shown::command(&seen.command, MAX_COMMAND),
        parent: (seen.parent != 0).then_some(seen.parent),
    })
}

/// Where the rule stands, for whoever wants to read its reason (`belljar levels`).
fn rule(profile: Profile, refusal: &Refusal) -> String {
    let by = match profile {
        _ if refusal.by_request => "request",
        _ if refusal.by_workspace => "workspace",
        Profile::Basic => "basic",
        Profile::Standard => "standard",
        Profile::Strict => "strict",
    };
    format!("seccomp/{by}/{}", refusal.name)
}

/// Flags of clone and unshare that anybody may ask for; all others need a capability.
const CLONE_NEWUSER: u64 = 0x1000_0000;
const NAMESPACES: u64 = 0x7e02_0080;

/// Calls for which the kernel wants a capability, which no program has here, whatever is allowed.
const PRIVILEGED: [&str; 40] = [
    "acct",
    "adjtimex",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "fanotify_mark",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "lookup_dcookie",
    "mknod",
    "mknodat",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_by_handle_at",
    "open_tree",
    "open_tree_attr",
    "pivot_root",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "vhangup",
];

/// One of them is of no use without the others; the first is the old form of the second.
const WATCHING: [&str; 4] =
    ["inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch"];

fn fix(refusal: &Refusal, args: &[u64; 6]) -> String {
    let name = refusal.name;
    let namespaces = args[0] & NAMESPACES;
    let no_capability = PRIVILEGED.contains(&name)
        || matches!(name, "clone" | "unshare")
            && namespaces != 0
            && namespaces & CLONE_NEWUSER == 0;
    if refusal.by_request {
        wording::not_denied_fix(name)
    } else if refusal.by_workspace {
        wording::workspace_fix()
    } else if no_capability {
        wording::capability_fix()
    } else if WATCHING.contains(&name) {
        wording::allow_all_fix(&WATCHING[1..])
    } else if refusal.allowed_at_standard {
        wording::level_fix(name)
    } else {
        wording::allow_fix(name)
    }
}

/// An event with who made the call, and when.
fn of_call_with(event: Event, call: Event) -> Event {
    Event { time: call.time, process: call.process, syscall: call.syscall, ..event }
}

/// What is known of every call: when it was made, by whom, and its name.
fn of_call(tried: &Tried, call: &Call) -> Event {
    Event {
        kind: EventKind::SyscallBlocked,
        severity: Severity::Info,
        time: time_of(tried.time_ms),
        process: process(&tried.process),
        syscall: Some(call.name.clone()),
        detail: String::new(),
        rule: String::new(),
        fix: String::new(),
        count: 1,
    }
}
