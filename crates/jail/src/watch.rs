//! The clocks of a running program: when to look again, and what has run out.

use std::time::{Duration, Instant};

use crate::cgroup::Group;
use crate::plan::Plan;
use crate::report::Cause;
use crate::tree;

/// How often an alarm of memory is looked after before it is taken for a false one.
const ALARMED_LOOKS: u32 = 400;
/// CPU time is looked at no more often than this,
const CPU_LOOK: Duration = Duration::from_millis(5);
/// and than this where it is summed over the host's process table.
const TREE_LOOK: Duration = Duration::from_millis(20);

/// The clocks of a running program.
pub(crate) struct Watch {
    deadline: Instant,
    cpu_limit: Duration,
    millicpus: u64,
    /// There is a limit on CPU time and no cgroup that counts it. RLIMIT_CPU cannot be relied on: it counts
    /// clock ticks, which on a busy host are off by a fifth, and leaves no trace but a signal.
    counts_tree: bool,
    /// Looks left for a death by memory: v1 raises its alarm before it has killed anybody.
    alarmed: u32,
    /// Why the run was ended, once it was: the first cause wins.
    pub ended_by: Option<Cause>,
    pub give_up_at: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(plan: &Plan, released: Instant, parked_cpu_us: u64) -> Self {
        Self {
            deadline: released + Duration::from_millis(plan.wall_ms),
            cpu_limit: Duration::from_millis(plan.cpu_ms) + Duration::from_micros(parked_cpu_us),
            millicpus: plan.millicpus.max(1),
            counts_tree: plan.cgroup.is_none() && plan.lockdown.is_some(),
            alarmed: 0,
            ended_by: None,
            give_up_at: None,
        }
    }

    /// When something may happen that no descriptor tells of.
    pub(crate) fn next_look(&self, group: Option<&Group>) -> Duration {
        let now = Instant::now();
        if let Some(at) = self.give_up_at {
            return at.saturating_duration_since(now);
        }
        let mut wall = self.deadline.saturating_duration_since(now);
        if self.alarmed > 0 {
            wall = wall.min(CPU_LOOK);
        }
        let Some(used) = self.cpu_used(group) else {
            return wall;
        };
        let cpu_left = self.cpu_limit.saturating_sub(used);
        // With so many cores, CPU time can run out no sooner than this.
        let (cores, least) = if self.counts_tree {
            let all = std::thread::available_parallelism().map_or(1, usize::from);
            (u32::try_from(all), TREE_LOOK)
        } else {
            (u32::try_from(self.millicpus.div_ceil(1000)), CPU_LOOK)
        };
        wall.min((cpu_left / cores.unwrap_or(u32::MAX)).max(least))
    }

    /// What the whole tree used, if that is limited.
    fn cpu_used(&self, group: Option<&Group>) -> Option<Duration> {
        if self.counts_tree {
            return Some(tree::cpu_time());
        }
        group.and_then(Group::cpu_us).map(Duration::from_micros)
    }

    pub(crate) fn gave_up(&self) -> bool {
        self.give_up_at.is_some_and(|at| Instant::now() >= at)
    }

    /// Memory has run out, or is about to have: look closely for a while.
    pub(crate) fn alarm(&mut self) {
        self.alarmed = ALARMED_LOOKS;
    }

    pub(crate) fn overrun(&mut self, group: Option<&Group>) -> Option<Cause> {
        if self.alarmed > 0 {
            self.alarmed -= 1;
            if group.is_some_and(|group| group.oom_kills() > 0) {
                return Some(Cause::Memory);
            }
        }
        if Instant::now() >= self.deadline {
            return Some(Cause::WallTime);
        }
        (self.cpu_used(group)? >= self.cpu_limit).then_some(Cause::CpuTime)
    }
}
