//! The plane of CUDA IPC: members of one host read each other's GPU memory, and write results into it.
//!
//! ```text
//! host                    stream of this member
//! all members are in
//! where tensors lie       wait until the program's streams have written the tensors
//!                         pack small ones into this member's window
//!                         tell "brought", wait for everyone's
//!                         combine or copy what the others bring
//!                         tell "taken"; wait for everyone's where others read or write tensors of this member
//!                         unpack
//! ticket done             event: the result is there
//! ```
//! The host waits for the others' hosts only, and no kernel waits: streams do, for numbers in memory ([`Signals`]). So ranks may
//! share a GPU, with MPS or without, or have one each.

use std::collections::VecDeque;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_collectives::Group;
use corro_core::{Error, Rank, Result};
use corro_cuda::{Device, EventPool, Kernels, MappingCache, Piece, Span, Stream};
use smallvec::SmallVec;

use super::batch::Batch;
use super::done::CudaDone;
use super::layout::{Found, LARGE, Layout, Spot, Told};
use super::local::Local;
use super::members::Members;
use super::movement::{Movement, Plan};
use super::own_memory::OwnMemory;
use super::signals::{Moment, Signals};
use crate::exchange::exchange;
use crate::outcome::{Done, Outcome, Outcomes};
use crate::plane::{Plane, Release, Verdict};
use crate::tensor::Tensor;

/// The plane's name.
pub(super) const NAME: &str = "cuda-ipc";
/// A window's size in the beginning. It has two halves, for batches in turn.
const WINDOW: usize = 32 << 20;
/// The longest message about where the tensors of a batch lie.
const TOLD_CAP: usize = 4 << 20;
/// Up to so many bytes, of all members together, each member reads all and reduces for itself: one wait less.
const ONE_SHOT: usize = 4 << 20;
/// Allocations of others that stay open.
const MAPPINGS: usize = 1024;
/// Events that stay for the next batches.
const EVENTS: usize = 64;

/// See the module.
pub(super) struct Ipc {
    device: Device,
    stream: Stream,
    kernels: Kernels,
    own: OwnMemory,
    events: EventPool,
    signals: Arc<Signals>,
    window: Members,
    mappings: MappingCache<usize, Device>,
    /// Batches that the device may still be at, oldest first.
    under_way: VecDeque<Arc<CudaDone>>,
}

impl Ipc {
    /// All members do this together.
    pub(super) fn open(group: &mut Group, members: &[Rank], device: Device) -> Result<Verdict<Self>> {
        let signals = match Members::open(group, members, &device, Signals::bytes(group.size()))? {
            Ok(memory) => Arc::new(Signals::new(memory)),
            Err(why) => return Ok(Err(why)),
        };
        let window = match Members::open(group, members, &device, 2 * WINDOW)? {
            Ok(window) => window,
            Err(why) => return Ok(Err(why)),
        };
        Ok(Ok(Self {
            stream: Stream::new(&device)?,
            kernels: Kernels::new(&device)?,
            own: OwnMemory::new(&device),
            events: EventPool::new(&device, EVENTS),
            signals,
            window,
            mappings: MappingCache::new(device.clone(), MAPPINGS),
            under_way: VecDeque::new(),
            device,
        }))
    }

    /// Members tell each other where their large tensors lie. Nobody passes here before all are in.
    fn meet(
        &self,
        group: &mut Group,
        members: &[Rank],
        batch: &Batch<'_>,
        planned: bool,
    ) -> Result<Vec<Vec<Option<Told>>>> {
        if batch.bytes.iter().flatten().all(|bytes| *bytes < LARGE) {
            if planned {
                group.barrier()?;
            }
            return Ok(Vec::new());
        }
        let mine = batch.locals.iter().map(|local| local.tell(&self.device)).collect::<Result<Vec<_>>>()?;
        exchange(group, members, &mine, TOLD_CAP)
    }

