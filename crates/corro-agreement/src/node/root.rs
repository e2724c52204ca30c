//! What the root does beside what every member does: it decides, and writes its decisions into the log.
//!
//! Decisions follow from news in the order in which it came, with one exception: while a plan is followed, members may be
//! an entry apart, so news waits until the plan is left, which it asks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use crate::blame::Blame;
use crate::coordinator::{Coordinator, Input, Output, StallLimits, StallReport, Time};
use crate::fusion;
use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::message::{Announcement, Decision, Item, Slot, Up, ranges};
use crate::plan::{Learner, is_plannable};

use super::refining::Refined;
use super::{Action, Node};

/// How long missing ranks may take to tell what they are doing, and members to leave a plan when the job is to end.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// What the root keeps beside what every member keeps.
#[derive(Debug)]
pub(super) struct Root {
    coordinator: Coordinator,
    learner: Learner,
    limits: StallLimits,
    next_slot: Slot,
    /// When each slot last ran, counted in lists.
    used: HashMap<Slot, u64>,
    lists: u64,
    /// Complete by numbers, and not yet decided on.
    pub(super) complete: Vec<Slot>,
    /// Decided on, and not yet told.
    to_run: Vec<Arc<Agreed>>,
    /// What came while a plan is being left.
    held: Vec<News>,
    leaving: Option<Leaving>,
    pub(super) refined: Refined,
    asking: Option<Asking>,
    blame: Blame,
}

/// What the root decides on.
#[derive(Debug)]
enum News {
    Announced(Announcement),
    Joined(Rank),
    Shutdown(Rank),
}

/// Members were told to leave the plan.
#[derive(Debug)]
struct Leaving {
    /// Whether they had waited in vain.
    futile: bool,
    /// Since when somebody waits.
    since: Time,
    /// When a word was said about it.
    warned: Option<Time>,
    /// Nobody wants to leave: it is to go on in these entries.
    refine: Option<Vec<Vec<Slot>>>,
}

/// A stall that ranks were asked about.
#[derive(Debug)]
struct Asking {
    report: StallReport,
    /// They may answer until then.
    until: Time,
    /// Whether all members were asked, since it is not known who is missing: whoever does not answer.
    roll_call: bool,
}

impl Root {
    pub(super) fn new(members: Vec<Rank>, limits: StallLimits) -> Self {
        Self {
            coordinator: Coordinator::new(members, limits),
            learner: Learner::default(),
            limits,
            next_slot: 0,
            used: HashMap::default(),
            lists: 0,
            complete: Vec::new(),
            to_run: Vec::new(),
            held: Vec::new(),
            leaving: None,
            refined: Refined::default(),
            asking: None,
            blame: Blame::default(),
        }
    }

    pub(super) fn memory(&self) -> usize {
        let members = self.coordinator.members().len();
        let pending = self.coordinator.waiting() * members * size_of::<Option<Arc<Agreed>>>();
        pending + members * (size_of::<Rank>() + 1) + self.used.len() * 16
    }

    pub(super) fn has_news(&self) -> bool {
        !(self.complete.is_empty() && self.to_run.is_empty())
    }

    /// Nothing is decided any more.
    pub(super) fn end(&mut self) {
        self.complete.clear();
        self.to_run.clear();
        self.held.clear();
    }

    pub(super) fn next_tick(&self) -> Option<Time> {
        // One stall at a time.
        let look = match &self.asking {
            Some(asking) => Some(asking.until),
            None => [self.coordinator.next_look(), self.next_roll_call()].into_iter().flatten().min(),
        };
        [look, self.end_at(), self.blame.due()].into_iter().flatten().min()
    }

    fn next_roll_call(&self) -> Option<Time> {
        self.leaving.as_ref().and_then(|l| self.limits.next_look(l.since, l.warned))
    }

    /// When the job ends although the plan was not left, since somebody wants the end and somebody else does not answer.
    fn end_at(&self) -> Option<Time> {
        let ends = self.held.iter().any(|news| matches!(news, News::Shutdown(_)));
        self.leaving.as_ref().filter(|_| ends).map(|l| l.since + ANSWER_TIME)
    }
}

