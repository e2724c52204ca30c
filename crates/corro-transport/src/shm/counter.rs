//! A number of rounds in shared memory, set by the member it belongs to, waited for by others.
//!
//! Who wants to sleep counts itself among the sleepers first and looks at the number then; who sets the number looks for
//! sleepers afterwards. All four are sequentially consistent, so one of the two always sees the other.

use std::time::Duration;

use crate::primitive::{AtomicU32, Ordering, sleep_on, wake};

/// See the module.
pub(crate) struct Counter<'a> {
    rounds: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl<'a> Counter<'a> {
    /// The counter of these two words, which nothing else is done with.
    pub(crate) fn new(rounds: &'a AtomicU32, sleepers: &'a AtomicU32) -> Self {
        Self { rounds, sleepers }
    }

    /// Says that `round` has come. Whoever sees that sees all that was written before.
    pub(crate) fn set(&self, round: u32) {
        self.rounds.store(round, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            wake(self.rounds);
        }
    }

    /// Wakes everyone who sleeps on it, to look for something else.
    pub(crate) fn wake(&self) {
        wake(self.rounds);
    }

    /// Whether `round` has come.
    pub(crate) fn has_reached(&self, round: u32) -> bool {
        // Acquire: what the member wrote before it set the round is visible now.
        is_at_least(self.rounds.load(Ordering::Acquire), round)
    }

    /// Sleeps until `round` has come, or for a while: the caller looks again, whatever ended the sleep.
    pub(crate) fn sleep(&self, round: u32, nap: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.rounds.load(Ordering::SeqCst);
        if !is_at_least(seen, round) {
            sleep_on(self.rounds, seen, nap);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Rounds wrap around after 2^32: "at least" means less than half the circle ahead.
fn is_at_least(seen: u32, round: u32) -> bool {
    seen.wrapping_sub(round) as i32 >= 0
}
