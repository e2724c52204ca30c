//! Who runs where: ranks are dealt to hosts in the order given, consecutive within a host.
//!
//! Pure. Exactly as many ranks as were asked for are placed; slots left over stay empty. Hosts that differ by their account only
//! (`a@node`, `b@node`) are one machine: their ranks share its accelerators, so no two have the same local rank.

use std::collections::BTreeMap;

use corro_core::{Error, Rank, Result};

use crate::hosts::Host;

/// One rank's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: usize,
    /// Its place among the ranks of its host.
    pub local_rank: usize,
    /// How many ranks its host has.
    pub local_size: usize,
    /// Its place among the ranks that have the same local rank, one per host.
    pub cross_rank: usize,
    /// How many hosts have a rank with this local rank.
    pub cross_size: usize,
}

/// A host that takes part, and its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The host.
    pub host: Host,
    /// Its ranks, ascending.
    pub slots: Vec<Slot>,
}

/// No host has that many cores; whoever asks for more has mistyped.
const MOST_ON_A_HOST: usize = 16_384;

/// Deals `size` ranks to `hosts`. Hosts that get none are left out.
pub fn place(size: usize, hosts: &[Host]) -> Result<Vec<Assignment>> {
    if size == 0 {
        return Err(Error::Usage("a job of 0 processes: give -np 1 or more".into()));
    }
    if let Some(host) = hosts.iter().find(|h| h.slots.min(size) > MOST_ON_A_HOST) {
        let (name, count) = (&host.name, host.slots.min(size));
        return Err(Error::Usage(format!(
            "{count} processes on {name}: a host takes at most {MOST_ON_A_HOST}; give -H with more hosts, or a lower -np"
        )));
    }
    let slots: usize = hosts.iter().map(|h| h.slots).fold(0, usize::saturating_add);
    if size > slots {
        return Err(Error::Usage(format!(
            "Requested more processes ({size}) than there are available slots ({slots}): raise the slots in -H or the \
             hostfile, add hosts, or lower -np"
        )));
    }
    let mut left = size;
    let counts: Vec<usize> = hosts
        .iter()
        .map(|host| {
            let count = host.slots.min(left);
            left -= count;
            count
        })
        .collect();
    let machines = Machines::of(hosts, &counts);
    let mut rank = 0;
    let mut assignments = Vec::new();
    for (at, (host, &count)) in hosts.iter().zip(&counts).enumerate() {
        let slots: Vec<Slot> = (0..count)
            .map(|nth| {
                let (machine, before) = machines.place_of[at];
                let local_rank = before + nth;
                let has = |size: &&usize| **size > local_rank;
                let slot = Slot {
                    rank: Rank::new(rank),
                    size,
                    local_rank,
                    local_size: machines.sizes[machine],
                    cross_rank: machines.sizes[..machine].iter().filter(has).count(),
                    cross_size: machines.sizes.iter().filter(has).count(),
                };
                rank += 1;
                slot
            })
            .collect();
        if !slots.is_empty() {
            assignments.push(Assignment { host: host.clone(), slots });
        }
    }
    Ok(assignments)
}

/// The machines behind hosts, in the order of their first host.
struct Machines {
    /// How many ranks each has.
    sizes: Vec<usize>,
    /// For each host its machine, and how many ranks that has by hosts before this one.
    place_of: Vec<(usize, usize)>,
}

