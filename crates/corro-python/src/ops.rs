//! Collectives: from addresses and numbers to submissions.

#![expect(unsafe_code, reason = "tensors arrive as addresses")]

use corro_core::{Buffer, DType, Error, ReduceOp, Result, Shape};
use corro_engine::{Device, Kind, Output as Place, Submission};
use pyo3::prelude::*;

use crate::error::{exception, unregistered};
use crate::gate::outside;
use crate::handles::{self, Flight, Flights, Pending};
use crate::job::engine;
use crate::names;
use crate::output::Output;

/// Address, shape, dtype, device: what a front says about a tensor.
type View = (usize, Vec<usize>, u8, i32);

/// What is to be done, apart from the tensor.
struct Wanted<'a> {
    kind: &'a str,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Vec<usize>,
}

impl Wanted<'_> {
    fn kind(&self) -> Result<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.kind {
            "allreduce" => Kind::Allreduce { op: self.op()?, prescale, postscale },
            "reducescatter" => Kind::Reducescatter { op: self.op()?, prescale, postscale },
            "allgather" => Kind::Allgather,
            "alltoall" => Kind::Alltoall { splits: self.splits.clone() },
            "broadcast" => Kind::Broadcast {
                root: usize::try_from(self.root).map_err(|_| {
                    Error::Usage(format!("broadcast received invalid root rank {}: ranks begin at 0", self.root))
                })?,
            },
            other => return Err(Error::Bug(format!("there is no collective called {other}"))),
        })
    }

    fn op(&self) -> Result<ReduceOp> {
        ReduceOp::from_id(self.op).ok_or_else(|| {
            Error::Usage(format!("{} is not a reduce op; say hvd.Sum, hvd.Average or the like", self.op))
        })
    }
}

/// A tensor with all it takes to submit it. `output` is None where the engine allocates the result.
fn submission(set: u32, name: String, kind: Kind, view: View, output: Option<&View>) -> Result<Submission> {
    let (address, shape, dtype, device) = view;
    let dtype = DType::from_id(dtype).ok_or_else(|| Error::Bug(format!("there is no dtype {dtype}")))?;
    let shape = Shape(shape);
    let device = u32::try_from(device).map_or(Device::Cpu, Device::Gpu);
    let bytes = shape.bytes(dtype)?;
    let (input, output) = match output {
        Some((to, ..)) if *to == address => (None, Place::InPlace(buffer(address, bytes))),
        Some((to, ..)) => (Some(buffer(address, bytes)), Place::InPlace(buffer(*to, bytes))),
        None => (Some(buffer(address, bytes)), Place::None),
    };
    Ok(Submission { set, name, kind, dtype, shape, device, input, output })
}

fn buffer(address: usize, bytes: usize) -> Buffer {
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: a front gives the address of a contiguous tensor with this many bytes (`corro/torch/_tensors.py` and its
    // like). The tensor's owner is kept by the caller's frame until `run` returns, or by the handle until the engine
    // has reported the outcome, after which it does not touch the buffers any more. That nobody else writes to a
    // tensor in flight is the rule of asynchronous collectives; breaking it gives wrong numbers, as in any framework.
    unsafe { Buffer::from_raw(at, bytes, Box::new(())) }
}

#[pyfunction]
#[pyo3(signature = (kind, view, output, set_id, name, op=1, prescale=1.0, postscale=1.0, root=0, splits=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
pub(crate) fn run(
    py: Python<'_>,
    kind: &str,
    view: View,
    output: Option<View>,
    set_id: Option<u32>,
    name: Option<&str>,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Option<Vec<usize>>,
) -> PyResult<Option<Output>> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let allocated = output.is_none();
    let wanted = Wanted { kind, op, prescale, postscale, root, splits: splits.unwrap_or_default() };
    let name = names::of_one(set, kind, name);
    let outcome = outside(py, move || {
        if !name.given {
            handles::wait_until_free(set, &name.full);
        }
        engine.run(submission(set, name.full, wanted.kind()?, view, output.as_ref())?)
    })?;
    Ok(allocated.then(|| Output::new(outcome)))
}

#[pyfunction]
#[pyo3(signature = (kind, view, output, set_id, name, keep, result, complete, op=1, prescale=1.0, postscale=1.0, root=0, splits=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
pub(crate) fn submit(
    py: Python<'_>,
    kind: &str,
    view: View,
    output: Option<View>,
    set_id: Option<u32>,
    name: Option<&str>,
    keep: Py<PyAny>,
    result: Py<PyAny>,
    complete: Option<Py<PyAny>>,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Option<Vec<usize>>,
) -> PyResult<u64> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let wanted = Wanted { kind, op, prescale, postscale, root, splits: splits.unwrap_or_default() };
    let name = names::of_one(set, kind, name);
    let unnamed = (!name.given).then(|| (set, name.full.clone()));
    let ticket = outside(py, move || {
        if !name.given {
            handles::wait_until_free(set, &name.full);
        }
        engine.submit(submission(set, name.full, wanted.kind()?, view, output.as_ref())?)
    })?;
    Ok(handles::insert(Pending { flights: Flights::One(Flight { ticket, result }), keep, complete }, unnamed))
}

#[pyfunction]
#[pyo3(signature = (kind, views, outputs, set_id, name, keep, results, complete, op=1, prescale=1.0, postscale=1.0))]
#[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
pub(crate) fn submit_group(
    py: Python<'_>,
    kind: &str,
    views: Vec<View>,
    outputs: Option<Vec<View>>,
    set_id: Option<u32>,
    name: Option<&str>,
    keep: Py<PyAny>,
    results: Vec<Py<PyAny>>,
    complete: Option<Py<PyAny>>,
    op: u8,
    prescale: f64,
    postscale: f64,
) -> PyResult<u64> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let count = views.len();
    if results.len() != count || outputs.as_ref().is_some_and(|outputs| outputs.len() != count) {
        return Err(exception(py, &Error::Bug("a group needs as many outputs and results as tensors".into())));
    }
    let wanted = Wanted { kind, op, prescale, postscale, root: 0, splits: Vec::new() };
    let group = names::of_group(set, kind, name);
    let unnamed = (!group.given).then(|| (set, group.full.clone()));
    let mut outputs = outputs.into_iter().flatten();
    let tickets = outside(py, move || {
        if !group.given {
            handles::wait_until_free(set, &group.full);
        }
        let submissions = views
            .into_iter()
            .enumerate()
            .map(|(i, view)| {
                let name = format!("{}_{}of{count}", group.full, i + 1);
                submission(set, name, wanted.kind()?, view, outputs.next().as_ref())
            })
            .collect::<Result<Vec<_>>>()?;
        engine.submit_group(submissions)
    })?;
    let flights = tickets.into_iter().zip(results).map(|(ticket, result)| Flight { ticket, result }).collect();
    Ok(handles::insert(Pending { flights: Flights::Group(flights), keep, complete }, unnamed))
}

#[pyfunction]
pub(crate) fn barrier(py: Python<'_>, set_id: Option<u32>) -> PyResult<()> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    outside(py, move || engine.run(Submission { set, ..Submission::barrier() }))?;
    Ok(())
}

#[pyfunction]
pub(crate) fn join(py: Python<'_>) -> PyResult<usize> {
    let engine = engine(py)?;
    outside(py, move || {
        let outcome = engine.join()?.wait()?;
        outcome.last_joined.ok_or_else(|| Error::Bug("a join ended without saying who came last".into()))
    })
}
