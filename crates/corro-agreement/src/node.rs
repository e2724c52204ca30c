//! One member's part in agreeing what runs, in three gears. Pure: no I/O, no clock.
//!
//! What goes in: what the program submits, what children and the parent say, the time. What comes out: messages for the
//! neighbours ([`Node::flush`]) and [`Action`]s for the one who runs collectives. The same code runs in production and, by
//! the thousand, in the simulator.
//!
//! 1. *Announce*: a new request goes up to the root in full, which decides when all members are in.
//! 2. *Bits*: a request seen before goes up as its number, and only once the whole subtree has submitted it: so every
//!    member sends and receives a number of messages that does not depend on how many members there are.
//! 3. *Plan*: members follow a plan without a word (see [`crate::plan`]).
//!
//! Falling back is safe because it is agreed: slots are forgotten, plans are begun, halted and left by decisions of the
//! log, which all members see in one order. Numbers said in one era are not counted in another; who said them says them
//! again.

mod member;
mod refining;
mod root;
mod unnamed;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use crate::cache::Cache;
use crate::coordinator::{StallLimits, StallReport, Time};
use crate::fusion;
use crate::hash::{HashMap, HashSet};
use crate::liveness::Liveness;
use crate::matching::Agreed;
use crate::message::{Decision, Knobs, Slot, Up, ranges, slots};
use crate::plan::Following;
use crate::request::Request;
use crate::tree::Neighbours;

use self::refining::Refining;
use self::root::Root;
use self::unnamed::Unnamed;

/// How long a member that saw something fail waits for the root's word on what failed first.
const VERDICT_TIME: Duration = Duration::from_millis(500);

/// How long a member waits for others in a plan, at first, before it asks to leave it.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_PATIENCE: Duration = Duration::from_secs(30);

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// When waiting is worth a word, or the end.
    pub stalls: StallLimits,
    /// How many tensors are remembered by number; 0: none.
    pub cache_capacity: usize,
    /// Whether plans are made.
    pub plans: bool,
    /// How plans fuse.
    pub fusion: fusion::Limits,
    /// What it costs to run two entries of a plan and not one: plans are refined so far that no entry waits longer for
    /// what it is merged with. Zero: they stay as they were made.
    pub entry_cost: Duration,
    /// Whether the root says who has asked for what, for a timeline.
    pub ticks: bool,
    /// How long waiting for a rank that makes no progress may go on; zero: for ever.
    pub timeout: Duration,
    /// Whether this node watches over its neighbours. One process set that all ranks are in is enough.
    pub watches: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            stalls: StallLimits { warn: Duration::from_secs(60), shutdown: Duration::ZERO },
            cache_capacity: 1024,
            plans: true,
            fusion: fusion::Limits { threshold: 128 << 20, only_groups: false },
            entry_cost: Duration::from_micros(30),
            ticks: false,
            timeout: Duration::from_secs(60),
            watches: true,
        }
    }
}

/// How members agree at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gear {
    /// In full.
    #[default]
    Announce,
    /// By numbers.
    Bits,
    /// Without a word.
    Plan,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Run these; cut into batches by fusion.
    Run(Vec<Arc<Agreed>>),
    /// Fail these.
    Fail(Vec<String>, Error),
    /// Joins return this rank.
    AllJoined(Rank),
    /// A plan begins; [`Node::begin`] has its entries.
    Planned,
    /// The plan goes on in fewer entries.
    Refined {
        /// How many there were.
        from: usize,
        /// And are from now on.
        to: usize,
    },
    /// The plan is over.
    PlanLeft {
        /// Whether this member must withdraw from the entry it has begun.
        withdraw: bool,
        /// Whether some member must, so that all need fresh connections.
        renew: bool,
        /// Who wanted it, and why.
        reason: String,
    },
    /// Only at the root, for the timeline: this rank has asked for this tensor, in full.
    Heard(String, Rank),
    /// Say what this member is doing, by [`Node::answer`].
    Asked,
    /// This neighbour has not said a word for so long although it was asked: to be told by [`Node::lost`].
    Silent(usize, Duration),
    /// To be told to people.
    Stalled(StallReport),
    /// How much may run as one from here on, and how collectives run that are not under way.
    Tune(usize, Knobs),
    /// The job is over: fail all that waits and all that comes.
    Over(Error),
}

