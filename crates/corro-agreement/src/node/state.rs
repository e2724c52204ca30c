//! The node itself: what it is told and what it is asked.

use std::sync::Arc;
use std::time::Duration;

use corro_core::{Departure, Error, Rank, Reason};

use super::parts::{Ending, InPlan, Joining, MOST_PATIENCE, Outbox, Requests, Said};
use super::root_state::Root;
use super::rules::{Action, Gear, Rules};
use crate::coordinator::Time;
use crate::deadlock::Watch;
use crate::matching::Agreed;
use crate::message::{Decision, Knobs, Slot, Up, ranges, slots};
use crate::plan::Following;
use crate::request::Request;
use crate::tree::Neighbours;

/// See [`crate::node`].
#[derive(Debug)]
pub struct Node {
    pub(super) rank: Rank,
    pub(super) neighbours: Neighbours,
    pub(super) rules: Rules,
    /// The time of the input at hand.
    pub(super) now: Time,
    pub(super) root: Option<Box<Root>>,
    pub(super) requests: Requests,
    pub(super) plan: InPlan,
    pub(super) ending: Ending,
    pub(super) outbox: Outbox,
    /// Who is blocked.
    pub(super) watch: Watch,
}

impl Node {
    /// The node of `rank`, one of `members` (ascending), with these neighbours.
    pub fn new(rank: Rank, members: Vec<Rank>, neighbours: Neighbours, rules: Rules) -> Self {
        let root = neighbours.parent.is_none().then(|| Box::new(Root::new(members, rules.stalls)));
        Self {
            rank,
            ending: Ending::new(&neighbours, &rules),
            neighbours,
            rules,
            now: Time::ZERO,
            root,
            requests: Requests::default(),
            plan: InPlan::default(),
            outbox: Outbox::default(),
            watch: Watch::default(),
        }
    }

    /// The gear of what ran last.
    pub fn gear(&self) -> Gear {
        self.requests.gear
    }

    /// The neighbours in the tree.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Why everything ended, if it did.
    pub fn over(&self) -> Option<&Error> {
        self.ending.over.as_ref()
    }

    /// Whether everyone below knows that the job is over, so that connections may be closed.
    pub fn may_close(&self) -> bool {
        self.ending.said_bye
    }

    /// The tensors known by number, which are the same on all members that have seen the same decisions.
    pub fn known(&self) -> Vec<(Slot, &str)> {
        let mut slots: Vec<Slot> = self.requests.cache.slots().collect();
        slots.sort_unstable();
        slots.into_iter().filter_map(|s| Some((s, self.requests.cache.get(s)?.request.name.as_str()))).collect()
    }

    /// Roughly how many bytes this node keeps.
    pub fn memory(&self) -> usize {
        let name = |len: usize| len + 200;
        let waiting: usize = self.requests.waiting.keys().map(|n| name(n.len())).sum();
        let cached = self.requests.cache.len() * 500 + self.requests.counts.len() * 16;
        let root = self.root.as_ref().map_or(0, |r| r.memory());
        size_of::<Self>() + waiting + cached + root
    }

    /// This member's program submits a tensor.
    pub fn submit(&mut self, now: Time, request: Request) {
        if self.submit_to_plan(now, &request) || self.ending.over.is_some() {
            return;
        }
        self.learn_unnamed(&request);
        if self.requests.joining != Joining::No {
            return self.requests.aside.push(request);
        }
        if self.plan.following.is_some() {
            let name = &request.name;
            let why = if self.requests.cache.named(name).is_some() {
                format!("tensor {name} is not part of it, or not as it was")
            } else {
                format!("tensor {name} is new")
            };
            self.ask_to_leave(why, false);
        }
        let known = self.requests.cache.find(&request).is_some();
        self.requests.lookups =
            (self.requests.lookups.0 + u64::from(known), self.requests.lookups.1 + u64::from(!known));
        self.tell(request, now);
    }

    /// As [`Node::submit`], if the tensor is part of the plan that is being followed; false if not, and then nothing was
    /// done. It spares whoever submits giving the request away.
    pub fn submit_to_plan(&mut self, now: Time, request: &Request) -> bool {
        if self.plan.following.is_none() {
            return false;
        }
        let slot = self.requests.cache.find(request).map(|cached| cached.slot);
        slot.is_some_and(|slot| self.submit_slot(now, slot))
    }

    /// As [`Node::submit_to_plan`], for what was looked up already.
    fn submit_slot(&mut self, now: Time, slot: Slot) -> bool {
        self.now = now;
        let Some(following) = self.plan.following.as_mut().filter(|_| self.requests.joining == Joining::No) else {
            return false;
        };
        let waited = following.has_ready() || self.plan.in_entry;
        if !following.submit(now, self.plan.looks, slot) {
            return false;
        }
        if !waited {
            self.plan.moved = now;
        }
        self.requests.lookups.0 += 1;
        true
    }

