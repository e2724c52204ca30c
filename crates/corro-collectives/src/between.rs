//! What hosts tell each other, apart from what ranks of a host do among themselves: the steps of a collective that treats the
//! two differently, as compression does.
//!
//! Of each host as many ranks *carry* as the smallest host has. Carriers of the same seat, one on each host, are counterparts:
//! they deal with the same part of the data.

use std::ops::Range;

use corro_core::{DType, Error, ReduceOp, Result};

use crate::algorithms::{direct, pairwise};
use crate::allreduce::plan;
use crate::choice::{Wishes, choose};
use crate::collective::{Collective, Topology};
use crate::executor::{self, Arithmetic, Buffers, SCRATCH};
use crate::group::Group;
use crate::reduction::Reduction;
use crate::schedule::{Builder, Schedule};
use crate::subset::Subset;

/// How this rank takes part in what hosts tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// How many hosts there are.
    pub hosts: usize,
    /// Which of them this is.
    pub host: usize,
    /// How many ranks of each host carry.
    pub count: usize,
    /// Which of them this one is, if it carries.
    pub seat: Option<usize>,
    /// Whether each rank counts as a host.
    inside: bool,
}

impl Group {
    /// How ranks carry data between hosts; or, `inside`, as if each of them had a host of its own.
    pub fn seats(&self, inside: bool) -> Seats {
        if inside {
            return Seats { hosts: self.size(), host: self.rank(), count: 1, seat: Some(0), inside };
        }
        let (hosts, count, seat) = self.carriers.seats();
        Seats { hosts, host: self.carriers.here(), count, seat, inside }
    }

    /// Sums what the ranks of this host bring; a carrier gets the chunk of its seat. `chunks` are those of all seats, which lie
    /// one behind the other.
    pub fn sum_in_host(&mut self, seats: Seats, data: &[f32], chunks: &[Range<usize>], mine: &mut [f32]) -> Result<()> {
        self.usable()?;
        let how = Reduction::new(DType::F32, ReduceOp::Sum);
        let bytes: Vec<Range<usize>> = chunks.iter().map(in_bytes).collect();
        if seats.inside || self.channel.team.is_none() {
            let chunk = chunks.first().cloned().unwrap_or(0..0);
            mine.copy_from_slice(data.get(chunk).ok_or_else(outside)?);
            return Ok(());
        }
        let end = bytes.last().map_or(0, |chunk| chunk.end);
        self.begin(Collective::Reducescatter, Some(&how), end);
        self.guarded(|group| {
            let Some(team) = &mut group.channel.team else { return Ok(()) };
            let all: Vec<Range<usize>> = (0..team.size()).map(|m| bytes.get(m).cloned().unwrap_or(end..end)).collect();
            let arithmetic = Arithmetic { op: ReduceOp::Sum, dtype: DType::F32, factor: 1.0 };
            let (data, mine) = (bytemuck::cast_slice(data), bytemuck::cast_slice_mut(mine));
            direct::reducescatter(team, data, &all, mine, arithmetic, group.timeout)
        })
    }

    /// Gives all ranks of this host what its carriers have.
    pub fn spread_in_host(
        &mut self,
        seats: Seats,
        mine: &[f32],
        chunks: &[Range<usize>],
        all: &mut [f32],
    ) -> Result<()> {
        self.usable()?;
        let chunk = seats.seat.and_then(|seat| chunks.get(seat)).cloned().unwrap_or(0..0);
        all.get_mut(chunk).ok_or_else(outside)?.copy_from_slice(mine);
        if seats.inside || self.channel.team.is_none() {
            return Ok(());
        }
        let bytes: Vec<Range<usize>> = chunks.iter().map(in_bytes).collect();
        let end = bytes.last().map_or(0, |chunk| chunk.end);
        self.begin(Collective::Allgather, None, end);
        self.guarded(|group| {
            let Some(team) = &mut group.channel.team else { return Ok(()) };
            let places: Vec<Range<usize>> =
                (0..team.size()).map(|m| bytes.get(m).cloned().unwrap_or(end..end)).collect();
            direct::allgather(team, &places, bytemuck::cast_slice_mut(all), group.timeout)
        })
    }

