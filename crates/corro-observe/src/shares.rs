//! Where the time of a step went: computing, communicating, waiting for others. Pure.
//!
//! Ranks that train together end each step together: they have the same gradients at the same moment. So a step takes all ranks
//! equally long, and what differs is how long each of them *waited* for its tensors. The rank that waited least came last: for it,
//! everybody else was there, so what it waited is what moving the bytes took, as far as computing did not hide it. That much is
//! *communication* on every rank. What another rank waited beyond that, it waited for the one that came last.
//!
//! ```text
//! time of a step = computing + communication + waiting for others
//!                              ^ the least that any rank waited
//! ```
//! This needs no clock that ranks share, and the three always add up to the step. It is exact where ranks meet once in a step, and else
//! puts some waiting down as communication: if different ranks are late at different tensors of one step, each of them waits.

use std::collections::{BTreeMap, VecDeque};

use crate::note::Mark;

/// The most marks of a rank that are kept until all others have theirs.
const MAX_PENDING: usize = 1024;

/// How one rank spent the time between two marks. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How many steps.
    pub steps: u64,
    /// How long they took.
    pub time: u64,
    /// Of that: doing anything but wait for tensors.
    pub computing: u64,
    /// Waiting for bytes to be moved.
    pub communication: u64,
    /// Waiting for ranks that came later.
    pub waiting: u64,
    /// Time that collectives took, hidden or not: the least on any rank, since who comes early waits in them.
    pub collective: u64,
    /// Steps in which all others waited for this one.
    pub last: u64,
}

impl Share {
    /// Adds another stretch of time.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.time += other.time;
        self.computing += other.computing;
        self.communication += other.communication;
        self.waiting += other.waiting;
        self.collective += other.collective;
        self.last += other.last;
    }

    /// Milliseconds a step.
    pub fn step_ms(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.time as f64 / self.steps as f64 / 1e6)
    }

    /// A part of the time, from 0 to 1.
    pub fn part(&self, nanos: u64) -> f64 {
        if self.time == 0 { 0.0 } else { nanos as f64 / self.time as f64 }
    }
}

/// Finds the steps that all ranks have marked, and what each of them did between those.
#[derive(Debug, Default)]
pub struct Aligner {
    /// By rank; the first is the last that was used.
    marks: BTreeMap<u32, VecDeque<Mark>>,
}

impl Aligner {
    /// The ranks are these, and begin anew.
    pub fn begin(&mut self, ranks: impl IntoIterator<Item = u32>) {
        self.marks = ranks.into_iter().map(|rank| (rank, VecDeque::new())).collect();
    }

    /// A rank is no more waited for.
    pub fn remove(&mut self, rank: u32) {
        self.marks.remove(&rank);
    }

    /// A rank tells ends of steps.
    pub fn hear(&mut self, rank: u32, marks: &[Mark]) {
        let Some(known) = self.marks.get_mut(&rank) else { return };
        for mark in marks {
            match known.back() {
                // Steps are counted anew, by another rule.
                Some(last) if mark.step <= last.step || mark.at < last.at => {
                    known.clear();
                    known.push_back(*mark);
                }
                _ => known.push_back(*mark),
            }
            if known.len() > MAX_PENDING {
                known.pop_front();
            }
        }
    }

    /// What ranks did between steps that all of them have marked, since the last time.
    pub fn take(&mut self) -> Vec<Vec<(u32, Share)>> {
        let Some(first) = self.marks.values().next() else { return Vec::new() };
        let has = |marks: &VecDeque<Mark>, step| marks.binary_search_by_key(&step, |mark| mark.step).is_ok();
        let in_all = |step: &u64| self.marks.values().all(|marks| has(marks, *step));
        let common: Vec<u64> = first.iter().map(|mark| mark.step).filter(in_all).collect();
        let found = common.windows(2).map(|pair| self.between(pair[0], pair[1])).collect();
        if let Some(newest) = common.last() {
            for marks in self.marks.values_mut() {
                while marks.front().is_some_and(|mark| mark.step < *newest) {
                    marks.pop_front();
                }
            }
        }
        found
    }

