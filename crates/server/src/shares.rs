//! What is bounded for all, and for each tenant by a share of it: one alone cannot keep the others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So much of something.
#[derive(Debug)]
pub(crate) struct Shares {
    most: u64,
    share: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    /// Of tenants that have any.
    each: HashMap<String, u64>,
}

/// Some of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    who: String,
    count: u64,
}

impl Shares {
    /// `share` is what one tenant may have; the owner of the server, who has no name, may have all.
    pub(crate) fn new(most: u64, share: u64) -> Arc<Self> {
        Arc::new(Self { most, share: share.clamp(1, most.max(1)), taken: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Self>, who: &str, count: u64) -> Option<Share> {
        let mut share = Share { of: Arc::clone(self), who: who.to_owned(), count: 0 };
        share.grow(count).then_some(share)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes more; says whether there was so much.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let mut taken = self.of.lock();
        let own = taken.each.get(&self.who).copied().unwrap_or(0);
        let most = if self.who.is_empty() { self.of.most } else { self.of.share };
        if taken.all + more > self.of.most || own + more > most {
            return false;
        }
        taken.all += more;
        *taken.each.entry(self.who.clone()).or_default() += more;
        self.count += more;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        taken.all = taken.all.saturating_sub(self.count);
        let left = taken.each.get(&self.who).map_or(0, |own| own.saturating_sub(self.count));
        if left == 0 {
            taken.each.remove(&self.who);
        } else {
            taken.each.insert(self.who.clone(), left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_has_its_share_and_the_others_have_theirs() {
        let all = Shares::new(10, 4);
        let mut one = all.take("one", 3).unwrap();
        assert!(!one.grow(2) && one.grow(1), "four, and no more");
        assert!(all.take("one", 1).is_none());
        let other = all.take("other", 4).unwrap();
        assert!(all.take("third", 3).is_none(), "two are left of all");
        assert!(all.take("", 3).is_none() && all.take("", 2).is_some());
        drop((one, other));
        let owner = all.take("", 10).unwrap();
        assert!(all.take("one", 1).is_none());
        drop(owner);
        assert!(all.take("one", 4).is_some() && all.lock().each.is_empty());
    }
}
