//! Keepers that have not exited yet. Who drops a run does not wait for its end, but somebody may want
//! to: a command on Ctrl-C, a server that drains.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use belljar_sys::process::Child;
use tokio::sync::watch;

/// Counts the keepers and zygotes of one engine, and reaps those that nobody waits for.
#[derive(Clone, Debug)]
pub(crate) struct Alive {
    count: Arc<watch::Sender<usize>>,
    reaper: Arc<OnceLock<mpsc::Sender<Leaving>>>,
}

/// A process that is about to exit, and what to do when it has.
struct Leaving {
    child: Child,
    then: Box<dyn FnOnce() + Send>,
}

impl Default for Alive {
    fn default() -> Self {
        Self { count: Arc::new(watch::Sender::new(0)), reaper: Arc::default() }
    }
}

impl Alive {
    pub(crate) fn started(&self) {
        self.count.send_modify(|count| *count += 1);
    }

    pub(crate) fn reaped(&self) {
        self.count.send_modify(|count| *count -= 1);
    }

    /// Reaps a process that ends by itself now that its socket is closed, and does something more then.
    /// On a thread of its own: who drops a run must not block.
    pub(crate) fn see_off(&self, child: Child, then: impl FnOnce() + Send + 'static) {
        let count = self.count.clone();
        let done = move || {
            then();
            count.send_modify(|count| *count -= 1);
        };
        let reaper = self.reaper.get_or_init(start_reaper);
        // The thread lives as long as the sender does, which is right here.
        reaper.send(Leaving { child, then: Box::new(done) }).ok();
    }

    /// Waits until all are gone, or for so long; says whether all are gone.
    pub(crate) async fn settle(&self, limit: Duration) -> bool {
        let mut count = self.count.subscribe();
        tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await.is_ok()
    }
}

fn start_reaper() -> mpsc::Sender<Leaving> {
    let (sender, leaving) = mpsc::channel::<Leaving>();
    std::thread::spawn(move || {
        for Leaving { child, then } in leaving {
            child.wait();
            then();
        }
    });
    sender
}
