//! A piece of memory that a GPU can reach, borrowed from whoever owns it.

#![expect(unsafe_code, reason = "an address from outside is taken on trust")]

use std::marker::PhantomData;
use std::ops::Range;

use corro_core::{Error, Result};

/// Address and length. The memory may be a GPU's, ours or another process's, or pinned memory of the host; all of them
/// have addresses of one space. It can't be read as a slice: streams copy it, and kernels work on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Span<'owner> {
    address: u64,
    len: usize,
    owner: PhantomData<&'owner ()>,
}

impl Span<'_> {
    /// Memory that belongs to somebody else.
    ///
    /// # Safety
    /// For as long as `'owner`, and until all work on it is done, the memory must be there and be reachable from the GPU
    /// whose streams and kernels get the span. No reference of Rust may point to it.
    pub const unsafe fn from_raw(address: u64, len: usize) -> Self {
        Self { address, len, owner: PhantomData }
    }

    /// Where it begins.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A part of it, in bytes from its beginning.
    ///
    /// # Errors
    /// A range that leaves the span: a mistake of Corro's.
    pub fn part(self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::Bug(format!("bytes {range:?} of a piece of GPU memory that has {}", self.len)));
        }
        Ok(Self { address: self.address + range.start as u64, len: range.len(), owner: PhantomData })
    }
}

impl std::fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Span({:#x}, {} bytes)", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stays_inside() {
        // SAFETY: never given to a GPU.
        let span = unsafe { Span::from_raw(0x1000, 100) };
        let part = span.part(10..30).unwrap();
        assert_eq!((part.address(), part.len(), part.is_empty()), (0x100a, 20, false));
        assert!(part.part(0..20).is_ok() && part.part(20..20).unwrap().is_empty());
        assert!(part.part(0..21).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
        let reversed = part.part(3..2);
        assert!(reversed.is_err());
    }
}
