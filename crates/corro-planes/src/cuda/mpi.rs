//! The plane of a GPU-aware MPI: the site's library moves and reduces memory of GPUs itself, between hosts by whatever network
//! they have. For those who ask for it; what it can't serve goes as it would without.
//!
//! ```text
//! host                                       stream of this member
//! in a plan: all are in
//! waits until the tensors are written        pack small ones into one room, multiply by the first factor
//! MPI, in a thread of its own
//!                                            multiply by the second factor, unpack
//! ticket done                                event: the result is there
//! ```
//! MPI blocks, in a thread that can be left behind (see `corro-mpi`): the non-blocking reductions of Open MPI crash on memory of
//! GPUs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::{Collective, Group};
use corro_core::{Deadline, Error, Rank, Result};
use corro_cuda::{Allocation, Device, EventPool, Span};
use corro_mpi::{Communicator, Mpi, Patience, Threads, has_own};
use corro_transport::Withdrawal;
use smallvec::SmallVec;

use super::batch::{Batch, forget, outcomes};
use super::done::{CudaDone, wait_for};
use super::layout::LARGE;
use super::movement::{gives, shares};
use super::nccl::Tools;
use super::packing::Packing;
use super::row::home;
use crate::exchange::agree;
use crate::facts::Facts;
use crate::mpi::{NAME, Seat, mpi_op, odd_world, seats_of, start_in_time, started};
use crate::outcome::Outcomes;
use crate::plane::{Plane, Release, Row, Verdict, Wanted};
use crate::tensor::Tensor;

/// Events that stay for the next batches.
const EVENTS: usize = 64;

/// The row of the plane.
#[derive(Debug, Default)]
pub(crate) struct CudaMpi;

impl Row for CudaMpi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, timeout: Duration) -> Result<()> {
        start_in_time(timeout)
    }

    fn describe(&self, facts: &mut Facts, device: Option<usize>) {
        let able = home(device).and_then(|_| started()).map(|(mpi, world, threads)| {
            let is_blocking = threads == Threads::Multiple;
            (mpi, Seat { rank: world.rank(), size: world.size(), is_blocking })
        });
        let ability = match able {
            Ok((mpi, _)) if !mpi.takes_gpu_memory() => {
                let version = mpi.version().unwrap_or_default();
                Err(format!("{version} does not say that it takes memory of GPUs (MPIX_Query_cuda_support)"))
            }
            Ok((_, seat)) if !seat.is_blocking => {
                Err("the program has started MPI without MPI_THREAD_MULTIPLE, which is needed for memory of GPUs"
                    .into())
            }
            Ok((_, seat)) => Ok(seat.pack()),
            Err(error) => Err(error.to_string()),
        };
        facts.says(NAME, ability);
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        if let Some(why) = odd_world(&seats_of(facts)) {
            return Some(why);
        }
        if wanted.collective == Collective::Barrier {
            return Some("nothing is to be moved".into());
        }
        let op = wanted.op.map(mpi_op)?;
        (!has_own(wanted.dtype, op)).then(|| format!("MPI has no {op} of {} that is Corro's", wanted.dtype))
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        facts: &[Facts],
        device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let device = home(device)?;
        let places: Vec<usize> = seats_of(facts).iter().map(|seat| seat.rank).collect();
        let made = started().and_then(|(mpi, world, _)| {
            let mut communicator = world.of_members(&places)?;
            let entered = device.clone();
            // For good: MPI copies in the context that the thread is in. If it can't be entered, MPI will say so.
            communicator.allow_blocking(0, Some(Box::new(move || std::mem::forget(entered.enter()))));
            Ok((mpi, communicator, Tools::new(&device)?))
        });
        let verdict = agree(group, members, made)?;
        Ok(verdict.map(|(mpi, communicator, tools)| {
            let events = EventPool::new(&device, EVENTS);
            let (released, under_way) = (Arc::default(), VecDeque::new());
            Box::new(MpiGpuPlane { mpi, communicator, tools, device, room: None, events, released, under_way })
                as Box<dyn Plane>
        }))
    }
}

/// See the module.
struct MpiGpuPlane {
    mpi: Mpi,
    communicator: Communicator,
    tools: Tools,
    device: Device,
    /// For small tensors, and for what is scaled before it is reduced.
    room: Option<Allocation>,
    events: EventPool,
    /// Set when the job has ended: nobody waits for others any more.
    released: Arc<AtomicBool>,
    /// Batches that the device may still be at, oldest first.
    under_way: VecDeque<Arc<CudaDone>>,
}

