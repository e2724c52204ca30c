//! What happens in the simulated world, one event at a time.

use std::time::Duration;

use corro_core::Rank;

use super::{Event, MS, Phase, S, World};
use crate::machine::{Exit, Input, LinkId, Machine, Rules};
use crate::message::{ToDriver, WorkerId};

impl World {
    pub(super) fn happen(&mut self, event: Event) -> Result<(), String> {
        if let Some(id) = self.whose(&event) {
            if !self.alive(id) {
                return Ok(());
            }
            // A stopped process does nothing, but what it missed happens when it wakes.
            let process = self.processes.get_mut(&id).expect("it lives");
            if process.paused {
                process.missed.push(event);
                return Ok(());
            }
        }
        match event {
            Event::Tick => self.tick()?,
            Event::Up(id) => self.come_up(id),
            Event::Beat(id) => self.beat(id),
            Event::Connect(id) => self.connect_again(id),
            Event::ToDriver(link) => self.driver_hears(link)?,
            Event::ToWorker(link) => self.worker_hears(link)?,
            Event::DriverLoses(link) => self.driver_loses(link)?,
            Event::WorkerLoses(link) => self.worker_loses(link),
            Event::Arrive(id, epoch) => self.arrive(id, epoch)?,
            Event::Made(id, epoch, step) => self.made(id, epoch, step),
            Event::Fail(id, epoch, culprit) => self.notice_failure(id, epoch, culprit),
            Event::Stuck(id, epoch, step) => self.give_up_waiting(id, epoch, step),
            Event::MeetsNobody(id, epoch) => self.give_up_meeting(id, epoch),
            Event::Ask(id) => self.ask_if_clean(id),
            Event::Exited(id, code) => self.driver_sees_exit(id, code)?,
            Event::HostLost(host) => self.lose_host(host)?,
            Event::Wake(id) => self.wake(id),
            Event::Heal(host) => self.heal(&host),
            Event::Restart(host, holds_driver) => self.restart(host, holds_driver),
            Event::Fault => self.fault(),
            Event::Hosts => self.change_hosts()?,
        }
        Ok(())
    }

    /// The process that an event happens to, if it is one's own doing.
    fn whose(&self, event: &Event) -> Option<WorkerId> {
        match event {
            Event::Up(id) | Event::Beat(id) | Event::Connect(id) | Event::Arrive(id, _) | Event::Made(id, ..) => {
                Some(*id)
            }
            Event::Fail(id, ..) | Event::Stuck(id, ..) | Event::Ask(id) | Event::MeetsNobody(id, _) => Some(*id),
            Event::ToWorker(link) | Event::WorkerLoses(link) => self.links.get(link).map(|l| l.worker),
            _ => None,
        }
    }

    fn tick(&mut self) -> Result<(), String> {
        self.at(self.now + 200 * MS, Event::Tick);
        if self.driver_is_stopped() { Ok(()) } else { self.input(Input::Tick) }
    }

    fn come_up(&mut self, id: WorkerId) {
        self.connect(id);
        self.at(self.now + S, Event::Beat(id));
        self.ask(id);
    }

    fn beat(&mut self, id: WorkerId) {
        self.say(id, ToDriver::Beat);
        self.at(self.now + S, Event::Beat(id));
    }

    fn connect_again(&mut self, id: WorkerId) {
        if self.processes[&id].link.is_some() || self.processes[&id].phase == Phase::Booting {
            return;
        }
        self.connect(id);
        match self.processes[&id].member.again() {
            Some(again) if self.processes[&id].link.is_some() => self.say(id, again),
            _ => {}
        }
    }

    fn driver_hears(&mut self, link: LinkId) -> Result<(), String> {
        let Some(wire) = self.links.get(&link) else { return Ok(()) };
        if !self.reachable(&self.processes[&wire.worker].host) {
            return Ok(());
        }
        let messages = std::mem::take(&mut self.links.get_mut(&link).expect("it is there").up);
        messages.into_iter().try_for_each(|message| self.input(Input::Said(link, message)))
    }