    /// Makes the windows larger. All members do so at the same time: they have the same layout.
    fn widen(&mut self, group: &mut Group, members: &[Rank], half: usize) -> Result<()> {
        // Others may still read this member's window, and this member theirs.
        self.stream.synchronize()?;
        group.barrier()?;
        let wider = Members::open(group, members, &self.device, 2 * half.next_power_of_two())?;
        self.window = wider.map_err(|why| Error::Usage(format!("no room for {half} bytes to be exchanged: {why}")))?;
        Ok(())
    }

    /// A member's half of its window for this batch.
    fn half(&self, member: usize, number: u32) -> Result<Span<'_>> {
        let half = self.window.len() / 2;
        let at = (number as usize & 1) * half;
        self.window.of(member)?.part(at..at + half)
    }

    /// The memory at a spot of another member.
    fn reach(&mut self, member: usize, spot: &Spot, len: usize) -> Result<Reached> {
        let mapping = self.mappings.get(member, &spot.memory)?;
        let at = usize::try_from(spot.offset).unwrap_or(usize::MAX);
        mapping.span().part(at..at.saturating_add(len))?;
        Ok(Reached { mapping, at, len })
    }

    fn enqueue(&mut self, batch: &Batch<'_>, layout: &Layout, number: u32) -> Result<Vec<Reached>> {
        batch.begin(&self.stream)?;
        // Two batches ago others read this half.
        self.signals.wait(&self.stream, Moment::Taken, number.wrapping_sub(2))?;
        self.pack(batch, layout, number)?;
        self.signals.tell(&self.stream, Moment::Brought, number)?;
        self.signals.wait(&self.stream, Moment::Brought, number)?;
        let mut reached = Vec::new();
        let one_shot = layout.window() * batch.members <= ONE_SHOT;
        match batch.plans[0].movement {
            Movement::Allreduce => self.allreduce(batch, layout, (number, one_shot), &mut reached)?,
            Movement::Reduce { .. } => self.reducescatter(batch, layout, number, &mut reached)?,
            Movement::Pulls(_) => self.pull(batch, layout, number, &mut reached)?,
        }
        self.signals.tell(&self.stream, Moment::Taken, number)?;
        let reduced_in_windows = matches!(batch.plans[0].movement, Movement::Allreduce) && !one_shot;
        if layout.reaches_tensors() || reduced_in_windows {
            self.signals.wait(&self.stream, Moment::Taken, number)?;
        }
        if reduced_in_windows {
            self.unpack(batch, layout, number)?;
        }
        batch.end(&self.stream)?;
        Ok(reached)
    }

    /// Puts what this member brings and others can't reach into its window.
    fn pack(&self, batch: &Batch<'_>, layout: &Layout, number: u32) -> Result<()> {
        let half = self.half(batch.me, number)?;
        let mut pieces = Vec::new();
        for (tensor, local) in batch.locals.iter().enumerate() {
            let len = batch.bytes[tensor][batch.me];
            if let (Found::Packed(at), 1..) = (layout.found(tensor, batch.me)?, len) {
                pieces.push((half.part(at..at + len)?, local.input().part(0..len)?));
            }
        }
        self.kernels.gather(&self.stream, &pieces)
    }

    /// Takes results out of this member's window.
    fn unpack(&self, batch: &Batch<'_>, layout: &Layout, number: u32) -> Result<()> {
        let half = self.half(batch.me, number)?;
        let mut pieces = Vec::new();
        for (tensor, local) in batch.locals.iter().enumerate() {
            if let Found::Packed(at) = layout.found(tensor, batch.me)? {
                let output = local.output();
                pieces.push((output, half.part(at..at + output.len())?));
            }
        }
        self.kernels.gather(&self.stream, &pieces)
    }

    fn allreduce(
        &mut self,
        batch: &Batch<'_>,
        layout: &Layout,
        (number, one_shot): (u32, bool),
        reached: &mut Vec<Reached>,
    ) -> Result<()> {
        let (how, size) = (batch.how, batch.how.dtype.size());
        for (tensor, local) in batch.locals.iter().enumerate() {
            if matches!(layout.found(tensor, batch.me)?, Found::Packed(_)) {
                continue;
            }
            // Each member reduces its share of the elements, and writes it to all.
            let first = reached.len();
            let len = local.output().len();
            for member in (0..batch.members).filter(|member| *member != batch.me) {
                let Found::There(told) = layout.found(tensor, member)? else { return Err(torn()) };
                reached.push(self.reach(member, &told.input, len)?);
                reached.push(self.reach(member, &told.output.unwrap_or(told.input), len)?);
            }
            let (mut sources, mut destinations) = (vec![local.input()], vec![local.output()]);
            for pair in reached[first..].chunks_exact(2) {
                sources.push(pair[0].span()?);
                destinations.push(pair[1].span()?);
            }
            // In the order of members, so that all parts are summed alike whoever does it.
            sources[..=batch.me].rotate_left(1);
            let (from, count) = share_of(len / size, batch.members, batch.me);
            let piece = Piece { from: from * size, to: from * size, count };
            self.kernels.combine(&self.stream, &how, &destinations, &sources, &[piece])?;
        }
        let used = layout.window();
        if used == 0 {
            return Ok(());
        }
        let halves = (0..batch.members).map(|member| self.half(member, number)).collect::<Result<Vec<_>>>()?;
        if !one_shot {
            let (from, count) = share_of(used / size, batch.members, batch.me);
            let piece = Piece { from: from * size, to: from * size, count };
            return self.kernels.combine(&self.stream, &how, &halves, &halves, &[piece]);
        }
        let mut pieces = Vec::new();
        for (tensor, local) in batch.locals.iter().enumerate() {
            if let Found::Packed(at) = layout.found(tensor, batch.me)? {
                pieces.push((at, local.output()));
            }
        }
        self.kernels.combine_into(&self.stream, &how, &halves, &pieces)
    }

    fn reducescatter(
        &mut self,
        batch: &Batch<'_>,
        layout: &Layout,
        number: u32,
        reached: &mut Vec<Reached>,
    ) -> Result<()> {
        for (tensor, (local, plan)) in batch.locals.iter().zip(&batch.plans).enumerate() {
            let Movement::Reduce { from } = plan.movement else { return Err(torn()) };
            self.find(batch, layout, tensor, reached)?;
            let spans = self.spans(batch, layout, (tensor, local, number), reached)?;
            self.kernels.combine_into(&self.stream, &batch.how, &spans, &[(from, local.output())])?;
        }
        Ok(())
    }

    fn pull(&mut self, batch: &Batch<'_>, layout: &Layout, number: u32, reached: &mut Vec<Reached>) -> Result<()> {
        for (tensor, (local, plan)) in batch.locals.iter().zip(&batch.plans).enumerate() {
            let Movement::Pulls(pulls) = &plan.movement else { return Err(torn()) };
            self.find(batch, layout, tensor, reached)?;
            let spans = self.spans(batch, layout, (tensor, local, number), reached)?;
            let mut pieces = Vec::with_capacity(pulls.len());
            for pull in pulls.iter().filter(|pull| pull.len > 0) {
                let (to, from) = (pull.to..pull.to + pull.len, pull.from..pull.from + pull.len);
                let piece = (local.output().part(to)?, spans[pull.member].part(from)?);
                // A broadcast's root may have it there already.
                if piece.0 != piece.1 {
                    pieces.push(piece);
                }
            }
            self.kernels.gather(&self.stream, &pieces)?;
        }
        Ok(())
    }

    /// Opens what others bring to a tensor where it lies.
    fn find(&mut self, batch: &Batch<'_>, layout: &Layout, tensor: usize, reached: &mut Vec<Reached>) -> Result<()> {
        reached.retain(|reached| reached.len > 0);
        for member in (0..batch.members).filter(|member| *member != batch.me) {
            if let Found::There(told) = layout.found(tensor, member)? {
                reached.push(self.reach(member, &told.input, batch.bytes[tensor][member])?);
            }
        }
        Ok(())
    }

    /// What each member brings to a tensor; the last of `reached` are of this one.
    fn spans<'a>(
        &'a self,
        batch: &Batch<'_>,
        layout: &Layout,
        (tensor, local, number): (usize, &'a Local, u32),
        reached: &'a [Reached],
    ) -> Result<Vec<Span<'a>>> {
        let mut spans = Vec::with_capacity(batch.members);
        let there = (0..batch.members)
            .filter(|member| *member != batch.me)
            .map(|member| layout.found(tensor, member))
            .filter(|found| matches!(found, Ok(Found::There(_))))
            .count();
        let mut opened = reached[reached.len() - there..].iter();
        for member in 0..batch.members {
            let len = batch.bytes[tensor][member];
            spans.push(match layout.found(tensor, member)? {
                _ if member == batch.me => local.input().part(0..len)?,
                Found::There(_) => opened.next().ok_or_else(torn)?.span()?,
                Found::Packed(at) => self.half(member, number)?.part(at..at + len)?,
            });
        }
        Ok(spans)
    }
}