/// How long to wait for others in a batch.
struct Waiting {
    withdrawal: Withdrawal,
    released: Arc<AtomicBool>,
    deadline: Deadline,
}

impl Waiting {
    fn with<T>(&self, act: impl FnOnce(&Patience<'_>) -> Result<T>) -> Result<T> {
        let over = || self.withdrawal.is_set() || self.released.load(Ordering::SeqCst);
        let stop = || over().then_some(Error::Withdrawn);
        act(&Patience { deadline: self.deadline, stop: &stop })
    }
}

impl MpiGpuPlane {
    /// Makes the room as large as it must be. Its old memory is freed when the device is done with it.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if self.room.as_ref().is_none_or(|room| room.span().len() < bytes) && bytes > 0 {
            self.room = Some(Allocation::new(&self.device, bytes.next_power_of_two())?);
        }
        Ok(())
    }

    /// The first bytes of the room.
    fn room(&self, bytes: usize) -> Result<Span<'_>> {
        match &self.room {
            Some(room) => room.span().part(0..bytes),
            None => Err(Error::Bug("no room was made for small tensors".into())),
        }
    }

    /// The host waits until the stream has done what it was given: MPI knows no streams.
    fn settle(&self) -> Result<()> {
        let event = self.events.take()?;
        self.tools.stream.record(&event)?;
        wait_for(&event)
    }

    fn work(&mut self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        batch.begin(&self.tools.stream)?;
        match &batch.agreed[0].kind {
            Kind::Allreduce { .. } => self.allreduce(batch, waiting)?,
            Kind::Broadcast { .. } => self.broadcast(batch, waiting)?,
            Kind::Allgather => self.allgather(batch, waiting)?,
            Kind::Alltoall { .. } => self.alltoall(batch, waiting)?,
            Kind::Reducescatter { .. } => self.reducescatter(batch, waiting)?,
            kind => return Err(Error::Bug(format!("{} of tensors on GPUs", kind.name()))),
        }
        batch.end(&self.tools.stream)
    }

    fn allreduce(&mut self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        let sizes: Vec<Vec<usize>> = batch.locals.iter().map(|local| vec![local.output().len()]).collect();
        let small: Vec<bool> = sizes.iter().map(|size| size[0] < LARGE).collect();
        let packing = Packing::new(&sizes, &small, false);
        self.make_room(packing.len())?;
        let (tools, how) = (&self.tools, batch.how);
        let room = if packing.len() > 0 { Some(self.room(packing.len())?) } else { None };
        let (mut packed, mut unpacked, mut large) = (vec![], vec![], vec![]);
        for (tensor, local) in batch.locals.iter().enumerate() {
            let (input, output) = (local.input(), local.output());
            match (packing.part(tensor, 0), room) {
                (Some(part), Some(room)) if !part.is_empty() => {
                    unpacked.push((part.start, output));
                    packed.push((room.part(part)?, input));
                }
                (Some(_), _) => {}
                (None, _) if how.prescale == 1.0 => large.push((output, (input != output).then_some(input))),
                (None, _) => {
                    tools.scale(how.dtype, how.prescale, output, input)?;
                    large.push((output, None));
                }
            }
        }
        if let Some(room) = room {
            tools.kernels.gather(&tools.stream, &packed)?;
            if how.prescale != 1.0 {
                tools.scale(how.dtype, how.prescale, room, room)?;
            }
        }
        self.settle()?;
        let kind = (how.dtype, mpi_op(how.op));
        for (output, input) in large.iter().copied().chain(room.map(|room| (room, None))) {
            waiting
                .with(|patience| self.communicator.allreduce(kind, input.map(Into::into), output.into(), patience))?;
        }
        if how.postscale != 1.0 {
            large.iter().try_for_each(|(output, _)| tools.scale(how.dtype, how.postscale, *output, *output))?;
        }
        match room {
            Some(room) => tools.unpack(how.dtype, how.postscale, room, &unpacked),
            None => Ok(()),
        }
    }

    fn broadcast(&self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        if batch.me == batch.root {
            let moved = batch.locals.iter().map(|local| (local.output(), local.input()));
            let moved: Vec<_> = moved.filter(|(to, from)| to != from && !to.is_empty()).collect();
            self.tools.kernels.gather(&self.tools.stream, &moved)?;
        }
        self.settle()?;
        batch.locals.iter().map(|local| local.output()).filter(|output| !output.is_empty()).try_for_each(|output| {
            waiting.with(|patience| self.communicator.broadcast(output.into(), batch.root, patience))
        })
    }

    fn allgather(&self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        self.settle()?;
        for (local, bytes) in batch.locals.iter().zip(&batch.bytes) {
            let input = local.input().part(0..bytes[batch.me])?;
            waiting
                .with(|patience| self.communicator.allgather(input.into(), bytes, local.output().into(), patience))?;
        }
        Ok(())
    }

    fn alltoall(&self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        self.settle()?;
        for (agreed, local) in batch.agreed.iter().zip(&batch.locals) {
            let of = |member| -> Result<Vec<usize>> {
                Ok(gives(agreed, batch.members, member)?.into_iter().map(|(_, len)| len).collect())
            };
            let table = (0..batch.members).map(of).collect::<Result<Vec<_>>>()?;
            let longest = table.iter().flatten().copied().max().unwrap_or(0);
            let (sent, received): (&[usize], Vec<usize>) =
                (&table[batch.me], table.iter().map(|gives| gives[batch.me]).collect());
            let input = local.input().part(0..sent.iter().sum())?;
            waiting.with(|patience| {
                let (from, to) = ((input.into(), sent), (local.output().into(), received.as_slice()));
                self.communicator.alltoall(from, to, longest, patience)
            })?;
        }
        Ok(())
    }

    fn reducescatter(&mut self, batch: &Batch<'_>, waiting: &Waiting) -> Result<()> {
        let how = batch.how;
        let scaled = how.prescale != 1.0;
        for (agreed, local) in batch.agreed.iter().zip(&batch.locals) {
            let shares = shares(agreed, batch.members)?;
            let elements: Vec<usize> = shares.iter().map(|bytes| bytes / how.dtype.size()).collect();
            let bytes = shares.iter().sum();
            if scaled {
                // What was in it before may still be read: the stream is done with it after `settle`.
                self.make_room(bytes)?;
            }
            let mut input = local.input().part(0..bytes)?;
            if scaled && bytes > 0 {
                let room = self.room(bytes)?;
                self.tools.scale(how.dtype, how.prescale, room, input)?;
                input = room;
            }
            self.settle()?;
            waiting.with(|patience| {
                let kind = (how.dtype, mpi_op(how.op));
                self.communicator.reduce_scatter(kind, input.into(), &elements, local.output().into(), patience)
            })?;
            if how.postscale != 1.0 && !local.output().is_empty() {
                self.tools.scale(how.dtype, how.postscale, local.output(), local.output())?;
            }
        }
        Ok(())
    }
}

