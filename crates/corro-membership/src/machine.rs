//! Membership: who belongs to the job, which epoch it is in, and what happens when that changes.
//!
//! Pure: what happened and when goes in, what is to be done comes out. It holds no socket, starts nothing, and never
//! looks at a clock. The driver of `corro run`, the process that holds the rendezvous where there is no launcher, and the
//! simulator all run this very code.
//!
//! ```text
//! worker:  starting -> waiting <-> seated -> gone          epoch:  running -> over -> (all living members are back) -> next
//!             (started) (Hello)   (Seat)  (exit, silence)
//! ```
//! An epoch is over as soon as one of its members is lost or comes back. The next one is made when every living member of the
//! last one has come back (or was silent for too long, and was ended), of all who wait, if they are enough. Survivors never
//! wait for processes that are still starting.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corro_core::Rank;
use serde_bytes::ByteBuf;

use crate::fleet::{Fleet, Host};
use crate::message::{Cause, Change, Hello, Past, ToDriver, ToWorker, WorkerId};
use crate::seats::{self, Candidate, Chosen};

/// Time since the machine was made.
pub type Time = Duration;
/// A connection to a worker; never used for another.
pub type LinkId = u64;

/// How long a worker that was told to go may take.
const LEAVE_TIME: Duration = Duration::from_secs(30);

/// The driver looks at the clock many times a second; if it has not for so long, it was stopped.
const ABSENCE: Duration = Duration::from_secs(2);

/// What a job wants of its membership.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Workers the job begins with.
    pub start: usize,
    /// It goes on with as few as this.
    pub min: usize,
    /// It grows to as many as this.
    pub max: usize,
    /// Workers that are started and wait, beyond those with a seat.
    pub spares: usize,
    /// Whether workers are started and ended on our order. If not, a scheduler does that.
    pub supply: bool,
    /// Whether the list of hosts may still change.
    pub hosts_change: bool,
    /// How long to wait for enough workers.
    pub patience: Duration,
    /// A worker that has not been heard for so long is lost.
    pub silence: Duration,
    /// How long members of an ended epoch may take to come back; zero: for ever.
    pub return_time: Duration,
    /// The same for one whom the others blame, and how long a lost connection may take to be made again.
    pub suspect_time: Duration,
    /// How long those who have come wait for others that are on their way, before the first epoch and before each growth.
    pub gather: Duration,
    /// How many epochs may follow the first.
    pub reset_limit: Option<u64>,
    /// The shortest and the longest time for which a host is blacklisted; none: for ever.
    pub cooldown: Option<(Duration, Duration)>,
    /// The number of the first epoch.
    pub first_epoch: u64,
    /// For what is left to chance.
    pub seed: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            start: 1,
            min: 1,
            max: usize::MAX,
            spares: 0,
            supply: true,
            hosts_change: false,
            patience: Duration::from_secs(600),
            silence: Duration::from_secs(10),
            return_time: Duration::from_secs(120),
            suspect_time: Duration::from_secs(5),
            gather: Duration::from_secs(5),
            reset_limit: None,
            cooldown: None,
            first_epoch: 1,
            seed: 0,
        }
    }
}

/// How a worker's process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// What a shell would call it.
    pub code: i32,
    /// Whether a signal ended it.
    pub by_signal: bool,
    /// In words that read after "rank 2 on node7 ": "was killed by signal 9".
    pub words: String,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Input {
    /// These hosts are there now.
    Hosts(Vec<Host>),
    /// This came from a worker.
    Said(LinkId, ToDriver),
    /// A connection has ended.
    Lost(LinkId, String),
    /// A worker's process has ended.
    Exited(WorkerId, Exit),
    /// A host can't be reached any more; all its workers are gone.
    HostLost(String, String),
    /// Nothing but time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Start a worker.
    Start {
        /// Its number.
        worker: WorkerId,
        /// Where.
        host: String,
    },
    /// End a worker's process, at once and whatever it does.
    Kill {
        /// Which.
        worker: WorkerId,
        /// Why.
        why: String,
    },
    /// Tell a worker.
    Tell(LinkId, ToWorker),
    /// End a connection.
    Close(LinkId),
    /// The user should know.
    Say(String),
    /// A new epoch: its members and their hosts, in the order of ranks.
    Formed {
        /// Its number.
        epoch: u64,
        /// Who.
        members: Vec<(WorkerId, String)>,
        /// Why the last one ended; empty for the first.
        why: String,
    },
    /// The job is over. Nothing follows.
    Finished(Verdict),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether its work is done.
    pub success: bool,
    /// Why it is over.
    pub why: String,
    /// The worker whose failure ended it, if one's did, and how that worker ended.
    pub failed: Option<(WorkerId, Exit)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its process was started; it has not been heard of.
    Starting,
    /// It wants a seat.
    Waiting,
    /// It has a seat in the current epoch.
    Seated,
    /// It was told to go, or says that it goes.
    Leaving,
}

