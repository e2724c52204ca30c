//! The two 16-bit floats: binary16 ("half") and bfloat16, the upper half of an `f32`.
//!
//! Both compute in `f32` and are rounded to nearest even when stored. The conversions here are plain integer code without
//! branches, for any CPU; instruction sets with something better bring their own [`Conversion`], which must give the same
//! bits, except in the payload of a NaN.
//!
//! Binary16 numbers are all normal as `f32` and are converted without a step through subnormal ones, so a process that
//! flushes those to zero (`torch.set_flush_denormal`) still sees every value.

#![expect(unsafe_code, reason = "reads and writes raw memory that may belong to several processes")]

use std::marker::PhantomData;

use crate::element::{Arithmetic, Element};

/// How one 16-bit format is converted: one by one, and in whole registers.
///
/// # Safety
/// All functions on pointers need `from` readable and `to` writable for the number of elements they convert, and a CPU
/// that has what the conversion needs.
pub(crate) trait Conversion {
    fn widen(bits: u16) -> f32;
    fn narrow(value: f32) -> u16;

    /// How many elements the next two functions convert.
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn widen_lanes(from: *const u16, to: *mut f32) {
        // SAFETY: the caller's promise, for one element.
        unsafe { to.write_unaligned(Self::widen(from.read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: the caller's promise, for one element.
        unsafe { to.write_unaligned(Self::narrow(from.read_unaligned())) }
    }

    /// How many elements the next two functions convert: to and from an order of `f32` that they alone know.
    const PERMUTED_LANES: usize = Self::LANES;

    #[inline(always)]
    unsafe fn widen_permuted(from: *const u16, to: *mut f32) {
        // SAFETY: the caller's promise, for LANES elements.
        unsafe { Self::widen_lanes(from, to) }
    }

    #[inline(always)]
    unsafe fn narrow_permuted(from: *const f32, to: *mut u16) {
        // SAFETY: the caller's promise, for LANES elements.
        unsafe { Self::narrow_lanes(from, to) }
    }
}

/// A 16-bit float.
#[repr(transparent)]
pub(crate) struct Float16<C>(u16, PhantomData<C>);

impl<C> Clone for Float16<C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Float16<C> {}

impl<C: Conversion> Element for Float16<C> {
    type Acc = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        C::widen(self.0)
    }

    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        Self(C::narrow(acc), PhantomData)
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(from: *const Self) -> [f32; N] {
        let mut block = [f32::ZERO; N];
        if N.is_multiple_of(C::LANES) {
            for i in (0..N).step_by(C::LANES) {
                // SAFETY: i + LANES <= N, and the caller vouches for N elements and the CPU.
                unsafe { C::widen_lanes(from.add(i).cast(), block.as_mut_ptr().add(i)) }
            }
        } else {
            for (i, acc) in block.iter_mut().enumerate() {
                // SAFETY: i < N.
                *acc = unsafe { from.add(i).read_unaligned() }.widen();
            }
        }
        block
    }

    #[inline(always)]
    unsafe fn store<const N: usize>(block: [f32; N], to: *mut Self) {
        if N.is_multiple_of(C::LANES) {
            for i in (0..N).step_by(C::LANES) {
                // SAFETY: i + LANES <= N, and the caller vouches for N elements and the CPU.
                unsafe { C::narrow_lanes(block.as_ptr().add(i), to.add(i).cast()) }
            }
        } else {
            for (i, acc) in block.into_iter().enumerate() {
                // SAFETY: i < N.
                unsafe { to.add(i).write_unaligned(Self::narrow(acc)) }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_permuted<const N: usize>(from: *const Self) -> [f32; N] {
        if !N.is_multiple_of(C::PERMUTED_LANES) {
            // SAFETY: the caller's promise. The store makes the same choice.
            return unsafe { Self::load(from) };
        }
        let mut block = [f32::ZERO; N];
        for i in (0..N).step_by(C::PERMUTED_LANES) {
            // SAFETY: i + PERMUTED_LANES <= N, and the caller vouches for N elements and the CPU.
            unsafe { C::widen_permuted(from.add(i).cast(), block.as_mut_ptr().add(i)) }
        }
        block
    }

    #[inline(always)]
    unsafe fn store_permuted<const N: usize>(block: [f32; N], to: *mut Self) {
        if !N.is_multiple_of(C::PERMUTED_LANES) {
            // SAFETY: the caller's promise. The load made the same choice.
            return unsafe { Self::store(block, to) };
        }
        for i in (0..N).step_by(C::PERMUTED_LANES) {
            // SAFETY: i + PERMUTED_LANES <= N, and the caller vouches for N elements and the CPU.
            unsafe { C::narrow_permuted(block.as_ptr().add(i), to.add(i).cast()) }
        }
    }
}

/// IEEE binary16 in software.
pub(crate) struct Binary16;
/// bfloat16 in software.
pub(crate) struct Bfloat16;

impl Conversion for Binary16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let sign = u32::from(bits & 0x8000) << 16;
        let magnitude = u32::from(bits & 0x7fff) << 13;
        let normal = magnitude + REBIAS;
        // Infinity and NaN: the exponent must become all ones, which takes the step twice.
        let special = normal + REBIAS;
        // Put the fraction behind a leading one, then take that one away again.
        let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL)).to_bits();
        let wide = if magnitude < 0x0400 << 13 {
            subnormal
        } else if magnitude < 0x7c00 << 13 {
            normal
        } else {
            special
        };
        f32::from_bits(wide | sign)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // As in bfloat16; whatever rounds beyond the largest finite number is an infinity.
        let rounded = magnitude.wrapping_sub(REBIAS).wrapping_add(0x0fff + ((magnitude >> 13) & 1)) >> 13;
        let normal = Ord::min(rounded, 0x7c00);
        // The last bit of a number just above 0.5 weighs 2^-24, as it does in a subnormal binary16: the addition rounds.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let quiet = 0x7e00 | ((magnitude >> 13) & 0x3ff);
        let half = if magnitude > 0x7f80_0000 {
            quiet
        } else if magnitude < SMALLEST_NORMAL {
            subnormal
        } else {
            normal
        };
        (half | sign) as u16
    }
}

/// The difference between the exponent biases of `f32` and binary16, in the place of an `f32`'s exponent.
const REBIAS: u32 = (127 - 15) << 23;
/// 2^-14, the smallest normal binary16, as `f32` bits.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;

impl Conversion for Bfloat16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        // Half of what is cut off, less one where the last bit kept is even: the carry does the rounding.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A NaN must not be carried into an infinity, nor lose its last fraction bit.
        let quiet = (bits >> 16) | 0x40;
        (if value.is_nan() { quiet } else { rounded }) as u16
    }
}
