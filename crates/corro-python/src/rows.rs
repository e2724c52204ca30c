//! Rows of tables, and their numbers, for embeddings: `python/corro/torch/_rows.py` calls it.

#![expect(unsafe_code, reason = "arrays arrive as addresses")]

use corro_core::{DType, Error, Result};
use pyo3::prelude::*;

use crate::arrays::{Memory, numbers, readable, writable};
use crate::error::exception;
use crate::large_pages;
use crate::without_gil::outside;

/// Adds rows to those of a table that have the numbers `to`, one after the other.
#[pyfunction]
pub(crate) fn add_rows(
    py: Python<'_>,
    dtype: u8,
    row_bytes: usize,
    into: Memory,
    to: Memory,
    from: Memory,
) -> PyResult<()> {
    let dtype = DType::from_id(dtype).filter(|dtype| row_bytes.is_multiple_of(dtype.size()));
    let dtype = dtype.ok_or_else(|| exception(py, &Error::Usage(format!("rows of {row_bytes} bytes"))))?;
    // SAFETY: corro/torch holds all three until this returns; `into` is its own, and is no part of the others.
    let (into, to, from) = unsafe { (writable(into), readable(to), readable(from)) };
    outside(py, || corro_kernels::add_rows(dtype, into, row_bytes, &signed(to), from).map_err(no_row))
}

/// Fills `into` with the rows of a table that have the numbers `which`.
#[pyfunction]
pub(crate) fn take_rows(py: Python<'_>, row_bytes: usize, into: Memory, which: Memory, table: Memory) -> PyResult<()> {
    // SAFETY: as above; `into` is new.
    let (into, which, table) = unsafe { (writable(into), readable(which), readable(table)) };
    large_pages::want(into.as_mut_ptr(), into.len());
    outside(py, || corro_kernels::take_rows(into, row_bytes, &signed(which), table).map_err(no_row))
}

/// Writes numbers to `found`, each once, and which of them each is to `which`. Says how many there are.
#[pyfunction]
pub(crate) fn distinct(py: Python<'_>, given: Memory, found: Memory, which: Memory) -> PyResult<usize> {
    // SAFETY: as above; `found` and `which` are new.
    let (given, found, which) = unsafe { (readable(given), writable(found), writable(which)) };
    outside(py, || {
        let given = signed(given);
        let mut places = vec![0; given.len()];
        let once = corro_kernels::distinct(&given, &mut places);
        write(&once, found)?;
        write(&places, which)?;
        Ok(once.len())
    })
}

/// Deals numbers to `hands`; see the kernel.
#[pyfunction]
pub(crate) fn deal(py: Python<'_>, given: Memory, hands: usize, dealt: Memory, moved: Memory) -> PyResult<Vec<usize>> {
    // SAFETY: as above; `dealt` and `moved` are new.
    let (given, dealt, moved) = unsafe { (readable(given), writable(dealt), writable(moved)) };
    outside(py, || {
        let given = signed(given);
        let (mut sent, mut places) = (vec![0; given.len()], vec![0; given.len()]);
        let counts = corro_kernels::deal(&given, hands, &mut sent, &mut places).map_err(no_row)?;
        write(&sent, dealt)?;
        write(&places, moved)?;
        Ok(counts)
    })
}

fn no_row(wrong: i64) -> Error {
    Error::Usage(format!("there is no row {wrong}"))
}

fn signed(bytes: &[u8]) -> Vec<i64> {
    numbers(bytes).into_iter().map(u64::cast_signed).collect()
}

/// To the beginning of an array of 64-bit numbers.
fn write(numbers: &[i64], array: &mut [u8]) -> Result<()> {
    let array = array.get_mut(..size_of_val(numbers));
    let array = array.ok_or_else(|| Error::Usage(format!("an array too short for {} numbers", numbers.len())))?;
    for (number, place) in numbers.iter().zip(array.chunks_exact_mut(size_of::<i64>())) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    Ok(())
}
