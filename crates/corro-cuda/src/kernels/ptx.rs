//! The kernels as they travel: PTX, made by `scripts/ptx` of `kernels/*.cu`, which the driver compiles for the GPU at hand.
//!
//! One file for each kernel and element type: the driver takes time to compile one, and a job needs few of them.

use corro_core::DType;

/// A file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Combine,
    Gather,
    Adasum,
    Codes,
}

macro_rules! ptx {
    ($name:literal) => {
        concat!(include_str!(concat!("../../kernels/ptx/", $name, ".ptx")), "\0")
    };
}

/// The PTX, with a 0 behind it. `None` for Adasum of anything but floats; the dtype does not matter to `gather` and `codes`.
pub(crate) fn ptx(source: Source, dtype: DType) -> Option<&'static str> {
    Some(match (source, dtype) {
        (Source::Gather, _) => ptx!("gather"),
        (Source::Codes, _) => ptx!("codes"),
        (Source::Combine, DType::U8) => ptx!("combine.uint8"),
        (Source::Combine, DType::I8) => ptx!("combine.int8"),
        (Source::Combine, DType::U16) => ptx!("combine.uint16"),
        (Source::Combine, DType::I16) => ptx!("combine.int16"),
        (Source::Combine, DType::U32) => ptx!("combine.uint32"),
        (Source::Combine, DType::I32) => ptx!("combine.int32"),
        (Source::Combine, DType::U64) => ptx!("combine.uint64"),
        (Source::Combine, DType::I64) => ptx!("combine.int64"),
        (Source::Combine, DType::F16) => ptx!("combine.float16"),
        (Source::Combine, DType::BF16) => ptx!("combine.bfloat16"),
        (Source::Combine, DType::F32) => ptx!("combine.float32"),
        (Source::Combine, DType::F64) => ptx!("combine.float64"),
        (Source::Combine, DType::Bool) => ptx!("combine.bool"),
        (Source::Adasum, DType::F16) => ptx!("adasum.float16"),
        (Source::Adasum, DType::BF16) => ptx!("adasum.bfloat16"),
        (Source::Adasum, DType::F32) => ptx!("adasum.float32"),
        (Source::Adasum, DType::F64) => ptx!("adasum.float64"),
        (Source::Adasum, _) => return None,
    })
}