#[derive(Debug)]
struct Worker {
    host: String,
    state: State,
    link: Option<LinkId>,
    /// When it was last heard, or when it last changed its state.
    heard: Time,
    since: Time,
    was: Option<Past>,
    /// The last epoch in which it and all others knew how to reach each other; 0: none.
    met: u64,
    progress: u64,
    slot: Option<usize>,
    /// Named by others as the one who is missing, since when.
    blamed: Option<Time>,
    /// Its last words to us were that it is done.
    done: bool,
    /// The last that it was told to wait for.
    told: String,
}

#[derive(Debug)]
struct Epoch {
    number: u64,
    members: BTreeMap<Rank, WorkerId>,
    size: usize,
    cards: BTreeMap<Rank, ByteBuf>,
    over: Option<Over>,
    /// It was made by another machine before this one, of whose members we hear one by one.
    adopted: bool,
}

#[derive(Clone, Debug)]
struct Over {
    since: Time,
    why: String,
    culprit: Option<Rank>,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    fleet: Fleet,
    workers: BTreeMap<WorkerId, Worker>,
    links: BTreeMap<LinkId, WorkerId>,
    next_worker: WorkerId,
    epoch: Option<Epoch>,
    /// The highest epoch anybody has had.
    last_number: u64,
    /// The last epoch in which anything can have been done; 0: none.
    state_epoch: u64,
    formed: u64,
    change: Change,
    /// Whom the last change wants in.
    announced: BTreeSet<WorkerId>,
    /// Since when there are too few workers.
    short_since: Option<Time>,
    last_arrival: Time,
    last_now: Time,
    hosts_known: bool,
    /// Somebody has finished its work.
    finishing: bool,
    failed: Option<(WorkerId, Exit)>,
    ended: bool,
    out: Vec<Output>,
}

impl Machine {
    /// A job that begins at `now`.
    pub fn new(rules: Rules, now: Time) -> Self {
        let fleet = Fleet::new(rules.cooldown, rules.seed);
        let last_number = rules.first_epoch.saturating_sub(1);
        // Where another machine may have been before this one, no number is used again.
        let change = Change { number: if rules.supply { 0 } else { rules.first_epoch << 16 }, ..Change::default() };
        Self {
            rules,
            fleet,
            workers: BTreeMap::new(),
            links: BTreeMap::new(),
            next_worker: 0,
            epoch: None,
            last_number,
            state_epoch: 0,
            formed: 0,
            change,
            announced: BTreeSet::new(),
            short_since: Some(now),
            last_arrival: now,
            last_now: now,
            hosts_known: false,
            finishing: false,
            failed: None,
            ended: false,
            out: Vec::new(),
        }
    }

    /// Takes note of what happened at `now`, and says what is to be done.
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Output> {
        if self.ended {
            return self.after_the_end(&input);
        }
        self.forgive_own_absence(now);
        match input {
            Input::Hosts(list) => {
                self.hosts_known = true;
                self.fleet.see(&list, now);
            }
            Input::Said(link, message) => self.said(link, message, now),
            Input::Lost(link, why) => self.lost_link(link, &why, now),
            Input::Exited(worker, exit) => self.exited(worker, exit, now),
            Input::HostLost(host, why) => self.host_lost(&host, &why, now),
            Input::Tick => {}
        }
        self.settle(now);
        std::mem::take(&mut self.out)
    }

    /// Should the driver itself have been stopped for a while, nobody else was silent in that time: it did not listen.
    fn forgive_own_absence(&mut self, now: Time) {
        let absent = now.saturating_sub(std::mem::replace(&mut self.last_now, now));
        if absent < ABSENCE {
            return;
        }
        for worker in self.workers.values_mut() {
            worker.heard += absent;
            worker.blamed = worker.blamed.map(|at| at + absent);
        }
        if let Some(over) = self.epoch.as_mut().and_then(|e| e.over.as_mut()) {
            over.since += absent;
        }
        self.short_since = self.short_since.map(|at| at + absent);
    }

