//! What groups of ranks can do together, and how they may lie.

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Collective {
    Allreduce,
    Allgather,
    Broadcast,
    Alltoall,
    Reducescatter,
    Barrier,
}

impl Collective {
    /// Every collective, for tables and tests.
    pub const ALL: [Self; 6] =
        [Self::Allreduce, Self::Allgather, Self::Broadcast, Self::Alltoall, Self::Reducescatter, Self::Barrier];
}

/// How the ranks of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// All on one host.
    OneHost,
    /// Each on a host of its own.
    OneEach,
    /// Several hosts, some with several ranks.
    SharedHosts,
}
