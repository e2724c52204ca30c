//! Refining a plan while it is followed (see [`crate::refine`]).
//!
//! Each member says once what it has seen, together with those below it. If the root finds entries to merge, it halts the
//! plan as if it were to be left, so that it knows how far everybody is, and instead of *resume* says *refine*: all go on
//! where they are and change over where the pass ends that the first of them is in. Nobody withdraws from anything. If
//! somebody wants to leave the plan meanwhile, it is left.

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
    /// The entries of the last refined plan: the next plan of these tensors begins with them.
    entries: Vec<Vec<Slot>>,
    /// Members waited in vain, some with a part of an entry: what was merged should not have been. Never again.
    burnt: bool,
}

impl Refined {
    /// These entries, or those that the same tensors were refined to.
    pub(super) fn instead_of(&self, entries: Vec<Vec<Slot>>) -> Vec<Vec<Slot>> {
        let slots = |of: &[Vec<Slot>]| of.iter().flatten().copied().collect::<HashSet<Slot>>();
        let better = self.entries.len() < entries.len() && slots(&self.entries) == slots(&entries);
        if better { self.entries.clone() } else { entries }
    }

    /// A plan was left. `futile`: members waited in vain; `torn`: some had a part of what was to run next.
    pub(super) fn left(&mut self, futile: bool, torn: bool) {
        if futile && torn && !self.entries.is_empty() {
            *self = Self { entries: Vec::new(), burnt: true };
        }
    }

    /// What was merged may be too much for the new limits, or too little.
    pub(super) fn forget(&mut self) {
        self.entries.clear();
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
        root.refined.entries.clone_from(&batches);
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
