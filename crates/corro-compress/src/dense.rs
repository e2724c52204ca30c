//! Codes that owners add up.
//!
//! Of n peers each owns a chunk of every part. (1) Each sends every other the code of that one's chunk. (2) The owner adds up
//! what comes, and its own values as they are. (3) It sends all the code of the sum. So a value is rounded twice, however
//! many peers there are. Each sends (n - 1) / n of the code's bytes, twice.
//!
//! With feedback each peer keeps what its codes left out, and each owner what the code of the sum left out.

use std::ops::Range;

use corro_core::compression::Method;
use corro_core::{Compression, Result};
use corro_kernels::{Into, Rest};

use crate::codec::{Codec, add};
use crate::part::Part;
use crate::peers::Peers;
use crate::state::{MAJORITY_BLOCK, chunk, filled, unit};

/// Sums the parts.
pub(crate) fn sum(
    peers: &mut impl Peers,
    compression: &Compression,
    codec: &Codec,
    parts: &mut [Part<'_>],
    scratch: &mut Scratch,
) -> Result<usize> {
    let add_up = |code: &[u8], sum: &mut [f32]| codec.decode(code, Into::Add, sum);
    run(peers, compression, codec, (parts, scratch), add_up, |_, _, _| {})
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
    let sent = run(peers, compression, &codec, (&mut *parts, scratch), add_up, |own, votes, key| {
        for (i, (votes, own)) in votes.iter_mut().zip(own).enumerate() {
            *votes += sign(*own);
            if *votes == 0.0 {
                *votes = if crate::state::mixed(key ^ i as u64) & 1 == 0 { 0.5 } else { -0.5 };
            }
        }
    })?;
    for value in parts.iter_mut().flat_map(|part| part.values.iter_mut()) {
        *value = if value.is_nan() { *value } else { all.copysign(*value) };
    }
    Ok(sent)
}

/// -1, 1, or nothing where there is none.
fn sign(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value / value.abs() }
}

/// The three steps. `add_up` adds a code to a sum; `finish`, where votes are counted, adds the owner's own.
fn run(
    peers: &mut impl Peers,
    compression: &Compression,
    codec: &Codec,
    (parts, scratch): (&mut [Part<'_>], &mut Scratch),
    add_up: impl Fn(&[u8], &mut [f32]),
    finish: impl Fn(&[f32], &mut [f32], u64),
) -> Result<usize> {
    let (n, me) = (peers.size(), peers.me());
    let steps = Steps { n, me, unit: unit(compression), feedback: compression.feedback, codec: *codec };
    let owned = steps.bytes(parts, me);
    let sends: Vec<usize> = (0..n).map(|owner| if owner == me { 0 } else { steps.bytes(parts, owner) }).collect();
    let receives: Vec<usize> = (0..n).map(|peer| if peer == me { 0 } else { owned }).collect();
    let Scratch { out, arrived, total, totals } = scratch;
    out.resize(sends.iter().sum(), 0);
    steps.encode(parts, out);
    arrived.resize(owned * (n - 1), 0);
    peers.exchange(out, &sends, arrived, &receives)?;

    let votes = matches!(compression.method, Method::Majority);
    total.resize(owned, 0);
    let mut at = 0;
    for part in parts.iter_mut() {
        let chunk = steps.chunk(part, me);
        let len = codec.encoded_len(chunk.len());
        let key = part.state.key(part.name, Some(n + me));
        // With feedback the sum begins with what the last one still owes, and ends as what this one will.
        let mut sum = if steps.feedback { std::mem::take(&mut part.state.owned) } else { Vec::new() };
        sum.resize(chunk.len(), 0.0);
        let own = &mut steps.brought(part)[chunk.clone()];
        if !votes {
            add(&mut sum, own);
        }
        if owned > 0 {
            arrived.chunks_exact(owned).for_each(|one| add_up(&one[at..at + len], &mut sum));
        }
        finish(own, &mut sum, key);
        if steps.feedback {
            own.fill(0.0);
        }
        codec.encode(&mut sum, key, chunk.start, steps.rest(), &mut total[at..at + len]);
        if steps.feedback {
            part.state.owned = sum;
        }
        at += len;
    }

    let counts: Vec<usize> = (0..n).map(|owner| steps.bytes(parts, owner)).collect();
    totals.resize(counts.iter().sum(), 0);
    peers.gather(total, &counts, totals)?;
    steps.decode(totals, parts);
    Ok(out.len() + total.len() * (n - 1))
}

/// Memory for codes, kept from one batch to the next: new memory costs more than what is done with it.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    out: Vec<u8>,
    arrived: Vec<u8>,
    total: Vec<u8>,
    totals: Vec<u8>,
}

/// What does not change on the way.
struct Steps {
    n: usize,
    me: usize,
    unit: usize,
    feedback: bool,
    codec: Codec,
}

impl Steps {
    /// What a peer owns of a part.
    fn chunk(&self, part: &Part<'_>, owner: usize) -> Range<usize> {
        chunk(part.values.len(), self.unit, self.n, owner)
    }

    /// Bytes of the code of all that a peer owns.
    fn bytes(&self, parts: &[Part<'_>], owner: usize) -> usize {
        parts.iter().map(|part| self.codec.encoded_len(self.chunk(part, owner).len())).sum()
    }

    /// What encoding leaves in the place of values.
    fn rest(&self) -> Rest {
        if self.feedback { Rest::Keep } else { Rest::Leave }
    }

    /// What this peer brings to a part.
    fn brought<'a>(&self, part: &'a mut Part<'_>) -> &'a mut [f32] {
        if self.feedback { &mut part.state.residual } else { part.values }
    }

    /// Writes the codes of all that others own. With feedback, what they leave out stays in the residual.
    fn encode(&self, parts: &mut [Part<'_>], mut out: &mut [u8]) {
        if self.feedback {
            for part in parts.iter_mut() {
                let len = part.values.len();
                add(filled(&mut part.state.residual, len), part.values);
            }
        }
        for owner in (0..self.n).filter(|owner| *owner != self.me) {
            for part in parts.iter_mut() {
                let chunk = self.chunk(part, owner);
                let key = part.state.key(part.name, Some(self.me));
                let (code, after) = std::mem::take(&mut out).split_at_mut(self.codec.encoded_len(chunk.len()));
                out = after;
                self.codec.encode(&mut self.brought(part)[chunk.clone()], key, chunk.start, self.rest(), code);
            }
        }
    }

    /// Puts the sums of all owners into their places.
    fn decode(&self, mut totals: &[u8], parts: &mut [Part<'_>]) {
        for owner in 0..self.n {
            for part in parts.iter_mut() {
                let chunk = self.chunk(part, owner);
                let (code, after) = totals.split_at(self.codec.encoded_len(chunk.len()));
                totals = after;
                self.codec.decode(code, Into::Set, &mut part.values[chunk]);
            }
        }
    }
}
