//! A small Gaussian process: what is known about a function from a few noisy samples, and where to look next.
//!
//! Owns arithmetic only: no clock, no chance, no state between fits. [`super::autotune`] calls it on rank 0. Made for a
//! handful of knobs and a few dozen measurements: at most some 6 dimensions and 50 samples, for which a Cholesky
//! factorisation in plain loops takes microseconds. Inputs are scaled to 0..1 by the caller. Deterministic: the same
//! samples give the same answer.

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Where, each coordinate in 0..1.
    pub at: Vec<f64>,
    /// What was measured; more is better.
    pub score: f64,
}

/// What is known about the function.
#[derive(Debug)]
pub struct GaussianProcess {
    samples: Vec<Sample>,
    /// The lower triangle L with L Lᵀ = K + noise.
    factor: Vec<Vec<f64>>,
    /// (K + noise)⁻¹ y.
    weights: Vec<f64>,
    mean: f64,
    spread: f64,
    /// How far, in scaled units, a measurement tells about its surroundings.
    length: f64,
    /// The best expected score at any place that was measured.
    best: f64,
}

/// The lengths that are tried, and the parts of the noise that was given; the pair that makes the samples most likely is
/// taken.
const LENGTHS: [f64; 5] = [0.15, 0.25, 0.4, 0.7, 1.2];
const NOISES: [f64; 3] = [1.0, 0.25, 0.05];

fn kernel(a: &[f64], b: &[f64], length: f64) -> f64 {
    let squared: f64 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    (-squared / (2.0 * length * length)).exp()
}

impl GaussianProcess {
    /// Learns from `samples` (at least one); `noise` is the variance of a measurement relative to the scores' own, in
    /// 0..1, at most: less is believed if the samples are that smooth. `None` if the numbers make no sense (not finite, no samples).
    pub fn fit(samples: Vec<Sample>, noise: f64) -> Option<Self> {
        let n = samples.len();
        let finite = samples.iter().all(|s| s.score.is_finite() && s.at.iter().all(|x| x.is_finite()));
        if n == 0 || !finite || !(0.0..=1.0).contains(&noise) {
            return None;
        }
        let mean = samples.iter().map(|s| s.score).sum::<f64>() / n as f64;
        let variance = samples.iter().map(|s| (s.score - mean).powi(2)).sum::<f64>() / n as f64;
        let spread = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        // Never quite zero: two measurements at one place would make the matrix singular.
        let noise = noise.max(1e-6);
        let scaled: Vec<f64> = samples.iter().map(|s| (s.score - mean) / spread).collect();
        let models = LENGTHS.iter().flat_map(|length| NOISES.iter().map(move |part| (*length, noise * part)));
        let mut fits = models.map(|(length, noise)| {
            let factor = factor(&samples, length, noise);
            let weights = solve_upper(&factor, &solve_lower(&factor, &scaled));
            // The logarithm of the samples' likelihood, up to a constant.
            let explained: f64 = scaled.iter().zip(&weights).map(|(y, w)| y * w).sum();
            let volume: f64 = (0..n).map(|i| factor[i][i].ln()).sum();
            (-explained / 2.0 - volume, length, factor, weights)
        });
        let first = fits.next()?;
        let (_, length, factor, weights) = fits.fold(first, |a, b| if b.0 > a.0 { b } else { a });
        let mut fit = Self { samples, factor, weights, mean, spread, length, best: f64::MIN };
        // Not the best score: that of a noisy function is the luckiest, and nothing would seem to beat it.
        fit.best = fit.samples.iter().map(|s| fit.predict(&s.at).0).fold(f64::MIN, f64::max);
        Some(fit)
    }

    /// The expected score at a place, and its standard deviation.
    pub fn predict(&self, at: &[f64]) -> (f64, f64) {
        let near: Vec<f64> = self.samples.iter().map(|s| kernel(&s.at, at, self.length)).collect();
        let expected: f64 = near.iter().zip(&self.weights).map(|(k, w)| k * w).sum();
        let known: f64 = solve_lower(&self.factor, &near).iter().map(|v| v * v).sum();
        let deviation = (1.0 - known).max(0.0).sqrt();
        (self.mean + self.spread * expected, self.spread * deviation)
    }

    /// How much better than the best place so far a measurement at this one is expected to be.
    pub fn expected_improvement(&self, at: &[f64]) -> f64 {
        let (expected, deviation) = self.predict(at);
        let gain = expected - self.best;
        if deviation < 1e-12 * self.spread {
            return gain.max(0.0);
        }
        let z = gain / deviation;
        gain * normal_below(z) + deviation * normal_density(z)
    }

