//! Memory for large outputs.
//!
//! TensorFlow frees a large tensor to the system and gets the next one from there, page by cleared page: that takes about as
//! long as reducing it. So large outputs lie in memory of our own that is used again ([`Blocks`]) and never is more than was
//! in use at one time; TensorFlow holds it like any other and says when it is done with it.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use corro_core::blocks::Blocks;
use corro_core::{Buffer, Error};
use corro_engine::{Memory, Outcome};

use super::api::{Status, Tensor, api};
use super::failure::Answer;
use super::node::Call;
use crate::large_pages;
pub(super) use crate::large_pages::LARGE;

static BLOCKS: LazyLock<Blocks> = LazyLock::new(|| Blocks::new(large_pages::want));

/// What is smaller is copied into memory of TensorFlow's.
const WORTH_KEEPING: usize = 64 << 10;

/// Makes output `i` of the call a tensor in a block. `None` if it is not large, or there is no memory: then TensorFlow's own
/// way is the right one.
pub(super) fn place(call: Call, i: usize, dtype: c_int, dims: &[usize], bytes: usize) -> Answer<Option<Tensor>> {
    if bytes < LARGE {
        return Ok(None);
    }
    let Some(block) = BLOCKS.take(bytes) else { return Ok(None) };
    let at = block.as_ptr();
    // SAFETY: the block has as many bytes, and is what keeps them.
    unsafe { set(call, i, dtype, dims, at, bytes, Box::new(block)) }
}

/// Room for a result that TensorFlow is given when it is there, by [`give`].
pub(super) fn room(bytes: usize) -> Memory {
    match if bytes < WORTH_KEEPING { None } else { BLOCKS.take(bytes) } {
        // SAFETY: the block has as many bytes and is nobody else's.
        Some(block) => unsafe { Buffer::from_raw(block.as_ptr(), bytes, Box::new(block)) }.into(),
        None => vec![0; bytes].into(),
    }
}

/// Makes what is in [`room`] output `i` of the call.
pub(super) fn give(call: Call, i: usize, dtype: c_int, outcome: Outcome) -> Answer<()> {
    let mut result = outcome.output.map_or_else(|| Ok(Vec::new().into()), Memory::into_host)?;
    let (bytes, at) = (result.as_slice().len(), result.as_mut_slice().as_mut_ptr());
    if bytes >= WORTH_KEEPING {
        // SAFETY: the buffer has as many bytes, and is what keeps them.
        if unsafe { set(call, i, dtype, &outcome.shape.0, at, bytes, Box::new(result)) }?.is_some() {
            return Ok(());
        }
        return Err(Error::io("output", "TensorFlow did not take it").into());
    }
    let output = call.allocate(i, dtype, &outcome.shape.0)?;
    // SAFETY: TensorFlow has made room for as many bytes, as many elements of this type have.
    unsafe { output.data().copy_from_nonoverlapping(at, bytes.min(output.bytes())) };
    Ok(())
}

/// Makes these bytes output `i` of the call. `None`, and `keep` dropped, if they can't be a tensor.
///
/// # Safety
/// `at` has so many bytes, and has them until `keep` is dropped.
unsafe fn set(
    call: Call,
    i: usize,
    dtype: c_int,
    dims: &[usize],
    at: *mut u8,
    bytes: usize,
    keep: Box<dyn Any + Send>,
) -> Answer<Option<Tensor>> {
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let keep = Box::into_raw(Box::new(keep));
    let status = Status::new();
    // SAFETY: the context is TensorFlow's and alive. The memory lives until `give_back`, which comes once, also if the
    // tensor can't be made or set.
    unsafe {
        let count = dims.len() as c_int;
        let raw = (api().TF_NewTensor)(dtype, dims.as_ptr(), count, at.cast(), bytes, give_back, keep.cast());
        if raw.is_null() {
            return Ok(None);
        }
        let tensor = Tensor::own(raw);
        (api().TF_SetOutput)(call.0, i as c_int, tensor.raw(), status.raw());
        status.check()?;
        Ok(Some(tensor))
    }
}

/// # Safety
/// `keep` is what [`set`] gave for this memory.
unsafe extern "C" fn give_back(_: *mut c_void, _: usize, keep: *mut c_void) {
    // SAFETY: see above; TensorFlow calls this once, when nobody holds the tensor any more.
    drop(unsafe { Box::from_raw(keep.cast::<Box<dyn Any + Send>>()) });
}