impl Plane for Ipc {
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
        while let Some(oldest) = self.under_way.front()
            && oldest.is_done()?
        {
            self.under_way.pop_front();
        }
        if agreed.is_empty() {
            return Ok(SmallVec::new());
        }
        let batch = Batch::new(&self.own, group, members, agreed, tensors)?;
        let told = self.meet(group, members, &batch, planned)?;
        let alike = !matches!(batch.plans[0].movement, Movement::Pulls(_));
        let layout = Layout::new(&batch.bytes, &told, alike);
        if layout.window() > self.window.len() / 2 {
            self.widen(group, members, layout.window())?;
        }
        let number = self.signals.next();
        let reached = self.enqueue(&batch, &layout, number)?;
        let event = self.events.take()?;
        self.stream.record(&event)?;
        let mappings = reached.into_iter().map(|reached| reached.mapping as _);
        let keep = batch.locals.iter().flat_map(Local::keepers).chain(mappings).collect();
        let done = Arc::new(CudaDone::new(event, keep));
        self.under_way.push_back(Arc::clone(&done));
        let outcome = |(tensor, plan): (&mut Tensor, Plan)| {
            let after = Some(Arc::clone(&done) as Arc<dyn Done>);
            tensor.outcome(plan.shape).map(|outcome| Outcome { after, received_splits: plan.received, ..outcome })
        };
        Ok(tensors.iter_mut().zip(batch.plans).map(outcome).collect())
    }

    fn release(&self) -> Option<Release> {
        let signals = Arc::clone(&self.signals);
        Some(Box::new(move || signals.release()))
    }
}

