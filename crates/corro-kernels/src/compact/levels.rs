//! Blocks of small integers with a scale each.
//!
//! A code is the scales of all blocks (`f32`, little-endian), then the integers: 8, 4 or 2 bits each, in two's complement, the
//! first in the lowest bits. With 8 bits and the block's largest value as scale that is int8; with its norm it is QSGD; with
//! 2 bits and noise it is TernGrad.

use super::{Into, LANES, NOT_FINITE, Noise, Rest, TINY, largest, poison, scale_bytes, scale_of, sum_of};

/// Adding and taking away this number rounds an `f32` below 2^22 to a whole one, to nearest even; in between, the low bits of
/// its pattern are that number in two's complement.
const ROUND: f32 = 12_582_912.0;

/// What integers stand for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Values that share a scale.
    pub block: usize,
    /// Bits of an integer: 8, 4 or 2.
    pub bits: u32,
    /// Whether the scale is the block's norm; else its largest value.
    pub by_norm: bool,
}

impl Levels {
    /// Bytes of the code of so many values.
    pub fn encoded_len(self, count: usize) -> usize {
        scale_bytes(count, self.block) + (count * self.bits as usize).div_ceil(8)
    }

    /// The largest integer.
    #[inline(always)]
    fn top(self) -> f32 {
        ((1u32 << (self.bits - 1)) - 1) as f32
    }
}

#[inline(always)]
pub(crate) fn levels_encode(values: &mut [f32], levels: Levels, noise: Option<Noise>, rest: Rest, code: &mut [u8]) {
    let (scales, codes) = code.split_at_mut(scale_bytes(values.len(), levels.block));
    codes.fill(0);
    let mut done = 0;
    for (block, scale) in values.chunks_mut(levels.block).zip(scales.as_chunks_mut::<4>().0) {
        let at = done * levels.bits as usize / 8;
        let noise = noise.map(|noise| noise.skip(done));
        done += block.len();
        let top = largest(block);
        let norm = if levels.by_norm { sum_of(block, |x| x * x).sqrt() } else { f32::from_bits(top) };
        if top >= NOT_FINITE || !norm.is_finite() {
            poison(block, rest, scale);
            continue;
        }
        if norm < TINY {
            *scale = 0f32.to_le_bytes();
            continue;
        }
        let grid = Grid { step: norm / levels.top(), inverse: levels.top() / norm, top: levels.top() };
        *scale = grid.step.to_le_bytes();
        let codes = &mut codes[at..];
        match (noise, rest) {
            (None, Rest::Keep) => block_encode::<true>(block, grid, |_| 0.0, levels.bits, codes),
            (None, Rest::Leave) => block_encode::<false>(block, grid, |_| 0.0, levels.bits, codes),
            (Some(noise), Rest::Keep) => block_encode::<true>(block, grid, |i| noise.shift(i), levels.bits, codes),
            (Some(noise), Rest::Leave) => block_encode::<false>(block, grid, |i| noise.shift(i), levels.bits, codes),
        }
    }
}

/// The values that a block can take.
#[derive(Clone, Copy)]
struct Grid {
    step: f32,
    inverse: f32,
    top: f32,
}

impl Grid {
    /// In steps, rounded, plus [`ROUND`]. The largest value times the inverse may come out a little above the top, and must
    /// not wrap to the bottom.
    #[inline(always)]
    fn round(self, value: f32, shift: f32) -> f32 {
        (value * self.inverse + shift).clamp(-self.top, self.top) + ROUND
    }
}

/// Encodes a finite block. `shift` is added before rounding: noise in [-1/2, 1/2) makes rounding stochastic.
#[inline(always)]
fn block_encode<const KEEP: bool>(
    block: &mut [f32],
    grid: Grid,
    shift: impl Fn(u32) -> f32,
    bits: u32,
    codes: &mut [u8],
) {
    let mut at = 0;
    let (chunks, rest) = block.as_chunks_mut::<LANES>();
    let mut wide = [0u8; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let rounded = grid.round(chunk[lane], shift((at + lane) as u32));
            wide[lane] = rounded.to_bits() as u8;
            if KEEP {
                chunk[lane] -= (rounded - ROUND) * grid.step;
            }
        }
        put(&wide, bits, at, codes);
        at += LANES;
    }
    for (lane, value) in rest.iter_mut().enumerate() {
        let rounded = grid.round(*value, shift((at + lane) as u32));
        wide[lane] = rounded.to_bits() as u8;
        if KEEP {
            *value -= (rounded - ROUND) * grid.step;
        }
    }
    put(&wide[..rest.len()], bits, at, codes);
}

/// Writes integers of 8 bits as integers of `bits`, from the place `at` on.
#[inline(always)]
fn put(wide: &[u8], bits: u32, at: usize, codes: &mut [u8]) {
    match bits {
        8 => codes[at..at + wide.len()].copy_from_slice(wide),
        4 => pack::<2>(wide, &mut codes[at / 2..]),
        _ => pack::<4>(wide, &mut codes[at / 4..]),
    }
}

/// `N` integers to a byte. Blocks begin with a byte of their own.
#[inline(always)]
fn pack<const N: usize>(wide: &[u8], codes: &mut [u8]) {
    let mask = (1u32 << (8 / N)) - 1;
    for (integers, code) in wide.chunks(N).zip(codes) {
        for (i, integer) in integers.iter().enumerate() {
            *code |= ((u32::from(*integer) & mask) << (i * 8 / N)) as u8;
        }
    }
}

#[inline(always)]
pub(crate) fn levels_decode(code: &[u8], levels: Levels, into: Into, values: &mut [f32]) {
    let (scales, codes) = code.split_at(scale_bytes(values.len(), levels.block));
    let mut done = 0;
    for (block, scale) in values.chunks_mut(levels.block).zip(scales.as_chunks::<4>().0) {
        let codes = &codes[done * levels.bits as usize / 8..];
        done += block.len();
        let step = scale_of(scale);
        match (levels.bits, into) {
            (8, Into::Add) => bytes_decode::<true>(codes, step, block),
            (8, Into::Set) => bytes_decode::<false>(codes, step, block),
            (4, _) => packed_decode::<2>(codes, step, into, block),
            _ => packed_decode::<4>(codes, step, into, block),
        }
    }
}

#[inline(always)]
fn bytes_decode<const ADD: bool>(codes: &[u8], step: f32, block: &mut [f32]) {
    for (value, code) in block.iter_mut().zip(codes) {
        let decoded = f32::from(*code as i8) * step;
        *value = if ADD { *value + decoded } else { decoded };
    }
}

#[inline(always)]
fn packed_decode<const N: usize>(codes: &[u8], step: f32, into: Into, block: &mut [f32]) {
    let bits = 8 / N;
    for (values, code) in block.chunks_mut(N).zip(codes) {
        for (i, value) in values.iter_mut().enumerate() {
            // Up to the top of a byte and down again, so that the sign comes along.
            let integer = ((*code << (8 - bits - i * bits)) as i8) >> (8 - bits);
            let decoded = f32::from(integer) * step;
            *value = if into == Into::Add { *value + decoded } else { decoded };
        }
    }
}
