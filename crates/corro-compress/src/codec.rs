//! Codes of values, one by one.

use std::cell::RefCell;

use corro_core::compression::Method;
use corro_core::{Compression, DType, Error, Result};
use corro_kernels::{InstructionSet, Into, Levels, Noise, Rest};

thread_local! {
    /// Values on their way into a code or out of it.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A code whose length depends on the number of values alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Codec {
    Half(DType),
    Levels { levels: Levels, stochastic: bool, rotate: bool },
    Float8 { block: usize, stochastic: bool },
    Signs { block: usize },
}

impl Codec {
    /// The one that a compression asks for.
    pub(crate) fn of(compression: &Compression) -> Result<Self> {
        let levels = |block: u32, bits, by_norm| Levels { block: block as usize, bits, by_norm };
        Ok(match compression.method {
            Method::Half { brain } => Self::Half(if brain { DType::BF16 } else { DType::F16 }),
            Method::Integers { bits, block, stochastic, rotate } => {
                Self::Levels { levels: levels(block, bits, false), stochastic, rotate }
            }
            Method::Qsgd { bits, block } => {
                Self::Levels { levels: levels(block, bits, true), stochastic: true, rotate: false }
            }
            Method::TernGrad { block } => {
                Self::Levels { levels: levels(block, 2, false), stochastic: true, rotate: false }
            }
            Method::Float8 { block, stochastic } => Self::Float8 { block: block as usize, stochastic },
            Method::OneBit { block } => Self::Signs { block: block as usize },
            other => return Err(Error::Bug(format!("{other:?} is no code of single values"))),
        })
    }

    /// Bytes of the code of so many values.
    pub(crate) fn encoded_len(&self, count: usize) -> usize {
        match self {
            Self::Half(dtype) => count * dtype.size(),
            Self::Levels { levels, .. } => levels.encoded_len(count),
            Self::Float8 { block, .. } => InstructionSet::float8_len(count, *block),
            Self::Signs { block } => InstructionSet::signs_len(count, *block),
        }
    }

    /// Encodes the values, and leaves in their place what `rest` says. `key` is the stream of random numbers, `first` the
    /// place of the first value in it.
    pub(crate) fn encode(&self, values: &mut [f32], key: u64, first: usize, rest: Rest, code: &mut [u8]) {
        let isa = InstructionSet::best();
        let noise = |stochastic: bool| stochastic.then_some(Noise { key, first: first as u64 });
        match *self {
            Self::Half(dtype) => {
                corro_kernels::cast(DType::F32, dtype, bytemuck::cast_slice(values), code);
                if rest == Rest::Keep {
                    with_scratch(values.len(), |decoded| {
                        corro_kernels::cast(dtype, DType::F32, code, bytemuck::cast_slice_mut(decoded));
                        for (value, decoded) in values.iter_mut().zip(decoded) {
                            let left = *value - *decoded;
                            *value = if left.is_finite() { left } else { 0.0 };
                        }
                    });
                }
            }
            Self::Levels { levels, stochastic, rotate: false } => {
                isa.levels_encode(values, levels, noise(stochastic), rest, code);
            }
            Self::Levels { levels, stochastic, rotate: true } => with_scratch(values.len(), |turned| {
                turned.copy_from_slice(values);
                turn(turned, levels.block);
                isa.levels_encode(turned, levels, noise(stochastic), rest, code);
                if rest == Rest::Keep {
                    turn_back(turned, levels.block);
                    values.copy_from_slice(turned);
                }
            }),
            Self::Float8 { block, stochastic } => isa.float8_encode(values, block, noise(stochastic), rest, code),
            Self::Signs { block } => isa.signs_encode(values, block, rest, code),
        }
    }

    /// What a code says of the values. Any bytes say something.
    pub(crate) fn decode(&self, code: &[u8], into: Into, values: &mut [f32]) {
        let isa = InstructionSet::best();
        match *self {
            Self::Half(dtype) if into == Into::Set => {
                corro_kernels::cast(dtype, DType::F32, code, bytemuck::cast_slice_mut(values));
            }
            Self::Half(dtype) => with_scratch(values.len(), |decoded| {
                corro_kernels::cast(dtype, DType::F32, code, bytemuck::cast_slice_mut(decoded));
                add(values, decoded);
            }),
            Self::Levels { levels, rotate: false, .. } => isa.levels_decode(code, levels, into, values),
            Self::Levels { levels, rotate: true, .. } => with_scratch(values.len(), |turned| {
                isa.levels_decode(code, levels, Into::Set, turned);
                turn_back(turned, levels.block);
                match into {
                    Into::Set => values.copy_from_slice(turned),
                    Into::Add => add(values, turned),
                }
            }),
            Self::Float8 { block, .. } => isa.float8_decode(code, block, into, values),
            Self::Signs { block } => isa.signs_decode(code, block, into, values),
        }
    }
}

/// Adds `more` to `values`.
pub(crate) fn add(values: &mut [f32], more: &[f32]) {
    corro_kernels::reduce(
        corro_core::ReduceOp::Sum,
        DType::F32,
        bytemuck::cast_slice_mut(values),
        bytemuck::cast_slice(more),
    );
}

/// Random signs, the same everywhere, then the transform: a peak becomes as many middling values.
fn turn(values: &mut [f32], block: usize) {
    flip(values);
    InstructionSet::best().hadamard(values, block);
}

fn turn_back(values: &mut [f32], block: usize) {
    InstructionSet::best().hadamard(values, block);
    flip(values);
}

/// Changes the sign of half of the values.
fn flip(values: &mut [f32]) {
    for (word, values) in values.chunks_mut(64).enumerate() {
        let signs = crate::state::mixed(word as u64);
        for (i, value) in values.iter_mut().enumerate() {
            *value = f32::from_bits(value.to_bits() ^ ((signs >> i & 1) as u32) << 31);
        }
    }
}

fn with_scratch<T>(len: usize, act: impl FnOnce(&mut [f32]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        act(&mut scratch[..len])
    })
}
