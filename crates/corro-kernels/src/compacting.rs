//! The kernels of compressed collectives as programs call them: methods of [`InstructionSet`], of which
//! [`InstructionSet::best`] is the one to use. Lengths are checked here.

#![expect(unsafe_code, reason = "calls kernels that need target features")]

use crate::InstructionSet;
use crate::compact::{Into, Levels, Noise, Rest, scale_bytes, signs_len};

/// Calls a kernel of this instruction set.
macro_rules! call {
    ($set:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: only instruction sets of this machine are ever made, and the kernels take slices.
        unsafe { ($set.0.compact.$name)($($argument),*) }
    };
}

impl InstructionSet {
    /// Encodes values as small integers; see [`Levels`]. `code` has [`Levels::encoded_len`] bytes. A block must be a multiple
    /// of 32 values.
    pub fn levels_encode(self, values: &mut [f32], levels: Levels, noise: Option<Noise>, rest: Rest, code: &mut [u8]) {
        check_levels(levels, values.len(), code.len());
        call!(self, levels_encode(values, levels, noise, rest, code));
    }

    /// What [`Self::levels_encode`] has encoded.
    pub fn levels_decode(self, code: &[u8], levels: Levels, into: Into, values: &mut [f32]) {
        check_levels(levels, values.len(), code.len());
        call!(self, levels_decode(code, levels, into, values));
    }

    /// Encodes values as 8-bit floats (e4m3) with a scale for each block. `code` has [`Self::float8_len`] bytes.
    pub fn float8_encode(self, values: &mut [f32], block: usize, noise: Option<Noise>, rest: Rest, code: &mut [u8]) {
        check(block, Self::float8_len(values.len(), block), code.len());
        call!(self, float8_encode(values, block, noise, rest, code));
    }

    /// What [`Self::float8_encode`] has encoded.
    pub fn float8_decode(self, code: &[u8], block: usize, into: Into, values: &mut [f32]) {
        check(block, Self::float8_len(values.len(), block), code.len());
        call!(self, float8_decode(code, block, into, values));
    }

    /// Bytes of so many values as 8-bit floats.
    pub fn float8_len(count: usize, block: usize) -> usize {
        scale_bytes(count, block) + count
    }

    /// Encodes values as their signs, and the mean magnitude of each block. `code` has [`Self::signs_len`] bytes.
    pub fn signs_encode(self, values: &mut [f32], block: usize, rest: Rest, code: &mut [u8]) {
        check(block, signs_len(values.len(), block), code.len());
        call!(self, signs_encode(values, block, rest, code));
    }

    /// What [`Self::signs_encode`] has encoded.
    pub fn signs_decode(self, code: &[u8], block: usize, into: Into, values: &mut [f32]) {
        check(block, signs_len(values.len(), block), code.len());
        call!(self, signs_decode(code, block, into, values));
    }

    /// Bytes of so many values as signs.
    pub fn signs_len(count: usize, block: usize) -> usize {
        signs_len(count, block)
    }

    /// `p = matrix q`, for a matrix of `sizes[0]` rows and `sizes[1]` columns and a `q` of `sizes[2]` columns, which lie one
    /// after the other; `p` lies by rows.
    pub fn times(self, matrix: &[f32], q: &[f32], p: &mut [f32], sizes: [usize; 3]) {
        check_matrices(matrix.len(), p.len(), q.len(), sizes);
        call!(self, times(matrix, q, p, sizes));
    }

    /// `q = transposed(matrix) p`, laid out as in [`Self::times`].
    pub fn transposed_times(self, matrix: &[f32], p: &[f32], q: &mut [f32], sizes: [usize; 3]) {
        check_matrices(matrix.len(), p.len(), q.len(), sizes);
        call!(self, transposed_times(matrix, p, q, sizes));
    }

    /// `matrix = p transposed(q)`, laid out as in [`Self::times`]; or that added to it.
    pub fn outer(self, p: &[f32], q: &[f32], matrix: &mut [f32], sizes: [usize; 3], into: Into) {
        check_matrices(matrix.len(), p.len(), q.len(), sizes);
        call!(self, outer(p, q, matrix, sizes, into));
    }

    /// The Hadamard transform of each block (a power of two) of values; the same again undoes it.
    pub fn hadamard(self, values: &mut [f32], block: usize) {
        assert!(block.is_power_of_two(), "a Hadamard transform of {block} values");
        call!(self, hadamard(values, block));
    }
}

fn check_levels(levels: Levels, count: usize, code: usize) {
    assert!(matches!(levels.bits, 2 | 4 | 8), "integers of {} bits", levels.bits);
    check(levels.block, levels.encoded_len(count), code);
}

fn check(block: usize, expected: usize, found: usize) {
    assert!(block > 0 && block.is_multiple_of(32), "blocks of {block} values");
    assert!(expected == found, "a code of {found} bytes where {expected} are needed");
}

fn check_matrices(matrix: usize, p: usize, q: usize, [rows, columns, narrow]: [usize; 3]) {
    assert!(columns > 0 && narrow > 0, "a matrix without columns");
    assert!(
        matrix == rows * columns && p == rows * narrow && q == columns * narrow,
        "matrices of {matrix}, {p} and {q} values for {rows} x {columns} and {narrow}"
    );
}
