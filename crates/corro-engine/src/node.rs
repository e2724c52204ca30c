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

use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use crate::cache::Cache;
use crate::coordinator::{StallLimits, StallReport, Time};
use crate::fusion;
use crate::hash::{HashMap, HashSet};
use crate::matching::Agreed;
use crate::message::{Decision, Slot, Up, ranges, slots};
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
    /// To be told to people.
    Stalled(StallReport),
    /// How much may run as one from here on.
    Tune(usize),
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

    /// Something went wrong here that ends the job for all.
    pub fn fail(&mut self, now: Time, error: Error) {
        self.now = now;
        if self.over.is_some() || self.suspicion.is_some() {
            return;
        }
        if self.root.is_none() {
            self.suspicion = Some((error.clone(), now + VERDICT_TIME));
        }
        self.tell_root(Up::Failed(error));
    }

    /// The connection to a neighbour has broken. (Whoever has said goodbye may go: that is no loss.)
    pub fn lost(&mut self, now: Time, member: usize, error: Error) {
        self.now = now;
        if self.neighbours.parent == Some(member) {
            return self.decide(Decision::Failed(error));
        }
        // It won't say goodbye any more.
        self.count_bye();
        self.fail(now, error);
    }

    /// Ends this node without a word to the others: they learn it another way.
    pub fn close(&mut self, error: Error) {
        self.apply(Decision::Failed(error));
    }

    /// What this member is doing, since it was asked.
    pub fn answer(&mut self, doing: String) {
        self.tell_root(Up::Doing(self.rank, doing));
    }

    /// Changes how much may run as one, for all members. Only the root can.
    pub fn tune(&mut self, fusion_threshold: usize) {
        if let Some(root) = self.root.as_mut().filter(|_| self.over.is_none()) {
            root.refined.forget();
            self.decide(Decision::Tune { fusion_threshold });
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
            if self.over.is_some() {
                return;
            }
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
        if let Some((error, _)) = self.suspicion.take_if(|(_, until)| now >= *until) {
            return self.decide(Decision::Failed(error));
        }
        if self.leave_at().is_some_and(|at| now >= at) {
            let waited = now.saturating_sub(self.moved).as_secs_f64();
            self.ask_to_leave(format!("it waited {waited:.1} s for the others"), true);
        }
        let late = self.overdue_at().filter(|(_, at)| now >= *at).map(|(slot, _)| slot).collect();
        self.heard_overdue(late);
        self.tick_root();
    }

    /// When to tick, if nothing happens before.
    pub fn next_tick(&self) -> Option<Time> {
        if self.over.is_some() {
            return None;
        }
        let verdict = self.suspicion.as_ref().map(|(_, until)| *until);
        let overdue = self.overdue_at().map(|(_, at)| at).min();
        let root = self.root.as_ref().and_then(|r| r.next_tick());
        [verdict, self.leave_at(), overdue, root].into_iter().flatten().min()
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
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::simulator::allreduce;
    use crate::tree::neighbours;

    /// Ranks whose messages arrive at once; what they were told to do; how many messages that took.
    struct Ranks {
        nodes: Vec<Node>,
        actions: Vec<Vec<Action>>,
        messages: usize,
        now: Time,
    }

    impl Ranks {
        fn new(count: usize, rules: Rules) -> Self {
            let hosts = [(0..count).collect()];
            let node = |rank| Node::new(rank, (0..count).collect(), neighbours(&hosts, 2, rank), rules);
            let nodes = (0..count).map(node).collect();
            Self { nodes, actions: (0..count).map(|_| Vec::new()).collect(), messages: 0, now: Time::ZERO }
        }

        fn submit(&mut self, rank: Rank, request: Request) {
            self.nodes[rank].submit(self.now, request);
            self.settle();
        }

        fn submit_on_all(&mut self, request: &Request) {
            (0..self.nodes.len()).for_each(|rank| self.submit(rank, request.clone()));
        }

        /// Delivers messages until nobody has anything to say.
        fn settle(&mut self) {
            let mut quiet = false;
            while !std::mem::replace(&mut quiet, true) {
                for rank in 0..self.nodes.len() {
                    let (up, down) = self.nodes[rank].flush(self.now);
                    let actions = self.nodes[rank].take_actions();
                    if actions.iter().any(|a| matches!(a, Action::Asked)) {
                        self.nodes[rank].answer("thinking".into());
                    }
                    quiet &= up.is_empty() && down.is_empty() && actions.is_empty();
                    self.actions[rank].extend(actions);
                    let near = self.nodes[rank].neighbours().clone();
                    if let Some(parent) = near.parent.filter(|_| !up.is_empty()) {
                        self.messages += 1;
                        for message in up {
                            self.nodes[parent].hear_child(self.now, message);
                        }
                    }
                    for child in near.children.into_iter().filter(|_| !down.is_empty()) {
                        self.messages += 1;
                        self.nodes[child].hear_parent(self.now, down.clone());
                    }
                }
            }
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            for rank in 0..self.nodes.len() {
                self.nodes[rank].tick(self.now);
            }
            self.settle();
        }

        /// What the ranks were told since the last call: it must be the same for all.
        fn told(&mut self) -> Vec<String> {
            let words = |action: Action| match action {
                Action::Run(agreed) => {
                    let names: Vec<&str> = agreed.iter().map(|a| a.name.as_str()).collect();
                    format!("run {}", names.join(" "))
                }
                Action::Fail(names, _) => format!("fail {}", names.join(" ")),
                Action::AllJoined(last) => format!("joined, {last} last"),
                Action::Planned => "plan".into(),
                Action::Refined { from, to } => format!("{to} entries in place of {from}"),
                Action::PlanLeft { renew, .. } => format!("plan left, renew {renew}"),
                Action::Stalled(report) => format!("stalled by {:?}", report.missing.keys().collect::<Vec<_>>()),
                Action::Tune(bytes) => format!("tune {bytes}"),
                Action::Over(error) => format!("over: {error}"),
                Action::Asked | Action::Heard(..) => String::new(),
            };
            let told: BTreeSet<Vec<String>> =
                self.actions.iter_mut().map(|a| a.drain(..).map(words).filter(|w| !w.is_empty()).collect()).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            told.into_iter().next().unwrap()
        }

        /// Runs entry after entry of the plan on one rank; gives their names.
        fn follow(&mut self, rank: Rank) -> Vec<String> {
            let mut ran = Vec::new();
            while let Some(agreed) = self.nodes[rank].begin(self.now) {
                ran.extend(agreed.iter().map(|a| a.name.clone()));
                self.nodes[rank].finished(self.now);
            }
            ran
        }

        /// Ranks that train on these tensors until they follow a plan.
        fn in_plan(count: usize, rules: Rules, step: &[Request]) -> Self {
            let mut ranks = Self::new(count, rules);
            while ranks.nodes[0].gear() != Gear::Plan {
                for request in step {
                    ranks.submit_on_all(request);
                }
                assert!(ranks.messages < 10_000, "no plan");
            }
            (0..count).for_each(|rank| drop(ranks.follow(rank)));
            ranks.told();
            ranks.messages = 0;
            ranks
        }
    }

    fn a() -> Request {
        allreduce("a", 4)
    }

    fn b() -> Request {
        allreduce("b", 4)
    }

    fn second(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn what_is_new_is_announced_and_then_said_by_number() {
        let mut ranks = Ranks::new(7, Rules::default());
        ranks.submit_on_all(&a());
        assert_eq!((ranks.told(), ranks.nodes[3].gear()), (vec!["run a".to_owned()], Gear::Announce));
        ranks.submit_on_all(&a());
        assert_eq!((ranks.told(), ranks.nodes[3].gear()), (vec!["run a".to_owned()], Gear::Bits));
        assert_eq!(ranks.nodes[5].known(), [(0, "a")]);
    }

    #[test]
    fn by_number_each_rank_speaks_to_its_parent_once_and_hears_once() {
        let mut ranks = Ranks::new(7, Rules { plans: false, ..Rules::default() });
        ranks.submit_on_all(&a());
        ranks.messages = 0;
        ranks.submit_on_all(&a());
        assert_eq!(ranks.messages, 2 * 6);
    }

    #[test]
    fn what_has_changed_loses_its_number() {
        let mut ranks = Ranks::new(3, Rules::default());
        ranks.submit_on_all(&a());
        ranks.submit(0, a());
        ranks.submit(1, a());
        ranks.submit(2, allreduce("a", 5));
        assert_eq!(ranks.told(), ["run a", "fail a"], "all say it in full, and differ");
        ranks.submit_on_all(&allreduce("a", 5));
        assert_eq!((ranks.told(), ranks.nodes[2].known()), (vec!["run a".to_owned()], vec![(1, "a")]));
    }

    #[test]
    fn in_a_plan_nothing_is_said() {
        let mut ranks = Ranks::in_plan(4, Rules { entry_cost: Duration::ZERO, ..Rules::default() }, &[a(), b()]);
        let pass = |ranks: &mut Ranks| {
            ranks.submit_on_all(&b());
            ranks.submit_on_all(&a());
            (0..4).for_each(|rank| assert_eq!(ranks.follow(rank), ["a", "b"]));
            ranks.settle();
        };
        (0..50).for_each(|_| pass(&mut ranks));
        assert_eq!((ranks.messages, ranks.told()), (0, vec![]));
    }

    /// One pass over `a` and `b`, submitted at once; gives how many entries that took.
    fn pass(ranks: &mut Ranks) -> usize {
        ranks.submit_on_all(&b());
        ranks.submit_on_all(&a());
        let mut entries = Vec::new();
        for rank in 0..ranks.nodes.len() {
            let node = &mut ranks.nodes[rank];
            let begun = std::iter::from_fn(|| node.begin(ranks.now).inspect(|_| node.finished(ranks.now)));
            entries.push(begun.count());
        }
        ranks.settle();
        assert!(entries.windows(2).all(|w| w[0] == w[1]), "{entries:?}");
        entries[0]
    }

    #[test]
    fn what_comes_at_once_is_merged_and_then_not_a_word_is_said() {
        let mut ranks = Ranks::in_plan(5, Rules::default(), &[a(), b()]);
        let entries: Vec<usize> = (0..6).map(|_| pass(&mut ranks)).collect();
        assert_eq!((entries[0], entries[5]), (2, 1), "{entries:?}");
        assert_eq!(ranks.told(), ["1 entries in place of 2"]);
        ranks.messages = 0;
        (0..50).for_each(|_| assert_eq!(pass(&mut ranks), 1));
        assert_eq!((ranks.messages, ranks.told()), (0, vec![]));
        // Left for a good reason, it comes back as it was.
        ranks.submit_on_all(&allreduce("new", 1));
        while ranks.nodes[0].gear() != Gear::Plan {
            ranks.submit_on_all(&a());
            ranks.submit_on_all(&b());
        }
        (0..5).for_each(|rank| drop(ranks.follow(rank)));
        ranks.told();
        assert_eq!(pass(&mut ranks), 1);
        assert_eq!(ranks.told(), [""; 0]);
    }

    #[test]
    fn a_program_that_looks_in_between_is_never_made_to_wait() {
        let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
        for step in 0..50 {
            ranks.submit_on_all(&a());
            ranks.nodes[1].note_looks(step);
            ranks.submit_on_all(&b());
            (0..3).for_each(|rank| assert_eq!(ranks.follow(rank), ["a", "b"]));
            ranks.settle();
        }
        assert_eq!(ranks.told(), [""; 0]);
    }

    #[test]
    fn whoever_wants_to_leave_while_a_plan_is_refined_does() {
        let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
        // Rank 2 is slow to hear of it.
        let mut halted = None;
        for _ in 0..5 {
            for request in [a(), b()] {
                (0..3).for_each(|rank| ranks.nodes[rank].submit(ranks.now, request.clone()));
            }
            for rank in 0..3 {
                while ranks.nodes[rank].begin(ranks.now).is_some() {
                    ranks.nodes[rank].finished(ranks.now);
                }
                if rank > 0 {
                    for said in ranks.nodes[rank].flush(ranks.now).0 {
                        ranks.nodes[0].hear_child(ranks.now, said);
                    }
                }
            }
            let (_, down) = ranks.nodes[0].flush(ranks.now);
            if !down.is_empty() {
                halted = Some(down);
                break;
            }
        }
        let halted = halted.expect("it is to be refined");
        assert!(matches!(halted[..], [Decision::Halt { .. }]), "{halted:?}");
        ranks.nodes[1].hear_parent(ranks.now, halted.clone());
        ranks.nodes[2].submit(ranks.now, allreduce("new", 1));
        ranks.nodes[2].hear_parent(ranks.now, halted);
        ranks.settle();
        let told = ranks.told();
        assert_eq!(told, ["plan left, renew false"]);
        ranks.submit(0, allreduce("new", 1));
        ranks.submit(1, allreduce("new", 1));
        assert_eq!(ranks.told(), ["run new"]);
    }

    #[test]
    fn tensors_without_names_come_into_the_plan_whatever_their_number() {
        let mut ranks = Ranks::new(3, Rules::default());
        // Five in a step, of different sizes: 256 names would mean something else in each.
        let mut steps = 0;
        while ranks.nodes[0].gear() != Gear::Plan {
            for tensor in 0..5 {
                for rank in 0..3 {
                    let name = ranks.nodes[rank].name("allreduce");
                    ranks.submit(rank, allreduce(&name, 1 + tensor));
                }
            }
            steps += 1;
            (0..3).for_each(|rank| ranks.nodes[rank].note_looks(steps));
            assert!(steps < 1000, "no plan");
        }
        (0..3).for_each(|rank| drop(ranks.follow(rank)));
        ranks.told();
        for step in 0..500 {
            if step == 300 {
                ranks.messages = 0;
            }
            for tensor in 0..5 {
                for rank in 0..3 {
                    let name = ranks.nodes[rank].name("allreduce");
                    ranks.submit(rank, allreduce(&name, 1 + tensor));
                }
            }
            (0..3).for_each(|rank| ranks.nodes[rank].note_looks(1000 + step));
            let ran: Vec<Vec<String>> = (0..3).map(|rank| ranks.follow(rank)).collect();
            assert!(ran[0].len() == 5 && ran[0] == ran[1] && ran[1] == ran[2], "{ran:?}");
            ranks.settle();
        }
        let told = ranks.told();
        assert_eq!(ranks.messages, 0, "{told:?}");
    }

    #[test]
    fn after_a_join_all_count_from_the_beginning() {
        let mut ranks = Ranks::new(2, Rules::default());
        assert_eq!((ranks.nodes[1].name("x"), ranks.nodes[1].name("x")), ("x.noname.0".into(), "x.noname.1".into()));
        (0..2).for_each(|rank| ranks.nodes[rank].join(ranks.now));
        ranks.settle();
        assert_eq!(ranks.nodes[0].name("x"), ranks.nodes[1].name("x"));
    }

    #[test]
    fn what_was_merged_wrongly_is_not_merged_again() {
        let mut ranks = Ranks::in_plan(2, Rules::default(), &[a(), b()]);
        (0..6).for_each(|_| drop(pass(&mut ranks)));
        assert_eq!(ranks.told(), ["1 entries in place of 2"]);
        // From here on the program waits for `a` before it submits `b`.
        ranks.submit_on_all(&a());
        ranks.pass(PATIENCE);
        assert_eq!(ranks.told(), ["plan left, renew false", "run a"]);
        ranks.submit_on_all(&b());
        for _ in 0..200 {
            ranks.submit_on_all(&a());
            (0..2).for_each(|rank| drop(ranks.follow(rank)));
            ranks.submit_on_all(&b());
            (0..2).for_each(|rank| drop(ranks.follow(rank)));
        }
        let told = ranks.told();
        assert!(told.contains(&"plan".to_owned()) && !told.iter().any(|t| t.contains("in place")), "{told:?}");
    }

    #[test]
    fn whoever_is_an_entry_ahead_when_a_plan_is_left_withdraws() {
        let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
        ranks.submit(1, a());
        assert!(ranks.nodes[1].begin(ranks.now).is_some(), "waits inside for the others");
        ranks.submit(2, allreduce("new", 1));
        let withdraws = |a: &Action| matches!(a, Action::PlanLeft { withdraw: true, .. });
        assert_eq!([0, 1, 2].map(|rank: usize| ranks.actions[rank].iter().any(withdraws)), [false, true, false]);
        ranks.nodes[1].finished(ranks.now);
        assert_eq!(ranks.told(), ["plan left, renew true"]);
        // What it withdrew from is said by number as if there had been no plan.
        ranks.submit(0, a());
        ranks.submit(2, a());
        ranks.submit(0, allreduce("new", 1));
        ranks.submit(1, allreduce("new", 1));
        assert_eq!(ranks.told(), ["run a", "run new"]);
    }

    #[test]
    fn the_rest_of_a_group_does_not_wait_for_what_a_plan_has_run() {
        let grouped = |name| Request { group: Some((1, 2)), ..allreduce(name, 4) };
        let unfused = Rules { fusion: fusion::Limits { threshold: 0, only_groups: false }, ..Rules::default() };
        let mut ranks = Ranks::in_plan(2, unfused, &[grouped("x"), grouped("y")]);
        ranks.submit(0, grouped("x"));
        assert!(!ranks.nodes[0].can_begin(), "nothing of a group runs before all of it is there");
        ranks.submit(0, grouped("y"));
        ranks.submit(1, grouped("x"));
        ranks.submit(1, grouped("y"));
        for rank in 0..2 {
            assert_eq!(ranks.nodes[rank].begin(ranks.now).unwrap()[0].name, "x");
            ranks.nodes[rank].finished(ranks.now);
        }
        ranks.submit_on_all(&allreduce("new", 1));
        assert_eq!(ranks.told(), ["plan left, renew false", "run y", "run new"]);
    }

    #[test]
    fn a_plan_in_which_ranks_wait_in_vain_is_left() {
        let mut ranks = Ranks::in_plan(2, Rules::default(), &[a()]);
        ranks.submit(0, a());
        assert!(ranks.nodes[0].begin(ranks.now).is_some());
        ranks.pass(PATIENCE);
        assert_eq!(ranks.told(), ["plan left, renew true"]);
    }

    #[test]
    fn a_rank_joins_once_all_it_submitted_has_run() {
        let mut ranks = Ranks::new(3, Rules::default());
        ranks.submit_on_all(&a());
        ranks.submit(2, a());
        ranks.nodes[2].join(ranks.now);
        ranks.settle();
        ranks.submit(0, a());
        ranks.submit(1, a());
        assert_eq!(ranks.told(), ["run a", "run a"], "with the data of rank 2");
        ranks.submit(0, a());
        ranks.submit(1, a());
        assert_eq!(ranks.told(), ["run a"], "without it");
        // What it submits while it stands aside waits until all have joined.
        ranks.submit(2, b());
        ranks.nodes[1].join(ranks.now);
        ranks.submit(0, b());
        assert_eq!(ranks.told(), ["run b"], "of rank 0 alone");
        ranks.nodes[0].join(ranks.now);
        ranks.submit(0, b());
        ranks.submit(1, b());
        assert_eq!(ranks.told(), ["joined, 0 last", "run b"]);
    }

    #[test]
    fn a_join_or_a_shutdown_leaves_the_plan_first() {
        let mut ranks = Ranks::in_plan(3, Rules::default(), &[a()]);
        ranks.nodes[1].join(ranks.now);
        ranks.settle();
        assert_eq!(ranks.told(), ["plan left, renew false"]);
        let mut ranks = Ranks::in_plan(3, Rules::default(), &[a()]);
        ranks.nodes[2].shut_down();
        ranks.settle();
        assert_eq!(ranks.told(), ["plan left, renew false", "over: Horovod has been shut down (by rank 2)"]);
        assert!(ranks.nodes.iter().all(Node::may_close), "all below have said goodbye");
    }

    #[test]
    fn a_number_said_long_ago_is_said_in_full_so_that_the_missing_are_known() {
        let limits = StallLimits { warn: second(10), shutdown: second(30) };
        let mut ranks = Ranks::new(4, Rules { stalls: limits, ..Rules::default() });
        ranks.submit_on_all(&a());
        (0..3).for_each(|rank| ranks.submit(rank, a()));
        ranks.told();
        ranks.pass(second(5));
        assert!(ranks.told().is_empty());
        ranks.pass(second(5));
        assert_eq!(ranks.told(), ["stalled by [3]"], "at ten seconds, though it was announced at five");
        ranks.pass(second(20));
        let told = ranks.told();
        assert!(told[0] == "stalled by [3]" && told[1].contains("3!: [a] (thinking)"), "{told:?}");
    }

    #[test]
    fn what_the_root_hears_of_first_is_why_all_end() {
        let mut ranks = Ranks::new(7, Rules::default());
        ranks.nodes[5].fail(ranks.now, Error::Bug("first".into()));
        ranks.settle();
        ranks.nodes[6].fail(ranks.now, Error::Bug("second".into()));
        ranks.settle();
        assert!(ranks.told()[0].ends_with("first"));
    }

    #[test]
    fn without_the_roots_word_a_member_goes_by_what_it_sees() {
        let mut ranks = Ranks::new(3, Rules::default());
        let error = Error::peer_lost(0, "here", "gone");
        ranks.nodes[1].fail(ranks.now, Error::Bug("mine".into()));
        ranks.nodes[1].tick(VERDICT_TIME);
        assert_eq!(ranks.nodes[1].over(), Some(&Error::Bug("mine".into())));
        ranks.nodes[2].lost(ranks.now, 0, error.clone());
        assert_eq!(ranks.nodes[2].over(), Some(&error), "nobody is left to tell it more");
    }

    #[test]
    fn a_dead_child_is_not_waited_for_at_the_end() {
        let mut ranks = Ranks::new(3, Rules::default());
        ranks.nodes[0].lost(ranks.now, 2, Error::peer_lost(2, "here", "gone"));
        assert!(!ranks.nodes[0].may_close(), "rank 1 has not been told yet");
        ranks.settle();
        assert!(ranks.nodes[0].may_close());
    }
}
