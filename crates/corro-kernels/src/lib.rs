//! Reduce, scale, cast, compress, and rows of tables, over plain bytes with a [`DType`], using the widest instructions the machine has.
//!
//! Floor 1 of Corro: `corro-collectives` calls it for every byte that is combined on a host. It owns the arithmetic of
//! all dtypes and the choice of instruction set. It never starts a thread, never does I/O, never allocates (except for
//! the list of pointers in [`reduce_slices`], and the lists that [`distinct`] and [`deal`] give), and knows nothing of ranks.
//!
//! # What all functions share
//! * Bytes need not be aligned, and results do not depend on alignment.
//! * Results are the same bits on every instruction set, except for the sign and payload of a NaN.
//! * `f32` and `f64` compute in their own type; `f16` and `bf16` compute in `f32` and are rounded once, to nearest even.
//!   Integers wrap. A bool is "not 0" when read, and 0 or 1 when written: sum and max are "or", product and min "and".
//! * [`ReduceOp::Average`] reduces as a sum; the caller passes the factor.
//! * In min and max, NaN wins, and -0.0 is less than +0.0.
//!
//! # Panics
//! A slice that is not a whole number of elements, slices of unequal element counts, [`ReduceOp::Adasum`] as a
//! reduction, and a factor other than 1 for bools are mistakes of the caller, and panic.

#![expect(clippy::float_cmp, reason = "exact comparisons are meant: a factor is 1 or it is not")]
#![expect(
    clippy::inline_always,
    reason = "the loops must be compiled inside the function that has the target features"
)]

mod adasum;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cast;
mod compact;
mod compacting;
mod dispatch;
mod element;
mod float16;
mod instantiate;
#[cfg(target_arch = "aarch64")]
mod neon;
mod reduce;
mod rows;
mod scalar;
mod stream;

use corro_core::{DType, ReduceOp};

pub use compact::{Into, Levels, Noise, Rest};
pub use dispatch::InstructionSet;
pub use rows::{add_rows, deal, distinct, take_rows};
pub use stream::stream;

/// `dst[i] = op(dst[i], src[i])`.
#[inline]
pub fn reduce(op: ReduceOp, dtype: DType, dst: &mut [u8], src: &[u8]) {
    InstructionSet::best().reduce(op, dtype, dst, src);
}

/// `op(..op(op(srcs[0][i], srcs[1][i]), srcs[2][i]).., srcs[k-1][i]) * factor`, in that order, goes to element `i` of
/// every one of `dsts`, in one pass over memory. A factor of exactly 1 is no multiplication.
///
/// Works on memory that other processes read or write: it is only ever loaded from and stored to, never referenced.
///
/// # Safety
/// Every pointer must be good for `count` elements: `srcs` for reading, `dsts` for writing. Each of `dsts` may start
/// where one of `srcs` starts, and overlaps none, and no other of `dsts`, in another way.
#[expect(unsafe_code, reason = "the caller vouches for the pointers")]
#[inline]
pub unsafe fn reduce_many(op: ReduceOp, dtype: DType, dsts: &[*mut u8], srcs: &[*const u8], count: usize, factor: f64) {
    // SAFETY: the caller's promise is the same.
    unsafe { InstructionSet::best().reduce_many(op, dtype, dsts, srcs, count, factor) }
}

/// [`reduce_many`] for slices.
#[inline]
pub fn reduce_slices(op: ReduceOp, dtype: DType, dst: &mut [u8], srcs: &[&[u8]], factor: f64) {
    InstructionSet::best().reduce_slices(op, dtype, dst, srcs, factor);
}

/// `data[i] *= factor`. Integers are multiplied as `f64`, truncated toward zero, and saturate.
#[inline]
pub fn scale(dtype: DType, data: &mut [u8], factor: f64) {
    InstructionSet::best().scale(dtype, data, factor);
}

/// `dst[i] = src[i]` as another dtype, by the rules of Rust's `as`: integers wrap, floats to integers truncate and
/// saturate. Rounds once, to nearest even. Anything but 0 is true.
#[inline]
pub fn cast(from: DType, to: DType, src: &[u8], dst: &mut [u8]) {
    InstructionSet::best().cast(from, to, src, dst);
}

/// `[a.b, a.a, b.b]` in `f64`, for Adasum. Floating-point dtypes only.
///
/// The order of additions depends on the length alone, so ranks on different machines get the same bits.
#[inline]
pub fn dot_and_norms(dtype: DType, a: &[u8], b: &[u8]) -> [f64; 3] {
    InstructionSet::best().dot_and_norms(dtype, a, b)
}

/// `a[i] = ca * a[i] + cb * b[i]`, for Adasum. Floating-point dtypes only; the coefficients are rounded to the type that
/// is computed in, and there is no fused multiply-add.
#[inline]
pub fn combine(dtype: DType, a: &mut [u8], ca: f64, b: &[u8], cb: f64) {
    InstructionSet::best().combine(dtype, a, ca, b, cb);
}

/// Which instruction set is in use: "avx512", "avx2", "neon" or "scalar".
#[inline]
pub fn instruction_set() -> &'static str {
    InstructionSet::best().name()
}
