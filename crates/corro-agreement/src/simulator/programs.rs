//! What programs do, and what a rank whose program waits says when it is asked whether it can still go on.

use std::time::Duration;

use corro_core::{Error, Rank, Reason};

use super::Step;
use super::lane::Ticket;
use super::world::{Checked, Event, World};
use crate::coordinator::JOIN;
use crate::deadlock::{Awaited, InSet, Standing};
use crate::message::Knobs;

/// How long programs wait at most before they say that they do. An engine is more patient; the less, the harder the test.
const HASTE: Duration = Duration::from_millis(20);
/// And when they look again. As long as an engine's watcher takes.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl World<'_> {
    /// Goes on with a program until it waits.
    pub(super) fn go_on(&mut self, rank: Rank) -> Checked {
        if std::mem::replace(&mut self.programs[rank.index()].awake, true) {
            return Ok(());
        }
        let went = self.go_on_awake(rank);
        self.programs[rank.index()].awake = false;
        went
    }

    fn go_on_awake(&mut self, rank: Rank) -> Checked {
        loop {
            let program = &self.programs[rank.index()];
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
            let program = &mut self.programs[rank.index()];
            if program.waits.take().is_some() || program.joining.take().is_some() {
                program.looks += 1;
                program.stirred += 1;
                self.unblock(rank);
            }
            let program = &mut self.programs[rank.index()];
            let Some(step) = program.steps.pop_front() else { return Ok(()) };
            self.note(|| format!("rank {rank} does {step:?}"));
            self.step(rank, step)?;
        }
    }

    pub(super) fn step(&mut self, rank: Rank, step: Step) -> Checked {
        let now = self.now;
        match step {
            Step::Compute(time) => {
                self.programs[rank.index()].sleeps = true;
                self.after(time, Event::Program(rank));
            }
            Step::Wait { set, names } => {
                self.programs[rank.index()].waits = Some((set, names));
                self.blocks(rank);
            }
            Step::Mark => {
                let all = self.report.sent.iter().flatten().sum();
                self.report.marks[rank.index()].push(all);
            }
            Step::Submit { set, request, tag, fails } => {
                let place = (set, self.place(set, rank));
                let looks = self.programs[rank.index()].looks;
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
                self.programs[rank.index()].joining = Some(set);
                self.blocks(rank);
                let member = self.member(place);
                if member.node.over().is_none() {
                    member.joined = true;
                    member.node.join(now);
                    self.stir(place)?;
                }
            }
            Step::Shutdown { set } => {
                let place = (set, self.place(set, rank));
                self.member(place).node.shut_down("here", Reason::ShutDown { after: None });
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

    /// A program begins to wait: it will say so, unless something comes of it before.
    pub(super) fn blocks(&mut self, rank: Rank) {
        let later = self.random.time(HASTE);
        let stirred = self.programs[rank.index()].stirred;
        self.after(later, Event::Blocked(rank, stirred));
    }

    /// A program goes on.
    pub(super) fn unblock(&mut self, rank: Rank) {
        self.tell_nodes(rank, false);
    }

    /// It has waited for a while.
    pub(super) fn say_blocked(&mut self, rank: Rank, stirred: u64) -> Checked {
        let program = &self.programs[rank.index()];
        if program.stirred != stirred || (program.waits.is_none() && program.joining.is_none()) {
            return Ok(());
        }
        if self.standing(rank).is_none() {
            // Something is on its way: it looks again.
            self.after(LOOK_AGAIN, Event::Blocked(rank, stirred));
            return Ok(());
        }
        self.tell_nodes(rank, true);
        for set in 0..self.sets.len() {
            if let Ok(me) = self.sets[set].members.binary_search(&rank) {
                self.speak((set, me))?;
            }
        }
        Ok(())
    }

    fn tell_nodes(&mut self, rank: Rank, blocked: bool) {
        let now = self.now;
        for member in self.sets.iter_mut().flat_map(|set| &mut set.nodes).filter(|member| member.rank == rank) {
            member.node.blocked(now, blocked);
        }
    }

    /// How a rank stands; `None`: it can still go on, as far as it knows.
    pub(super) fn standing(&self, rank: Rank) -> Option<Standing> {
        let program = &self.programs[rank.index()];
        if program.sleeps {
            return None;
        }
        let mut waits = Vec::new();
        let mut sets = Vec::new();
        for (number, set) in self.sets.iter().enumerate() {
            let Some(member) = set.nodes.iter().find(|member| member.rank == rank) else { continue };
            let set = number as u32;
            // Where a set is over, waiting is over, too: who does not know it yet will hear of it.
            let quiet = member.lane.running.is_none() && member.lane.tasks.is_empty() && member.node.over().is_none();
            let told = member.tickets.values().any(|ticket| ticket.taken);
            if !quiet || told || member.node.follows_plan() && !member.tickets.is_empty() {
                return None;
            }
            let (decisions, joined) = (member.node.decisions(), member.joined);
            let submitted = member.tickets.keys().cloned().collect();
            sets.push(InSet { set, decisions, joined, submitted, complete: true });
            if let Some((_, names)) = program.waits.as_ref().filter(|(waits_in, _)| *waits_in == number) {
                // One after the other.
                let next = names.iter().find(|name| member.tickets.contains_key(*name));
                waits.extend(next.map(|name| Awaited { set, name: name.clone() }));
            }
            if program.joining == Some(number) && joined {
                waits.push(Awaited { set, name: JOIN.into() });
            }
        }
        let host = format!("host{}", rank.index() / self.scenario.per_host);
        (!waits.is_empty()).then_some(Standing { stirred: program.stirred, host, waits, sets })
    }
}
