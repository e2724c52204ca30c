//! What goes wrong, and the driver's part of the world, with what must hold whatever goes wrong.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use super::{Event, Link, LinkId, MS, Phase, Process, S, World};
use crate::machine::{Decision, Input};
use crate::message::WorkerId;

impl World {
    pub(super) fn fault(&mut self) {
        let living: Vec<WorkerId> = self.processes.keys().copied().filter(|id| self.alive(*id)).collect();
        if living.is_empty() {
            return;
        }
        let victim = living[self.random.below_u64(living.len() as u64) as usize];
        let host = self.processes[&victim].host.clone();
        match self.random.below_u64(9) {
            0..=2 => self.kill(victim, 137),
            3 => self.kill(victim, 1),
            4 => {
                let count = self.random.between(1, living.len() as u64);
                let from = self.random.below_u64(living.len() as u64);
                for at in 0..count {
                    let id = living[((from + at) % living.len() as u64) as usize];
                    self.kill(id, 137);
                }
            }
            5 | 6 => {
                self.note(|| format!("{victim} is stopped"));
                self.processes.get_mut(&victim).expect("it lives").paused = true;
                self.soon(100 * MS, 30 * S, Event::Wake(victim));
            }
            7 => {
                if let Some(link) = self.processes[&victim].link {
                    self.note(|| format!("{victim} loses its connection"));
                    self.soon(0, 200 * MS, Event::DriverLoses(link));
                    self.soon(0, 200 * MS, Event::WorkerLoses(link));
                }
            }
            _ => {
                let length = self.random.between(S, 25 * S);
                let dies = self.rules.supply && self.random.one_in(2);
                self.note(|| format!("{host} is {} for {} s", if dies { "gone" } else { "cut off" }, length / S));
                self.cut_off.insert(host.clone());
                if dies {
                    self.down.insert(host.clone());
                    for id in self.of_host(&host) {
                        self.kill(id, 137);
                    }
                }
                if self.rules.supply && (dies || length > 10 * S) {
                    self.at(self.now + 10 * S, Event::HostLost(host.clone()));
                }
                let heal = if dies { length.max(11 * S) } else { length };
                self.at(self.now + heal, Event::Heal(host));
            }
        }
    }

    pub(super) fn change_hosts(&mut self) -> Result<(), String> {
        let mut list = self.hosts.clone();
        if self.now > 1 {
            // Any part of them, with any number of slots; in the end all of them.
            let more = self.queue.iter().any(|Reverse((_, _, event))| *event == Event::Hosts);
            if more {
                list.retain(|_| !self.random.one_in(3));
                for host in &mut list {
                    host.slots = self.random.between(1, host.slots as u64) as usize;
                }
            }
        }
        self.note(|| format!("the hosts are {list:?}"));
        self.input(Input::Hosts(list))
    }

    pub(super) fn of_host(&self, host: &str) -> Vec<WorkerId> {
        self.processes.iter().filter(|(id, p)| p.host == host && self.alive(**id)).map(|(id, _)| *id).collect()
    }

    pub(super) fn links_of(&self, host: &str) -> Vec<LinkId> {
        let here = |l: &Link| l.open && self.processes[&l.worker].host == host;
        self.links.iter().filter(|(_, l)| here(l)).map(|(id, _)| *id).collect()
    }

    pub(super) fn driver_dies(&mut self) {
        self.note(|| "the driver is gone".into());
        self.driver_down = true;
        self.machine = None;
        let open: Vec<LinkId> = self.links.iter().filter(|(_, l)| l.open).map(|(id, _)| *id).collect();
        for link in open {
            self.links.get_mut(&link).expect("it is there").open = false;
            self.soon(0, 50 * MS, Event::WorkerLoses(link));
        }
    }

    pub(super) fn driver_is_stopped(&self) -> bool {
        !self.rules.supply && self.processes.values().any(|p| p.holds_driver && p.paused)
    }

