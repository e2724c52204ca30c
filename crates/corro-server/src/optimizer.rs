//! Optimizers that run where the parameters are: by name and numbers, never code.
//!
//! The formulae are torch's, computed in f32 (bias corrections in f64). What an optimizer remembers of a key are its
//! *slots*: lists of numbers, one for each element or, for row-wise Adagrad, one for each row. For rows, all of it is lazy:
//! what is not touched does not decay, as in torch's `SparseAdam`.

use corro_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// An optimizer and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of every framework")]
pub enum Optimizer {
    /// With or without momentum.
    Sgd { lr: f64, momentum: f64, nesterov: bool, weight_decay: f64 },
    /// Adam; `decoupled` weight decay makes it `AdamW`.
    Adam { lr: f64, beta1: f64, beta2: f64, eps: f64, weight_decay: f64, decoupled: bool },
    /// Adagrad.
    Adagrad { lr: f64, eps: f64, weight_decay: f64, initial: f64 },
    /// Adagrad with one number for each row.
    RowAdagrad { lr: f64, eps: f64, initial: f64 },
}

/// How an update is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Which one it is for this key, from 1.
    pub number: u64,
    /// A learning rate in place of the optimizer's own.
    pub rate: Option<f32>,
    /// What the learning rate is multiplied by.
    pub scale: f32,
}

impl Optimizer {
    /// By its name and numbers, as a front gives them; what is not given has torch's default.
    pub fn named(name: &str, numbers: &[(String, f64)]) -> Result<Self> {
        let known: &[(&str, f64)] = match name {
            "sgd" => &[("lr", 0.001), ("momentum", 0.0), ("nesterov", 0.0), ("weight_decay", 0.0)],
            "adam" | "adamw" => &[
                ("lr", 0.001),
                ("beta1", 0.9),
                ("beta2", 0.999),
                ("eps", 1e-8),
                ("weight_decay", if name == "adamw" { 0.01 } else { 0.0 }),
            ],
            "adagrad" => &[("lr", 0.01), ("eps", 1e-10), ("weight_decay", 0.0), ("initial_accumulator_value", 0.0)],
            "row_adagrad" => &[("lr", 0.01), ("eps", 1e-10), ("initial_accumulator_value", 0.0)],
            other => {
                return Err(Error::Usage(format!(
                    "parameter servers have no optimizer {other:?}: there are sgd, adam, adamw, adagrad and row_adagrad"
                )));
            }
        };
        if let Some((unknown, _)) = numbers.iter().find(|(n, _)| known.iter().all(|(k, _)| k != n)) {
            let names: Vec<&str> = known.iter().map(|(k, _)| *k).collect();
            return Err(Error::Usage(format!("{name} has no {unknown}: it has {}", names.join(", "))));
        }
        let get = |which: &str| {
            let given = numbers.iter().find(|(n, _)| n == which).map(|(_, v)| *v);
            given.or_else(|| known.iter().find(|(k, _)| *k == which).map(|(_, v)| *v)).unwrap_or_default()
        };
        let (lr, eps, weight_decay) = (get("lr"), get("eps"), get("weight_decay"));
        let optimizer = match name {
            "sgd" => Self::Sgd { lr, momentum: get("momentum"), nesterov: get("nesterov") != 0.0, weight_decay },
            "adagrad" => Self::Adagrad { lr, eps, weight_decay, initial: get("initial_accumulator_value") },
            "row_adagrad" => Self::RowAdagrad { lr, eps, initial: get("initial_accumulator_value") },
            _ => {
                let (beta1, beta2) = (get("beta1"), get("beta2"));
                Self::Adam { lr, beta1, beta2, eps, weight_decay, decoupled: name == "adamw" }
            }
        };
        optimizer.check()?;
        Ok(optimizer)
    }

