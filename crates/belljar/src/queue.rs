//! Who may run now, who waits, and who is told to come back. Bounded on both counts: a server that
//! takes everything in falls over for everybody, so full is an answer and not a wait.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::error::Error;

/// A line in front of an engine. Cheap to clone; all clones are the same line.
#[derive(Clone, Debug)]
pub struct Queue {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    running: usize,
    waiting: usize,
}

impl Queue {
    /// So many runs at once, and so many requests that wait for one of them to end.
    pub fn new(running: NonZeroUsize, waiting: usize) -> Self {
        let running = running.get().min(Semaphore::MAX_PERMITS / 2);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 2);
        Self {
            places: Arc::new(Semaphore::new(running + waiting)),
            turns: Arc::new(Semaphore::new(running)),
            running,
            waiting,
        }
    }

    /// How many runs go on at once.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Runs that go on now.
    pub fn taken_turns(&self) -> usize {
        self.running.saturating_sub(self.turns.available_permits())
    }

    /// Requests that run or wait now.
    pub fn taken_places(&self) -> usize {
        (self.running + self.waiting).saturating_sub(self.places.available_permits())
    }

    /// Takes a place in the line, or says at once that there is none. It is free again when the place
    /// and every clone of it are dropped.
    pub fn enter(&self) -> Result<Place, Error> {
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| self.busy())?;
        Ok(Place { queue: self.clone(), _permit: Arc::new(permit) })
    }

    fn busy(&self) -> Error {
        Error::Busy { running: self.running, waiting: self.waiting }
    }
}

/// A place in the line. A batch has one place and takes its turns one after the other, so that it
/// neither fills the line nor runs past those who came before.
#[derive(Clone, Debug)]
pub struct Place {
    queue: Queue,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Place {
    /// Waits until a run may begin; first come, first served. The run may go on while the turn lives.
    pub async fn turn(&self) -> Result<Turn, Error> {
        let turn = Arc::clone(&self.queue.turns).acquire_owned().await;
        // Nobody closes the line; if it were closed, nothing could run.
        turn.map(Turn).map_err(|_| self.queue.busy())
    }
}

/// The right to run one program.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(running: usize, waiting: usize) -> Queue {
        Queue::new(NonZeroUsize::new(running).unwrap(), waiting)
    }

    #[tokio::test]
    async fn a_full_line_says_so_at_once_and_has_room_again_after_an_end() {
        let queue = queue(1, 1);
        let first = queue.enter().unwrap();
        let turn = first.turn().await.unwrap();
        let second = queue.enter().unwrap();
        let error = queue.enter().unwrap_err();
        assert!(matches!(error, Error::Busy { running: 1, waiting: 1 }), "{error}");
        drop((first, turn));
        assert!(queue.enter().is_ok(), "the first one's place is free");
        second.turn().await.unwrap();
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_may() {
        let queue = queue(2, 8);
        let place = queue.enter().unwrap();
        let (one, _two) = (place.turn().await.unwrap(), place.turn().await.unwrap());
        let third = tokio::spawn({
            let place = place.clone();
            async move { place.turn().await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!third.is_finished(), "two run already");
        drop(one);
        third.await.unwrap().unwrap();
    }
}