    /// Whether the driver and a host can hear each other.
    pub(super) fn reachable(&self, host: &str) -> bool {
        !self.cut_off.contains(host) && !self.driver_down && !self.driver_is_stopped()
    }

    pub(super) fn input(&mut self, input: Input) -> Result<(), String> {
        let now = Duration::from_micros(self.now - self.machine_begin);
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let outputs = machine.handle(input, now);
        outputs.into_iter().try_for_each(|output| self.carry_out(output))
    }

    pub(super) fn carry_out(&mut self, output: Decision) -> Result<(), String> {
        match output {
            Decision::Start { worker, host } => {
                self.note(|| format!("start {worker} on {host}"));
                if self.down.contains(&host) || self.cut_off.contains(&host) {
                    self.spawn(worker, host.clone(), false);
                    self.processes.get_mut(&worker).expect("just made").phase = Phase::Dead;
                    self.soon(S, 2 * S, Event::HostLost(host));
                } else {
                    self.spawn(worker, host, false);
                }
            }
            Decision::Kill { worker, why } => {
                self.note(|| format!("kill {worker}: {why}"));
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.given_up = true;
                }
                if self.reachable(&self.processes[&worker].host) {
                    self.kill(worker, 137);
                }
            }
            Decision::Tell(link, message) => {
                if let Some(wire) = self.links.get_mut(&link).filter(|l| l.open) {
                    wire.down.push(message);
                    self.soon(MS / 10, 10 * MS, Event::ToWorker(link));
                }
            }
            Decision::Close(link) => {
                if let Some(wire) = self.links.get_mut(&link).filter(|l| l.open) {
                    wire.open = false;
                    self.soon(0, 20 * MS, Event::WorkerLoses(link));
                }
            }
            Decision::Say(text) => self.note(|| text),
            Decision::Formed { epoch, members, why } => self.formed(epoch, &members, &why)?,
            Decision::Finished(verdict) => {
                self.note(|| format!("the end: {verdict:?}"));
                self.verdict = Some(verdict);
            }
        }
        Ok(())
    }

    pub(super) fn formed(&mut self, epoch: u64, members: &[(WorkerId, String)], why: &str) -> Result<(), String> {
        self.report.epochs += 1;
        self.note(|| format!("epoch {epoch}: {members:?} ({why})"));
        let finishing = self.processes.values().any(|p| p.phase == Phase::Finished);
        let size = members.len();
        if size > self.rules.max || (size < self.rules.min && !finishing) {
            return Err(format!("epoch {epoch} has {size} members, not {} to {}", self.rules.min, self.rules.max));
        }
        let distinct: BTreeSet<WorkerId> = members.iter().map(|(id, _)| *id).collect();
        if distinct.len() != size {
            return Err(format!("epoch {epoch} has somebody twice: {members:?}"));
        }
        if let Some((id, _)) = members.iter().find(|(id, _)| self.processes[id].given_up) {
            return Err(format!("{id} was given up and has a seat in epoch {epoch}"));
        }
        for host in &self.hosts {
            let here = members.iter().filter(|(_, h)| *h == host.name).count();
            if self.rules.supply && here > host.slots {
                return Err(format!(
                    "epoch {epoch} has {here} members on {}, which has {} slots",
                    host.name, host.slots
                ));
            }
        }
        // Whoever asks for a seat and can be heard by now has told how far it is.
        let heard = |(id, p): &(&WorkerId, &Process)| {
            let silent = p.paused || !self.reachable(&p.host) || p.given_up || p.link.is_none();
            let unheard = p.link.and_then(|l| self.links.get(&l)).is_none_or(|l| !l.up.is_empty());
            self.alive(**id) && p.phase == Phase::Asking && !silent && !unheard && p.member.answer().is_none()
        };
        let best = self.processes.iter().filter(heard).map(|(_, p)| p.progress).max().unwrap_or(0);
        let leads = self.processes[&members[0].0].progress;
        if leads < best {
            return Err(format!("epoch {epoch} begins at {leads}, and commit {best} is lost"));
        }
        Ok(())
    }
}