    /// Ends the job, for a reason of the driver's own.
    pub fn stop(&mut self, why: &str) -> Vec<Output> {
        if !self.ended {
            self.end(false, why.to_owned(), None);
        }
        std::mem::take(&mut self.out)
    }

    /// The ranks of the current epoch: number, and members in their order.
    pub fn members(&self) -> Option<(u64, Vec<WorkerId>)> {
        self.epoch.as_ref().map(|e| (e.number, e.members.values().copied().collect()))
    }

    /// Whether the job is over.
    pub fn is_over(&self) -> bool {
        self.ended
    }

    /// How many workers live, as far as is known.
    pub fn living(&self) -> usize {
        self.workers.len()
    }

    // What workers say.

    fn said(&mut self, link: LinkId, message: ToDriver, now: Time) {
        match message {
            ToDriver::Hello(hello) => return self.hello(link, hello, now),
            ToDriver::Present { worker, host, seat } => return self.present(link, worker, host, seat, now),
            ToDriver::Card { .. } | ToDriver::Beat | ToDriver::Leave => {}
        }
        let Some(id) = self.links.get(&link).copied() else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.heard = now;
        match message {
            ToDriver::Card { epoch, card } => self.card(id, epoch, card),
            ToDriver::Leave => {
                worker.done = true;
                if !self.rules.supply {
                    self.begin_to_finish();
                    self.drop_worker(id, None, now);
                }
            }
            _ => {}
        }
    }

