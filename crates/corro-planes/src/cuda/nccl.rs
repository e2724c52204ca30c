//! The plane of NCCL: GPUs of one or several hosts, each member with a GPU of its own.
//!
//! ```text
//! host                    stream of this member
//! in a plan: all are in
//!                         wait until the program's streams have written the tensors
//!                         pack small ones into one room, multiply by the first factor
//!                         NCCL: one group for the room and all large tensors
//!                         multiply by the second factor, unpack
//! ticket done             event: the result is there
//! ```
//! NCCL waits for the others on the device. When one of them is lost, the communicator is aborted, from any thread.
//!
//! Sums are NCCL's: it rounds 16-bit floats between ranks. Factors are ours, since NCCL would round them in other ways.

use std::collections::VecDeque;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::Group;
use corro_core::{DType, Error, Rank, Result};
use corro_cuda::{Allocation, Device, EventPool, Kernels, Nccl, Piece, Reduction, Span, Stream};
use smallvec::SmallVec;

use super::batch::Batch;
use super::done::CudaDone;
use super::layout::LARGE;
use super::link::{Link, blame};
use super::movement::{Movement, Plan, Pull, gives, shares};
use super::own_memory::OwnMemory;
use super::packing::Packing;
use crate::outcome::{Done, Outcome, Outcomes};
use crate::plane::{Plane, Release, Verdict};
use crate::tensor::Tensor;

/// The plane's name.
pub(super) const NAME: &str = "nccl";
/// How large the room for small tensors is in the beginning.
const ROOM: usize = 16 << 20;
/// Events that stay for the next batches.
const EVENTS: usize = 64;

/// See the module.
pub(super) struct NcclPlane {
    /// First, so that it goes first: NCCL may still work on the rest.
    link: Link,
    tools: Tools,
    room: Allocation,
    events: EventPool,
    /// Batches that the device may still be at, oldest first.
    under_way: VecDeque<Arc<CudaDone>>,
}

/// What works on memory of this member.
pub(super) struct Tools {
    pub(super) own: OwnMemory,
    pub(super) stream: Stream,
    pub(super) kernels: Kernels,
}

impl Tools {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self { stream: Stream::new(device)?, kernels: Kernels::new(device)?, own: OwnMemory::new(device) })
    }

    /// Multiplies, from one place to another or in place.
    pub(super) fn scale(&self, dtype: DType, factor: f64, to: Span<'_>, from: Span<'_>) -> Result<()> {
        let count = to.len() / dtype.size();
        let how = Reduction { postscale: factor, ..Reduction::new(dtype, corro_core::ReduceOp::Sum) };
        self.kernels.combine(&self.stream, &how, &[to], &[from], &[Piece { from: 0, to: 0, count }])
    }

    /// Takes results, (from which byte of `room`, where to), and multiplies them.
    pub(super) fn unpack(&self, dtype: DType, factor: f64, room: Span<'_>, pieces: &[(usize, Span<'_>)]) -> Result<()> {
        if factor == 1.0 {
            let copies = pieces.iter().map(|(at, to)| Ok((*to, room.part(*at..*at + to.len())?)));
            let copies = copies.collect::<Result<Vec<_>>>()?;
            return self.kernels.gather(&self.stream, &copies);
        }
        let how = Reduction { postscale: factor, ..Reduction::new(dtype, corro_core::ReduceOp::Sum) };
        self.kernels.combine_into(&self.stream, &how, &[room], pieces)
    }
}

impl NcclPlane {
    /// All members do this together.
    pub(super) fn open(group: &mut Group, members: &[Rank], nccl: &Nccl, device: &Device) -> Result<Verdict<Self>> {
        let everyone: Vec<usize> = (0..group.size()).collect();
        let link = match Link::open(group, members, (nccl, device), &everyone)? {
            Ok(link) => link,
            Err(why) => return Ok(Err(why)),
        };
        let room = Allocation::new(device, ROOM)?;
        let events = EventPool::new(device, EVENTS);
        Ok(Ok(Self { link, tools: Tools::new(device)?, room, events, under_way: VecDeque::new() }))
    }