    fn worker_hears(&mut self, link: LinkId) -> Result<(), String> {
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

    fn driver_loses(&mut self, link: LinkId) -> Result<(), String> {
        // What was said before the end is heard.
        self.driver_hears(link)?;
        let was_open = self.links.get_mut(&link).map(|l| std::mem::replace(&mut l.open, false));
        if was_open == Some(true) { self.input(Input::Lost(link, "closed".into())) } else { Ok(()) }
    }

    fn worker_loses(&mut self, link: LinkId) {
        let id = self.links[&link].worker;
        let process = self.processes.get_mut(&id).expect("it lives");
        if process.link == Some(link) {
            process.link = None;
            self.soon(10 * MS, 500 * MS, Event::Connect(id));
        }
    }

    fn notice_failure(&mut self, id: WorkerId, epoch: u64, culprit: Option<Rank>) {
        let process = &self.processes[&id];
        let in_it = matches!(process.phase, Phase::Meeting | Phase::Working | Phase::AtStep);
        if process.epoch == epoch && in_it {
            self.fail(id, culprit);
        }
    }

    fn give_up_waiting(&mut self, id: WorkerId, epoch: u64, step: u64) {
        let process = &self.processes[&id];
        let run = &self.epoch_runs[&epoch];
        if process.epoch == epoch && process.phase == Phase::AtStep && run.step.unwrap_or(u64::MAX) == step {
            let missing = Rank::all(run.size).find(|rank| run.ranks.get(rank).is_none_or(|w| !run.arrived.contains(w)));
            self.fail(id, missing);
        }
    }

    fn give_up_meeting(&mut self, id: WorkerId, epoch: u64) {
        if self.processes[&id].epoch == epoch && self.processes[&id].phase == Phase::Meeting {
            self.fail(id, None);
        }
    }

    fn ask_if_clean(&mut self, id: WorkerId) {
        if self.processes[&id].phase == Phase::Cleaning {
            self.ask(id);
        }
    }

    fn driver_sees_exit(&mut self, id: WorkerId, code: i32) -> Result<(), String> {
        if !self.reachable(&self.processes[&id].host) {
            self.at(self.now + S, Event::Exited(id, code));
            return Ok(());
        }
        let exit = Exit { code, killed: code == 137, victim: false, words: format!("ended with {code}") };
        self.input(Input::Exited(id, exit))
    }

    fn lose_host(&mut self, host: String) -> Result<(), String> {
        if !self.cut_off.contains(&host) && !self.down.contains(&host) {
            return Ok(());
        }
        // The agent there ends what it has started, for it has lost the driver as well.
        let there = self.of_host(&host);
        self.input(Input::HostLost(host, "silent".into()))?;
        for id in there {
            self.processes.get_mut(&id).expect("it is there").given_up = true;
            self.kill(id, 137);
        }
        Ok(())
    }

    fn wake(&mut self, id: WorkerId) {
        let Some(process) = self.processes.get_mut(&id).filter(|p| p.paused) else { return };
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

    fn heal(&mut self, host: &str) {
        self.note(|| format!("{host} can be reached"));
        self.cut_off.remove(host);
        self.down.remove(host);
        for link in self.links_of(host) {
            if self.random.one_in(2) {
                self.soon(0, 100 * MS, Event::DriverLoses(link));
                self.soon(0, 100 * MS, Event::WorkerLoses(link));
            } else {
                self.soon(0, 10 * MS, Event::ToDriver(link));
                self.soon(0, 10 * MS, Event::ToWorker(link));
            }
        }
    }

    fn restart(&mut self, host: String, holds_driver: bool) {
        let id = self.next_worker;
        self.note(|| format!("the scheduler starts {id} on {host}"));
        if holds_driver {
            let first_epoch = self.now / S + 1;
            self.machine = Some(Machine::new(Rules { first_epoch, ..self.rules.clone() }, Duration::ZERO));
            self.machine_begin = self.now;
            self.driver_down = false;
        }
        self.spawn(id, host, holds_driver);
    }
}
