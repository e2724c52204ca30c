//! Tensors of GPUs through host memory: down, reduced there as any tensor of the host, and up again. It serves what no other
//! plane can: members on several hosts without NCCL, operations and types that others lack.

#![expect(unsafe_code, reason = "shows pinned memory to the plane of the host")]

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::Group;
use corro_core::{Buffer, Deadline, Rank, Result};
use corro_cuda::{Allocation, Device, DeviceMemory, EventPool, Pinned, Span, Stream, driver};

use super::done::CudaDone;
use crate::host::{HOST, Host};
use crate::memory::Memory;
use crate::outcome::{Done, Outcome, Outcomes};
use crate::plane::Plane;
use crate::tensor::{Output, Tensor};

/// Events that stay for the next batches.
const EVENTS: usize = 64;
/// So long a GPU may take until it has computed a tensor and copied it: programs enqueue many steps ahead.
const WAIT: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Default)]
pub struct Staging {
    host: Host,
    devices: HashMap<usize, Carrier>,
}

/// What carries tensors of one GPU.
struct Carrier {
    device: Device,
    stream: Stream,
    events: EventPool,
    shelf: Shelf,
}

/// Pinned memory that is not in use. Pinning takes longer than most copies.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Vec<Pinned>>>);

/// Pinned memory in use.
struct Lease {
    pinned: Option<Pinned>,
    shelf: Shelf,
}

impl Shelf {
    /// At least so many bytes.
    fn take(&self, device: &Device, bytes: usize) -> Result<Lease> {
        let mut unused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |pinned: &Pinned| (bytes..=4 * bytes.max(1)).contains(&pinned.span().len());
        let found = unused.iter().position(fits).map(|at| unused.swap_remove(at));
        drop(unused);
        let pinned = match found {
            Some(pinned) => pinned,
            None => Pinned::new(device, bytes.next_power_of_two())?,
        };
        Ok(Lease { pinned: Some(pinned), shelf: self.clone() })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take() {
            self.shelf.0.lock().unwrap_or_else(PoisonError::into_inner).push(pinned);
        }
    }
}

impl Carrier {
    fn new(ordinal: usize) -> Result<Self> {
        let device = driver()?.device(ordinal)?;
        let (stream, events) = (Stream::new(&device)?, EventPool::new(&device, EVENTS));
        Ok(Self { device, stream, events, shelf: Shelf::default() })
    }

    /// Pinned memory of the host, as the plane of the host takes it.
    fn room(&self, bytes: usize) -> Result<Buffer> {
        let mut lease = self.shelf.take(&self.device, bytes)?;
        let at = lease.pinned.as_mut().map_or(std::ptr::null_mut(), |pinned| pinned.bytes_mut().as_mut_ptr());
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
        CudaDone::new(event, Vec::new()).wait(Deadline::after(WAIT))
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
            Some(ordinal) => Ok(DeviceMemory::own(Allocation::new(&driver()?.device(ordinal)?, bytes)?).into()),
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
