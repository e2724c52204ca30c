//! The kernels as the compiler makes them for any CPU of this architecture: the model for all others.

#![expect(unsafe_code, reason = "kernels work on raw memory")]

use corro_core::{DType, ReduceOp};

use crate::float16::{Bfloat16, Binary16};
use crate::instantiate::kernels_for;

kernels_for!(name: "scalar", attributes: [], f16: Binary16, bf16: Bfloat16);
