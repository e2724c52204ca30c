//! A communicator: one rank's end of a group of GPUs.

#![expect(unsafe_code, reason = "calls NCCL")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use corro_core::{DType, Deadline, Error, ReduceOp, Result};

use super::library::{Config, Functions, IN_PROGRESS, Nccl, UniqueId};
use super::{data_type, reduction};
use crate::device::Device;
use crate::span::Span;
use crate::stream::Stream;
use crate::sys::Handle;

/// NCCL's type for bytes.
const BYTES: c_int = 1;
/// So often NCCL is asked without a pause: most calls are taken within microseconds, and a pause is far longer.
const LOOKS: u32 = 100;
/// How long a communicator that is no longer needed waits for its peers before it leaves without a word.
const FAREWELL: Duration = Duration::from_secs(5);

/// Asked again and again while something waits: an error ends the waiting.
pub type Stop = Box<dyn Fn() -> Option<Error> + Send>;

/// One rank's end of a group. What it is given returns once NCCL has taken it; the stream says when it is done.
pub struct Communicator {
    nccl: Nccl,
    device: Device,
    /// `None` once it was aborted.
    raw: Option<Handle>,
    rank: usize,
    size: usize,
    stop: Stop,
    timeout: Duration,
}

impl Communicator {
    /// Meets the other ranks. `timeout` is for this and for all later waits (0: no limit); `stop` is asked meanwhile.
    ///
    /// NCCL refuses two ranks on one GPU of one host.
    pub fn init(
        nccl: &Nccl,
        id: &UniqueId,
        (rank, size): (usize, usize),
        device: &Device,
        stop: impl Fn() -> Option<Error> + Send + 'static,
        timeout: Duration,
    ) -> Result<Self> {
        let _entered = device.enter()?;
        let (mut raw, mut config) = (Handle::NULL, Config::NOT_BLOCKING);
        // SAFETY: it writes one handle, and reads the configuration, which is laid out as it says.
        let code = unsafe {
            (nccl.functions().ncclCommInitRankConfig)(&raw mut raw, size as c_int, *id, rank as c_int, &raw mut config)
        };
        let raw = (raw != Handle::NULL).then_some(raw);
        let (nccl, device, stop) = (nccl.clone(), device.clone(), Box::new(stop));
        let mut made = Self { nccl, device, raw, rank, size, stop, timeout };
        made.settle(code, &format!("meeting {size} ranks as rank {rank}"))?;
        Ok(made)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// An error if something went wrong since it was last asked: a peer that was lost, a network that failed.
    pub fn check(&self) -> Result<()> {
        self.nccl.check(self.state()?, "running a collective")
    }

    /// Whether it was ended by [`Self::abort`], or by an error.
    pub fn is_aborted(&self) -> bool {
        self.raw.is_none()
    }

    /// Ends everything at once, also kernels that run; peers notice. Everything later is an error.
    pub fn abort(&mut self) {
        if let Some(raw) = self.raw.take()
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: the communicator is given away: nobody uses it again.
            unsafe { (self.nccl.functions().ncclCommAbort)(raw) };
        }
    }

    /// Reduces each pair, (where to, where from), over all ranks, all of them in one group. Both of a pair may be the same.
    pub fn all_reduce(
        &mut self,
        stream: &Stream,
        dtype: DType,
        op: ReduceOp,
        tensors: &[(Span<'_>, Span<'_>)],
    ) -> Result<()> {
        let (kind, op) = known(dtype, op)?;
        for (to, from) in tensors {
            fits(*to, *from, 1)?;
        }
        self.group(stream, "allreduce", |nccl, comm, stream| {
            let all_reduce = nccl.functions().ncclAllReduce;
            for (to, from) in tensors {
                let count = from.len() / dtype.size();
                // SAFETY: both are good for as many elements: see `Span`.
                let code = unsafe { all_reduce(pointer(*from), pointer(*to), count, kind, op, comm, stream) };
                nccl.check(code, "allreduce")?;
            }
            Ok(())
        })
    }