    fn hello(&mut self, link: LinkId, hello: Hello, now: Time) {
        let id = hello.worker;
        if hello.release != env!("CARGO_PKG_VERSION") {
            let why =
                format!("it has corro {}, the driver {}: install the same", hello.release, env!("CARGO_PKG_VERSION"));
            return self.out.push(Output::Tell(link, ToWorker::Ended { success: false, why }));
        }
        if !self.adopt_worker(id, &hello.host, hello.was, now) {
            let why = "it was given up for lost, and the job goes on without it".to_owned();
            return self.out.push(Output::Tell(link, ToWorker::Removed(why)));
        }
        self.last_number = self.last_number.max(hello.was.map_or(0, |past| past.epoch));
        self.attach(link, id, now);
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state == State::Leaving {
            return self.dismiss(id, "its host has left the job", now);
        }
        let was_seated = worker.state == State::Seated;
        if worker.state == State::Starting {
            worker.was = worker.was.or(hello.was);
        }
        worker.progress = hello.progress;
        worker.blamed = None;
        worker.told.clear();
        if worker.state != State::Waiting {
            (worker.state, worker.since) = (State::Waiting, now);
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

    fn came_back(&mut self, id: WorkerId, was: Option<Past>, cause: Option<Cause>, now: Time) {
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

    fn present(&mut self, link: LinkId, id: WorkerId, host: String, seat: Past, now: Time) {
        if !self.adopt_worker(id, &host, Some(seat), now) {
            let why = "it was given up for lost, and the job goes on without it".to_owned();
            return self.out.push(Output::Tell(link, ToWorker::Removed(why)));
        }
        self.attach(link, id, now);
        let newest = seat.epoch >= self.last_number;
        self.last_number = self.last_number.max(seat.epoch);
        let other = self.epoch.as_ref().is_none_or(|e| e.adopted && e.number < seat.epoch);
        if other && newest && !self.rules.supply {
            // An epoch that another machine has made, whose place this one has taken. Some may have left it already.
            let (members, cards) = (BTreeMap::new(), BTreeMap::new());
            self.epoch = Some(Epoch { number: seat.epoch, members, size: 0, cards, over: None, adopted: true });
            let left = |w: &Worker| w.state == State::Waiting && w.was.is_some_and(|past| past.epoch == seat.epoch);
            if self.workers.values().any(left) {
                self.over("others have come back from it".into(), None, now);
            }
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let Some(epoch) = &mut self.epoch else {
            let why = "the job has gone on meanwhile".to_owned();
            return self.out.push(Output::Tell(link, ToWorker::Over { epoch: seat.epoch, culprit: None, why }));
        };
        let its_own = epoch.members.get(&seat.rank).is_some_and(|member| *member == id);
        if epoch.number == seat.epoch && (epoch.adopted || its_own) && worker.state != State::Leaving {
            epoch.members.insert(seat.rank, id);
            if epoch.adopted {
                epoch.size = epoch.members.len();
            }
            (worker.state, worker.since, worker.was) = (State::Seated, now, Some(seat));
            if epoch.adopted {
                (worker.met, self.state_epoch) = (seat.epoch, self.state_epoch.max(seat.epoch));
            }
            self.last_arrival = now;
        }
        let current = worker.state == State::Seated && epoch.number == seat.epoch;
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
        self.out.extend(news.map(|news| Output::Tell(link, news)));
    }

    /// Whether `id` is one of ours. Where a scheduler starts workers, whoever has the secret is.
    fn adopt_worker(&mut self, id: WorkerId, host: &str, was: Option<Past>, now: Time) -> bool {
        if self.workers.contains_key(&id) {
            return true;
        }
        if self.rules.supply {
            return false;
        }
        self.add_worker(id, host.to_owned(), was, now);
        true
    }

    fn add_worker(&mut self, id: WorkerId, host: String, was: Option<Past>, now: Time) {
        let worker = Worker {
            host,
            state: State::Starting,
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
        };
        self.workers.insert(id, worker);
    }

    fn attach(&mut self, link: LinkId, id: WorkerId, now: Time) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if let Some(old) = worker.link.replace(link)
            && old != link
        {
            self.links.remove(&old);
            self.out.push(Output::Close(old));
        }
        worker.heard = now;
        self.links.insert(link, id);
    }

    fn card(&mut self, id: WorkerId, number: u64, card: ByteBuf) {
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

    // What happens to workers.

    fn lost_link(&mut self, link: LinkId, why: &str, now: Time) {
        let Some(id) = self.links.remove(&link) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        // Its epoch may still be well: it is given some time to come again, or its exit will be heard, or its peers blame it.
        worker.link = None;
        worker.heard = now;
        tracing::debug!(worker = id, why, "a worker has lost its connection to the driver");
    }

    fn exited(&mut self, id: WorkerId, exit: Exit, now: Time) {
        let Some(worker) = self.workers.get(&id) else { return };
        let (state, host, had_seat) = (worker.state, worker.host.clone(), worker.was.is_some());
        let name = self.name_of(id);
        if exit.code == 0 && state != State::Leaving && (state != State::Waiting || worker.done) {
            self.begin_to_finish();
            return self.drop_worker(id, None, now);
        }
        if state == State::Leaving || exit.code == 0 {
            return self.drop_worker(id, Some(exit.words), now);
        }
        if self.finishing || self.epoch.is_none() {
            // Others may fail for the first one's sake.
            self.failed.get_or_insert((id, exit.clone()));
        } else {
            // Those before it were replaced, or not needed; if the job ends now, it is for this one.
            self.failed = Some((id, exit.clone()));
        }
        self.out.push(Output::Say(format!("{name} {}", exit.words)));
        if (!had_seat || !exit.by_signal)
            && let Some(text) = self.fleet.strike(&host, had_seat, now)
        {
            self.out.push(Output::Say(text));
        }
        self.drop_worker(id, Some(exit.words), now);
    }

    fn host_lost(&mut self, host: &str, why: &str, now: Time) {
        let text = self.fleet.blacklist(host, why, now);
        self.out.push(Output::Say(text));
        let there: Vec<WorkerId> = self.workers.iter().filter(|(_, w)| w.host == host).map(|(id, _)| *id).collect();
        for id in there {
            self.drop_worker(id, Some(format!("was lost with its host: {why}")), now);
        }
    }

    /// Forgets a worker; what it was to the current epoch ends with it, for this reason unless it was done.
    fn drop_worker(&mut self, id: WorkerId, why: Option<String>, now: Time) {
        let (rank, name) = (self.rank_of(id), self.name_of(id));
        let Some(worker) = self.workers.remove(&id) else { return };
        if let Some(link) = worker.link {
            self.links.remove(&link);
            self.out.push(Output::Close(link));
        }
        if worker.state == State::Seated
            && let Some(why) = why
        {
            self.over(format!("{name} {why}"), rank, now);
        }
    }

    /// Gives a worker up: its process is ended, and should it wake up, nobody listens to it.
    fn give_up(&mut self, id: WorkerId, why: &str, now: Time) {
        let name = self.name_of(id);
        self.out.push(Output::Say(format!("{name} {why}, so it is ended")));
        if self.rules.supply {
            self.out.push(Output::Kill { worker: id, why: why.to_owned() });
        }
        self.drop_worker(id, Some(why.to_owned()), now);
    }

    fn rank_of(&self, id: WorkerId) -> Option<Rank> {
        let epoch = self.epoch.as_ref()?;
        epoch.members.iter().find(|(_, member)| **member == id).map(|(rank, _)| *rank)
    }

    fn name_of(&self, id: WorkerId) -> String {
        let host = self.workers.get(&id).map_or("an unknown host", |w| &w.host);
        match self.rank_of(id) {
            Some(rank) => format!("rank {rank} on {host}"),
            None => format!("worker {id} on {host}"),
        }
    }

    fn over(&mut self, why: String, culprit: Option<Rank>, now: Time) {
        let Some(epoch) = &mut self.epoch else { return };
        if let Some(over) = &mut epoch.over {
            // The first to tell may not have known who is to blame.
            if over.culprit.is_none() && culprit.is_some() {
                (over.culprit, over.why) = (culprit, why);
            }
            return;
        }
        let message = ToWorker::Over { epoch: epoch.number, culprit, why: why.clone() };
        epoch.over = Some(Over { since: now, why, culprit });
        self.tell_seated(&message);
    }

    fn tell_seated(&mut self, message: &ToWorker) {
        let seated = self.workers.values().filter(|w| w.state == State::Seated).filter_map(|w| w.link);
        self.out.extend(seated.map(|link| Output::Tell(link, message.clone())));
    }

    fn dismiss(&mut self, id: WorkerId, why: &str, now: Time) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state != State::Leaving {
            (worker.state, worker.since) = (State::Leaving, now);
        }
        self.out.extend(worker.link.map(|link| Output::Tell(link, ToWorker::Removed(why.to_owned()))));
    }

    // What follows from it all.

    /// Draws every conclusion that can be drawn at `now`. Doing it again changes nothing.
    fn settle(&mut self, now: Time) {
        self.fleet.cool_down(now);
        self.watch_the_clock(now);
        if self.finishing {
            self.finish(now);
        }
        if !self.ended {
            self.dismiss_those_who_must_go(now);
            self.try_to_form(now);
        }
        if !self.ended {
            self.announce(now);
            self.start_workers(now);
            self.check_supply(now);
        }
    }

    fn watch_the_clock(&mut self, now: Time) {
        let rules = &self.rules;
        let over = self.epoch.as_ref().and_then(|e| e.over.as_ref()).map(|o| o.since);
        let mut given_up = Vec::new();
        for (id, worker) in &self.workers {
            let silent = now.saturating_sub(worker.heard);
            let seconds = |d: Duration| d.as_secs_f64();
            match (worker.state, worker.link) {
                (State::Starting, _) if silent < rules.patience => {}
                (State::Starting, _) => {
                    given_up.push((*id, format!("did not join within {} s of its start", seconds(rules.patience))));
                }
                (_, None) if worker.blamed.is_some() => {
                    given_up.push((*id, "has left the others and the driver without a word".to_owned()));
                }
                (_, None) if silent >= rules.suspect_time => {
                    let limit = seconds(rules.suspect_time);
                    given_up.push((*id, format!("lost its connection and did not come back within {limit} s")));
                }
                (_, Some(_)) if silent >= rules.silence => {
                    let words =
                        format!("gave no sign of life for {} s (CORRO_ELASTIC_SILENCE)", seconds(rules.silence));
                    given_up.push((*id, words));
                }
                (State::Seated, Some(_)) => {
                    let Some(since) = over else { continue };
                    let late = |limit: Duration, from: Time| !limit.is_zero() && now.saturating_sub(from) >= limit;
                    if worker.blamed.is_some_and(|b| late(rules.suspect_time, b)) {
                        let words = "made the others wait in vain and did not come back".to_owned();
                        given_up.push((*id, words));
                    } else if late(rules.return_time, since) {
                        let words =
                            format!("did not come back within {} s (CORRO_TIMEOUT)", seconds(rules.return_time));
                        given_up.push((*id, words));
                    }
                }
                // One that was told to go and does not.
                (State::Leaving, Some(_)) if now.saturating_sub(worker.since) >= LEAVE_TIME => {
                    given_up.push((*id, "was told to leave and did not".to_owned()));
                }
                _ => {}
            }
        }
        for (id, why) in given_up {
            self.give_up(id, &why, now);
        }
    }

    fn begin_to_finish(&mut self) {
        if !std::mem::replace(&mut self.finishing, true) {
            self.failed = None;
        }
    }

    /// Somebody has done the job's work: nothing new begins, and when the last has ended it is over.
    fn finish(&mut self, now: Time) {
        let number = self.epoch.as_ref().map_or(0, |e| e.number);
        let of_this = |w: &Worker| w.was.is_some_and(|past| past.epoch == number);
        let not_needed = self.workers.iter().filter(|(_, w)| !of_this(w) && w.state != State::Leaving);
        let not_needed: Vec<WorkerId> = not_needed.map(|(id, _)| *id).collect();
        for id in not_needed {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            match worker.link {
                Some(link) => {
                    (worker.state, worker.since) = (State::Leaving, now);
                    let why = "the job has been finished".to_owned();
                    self.out.push(Output::Tell(link, ToWorker::Ended { success: true, why }));
                }
                None => {
                    self.out.push(Output::Kill { worker: id, why: "it is not needed any more".into() });
                    self.drop_worker(id, None, now);
                }
            }
        }
        let working = self.workers.values().any(|w| w.was.is_some() && w.state != State::Leaving);
        if !working && (self.workers.is_empty() || !self.rules.supply) {
            let failed = self.failed.take().filter(|_| self.rules.supply);
            let (success, why) = match &failed {
                None => (true, "the job has been finished".to_owned()),
                Some((id, exit)) => (false, format!("worker {id} {} while others had finished", exit.words)),
            };
            self.end(success, why, failed);
        }
    }

    fn candidates(&self, also_seated: bool) -> Vec<Candidate<'_>> {
        let may =
            |w: &&Worker| w.link.is_some() && (w.state == State::Waiting || (also_seated && w.state == State::Seated));
        let wanted = |w: &&Worker| !self.finishing || w.was.is_some();
        let all = self.workers.iter().filter(|(_, w)| may(w) && wanted(w));
        all.map(|(id, w)| Candidate { worker: *id, host: &w.host, was: w.was, progress: w.progress, slot: w.slot })
            .collect()
    }

    fn choose(&self, also_seated: bool) -> Vec<Chosen> {
        let room = |host: &str| if self.rules.supply { self.fleet.room(host) } else { usize::MAX };
        let mut candidates = self.candidates(also_seated);
        if also_seated {
            // All members of a running epoch are equally far, whatever they said when it began, and further than any other.
            for candidate in &mut candidates {
                let seated = self.workers[&candidate.worker].state == State::Seated;
                candidate.progress = u64::from(seated && candidate.progress > 0);
            }
        }
        seats::choose(&candidates, room, self.rules.max)
    }

    fn try_to_form(&mut self, now: Time) {
        if let Some(epoch) = &self.epoch {
            if epoch.over.is_none() {
                return;
            }
            let out = |(rank, id): (&Rank, &WorkerId)| {
                let worker = self.workers.get(id)?;
                (worker.state == State::Seated).then(|| format!("rank {rank} on {}", worker.host))
            };
            let still_out: Vec<String> = epoch.members.iter().filter_map(out).collect();
            if !still_out.is_empty() {
                return self.tell_waiting(&format!("{} to come back", list(&still_out)));
            }
            if epoch.adopted && now.saturating_sub(self.last_arrival) < self.rules.gather && !self.is_full() {
                return self.tell_waiting("others that may have lost the driver as well");
            }
        }
        let chosen = self.choose(false);
        let first = self.epoch.is_none();
        let need = match (first, self.finishing) {
            (_, true) => 1,
            (true, _) if self.rules.supply => self.rules.start,
            _ => self.rules.min,
        };
        if chosen.len() < need {
            self.short_since = self.short_since.or(Some(now));
            let text = format!("{} more of the {need} processes that are needed", need - chosen.len());
            return self.tell_waiting(&text);
        }
        if !first && !chosen.iter().any(|c| self.has_newest_state(&self.workers[&c.worker])) {
            // Only members of the last epoch have the newest state. Where nobody can be killed for being silent, they may even
            // still work. [`Self::check_supply`] says for how long they are waited for.
            return self.tell_waiting("the members of the last epoch, of whom nothing is heard");
        }
        if first && !self.is_full() && now.saturating_sub(self.last_arrival) < self.rules.gather {
            return self.tell_waiting("others that are on their way");
        }
        if !first && self.rules.reset_limit.is_some_and(|limit| self.formed > limit) {
            let limit = self.rules.reset_limit.unwrap_or(0);
            let why = self.why_over();
            let failed = self.failed.take();
            return self.end(
                false,
                format!("number of resets during elastic job exceeded limit: {limit} (the last: {why})"),
                failed,
            );
        }
        self.form(&chosen, now);
    }

    /// Whether a worker was a member of the last epoch in which anything can have been done.
    fn has_newest_state(&self, worker: &Worker) -> bool {
        worker.met >= self.state_epoch
    }

    /// Whether everybody is there who could come.
    fn is_full(&self) -> bool {
        let waiting = self.workers.values().filter(|w| w.state == State::Waiting).count();
        let starting = self.workers.values().any(|w| w.state == State::Starting);
        if self.rules.supply { !starting } else { waiting >= self.rules.start }
    }

    fn form(&mut self, chosen: &[Chosen], now: Time) {
        let why = self.why_over();
        let number = self.last_number + 1;
        self.last_number = number;
        self.formed += 1;
        self.short_since = None;
        self.announced.clear();
        let mut members = BTreeMap::new();
        for (seat, one) in seats::seats(chosen, number, &why, self.change.number).into_iter().zip(chosen) {
            members.insert(seat.rank, one.worker);
            let Some(worker) = self.workers.get_mut(&one.worker) else { continue };
            (worker.state, worker.since, worker.blamed) = (State::Seated, now, None);
            (worker.was, worker.slot) = (Some(Past { epoch: number, rank: seat.rank }), Some(one.slot));
            self.out.extend(worker.link.map(|link| Output::Tell(link, ToWorker::Seat(seat))));
        }
        let named = chosen.iter().map(|c| (c.worker, c.host.clone())).collect();
        self.out.push(Output::Formed { epoch: number, members: named, why });
        let size = chosen.len();
        self.epoch = Some(Epoch { number, members, size, cards: BTreeMap::new(), over: None, adopted: false });
    }

    fn why_over(&self) -> String {
        self.epoch.as_ref().and_then(|e| e.over.as_ref()).map_or_else(String::new, |o| o.why.clone())
    }

    /// Tells those who wait what they wait for, if that has changed.
    fn tell_waiting(&mut self, what: &str) {
        for worker in self.workers.values_mut().filter(|w| w.state == State::Waiting && w.told != what) {
            worker.told = what.to_owned();
            self.out.extend(worker.link.map(|link| Output::Tell(link, ToWorker::Wait(what.to_owned()))));
        }
    }

    /// Those whose host has left the job, and who have no seat, are told to go.
    fn dismiss_those_who_must_go(&mut self, now: Time) {
        if !self.rules.supply || self.epoch.as_ref().is_some_and(|e| e.over.is_some()) {
            return;
        }
        let gone = |w: &Worker| w.state == State::Waiting && self.fleet.room(&w.host) == 0;
        let gone: Vec<WorkerId> = self.workers.iter().filter(|(_, w)| gone(w)).map(|(id, _)| *id).collect();
        for id in gone {
            self.dismiss(id, "its host has left the job", now);
        }
        // Members of earlier epochs for whom there is no slot any more; the youngest go first.
        let mut living: BTreeMap<String, usize> = BTreeMap::new();
        for worker in self.workers.values().filter(|w| w.state != State::Leaving) {
            *living.entry(worker.host.clone()).or_default() += 1;
        }
        let mut surplus = Vec::new();
        for (id, w) in self.workers.iter().rev().filter(|(_, w)| w.state == State::Waiting && w.was.is_some()) {
            let here = living.entry(w.host.clone()).or_default();
            if *here > self.fleet.room(&w.host) + self.rules.spares {
                *here -= 1;
                surplus.push(*id);
            }
        }
        for id in surplus {
            self.dismiss(id, "its host has fewer slots in the job now", now);
        }
    }

    /// Tells the members of a running epoch that another one would have other members.
    fn announce(&mut self, now: Time) {
        let Some(epoch) = self.epoch.as_ref().filter(|e| e.over.is_none()) else { return };
        let members: BTreeSet<WorkerId> = epoch.members.values().copied().collect();
        let wanted: BTreeSet<WorkerId> = self.choose(true).iter().map(|c| c.worker).collect();
        if wanted == members || wanted == self.announced || wanted.len() < self.rules.min || self.finishing {
            return;
        }
        let added = wanted.difference(&members).next().is_some();
        let removed = members.difference(&wanted).next().is_some();
        let on_their_way = self.workers.values().any(|w| w.state == State::Starting);
        let first_came =
            self.workers.values().filter(|w| w.state == State::Waiting).map(|w| w.since).min().unwrap_or(now);
        if !removed && on_their_way && now.saturating_sub(first_came) < self.rules.gather {
            return;
        }
        self.announced = wanted;
        self.change = Change { number: self.change.number + 1, added, removed };
        let change = ToWorker::Changed(self.change);
        self.tell_seated(&change);
    }

    fn start_workers(&mut self, now: Time) {
        if !self.rules.supply || self.finishing {
            return;
        }
        let slots = self.fleet.usable_slots();
        if self.epoch.is_none() && self.workers.is_empty() && slots < self.rules.start {
            return;
        }
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for worker in self.workers.values().filter(|w| w.state != State::Leaving) {
            *live.entry(&worker.host).or_default() += 1;
        }
        let living: usize = live.values().sum();
        let target = slots.max(living).min(self.rules.max);
        for host in self.fleet.starts(&live, target, self.rules.spares, now) {
            let id = self.next_worker;
            self.next_worker += 1;
            self.add_worker(id, host.clone(), None, now);
            self.out.push(Output::Start { worker: id, host });
        }
    }

    /// Whether the job can still go on.
    fn check_supply(&mut self, now: Time) {
        if self.finishing {
            return;
        }
        let with_state = self.workers.values().any(|w| self.has_newest_state(w) && w.state != State::Leaving);
        let ended_at = self.epoch.as_ref().and_then(|e| e.over.as_ref()).map_or(now, |over| over.since);
        let waited_enough = self.rules.supply || now.saturating_sub(ended_at) >= self.rules.patience;
        if self.epoch.is_some() && !with_state && waited_enough {
            let why = format!("every process that held the state of the training is gone ({})", self.why_over());
            let failed = self.failed.take();
            return self.end(false, why, failed);
        }
        let Some(since) = self.short_since else { return };
        let need = if self.epoch.is_none() { self.rules.start } else { self.rules.min };
        let living = self.workers.values().filter(|w| w.state != State::Leaving).count();
        let could = living + self.fleet.usable_slots().saturating_sub(living);
        let hopeless = self.hosts_known
            && self.rules.supply
            && !self.rules.hosts_change
            && !self.fleet.some_cool_down()
            && could < need;
        let too_late =
            now.saturating_sub(since) >= self.rules.patience && self.epoch.as_ref().is_none_or(|e| e.over.is_some());
        if hopeless || too_late {
            let when = if hopeless {
                "no more can be started".to_owned()
            } else {
                format!(
                    "Timed out waiting for more. Timeout after {} seconds (--elastic-timeout)",
                    self.rules.patience.as_secs_f64()
                )
            };
            let last =
                self.failed.as_ref().map_or_else(String::new, |(id, exit)| format!("; worker {id} {}", exit.words));
            let minimum = if self.epoch.is_none() { "to start (-np)" } else { "to go on (--min-np)" };
            let failed = self.failed.take();
            self.end(
                false,
                format!("{living} processes are left of the {need} it takes {minimum}: {when}{last}"),
                failed,
            );
        }
    }

    fn end(&mut self, success: bool, why: String, failed: Option<(WorkerId, Exit)>) {
        self.ended = true;
        let message = ToWorker::Ended { success, why: why.clone() };
        self.out.extend(self.links.keys().map(|link| Output::Tell(*link, message.clone())));
        self.out.push(Output::Finished(Verdict { success, why, failed }));
    }

    fn after_the_end(&self, input: &Input) -> Vec<Output> {
        match input {
            Input::Said(link, ToDriver::Hello(_) | ToDriver::Present { .. }) => {
                let why = "the job is over".to_owned();
                vec![Output::Tell(*link, ToWorker::Ended { success: self.finishing, why })]
            }
            _ => Vec::new(),
        }
    }
}

/// `a, b and 3 more`.
fn list(names: &[String]) -> String {
    const NAMED: usize = 3;
    let more = names.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", "))
}
