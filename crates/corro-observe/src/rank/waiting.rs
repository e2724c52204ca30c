//! How long the program has waited for its tensors.
//!
//! Several threads may wait at once; the time counts once. Two relaxed atomics on each way, and no lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Threads that wait.
    threads: AtomicU64,
    /// When the first of them began.
    since: AtomicU64,
    /// How long there were any, before that.
    nanos: AtomicU64,
}

impl Waiting {
    /// A thread waits from `now` on.
    pub fn begins(&self, now: u64) {
        if self.threads.fetch_add(1, Relaxed) == 0 {
            self.since.store(now, Relaxed);
        }
    }

    /// It has waited.
    pub fn ends(&self, now: u64) {
        let since = self.since.load(Relaxed);
        if self.threads.fetch_sub(1, Relaxed) == 1 {
            self.nanos.fetch_add(now.saturating_sub(since), Relaxed);
        }
    }

    /// Counts a time for which a thread has waited, where nobody else waits.
    pub fn add(&self, nanos: u64) {
        if self.threads.load(Relaxed) == 0 {
            self.nanos.fetch_add(nanos, Relaxed);
        }
    }

    /// How long some thread has waited until `now`.
    pub fn total(&self, now: u64) -> u64 {
        let done = self.nanos.load(Relaxed);
        done + self.since(now).unwrap_or(0)
    }

    /// For how long some thread has waited without a break, if one waits.
    pub fn since(&self, now: u64) -> Option<u64> {
        (self.threads.load(Relaxed) > 0).then(|| now.saturating_sub(self.since.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_wait_together_count_once() {
        let waiting = Waiting::default();
        waiting.begins(10);
        waiting.begins(15);
        waiting.ends(20);
        assert_eq!((waiting.total(25), waiting.since(25)), (15, Some(15)));
        waiting.ends(30);
        waiting.add(5);
        assert_eq!((waiting.total(99), waiting.since(99)), (25, None));
    }
}
