//! Which memory of which peer is open here: each allocation once, until it is known to be gone.
//!
//! Pure: what opening means is an [`Opener`]'s. A peer that frees memory tells nobody. It shows when it brings something else
//! that lies at the same addresses; what was there before is then closed.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use corro_core::Result;

/// How memory of others is opened; dropping what was opened closes it.
pub trait Opener {
    /// What a peer says about an allocation: everything that tells it from another one.
    type Shared: Clone + Eq;
    /// An open one.
    type Open;

    /// Opens it.
    fn open(&self, shared: &Self::Shared) -> Result<Self::Open>;

    /// The addresses it has at its owner. Two allocations of one peer that overlap can't both be there.
    fn range(shared: &Self::Shared) -> Range<u64>;
}

/// See the module.
pub struct MappingCache<Peer, O: Opener> {
    opener: O,
    most: usize,
    now: u64,
    open: HashMap<(Peer, u64), Entry<O>>,
}

struct Entry<O: Opener> {
    shared: O::Shared,
    open: Arc<O::Open>,
    used: u64,
}

impl<Peer: Copy + Eq + Hash, O: Opener> MappingCache<Peer, O> {
    /// Keeps at most `most` allocations open, and at least one; those go first that were not used for longest.
    pub fn new(opener: O, most: usize) -> Self {
        Self { opener, most: most.max(1), now: 0, open: HashMap::new() }
    }

    /// The allocation that `peer` speaks of, opened now or before. Whoever holds it keeps it open.
    pub fn get(&mut self, peer: Peer, shared: &O::Shared) -> Result<Arc<O::Open>> {
        self.now += 1;
        let range = O::range(shared);
        let key = (peer, range.start);
        if let Some(entry) = self.open.get_mut(&key)
            && entry.shared == *shared
        {
            entry.used = self.now;
            return Ok(Arc::clone(&entry.open));
        }
        self.open.retain(|(owner, _), entry| *owner != peer || !overlap(&O::range(&entry.shared), &range));
        while self.open.len() >= self.most {
            self.close_oldest();
        }
        let open = Arc::new(self.opener.open(shared)?);
        self.open.insert(key, Entry { shared: shared.clone(), open: Arc::clone(&open), used: self.now });
        Ok(open)
    }

    /// Closes everything of a peer that has left.
    pub fn forget(&mut self, peer: Peer) {
        self.open.retain(|(owner, _), _| *owner != peer);
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn close_oldest(&mut self) {
        if let Some(key) = self.open.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) {
            self.open.remove(&key);
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start == b.start || (a.start < b.end && b.start < a.end)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use corro_core::Error;

    use super::*;

    type Log = Rc<RefCell<Vec<String>>>;

    struct Recorder(Log);

    #[derive(Clone, PartialEq, Eq)]
    struct Named(&'static str, Range<u64>);

    struct Opened(Log, &'static str);

    impl Drop for Opened {
        fn drop(&mut self) {
            self.0.borrow_mut().push(format!("close {}", self.1));
        }
    }

    impl Opener for Recorder {
        type Shared = Named;
        type Open = Opened;

        fn open(&self, shared: &Named) -> Result<Opened> {
            if shared.0 == "bad" {
                return Err(Error::Bug("refused".into()));
            }
            self.0.borrow_mut().push(format!("open {}", shared.0));
            Ok(Opened(Rc::clone(&self.0), shared.0))
        }

        fn range(shared: &Named) -> Range<u64> {
            shared.1.clone()
        }
    }

    fn cache(most: usize) -> (MappingCache<usize, Recorder>, Log) {
        let log = Log::default();
        (MappingCache::new(Recorder(Rc::clone(&log)), most), log)
    }

    fn said(log: &Log) -> Vec<String> {
        std::mem::take(&mut *log.borrow_mut())
    }

    #[test]
    fn an_allocation_is_opened_once_for_each_peer() {
        let (mut cache, log) = cache(8);
        for _ in 0..3 {
            cache.get(1, &Named("a", 0..100)).unwrap();
            cache.get(2, &Named("b", 0..100)).unwrap();
        }
        assert_eq!(said(&log), ["open a", "open b"]);
        drop(cache);
        let mut closed = said(&log);
        closed.sort();
        assert_eq!(closed, ["close a", "close b"]);
    }

    #[test]
    fn addresses_that_are_used_again_close_what_was_there() {
        let (mut cache, log) = cache(8);
        cache.get(1, &Named("a", 0..100)).unwrap();
        cache.get(1, &Named("b", 0..100)).unwrap();
        assert_eq!(said(&log), ["open a", "close a", "open b"]);
        // A larger one over the same place, and one beside it.
        cache.get(1, &Named("c", 100..200)).unwrap();
        cache.get(2, &Named("d", 0..50)).unwrap();
        cache.get(1, &Named("e", 50..150)).unwrap();
        let mut all = said(&log);
        all.sort();
        assert_eq!(all, ["close b", "close c", "open c", "open d", "open e"]);
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn what_is_held_stays_open() {
        let (mut cache, log) = cache(8);
        let held = cache.get(1, &Named("a", 0..100)).unwrap();
        cache.get(1, &Named("b", 0..100)).unwrap();
        assert_eq!(said(&log), ["open a", "open b"]);
        drop(held);
        assert_eq!(said(&log), ["close a"]);
    }

    #[test]
    fn the_one_not_used_for_longest_goes_first() {
        let (mut cache, log) = cache(2);
        for (name, range) in [("a", 0..1), ("b", 1..2), ("a", 0..1), ("c", 2..3)] {
            cache.get(1, &Named(name, range)).unwrap();
        }
        assert_eq!(said(&log), ["open a", "open b", "close b", "open c"]);
    }

    #[test]
    fn a_peer_that_left_is_forgotten_and_a_failure_is_not_kept() {
        let (mut cache, log) = cache(8);
        cache.get(1, &Named("a", 0..1)).unwrap();
        cache.get(2, &Named("b", 0..1)).unwrap();
        assert!(cache.get(1, &Named("bad", 5..6)).is_err());
        cache.forget(1);
        assert_eq!((said(&log), cache.len()), (vec!["open a".into(), "open b".into(), "close a".into()], 1));
        assert!(!cache.is_empty());
    }
}
