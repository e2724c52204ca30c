//! The plane for allreduces over several hosts with several members each: by CUDA IPC inside a host, by NCCL across.
//!
//! ```text
//! stream of this member, for as many bytes at a time as its window has
//! pack what it brings into its window
//! tell "brought", wait for everyone's of this host
//! reduce its share of the windows of this host
//! NCCL: reduce that share with the members who have the same place on other hosts
//! multiply, write the share into all windows of this host
//! tell "taken", wait for everyone's of this host
//! unpack
//! ```
//! Each byte crosses between hosts once a host, and all members carry a share of them. Only members with one place are linked by
//! NCCL, so those of a host may share a GPU.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_collectives::Group;
use corro_core::shape::share;
use corro_core::{Deadline, Rank, ReduceOp, Result};
use corro_cuda::{Device, EventPool, Nccl, Piece, Reduction, Span};
use smallvec::SmallVec;

use super::batch::Batch;
use super::done::CudaDone;
use super::link::{Link, blame};
use super::members::Members;
use super::nccl::{Tools, forget, outcomes};
use super::signals::{Moment, Signals};
use super::teams::Teams;
use crate::outcome::{Done, Outcomes};
use crate::plane::{Plane, Release, Verdict};
use crate::tensor::Tensor;

/// The plane's name.
pub(super) const NAME: &str = "hierarchical";
/// How much of a batch is under way at a time.
const WINDOW: usize = 64 << 20;
/// Pieces begin at multiples of it, and shares too: whole elements of any type, whole lines of memory.
const ALIGNED: usize = 256;
/// Events that stay for the next batches.
const EVENTS: usize = 64;
/// So long the last batches may take when the set ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Hierarchical {
    link: Link,
    tools: Tools,
    signals: Arc<Signals>,
    window: Members,
    events: EventPool,
    /// Batches that the device may still be at, oldest first.
    under_way: VecDeque<Arc<CudaDone>>,
}

impl Hierarchical {
    /// All members do this together, each with its own teams.
    pub(super) fn open(
        group: &mut Group,
        members: &[Rank],
        teams: &Teams,
        (nccl, device): (&Nccl, Device),
    ) -> Result<Verdict<Self>> {
        let signals = Signals::bytes(teams.near.len());
        let signals = match Members::open_team(group, members, &device, signals, &teams.near)? {
            Ok(memory) => Arc::new(Signals::new(memory)),
            Err(why) => return Ok(Err(why)),
        };
        let window = match Members::open_team(group, members, &device, WINDOW, &teams.near)? {
            Ok(window) => window,
            Err(why) => return Ok(Err(why)),
        };
        let link = match Link::open(group, members, (nccl, &device), &teams.across)? {
            Ok(link) => link,
            Err(why) => return Ok(Err(why)),
        };
        let events = EventPool::new(&device, EVENTS);
        Ok(Ok(Self { link, tools: Tools::new(&device)?, signals, window, events, under_way: VecDeque::new() }))
    }

    /// Reduces as much as the window has room for.
    fn round(&self, batch: &Batch<'_>, round: &Round) -> Result<()> {
        let (Self { tools, signals, window, link, .. }, how) = (self, batch.how);
        let (number, mine) = (signals.next(), self.window.mine());
        let pair = |piece: &Cut| -> Result<(Span<'_>, Span<'_>)> {
            let there = mine.part(piece.at..piece.at + piece.len)?;
            Ok((there, batch.locals[piece.tensor].input().part(piece.from..piece.from + piece.len)?))
        };
        let packed = round.pieces.iter().map(pair).collect::<Result<Vec<_>>>()?;
        // Everyone was done with this window when the last round ended.
        tools.kernels.gather(&tools.stream, &packed)?;
        signals.tell(&tools.stream, Moment::Brought, number)?;
        signals.wait(&tools.stream, Moment::Brought, number)?;
        let windows = (0..window.count()).map(|member| window.of(member)).collect::<Result<Vec<_>>>()?;
        let range = share_of(round.used, window.count(), window.me());
        if !range.is_empty() {
            let count = range.len() / how.dtype.size();
            let piece = [Piece { from: range.start, to: range.start, count }];
            let inside = Reduction { postscale: 1.0, rounds_first: false, ..how };
            tools.kernels.combine(&tools.stream, &inside, &[mine], &windows, &piece)?;
            let part = mine.part(range)?;
            link.with(|nccl| nccl.all_reduce(&tools.stream, how.dtype, how.op, &[(part, part)]))?;
            let after = Reduction { postscale: how.postscale, ..Reduction::new(how.dtype, ReduceOp::Sum) };
            tools.kernels.combine(&tools.stream, &after, &windows, &[mine], &piece)?;
        }
        signals.tell(&tools.stream, Moment::Taken, number)?;
        signals.wait(&tools.stream, Moment::Taken, number)?;
        let back = |piece: &Cut| -> Result<(Span<'_>, Span<'_>)> {
            let there = mine.part(piece.at..piece.at + piece.len)?;
            Ok((batch.locals[piece.tensor].output().part(piece.from..piece.from + piece.len)?, there))
        };
        let unpacked = round.pieces.iter().map(back).collect::<Result<Vec<_>>>()?;
        tools.kernels.gather(&tools.stream, &unpacked)
    }

