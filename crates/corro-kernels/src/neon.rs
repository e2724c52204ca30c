//! The kernels for 64-bit ARM, where NEON is always there: the compiler does all but the conversions.

#![expect(unsafe_code, reason = "kernels work on raw memory and need target features")]

use std::arch::aarch64::{
    float32x4_t, uint16x4_t, vaddq_u32, vandq_u32, vbslq_u32, vceqq_f32, vdupq_n_u32, vld1_u16, vld1q_f32, vmovl_u16,
    vorrq_u32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshlq_n_u32, vshrn_n_u32, vshrq_n_u32, vst1_u16,
    vst1q_f32,
};
use std::arch::asm;

use corro_core::{DType, ReduceOp};

use crate::float16::{self, Conversion};
use crate::instantiate::kernels_for;

kernels_for!(name: "neon", attributes: [target_feature(enable = "neon")], f16: Binary16, bf16: Bfloat16);

/// The conversions every 64-bit ARM has. Written in assembly because their intrinsics are younger than the oldest
/// compiler Corro accepts.
struct Binary16;

impl Conversion for Binary16 {
    const LANES: usize = 4;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float16::Binary16::widen(bits)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        float16::Binary16::narrow(value)
    }

    #[inline(always)]
    unsafe fn widen_lanes(from: *const u16, to: *mut f32) {
        // SAFETY: the caller vouches for 4 elements on both sides.
        unsafe {
            let halves: uint16x4_t = vld1_u16(from);
            let wide: float32x4_t;
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves, options(pure, nomem, nostack, preserves_flags));
            vst1q_f32(to, wide);
        }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above. Rounds to nearest even, which is the mode Rust's floats are always in.
        unsafe {
            let wide: float32x4_t = vld1q_f32(from);
            let halves: uint16x4_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) wide, options(pure, nomem, nostack, preserves_flags));
            vst1_u16(to, halves);
        }
    }
}

/// The steps of [`float16::Bfloat16`] in whole registers.
struct Bfloat16;

impl Conversion for Bfloat16 {
    const LANES: usize = 4;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float16::Bfloat16::widen(bits)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        float16::Bfloat16::narrow(value)
    }

    #[inline(always)]
    unsafe fn widen_lanes(from: *const u16, to: *mut f32) {
        // SAFETY: the caller vouches for 4 elements on both sides.
        unsafe { vst1q_f32(to, vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(from))))) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let values = vld1q_f32(from);
            let bits = vreinterpretq_u32_f32(values);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let is_number = vceqq_f32(values, values);
            vst1_u16(to, vshrn_n_u32::<16>(vbslq_u32(is_number, rounded, quiet)));
        }
    }
}
