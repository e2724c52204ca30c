//! NCCL: collectives between GPUs, by NVIDIA, found at run time.
//!
//! Its communicators are not blocking: whatever waits for other ranks asks, in between, whether it should stop, and has a
//! limit. All ranks must call the same collectives in the same order; nothing here sees to that.
//!
//! Results are NCCL's: it adds 16-bit floats in an order, and with rounding between ranks, that is its own.

mod communicator;
mod library;

use corro_core::{DType, ReduceOp};

pub use communicator::{Communicator, Stop};
pub use library::{Nccl, UniqueId};

/// What NCCL calls a dtype. `None`: it has no such type. Data that is only moved can travel as bytes.
pub const fn data_type(dtype: DType) -> Option<i32> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::I16 | DType::U16 | DType::Bool => return None,
    })
}

/// What NCCL calls an op. An average is a sum: the caller scales, with Corro's rounding. `None`: it has no such op.
pub const fn reduction(op: ReduceOp) -> Option<i32> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Average => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Adasum => return None,
    })
}

/// Whether NCCL can reduce `dtype` by `op`.
pub const fn reduces(dtype: DType, op: ReduceOp) -> bool {
    data_type(dtype).is_some() && reduction(op).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nccl_has_not_is_said() {
        assert!(reduces(DType::BF16, ReduceOp::Average) && reduces(DType::U8, ReduceOp::Max));
        assert!(!reduces(DType::Bool, ReduceOp::Max) && !reduces(DType::I16, ReduceOp::Sum));
        assert!(!reduces(DType::F32, ReduceOp::Adasum));
        let mut all: Vec<i32> = DType::ALL.into_iter().filter_map(data_type).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }
}
