//! The products of PowerSGD: a matrix with one of few columns, which is kept with its columns as rows.
//!
//! `sizes` are the matrix's rows and columns and how many columns the narrow one has. Four of those are handled at once, so
//! that the large matrix is read once for four.

use super::{Into, LANES};

const FEW: usize = 4;

/// `p = matrix q`: `p` has a row for each row of the matrix, `q` a row for each narrow column.
#[inline(always)]
pub(crate) fn times(matrix: &[f32], q: &[f32], p: &mut [f32], [_, columns, narrow]: [usize; 3]) {
    for (row, p) in matrix.chunks_exact(columns).zip(p.chunks_exact_mut(narrow)) {
        let mut k = 0;
        while k + FEW <= narrow {
            let four: [&[f32]; FEW] = std::array::from_fn(|j| &q[(k + j) * columns..][..columns]);
            p[k..k + FEW].copy_from_slice(&dots(row, four));
            k += FEW;
        }
        for k in k..narrow {
            p[k] = dots(row, [&q[k * columns..][..columns]])[0];
        }
    }
}

#[inline(always)]
fn dots<const N: usize>(row: &[f32], others: [&[f32]; N]) -> [f32; N] {
    let mut sums = [[0f32; LANES]; N];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let wide = others.map(|other| &other.as_chunks::<LANES>().0[..chunks.len()]);
    for (i, chunk) in chunks.iter().enumerate() {
        // Array by array: so the sums stay in registers.
        for (sum, wide) in sums.iter_mut().zip(wide) {
            *sum = multiply_add(*sum, chunk, &wide[i]);
        }
    }
    let at = chunks.len() * LANES;
    for (sum, other) in sums.iter_mut().zip(others) {
        for ((sum, value), other) in sum.iter_mut().zip(rest).zip(&other[at..]) {
            *sum += value * other;
        }
    }
    sums.map(|lanes| lanes.into_iter().sum())
}

#[inline(always)]
fn multiply_add(mut sum: [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
    for lane in 0..LANES {
        sum[lane] += a[lane] * b[lane];
    }
    sum
}

/// `q = transposed(matrix) p`. Four rows at once, so that `q` is read and written once for four.
#[inline(always)]
pub(crate) fn transposed_times(matrix: &[f32], p: &[f32], q: &mut [f32], [_, columns, narrow]: [usize; 3]) {
    q.fill(0.0);
    let rows = matrix.chunks(FEW * columns).zip(p.chunks(FEW * narrow));
    for (rows, factors) in rows {
        for (k, q) in q.chunks_exact_mut(columns).enumerate() {
            if rows.len() == FEW * columns {
                let few: [&[f32]; FEW] = std::array::from_fn(|j| &rows[j * columns..][..columns]);
                add_multiples(q, few, std::array::from_fn(|j| factors[j * narrow + k]));
            } else {
                for (row, factors) in rows.chunks_exact(columns).zip(factors.chunks_exact(narrow)) {
                    add_multiples(q, [row], [factors[k]]);
                }
            }
        }
    }
}

/// `matrix = p transposed(q)`, or that added to it. Four rows of `q` at once.
#[inline(always)]
pub(crate) fn outer(p: &[f32], q: &[f32], matrix: &mut [f32], [_, columns, narrow]: [usize; 3], into: Into) {
    for (row, factors) in matrix.chunks_exact_mut(columns).zip(p.chunks_exact(narrow)) {
        if into == Into::Set {
            row.fill(0.0);
        }
        for (q, factors) in q.chunks(FEW * columns).zip(factors.chunks(FEW)) {
            if let Ok(factors) = <[f32; FEW]>::try_from(factors) {
                add_multiples(row, std::array::from_fn(|j| &q[j * columns..][..columns]), factors);
            } else {
                for (q, factor) in q.chunks_exact(columns).zip(factors) {
                    add_multiples(row, [q], [*factor]);
                }
            }
        }
    }
}

/// Adds each of the others times its factor, one after the other.
#[inline(always)]
fn add_multiples<const N: usize>(sums: &mut [f32], others: [&[f32]; N], factors: [f32; N]) {
    let (chunks, rest) = sums.as_chunks_mut::<LANES>();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        let others: [&[f32]; N] = std::array::from_fn(|j| &others[j][i * LANES..][..LANES]);
        for lane in 0..LANES {
            for j in 0..N {
                chunk[lane] += factors[j] * others[j][lane];
            }
        }
    }
    let at = chunks.len() * LANES;
    for (lane, sum) in rest.iter_mut().enumerate() {
        for j in 0..N {
            *sum += factors[j] * others[j][at + lane];
        }
    }
}
