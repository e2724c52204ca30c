//! Allreduce with fewer bytes between hosts.
//!
//! Inside a host nothing is compressed: its ranks add up what they bring, and each of those that carry gets a part of every
//! tensor. Between hosts, carriers of the same seat sum their parts by codes (`corro-compress`). Then all ranks of a host get
//! all parts. The parts of a tensor depend on the ranks and hosts alone, not on what it is batched with, and so does what is
//! remembered of them.
//!
//! If hosts or ranks are others than the last time, what is still owed of a tensor is added to what this rank brings.

use std::ops::Range;
use std::time::Instant;

use corro_agreement::matching::Agreed;
use corro_collectives::{Between, Group, Seats};
use corro_compress::{Debt, Layout, Part, Peers, Taken};
use corro_core::shape::share;
use corro_core::{Compression, DType, Error, Rank, ReduceOp, Result};

use crate::ledgers::Ledgers;

/// A batch under way.
pub(crate) struct Batch<'a> {
    members: &'a [Rank],
    compression: &'a Compression,
    op: ReduceOp,
    prescale: f64,
    postscale: f64,
    seats: Seats,
    tensors: Vec<Tensor<'a>>,
}

/// A tensor of the batch, and where it lies.
struct Tensor<'a> {
    name: &'a str,
    dtype: DType,
    /// Rows of so many values; a vector has rows of one.
    columns: usize,
    is_matrix: bool,
    bytes: &'a mut [u8],
}

impl Tensor<'_> {
    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// What the carrier of a seat deals with: whole rows.
    fn part(&self, seats: usize, seat: usize) -> Range<usize> {
        let rows = share(self.len().checked_div(self.columns).unwrap_or(0), seats, seat);
        rows.start * self.columns..rows.end * self.columns
    }

    fn matrix(&self, part: &Range<usize>) -> Option<[usize; 2]> {
        self.is_matrix.then(|| [part.len() / self.columns, self.columns])
    }
}

impl<'a> Batch<'a> {
    /// One without tensors yet. The factors come before and after.
    pub(crate) fn new(
        group: &Group,
        members: &'a [Rank],
        compression: &'a Compression,
        (op, (prescale, postscale)): (ReduceOp, (f64, f64)),
    ) -> Self {
        let seats = group.seats(compression.inside);
        Self { members, compression, op, prescale, postscale, seats, tensors: Vec::new() }
    }

    /// Adds a tensor, which lies in `bytes`; its sum will lie there, too.
    pub(crate) fn add(&mut self, agreed: &'a Agreed, bytes: &'a mut [u8]) -> Result<()> {
        let dims = &agreed.shapes[0].0;
        let rows = dims.first().copied().unwrap_or(1);
        let is_matrix = dims.len() > 1 && !bytes.is_empty();
        let columns = if is_matrix { dims[1..].iter().product() } else { 1 };
        let (dtype, name) = (agreed.dtype, agreed.name.as_str());
        if is_matrix && rows * columns * dtype.size() != bytes.len() {
            return Err(Error::Bug(format!("tensor {name} has {} bytes, not {rows} x {columns}", bytes.len())));
        }
        self.tensors.push(Tensor { name, dtype, columns, is_matrix, bytes });
        Ok(())
    }

    /// Sums all tensors over all members.
    pub(crate) fn run(mut self, group: &mut Group, ledgers: &Ledgers) -> Result<()> {
        let began = Instant::now();
        let chunks = self.chunks();
        let mut all = vec![0f32; chunks.last().map_or(0, |chunk| chunk.end)];
        self.pack(&mut all);
        let taken = self.take(ledgers, &mut all);
        let mine = self.seats.seat.and_then(|seat| chunks.get(seat)).cloned().unwrap_or(0..0);
        let mut part = vec![0f32; mine.len()];
        group.sum_in_host(self.seats, &all, &chunks, &mut part)?;
        if let Some(seat) = self.seats.seat {
            let (taken, sent) = self.between(group, seat, taken, &mut part)?;
            self.put(ledgers, taken, sent, began.elapsed().as_secs_f64());
        }
        group.spread_in_host(self.seats, &part, &chunks, &mut all)?;
        let factor = match self.op {
            ReduceOp::Average => self.postscale / self.members.len() as f64,
            _ => self.postscale,
        };
        if factor != 1.0 {
            corro_kernels::scale(DType::F32, bytemuck::cast_slice_mut(&mut all), factor);
        }
        self.unpack(&all);
        Ok(())
    }

