//! Refining a plan while it is followed (see [`crate::refine`]).
//!
//! Each member says once what it has seen, together with those below it. If the root finds entries to merge, it halts the
//! plan as if it were to be left, so that it knows how far everybody is, and instead of *resume* says *refine*: all go on
//! where they are and change over where the pass ends that the first of them is in. Nobody withdraws from anything. If
//! somebody wants to leave the plan meanwhile, it is left.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Action, Node};
use crate::hash::HashSet;
use crate::matching::Agreed;
use crate::message::{Decision, Slot, Up};
use crate::refine::{Seen, merge};

/// What this member and its children have seen, as far as they have said it.
#[derive(Debug, Default)]
pub(super) struct Refining {
    parts: usize,
    seen: Option<Seen>,
}

/// What the root remembers of refined plans, beyond the plan.
#[derive(Debug, Default)]
pub(super) struct Refined {
    /// The entries of the last refined plans, the newest first: the next plan of the same tensors begins with them. A
    /// program has several, in turn, where it trains and then validates.
    plans: VecDeque<Vec<Vec<Slot>>>,
    /// Members waited in vain, some with a part of an entry: what was merged should not have been. Never again.
    burnt: bool,
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
    fn remember(&mut self, entries: &[Vec<Slot>]) {
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

impl Node {
    /// How often the program has learned of a result so far. Counted by whoever runs this node.
    pub fn note_looks(&mut self, looks: u64) {
        self.looks = looks;
    }

    /// A plan or a part of it begins: nothing was seen of it.
    pub(super) fn restart_refining(&mut self) {
        self.refining = Refining::default();
    }

    /// This member, or a child and all below it, has seen enough.
    pub(super) fn heard_seen(&mut self, round: u32, seen: Seen) {
        let Some(following) = self.following.as_ref().filter(|f| f.round() == round && !f.is_halted()) else { return };
        if !seen.fits(following.batches().len()) {
            return;
        }
        let parts = self.neighbours.children.len() + 1;
        let refining = &mut self.refining;
        refining.parts += 1;
        match &mut refining.seen {
            Some(together) => together.and(&seen),
            None => refining.seen = Some(seen),
        }
        if refining.parts < parts {
            return;
        }
        let Some(seen) = refining.seen.take() else { return };
        if self.root.is_none() {
            return self.up.push(Up::Seen { era: self.era, round, seen });
        }
        let slots = following.batches();
        let agreed = |slot: &Slot| self.cache.get(*slot).map(|cached| Arc::clone(&cached.agreed));
        let entries: Vec<Vec<Arc<Agreed>>> =
            slots.iter().map(|entry| entry.iter().filter_map(agreed).collect()).collect();
        let whole = entries.iter().zip(slots).all(|(entry, slots)| entry.len() == slots.len());
        let burnt = self.root.as_ref().is_some_and(|r| r.refined.burnt);
        if !whole || burnt {
            return;
        }
        if let Some(merged) = merge(&entries, &seen, self.rules.entry_cost, self.rules.fusion) {
            let better = merged.into_iter().map(|e| e.into_iter().map(|(e, t)| slots[e][t]).collect()).collect();
            self.halt_to_refine(better);
        }
    }

    /// All have halted, and nobody wants to leave: they go on, in these entries.
    pub(super) fn refine(&mut self, most: u64, batches: Vec<Vec<Slot>>) {
        let (Some(root), Some(following)) = (&mut self.root, &self.following) else { return };
        root.refined.remember(&batches);
        let at = following.pass_after(most);
        self.decide(Decision::Refine { era: self.era, at, batches });
    }

    pub(super) fn apply_refine(&mut self, era: u32, at: u64, batches: Vec<Vec<Slot>>) {
        let in_entry = self.in_entry;
        let Some(following) = self.following.as_mut().filter(|_| era == self.era) else { return };
        let entries = (following.batches().len(), batches.len());
        if !following.refine(at, batches, in_entry) {
            return self.end(corro_core::Error::Bug(format!("a plan that rank {} can't refine", self.rank)));
        }
        self.left_because.clear();
        self.halting = None;
        self.moved = self.now;
        self.restart_refining();
        self.actions.push(Action::Refined { from: entries.0, to: entries.1 });
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
