//! The world around the nodes: what happens when, and whether it was right.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use corro_core::random::Random;
use corro_core::{Error, Rank};

use super::lane::{History, Lane, Nth, Task, Ticket};
use super::{Report, Scenario, Step, Violation};
use crate::coordinator::Time;
use crate::fusion;
use crate::matching::Agreed;
use crate::message::{Decision, Up};
use crate::node::{Action, Node};
use crate::tree::neighbours;

/// Nothing has moved for so long: nothing will.
const STUCK: Duration = Duration::from_secs(600);
/// More events than any scenario needs.
const EVENTS: u64 = 50_000_000;
/// Events that are kept to be read.
const TRACE: usize = 300;

pub(super) type Checked<T = ()> = Result<T, String>;

/// A member of a set: the set, and its place there.
pub(super) type SetMember = (usize, usize);

#[derive(Debug)]
pub(super) enum Event {
    Program(Rank),
    /// To this member, from that one.
    FromChild(SetMember, usize, Vec<Up>),
    FromParent(SetMember, usize, Arc<Vec<Decision>>),
    Lost(SetMember, usize),
    /// A node that was told something speaks.
    Speak(SetMember),
    Tick(SetMember),
    Done(SetMember, Nth),
    /// A program that has waited since it last did something, so many things ago, says so.
    Blocked(Rank, u64),
    Death(Rank),
    Freeze(Rank, Duration),
    Stop(Rank),
}

pub(super) struct Member {
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) tickets: BTreeMap<String, Ticket>,
    pub(super) lane: Lane,
    pub(super) limits: fusion::Limits,
    /// Whether the program waits in a join, or what is left of one.
    pub(super) joined: bool,
    /// Whether it follows a plan.
    pub(super) planned: bool,
    pub(super) joins: Vec<Rank>,
    pub(super) tick: Option<Time>,
    pub(super) speaks: bool,
    /// When the last message on the link to each neighbour arrives.
    pub(super) links: BTreeMap<usize, Time>,
    /// Since when something is outstanding, and when something last got on.
    pub(super) waiting: Option<Time>,
    pub(super) moved: Time,
}

pub(super) struct Set {
    pub(super) members: Vec<Rank>,
    pub(super) nodes: Vec<Member>,
    pub(super) history: History,
    pub(super) joins: Vec<Rank>,
}

pub(super) struct Program {
    pub(super) steps: VecDeque<Step>,
    /// Waits for these.
    pub(super) waits: Option<(usize, Vec<String>)>,
    /// How often it has waited.
    pub(super) looks: u64,
    /// How often it has gone on after waiting, or has begun to.
    pub(super) stirred: u64,
    pub(super) joining: Option<usize>,
    /// Whether an event will wake it.
    pub(super) sleeps: bool,
    /// Whether it is going on right now.
    pub(super) awake: bool,
    pub(super) dead: bool,
    pub(super) frozen: Time,
}

/// A run of a scenario.
pub struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) queue: BTreeMap<(Time, u64), Event>,
    pub(super) serial: u64,
    /// Events on their way that are not ticks.
    pub(super) under_way: u64,
    /// When something last got on.
    pub(super) moved: Time,
    pub(super) programs: Vec<Program>,
    pub(super) sets: Vec<Set>,
    pub(super) report: Report,
    pub(super) trace: Option<VecDeque<String>>,
}

impl<'a> World<'a> {
    /// Runs a scenario to its end. With `record`, a violation comes with the last events.
    pub fn run(scenario: &'a Scenario, seed: u64, record: bool) -> Result<Report, Violation> {
        let mut world = Self::new(scenario, seed, record);
        match world.go().and_then(|()| world.check_end()) {
            Ok(()) => Ok(world.report),
            Err(what) => {
                let what = format!("at {:?}: {what}", world.now);
                Err(Violation { what, trace: world.trace.unwrap_or_default().into() })
            }
        }
    }

    fn new(scenario: &'a Scenario, seed: u64, record: bool) -> Self {
        let mut world = Self {
            scenario,
            random: Random::new(seed),
            now: Time::ZERO,
            queue: BTreeMap::new(),
            serial: 0,
            under_way: 0,
            moved: Time::ZERO,
            programs: Vec::new(),
            sets: scenario.sets.iter().map(|members| open(scenario, members)).collect(),
            report: Report { marks: vec![Vec::new(); scenario.ranks], ..Report::default() },
            trace: record.then(VecDeque::new),
        };
        world.report.sent = world.sets.iter().map(|s| vec![0; s.nodes.len()]).collect();
        world.report.received = world.report.sent.clone();
        world.report.over = world.sets.iter().map(|s| vec![None; s.nodes.len()]).collect();
        world.report.stalls = world.sets.iter().map(|s| vec![Vec::new(); s.nodes.len()]).collect();
        for (rank, steps) in Rank::all(scenario.ranks).zip(&scenario.programs) {
            let steps = steps.iter().cloned().collect();
            let (sleeps, awake, dead, frozen) = (true, false, false, Time::ZERO);
            world.programs.push(Program {
                steps,
                waits: None,
                looks: 0,
                stirred: 0,
                joining: None,
                sleeps,
                awake,
                dead,
                frozen,
            });
            world.after(Duration::ZERO, Event::Program(rank));
        }
        for (rank, at) in &scenario.deaths {
            world.after(*at, Event::Death(*rank));
        }
        for (rank, at) in &scenario.stops {
            world.after(*at, Event::Stop(*rank));
        }
        for (rank, at, length) in &scenario.freezes {
            world.after(*at, Event::Freeze(*rank, *length));
        }
        world
    }

