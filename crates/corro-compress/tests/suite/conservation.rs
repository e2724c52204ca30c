//! Nothing is lost: all results and all that is still owed are, together, all that was brought. The strongest test of error
//! feedback, which tells every way to get it wrong from the right one.

use corro_compress::{Debt, Ledger, Peers};
use corro_core::Compression;
use corro_testing::Random;

use crate::memory::{Member, Tensor, method, reduce, together};

const WITH_FEEDBACK: [&str; 15] = [
    "fp16 feedback=yes",
    "bf16 feedback=yes",
    "int8",
    "int8 rounding=stochastic",
    "int8 block=64 rotate=yes",
    "int4",
    "int4 rounding=stochastic",
    "fp8",
    "fp8 rounding=stochastic",
    "onebit block=128",
    "qsgd block=64 feedback=yes",
    "topk density=0.05",
    "dgc density=0.05 momentum=0 warmup=10",
    "randomk density=0.1",
    "powersgd rank=2 start=3",
];
const SHAPES: [&[usize]; 4] = [&[40, 30], &[1000], &[7], &[300, 2]];
const STEPS: usize = 20;

fn gradient(rank: usize, step: usize, tensor: usize) -> Tensor {
    let mut random = Random::new((rank * 1000 + step * 10 + tensor) as u64 + 1);
    let shape = SHAPES[tensor].to_vec();
    let count = shape.iter().product();
    // With a mean, so that sums grow and a loss of a part of it shows.
    let values = (0..count).map(|i| (random.unit() - 0.3) as f32 * (1.0 + (i % 7) as f32)).collect();
    Tensor { name: format!("t{tensor}"), shape, values }
}

/// What goes wrong between two steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    NoFeedback,
    Scaled(f32),
    HalfTheRanksLost,
    OwnersLost,
}

/// Does what the mutant does; `carry` is what it keeps outside of the ledger, by tensor.
fn apply(mutant: Mutant, me: usize, ledger: &mut Ledger, carry: &mut [Vec<f32>]) {
    match mutant {
        Mutant::NoFeedback => ledger.clear(),
        Mutant::Scaled(factor) => ledger.scale(factor, |_| true),
        Mutant::HalfTheRanksLost if me.is_multiple_of(2) => ledger.clear(),
        Mutant::None | Mutant::HalfTheRanksLost => {}
        Mutant::OwnersLost => {
            // What this peer owes of its own is of the whole tensor, what it owes as an owner of a chunk.
            for (t, carry) in carry.iter_mut().enumerate() {
                let mut debts = ledger.settle(&format!("t{t}"), 1, false);
                debts.retain(|debt| debt.values.len() == carry.len());
                *carry = debts.pop().map_or_else(|| vec![0.0; carry.len()], |debt| debt.values);
            }
        }
    }
}

/// Of each peer: the sum of all results, and what it still owes, by tensor.
type Books = Vec<(Vec<f64>, Vec<f64>)>;

fn run(mut peers: Member, compression: &Compression, mutant: Mutant) -> Books {
    let mut ledger = Ledger::default();
    let mut random = Random::new(77);
    let mut sums: Vec<Vec<f64>> = SHAPES.iter().map(|shape| vec![0.0; shape.iter().product()]).collect();
    let mut carry: Vec<Vec<f32>> = SHAPES.iter().map(|shape| vec![0.0; shape.iter().product()]).collect();
    for step in 0..STEPS {
        // The tensors of a batch, and their order, differ from step to step: states must not depend on it. Rank 1 has joined
        // for a while, and brings zeros.
        let mut order: Vec<usize> = (0..SHAPES.len()).collect();
        random.shuffle(&mut order);
        for batch in order.chunks(1 + random.below(SHAPES.len())) {
            let mut tensors: Vec<Tensor> = batch.iter().map(|t| brought(peers.me(), step, *t)).collect();
            for (t, tensor) in batch.iter().zip(&mut tensors) {
                tensor.values.iter_mut().zip(&carry[*t]).for_each(|(value, carried)| *value += carried);
            }
            reduce(&mut peers, &mut ledger, compression, &mut tensors);
            for (t, tensor) in batch.iter().zip(tensors) {
                sums[*t].iter_mut().zip(tensor.values).for_each(|(sum, value)| *sum += f64::from(value));
            }
        }
        apply(mutant, peers.me(), &mut ledger, &mut carry);
    }
    let names: Vec<String> = (0..SHAPES.len()).map(|t| format!("t{t}")).collect();
    let owed = names.iter().zip(&carry).map(|(name, carry)| {
        let mut owed: Vec<f64> = carry.iter().map(|value| f64::from(*value)).collect();
        for debt in ledger.settle(name, 1, false) {
            owed[debt.first..].iter_mut().zip(debt.values).for_each(|(owed, value)| *owed += f64::from(value));
        }
        owed
    });
    let owed: Vec<Vec<f64>> = owed.collect();
    sums.into_iter().zip(owed).collect()
}

fn brought(rank: usize, step: usize, tensor: usize) -> Tensor {
    let mut gradient = gradient(rank, step, tensor);
    if rank == 1 && (8..12).contains(&step) {
        gradient.values.fill(0.0);
    }
    gradient
}

