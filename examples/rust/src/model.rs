//! A network with one hidden layer, its gradient written out by hand.

use crate::spiral::{CLASSES, Random, Sample};

const HIDDEN: usize = 64;

/// Where the parts lie in the one vector of weights: one vector means one allreduce.
const IN_WEIGHTS: usize = 0;
const IN_BIASES: usize = IN_WEIGHTS + 2 * HIDDEN;
const OUT_WEIGHTS: usize = IN_BIASES + HIDDEN;
const OUT_BIASES: usize = OUT_WEIGHTS + HIDDEN * CLASSES;
const ALL: usize = OUT_BIASES + CLASSES;

pub(crate) struct Model {
    pub(crate) weights: Vec<f32>,
}

impl Model {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let weights = (0..ALL)
            .map(|i| match i {
                IN_WEIGHTS..IN_BIASES => 4.0 * (random.next() - 0.5),
                OUT_WEIGHTS..OUT_BIASES => 0.5 * (random.next() - 0.5),
                _ => 0.0,
            })
            .collect();
        Self { weights }
    }

    /// The hidden activations and the probability of each class.
    fn forward(&self, at: [f32; 2]) -> ([f32; HIDDEN], [f32; CLASSES]) {
        let w = &self.weights;
        let hidden: [f32; HIDDEN] = std::array::from_fn(|h| {
            (w[IN_WEIGHTS + 2 * h] * at[0] + w[IN_WEIGHTS + 2 * h + 1] * at[1] + w[IN_BIASES + h]).tanh()
        });
        let mut scores: [f32; CLASSES] = std::array::from_fn(|c| {
            hidden.iter().enumerate().map(|(h, x)| w[OUT_WEIGHTS + h * CLASSES + c] * x).sum::<f32>()
                + w[OUT_BIASES + c]
        });
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        scores = scores.map(|s| (s - largest).exp());
        let sum: f32 = scores.iter().sum();
        (hidden, scores.map(|s| s / sum))
    }

    pub(crate) fn predict(&self, sample: &Sample) -> usize {
        let (_, chances) = self.forward(sample.at);
        (0..CLASSES).fold(0, |best, c| if chances[c] > chances[best] { c } else { best })
    }

    /// The mean loss over `samples`; its slope goes to `gradient`.
    pub(crate) fn gradient<'a>(&self, samples: impl ExactSizeIterator<Item = &'a Sample>, gradient: &mut [f32]) -> f32 {
        gradient.fill(0.0);
        let share = 1.0 / samples.len() as f32;
        let mut loss = 0.0;
        for sample in samples {
            let (hidden, chances) = self.forward(sample.at);
            loss -= share * chances[sample.class].max(1e-12).ln();
            let slope: [f32; CLASSES] = std::array::from_fn(|c| share * (chances[c] - f32::from(c == sample.class)));
            for (h, x) in hidden.iter().enumerate() {
                let out = OUT_WEIGHTS + h * CLASSES;
                let mut back = 0.0;
                for c in 0..CLASSES {
                    gradient[out + c] += slope[c] * x;
                    back += slope[c] * self.weights[out + c];
                }
                back *= 1.0 - x * x;
                gradient[IN_WEIGHTS + 2 * h] += back * sample.at[0];
                gradient[IN_WEIGHTS + 2 * h + 1] += back * sample.at[1];
                gradient[IN_BIASES + h] += back;
            }
            for c in 0..CLASSES {
                gradient[OUT_BIASES + c] += slope[c];
            }
        }
        loss
    }
}
