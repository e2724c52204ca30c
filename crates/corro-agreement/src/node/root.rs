//! What the root does beside what every member does: it decides, and writes its decisions into the log.
//!
//! Decisions follow from news in the order in which it came, with one exception: while a plan is followed, members may be
//! an entry apart, so news waits until the plan is left, which it asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corro_core::Rank;

use super::root_state::{ANSWER_TIME, Asking, Leaving, News};
use super::rules::Action;
use super::state::Node;
use crate::coordinator::{Input, Output, StallReport, Warned};
use crate::fusion;
use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::message::{Announcement, Decision, Item, Slot, Up, ranges};
use crate::plan::is_plannable;

impl Node {
    /// Something has reached the root.
    pub(super) fn hear_as_root(&mut self, message: Up) {
        match message {
            Up::Announce(said) => said.into_iter().for_each(|a| self.take_up(News::Announced(a))),
            Up::Join(rank) => self.take_up(News::Joined(rank)),
            Up::Shutdown(departure) => self.take_up(News::Shutdown(departure)),
            Up::Failed(by, error) => {
                let now = self.now;
                if !self.root.as_mut().is_some_and(|root| root.blame.accuse(now, by, &error)) {
                    self.decide(Decision::Failed(error));
                }
            }
            Up::Lost(error) => self.decide(Decision::Failed(error)),
            Up::Doing { rank, doing, waits } => {
                if let Some(asking) = self.root.as_mut().and_then(|r| r.asking.as_mut()) {
                    asking.report.doing.insert(rank, doing);
                    asking.report.waits.extend(waits.then_some(rank));
                }
            }
            Up::Stands { round, rank, standing } => self.heard_standing(round, rank, standing.map(|s| *s)),
            // Every node looks at these by itself.
            Up::Bits { .. }
            | Up::Overdue(_)
            | Up::Leave { .. }
            | Up::Halted { .. }
            | Up::AreYouThere
            | Up::Here
            | Up::Seen { .. }
            | Up::Blocked { .. }
            | Up::Bye => {}
        }
    }

    fn take_up(&mut self, news: News) {
        let (rank, why, alone) = match &news {
            News::Announced(a) => {
                (a.rank, "its tensor is new or has changed", self.requests.cache.named(&a.request.name).is_none())
            }
            News::Joined(rank) => (*rank, "it has joined", false),
            News::Shutdown(departure) => (departure.rank, "it shuts down", false),
        };
        if !alone {
            // What was complete before this goes first. That may begin a plan.
            self.run_complete();
        }
        if self.plan.following.is_some() {
            self.heard_leave(rank, why.into(), false);
        }
        let Some(root) = &mut self.root else { return };
        if self.plan.following.is_some() {
            return root.held.push(news);
        }
        match news {
            News::Announced(a) => self.announced(a),
            News::Joined(rank) => self.joined(rank),
            News::Shutdown(departure) => self.decide(Decision::Shutdown(departure)),
        }
    }

    fn announced(&mut self, Announcement { rank, request, waited }: Announcement) {
        // Whoever says in full what has a number has changed it: all say it in full.
        if let Some(cached) = self.requests.cache.named(&request.name) {
            self.forget(vec![cached.slot]);
        }
        if self.rules.ticks {
            self.outbox.actions.push(Action::Heard(request.name.clone(), rank));
        }
        let Some(root) = &mut self.root else { return };
        let outputs = root.coordinator.step(self.now, Input::Announce { rank, requests: vec![request], waited });
        self.follow(outputs);
    }

    fn joined(&mut self, rank: Rank) {
        // While some stand aside nothing is said by number: nobody would count for them.
        self.forget(self.requests.cache.slots().collect());
        let Some(root) = &mut self.root else { return };
        root.learner.disturb();
        let outputs = root.coordinator.step(self.now, Input::Join { rank });
        self.follow(outputs);
    }

    /// Somebody has waited long for these, said by number.
    pub(super) fn reveal(&mut self, late: Vec<Slot>) {
        self.run_complete();
        // If that began a plan, whoever still waits says so again when the plan is left.
        if self.plan.following.is_none() {
            self.forget(late.into_iter().filter(|slot| self.requests.cache.get(*slot).is_some()).collect());
        }
    }

