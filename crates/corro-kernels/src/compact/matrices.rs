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
    let mut lanes = [[0f32; LANES]; N];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (i, chunk) in chunks.iter().enumerate() {
        for j in 0..N {
            let other = &others[j][i * LANES..][..LANES];
            for lane in 0..LANES {
                lanes[j][lane] += chunk[lane] * other[lane];
            }
        }
    }
    let at = chunks.len() * LANES;
    for j in 0..N {
        for (lane, value) in rest.iter().enumerate() {
            lanes[j][lane] += value * others[j][at + lane];
        }
    }
    lanes.map(|lanes| lanes.into_iter().sum())
}

/// `q = transposed(matrix) p`.
#[inline(always)]
pub(crate) fn transposed_times(matrix: &[f32], p: &[f32], q: &mut [f32], [_, columns, narrow]: [usize; 3]) {
    q.fill(0.0);
    for (row, p) in matrix.chunks_exact(columns).zip(p.chunks_exact(narrow)) {
        for (q, factor) in q.chunks_exact_mut(columns).zip(p) {
            for (sum, value) in q.iter_mut().zip(row) {
                *sum += factor * value;
            }
        }
    }
}

/// `matrix = p transposed(q)`, or that added to it.
#[inline(always)]
pub(crate) fn outer(p: &[f32], q: &[f32], matrix: &mut [f32], [_, columns, narrow]: [usize; 3], into: Into) {
    for (row, p) in matrix.chunks_exact_mut(columns).zip(p.chunks_exact(narrow)) {
        if into == Into::Set {
            row.fill(0.0);
        }
        for (q, factor) in q.chunks_exact(columns).zip(p) {
            for (sum, value) in row.iter_mut().zip(q) {
                *sum += factor * value;
            }
        }
    }
}
