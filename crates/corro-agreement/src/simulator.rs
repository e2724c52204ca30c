//! Thousands of control planes in one process: nodes, the messages between them and a clock, all from one seed.
//!
//! Owns no decision: every rank runs the very [`crate::node::Node`] that runs in production. What is modelled is the world
//! around it. *Links* deliver in order, after random delays, so that messages on different links overtake each other.
//! *Programs* submit, wait, compute, join, shut down, freeze and die. A *lane* per rank and process set runs collectives
//! one after another; one completes only when all members have begun it. [`World::run`] checks after every event what must
//! always hold, and at the end what must have been reached; what does not hold comes back as a sentence, with the events
//! that led to it if they were recorded.
//!
//! The same scenario and the same seed give the same events, always.

pub mod chaos;
mod ending;
mod lane;
mod programs;
mod running;
mod world;

use std::time::Duration;

use corro_core::{DType, Rank, ReduceOp, Shape};

use crate::coordinator::{StallReport, Time};
use crate::node::Rules;
use crate::request::{Device, Kind, Request};

pub use world::World;

/// What a rank's program does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Submits a tensor. `tag` tells its uses apart: ranks that run the same use give the same tag.
    Submit {
        /// To which set, by its place in the scenario.
        set: usize,
        /// What.
        request: Request,
        /// Which use of the name.
        tag: u64,
        /// `None`: it is to succeed. Else it is to fail on all ranks, with a text that has this fragment.
        fails: Option<&'static str>,
    },
    /// Waits until these are done.
    Wait {
        /// Of which set.
        set: usize,
        /// Which.
        names: Vec<String>,
    },
    /// Is busy.
    Compute(Duration),
    /// Has run out of data, and waits until all have.
    Join {
        /// In which set.
        set: usize,
    },
    /// Ends the job for all members of a set.
    Shutdown {
        /// Which.
        set: usize,
    },
    /// Something goes wrong that ends the job for all members of a set.
    Fail {
        /// Which.
        set: usize,
        /// What.
        text: String,
    },
    /// Changes how much may run as one, for all members of a set. Only its first member can.
    Tune {
        /// Which.
        set: usize,
        /// Bytes.
        threshold: usize,
    },
    /// Takes note of how many messages all sets have sent.
    Mark,
}

/// All there is, apart from chance.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Ranks in all.
    pub ranks: usize,
    /// Ranks of one host.
    pub per_host: usize,
    /// Of the tree.
    pub fan_out: usize,
    /// The process sets: their members, ascending.
    pub sets: Vec<Vec<Rank>>,
    /// How nodes behave.
    pub rules: Rules,
    /// The shortest time and what chance adds, within a host.
    pub inside: (Duration, Duration),
    /// The same between hosts.
    pub between: (Duration, Duration),
    /// How long a node that was told something may take before it speaks.
    pub dither: Duration,
    /// Whether a program submits all it has before its node speaks, as a busy engine does.
    pub gather: bool,
    /// How long a collective takes at most, once all have begun it.
    pub lane: Duration,
    /// What each rank does.
    pub programs: Vec<Vec<Step>>,
    /// Who dies, and when.
    pub deaths: Vec<(Rank, Time)>,
    /// Who stands still, when and for how long.
    pub freezes: Vec<(Rank, Time, Duration)>,
    /// Whether ranks come to wait for each other for ever.
    pub deadlock: bool,
    /// Who stands still for good, and when: no connection breaks, nothing is said any more.
    pub stops: Vec<(Rank, Time)>,
}

impl Scenario {
    /// Of `ranks` on hosts of `per_host`, all in one set, which do nothing yet.
    pub fn new(ranks: usize, per_host: usize, fan_out: usize) -> Self {
        Self {
            ranks,
            per_host,
            fan_out,
            sets: vec![Rank::all(ranks).collect()],
            rules: Rules::default(),
            inside: (Duration::from_micros(10), Duration::ZERO),
            between: (Duration::from_micros(50), Duration::ZERO),
            dither: Duration::ZERO,
            gather: false,
            lane: Duration::ZERO,
            programs: vec![Vec::new(); ranks],
            deaths: Vec::new(),
            freezes: Vec::new(),
            stops: Vec::new(),
            deadlock: false,
        }
    }
}

/// How it came out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What became of each tensor, by set, name and tag: `None` for success, else the error's text.
    pub verdicts: std::collections::BTreeMap<(usize, String, u64), Option<String>>,
    /// Messages sent, by set and member.
    pub sent: Vec<Vec<u64>>,
    /// Messages received, by set and member.
    pub received: Vec<Vec<u64>>,
    /// Messages in all at each [`Step::Mark`], by rank.
    pub marks: Vec<Vec<u64>>,
    /// Why each member ended, if it did, and when.
    pub over: Vec<Vec<Option<(corro_core::Error, Time)>>>,
    /// Reports of stalls, by set and member, and when.
    pub stalls: Vec<Vec<Vec<(StallReport, Time)>>>,
    /// Plans begun, and withdrawals, over all members.
    pub plans: u64,
    /// Plans that went on in fewer entries, over all members.
    pub refinements: u64,
    /// Members that withdrew from an entry.
    pub withdrawals: u64,
    /// Events in all.
    pub events: u64,
    /// When it was over.
    pub end: Time,
}

/// What did not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// In a sentence.
    pub what: String,
    /// The last events, if they were recorded.
    pub trace: Vec<String>,
}

/// An allreduce of `elements` floats.
pub fn allreduce(name: &str, elements: usize) -> Request {
    let one = 1f64.to_bits();
    Request {
        name: name.into(),
        kind: Kind::Allreduce { op: ReduceOp::Sum, prescale: one, postscale: one, compression: None },
        dtype: DType::F32,
        shape: Shape(vec![elements]),
        device: Device::Cpu,
        group: None,
        room: None,
    }
}
