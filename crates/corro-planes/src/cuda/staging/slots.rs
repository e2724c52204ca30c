//! Pinned memory of the host, in which pieces of tensors are reduced while others come and go.

#![expect(unsafe_code, reason = "pins memory, and shows it to streams and to the host in turn")]

use corro_core::{Buffer, Error, Result};
use corro_cuda::{Device, Event, Pinned, PinnedRegion, Span, Stream};

use super::super::done::wait_for;

/// How large a slot is. Smaller ones start earlier, and cost more calls; between hosts a piece should fill the wire for a while.
pub(super) const SLOT: usize = 4 << 20;
/// One on its way down, one that is reduced, one on its way up, and one in between.
pub(super) const SLOTS: usize = 4;

/// See the module.
pub(super) struct Slots {
    memory: Memory,
    /// When what a slot was last used for is done, on the GPU.
    last: [Option<Event>; SLOTS],
}

enum Memory {
    /// Shared with the other members, all on this host: reduced where it lies. The region goes first.
    Shared {
        _pinned: PinnedRegion,
        memory: Buffer,
    },
    Own(Pinned),
}

impl Slots {
    /// In memory that members share, if there is such.
    pub(super) fn new(device: &Device, shared: Option<Buffer>) -> Result<Self> {
        let memory = match shared {
            Some(mut memory) if memory.len() >= SLOTS * SLOT => {
                let at = memory.as_mut_slice().as_mut_ptr();
                // SAFETY: the buffer stays as long as the region, which is dropped before it. Streams touch it only between the
                // host's turns, see `bytes`.
                let pinned = unsafe { PinnedRegion::register(device, at, SLOTS * SLOT)? };
                Memory::Shared { _pinned: pinned, memory }
            }
            _ => Memory::Own(Pinned::new(device, SLOTS * SLOT)?),
        };
        Ok(Self { memory, last: Default::default() })
    }

    /// A slot for streams. What it was used for before must be done: `begin` sees to it.
    pub(super) fn span(&self, slot: usize) -> Result<Span<'_>> {
        let all = match &self.memory {
            // SAFETY: pinned, and kept by `self`; unified addresses are the same on both sides.
            Memory::Shared { memory, .. } => unsafe { Span::from_raw(memory.as_slice().as_ptr() as u64, SLOTS * SLOT) },
            Memory::Own(pinned) => pinned.span(),
        };
        all.part(slot * SLOT..(slot + 1) * SLOT)
    }

    /// A slot for the host, which waits until the GPU is done with it.
    pub(super) fn bytes(&mut self, slot: usize) -> Result<&mut [u8]> {
        if let Some(last) = self.last.get(slot).and_then(Option::as_ref) {
            wait_for(last)?;
        }
        let all = match &mut self.memory {
            Memory::Shared { memory, .. } => memory.as_mut_slice(),
            Memory::Own(pinned) => pinned.bytes_mut(),
        };
        all.get_mut(slot * SLOT..(slot + 1) * SLOT).ok_or_else(|| Error::Bug(format!("there is no slot {slot}")))
    }

    /// The stream waits until a slot is not used any more.
    pub(super) fn begin(&self, stream: &Stream, slot: usize) -> Result<()> {
        self.last.get(slot).and_then(Option::as_ref).map_or(Ok(()), |last| stream.wait(last))
    }

    /// What the stream has been given is the last that uses the slot.
    pub(super) fn end(&mut self, stream: &Stream, slot: usize, event: Event) -> Result<()> {
        stream.record(&event)?;
        if let Some(last) = self.last.get_mut(slot) {
            *last = Some(event);
        }
        Ok(())
    }
}
