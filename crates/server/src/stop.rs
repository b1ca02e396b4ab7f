//! The end of a server in two steps: drain (finish what runs), then cancel (end what still runs).

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Draining,
    Cancelled,
}

/// Says where the server is on its way to its end; any part may wait for a step.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    phase: watch::Sender<Phase>,
}

impl Stop {
    pub(crate) fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Open) }
    }

    pub(crate) fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    pub(crate) fn cancel(&self) {
        self.phase.send_replace(Phase::Cancelled);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    pub(crate) async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    pub(crate) async fn cancelled(&self) {
        self.reached(Phase::Cancelled).await;
    }

    async fn reached(&self, wanted: Phase) {
        let mut phase = self.phase.subscribe();
        // The sender is ours, so it cannot be gone.
        phase.wait_for(|now| *now >= wanted).await.ok();
    }
}
