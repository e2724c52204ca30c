//! Memory that MPI reads or writes: the host's, and that of GPUs where MPI says that it takes it.

use std::marker::PhantomData;
use std::ops::Range;

use corro_cuda::Span;

/// Rust has empty slices begin at 1, which is what MPI calls `MPI_IN_PLACE`: what is empty begins here.
static NOTHING: u64 = 0;

/// What MPI reads.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    at: usize,
    len: usize,
    of: PhantomData<&'a [u8]>,
}

/// Where MPI writes, and reads what is there before.
#[derive(Debug)]
pub struct Target<'a> {
    at: usize,
    len: usize,
    of: PhantomData<&'a mut [u8]>,
}

impl Source<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(&self) -> usize {
        if self.len == 0 { &raw const NOTHING as usize } else { self.at }
    }

    /// Those of its bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let Range { start, end } = clamped(range, self.len);
        Self { at: self.at + start, len: end - start, of: PhantomData }
    }
}

impl Target<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(self) -> usize {
        if self.len == 0 { &raw const NOTHING as usize } else { self.at }
    }

    /// Those of its bytes.
    pub(crate) fn part(&mut self, range: Range<usize>) -> Target<'_> {
        let Range { start, end } = clamped(range, self.len);
        Target { at: self.at + start, len: end - start, of: PhantomData }
    }
}

/// Never outside, whatever was asked for.
fn clamped(range: Range<usize>, len: usize) -> Range<usize> {
    let end = range.end.min(len);
    range.start.min(end)..end
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { at: bytes.as_ptr() as usize, len: bytes.len(), of: PhantomData }
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { at: bytes.as_mut_ptr() as usize, len: bytes.len(), of: PhantomData }
    }
}

impl<'a> From<&'a mut Vec<u8>> for Target<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        bytes.as_mut_slice().into()
    }
}

impl<'a> From<Span<'a>> for Source<'a> {
    fn from(span: Span<'a>) -> Self {
        Self { at: span.address() as usize, len: span.len(), of: PhantomData }
    }
}

impl<'a> From<Span<'a>> for Target<'a> {
    fn from(span: Span<'a>) -> Self {
        Self { at: span.address() as usize, len: span.len(), of: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_not_in_place() {
        let mut bytes = [1, 2, 3];
        assert!(Source::from(&bytes[..0]).address() > 1 && Target::from(&mut bytes[..0]).address() > 1);
        assert_eq!(Source::from(&bytes[..]).part(1..9).len(), 2);
        assert_eq!(Target::from(&mut bytes[..]).part(7..9).len(), 0);
    }
}
