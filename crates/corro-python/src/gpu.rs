//! Tensors on GPUs, in the order of their framework's streams.
//!
//! A front says on which stream a tensor was made; an event there tells when it is ready. When an operation is waited for, the
//! framework's current stream is made to wait for the result, and the host is not. The front says which stream that is
//! ([`register_streams`]).

#![expect(unsafe_code, reason = "addresses and streams arrive as numbers")]

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use corro_core::{Error, Result};
use corro_cuda::{Device, DeviceMemory, Event, EventPool, Span, Stream, driver};
use corro_engine::{Memory, Outcome};
use corro_planes::{CudaDone, Done};
use pyo3::prelude::*;

use crate::error::exception;
use crate::running::engine;

/// Events that stay for the next tensors.
const EVENTS: usize = 256;

/// Gives the number of the framework's current stream on a device.
static STREAMS: OnceLock<Py<PyAny>> = OnceLock::new();

static DEVICES: LazyLock<Mutex<HashMap<usize, (Device, EventPool)>>> = LazyLock::new(Mutex::default);

fn device(ordinal: usize) -> Result<(Device, EventPool)> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((device, events)) = devices.get(&ordinal) {
        return Ok((device.clone(), events.clone()));
    }
    let device = driver()?.device(ordinal)?;
    let events = EventPool::new(&device, EVENTS);
    devices.insert(ordinal, (device.clone(), events.clone()));
    Ok((device, events))
}

/// Moments in streams of a framework, for the tensors of one call: one event serves all that were made on the same stream.
#[derive(Default)]
pub(crate) struct Moments(Vec<(usize, u64, Arc<Event>)>);

impl Moments {
    /// What tells when everything that a stream has been given so far is done.
    pub(crate) fn now(&mut self, ordinal: usize, stream: u64) -> Result<Arc<Event>> {
        if let Some((.., event)) = self.0.iter().find(|known| (known.0, known.1) == (ordinal, stream)) {
            return Ok(Arc::clone(event));
        }
        let (device, events) = device(ordinal)?;
        let event = Arc::new(events.take()?);
        // SAFETY: a front gives a stream of its framework that is alive during the call.
        unsafe { Stream::foreign(&device, stream) }.record(&event)?;
        self.0.push((ordinal, stream, Arc::clone(&event)));
        Ok(event)
    }
}

/// A tensor's memory.
pub(crate) fn memory(
    address: usize,
    bytes: usize,
    ordinal: usize,
    ready: &Arc<Event>,
    keep: Arc<dyn Any + Send + Sync>,
) -> Memory {
    // SAFETY: as for memory of the host (`ops::memory`), and once `ready` is reached: what the program enqueues later waits
    // for the operation's end, or breaks the rule of asynchronous collectives, which gives wrong numbers.
    unsafe { DeviceMemory::from_raw(address as u64, bytes, ordinal, Some(Arc::clone(ready)), keep) }.into()
}

/// What GPUs are still at: the ends of these outcomes, each once.
fn ends(outcomes: &[Outcome]) -> impl Iterator<Item = &Event> {
    let mut last: Option<&Arc<dyn Done>> = None;
    outcomes.iter().filter_map(|outcome| outcome.after.as_ref()).filter_map(move |after| {
        // Those of one batch have the same.
        let known = last.replace(after).is_some_and(|last| Arc::ptr_eq(last, after));
        let any: &dyn Any = &**after;
        any.downcast_ref::<CudaDone>().filter(|_| !known).map(CudaDone::event)
    })
}

/// Has the framework's current streams wait for results that GPUs are still at.
pub(crate) fn order(py: Python<'_>, outcomes: &[Outcome]) -> PyResult<()> {
    for event in ends(outcomes) {
        let streams =
            STREAMS.get().ok_or_else(|| exception(py, &Error::Bug("no front has named its streams".into())))?;
        let device = event.device();
        let stream: u64 = streams.call1(py, (device.ordinal(),))?.extract(py)?;
        // SAFETY: as in `Moments::now`.
        unsafe { Stream::foreign(device, stream) }.wait(event).map_err(|error| exception(py, &error))?;
    }
    Ok(())
}

/// Has one stream wait for results that GPUs are still at.
pub(crate) fn order_on(stream: &Stream, outcomes: &[Outcome]) -> Result<()> {
    ends(outcomes).try_for_each(|event| stream.wait(event))
}

/// A framework's stream on a device.
pub(crate) fn stream(ordinal: usize, handle: u64) -> Result<Stream> {
    // SAFETY: as in `Moments::now`.
    Ok(unsafe { Stream::foreign(&device(ordinal)?.0, handle) })
}

/// Results that streams of a framework still copy.
static LEAVING: Mutex<Vec<(Event, Arc<dyn Any + Send + Sync>)>> = Mutex::new(Vec::new());

/// Has a stream copy a result into a framework's memory.
pub(crate) fn copy_out(memory: &DeviceMemory, address: usize, stream: u64) -> Result<()> {
    let (device, events) = device(memory.device())?;
    // SAFETY: as in `Moments::now`.
    let stream = unsafe { Stream::foreign(&device, stream) };
    // SAFETY: a front gives the address of a tensor of its own with as many bytes, that is used on this stream from now on.
    let place = unsafe { Span::from_raw(address as u64, memory.len()) };
    stream.copy(place, memory.span())?;
    let event = events.take()?;
    stream.record(&event)?;
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.retain(|(event, _)| !event.is_done().unwrap_or(true));
    leaving.push((event, memory.keeper()));
    Ok(())
}

/// Whether tensors on GPUs can be handed over where they are.
#[pyfunction]
pub(crate) fn takes_gpu_memory() -> bool {
    driver().and_then(corro_cuda::Driver::device_count).is_ok_and(|count| count > 0)
}

/// From now on tensors may come from threads that are not the program's: a framework's, which follow its GPUs.
#[pyfunction]
pub(crate) fn expect_foreign_threads() {
    corro_engine::expect_foreign_threads();
}

/// Where a framework's own NCCL is, for all that look for it from now on.
#[pyfunction]
pub(crate) fn also_look_for_nccl_in(folder: std::path::PathBuf) {
    corro_cuda::Nccl::also_look_in(folder);
}

/// The version of NCCL that ranks with GPUs would use, as a number (22809 is 2.28.9); 0 if there is none, or no GPU.
#[pyfunction]
pub(crate) fn nccl_version() -> u32 {
    if takes_gpu_memory() { corro_cuda::Nccl::open(&[]).map_or(0, |nccl| nccl.version()) } else { 0 }
}

/// Raises if the job is over. After a GPU was waited for, that tells whether what it has is worth anything: when a rank is lost,
/// GPUs that wait for it are let go on with what they have.
#[pyfunction]
pub(crate) fn check_running(py: Python<'_>) -> PyResult<()> {
    engine(py)?.over().map_or(Ok(()), |error| Err(exception(py, &error)))
}

/// `streams(device)` gives the number of the framework's current stream there.
#[pyfunction]
pub(crate) fn register_streams(streams: Py<PyAny>) {
    // The first front that asks: those of one process share GPUs, but only torch's has streams.
    let _ = STREAMS.set(streams);
}
