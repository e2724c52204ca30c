//! The world around the nodes: what happens when, and whether it was right.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use super::lane::{History, Job, Lane, Nth, Task, Ticket};
use super::{Random, Report, Scenario, Step, Violation};
use crate::coordinator::Time;
use crate::fusion;
use crate::matching::Agreed;
use crate::message::{Decision, Knobs, Up};
use crate::node::{Action, Node};
use crate::tree::neighbours;

/// Nothing has moved for so long: nothing will.
const STUCK: Duration = Duration::from_secs(600);
/// More events than any scenario needs.
const EVENTS: u64 = 50_000_000;
/// Events that are kept to be read.
const TRACE: usize = 300;

type Checked<T = ()> = Result<T, String>;

/// A member of a set: the set, and its place there.
type Place = (usize, usize);

#[derive(Debug)]
enum Event {
    Program(Rank),
    /// To this member, from that one.
    FromChild(Place, usize, Vec<Up>),
    FromParent(Place, usize, Arc<Vec<Decision>>),
    Lost(Place, usize),
    /// A node that was told something speaks.
    Speak(Place),
    Tick(Place),
    Done(Place, Nth),
    Death(Rank),
    Freeze(Rank, Duration),
    Stop(Rank),
}

struct Member {
    rank: Rank,
    node: Node,
    tickets: BTreeMap<String, Ticket>,
    lane: Lane,
    limits: fusion::Limits,
    /// Whether the program waits in a join, or what is left of one.
    joined: bool,
    /// Whether it follows a plan.
    planned: bool,
    joins: Vec<Rank>,
    tick: Option<Time>,
    speaks: bool,
    /// When the last message on the link to each neighbour arrives.
    links: BTreeMap<usize, Time>,
    /// Since when something is outstanding, and when something last got on.
    waiting: Option<Time>,
    moved: Time,
}

struct Set {
    members: Vec<Rank>,
    nodes: Vec<Member>,
    history: History,
    joins: Vec<Rank>,
}

struct Program {
    steps: VecDeque<Step>,
    /// Waits for these.
    waits: Option<(usize, Vec<String>)>,
    /// How often it has waited.
    looks: u64,
    joining: Option<usize>,
    /// Whether an event will wake it.
    sleeps: bool,
    /// Whether it is going on right now.
    awake: bool,
    dead: bool,
    frozen: Time,
}

