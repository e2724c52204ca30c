//! Collectives: from addresses and numbers to submissions.

#![expect(unsafe_code, reason = "tensors arrive as addresses")]

use std::any::Any;
use std::sync::Arc;

use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Result, Shape};
use corro_engine::{Device, Kind, Memory, Outcome, Output as Place, Submission, Ticket};
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::compression;
use crate::error::{exception, unregistered};
use crate::gpu;
use crate::handles::{self, Pending, Results};
use crate::names::{self, Name};
use crate::output::Output;
use crate::running::engine;
use crate::without_gil::{Signals, outside};

/// What a front says about a tensor: a tuple of address, shape, dtype, device; and, if the address is that of memory on the
/// device, the stream on which it was made.
struct View {
    address: usize,
    shape: Vec<usize>,
    dtype: u8,
    device: i32,
    stream: Option<u64>,
}

impl<'py> FromPyObject<'_, 'py> for View {
    type Error = PyErr;

    fn extract(view: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let on_device = view.cast::<PyTuple>().is_ok_and(|tuple| tuple.len() == 5);
        let (address, shape, dtype, device, stream): (usize, Bound<'py, PyAny>, u8, i32, Option<u64>) = if on_device {
            view.extract()?
        } else {
            let (address, shape, dtype, device) = view.extract()?;
            (address, shape, dtype, device, None)
        };
        // Shapes are tuples (torch's have a class of their own), which are read faster than sequences of any kind.
        let shape = match shape.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter_borrowed().map(Borrowed::extract).collect::<PyResult<_>>()?,
            Err(_) => shape.extract()?,
        };
        Ok(Self { address, shape, dtype, device, stream })
    }
}

/// Where the result goes: the address of a tensor of the same shape, or of the same tensor. `None` where the engine
/// allocates it.
fn place(view: &Bound<'_, PyAny>, output: Option<&Bound<'_, PyAny>>) -> PyResult<(View, Option<usize>)> {
    let given: View = view.extract()?;
    let to = match output {
        // The very same object: what it says has been read.
        Some(output) if output.is(view) => Some(given.address),
        Some(output) => Some(output.extract::<View>()?.address),
        None => None,
    };
    Ok((given, to))
}

/// What is to be done, apart from the tensor.
struct Wanted<'a> {
    kind: &'a str,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Vec<usize>,
    compression: Option<&'a str>,
}

