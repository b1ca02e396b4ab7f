//! Keepers that have not exited yet. Who drops a run does not wait for its end, but somebody may want
//! to: a command on Ctrl-C, a server that drains.

use std::sync::Arc;
use std::time::Duration;

use belljar_sys::process::Child;
use tokio::sync::watch;

/// Counts the keepers of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Alive(Arc<watch::Sender<usize>>);

impl Default for Alive {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Alive {
    pub(crate) fn started(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(crate) fn reaped(&self) {
        self.0.send_modify(|count| *count -= 1);
    }

    /// Reaps a keeper whose run was dropped, on a thread of its own: dropping must not block.
    pub(crate) fn see_off(&self, child: Child) {
        let this = self.clone();
        std::thread::spawn(move || {
            // It ends by itself when its socket closes.
            child.wait();
            this.reaped();
        });
    }

    /// Waits until all are gone, or for so long; says whether all are gone.
    pub(crate) async fn settle(&self, limit: Duration) -> bool {
        let mut count = self.0.subscribe();
        tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await.is_ok()
    }
}
