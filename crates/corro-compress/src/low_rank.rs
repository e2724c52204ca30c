//! PowerSGD: a matrix as the product of two narrow ones.
//!
//! With M what this peer brings, and Q where the last step ended: (1) P = M Q, summed over all peers, its columns made
//! orthonormal; (2) Q = transposed(M) P, summed. The result is P transposed(Q): the best there is in the space that P spans,
//! and the space turns toward the largest parts from step to step. What M has outside of it is kept. Each peer sends
//! r (rows + columns) values twice, whatever n is. What would not become smaller goes with P as it is.

use std::ops::Range;

use corro_core::{Compression, Result};
use corro_kernels::{InstructionSet, Into};

use crate::codec::add;
use crate::part::Part;
use crate::peers::Peers;
use crate::state::{State, filled, mixed};

/// Values that stay in the cache.
const CACHED: usize = 1 << 14;
/// A column shorter than this is no direction.
const TINY: f64 = 1e-30;

/// The numbers of PowerSGD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowRank {
    pub(crate) rank: usize,
    /// Steps in which nothing is compressed.
    pub(crate) start: u64,
    /// A matrix must become smaller by this factor.
    pub(crate) min_rate: f64,
}

impl LowRank {
    /// Rows, columns and rank, if it is a matrix that becomes smaller.
    fn sizes(&self, part: &Part<'_>) -> Option<[usize; 3]> {
        let [rows, columns] = part.matrix?;
        let rank = self.rank.min(rows).min(columns);
        let smaller = ((rows + columns) * rank) as f64 * self.min_rate <= (rows * columns) as f64;
        (part.state.steps >= self.start && smaller).then_some([rows, columns, rank])
    }
}