impl Plane for MpiGpuPlane {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes> {
        forget(&mut self.under_way)?;
        if agreed.is_empty() {
            return Ok(SmallVec::new());
        }
        let batch = Batch::new(&self.tools.own, group, members, agreed, tensors)?;
        if planned {
            group.barrier()?;
        }
        let waiting = Waiting {
            withdrawal: group.withdrawal(),
            released: Arc::clone(&self.released),
            deadline: Deadline::after(group.timeout()),
        };
        if let Err(error) = self.work(&batch, &waiting) {
            // MPI may still read and write there.
            self.mpi.give_up();
            std::mem::forget(batch.keepers());
            std::mem::forget(self.room.take());
            // Who is lost the group knows: it hears of it where MPI does not.
            return Err(if error == Error::Withdrawn { group.barrier().err().unwrap_or(error) } else { error });
        }
        let event = self.events.take()?;
        self.tools.stream.record(&event)?;
        let done = Arc::new(CudaDone::new(event, batch.keepers()));
        self.under_way.push_back(Arc::clone(&done));
        Ok(outcomes(&done, batch.plans, tensors))
    }

    fn release(&self) -> Option<Release> {
        let (released, mpi) = (Arc::clone(&self.released), self.mpi.clone());
        Some(Box::new(move || {
            released.store(true, Ordering::SeqCst);
            mpi.give_up();
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use corro_core::{DType, ReduceOp};

    use super::*;

    #[test]
    fn what_mpi_does_otherwise_than_corro_goes_another_way() {
        let wanted = |dtype, op| Wanted { collective: Collective::Allreduce, op: Some(op), dtype };
        let why = |wanted| CudaMpi.why_not(wanted, &[]);
        assert_eq!(why(wanted(DType::F32, ReduceOp::Average)), None);
        assert_eq!(why(Wanted { collective: Collective::Allgather, op: None, dtype: DType::BF16 }), None);
        for (dtype, op) in [
            (DType::BF16, ReduceOp::Sum),
            (DType::F32, ReduceOp::Max),
            (DType::U8, ReduceOp::Sum),
            (DType::F32, ReduceOp::Adasum),
        ] {
            assert!(why(wanted(dtype, op)).unwrap().contains("MPI has no"), "{op} of {dtype}");
        }
    }
}
