//! Whom to blame when collectives fail. Pure: no I/O, no clock.
//!
//! A rank that dies is seen by its neighbours in the tree: that is certain, and decides. But others may have noticed first,
//! inside a collective, and there a rank sees only whom it exchanges data with. It may accuse one that has merely given up
//! itself, because of somebody else. So the root listens for a moment before it believes an accusation: whoever
//! accuses another is alive, and not the cause.

use std::time::Duration;

use corro_core::{Error, Rank};

use crate::coordinator::Time;

/// How long to listen after the first accusation. Shorter than members wait for the root's word.
const LISTENING_TIME: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug, Default)]
pub struct Blame {
    /// Who said it, whom it accuses, and in which words; in the order in which it came.
    accusations: Vec<(Rank, Rank, Error)>,
    until: Time,
}

impl Blame {
    /// Rank `by` has failed with this. False if that accuses nobody.
    pub fn accuse(&mut self, now: Time, by: Rank, error: &Error) -> bool {
        let Error::PeerLost { rank, .. } = error else { return false };
        if self.accusations.is_empty() {
            self.until = now + LISTENING_TIME;
        }
        // What it says first is nearest to the cause.
        if self.accusations.iter().all(|(other, ..)| *other != by) {
            self.accusations.push((by, *rank, error.clone()));
        }
        true
    }

    /// When there will be a verdict.
    pub fn due(&self) -> Option<Time> {
        (!self.accusations.is_empty()).then_some(self.until)
    }

    /// The verdict, once there was time to listen: the first who was accused and has not accused anybody.
    pub fn verdict(&mut self, now: Time) -> Option<Error> {
        self.due().filter(|at| now >= *at)?;
        let accusations = std::mem::take(&mut self.accusations);
        let silent = |accused: Rank| accusations.iter().all(|(by, ..)| *by != accused);
        let worst = accusations.iter().find(|(_, accused, _)| silent(*accused)).or(accusations.first());
        worst.map(|(.., error)| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lost(rank: usize) -> Error {
        Error::peer_lost(Rank::new(rank), "here", "gone")
    }

    #[test]
    fn nobody_is_blamed_before_all_could_speak() {
        let mut blame = Blame::default();
        assert!(!blame.accuse(Time::ZERO, Rank::new(1), &Error::Bug("mine".into())));
        assert_eq!((blame.due(), blame.verdict(Time::MAX)), (None, None));
        assert!(blame.accuse(Time::ZERO, Rank::new(1), &lost(2)));
        assert_eq!(blame.verdict(LISTENING_TIME / 2), None);
        assert_eq!(blame.verdict(LISTENING_TIME), Some(lost(2)));
        assert_eq!(blame.due(), None);
    }

    #[test]
    fn if_all_accuse_each_other_the_first_word_counts() {
        let mut blame = Blame::default();
        for (by, accused) in [(1, 2), (2, 1)] {
            blame.accuse(Time::ZERO, Rank::new(by), &lost(accused));
        }
        assert_eq!(blame.verdict(LISTENING_TIME), Some(lost(2)));
    }

    proptest! {
        /// In a ring each rank accuses the one before it, or, by hearsay, whomever another accuses. Who comes right after
        /// the silent one sees for itself.
        #[test]
        fn the_one_that_all_wait_for_is_blamed(
            size in 2usize..20, silent in 0usize..20, order in any::<u64>(), hearsay in any::<u32>()
        ) {
            let silent = silent % size;
            let mut ranks: Vec<usize> = (0..size).filter(|r| *r != silent).collect();
            corro_core::random::Random::new(order).shuffle(&mut ranks);
            let mut blame = Blame::default();
            let mut before = silent;
            for rank in ranks {
                let neighbour = (rank + size - 1) % size;
                let accused = if hearsay >> rank & 1 == 1 && before != rank && neighbour != silent { before } else { neighbour };
                blame.accuse(Time::ZERO, Rank::new(rank), &lost(accused));
                before = accused;
            }
            prop_assert_eq!(blame.verdict(LISTENING_TIME), Some(lost(silent)));
        }
    }
}
