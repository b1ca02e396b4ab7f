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
    pub passing: Pace,
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
            passing: Pace::new(plan.bytes_per_second),
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
    pub(crate) fn pass(&self, bytes: u64) -> bool {
        let left = self.bytes.get().saturating_sub(bytes);
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

/// So many bytes a second, of all connections together. Who has passed more waits before it goes on.
#[derive(Debug)]
pub(crate) struct Pace {
    per_second: u64,
    until: Cell<Option<Instant>>,
}

/// What may come at once: so much of a second's bytes.
const BURST: Duration = Duration::from_millis(250);

impl Pace {
    fn new(per_second: u64) -> Self {
        Self { per_second: per_second.max(1), until: Cell::new(None) }
    }

    /// So many have passed; how long to wait for the next.
    pub(crate) fn pass(&self, bytes: usize, now: Instant) -> Duration {
        let nanos = (bytes as u128) * 1_000_000_000 / u128::from(self.per_second);
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let from = self.until.get().filter(|until| *until > earliest).unwrap_or(earliest);
        let until = from + took;
        self.until.set(Some(until));
        until.saturating_duration_since(now)
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
    fn bytes_have_a_pace_after_a_burst() {
        let pace = Pace::new(1000);
        let now = Instant::now() + Duration::from_secs(60);
        assert_eq!(pace.pass(250, now), Duration::ZERO);
        assert_eq!(pace.pass(500, now), Duration::from_millis(500));
        assert_eq!(pace.pass(100, now + Duration::from_millis(500)), Duration::from_millis(100));
        assert_eq!(pace.pass(250, now + Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(Pace::new(64 << 30).pass(1 << 20, now), Duration::ZERO);
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
