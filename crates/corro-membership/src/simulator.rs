//! Elastic jobs in a world that goes wrong, by seed: the machine and its members are the real ones; processes, hosts, the
//! network and the training are simulated, and so is time.
//!
//! A run picks hosts, sizes and a row of faults (processes killed one by one or together, stopped and woken, links broken,
//! hosts cut off or gone, the script's list changing, the driver lost where a scheduler would restart it), trains to a given
//! number of steps, and checks after every event:
//!
//! 1. no two processes have the same rank in the same epoch, and nobody's epoch goes back;
//! 2. one epoch at a time: once a step was made in an epoch, none is made in an older one;
//! 3. an epoch has no fewer members than the least and no more than the most, and no host more than its slots;
//! 4. no commit is lost: a new epoch begins with the furthest state that any process has that could be heard;
//! 5. progress: once nothing goes wrong any more, the job is finished in bounded time, or has ended for a reason that holds;
//! 6. a process that was given up gets no seat any more.

mod events;
mod faults;
mod processes;
mod setting;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use corro_core::Rank;
use corro_core::random::Random;

use crate::fleet::HostSlots;
use crate::machine::{LinkId, Machine, Rules, Verdict};
use crate::member::Member;
use crate::message::{Cause, ToDriver, ToWorker, WorkerId};

use setting::Setting;

const MS: u64 = 1000;
const S: u64 = 1000 * MS;
/// The engine's timeout: a rank that makes others wait for so long is blamed.
const TIMEOUT: u64 = 8 * S;
/// Faults happen until this.
const TROUBLE: u64 = 40 * S;
/// By then every job has ended, or hangs.
const LIMIT: u64 = 3000 * S;

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the work was finished.
    pub finished: bool,
    /// How many epochs there were.
    pub epochs: u64,
    /// How many processes were lost.
    pub losses: u64,
    /// Why it ended.
    pub why: String,
    /// What happened, if that was asked for.
    pub log: Vec<String>,
}