    /// Whether its numbers make sense. Servers ask, too: what came over the wire may be anything.
    pub fn check(&self) -> Result<()> {
        let (fraction, others) = match *self {
            Self::Sgd { lr, momentum, weight_decay, .. } => ([momentum, 0.0], [lr, weight_decay, 0.0]),
            Self::Adam { lr, beta1, beta2, eps, weight_decay, .. } => ([beta1, beta2], [lr, eps, weight_decay]),
            Self::Adagrad { lr, eps, weight_decay, .. } => ([0.0; 2], [lr, eps, weight_decay]),
            Self::RowAdagrad { lr, eps, .. } => ([0.0; 2], [lr, eps, 0.0]),
        };
        let good = fraction.iter().all(|v| (0.0..1.0).contains(v)) && others.iter().all(|v| v.is_finite() && *v >= 0.0);
        let initial_is_good = match *self {
            Self::Adagrad { initial, .. } | Self::RowAdagrad { initial, .. } => initial.is_finite() && initial >= 0.0,
            _ => true,
        };
        if good && initial_is_good {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{self:?}: learning rate, eps and decay must be finite and not negative, momentum and betas from 0 to below 1"
        )))
    }

    /// Whether it remembers a direction: what asynchrony fights with.
    pub fn has_momentum(&self) -> bool {
        match *self {
            Self::Sgd { momentum, .. } => momentum > 0.0,
            Self::Adam { beta1, .. } => beta1 > 0.0,
            _ => false,
        }
    }

    /// What it remembers of so many elements in so many rows, at the start.
    pub fn slots(&self, elements: usize, rows: usize) -> Vec<Vec<f32>> {
        match *self {
            Self::Sgd { momentum, .. } if momentum > 0.0 => vec![vec![0.0; elements]],
            Self::Sgd { .. } => vec![],
            Self::Adam { .. } => vec![vec![0.0; elements]; 2],
            Self::Adagrad { initial, .. } => vec![vec![initial as f32; elements]],
            Self::RowAdagrad { initial, .. } => vec![vec![initial as f32; rows]],
        }
    }

    /// Whether its slots are one number for each row.
    pub const fn remembers_rows(&self) -> bool {
        matches!(self, Self::RowAdagrad { .. })
    }

    /// Updates `w` by the gradient `g`; `slots` are those of the very elements (or, of one row).
    pub fn update(&self, step: Step, w: &mut [f32], g: &[f32], slots: &mut [&mut [f32]]) {
        let rate = |lr: f64| step.rate.unwrap_or(lr as f32) * step.scale;
        match (*self, slots) {
            (Self::Sgd { lr, weight_decay, .. }, []) => {
                let (lr, decay) = (rate(lr), weight_decay as f32);
                for (w, g) in w.iter_mut().zip(g) {
                    *w -= lr * (g + decay * *w);
                }
            }
            (Self::Sgd { lr, momentum, nesterov, weight_decay }, [buffer, ..]) => {
                let (lr, momentum, decay) = (rate(lr), momentum as f32, weight_decay as f32);
                for ((w, g), b) in w.iter_mut().zip(g).zip(buffer.iter_mut()) {
                    let g = g + decay * *w;
                    *b = momentum * *b + g;
                    *w -= lr * if nesterov { g + momentum * *b } else { *b };
                }
            }
            (Self::Adam { lr, beta1, beta2, eps, weight_decay, decoupled }, [first, second, ..]) => {
                let power = |beta: f64| 1.0 - beta.powi(i32::try_from(step.number).unwrap_or(i32::MAX));
                let lr = rate(lr);
                let (length, root) = (lr / power(beta1) as f32, power(beta2).sqrt() as f32);
                let (b1, b2, eps, decay) = (beta1 as f32, beta2 as f32, eps as f32, weight_decay as f32);
                // In f64: 1 - 0.999 has few digits left in f32.
                let (r1, r2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
                for (((w, g), m), v) in w.iter_mut().zip(g).zip(first.iter_mut()).zip(second.iter_mut()) {
                    let g = if decoupled { *g } else { g + decay * *w };
                    if decoupled {
                        *w *= 1.0 - lr * decay;
                    }
                    *m = b1 * *m + r1 * g;
                    *v = b2 * *v + r2 * g * g;
                    *w -= length * *m / (v.sqrt() / root + eps);
                }
            }
            (Self::Adagrad { lr, eps, weight_decay, .. }, [sums, ..]) => {
                let (lr, eps, decay) = (rate(lr), eps as f32, weight_decay as f32);
                for ((w, g), s) in w.iter_mut().zip(g).zip(sums.iter_mut()) {
                    let g = g + decay * *w;
                    *s += g * g;
                    *w -= lr * g / (s.sqrt() + eps);
                }
            }
            (Self::RowAdagrad { lr, eps, .. }, [sums, ..]) => {
                let (lr, eps) = (rate(lr), eps as f32);
                let Some(sum) = sums.first_mut() else { return };
                *sum += g.iter().map(|g| g * g).sum::<f32>() / g.len().max(1) as f32;
                let length = lr / (sum.sqrt() + eps);
                for (w, g) in w.iter_mut().zip(g) {
                    *w -= length * g;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, numbers: &[(&str, f64)], gradients: &[f32]) -> f32 {
        let numbers: Vec<(String, f64)> = numbers.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let optimizer = Optimizer::named(name, &numbers).unwrap();
        let mut slots = optimizer.slots(1, 1);
        let mut w = [1.0];
        for (at, g) in gradients.iter().enumerate() {
            let mut views: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            optimizer.update(Step { number: at as u64 + 1, rate: None, scale: 1.0 }, &mut w, &[*g], &mut views);
        }
        w[0]
    }

    /// The right sides were computed with `torch.optim` in float64.
    #[test]
    fn formulae_are_those_of_pytorch() {
        type Case<'a> = (&'a str, &'a [(&'a str, f64)], f64);
        let gradients = [0.5, -0.25, 1.0];
        let cases: [Case<'_>; 7] = [
            ("sgd", &[("lr", 0.1)], 0.875),
            ("sgd", &[("lr", 0.1), ("momentum", 0.9)], 0.812),
            ("sgd", &[("lr", 0.1), ("momentum", 0.9), ("nesterov", 1.0)], TORCH[0]),
            ("adam", &[("lr", 0.1), ("weight_decay", 0.01)], TORCH[1]),
            ("adamw", &[("lr", 0.1)], TORCH[2]),
            ("adagrad", &[("lr", 0.1)], TORCH[3]),
            ("row_adagrad", &[("lr", 0.1)], TORCH[3]),
        ];
        for (name, numbers, expected) in cases {
            let got = f64::from(run(name, numbers, &gradients));
            assert!((got - expected).abs() < 1e-6, "{name} {numbers:?}: {got} is not {expected}");
        }
    }

    const TORCH: [f64; 4] = [0.7058, 0.804_614_334_217_385_8, 0.804_784_672_376_384, 0.857_434_203_475_217_8];

    #[test]
    fn wrong_names_and_numbers_are_explained() {
        let text = |name: &str, number: &str, value: f64| {
            Optimizer::named(name, &[(number.to_owned(), value)]).unwrap_err().to_string()
        };
        assert!(text("lion", "lr", 0.1).contains("adamw"));
        assert!(text("sgd", "beta1", 0.1).contains("momentum"));
        assert!(text("sgd", "lr", f64::NAN).contains("finite"));
        assert!(text("adam", "beta2", 1.0).contains("below 1"));
    }
}
