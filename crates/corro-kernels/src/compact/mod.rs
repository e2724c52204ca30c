//! Fewer bits for the same values: what compressed collectives do with each `f32`.
//!
//! | module | holds |
//! | --- | --- |
//! | `noise` | random numbers by counter, for stochastic rounding |
//! | `levels` | blocks of small integers with a scale each: int8, QSGD, TernGrad |
//! | `float8` | blocks of 8-bit floats (e4m3) with a scale each |
//! | `signs` | blocks of one bit a value with a scale each |
//! | `matrices` | the products of PowerSGD |
//! | `rotation` | the fast Hadamard transform |
//!
//! The loops work on lanes of a fixed number, so that the compiler makes vector code of them in each instruction set; the
//! order of additions is that of the lanes, so all instruction sets agree on every bit. An encoder may leave in the place of
//! the values what the code does not say of them ([`Rest::Keep`]): the residual of error feedback, without another pass.
//!
//! A block with a NaN or an infinity is encoded as NaN, and comes out as NaN everywhere: nothing is silently repaired. Its
//! residual is zero, since a residual that is not a number would never go away.

mod float8;
mod levels;
mod matrices;
mod noise;
mod rotation;
mod signs;

pub use levels::Levels;
pub use noise::Noise;

pub(crate) use float8::{float8_decode, float8_encode};
pub(crate) use levels::{levels_decode, levels_encode};
pub(crate) use matrices::{outer, times, transposed_times};
pub(crate) use rotation::hadamard;
pub(crate) use signs::{signs_decode, signs_encode, signs_len};

/// Values that are handled at once: as many as fill the widest register there is.
pub(crate) const LANES: usize = 16;

/// From these bits on, without the sign, it is an infinity or not a number.
const NOT_FINITE: u32 = 0x7f80_0000;

/// A block whose largest value is below this is sent as zeros: its scale could not be inverted. Nothing is lost, since it
/// stays in the residual.
const TINY: f32 = 1e-30;

/// What an encoder leaves in the place of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The values, as they were.
    Leave,
    /// What the code does not say: the value less what the decoder will make of it.
    Keep,
}

/// What a decoder does with what is in the place already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// Overwrites it.
    Set,
    /// Adds to it.
    Add,
}

/// Rows and columns of a matrix, and columns of the narrow one.
type Sizes = [usize; 3];

/// The kernels of one instruction set.
pub(crate) struct Compact {
    pub(crate) levels_encode: unsafe fn(&mut [f32], Levels, Option<Noise>, Rest, &mut [u8]),
    pub(crate) levels_decode: unsafe fn(&[u8], Levels, Into, &mut [f32]),
    pub(crate) float8_encode: unsafe fn(&mut [f32], usize, Option<Noise>, Rest, &mut [u8]),
    pub(crate) float8_decode: unsafe fn(&[u8], usize, Into, &mut [f32]),
    pub(crate) signs_encode: unsafe fn(&mut [f32], usize, Rest, &mut [u8]),
    pub(crate) signs_decode: unsafe fn(&[u8], usize, Into, &mut [f32]),
    pub(crate) times: unsafe fn(&[f32], &[f32], &mut [f32], Sizes),
    pub(crate) transposed_times: unsafe fn(&[f32], &[f32], &mut [f32], Sizes),
    pub(crate) outer: unsafe fn(&[f32], &[f32], &mut [f32], Sizes, Into),
    pub(crate) hadamard: unsafe fn(&mut [f32], usize),
}

/// Defines `COMPACT`, the table of one instruction set.
macro_rules! compact_for {
    (attributes: [$($attribute:meta)?]) => {
        /// The kernels of this instruction set. Calling one on a machine that lacks it is undefined behaviour.
        pub(crate) static COMPACT: $crate::compact::Compact = {
            use $crate::compact::{self, Compact, Into, Levels, Noise, Rest};
            $crate::compact::compact_for! { @each [$($attribute)?]
                levels_encode(values: &mut [f32], levels: Levels, noise: Option<Noise>, rest: Rest, code: &mut [u8]);
                levels_decode(code: &[u8], levels: Levels, into: Into, values: &mut [f32]);
                float8_encode(values: &mut [f32], block: usize, noise: Option<Noise>, rest: Rest, code: &mut [u8]);
                float8_decode(code: &[u8], block: usize, into: Into, values: &mut [f32]);
                signs_encode(values: &mut [f32], block: usize, rest: Rest, code: &mut [u8]);
                signs_decode(code: &[u8], block: usize, into: Into, values: &mut [f32]);
                times(matrix: &[f32], q: &[f32], p: &mut [f32], sizes: [usize; 3]);
                transposed_times(matrix: &[f32], p: &[f32], q: &mut [f32], sizes: [usize; 3]);
                outer(p: &[f32], q: &[f32], matrix: &mut [f32], sizes: [usize; 3], into: Into);
                hadamard(values: &mut [f32], block: usize);
            }
            Compact {
                levels_encode, levels_decode, float8_encode, float8_decode, signs_encode, signs_decode,
                times, transposed_times, outer, hadamard,
            }
        };
    };
    (@each [] $($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(unsafe fn $name($($argument: $type),*) {
            compact::$name($($argument),*);
        })*
    };
    (@each [$attribute:meta] $($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[$attribute] unsafe fn $name($($argument: $type),*) {
            compact::$name($($argument),*);
        })*
    };
}
pub(crate) use compact_for;

/// The largest magnitude of a block, by its bits: as integers they have the same order, and a NaN is the largest of all.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> u32 {
    values.iter().fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff))
}

/// The sum of what `of` makes of each value, lane by lane.
#[inline(always)]
pub(crate) fn sum_of(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        lanes = lanes_plus(lanes, chunk, &of);
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += of(*value);
    }
    lanes.into_iter().sum()
}

/// A function of its own, by value: so the lanes stay in a register, and no vectors are made across chunks.
#[inline(always)]
fn lanes_plus(mut lanes: [f32; LANES], chunk: &[f32; LANES], of: &impl Fn(f32) -> f32) -> [f32; LANES] {
    for lane in 0..LANES {
        lanes[lane] += of(chunk[lane]);
    }
    lanes
}

/// The scales of the blocks lie before the codes: so many bytes.
pub(crate) fn scale_bytes(count: usize, block: usize) -> usize {
    count.div_ceil(block) * size_of::<f32>()
}

/// The scale that was written as these bytes.
#[inline(always)]
pub(crate) fn scale_of(bytes: &[u8; 4]) -> f32 {
    f32::from_le_bytes(*bytes)
}

/// A sealed block that is not finite: its scale says so, its codes are zero, and nothing is left of it.
#[inline(always)]
pub(crate) fn poison(values: &mut [f32], rest: Rest, scale: &mut [u8; 4]) {
    *scale = f32::NAN.to_le_bytes();
    if rest == Rest::Keep {
        values.fill(0.0);
    }
}
