//! Values with fewer bytes on the wire: 16-bit floats, or 8-bit integers with a scale for each block. Pure.
//!
//! The kernels are those of `docs/design/compression.md`. What a code does not say of a push stays with the worker, as the part's *rest*,
//! and goes with its next push (error feedback): nothing is lost, only late. Sums are rounded once more on their way back; every
//! worker decodes the same bytes, so all have the same result.

use corro_core::compression::Method;
use corro_core::{Compression, DType, Error, Result};
use corro_kernels::{InstructionSet, Into, Levels, Rest};
use serde::{Deserialize, Serialize};

use crate::protocol::{MAX_PART_BYTES, Payload};
use crate::table::floats;

/// How float32 values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// As 16-bit floats.
    Half {
        /// bfloat16 instead of float16.
        brain: bool,
    },
    /// As integers from -127 to 127.
    Int8 {
        /// Values that share a scale: a multiple of 32.
        block: u32,
    },
}

/// The largest block that makes sense: a part has no more values.
const MOST: u32 = (MAX_PART_BYTES / 4) as u32;

impl Code {
    /// What a compression of allreduce's asks for, as far as servers have it.
    pub fn of(compression: &Compression) -> Result<Self> {
        compression.check()?;
        match compression.method {
            Method::Half { brain } => Ok(Self::Half { brain }),
            Method::Integers { bits: 8, block, stochastic: false, rotate: false } if block <= MOST => {
                Ok(Self::Int8 { block })
            }
            _ => Err(Error::Usage(format!(
                "parameter servers don't support the compression {compression}; they support fp16, bf16 and int8 (a block of up to {MOST}, \
                 rounded to the nearest)"
            ))),
        }
    }

    fn levels(block: u32) -> Levels {
        Levels { block: block as usize, bits: 8, by_norm: false }
    }

    /// Bytes of the code of so many values.
    pub fn encoded_len(self, count: usize) -> usize {
        match self {
            Self::Half { .. } => count * 2,
            Self::Int8 { block } => Self::levels(block).encoded_len(count),
        }
    }

    const fn half(brain: bool) -> DType {
        if brain { DType::BF16 } else { DType::F16 }
    }

    /// Encodes values, and leaves in their place what the code does not say.
    pub(crate) fn encode(self, values: &mut [f32]) -> Payload {
        let mut code = vec![0; self.encoded_len(values.len())];
        match self {
            Self::Half { brain } => {
                corro_kernels::cast(DType::F32, Self::half(brain), bytemuck::cast_slice(values), &mut code);
                let mut said = vec![0.0f32; values.len()];
                corro_kernels::cast(Self::half(brain), DType::F32, &code, bytemuck::cast_slice_mut(&mut said));
                for (value, said) in values.iter_mut().zip(said) {
                    *value -= said;
                }
            }
            Self::Int8 { block } => {
                InstructionSet::best().levels_encode(values, Self::levels(block), None, Rest::Keep, &mut code);
            }
        }
        // What is not a number once must not stay for ever.
        values.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
        Payload::new(code)
    }

    /// An error if there can be no such code: what came over the wire may be anything.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Int8 { block } if block == 0 || block > MOST || !block.is_multiple_of(32) => {
                Err(Error::Malformed(format!("8-bit integers in blocks of {block}")))
            }
            _ => Ok(()),
        }
    }

    /// The values of a code that came over the wire, `count` of them.
    pub fn decode(self, code: &[u8], count: usize) -> Result<Payload> {
        self.check()?;
        if count > MAX_PART_BYTES / 4 || code.len() != self.encoded_len(count) {
            return Err(Error::Malformed(format!("{} bytes as the {self:?} code of {count} values", code.len())));
        }
        let mut bytes = vec![0u8; count * 4];
        match self {
            Self::Half { brain } => corro_kernels::cast(Self::half(brain), DType::F32, code, &mut bytes),
            Self::Int8 { block } => {
                let mut values = vec![0.0f32; count];
                InstructionSet::best().levels_decode(code, Self::levels(block), Into::Set, &mut values);
                bytes.copy_from_slice(bytemuck::cast_slice(&values));
            }
        }
        Ok(Payload::new(bytes))
    }

    /// The code of values that are bytes, and of which nothing is to be remembered.
    pub(crate) fn of_bytes(self, value: &[u8]) -> Payload {
        self.encode(&mut floats(value).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [Code; 3] = [Code::Half { brain: false }, Code::Half { brain: true }, Code::Int8 { block: 64 }];

    /// What was said and what is left add up to what was given, whatever the code.
    #[test]
    fn nothing_is_lost_between_the_code_and_the_rest() {
        let mut random = corro_testing::Random::new(7);
        for code in CODES {
            for count in [0, 1, 63, 64, 1000] {
                let values: Vec<f32> = (0..count).map(|_| random.unit() as f32 * 2.0).collect();
                let mut rest = values.clone();
                let said = code.encode(&mut rest);
                assert_eq!(said.len(), code.encoded_len(count));
                let decoded = code.decode(&said, count).unwrap();
                for ((value, rest), said) in values.iter().zip(&rest).zip(floats(&decoded).iter()) {
                    assert!((value - rest - said).abs() < 1e-6, "{code:?}: {value} is not {said} and {rest}");
                    assert!(rest.abs() <= 2.0 / 250.0, "{code:?}: {rest} of {value} is left");
                }
            }
        }
    }

    #[test]
    fn codes_from_outside_are_measured_first() {
        for code in CODES {
            assert!(code.decode(&[0; 3], 2).is_err());
            assert!(code.decode(&[], usize::MAX / 8).is_err());
        }
        for block in [0, 1, 33, u32::MAX] {
            assert!(Code::Int8 { block }.decode(&[0; 8], 4).is_err());
        }
        let mut values = [f32::NAN, f32::INFINITY, 1.0];
        CODES[0].encode(&mut values);
        assert!(values.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn what_servers_have_no_code_for_is_named() {
        assert_eq!(Code::of(&"bf16".parse().unwrap()).unwrap(), Code::Half { brain: true });
        assert_eq!(Code::of(&"int8 block=128".parse().unwrap()).unwrap(), Code::Int8 { block: 128 });
        let refused = Code::of(&"powersgd rank=2".parse().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("powersgd") && refused.contains("int8"), "{refused}");
    }
}
