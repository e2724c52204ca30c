//! The element types Corro moves and reduces.

use serde::{Deserialize, Serialize};

/// The type of one element.
///
/// The numbers of the first ten are Horovod's wire ids, which scripts and timelines show; the rest follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum DType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    I32 = 4,
    I64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    /// One byte, 0 or 1.
    Bool = 9,
    BF16 = 10,
    U32 = 11,
    U64 = 12,
}

impl DType {
    /// Every dtype, for tables and tests.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bool,
        Self::BF16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// The name users know, as in numpy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::Bool => "bool",
        }
    }

    /// The dtype with this wire id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as u8 == id)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_are_unique() {
        for d in DType::ALL {
            assert_eq!(DType::from_id(d as u8), Some(d));
        }
        assert_eq!(DType::from_id(200), None);
    }

    #[test]
    fn horovods_ids_are_kept() {
        assert_eq!(DType::F32 as u8, 7);
        assert_eq!(DType::Bool as u8, 9);
    }
}
