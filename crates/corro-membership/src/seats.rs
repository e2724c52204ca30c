//! Who gets a seat, and which.
//!
//! Pure. The rules, in this order:
//! 1. Rank 0 is the worker whose state is furthest, so that everybody can take the state from there and no commit is lost.
//! 2. Who had a seat keeps one before anybody new gets one, and keeps its order; so the longest-lived have low ranks.
//! 3. Ranks of a host are consecutive; hosts come in the order of their first worker.
//! 4. A host takes no more workers than it has slots. A worker keeps its slot as long as it lives, since it may have
//!    bound itself to the accelerator of that number: it is its local rank. A new one gets the lowest that is free.
//! 5. Hosts that differ by their account only (`a@node`, `b@node`) are one machine: rules 3 and 4 count slots and local ranks
//!    by machine. So tasks of a scheduler, each a host to the job, share a machine's accelerators as ranks of one host do.

use std::collections::{BTreeMap, BTreeSet};

use corro_core::Rank;

use crate::message::{PastSeat, Seat, WorkerId};

/// A worker that could have a seat.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) worker: WorkerId,
    pub(crate) host: &'a str,
    pub(crate) was: Option<PastSeat>,
    pub(crate) progress: u64,
    pub(crate) slot: Option<usize>,
}

/// A worker that gets a seat: its rank is its place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) worker: WorkerId,
    pub(crate) host: String,
    pub(crate) slot: usize,
    pub(crate) new: bool,
}

/// Chooses among `candidates`, in the order of their ranks. `room` is how many a host takes.
pub(crate) fn choose(candidates: &[Candidate<'_>], room: impl Fn(&str) -> usize, max: usize) -> Vec<Chosen> {
    let mut order: Vec<&Candidate<'_>> = candidates.iter().collect();
    // Members of the newest epoch first, by rank; then those of older ones; then new ones, by age.
    order.sort_by_key(|c| {
        let was = c.was.map_or((u64::MAX, Rank::ZERO), |past| (u64::MAX - 1 - past.epoch, past.rank));
        (was, c.worker)
    });
    let best = order.iter().map(|c| c.progress).max().unwrap_or(0);
    let leader = order.iter().position(|c| c.progress == best && (best > 0 || c.was.is_some()));
    if let Some(at) = leader {
        let leader = order.remove(at);
        order.insert(0, leader);
    }
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut picked: Vec<&Candidate<'_>> = Vec::new();
    for (at, candidate) in order.iter().enumerate() {
        let here = taken.entry(candidate.host).or_default();
        // The one whose state is furthest gets a seat even where its host is to leave: without it a commit would be lost.
        let indispensable = at == 0 && best > 0 && {
            let stays = |c: &&&Candidate<'_>| c.progress == best && room(c.host) > 0;
            order.iter().find(stays).is_none()
        };
        if picked.len() < max && (*here < room(candidate.host) || indispensable) {
            *here += 1;
            picked.push(candidate);
        }
    }
    if let Some(first) = picked.iter().position(|c| c.progress == best) {
        // Its host may have had no room for the first choice.
        let first = picked.remove(first);
        picked.insert(0, first);
    }
    let mut machines: Vec<&str> = Vec::new();
    for candidate in &picked {
        if !machines.contains(&machine(candidate.host)) {
            machines.push(machine(candidate.host));
        }
    }
    let mut chosen = Vec::with_capacity(picked.len());
    for name in machines {
        let here = || picked.iter().filter(|c| machine(c.host) == name);
        let mut slots: BTreeSet<usize> = here().filter_map(|c| c.slot).collect();
        for candidate in here() {
            let slot = candidate.slot.unwrap_or_else(|| {
                let free = (0..=slots.len()).find(|s| !slots.contains(s)).unwrap_or(0);
                slots.insert(free);
                free
            });
            let new = candidate.was.is_none();
            chosen.push(Chosen { worker: candidate.worker, host: candidate.host.to_owned(), slot, new });
        }
    }
    chosen
}

/// The machine of a host: its name without an account.
fn machine(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, machine)| machine)
}

