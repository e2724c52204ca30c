//! Turning the knobs that autotuning turns leaves every bit of every result as it was.

use crate::support::{Transport, on_ranks};
use corro_collectives::{Group, ReduceOp, Tuning};

/// Floats whose sums depend on the order in which they are added.
fn floats(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761 + rank * 40_503) % 10_007) as f32 / 97.0 - 51.3).collect()
}

/// Bits of what the collectives give that have a say in this.
fn results(group: &mut Group) -> Vec<Vec<u32>> {
    let bits = |floats: &[f32]| floats.iter().map(|f| f.to_bits()).collect::<Vec<u32>>();
    let mut all = Vec::new();
    for count in [3_000, 150_000, 400_000] {
        let mine = floats(group.rank(), count);
        let mut sum = mine.clone();
        group.allreduce(&mut sum, ReduceOp::Sum).unwrap();
        all.push(bits(&sum));
        let rows = group.size() * 10;
        let whole = &mine[..count / rows * rows];
        all.push(bits(&group.reducescatter(whole, rows, ReduceOp::Sum).unwrap()));
        all.push(bits(&group.allgather(&mine[..count / 8]).unwrap()));
        let mut same = mine;
        group.broadcast(&mut same, 1).unwrap();
        all.push(bits(&same));
    }
    all
}

#[test]
fn no_knob_changes_a_bit() {
    for (transport, ranks) in [(Transport::ThreadsOnHosts, 5), (Transport::Tcp, 3)] {
        on_ranks(transport, ranks, |group| {
            let before = results(group);
            for segment in [16 << 10, 64 << 10, 1 << 20] {
                for crossover in [-3, 3] {
                    group.tune(Tuning { segment, crossover, reductions: false });
                    assert!(results(group) == before, "segments of {segment}, crossover {crossover}");
                }
            }
        });
    }
}

#[test]
fn with_two_ranks_no_order_is_another() {
    on_ranks(Transport::Tcp, 2, |group| {
        let before = results(group);
        for crossover in [-3, 3] {
            group.tune(Tuning { crossover, reductions: true, ..Tuning::default() });
            assert!(results(group) == before, "crossover {crossover}");
        }
    });
}