/// Sums the parts.
pub(crate) fn run(
    peers: &mut impl Peers,
    compression: &Compression,
    how: LowRank,
    parts: &mut [Part<'_>],
) -> Result<usize> {
    let isa = InstructionSet::best();
    let n = peers.size();
    let sizes: Vec<Option<[usize; 3]>> = parts.iter().map(|part| how.sizes(part)).collect();

    // P of each matrix, and what goes as it is.
    let mut first: Vec<f32> = Vec::new();
    for (part, sizes) in parts.iter_mut().zip(&sizes) {
        let at = first.len();
        if let Some(sizes @ [rows, columns, rank]) = *sizes {
            begin(part, columns, rank);
            first.resize(at + rows * rank, 0.0);
            project(part, compression.feedback, &mut first[at..], sizes);
        } else {
            if compression.feedback {
                let residual = filled(&mut part.state.residual, part.values.len());
                add(part.values, residual);
                residual.fill(0.0);
            }
            first.extend_from_slice(part.values);
        }
    }
    peers.sum(&mut first)?;

    // Q of each matrix, in the space that all have found.
    let mut second: Vec<f32> = Vec::new();
    let mut rest = &mut first[..];
    for (part, sizes) in parts.iter_mut().zip(&sizes) {
        let len = sizes.map_or(part.values.len(), |[rows, _, rank]| rows * rank);
        let (p, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        let Some(sizes @ [_, columns, rank]) = *sizes else {
            part.values.copy_from_slice(p);
            continue;
        };
        orthonormalise(p, rank);
        let at = second.len();
        second.resize(at + columns * rank, 0.0);
        let matrix = if compression.feedback { &part.state.residual[..] } else { &*part.values };
        isa.transposed_times(matrix, p, &mut second[at..], sizes);
        if compression.feedback {
            keep_rest(&mut part.state.residual, p, &second[at..], sizes);
        }
    }
    peers.sum(&mut second)?;

    let (mut p, mut q) = (&first[..], &second[..]);
    for (part, sizes) in parts.iter_mut().zip(&sizes) {
        let Some(sizes @ [rows, columns, rank]) = *sizes else {
            p = &p[part.values.len()..];
            continue;
        };
        let (this_p, after_p) = p.split_at(rows * rank);
        let (this_q, after_q) = q.split_at(columns * rank);
        (p, q) = (after_p, after_q);
        isa.outer(this_p, this_q, part.values, sizes, Into::Set);
        go_on(part, this_q, n);
    }
    Ok((first.len() + second.len()) * size_of::<f32>() * 2 * (n - 1) / n)
}

/// The first time, Q is random, and the same for all.
fn begin(part: &mut Part<'_>, columns: usize, rank: usize) {
    if part.state.basis.len() != columns * rank {
        let key = part.state.key(part.name, None);
        part.state.basis = (0..columns * rank).map(|i| random(key, i)).collect();
    }
}

/// A number between -1 and 1, never 0.
fn random(key: u64, i: usize) -> f32 {
    ((mixed(key ^ i as u64) >> 40) as f32 + 0.5) / 8_388_608.0 - 1.0
}

/// P = M Q. With feedback M is what is brought and what is owed, and lies in the residual from here on. Rows are added up and
/// multiplied while they are in the cache.
fn project(part: &mut Part<'_>, feedback: bool, p: &mut [f32], sizes: [usize; 3]) {
    let isa = InstructionSet::best();
    let State { residual, basis, .. } = &mut *part.state;
    if !feedback {
        return isa.times(part.values, basis, p, sizes);
    }
    filled(residual, part.values.len());
    let [_, columns, rank] = sizes;
    for rows in some_rows(sizes) {
        let m = &mut residual[rows.start * columns..rows.end * columns];
        add(m, &part.values[rows.start * columns..rows.end * columns]);
        isa.times(m, basis, &mut p[rows.start * rank..rows.end * rank], [rows.len(), columns, rank]);
    }
}

/// Rows that fit into the cache together.
fn some_rows([rows, columns, _]: [usize; 3]) -> impl Iterator<Item = Range<usize>> {
    let step = (CACHED / columns.max(1)).max(1);
    (0..rows).step_by(step).map(move |first| first..(first + step).min(rows))
}

/// Leaves of a peer's matrix what P and its own Q don't say of it. (Summed over all peers that is what P and the sum of all Q
/// don't say of the sum.) What is not a number is forgotten: all see it in the result.
fn keep_rest(residual: &mut [f32], p: &[f32], q: &[f32], sizes: [usize; 3]) {
    let minus: Vec<f32> = q.iter().map(|value| -value).collect();
    let [_, columns, rank] = sizes;
    let mut is_finite = true;
    for rows in some_rows(sizes) {
        let m = &mut residual[rows.start * columns..rows.end * columns];
        let size = [rows.len(), columns, rank];
        InstructionSet::best().outer(&p[rows.start * rank..rows.end * rank], &minus, m, size, Into::Add);
        is_finite &= m.iter().fold(0.0f32, |all, value| all + value * 0.0) == 0.0;
    }
    if !is_finite {
        residual.fill(0.0);
    }
}

/// The next step begins with this Q. A direction that has vanished, or is none, gives way to a random one: zeros would stay
/// zeros for ever.
fn go_on(part: &mut Part<'_>, q: &[f32], peers: usize) {
    let rank_columns = part.state.basis.len();
    debug_assert_eq!(rank_columns, q.len());
    let Some([_, columns]) = part.matrix else { return };
    let key = mixed(part.state.key(part.name, None));
    for (k, column) in q.chunks_exact(columns).enumerate() {
        let norm = column.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt();
        let basis = &mut part.state.basis[k * columns..][..columns];
        if norm.is_finite() && norm > TINY {
            let factor = (1.0 / peers as f64) as f32;
            basis.iter_mut().zip(column).for_each(|(basis, value)| *basis = value * factor);
        } else {
            basis.iter_mut().enumerate().for_each(|(i, basis)| *basis = random(key, k * columns + i));
        }
    }
}

/// Makes the columns of `p`, which lies by rows, orthonormal: Gram-Schmidt, twice, since once leaves the rounding of large
/// columns in small ones. A column that is nothing but rounding becomes zero.
fn orthonormalise(p: &mut [f32], rank: usize) {
    for _ in 0..2 {
        for k in 0..rank {
            let before = dot(p, rank, k, k).sqrt();
            for j in 0..k {
                let shared = dot(p, rank, j, k) as f32;
                for row in p.chunks_exact_mut(rank) {
                    row[k] -= shared * row[j];
                }
            }
            let norm = dot(p, rank, k, k).sqrt();
            // Also a norm that is not a number goes on: the result then shows it.
            let factor = if norm <= before * 1e-6 || norm <= TINY { 0.0 } else { 1.0 / norm };
            for row in p.chunks_exact_mut(rank) {
                row[k] = (f64::from(row[k]) * factor) as f32;
            }
        }
    }
}

fn dot(p: &[f32], rank: usize, j: usize, k: usize) -> f64 {
    p.chunks_exact(rank).map(|row| f64::from(row[j]) * f64::from(row[k])).sum()
}

#[cfg(test)]
mod tests {
    use corro_testing::Random;

    use super::*;

    #[test]
    fn columns_become_orthonormal_or_zero() {
        let mut random = Random::new(1);
        for (rows, rank) in [(1, 1), (5, 3), (100, 4), (3, 3)] {
            let mut p: Vec<f32> = (0..rows * rank).map(|_| (random.unit() - 0.5) as f32 * 1e3).collect();
            if rank > 2 {
                // The last column is the sum of the others: nothing of its own.
                p.chunks_exact_mut(rank).for_each(|row| row[rank - 1] = row[0] + row[1]);
            }
            orthonormalise(&mut p, rank);
            for j in 0..rank {
                for k in 0..=j {
                    let expected = if j == k && (rank <= 2 || j < rank - 1) { 1.0 } else { 0.0 };
                    let found = dot(&p, rank, j, k);
                    assert!((found - expected).abs() < 1e-5, "{rows} x {rank}: {j} {k} {found}");
                }
            }
        }
    }
}
