//! Reductions that MPI lacks, or does otherwise than Corro: floats of 16 bits, bools, small
//! integers that wrap, minima and maxima with NaN.

#![expect(unsafe_code, reason = "called by MPI")]

use std::ffi::{c_int, c_void};

use corro_core::{DType, ReduceOp};

use crate::library::Operator;

/// MPI calls it with what has come, with what there is, and with how many elements; the result goes to what there is.
///
/// # Safety
/// Both vectors have as many elements of this type as MPI says, and do not overlap.
unsafe fn reduce(dtype: DType, op: ReduceOp, come: *mut c_void, there: *mut c_void, count: *mut c_int) {
    // SAFETY: as above.
    unsafe {
        let bytes = usize::try_from(*count).unwrap_or(0) * dtype.size();
        let come = std::slice::from_raw_parts(come.cast::<u8>(), bytes);
        let there = std::slice::from_raw_parts_mut(there.cast::<u8>(), bytes);
        corro_kernels::reduce(op, dtype, there, come);
    }
}

/// A function for each pair: MPI tells its own handle of the type and nothing else.
macro_rules! operators {
    ($($dtype:ident $op:ident),* $(,)?) => {
        /// What reduces so; `None` where MPI does it itself, or nobody does.
        pub(crate) fn operator(dtype: DType, op: ReduceOp) -> Option<Operator> {
            match (dtype, op) {
                $((DType::$dtype, ReduceOp::$op) => {
                    unsafe extern "C" fn act(come: *mut c_void, there: *mut c_void, count: *mut c_int, _: *mut c_void) {
                        // SAFETY: MPI's promise.
                        unsafe { reduce(DType::$dtype, ReduceOp::$op, come, there, count) };
                    }
                    Some(act)
                })*
                _ => None,
            }
        }
    };
}

operators! {
    F16 Sum, F16 Min, F16 Max, F16 Product,
    BF16 Sum, BF16 Min, BF16 Max, BF16 Product,
    F32 Min, F32 Max, F64 Min, F64 Max,
    Bool Sum, Bool Min, Bool Max, Bool Product,
    I8 Sum, I8 Product, U8 Sum, U8 Product, I16 Sum, I16 Product, U16 Sum, U16 Product,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_bools_are_any() {
        let act = operator(DType::Bool, ReduceOp::Sum).unwrap();
        let (mut come, mut there, mut count) = ([0_u8, 1, 0, 1], [0_u8, 0, 1, 1], 4);
        // SAFETY: both have four elements.
        unsafe { act(come.as_mut_ptr().cast(), there.as_mut_ptr().cast(), &raw mut count, std::ptr::null_mut()) };
        assert_eq!(there, [0, 1, 1, 1]);
        assert!(operator(DType::F32, ReduceOp::Sum).is_none());
    }
}
