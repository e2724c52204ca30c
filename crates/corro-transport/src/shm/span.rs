//! Places in shared memory, as what is read from and written to.

use std::marker::PhantomData;

use super::segment::Segment;

/// A place in the shared memory. Made by `Team`, which checks it; the memory stays mapped while it lives.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub(super) at: *mut u8,
    pub(super) len: usize,
    mapped: PhantomData<&'a Segment>,
}

impl Span<'_> {
    /// `at` must have `len` bytes that stay mapped for as long as the span may live: whoever makes one sees to that.
    pub(super) const fn new(at: *mut u8, len: usize) -> Self {
        Self { at, len, mapped: PhantomData }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One operand of `Team::reduce`.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Bytes on the board or in an area.
    Shared(Span<'a>),
    /// The caller's own bytes.
    Private(&'a [u8]),
    /// What the target holds now.
    Target,
}

/// Where `Team::reduce` writes.
#[derive(Debug)]
pub enum Target<'a> {
    /// Onto the board or into an area.
    Shared(Span<'a>),
    /// Into the caller's own memory.
    Private(&'a mut [u8]),
}
