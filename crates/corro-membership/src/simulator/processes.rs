//! Processes: how they come, ask, meet, train and go.

use corro_core::Rank;
use serde_bytes::ByteBuf;

use super::{Event, Link, MS, Phase, Process, S, TIMEOUT, World};
use crate::member::{Joined, Member};
use crate::message::{Cause, Seat, ToDriver, ToWorker, WorkerId};

impl World {
    pub(super) fn spawn(&mut self, id: WorkerId, host: String, holds_driver: bool) {
        self.next_worker = self.next_worker.max(id.next());
        let process = Process {
            member: Member::new(id, host.clone()),
            host,
            phase: Phase::Booting,
            progress: 0,
            link: None,
            paused: false,
            missed: Vec::new(),
            epoch: 0,
            cause: None,
            given_up: false,
            holds_driver,
        };
        self.processes.insert(id, process);
        self.soon(50 * MS, 3 * S, Event::Up(id));
    }

    pub(super) fn alive(&self, id: WorkerId) -> bool {
        self.processes.get(&id).is_some_and(|p| !matches!(p.phase, Phase::Dead | Phase::Finished))
    }

    pub(super) fn kill(&mut self, id: WorkerId, code: i32) {
        if !self.alive(id) {
            return;
        }
        self.note(|| format!("{id} dies ({code})"));
        self.report.losses += u64::from(code != 0);
        let process = self.processes.get_mut(&id).expect("it lives");
        process.phase = if code == 0 { Phase::Finished } else { Phase::Dead };
        process.paused = false;
        let (link, host, holds_driver) = (process.link.take(), process.host.clone(), process.holds_driver);
        self.leave_epoch(id);
        if let Some(link) = link {
            self.soon(0, 20 * MS, Event::DriverLoses(link));
        }
        if self.rules.supply {
            if !self.down.contains(&host) {
                self.soon(MS, 30 * MS, Event::Exited(id, code));
            }
        } else if code != 0 {
            self.soon(S, 5 * S, Event::Restart(host, holds_driver));
        }
        if holds_driver && code != 0 {
            self.driver_dies();
        }
    }

    /// Ends as a process that is not needed does: with success, and nobody misses it.
    pub(super) fn kill_quietly(&mut self, id: WorkerId) {
        self.note(|| format!("{id} goes"));
        let process = self.processes.get_mut(&id).expect("it is there");
        process.phase = Phase::Dead;
        let link = process.link.take();
        self.leave_epoch(id);
        if let Some(link) = link {
            self.soon(0, 20 * MS, Event::DriverLoses(link));
        }
        if self.rules.supply {
            self.soon(MS, 30 * MS, Event::Exited(id, 0));
        }
    }

    /// Its peers notice when a process gives its epoch up.
    pub(super) fn leave_epoch(&mut self, id: WorkerId) {
        let epoch = self.processes[&id].epoch;
        let Some(run) = self.epoch_runs.get_mut(&epoch) else { return };
        let Some(rank) = run.ranks.iter().find(|(_, w)| **w == id).map(|(rank, _)| *rank) else { return };
        run.broken = true;
        let peers: Vec<WorkerId> = run.ranks.values().copied().filter(|w| *w != id).collect();
        for peer in peers {
            self.soon(MS, 40 * MS, Event::Fail(peer, epoch, Some(rank)));
        }
    }

    pub(super) fn ask(&mut self, id: WorkerId) {
        let process = self.processes.get_mut(&id).expect("it is there");
        process.phase = Phase::Asking;
        let cause = process.cause.take();
        let hello = process.member.ask(process.progress, cause);
        if process.member.dismissed().is_some() {
            return self.kill_quietly(id);
        }
        self.say(id, hello);
    }

    pub(super) fn say(&mut self, id: WorkerId, message: ToDriver) {
        let Some(link) = self.processes[&id].link else { return };
        let Some(wire) = self.links.get_mut(&link).filter(|l| l.open) else { return };
        wire.up.push(message);
        self.soon(MS / 10, 10 * MS, Event::ToDriver(link));
    }

