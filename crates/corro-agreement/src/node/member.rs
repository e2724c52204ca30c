//! What every member does: tells the others what it has, counts what those below it have, follows the log.

use std::sync::Arc;

use corro_core::{Error, Rank};

use crate::cache::Cached;
use crate::coordinator::Time;
use crate::message::{Announcement, Decision, Item, Slot, SlotRange, Up, ranges, slots};
use crate::plan::Following;
use crate::request::Request;

use super::parts::{Halting, Joining, Said, Waiting};
use super::rules::{Action, Gear};
use super::state::Node;

impl Node {
    /// Tells the others about a request that waits since `since`, in the shortest way.
    pub(super) fn tell(&mut self, request: Request, since: Time) {
        let name = request.name.clone();
        let slot = self.requests.cache.find(&request).map(|cached| cached.slot);
        let said = slot.map_or(Said::InFull, Said::ByNumber);
        self.requests.waiting.insert(name.clone(), Waiting { request, said, since });
        match slot {
            // Said again when the plan is left.
            Some(_) if self.plan.following.is_some() => {}
            Some(slot) => self.count(slot),
            None => self.say_in_full(&name),
        }
    }

    fn say_in_full(&mut self, name: &str) {
        let Some(waiting) = self.requests.waiting.get_mut(name) else { return };
        waiting.said = Said::InFull;
        let waited = self.now.saturating_sub(waiting.since);
        let announcement = Announcement { rank: self.rank, request: waiting.request.clone(), waited };
        self.tell_root(Up::Announce(vec![announcement]));
    }

    /// One more of this member and its children has `slot`.
    pub(super) fn count(&mut self, slot: Slot) {
        if self.requests.cache.get(slot).is_none() {
            return;
        }
        let count = self.requests.counts.entry(slot).or_default();
        *count += 1;
        if *count > self.neighbours.children.len() {
            self.requests.counts.remove(&slot);
            match &mut self.root {
                Some(root) => root.complete.push(slot),
                None => self.outbox.bits.push(slot),
            }
        }
    }

    /// Hands something to the root: up the tree, or to this very node.
    pub(super) fn tell_root(&mut self, message: Up) {
        if self.root.is_some() {
            return self.hear_as_root(message);
        }
        match (self.outbox.up.last_mut(), message) {
            (Some(Up::Announce(said)), Up::Announce(more)) => said.extend(more),
            (_, message) => self.outbox.up.push(message),
        }
    }

    /// This member, or one below it, has waited long for these. One word to the root is enough.
    pub(super) fn heard_overdue(&mut self, late: Vec<Slot>) {
        let late: Vec<Slot> = late
            .into_iter()
            .filter(|s| self.requests.cache.get(*s).is_some() && self.requests.overdue.insert(*s))
            .collect();
        if late.is_empty() {
        } else if self.root.is_some() {
            self.reveal(late);
        } else {
            self.outbox.up.push(Up::Overdue(ranges(late)));
        }
    }

    pub(super) fn ask_to_leave(&mut self, why: String, futile: bool) {
        if !std::mem::replace(&mut self.plan.asked_to_leave, true) {
            self.heard_leave(self.rank, why, futile);
        }
    }

    pub(super) fn heard_leave(&mut self, rank: Rank, why: String, futile: bool) {
        if self.root.is_some() {
            self.halt(rank, why, futile);
        } else {
            self.outbox.up.push(Up::Leave { era: self.requests.era, rank, why, futile });
        }
    }

    pub(super) fn count_halted(&mut self, fewest: u64, most: u64, torn: bool) {
        let parts = self.neighbours.children.len() + 1;
        let halting = self.plan.halting.get_or_insert(Halting { left: parts, fewest: u64::MAX, most: 0, torn: false });
        halting.left = halting.left.saturating_sub(1);
        halting.fewest = halting.fewest.min(fewest);
        halting.most = halting.most.max(most);
        halting.torn |= torn;
        if halting.left > 0 {
            return;
        }
        let Halting { fewest, most, torn, .. } = *halting;
        self.plan.halting = None;
        if self.root.is_some() {
            self.all_halted(fewest, most, torn);
        } else {
            self.outbox.up.push(Up::Halted { era: self.requests.era, fewest, most, torn });
        }
    }

