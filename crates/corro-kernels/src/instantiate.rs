//! The table of one instruction set's kernels, and the macros that make it of the generic loops.
//!
//! An instruction set is a list of target features and a conversion for each 16-bit float; everything else is the same
//! source, compiled once more with those features on. That is why all paths agree bit by bit.

use corro_core::{DType, ReduceOp};

use crate::compact::Compact;

/// The kernels of one instruction set. All of them need the instruction set, and pointers good for `count` elements.
pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) reduce: unsafe fn(ReduceOp, DType, &[*mut u8], &[*const u8], usize, f64),
    pub(crate) cast: unsafe fn(DType, DType, *const u8, *mut u8, usize),
    pub(crate) dot_and_norms: unsafe fn(DType, *const u8, *const u8, usize) -> [f64; 3],
    pub(crate) combine: unsafe fn(DType, *mut u8, f64, *const u8, f64, usize),
    pub(crate) compact: &'static Compact,
}

/// Runs `$body` with `$E` standing for the element type of `$dtype`; 16-bit floats convert by `$f16` and `$bf16`.
macro_rules! with_element {
    ($dtype:expr, $f16:ty, $bf16:ty, |$E:ident| $body:expr) => {
        match $dtype {
            DType::U8 => $crate::instantiate::with_type!($E = u8, $body),
            DType::I8 => $crate::instantiate::with_type!($E = i8, $body),
            DType::U16 => $crate::instantiate::with_type!($E = u16, $body),
            DType::I16 => $crate::instantiate::with_type!($E = i16, $body),
            DType::U32 => $crate::instantiate::with_type!($E = u32, $body),
            DType::I32 => $crate::instantiate::with_type!($E = i32, $body),
            DType::U64 => $crate::instantiate::with_type!($E = u64, $body),
            DType::I64 => $crate::instantiate::with_type!($E = i64, $body),
            DType::F16 => $crate::instantiate::with_type!($E = $crate::float16::Float16<$f16>, $body),
            DType::BF16 => $crate::instantiate::with_type!($E = $crate::float16::Float16<$bf16>, $body),
            DType::F32 => $crate::instantiate::with_type!($E = f32, $body),
            DType::F64 => $crate::instantiate::with_type!($E = f64, $body),
            DType::Bool => $crate::instantiate::with_type!($E = $crate::element::Truth, $body),
        }
    };
}

/// As [`with_element`], for floats only.
macro_rules! with_float {
    ($dtype:expr, $f16:ty, $bf16:ty, |$E:ident| $body:expr) => {
        match $dtype {
            DType::F16 => $crate::instantiate::with_type!($E = $crate::float16::Float16<$f16>, $body),
            DType::BF16 => $crate::instantiate::with_type!($E = $crate::float16::Float16<$bf16>, $body),
            DType::F32 => $crate::instantiate::with_type!($E = f32, $body),
            DType::F64 => $crate::instantiate::with_type!($E = f64, $body),
            other => panic!("adasum is for floating-point dtypes, not for {other}"),
        }
    };
}

macro_rules! with_type {
    ($E:ident = $t:ty, $body:expr) => {{
        type $E = $t;
        $body
    }};
}

/// Defines `KERNELS`, the table of one instruction set.
macro_rules! kernels_for {
    (name: $name:literal, attributes: [$($attribute:meta)?], f16: $f16:ty, bf16: $bf16:ty) => {
        /// The kernels of this instruction set. Calling one on a machine that lacks it is undefined behaviour.
        pub(crate) static KERNELS: $crate::instantiate::Kernels =
            $crate::instantiate::Kernels { name: $name, reduce, cast, dot_and_norms, combine, compact: &COMPACT };

        $crate::compact::compact_for!(attributes: [$($attribute)?]);

        unsafe fn reduce(
            op: ReduceOp,
            dtype: DType,
            dsts: &[*mut u8],
            srcs: &[*const u8],
            count: usize,
            factor: f64,
        ) {
            use $crate::element::{Element, Max, Min, Product, Sum};

            $(#[$attribute])?
            #[inline(never)]
            unsafe fn kernel<E: Element, C: $crate::element::Combine, const WIDE: usize, const SLIM: usize>(
                dsts: &[*mut u8],
                srcs: &[*const u8],
                count: usize,
                factor: f64,
            ) {
                // SAFETY: the caller's promise.
                unsafe { $crate::reduce::reduce::<E, C, WIDE, SLIM>(dsts, srcs, count, factor) }
            }

            $crate::instantiate::with_element!(dtype, $f16, $bf16, |E| {
                const WIDE: usize = 256 / size_of::<<E as Element>::Acc>();
                const SLIM: usize = WIDE / 4;
                // SAFETY: the caller's promise, which includes the target features.
                unsafe {
                    match op {
                        ReduceOp::Sum | ReduceOp::Average => kernel::<E, Sum, WIDE, SLIM>(dsts, srcs, count, factor),
                        ReduceOp::Product => kernel::<E, Product, WIDE, SLIM>(dsts, srcs, count, factor),
                        ReduceOp::Min => kernel::<E, Min, WIDE, SLIM>(dsts, srcs, count, factor),
                        ReduceOp::Max => kernel::<E, Max, WIDE, SLIM>(dsts, srcs, count, factor),
                        ReduceOp::Adasum => panic!("adasum is not a reduction of single elements"),
                    }
                }
            })
        }

        unsafe fn cast(from: DType, to: DType, src: *const u8, dst: *mut u8, count: usize) {
            use $crate::{cast::CastTo, element::Element};

            $(#[$attribute])?
            #[inline(never)]
            unsafe fn kernel<F: Element<Acc: CastTo<T::Acc>>, T: Element>(src: *const u8, dst: *mut u8, count: usize) {
                // SAFETY: the caller's promise.
                unsafe { $crate::cast::cast::<F, T>(src, dst, count) }
            }

            $crate::instantiate::with_element!(from, $f16, $bf16, |F| {
                $crate::instantiate::with_element!(to, $f16, $bf16, |T| {
                    // SAFETY: the caller's promise, which includes the target features.
                    unsafe { kernel::<F, T>(src, dst, count) }
                })
            })
        }

        unsafe fn dot_and_norms(dtype: DType, a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
            use $crate::{adasum::Float, element::Element};

            $(#[$attribute])?
            #[inline(never)]
            unsafe fn kernel<E: Element<Acc: Float>>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
                // SAFETY: the caller's promise.
                unsafe { $crate::adasum::dot_and_norms::<E>(a, b, count) }
            }

            $crate::instantiate::with_float!(dtype, $f16, $bf16, |E| {
                // SAFETY: the caller's promise, which includes the target features.
                unsafe { kernel::<E>(a, b, count) }
            })
        }

        unsafe fn combine(dtype: DType, a: *mut u8, ca: f64, b: *const u8, cb: f64, count: usize) {
            use $crate::{adasum::Float, element::Element};

            $(#[$attribute])?
            #[inline(never)]
            unsafe fn kernel<E: Element<Acc: Float>>(a: *mut u8, ca: f64, b: *const u8, cb: f64, count: usize) {
                // SAFETY: the caller's promise.
                unsafe { $crate::adasum::combine::<E>(a, ca, b, cb, count) }
            }

            $crate::instantiate::with_float!(dtype, $f16, $bf16, |E| {
                // SAFETY: the caller's promise, which includes the target features.
                unsafe { kernel::<E>(a, ca, b, cb, count) }
            })
        }
    };
}

pub(crate) use {kernels_for, with_element, with_float, with_type};