/// Lives through the job of `seed`. The error says which promise was broken.
pub fn run(seed: u64, log: bool) -> Result<Report, String> {
    let mut world = World::new(seed, log);
    let outcome = world.run();
    let log = std::mem::take(&mut world.log);
    match outcome {
        Ok(()) => Ok(Report { log, ..world.report }),
        Err(broken) => {
            let tail = log.len().saturating_sub(60);
            let history = log[tail..].join("\n");
            Err(format!("seed {seed}: {broken}{}{history}", if history.is_empty() { "" } else { "\n" }))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    /// A process has come up and joins.
    Up(WorkerId),
    Beat(WorkerId),
    /// Time to see whether messages have come, on this link.
    ToDriver(LinkId),
    ToWorker(LinkId),
    /// The driver's end of a link breaks.
    DriverLoses(LinkId),
    /// A process's end of its link breaks, and it makes another.
    WorkerLoses(LinkId),
    Connect(WorkerId),
    /// A process has done its part of a step, and waits for the others.
    Arrive(WorkerId, u64),
    /// A step is made.
    Made(WorkerId, u64, u64),
    /// A process notices that its epoch is broken.
    Fail(WorkerId, u64, Option<Rank>),
    /// It has waited for the timeout in this step of this epoch.
    Stuck(WorkerId, u64, u64),
    /// It has waited for the others to tell how to reach them.
    MeetsNobody(WorkerId, u64),
    Ask(WorkerId),
    Exited(WorkerId, i32),
    HostLost(String),
    Wake(WorkerId),
    Heal(String),
    Restart(String, bool),
    Fault,
    Hosts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Booting,
    /// Has given up its epoch, and will ask for a seat.
    Cleaning,
    Asking,
    /// Has told how it can be reached.
    Meeting,
    /// Works at this step.
    Working,
    /// Waits for the others.
    AtStep,
    Finished,
    Dead,
}

struct Process {
    member: Member,
    host: String,
    phase: Phase,
    progress: u64,
    link: Option<LinkId>,
    paused: bool,
    /// What was to happen while it was stopped.
    missed: Vec<Event>,
    epoch: u64,
    cause: Option<Cause>,
    given_up: bool,
    /// Holds the driver, where there is no launcher.
    holds_driver: bool,
}

struct Link {
    worker: WorkerId,
    up: Vec<ToDriver>,
    down: Vec<ToWorker>,
    open: bool,
}

/// The members of one epoch as they train.
#[derive(Default)]
struct EpochRun {
    size: usize,
    ranks: BTreeMap<Rank, WorkerId>,
    arrived: BTreeSet<WorkerId>,
    step: Option<u64>,
    pending: bool,
    broken: bool,
}

struct World {
    random: Random,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    rules: Rules,
    machine: Option<Machine>,
    machine_begin: u64,
    hosts: Vec<HostSlots>,
    down: BTreeSet<String>,
    cut_off: BTreeSet<String>,
    processes: BTreeMap<WorkerId, Process>,
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    next_worker: WorkerId,
    epoch_runs: BTreeMap<u64, EpochRun>,
    /// The newest epoch in which a step was made.
    newest: u64,
    steps: u64,
    faults: u64,
    driver_down: bool,
    verdict: Option<Verdict>,
    report: Report,
    log: Vec<String>,
    logs: bool,
}

impl World {
    fn new(seed: u64, logs: bool) -> Self {
        let mut random = Random::new(seed);
        let Setting { hosts, rules, faults, steps } = Setting::draw(&mut random, seed);
        let mut world = Self {
            random,
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            machine: Some(Machine::new(rules.clone(), Duration::ZERO)),
            machine_begin: 0,
            rules,
            hosts,
            down: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            processes: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 0,
            next_worker: WorkerId(1 << 32),
            epoch_runs: BTreeMap::new(),
            newest: 0,
            steps,
            faults,
            driver_down: false,
            verdict: None,
            report: Report::default(),
            log: Vec::new(),
            logs,
        };
        world.plan_the_beginning();
        world
    }

    /// Puts into the queue what happens by itself: all else follows from it.
    fn plan_the_beginning(&mut self) {
        for _ in 0..self.faults {
            let at = self.random.between(S / 10, TROUBLE);
            self.at(at, Event::Fault);
        }
        self.at(0, Event::Tick);
        if self.rules.supply {
            self.at(1, Event::Hosts);
            if self.rules.hosts_change {
                for _ in 0..self.random.below_u64(6) {
                    let at = self.random.between(S, TROUBLE);
                    self.at(at, Event::Hosts);
                }
            }
        } else {
            for at in 0..self.rules.start {
                let host = self.hosts[at % self.hosts.len()].name.clone();
                self.spawn(self.next_worker, host, at == 0);
            }
        }
        let setting = format!("{:?} on {:?}, {} faults, {} steps", self.rules, self.hosts, self.faults, self.steps);
        self.note(|| setting);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.logs {
            self.log.push(format!("{:>9.3} s  {}", self.now as f64 / S as f64, text()));
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((time, self.order, event)));
    }

    fn soon(&mut self, low: u64, high: u64, event: Event) {
        let delay = self.random.between(low, high);
        self.at(self.now + delay, event);
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            self.now = time;
            if self.now > LIMIT {
                return Err(format!("the job hangs: {}", self.situation()));
            }
            self.happen(event)?;
            if self.is_over() {
                return self.check_the_end();
            }
        }
        Err("nothing is left to happen".into())
    }

    fn is_over(&self) -> bool {
        let working = self.processes.values().any(|p| !matches!(p.phase, Phase::Dead | Phase::Finished));
        if self.rules.supply { self.verdict.is_some() } else { !working && !self.pending_restart() }
    }

    fn pending_restart(&self) -> bool {
        self.queue.iter().any(|Reverse((_, _, event))| matches!(event, Event::Restart(..)))
    }

    fn check_the_end(&mut self) -> Result<(), String> {
        let finished = self.processes.values().filter(|p| p.phase == Phase::Finished).count();
        self.report.finished = finished > 0;
        if let Some(verdict) = self.verdict.take() {
            if verdict.success && finished == 0 {
                return Err(format!("success without anybody who has finished: {}", verdict.why));
            }
            self.report.why = verdict.why;
        }
        if finished == 0 && self.faults == 0 && !self.rules.hosts_change {
            return Err(format!("nothing went wrong, and yet the job failed: {}", self.report.why));
        }
        let state_is_lost = self.report.losses > 0 && self.report.why.starts_with("every process that held the state");
        if !self.rules.supply && finished == 0 && !state_is_lost {
            return Err("a scheduler restarts everybody, and yet nobody has finished".into());
        }
        Ok(())
    }

    fn situation(&self) -> String {
        let one = |(id, p): (&WorkerId, &Process)| {
            format!(
                "{id}@{} {:?} epoch {} at {}{}",
                p.host,
                p.phase,
                p.epoch,
                p.progress,
                if p.paused { " stopped" } else { "" }
            )
        };
        let all: Vec<String> = self.processes.iter().filter(|(_, p)| p.phase != Phase::Dead).map(one).collect();
        format!("{:?}; {}", self.machine.as_ref().map(Machine::members), all.join(", "))
    }
}