    /// Everybody's `from`, in the order of ranks, goes to everybody's `to`.
    pub fn all_gather(&mut self, stream: &Stream, to: Span<'_>, from: Span<'_>) -> Result<()> {
        fits(to, from, self.size)?;
        self.one(stream, "allgather", |f, comm, stream| {
            // SAFETY: `from` is good for its length, and `to` for that of all ranks.
            unsafe { (f.ncclAllGather)(pointer(from), pointer(to), from.len(), BYTES, comm, stream) }
        })
    }

    /// Each of them, (where to, where from, root), all in one group: what rank `root` has in `from` goes to everybody's `to`.
    /// On other ranks `from` is not read, and may be `to`.
    pub fn broadcast(&mut self, stream: &Stream, tensors: &[(Span<'_>, Span<'_>, usize)]) -> Result<()> {
        for (to, from, _) in tensors {
            fits(*to, *from, 1)?;
        }
        self.group(stream, "broadcast", |nccl, comm, stream| {
            let broadcast = nccl.functions().ncclBroadcast;
            for (to, from, root) in tensors {
                let (from, to, len) = (pointer(*from), pointer(*to), to.len());
                // SAFETY: both are good for as many bytes. NCCL refuses a root that is none.
                let code = unsafe { broadcast(from, to, len, BYTES, *root as c_int, comm, stream) };
                nccl.check(code, "broadcast")?;
            }
            Ok(())
        })
    }

    /// Reduces everybody's `from`; each rank gets its share of the result.
    pub fn reduce_scatter(
        &mut self,
        stream: &Stream,
        dtype: DType,
        op: ReduceOp,
        to: Span<'_>,
        from: Span<'_>,
    ) -> Result<()> {
        let (kind, op) = known(dtype, op)?;
        fits(from, to, self.size)?;
        let count = to.len() / dtype.size();
        self.one(stream, "reducescatter", |f, comm, stream| {
            // SAFETY: `to` is good for as many elements, and `from` for that of all ranks.
            unsafe { (f.ncclReduceScatter)(pointer(from), pointer(to), count, kind, op, comm, stream) }
        })
    }