    /// This carrier's counterparts; an error if it doesn't carry.
    pub fn between(&mut self, seats: Seats) -> Result<Between<'_>> {
        let subset = if seats.inside { Some(self.all.clone()) } else { self.carriers.counterparts() };
        let subset = subset.ok_or_else(|| Error::Bug("a rank that doesn't carry has no counterparts".into()))?;
        Ok(Between { group: self, subset })
    }
}

fn in_bytes(range: &Range<usize>) -> Range<usize> {
    range.start * size_of::<f32>()..range.end * size_of::<f32>()
}

fn outside() -> Error {
    Error::Bug("a chunk outside of the data".into())
}

/// Counterparts, one on each host, who send each other bytes.
pub struct Between<'a> {
    group: &'a mut Group,
    subset: Subset,
}

impl Between<'_> {
    /// How many hosts.
    pub fn size(&self) -> usize {
        self.subset.size()
    }

    /// Which of them this is.
    pub fn me(&self) -> usize {
        self.subset.me()
    }

    /// `sends[p]` bytes of `out`, one part behind the other, go to the counterpart at p; `receives[p]` come from it.
    pub fn exchange(&mut self, out: &[u8], sends: &[usize], into: &mut [u8], receives: &[usize]) -> Result<()> {
        let (outgoing, incoming) = (places(sends, out.len())?, places(receives, into.len())?);
        let mut b = Builder::cutting(self.group.tuning.segment);
        pairwise::alltoall(&mut b, &self.subset, &outgoing, &incoming);
        self.run(b.finish(), out, into, None)
    }

    /// Everyone's bytes, `counts[p]` of the counterpart at p.
    pub fn gather(&mut self, own: &[u8], counts: &[usize], into: &mut [u8]) -> Result<()> {
        let places = places(counts, into.len())?;
        let mine = into.get_mut(places.get(self.me()).cloned().unwrap_or(0..0)).ok_or_else(outside)?;
        if mine.len() != own.len() {
            return Err(Error::Bug(format!("{} bytes to gather where {} are said", own.len(), mine.len())));
        }
        mine.copy_from_slice(own);
        let algorithm = self.choose(Collective::Allgather, into.len())?;
        let gather = algorithm.plan(|planner| planner.allgather)?;
        let mut b = Builder::cutting(self.group.tuning.segment);
        gather(&mut b, &self.subset, &places);
        self.run(b.finish(), &[], into, None)
    }

    /// The sum of everyone's values, the same bits for all.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<()> {
        let bytes = size_of_val(values);
        if bytes == 0 {
            return Ok(());
        }
        let algorithm = self.choose(Collective::Allreduce, bytes)?;
        let schedule = plan(&self.subset, bytes, DType::F32, algorithm, self.group.tuning)?;
        let arithmetic = Arithmetic { op: ReduceOp::Sum, dtype: DType::F32, factor: 1.0 };
        self.run(schedule, &[], bytemuck::cast_slice_mut(values), Some(arithmetic))
    }

    fn choose(&self, collective: Collective, bytes: usize) -> Result<crate::Algorithm> {
        choose(collective, Topology::OneEach, self.size(), bytes, Wishes::default(), self.group.tuning)
    }

    fn run(&mut self, schedule: Schedule, input: &[u8], main: &mut [u8], arithmetic: Option<Arithmetic>) -> Result<()> {
        self.group.guarded(|group| {
            group.scratch.resize(SCRATCH, 0);
            let buffers = Buffers { input, main, scratch: &mut group.scratch };
            executor::run(&mut group.channel.links, schedule, buffers, arithmetic)
        })
    }
}

/// Where parts of these lengths lie one behind the other; an error if they don't fill so many bytes.
fn places(lengths: &[usize], bytes: usize) -> Result<Vec<Range<usize>>> {
    let mut at = 0;
    let places = lengths
        .iter()
        .map(|len| {
            at += len;
            at - len..at
        })
        .collect();
    if at == bytes { Ok(places) } else { Err(Error::Bug(format!("parts of {at} bytes in a room of {bytes}"))) }
}
