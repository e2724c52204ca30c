//! A moment after which waiting ends.
//!
//! Everything that waits takes one of these, and says in its error what it was waiting for.

use std::time::{Duration, Instant};

/// A moment after which waiting ends, or never.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    /// What was granted, for error texts.
    granted: Duration,
}

impl Deadline {
    /// `granted` from now. Zero means "never", as `CORRO_TIMEOUT=0` does.
    pub fn after(granted: Duration) -> Self {
        if granted.is_zero() {
            return Self::never();
        }
        Self { at: Instant::now().checked_add(granted), granted }
    }

    /// No end. Only for callers that were told so by the user.
    pub const fn never() -> Self {
        Self { at: None, granted: Duration::ZERO }
    }

    /// Whether the moment has come.
    pub fn passed(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// What is left, `None` when there is no end.
    pub fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// What was granted at the start.
    pub fn granted(&self) -> Duration {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_never() {
        assert!(!Deadline::after(Duration::ZERO).passed());
        assert_eq!(Deadline::never().left(), None);
    }

    #[test]
    fn passes_and_stays_passed() {
        let deadline = Deadline::after(Duration::from_nanos(1));
        std::thread::sleep(Duration::from_millis(1));
        assert!(deadline.passed());
        assert_eq!(deadline.left(), Some(Duration::ZERO));
    }
}
