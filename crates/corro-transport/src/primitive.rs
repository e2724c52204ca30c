//! What memory shared with others is worked on with: atomics, and sleeping on one of them.
//!
//! `ring` and `shm::counter` take these from here, so that `tests/races.rs` can put others in their place, between whose
//! steps it lets the threads change.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps until somebody wakes those who sleep on `word`, or `nap` is over, or for other reasons; not at all if it does
/// not hold `seen`.
pub(crate) fn sleep_on(word: &AtomicU32, seen: u32, nap: Duration) {
    let nap = futex::Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) };
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&nap));
}

/// Wakes everyone who sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
