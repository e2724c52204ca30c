//! Which algorithm runs: a table over collective, size, ranks and topology. The first row that fits wins.
//!
//! That shared memory wins on one host was measured, see `docs/performance.md`. The crossovers between hosts follow from
//! the costs in the algorithms' heads, and were tried between two hosts only. Nothing here changes results beyond rounding: every algorithm
//! gives all ranks the same bits.

use corro_core::{Error, Result, config};

use crate::algorithms::Algorithm;
use crate::collective::{Collective, Topology};
use crate::tuning::Tuning;

impl Algorithm {
    /// What `CORRO_ALGORITHM` asks for.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(name) = config::ALGORITHM.value() else { return Ok(None) };
        let found = Self::ALL.into_iter().find(|a| a.name() == name.trim());
        let names = || Self::ALL.map(Self::name).join(", ");
        found
            .map(Some)
            .ok_or_else(|| Error::Usage(format!("CORRO_ALGORITHM is {name:?}, which is not one of {}", names())))
    }

    /// Whether it can run `collective` on `topology` at all.
    pub fn fits(self, collective: Collective, topology: Topology) -> bool {
        match self {
            Self::Direct => topology == Topology::OneHost,
            Self::Hierarchical => {
                matches!(collective, Collective::Allreduce | Collective::Broadcast) && topology == Topology::SharedHosts
            }
            // Schedules run over any links.
            _ => self.planner().is_some_and(|planner| planner.plans(collective)),
        }
    }
}

/// One row: fits groups of at least `ranks` ranks and data of at most `bytes`.
struct Row {
    collective: Collective,
    topology: Option<Topology>,
    ranks: usize,
    bytes: usize,
    algorithm: Algorithm,
}

const ANY: usize = usize::MAX;

#[rustfmt::skip]
const TABLE: &[Row] = {
    use Algorithm as A;
    use Collective as C;
    use Topology as T;
    &[
        Row { collective: C::Allreduce,     topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Allreduce,     topology: Some(T::SharedHosts), ranks: 2, bytes: ANY,       algorithm: A::Hierarchical },
        // Two ranks: the ring is one exchange of halves each way, which is also what halving does.
        Row { collective: C::Allreduce,     topology: None,                 ranks: 2, bytes: 512 << 10, algorithm: A::HalvingDoubling },
        Row { collective: C::Allreduce,     topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Ring },

        Row { collective: C::Broadcast,     topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Broadcast,     topology: Some(T::SharedHosts), ranks: 2, bytes: ANY,       algorithm: A::Hierarchical },
        Row { collective: C::Broadcast,     topology: None,                 ranks: 3, bytes: 512 << 10, algorithm: A::Tree },
        Row { collective: C::Broadcast,     topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Ring },

        Row { collective: C::Allgather,     topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Allgather,     topology: None,                 ranks: 3, bytes: 512 << 10, algorithm: A::HalvingDoubling },
        Row { collective: C::Allgather,     topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Ring },

        Row { collective: C::Reducescatter, topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Reducescatter, topology: None,                 ranks: 3, bytes: 512 << 10, algorithm: A::HalvingDoubling },
        Row { collective: C::Reducescatter, topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Ring },

        Row { collective: C::Alltoall,      topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Alltoall,      topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Pairwise },

        Row { collective: C::Barrier,       topology: Some(T::OneHost),     ranks: 2, bytes: ANY,       algorithm: A::Direct },
        Row { collective: C::Barrier,       topology: None,                 ranks: 2, bytes: ANY,       algorithm: A::Pairwise },
    ]
};

/// What the user wants otherwise than the table has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    /// Wins wherever it can run.
    pub(crate) forced: Option<Algorithm>,
    /// Allreduces don't reduce inside each host first.
    pub(crate) flat_allreduce: bool,
}

impl Wishes {
    /// What the environment says.
    pub(crate) fn from_env() -> Result<Self> {
        Ok(Self { forced: Algorithm::from_env()?, flat_allreduce: !config::HIERARCHICAL_ALLREDUCE.flag(true) })
    }

    fn exclude(self, collective: Collective, algorithm: Algorithm) -> bool {
        self.flat_allreduce && collective == Collective::Allreduce && algorithm == Algorithm::Hierarchical
    }
}

/// The algorithm for `bytes` bytes over `ranks` (at least two) ranks; `wishes` win where they can be met, and `tuning`
/// moves the sizes of the table.
pub(crate) fn choose(
    collective: Collective,
    topology: Topology,
    ranks: usize,
    bytes: usize,
    wishes: Wishes,
    tuning: Tuning,
) -> Result<Algorithm> {
    if let Some(forced) = wishes.forced.filter(|a| a.fits(collective, topology)) {
        return Ok(forced);
    }
    TABLE
        .iter()
        .find(|row| {
            row.collective == collective
                && row.topology.is_none_or(|t| t == topology)
                && ranks >= row.ranks
                && bytes <= tuning.limit(collective, row.bytes)
                && !wishes.exclude(collective, row.algorithm)
        })
        .map(|row| row.algorithm)
        .ok_or_else(|| Error::Bug(format!("no algorithm for {collective:?} of {bytes} bytes on {ranks} ranks")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGIES: [Topology; 3] = [Topology::OneHost, Topology::OneEach, Topology::SharedHosts];

    #[test]
    fn every_case_has_a_row_that_fits() {
        for collective in Collective::ALL {
            for topology in TOPOLOGIES {
                for ranks in [2, 3, 4, 17, 1000] {
                    for bytes in [0, 1, 4096, 1 << 20, 1 << 40] {
                        for wishes in [Wishes::default(), Wishes { flat_allreduce: true, ..Wishes::default() }] {
                            let algorithm =
                                choose(collective, topology, ranks, bytes, wishes, Tuning::default()).unwrap();
                            assert!(algorithm.fits(collective, topology), "{collective:?} {topology:?} {algorithm:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_user_may_name_every_algorithm() {
        let config::Kind::OneOf(taken) = &config::ALGORITHM.kind else { panic!("CORRO_ALGORITHM takes names") };
        assert_eq!(*taken, Algorithm::ALL.map(Algorithm::name));
    }

    #[test]
    fn a_forced_algorithm_wins_only_where_it_can_run() {
        let wishes = Wishes { forced: Some(Algorithm::Tree), ..Wishes::default() };
        let forced = |collective, topology| choose(collective, topology, 4, 100, wishes, Tuning::default()).unwrap();
        assert_eq!(forced(Collective::Allreduce, Topology::OneHost), Algorithm::Tree);
        assert_eq!(forced(Collective::Alltoall, Topology::OneHost), Algorithm::Direct);
    }

    #[test]
    fn a_flat_allreduce_never_goes_by_hosts() {
        let wishes = |flat_allreduce| Wishes { flat_allreduce, ..Wishes::default() };
        let chosen = |collective, flat| {
            choose(collective, Topology::SharedHosts, 4, 1 << 20, wishes(flat), Tuning::default()).unwrap()
        };
        assert_eq!(chosen(Collective::Allreduce, false), Algorithm::Hierarchical);
        assert_eq!(chosen(Collective::Allreduce, true), Algorithm::Ring);
        assert_eq!(chosen(Collective::Broadcast, true), Algorithm::Hierarchical);
    }
}
