//! Blocks of small integers with a scale each.
//!
//! A code is the scales of all blocks (`f32`, little-endian), then the integers: 8, 4 or 2 bits each, in two's complement, the
//! first in the lowest bits. With 8 bits and the block's largest value as scale that is int8; with its norm it is QSGD; with
//! 2 bits and noise it is TernGrad.

use super::{Into, NOT_FINITE, Noise, Rest, TINY, largest, poison, scale_bytes, scale_of, sum_of};

/// Adding and taking away this number rounds an `f32` below 2^22 to a whole one, to nearest even; in between, the low bits of
/// its pattern are that number in two's complement.
const ROUND: f32 = 12_582_912.0;

/// Values of a block that are packed at once.
const WIDE: usize = 256;

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

    /// Bytes of the integers of a whole block, which begins with a byte of its own.
    #[inline(always)]
    fn block_bytes(self) -> usize {
        self.block * self.bits as usize / 8
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
    let blocks = values.chunks_mut(levels.block).zip(scales.as_chunks_mut::<4>().0);
    let mut done = 0;
    for ((block, scale), codes) in blocks.zip(codes.chunks_mut(levels.block_bytes())) {
        let noise = noise.map(|noise| noise.skip(done));
        done += block.len();
        let top = largest(block);
        let norm = if levels.by_norm { sum_of(block, |x| x * x).sqrt() } else { f32::from_bits(top) };
        if top >= NOT_FINITE || !norm.is_finite() {
            poison(block, rest, scale);
            codes.fill(0);
            continue;
        }
        if norm < TINY {
            *scale = 0f32.to_le_bytes();
            codes.fill(0);
            continue;
        }
        let grid = Grid { step: norm / levels.top(), inverse: levels.top() / norm, top: levels.top() };
        *scale = grid.step.to_le_bytes();
        match levels.bits {
            8 => some_block_encode::<8>(block, grid, noise, rest, codes),
            4 => some_block_encode::<4>(block, grid, noise, rest, codes),
            _ => some_block_encode::<2>(block, grid, noise, rest, codes),
        }
    }
}

#[inline(always)]
fn some_block_encode<const BITS: usize>(
    block: &mut [f32],
    grid: Grid,
    noise: Option<Noise>,
    rest: Rest,
    codes: &mut [u8],
) {
    match (noise, rest) {
        (None, Rest::Keep) => block_encode::<BITS, true>(block, grid, |_| 0.0, codes),
        (None, Rest::Leave) => block_encode::<BITS, false>(block, grid, |_| 0.0, codes),
        (Some(noise), Rest::Keep) => block_encode::<BITS, true>(block, grid, |i| noise.shift(i), codes),
        (Some(noise), Rest::Leave) => block_encode::<BITS, false>(block, grid, |i| noise.shift(i), codes),
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
        // Not `clamp`: its check of the bounds keeps the compiler from making vectors.
        let steps = value * self.inverse + shift;
        let steps = if steps > self.top { self.top } else { steps };
        let steps = if steps < -self.top { -self.top } else { steps };
        steps + ROUND
    }
}

/// Encodes a finite block. `shift` is added before rounding: noise in [-1/2, 1/2) makes rounding stochastic.
#[inline(always)]
fn block_encode<const BITS: usize, const KEEP: bool>(
    block: &mut [f32],
    grid: Grid,
    shift: impl Fn(u32) -> f32,
    codes: &mut [u8],
) {
    if BITS == 8 {
        return bytes_encode::<KEEP>(block, grid, shift, codes);
    }
    let mut wide = [0; WIDE];
    let mut at = 0;
    for (values, codes) in block.chunks_mut(WIDE).zip(codes.chunks_mut(WIDE * BITS / 8)) {
        // What is left of an earlier round must not get into the last byte.
        wide[values.len() - values.len() % 4..].fill(0);
        bytes_encode::<KEEP>(values, grid, |i| shift(at + i), &mut wide[..values.len()]);
        pack::<BITS>(&wide, codes);
        at += WIDE as u32;
    }
}

/// A plain loop, with lanes of no fixed number: of the others the compiler makes vectors across chunks, which is slow.
#[inline(always)]
fn bytes_encode<const KEEP: bool>(values: &mut [f32], grid: Grid, shift: impl Fn(u32) -> f32, codes: &mut [u8]) {
    for (i, (value, code)) in values.iter_mut().zip(codes).enumerate() {
        let rounded = grid.round(*value, shift(i as u32));
        *code = rounded.to_bits() as u8;
        if KEEP {
            *value -= (rounded - ROUND) * grid.step;
        }
    }
}

/// Integers of 8 bits as integers of `BITS`, the first in the lowest bits.
#[inline(always)]
fn pack<const BITS: usize>(wide: &[u8; WIDE], codes: &mut [u8]) {
    let each = 8 / BITS;
    let mask = (0xffu32 >> (8 - BITS)) as u8;
    for (code, integers) in codes.iter_mut().zip(wide.chunks_exact(each)) {
        let mut byte = 0;
        for (j, integer) in integers.iter().enumerate() {
            byte |= (integer & mask) << (j * BITS);
        }
        *code = byte;
    }
}

/// The other way: what a byte has is brought to its top and down again, so that the sign comes along.
#[inline(always)]
fn unpack<const BITS: usize>(codes: &[u8], wide: &mut [u8; WIDE]) {
    let each = 8 / BITS;
    for (code, integers) in codes.iter().zip(wide.chunks_exact_mut(each)) {
        for (j, integer) in integers.iter_mut().enumerate() {
            *integer = (((*code << (8 - BITS - j * BITS)) as i8) >> (8 - BITS)) as u8;
        }
    }
}

#[inline(always)]
pub(crate) fn levels_decode(code: &[u8], levels: Levels, into: Into, values: &mut [f32]) {
    let (scales, codes) = code.split_at(scale_bytes(values.len(), levels.block));
    let blocks = values.chunks_mut(levels.block).zip(scales.as_chunks::<4>().0);
    for ((block, scale), codes) in blocks.zip(codes.chunks(levels.block_bytes())) {
        let step = scale_of(scale);
        match (levels.bits, into) {
            (8, Into::Add) => block_decode::<8, true>(codes, step, block),
            (8, Into::Set) => block_decode::<8, false>(codes, step, block),
            (4, Into::Add) => block_decode::<4, true>(codes, step, block),
            (4, Into::Set) => block_decode::<4, false>(codes, step, block),
            (_, Into::Add) => block_decode::<2, true>(codes, step, block),
            (_, Into::Set) => block_decode::<2, false>(codes, step, block),
        }
    }
}

#[inline(always)]
fn block_decode<const BITS: usize, const ADD: bool>(codes: &[u8], step: f32, block: &mut [f32]) {
    if BITS == 8 {
        return bytes_decode::<ADD>(codes, step, block);
    }
    let mut wide = [0; WIDE];
    for (values, codes) in block.chunks_mut(WIDE).zip(codes.chunks(WIDE * BITS / 8)) {
        unpack::<BITS>(codes, &mut wide);
        bytes_decode::<ADD>(&wide, step, values);
    }
}

#[inline(always)]
fn bytes_decode<const ADD: bool>(codes: &[u8], step: f32, values: &mut [f32]) {
    for (value, code) in values.iter_mut().zip(codes) {
        let decoded = f32::from(*code as i8) * step;
        *value = if ADD { *value + decoded } else { decoded };
    }
}
