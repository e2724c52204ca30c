//! Tensors of GPUs through host memory: down, reduced there as any tensor of the host, and up again. It serves what no other
//! plane can: members on several hosts without NCCL, operations and types that others lack.

#![expect(unsafe_code, reason = "shows pinned memory to the plane of the host")]

mod pieces;
mod pipeline;
mod slots;

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::Group;
use corro_core::{Buffer, Rank, Result};
use corro_cuda::{BlockPool, Device, DeviceMemory, EventPool, Pinned, Span, Stream, driver};

use self::pipeline::Pipeline;
use super::done::{CudaDone, wait_for};
use super::own_memory::OwnMemory;
use crate::host::{HOST, Host};
use crate::memory::Memory;
use crate::outcome::{Done, Outcome, Outcomes};
use crate::plane::{Plane, Pool};
use crate::tensor::{Output, Tensor};

/// Events that stay for the next batches.
const EVENTS: usize = 64;
/// So much pinned memory stays for the next batches.
const KEPT: usize = 256 << 20;

/// See the module.
pub struct Staging {
    host: Host,
    devices: HashMap<usize, Carrier>,
    pool: Option<Pool>,
    /// Made by all members at the first batch that needs it.
    pipeline: Option<Pipeline>,
}

/// What carries tensors of one GPU.
struct Carrier {
    device: Device,
    stream: Stream,
    events: EventPool,
    own: OwnMemory,
    pool: BlockPool<Pinned>,
}

impl Carrier {
    fn new(ordinal: usize) -> Result<Self> {
        let device = driver()?.device(ordinal)?;
        let (stream, events) = (Stream::new(&device)?, EventPool::new(&device, EVENTS));
        Ok(Self { stream, events, own: OwnMemory::new(&device), pool: BlockPool::new(KEPT), device })
    }

    /// Pinned memory of the host, as the plane of the host takes it.
    fn room(&self, bytes: usize) -> Result<Buffer> {
        let mut lease = self.pool.take(bytes, |bytes| Pinned::new(&self.device, bytes))?;
        let at = lease.get_mut().map_or(std::ptr::null_mut(), |pinned| pinned.bytes_mut().as_mut_ptr());
        // SAFETY: the lease keeps at least as many bytes, and nobody else has them; streams touch them only while nobody
        // holds a slice: before the batch is given to the host's plane, and after that has ended.
        Ok(unsafe { Buffer::from_raw(at, bytes, Box::new(lease)) })
    }

    /// Enqueues the copy of what a member brings.
    fn down(&self, memory: &DeviceMemory) -> Result<Buffer> {
        let room = self.room(memory.len())?;
        if let Some(ready) = memory.ready() {
            self.stream.wait(ready)?;
        }
        self.stream.copy(pinned(&room), memory.span())?;
        Ok(room)
    }

    fn wait(&self) -> Result<()> {
        let event = self.events.take()?;
        self.stream.record(&event)?;
        wait_for(&event)
    }

    /// Enqueues the copy of a result.
    fn up(&self, result: Buffer, memory: &DeviceMemory) -> Result<Arc<dyn Done>> {
        if let Some(ready) = memory.ready() {
            self.stream.wait(ready)?;
        }
        self.stream.copy(memory.span(), pinned(&result))?;
        let event = self.events.take()?;
        self.stream.record(&event)?;
        let keep: Vec<Arc<dyn Any + Send + Sync>> = vec![memory.keeper(), Arc::new(result)];
        Ok(Arc::new(CudaDone::new(event, keep)))
    }
}

/// The memory of a buffer, which is pinned.
fn pinned(buffer: &Buffer) -> Span<'_> {
    // SAFETY: pinned, and kept by the buffer, or by whoever waits for the stream.
    unsafe { Span::from_raw(buffer.as_slice().as_ptr() as u64, buffer.len()) }
}

impl Staging {
    /// `pool` makes memory that the members share; `host` does what is to be done there.
    pub fn new(pool: Option<Pool>, host: Host) -> Self {
        Self { host, devices: HashMap::new(), pool, pipeline: None }
    }

