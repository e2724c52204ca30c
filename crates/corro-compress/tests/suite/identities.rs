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

/// Large batches go in pieces, which are made while others travel: each must come back to its place, and nothing be lost.
#[test]
fn pieces_come_back_to_their_places() {
    let lengths = [5, 1_600_003, 40, 700_001];
    for (n, text) in [(2, "int8"), (3, "int8 rounding=stochastic"), (3, "onebit"), (2, "bf16"), (2, "sign")] {
        let compression = method(text);
        let value = |me: usize, t: usize, i: usize| ((i * 7919 + t * 31 + me * 17) % 255) as f32 - 127.0;
        let books = together(n, |mut peers| {
            let me = peers.me();
            let tensor = |(t, len): (usize, &usize)| Tensor {
                name: format!("t{t}"),
                shape: vec![*len],
                values: (0..*len).map(|i| value(me, t, i)).collect(),
            };
            let mut tensors: Vec<Tensor> = lengths.iter().enumerate().map(tensor).collect();
            let mut ledger = Ledger::default();
            reduce(&mut peers, &mut ledger, &compression, &mut tensors);
            let debts: Vec<_> = (0..lengths.len()).map(|t| ledger.settle(&format!("t{t}"), n, false)).collect();
            (tensors, debts)
        });
        for (t, len) in lengths.iter().enumerate() {
            let mut total: Vec<f32> = books[0].0[t].values.clone();
            for (tensors, debts) in &books {
                assert!(tensors[t].values == books[0].0[t].values, "{text}: ranks differ");
                for debt in &debts[t] {
                    debt.values.iter().zip(&mut total[debt.first..]).for_each(|(owed, total)| *total += owed);
                }
            }
            for (i, found) in total.iter().enumerate().take(*len) {
                let wanted: f32 = (0..n).map(|me| value(me, t, i)).sum();
                let right = match text {
                    "sign" => *found == (n as f32).copysign(wanted) || (0..n).any(|me| value(me, t, i) * wanted <= 0.0),
                    _ => (found - wanted).abs() <= wanted.abs() / 250.0 + 1e-3,
                };
                assert!(right, "{text}, {n} peers, tensor {t} at {i}: {found}, not {wanted}");
            }
        }
    }
}
