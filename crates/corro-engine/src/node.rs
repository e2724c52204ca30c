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

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use crate::cache::{Cache, Cached};
use crate::coordinator::{Coordinator, Input, Output, StallLimits, StallReport, Time};
use crate::fusion;
use crate::matching::Agreed;
use crate::message::{Decision, Item, Slot, Up, ranges, slots};
use crate::plan::{Following, Learner, is_plannable};
use crate::request::Request;
use crate::tree::Neighbours;

/// How long missing ranks may take to tell what they are doing.
const ANSWER_TIME: Duration = Duration::from_secs(1);

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
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            stalls: StallLimits { warn: Duration::from_secs(60), shutdown: Duration::ZERO },
            cache_capacity: 1024,
            plans: true,
            fusion: fusion::Limits { threshold: 128 << 20, only_groups: false },
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
    /// The plan is over.
    PlanLeft {
        /// Whether this member must withdraw from the entry it has begun.
        withdraw: bool,
        /// Whether some member must, so that all need fresh connections.
        renew: bool,
        /// Who wanted it, and why.
        reason: String,
    },
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

/// What the root keeps beside what every member keeps.
#[derive(Debug)]
struct Root {
    coordinator: Coordinator,
    learner: Learner,
    next_slot: Slot,
    /// When each slot last ran, counted in lists.
    used: HashMap<Slot, u64>,
    lists: u64,
    /// Complete by numbers, and not yet decided on.
    complete: Vec<Slot>,
    /// Decided on, and not yet told.
    to_run: Vec<Arc<Agreed>>,
    /// Whether the plan is being left, and if so whether members had waited in vain.
    halting: Option<bool>,
    /// A stall that missing ranks were asked about, and until when they may answer.
    asking: Option<(StallReport, Time)>,
}

/// Who has stopped following the plan.
#[derive(Clone, Copy, Debug)]
struct Halting {
    left: usize,
    fewest: u64,
    most: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    rank: Rank,
    members: Vec<Rank>,
    neighbours: Neighbours,
    rules: Rules,
    /// The time of the input at hand.
    now: Time,
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
    left_because: String,
    asked_to_leave: bool,
    patience: Duration,
    /// When this member last got on with the plan, or began to wait.
    moved: Time,
    /// Whether an entry of the plan has begun and not finished.
    in_entry: bool,
    over: Option<Error>,
    /// What failed as this member sees it, and until when it waits for the root's word.
    suspicion: Option<(Error, Time)>,
    byes: usize,
    said_bye: bool,
    announcements: Vec<(Rank, Request)>,
    bits: Vec<Slot>,
    up: Vec<Up>,
    down: Vec<Decision>,
    actions: Vec<Action>,
}

