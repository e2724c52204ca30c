//! What happens in the simulated world, one event at a time.

use std::time::Duration;

use super::{Event, MS, Phase, S, World};
use crate::machine::{Exit, Input, LinkId, Machine, Rules};
use crate::message::ToDriver;

impl World {
    pub(super) fn happen(&mut self, event: Event) -> Result<(), String> {
        // A stopped process does nothing, but what it missed happens when it wakes.
        let of = match &event {
            Event::Up(id) | Event::Beat(id) | Event::Connect(id) | Event::Arrive(id, _) | Event::Made(id, ..) => {
                Some(*id)
            }
            Event::Fail(id, ..) | Event::Stuck(id, ..) | Event::Ask(id) | Event::MeetsNobody(id, _) => Some(*id),
            Event::ToWorker(link) | Event::WorkerLoses(link) => self.links.get(link).map(|l| l.worker),
            _ => None,
        };
        if let Some(id) = of {
            if !self.alive(id) {
                return Ok(());
            }
            let process = self.processes.get_mut(&id).expect("it lives");
            if process.paused {
                process.missed.push(event);
                return Ok(());
            }
        }
        match event {
            Event::Tick => {
                self.at(self.now + 200 * MS, Event::Tick);
                if self.driver_is_stopped() { Ok(()) } else { self.input(Input::Tick) }
            }
            Event::Up(id) => {
                self.connect(id);
                self.at(self.now + S, Event::Beat(id));
                self.ask(id);
                Ok(())
            }
            Event::Beat(id) => {
                self.say(id, ToDriver::Beat);
                self.at(self.now + S, Event::Beat(id));
                Ok(())
            }
            Event::Connect(id) => {
                if self.processes[&id].link.is_none() && self.processes[&id].phase != Phase::Booting {
                    self.connect(id);
                    match self.processes[&id].member.again() {
                        Some(again) if self.processes[&id].link.is_some() => self.say(id, again),
                        _ => {}
                    }
                }
                Ok(())
            }
            Event::ToDriver(link) => {
                let Some(wire) = self.links.get_mut(&link) else { return Ok(()) };
                let host = self.processes[&wire.worker].host.clone();
                if !self.reachable(&host) {
                    return Ok(());
                }
                let messages = std::mem::take(&mut self.links.get_mut(&link).expect("it is there").up);
                messages.into_iter().try_for_each(|message| self.input(Input::Said(link, message)))
            }
            Event::ToWorker(link) => {
                let worker = self.links[&link].worker;
                if self.processes[&worker].link != Some(link) || !self.reachable(&self.processes[&worker].host) {
                    return Ok(());
                }
                let messages = std::mem::take(&mut self.links.get_mut(&link).expect("it is there").down);
                for message in messages {
                    if self.alive(worker) {
                        self.hear(worker, message)?;
                    }
                }
                Ok(())
            }
            Event::DriverLoses(link) => {
                // What was said before the end is heard.
                self.happen(Event::ToDriver(link))?;
                let was_open = self.links.get_mut(&link).map(|l| std::mem::replace(&mut l.open, false));
                if was_open == Some(true) { self.input(Input::Lost(link, "closed".into())) } else { Ok(()) }
            }
            Event::WorkerLoses(link) => {
                let id = self.links[&link].worker;
                let process = self.processes.get_mut(&id).expect("it lives");
                if process.link == Some(link) {
                    process.link = None;
                    self.soon(10 * MS, 500 * MS, Event::Connect(id));
                }
                Ok(())
            }
            Event::Arrive(id, epoch) => self.arrive(id, epoch),
            Event::Made(id, epoch, step) => {
                self.made(id, epoch, step);
                Ok(())
            }
            Event::Fail(id, epoch, culprit) => {
                let process = &self.processes[&id];
                let in_it = matches!(process.phase, Phase::Meeting | Phase::Working | Phase::AtStep);
                if process.epoch == epoch && in_it {
                    self.fail(id, culprit);
                }
                Ok(())
            }
            Event::Stuck(id, epoch, step) => {
                let process = &self.processes[&id];
                let run = &self.epoch_runs[&epoch];
                if process.epoch == epoch && process.phase == Phase::AtStep && run.step.unwrap_or(u64::MAX) == step {
                    let missing =
                        (0..run.size).find(|rank| run.ranks.get(rank).is_none_or(|w| !run.arrived.contains(w)));
                    self.fail(id, missing);
                }
                Ok(())
            }
            Event::MeetsNobody(id, epoch) => {
                if self.processes[&id].epoch == epoch && self.processes[&id].phase == Phase::Meeting {
                    self.fail(id, None);
                }
                Ok(())
            }
            Event::Ask(id) => {
                if self.processes[&id].phase == Phase::Cleaning {
                    self.ask(id);
                }
                Ok(())
            }
            Event::Exited(id, code) => {
                let host = self.processes[&id].host.clone();
                if !self.reachable(&host) {
                    self.at(self.now + S, Event::Exited(id, code));
                    return Ok(());
                }
                let exit = Exit { code, killed: code == 137, victim: false, words: format!("ended with {code}") };
                self.input(Input::Exited(id, exit))
            }
            Event::HostLost(host) => {
                if !self.cut_off.contains(&host) && !self.down.contains(&host) {
                    return Ok(());
                }
                // The agent there ends what it has started, for it has lost the driver as well.
                let there = self.of_host(&host);
                self.input(Input::HostLost(host.clone(), "silent".into()))?;
                for id in there {
                    self.processes.get_mut(&id).expect("it is there").given_up = true;
                    self.kill(id, 137);
                }
                Ok(())
            }
            Event::Wake(id) => {
                if let Some(process) = self.processes.get_mut(&id).filter(|p| p.paused) {
                    process.paused = false;
                    let (missed, holds_driver) = (std::mem::take(&mut process.missed), process.holds_driver);
                    self.note(|| format!("{id} wakes up"));
                    for event in missed {
                        self.soon(0, MS, event);
                    }
                    if holds_driver {
                        // What was said to the driver meanwhile lies in its sockets.
                        let open: Vec<LinkId> = self.links.iter().filter(|(_, l)| l.open).map(|(id, _)| *id).collect();
                        for link in open {
                            self.soon(0, MS, Event::ToDriver(link));
                            self.soon(0, MS, Event::ToWorker(link));
                        }
                    }
                }
                Ok(())
            }
            Event::Heal(host) => {
                self.note(|| format!("{host} can be reached"));
                self.cut_off.remove(&host);
                self.down.remove(&host);
                let links: Vec<LinkId> = self.links_of(&host);
                for link in links {
                    if self.random.one_in(2) {
                        self.soon(0, 100 * MS, Event::DriverLoses(link));
                        self.soon(0, 100 * MS, Event::WorkerLoses(link));
                    } else {
                        self.soon(0, 10 * MS, Event::ToDriver(link));
                        self.soon(0, 10 * MS, Event::ToWorker(link));
                    }
                }
                Ok(())
            }
            Event::Restart(host, holds_driver) => {
                let id = self.next_worker;
                self.note(|| format!("the scheduler starts {id} on {host}"));
                if holds_driver {
                    let first_epoch = self.now / S + 1;
                    let begin = Duration::ZERO;
                    self.machine = Some(Machine::new(Rules { first_epoch, ..self.rules.clone() }, begin));
                    self.machine_begin = self.now;
                    self.driver_down = false;
                }
                self.spawn(id, host, holds_driver);
                Ok(())
            }
            Event::Fault => {
                self.fault();
                Ok(())
            }
            Event::Hosts => self.change_hosts(),
        }
    }
}