    /// Makes the room as large as it must be. Its old memory is freed when the device is done with it.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.room.span().len() {
            self.room = Allocation::new(self.tools.own.device(), bytes.next_power_of_two())?;
        }
        Ok(())
    }

    fn enqueue(&mut self, batch: &Batch<'_>) -> Result<()> {
        batch.begin(&self.tools.stream)?;
        match &batch.agreed[0].kind {
            Kind::Allreduce { .. } => self.allreduce(batch)?,
            Kind::Broadcast { .. } => self.broadcast(batch)?,
            Kind::Allgather => self.allgather(batch)?,
            Kind::Alltoall { .. } => self.alltoall(batch)?,
            Kind::Reducescatter { .. } => self.reducescatter(batch)?,
            kind => return Err(Error::Bug(format!("{} of tensors on GPUs", kind.name()))),
        }
        batch.end(&self.tools.stream)
    }

    /// Small tensors lie together as one, in the room.
    fn together(&mut self, sizes: &[usize]) -> Result<Packing> {
        let bytes: Vec<Vec<usize>> = sizes.iter().map(|size| vec![*size]).collect();
        let packed: Vec<bool> = sizes.iter().map(|size| *size < LARGE).collect();
        let packing = Packing::new(&bytes, &packed, false);
        self.make_room(packing.len())?;
        Ok(packing)
    }

    fn allreduce(&mut self, batch: &Batch<'_>) -> Result<()> {
        let sizes: Vec<usize> = batch.locals.iter().map(|local| local.output().len()).collect();
        let packing = self.together(&sizes)?;
        let (Self { tools, link, .. }, how) = (&*self, batch.how);
        let room = self.room.span().part(0..packing.len())?;
        let (mut packed, mut unpacked, mut reduced, mut large) = (vec![], vec![], vec![], vec![]);
        for (tensor, local) in batch.locals.iter().enumerate() {
            let (input, output) = (local.input(), local.output());
            match packing.part(tensor, 0) {
                Some(part) if part.is_empty() => {}
                Some(part) => {
                    unpacked.push((part.start, output));
                    packed.push((room.part(part)?, input));
                }
                None if how.prescale == 1.0 => {
                    reduced.push((output, input));
                    large.push(output);
                }
                None => {
                    tools.scale(how.dtype, how.prescale, output, input)?;
                    reduced.push((output, output));
                    large.push(output);
                }
            }
        }
        if !room.is_empty() {
            tools.kernels.gather(&tools.stream, &packed)?;
            if how.prescale != 1.0 {
                tools.scale(how.dtype, how.prescale, room, room)?;
            }
            reduced.push((room, room));
        }
        if !reduced.is_empty() {
            link.with(|nccl| nccl.all_reduce(&tools.stream, how.dtype, how.op, &reduced))?;
        }
        if how.postscale != 1.0 {
            large.iter().try_for_each(|output| tools.scale(how.dtype, how.postscale, *output, *output))?;
        }
        tools.unpack(how.dtype, how.postscale, room, &unpacked)
    }

    fn broadcast(&mut self, batch: &Batch<'_>) -> Result<()> {
        let sizes: Vec<usize> = batch.locals.iter().map(|local| local.output().len()).collect();
        let packing = self.together(&sizes)?;
        let (Self { tools, link, .. }, is_root) = (&*self, batch.me == batch.root);
        let room = self.room.span().part(0..packing.len())?;
        let (mut packed, mut unpacked, mut sent) = (vec![], vec![], vec![]);
        for (tensor, local) in batch.locals.iter().enumerate() {
            let output = local.output();
            let input = if is_root { local.input() } else { output };
            match packing.part(tensor, 0) {
                Some(part) if part.is_empty() => {}
                Some(part) => {
                    packed.push((room.part(part.clone())?, input));
                    // The root may have it there already.
                    if !is_root || input != output {
                        unpacked.push((part.start, output));
                    }
                }
                None => sent.push((output, input, batch.root)),
            }
        }
        if is_root {
            tools.kernels.gather(&tools.stream, &packed)?;
        }
        if !room.is_empty() {
            sent.push((room, room, batch.root));
        }
        if !sent.is_empty() {
            link.with(|nccl| nccl.broadcast(&tools.stream, &sent))?;
        }
        tools.unpack(batch.how.dtype, 1.0, room, &unpacked)
    }

    /// Everybody's part goes to all: NCCL gathers parts of one length; others are so many broadcasts in one group.
    fn allgather(&mut self, batch: &Batch<'_>) -> Result<()> {
        let packed: Vec<bool> = batch.locals.iter().map(|local| local.output().len() < LARGE).collect();
        let packing = Packing::new(&batch.bytes, &packed, false);
        self.make_room(packing.len())?;
        let Self { tools, link, .. } = &*self;
        let room = self.room.span().part(0..packing.len())?;
        let (mut packed, mut unpacked, mut sent) = (vec![], vec![], vec![]);
        for (tensor, (local, plan)) in batch.locals.iter().zip(&batch.plans).enumerate() {
            let (pulls, bytes) = (pulls(plan)?, &batch.bytes[tensor]);
            let (input, output) = (local.input().part(0..bytes[batch.me])?, local.output());
            let direct = packing.part(tensor, batch.me).is_none();
            if direct && bytes.iter().all(|len| len == &bytes[0]) {
                link.with(|nccl| nccl.all_gather(&tools.stream, output, input))?;
                continue;
            }
            for pull in pulls.iter().filter(|pull| pull.len > 0) {
                let to = output.part(pull.to..pull.to + pull.len)?;
                match packing.part(tensor, pull.member) {
                    Some(part) => {
                        unpacked.push((part.start, to));
                        if pull.member == batch.me {
                            packed.push((room.part(part)?, input));
                        }
                    }
                    None => sent.push((to, if pull.member == batch.me { input } else { to }, pull.member)),
                }
            }
        }
        tools.kernels.gather(&tools.stream, &packed)?;
        if packing.is_even() && !room.is_empty() {
            let mine = room.part(packing.block(batch.me))?;
            link.with(|nccl| nccl.all_gather(&tools.stream, room, mine))?;
        } else {
            for member in 0..batch.members {
                let block = room.part(packing.block(member))?;
                if !block.is_empty() {
                    sent.push((block, block, member));
                }
            }
        }
        if !sent.is_empty() {
            link.with(|nccl| nccl.broadcast(&tools.stream, &sent))?;
        }
        tools.unpack(batch.how.dtype, 1.0, room, &unpacked)
    }

    fn alltoall(&mut self, batch: &Batch<'_>) -> Result<()> {
        let Self { tools, link, .. } = &*self;
        let (mut sends, mut receives, mut own) = (vec![], vec![], vec![]);
        for ((agreed, local), plan) in batch.agreed.iter().zip(&batch.locals).zip(&batch.plans) {
            for (member, (from, len)) in gives(agreed, batch.members, batch.me)?.into_iter().enumerate() {
                if member != batch.me && len > 0 {
                    sends.push((member, local.input().part(from..from + len)?));
                }
            }
            for pull in pulls(plan)?.iter().filter(|pull| pull.len > 0) {
                let to = local.output().part(pull.to..pull.to + pull.len)?;
                if pull.member == batch.me {
                    own.push((to, local.input().part(pull.from..pull.from + pull.len)?));
                } else {
                    receives.push((pull.member, to));
                }
            }
        }
        tools.kernels.gather(&tools.stream, &own)?;
        if sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        link.with(|nccl| nccl.exchange(&tools.stream, &sends, &receives))
    }

    /// NCCL scatters shares of one length: others are packed so that they are.
    fn reducescatter(&mut self, batch: &Batch<'_>) -> Result<()> {
        let how = batch.how;
        let share = |agreed: &Arc<Agreed>| shares(agreed, batch.members);
        let bytes = batch.agreed.iter().map(share).collect::<Result<Vec<_>>>()?;
        let is_packed = |shares: &Vec<usize>| {
            let even = shares.iter().all(|len| len == &shares[0]);
            !even || how.prescale != 1.0 || shares.iter().sum::<usize>() < LARGE
        };
        let packed: Vec<bool> = bytes.iter().map(is_packed).collect();
        let packing = Packing::new(&bytes, &packed, true);
        self.make_room(packing.len())?;
        let Self { tools, link, .. } = &*self;
        let room = self.room.span().part(0..packing.len())?;
        let (mut packed, mut unpacked, mut large) = (vec![], vec![], vec![]);
        for (tensor, local) in batch.locals.iter().enumerate() {
            let mut from = 0;
            for (member, len) in bytes[tensor].iter().enumerate() {
                let Some(part) = packing.part(tensor, member) else { break };
                if !part.is_empty() {
                    packed.push((room.part(part)?, local.input().part(from..from + len)?));
                }
                from += len;
            }
            match packing.part(tensor, batch.me) {
                Some(part) if part.is_empty() => {}
                Some(part) => unpacked.push((part.start, local.output())),
                None => large.push(local),
            }
        }
        tools.kernels.gather(&tools.stream, &packed)?;
        if how.prescale != 1.0 && !room.is_empty() {
            tools.scale(how.dtype, how.prescale, room, room)?;
        }
        let scatter = |to, from| link.with(|nccl| nccl.reduce_scatter(&tools.stream, how.dtype, how.op, to, from));
        if !room.is_empty() {
            scatter(room.part(packing.block(batch.me))?, room)?;
        }
        for local in large {
            scatter(local.output(), local.input())?;
            if how.postscale != 1.0 {
                tools.scale(how.dtype, how.postscale, local.output(), local.output())?;
            }
        }
        tools.unpack(how.dtype, how.postscale, room, &unpacked)
    }
}

