//! What workers say, and what the machine makes of it.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use super::{Decision, Epoch, LinkId, Machine, Time, Worker, WorkerState};
use crate::message::{Cause, Hello, PastSeat, ToDriver, ToWorker, WorkerId};

impl Machine {
    pub(super) fn said(&mut self, link: LinkId, message: ToDriver, now: Time) {
        match message {
            ToDriver::Hello(hello) => return self.hello(link, hello, now),
            ToDriver::Present { worker, host, seat } => return self.present(link, worker, &host, seat, now),
            ToDriver::Card { .. } | ToDriver::Beat | ToDriver::Leave { .. } => {}
        }
        let Some(id) = self.links.get(&link).copied() else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.heard = now;
        match message {
            ToDriver::Card { epoch, card } => self.card(id, epoch, card),
            ToDriver::Leave { early } => {
                worker.done = true;
                if let Some(ending) = &mut self.ending {
                    ending.early |= early;
                }
                if !self.rules.supply {
                    self.begin_to_finish();
                    self.drop_worker(id, None, now);
                }
            }
            _ => {}
        }
    }

    pub(super) fn hello(&mut self, link: LinkId, hello: Hello, now: Time) {
        let id = hello.worker;
        if hello.release != env!("CARGO_PKG_VERSION") {
            let why =
                format!("it has corro {}, the driver {}: install the same", hello.release, env!("CARGO_PKG_VERSION"));
            return self.out.push(Decision::Tell(link, ToWorker::Ended { success: false, why }));
        }
        if !self.adopt_worker(id, &hello.host, hello.was, now) {
            let why = "it was given up for lost, and the job goes on without it".to_owned();
            return self.out.push(Decision::Tell(link, ToWorker::Removed(why)));
        }
        self.last_number = self.last_number.max(hello.was.map_or(0, |past| past.epoch));
        self.attach(link, id, now);
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state == WorkerState::Leaving {
            return self.dismiss(id, "its host has left the job", now);
        }
        let was_seated = worker.state == WorkerState::Seated;
        if worker.state == WorkerState::Starting {
            worker.was = worker.was.or(hello.was);
        }
        worker.progress = hello.progress;
        worker.blamed = None;
        worker.told.clear();
        if worker.state != WorkerState::Waiting {
            (worker.state, worker.since) = (WorkerState::Waiting, now);
            self.last_arrival = now;
        }
        // A seat that it never heard of, or that it gives up: the others can't go on in that epoch either way.
        let number = hello.was.map(|past| past.epoch);
        if was_seated {
            self.came_back(id, hello.was, hello.cause, now);
        } else if self.epoch.as_ref().is_some_and(|e| e.adopted && Some(e.number) == number) {
            self.over("others have come back from it".into(), None, now);
        }
    }

    pub(super) fn came_back(&mut self, id: WorkerId, was: Option<PastSeat>, cause: Option<Cause>, now: Time) {
        let Some(epoch) = &self.epoch else { return };
        let Some((rank, _)) = epoch.members.iter().find(|(_, member)| **member == id) else { return };
        let of_this = was.is_some_and(|past| past.epoch == epoch.number);
        let culprit = cause.as_ref().and_then(|c| c.culprit).filter(|c| of_this && c != rank);
        let why = match cause {
            Some(cause) if of_this => format!("rank {rank} on {}: {}", self.workers[&id].host, cause.text),
            _ if of_this => "the members of the job change".to_owned(),
            _ => format!("rank {rank} on {} had to start over", self.workers[&id].host),
        };
        if let Some(blamed) = culprit.and_then(|c| epoch.members.get(&c)).and_then(|w| self.workers.get_mut(w)) {
            blamed.blamed = blamed.blamed.or(Some(now));
        }
        self.over(why, culprit, now);
    }

