//! What the collectives of a process set run on: connections among its members, which are replaced as a whole.

use std::sync::Arc;

use corro_agreement::message::Knobs;
use corro_collectives::{Group, Tuning};
use corro_core::{GroupId, Rank, Result};
use corro_planes::Planes;
use corro_transport::{Fabric, Withdrawal};

/// See the module.
pub(super) struct Lane {
    pub(super) group: Group,
    /// Who runs batches on it. They stay when the rest is replaced.
    pub(super) planes: Planes,
    /// How many came before it.
    pub(super) generation: u64,
    /// What those that come after it go on with.
    pub(super) tuning: Tuning,
}

impl Lane {
    /// Opens the connections of a lane. All members of the set must do so.
    pub(super) fn connect(
        fabric: &Arc<Fabric>,
        serial: u64,
        members: &[Rank],
        (generation, tuning): (u64, Tuning),
        withdrawal: Withdrawal,
    ) -> Result<Group> {
        let id = group_id(serial, 1 + generation);
        let mut group = Group::open_withdrawable(fabric, id, members, withdrawal)?;
        group.tune(tuning);
        Ok(group)
    }
}

/// A set's connections: 0 for the agreement, from 1 on for its lanes.
pub(super) fn group_id(serial: u64, what: u64) -> GroupId {
    GroupId((serial + 1) << 24 | what)
}

/// How collectives run with these knobs.
pub(super) fn tuning(Knobs { segment, crossover, reductions }: Knobs) -> Tuning {
    Tuning { segment, crossover, reductions }
}