impl Machines {
    fn of(hosts: &[Host], counts: &[usize]) -> Self {
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        let mut machines = Self { sizes: Vec::new(), place_of: Vec::new() };
        for (host, count) in hosts.iter().zip(counts) {
            let machine = *found.entry(&host.name).or_insert(machines.sizes.len());
            if machine == machines.sizes.len() {
                machines.sizes.push(0);
            }
            machines.place_of.push((machine, machines.sizes[machine]));
            machines.sizes[machine] += count;
        }
        machines
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts(slots: &[usize]) -> Vec<Host> {
        slots.iter().enumerate().map(|(i, n)| Host { user: None, name: format!("h{i}"), slots: *n }).collect()
    }

    /// (rank, host, local rank/size, cross rank/size)
    type Row = (usize, &'static str, (usize, usize), (usize, usize));

    #[test]
    fn ranks_go_where_horovods_users_expect_them() {
        let cases: &[(usize, &[usize], &[Row])] = &[
            (1, &[1], &[(0, "h0", (0, 1), (0, 1))]),
            // Exactly as many as asked for, not as many as there are slots.
            (2, &[4], &[(0, "h0", (0, 2), (0, 1)), (1, "h0", (1, 2), (0, 1))]),
            (
                4,
                &[2, 2],
                &[
                    (0, "h0", (0, 2), (0, 2)),
                    (1, "h0", (1, 2), (0, 2)),
                    (2, "h1", (0, 2), (1, 2)),
                    (3, "h1", (1, 2), (1, 2)),
                ],
            ),
            // Uneven hosts: the second local rank exists on the first and the third host only.
            (
                5,
                &[2, 1, 2],
                &[
                    (0, "h0", (0, 2), (0, 3)),
                    (1, "h0", (1, 2), (0, 2)),
                    (2, "h1", (0, 1), (1, 3)),
                    (3, "h2", (0, 2), (2, 3)),
                    (4, "h2", (1, 2), (1, 2)),
                ],
            ),
            // A host with no slot, and one that is not needed.
            (2, &[0, 1, 1, 5], &[(0, "h1", (0, 1), (0, 2)), (1, "h2", (0, 1), (1, 2))]),
        ];
        for (size, slots, want) in cases {
            let placed = place(*size, &hosts(slots)).unwrap();
            let rows: Vec<_> = placed
                .iter()
                .flat_map(|a| a.slots.iter().map(move |s| (a.host.name.as_str(), s)))
                .map(|(name, s)| (s.rank.index(), name, (s.local_rank, s.local_size), (s.cross_rank, s.cross_size)))
                .collect();
            assert_eq!(rows, *want, "{size} on {slots:?}");
        }
    }

    #[test]
    fn accounts_of_one_machine_share_its_local_ranks() {
        let host = |user: &str, name: &str| Host { user: Some(user.into()), name: name.into(), slots: 1 };
        let placed = place(3, &[host("a", "h0"), host("b", "h0"), host("a", "h1")]).unwrap();
        let slots: Vec<Slot> = placed.iter().flat_map(|a| a.slots.clone()).collect();
        let rows = slots.iter().map(|s| ((s.local_rank, s.local_size), (s.cross_rank, s.cross_size)));
        assert!(rows.eq([((0, 2), (0, 2)), ((1, 2), (0, 1)), ((0, 1), (1, 2))]), "{slots:?}");
    }

    #[test]
    fn too_few_slots_say_how_many() {
        let text = place(5, &hosts(&[2, 2])).unwrap_err().to_string();
        assert!(text.contains("Requested more processes (5) than there are available slots (4)"), "{text}");
        assert!(place(0, &hosts(&[2])).is_err());
    }

    proptest! {
        #[test]
        fn every_rank_once_and_every_count_consistent(slots in proptest::collection::vec(0usize..5, 1..8), part in 1usize..100) {
            let total: usize = slots.iter().sum();
            prop_assume!(total > 0);
            let size = 1 + part % total;
            let placed = place(size, &hosts(&slots)).unwrap();
            let all: Vec<Slot> = placed.iter().flat_map(|a| a.slots.clone()).collect();
            prop_assert!(all.iter().map(|s| s.rank).eq(Rank::all(size)));
            for slot in &all {
                let cross: Vec<usize> = all.iter().filter(|s| s.local_rank == slot.local_rank).map(|s| s.cross_rank).collect();
                prop_assert!(cross.iter().copied().eq(0..slot.cross_size));
            }
            for assignment in &placed {
                prop_assert!(assignment.slots.len() <= assignment.host.slots);
                prop_assert!(assignment.slots.iter().map(|s| s.local_rank).eq(0..assignment.slots.len()));
            }
        }
    }
}
