//! Dimensions, and how rows are dealt to ranks.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{DType, Error, Result};

/// The dimensions of a tensor. No dimension means a scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape(pub Vec<usize>);

impl Shape {
    /// How many elements.
    pub fn elements(&self) -> Result<usize> {
        self.0
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
            .ok_or_else(|| Error::Usage(format!("shape {self} has more elements than memory can address")))
    }

    /// How many bytes, for elements of `dtype`.
    pub fn bytes(&self, dtype: DType) -> Result<usize> {
        self.elements()?
            .checked_mul(dtype.size())
            .ok_or_else(|| Error::Usage(format!("{dtype} tensor of shape {self} is larger than memory")))
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// The part of `len` items that belongs to `part` of `parts`: consecutive, and the first `len % parts` parts get one
/// item more. This is Horovod's rule for reducescatter rows, and ours for every other cut as well.
pub fn share(len: usize, parts: usize, part: usize) -> Range<usize> {
    debug_assert!(part < parts, "part {part} of {parts}");
    let (each, extra) = (len / parts, len % parts);
    let start = part * each + part.min(extra);
    start..start + each + usize::from(part < extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_in_order_first_ones_longer() {
        for len in 0..40 {
            for parts in 1..18 {
                let mut next = 0;
                let mut last_len = usize::MAX;
                for part in 0..parts {
                    let r = share(len, parts, part);
                    assert_eq!(r.start, next);
                    assert!(r.len() <= last_len && r.len() + 1 >= len.div_ceil(parts));
                    (next, last_len) = (r.end, r.len());
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn absurd_shapes_are_errors_not_overflows() {
        assert!(Shape(vec![usize::MAX, 3]).elements().is_err());
        assert!(Shape(vec![usize::MAX / 2]).bytes(DType::F64).is_err());
        assert_eq!(Shape(vec![]).elements(), Ok(1));
        assert_eq!(Shape(vec![2, 3]).to_string(), "[2, 3]");
    }
}
