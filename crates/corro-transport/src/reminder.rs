//! When to tell the user again that something is still waited for: after a while, and then ever less often.

use std::time::{Duration, Instant};

/// How long it takes until the first word.
const FIRST: Duration = Duration::from_secs(10);
/// The longest silence after that.
const LONGEST: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct Reminder {
    at: Instant,
    pause: Duration,
}

impl Reminder {
    pub(crate) fn new() -> Self {
        Self { at: Instant::now() + FIRST, pause: FIRST }
    }

    /// Whether it is time to say something; if so, the next time is set.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.at;
        if due {
            self.pause = (self.pause * 2).min(LONGEST);
            self.at = now + self.pause;
        }
        due
    }

    /// How long until then.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}