    /// Sends to and receives from any ranks, all at once. What one sends, the other must receive, with the same length.
    pub fn exchange(
        &mut self,
        stream: &Stream,
        sends: &[(usize, Span<'_>)],
        receives: &[(usize, Span<'_>)],
    ) -> Result<()> {
        self.group(stream, "exchange", |nccl, comm, stream| {
            let f = nccl.functions();
            for (peer, from) in sends {
                // SAFETY: good for as many bytes. NCCL refuses a peer that is none.
                let code = unsafe { (f.ncclSend)(pointer(*from), from.len(), BYTES, *peer as c_int, comm, stream) };
                nccl.check(code, "sending")?;
            }
            for (peer, to) in receives {
                // SAFETY: as above.
                let code = unsafe { (f.ncclRecv)(pointer(*to), to.len(), BYTES, *peer as c_int, comm, stream) };
                nccl.check(code, "receiving")?;
            }
            Ok(())
        })
    }

    fn one(
        &mut self,
        stream: &Stream,
        doing: &str,
        call: impl FnOnce(&Functions, Handle, Handle) -> c_int,
    ) -> Result<()> {
        let comm = self.raw(stream)?;
        let _entered = self.device.enter()?;
        let code = call(self.nccl.functions(), comm, stream.raw());
        self.settle(code, doing)
    }

    /// Runs `calls` as one group. A group that was begun is ended, whatever happens in it.
    fn group(
        &mut self,
        stream: &Stream,
        doing: &str,
        calls: impl FnOnce(&Nccl, Handle, Handle) -> Result<()>,
    ) -> Result<()> {
        let comm = self.raw(stream)?;
        let _entered = self.device.enter()?;
        // SAFETY: ended below, by the same thread.
        self.nccl.check(unsafe { (self.nccl.functions().ncclGroupStart)() }, doing)?;
        let called = calls(&self.nccl, comm, stream.raw());
        // SAFETY: begun above.
        let code = unsafe { (self.nccl.functions().ncclGroupEnd)() };
        if called.is_err() {
            self.abort();
            return called;
        }
        self.settle(code, doing)
    }

    fn raw(&self, stream: &Stream) -> Result<Handle> {
        if *stream.device() != self.device {
            return Err(Error::Bug(format!("a communicator of {:?} was given {stream:?}", self.device)));
        }
        self.raw.ok_or_else(aborted)
    }

    /// NCCL's own word on how it is: success, under way, or what went wrong.
    fn state(&self) -> Result<c_int> {
        let raw = self.raw.ok_or_else(aborted)?;
        let mut state = IN_PROGRESS;
        // SAFETY: it writes one number.
        let code = unsafe { (self.nccl.functions().ncclCommGetAsyncError)(raw, &raw mut state) };
        self.nccl.check(code, "asking how a communicator is")?;
        Ok(state)
    }

    /// Waits until NCCL has taken what a call has given it. Aborts if that does not come to a good end.
    fn settle(&mut self, code: c_int, doing: &str) -> Result<()> {
        let settled = self.nccl.check(code, doing).and_then(|()| self.wait(Deadline::after(self.timeout), doing));
        if settled.is_err() {
            self.abort();
        }
        settled
    }

    fn wait(&self, deadline: Deadline, doing: &str) -> Result<()> {
        let (mut looks, mut pause) = (0, Duration::from_micros(10));
        loop {
            let state = self.state()?;
            if state != IN_PROGRESS {
                return self.nccl.check(state, doing);
            }
            if let Some(error) = (self.stop)() {
                return Err(error);
            }
            if deadline.passed() {
                return Err(Error::Native {
                    library: "NCCL".into(),
                    code: IN_PROGRESS.into(),
                    text: format!(
                        "{doing} is not done after {} s: is a rank missing, or is NCCL's network blocked? \
                         (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)",
                        deadline.granted().as_secs_f64()
                    ),
                });
            }
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Says good-bye to the peers; an error if they do not answer.
    fn finish(&self, raw: Handle) -> Result<()> {
        if let Some(error) = (self.stop)() {
            return Err(error);
        }
        let _entered = self.device.enter()?;
        // SAFETY: it is alive.
        let code = unsafe { (self.nccl.functions().ncclCommFinalize)(raw) };
        self.nccl.check(code, "ending a communicator")?;
        self.wait(Deadline::after(FAREWELL), "ending a communicator")?;
        // SAFETY: finalized, and given away: `drop` forgets it.
        let code = unsafe { (self.nccl.functions().ncclCommDestroy)(raw) };
        // Whatever it says: what was destroyed must not be aborted.
        let _ = self.nccl.check(code, "ending a communicator");
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            if self.finish(raw).is_ok() {
                self.raw = None;
            } else {
                self.abort();
            }
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {} on GPU {})", self.rank, self.size, self.device.ordinal())
    }
}

fn aborted() -> Error {
    Error::Bug("a communicator of NCCL is used after it was aborted".into())
}

/// As NCCL names them.
fn known(dtype: DType, op: ReduceOp) -> Result<(c_int, c_int)> {
    data_type(dtype).zip(reduction(op)).ok_or_else(|| Error::Bug(format!("NCCL has no {op} of {dtype}")))
}

/// An error unless `whole` is `ranks` times as long as `part`.
fn fits(whole: Span<'_>, part: Span<'_>, ranks: usize) -> Result<()> {
    if part.len().checked_mul(ranks) == Some(whole.len()) {
        return Ok(());
    }
    Err(Error::Bug(format!("{whole:?} is not {ranks} times {part:?}")))
}

fn pointer(span: Span<'_>) -> *mut c_void {
    span.address() as *mut c_void
}
