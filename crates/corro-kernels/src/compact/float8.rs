//! Blocks of 8-bit floats with a scale each: e4m3, that is four bits of exponent, three of mantissa, largest value 448.
//!
//! A code is the scales of all blocks (`f32`, little-endian), then a byte for each value.

use super::{Into, LANES, NOT_FINITE, Noise, Rest, TINY, largest, poison, scale_bytes, scale_of};

/// The largest value.
const TOP: f32 = 448.0;
/// Bits of an f32's mantissa that an 8-bit one has no room for.
const CUT: u32 = 20;
/// So that a random fraction of 20 bits is left, which a sum below 8 can hold.
const CUT_NOISE: u32 = 12;
/// What lies between the exponents' zeros, where an 8-bit float has its exponent.
const BIAS: u32 = 120 << 3;
/// The smallest number with a leading one; below, steps are equal.
const NORMAL: f32 = 1.0 / 64.0;
/// Adding this leaves as many bits behind the point as the smallest numbers have: nine.
const ROUND: f32 = 16_384.0;

#[inline(always)]
pub(crate) fn float8_encode(values: &mut [f32], block: usize, noise: Option<Noise>, rest: Rest, code: &mut [u8]) {
    let (scales, codes) = code.split_at_mut(scale_bytes(values.len(), block));
    let mut done = 0;
    for ((values, codes), scale) in
        values.chunks_mut(block).zip(codes.chunks_mut(block)).zip(scales.as_chunks_mut::<4>().0)
    {
        let noise = noise.map(|noise| noise.skip(done));
        done += values.len();
        let top = largest(values);
        if top >= NOT_FINITE {
            codes.fill(0);
            poison(values, rest, scale);
            continue;
        }
        let top = f32::from_bits(top);
        if top < TINY {
            codes.fill(0);
            *scale = 0f32.to_le_bytes();
            continue;
        }
        let (step, inverse) = (top / TOP, TOP / top);
        *scale = step.to_le_bytes();
        match noise {
            None => block_encode(values, step, inverse, rest, nearest, codes),
            Some(noise) => block_encode(values, step, inverse, rest, |x, i| stochastic(x, noise.bits(i)), codes),
        }
    }
}

#[inline(always)]
fn block_encode(
    values: &mut [f32],
    step: f32,
    inverse: f32,
    rest: Rest,
    round: impl Fn(f32, u32) -> u8,
    codes: &mut [u8],
) {
    let keep = rest == Rest::Keep;
    let mut at = 0;
    for (values, codes) in values.chunks_mut(LANES).zip(codes.chunks_mut(LANES)) {
        for (i, (value, code)) in values.iter_mut().zip(codes).enumerate() {
            *code = round(*value * inverse, (at + i) as u32);
            if keep {
                *value -= widen(*code) * step;
            }
        }
        at += LANES;
    }
}

/// To nearest even.
#[inline(always)]
fn nearest(x: f32, _place: u32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    let magnitude = f32::from_bits(bits);
    let normal = ((bits + ((1 << (CUT - 1)) - 1) + (bits >> CUT & 1)) >> CUT).wrapping_sub(BIAS);
    let small = (magnitude + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
    sealed(x, if magnitude >= NORMAL { normal } else { small })
}

/// Up or down, by chance, so that the mean is the value itself.
#[inline(always)]
fn stochastic(x: f32, random: u32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    let magnitude = f32::from_bits(bits);
    let normal = ((bits + (random >> (32 - CUT))) >> CUT).wrapping_sub(BIAS);
    let small = (magnitude * 512.0 + (random >> CUT_NOISE) as f32 * (1.0 / 1_048_576.0)) as u32;
    sealed(x, if magnitude >= NORMAL { normal } else { small })
}

/// With the sign, and no further than to the largest value.
#[inline(always)]
fn sealed(x: f32, code: u32) -> u8 {
    (code.min(0x7e) | x.to_bits() >> 24 & 0x80) as u8
}

/// What a byte stands for.
#[inline(always)]
fn widen(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let normal = f32::from_bits((magnitude + BIAS) << CUT);
    let small = magnitude as f32 * (1.0 / 512.0);
    let value = if magnitude >= 8 { normal } else { small };
    f32::from_bits(value.to_bits() | u32::from(code & 0x80) << 24)
}

#[inline(always)]
pub(crate) fn float8_decode(code: &[u8], block: usize, into: Into, values: &mut [f32]) {
    let (scales, codes) = code.split_at(scale_bytes(values.len(), block));
    for ((values, codes), scale) in values.chunks_mut(block).zip(codes.chunks(block)).zip(scales.as_chunks::<4>().0) {
        let step = scale_of(scale);
        for (value, code) in values.iter_mut().zip(codes) {
            let decoded = widen(*code) * step;
            *value = if into == Into::Add { *value + decoded } else { decoded };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_eight_bits_comes_back() {
        for code in (0..=0x7e).chain(0x80..=0xfe) {
            let value = widen(code);
            let again = nearest(value, 0);
            assert_eq!(again & 0x7f, code & 0x7f, "{value}");
            assert_eq!(stochastic(value, u32::MAX) & 0x7f, code & 0x7f, "{value}");
        }
        assert_eq!((widen(0x7e), widen(0x08), widen(0x01)), (448.0, 1.0 / 64.0, 1.0 / 512.0));
    }

    #[test]
    fn the_nearest_is_taken_and_ties_go_to_even() {
        assert_eq!(widen(nearest(17.0, 0)), 16.0);
        assert_eq!(widen(nearest(19.0, 0)), 20.0);
        assert_eq!(widen(nearest(-18.5, 0)), -18.0);
        assert_eq!(widen(nearest(1.0 / 1024.0, 0)), 0.0);
        assert_eq!(widen(nearest(1.1 / 1024.0, 0)), 1.0 / 512.0);
        assert_eq!(widen(nearest(460.0, 0)), 448.0);
    }
}
