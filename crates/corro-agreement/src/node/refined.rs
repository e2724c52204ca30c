//! What is kept of refining a plan (see [`crate::refine`]): what members have seen of it, and what the root remembers of
//! plans that were refined.

use std::collections::VecDeque;

use crate::hash::HashSet;
use crate::message::Slot;
use crate::refine::Seen;

/// What this member and its children have seen, as far as they have said it.
#[derive(Debug, Default)]
pub(super) struct Refining {
    pub(super) parts: usize,
    pub(super) seen: Option<Seen>,
}

/// What the root remembers of refined plans, beyond the plan.
#[derive(Debug, Default)]
pub(super) struct Refined {
    /// The entries of the last refined plans, the newest first: the next plan of the same tensors begins with them. A
    /// program has several, in turn, where it trains and then validates.
    plans: VecDeque<Vec<Vec<Slot>>>,
    /// Members waited in vain, some with a part of an entry: what was merged should not have been. Never again.
    pub(super) burnt: bool,
}

/// How many refined plans the root remembers.
const REMEMBERED: usize = 8;

fn slots(of: &[Vec<Slot>]) -> HashSet<Slot> {
    of.iter().flatten().copied().collect()
}

impl Refined {
    /// These entries, or those that the same tensors were refined to. A program may now begin elsewhere in its round: then
    /// so do the entries, if one begins there. (If none does, an entry would have the end of one step and the start of the
    /// next, and whoever waits for the first would wait in vain.)
    pub(super) fn instead_of(&mut self, entries: Vec<Vec<Slot>>) -> Vec<Vec<Slot>> {
        let Some(first) = entries.first().and_then(|entry| entry.first()) else { return entries };
        let Some(known) = self.plans.iter().position(|plan| slots(plan) == slots(&entries)) else { return entries };
        let Some(mut plan) = self.plans.remove(known) else { return entries };
        let begins = plan.iter().position(|entry| entry.first() == Some(first));
        if let Some(begins) = begins.filter(|_| plan.len() < entries.len()) {
            plan.rotate_left(begins);
            self.plans.push_front(plan.clone());
            return plan;
        }
        self.plans.push_front(plan);
        entries
    }

    /// A plan goes on in these entries.
    pub(super) fn remember(&mut self, entries: &[Vec<Slot>]) {
        self.plans.retain(|plan| slots(plan) != slots(entries));
        self.plans.push_front(entries.to_vec());
        self.plans.truncate(REMEMBERED);
    }

    /// A plan was left. `futile`: members waited in vain; `torn`: some had a part of what was to run next.
    pub(super) fn left(&mut self, futile: bool, torn: bool) {
        if futile && torn && !self.plans.is_empty() {
            *self = Self { plans: VecDeque::new(), burnt: true };
        }
    }

    /// What was merged may be too much for the new limits, or too little.
    pub(super) fn forget(&mut self) {
        self.plans.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_plans_were_refined_to_is_remembered() {
        let mut refined = Refined::default();
        let one_each = |slots: &[Slot]| slots.iter().map(|s| vec![*s]).collect::<Vec<_>>();
        refined.remember(&[vec![1, 2, 3]]);
        refined.remember(&[vec![1, 2], vec![4]]);
        assert_eq!(refined.instead_of(one_each(&[1, 3, 2])), [[1, 2, 3]]);
        assert_eq!(refined.instead_of(one_each(&[1, 2, 4])), [vec![1, 2], vec![4]]);
        assert_eq!(refined.instead_of(one_each(&[4, 1, 2])), [vec![4], vec![1, 2]], "it begins elsewhere");
        assert_eq!(refined.instead_of(one_each(&[2, 4, 1])), one_each(&[2, 4, 1]), "no entry begins there");
        assert_eq!(refined.instead_of(vec![vec![1, 2, 4]]), [[1, 2, 4]], "it has come to be shorter by itself");
        assert_eq!(refined.instead_of(one_each(&[1, 2])), [[1], [2]]);
        (10..10 + REMEMBERED as Slot).for_each(|slot| refined.remember(&[vec![slot, slot + 100]]));
        assert_eq!(refined.plans.len(), REMEMBERED);
        assert_eq!(refined.instead_of(one_each(&[3, 1, 2])), one_each(&[3, 1, 2]), "the oldest is forgotten");
        refined.left(true, true);
        assert!(refined.burnt && refined.plans.is_empty());
    }
}
