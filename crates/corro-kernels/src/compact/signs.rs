//! Blocks of one bit a value with a scale each.
//!
//! A code is the scales of all blocks (`f32`, little-endian), then a bit for each value, set if it is negative: 32 to a word,
//! the first in the lowest bit. The scale is the mean magnitude: of all scales that leaves the smallest residual, and it is
//! always smaller than the values were.

use super::{Into, LANES, NOT_FINITE, Rest, largest, poison, scale_bytes, scale_of, sum_of};

/// Values to a word.
const WORD: usize = 32;

/// Bytes of the code of so many values.
pub(crate) fn signs_len(count: usize, block: usize) -> usize {
    scale_bytes(count, block) + count.div_ceil(WORD) * size_of::<u32>()
}

#[inline(always)]
pub(crate) fn signs_encode(values: &mut [f32], block: usize, rest: Rest, code: &mut [u8]) {
    let (scales, words) = code.split_at_mut(scale_bytes(values.len(), block));
    for (values, word) in values.chunks(WORD).zip(words.as_chunks_mut::<4>().0) {
        *word = signs(values).to_le_bytes();
    }
    for (block, scale) in values.chunks_mut(block).zip(scales.as_chunks_mut::<4>().0) {
        let mean = sum_of(block, f32::abs) / block.len() as f32;
        if largest(block) >= NOT_FINITE || !mean.is_finite() {
            poison(block, rest, scale);
            continue;
        }
        *scale = mean.to_le_bytes();
        if rest == Rest::Keep {
            for value in block {
                *value -= mean.copysign(*value);
            }
        }
    }
}

/// The signs of up to 32 values.
#[inline(always)]
fn signs(values: &[f32]) -> u32 {
    let mut lanes = [0u32; LANES];
    if let Ok(whole) = <&[f32; WORD]>::try_from(values) {
        for lane in 0..LANES {
            let (low, high) = (whole[lane].to_bits() >> 31, whole[lane + LANES].to_bits() >> 31);
            lanes[lane] = (low | high << LANES) << lane;
        }
    } else {
        for (i, value) in values.iter().enumerate() {
            lanes[0] |= value.to_bits() >> 31 << i;
        }
    }
    lanes.into_iter().fold(0, |all, lane| all | lane)
}

#[inline(always)]
pub(crate) fn signs_decode(code: &[u8], block: usize, into: Into, values: &mut [f32]) {
    let (scales, words) = code.split_at(scale_bytes(values.len(), block));
    let mut words = words.as_chunks::<4>().0.iter();
    for (block, scale) in values.chunks_mut(block).zip(scales.as_chunks::<4>().0) {
        let scale = scale_of(scale).to_bits();
        for (values, word) in block.chunks_mut(WORD).zip(&mut words) {
            let word = u32::from_le_bytes(*word);
            for (i, value) in values.iter_mut().enumerate() {
                let decoded = f32::from_bits(scale ^ (word >> i & 1) << 31);
                *value = if into == Into::Add { *value + decoded } else { decoded };
            }
        }
    }
}
