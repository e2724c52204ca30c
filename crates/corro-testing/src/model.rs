//! Sample data, and what the results of collectives must be, computed the slow way: whole numbers in 128 bits, then put into
//! the dtype.

use corro_core::{DType, ReduceOp};
use half::{bf16, f16};

/// After so many elements values repeat: a prime, so that no length of a share or a segment is a multiple of it, and data
/// that ends up at a wrong place is seen.
const PERIOD: usize = 1009;

/// Element `i` of rank `r`: small whole numbers, so that every dtype and order of additions gives exact results.
pub fn value(rank: usize, i: usize) -> i64 {
    let i = i % PERIOD;
    ((rank * 7 + i * i / 7) % 5) as i64 - 2
}

/// `len` elements of which element `i` is `make(i)`, which repeats as [`value`] does.
fn cycle<T: Copy>(len: usize, make: impl Fn(usize) -> Vec<T>) -> Vec<T> {
    let mut all: Vec<T> = (0..len.min(PERIOD)).flat_map(&make).collect();
    if len > PERIOD {
        let size = all.len() / PERIOD;
        all = all.repeat(len.div_ceil(PERIOD));
        all.truncate(len * size);
    }
    all
}

/// `len` elements of `dtype` as rank `rank` brings them.
pub fn sample(dtype: DType, rank: usize, len: usize) -> Vec<u8> {
    cycle(len, |i| encode(dtype, value(rank, i)))
}

/// The same as numbers.
pub fn numbers(rank: usize, len: usize) -> Vec<i32> {
    cycle(len, |i| vec![value(rank, i) as i32])
}

/// What `from` writes to `to`.
pub fn letter(from: usize, to: usize, len: usize) -> Vec<i32> {
    (0..len).map(|i| (from * 1_000_003 + to * 10_007 + i) as i32).collect()
}

/// The bytes of a whole number in `dtype`; integers wrap, as sums of them do.
pub fn encode(dtype: DType, v: i64) -> Vec<u8> {
    match dtype {
        DType::U8 => (v as u8).to_le_bytes().to_vec(),
        DType::I8 => (v as i8).to_le_bytes().to_vec(),
        DType::U16 => (v as u16).to_le_bytes().to_vec(),
        DType::I16 => (v as i16).to_le_bytes().to_vec(),
        DType::U32 => (v as u32).to_le_bytes().to_vec(),
        DType::I32 => (v as i32).to_le_bytes().to_vec(),
        DType::U64 => (v as u64).to_le_bytes().to_vec(),
        DType::I64 => v.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(v as f64).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(v as f64).to_le_bytes().to_vec(),
        DType::F32 => (v as f32).to_le_bytes().to_vec(),
        DType::F64 => (v as f64).to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(v > 0)],
    }
}

/// Whether two buffers hold the same values; 0 times -1 is -0 for floats, which whole numbers don't know.
pub fn same(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let size = dtype.size();
    let is_zero = |e: &[u8]| dtype.is_float() && e[..size - 1].iter().all(|b| *b == 0) && e[size - 1] << 1 == 0;
    let equal = || a.chunks(size).zip(b.chunks(size)).all(|(x, y)| x == y || (is_zero(x) && is_zero(y)));
    a == b || a.len() == b.len() && equal()
}

/// The value as an element of `dtype` holds it.
fn held(dtype: DType, v: i64) -> i128 {
    match dtype {
        DType::U8 => i128::from(v as u8),
        DType::U16 => i128::from(v as u16),
        DType::U32 => i128::from(v as u32),
        DType::U64 => i128::from(v as u64),
        DType::Bool => i128::from(v > 0),
        _ => i128::from(v),
    }
}

/// Wraps a whole number into an integer dtype.
fn wrap(dtype: DType, v: i128) -> i128 {
    match dtype {
        DType::U8 => i128::from(v as u8),
        DType::I8 => i128::from(v as i8),
        DType::U16 => i128::from(v as u16),
        DType::I16 => i128::from(v as i16),
        DType::U32 => i128::from(v as u32),
        DType::I32 => i128::from(v as i32),
        DType::U64 => i128::from(v as u64),
        DType::I64 => i128::from(v as i64),
        _ => v,
    }
}

fn reduced(dtype: DType, op: ReduceOp, ranks: usize, i: usize) -> i128 {
    let values = (0..ranks).map(|r| held(dtype, value(r, i)));
    let bool_op = |any: bool, mut v: Box<dyn Iterator<Item = i128>>| {
        i128::from(if any { v.any(|x| x != 0) } else { v.all(|x| x != 0) })
    };
    match (dtype, op) {
        (DType::Bool, ReduceOp::Sum | ReduceOp::Max) => bool_op(true, Box::new(values)),
        (DType::Bool, _) => bool_op(false, Box::new(values)),
        (_, ReduceOp::Sum | ReduceOp::Average) => wrap(dtype, values.sum()),
        (_, ReduceOp::Min) => values.min().unwrap(),
        (_, ReduceOp::Max) => values.max().unwrap(),
        (_, _) => values.fold(1, |a, b| wrap(dtype, a.wrapping_mul(b))),
    }
}

/// The result of an allreduce of `len` elements that each of so many ranks brings as [`sample`] says.
pub fn allreduce(dtype: DType, op: ReduceOp, ranks: usize, len: usize) -> Vec<u8> {
    cycle(len, |i| {
        let v = reduced(dtype, op, ranks, i);
        if op != ReduceOp::Average || ranks == 1 {
            return if dtype == DType::U64 { (v as u64).to_le_bytes().to_vec() } else { encode(dtype, v as i64) };
        }
        // Average is the sum times 1/n, in the dtype's own arithmetic.
        let factor = 1.0 / ranks as f64;
        match dtype {
            DType::F16 => f16::from_f32(v as f32 * factor as f32).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(v as f32 * factor as f32).to_le_bytes().to_vec(),
            DType::F32 => (v as f32 * factor as f32).to_le_bytes().to_vec(),
            DType::F64 => (v as f64 * factor).to_le_bytes().to_vec(),
            DType::U64 => ((v as f64 * factor) as u64).to_le_bytes().to_vec(),
            _ => encode(dtype, (v as f64 * factor) as i64),
        }
    })
}

/// The sum of the [`numbers`] of so many ranks.
pub fn sum_of_numbers(ranks: usize, len: usize) -> Vec<i32> {
    cycle(len, |i| vec![(0..ranks).map(|r| value(r, i) as i32).sum()])
}