/// A run of a scenario.
pub struct World<'a> {
    scenario: &'a Scenario,
    random: Random,
    now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    serial: u64,
    /// Events on their way that are not ticks.
    under_way: u64,
    /// When something last got on.
    moved: Time,
    programs: Vec<Program>,
    sets: Vec<Set>,
    report: Report,
    trace: Option<VecDeque<String>>,
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
            random: Random(seed),
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
        for (rank, steps) in scenario.programs.iter().enumerate() {
            let steps = steps.iter().cloned().collect();
            let (sleeps, awake, dead, frozen) = (true, false, false, Time::ZERO);
            world.programs.push(Program { steps, waits: None, looks: 0, joining: None, sleeps, awake, dead, frozen });
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
            if !matches!(event, Event::Tick(_)) {
                self.under_way -= 1;
            }
            self.report.events += 1;
            let rank = self.whose(&event);
            if self.programs[rank].dead {
                continue;
            }
            if self.programs[rank].frozen > at {
                let frozen = self.programs[rank].frozen;
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
            Event::Program(rank) | Event::Death(rank) | Event::Stop(rank) | Event::Freeze(rank, _) => *rank,
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
                self.programs[rank].sleeps = false;
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
            Event::Death(rank) => {
                self.die(rank);
                Ok(())
            }
            Event::Stop(rank) => {
                self.programs[rank].dead = true;
                Ok(())
            }
            Event::Freeze(rank, length) => {
                self.programs[rank].frozen = now + length;
                self.moved = now + length;
                Ok(())
            }
        }
    }

    fn die(&mut self, rank: Rank) {
        self.programs[rank].dead = true;
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

    // Programs.

    /// Goes on with a program until it waits.
    fn go_on(&mut self, rank: Rank) -> Checked {
        if std::mem::replace(&mut self.programs[rank].awake, true) {
            return Ok(());
        }
        let went = self.go_on_awake(rank);
        self.programs[rank].awake = false;
        went
    }

    fn go_on_awake(&mut self, rank: Rank) -> Checked {
        loop {
            let program = &self.programs[rank];
            if program.sleeps || program.dead {
                return Ok(());
            }
            if let Some((set, names)) = &program.waits {
                let member = self.place(*set, rank);
                if names.iter().any(|name| self.sets[*set].nodes[member].tickets.contains_key(name)) {
                    return Ok(());
                }
            }
            if let Some(set) = program.joining {
                let member = self.place(set, rank);
                if self.sets[set].nodes[member].joined {
                    return Ok(());
                }
            }
            self.moved = self.now;
            let program = &mut self.programs[rank];
            if program.waits.take().is_some() || program.joining.take().is_some() {
                program.looks += 1;
            }
            let Some(step) = program.steps.pop_front() else { return Ok(()) };
            self.note(|| format!("rank {rank} does {step:?}"));
            self.step(rank, step)?;
        }
    }

    fn step(&mut self, rank: Rank, step: Step) -> Checked {
        let now = self.now;
        match step {
            Step::Compute(time) => {
                self.programs[rank].sleeps = true;
                self.after(time, Event::Program(rank));
            }
            Step::Wait { set, names } => self.programs[rank].waits = Some((set, names)),
            Step::Mark => {
                let all = self.report.sent.iter().flatten().sum();
                self.report.marks[rank].push(all);
            }
            Step::Submit { set, request, tag, fails } => {
                let place = (set, self.place(set, rank));
                let looks = self.programs[rank].looks;
                let member = self.member(place);
                if member.node.over().is_none() {
                    member.node.note_looks(looks);
                    let ticket = Ticket { tag, fails, taken: false };
                    if member.tickets.insert(request.name.clone(), ticket).is_some() {
                        return Err(format!("rank {rank} submits {} twice", request.name));
                    }
                    member.node.submit(now, request);
                    self.stir(place)?;
                }
            }
            Step::Join { set } => {
                let place = (set, self.place(set, rank));
                self.programs[rank].joining = Some(set);
                let member = self.member(place);
                if member.node.over().is_none() {
                    member.joined = true;
                    member.node.join(now);
                    self.stir(place)?;
                }
            }
            Step::Shutdown { set } => {
                let place = (set, self.place(set, rank));
                self.member(place).node.shut_down();
                self.speak(place)?;
            }
            Step::Tune { set, threshold } => {
                let place = (set, self.place(set, rank));
                self.member(place).node.tune(threshold, Knobs { segment: 1 << 20, crossover: 0, reductions: false });
                self.stir(place)?;
            }
            Step::Fail { set, text } => {
                let place = (set, self.place(set, rank));
                self.member(place).node.fail(now, Error::io("a test", text));
                self.speak(place)?;
            }
        }
        Ok(())
    }

    // Nodes.

    /// A node was told something: it speaks at once, or a little later.
    fn stir(&mut self, place: Place) -> Checked {
        let rank = self.member(place).rank;
        if self.scenario.gather && self.programs[rank].awake {
            return self.stir_later(place, Duration::ZERO);
        }
        if self.scenario.dither.is_zero() || self.random.one_in(2) {
            return self.speak(place);
        }
        let later = self.random.time(self.scenario.dither);
        self.stir_later(place, later)
    }

    fn stir_later(&mut self, place: Place, later: Duration) -> Checked {
        if !std::mem::replace(&mut self.member(place).speaks, true) {
            self.after(later, Event::Speak(place));
        }
        self.advance(place)
    }

    /// A node says what it has to say and does what it has to do.
    fn speak(&mut self, place: Place) -> Checked {
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

    fn send(&mut self, (set, me): Place, up: Vec<Up>, down: Vec<Decision>) {
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

    fn deliver(&mut self, set: usize, from: usize, to: usize, event: Event) {
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
        let host = |rank| rank / self.scenario.per_host;
        let (least, chance) = if host(from) == host(to) { self.scenario.inside } else { self.scenario.between };
        // Now and then much longer than usual.
        let chance = if self.random.one_in(20) { chance * 10 } else { chance };
        least + self.random.time(chance)
    }

    fn act(&mut self, place: Place, action: Action) -> Checked {
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
            Action::AllJoined(last) => {
                let member = self.member(place);
                if !std::mem::take(&mut member.joined) {
                    return Err(format!("rank {rank} had not joined when all had"));
                }
                member.moved = now;
                let nth = member.joins.len();
                member.joins.push(last);
                let joins = &mut self.sets[set].joins;
                if joins.len() == nth {
                    joins.push(last);
                }
                if joins.get(nth) != Some(&last) {
                    return Err(format!("join {nth} gives {last} on rank {rank}, {joins:?} elsewhere"));
                }
            }
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
            Action::Asked => self.member(place).node.answer(format!("rank {rank} is in a test")),
            Action::Silent(member, _) => {
                let rank = self.sets[set].members[member];
                if !self.programs[rank].dead {
                    return Err(format!("rank {rank} counts as lost, and is not"));
                }
                self.member(place).node.lost(now, member, lost(rank));
            }
            Action::Stalled(report) => self.report.stalls[set][me].push((report, now)),
            Action::Tune(threshold, _) => self.member(place).limits.threshold = threshold,
            Action::Over(error) => self.end(place, &error)?,
        }
        Ok(())
    }

    fn end(&mut self, place: Place, error: &Error) -> Checked {
        let (set, me) = place;
        if let Some((before, _)) = self.report.over[set].iter().flatten().next() {
            let dead = |e: &Error| matches!(e, Error::PeerLost { .. }) && self.scenario.deaths.len() > 1;
            if before != error && !(dead(before) && dead(error)) {
                return Err(format!("set {set} ends with \"{error}\" and with \"{before}\""));
            }
        }
        self.report.over[set][me] = Some((error.clone(), self.now));
        let in_order = matches!(error, Error::Shutdown(_));
        let member = self.member(place);
        member.joined = false;
        // A plan that was not left in time: nobody knows who is in the entry.
        let unclear = member.planned && member.lane.running.as_ref().is_some_and(|job| job.planned);
        if !in_order {
            member.lane.tasks.clear();
        }
        if !in_order || unclear {
            member.lane.running = None;
            member.tickets.values_mut().for_each(|t| t.taken &= in_order && !unclear);
        }
        // What was told to run before the end in order still runs: the others count on it.
        let failed: Vec<String> =
            member.tickets.iter().filter(|(_, t)| !(in_order && t.taken)).map(|(name, _)| name.clone()).collect();
        for name in failed {
            self.member(place).tickets.remove(&name);
        }
        self.moved = self.now;
        Ok(())
    }

    // Lanes.

    /// A member is told to run these: takes its tickets for them.
    fn take(&mut self, place: Place, agreed: &[Arc<Agreed>], planned: bool) -> Checked<Job> {
        let member = self.member(place);
        let job = Job::new(agreed, &member.tickets, planned);
        for (name, _) in &job.tensors {
            match member.tickets.get_mut(name) {
                Some(ticket) if ticket.taken && !member.joined => {
                    return Err(format!("rank {} is to run {name} twice", member.rank));
                }
                Some(ticket) => ticket.taken = true,
                None if member.joined && !planned => {}
                None => return Err(format!("rank {} is to run {name}, which it has not submitted", member.rank)),
            }
        }
        Ok(job)
    }

    /// Begins the next collective if there is one and the last is done.
    fn advance(&mut self, place: Place) -> Checked {
        let now = self.now;
        let member = self.member(place);
        if member.lane.running.is_some() {
            return Ok(());
        }
        let job = match member.lane.tasks.pop_front() {
            Some(Task::Run(job)) => job,
            Some(Task::Renew) => {
                member.lane.next = (member.lane.next.0 + 1, 0);
                return self.advance(place);
            }
            None => match member.node.begin(now) {
                Some(agreed) => self.take(place, &agreed, true)?,
                None => return Ok(()),
            },
        };
        let (set, me) = place;
        let rank = self.member(place).rank;
        self.note(|| format!("rank {rank} in set {set} begins {job:?}"));
        let Set { members, nodes, history, .. } = &mut self.sets[set];
        let lane = &mut nodes[me].lane;
        let at = lane.next;
        lane.next.1 += 1;
        let complete = history.begin(members, me, at, &job)?;
        lane.running = Some(job);
        for who in complete {
            let time = self.random.time(self.scenario.lane);
            self.after(time, Event::Done((set, who), at));
        }
        Ok(())
    }

    fn complete(&mut self, place: Place, at: Nth) -> Checked {
        let now = self.now;
        let member = self.member(place);
        if member.lane.next != (at.0, at.1 + 1) {
            return Err(format!("rank {} completes collective {at:?} and is not in it", member.rank));
        }
        // Given up: the job is over.
        let Some(job) = member.lane.running.take() else { return Ok(()) };
        if job.planned {
            member.node.finished(now);
        }
        self.sets[place.0].history.complete(at);
        for (name, tag) in job.tensors {
            if tag.is_some() {
                self.resolve(place, &name, None)?;
            }
        }
        self.advance(place)?;
        self.speak(place)
    }

    fn withdraw(&mut self, place: Place) -> Checked {
        let now = self.now;
        let Set { nodes, history, .. } = &mut self.sets[place.0];
        let size = nodes.len();
        let member = &mut nodes[place.1];
        let Some(job) = member.lane.running.take().filter(|job| job.planned) else {
            return Err(format!("rank {} is to withdraw and in no entry of the plan", member.rank));
        };
        let (generation, next) = member.lane.next;
        history.withdraw(size, (generation, next - 1))?;
        for (name, _) in job.tensors {
            if let Some(ticket) = member.tickets.get_mut(&name) {
                ticket.taken = false;
            }
        }
        member.node.finished(now);
        self.report.withdrawals += 1;
        Ok(())
    }

    /// A tensor is done with, on one member: the others must come to the same.
    fn resolve(&mut self, place: Place, name: &str, error: Option<&Error>) -> Checked {
        let rank = self.member(place).rank;
        let Some(ticket) = self.member(place).tickets.remove(name) else {
            // It has joined, or takes part in a set without having asked for this.
            return error.map_or_else(|| Err(format!("rank {rank} completes {name} twice")), |_| Ok(()));
        };
        if ticket.taken == error.is_some() {
            return Err(format!("rank {rank}: {name} fails although it was to run: {error:?}"));
        }
        let text = error.map(ToString::to_string);
        let as_expected = match (&text, ticket.fails) {
            (None, None) => true,
            (Some(text), Some(fragment)) => text.contains(fragment),
            _ => false,
        };
        if !as_expected {
            return Err(format!("rank {rank}: {name} ({}) came to {text:?}, not to {:?}", ticket.tag, ticket.fails));
        }
        self.member(place).moved = self.now;
        let key = (place.0, name.to_owned(), ticket.tag);
        let first = self.report.verdicts.entry(key).or_insert_with(|| text.clone());
        if *first != text {
            return Err(format!("rank {rank}: {name} came to {text:?}, elsewhere to {first:?}"));
        }
        self.moved = self.now;
        Ok(())
    }

    // The end.

    fn check_end(&self) -> Checked {
        for (rank, program) in self.programs.iter().enumerate().filter(|(_, p)| !p.dead) {
            if !program.is_over() {
                return Err(format!(
                    "rank {rank} waits for {:?} in join {:?}, {} steps to go",
                    program.waits,
                    program.joining,
                    program.steps.len()
                ));
            }
        }
        for (set, Set { nodes, members, .. }) in self.sets.iter().enumerate() {
            let dead: Vec<Rank> = members.iter().copied().filter(|m| self.programs[*m].dead).collect();
            // No connection tells of a rank that has stopped: nobody looks for it unless somebody waits.
            let stopped = |rank: &Rank| self.scenario.stops.iter().any(|(stops, _)| stops == rank);
            let stops = dead.iter().any(stopped);
            let alive = || nodes.iter().filter(|m| !self.programs[m.rank].dead);
            for member in alive() {
                let over = member.node.over();
                if !member.tickets.is_empty() && over.is_none() {
                    return Err(format!("rank {} still waits for {:?}", member.rank, member.tickets));
                }
                let named = |e: &Error| matches!(e, Error::PeerLost { rank, .. } if dead.contains(rank));
                if over.is_none() && stops {
                    continue;
                }
                if !dead.is_empty() && !over.is_some_and(|e| named(e) || matches!(e, Error::Shutdown(_))) {
                    return Err(format!("rank {} ends set {set} with {over:?} although {dead:?} died", member.rank));
                }
                if !stops && over.is_some() != alive().all(|m| m.node.over().is_some()) {
                    return Err(format!("set {set} is over on some ranks only"));
                }
                if !stops && over.is_some() && !member.node.may_close() {
                    return Err(format!("rank {} may not close set {set} although it is over", member.rank));
                }
            }
            let first = &nodes[0].node;
            if !stops && first.over().is_none() && alive().any(|m| m.node.known() != first.known()) {
                return Err(format!("members of set {set} know different slots"));
            }
        }
        Ok(())
    }

    // Small things.

    fn member(&mut self, (set, me): Place) -> &mut Member {
        &mut self.sets[set].nodes[me]
    }

    fn place(&self, set: usize, rank: Rank) -> usize {
        self.sets[set].members.binary_search(&rank).unwrap_or_else(|_| panic!("rank {rank} is not in set {set}"))
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.at(self.now + time, event);
    }

    fn at(&mut self, at: Time, event: Event) {
        if !matches!(event, Event::Tick(_)) {
            self.under_way += 1;
        }
        self.serial += 1;
        self.queue.insert((at, self.serial), event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() >= TRACE {
                trace.pop_front();
            }
            trace.push_back(format!("{:?} {}", self.now, text()));
        }
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
    fn is_over(&self) -> bool {
        self.dead || (self.steps.is_empty() && self.waits.is_none() && self.joining.is_none() && !self.sleeps)
    }
}

/// A set's members, each with its node.
fn open(scenario: &Scenario, members: &[Rank]) -> Set {
    let mut hosts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, rank) in members.iter().enumerate() {
        hosts.entry(rank / scenario.per_host).or_default().push(place);
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
