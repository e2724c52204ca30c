//! How far another rank's clock is from this one's, from messages that went there and back.
//!
//! Owns a few samples. It never reads a clock or sends anything: the engine exchanges the messages and notes four times,
//! and gives the estimate to the trace of all ranks ([`super::trace`]).
//!
//! A message leaves at t0, arrives at t1 (the peer's clock), is answered at t2 (the peer's clock) and is back at t3. If
//! both ways took as long, the peer is ((t1 - t0) + (t2 - t3)) / 2 ahead. They never do; but each way took at least
//! nothing, so the error is at most half of the time spent on the way, whatever the asymmetry. Hence the rule: believe
//! the sample with the shortest way. Clocks also drift apart, so a sample's error grows with its age, and one day a
//! fresh sample with a longer way is the better one: that is all there is to following drift, as long as samples come.

use std::collections::VecDeque;

/// How many samples are kept.
const KEPT: usize = 64;

/// By how much two clocks may drift apart, in nanoseconds a second: quartz is good to 50 in a million, each.
const DRIFT: u64 = 100_000;

/// One message there and back, in nanoseconds; `sent` and `returned` by our clock, the others by the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// When we sent it.
    pub sent: u64,
    /// When it reached the peer.
    pub arrived: u64,
    /// When the peer sent the answer.
    pub answered: u64,
    /// When the answer was here.
    pub returned: u64,
}

impl RoundTrip {
    /// Time on the way, both ways together. `None` if the times cannot be: a peer that is wrong must not harm us.
    pub fn on_the_way(&self) -> Option<u64> {
        let there = self.answered.checked_sub(self.arrived)?;
        self.returned.checked_sub(self.sent)?.checked_sub(there)
    }

    /// What to add to our clock to get the peer's.
    fn offset(&self) -> i64 {
        let ahead = i128::from(self.arrived) - i128::from(self.sent);
        let behind = i128::from(self.returned) - i128::from(self.answered);
        // Half of the difference of two u64 always fits.
        i64::try_from((ahead - behind).div_euclid(2)).unwrap_or(0)
    }
}

/// What is known about the peer's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// What to add to our clock to get the peer's, in nanoseconds.
    pub offset: i64,
    /// The offset is wrong by at most this much, as long as the clocks drift by at most 100 parts in a million.
    pub error: u64,
}

impl Estimate {
    /// Our own clock, or the peer it is all measured against: no offset, no doubt.
    pub const SAME: Self = Self { offset: 0, error: 0 };
}

/// What was measured about one peer's clock.
#[derive(Clone, Debug, Default)]
pub struct PeerClock {
    samples: VecDeque<RoundTrip>,
}

impl PeerClock {
    /// Takes a measurement in; nonsense is dropped. Says whether it was taken.
    pub fn observe(&mut self, sample: RoundTrip) -> bool {
        if sample.on_the_way().is_none() {
            return false;
        }
        if self.samples.len() == KEPT {
            // The best of the old ones may go, too: by then it is old, or the others are as good.
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        true
    }

    /// The best that can be said at `now`, by our clock. `None` before the first sample.
    pub fn estimate(&self, now: u64) -> Option<Estimate> {
        self.samples
            .iter()
            .rev() // of equals the freshest
            .filter_map(|s| {
                let age = now.saturating_sub(s.sent);
                let drifted = (u128::from(age) * u128::from(DRIFT)).div_ceil(1_000_000_000) as u64;
                // One more for the halving.
                let error = s.on_the_way()?.div_ceil(2).saturating_add(drifted).saturating_add(1);
                Some(Estimate { offset: s.offset(), error })
            })
            .min_by_key(|e| e.error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_ways_give_the_exact_offset() {
        let mut clock = PeerClock::default();
        assert_eq!(clock.estimate(0), None);
        assert!(clock.observe(RoundTrip { sent: 1000, arrived: 51_500, answered: 51_700, returned: 2200 }));
        let estimate = clock.estimate(2200).unwrap();
        assert_eq!(estimate.offset, 50_000);
        assert_eq!(estimate.error, 500 + 1 + 1);
    }

    #[test]
    fn impossible_times_are_dropped() {
        let mut clock = PeerClock::default();
        for (sent, arrived, answered, returned) in [(5, 0, 0, 4), (0, 9, 8, 20), (0, 0, 100, 50)] {
            assert!(!clock.observe(RoundTrip { sent, arrived, answered, returned }));
        }
        assert_eq!(clock.estimate(100), None);
    }

    #[test]
    fn a_fresh_sample_replaces_a_better_one_that_has_aged() {
        let mut clock = PeerClock::default();
        let trip = |sent: u64, offset: u64, way: u64| RoundTrip {
            sent,
            arrived: sent + offset + way,
            answered: sent + offset + way,
            returned: sent + 2 * way,
        };
        clock.observe(trip(0, 1_000_000, 1_000));
        clock.observe(trip(1_000_000_000, 1_090_000, 20_000));
        // After a second the first one may be 100 us off.
        assert_eq!(clock.estimate(1_000_040_000).unwrap().offset, 1_090_000);
    }

    proptest! {
        /// The claim: whatever the delays of each way, the error is at most half of the shortest round trip (plus what
        /// drift adds), and the estimate says so itself.
        #[test]
        fn the_error_is_at_most_half_of_the_shortest_round_trip(
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            drift_ppm in -100i64..=100,
            trips in proptest::collection::vec(
                (0u64..2_000_000_000, 0u64..5_000_000, 0u64..1_000_000, 0u64..5_000_000), 1..150),
        ) {
            let start = 2_000_000_000_000u64; // both clocks stay above zero
            let peer = |t: u64| (t as i64 + offset + (t - start) as i64 * drift_ppm / 1_000_000) as u64;
            let mut clock = PeerClock::default();
            let mut now = start;
            let mut last_trips = VecDeque::new();
            for (pause, there, thinking, back) in trips {
                let sent = now + pause;
                let (arrived, answered) = (sent + there, sent + there + thinking);
                now = answered + back;
                clock.observe(RoundTrip { sent, arrived: peer(arrived), answered: peer(answered), returned: now });
                last_trips.push_back((sent, there + back));
                if last_trips.len() > KEPT {
                    last_trips.pop_front();
                }
                let estimate = clock.estimate(now).unwrap();
                let truth = peer(now) as i64 - now as i64;
                let wrong = (estimate.offset - truth).unsigned_abs();
                prop_assert!(wrong <= estimate.error + 1, "{wrong} > {}", estimate.error);
                for (sent, way) in &last_trips {
                    let bound = way / 2 + (now - sent) / 10_000 + 250; // 250: drift while the trip itself lasted
                    prop_assert!(estimate.error <= bound + 5, "{} > {bound}", estimate.error);
                }
            }
        }
    }
}
