//! What "reduce these bytes" means in full: dtype, op, scale factors.

use corro_core::{DType, Error, ReduceOp, Result};

/// How to reduce. `Reduction::new(dtype, op)` is the usual one; the factors are Horovod's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// The type of the elements.
    pub dtype: DType,
    /// How contributions become one value.
    pub op: ReduceOp,
    /// Each contribution is multiplied by this first.
    pub prescale: f64,
    /// The result is multiplied by this at last.
    pub postscale: f64,
}

impl Reduction {
    /// No scale factors.
    pub fn new(dtype: DType, op: ReduceOp) -> Self {
        Self { dtype, op, prescale: 1.0, postscale: 1.0 }
    }

    /// What multiplies the reduced value among `ranks` ranks.
    pub fn factor(&self, ranks: usize) -> f64 {
        match self.op {
            ReduceOp::Average => self.postscale / ranks as f64,
            _ => self.postscale,
        }
    }

    /// Checks that it makes sense for `bytes` bytes.
    pub(crate) fn check(&self, bytes: usize) -> Result<()> {
        let Self { dtype, op, .. } = self;
        if !op.supports(*dtype) {
            return Err(Error::Usage(format!("{op} of {dtype} elements is not supported")));
        }
        if *dtype == DType::Bool && (self.prescale != 1.0 || self.postscale != 1.0) {
            return Err(Error::Usage("bool elements can't be scaled".into()));
        }
        if !bytes.is_multiple_of(dtype.size()) {
            return Err(Error::Usage(format!("{bytes} bytes are not a whole number of {dtype} elements")));
        }
        Ok(())
    }
}
