//! What is still owed to sandboxes: programs to be ended and sandboxes to be torn down, because nobody waits for them any
//! more. It is done beside everything else; a command that is about to end waits for it.

use tokio::sync::watch;

/// How much is owed.
#[derive(Clone, Debug)]
pub(super) struct Owed(watch::Sender<usize>);

/// One thing that is owed, until this is dropped.
#[derive(Debug)]
pub(super) struct Debt(Owed);

impl Default for Owed {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Owed {
    pub(super) fn one_more(&self) -> Debt {
        self.0.send_modify(|count| *count += 1);
        Debt(self.clone())
    }

    /// Returns when nothing is owed.
    pub(super) async fn nothing(&self) {
        // We hold the sender ourselves, so it is never gone.
        self.0.subscribe().wait_for(|count| *count == 0).await.ok();
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_owed_when_the_last_debt_is_paid() {
        let owed = Owed::default();
        owed.nothing().await;
        let debts = [owed.one_more(), owed.clone().one_more()];
        let waiting = tokio::spawn({
            let owed = owed.clone();
            async move { owed.nothing().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(debts);
        waiting.await.unwrap();
    }
}