    fn go(&mut self) -> Checked {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            if !event.is_a_look() {
                self.under_way -= 1;
            }
            self.report.events += 1;
            let rank = self.whose(&event);
            if self.programs[rank.index()].dead {
                continue;
            }
            if self.programs[rank.index()].frozen > at {
                let frozen = self.programs[rank.index()].frozen;
                self.at(frozen, event);
                continue;
            }
            if !matches!(event, Event::Tick(_) | Event::Speak(_)) {
                self.note(|| format!("rank {rank}: {event:?}"));
            }
            self.happen(event)?;
            if self.report.events > EVENTS {
                return Err("too many events: something goes round in circles".into());
            }
            let idle = self.under_way == 0;
            if idle && self.programs.iter().all(Program::is_over) {
                break;
            }
            if idle && self.now > self.moved + STUCK {
                return Err("nothing moves any more".into());
            }
        }
        self.report.end = self.now;
        Ok(())
    }

    fn whose(&self, event: &Event) -> Rank {
        match event {
            Event::Program(rank)
            | Event::Blocked(rank, _)
            | Event::Death(rank)
            | Event::Stop(rank)
            | Event::Freeze(rank, _) => *rank,
            Event::FromChild((set, me), ..)
            | Event::FromParent((set, me), ..)
            | Event::Lost((set, me), _)
            | Event::Speak((set, me))
            | Event::Tick((set, me))
            | Event::Done((set, me), _) => self.sets[*set].nodes[*me].rank,
        }
    }

    fn happen(&mut self, event: Event) -> Checked {
        let now = self.now;
        match event {
            Event::Program(rank) => {
                self.programs[rank.index()].sleeps = false;
                self.go_on(rank)
            }
            Event::FromChild(place, from, said) => {
                self.report.received[place.0][place.1] += 1;
                let member = self.member(place);
                member.node.heard_from(now, from);
                for message in said {
                    member.node.hear_child(now, message);
                }
                self.stir(place)
            }
            Event::FromParent(place, from, decisions) => {
                self.report.received[place.0][place.1] += 1;
                self.member(place).node.heard_from(now, from);
                self.member(place).node.hear_parent(now, Arc::unwrap_or_clone(decisions));
                self.stir(place)
            }
            Event::Lost(place, peer) => {
                let rank = self.sets[place.0].members[peer];
                self.member(place).node.lost(now, peer, lost(rank));
                self.speak(place)
            }
            Event::Speak(place) => {
                self.member(place).speaks = false;
                self.speak(place)
            }
            Event::Tick(place) => {
                let member = self.member(place);
                member.tick = None;
                member.look_for_waiting(now);
                if member.node.next_tick().is_some_and(|at| at <= now) {
                    member.node.tick(now);
                }
                self.speak(place)
            }
            Event::Done(place, at) => self.complete(place, at),
            Event::Blocked(rank, stirred) => self.say_blocked(rank, stirred),
            Event::Death(rank) => {
                self.die(rank);
                Ok(())
            }
            Event::Stop(rank) => {
                self.programs[rank.index()].dead = true;
                Ok(())
            }
            Event::Freeze(rank, length) => {
                self.programs[rank.index()].frozen = now + length;
                self.moved = now + length;
                Ok(())
            }
        }
    }

    fn die(&mut self, rank: Rank) {
        self.programs[rank.index()].dead = true;
        for set in 0..self.sets.len() {
            let Some(me) = self.sets[set].members.iter().position(|m| *m == rank) else { continue };
            let near = self.sets[set].nodes[me].node.neighbours().clone();
            for peer in near.parent.into_iter().chain(near.children) {
                // What it has said still arrives.
                let delay = self.delay(rank, self.sets[set].members[peer]);
                let arrival = self.sets[set].nodes[me].links.get(&peer).copied().unwrap_or_default();
                self.at(arrival.max(self.now + delay), Event::Lost((set, peer), me));
            }
        }
    }

    // Nodes.

    /// A node was told something: it speaks at once, or a little later.
    pub(super) fn stir(&mut self, place: SetMember) -> Checked {
        let rank = self.member(place).rank;
        if self.scenario.gather && self.programs[rank.index()].awake {
            return self.stir_later(place, Duration::ZERO);
        }
        if self.scenario.dither.is_zero() || self.random.one_in(2) {
            return self.speak(place);
        }
        let later = self.random.time(self.scenario.dither);
        self.stir_later(place, later)
    }

    fn stir_later(&mut self, place: SetMember, later: Duration) -> Checked {
        if !std::mem::replace(&mut self.member(place).speaks, true) {
            self.after(later, Event::Speak(place));
        }
        self.advance(place)
    }

    /// A node says what it has to say and does what it has to do.
    pub(super) fn speak(&mut self, place: SetMember) -> Checked {
        let now = self.now;
        loop {
            let member = self.member(place);
            let (up, down) = member.node.flush(now);
            let actions = member.node.take_actions();
            if up.is_empty() && down.is_empty() && actions.is_empty() {
                break;
            }
            self.send(place, up, down);
            for action in actions {
                self.act(place, action)?;
            }
        }
        self.advance(place)?;
        let member = self.member(place);
        member.look_for_waiting(now);
        if let Some(at) = member.node.next_tick().filter(|at| member.tick.is_none_or(|set| *at < set)) {
            member.tick = Some(at);
            self.at(at.max(now), Event::Tick(place));
        }
        let rank = self.member(place).rank;
        self.go_on(rank)
    }

    fn send(&mut self, (set, me): SetMember, up: Vec<Up>, down: Vec<Decision>) {
        let near = self.sets[set].nodes[me].node.neighbours().clone();
        if let Some(parent) = near.parent.filter(|_| !up.is_empty()) {
            self.deliver(set, me, parent, Event::FromChild((set, parent), me, up));
        }
        if !down.is_empty() {
            let down = Arc::new(down);
            for child in near.children {
                self.deliver(set, me, child, Event::FromParent((set, child), me, Arc::clone(&down)));
            }
        }
    }

    pub(super) fn deliver(&mut self, set: usize, from: usize, to: usize, event: Event) {
        let members = &self.sets[set].members;
        let delay = self.delay(members[from], members[to]);
        let arrival = self.now + delay;
        let link = self.sets[set].nodes[from].links.entry(to).or_default();
        *link = arrival.max(*link);
        let at = *link;
        self.report.sent[set][from] += 1;
        self.at(at, event);
    }

    fn delay(&mut self, from: Rank, to: Rank) -> Duration {
        let host = |rank: Rank| rank.index() / self.scenario.per_host;
        let (least, chance) = if host(from) == host(to) { self.scenario.inside } else { self.scenario.between };
        // Now and then much longer than usual.
        let chance = if self.random.one_in(20) { chance * 10 } else { chance };
        least + self.random.time(chance)
    }

    fn act(&mut self, place: SetMember, action: Action) -> Checked {
        let now = self.now;
        let (set, me) = place;
        let rank = self.member(place).rank;
        self.note(|| format!("rank {rank} in set {set}: {action:?}"));
        match action {
            Action::Run(agreed) => {
                let limits = self.member(place).limits;
                for batch in fusion::batches(&agreed, limits) {
                    let agreed: Vec<Arc<Agreed>> = batch.tensors.iter().map(|i| Arc::clone(&agreed[*i])).collect();
                    let job = self.take(place, &agreed, false)?;
                    self.member(place).lane.tasks.push_back(Task::Run(job));
                }
            }
            Action::Fail(names, error) => {
                for name in names {
                    self.resolve(place, &name, Some(&error))?;
                }
            }
            Action::AllJoined(last) => self.all_joined(place, last)?,
            Action::Planned => {
                self.member(place).planned = true;
                self.report.plans += 1;
            }
            Action::Refined { .. } => self.report.refinements += 1,
            Action::PlanLeft { withdraw, renew, .. } => {
                self.member(place).planned = false;
                if withdraw && !renew {
                    return Err("a withdrawal without fresh connections".into());
                }
                if withdraw {
                    self.withdraw(place)?;
                }
                if renew {
                    self.member(place).lane.tasks.push_back(Task::Renew);
                }
            }
            Action::Heard(..) => {}
            Action::Asked => {
                let waits = self.standing(rank).is_some();
                self.member(place).node.answer(format!("rank {rank} is in a test"), waits);
            }
            Action::Silent(member, _) => {
                let rank = self.sets[set].members[member];
                if !self.programs[rank.index()].dead {
                    return Err(format!("rank {rank} counts as lost, and is not"));
                }
                self.member(place).node.lost(now, member, lost(rank));
            }
            Action::Stalled(report) => self.report.stalls[set][me].push((report, now)),
            Action::Overdue(report) => {
                let rank = report.culprit().ok_or("nobody makes others wait")?;
                let error = Error::peer_lost(rank, format!("host{rank}"), report.to_string());
                self.in_first_set(place, |node| node.give_up(now, error))?;
            }
            Action::AskedStanding(round) => {
                let standing = self.standing(rank);
                self.member(place).node.stands(now, round, standing);
                self.blocks(rank);
            }
            Action::Deadlocked(error) => {
                if !self.scenario.deadlock {
                    return Err(format!("a deadlock is seen where there is none: {error}"));
                }
                self.in_first_set(place, |node| node.fail(now, error))?;
            }
            Action::Tune(threshold, _) => self.member(place).limits.threshold = threshold,
            Action::Over(error) => self.end(place, &error)?,
        }
        Ok(())
    }

    fn all_joined(&mut self, place: SetMember, last: Rank) -> Checked {
        let now = self.now;
        let member = self.member(place);
        let rank = member.rank;
        if !std::mem::take(&mut member.joined) {
            return Err(format!("rank {rank} had not joined when all had"));
        }
        member.moved = now;
        let nth = member.joins.len();
        member.joins.push(last);
        let joins = &mut self.sets[place.0].joins;
        if joins.len() == nth {
            joins.push(last);
        }
        if joins.get(nth) != Some(&last) {
            return Err(format!("join {nth} gives {last} on rank {rank}, {joins:?} elsewhere"));
        }
        Ok(())
    }

    /// What concerns all ranks is told to the set of all ranks.
    fn in_first_set(&mut self, (set, me): SetMember, tell: impl FnOnce(&mut Node)) -> Checked {
        let rank = self.sets[set].members[me];
        let place = (0, self.place(0, rank));
        tell(&mut self.member(place).node);
        if set == 0 { Ok(()) } else { self.speak(place) }
    }

    // Small things.

    pub(super) fn member(&mut self, (set, me): SetMember) -> &mut Member {
        &mut self.sets[set].nodes[me]
    }

    pub(super) fn place(&self, set: usize, rank: Rank) -> usize {
        self.sets[set].members.binary_search(&rank).unwrap_or_else(|_| panic!("rank {rank} is not in set {set}"))
    }

    pub(super) fn after(&mut self, time: Duration, event: Event) {
        self.at(self.now + time, event);
    }

    pub(super) fn at(&mut self, at: Time, event: Event) {
        if !event.is_a_look() {
            self.under_way += 1;
        }
        self.serial += 1;
        self.queue.insert((at, self.serial), event);
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() >= TRACE {
                trace.pop_front();
            }
            trace.push_back(format!("{:?} {}", self.now, text()));
        }
    }
}