/// How this member has told the others about a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    InFull,
    ByNumber(Slot),
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    said: Said,
    since: Time,
}

/// Whether this member has run out of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    No,
    /// It has, and says so once all it has submitted has run: nobody may decide without it on what it has said.
    Wanted,
    Said,
}

/// Who has stopped following the plan.
#[derive(Clone, Copy, Debug)]
struct Halting {
    left: usize,
    fewest: u64,
    most: u64,
    torn: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    rank: Rank,
    neighbours: Neighbours,
    rules: Rules,
    /// The time of the input at hand.
    now: Time,
    /// Requests found in the cache, and not found.
    lookups: (u64, u64),
    root: Option<Box<Root>>,
    era: u32,
    gear: Gear,
    cache: Cache,
    /// What this member has submitted and not been told to run; in plans only what they don't have.
    waiting: HashMap<String, Waiting>,
    /// How many of this member and its children have each slot.
    counts: HashMap<Slot, usize>,
    following: Option<Following>,
    halting: Option<Halting>,
    refining: Refining,
    unnamed: Unnamed,
    /// How often the program has learned of a result.
    looks: u64,
    left_because: String,
    asked_to_leave: bool,
    patience: Duration,
    /// When this member last got on with the plan, or began to wait.
    moved: Time,
    /// Whether an entry of the plan has begun and not finished.
    in_entry: bool,
    joining: Joining,
    /// Submitted while this member stands aside; told once all have joined.
    aside: Vec<Request>,
    /// Slots of which the root was told that somebody has waited long for them.
    overdue: HashSet<Slot>,
    over: Option<Error>,
    /// What failed as this member sees it, and until when it waits for the root's word.
    suspicion: Option<(Error, Time)>,
    liveness: Liveness,
    byes: usize,
    said_bye: bool,
    bits: Vec<Slot>,
    up: Vec<Up>,
    down: Vec<Decision>,
    actions: Vec<Action>,
}

