//! Random programs on real engines: orders, delays, sets and kinds by seed, results checked.
//!
//! A failing seed is printed; `CORRO_CHAOS_SEED=<seed> cargo test -p corro-engine --test suite chaos` runs that one alone.

use std::time::Duration;

use crate::support::{numbers, of, on_hosts, ranks, sum};
use corro_core::Rank;
use corro_engine::{Engine, Kind, Options, Submission};
use corro_testing::Random;

/// What one step does on all ranks: tensors by number, each in one of the sets.
fn step(shared: &mut Random, sets: usize) -> Vec<(usize, usize)> {
    // Mostly the same step again, so that plans are made; sometimes another.
    let tensors = if shared.below(8) == 0 { 1 + shared.below(12) } else { 6 };
    (0..tensors).map(|t| (t, t % sets)).collect()
}

/// Runs the same random program on every rank; only orders and delays differ between them.
fn program(engine: &Engine, seed: u64) {
    let mut shared = Random::new(seed);
    let mut own = Random::new(seed ^ ((engine.rank().index() as u64 + 1) << 40));
    let (n, me) = (engine.size(), engine.rank().index());
    let mut sets = vec![(0, (0..n).collect::<Vec<_>>())];
    if n > 2 {
        let members: Vec<usize> = (0..n).filter(|r| r % 2 == seed as usize % 2 || *r == 0).collect();
        if members.len() < n {
            sets.push((engine.add_process_set(&ranks(&members)).unwrap(), members));
        }
    }
    for number in 0..30 {
        let mut work = step(&mut shared, sets.len());
        work.retain(|(_, set)| sets[*set].1.contains(&me));
        own.shuffle(&mut work);
        // One rank at most: two that each wait for what the other has not submitted would wait for ever, in any engine.
        let waits_at_once = me == number % n && own.below(4) == 0;
        let mut tickets = Vec::new();
        for (tensor, set) in work {
            let (id, members) = &sets[set];
            let submission = submission(tensor, number, me);
            let submission = Submission { set: *id, ..submission };
            if own.below(20) == 0 {
                std::thread::sleep(Duration::from_micros(own.below(500) as u64));
            }
            let ticket = engine.submit(submission).unwrap();
            if waits_at_once && own.below(3) == 0 {
                check(tensor, number, members, &numbers(ticket.wait().unwrap()));
            } else {
                tickets.push((tensor, set, ticket));
            }
        }
        own.shuffle(&mut tickets);
        for (tensor, set, ticket) in tickets {
            check(tensor, number, &sets[set].1, &numbers(ticket.wait().unwrap()));
        }
    }
}

fn submission(tensor: usize, step: usize, rank: usize) -> Submission {
    let value = (tensor * 100 + step + rank) as f32;
    match tensor % 5 {
        3 => of(format!("gather{tensor}"), Kind::Allgather, &[1 + rank % 2, 3], &vec![value; (1 + rank % 2) * 3]),
        4 => of(format!("cast{tensor}"), Kind::Broadcast { root: Rank::ZERO }, &[7], &[value; 7]),
        _ => sum(format!("sum{tensor}"), &vec![value; 1 + tensor * 17]),
    }
}

fn check(tensor: usize, step: usize, members: &[usize], got: &[f32]) {
    let value = |rank: usize| (tensor * 100 + step + rank) as f32;
    let want: Vec<f32> = match tensor % 5 {
        3 => members.iter().flat_map(|r| vec![value(*r); (1 + r % 2) * 3]).collect(),
        4 => vec![value(0); 7],
        _ => vec![members.iter().map(|r| value(*r)).sum(); 1 + tensor * 17],
    };
    assert_eq!(got, want, "tensor {tensor} in step {step} of members {members:?}");
}

#[test]
fn random_orders_delays_and_sets_never_hang_and_always_add_up() {
    let seeds = corro_testing::number("CORRO_CHAOS_SEED").map_or(0..8, |seed| seed..seed + 1);
    for seed in seeds {
        println!("replay with CORRO_CHAOS_SEED={seed} cargo test -p corro-engine --test suite chaos -- --nocapture");
        let mut random = Random::new(seed);
        let ranks = 2 + random.below(if seed % 4 == 0 { 15 } else { 4 });
        let hosts: Vec<usize> = (0..ranks).map(|r| r / (1 + random.clone().below(ranks))).collect();
        on_hosts(&hosts, Options::default, move |engine| program(engine, seed));
    }
}