impl Wanted<'_> {
    fn kind(&self) -> Result<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.kind {
            "allreduce" => {
                let compression = self.compression.map(compression::parse).transpose()?;
                Kind::Allreduce { op: self.op()?, prescale, postscale, compression }
            }
            "reducescatter" => Kind::Reducescatter { op: self.op()?, prescale, postscale },
            "allgather" => Kind::Allgather,
            "alltoall" => Kind::Alltoall { splits: self.splits.clone() },
            "broadcast" => Kind::Broadcast {
                root: usize::try_from(self.root).map(Rank::new).map_err(|_| {
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

/// What the tensors of a group are multiplied by.
#[derive(FromPyObject)]
pub(crate) enum Factor {
    Same(f64),
    /// Each by its own: frameworks may round it to the tensor's dtype.
    Each(Vec<f64>),
}

impl Factor {
    fn of(&self, tensor: usize) -> Result<f64> {
        match self {
            Self::Same(factor) => Ok(*factor),
            Self::Each(factors) => factors
                .get(tensor)
                .copied()
                .ok_or_else(|| Error::Bug("a group needs as many factors as tensors".into())),
        }
    }
}

/// A tensor with all it takes to submit it. `output` is None where the engine allocates the result.
fn submission(
    set: u32,
    name: String,
    kind: Kind,
    (view, output): (View, Option<usize>),
    (moments, keep): (&mut gpu::Moments, &Arc<dyn Any + Send + Sync>),
) -> Result<Submission> {
    let View { address, shape, dtype, device, stream } = view;
    let dtype = DType::from_id(dtype).ok_or_else(|| Error::Bug(format!("there is no dtype {dtype}")))?;
    let shape = Shape(shape);
    let device = u32::try_from(device).map_or(Device::Cpu, Device::Gpu);
    let bytes = shape.bytes(dtype)?;
    let ready = match (device, stream) {
        (Device::Gpu(ordinal), Some(stream)) => Some((ordinal as usize, moments.now(ordinal as usize, stream)?)),
        _ => None,
    };
    let memory = |address, bytes| match &ready {
        Some((ordinal, ready)) => gpu::memory(address, bytes, *ordinal, ready, Arc::clone(keep)),
        None => memory(address, bytes),
    };
    let (input, output) = match output {
        Some(to) if to == address => (None, Place::InPlace(memory(address, bytes))),
        Some(to) => (Some(memory(address, bytes)), Place::InPlace(memory(to, bytes))),
        None => (Some(memory(address, bytes)), Place::None),
    };
    Ok(Submission { set, name, kind, dtype, shape, device, input, output })
}

/// What memory on a device is kept by until the device is done, whatever becomes of the handle. On the host the handle is enough.
fn owner(py: Python<'_>, stream: Option<u64>, keep: &Py<PyAny>) -> Arc<dyn Any + Send + Sync> {
    if stream.is_some() { Arc::new(keep.clone_ref(py)) } else { Arc::new(()) }
}

fn memory(address: usize, bytes: usize) -> Memory {
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: a front gives the address of a contiguous tensor with this many bytes (`corro/torch/_tensors.py` and its
    // like). The tensor's owner is kept by the caller's frame until `run` returns, or by the handle until the engine
    // has reported the outcome, after which it does not touch the buffers any more. That nobody else writes to a
    // tensor in flight is the rule of asynchronous collectives; breaking it gives wrong numbers, as in any framework.
    unsafe { Buffer::from_raw(at, bytes, Box::new(())) }.into()
}

#[pyfunction]
#[pyo3(signature = (kind, view, output, set_id, name, op=1, prescale=1.0, postscale=1.0, root=0, splits=None, compression=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
pub(crate) fn run(
    py: Python<'_>,
    kind: &str,
    view: &Bound<'_, PyAny>,
    output: Option<&Bound<'_, PyAny>>,
    set_id: Option<u32>,
    name: Option<&str>,
    op: u8,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Option<Vec<usize>>,
    compression: Option<&str>,
) -> PyResult<Option<Output>> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let (view, output) = place(view, output)?;
    let allocated = output.is_none();
    let wanted = Wanted { kind, op, prescale, postscale, root, splits: splits.unwrap_or_default(), compression };
    let name = names::of_one(kind, name);
    let outcome = wait_for_run(py, move |signals| {
        // The caller's frame keeps the tensors; a stream that waits for the result keeps their order.
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(());
        let mut moments = gpu::Moments::default();
        let submission = |name| submission(set, name, wanted.kind()?, (view, output), (&mut moments, &keep));
        match name {
            Name::Given(name) => engine.run_while(submission(name)?, &mut || signals.go_on()),
            Name::Of(kind) => engine.run_unnamed_while(&kind, submission(String::new())?, &mut || signals.go_on()),
        }
    })?;
    gpu::order(py, std::slice::from_ref(&outcome))?;
    Ok(allocated.then(|| Output::new(outcome)))
}

/// Does `work` until it ends or a signal handler raises. A tensor that is still on its way then keeps the memory it needs.
fn wait_for_run(
    py: Python<'_>,
    work: impl FnOnce(&mut Signals) -> Result<std::result::Result<Outcome, Ticket>> + Ungil + Send,
) -> PyResult<Outcome> {
    let mut signals = Signals::new();
    match outside(py, || work(&mut signals))? {
        Ok(outcome) => Ok(outcome),
        Err(ticket) => {
            // The caller's frame, and those below it, hold whatever owns the tensors.
            let keep = py.import("sys")?.getattr("_getframe")?.call0()?.unbind();
            ticket.on_done(move |_| drop(keep));
            Err(signals.raised())
        }
    }
}

#[pyfunction]
#[pyo3(signature = (kind, view, output, set_id, name, keep, result, complete, op=1, prescale=1.0, postscale=1.0, root=0, splits=None, compression=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
pub(crate) fn submit(
    py: Python<'_>,
    kind: &str,
    view: &Bound<'_, PyAny>,
    output: Option<&Bound<'_, PyAny>>,
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
    compression: Option<&str>,
) -> PyResult<u64> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let wanted = Wanted { kind, op, prescale, postscale, root, splits: splits.unwrap_or_default(), compression };
    let name = names::of_one(kind, name);
    let kind = wanted.kind().map_err(|error| exception(py, &error))?;
    let (view, output) = place(view, output)?;
    let (owner, on_gpu) = (owner(py, view.stream, &keep), view.stream.is_some());
    let ticket = outside(py, move || match name {
        Name::Given(name) => {
            engine.submit(submission(set, name, kind, (view, output), (&mut gpu::Moments::default(), &owner))?)
        }
        Name::Of(unnamed) => {
            let moments = &mut gpu::Moments::default();
            engine.submit_unnamed(&unnamed, submission(set, String::new(), kind, (view, output), (moments, &owner))?)
        }
    })?;
    Ok(handles::insert(Pending::new(vec![ticket], Results::One(result), (keep, on_gpu), complete)))
}

#[pyfunction]
#[pyo3(signature = (kind, views, outputs, set_id, name, keep, results, complete, op=1, prescale=Factor::Same(1.0), postscale=Factor::Same(1.0), compression=None))]
#[expect(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "Python's keyword arguments")]
pub(crate) fn submit_group(
    py: Python<'_>,
    kind: &str,
    views: Vec<Bound<'_, PyAny>>,
    outputs: Option<Vec<Bound<'_, PyAny>>>,
    set_id: Option<u32>,
    name: Option<&str>,
    keep: Py<PyAny>,
    results: Vec<Py<PyAny>>,
    complete: Option<Py<PyAny>>,
    op: u8,
    prescale: Factor,
    postscale: Factor,
    compression: Option<&str>,
) -> PyResult<u64> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let count = views.len();
    if results.len() != count || outputs.as_ref().is_some_and(|outputs| outputs.len() != count) {
        return Err(exception(py, &Error::Bug("a group needs as many outputs and results as tensors".into())));
    }
    let kind_by =
        |prescale, postscale| Wanted { kind, op, prescale, postscale, root: 0, splits: Vec::new(), compression }.kind();
    let kinds = match (&prescale, &postscale) {
        (Factor::Same(before), Factor::Same(after)) => kind_by(*before, *after).map(|kind| vec![kind; count]),
        _ => (0..count).map(|i| kind_by(prescale.of(i)?, postscale.of(i)?)).collect(),
    };
    let kinds = kinds.map_err(|error| exception(py, &error))?;
    let group = names::of_group(kind, name);
    let mut outputs = outputs.into_iter().flatten();
    let places = views.into_iter().map(|view| place(&view, outputs.next().as_ref())).collect::<PyResult<Vec<_>>>()?;
    let stream = places.first().and_then(|(view, _)| view.stream);
    let owner = owner(py, stream, &keep);
    let tickets = outside(py, move || {
        let mut moments = gpu::Moments::default();
        let submissions = places
            .into_iter()
            .zip(kinds)
            .enumerate()
            .map(|(i, ((view, output), kind))| {
                let name = match &group {
                    Name::Given(group) => format!("{group}_{}of{count}", i + 1),
                    Name::Of(_) => String::new(),
                };
                submission(set, name, kind, (view, output), (&mut moments, &owner))
            })
            .collect::<Result<Vec<_>>>()?;
        match &group {
            Name::Given(_) => engine.submit_group(submissions),
            Name::Of(unnamed) => engine.submit_unnamed_group(unnamed, submissions),
        }
    })?;
    Ok(handles::insert(Pending::new(tickets, Results::Group(results), (keep, stream.is_some()), complete)))
}

#[pyfunction]
pub(crate) fn barrier(py: Python<'_>, set_id: Option<u32>) -> PyResult<()> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    wait_for_run(py, move |signals| {
        let barrier = Submission { set, ..Submission::barrier() };
        engine.run_while(barrier, &mut || signals.go_on())
    })?;
    Ok(())
}

#[pyfunction]
pub(crate) fn join(py: Python<'_>) -> PyResult<usize> {
    let engine = engine(py)?;
    let outcome = wait_for_run(py, move |signals| {
        let ticket = engine.join()?;
        Ok(if ticket.wait_while(&mut || signals.go_on()) { Ok(ticket.take()?) } else { Err(ticket) })
    })?;
    let last = outcome.last_joined.map(Rank::index);
    last.ok_or_else(|| exception(py, &Error::Bug("a join ended without saying who came last".into())))
}

/// Memory that the ranks of a process set share; `None` where they can't, the same on all of them. All must call this.
#[pyfunction]
pub(crate) fn shared_memory(py: Python<'_>, set_id: Option<u32>, bytes: usize) -> PyResult<Option<Output>> {
    let engine = engine(py)?;
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let part = outside(py, move || engine.shared_memory(set, bytes))?;
    Ok(part.map(|part| {
        let shape = Shape(vec![part.len()]);
        Output::new(Outcome { output: Some(part.into()), shape, ..Outcome::default() })
    }))
}
