//! NaN and infinity show in the result on all ranks, and are forgotten in the next step; zeros stay zeros.

use corro_compress::{Ledger, Peers};
use corro_core::compression::METHODS;

use crate::memory::{Tensor, method, reduce, together};

fn step(peers: &mut crate::memory::Member, ledger: &mut Ledger, text: &str, values: Vec<f32>) -> Vec<f32> {
    let mut tensor = [Tensor { name: "t".into(), shape: vec![100, 60], values }];
    reduce(peers, ledger, &method(text), &mut tensor);
    tensor[0].values.clone()
}

#[test]
fn what_is_not_a_number_shows_once() {
    for text in METHODS {
        for bad in [f32::NAN, f32::INFINITY] {
            let results = together(3, |mut peers| {
                let mut ledger = Ledger::default();
                let mut first = vec![0.5; 6000];
                // In a chunk that another peer owns, and in one's own.
                if peers.me() == 1 {
                    first[5] = bad;
                    first[2500] = bad;
                }
                let first = step(&mut peers, &mut ledger, text, first);
                let later: Vec<Vec<f32>> =
                    (0..3).map(|_| step(&mut peers, &mut ledger, text, vec![0.5; 6000])).collect();
                (first, later)
            });
            for (first, later) in results {
                assert!(first.iter().any(|value| !value.is_finite()), "{text}: {bad} is hidden");
                let last = &later[2];
                assert!(last.iter().all(|value| value.is_finite()), "{text}: {bad} stays for ever");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for text in METHODS {
        let results = together(2, |mut peers| {
            let mut ledger = Ledger::default();
            step(&mut peers, &mut ledger, text, vec![0.0; 6000]);
            step(&mut peers, &mut ledger, text, vec![0.0; 6000])
        });
        // One bit has no zero, and a majority of none is decided by chance.
        let exact = text != "sign";
        assert!(results.iter().flatten().all(|value| !exact || *value == 0.0), "{text}");
    }
}

#[test]
fn empty_and_tiny_tensors_are_fine() {
    for text in METHODS {
        for len in [0, 1, 3] {
            let results = together(4, |mut peers| {
                let values = vec![peers.me() as f32 + 1.0; len];
                let mut tensor = [Tensor { name: "t".into(), shape: vec![len], values }];
                reduce(&mut peers, &mut Ledger::default(), &method(text), &mut tensor);
                tensor[0].values.clone()
            });
            assert!(results.iter().all(|values| values.len() == len && *values == results[0]), "{text}");
        }
    }
}
