//! Random numbers by counter: what a value is rounded with depends on its place alone, never on who rounds what first.

/// Noise for stochastic rounding. The same key and places give the same noise on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// Which stream of numbers: of a seed, a step, a name, a rank.
    pub key: u64,
    /// The place of the first value.
    pub first: u64,
}

impl Noise {
    /// 32 random bits for the value `index` places on.
    #[inline(always)]
    pub(crate) fn bits(self, index: u32) -> u32 {
        let place = (self.first as u32).wrapping_add(index);
        let high = (self.key >> 32) as u32 ^ (self.first >> 32) as u32;
        mix(mix(place ^ self.key as u32) ^ high)
    }

    /// A number between -1/2 and 1/2 for the value `index` places on. Never either of them: a whole number plus this is
    /// rounded to that number.
    #[inline(always)]
    pub(crate) fn shift(self, index: u32) -> f32 {
        // 16 bits: added to a number below 128, nothing of them is lost.
        ((self.bits(index) >> 16) as f32 - 32_767.5) * (1.0 / 65_536.0)
    }

    /// The same stream, so many places on.
    #[inline(always)]
    pub(crate) fn skip(self, places: usize) -> Self {
        Self { first: self.first.wrapping_add(places as u64), ..self }
    }
}

/// A permutation of 32 bits in which every bit of the input moves half of the output (two rounds of multiply and shift).
#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_depends_on_the_place_alone_and_is_uniform() {
        let noise = Noise { key: 0x1234_5678_9abc_def0, first: 40 };
        assert_eq!(noise.shift(2), noise.skip(2).shift(0));
        let count = 100_000;
        let mean: f64 = (0..count).map(|i| f64::from(noise.shift(i))).sum::<f64>() / f64::from(count);
        // The mean of so many has a deviation of 0.29 / 316.
        assert!(mean.abs() < 4.0 * 0.000_92, "{mean}");
        let other = Noise { key: noise.key ^ 1, ..noise };
        let product = |i| f64::from(noise.shift(i)) * f64::from(other.shift(i));
        let covariance: f64 = (0..count).map(product).sum::<f64>() / f64::from(count);
        assert!(covariance.abs() < 4.0 / 12.0 / f64::from(count).sqrt(), "{covariance}");
    }
}