/// How much of what was brought is neither in the results nor owed, as a part of it; the worst tensor.
fn residue(compression: &Compression, mutant: Mutant, n: usize) -> f64 {
    let all = together(n, |peers| run(peers, compression, mutant));
    let mut worst = 0f64;
    for t in 0..SHAPES.len() {
        assert!(all.iter().all(|books| books[t].0 == all[0][t].0), "all have the same bits");
        let mut total = vec![0.0; all[0][t].0.len()];
        for (rank, step) in (0..n).flat_map(|rank| (0..STEPS).map(move |step| (rank, step))) {
            let values = brought(rank, step, t).values;
            total.iter_mut().zip(values).for_each(|(total, value)| *total += f64::from(value));
        }
        let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let whole = norm(&total);
        total.iter_mut().zip(&all[0][t].0).for_each(|(total, sum)| *total -= sum);
        for books in &all {
            total.iter_mut().zip(&books[t].1).for_each(|(total, owed)| *total -= owed);
        }
        worst = worst.max(norm(&total) / whole);
    }
    worst
}

#[test]
fn results_and_debts_make_up_what_was_brought() {
    for text in WITH_FEEDBACK {
        for n in [2, 3, 4] {
            let found = residue(&method(text), Mutant::None, n);
            assert!(found < 1e-6, "{text}, {n} ranks: {found:e}");
        }
    }
}

#[test]
fn every_mutant_is_caught() {
    let mutants = [Mutant::NoFeedback, Mutant::Scaled(0.5), Mutant::Scaled(0.25), Mutant::Scaled(2.0)];
    for (text, least) in [
        ("int8", 1e-4),
        ("int4", 1e-2),
        ("onebit block=128", 1e-2),
        ("topk density=0.05", 1e-2),
        ("randomk density=0.1", 1e-2),
        ("powersgd rank=2", 1e-3),
    ] {
        for mutant in mutants.into_iter().chain([Mutant::HalfTheRanksLost]) {
            if mutant == Mutant::Scaled(2.0) && text.starts_with("powersgd") {
                continue;
            }
            let found = residue(&method(text), mutant, 4);
            // Added twice, what is owed may grow beyond all numbers: that shows, too.
            assert!(!found.is_finite() || found > least, "{text}, {mutant:?}: {found:e}");
        }
        if ["int8", "int4", "onebit block=128"].contains(&text) {
            let found = residue(&method(text), Mutant::OwnersLost, 4);
            assert!(found > least, "{text}, owners' lost: {found:e}");
        }
    }
}

/// After a change of the ranks what is owed weighs what it did: a quarter each of four, a third each of three.
#[test]
fn nothing_is_lost_when_ranks_change_but_what_the_lost_rank_owed() {
    for text in WITH_FEEDBACK {
        let compression = method(text);
        let steps = |mut peers: Member, mut ledger: Ledger, steps: std::ops::Range<usize>| {
            let mut sum = vec![0.0; 1200];
            for step in steps {
                let mut tensors = [gradient(peers.me(), step, 0)];
                reduce(&mut peers, &mut ledger, &compression, &mut tensors);
                let n = peers.size() as f64;
                sum.iter_mut().zip(&tensors[0].values).for_each(|(sum, value)| *sum += f64::from(*value) / n);
            }
            (sum, ledger)
        };
        let four = together(4, |peers| steps(peers, Ledger::default(), 0..10));
        let mut total = four[0].0.clone();
        // Saved with the model, and loaded by those who are left: as bytes, since processes may be others.
        let mut saved: Vec<_> = four.iter().map(|(_, ledger)| ledger.save().unwrap()).collect();
        let three = together(3, |peers| {
            let mut ledger = Ledger::default();
            for (name, bytes) in &saved[peers.me()] {
                ledger.load(name, bytes).unwrap();
            }
            steps(peers, ledger, 10..20)
        });
        total.iter_mut().zip(&three[0].0).for_each(|(total, sum)| *total += sum);
        let mut add = |debts: Vec<Debt>, share: f64| {
            for debt in debts {
                let places = total[debt.first..].iter_mut();
                places.zip(debt.values).for_each(|(total, owed)| *total += f64::from(owed) * share);
            }
        };
        for (_, mut ledger) in three {
            add(ledger.settle("t0", 3, true), 1.0 / 3.0);
        }
        let mut lost = Ledger::default();
        for (name, bytes) in saved.remove(3) {
            lost.load(&name, &bytes).unwrap();
        }
        add(lost.settle("t0", 4, true), 1.0 / 4.0);
        let mut expected = vec![0.0; 1200];
        for step in 0..20 {
            let n = if step < 10 { 4 } else { 3 };
            for rank in 0..n {
                let values = gradient(rank, step, 0).values;
                expected.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value) / n as f64);
            }
        }
        let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let off: Vec<f64> = expected.iter().zip(&total).map(|(a, b)| a - b).collect();
        assert!(norm(&off) < 2e-6 * norm(&expected), "{text}: {:e}", norm(&off) / norm(&expected));
    }
}