/// The seats of an epoch whose members are `chosen`.
pub(crate) fn seats(chosen: &[Chosen], epoch: u64, why: &str, changes: u64) -> Vec<Seat> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for one in chosen {
        match hosts.iter_mut().find(|(host, _)| *host == machine(&one.host)) {
            Some((_, slots)) => slots.push(one.slot),
            None => hosts.push((machine(&one.host), vec![one.slot])),
        }
    }
    let homogeneous = hosts.windows(2).all(|pair| pair[0].1.len() == pair[1].1.len());
    let newcomers = chosen.iter().filter(|c| c.new).count();
    let names: Vec<String> = chosen.iter().map(|c| c.host.clone()).collect();
    let seat = |(rank, one): (usize, &Chosen)| {
        let at = hosts.iter().position(|(host, _)| *host == machine(&one.host)).unwrap_or(0);
        let has = |(_, slots): &&(&str, Vec<usize>)| slots.contains(&one.slot);
        Seat {
            epoch,
            rank: Rank::new(rank),
            size: chosen.len(),
            local_rank: one.slot,
            local_size: hosts[at].1.len(),
            cross_rank: hosts[..at].iter().filter(has).count(),
            cross_size: hosts.iter().filter(has).count(),
            hosts: names.clone(),
            homogeneous,
            newcomers,
            why: why.to_owned(),
            changes,
        }
    };
    chosen.iter().enumerate().map(seat).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(worker: u64, host: &str, rank: Option<usize>, progress: u64, slot: Option<usize>) -> Candidate<'_> {
        Candidate {
            worker: WorkerId(worker),
            host,
            was: rank.map(|rank| PastSeat { epoch: 4, rank: Rank::new(rank) }),
            progress,
            slot,
        }
    }

    fn shown(chosen: &[Chosen]) -> String {
        let seats = seats(chosen, 5, "", 0);
        let words: Vec<String> = chosen
            .iter()
            .zip(seats)
            .map(|(c, s)| {
                format!("{}@{} {}/{} {}/{}", c.worker, c.host, s.local_rank, s.local_size, s.cross_rank, s.cross_size)
            })
            .collect();
        words.join(", ")
    }

    #[test]
    fn survivors_keep_their_order_and_new_ones_take_the_free_place() {
        let all = [one(9, "a", None, 0, None), one(0, "a", Some(0), 3, Some(0)), one(2, "a", Some(2), 3, Some(2))];
        assert_eq!(shown(&choose(&all, |_| 3, 9)), "0@a 0/3 0/1, 2@a 2/3 0/1, 9@a 1/3 0/1");
        // While the place is free, nobody else moves there: it may have chosen its accelerator by it.
        assert_eq!(shown(&choose(&all[1..], |_| 3, 9)), "0@a 0/2 0/1, 2@a 2/2 0/1");
    }

    #[test]
    fn the_furthest_state_leads_and_its_host_with_it() {
        let all =
            [one(0, "a", Some(0), 3, Some(0)), one(1, "b", Some(1), 4, Some(0)), one(2, "a", Some(2), 4, Some(1))];
        assert_eq!(shown(&choose(&all, |_| 3, 9)), "1@b 0/1 0/2, 0@a 0/2 1/2, 2@a 1/2 0/1");
    }

    #[test]
    fn a_host_that_leaves_keeps_no_seat_unless_it_alone_holds_the_last_commit() {
        let room = |host: &str| usize::from(host == "a") * 2;
        let all =
            [one(0, "b", Some(0), 4, Some(0)), one(1, "a", Some(1), 4, Some(0)), one(2, "a", Some(2), 3, Some(1))];
        assert_eq!(shown(&choose(&all, room, 9)), "1@a 0/2 0/1, 2@a 1/2 0/1");
        let all = [one(0, "b", Some(0), 4, Some(0)), one(1, "a", Some(1), 3, Some(0))];
        assert_eq!(shown(&choose(&all, room, 9)), "0@b 0/1 0/2, 1@a 0/1 1/2");
    }

    #[test]
    fn accounts_of_one_machine_share_its_local_ranks() {
        let all = [one(0, "t0@a", None, 0, None), one(1, "t1@b", None, 0, None), one(2, "t2@a", None, 0, None)];
        assert_eq!(shown(&choose(&all, |_| 1, 9)), "0@t0@a 0/2 0/2, 2@t2@a 1/2 0/1, 1@t1@b 0/1 1/2");
        // One that is started anew takes the place that is free on the machine, and not its host's only one.
        let all = [one(2, "t2@a", Some(1), 3, Some(1)), one(5, "t0.1@a", None, 0, None)];
        assert_eq!(shown(&choose(&all, |_| 1, 9)), "2@t2@a 1/2 0/1, 5@t0.1@a 0/2 0/1");
    }

    #[test]
    fn no_more_than_the_most() {
        let all: Vec<Candidate<'_>> = (0..5).map(|w| one(w, "a", (w < 3).then_some(w as usize), 0, None)).collect();
        let workers = |max| choose(&all, |_| 9, max).iter().map(|c| c.worker.0).collect::<Vec<_>>();
        assert_eq!((workers(4), workers(2)), (vec![0, 1, 2, 3], vec![0, 1]));
    }

    proptest! {
        #[test]
        fn seats_are_consistent(given in proptest::collection::vec((0usize..4, proptest::option::of(0usize..20), 0u64..4), 1..12), slots in 1usize..5, max in 1usize..12) {
            let names = ["a", "b", "c", "d"];
            let all: Vec<Candidate<'_>> = given.iter().enumerate()
                .map(|(w, (host, rank, progress))| one(w as u64, names[*host], rank.map(|r| r * 100 + w), *progress, None)).collect();
            let chosen = choose(&all, |_| slots, max);
            let seats = seats(&chosen, 1, "", 0);
            prop_assert!(!seats.is_empty() && seats.len() <= max);
            // Nobody is left out while there is room.
            for c in &all {
                let here = chosen.iter().filter(|o| o.host == c.host).count();
                prop_assert!(chosen.iter().any(|o| o.worker == c.worker) || here == slots || chosen.len() == max);
            }
            let best = all.iter().map(|c| c.progress).max();
            prop_assert_eq!(all.iter().find(|c| c.worker == chosen[0].worker).map(|c| c.progress), best);
            for (rank, seat) in seats.iter().enumerate() {
                prop_assert_eq!(seat.rank, Rank::new(rank));
                let cross: Vec<usize> = seats.iter().filter(|s| s.local_rank == seat.local_rank).map(|s| s.cross_rank).collect();
                prop_assert!(cross.iter().copied().eq(0..seat.cross_size));
                let local: BTreeSet<usize> = seats.iter().filter(|s| s.hosts[s.rank.index()] == seat.hosts[rank]).map(|s| s.local_rank).collect();
                prop_assert_eq!(local.len(), seat.local_size);
            }
        }
    }
}
