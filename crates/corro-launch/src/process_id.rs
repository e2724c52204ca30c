//! Who is who for the launcher and its agents.

use corro_core::Rank;
use corro_membership::WorkerId;
use serde::{Deserialize, Serialize};

/// The number by which launcher and agents speak of a process: its rank in a job of fixed size. In an elastic one, where
/// ranks change hands, it is the worker's, which our own machine numbers from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(usize);

impl ProcessId {
    /// A process of a job of fixed size.
    pub const fn of_rank(rank: Rank) -> Self {
        Self(rank.index())
    }

    /// A process of an elastic job.
    pub const fn of_worker(worker: WorkerId) -> Self {
        Self(worker.0 as usize)
    }

    /// Which rank it is, in a job of fixed size.
    pub const fn rank(self) -> Rank {
        Rank::new(self.0)
    }

    /// Which worker it is, in an elastic job.
    pub const fn worker(self) -> WorkerId {
        WorkerId(self.0 as u64)
    }

    /// Its number.
    pub const fn number(self) -> usize {
        self.0
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