impl Plane for NcclPlane {
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
        let attending = self.link.attend(group);
        self.enqueue(&batch).map_err(|error| blame(group, error))?;
        drop(attending);
        let event = self.events.take()?;
        self.tools.stream.record(&event)?;
        let done = Arc::new(CudaDone::new(event, batch.keepers()).watched(self.link.watch()));
        self.under_way.push_back(Arc::clone(&done));
        Ok(outcomes(&done, batch.plans, tensors))
    }

    fn release(&self) -> Option<Release> {
        Some(self.link.release())
    }
}

/// Lets go of the batches that the device has done.
pub(super) fn forget(under_way: &mut VecDeque<Arc<CudaDone>>) -> Result<()> {
    while let Some(oldest) = under_way.front()
        && oldest.is_done()?
    {
        under_way.pop_front();
    }
    Ok(())
}

/// What became of tensors whose results are there when the device has `done` the batch.
pub(super) fn outcomes(done: &Arc<CudaDone>, plans: Vec<Plan>, tensors: &mut [Tensor]) -> Outcomes {
    let outcome = |(tensor, plan): (&mut Tensor, Plan)| {
        let after = Some(Arc::clone(done) as Arc<dyn Done>);
        tensor.outcome(plan.shape).map(|outcome| Outcome { after, received_splits: plan.received, ..outcome })
    };
    tensors.iter_mut().zip(plans).map(outcome).collect()
}

fn pulls(plan: &Plan) -> Result<&[Pull]> {
    match &plan.movement {
        Movement::Pulls(pulls) => Ok(pulls),
        _ => Err(Error::Bug("a collective that moves bytes is to reduce them".into())),
    }
}
