//! How often a line is written: no loop, and nobody who knocks at a port, may fill a disk. Pure; the clock is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Lines of one place in the source within a second.
pub(crate) const PER_SECOND: u32 = 10;

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is written, and with it how many were left out before.
    Say {
        left_out: u64,
    },
    Hold,
}

/// The places in the source that have spoken.
pub(crate) struct Floods<P>(HashMap<P, Window>);

struct Window {
    since: Instant,
    said: u32,
    left_out: u64,
}

impl<P> Default for Floods<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P: Eq + Hash> Floods<P> {
    pub(crate) fn judge(&mut self, place: P, now: Instant) -> Verdict {
        let window = self.0.entry(place).or_insert(Window { since: now, said: 0, left_out: 0 });
        if now.saturating_duration_since(window.since) >= Duration::from_secs(1) {
            (window.since, window.said) = (now, 0);
        }
        if window.said == PER_SECOND {
            window.left_out += 1;
            return Verdict::Hold;
        }
        window.said += 1;
        Verdict::Say { left_out: std::mem::take(&mut window.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gives_ten_lines_and_then_a_count() {
        let (one, two) = ("one", "two");
        let (mut floods, start) = (Floods::default(), Instant::now());
        let said = (0..1000).filter(|_| floods.judge(one, start) != Verdict::Hold).count();
        assert_eq!(said, 10);
        assert_eq!(floods.judge(two, start), Verdict::Say { left_out: 0 }, "others may speak");
        let later = start + Duration::from_secs(1);
        assert_eq!(floods.judge(one, later), Verdict::Say { left_out: 990 });
        assert_eq!(floods.judge(one, later), Verdict::Say { left_out: 0 });
    }
}