impl Drop for Ipc {
    fn drop(&mut self) {
        // Whoever is lost writes no signals; whoever is not has written those that the stream waits for, or will not.
        let _ = self.signals.release();
        let _ = self.stream.synchronize();
    }
}

/// Memory of another member, held open.
struct Reached {
    mapping: Arc<corro_cuda::Mapping>,
    at: usize,
    len: usize,
}

impl Reached {
    fn span(&self) -> Result<Span<'_>> {
        self.mapping.span().part(self.at..self.at + self.len)
    }
}

/// Which of `count` elements a member reduces: from which, and how many. Shares begin at multiples of 16 bytes for any type.
fn share_of(count: usize, members: usize, me: usize) -> (usize, usize) {
    let step = count.div_ceil(members).next_multiple_of(16);
    let from = (step * me).min(count);
    (from, step.min(count - from))
}

#[cold]
fn torn() -> Error {
    Error::Bug("members found a tensor in different ways".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for count in [0, 1, 15, 16, 17, 1000, 1 << 20] {
            for members in 1..=16 {
                let shares: Vec<_> = (0..members).map(|me| share_of(count, members, me)).collect();
                assert_eq!(shares.iter().map(|(_, count)| count).sum::<usize>(), count);
                for pair in shares.windows(2) {
                    assert_eq!(pair[0].0 + pair[0].1, pair[1].0);
                }
            }
        }
    }
}