    // The log.

    pub(super) fn apply(&mut self, decision: Decision) {
        self.requests.decisions += u64::from(decision.is_on_tensors());
        match decision {
            Decision::Run(items) => self.apply_run(items),
            Decision::Fail { names, error } => {
                for name in &names {
                    self.requests.waiting.remove(name);
                }
                self.outbox.actions.push(Action::Fail(names, error));
            }
            Decision::AllJoined { last } => {
                self.requests.joining = Joining::No;
                self.restart_unnamed();
                self.outbox.actions.push(Action::AllJoined(last));
                for request in std::mem::take(&mut self.requests.aside) {
                    self.tell(request, self.now);
                }
            }
            Decision::Forget(forgotten) => self.apply_forget(&forgotten),
            Decision::Plan { era, batches } => self.apply_plan(era, batches),
            Decision::Halt { era, rank, why } => {
                if let Some(following) = self.plan.following.as_mut().filter(|_| era == self.requests.era) {
                    self.plan.left_because = format!("rank {rank}: {why}");
                    // Said again if there is another reason by now.
                    if !following.is_halted() {
                        let (begun, torn) = (following.halt(), following.is_torn());
                        self.count_halted(begun, begun, torn);
                    }
                }
            }
            Decision::Fold { stream, base, length } => self.apply_fold(stream, base, length),
            Decision::Refine { era, at, batches } => self.apply_refine(era, at, batches),
            Decision::Resume { era, begun, withdraw } => self.apply_resume(era, begun, withdraw),
            Decision::Ask(ranks) => {
                if ranks.contains(&self.rank) {
                    self.outbox.actions.push(Action::Asked);
                }
            }
            Decision::AskStanding { round } => self.asked_standing(round),
            Decision::Tune { fusion_threshold, knobs } => {
                self.rules.fusion.threshold = fusion_threshold;
                self.outbox.actions.push(Action::Tune(fusion_threshold, knobs));
            }
            Decision::Shutdown(departure) => self.end(Error::left(&departure)),
            Decision::Failed(error) => self.end(error),
            Decision::AreYouThere | Decision::Here => {}
        }
    }

    fn apply_run(&mut self, items: Vec<Item>) {
        let mut run = Vec::with_capacity(items.len());
        let mut gear = Gear::Bits;
        for item in items {
            match item {
                Item::Known(slot) => {
                    let Some(cached) = self.requests.cache.get(slot) else {
                        return self.end(Error::Bug(format!("slot {slot} is to run, which rank {} lacks", self.rank)));
                    };
                    self.requests.waiting.remove(&cached.request.name);
                    self.requests.overdue.remove(&slot);
                    run.push(Arc::clone(&cached.agreed));
                }
                Item::New(agreed, slot) => {
                    gear = Gear::Announce;
                    let agreed = Arc::new(agreed);
                    let mine = self.requests.waiting.remove(&agreed.name);
                    if let (Some(slot), Some(mine)) = (slot, mine) {
                        self.requests.cache.insert(slot, mine.request, Arc::clone(&agreed));
                    }
                    run.push(agreed);
                }
            }
        }
        self.requests.gear = gear;
        self.outbox.actions.push(Action::Run(run));
    }