impl Node {
    /// Something has reached the root.
    pub(super) fn hear_as_root(&mut self, message: Up) {
        match message {
            Up::Announce(said) => said.into_iter().for_each(|a| self.take_up(News::Announced(a))),
            Up::Join(rank) => self.take_up(News::Joined(rank)),
            Up::Shutdown(rank) => self.take_up(News::Shutdown(rank)),
            Up::Failed(by, error) => {
                let now = self.now;
                if !self.root.as_mut().is_some_and(|root| root.blame.accuse(now, by, &error)) {
                    self.decide(Decision::Failed(error));
                }
            }
            Up::Lost(error) => self.decide(Decision::Failed(error)),
            Up::Doing(rank, doing) => {
                if let Some(asking) = self.root.as_mut().and_then(|r| r.asking.as_mut()) {
                    asking.report.doing.insert(rank, doing);
                }
            }
            // Every node looks at these by itself.
            Up::Bits { .. }
            | Up::Overdue(_)
            | Up::Leave { .. }
            | Up::Halted { .. }
            | Up::AreYouThere
            | Up::Here
            | Up::Seen { .. }
            | Up::Bye => {}
        }
    }

    fn take_up(&mut self, news: News) {
        let (rank, why, alone) = match &news {
            News::Announced(a) => {
                (a.rank, "its tensor is new or has changed", self.cache.named(&a.request.name).is_none())
            }
            News::Joined(rank) => (*rank, "it has joined", false),
            News::Shutdown(rank) => (*rank, "it shuts down", false),
        };
        if !alone {
            // What was complete before this goes first. That may begin a plan.
            self.run_complete();
        }
        if self.following.is_some() {
            self.heard_leave(rank, why.into(), false);
        }
        let Some(root) = &mut self.root else { return };
        if self.following.is_some() {
            return root.held.push(news);
        }
        match news {
            News::Announced(a) => self.announced(a),
            News::Joined(rank) => self.joined(rank),
            News::Shutdown(rank) => self.decide(Decision::Shutdown(rank)),
        }
    }

    fn announced(&mut self, Announcement { rank, request, waited }: Announcement) {
        // Whoever says in full what has a number has changed it: all say it in full.
        if let Some(cached) = self.cache.named(&request.name) {
            self.forget(vec![cached.slot]);
        }
        if self.rules.ticks {
            self.actions.push(Action::Heard(request.name.clone(), rank));
        }
        let Some(root) = &mut self.root else { return };
        let outputs = root.coordinator.step(self.now, Input::Announce { rank, requests: vec![request], waited });
        self.follow(outputs);
    }

    fn joined(&mut self, rank: Rank) {
        // While some stand aside nothing is said by number: nobody would count for them.
        self.forget(self.cache.slots().collect());
        let Some(root) = &mut self.root else { return };
        root.learner.disturb();
        let outputs = root.coordinator.step(self.now, Input::Join { rank });
        self.follow(outputs);
    }

    /// Somebody has waited long for these, said by number.
    pub(super) fn reveal(&mut self, late: Vec<Slot>) {
        self.run_complete();
        // If that began a plan, whoever still waits says so again when the plan is left.
        if self.following.is_none() {
            self.forget(late.into_iter().filter(|slot| self.cache.get(*slot).is_some()).collect());
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
            let who = root.held.iter().find_map(|n| if let News::Shutdown(rank) = n { Some(*rank) } else { None });
            return self.decide(Decision::Shutdown(who.unwrap_or(self.rank)));
        }
        if root.asking.is_none() {
            let outputs = root.coordinator.step(now, Input::Tick);
            self.follow(outputs);
            self.call_roll();
        }
        self.report_stall();
    }

    /// Somebody has not left the plan for a long time: asks who is there.
    fn call_roll(&mut self) {
        let now = self.now;
        let Some(root) = self.root.as_mut().filter(|r| r.next_roll_call().is_some_and(|at| now >= at)) else { return };
        let (Some(leaving), Some(following)) = (&mut root.leaving, &self.following) else { return };
        leaving.warned = Some(now);
        let waiting = now.saturating_sub(leaving.since);
        let names = following.awaited(self.in_entry);
        let missing = root.coordinator.members().iter().map(|rank| (*rank, names.clone())).collect();
        let fatal = root.limits.end(waiting);
        self.ask(StallReport { waiting, missing, doing: BTreeMap::new(), fatal }, true);
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
        self.decide(Decision::Stalled(report.clone()));
        if report.fatal {
            self.decide(Decision::Failed(Error::Shutdown(format!("Horovod has been shut down: {report}"))));
        }
    }

    // Running.

