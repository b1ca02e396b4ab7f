//! How much may pass: numbers that only go down, and rates.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_jail::egress::Budget as Plan;
use tokio::sync::Semaphore;

/// What is left of a sandbox's budget.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: Cell<u64>,
    connections: Cell<u64>,
    pub at_once: Arc<Semaphore>,
    pub opening: Rate,
    pub asking: Rate,
    pub idle: Duration,
}

impl Budget {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            bytes: Cell::new(plan.bytes),
            connections: Cell::new(plan.connections),
            at_once: Arc::new(Semaphore::new(plan.connections_at_once.max(1) as usize)),
            opening: Rate::new(plan.connections_per_second),
            asking: Rate::new(plan.lookups_per_second),
            idle: Duration::from_millis(plan.idle_ms.max(1)),
        }
    }

    /// One more connection; the answer says what is used up if there may be none.
    pub(crate) fn connect(&self) -> Result<(), &'static str> {
        if self.bytes.get() == 0 {
            return Err("bytes");
        }
        let left = self.connections.get().checked_sub(1).ok_or("connections")?;
        self.connections.set(left);
        Ok(())
    }

    /// So many bytes have passed; `false` when they were the last.
    pub(crate) fn pass(&self, bytes: usize) -> bool {
        let left = self.bytes.get().saturating_sub(bytes as u64);
        self.bytes.set(left);
        left > 0
    }
}

/// So many a second, after a burst of as many. Who comes too soon waits.
#[derive(Debug)]
pub(crate) struct Rate {
    each: Duration,
    burst: Duration,
    /// When the budget of the past is used up.
    until: Cell<Option<Instant>>,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        let each = Duration::from_secs(1) / per_second.max(1);
        Self { each, burst: Duration::from_secs(1), until: Cell::new(None) }
    }

    /// How long to wait for the next turn, which is taken.
    fn turn(&self, now: Instant) -> Duration {
        let from = self.until.get().filter(|until| *until + self.burst > now);
        let from = from.unwrap_or_else(|| now.checked_sub(self.burst).unwrap_or(now));
        let next = from + self.each;
        self.until.set(Some(next));
        next.saturating_duration_since(now)
    }

    pub(crate) async fn wait(&self) {
        let left = self.turn(Instant::now());
        if !left.is_zero() {
            tokio::time::sleep(left).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_connections_run_out() {
        let plan = Plan { bytes: 10, connections: 2, ..Plan::default() };
        let budget = Budget::new(&plan);
        assert_eq!(budget.connect(), Ok(()));
        assert_eq!(budget.connect(), Ok(()));
        assert_eq!(budget.connect(), Err("connections"));
        assert!(budget.pass(9) && !budget.pass(5));
        assert_eq!(budget.connect(), Err("bytes"));
    }

    #[test]
    fn a_burst_is_let_through_and_then_one_at_a_time() {
        let rate = Rate::new(10);
        let now = Instant::now() + Duration::from_secs(60);
        let waits: Vec<Duration> = (0..13).map(|_| rate.turn(now)).collect();
        assert!(waits[..10].iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(waits[11..], [Duration::from_millis(200), Duration::from_millis(300)]);
        assert!(rate.turn(now + Duration::from_secs(5)).is_zero());
    }
}