    /// This member's program has run out of data. What it submits from here on waits until all have joined.
    pub fn join(&mut self, now: Time) {
        self.now = now;
        if self.ending.over.is_none() && self.requests.joining == Joining::No {
            self.requests.joining = Joining::Wanted;
            if self.plan.following.is_some() {
                self.ask_to_leave("it has joined".into(), false);
            }
        }
    }

    /// This member, on this host, leaves for this reason, and so ends the job for all.
    pub fn shut_down(&mut self, host: &str, reason: Reason) {
        if self.ending.over.is_none() {
            self.tell_root(Up::Shutdown(Departure { rank: self.rank, host: host.to_owned(), reason }));
        }
    }

    /// Ends this node without a word to the others: they learn it another way.
    pub fn close(&mut self, error: Error) {
        self.apply(Decision::Failed(error));
    }

    /// What this member is doing, since it was asked, and whether its program waits for others.
    pub fn answer(&mut self, doing: String, waits: bool) {
        self.tell_root(Up::Doing { rank: self.rank, doing, waits });
    }

    /// Changes how much may run as one and how collectives run, for all members. Only the root can.
    pub fn tune(&mut self, fusion_threshold: usize, knobs: Knobs) {
        if let Some(root) = self.root.as_mut().filter(|_| self.ending.over.is_none()) {
            root.refined.forget();
            self.decide(Decision::Tune { fusion_threshold, knobs });
        }
    }

    /// From now on plans may be made. Only the root needs to know.
    pub fn allow_plans(&mut self) {
        self.rules.plans = true;
    }

