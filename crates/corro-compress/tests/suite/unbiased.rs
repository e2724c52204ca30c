//! Rounding by chance is right on average; rounding to the nearest is so only with feedback.

use corro_compress::Ledger;

use crate::memory::{Tensor, method, reduce, together};

const LEN: usize = 64;
const PEERS: usize = 2;
/// The largest value, which gives the scale.
const TOP: f32 = 1.0;

/// From 0 to the largest value, and a quarter of a level of 8 bits in the second place.
fn values() -> Vec<f32> {
    let mut values: Vec<f32> = (0..LEN).map(|i| TOP * i as f32 / (LEN - 1) as f32).collect();
    values[1] = TOP / 127.0 / 4.0;
    values
}

/// The mean of what each value came out as, over so many steps.
fn mean(text: &str, steps: usize) -> Vec<f64> {
    let means = together(PEERS, |mut peers| {
        let mut ledger = Ledger::default();
        let mut sums = vec![0f64; LEN];
        for _ in 0..steps {
            let mut tensors = [Tensor { name: "x".into(), shape: vec![LEN], values: values() }];
            reduce(&mut peers, &mut ledger, &method(text), &mut tensors);
            sums.iter_mut().zip(&tensors[0].values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sums.into_iter().map(|sum| sum / (steps * PEERS) as f64).collect::<Vec<f64>>()
    });
    assert_eq!(means[0], means[1]);
    means.into_iter().next().unwrap()
}

#[test]
fn chance_is_right_on_average() {
    const STEPS: usize = 4000;
    let norm = values().iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    // What a level is of; a step of two roundings is off by less than one of them, and means of many by the root of their number.
    for (text, level) in [
        ("int8 block=64 rounding=stochastic feedback=no", 1.0 / 127.0),
        ("int4 block=64 rounding=stochastic feedback=no", 1.0 / 7.0),
        ("qsgd block=64", norm / 127.0),
        ("qsgd bits=4 block=64", norm / 7.0),
        ("terngrad block=64", 1.0),
    ] {
        let within = 4.0 * level / (STEPS as f64).sqrt();
        for (i, (mean, value)) in mean(text, STEPS).into_iter().zip(values()).enumerate() {
            let off = (mean - f64::from(value)).abs();
            assert!(off < within, "{text}: value {i} is off by {off:e}, which may be {within:e}");
        }
    }
}

/// A gradient smaller than half a level never moves anything if it is rounded to the nearest and what is left is lost.
#[test]
fn small_values_move_weights_by_chance_or_by_feedback() {
    let small = f64::from(values()[1]);
    assert_eq!(mean("int8 block=64 feedback=no", 100)[1], 0.0);
    for text in ["int8 block=64 rounding=stochastic feedback=no", "int8 block=64", "int4 block=64"] {
        let found = mean(text, 4000)[1];
        assert!((found / small - 1.0).abs() < 0.5, "{text}: {found:e} instead of {small:e}");
    }
}
