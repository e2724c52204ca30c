//! The kernels for AVX2, with F16C's conversions for binary16. Never FMA: its results differ from mul and add.

#![expect(unsafe_code, reason = "kernels work on raw memory and need target features")]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blend_epi16, _mm256_blendv_epi8, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
};

use corro_core::{DType, ReduceOp};

use crate::float16::{self, Conversion};
use crate::instantiate::kernels_for;

kernels_for!(
    name: "avx2",
    attributes: [target_feature(enable = "avx2,f16c")],
    f16: Binary16,
    bf16: Bfloat16
);

/// F16C. Only for the kernels of this file, which have the target features.
struct Binary16;

impl Conversion for Binary16 {
    const LANES: usize = 8;

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
        // SAFETY: the caller vouches for 8 elements on both sides, and for the target features.
        unsafe { _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from))) }
    }
}

/// The steps of [`float16::Bfloat16`] in whole registers.
struct Bfloat16;

impl Conversion for Bfloat16 {
    const LANES: usize = 8;
    const PERMUTED_LANES: usize = 16;

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
        // SAFETY: the caller vouches for 8 elements on both sides, and for the target features.
        unsafe {
            let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())));
            _mm256_storeu_ps(to, _mm256_castsi256_ps(wide));
        }
    }

    #[inline(always)]
    unsafe fn narrow_lanes(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let upper = _mm256_srli_epi32::<16>(rounded(_mm256_loadu_ps(from)));
            // Packing works within each half of the register; the permutation brings the two results together.
            let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(upper, upper));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }

    /// The even elements, then the odd ones: a shift and a mask give them without moving any between lanes.
    #[inline(always)]
    unsafe fn widen_permuted(from: *const u16, to: *mut f32) {
        // SAFETY: the caller vouches for 16 elements on both sides, and for the target features.
        unsafe {
            let both = _mm256_loadu_si256(from.cast());
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)));
            _mm256_storeu_ps(to.add(8), _mm256_castsi256_ps(odd));
        }
    }

    #[inline(always)]
    unsafe fn narrow_permuted(from: *const f32, to: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let even = _mm256_srli_epi32::<16>(rounded(_mm256_loadu_ps(from)));
            let odd = rounded(_mm256_loadu_ps(from.add(8)));
            _mm256_storeu_si256(to.cast(), _mm256_blend_epi16::<0b1010_1010>(even, odd));
        }
    }
}

/// The bfloat16 of each value in its upper half; the lower half is of no use.
///
/// # Safety
/// The target features of this file's kernels are needed.
#[inline(always)]
unsafe fn rounded(values: __m256) -> __m256i {
    // SAFETY: the caller vouches for the target features.
    unsafe {
        let bits = _mm256_castps_si256(values);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let carried = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
        _mm256_blendv_epi8(carried, quiet, nan)
    }
}