impl Event {
    /// Whether it only looks what time it is: nothing may ever come of it.
    fn is_a_look(&self) -> bool {
        matches!(self, Self::Tick(_) | Self::Blocked(..))
    }
}

impl Member {
    /// Takes note of whether the program waits in vain, as an engine's watcher does.
    fn look_for_waiting(&mut self, now: Time) {
        let idle = self.tickets.is_empty() && !self.joined;
        self.waiting = if idle { None } else { Some(self.waiting.unwrap_or(now)) };
        self.node.waits(self.waiting.map(|since| since.max(self.moved)));
    }
}

impl Program {
    pub(super) fn is_over(&self) -> bool {
        self.dead || (self.steps.is_empty() && self.waits.is_none() && self.joining.is_none() && !self.sleeps)
    }
}

/// A set's members, each with its node.
fn open(scenario: &Scenario, members: &[Rank]) -> Set {
    let mut hosts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, rank) in members.iter().enumerate() {
        hosts.entry(rank.index() / scenario.per_host).or_default().push(place);
    }
    let hosts: Vec<Vec<usize>> = hosts.into_values().collect();
    let node = |(place, rank): (usize, &Rank)| Member {
        rank: *rank,
        node: Node::new(*rank, members.to_vec(), neighbours(&hosts, scenario.fan_out, place), scenario.rules),
        tickets: BTreeMap::new(),
        lane: Lane::default(),
        limits: scenario.rules.fusion,
        joined: false,
        planned: false,
        joins: Vec::new(),
        tick: None,
        speaks: false,
        links: BTreeMap::new(),
        waiting: None,
        moved: Time::ZERO,
    };
    let nodes = members.iter().enumerate().map(node).collect();
    Set { members: members.to_vec(), nodes, history: History::default(), joins: Vec::new() }
}

/// What a neighbour says of a rank that died: the same on all sides.
fn lost(rank: Rank) -> Error {
    Error::peer_lost(rank, format!("host{rank}"), "the connection has broken")
}