    fn apply_forget(&mut self, forgotten: &[SlotRange]) {
        // At most what is there: a range may be any length.
        let known: Vec<Slot> =
            if forgotten.iter().map(|r| r.count).fold(0, u64::saturating_add) as usize > self.requests.cache.len() {
                let within = |s: &Slot| forgotten.iter().any(|r| *s >= r.first && *s - r.first < r.count);
                let mut known: Vec<Slot> = self.requests.cache.slots().filter(within).collect();
                known.sort_unstable();
                known
            } else {
                slots(forgotten, usize::MAX).collect()
            };
        for slot in known {
            self.requests.counts.remove(&slot);
            self.requests.overdue.remove(&slot);
            let Some(cached) = self.requests.cache.forget(slot) else { continue };
            let name = &cached.request.name;
            if self.requests.waiting.get(name).is_some_and(|w| w.said == Said::ByNumber(slot)) {
                self.say_in_full(name);
            }
        }
        let cache = &self.requests.cache;
        self.outbox.bits.retain(|slot| cache.get(*slot).is_some());
    }

    fn apply_plan(&mut self, era: u32, batches: Vec<Vec<Slot>>) {
        self.new_era(era);
        let Some(mut following) = Following::new(batches, |slot| self.requests.cache.get(slot).map(Arc::clone)) else {
            return self.end(Error::Bug(format!("a plan of slots that rank {} lacks", self.rank)));
        };
        self.requests.waiting.retain(
            |_, w| !matches!(w.said, Said::ByNumber(slot) if following.submit(self.now, self.plan.looks, slot)),
        );
        if !self.rules.entry_cost.is_zero() {
            following.observe();
        }
        self.plan.following = Some(following);
        self.restart_refining();
        self.plan.asked_to_leave = false;
        self.plan.moved = self.now;
        self.requests.gear = Gear::Plan;
        self.outbox.actions.push(Action::Planned);
        if let Some(name) = self.requests.waiting.keys().min() {
            self.ask_to_leave(format!("tensor {name} was on its way"), false);
        } else if self.requests.joining == Joining::Wanted {
            self.ask_to_leave("it has joined".into(), false);
        }
    }

    fn apply_resume(&mut self, era: u32, begun: u64, withdraw: bool) {
        let Some(following) = self.plan.following.take() else { return };
        self.new_era(era);
        self.requests.gear = Gear::Bits;
        let mine = withdraw && following.begun() > begun;
        let reason = std::mem::take(&mut self.plan.left_because);
        self.outbox.actions.push(Action::PlanLeft { withdraw: mine, renew: withdraw, reason });
        // What was held back during the plan, oldest first, then what was in it.
        let mut held: Vec<(Time, Slot)> = self
            .requests
            .waiting
            .values()
            .filter_map(|w| match w.said {
                Said::ByNumber(slot) => Some((w.since, slot)),
                Said::InFull => None,
            })
            .collect();
        held.sort_unstable();
        for (_, slot) in held {
            self.count(slot);
        }
        let again: Vec<Arc<Cached>> = following.outstanding(mine);
        for cached in again {
            self.tell(cached.request.clone(), self.plan.moved);
        }
    }

    /// Numbers counted or about to be said belong to the era that ends.
    fn new_era(&mut self, era: u32) {
        self.requests.era = era;
        self.requests.counts.clear();
        self.outbox.bits.clear();
        self.requests.overdue.clear();
        self.plan.halting = None;
        if let Some(root) = &mut self.root {
            root.complete.clear();
        }
    }

    pub(super) fn end(&mut self, error: Error) {
        if self.ending.over.is_none() {
            self.ending.over = Some(error.clone());
            self.ending.suspicion = None;
            self.requests.waiting.clear();
            self.plan.following = None;
            if let Some(root) = &mut self.root {
                root.end();
            }
            self.outbox.actions.push(Action::Over(error));
            self.say_bye_if_all_have();
        }
    }

    pub(super) fn count_bye(&mut self) {
        self.ending.byes += 1;
        self.say_bye_if_all_have();
    }

    fn say_bye_if_all_have(&mut self) {
        if self.ending.over.is_some() && self.ending.byes >= self.neighbours.children.len() && !self.ending.said_bye {
            self.ending.said_bye = true;
            if self.neighbours.parent.is_some() {
                self.outbox.up.push(Up::Bye);
            }
        }
    }
}