    /// Decides on all that is complete: runs it, or makes a plan.
    pub(super) fn run_complete(&mut self) {
        // A plan may be left as soon as it is made, and then there is more.
        while self.root.as_ref().is_some_and(|r| r.has_news()) && self.following.is_none() && self.over.is_none() {
            let Some(root) = &mut self.root else { return };
            let known = |slot| self.cache.get(slot).map(|cached| Arc::clone(&cached.agreed));
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
            let cached = self.cache.named(&agreed.name)?;
            Arc::ptr_eq(&cached.agreed, agreed).then_some(cached.slot)
        };
        let slots: Vec<Option<Slot>> = to_run.iter().map(known).collect();
        for slot in slots.iter().flatten() {
            root.used.insert(*slot, root.lists);
        }
        let size = root.coordinator.members().len();
        let for_good = self.unnamed.are_named_for_good(&to_run);
        let plannable =
            self.rules.plans && for_good && to_run.iter().all(|a| is_plannable(a, size)) && has_whole_groups(&to_run);
        match slots.iter().copied().collect::<Option<Vec<Slot>>>().filter(|_| plannable) {
            None => root.learner.disturb(),
            Some(all_known) => {
                if let Some((first, lists)) = root.learner.observe(&all_known) {
                    if root.coordinator.is_idle() && lists.iter().flatten().all(|s| self.cache.get(*s).is_some()) {
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
                list.iter().filter_map(|s| self.cache.get(*s)).map(|c| Arc::clone(&c.agreed)).collect();
            for batch in fusion::batches(&agreed, self.rules.fusion) {
                batches.push(batch.tensors.into_iter().map(|i| list[i]).collect());
            }
        }
        if let Some(root) = &mut self.root {
            batches = root.refined.instead_of(batches);
        }
        self.decide(Decision::Plan { era: self.era + 1, batches });
    }

    fn forget_oldest(&mut self) {
        let Some(root) = &self.root else { return };
        let too_many = self.cache.len().saturating_sub(self.rules.cache_capacity);
        if too_many == 0 {
            return;
        }
        let mut by_age: Vec<(u64, Slot)> =
            self.cache.slots().map(|s| (root.used.get(&s).copied().unwrap_or(0), s)).collect();
        by_age.sort_unstable();
        self.forget(by_age.into_iter().take(too_many).map(|(_, slot)| slot).collect());
    }

    /// Whoever has said one of these will say it again, in full.
    fn forget(&mut self, slots: Vec<Slot>) {
        let Some(root) = self.root.as_mut().filter(|_| !slots.is_empty()) else { return };
        for slot in &slots {
            root.used.remove(slot);
            if let Some(cached) = self.cache.get(*slot) {
                root.coordinator.recall(&cached.agreed);
            }
        }
        self.decide(Decision::Forget(ranges(slots)));
    }

    // Leaving a plan.

    pub(super) fn halt(&mut self, rank: Rank, why: String, futile: bool) {
        let Some(root) = &mut self.root else { return };
        if self.following.is_some() && root.leaving.as_ref().is_none_or(|l| l.refine.is_some()) {
            let waited = if futile { self.patience } else { Duration::ZERO };
            root.leaving = Some(Leaving { futile, since: self.now.saturating_sub(waited), warned: None, refine: None });
            self.decide(Decision::Halt { era: self.era, rank, why });
        }
    }

    /// Halts the plan, to go on with other entries.
    pub(super) fn halt_to_refine(&mut self, entries: Vec<Vec<Slot>>) {
        let Some(root) = self.root.as_mut().filter(|r| r.leaving.is_none()) else { return };
        root.leaving = Some(Leaving { futile: false, since: self.now, warned: None, refine: Some(entries) });
        let why = "it can go on in fewer entries".to_owned();
        self.decide(Decision::Halt { era: self.era, rank: self.rank, why });
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
        if let Some(following) = &self.following {
            root.coordinator.already_ran(following.ran(fewest));
        }
        self.decide(Decision::Resume { era: self.era + 1, begun: fewest, withdraw: most > fewest });
        let held = self.root.as_mut().map(|r| std::mem::take(&mut r.held)).unwrap_or_default();
        for news in held {
            self.take_up(news);
        }
    }

    /// Writes a decision into the log.
    pub(super) fn decide(&mut self, decision: Decision) {
        if self.over.is_none() {
            self.down.push(decision.clone());
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
