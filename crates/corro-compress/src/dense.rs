//! Codes that owners add up.
//!
//! Of n peers each owns a chunk of every part. (1) Each sends every other the code of that one's chunk. (2) The owner adds up
//! what comes, and its own values as they are. (3) It sends all the code of the sum. So a value is rounded twice, however
//! many peers there are. Each sends (n - 1) / n of the code's bytes, twice.
//!
//! With feedback each peer keeps what its codes left out, and each owner what the code of the sum left out.
//!
//! Large batches go in pieces: while the codes of one travel, those of the next are made. What is done with a value is done
//! while it is in the cache, a span at a time.

use std::ops::Range;

use corro_core::compression::Method;
use corro_core::{Compression, Result};
use corro_kernels::{Into, Rest};

use crate::codec::{Codec, add};
use crate::courier::{Courier, Parcel, Way, with_courier};
use crate::part::Part;
use crate::peers::Peers;
use crate::state::{MAJORITY_BLOCK, State, chunk, filled, unit};

/// Values of an owner's chunk that travel at once. Smaller pieces hide more of the work, larger ones have fewer messages.
const PIECE: usize = 1 << 19;
/// Values with which everything is done before the next ones: 64 KiB, which stay in the cache.
const SPAN: usize = 1 << 14;

/// Sums the parts.
pub(crate) fn sum(
    peers: &mut impl Peers,
    compression: &Compression,
    codec: &Codec,
    parts: &mut [Part<'_>],
    scratch: &mut Scratch,
) -> Result<usize> {
    let add_up = |code: &[u8], sum: &mut [f32]| codec.decode(code, Into::Add, sum);
    run(peers, compression, codec, (parts, scratch), &Adding { add_up, finish: |_: &[f32], _: &mut [f32], _| {} })
}

/// The sign that most have, as minus or plus the number of peers. Where as many have one as the other, chance decides.
pub(crate) fn majority(
    peers: &mut impl Peers,
    compression: &Compression,
    parts: &mut [Part<'_>],
    scratch: &mut Scratch,
) -> Result<usize> {
    let codec = Codec::Signs { block: MAJORITY_BLOCK };
    let all = peers.size() as f32;
    let add_up = |code: &[u8], sum: &mut [f32]| {
        let mut votes = vec![0.0; sum.len()];
        codec.decode(code, Into::Set, &mut votes);
        for (sum, vote) in sum.iter_mut().zip(votes) {
            *sum += sign(vote);
        }
    };
    let finish = |own: &[f32], votes: &mut [f32], key: u64| {
        for (i, (votes, own)) in votes.iter_mut().zip(own).enumerate() {
            *votes += sign(*own);
            if *votes == 0.0 {
                *votes = if crate::state::mixed(key ^ i as u64) & 1 == 0 { 0.5 } else { -0.5 };
            }
        }
    };
    let sent = run(peers, compression, &codec, (&mut *parts, scratch), &Adding { add_up, finish })?;
    for value in parts.iter_mut().flat_map(|part| part.values.iter_mut()) {
        *value = if value.is_nan() { *value } else { all.copysign(*value) };
    }
    Ok(sent)
}

/// -1, 1, or nothing where there is none.
fn sign(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value / value.abs() }
}

/// How an owner makes a sum of what comes: `add_up` adds a code; `finish`, where votes are counted, adds the owner's own,
/// with a stream of random numbers.
struct Adding<A, F> {
    add_up: A,
    finish: F,
}

/// The three steps, piece by piece.
fn run<A: Fn(&[u8], &mut [f32]), F: Fn(&[f32], &mut [f32], u64)>(
    peers: &mut impl Peers,
    compression: &Compression,
    codec: &Codec,
    (parts, scratch): (&mut [Part<'_>], &mut Scratch),
    adding: &Adding<A, F>,
) -> Result<usize> {
    let steps = Steps {
        n: peers.size(),
        me: peers.me(),
        unit: unit(compression),
        feedback: compression.feedback,
        votes: matches!(compression.method, Method::Majority),
        codec: *codec,
    };
    if steps.feedback {
        for part in parts.iter_mut() {
            let owned = steps.chunk(part.values.len(), steps.me).len();
            filled(&mut part.state.residual, part.values.len());
            filled(&mut part.state.owned, owned);
        }
    }
    let pieces = steps.pieces(parts);
    let mut sent = 0;
    with_courier(peers, pieces.len() > 1, |courier| {
        for (k, piece) in pieces.iter().enumerate() {
            if k == 0 {
                courier.give(steps.codes(piece, parts, scratch))?;
            }
            if let Some(next) = pieces.get(k + 1) {
                courier.give(steps.codes(next, parts, scratch))?;
            }
            let arrived = courier.take()?;
            sent += arrived.out.len();
            courier.give(steps.sums(piece, parts, &arrived.into, adding, scratch))?;
            scratch.keep(arrived);
            if let Some(last) = k.checked_sub(1) {
                sent += steps.results(&pieces[last], parts, courier, scratch)?;
            }
        }
        match pieces.last() {
            Some(last) => Ok(sent + steps.results(last, parts, courier, scratch)?),
            None => Ok(sent),
        }
    })
}

/// Memory that is kept from one batch to the next: new memory costs more than what is done with it.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    bytes: Vec<Vec<u8>>,
    sum: Vec<f32>,
}

impl Scratch {
    /// So many bytes, of any values.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    fn keep(&mut self, parcel: Parcel) {
        self.bytes.extend([parcel.out, parcel.into]);
    }
}

/// A stretch of a part: the `number`-th of so many, in the chunk of each owner.
struct Stretch {
    part: usize,
    number: usize,
    of: usize,
}

/// Stretches that travel together.
type Piece = Vec<Stretch>;

/// What does not change on the way.
struct Steps {
    n: usize,
    me: usize,
    unit: usize,
    feedback: bool,
    /// Whether signs are counted, and not values added.
    votes: bool,
    codec: Codec,
}

impl Steps {
    /// What a peer owns of a part of so many values.
    fn chunk(&self, len: usize, owner: usize) -> Range<usize> {
        chunk(len, self.unit, self.n, owner)
    }

    /// The pieces of a batch: large parts are cut, small ones go together.
    fn pieces(&self, parts: &[Part<'_>]) -> Vec<Piece> {
        let (mut pieces, mut piece, mut values) = (Vec::new(), Piece::new(), 0);
        for (part, Part { values: all, .. }) in parts.iter().enumerate() {
            let owned = all.len().div_ceil(self.n);
            let of = owned.div_ceil(PIECE).max(1);
            for number in 0..of {
                if values + owned / of > PIECE && !piece.is_empty() {
                    pieces.push(std::mem::take(&mut piece));
                    values = 0;
                }
                piece.push(Stretch { part, number, of });
                values += owned / of;
            }
        }
        pieces.push(piece);
        pieces
    }

    /// Where the stretch of an owner lies in its part, which has so many values.
    fn place(&self, stretch: &Stretch, len: usize, owner: usize) -> Range<usize> {
        let all = self.chunk(len, owner);
        let inside = chunk(all.len(), self.unit, stretch.of, stretch.number);
        all.start + inside.start..all.start + inside.end
    }

    /// The same, cut into spans, each with a code of its own.
    fn spans(&self, stretch: &Stretch, len: usize, owner: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.place(stretch, len, owner);
        let step = (SPAN / self.unit).max(1) * self.unit;
        (start..end).step_by(step).map(move |at| at..(at + step).min(end))
    }

    /// Bytes of the code of what a peer owns of a piece.
    fn bytes(&self, piece: &Piece, parts: &[Part<'_>], owner: usize) -> usize {
        let len = |stretch: &Stretch| self.place(stretch, parts[stretch.part].values.len(), owner).len();
        piece.iter().map(|stretch| self.codec.encoded_len(len(stretch))).sum()
    }

    /// What encoding leaves in the place of values.
    fn rest(&self) -> Rest {
        if self.feedback { Rest::Keep } else { Rest::Leave }
    }

    /// Step 1: the codes of what others own of a piece. With feedback, what they leave out stays in the residual.
    fn codes(&self, piece: &Piece, parts: &mut [Part<'_>], scratch: &mut Scratch) -> Parcel {
        let sends: Vec<usize> =
            (0..self.n).map(|owner| self.unless_me(owner, self.bytes(piece, parts, owner))).collect();
        let owned = self.bytes(piece, parts, self.me);
        let receives: Vec<usize> = (0..self.n).map(|peer| self.unless_me(peer, owned)).collect();
        let mut out = scratch.bytes(sends.iter().sum());
        let mut at = 0;
        for owner in (0..self.n).filter(|owner| *owner != self.me) {
            for stretch in piece {
                let Part { name, values, state, .. } = &mut parts[stretch.part];
                let key = state.key(name, Some(self.me));
                for span in self.spans(stretch, values.len(), owner) {
                    let code = at..at + self.codec.encoded_len(span.len());
                    at = code.end;
                    let first = span.start;
                    let brought = if self.feedback {
                        let residual = &mut state.residual[span.clone()];
                        add(residual, &values[span]);
                        residual
                    } else {
                        &mut values[span]
                    };
                    self.codec.encode(brought, key, first, self.rest(), &mut out[code]);
                }
            }
        }
        let into = scratch.bytes(receives.iter().sum());
        Parcel { way: Way::Exchange, out, sends, into, receives }
    }

    /// Step 2: the code of the sum of what this peer owns of a piece, whose codes have arrived. With feedback the sum begins
    /// with what the last one still owes, and what is left of it is what this one will.
    fn sums<A: Fn(&[u8], &mut [f32]), F: Fn(&[f32], &mut [f32], u64)>(
        &self,
        piece: &Piece,
        parts: &mut [Part<'_>],
        arrived: &[u8],
        adding: &Adding<A, F>,
        scratch: &mut Scratch,
    ) -> Parcel {
        let receives: Vec<usize> = (0..self.n).map(|owner| self.bytes(piece, parts, owner)).collect();
        let owned = receives[self.me];
        let mut out = scratch.bytes(owned);
        let mut at = 0;
        for stretch in piece {
            let Part { name, values, state, .. } = &mut parts[stretch.part];
            let key = state.key(name, Some(self.n + self.me));
            let start = self.chunk(values.len(), self.me).start;
            let State { residual, owned: debt, .. } = &mut **state;
            for span in self.spans(stretch, values.len(), self.me) {
                let code = at..at + self.codec.encoded_len(span.len());
                at = code.end;
                let sum = if self.feedback {
                    &mut debt[span.start - start..span.end - start]
                } else {
                    scratch.sum.clear();
                    scratch.sum.resize(span.len(), 0.0);
                    &mut scratch.sum[..]
                };
                let own = &mut values[span.clone()];
                if self.feedback {
                    add(own, &residual[span.clone()]);
                    residual[span.clone()].fill(0.0);
                }
                if !self.votes {
                    add(sum, own);
                }
                if owned > 0 {
                    arrived.chunks_exact(owned).for_each(|one| (adding.add_up)(&one[code.clone()], sum));
                }
                (adding.finish)(own, sum, key ^ span.start as u64);
                self.codec.encode(sum, key, span.start, self.rest(), &mut out[code]);
            }
        }
        let into = scratch.bytes(receives.iter().sum());
        Parcel { way: Way::Gather, out, sends: Vec::new(), into, receives }
    }

    /// Step 3: puts the sums of all owners of a piece into their places. Gives how many bytes were sent for it.
    fn results(
        &self,
        piece: &Piece,
        parts: &mut [Part<'_>],
        courier: &mut dyn Courier,
        scratch: &mut Scratch,
    ) -> Result<usize> {
        let gathered = courier.take()?;
        let mut totals = &gathered.into[..];
        for owner in 0..self.n {
            for stretch in piece {
                let values = &mut parts[stretch.part].values;
                for span in self.spans(stretch, values.len(), owner) {
                    let (code, after) = totals.split_at(self.codec.encoded_len(span.len()));
                    totals = after;
                    self.codec.decode(code, Into::Set, &mut values[span]);
                }
            }
        }
        let sent = gathered.out.len() * (self.n - 1);
        scratch.keep(gathered);
        Ok(sent)
    }

    fn unless_me(&self, peer: usize, bytes: usize) -> usize {
        if peer == self.me { 0 } else { bytes }
    }
}