    /// What the carriers of all seats deal with: the parts of all tensors, one behind the other.
    fn chunks(&self) -> Vec<Range<usize>> {
        let mut at = 0;
        let chunk = |seat| {
            let start = at;
            at += self.tensors.iter().map(|tensor| tensor.part(self.seats.count, seat).len()).sum::<usize>();
            start..at
        };
        (0..self.seats.count).map(chunk).collect()
    }

    /// The parts in the order in which they lie in the chunks: which tensor, what of it, and where.
    fn parts(&self) -> Vec<(usize, Range<usize>, Range<usize>)> {
        let mut at = 0;
        let mut parts = Vec::with_capacity(self.tensors.len() * self.seats.count);
        for seat in 0..self.seats.count {
            for (t, tensor) in self.tensors.iter().enumerate() {
                let part = tensor.part(self.seats.count, seat);
                let place = at..at + part.len();
                at = place.end;
                parts.push((t, part, place));
            }
        }
        parts
    }

    fn pack(&self, all: &mut [f32]) {
        for (t, part, place) in self.parts() {
            let Tensor { dtype, bytes, .. } = &self.tensors[t];
            let from = &bytes[part.start * dtype.size()..part.end * dtype.size()];
            corro_kernels::cast(*dtype, DType::F32, from, bytemuck::cast_slice_mut(&mut all[place]));
        }
        if self.prescale != 1.0 {
            corro_kernels::scale(DType::F32, bytemuck::cast_slice_mut(all), self.prescale);
        }
    }

    fn unpack(&mut self, all: &[f32]) {
        for (t, part, place) in self.parts() {
            let Tensor { dtype, bytes, .. } = &mut self.tensors[t];
            let to = &mut bytes[part.start * dtype.size()..part.end * dtype.size()];
            corro_kernels::cast(DType::F32, *dtype, bytemuck::cast_slice(&all[place]), to);
        }
    }

    /// Takes what is remembered of the tensors, and adds to `all` what is still owed from other times. A rank that doesn't
    /// carry now may have done so then.
    fn take(&self, ledgers: &Ledgers, all: &mut [f32]) -> Vec<Taken> {
        let ranks = self.members.len();
        let averaged = self.op == ReduceOp::Average;
        let (mut taken, mut owed): (Vec<Taken>, Vec<(usize, Debt)>) = (Vec::new(), Vec::new());
        ledgers.with(self.members, |ledger| {
            for (t, tensor) in self.tensors.iter().enumerate() {
                let Some(seat) = self.seats.seat else {
                    owed.extend(ledger.settle(tensor.name, ranks, averaged).into_iter().map(|debt| (t, debt)));
                    continue;
                };
                let part = tensor.part(self.seats.count, seat);
                let Seats { hosts: peers, host: me, .. } = self.seats;
                let layout =
                    Layout { compression: *self.compression, first: part.start, len: part.len(), peers, me, ranks };
                let mut one = ledger.take(tensor.name, layout, averaged);
                owed.extend(one.debts.drain(..).map(|debt| (t, debt)));
                taken.push(one);
            }
        });
        if !owed.is_empty() {
            let parts = self.parts();
            for (t, debt) in owed {
                parts
                    .iter()
                    .filter(|(of, ..)| *of == t)
                    .for_each(|(_, part, place)| pay(&debt, part, &mut all[place.clone()]));
            }
        }
        taken
    }

