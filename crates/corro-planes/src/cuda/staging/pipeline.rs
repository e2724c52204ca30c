//! Reductions of large tensors through the host, in pieces: while one is reduced, the next is on its way down and the last on its
//! way up.

use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::{Kind, MemoryPlace};
use corro_collectives::{Group, Reduction};
use corro_core::{Error, ReduceOp, Result};
use corro_cuda::{Device, DeviceMemory, EventPool, Stream, driver};

use super::super::done::CudaDone;
use super::super::own_memory::OwnMemory;
use super::pieces::{Piece, cut, len};
use super::slots::{SLOT, SLOTS, Slots};
use crate::host::postscales;
use crate::memory::Memory;
use crate::outcome::{Done, Outcome, Outcomes};
use crate::plane::Pool;
use crate::tensor::{Output, Tensor};

/// Events that stay for the next batches.
const EVENTS: usize = 64;

/// Whether a batch can be cut: all members have it in GPU memory, and its elements are reduced one by one.
pub(super) fn serves(agreed: &[Arc<Agreed>]) -> bool {
    let elementwise = |agreed: &Agreed| agreed.kind.reduction().is_some_and(|(op, ..)| op != ReduceOp::Adasum);
    let first = agreed.first();
    first.is_some_and(|first| {
        first.place == MemoryPlace::Gpu && matches!(first.kind, Kind::Allreduce { compression: None, .. })
    }) && agreed.iter().all(|agreed| elementwise(agreed))
}

/// One GPU's way to the host and back.
pub(super) struct Pipeline {
    device: Device,
    down: Stream,
    up: Stream,
    events: EventPool,
    own: OwnMemory,
    slots: Slots,
}

/// A tensor on its way.
struct Travelling {
    /// What it brings; nothing if it has joined.
    from: Option<DeviceMemory>,
    to: DeviceMemory,
}

impl Pipeline {
    /// All members make one at the same time: they share memory if they can.
    pub(super) fn new(ordinal: usize, group: &mut Group, pool: Option<&Pool>) -> Result<Self> {
        let device = driver()?.device(ordinal)?;
        // Nobody waits for others' memory who could still be called off.
        group.barrier()?;
        let shared = pool.map_or(Ok(None), |pool| pool(SLOTS * SLOT))?;
        Ok(Self {
            down: Stream::new(&device)?,
            up: Stream::new(&device)?,
            events: EventPool::new(&device, EVENTS),
            own: OwnMemory::new(&device),
            slots: Slots::new(&device, shared)?,
            device,
        })
    }

    /// Runs a batch.
    pub(super) fn run(
        &mut self,
        group: &mut Group,
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
    ) -> Result<Outcomes> {
        let first = agreed.first().ok_or_else(|| Error::Bug("a batch of nothing".into()))?;
        let (op, pre, post) = first.kind.reduction().ok_or_else(|| Error::Bug("nothing to reduce".into()))?;
        let (postscale, afterwards) = postscales(first, f64::from_bits(post));
        let how = Reduction { prescale: f64::from_bits(pre), postscale, ..Reduction::new(first.dtype, op) };
        let travelling =
            agreed.iter().zip(tensors.iter_mut()).map(|(a, t)| self.depart(a, t)).collect::<Result<Vec<_>>>()?;
        let lengths = agreed.iter().map(|a| a.shapes[0].bytes(a.dtype)).collect::<Result<Vec<_>>>()?;
        let pieces = cut(lengths, SLOT);
        // So many are on their way down before the first is reduced; one slot is for what goes up.
        let ahead = SLOTS - 1;
        for (i, piece) in pieces.iter().enumerate().take(ahead) {
            self.fetch(i % SLOTS, piece, &travelling)?;
        }
        for (i, piece) in pieces.iter().enumerate() {
            self.reduce(group, (i % SLOTS, piece), &travelling, (&how, afterwards))?;
            self.hand_back(i % SLOTS, piece, &travelling)?;
            if let Some(next) = pieces.get(i + ahead) {
                self.fetch((i + ahead) % SLOTS, next, &travelling)?;
            }
        }
        let event = self.events.take()?;
        self.up.record(&event)?;
        let keep = travelling.iter().flat_map(|t| t.from.iter().chain([&t.to])).map(DeviceMemory::keeper).collect();
        let done: Arc<dyn Done> = Arc::new(CudaDone::new(event, keep));
        let outcome = |(agreed, tensor): (&Arc<Agreed>, &mut Tensor)| {
            let after = Some(Arc::clone(&done));
            tensor.outcome(agreed.shapes[0].clone()).map(|outcome| Outcome { after, ..outcome })
        };
        Ok(agreed.iter().zip(tensors).map(outcome).collect())
    }

    /// Makes a place for a tensor's result.
    fn depart(&self, agreed: &Agreed, tensor: &mut Tensor) -> Result<Travelling> {
        let joined = tensor.input.is_none() && matches!(tensor.output, Output::None);
        let on_gpu = |memory: &Memory| memory.device().map(drop).ok_or_else(|| elsewhere(agreed));
        tensor.allocate(&agreed.shapes[0], agreed.dtype, on_gpu, |bytes| self.own.take(bytes).map(Memory::from))?;
        let again = |memory: &Memory| memory.device().map(DeviceMemory::again).ok_or_else(|| elsewhere(agreed));
        let from = tensor.input.as_ref().map(again).transpose()?;
        let to = again(tensor.place()?)?;
        for memory in from.iter().chain([&to]) {
            if let Some(ready) = memory.ready() {
                self.down.wait(ready)?;
                self.up.wait(ready)?;
            }
        }
        let from = if joined { None } else { Some(from.unwrap_or_else(|| to.again())) };
        Ok(Travelling { from, to })
    }

    fn fetch(&mut self, slot: usize, piece: &Piece, travelling: &[Travelling]) -> Result<()> {
        self.slots.begin(&self.down, slot)?;
        let room = self.slots.span(slot)?;
        for segment in piece {
            if let Some(from) = &travelling[segment.tensor].from {
                let part = from.span().part(segment.from..segment.from + segment.len)?;
                self.down.copy(room.part(segment.at..segment.at + segment.len)?, part)?;
            }
        }
        let event = self.events.take()?;
        self.slots.end(&self.down, slot, event)
    }

    fn reduce(
        &mut self,
        group: &mut Group,
        (slot, piece): (usize, &Piece),
        travelling: &[Travelling],
        (how, afterwards): (&Reduction, f64),
    ) -> Result<()> {
        let bytes = &mut self.slots.bytes(slot)?[..len(piece)];
        for segment in piece.iter().filter(|segment| travelling[segment.tensor].from.is_none()) {
            bytes[segment.at..segment.at + segment.len].fill(0);
        }
        group.allreduce_bytes(bytes, how)?;
        if afterwards != 1.0 {
            corro_kernels::scale(how.dtype, bytes, afterwards);
        }
        Ok(())
    }

    fn hand_back(&mut self, slot: usize, piece: &Piece, travelling: &[Travelling]) -> Result<()> {
        let room = self.slots.span(slot)?;
        for segment in piece {
            let part = travelling[segment.tensor].to.span().part(segment.from..segment.from + segment.len)?;
            self.up.copy(part, room.part(segment.at..segment.at + segment.len)?)?;
        }
        let event = self.events.take()?;
        self.slots.end(&self.up, slot, event)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // The slots go with it.
        let _ = self.device.synchronize();
    }
}

fn elsewhere(agreed: &Agreed) -> Error {
    Error::Bug(format!("tensor {} is not on a GPU, though all have said so", agreed.name))
}