impl Node {
    /// The node of `rank`, one of `members` (ascending), with these neighbours.
    pub fn new(rank: Rank, members: Vec<Rank>, neighbours: Neighbours, rules: Rules) -> Self {
        let root = neighbours.parent.is_none().then(|| Box::new(Root::new(members, rules.stalls)));
        let watched = neighbours.parent.iter().chain(&neighbours.children).copied().filter(|_| rules.watches);
        let liveness = Liveness::new(rules.timeout, watched);
        Self {
            rank,
            neighbours,
            rules,
            now: Time::ZERO,
            lookups: (0, 0),
            root,
            era: 0,
            gear: Gear::Announce,
            cache: Cache::default(),
            waiting: HashMap::default(),
            counts: HashMap::default(),
            following: None,
            halting: None,
            refining: Refining::default(),
            unnamed: Unnamed::default(),
            looks: 0,
            left_because: String::new(),
            asked_to_leave: false,
            patience: PATIENCE,
            moved: Time::ZERO,
            in_entry: false,
            joining: Joining::No,
            aside: Vec::new(),
            overdue: HashSet::default(),
            over: None,
            suspicion: None,
            liveness,
            byes: 0,
            said_bye: false,
            bits: Vec::new(),
            up: Vec::new(),
            down: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// The gear of what ran last.
    pub fn gear(&self) -> Gear {
        self.gear
    }

    /// The neighbours in the tree.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Why everything ended, if it did.
    pub fn over(&self) -> Option<&Error> {
        self.over.as_ref()
    }

    /// Whether everyone below knows that the job is over, so that connections may be closed.
    pub fn may_close(&self) -> bool {
        self.said_bye
    }

    /// The tensors known by number, which are the same on all members that have seen the same decisions.
    pub fn known(&self) -> Vec<(Slot, &str)> {
        let mut slots: Vec<Slot> = self.cache.slots().collect();
        slots.sort_unstable();
        slots.into_iter().filter_map(|s| Some((s, self.cache.get(s)?.request.name.as_str()))).collect()
    }

    /// Roughly how many bytes this node keeps.
    pub fn memory(&self) -> usize {
        let name = |len: usize| len + 200;
        let waiting: usize = self.waiting.keys().map(|n| name(n.len())).sum();
        let cached = self.cache.len() * 500 + self.counts.len() * 16;
        let root = self.root.as_ref().map_or(0, |r| r.memory());
        size_of::<Self>() + waiting + cached + root
    }

    /// This member's program submits a tensor.
    pub fn submit(&mut self, now: Time, request: Request) {
        if self.submit_to_plan(now, &request) || self.over.is_some() {
            return;
        }
        self.learn_unnamed(&request);
        if self.joining != Joining::No {
            return self.aside.push(request);
        }
        if self.following.is_some() {
            let name = &request.name;
            let why = if self.cache.named(name).is_some() {
                format!("tensor {name} is not part of it, or not as it was")
            } else {
                format!("tensor {name} is new")
            };
            self.ask_to_leave(why, false);
        }
        let known = self.cache.find(&request).is_some();
        self.lookups = (self.lookups.0 + u64::from(known), self.lookups.1 + u64::from(!known));
        self.tell(request, now);
    }

    /// As [`Node::submit`], if the tensor is part of the plan that is being followed; false if not, and then nothing was
    /// done. It spares whoever submits giving the request away.
    pub fn submit_to_plan(&mut self, now: Time, request: &Request) -> bool {
        self.now = now;
        let Some(following) = self.following.as_mut().filter(|_| self.joining == Joining::No) else { return false };
        let waited = following.has_ready() || self.in_entry;
        if !self.cache.find(request).is_some_and(|cached| following.submit(now, self.looks, cached.slot)) {
            return false;
        }
        if !waited {
            self.moved = now;
        }
        self.lookups.0 += 1;
        true
    }

    /// This member's program has run out of data. What it submits from here on waits until all have joined.
    pub fn join(&mut self, now: Time) {
        self.now = now;
        if self.over.is_none() && self.joining == Joining::No {
            self.joining = Joining::Wanted;
            if self.following.is_some() {
                self.ask_to_leave("it has joined".into(), false);
            }
        }
    }

    /// This member ends the job for all.
    pub fn shut_down(&mut self) {
        if self.over.is_none() {
            self.tell_root(Up::Shutdown(self.rank));
        }
    }

    /// Ends this node without a word to the others: they learn it another way.
    pub fn close(&mut self, error: Error) {
        self.apply(Decision::Failed(error));
    }

    /// What this member is doing, since it was asked.
    pub fn answer(&mut self, doing: String) {
        self.tell_root(Up::Doing(self.rank, doing));
    }

    /// Changes how much may run as one and how collectives run, for all members. Only the root can.
    pub fn tune(&mut self, fusion_threshold: usize, knobs: Knobs) {
        if let Some(root) = self.root.as_mut().filter(|_| self.over.is_none()) {
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
        std::mem::take(&mut self.lookups)
    }

    /// Begins the next entry of the plan, if there is one and its tensors are there.
    pub fn begin(&mut self, now: Time) -> Option<Arc<[Arc<Agreed>]>> {
        self.now = now;
        if !self.can_begin() {
            return None;
        }
        let following = self.following.as_mut()?;
        let round = following.round();
        let (tensors, seen) = following.begin(now)?;
        self.in_entry = true;
        self.moved = now;
        if let Some(seen) = seen {
            self.heard_seen(round, seen);
        }
        Some(tensors)
    }

    /// As [`Node::submit`] and then [`Node::begin`], if this tensor is all that the next entry of the plan consists of;
    /// otherwise nothing was done.
    pub fn begin_alone(&mut self, now: Time, request: &Request) -> Option<Arc<[Arc<Agreed>]>> {
        let slot = self.cache.find(request)?.slot;
        let alone = self.actions.is_empty() && self.following.as_ref()?.is_next_alone(slot);
        if !alone || !self.submit_to_plan(now, request) {
            return None;
        }
        self.begin(now)
    }

    /// Whether [`Node::begin`] would give something.
    pub fn can_begin(&self) -> bool {
        // Lists that were told before the plan come before it.
        self.actions.is_empty() && self.following.as_ref().is_some_and(Following::can_begin)
    }

    /// The entry begun last has finished (or was withdrawn, or failed).
    pub fn finished(&mut self, now: Time) {
        self.now = now;
        let waited = now.saturating_sub(self.moved);
        // Ranks that are often slow must not be taken for ranks that never come.
        self.patience = self.patience.max(waited * 4).min(MOST_PATIENCE);
        self.in_entry = false;
        self.moved = now;
        if let Some(following) = &mut self.following {
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
            _ if self.over.is_some() => {}
            Up::Bits { era, slots: said } => {
                if era == self.era && self.following.is_none() {
                    for slot in slots(&said, self.rules.cache_capacity.saturating_mul(2)) {
                        self.count(slot);
                    }
                }
            }
            Up::Overdue(said) => {
                let said = slots(&said, self.rules.cache_capacity.saturating_mul(2)).collect();
                self.heard_overdue(said);
            }
            Up::Halted { era, fewest, most, torn } => {
                if era == self.era {
                    self.count_halted(fewest, most, torn);
                }
            }
            Up::Seen { era, round, seen } => {
                if era == self.era {
                    self.heard_seen(round, seen);
                }
            }
            Up::Leave { era, rank, why, futile } => {
                // One is enough.
                if era == self.era && !std::mem::replace(&mut self.asked_to_leave, true) {
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
        if self.over.is_none() {
            self.down.push(decision.clone());
            self.apply(decision);
        }
    }

    /// Time has passed: looks for what is overdue.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if self.over.is_some() {
            return;
        }
        if self.verdict_at().is_some_and(|at| now >= at) {
            return self.give_verdict();
        }
        if self.leave_at().is_some_and(|at| now >= at) {
            let waited = now.saturating_sub(self.moved).as_secs_f64();
            self.ask_to_leave(format!("it waited {waited:.1} s for the others"), true);
        }
        let late = self.overdue_at().filter(|(_, at)| now >= *at).map(|(slot, _)| slot).collect();
        self.heard_overdue(late);
        self.look_at_neighbours();
        self.tick_root();
    }

    /// When to tick, if nothing happens before.
    pub fn next_tick(&self) -> Option<Time> {
        if self.over.is_some() {
            return None;
        }
        let verdict = self.verdict_at();
        let overdue = self.overdue_at().map(|(_, at)| at).min();
        let root = self.root.as_ref().and_then(|r| r.next_tick());
        [verdict, self.leave_at(), overdue, self.liveness.next_look(), root].into_iter().flatten().min()
    }

    /// Whether it is time to say that this member has run out of data.
    fn may_join(&self) -> bool {
        self.joining == Joining::Wanted && self.following.is_none() && self.waiting.is_empty() && self.over.is_none()
    }

    /// When this member will have waited in the plan for too long.
    fn leave_at(&self) -> Option<Time> {
        let following = self.following.as_ref().filter(|f| !f.is_halted() && !self.asked_to_leave)?;
        let waits = following.has_ready() || self.in_entry;
        // A stall must be known early enough to be told in time.
        let patience = self.reveal_after().map_or(self.patience, |after| after.min(self.patience));
        // And a rank that is merely busy must not be missed in a collective for as long as a lost one would be.
        let limit = self.rules.timeout / 4;
        let patience = if limit.is_zero() { patience } else { patience.min(limit) };
        waits.then(|| self.moved + patience)
    }

    /// Numbers of which the root will have to be told that this member waits for them, and when.
    fn overdue_at(&self) -> impl Iterator<Item = (Slot, Time)> {
        let after = self.reveal_after().filter(|_| self.following.is_none());
        after.into_iter().flat_map(move |after| {
            self.waiting.values().filter_map(move |w| match w.said {
                Said::ByNumber(slot) if !self.overdue.contains(&slot) => Some((slot, w.since + after)),
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
            self.joining = Joining::Said;
            self.tell_root(Up::Join(self.rank));
            self.run_complete();
        }
        self.report_stall();
        if !self.bits.is_empty() {
            let slots = ranges(std::mem::take(&mut self.bits));
            self.up.push(Up::Bits { era: self.era, slots });
        }
        (std::mem::take(&mut self.up), std::mem::take(&mut self.down))
    }

    /// Whether [`Node::flush`] or [`Node::take_actions`] would give something.
    pub fn has_news(&self) -> bool {
        let said = !(self.up.is_empty() && self.down.is_empty() && self.bits.is_empty());
        said || self.root.as_ref().is_some_and(|r| r.has_news()) || self.may_join() || !self.actions.is_empty()
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}

#[cfg(test)]
mod tests;
