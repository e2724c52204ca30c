//! Adasum: `a' = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b`, tensor by tensor, up a binary tree of ranks.
//!
//! Orthogonal gradients add, equal ones average. By vector halving and distance doubling: at distance 1, 2, 4, ...
//! partners swap halves of what they hold, so that each combines half the elements; the three dot products a tensor
//! needs are summed over all ranks that hold a part of it. At the end the parts are gathered again. log2 n rounds down and
//! as many up; each rank sends twice the data in all, and 24 bytes a tensor and round.
//!
//! If n is no power of two, the first ranks pair up before: the even one of a pair combines both and hands out the result.
//! (Horovod refuses such jobs.)

use std::ops::Range;

use corro_core::{DType, Result};

use crate::subset::Subset;

/// What Adasum needs from the network: all of them block until done.
pub(crate) trait Swap {
    /// Sends to and receives from one member at the same time; either may be empty.
    fn swap(&mut self, member: usize, send: &[u8], receive: &mut [u8]) -> Result<()>;
}

/// A coefficient is 1 where the vector is (nearly) zero: there is no direction to correct then.
fn coefficient(dot: f64, norm: f64) -> f64 {
    if norm < f64::MIN_POSITIVE.sqrt() { 1.0 } else { 1.0 - dot / (2.0 * norm) }
}

/// Combines `data` of all positions in `s`. `tensors` are the bounds of tensors in it, in bytes: starts, and the end.
pub(crate) fn allreduce(
    net: &mut impl Swap,
    s: &Subset,
    data: &mut [u8],
    tensors: &[usize],
    dtype: DType,
) -> Result<()> {
    let seats = 1usize << s.size().ilog2();
    let pairs = s.size() - seats;
    let position = |seat: usize| if seat < pairs { 2 * seat } else { seat + pairs };
    if s.me() < 2 * pairs && !s.me().is_multiple_of(2) {
        let seated = s.member(s.me() - 1);
        net.swap(seated, data, &mut [])?;
        return net.swap(seated, &[], data);
    }
    let partner = (s.me() < 2 * pairs).then(|| s.member(s.me() + 1));
    if let Some(partner) = partner {
        let mut theirs = vec![0; data.len()];
        net.swap(partner, &[], &mut theirs)?;
        let sums = partial_dots(dtype, data, &theirs, tensors, 0);
        combine(dtype, data, &theirs, tensors, 0, &sums, true);
    }
    let seat = if partner.is_some() { s.me() / 2 } else { s.me() - pairs };
    let held = descend(net, s, data, tensors, dtype, seat, seats, &position)?;
    ascend(net, s, data, seat, &position, &held)?;
    if let Some(partner) = partner {
        net.swap(partner, data, &mut [])?;
    }
    Ok(())
}

/// Down: halves the part held each round. Gives what was held before each round.
#[expect(clippy::too_many_arguments, reason = "one loop of one algorithm, with its whole state")]
fn descend(
    net: &mut impl Swap,
    s: &Subset,
    data: &mut [u8],
    tensors: &[usize],
    dtype: DType,
    seat: usize,
    seats: usize,
    position: &impl Fn(usize) -> usize,
) -> Result<Vec<Range<usize>>> {
    let all = 0..data.len();
    let mut held = vec![all];
    let mut distance = 1;
    while distance < seats {
        let now = held[held.len() - 1].clone();
        let (keep, give) = halves(&now, dtype, seat & distance != 0);
        let partner = s.member(position(seat ^ distance));
        let mut theirs = vec![0; keep.len()];
        net.swap(partner, &data[give], &mut theirs)?;
        let mine = &mut data[keep.clone()];
        let lower = seat & distance == 0;
        let mut sums = partial_dots(dtype, mine, &theirs, tensors, keep.start);
        if !lower {
            // "a" is the lower seats' vector for everyone.
            sums.chunks_exact_mut(3).for_each(|t| t.swap(1, 2));
        }
        add_over_block(net, s, &mut sums, seat, distance, position)?;
        combine(dtype, mine, &theirs, tensors, keep.start, &sums, lower);
        held.push(keep);
        distance *= 2;
    }
    Ok(held)
}

/// Up: partners swap finished parts until everyone has all.
fn ascend(
    net: &mut impl Swap,
    s: &Subset,
    data: &mut [u8],
    seat: usize,
    position: &impl Fn(usize) -> usize,
    held: &[Range<usize>],
) -> Result<()> {
    for round in (0..held.len() - 1).rev() {
        let (whole, mine) = (held[round].clone(), held[round + 1].clone());
        let theirs = if mine.start == whole.start { mine.end..whole.end } else { whole.start..mine.start };
        let partner = s.member(position(seat ^ (1 << round)));
        let part = data[mine].to_vec();
        net.swap(partner, &part, &mut data[theirs])?;
    }
    Ok(())
}

fn halves(range: &Range<usize>, dtype: DType, upper: bool) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len() / dtype.size() / 2 * dtype.size();
    let (low, high) = (range.start..middle, middle..range.end);
    if upper { (high, low) } else { (low, high) }
}

/// The part of each tensor that lies in a window of `len` bytes from `start`, counted from there.
fn parts(tensors: &[usize], start: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    tensors.windows(2).enumerate().filter_map(move |(i, bounds)| {
        let (from, to) = (bounds[0].max(start), bounds[1].min(start + len));
        (from < to).then(|| (i, from - start..to - start))
    })
}

/// a.b, a.a and b.b of each tensor, over the elements in this window.
fn partial_dots(dtype: DType, a: &[u8], b: &[u8], tensors: &[usize], start: usize) -> Vec<f64> {
    let mut sums = vec![0.0; 3 * (tensors.len() - 1)];
    for (i, part) in parts(tensors, start, a.len()) {
        sums[3 * i..3 * i + 3].copy_from_slice(&corro_kernels::dot_and_norms(dtype, &a[part.clone()], &b[part]));
    }
    sums
}

/// `mine` becomes the combination; `lower` says whether mine is "a".
fn combine(dtype: DType, mine: &mut [u8], theirs: &[u8], tensors: &[usize], start: usize, sums: &[f64], lower: bool) {
    for (i, part) in parts(tensors, start, mine.len()) {
        let (dot, a, b) = (sums[3 * i], sums[3 * i + 1], sums[3 * i + 2]);
        let (mine_norm, their_norm) = if lower { (a, b) } else { (b, a) };
        let (m, t) = (coefficient(dot, mine_norm), coefficient(dot, their_norm));
        corro_kernels::combine(dtype, &mut mine[part.clone()], m, &theirs[part], t);
    }
}

/// Sums over the 2 x distance seats that hold parts of the same two vectors, in an order that is the same for all.
fn add_over_block(
    net: &mut impl Swap,
    s: &Subset,
    sums: &mut [f64],
    seat: usize,
    distance: usize,
    position: &impl Fn(usize) -> usize,
) -> Result<()> {
    let mut bit = 1;
    let mut theirs = vec![0.0; sums.len()];
    while bit <= distance {
        let partner = s.member(position(seat ^ bit));
        net.swap(partner, bytemuck::cast_slice(sums), bytemuck::cast_slice_mut(&mut theirs))?;
        for (mine, theirs) in sums.iter_mut().zip(&theirs) {
            *mine += theirs;
        }
        bit *= 2;
    }
    Ok(())
}
