//! Does training still work: a regression whose ranks would like to go to different places. Methods that lose what they leave
//! out end elsewhere, visibly.

use std::fmt::Write as _;

use corro_compress::{Ledger, Peers};
use corro_testing::Random;

use crate::memory::{Tensor, method, reduce, together};

fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> [Tensor; 1] {
    [Tensor { name: name.into(), shape: shape.to_vec(), values }]
}

const ROWS: usize = 32;
const COLUMNS: usize = 16;
const RANKS: usize = 4;
const STEPS: usize = 400;
/// How far apart ranks would like to go.
const PULL: f32 = 0.2;

/// A regression: each rank has data of its own and would like to go elsewhere; together they want `target`.
struct Regression {
    /// Of each rank, symmetric.
    data: Vec<Vec<f32>>,
    /// What each rank's gradient is at the target; they add up to zero.
    pulls: Vec<Vec<f32>>,
    target: Vec<f32>,
    mean: Vec<f32>,
    lr: f32,
}

impl Regression {
    fn new() -> Self {
        let mut random = Random::new(11);
        // Three of variance a third.
        let mut normal = move || (0..3).map(|_| random.unit()).sum::<f64>() as f32;
        let samples = 2 * ROWS;
        let mut data = Vec::new();
        for _ in 0..RANKS {
            let x: Vec<f32> = (0..samples * ROWS).map(|_| normal()).collect();
            let product = |i: usize| {
                let (a, b) = (i / ROWS, i % ROWS);
                (0..samples).map(|s| x[s * ROWS + a] * x[s * ROWS + b]).sum::<f32>() / samples as f32
            };
            data.push((0..ROWS * ROWS).map(product).collect::<Vec<f32>>());
        }
        let mean: Vec<f32> =
            (0..ROWS * ROWS).map(|i| data.iter().map(|square| square[i]).sum::<f32>() / RANKS as f32).collect();
        let mut pulls: Vec<Vec<f32>> =
            (1..RANKS).map(|_| (0..ROWS * COLUMNS).map(|_| PULL * normal()).collect()).collect();
        pulls.push((0..ROWS * COLUMNS).map(|i| -pulls.iter().map(|pull| pull[i]).sum::<f32>()).collect());
        let target = (0..ROWS * COLUMNS).map(|_| normal()).collect();
        let lr = 0.2 / largest_eigenvalue(&mean);
        Self { data, pulls, target, mean, lr }
    }

    /// The excess loss after all steps.
    fn train(&self, text: &str) -> f64 {
        let ends = together(RANKS, |mut peers| {
            let me = peers.me();
            let mut ledger = Ledger::default();
            let mut off: Vec<f32> = self.target.iter().map(|value| -value).collect();
            for _ in 0..STEPS {
                let mut gradient = times(&self.data[me], &off);
                gradient.iter_mut().zip(&self.pulls[me]).for_each(|(value, pull)| *value += pull);
                let mut tensor = tensor("w", &[ROWS, COLUMNS], gradient);
                if text == "exact" {
                    peers.sum(&mut tensor[0].values).unwrap();
                } else {
                    reduce(&mut peers, &mut ledger, &method(text), &mut tensor);
                }
                off.iter_mut().zip(&tensor[0].values).for_each(|(off, sum)| *off -= self.lr * sum / RANKS as f32);
            }
            off
        });
        let image = times(&self.mean, &ends[0]);
        let loss: f64 = image.iter().zip(&ends[0]).map(|(image, off)| f64::from(image * off)).sum();
        loss / 2.0 / COLUMNS as f64
    }
}

/// A square matrix times one of any number of columns.
fn times(square: &[f32], matrix: &[f32]) -> Vec<f32> {
    let columns = matrix.len() / ROWS;
    let mut product = vec![0f32; matrix.len()];
    for (row, out) in square.chunks(ROWS).zip(product.chunks_mut(columns)) {
        for (factor, from) in row.iter().zip(matrix.chunks(columns)) {
            out.iter_mut().zip(from).for_each(|(out, value)| *out += factor * value);
        }
    }
    product
}

fn largest_eigenvalue(square: &[f32]) -> f32 {
    let mut vector = vec![1f32; ROWS];
    let mut norm = 1f32;
    for _ in 0..50 {
        let image = times(square, &vector);
        norm = image.iter().map(|v| v * v).sum::<f32>().sqrt();
        vector = image.into_iter().map(|v| v / norm).collect();
    }
    norm
}

#[test]
fn a_regression_converges_with_feedback_and_not_without() {
    let regression = Regression::new();
    let exact = regression.train("exact");
    let mut report = format!("exact {exact:.1e}");
    let mut wrong = Vec::new();
    // PowerSGD without feedback comes to the same place, since what it says of a sum is linear in what ranks bring.
    for (text, fails_without) in [
        ("powersgd rank=1", false),
        ("powersgd rank=4", false),
        ("topk density=0.2", true),
        ("onebit block=128", true),
        ("int4 block=64", false),
        ("fp8", false),
        ("ef21 density=0.1", false),
    ] {
        let kept = regression.train(text);
        let _ = write!(report, "\n{text} {kept:.1e}");
        if kept > 1e-2 + exact {
            wrong.push(text);
        }
        if fails_without {
            let lost = regression.train(&format!("{text} feedback=no"));
            let _ = write!(report, ", without {lost:.1e}");
            if lost < 3e-2 || lost < 5.0 * kept {
                wrong.push(text);
            }
        }
    }
    println!("{report}");
    assert!(wrong.is_empty(), "{wrong:?} of\n{report}");
}
