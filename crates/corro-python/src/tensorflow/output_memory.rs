//! Memory for large outputs.
//!
//! TensorFlow frees a large tensor to the system and gets the next one from there, page by cleared page: that takes about as
//! long as reducing it. So large outputs lie in memory of our own that is used again ([`Blocks`]) and never is more than was
//! in use at one time; TensorFlow holds it like any other and says when it is done with it.

use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use corro_core::blocks::{Block, Blocks};

use super::api::{Status, Tensor, api};
use super::failure::Answer;
use super::node::Call;
use crate::large_pages;
pub(super) use crate::large_pages::LARGE;

static BLOCKS: LazyLock<Blocks> = LazyLock::new(|| Blocks::new(large_pages::want));

/// Makes output `i` of the call a tensor in a block. `None` if it is not large, or there is no memory: then TensorFlow's own
/// way is the right one.
pub(super) fn place(call: Call, i: usize, dtype: c_int, dims: &[usize], bytes: usize) -> Answer<Option<Tensor>> {
    if bytes < LARGE {
        return Ok(None);
    }
    let Some(block) = BLOCKS.take(bytes) else { return Ok(None) };
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let (at, block) = (block.as_ptr(), Box::into_raw(Box::new(block)));
    let status = Status::new();
    // SAFETY: the context is TensorFlow's and alive. The block has as many bytes and lives until `give_back`, which comes
    // once, also if the tensor can't be made or set.
    unsafe {
        let count = dims.len() as c_int;
        let raw = (api().TF_NewTensor)(dtype, dims.as_ptr(), count, at.cast(), bytes, give_back, block.cast());
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
/// `block` is what [`place`] gave for this memory.
unsafe extern "C" fn give_back(_: *mut c_void, _: usize, block: *mut c_void) {
    // SAFETY: see above; TensorFlow calls this once, when nobody holds the tensor any more.
    drop(unsafe { Box::from_raw(block.cast::<Block>()) });
}