    fn follow(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Run(agreed) => {
                    if let Some(root) = &mut self.root {
                        root.to_run.extend(agreed);
                    }
                }
                Output::Fail { names, error } => self.decide(Decision::Fail { names, error }),
                Output::AllJoined { last } => self.decide(Decision::AllJoined { last }),
                Output::Stalled(report) => self.ask(report, false),
            }
        }
    }

    // Stalls.

    pub(super) fn tick_root(&mut self) {
        let now = self.now;
        let Some(root) = &mut self.root else { return };
        if let Some(error) = root.blame.verdict(now) {
            return self.decide(Decision::Failed(error));
        }
        if root.end_at().is_some_and(|at| now >= at) {
            let leaves =
                |news: &News| if let News::Shutdown(departure) = news { Some(departure.clone()) } else { None };
            if let Some(first) = root.held.iter().find_map(leaves) {
                return self.decide(Decision::Shutdown(first));
            }
        }
        if root.asking.is_none() && !root.given_up {
            let outputs = root.coordinator.step(now, Input::Tick);
            self.follow(outputs);
            self.call_roll();
        }
        self.report_stall();
        self.inquire();
    }

    /// Somebody has not left the plan for a long time: asks who is there.
    fn call_roll(&mut self) {
        let now = self.now;
        let Some(root) = self.root.as_mut().filter(|r| r.next_roll_call().is_some_and(|at| now >= at)) else { return };
        let (Some(leaving), Some(following)) = (&mut root.leaving, &self.plan.following) else { return };
        leaving.warned = Some(Warned::again(leaving.warned, leaving.since, now));
        let waiting = now.saturating_sub(leaving.since);
        let names = following.awaited(self.plan.in_entry);
        let missing = root.coordinator.members().iter().map(|rank| (*rank, names.clone())).collect();
        let fatal = root.limits.end(waiting);
        self.ask(
            StallReport { waiting, missing, longest: None, doing: BTreeMap::new(), waits: BTreeSet::new(), fatal },
            true,
        );
    }

    fn ask(&mut self, report: StallReport, roll_call: bool) {
        let Some(root) = &mut self.root else { return };
        let missing = report.missing.keys().copied().collect();
        root.asking = Some(Asking { report, until: self.now + ANSWER_TIME, roll_call });
        self.decide(Decision::Ask(missing));
    }

    /// Tells about a stall once the missing ranks have answered, or their time is over.
    pub(super) fn report_stall(&mut self) {
        let now = self.now;
        let Some(root) = &mut self.root else { return };
        let told =
            |a: &mut Asking| now >= a.until || a.report.missing.keys().all(|rank| a.report.doing.contains_key(rank));
        let Some(Asking { mut report, roll_call, .. }) = root.asking.take_if(told) else { return };
        if roll_call {
            let here = std::mem::take(&mut report.doing);
            report.missing.retain(|rank, _| !here.contains_key(rank));
            if report.missing.is_empty() {
                return;
            }
        }
        if report.fatal {
            root.given_up = true;
            self.outbox.actions.push(Action::Overdue(report));
        } else {
            self.outbox.actions.push(Action::Stalled(report));
        }
    }

    // Running.

    /// Decides on all that is complete: runs it, or makes a plan.
    pub(super) fn run_complete(&mut self) {
        // A plan may be left as soon as it is made, and then there is more.
        while self.root.as_ref().is_some_and(|r| r.has_news())
            && self.plan.following.is_none()
            && self.ending.over.is_none()
        {
            let Some(root) = &mut self.root else { return };
            let known = |slot| self.requests.cache.get(slot).map(|cached| Arc::clone(&cached.agreed));
            let complete: Vec<Arc<Agreed>> = std::mem::take(&mut root.complete).into_iter().filter_map(known).collect();
            let outputs = root.coordinator.complete(complete);
            self.follow(outputs);
            self.run_or_plan();
        }
    }

    fn run_or_plan(&mut self) {
        let Some(root) = self.root.as_mut().filter(|r| !r.to_run.is_empty()) else { return };
        let to_run = std::mem::take(&mut root.to_run);
        root.lists += 1;
        let known = |agreed: &Arc<Agreed>| {
            let cached = self.requests.cache.named(&agreed.name)?;
            Arc::ptr_eq(&cached.agreed, agreed).then_some(cached.slot)
        };
        let slots: Vec<Option<Slot>> = to_run.iter().map(known).collect();
        for slot in slots.iter().flatten() {
            root.used.insert(*slot, root.lists);
        }
        let size = root.coordinator.members().len();
        let for_good = self.requests.unnamed.are_named_for_good(&to_run);
        let plannable =
            self.rules.plans && for_good && to_run.iter().all(|a| is_plannable(a, size)) && has_whole_groups(&to_run);
        match slots.iter().copied().collect::<Option<Vec<Slot>>>().filter(|_| plannable) {
            None => root.learner.disturb(),
            Some(all_known) => {
                if let Some((first, lists)) = root.learner.observe(&all_known) {
                    if root.coordinator.is_idle()
                        && lists.iter().flatten().all(|s| self.requests.cache.get(*s).is_some())
                    {
                        let before: Vec<Item> = all_known[..first].iter().map(|s| Item::Known(*s)).collect();
                        return self.make_plan(before, &lists);
                    }
                    root.learner.disturb();
                }
            }
        }
        self.run(to_run, slots);
    }

    fn run(&mut self, to_run: Vec<Arc<Agreed>>, slots: Vec<Option<Slot>>) {
        let Some(root) = &mut self.root else { return };
        let remember = self.rules.cache_capacity > 0 && !root.coordinator.is_joining();
        let mut items = Vec::with_capacity(to_run.len());
        for (agreed, slot) in to_run.into_iter().zip(slots) {
            items.push(match slot {
                Some(slot) => Item::Known(slot),
                None => {
                    let slot = (remember && agreed.kind.is_cacheable()).then_some(root.next_slot);
                    if let Some(slot) = slot {
                        root.next_slot += 1;
                        root.used.insert(slot, root.lists);
                    }
                    Item::New(Arc::unwrap_or_clone(agreed), slot)
                }
            });
        }
        self.decide(Decision::Run(items));
        self.forget_oldest();
    }

    fn make_plan(&mut self, before: Vec<Item>, lists: &[Vec<Slot>]) {
        if !before.is_empty() {
            self.decide(Decision::Run(before));
        }
        let mut batches = Vec::new();
        for list in lists {
            let agreed: Vec<Arc<Agreed>> =
                list.iter().filter_map(|s| self.requests.cache.get(*s)).map(|c| Arc::clone(&c.agreed)).collect();
            for batch in fusion::batches(&agreed, self.rules.fusion) {
                batches.push(batch.tensors.into_iter().map(|i| list[i]).collect());
            }
        }
        if let Some(root) = &mut self.root {
            batches = root.refined.instead_of(batches);
        }
        self.decide(Decision::Plan { era: self.requests.era + 1, batches });
    }

    fn forget_oldest(&mut self) {
        let Some(root) = &self.root else { return };
        let too_many = self.requests.cache.len().saturating_sub(self.rules.cache_capacity);
        if too_many == 0 {
            return;
        }
        let mut by_age: Vec<(u64, Slot)> =
            self.requests.cache.slots().map(|s| (root.used.get(&s).copied().unwrap_or(0), s)).collect();
        by_age.sort_unstable();
        self.forget(by_age.into_iter().take(too_many).map(|(_, slot)| slot).collect());
    }

    /// Whoever has said one of these will say it again, in full.
    fn forget(&mut self, slots: Vec<Slot>) {
        let Some(root) = self.root.as_mut().filter(|_| !slots.is_empty()) else { return };
        for slot in &slots {
            root.used.remove(slot);
            if let Some(cached) = self.requests.cache.get(*slot) {
                root.coordinator.recall(&cached.agreed);
            }
        }
        self.decide(Decision::Forget(ranges(slots)));
    }

    // Leaving a plan.

    pub(super) fn halt(&mut self, rank: Rank, why: String, futile: bool) {
        let Some(root) = &mut self.root else { return };
        if self.plan.following.is_some() && root.leaving.as_ref().is_none_or(|l| l.refine.is_some()) {
            let waited = if futile { self.plan.patience } else { Duration::ZERO };
            root.leaving = Some(Leaving { futile, since: self.now.saturating_sub(waited), warned: None, refine: None });
            self.decide(Decision::Halt { era: self.requests.era, rank, why });
        }
    }

    /// Halts the plan, to go on with other entries.
    pub(super) fn halt_to_refine(&mut self, entries: Vec<Vec<Slot>>) {
        let Some(root) = self.root.as_mut().filter(|r| r.leaving.is_none()) else { return };
        root.leaving = Some(Leaving { futile: false, since: self.now, warned: None, refine: Some(entries) });
        let why = "it can go on in fewer entries".to_owned();
        self.decide(Decision::Halt { era: self.requests.era, rank: self.rank, why });
    }

    /// All members have stopped following the plan.
    pub(super) fn all_halted(&mut self, fewest: u64, most: u64, torn: bool) {
        let Some(root) = &mut self.root else { return };
        let leaving = root.leaving.take();
        let futile = leaving.as_ref().is_some_and(|l| l.futile);
        if let Some(entries) = leaving.and_then(|l| l.refine) {
            return self.refine(most, entries);
        }
        root.refined.left(futile, torn);
        root.learner.left(futile);
        if let Some(following) = &self.plan.following {
            root.coordinator.already_ran(following.ran(fewest));
        }
        self.decide(Decision::Resume { era: self.requests.era + 1, begun: fewest, withdraw: most > fewest });
        let held = self.root.as_mut().map(|r| std::mem::take(&mut r.held)).unwrap_or_default();
        for news in held {
            self.take_up(news);
        }
    }

    /// Writes a decision into the log.
    pub(super) fn decide(&mut self, decision: Decision) {
        if self.ending.over.is_none() {
            self.outbox.down.push(decision.clone());
            self.apply(decision);
        }
    }
}

/// Whether these groups run as a whole, and are not what a plan had left of them when it ended.
fn has_whole_groups(agreed: &[Arc<Agreed>]) -> bool {
    let mut groups: HashMap<u64, (usize, usize)> = HashMap::default();
    for (number, size) in agreed.iter().filter_map(|a| a.group) {
        groups.entry(number).or_insert((0, size)).0 += 1;
    }
    groups.values().all(|(here, size)| here == size)
}