impl Node {
    /// The node of `rank`, one of `members` (ascending), with these neighbours.
    pub fn new(rank: Rank, members: Vec<Rank>, neighbours: Neighbours, rules: Rules) -> Self {
        let root = neighbours.parent.is_none().then(|| {
            Box::new(Root {
                coordinator: Coordinator::new(members.clone(), rules.stalls),
                learner: Learner::default(),
                next_slot: 0,
                used: HashMap::new(),
                lists: 0,
                complete: Vec::new(),
                to_run: Vec::new(),
                halting: None,
                asking: None,
            })
        });
        Self {
            rank,
            members,
            neighbours,
            rules,
            now: Time::ZERO,
            root,
            era: 0,
            gear: Gear::Announce,
            cache: Cache::default(),
            waiting: HashMap::new(),
            counts: HashMap::new(),
            following: None,
            halting: None,
            left_because: String::new(),
            asked_to_leave: false,
            patience: PATIENCE,
            moved: Time::ZERO,
            in_entry: false,
            over: None,
            suspicion: None,
            byes: 0,
            said_bye: false,
            announcements: Vec::new(),
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

    /// Roughly how many bytes this node keeps.
    pub fn memory(&self) -> usize {
        let name = |len: usize| len + 200;
        let waiting: usize = self.waiting.keys().map(|n| name(n.len())).sum();
        let cached = self.cache.len() * 500 + self.counts.len() * 16;
        let root =
            self.root.as_ref().map_or(0, |r| r.coordinator.waiting() * self.members.len() * size_of::<Request>());
        size_of::<Self>() + self.members.len() * size_of::<Rank>() + waiting + cached + root
    }

    /// This member's program submits a tensor.
    pub fn submit(&mut self, now: Time, request: Request) {
        self.now = now;
        if self.over.is_some() {
            return;
        }
        if let Some(following) = &mut self.following {
            if let Some(cached) = self.cache.find(&request) {
                let waited = following.has_ready() || self.in_entry;
                if following.submit(cached.slot) {
                    if !waited {
                        self.moved = now;
                    }
                    return;
                }
            }
            let name = &request.name;
            let why = if self.cache.named(name).is_some() {
                format!("tensor {name} is not part of it, or not as it was")
            } else {
                format!("tensor {name} is new")
            };
            self.ask_to_leave(why, false);
        }
        self.tell(request);
    }

    /// This member's program has run out of data.
    pub fn join(&mut self, now: Time) {
        self.now = now;
        if self.following.is_some() {
            self.ask_to_leave(format!("rank {} has joined", self.rank), false);
        }
        self.heard_join(self.rank);
    }

    /// This member ends the job for all.
    pub fn shut_down(&mut self) {
        if self.over.is_none() {
            self.to_root(Up::Shutdown(self.rank));
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
        self.to_root(Up::Failed(error));
    }

    /// The connection to a neighbour has broken.
    pub fn lost(&mut self, now: Time, member: usize, error: Error) {
        self.now = now;
        if self.over.is_some() {
            // Whoever goes after the end has said all it had to say.
            self.count_bye();
        } else if self.neighbours.parent == Some(member) {
            self.decide(Decision::Failed(error));
        } else {
            self.fail(now, error);
        }
    }

    /// Ends this node without a word to the others: they learn it another way.
    pub fn close(&mut self, error: Error) {
        self.apply(Decision::Failed(error));
    }

    /// What this member is doing, since it was asked.
    pub fn answer(&mut self, doing: String) {
        self.to_root(Up::Doing(self.rank, doing));
    }

    /// Changes how much may run as one, for all members. Only the root can.
    pub fn tune(&mut self, fusion_threshold: usize) {
        if self.root.is_some() && self.over.is_none() {
            self.decide(Decision::Tune { fusion_threshold });
        }
    }

    /// Begins the next entry of the plan, if there is one and its tensors are there.
    pub fn begin(&mut self, now: Time) -> Option<Vec<Arc<Agreed>>> {
        self.now = now;
        let tensors = self.following.as_mut()?.begin()?;
        self.in_entry = true;
        self.moved = now;
        Some(tensors)
    }

    /// Whether [`Node::begin`] would give something.
    pub fn can_begin(&self) -> bool {
        self.following.as_ref().is_some_and(Following::can_begin)
    }

    /// The entry begun last has finished (or was withdrawn, or failed).
    pub fn finished(&mut self, now: Time) {
        self.now = now;
        let waited = now.saturating_sub(self.moved);
        // Ranks that are often slow must not be taken for ranks that never come.
        self.patience = self.patience.max(waited * 4).min(MOST_PATIENCE);
        self.in_entry = false;
        self.moved = now;
    }

    /// A child says something.
    pub fn hear_child(&mut self, now: Time, message: Up) {
        self.now = now;
        match message {
            Up::Bye => self.count_bye(),
            _ if self.over.is_some() => {}
            Up::Announce(requests) if self.root.is_some() => {
                for (rank, request) in requests {
                    self.announced(rank, request);
                }
            }
            Up::Announce(requests) => self.announcements.extend(requests),
            Up::Bits { era, slots: said } => {
                if era == self.era && self.following.is_none() {
                    for slot in slots(&said, self.rules.cache_capacity.saturating_mul(2)) {
                        self.count(slot);
                    }
                }
            }
            Up::Join(rank) => self.heard_join(rank),
            Up::Halted { era, fewest, most } => {
                if era == self.era {
                    self.count_halted(fewest, most);
                }
            }
            Up::Leave { era, rank, why, futile } => {
                // One is enough.
                if era == self.era && !std::mem::replace(&mut self.asked_to_leave, true) {
                    self.heard_leave(rank, why, futile);
                }
            }
            other => self.to_root(other),
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
        if let Some(following) = &self.following
            && !following.is_halted()
            && (following.has_ready() || self.in_entry)
            && now >= self.moved + self.patience
        {
            let waited = now.saturating_sub(self.moved).as_secs_f64();
            self.ask_to_leave(format!("rank {} waited {waited:.1} s for the others", self.rank), true);
        }
        self.reveal_overdue();
        let Some(root) = &mut self.root else { return };
        let outputs = root.coordinator.step(now, Input::Tick);
        self.follow(outputs);
        self.report_stall();
    }

    /// When to tick, if nothing happens before.
    pub fn next_tick(&self) -> Option<Time> {
        if self.over.is_some() {
            return None;
        }
        let verdict = self.suspicion.as_ref().map(|(_, until)| *until);
        let plan = self.following.as_ref().filter(|f| !f.is_halted() && (f.has_ready() || self.in_entry));
        let patience = plan.filter(|_| !self.asked_to_leave).map(|_| self.moved + self.patience);
        let overdue = self.reveal_after().and_then(|after| {
            let by_number = self.waiting.values().filter(|w| w.said != Said::InFull);
            by_number.map(|w| w.since + after).min()
        });
        let root = self.root.as_ref();
        let stall = root.and_then(|r| r.coordinator.next_look());
        let answers = root.and_then(|r| r.asking.as_ref().map(|(_, until)| *until));
        [verdict, patience, overdue, stall, answers].into_iter().flatten().min()
    }

    /// What is to be sent: to the parent, and to every child.
    pub fn flush(&mut self, now: Time) -> (Vec<Up>, Vec<Decision>) {
        self.now = now;
        self.run_complete();
        self.report_stall();
        if !self.announcements.is_empty() {
            self.up.push(Up::Announce(std::mem::take(&mut self.announcements)));
        }
        if !self.bits.is_empty() {
            let slots = ranges(std::mem::take(&mut self.bits));
            self.up.push(Up::Bits { era: self.era, slots });
        }
        (std::mem::take(&mut self.up), std::mem::take(&mut self.down))
    }

    /// Whether [`Node::flush`] or [`Node::take_actions`] would give something.
    pub fn has_news(&self) -> bool {
        let said = !(self.up.is_empty() && self.down.is_empty() && self.announcements.is_empty() && self.bits.is_empty());
        let root = self.root.as_ref().is_some_and(|r| !(r.complete.is_empty() && r.to_run.is_empty()));
        said || root || !self.actions.is_empty()
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    // What members say.

    /// Tells the others about a request, in the shortest way.
    fn tell(&mut self, request: Request) {
        let name = request.name.clone();
        let slot = self.cache.find(&request).map(|cached| cached.slot);
        let said = slot.map_or(Said::InFull, Said::ByNumber);
        let waiting = Waiting { request: request.clone(), said, since: self.now };
        self.waiting.insert(name, waiting);
        match slot {
            // Said again when the plan is left.
            Some(_) if self.following.is_some() => {}
            Some(slot) => self.count(slot),
            None => self.announce(request),
        }
    }

    fn announce(&mut self, request: Request) {
        if self.root.is_some() {
            self.announced(self.rank, request);
        } else {
            self.announcements.push((self.rank, request));
        }
    }

    /// One more of this member and its children has `slot`.
    fn count(&mut self, slot: Slot) {
        if self.cache.get(slot).is_none() {
            return;
        }
        let count = self.counts.entry(slot).or_default();
        *count += 1;
        if *count > self.neighbours.children.len() {
            self.counts.remove(&slot);
            match &mut self.root {
                Some(root) => root.complete.push(slot),
                None => self.bits.push(slot),
            }
        }
    }

    fn ask_to_leave(&mut self, why: String, futile: bool) {
        if !std::mem::replace(&mut self.asked_to_leave, true) {
            self.heard_leave(self.rank, why, futile);
        }
    }

    fn heard_leave(&mut self, rank: Rank, why: String, futile: bool) {
        match &mut self.root {
            None => self.up.push(Up::Leave { era: self.era, rank, why, futile }),
            Some(root) => {
                if self.following.is_some() && root.halting.is_none() {
                    root.halting = Some(futile);
                    self.decide(Decision::Halt { era: self.era, rank, why });
                }
            }
        }
    }

    fn heard_join(&mut self, rank: Rank) {
        if self.root.is_none() {
            return self.up.push(Up::Join(rank));
        }
        self.heard_leave(rank, format!("rank {rank} has joined"), false);
        self.run_complete();
        // While some stand aside nothing is said by number: nobody would count for them.
        let all: Vec<Slot> = self.cache.slots().collect();
        self.forget(all);
        let Some(root) = &mut self.root else { return };
        root.learner.disturb();
        let outputs = root.coordinator.step(self.now, Input::Join { rank });
        self.follow(outputs);
    }

    /// Hands something to the root: the parent, or this very node.
    fn to_root(&mut self, message: Up) {
        if self.root.is_none() {
            return self.up.push(message);
        }
        match message {
            Up::Shutdown(rank) => self.decide(Decision::Shutdown(rank)),
            Up::Failed(error) => self.decide(Decision::Failed(error)),
            Up::Doing(rank, doing) => {
                if let Some((report, _)) = self.root.as_mut().and_then(|r| r.asking.as_mut()) {
                    report.doing.insert(rank, doing);
                }
            }
            _ => {}
        }
    }

    /// Long after a request was said by number, says it in full: then the root knows who has it and who has not.
    fn reveal_overdue(&mut self) {
        let Some(after) = self.reveal_after() else { return };
        let now = self.now;
        let overdue = |w: &Waiting| w.said != Said::InFull && now >= w.since + after;
        let mut late: Vec<(Time, String)> =
            self.waiting.iter().filter(|(_, w)| overdue(w)).map(|(n, w)| (w.since, n.clone())).collect();
        late.sort_unstable();
        for (_, name) in late {
            self.say_in_full(&name);
        }
    }

    fn reveal_after(&self) -> Option<Duration> {
        let StallLimits { warn, shutdown } = self.rules.stalls;
        [warn, shutdown].into_iter().filter(|d| !d.is_zero()).min().map(|d| d / 2)
    }

    fn say_in_full(&mut self, name: &str) {
        let Some(waiting) = self.waiting.get_mut(name) else { return };
        waiting.said = Said::InFull;
        let request = waiting.request.clone();
        self.announce(request);
    }

    // What the root decides.

    fn announced(&mut self, rank: Rank, request: Request) {
        if self.following.is_some() {
            let why = format!("rank {rank} submitted {}, which is new", request.name);
            self.heard_leave(rank, why, false);
        }
        // Whoever says in full what has a number has changed it, or has waited for too long: all say it in full.
        if let Some(cached) = self.cache.named(&request.name) {
            let slot = cached.slot;
            self.run_complete();
            self.forget(vec![slot]);
        }
        let Some(root) = &mut self.root else { return };
        let outputs = root.coordinator.step(self.now, Input::Announce { rank, requests: vec![request] });
        self.follow(outputs);
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
                Output::AllJoined { last } => {
                    self.run_complete();
                    self.decide(Decision::AllJoined { last });
                }
                Output::Stalled(report) => {
                    let missing = report.missing.keys().copied().collect();
                    if let Some(root) = &mut self.root {
                        root.asking = Some((report, self.now + ANSWER_TIME));
                    }
                    self.decide(Decision::Ask(missing));
                }
            }
        }
    }

    /// Tells about a stall once the missing ranks have answered, or their time is over.
    fn report_stall(&mut self) {
        let now = self.now;
        let Some(root) = &mut self.root else { return };
        let told = |(report, until): &mut (StallReport, Time)| {
            now >= *until || report.missing.keys().all(|rank| report.doing.contains_key(rank))
        };
        let Some((report, _)) = root.asking.take_if(told) else { return };
        self.decide(Decision::Stalled(report.clone()));
        if report.fatal {
            self.decide(Decision::Failed(Error::Shutdown(format!("Horovod has been shut down: {report}"))));
        }
    }

    /// Decides on all that is complete: runs it, or makes a plan.
    fn run_complete(&mut self) {
        let Some(root) = &mut self.root else { return };
        let complete: Vec<Arc<Agreed>> = std::mem::take(&mut root.complete)
            .into_iter()
            .filter_map(|slot| self.cache.get(slot).map(|cached| Arc::clone(&cached.agreed)))
            .collect();
        if !complete.is_empty() {
            let outputs = root.coordinator.complete(complete);
            self.follow(outputs);
        }
        let Some(root) = &mut self.root else { return };
        // While a plan is being left, members may be an entry apart: nothing else may run.
        if root.to_run.is_empty() || self.following.is_some() {
            return;
        }
        let to_run = std::mem::take(&mut root.to_run);
        root.lists += 1;
        let known = |agreed: &Arc<Agreed>| {
            let cached = self.cache.named(&agreed.name)?;
            Arc::ptr_eq(&cached.agreed, agreed).then_some(cached.slot)
        };
        let slots: Vec<Option<Slot>> = to_run.iter().map(known).collect();
        if let Some(all_known) = slots.iter().copied().collect::<Option<Vec<Slot>>>() {
            for slot in &all_known {
                root.used.insert(*slot, root.lists);
            }
            let size = self.members.len();
            if !self.rules.plans || !to_run.iter().all(|a| is_plannable(a, size)) {
                root.learner.disturb();
            } else if let Some((first, lists)) = root.learner.observe(&all_known) {
                if root.coordinator.is_idle() && lists.iter().flatten().all(|s| self.cache.get(*s).is_some()) {
                    let before: Vec<Item> = all_known[..first].iter().map(|s| Item::Known(*s)).collect();
                    return self.make_plan(before, &lists);
                }
                root.learner.left(false);
            }
        } else {
            root.learner.disturb();
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

    fn forget(&mut self, slots: Vec<Slot>) {
        if slots.is_empty() {
            return;
        }
        if let Some(root) = &mut self.root {
            for slot in &slots {
                root.used.remove(slot);
            }
        }
        self.decide(Decision::Forget(ranges(slots)));
    }

    fn count_halted(&mut self, fewest: u64, most: u64) {
        let parts = self.neighbours.children.len() + 1;
        let halting = self.halting.get_or_insert(Halting { left: parts, fewest: u64::MAX, most: 0 });
        halting.left = halting.left.saturating_sub(1);
        halting.fewest = halting.fewest.min(fewest);
        halting.most = halting.most.max(most);
        if halting.left > 0 {
            return;
        }
        let Halting { fewest, most, .. } = *halting;
        self.halting = None;
        let Some(root) = &mut self.root else {
            return self.up.push(Up::Halted { era: self.era, fewest, most });
        };
        let futile = root.halting.take().unwrap_or(false);
        root.learner.left(futile);
        self.decide(Decision::Resume { era: self.era + 1, begun: fewest, withdraw: most > fewest });
    }

    /// Writes a decision into the log.
    fn decide(&mut self, decision: Decision) {
        self.down.push(decision.clone());
        self.apply(decision);
    }

    // What every member does with a decision.

    fn apply(&mut self, decision: Decision) {
        match decision {
            Decision::Run(items) => self.apply_run(items),
            Decision::Fail { names, error } => {
                for name in &names {
                    self.waiting.remove(name);
                }
                self.actions.push(Action::Fail(names, error));
            }
            Decision::AllJoined { last } => self.actions.push(Action::AllJoined(last)),
            Decision::Forget(forgotten) => self.apply_forget(&forgotten),
            Decision::Plan { era, batches } => self.apply_plan(era, batches),
            Decision::Halt { era, rank, why } => {
                if let Some(following) = self.following.as_mut().filter(|_| era == self.era) {
                    let begun = following.halt();
                    self.left_because = format!("rank {rank}: {why}");
                    self.count_halted(begun, begun);
                }
            }
            Decision::Resume { era, begun, withdraw } => self.apply_resume(era, begun, withdraw),
            Decision::Ask(ranks) => {
                if ranks.contains(&self.rank) {
                    self.actions.push(Action::Asked);
                }
            }
            Decision::Stalled(report) => self.actions.push(Action::Stalled(report)),
            Decision::Tune { fusion_threshold } => {
                self.rules.fusion.threshold = fusion_threshold;
                self.actions.push(Action::Tune(fusion_threshold));
            }
            Decision::Shutdown(rank) => {
                self.end(Error::Shutdown(format!("Horovod has been shut down (by rank {rank})")));
            }
            Decision::Failed(error) => self.end(error),
        }
    }

    fn apply_run(&mut self, items: Vec<Item>) {
        let mut run = Vec::with_capacity(items.len());
        let mut gear = Gear::Bits;
        for item in items {
            match item {
                Item::Known(slot) => {
                    let Some(cached) = self.cache.get(slot) else {
                        return self.end(Error::Bug(format!("slot {slot} is to run, which rank {} lacks", self.rank)));
                    };
                    self.waiting.remove(&cached.request.name);
                    self.counts.remove(&slot);
                    run.push(Arc::clone(&cached.agreed));
                }
                Item::New(agreed, slot) => {
                    gear = Gear::Announce;
                    let agreed = Arc::new(agreed);
                    let mine = self.waiting.remove(&agreed.name);
                    if let (Some(slot), Some(mine)) = (slot, mine) {
                        self.cache.insert(slot, mine.request, Arc::clone(&agreed));
                    }
                    run.push(agreed);
                }
            }
        }
        self.gear = gear;
        self.actions.push(Action::Run(run));
    }

    fn apply_forget(&mut self, forgotten: &[crate::message::SlotRange]) {
        // At most what is there: a range may be any length.
        let known: Vec<Slot> =
            if forgotten.iter().map(|r| r.count).fold(0, u64::saturating_add) as usize > self.cache.len() {
                let within = |s: &Slot| forgotten.iter().any(|r| *s >= r.first && *s - r.first < r.count);
                let mut known: Vec<Slot> = self.cache.slots().filter(within).collect();
                known.sort_unstable();
                known
            } else {
                slots(forgotten, usize::MAX).collect()
            };
        for slot in known {
            self.counts.remove(&slot);
            let Some(cached) = self.cache.forget(slot) else { continue };
            let name = &cached.request.name;
            if self.waiting.get(name).is_some_and(|w| w.said == Said::ByNumber(slot)) {
                let name = name.clone();
                self.say_in_full(&name);
            }
        }
        let cache = &self.cache;
        self.bits.retain(|slot| cache.get(*slot).is_some());
    }

    fn apply_plan(&mut self, era: u32, batches: Vec<Vec<Slot>>) {
        self.new_era(era);
        let Some(mut following) = Following::new(batches, |slot| self.cache.get(slot).map(Arc::clone)) else {
            return self.end(Error::Bug(format!("a plan of slots that rank {} lacks", self.rank)));
        };
        self.waiting.retain(|_, w| !matches!(w.said, Said::ByNumber(slot) if following.submit(slot)));
        self.following = Some(following);
        self.asked_to_leave = false;
        self.gear = Gear::Plan;
        self.actions.push(Action::Planned);
        if let Some(name) = self.waiting.keys().min() {
            let why = format!("tensor {name} was on its way");
            self.ask_to_leave(why, false);
        }
    }

    fn apply_resume(&mut self, era: u32, begun: u64, withdraw: bool) {
        let Some(following) = self.following.take() else { return };
        self.new_era(era);
        self.gear = Gear::Bits;
        let mine = withdraw && following.begun() > begun;
        let reason = std::mem::take(&mut self.left_because);
        self.actions.push(Action::PlanLeft { withdraw: mine, renew: withdraw, reason });
        let again: Vec<Arc<Cached>> = following.outstanding(mine);
        // What was held back during the plan, oldest first, then what was in it.
        let mut held: Vec<(Time, String, Slot)> = self
            .waiting
            .iter()
            .filter_map(|(name, w)| match w.said {
                Said::ByNumber(slot) => Some((w.since, name.clone(), slot)),
                Said::InFull => None,
            })
            .collect();
        held.sort_unstable();
        for (_, name, slot) in held {
            if self.cache.get(slot).is_some() { self.count(slot) } else { self.say_in_full(&name) }
        }
        for cached in again {
            self.tell(cached.request.clone());
        }
    }

    /// Numbers counted or about to be said belong to the era that ends.
    fn new_era(&mut self, era: u32) {
        self.era = era;
        self.counts.clear();
        self.bits.clear();
        self.halting = None;
        if let Some(root) = &mut self.root {
            root.complete.clear();
        }
    }

    fn end(&mut self, error: Error) {
        if self.over.is_none() {
            self.over = Some(error.clone());
            self.suspicion = None;
            self.waiting.clear();
            self.following = None;
            self.actions.push(Action::Over(error));
            self.say_bye_if_all_have();
        }
    }

    fn count_bye(&mut self) {
        self.byes += 1;
        self.say_bye_if_all_have();
    }

    fn say_bye_if_all_have(&mut self) {
        if self.over.is_some() && self.byes >= self.neighbours.children.len() && !self.said_bye {
            self.said_bye = true;
            self.up.push(Up::Bye);
        }
    }
}
