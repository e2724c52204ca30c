//! What "reduce" may mean.

use serde::{Deserialize, Serialize};

use crate::DType;

/// How the contributions of several ranks become one value. The numbers are Horovod's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum, divided by the number of ranks. Integers truncate toward zero.
    Average = 0,
    /// The sum. Integers wrap; for bool it is "any".
    Sum = 1,
    /// Horovod's adaptive sum: orthogonal vectors add, equal vectors average. Floating-point dtypes only.
    Adasum = 2,
    /// The smallest; NaN wins. For bool it is "all".
    Min = 3,
    /// The largest; NaN wins. For bool it is "any".
    Max = 4,
    /// The product. Integers wrap; for bool it is "all".
    Product = 5,
}

impl ReduceOp {
    /// Every op, for tables and tests.
    pub const ALL: [Self; 6] = [Self::Average, Self::Sum, Self::Adasum, Self::Min, Self::Max, Self::Product];

    /// The name users know.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "Average",
            Self::Sum => "Sum",
            Self::Adasum => "Adasum",
            Self::Min => "Min",
            Self::Max => "Max",
            Self::Product => "Product",
        }
    }

    /// The op with this constant.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|o| *o as u8 == id)
    }

    /// Whether this op has a meaning for elements of `dtype`.
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            Self::Adasum => dtype.is_float(),
            // Half of "true" is not a bool.
            Self::Average => !matches!(dtype, DType::Bool),
            Self::Sum | Self::Min | Self::Max | Self::Product => true,
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