    pub(super) fn present(&mut self, link: LinkId, id: WorkerId, host: &str, seat: PastSeat, now: Time) {
        if !self.adopt_worker(id, host, Some(seat), now) {
            let why = "it was given up for lost, and the job goes on without it".to_owned();
            return self.out.push(Decision::Tell(link, ToWorker::Removed(why)));
        }
        self.attach(link, id, now);
        let newest = seat.epoch >= self.last_number;
        self.last_number = self.last_number.max(seat.epoch);
        let other = self.epoch.as_ref().is_none_or(|e| e.adopted && e.number < seat.epoch);
        if other && newest && !self.rules.supply {
            // An epoch that another machine has made, whose place this one has taken. Some may have left it already.
            let (members, cards) = (BTreeMap::new(), BTreeMap::new());
            self.epoch = Some(Epoch { number: seat.epoch, members, size: 0, cards, over: None, adopted: true });
            let left =
                |w: &Worker| w.state == WorkerState::Waiting && w.was.is_some_and(|past| past.epoch == seat.epoch);
            if self.workers.values().any(left) {
                self.over("others have come back from it".into(), None, now);
            }
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let Some(epoch) = &mut self.epoch else {
            let why = "the job has gone on meanwhile".to_owned();
            return self.out.push(Decision::Tell(link, ToWorker::Over { epoch: seat.epoch, culprit: None, why }));
        };
        let its_own = epoch.members.get(&seat.rank).is_some_and(|member| *member == id);
        if epoch.number == seat.epoch && (epoch.adopted || its_own) && worker.state != WorkerState::Leaving {
            epoch.members.insert(seat.rank, id);
            if epoch.adopted {
                epoch.size = epoch.members.len();
            }
            (worker.state, worker.since, worker.was) = (WorkerState::Seated, now, Some(seat));
            if epoch.adopted {
                (worker.met, self.state_epoch) = (seat.epoch, self.state_epoch.max(seat.epoch));
            }
            self.last_arrival = now;
        }
        let current = worker.state == WorkerState::Seated && epoch.number == seat.epoch;
        let news = match &epoch.over {
            Some(over) if current => {
                Some(ToWorker::Over { epoch: seat.epoch, culprit: over.culprit, why: over.why.clone() })
            }
            None if current => (!self.announced.is_empty()).then_some(ToWorker::Changed(self.change)),
            _ => {
                let why = "the job has gone on meanwhile".to_owned();
                Some(ToWorker::Over { epoch: seat.epoch, culprit: None, why })
            }
        };
        self.out.extend(news.map(|news| Decision::Tell(link, news)));
    }

    /// Whether `id` is one of ours. Where a scheduler starts workers, whoever has the secret is.
    pub(super) fn adopt_worker(&mut self, id: WorkerId, host: &str, was: Option<PastSeat>, now: Time) -> bool {
        if self.workers.contains_key(&id) {
            return true;
        }
        if self.rules.supply {
            return false;
        }
        self.add_worker(id, host.to_owned(), was, now);
        true
    }

    pub(super) fn add_worker(&mut self, id: WorkerId, host: String, was: Option<PastSeat>, now: Time) {
        let worker = Worker {
            host,
            state: WorkerState::Starting,
            link: None,
            heard: now,
            since: now,
            was,
            met: was.map_or(0, |past| past.epoch),
            progress: 0,
            slot: None,
            blamed: None,
            done: false,
            told: String::new(),
            spare: false,
        };
        self.workers.insert(id, worker);
    }

    pub(super) fn attach(&mut self, link: LinkId, id: WorkerId, now: Time) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if let Some(old) = worker.link.replace(link)
            && old != link
        {
            self.links.remove(&old);
            self.out.push(Decision::Close(old));
        }
        worker.heard = now;
        self.links.insert(link, id);
    }

    pub(super) fn card(&mut self, id: WorkerId, number: u64, card: ByteBuf) {
        let Some(epoch) = &mut self.epoch else { return };
        if epoch.number != number || epoch.over.is_some() {
            return;
        }
        let Some(rank) = epoch.members.iter().find(|(_, member)| **member == id).map(|(rank, _)| *rank) else { return };
        epoch.cards.insert(rank, card);
        if epoch.cards.len() == epoch.size {
            self.state_epoch = number;
            for member in epoch.members.values() {
                if let Some(worker) = self.workers.get_mut(member) {
                    worker.met = number;
                }
            }
            let cards = ToWorker::Cards { epoch: number, cards: epoch.cards.values().cloned().collect() };
            self.tell_seated(&cards);
        }
    }
}