    /// Which of these places is expected to improve most: the first of equals. `None` if there are none.
    pub fn most_promising<'a>(&self, places: impl IntoIterator<Item = &'a [f64]>) -> Option<usize> {
        let gains = places.into_iter().map(|at| self.expected_improvement(at)).enumerate();
        gains.reduce(|a, b| if b.1 > a.1 { b } else { a }).map(|(place, _)| place)
    }
}

/// The lower triangle L with L Lᵀ = K + noise.
fn factor(samples: &[Sample], length: f64, noise: f64) -> Vec<Vec<f64>> {
    let n = samples.len();
    let mut factor = vec![vec![0.0; n]; n];
    for i in 0..n {
        for j in 0..=i {
            let above: f64 = (0..j).map(|k| factor[i][k] * factor[j][k]).sum();
            let value = kernel(&samples[i].at, &samples[j].at, length) + if i == j { noise } else { 0.0 } - above;
            factor[i][j] = if i == j { value.max(1e-12).sqrt() } else { value / factor[j][j] };
        }
    }
    factor
}

/// Solves L x = b.
fn solve_lower(lower: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let mut x: Vec<f64> = Vec::with_capacity(b.len());
    for (i, row) in lower.iter().enumerate() {
        let known: f64 = row[..i].iter().zip(&x).map(|(l, x)| l * x).sum();
        x.push((b[i] - known) / row[i]);
    }
    x
}

/// Solves Lᵀ x = b.
fn solve_upper(lower: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let n = b.len();
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| lower[k][i] * x[k]).sum();
        x[i] = (b[i] - known) / lower[i][i];
    }
    x
}

fn normal_density(z: f64) -> f64 {
    (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// The chance that a standard normal variable is below `z`; good to seven digits (Abramowitz and Stegun 26.2.17).
fn normal_below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = normal_density(z) * series.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    if z < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_right() {
        for (z, below) in [(0.0, 0.5), (1.0, 0.841_344_75), (-1.96, 0.024_997_9), (3.0, 0.998_650_1)] {
            assert!((normal_below(z) - below).abs() < 1e-6, "{z}");
        }
    }

    #[test]
    fn it_believes_its_samples_and_doubts_what_is_far() {
        let samples = vec![Sample { at: vec![0.1], score: 3.0 }, Sample { at: vec![0.5], score: 7.0 }];
        let gp = GaussianProcess::fit(samples, 0.0).unwrap();
        let (near, sure) = gp.predict(&[0.5]);
        let (_, unsure) = gp.predict(&[1.0]);
        assert!((near - 7.0).abs() < 1e-2 && sure < 0.1 * unsure, "{near} {sure} {unsure}");
    }

    #[test]
    fn noise_makes_it_average_what_disagrees() {
        let samples = [1.0, 3.0].map(|score| Sample { at: vec![0.5], score }).to_vec();
        let (expected, _) = GaussianProcess::fit(samples, 0.8).unwrap().predict(&[0.5]);
        assert!((expected - 2.0).abs() < 1e-6, "{expected}");
    }

    #[test]
    fn it_finds_the_top_of_a_hill_in_two_dimensions_with_few_looks() {
        let hill = |at: &[f64]| 10.0 - 40.0 * (at[0] - 0.7).powi(2) - 20.0 * (at[1] - 0.3).powi(2);
        let mut samples: Vec<Sample> = [[0.1, 0.1], [0.9, 0.9], [0.5, 0.5]]
            .into_iter()
            .map(|at| Sample { score: hill(&at), at: at.to_vec() })
            .collect();
        let grid: Vec<[f64; 2]> = (0..441).map(|i| [f64::from(i % 21) / 20.0, f64::from(i / 21) / 20.0]).collect();
        for _ in 0..17 {
            let gp = GaussianProcess::fit(samples.clone(), 0.01).unwrap();
            let at = grid[gp.most_promising(grid.iter().map(<[f64; 2]>::as_slice)).unwrap()];
            samples.push(Sample { score: hill(&at), at: at.to_vec() });
        }
        let best = samples.iter().map(|s| s.score).fold(f64::MIN, f64::max);
        assert!(best > 9.8, "{best}");
    }

    #[test]
    fn nonsense_is_refused_not_panicked_on() {
        assert!(GaussianProcess::fit(vec![], 0.1).is_none());
        assert!(GaussianProcess::fit(vec![Sample { at: vec![0.5], score: f64::NAN }], 0.1).is_none());
        assert!(GaussianProcess::fit(vec![Sample { at: vec![0.5], score: 1.0 }], 7.0).is_none());
        // All scores equal: nothing to learn, but no division by zero either.
        let same = vec![Sample { at: vec![0.2], score: 4.0 }, Sample { at: vec![0.2], score: 4.0 }];
        assert!(GaussianProcess::fit(same, 0.0).unwrap().predict(&[0.9]).0.is_finite());
    }
}