    fn enqueue(&self, batch: &Batch<'_>) -> Result<()> {
        batch.begin(&self.tools.stream)?;
        let sizes: Vec<usize> = batch.locals.iter().map(|local| local.output().len()).collect();
        for round in rounds(&sizes, self.window.len()) {
            self.round(batch, &round)?;
        }
        batch.end(&self.tools.stream)
    }
}

impl Plane for Hierarchical {
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
        let (signals, link) = (Arc::clone(&self.signals), self.link.release());
        // First the stream: NCCL ends only what a stream has come to.
        Some(Box::new(move || signals.release().and(link())))
    }
}

impl Drop for Hierarchical {
    fn drop(&mut self) {
        // The device may still be at the last batch. Whoever is lost writes no signals, so nobody waits for long.
        let last = self.under_way.back().map_or(Ok(()), |last| last.wait(Deadline::after(FAREWELL)));
        if last.is_err() {
            let _ = self.signals.release();
            let _ = self.link.release()();
            let _ = self.tools.stream.synchronize();
        }
    }
}

/// A part of a tensor, and where it lies in the window.
#[derive(Debug, PartialEq, Eq)]
struct Cut {
    tensor: usize,
    from: usize,
    at: usize,
    len: usize,
}

/// What is reduced at a time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    pieces: Vec<Cut>,
    /// So much of the window.
    used: usize,
}

/// Cuts tensors of these sizes into rounds for a window of so many bytes, a multiple of [`ALIGNED`].
fn rounds(sizes: &[usize], window: usize) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    let mut round = Round::default();
    for (tensor, size) in sizes.iter().enumerate() {
        let mut from = 0;
        while from < *size {
            if round.used == window {
                rounds.push(std::mem::take(&mut round));
            }
            let len = (size - from).min(window - round.used);
            round.pieces.push(Cut { tensor, from, at: round.used, len });
            round.used += len.next_multiple_of(ALIGNED);
            from += len;
        }
    }
    if round.used > 0 {
        rounds.push(round);
    }
    rounds
}

/// The bytes that one of so many members reduces.
fn share_of(bytes: usize, members: usize, me: usize) -> Range<usize> {
    let lines = share(bytes / ALIGNED, members, me);
    lines.start * ALIGNED..lines.end * ALIGNED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_cover_every_byte_once_and_fit() {
        let sizes = [10, 0, 5000, 256, 1];
        for window in [256, 1024, 4096, 1 << 20] {
            let rounds = rounds(&sizes, window);
            let mut next = vec![0; sizes.len()];
            for round in &rounds {
                let mut at = 0;
                for piece in &round.pieces {
                    assert_eq!((piece.at, piece.from), (at, next[piece.tensor]), "{window}");
                    assert!(piece.from.is_multiple_of(ALIGNED) && piece.len > 0);
                    next[piece.tensor] += piece.len;
                    at += piece.len.next_multiple_of(ALIGNED);
                }
                assert!(at == round.used && at <= window);
            }
            assert_eq!(next, sizes);
        }
        assert_eq!(rounds(&[0, 0], 1024), []);
    }

    #[test]
    fn shares_cover_the_window() {
        for members in 2..=16 {
            let shares: Vec<_> = (0..members).map(|me| share_of(10 * ALIGNED, members, me)).collect();
            assert!(shares[0].start == 0 && shares[members - 1].end == 10 * ALIGNED);
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