    /// How many requests were found in the cache since the last call, and how many were not.
    pub fn take_lookups(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.requests.lookups)
    }

    /// Begins the next entry of the plan, if there is one and its tensors are there.
    pub fn begin(&mut self, now: Time) -> Option<Arc<[Arc<Agreed>]>> {
        self.now = now;
        if !self.outbox.actions.is_empty() {
            return None;
        }
        let following = self.plan.following.as_mut()?;
        let round = following.round();
        let (tensors, seen) = following.begin(now)?;
        self.plan.in_entry = true;
        self.plan.moved = now;
        if let Some(seen) = seen {
            self.heard_seen(round, seen);
        }
        Some(tensors)
    }

    /// As [`Node::submit`] and then [`Node::begin`], if this tensor is all that the next entry of the plan consists of;
    /// otherwise nothing was done.
    pub fn begin_alone(&mut self, now: Time, request: &Request) -> Option<Arc<[Arc<Agreed>]>> {
        let slot = self.requests.cache.find(request)?.slot;
        let alone = self.outbox.actions.is_empty() && self.plan.following.as_ref()?.is_next_alone(slot);
        if !alone || !self.submit_slot(now, slot) {
            return None;
        }
        self.begin(now)
    }

    /// Whether [`Node::begin`] would give something.
    pub fn can_begin(&self) -> bool {
        // Lists that were told before the plan come before it.
        self.outbox.actions.is_empty() && self.plan.following.as_ref().is_some_and(Following::can_begin)
    }

    /// The entry begun last has finished (or was withdrawn, or failed).
    pub fn finished(&mut self, now: Time) {
        self.now = now;
        let waited = now.saturating_sub(self.plan.moved);
        // Ranks that are often slow must not be taken for ranks that never come.
        self.plan.patience = self.plan.patience.max(waited * 4).min(MOST_PATIENCE);
        self.plan.in_entry = false;
        self.plan.moved = now;
        if let Some(following) = &mut self.plan.following {
            following.switch();
        }
    }

    /// A child says something.
    pub fn hear_child(&mut self, now: Time, message: Up) {
        self.now = now;
        match message {
            Up::Bye => self.count_bye(),
            Up::AreYouThere => self.asked_by_child(),
            Up::Here => {}
            _ if self.ending.over.is_some() => {}
            Up::Bits { era, slots: said } => {
                if era == self.requests.era && self.plan.following.is_none() {
                    for slot in slots(&said, self.rules.cache_capacity.saturating_mul(2)) {
                        self.count(slot);
                    }
                }
            }
            Up::Blocked { round, blocked } => self.watch.child(round, blocked),
            Up::Overdue(said) => {
                let said = slots(&said, self.rules.cache_capacity.saturating_mul(2)).collect();
                self.heard_overdue(said);
            }
            Up::Halted { era, fewest, most, torn } => {
                if era == self.requests.era {
                    self.count_halted(fewest, most, torn);
                }
            }
            Up::Seen { era, round, seen } => {
                if era == self.requests.era {
                    self.heard_seen(round, seen);
                }
            }
            Up::Leave { era, rank, why, futile } => {
                // One is enough.
                if era == self.requests.era && !std::mem::replace(&mut self.plan.asked_to_leave, true) {
                    self.heard_leave(rank, why, futile);
                }
            }
            other => self.tell_root(other),
        }
    }

    /// The parent passes on decisions.
    pub fn hear_parent(&mut self, now: Time, decisions: Vec<Decision>) {
        self.now = now;
        for decision in decisions {
            match decision {
                Decision::AreYouThere => self.asked_by_parent(),
                Decision::Here => {}
                decision => self.pass_on(decision),
            }
        }
    }

    fn pass_on(&mut self, decision: Decision) {
        if self.ending.over.is_none() {
            self.outbox.down.push(decision.clone());
            self.apply(decision);
        }
    }

    /// Time has passed: looks for what is overdue.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if self.ending.over.is_some() {
            return;
        }
        if self.verdict_at().is_some_and(|at| now >= at) {
            return self.give_verdict();
        }
        if self.leave_at().is_some_and(|at| now >= at) {
            let waited = now.saturating_sub(self.plan.moved).as_secs_f64();
            self.ask_to_leave(format!("it waited {waited:.1} s for the others"), true);
        }
        let late = self.overdue_at().filter(|(_, at)| now >= *at).map(|(slot, _)| slot).collect();
        self.heard_overdue(late);
        self.look_at_neighbours();
        self.tick_root();
    }

    /// When to tick, if nothing happens before.
    pub fn next_tick(&self) -> Option<Time> {
        if self.ending.over.is_some() {
            return None;
        }
        let verdict = self.verdict_at();
        let overdue = self.overdue_at().map(|(_, at)| at).min();
        let root = self.root.as_ref().and_then(|r| r.next_tick());
        let inquiry = self.root.as_ref().filter(|_| self.plan.following.is_none()).and_then(|r| r.inquiry.next_look());
        [verdict, self.leave_at(), overdue, self.ending.liveness.next_look(), root, inquiry].into_iter().flatten().min()
    }

    /// Whether it is time to say that this member has run out of data.
    fn may_join(&self) -> bool {
        self.requests.joining == Joining::Wanted
            && self.plan.following.is_none()
            && self.requests.waiting.is_empty()
            && self.ending.over.is_none()
    }

    /// When this member will have waited in the plan for too long.
    fn leave_at(&self) -> Option<Time> {
        let following = self.plan.following.as_ref().filter(|f| !f.is_halted() && !self.plan.asked_to_leave)?;
        let waits = following.has_ready() || self.plan.in_entry;
        // A stall must be known early enough to be told in time.
        let patience = self.reveal_after().map_or(self.plan.patience, |after| after.min(self.plan.patience));
        // And a rank that is merely busy must not be missed in a collective for as long as a lost one would be.
        let limit = self.rules.timeout / 4;
        let patience = if limit.is_zero() { patience } else { patience.min(limit) };
        waits.then(|| self.plan.moved + patience)
    }

    /// Numbers of which the root will have to be told that this member waits for them, and when.
    fn overdue_at(&self) -> impl Iterator<Item = (Slot, Time)> {
        let after = self.reveal_after().filter(|_| self.plan.following.is_none());
        after.into_iter().flat_map(move |after| {
            self.requests.waiting.values().filter_map(move |w| match w.said {
                Said::ByNumber(slot) if !self.requests.overdue.contains(&slot) => Some((slot, w.since + after)),
                _ => None,
            })
        })
    }

    /// Long after a request was said by number, it is said in full: then the root knows who has it and who has not.
    fn reveal_after(&self) -> Option<Duration> {
        self.rules.stalls.first().map(|d| d / 2)
    }

    /// What is to be sent: to the parent, and to every child.
    pub fn flush(&mut self, now: Time) -> (Vec<Up>, Vec<Decision>) {
        self.now = now;
        self.run_complete();
        if self.may_join() {
            self.requests.joining = Joining::Said;
            self.tell_root(Up::Join(self.rank));
            self.run_complete();
        }
        self.report_stall();
        self.say_whether_blocked();
        if !self.outbox.bits.is_empty() {
            let slots = ranges(std::mem::take(&mut self.outbox.bits));
            self.outbox.up.push(Up::Bits { era: self.requests.era, slots });
        }
        (std::mem::take(&mut self.outbox.up), std::mem::take(&mut self.outbox.down))
    }

    /// Whether [`Node::flush`] or [`Node::take_actions`] would give something.
    pub fn has_news(&self) -> bool {
        let said = !(self.outbox.up.is_empty() && self.outbox.down.is_empty() && self.outbox.bits.is_empty());
        said || self.root.as_ref().is_some_and(|r| r.has_news()) || self.may_join() || !self.outbox.actions.is_empty()
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.outbox.actions)
    }
}
