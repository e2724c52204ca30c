//! Allreduce in its three forms: a buffer, many tensors at once, and data that lives in shared memory.

use std::ops::Range;
use std::time::Duration;

use corro_core::{DType, Error, ReduceOp, Result};
use corro_transport::Links;

use crate::algorithms::adasum::{self, Swap};
use crate::algorithms::hierarchical::Carriers;
use crate::algorithms::{Algorithm, direct, hierarchical};
use crate::choice::{Wishes, choose};
use crate::collective::{Collective, Topology};
use crate::element::Element;
use crate::executor::{self, Arithmetic, Buffers, SCRATCH};
use crate::group::Group;
use crate::pieces::{Pieces, Tensor};
use crate::reduction::Reduction;
use crate::schedule::{Action, Builder, Schedule};
use crate::subset::Subset;
use crate::tuning::Tuning;

/// Up to this many bytes a copy is cheaper than asking whether all members have come.
const STAGED: usize = 1 << 20;

impl Group {
    /// Reduces `data` over all members, in place.
    pub fn allreduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.allreduce_bytes(bytemuck::cast_slice_mut(data), &Reduction::new(T::DTYPE, op))
    }

    /// As [`Group::allreduce`], for bytes of any dtype and with scale factors.
    pub fn allreduce_bytes(&mut self, data: &mut [u8], how: &Reduction) -> Result<()> {
        self.allreduce_many(&mut [Tensor::in_place(data)], how)
    }

    /// Reduces several tensors at once: one collective instead of many (tensor fusion). All members must pass tensors of
    /// the same lengths in the same order; in place or not is each member's own choice.
    pub fn allreduce_many(&mut self, tensors: &mut [Tensor<'_>], how: &Reduction) -> Result<()> {
        self.usable()?;
        for tensor in tensors.iter() {
            tensor.check()?;
            how.check(tensor.len())?;
        }
        if how.prescale != 1.0 {
            for tensor in tensors.iter_mut() {
                tensor.settle();
                corro_kernels::scale(how.dtype, tensor.place(), how.prescale);
            }
        }
        let mut pieces = Pieces::new(tensors);
        let bytes = pieces.len();
        if bytes == 0 {
            return Ok(());
        }
        if self.size() == 1 {
            pieces.settle(0..bytes);
            pieces.scale(how.dtype, how.factor(1));
            return Ok(());
        }
        self.begin(Collective::Allreduce, Some(how), bytes);
        self.guarded(|group| group.allreduce_pieces(&mut pieces, how))
    }

    /// As [`Group::allreduce_many`], but what this member brings is left as it is until all members have come to this
    /// collective: if it is withdrawn before that, it can be run again with the same data. No prescale, which would
    /// change them at once.
    pub fn allreduce_withdrawable(&mut self, tensors: &mut [Tensor<'_>], how: &Reduction) -> Result<()> {
        if how.prescale != 1.0 {
            return Err(Error::Bug("a prescale can't be withdrawn".into()));
        }
        if self.reduces_early(tensors, how.op)? {
            let [tensor] = tensors else { return Err(Error::Bug("fused tensors are packed first".into())) };
            if tensor.len() <= STAGED {
                let mut staged = tensor.brought().to_vec();
                self.allreduce_bytes(&mut staged, how)?;
                tensor.place().copy_from_slice(&staged);
                return Ok(());
            }
            self.barrier()?;
        }
        self.allreduce_many(tensors, how)
    }

    /// Whether an allreduce would reduce what some peers send into the tensors before others have come. The same on all
    /// members.
    fn reduces_early(&self, tensors: &[Tensor<'_>], op: ReduceOp) -> Result<bool> {
        let [tensor] = tensors else { return Ok(false) };
        if self.size() == 1 || op == ReduceOp::Adasum {
            return Ok(self.size() > 1);
        }
        Ok(match self.choose(Collective::Allreduce, tensor.len())? {
            Algorithm::Direct => false,
            Algorithm::Hierarchical => self.carriers.any_alone(),
            _ => true,
        })
    }

    /// The memory in which [`Group::allreduce_shared`] reduces without copying. Data that lives here is visible to the
    /// other ranks of the host; it is this rank's own between collectives.
    pub fn shared(&mut self) -> &mut [u8] {
        match self.channel.team.as_mut() {
            Some(team) => {
                let all = 0..team.area_bytes();
                team.area(all)
            }
            None => {
                self.own_area.resize(self.area, 0);
                &mut self.own_area
            }
        }
    }

    /// Reduces a part of [`Group::shared`] over all members, in place. All members must name the same part.
    pub fn allreduce_shared(&mut self, range: Range<usize>, how: &Reduction) -> Result<()> {
        self.usable()?;
        how.check(range.len())?;
        let alone = self.size() == 1;
        let shared = self.shared();
        let Some(part) = shared.get_mut(range.clone()) else {
            return Err(Error::Usage(format!(
                "{range:?} is not a part of the {} bytes of shared memory",
                shared.len()
            )));
        };
        if !range.start.is_multiple_of(how.dtype.size()) {
            return Err(Error::Usage(format!("{} elements can't begin at byte {}", how.dtype, range.start)));
        }
        if how.prescale != 1.0 {
            corro_kernels::scale(how.dtype, part, how.prescale);
        }
        if range.is_empty() {
            return Ok(());
        }
        if alone {
            corro_kernels::scale(how.dtype, part, how.factor(1));
            return Ok(());
        }
        self.begin(Collective::Allreduce, Some(how), range.len());
        self.guarded(|group| group.allreduce_area(&range, how))
    }

    fn allreduce_pieces(&mut self, pieces: &mut Pieces<'_, '_>, how: &Reduction) -> Result<()> {
        if how.op == ReduceOp::Adasum {
            let starts = pieces.starts().to_vec();
            let mut swaps = LinkSwaps { links: &mut self.channel.links, scratch: &mut self.scratch };
            with_one_buffer(pieces, |data| adasum::allreduce(&mut swaps, &self.all, data, &starts, how.dtype))?;
            pieces.scale(how.dtype, how.postscale);
            return Ok(());
        }
        let arithmetic = self.arithmetic(how);
        let algorithm = self.choose(Collective::Allreduce, pieces.len())?;
        match (algorithm, &mut self.channel.team) {
            (Algorithm::Direct, Some(team)) => {
                direct::allreduce(team, pieces, arithmetic, &mut self.scratch, self.timeout)
            }
            (Algorithm::Hierarchical, _) => {
                let Self { channel, carriers, scratch, timeout, windows, tuning, .. } = self;
                scratch.resize(SCRATCH, 0);
                let first = *windows;
                *windows += pieces.len().div_ceil(hierarchical::WINDOW);
                by_hosts(carriers, arithmetic, *timeout, first, *tuning).allreduce(channel, pieces, scratch)
            }
            _ => {
                let Self { channel, all, scratch, tuning, .. } = self;
                scratch.resize(SCRATCH, 0);
                with_one_buffer(pieces, |data| {
                    let plan = plan(all, data.len(), arithmetic.dtype, algorithm, *tuning)?;
                    executor::run(
                        &mut channel.links,
                        plan,
                        Buffers { input: &[], main: data, scratch },
                        Some(arithmetic),
                    )
                })
            }
        }
    }

    fn allreduce_area(&mut self, range: &Range<usize>, how: &Reduction) -> Result<()> {
        let arithmetic = self.arithmetic(how);
        let algorithm = self.choose(Collective::Allreduce, range.len())?;
        let Self { channel, carriers, scratch, timeout, own_area, tuning, .. } = self;
        match (&mut channel.team, algorithm) {
            (Some(team), Algorithm::Direct) if how.op != ReduceOp::Adasum => {
                direct::allreduce_area(team, range, arithmetic, *timeout)
            }
            (Some(_), Algorithm::Hierarchical) if how.op != ReduceOp::Adasum => {
                scratch.resize(SCRATCH, 0);
                by_hosts(carriers, arithmetic, *timeout, 0, *tuning).allreduce_area(channel, range, scratch)
            }
            // The other algorithms see it as plain memory, which it is.
            (Some(_), _) => {
                let mut copy = self.shared()[range.clone()].to_vec();
                self.allreduce_pieces(&mut Pieces::new(&mut [Tensor::in_place(&mut copy)]), how)?;
                self.shared()[range.clone()].copy_from_slice(&copy);
                Ok(())
            }
            (None, _) => {
                let mut own = std::mem::take(own_area);
                let mut part = [Tensor::in_place(&mut own[range.clone()])];
                let result = self.allreduce_pieces(&mut Pieces::new(&mut part), how);
                self.own_area = own;
                result
            }
        }
    }
}

/// How `subset` allreduces `bytes` bytes over links.
pub(crate) fn plan(
    subset: &Subset,
    bytes: usize,
    dtype: DType,
    algorithm: Algorithm,
    tuning: Tuning,
) -> Result<Schedule> {
    let mut b = Builder::cutting(tuning.segment);
    let chunk = |m| direct::element_share(bytes, subset.size(), m, dtype);
    let chunks: Vec<Range<usize>> = (0..subset.size()).map(chunk).collect();
    algorithm.plan(|planner| planner.allreduce)?(&mut b, subset, &chunks);
    Ok(b.finish())
}

/// A hierarchical allreduce. Between hosts it is an allreduce among ranks that are each on a host of their own.
fn by_hosts(
    carriers: &Carriers,
    how: Arithmetic,
    timeout: Duration,
    first: usize,
    tuning: Tuning,
) -> hierarchical::Job<'_, impl Fn(&Subset, usize) -> Result<Schedule>> {
    let between = move |subset: &Subset, bytes: usize| {
        let algorithm =
            choose(Collective::Allreduce, Topology::OneEach, subset.size(), bytes, Wishes::default(), tuning)?;
        plan(subset, bytes, how.dtype, algorithm, tuning)
    };
    hierarchical::Job { carriers, how, timeout, first, between }
}

/// Runs `act` on the pieces as one buffer, packing them if there are several.
fn with_one_buffer(pieces: &mut Pieces<'_, '_>, act: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
    if let Some(one) = pieces.single() {
        one.settle();
        return act(one.place());
    }
    let mut packed = vec![0; pieces.len()];
    pieces.gather(&mut packed);
    act(&mut packed)?;
    pieces.scatter(&packed);
    Ok(())
}

/// Adasum's exchanges, as schedules of one step each way.
struct LinkSwaps<'a> {
    links: &'a mut Links,
    scratch: &'a mut Vec<u8>,
}

impl Swap for LinkSwaps<'_> {
    fn swap(&mut self, member: usize, send: &[u8], receive: &mut [u8]) -> Result<()> {
        let mut b = Builder::default();
        b.send_input(member, 0..send.len());
        b.receive(member, 0..receive.len(), Action::Store, false);
        executor::run(self.links, b.finish(), Buffers { input: send, main: receive, scratch: self.scratch }, None)
    }
}
