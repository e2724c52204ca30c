//! Whether one who submits a tensor does the engine's work for a moment, instead of leaving it to the engine's threads.
//!
//! If the other ranks are ready, that saves waking a thread. If they are not, the caller's thread is kept from other work.
//! So a place in the program that had to wait pauses for some calls before it tries again, and for twice as many each time
//! it has to wait again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use corro_core::Result;
use corro_engine::{Engine, Submission, Ticket};

/// Tensors up to this many bytes are worth a moment of the caller's thread.
const SMALL: usize = 64 << 10;

/// Waking others takes up to a few tenths of this where ranks share cores. Who has waited longer for the other ranks had
/// better left the waiting to them.
const A_MOMENT: Duration = Duration::from_millis(1);

/// How many calls are left to the engine's threads after one that took longer: at first, and at most.
const PAUSES: (u32, u32) = (8, 1024);

/// What the calls from one place have learned. See the module.
#[derive(Debug, Default)]
pub(super) struct WorkInPlace {
    /// Calls until the next attempt.
    left: AtomicU32,
    /// The last pause, if the last attempt failed.
    pause: AtomicU32,
}

impl WorkInPlace {
    /// Submits a tensor, and works for it if that seems worth a try. The caller has nothing else under way.
    pub(super) fn submit(&self, engine: &Engine, submission: Submission) -> Result<Ticket> {
        let small = submission.shape.bytes(submission.dtype).is_ok_and(|bytes| bytes <= SMALL);
        if !small || !self.tries() {
            return engine.submit(submission);
        }
        let start = Instant::now();
        let ticket = engine.submit_and_help(submission)?;
        self.learn(ticket.has_ended() && start.elapsed() <= A_MOMENT);
        Ok(ticket)
    }

    /// Whether this call is to try. Calls at once may both count, or both try: that does no harm.
    fn tries(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn learn(&self, in_time: bool) {
        let pause = if in_time { 0 } else { (self.pause.load(Ordering::Relaxed) * 2).clamp(PAUSES.0, PAUSES.1) };
        self.pause.store(pause, Ordering::Relaxed);
        self.left.store(pause, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the next `calls` calls try, if attempts come out as `in_time` says.
    fn attempts(work_in_place: &WorkInPlace, calls: u32, in_time: impl Fn(u32) -> bool) -> Vec<u32> {
        let tries = |call: &u32| {
            let tries = work_in_place.tries();
            if tries {
                work_in_place.learn(in_time(*call));
            }
            tries
        };
        (0..calls).filter(tries).collect()
    }

    #[test]
    fn who_finds_the_others_ready_always_tries() {
        assert_eq!(attempts(&WorkInPlace::default(), 100, |_| true).len(), 100);
    }

    #[test]
    fn who_waits_in_vain_tries_ever_more_rarely() {
        let work_in_place = WorkInPlace::default();
        assert_eq!(attempts(&work_in_place, 60, |_| false), [0, 9, 26, 59]);
        let later = attempts(&work_in_place, 20_000, |_| false);
        assert!((18..25).contains(&later.len()), "every 1025th in the end: {later:?}");
    }

    #[test]
    fn one_success_and_all_is_forgotten() {
        let work_in_place = WorkInPlace::default();
        attempts(&work_in_place, 1000, |_| false);
        let next = attempts(&work_in_place, 3000, |_| true);
        assert_eq!(next.windows(2).find(|pair| pair[1] != pair[0] + 1), None, "from the next attempt on, every call");
        work_in_place.learn(false);
        assert_eq!(attempts(&work_in_place, 20, |_| true)[..2], [8, 9], "the first pause is short again");
    }
}
