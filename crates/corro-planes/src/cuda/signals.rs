//! What the streams of members wait for: a number for each of two moments of a batch and each member.
//!
//! The numbers lie in the memory of whoever waits for them, and are written by whoever has come so far. So a stream looks at
//! memory of its own GPU only, and a member can let its own stream go on when another one will never write.

use std::sync::atomic::{AtomicU32, Ordering};

use corro_core::Result;
use corro_cuda::{Span, Stream};

use super::members::Members;

/// A moment in the life of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// What this member brings can be read.
    Brought = 0,
    /// It has read what others bring, and has written what it had to write to them.
    Taken = 1,
}

const MOMENTS: usize = 2;
/// Numbers lie apart, as far as GPUs fetch memory.
const APART: usize = 128;
/// So far ahead of the last batch that no stream waits any more, and not so far that it would count as behind.
const RELEASED: u32 = 1 << 30;

/// See the module.
pub(super) struct Signals {
    memory: Members,
    last: AtomicU32,
}

impl Signals {
    /// How much memory of each member they take.
    pub(super) const fn bytes(members: usize) -> usize {
        MOMENTS * members * APART
    }

    /// In this memory, which was zero on all members before any of them got here.
    pub(super) fn new(memory: Members) -> Self {
        Self { memory, last: AtomicU32::new(0) }
    }

    /// The number of the next batch; the same on all members.
    pub(super) fn next(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Tells the others that this member's stream has come to a moment of the batch.
    pub(super) fn tell(&self, stream: &Stream, moment: Moment, batch: u32) -> Result<()> {
        for member in self.memory.others() {
            stream.write(place(self.memory.of(member)?, moment, self.memory.me())?, batch)?;
        }
        Ok(())
    }

    /// Has the stream wait until all others have come to a moment of the batch, or of a later one.
    pub(super) fn wait(&self, stream: &Stream, moment: Moment, batch: u32) -> Result<()> {
        for member in self.memory.others() {
            stream.wait_for(place(self.memory.mine(), moment, member)?, batch)?;
        }
        Ok(())
    }

    /// Lets this member's streams go on, whatever others do: one of them is lost. What they come to then is of no worth.
    pub(super) fn release(&self) -> Result<()> {
        let stream = Stream::new(self.memory.device())?;
        let number = self.last.load(Ordering::Relaxed).wrapping_add(RELEASED);
        for member in self.memory.others() {
            for moment in [Moment::Brought, Moment::Taken] {
                stream.write(place(self.memory.mine(), moment, member)?, number)?;
            }
        }
        Ok(())
    }
}

/// Where `member` writes, in somebody's memory.
fn place(memory: Span<'_>, moment: Moment, member: usize) -> Result<Span<'_>> {
    let at = (member * MOMENTS + moment as usize) * APART;
    memory.part(at..at + size_of::<u32>())
}
