//! This member's tensors of a batch: all in reach of its own GPU.

use std::any::Any;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_core::{Error, Result};
use corro_cuda::sharing::share;
use corro_cuda::{Device, DeviceMemory, Event, Span, Stream};

use super::layout::{LARGE, Spot, Told};
use super::movement::Plan;
use super::own_memory::OwnMemory;
use crate::memory::Memory;
use crate::tensor::{Output, Tensor};

/// One tensor. Where its memory lies on another GPU of this process, something on our own stands in for it.
pub(super) struct Local {
    input: Option<LocalMemory>,
    output: LocalMemory,
    /// It has joined, and brings nothing: zeros.
    zeros: bool,
}

struct LocalMemory {
    memory: DeviceMemory,
    /// What it stands in for.
    instead_of: Option<DeviceMemory>,
}

impl Local {
    /// Makes a place for the result. Gives nothing to the GPU yet: the batch may still be withdrawn.
    pub(super) fn new(own: &OwnMemory, agreed: &Agreed, plan: &Plan, tensor: &mut Tensor) -> Result<Self> {
        let zeros = tensor.input.is_none() && matches!(tensor.output, Output::None);
        let on_gpu = |memory: &Memory| memory.device().map(drop).ok_or_else(|| elsewhere(agreed));
        tensor.allocate(&plan.shape, agreed.dtype, on_gpu, |bytes| own.take(bytes).map(Memory::from))?;
        let place = |memory: &Memory| LocalMemory::new(own, memory.device().ok_or_else(|| elsewhere(agreed))?);
        let input = tensor.input.as_ref().map(place).transpose()?;
        Ok(Self { input, output: place(tensor.place()?)?, zeros })
    }

    /// Where others can reach it, if it is large enough to be worth it and its memory can be shared.
    pub(super) fn tell(&self, device: &Device) -> Result<Option<Told>> {
        let input = self.input.as_ref().unwrap_or(&self.output);
        if input.memory.len() < LARGE {
            return Ok(None);
        }
        let Some(at) = spot(device, &input.memory)? else { return Ok(None) };
        let Some(output) = self.input.as_ref().map(|_| spot(device, &self.output.memory)) else {
            return Ok(Some(Told { input: at, output: None }));
        };
        Ok(output?.map(|output| Told { input: at, output: Some(output) }))
    }

    /// What it brings, where it can be read.
    pub(super) fn input(&self) -> Span<'_> {
        self.input.as_ref().unwrap_or(&self.output).memory.span()
    }

    /// Where the result goes.
    pub(super) fn output(&self) -> Span<'_> {
        self.output.memory.span()
    }

    /// The stream may use the memory from here on. `last` is the event it was last made to wait for: tensors of a group have the
    /// same.
    pub(super) fn begin(&self, stream: &Stream, last: &mut Option<Arc<Event>>) -> Result<()> {
        for place in self.input.iter().chain([&self.output]) {
            let real = place.instead_of.as_ref().unwrap_or(&place.memory);
            if let Some(ready) = real.ready()
                && !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, ready))
            {
                stream.wait(ready)?;
                *last = Some(Arc::clone(ready));
            }
        }
        let brought = self.input.as_ref().unwrap_or(&self.output);
        match &brought.instead_of {
            _ if self.zeros => stream.zero(brought.memory.span()),
            Some(real) => stream.copy(brought.memory.span(), real.span()),
            None => Ok(()),
        }
    }

    /// The result is where it was made.
    pub(super) fn end(&self, stream: &Stream) -> Result<()> {
        match &self.output.instead_of {
            Some(real) => stream.copy(real.span(), self.output.memory.span()),
            None => Ok(()),
        }
    }

    /// What must not go before the stream is done.
    pub(super) fn keepers(&self) -> impl Iterator<Item = Arc<dyn Any + Send + Sync>> {
        let of =
            |place: &LocalMemory| [Some(place.memory.keeper()), place.instead_of.as_ref().map(DeviceMemory::keeper)];
        self.input.iter().chain([&self.output]).flat_map(of).flatten()
    }
}

impl LocalMemory {
    fn new(own: &OwnMemory, memory: &DeviceMemory) -> Result<Self> {
        if memory.device() == own.device().ordinal() {
            return Ok(Self { memory: memory.again(), instead_of: None });
        }
        Ok(Self { memory: own.take(memory.len())?, instead_of: Some(memory.again()) })
    }
}

fn spot(device: &Device, memory: &DeviceMemory) -> Result<Option<Spot>> {
    let address = memory.span().address();
    Ok(share(device, address)?.map(|memory| Spot { memory, offset: address.saturating_sub(memory.base) }))
}

fn elsewhere(agreed: &Agreed) -> Error {
    Error::Bug(format!("tensor {} is not on a GPU, though all have said so", agreed.name))
}
