//! Waiting for something to become true, in place of sleeping and hoping.

use std::time::{Duration, Instant};

/// Asks until `done` says yes. Panics with `what` was waited for when that takes longer than `limit`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    // Short at first, since most things are nearly done; then rarely enough not to be the load that delays them.
    let mut pause = Duration::from_millis(1);
    while !done() {
        assert!(Instant::now() < until, "waited {limit:?} in vain until {what}");
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}
