//! Refining a plan while it is followed (see [`crate::refine`]).
//!
//! Each member says once what it has seen, together with those below it. If the root finds entries to merge, it halts the
//! plan as if it were to be left, so that it knows how far everybody is, and instead of *resume* says *refine*: all go on
//! where they are and change over where the pass ends that the first of them is in. Nobody withdraws from anything. If
//! somebody wants to leave the plan meanwhile, it is left.

use std::sync::Arc;

use super::refined::Refining;
use super::rules::Action;
use super::state::Node;
use crate::matching::Agreed;
use crate::message::{Decision, Slot, Up};
use crate::refine::{Seen, merge};

impl Node {
    /// How often the program has learned of a result so far. Counted by whoever runs this node.
    pub fn note_looks(&mut self, looks: u64) {
        self.plan.looks = looks;
    }

    /// A plan or a part of it begins: nothing was seen of it.
    pub(super) fn restart_refining(&mut self) {
        self.plan.refining = Refining::default();
    }

    /// This member, or a child and all below it, has seen enough.
    pub(super) fn heard_seen(&mut self, round: u32, seen: Seen) {
        let Some(following) = self.plan.following.as_ref().filter(|f| f.round() == round && !f.is_halted()) else {
            return;
        };
        if !seen.fits(following.batches().len()) {
            return;
        }
        let parts = self.neighbours.children.len() + 1;
        let refining = &mut self.plan.refining;
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
            return self.outbox.up.push(Up::Seen { era: self.requests.era, round, seen });
        }
        let slots = following.batches();
        let agreed = |slot: &Slot| self.requests.cache.get(*slot).map(|cached| Arc::clone(&cached.agreed));
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
        let (Some(root), Some(following)) = (&mut self.root, &self.plan.following) else { return };
        root.refined.remember(&batches);
        let at = following.pass_after(most);
        self.decide(Decision::Refine { era: self.requests.era, at, batches });
    }

    pub(super) fn apply_refine(&mut self, era: u32, at: u64, batches: Vec<Vec<Slot>>) {
        let in_entry = self.plan.in_entry;
        let Some(following) = self.plan.following.as_mut().filter(|_| era == self.requests.era) else { return };
        let entries = (following.batches().len(), batches.len());
        if !following.refine(at, batches, in_entry) {
            return self.end(corro_core::Error::Bug(format!("a plan that rank {} can't refine", self.rank)));
        }
        self.plan.left_because.clear();
        self.plan.halting = None;
        self.plan.moved = self.now;
        self.restart_refining();
        self.outbox.actions.push(Action::Refined { from: entries.0, to: entries.1 });
    }
}
