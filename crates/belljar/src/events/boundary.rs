//! Files that are the boundary itself: raw devices, and what the kernel is set by. No filter sees paths, and to look at
//! every open would make all of them dear; so outside of a recorded run only opens that write to what must be there
//! already are brought to the keeper, which looks for these beginnings. What stands over the secrets of /proc tells by
//! itself.

use belljar_jail::tried::Tried;

use super::describe::Call;
use super::{process, time_of};
use crate::model::event::{Event, EventKind, Severity};
use crate::model::recording::{Act, Entry};
use crate::model::wording;

/// Devices behind which lie memory, disks, ports and the kernel's log.
const RAW_DEVICES: [&str; 5] = ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm"];
const DISKS: [&str; 11] = [
    "/dev/sd",
    "/dev/nvme",
    "/dev/vd",
    "/dev/xvd",
    "/dev/hd",
    "/dev/mmcblk",
    "/dev/md",
    "/dev/dm-",
    "/dev/loop",
    "/dev/mapper/",
    "/dev/disk/",
];
/// What is written here changes the host.
const KERNEL: [&str; 3] = ["/proc/sys/", "/proc/sysrq-trigger", "/sys/"];

/// How their paths begin, all of them.
pub(super) fn beginnings() -> impl Iterator<Item = &'static str> {
    RAW_DEVICES.into_iter().chain(DISKS).chain(KERNEL)
}

/// The layer that stands where an entry leads, if that is the boundary.
pub(super) fn crossed(entry: &Entry) -> Option<&'static str> {
    let (act, path) = (entry.act, entry.target.as_str());
    let is_open = matches!(act, Act::Read | Act::Change);
    let is_device =
        RAW_DEVICES.contains(&path) || DISKS.iter().any(|prefix| path.starts_with(prefix));
    if is_open && is_device {
        return Some("devices");
    }
    let is_kernel = KERNEL.iter().any(|prefix| path.starts_with(prefix));
    (act == Act::Change && is_kernel).then_some("proc")
}

pub(super) fn event(tried: &Tried, call: &Call, entry: &Entry, rule: &str) -> Event {
    Event {
        kind: EventKind::EscapeAttempt,
        severity: Severity::High,
        time: time_of(tried.time_ms),
        process: process(&tried.process),
        syscall: Some(call.name.clone()),
        detail: wording::opened(&entry.target, entry.act == Act::Change),
        rule: rule.to_owned(),
        fix: wording::boundary_fix(),
        count: 1,
    }
}
