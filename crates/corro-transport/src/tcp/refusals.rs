//! What is said about connections that were turned away: one line each, and no more than a disk can bear.
//!
//! Pure but for the log line itself; the clock is an argument.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

const LINES_PER_SECOND: u32 = 10;
/// How long a refusal is worth mentioning in an error about a peer that did not come.
const MEMORABLE: Duration = Duration::from_secs(60);

/// How far a connection had come. One that came farther says more of what is wrong: who is turned away for its secret gives up
/// its other connections wherever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    /// TLS was being set up.
    Tunnel,
    Handshake,
}

#[derive(Debug)]
pub(crate) struct Refusals {
    window: Instant,
    in_window: u32,
    suppressed: u64,
    /// How many there were.
    pub(crate) all: u64,
    /// The last of those that came farthest, while it is worth mentioning.
    last: Option<(Instant, Reached, String)>,
}

impl Refusals {
    pub(crate) fn new(now: Instant) -> Self {
        Self { window: now, in_window: 0, suppressed: 0, all: 0, last: None }
    }

    /// Logs that `remote` was turned away, unless that was said too often within this second.
    pub(crate) fn refuse(&mut self, remote: SocketAddr, reached: Reached, reason: &str, now: Instant) {
        self.all += 1;
        if self.may_log(now) {
            tracing::warn!(%remote, reason, "refused a connection");
        }
        if self.memorable(now).is_none_or(|(before, _)| before <= reached) {
            self.last = Some((now, reached, format!("{remote}: {reason}")));
        }
    }

    /// Tells of lines that were held back, once the flood is over.
    pub(crate) fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.window) < Duration::from_secs(1) {
            return;
        }
        if self.suppressed > 0 {
            tracing::warn!(count = self.suppressed, "refused more connections than are worth a line each");
        }
        (self.window, self.in_window, self.suppressed) = (now, 0, 0);
    }

    /// Whether [`Refusals::tick`] still has something to tell.
    pub(crate) fn holds_back(&self) -> bool {
        self.suppressed > 0
    }

    /// Whom we turned away lately, for the error of somebody who waits in vain.
    pub(crate) fn recent(&self, now: Instant) -> Option<&str> {
        self.memorable(now).map(|(_, text)| text)
    }

    fn memorable(&self, now: Instant) -> Option<(Reached, &str)> {
        let (at, reached, text) = self.last.as_ref()?;
        (now.saturating_duration_since(*at) < MEMORABLE).then_some((*reached, text))
    }

    fn may_log(&mut self, now: Instant) -> bool {
        self.tick(now);
        self.in_window += 1;
        let may = self.in_window <= LINES_PER_SECOND;
        self.suppressed += u64::from(!may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gives_ten_lines_and_a_count() {
        let start = Instant::now();
        let mut refusals = Refusals::new(start);
        assert_eq!((0..1000).filter(|_| refusals.may_log(start)).count(), 10);
        assert_eq!(refusals.suppressed, 990);
        assert!(refusals.may_log(start + Duration::from_secs(1)));
        assert_eq!(refusals.suppressed, 0);
    }

    #[test]
    fn old_refusals_are_forgotten() {
        let start = Instant::now();
        let mut refusals = Refusals::new(start);
        refusals.refuse("127.0.0.1:9".parse().unwrap(), Reached::Handshake, "why", start);
        assert_eq!(refusals.recent(start), Some("127.0.0.1:9: why"));
        assert_eq!(refusals.recent(start + MEMORABLE), None);
    }

    #[test]
    fn who_came_farther_says_more() {
        let start = Instant::now();
        let mut refusals = Refusals::new(start);
        let mut told = |reached, reason, now| {
            refusals.refuse("127.0.0.1:9".parse().unwrap(), reached, reason, now);
            refusals.recent(now).unwrap().split_once(": ").unwrap().1.to_owned()
        };
        assert_eq!(told(Reached::Tunnel, "no TLS", start), "no TLS");
        assert_eq!(told(Reached::Handshake, "the secret", start), "the secret");
        assert_eq!(told(Reached::Tunnel, "closed", start), "the secret");
        assert_eq!(told(Reached::Handshake, "another secret", start), "another secret");
        assert_eq!(told(Reached::Tunnel, "closed", start + MEMORABLE), "closed");
    }
}