    pub(super) fn hear(&mut self, id: WorkerId, message: ToWorker) -> Result<(), String> {
        let process = self.processes.get_mut(&id).expect("it is there");
        let before = process.member.seat().map_or(0, |s| s.epoch);
        process.member.hear(message);
        match process.phase {
            Phase::Asking => match process.member.answer() {
                None => {}
                Some(Joined::Seat(seat)) => {
                    if seat.epoch <= before {
                        return Err(format!("{id} goes back from epoch {before} to {}", seat.epoch));
                    }
                    process.phase = Phase::Meeting;
                    process.epoch = seat.epoch;
                    self.sit(id, &seat)?;
                    let card = ToDriver::Card { epoch: seat.epoch, card: ByteBuf::from(vec![seat.rank.index() as u8]) };
                    self.say(id, card);
                    self.at(self.now + TIMEOUT, Event::MeetsNobody(id, seat.epoch));
                }
                Some(Joined::Removed(_) | Joined::Ended { .. }) => self.kill_quietly(id),
            },
            Phase::Meeting if process.member.dismissed().is_some() => self.kill_quietly(id),
            Phase::Meeting if process.member.over().is_some() => self.fail(id, None),
            Phase::Meeting => {
                if let Some(cards) = process.member.cards() {
                    if !cards.iter().enumerate().all(|(rank, card)| card.as_slice() == [rank as u8]) {
                        return Err(format!("{id} got wrong cards"));
                    }
                    process.phase = Phase::Working;
                    let epoch = process.epoch;
                    self.soon(MS, 20 * MS, Event::Arrive(id, epoch));
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn sit(&mut self, id: WorkerId, seat: &Seat) -> Result<(), String> {
        self.note(|| format!("{id} is rank {} of {} in epoch {}", seat.rank, seat.size, seat.epoch));
        let run = self.epoch_runs.entry(seat.epoch).or_default();
        run.size = seat.size;
        if let Some(other) = run.ranks.insert(seat.rank, id)
            && other != id
        {
            return Err(format!("{other} and {id} are both rank {} of epoch {}", seat.rank, seat.epoch));
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, id: WorkerId, culprit: Option<Rank>) {
        let process = self.processes.get_mut(&id).expect("it is there");
        process.cause = Some(Cause { culprit, text: "lost a peer".into() });
        process.phase = Phase::Cleaning;
        self.leave_epoch(id);
        self.soon(MS, 30 * MS, Event::Ask(id));
    }

    pub(super) fn arrive(&mut self, id: WorkerId, epoch: u64) -> Result<(), String> {
        let process = self.processes.get_mut(&id).expect("it is there");
        if process.epoch != epoch || process.phase != Phase::Working {
            return Ok(());
        }
        process.phase = Phase::AtStep;
        let seat_changes = process.member.seat().map_or(0, |s| s.changes);
        let pending = process.member.change().number > seat_changes;
        let run = self.epoch_runs.entry(epoch).or_default();
        run.pending |= pending;
        run.arrived.insert(id);
        let step = run.step.unwrap_or(u64::MAX);
        let all = run.arrived.len() == run.size && !run.broken;
        if !all {
            self.at(self.now + TIMEOUT, Event::Stuck(id, epoch, step));
            return Ok(());
        }
        // Made: everybody has everything, and learns of it a little later.
        if epoch < self.newest {
            return Err(format!("a step was made in epoch {epoch} after one in epoch {}", self.newest));
        }
        self.newest = epoch;
        let members: Vec<WorkerId> = run.arrived.iter().copied().collect();
        run.arrived.clear();
        let made = match run.step {
            // The first is the state of rank 0, for everybody.
            None => self.processes[&run.ranks[&Rank::ZERO]].progress,
            Some(step) => step + 1,
        };
        run.step = Some(made);
        for member in members {
            self.soon(0, 5 * MS, Event::Made(member, epoch, made));
        }
        Ok(())
    }

    pub(super) fn made(&mut self, id: WorkerId, epoch: u64, step: u64) {
        let process = self.processes.get_mut(&id).expect("it is there");
        if process.epoch != epoch || process.phase != Phase::AtStep {
            return;
        }
        process.progress = step;
        if process.member.over().is_some() {
            return self.fail(id, None);
        }
        let run = self.epoch_runs.get_mut(&epoch).expect("a step was made in it");
        if step >= self.steps {
            self.say(id, ToDriver::Leave { early: false });
            return self.kill(id, 0);
        }
        if run.pending {
            process.phase = Phase::Cleaning;
            run.broken = true;
            return self.soon(MS, 10 * MS, Event::Ask(id));
        }
        process.phase = Phase::Working;
        self.soon(20 * MS, 150 * MS, Event::Arrive(id, epoch));
    }

    pub(super) fn connect(&mut self, id: WorkerId) {
        let host = self.processes[&id].host.clone();
        if !self.reachable(&host) {
            return self.soon(200 * MS, S, Event::Connect(id));
        }
        let link = self.next_link;
        self.next_link += 1;
        self.links.insert(link, Link { worker: id, up: Vec::new(), down: Vec::new(), open: true });
        self.processes.get_mut(&id).expect("it is there").link = Some(link);
    }
}
