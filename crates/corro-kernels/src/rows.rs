//! Rows of a table, taken and added to by their numbers: what sparse gradients need.

use corro_core::{DType, ReduceOp};

use crate::InstructionSet;

/// Adds row `i` of `from` to row `to[i]` of `into`, one after the other: rows that are there twice are added in that order. The
/// first number that is no row of `into` is the error; nothing after it is added then.
pub fn add_rows(dtype: DType, into: &mut [u8], row_bytes: usize, to: &[i64], from: &[u8]) -> Result<(), i64> {
    let best = InstructionSet::best();
    for (at, row) in to.iter().zip(from.chunks_exact(row_bytes.max(1))) {
        let start = usize::try_from(*at).ok().and_then(|at| at.checked_mul(row_bytes));
        let place = start.and_then(|start| into.get_mut(start..start.checked_add(row_bytes)?)).ok_or(*at)?;
        best.reduce(ReduceOp::Sum, dtype, place, row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_where_they_belong() {
        let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_ne_bytes()).collect() };
        let mut into = bytes(&[0.0, 0.0, 10.0, 20.0, 5.0, 5.0]);
        let from = bytes(&[1.0, 2.0, 3.0, 4.0, 1e8, -1e8, -1e8, 1e8]);
        add_rows(DType::F32, &mut into, 8, &[1, 0, 1, 1], &from).unwrap();
        // One after the other: what 11 and 22 lose to 1e8 is lost.
        assert_eq!(into, bytes(&[3.0, 4.0, 11.0f32 + 1e8 - 1e8, 22.0f32 - 1e8 + 1e8, 5.0, 5.0]));
    }

    #[test]
    fn numbers_that_are_no_row_are_named() {
        let mut into = [0u8; 8];
        for wrong in [-1, 2, i64::MAX, i64::MIN] {
            assert_eq!(add_rows(DType::F32, &mut into, 4, &[0, wrong], &[0; 8]), Err(wrong));
        }
        assert_eq!(add_rows(DType::F32, &mut into, 0, &[0], &[]), Ok(()));
    }
}
