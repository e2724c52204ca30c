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

mod epochs;
mod losses;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corro_core::Rank;
use serde_bytes::ByteBuf;

use crate::fleet::{Fleet, HostSlots};
use crate::message::{Change, PastSeat, ToDriver, ToWorker, WorkerId};
use crate::time::Time;

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
    /// The same for one whom the others blame.
    pub suspect_time: Duration,
    /// How long a lost connection may take to be made again.
    pub reconnect_time: Duration,
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

impl Rules {
    /// How long members of an ended epoch may take to come back, from the timeout of the user's choice. They are told at once
    /// that it is over; who computes hears of it when he wants to talk to the others again.
    pub fn return_time(timeout: Option<Duration>) -> Duration {
        match timeout {
            Some(Duration::ZERO) => Duration::ZERO,
            // Those who wait for one that hangs have given up when it is over, and need a moment to come back.
            Some(timeout) => timeout + Duration::from_secs(3),
            None => Self::default().return_time,
        }
    }
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
            // Those who blame it have waited for CORRO_TIMEOUT already.
            suspect_time: Duration::from_secs(3),
            reconnect_time: Duration::from_secs(5),
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
    /// Whether somebody, or the system, killed it: that is what preemption, an operator or lack of memory look like. What a
    /// program does to itself (SIGSEGV, SIGABRT) is not this.
    pub killed: bool,
    /// Whether it failed only because another did.
    pub victim: bool,
    /// In words that read after "rank 2 on node7 ": "was killed by signal 9".
    pub words: String,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Input {
    /// These hosts are there now.
    Hosts(Vec<HostSlots>),
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
pub enum Decision {
    /// Start a worker.
    Start {
        /// Its number.
        worker: WorkerId,
        /// Where.
        host: String,
    },
    /// End a worker's process, whatever it does.
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
    /// Its workers were told to end at a commit, and did: there is work left.
    pub early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
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
    state: WorkerState,
    link: Option<LinkId>,
    /// When it was last heard, or when it last changed its state.
    heard: Time,
    since: Time,
    was: Option<PastSeat>,
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
    /// The user knows that it is a spare.
    spare: bool,
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

/// The end of a job at its next commit, before its work is done.
#[derive(Debug)]
struct WindDown {
    why: String,
    /// Somebody has ended for that reason.
    early: bool,
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
    /// The job is to end at its next commit.
    ending: Option<WindDown>,
    failed: Option<(WorkerId, Exit)>,
    ended: bool,
    out: Vec<Decision>,
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
            next_worker: WorkerId(0),
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
            ending: None,
            failed: None,
            ended: false,
            out: Vec::new(),
        }
    }

    /// Takes note of what happened at `now`, and says what is to be done.
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Decision> {
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

    /// Ends the job, for a reason of the driver's own.
    pub fn stop(&mut self, why: &str) -> Vec<Decision> {
        if !self.ended {
            self.end(false, why.to_owned());
        }
        std::mem::take(&mut self.out)
    }

    /// Lets the job end in good order, because it can't go on here for long: at the next commit its workers save what they have,
    /// and end. Nobody new is let in.
    pub fn wind_down(&mut self, why: &str, now: Time) -> Vec<Decision> {
        if self.ended || self.finishing || self.ending.is_some() {
            return Vec::new();
        }
        // Where nothing was begun, there is nothing to wait for.
        self.ending = Some(WindDown { why: why.to_owned(), early: self.epoch.is_none() });
        self.out.push(Decision::Say(format!("the job ends at its next commit, because {why}")));
        if self.epoch.is_none() {
            self.end(true, why.to_owned());
        } else {
            self.tell_of_the_end();
            self.settle(now);
        }
        std::mem::take(&mut self.out)
    }

    /// Tells the members of the epoch that the job is to end at their next commit.
    fn tell_of_the_end(&mut self) {
        self.change = Change { number: self.change.number + 1, added: false, removed: false, ending: true };
        self.tell_seated(&ToWorker::Changed(self.change));
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

    fn tell_seated(&mut self, message: &ToWorker) {
        let seated = self.workers.values().filter(|w| w.state == WorkerState::Seated).filter_map(|w| w.link);
        self.out.extend(seated.map(|link| Decision::Tell(link, message.clone())));
    }

    fn dismiss(&mut self, id: WorkerId, why: &str, now: Time) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state != WorkerState::Leaving {
            (worker.state, worker.since) = (WorkerState::Leaving, now);
        }
        self.out.extend(worker.link.map(|link| Decision::Tell(link, ToWorker::Removed(why.to_owned()))));
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
            self.tell_of_spares();
            self.start_workers(now);
            self.check_supply(now);
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
        let not_needed = self.workers.iter().filter(|(_, w)| !of_this(w) && w.state != WorkerState::Leaving);
        let not_needed: Vec<WorkerId> = not_needed.map(|(id, _)| *id).collect();
        for id in not_needed {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            match worker.link {
                Some(link) => {
                    (worker.state, worker.since) = (WorkerState::Leaving, now);
                    let why = "the job has been finished".to_owned();
                    self.out.push(Decision::Tell(link, ToWorker::Ended { success: true, why }));
                }
                None => {
                    self.out.push(Decision::Kill { worker: id, why: "it is not needed any more".into() });
                    self.drop_worker(id, None, now);
                }
            }
        }
        let working = self.workers.values().any(|w| w.was.is_some() && w.state != WorkerState::Leaving);
        if !working && (self.workers.is_empty() || !self.rules.supply) {
            let (success, why) = match self.failed.take().filter(|_| self.rules.supply) {
                None => (true, self.why_finished()),
                Some((id, exit)) => (false, format!("worker {id} {} while others had finished", exit.words)),
            };
            self.end(success, why);
        }
    }

    fn why_finished(&self) -> String {
        match &self.ending {
            Some(WindDown { why, early: true }) => format!("the job has ended at a commit, because {why}"),
            _ => "the job has been finished".to_owned(),
        }
    }

    fn end(&mut self, success: bool, why: String) {
        self.ended = true;
        let message = ToWorker::Ended { success, why: why.clone() };
        self.out.extend(self.links.keys().map(|link| Decision::Tell(*link, message.clone())));
        let early = success && self.ending.as_ref().is_some_and(|ending| ending.early);
        self.out.push(Decision::Finished(Verdict { success, why, early }));
    }

    fn after_the_end(&self, input: &Input) -> Vec<Decision> {
        match input {
            Input::Said(link, ToDriver::Hello(_) | ToDriver::Present { .. }) => {
                let why = "the job is over".to_owned();
                vec![Decision::Tell(*link, ToWorker::Ended { success: self.finishing, why })]
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
