//! Who waits for whom: members, their clocks, and rounds. Pure: it is told what happens, and holds no value of any key.
//!
//! * [`Clocks`] is a vector clock of the workers with its least entry at hand. A read at clock c may go on once the least
//!   is at least c - s. One who ends or dies has the clock "infinite", so whoever waited for it goes on.
//! * [`Rounds`] collects one contribution of every worker; a round is complete when all who live have given theirs.

use std::collections::BTreeMap;

use crate::protocol::{Consistency, WorkerId};

/// The clock of one for whom nobody waits any more.
pub const NEVER: u64 = u64::MAX;

/// How far each worker is.
#[derive(Clone, Debug)]
pub struct Clocks {
    of: Vec<u64>,
    /// How many workers are at each clock: the first is the least.
    at: BTreeMap<u64, usize>,
}

impl Clocks {
    /// All at 0.
    pub fn new(workers: u32) -> Self {
        Self { of: vec![0; workers as usize], at: BTreeMap::from([(0, workers as usize)]) }
    }

    /// The least clock; [`NEVER`] if nobody is left.
    pub fn min(&self) -> u64 {
        self.at.first_key_value().map_or(NEVER, |(clock, _)| *clock)
    }

    /// This worker's; [`NEVER`] once it has left.
    pub fn of(&self, worker: WorkerId) -> u64 {
        self.of.get(worker.index()).copied().unwrap_or(NEVER)
    }

    /// A worker is at this clock now. What is not ahead of where it was changes nothing: it may be said twice.
    pub fn advance(&mut self, worker: WorkerId, clock: u64) {
        let Some(mine) = self.of.get_mut(worker.index()) else { return };
        if clock <= *mine {
            return;
        }
        let before = std::mem::replace(mine, clock);
        if let Some(count) = self.at.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.at.remove(&before);
            }
        }
        *self.at.entry(clock).or_default() += 1;
    }

    /// Nobody waits for this worker any more.
    pub fn leave(&mut self, worker: WorkerId) {
        self.advance(worker, NEVER);
    }

    /// Whether it has left.
    pub fn has_left(&self, worker: WorkerId) -> bool {
        self.of(worker) == NEVER
    }

    /// Who has not left, and is behind `clock`.
    pub fn behind(&self, clock: u64) -> Vec<WorkerId> {
        (0..).map(WorkerId).zip(&self.of).filter(|(_, c)| **c < clock).map(|(worker, _)| worker).collect()
    }

    /// How many have not left.
    pub fn living(&self) -> usize {
        self.of.len() - self.at.get(&NEVER).copied().unwrap_or(0)
    }
}

impl Consistency {
    /// What the least clock must be for a read at `clock`.
    pub fn needs(self, clock: u64) -> u64 {
        match self {
            Self::Ssp { bound } => clock.saturating_sub(bound),
            // Rounds wait for themselves.
            Self::Bsp | Self::Async { .. } => 0,
        }
    }
}

/// How many rounds a worker may be ahead of the one that is due: each holds its contributions.
pub const MAX_AHEAD: u64 = 16;

/// Contributions to rounds, in the order of workers.
#[derive(Clone, Debug)]
pub struct Rounds<T> {
    open: BTreeMap<u64, BTreeMap<WorkerId, T>>,
}

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Self { open: BTreeMap::new() }
    }
}

impl<T> Rounds<T> {
    /// Adds a contribution. False if there is one already.
    pub fn put(&mut self, round: u64, worker: WorkerId, contribution: T) -> bool {
        let open = self.open.entry(round).or_default();
        if open.contains_key(&worker) {
            return false;
        }
        open.insert(worker, contribution);
        true
    }

    /// What a worker has given to a round.
    pub fn get(&self, round: u64, worker: WorkerId) -> Option<&T> {
        self.open.get(&round)?.get(&worker)
    }

    /// Any contribution to a round.
    pub fn any(&self, round: u64) -> Option<&T> {
        self.open.get(&round)?.values().next()
    }

    /// The first round that all have given to who have not left, and that `may` be taken; those before it are dropped.
    pub fn take(&mut self, clocks: &Clocks, may: impl Fn(u64) -> bool) -> Option<(u64, BTreeMap<WorkerId, T>)> {
        let living = clocks.living();
        let is_complete = |given: &BTreeMap<WorkerId, T>| {
            living > 0 && given.len() >= living && given.keys().filter(|w| !clocks.has_left(**w)).count() == living
        };
        let round = *self.open.iter().find(|(round, given)| may(**round) && is_complete(given))?.0;
        self.open = self.open.split_off(&round);
        self.open.pop_first()
    }

    /// Who has given to a round.
    pub fn given(&self, round: u64) -> Vec<WorkerId> {
        self.open.get(&round).map(|given| given.keys().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_clock_is_that_of_the_slowest_who_is_still_there() {
        let mut clocks = Clocks::new(3);
        clocks.advance(WorkerId(0), 5);
        clocks.advance(WorkerId(1), 3);
        assert_eq!((clocks.min(), clocks.behind(4)), (0, vec![WorkerId(1), WorkerId(2)]));
        clocks.advance(WorkerId(2), 4);
        clocks.advance(WorkerId(2), 1);
        assert_eq!((clocks.min(), clocks.of(WorkerId(2))), (3, 4));
        clocks.leave(WorkerId(1));
        assert_eq!((clocks.min(), clocks.living()), (4, 2));
        clocks.leave(WorkerId(0));
        clocks.leave(WorkerId(2));
        assert_eq!((clocks.min(), clocks.living()), (NEVER, 0));
        clocks.advance(WorkerId(9), 1);
    }

    #[test]
    fn a_read_waits_for_the_bound_and_not_for_one_more() {
        let ssp = Consistency::Ssp { bound: 3 };
        assert_eq!([0, 3, 4, 10].map(|c| ssp.needs(c)), [0, 0, 1, 7]);
        assert_eq!(Consistency::Ssp { bound: 0 }.needs(4), 4);
        assert_eq!(Consistency::Ssp { bound: u64::MAX }.needs(4), 0);
        assert_eq!(Consistency::Async { staleness_lr: true }.needs(4), 0);
    }

    #[test]
    fn a_round_waits_for_all_who_live_and_keeps_their_order() {
        let mut clocks = Clocks::new(3);
        let mut rounds = Rounds::default();
        assert!(rounds.put(1, WorkerId(2), 'c') && rounds.put(1, WorkerId(0), 'a') && rounds.put(2, WorkerId(0), 'A'));
        assert!(!rounds.put(1, WorkerId(0), 'x'));
        assert!(rounds.take(&clocks, |_| true).is_none());
        clocks.leave(WorkerId(1));
        assert!(rounds.take(&clocks, |round| round == 2).is_none());
        let (round, given) = rounds.take(&clocks, |_| true).unwrap();
        assert_eq!((round, given.into_values().collect::<String>()), (1, "ac".into()));
        // One who gave and then left is still in it; nobody left completes nothing.
        clocks.leave(WorkerId(0));
        assert!(rounds.put(2, WorkerId(2), 'C'));
        assert_eq!(rounds.take(&clocks, |_| true).unwrap().1.len(), 2);
        clocks.leave(WorkerId(2));
        rounds.put(3, WorkerId(0), 'z');
        assert!(rounds.take(&clocks, |_| true).is_none());
    }
}
