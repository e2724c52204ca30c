//! Where a method leaves nothing out, it is a plain sum; and what peers must have in common they get again.

use corro_compress::{Ledger, Peers};
use corro_testing::Random;

use crate::memory::{Tensor, method, reduce, together};

fn brought(rank: usize, step: usize, shape: &[usize]) -> Tensor {
    let mut random = Random::new((rank * 100 + step) as u64 + 9);
    let count = shape.iter().product();
    let values = (0..count).map(|_| (random.unit() - 0.5) as f32).collect();
    Tensor { name: "t".into(), shape: shape.to_vec(), values }
}

#[test]
fn what_leaves_nothing_out_is_a_plain_sum() {
    for (text, shape) in [
        ("powersgd rank=6 min_rate=1", &[400, 6][..]),
        ("powersgd rank=9 min_rate=1", &[6, 400]),
        ("powersgd rank=1 start=100", &[50, 50]),
        ("topk density=1", &[999]),
        ("dgc density=1 momentum=0.9", &[999]),
        ("randomk density=1", &[999]),
        ("ef21 density=1", &[999]),
    ] {
        let results = together(3, |mut peers| {
            let mut ledger = Ledger::default();
            let mut last = Vec::new();
            for step in 0..4 {
                let mut tensor = [brought(peers.me(), step, shape)];
                reduce(&mut peers, &mut ledger, &method(text), &mut tensor);
                last = tensor[0].values.clone();
            }
            let owed = ledger.settle("t", 3, true).into_iter().flat_map(|debt| debt.values);
            (last, owed.fold(0f32, |top, value| top.max(value.abs())))
        });
        for (result, owed) in results {
            let all: Vec<Tensor> = (0..3).map(|rank| brought(rank, 3, shape)).collect();
            for (i, value) in result.into_iter().enumerate() {
                let sum: f32 = all.iter().map(|tensor| tensor.values[i]).sum();
                assert!((value - sum).abs() < 2e-5, "{text}: {value} and {sum}");
            }
            assert!(owed < 2e-5, "{text}: {owed} owed");
        }
    }
}

/// One of three loses its state in the middle: all go on, with the same bits.
#[test]
fn a_peer_that_is_new_makes_all_begin_anew() {
    for text in ["powersgd rank=2", "randomk density=0.2", "ef21 density=0.2", "dgc density=0.05 warmup=9", "int8"] {
        let results = together(3, |mut peers| {
            let mut ledger = Ledger::default();
            let mut sums = vec![0f32; 600];
            for step in 0..10 {
                if step == 5 && peers.me() == 1 {
                    ledger = Ledger::default();
                }
                let mut tensor = [brought(peers.me(), step, &[30, 20])];
                reduce(&mut peers, &mut ledger, &method(text), &mut tensor);
                sums.iter_mut().zip(&tensor[0].values).for_each(|(sum, value)| *sum += value);
            }
            sums
        });
        assert!(results.iter().all(|sums| *sums == results[0]), "{text}");
        assert!(results[0].iter().all(|value| value.is_finite()), "{text}");
    }
}

/// Runs repeat, also those that round by chance.
#[test]
fn runs_repeat_and_seeds_differ() {
    let run = |text: &str| {
        together(2, |mut peers| {
            let mut tensor = [brought(peers.me(), 0, &[1000])];
            reduce(&mut peers, &mut Ledger::default(), &method(text), &mut tensor);
            tensor[0].values.clone()
        })
        .remove(0)
    };
    for text in ["int8 rounding=stochastic", "qsgd", "terngrad", "randomk"] {
        assert_eq!(run(text), run(text), "{text}");
        assert_ne!(run(text), run(&format!("{text} seed=5")), "{text}");
    }
}

#[test]
fn a_majority_decides() {
    let results = together(3, |mut peers| {
        let values = (0..100).map(|i| if (i + peers.me()) % 3 == 0 { -0.1 } else { 7.0 }).collect();
        let mut tensor = [Tensor { name: "t".into(), shape: vec![100], values }];
        reduce(&mut peers, &mut Ledger::default(), &method("sign"), &mut tensor);
        tensor[0].values.clone()
    });
    assert!(results.iter().all(|values| values.iter().all(|value| *value == 3.0)));
}
