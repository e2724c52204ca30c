//! A naive model of every rule, written without looking at the kernels: one element at a time, through `half`, `f64` and
//! `i128`. The scalar kernels are compared with it, and the others with the scalar ones, in `agreement.rs`.

use corro_core::{DType, ReduceOp};
use corro_testing::Random;
use half::{bf16, f16};

/// One element, as wide as it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
}

/// Reads element `i`.
pub(crate) fn get(dtype: DType, bytes: &[u8], i: usize) -> Value {
    let b = &bytes[i * dtype.size()..][..dtype.size()];
    match dtype {
        DType::U8 => Value::Int(b[0].into()),
        DType::I8 => Value::Int((b[0] as i8).into()),
        DType::Bool => Value::Int((b[0] != 0).into()),
        DType::U16 => Value::Int(u16::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::I16 => Value::Int(i16::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U32 => Value::Int(u32::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::I32 => Value::Int(i32::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::U64 => Value::Int(u64::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::I64 => Value::Int(i64::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::F16 => Value::Float(f16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
        DType::BF16 => Value::Float(bf16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
        DType::F32 => Value::Float(f32::from_ne_bytes(b.try_into().unwrap()).into()),
        DType::F64 => Value::Float(f64::from_ne_bytes(b.try_into().unwrap())),
    }
}

/// The smallest and largest value of an integer dtype.
fn bounds(dtype: DType) -> (i128, i128) {
    let bits = dtype.size() * 8;
    match dtype {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (0, (1 << bits) - 1),
        DType::Bool => (0, 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

/// The value of `dtype` that is `int` modulo 2^bits.
fn wrap(dtype: DType, int: i128) -> i128 {
    let (low, high) = bounds(dtype);
    if dtype == DType::Bool { i128::from(int != 0) } else { (int - low).rem_euclid(high - low + 1) + low }
}

/// One step of a reduction. 16-bit floats and `f32` are combined in `f32`, and stay unrounded to 16 bits.
fn combine(op: ReduceOp, dtype: DType, a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(wrap(
            dtype,
            match op {
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                // Values of 64 bits: their product may be larger than i128, which wraps to the same 64 bits.
                ReduceOp::Product => wrap(DType::U64, a.wrapping_mul(b)),
                _ => a + b,
            },
        )),
        (Value::Float(a), Value::Float(b)) => Value::Float(match op {
            ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
            // total_cmp puts -0.0 before +0.0.
            ReduceOp::Min => std::cmp::min_by(a, b, f64::total_cmp),
            ReduceOp::Max => std::cmp::max_by(a, b, f64::total_cmp),
            ReduceOp::Product if dtype == DType::F64 => a * b,
            ReduceOp::Product => (a as f32 * b as f32).into(),
            _ if dtype == DType::F64 => a + b,
            _ => (a as f32 + b as f32).into(),
        }),
        _ => unreachable!("one dtype"),
    }
}

fn scaled(dtype: DType, value: Value, factor: f64) -> Value {
    match value {
        _ if factor == 1.0 => value,
        Value::Float(v) if dtype == DType::F64 => Value::Float(v * factor),
        Value::Float(v) => Value::Float((v as f32 * factor as f32).into()),
        Value::Int(v) => {
            let (low, high) = bounds(dtype);
            Value::Int(((v as f64 * factor) as i128).clamp(low, high))
        }
    }
}

/// The bytes of an element. Floats round to nearest even.
pub(crate) fn bytes(dtype: DType, value: Value) -> Vec<u8> {
    match value {
        Value::Int(v) => v.to_le_bytes()[..dtype.size()].to_vec(),
        Value::Float(v) => match dtype {
            DType::F16 => f16::from_f64(v).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(v).to_ne_bytes().to_vec(),
            DType::F32 => (v as f32).to_ne_bytes().to_vec(),
            _ => v.to_ne_bytes().to_vec(),
        },
    }
}

/// What `reduce_slices` must give for element `i`.
pub(crate) fn reduced(op: ReduceOp, dtype: DType, srcs: &[&[u8]], factor: f64, i: usize) -> Vec<u8> {
    let all = srcs.iter().map(|src| get(dtype, src, i));
    let value = all.reduce(|a, b| combine(op, dtype, a, b)).unwrap();
    bytes(dtype, scaled(dtype, value, factor))
}

/// What `cast` must give.
pub(crate) fn cast(to: DType, value: Value) -> Vec<u8> {
    let converted = match value {
        _ if to == DType::Bool => Value::Int((value != Value::Int(0) && value != Value::Float(0.0)).into()),
        Value::Float(v) if to.is_float() => Value::Float(v),
        Value::Float(v) => {
            let (low, high) = bounds(to);
            Value::Int((v as i128).clamp(low, high))
        }
        Value::Int(v) if !to.is_float() => Value::Int(wrap(to, v)),
        Value::Int(v) => return int_to_float(to, v),
    };
    bytes(to, converted)
}

/// Integers of 64 bits do not fit an `f64`, from which `half` rounds; so the nearest is searched for here.
fn int_to_float(to: DType, int: i128) -> Vec<u8> {
    match to {
        DType::F32 => (int as f32).to_ne_bytes().to_vec(),
        DType::F64 => (int as f64).to_ne_bytes().to_vec(),
        // Anything large is infinite as f16, and anything else is exact as f64.
        DType::F16 => f16::from_f64(int as f64).to_ne_bytes().to_vec(),
        _ => {
            let guess = bf16::from_f64(int as f64).to_bits();
            let distance = |bits: &u16| ((bf16::from_bits(*bits).to_f64() as i128 - int).abs(), bits & 1);
            let near = [guess.wrapping_sub(1), guess, guess.wrapping_add(1)];
            near.into_iter()
                .filter(|b| bf16::from_bits(*b).is_finite())
                .min_by_key(distance)
                .unwrap()
                .to_ne_bytes()
                .into()
        }
    }
}

/// Whether these bytes are a NaN.
pub(crate) fn is_nan(dtype: DType, element: &[u8]) -> bool {
    matches!(get(dtype, element, 0), Value::Float(v) if v.is_nan())
}

/// Panics unless both are the same bits, or both are NaNs.
#[track_caller]
pub(crate) fn assert_same(dtype: DType, found: &[u8], expected: &[u8], what: impl Fn() -> String) {
    assert_eq!(found.len(), expected.len());
    if found == expected {
        return;
    }
    let size = dtype.size();
    for (i, (f, e)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
        let same = f == e || (is_nan(dtype, f) && is_nan(dtype, e));
        assert!(same, "{}: element {i} is {f:02x?}, expected {e:02x?}", what());
    }
}

/// Elements of which about a third is special (zeros, NaN, infinities, extremes, subnormals), a third of moderate size,
/// and a third any bits at all.
pub(crate) fn elements(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let special: &[f64] = &[
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        65504.0,
        65520.0,
        -65519.0,
        6e-8,
        3e-8,
        6.1e-5,
        f32::MAX.into(),
        f32::MIN_POSITIVE.into(),
        -1e-45,
        f64::MAX,
        f64::MIN_POSITIVE,
        5e-324,
        1e-40,
    ];
    let mut all = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let (kind, bits) = (random.number() % 3, random.number());
        let any = bits.to_le_bytes()[..dtype.size()].to_vec();
        let (low, high) = if dtype.is_float() { (0, 0) } else { bounds(dtype) };
        all.extend(match (kind, dtype.is_float()) {
            (0, true) => bytes(dtype, Value::Float(special[bits as usize % special.len()])),
            (1, true) => bytes(dtype, Value::Float(f64::from(bits as i32) / f64::from(1 << 28))),
            (0, false) => bytes(dtype, Value::Int([low, high, 0, 1, high - 1, low + 1][bits as usize % 6])),
            (1, false) => bytes(dtype, Value::Int(wrap(dtype, i128::from(bits % 21) - 10))),
            _ => any,
        });
    }
    all
}