    /// All members come here at the same batch.
    fn pipeline(&mut self, group: &mut Group, tensors: &[Tensor]) -> Result<&mut Pipeline> {
        let pipeline = match self.pipeline.take() {
            Some(pipeline) => pipeline,
            None => {
                let ordinal = tensors.iter().find_map(Tensor::device).unwrap_or(0);
                Pipeline::new(ordinal, group, self.pool.as_ref())?
            }
        };
        Ok(self.pipeline.insert(pipeline))
    }

    fn carrier(&mut self, ordinal: usize) -> Result<&Carrier> {
        Ok(match self.devices.entry(ordinal) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Carrier::new(ordinal)?),
        })
    }

    /// What a member brings, on its way to the host.
    fn fetch(&mut self, agreed: &Agreed, tensor: &Tensor) -> Result<Tensor> {
        let in_place = is_in_place(agreed);
        let brought = match (&tensor.input, &tensor.output) {
            (Some(input), _) => Some(input),
            (None, Output::InPlace(place)) if in_place => Some(place),
            _ => None,
        };
        let memory = match brought {
            Some(Memory::Device(memory)) => self.carrier(memory.device())?.down(memory)?,
            Some(Memory::Host(buffer)) => buffer.as_slice().to_vec().into(),
            None => return Ok(Tensor::default()),
        };
        // What is reduced may be reduced in place: it is a copy.
        Ok(if in_place {
            Tensor::new(None, Output::InPlace(memory.into()))
        } else {
            Tensor::new(Some(memory.into()), Output::None)
        })
    }

    /// A result, on its way to the device.
    fn hand_back(&mut self, agreed: &Agreed, result: Outcome, tensor: &mut Tensor) -> Result<Result<Outcome>> {
        let Outcome { output, shape, received_splits, .. } = result;
        let (ordinal, in_place) = (tensor.device(), is_in_place(agreed) && tensor.is_on_device());
        let own = |bytes| match ordinal {
            Some(ordinal) => Ok(self.carrier(ordinal)?.own.take(bytes)?.into()),
            None => Ok(vec![0; bytes].into()),
        };
        tensor.allocate(&shape, agreed.dtype, |_| Ok(()), own)?;
        let result = output.map_or_else(|| Ok(Vec::new().into()), Memory::into_host)?;
        let after = match tensor.place()? {
            Memory::Host(place) => {
                place.as_mut_slice().copy_from_slice(result.as_slice());
                None
            }
            Memory::Device(place) => {
                let carrier = self.carrier(place.device())?;
                let result = if in_place {
                    result
                } else {
                    // The host's plane has made room for it, which is not pinned.
                    let mut room = carrier.room(result.len())?;
                    room.as_mut_slice().copy_from_slice(result.as_slice());
                    room
                };
                Some(carrier.up(result, place)?)
            }
        };
        Ok(tensor.outcome(shape).map(|outcome| Outcome { received_splits, after, ..outcome }))
    }
}

/// Whether the result has the shape of what each member brings.
fn is_in_place(agreed: &Agreed) -> bool {
    matches!(agreed.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. })
}

impl Plane for Staging {
    fn name(&self) -> &'static str {
        HOST
    }

    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes> {
        if pipeline::serves(agreed) {
            return self.pipeline(group, tensors)?.run(group, agreed, tensors);
        }
        let fetched: Result<Vec<Tensor>> =
            agreed.iter().zip(tensors.iter()).map(|(agreed, tensor)| self.fetch(agreed, tensor)).collect();
        let mut fetched = fetched?;
        for carrier in self.devices.values() {
            carrier.wait()?;
        }
        let outcomes = self.host.run(group, members, agreed, &mut fetched, planned)?;
        if agreed.first().is_some_and(|agreed| matches!(agreed.kind, Kind::Barrier)) {
            return Ok(outcomes);
        }
        let pairs = agreed.iter().zip(outcomes).zip(tensors);
        pairs.map(|((agreed, outcome), tensor)| self.hand_back(agreed, outcome?, tensor)).collect()
    }
}