    /// Sums this carrier's parts with its counterparts. Gives back what is remembered, and how many bytes were sent.
    fn between(
        &self,
        group: &mut Group,
        seat: usize,
        mut taken: Vec<Taken>,
        mut values: &mut [f32],
    ) -> Result<(Vec<Taken>, usize)> {
        let mut parts: Vec<Part<'_>> = Vec::with_capacity(taken.len());
        for (tensor, taken) in self.tensors.iter().zip(&mut taken) {
            let part = tensor.part(self.seats.count, seat);
            let (mine, rest) = values.split_at_mut(part.len());
            values = rest;
            parts.push(Part { name: tensor.name, matrix: tensor.matrix(&part), values: mine, state: &mut taken.state });
        }
        let mut peers = Counterparts(group.between(self.seats)?);
        let bytes = corro_compress::allreduce(&mut peers, self.compression, &mut parts)?;
        Ok((taken, bytes))
    }

    /// Remembers what is to be remembered, and notes what it has brought.
    fn put(&self, ledgers: &Ledgers, taken: Vec<Taken>, sent: usize, seconds: f64) {
        let hosts = self.seats.hosts;
        let total: usize = taken.iter().map(|taken| taken.state.layout.len).sum();
        ledgers.with(self.members, |ledger| {
            for (tensor, taken) in self.tensors.iter().zip(taken) {
                let len = taken.state.layout.len;
                let share = len as f64 / total.max(1) as f64;
                let plain = 2 * (hosts - 1) * len * tensor.dtype.size() / hosts;
                let sent = (sent as f64 * share) as u64;
                ledger.note(tensor.name, self.compression.to_string(), plain as u64, sent, seconds * share);
                ledger.put(tensor.name, taken.state);
            }
        });
    }
}

/// Adds to tensors that are not compressed (any more) what is still owed of them. They will be multiplied by `prescale`.
pub(crate) fn pay_debts<'a>(
    ledgers: &Ledgers,
    members: &[Rank],
    (op, prescale): (ReduceOp, f64),
    tensors: impl Iterator<Item = (&'a Agreed, &'a mut [u8])>,
) {
    for (agreed, bytes) in tensors {
        let averaged = op == ReduceOp::Average;
        let debts = ledgers.with(members, |ledger| ledger.settle(&agreed.name, members.len(), averaged));
        if debts.is_empty() {
            continue;
        }
        let mut values = vec![0f32; bytes.len() / agreed.dtype.size()];
        corro_kernels::cast(agreed.dtype, DType::F32, bytes, bytemuck::cast_slice_mut(&mut values));
        for mut debt in debts {
            debt.values.iter_mut().for_each(|value| *value = (f64::from(*value) / prescale) as f32);
            pay(&debt, &(0..values.len()), &mut values);
        }
        corro_kernels::cast(DType::F32, agreed.dtype, bytemuck::cast_slice(&values), bytes);
    }
}

/// Adds what of a debt falls into a part of its tensor.
fn pay(debt: &Debt, part: &Range<usize>, values: &mut [f32]) {
    let from = debt.first.max(part.start);
    let to = (debt.first + debt.values.len()).min(part.end);
    for place in from..to {
        values[place - part.start] += debt.values[place - debt.first];
    }
}

/// Counterparts, as compression wants them.
struct Counterparts<'a>(Between<'a>);

impl Peers for Counterparts<'_> {
    fn size(&self) -> usize {
        self.0.size()
    }

    fn me(&self) -> usize {
        self.0.me()
    }

    fn exchange(&mut self, out: &[u8], sends: &[usize], into: &mut [u8], receives: &[usize]) -> Result<()> {
        self.0.exchange(out, sends, into, receives)
    }

    fn gather(&mut self, own: &[u8], counts: &[usize], into: &mut [u8]) -> Result<()> {
        self.0.gather(own, counts, into)
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<()> {
        self.0.sum(values)
    }
}
