//! A tensor's memory, and what keeps it alive.
//!
//! Owns either a vector or the promise, made by whoever called [`Buffer::from_raw`], that some foreign memory stays valid
//! and untouched for as long as the buffer lives. Everything above works with plain slices of it.

#![expect(unsafe_code, reason = "turns foreign memory into slices")]

use std::any::Any;

/// See the module.
pub struct Buffer(Memory);

enum Memory {
    Owned(Vec<u8>),
    Foreign {
        at: *mut u8,
        len: usize,
        /// Dropped with the buffer, on whichever thread that happens.
        _keep: Box<dyn Any + Send>,
    },
}

// SAFETY: foreign memory is this buffer's alone by the contract of `from_raw`, wherever the buffer is.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives only shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory that belongs to somebody else, whom `keep` keeps from freeing it.
    ///
    /// # Safety
    /// Until the buffer is dropped, `at` must be valid for reads and writes of `len` bytes, and nobody else may touch
    /// them; reading is fine for memory that is only used as an input.
    pub unsafe fn from_raw(at: *mut u8, len: usize, keep: Box<dyn Any + Send>) -> Self {
        Self(Memory::Foreign { at, len, _keep: keep })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Memory::Owned(bytes) => bytes,
            // Frameworks give empty tensors any address, also none.
            Memory::Foreign { len: 0, .. } => &[],
            // SAFETY: valid and ours by the contract of `from_raw`; the borrow keeps the buffer alive and unwritten.
            Memory::Foreign { at, len, .. } => unsafe { std::slice::from_raw_parts(*at, *len) },
        }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Owned(bytes) => bytes,
            Memory::Foreign { len: 0, .. } => &mut [],
            // SAFETY: as above; the borrow is exclusive.
            Memory::Foreign { at, len, .. } => unsafe { std::slice::from_raw_parts_mut(*at, *len) },
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Owned(bytes) => bytes.len(),
            Memory::Foreign { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes as a vector: without a copy if they were one.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Memory::Owned(bytes) => bytes,
            Memory::Foreign { .. } => self.as_slice().to_vec(),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Owned(bytes))
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if matches!(self.0, Memory::Owned(_)) { "owned" } else { "foreign" };
        write!(f, "Buffer({} {kind} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn foreign_memory_is_kept_alive_and_written_through() {
        let mut memory = [1u8, 2, 3];
        let kept = Arc::new(());
        // SAFETY: `memory` outlives the buffer and is not touched meanwhile.
        let mut buffer = unsafe { Buffer::from_raw(memory.as_mut_ptr(), 3, Box::new(Arc::clone(&kept))) };
        buffer.as_mut_slice()[1] = 9;
        assert_eq!((buffer.as_slice(), Arc::strong_count(&kept)), (&[1, 9, 3][..], 2));
        drop(buffer);
        assert_eq!((memory, Arc::strong_count(&kept)), ([1, 9, 3], 1));
    }

    #[test]
    fn an_empty_tensor_may_lie_anywhere() {
        // SAFETY: no bytes, so any address is valid for them.
        let mut buffer = unsafe { Buffer::from_raw(std::ptr::null_mut(), 0, Box::new(())) };
        assert!(buffer.as_slice().is_empty() && buffer.as_mut_slice().is_empty() && buffer.is_empty());
    }

    #[test]
    fn a_vector_comes_back_without_a_copy() {
        let bytes = vec![1, 2, 3];
        let at = bytes.as_ptr();
        let back = Buffer::from(bytes).into_vec();
        assert_eq!(back.as_ptr(), at);
    }
}
