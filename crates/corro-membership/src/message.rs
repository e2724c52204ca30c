//! What the driver of an elastic job and its workers say to each other, framed by [`corro_core::codec`].

use corro_core::Rank;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// A worker process. Never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u64);

impl WorkerId {
    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What errors call the process that workers connect to.
pub const DRIVER: &str = "the driver of this elastic job";
/// The longest message to the driver: the description of one rank.
pub const MAX_TO_DRIVER: usize = 1 << 20;
/// The longest message to a worker: the descriptions of all ranks.
pub const MAX_TO_WORKER: usize = 64 << 20;

/// To the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDriver {
    /// Wants a seat in the next epoch. Sent again when the connection had to be made again.
    Hello(Hello),
    /// Has a seat and works; sent when the connection had to be made again.
    Present {
        /// Who.
        worker: WorkerId,
        /// Where.
        host: String,
        /// Its seat.
        seat: PastSeat,
    },
    /// How this rank can be reached in its epoch.
    Card {
        /// Which epoch.
        epoch: u64,
        /// What the others need; the driver does not look into it.
        card: ByteBuf,
    },
    /// It lives.
    Beat,
    /// It will end by itself, with success.
    Leave {
        /// Because it was told that the job ends at the next commit, and not because its work is done.
        early: bool,
    },
}

/// What a worker says when it wants a seat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who.
    pub worker: WorkerId,
    /// Where it runs.
    pub host: String,
    /// Its release of corro.
    pub release: String,
    /// Its last seat.
    pub was: Option<PastSeat>,
    /// How far its state is: commits since the job began.
    pub progress: u64,
    /// Why its last epoch ended for it.
    pub cause: Option<Cause>,
}

/// A seat that a worker has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastSeat {
    /// In this epoch.
    pub epoch: u64,
    /// It was this rank.
    pub rank: Rank,
}

/// Why an epoch ended for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Who is to blame, if that is known.
    pub culprit: Option<Rank>,
    /// In words.
    pub text: String,
}

/// To a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// There is no seat yet, and this is what is waited for.
    Wait(String),
    /// A new epoch, and the worker's place in it.
    Seat(Seat),
    /// How all ranks of this epoch can be reached, in their order.
    Cards {
        /// Which epoch.
        epoch: u64,
        /// One of each rank.
        cards: Vec<ByteBuf>,
    },
    /// This epoch has ended: its members are to come back.
    Over {
        /// Which.
        epoch: u64,
        /// Who is to blame, if that is known.
        culprit: Option<Rank>,
        /// Why, in words.
        why: String,
    },
    /// A new epoch would have other members. The worker comes back when it suits it.
    Changed(Change),
    /// The job goes on without this worker.
    Removed(String),
    /// The job is over.
    Ended {
        /// Whether somebody has finished it.
        success: bool,
        /// Why, in words.
        why: String,
    },
}

/// A change that calls for a new epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Grows with each.
    pub number: u64,
    /// Workers wait to come in.
    pub added: bool,
    /// Workers are to leave.
    pub removed: bool,
    /// All are: the job ends at the next commit, and goes on another time.
    pub ending: bool,
}

/// A worker's place in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Which epoch, from 1.
    pub epoch: u64,
    /// Its rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: usize,
    /// Its slot on its host, which it keeps as long as it lives; a new process gets the lowest that is free. While one is free,
    /// the ranks of a host are not numbered without a gap.
    pub local_rank: usize,
    /// How many ranks its host has.
    pub local_size: usize,
    /// Its host's place among those that have a rank with this local rank.
    pub cross_rank: usize,
    /// How many hosts have a rank with this local rank.
    pub cross_size: usize,
    /// The host of each rank.
    pub hosts: Vec<String>,
    /// Whether all hosts have equally many ranks.
    pub homogeneous: bool,
    /// How many members have never had a seat before.
    pub newcomers: usize,
    /// Why the last epoch ended; empty for the first.
    pub why: String,
    /// The number of the last [`Change`] that is taken into account here.
    pub changes: u64,
}