    fn between(&self, from: u64, to: u64) -> Vec<(u32, Share)> {
        let find = |marks: &VecDeque<Mark>, step: u64| marks.iter().find(|mark| mark.step == step).copied();
        let pairs: Vec<(u32, Mark, Mark)> =
            self.marks.iter().filter_map(|(rank, marks)| Some((*rank, find(marks, from)?, find(marks, to)?))).collect();
        shares(to - from, &pairs)
    }
}

/// How ranks spent `steps` steps, of which each is given its first mark and its last.
fn shares(steps: u64, marks: &[(u32, Mark, Mark)]) -> Vec<(u32, Share)> {
    let waited = |(_, from, to): &(u32, Mark, Mark)| {
        // No longer than the step itself: a wait may have begun before it.
        to.waited.saturating_sub(from.waited).min(to.at.saturating_sub(from.at))
    };
    let least = marks.iter().map(waited).min().unwrap_or(0);
    let in_collectives = |(_, from, to): &(u32, Mark, Mark)| to.collective.saturating_sub(from.collective);
    let least_collective = marks.iter().map(in_collectives).min().unwrap_or(0);
    let alone = marks.len() == 1;
    let slowest = marks.iter().min_by_key(|mark| waited(mark)).map(|(rank, ..)| *rank).filter(|_| !alone);
    let share = |mark: &(u32, Mark, Mark)| {
        let (rank, from, to) = mark;
        let time = to.at.saturating_sub(from.at);
        let waited = waited(mark);
        let share = Share {
            steps,
            time,
            computing: time - waited,
            communication: least.min(waited),
            waiting: waited - least.min(waited),
            collective: least_collective,
            last: if slowest == Some(*rank) { steps } else { 0 },
        };
        (*rank, share)
    };
    marks.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(steps: impl IntoIterator<Item = u64>, step: u64, waited: u64) -> Vec<Mark> {
        steps.into_iter().map(|n| Mark { step: n, at: n * step, waited: n * waited, collective: n }).collect()
    }

    fn aligner(ranks: u32) -> Aligner {
        let mut aligner = Aligner::default();
        aligner.begin(0..ranks);
        aligner
    }

    #[test]
    fn the_slow_rank_is_the_one_that_waits_least() {
        let mut aligner = aligner(3);
        aligner.hear(0, &marks(1..=2, 100, 30));
        aligner.hear(1, &marks(1..=2, 100, 10));
        assert!(aligner.take().is_empty(), "rank 2 has not spoken");
        aligner.hear(2, &marks(1..=2, 100, 25));
        let found = aligner.take();
        let [shares] = &found[..] else { panic!("{found:?}") };
        let parts: Vec<_> = shares.iter().map(|(_, s)| (s.computing, s.communication, s.waiting, s.last)).collect();
        assert_eq!(parts, [(70, 10, 20, 0), (90, 10, 0, 1), (75, 10, 15, 0)]);
        for (_, share) in shares {
            assert_eq!(share.computing + share.communication + share.waiting, share.time);
        }
        assert!(aligner.take().is_empty(), "nothing is told twice");
    }

    #[test]
    fn only_steps_that_all_have_marked_count() {
        let mut aligner = aligner(2);
        aligner.hear(0, &marks([1, 2, 3, 4, 5, 6, 7, 8], 100, 10));
        aligner.hear(1, &marks([2, 4, 8], 100, 20));
        let steps: Vec<u64> = aligner.take().iter().map(|shares| shares[0].1.steps).collect();
        assert_eq!(steps, [2, 4]);
        aligner.hear(0, &marks([9], 100, 10));
        aligner.hear(1, &marks([9], 100, 20));
        assert_eq!(aligner.take().len(), 1);
    }

    #[test]
    fn steps_counted_anew_do_not_mix_with_those_before() {
        let mut aligner = aligner(1);
        aligner.hear(0, &marks([5, 6], 100, 10));
        aligner.hear(0, &marks([1, 2], 100, 10));
        let found = aligner.take();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0][0].1.last, 0, "who is alone is waited for by nobody");
    }

    #[test]
    fn a_rank_that_is_gone_is_not_waited_for() {
        let mut aligner = aligner(2);
        aligner.hear(0, &marks(1..=9, 100, 10));
        aligner.remove(1);
        assert_eq!(aligner.take().len(), 8);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut aligner = aligner(2);
        aligner.hear(0, &marks(1..=100_000, 100, 10));
        assert_eq!(aligner.marks[&0].len(), MAX_PENDING);
    }
}
