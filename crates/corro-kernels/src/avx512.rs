//! The kernels for AVX-512 (F, BW, VL and DQ). Never FMA: its results differ from mul and add.

#![expect(unsafe_code, reason = "kernels work on raw memory and need target features")]

use std::arch::x86_64::{
    __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_add_epi32, _mm512_mask_blend_epi16, _mm512_mask_or_epi32, _mm512_set1_epi32,
    _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_test_epi32_mask,
};

use corro_core::{DType, ReduceOp};

use crate::float16::{self, Conversion};
use crate::instantiate::kernels_for;

kernels_for!(
    name: "avx512",
    attributes: [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")],
    f16: Binary16,
    bf16: Bfloat16
);

/// AVX-512F. Only for the kernels of this file, which have the target features.
struct Binary16;

impl Conversion for Binary16 {
    const LANES: usize = 16;

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
        // SAFETY: the caller vouches for 16 elements on both sides, and for the target features.
        unsafe { _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from))) }
    }
}

/// The steps of [`float16::Bfloat16`] in whole registers.
struct Bfloat16;

impl Conversion for Bfloat16 {
    const LANES: usize = 16;
    const PERMUTED_LANES: usize = 32;

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
        // SAFETY: the caller vouches for 16 elements on both sides, and for the target features.
        unsafe {
            let wide = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())));
            _mm512_storeu_ps(to, _mm512_castsi512_ps(wide));
        }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let upper = _mm512_srli_epi32::<16>(rounded(_mm512_loadu_ps(from)));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(upper));
        }
    }

    /// The even elements, then the odd ones: a shift and a mask give them without moving any between lanes.
    #[inline(always)]
    unsafe fn widen_permuted(from: *const u16, to: *mut f32) {
        // SAFETY: the caller vouches for 32 elements on both sides, and for the target features.
        unsafe {
            let both = _mm512_loadu_si512(from.cast());
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            _mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)));
            _mm512_storeu_ps(to.add(16), _mm512_castsi512_ps(odd));
        }
    }

    #[inline(always)]
    unsafe fn narrow_permuted(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let even = _mm512_srli_epi32::<16>(rounded(_mm512_loadu_ps(from)));
            let odd = rounded(_mm512_loadu_ps(from.add(16)));
            _mm512_storeu_si512(to.cast(), _mm512_mask_blend_epi16(0xaaaa_aaaa, even, odd));
        }
    }
}

/// The bfloat16 of each value in its upper half; the lower half is of no use.
///
/// # Safety
/// The target features of this file's kernels are needed.
#[inline(always)]
unsafe fn rounded(values: __m512) -> __m512i {
    // SAFETY: the caller vouches for the target features.
    unsafe {
        let bits = _mm512_castps_si512(values);
        let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x0001_0000));
        let carried = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
        let carried = _mm512_mask_add_epi32(carried, odd, carried, _mm512_set1_epi32(1));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
        _mm512_mask_or_epi32(carried, nan, bits, _mm512_set1_epi32(0x0040_0000))
    }
}
