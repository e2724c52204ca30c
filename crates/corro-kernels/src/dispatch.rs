//! Which instruction set runs: found once, then one load and one indirect call per kernel.
//!
//! Lengths are checked here, so that the kernels behind need not. Everything public in `lib` is one of these methods on
//! [`InstructionSet::best`].

#![expect(unsafe_code, reason = "calls kernels that need target features and trust lengths")]

use std::sync::OnceLock;

use corro_core::{DType, ReduceOp};

use crate::instantiate::Kernels;

/// An instruction set this machine has. Programs use the functions of the crate, which take the best one; tests and
/// benches compare all of them.
#[derive(Clone, Copy)]
pub struct InstructionSet(pub(crate) &'static Kernels);

impl InstructionSet {
    /// All that this machine can run, the best first. The last one is always "scalar".
    pub fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                found.push(Self(&crate::avx512::KERNELS));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                found.push(Self(&crate::avx2::KERNELS));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            found.push(Self(&crate::neon::KERNELS));
        }
        found.push(Self(&crate::scalar::KERNELS));
        found
    }

    /// The one in use.
    #[inline]
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// "avx512", "avx2", "neon" or "scalar".
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// See [`crate::reduce`].
    pub fn reduce(self, op: ReduceOp, dtype: DType, dst: &mut [u8], src: &[u8]) {
        let count = count_of(dtype, dst);
        assert_same_length(dst.len(), src.len());
        let start = dst.as_mut_ptr();
        // SAFETY: both slices have `count` elements; dst is exactly the first source.
        unsafe { self.reduce_many(op, dtype, &[start], &[start.cast_const(), src.as_ptr()], count, 1.0) }
    }

    /// See [`crate::reduce_many`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn reduce_many(
        self,
        op: ReduceOp,
        dtype: DType,
        dsts: &[*mut u8],
        srcs: &[*const u8],
        count: usize,
        factor: f64,
    ) {
        assert!(!srcs.is_empty(), "reduce_many needs at least one source");
        assert!(dtype != DType::Bool || factor == 1.0, "a bool cannot be scaled (factor {factor})");
        // SAFETY: the caller's promise; only instruction sets of this machine are ever made.
        unsafe { (self.0.reduce)(op, dtype, dsts, srcs, count, factor) }
    }

    /// See [`crate::reduce_slices`].
    pub fn reduce_slices(self, op: ReduceOp, dtype: DType, dst: &mut [u8], srcs: &[&[u8]], factor: f64) {
        let count = count_of(dtype, dst);
        let starts: Vec<*const u8> = srcs
            .iter()
            .map(|src| {
                assert_same_length(dst.len(), src.len());
                src.as_ptr()
            })
            .collect();
        // SAFETY: every slice has `count` elements; a mutable slice overlaps no other.
        unsafe { self.reduce_many(op, dtype, &[dst.as_mut_ptr()], &starts, count, factor) }
    }

    /// See [`crate::scale`].
    pub fn scale(self, dtype: DType, data: &mut [u8], factor: f64) {
        let count = count_of(dtype, data);
        let start = data.as_mut_ptr();
        // A reduction of one source is that source times the factor, whatever the op.
        // SAFETY: the slice has `count` elements and is exactly the only source.
        unsafe { self.reduce_many(ReduceOp::Sum, dtype, &[start], &[start.cast_const()], count, factor) }
    }

    /// See [`crate::cast`].
    pub fn cast(self, from: DType, to: DType, src: &[u8], dst: &mut [u8]) {
        let count = count_of(from, src);
        assert!(
            count_of(to, dst) == count,
            "cast of {count} {from} elements into a slice of {} bytes for {to}",
            dst.len()
        );
        // SAFETY: both slices have `count` elements, and a mutable slice overlaps no other.
        unsafe { (self.0.cast)(from, to, src.as_ptr(), dst.as_mut_ptr(), count) }
    }

    /// See [`crate::dot_and_norms`].
    pub fn dot_and_norms(self, dtype: DType, a: &[u8], b: &[u8]) -> [f64; 3] {
        let count = count_of(dtype, a);
        assert_same_length(a.len(), b.len());
        // SAFETY: both slices have `count` elements.
        unsafe { (self.0.dot_and_norms)(dtype, a.as_ptr(), b.as_ptr(), count) }
    }

    /// See [`crate::combine`].
    pub fn combine(self, dtype: DType, a: &mut [u8], ca: f64, b: &[u8], cb: f64) {
        let count = count_of(dtype, a);
        assert_same_length(a.len(), b.len());
        // SAFETY: both slices have `count` elements, and a mutable slice overlaps no other.
        unsafe { (self.0.combine)(dtype, a.as_mut_ptr(), ca, b.as_ptr(), cb, count) }
    }
}

impl std::fmt::Debug for InstructionSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How many elements of `dtype` these bytes are.
#[inline]
fn count_of(dtype: DType, bytes: &[u8]) -> usize {
    // Sizes are powers of two. The compiler cannot know, and a division would be a good part of a short call.
    let shift = dtype.size().trailing_zeros();
    let count = bytes.len() >> shift;
    assert!(count << shift == bytes.len(), "{} bytes are not a whole number of {dtype} elements", bytes.len());
    count
}

#[inline]
fn assert_same_length(expected: usize, found: usize) {
    assert!(expected == found, "operands of unequal length: {expected} and {found} bytes");
}
