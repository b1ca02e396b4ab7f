//! Named moments of a change. Tests stop there, as a crash would, and look at what the next start makes of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::StoreError;

#[derive(Debug)]
pub(super) struct Steps {
    /// How many more are passed; the largest number stands for all.
    left: AtomicUsize,
    #[cfg(test)]
    dies: std::sync::atomic::AtomicBool,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            left: AtomicUsize::new(usize::MAX),
            #[cfg(test)]
            dies: Default::default(),
        }
    }
}

impl Steps {
    pub(super) fn reach(&self, name: &'static str) -> Result<(), StoreError> {
        if self.left.load(Ordering::Relaxed) == usize::MAX {
            return Ok(());
        }
        // Once stopped, every later step stops too: what crashed does not clean up.
        let take = |left: usize| Some(left.saturating_sub(1));
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(0) => {
                #[cfg(test)]
                self.die();
                Err(StoreError::Stopped(name))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The same, by the death of this process.
    #[cfg(test)]
    pub(super) fn die_after(&self, passed: usize) {
        self.dies.store(true, Ordering::Relaxed);
        self.stop_after(passed);
    }

    #[cfg(test)]
    fn die(&self) {
        if self.dies.load(Ordering::Relaxed) {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
        }
    }

    #[cfg(test)]
    pub(super) fn stop_after(&self, passed: usize) {
        self.left.store(passed, Ordering::Relaxed);
    }
}
