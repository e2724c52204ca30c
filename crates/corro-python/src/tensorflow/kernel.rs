//! From a node that is to be run to a submission, and from its outcome to TensorFlow's outputs.
//!
//! A collective in a graph is asynchronous: the kernel submits and returns, so that no thread of TensorFlow's waits, and the
//! engine's call-back ends it. That is also why ranks may run the nodes of a graph in different orders, with as few
//! threads as they like. Tensors are not copied: the engine reads the input where it is and writes into TensorFlow's output,
//! which is the input itself where TensorFlow allows that.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Buffer, DType, Error, ReduceOp, Shape};
use corro_engine::{Device, Engine, Kind, Outcome, Output, Submission, Ticket};

use super::api::{Api, Compute, ComputeAsync, Construction, Context, Create, DoneCallback, Status, Tensor, api};
use super::done::Done;
use super::node::{Attributes, Call};
use super::ops::{OPS, Op};
use crate::{job, names};

/// TensorFlow's numbers for what went wrong.
const UNKNOWN: c_int = 2;
const INVALID_ARGUMENT: c_int = 3;
const FAILED_PRECONDITION: c_int = 9;
const ABORTED: c_int = 10;
const INTERNAL: c_int = 13;

/// Why a kernel failed, as TensorFlow is told.
pub(super) struct Failure {
    pub(super) code: c_int,
    pub(super) text: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Usage(_) => INVALID_ARGUMENT,
            Error::Mismatch(_) => FAILED_PRECONDITION,
            Error::Bug(_) => INTERNAL,
            _ => UNKNOWN,
        };
        Self { code, text: error.to_string() }
    }
}

impl From<String> for Failure {
    /// TensorFlow refused something that we asked for.
    fn from(text: String) -> Self {
        Self { code: INTERNAL, text }
    }
}

pub(super) type Answer<T> = Result<T, Failure>;

/// What a node says, read once.
struct Kernel {
    op: Op,
    /// The name for other ranks; None to be counted.
    name: Option<String>,
    set: i64,
    eager: bool,
    reduce: i64,
    prescale: f64,
    postscale: f64,
    root: i64,
    patience: Patience,
}

impl Kernel {
    fn read(op: Op, node: &Attributes) -> Answer<Self> {
        let eager = node.flag(c"eager")?;
        let given = node.text(c"tensor_name")?;
        let name = match (given, eager) {
            (Some(name), _) if !name.is_empty() => Some(name),
            (_, true) => None,
            _ if node.flag(c"ignore_name_scope")? => node.name().rsplit('/').next().map(str::to_owned),
            _ => Some(node.name()),
        };
        Ok(Self {
            op,
            name,
            eager,
            set: node.integer(c"process_set_id")?.unwrap_or(0),
            reduce: node.integer(c"reduce_op")?.unwrap_or(1),
            prescale: node.factor(c"prescale_factor")?,
            postscale: node.factor(c"postscale_factor")?,
            root: node.integer(c"root_rank")?.unwrap_or(0),
            patience: Patience::default(),
        })
    }

    /// The process set: the attribute, or the one input behind the first `own`.
    fn set(&self, call: Call, own: usize) -> Answer<u32> {
        let number = if call.inputs() > own {
            call.input(own)?.int32s().first().copied().map_or(self.set, i64::from)
        } else {
            self.set
        };
        u32::try_from(number).map_err(|_| {
            Error::Usage(format!("process set {number} does not exist, or has not been registered: ids begin at 0"))
                .into()
        })
    }

    fn kind(&self, splits: Vec<usize>) -> Answer<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.op {
            Op::Allreduce | Op::GroupedAllreduce => Kind::Allreduce { op: self.reduction()?, prescale, postscale },
            Op::Reducescatter | Op::GroupedReducescatter => {
                let op = self.reduction()?;
                if !matches!(op, ReduceOp::Sum | ReduceOp::Average) {
                    let text = "reducescatter supports the reduce ops Sum and Average only".into();
                    return Err(Failure { code: ABORTED, text });
                }
                Kind::Reducescatter { op, prescale, postscale }
            }
            Op::Allgather | Op::GroupedAllgather => Kind::Allgather,
            Op::Alltoall => Kind::Alltoall { splits },
            Op::Broadcast => Kind::Broadcast { root: self.root()? },
            _ => Kind::Barrier,
        })
    }

    fn reduction(&self) -> Answer<ReduceOp> {
        u8::try_from(self.reduce)
            .ok()
            .and_then(ReduceOp::from_id)
            .ok_or_else(|| Error::Usage(format!("{} is not a reduce op; say hvd.Sum or the like", self.reduce)).into())
    }

    fn root(&self) -> Answer<usize> {
        usize::try_from(self.root).map_err(|_| {
            Error::Usage(format!("broadcast received invalid root rank {}: ranks begin at 0", self.root)).into()
        })
    }

    const fn word(&self) -> &'static str {
        match self.op {
            Op::Allreduce | Op::GroupedAllreduce => "allreduce",
            Op::Allgather | Op::GroupedAllgather => "allgather",
            Op::Broadcast => "broadcast",
            Op::Alltoall => "alltoall",
            Op::Reducescatter | Op::GroupedReducescatter => "reducescatter",
            _ => "",
        }
    }

    /// Submits what this call of the kernel is for.
    fn submissions(&self, call: Call) -> Answer<Vec<Submission>> {
        match self.op {
            Op::GroupedAllreduce | Op::GroupedAllgather | Op::GroupedReducescatter => {
                // The last input may be the process set; which one is, the outputs tell.
                let count = call.outputs();
                let set = self.set(call, count)?;
                let group = names::of_eager(set, &format!("grouped_{}", self.word()), self.name.as_deref());
                (0..count)
                    .map(|i| self.submission(call, i, set, format!("{group}_{}of{count}", i + 1), Vec::new()))
                    .collect()
            }
            Op::Barrier => Ok(vec![Submission { set: self.set(call, 0)?, ..Submission::barrier() }]),
            Op::Alltoall => {
                let set = self.set(call, 2)?;
                let splits = splits(&call.input(1)?)?;
                let name = names::of_eager(set, self.word(), self.name.as_deref());
                Ok(vec![self.submission(call, 0, set, name, splits)?])
            }
            _ => {
                let set = self.set(call, 1)?;
                let name = names::of_eager(set, self.word(), self.name.as_deref());
                Ok(vec![self.submission(call, 0, set, name, Vec::new())?])
            }
        }
    }

    fn submission(&self, call: Call, i: usize, set: u32, name: String, splits: Vec<usize>) -> Answer<Submission> {
        let kind = self.kind(splits)?;
        let input = call.input(i)?;
        let (number, dims) = (input.dtype(), input.dims());
        let dtype = dtype(number)?;
        if dims.is_empty() && matches!(kind, Kind::Reducescatter { .. }) {
            return Err(Error::Usage(format!("reducescatter of {name}, a rank-zero tensor, is not possible")).into());
        }
        let (input, output) = match &kind {
            Kind::Allreduce { .. } | Kind::Broadcast { .. } => {
                drop(input); // TensorFlow gives away an input only if nobody else holds it.
                let (output, forwarded) = call.forward_or_allocate(i, &dims)?;
                let input = if forwarded { None } else { Some(buffer(call.input(i)?)) };
                (input, Output::InPlace(buffer(output)))
            }
            _ => {
                let allocate = move |shape: &Shape| {
                    call.allocate(i, number, &shape.0).map(buffer).map_err(|failure| Error::io("output", failure.text))
                };
                (Some(buffer(input)), Output::Allocate(Box::new(allocate)))
            }
        };
        Ok(Submission { set, name, kind, dtype, shape: Shape(dims), device: Device::Cpu, input, output })
    }

    /// Gives TensorFlow what is not a tensor that the engine has written.
    fn finish(&self, call: Call, outcome: &Outcome) -> Answer<()> {
        match self.op {
            Op::Alltoall => {
                let received: Vec<i32> = outcome.received_splits.iter().map(|rows| *rows as i32).collect();
                call.put_int32s(1, &[received.len()], &received)
            }
            Op::Join => call.put_int32s(0, &[], &[outcome.last_joined.unwrap_or(0) as i32]),
            _ => Ok(()),
        }
    }
}

fn splits(tensor: &Tensor) -> Answer<Vec<usize>> {
    if tensor.dims().len() > 1 {
        return Err(Error::Usage("alltoall expects a 1D splits tensor".into()).into());
    }
    let numbers = tensor.int32s();
    let checked: Result<Vec<_>, _> = numbers.iter().map(|rows| usize::try_from(*rows)).collect();
    checked.map_err(|_| Error::Usage(format!("splits must not be negative, but they are {numbers:?}")).into())
}

fn dtype(number: c_int) -> Answer<DType> {
    Ok(match number {
        1 => DType::F32,
        2 => DType::F64,
        3 => DType::I32,
        4 => DType::U8,
        5 => DType::I16,
        6 => DType::I8,
        9 => DType::I64,
        10 => DType::Bool,
        14 => DType::BF16,
        17 => DType::U16,
        19 => DType::F16,
        22 => DType::U32,
        23 => DType::U64,
        _ => return Err(Error::Usage(format!("TensorFlow's dtype number {number} is not supported")).into()),
    })
}

fn buffer(tensor: Tensor) -> Buffer {
    let (at, bytes) = (tensor.data(), tensor.bytes());
    // SAFETY: the tensor, which the buffer keeps, keeps the memory. An output is nobody else's before the kernel says that
    // it is done; an input that is not the output as well is only read.
    unsafe { Buffer::from_raw(at, bytes, Box::new(tensor)) }
}

/// Runs `work` so that a panic is a failure like any other: it must not reach TensorFlow's frames.
pub(super) fn guarded<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Error::Bug("a panic in a TensorFlow kernel; see the standard error output".into()).into())
    })
}

pub(super) fn engine() -> Answer<Engine> {
    job::current().ok_or_else(|| Failure {
        code: FAILED_PRECONDITION,
        text: "Horovod has not been initialized; use hvd.init().".into(),
    })
}

/// A collective that waits where it is called: in eager execution, where somebody waits for it anyway, and then the engine
/// is fastest in the hands of the one who waits.
fn run_here(kernel: &Kernel, call: Call) -> Answer<()> {
    let engine = engine()?;
    let outcome = if kernel.op == Op::Join {
        engine.join()?.wait()?
    } else {
        let mut submissions = kernel.submissions(call)?;
        match submissions.pop() {
            Some(only) if submissions.is_empty() => engine.run(only)?,
            last => {
                submissions.extend(last);
                let tickets = engine.submit_group(submissions)?;
                let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
                outcomes.into_iter().collect::<Result<Vec<_>, _>>()?.pop().unwrap_or_default()
            }
        }
    };
    kernel.finish(call, &outcome)
}

/// How many calls of kernels wait for the engine.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Tensors up to this many bytes are worth a moment of TensorFlow's thread.
const SMALL: usize = 64 << 10;

/// Waking others takes about as long. Who has waited longer for the other ranks had better left the waiting to them.
const A_MOMENT: Duration = Duration::from_micros(200);

/// How many calls of a kernel are left to the engine's threads after one that took longer.
const PAUSE: u32 = 15;

/// Whether the calls of a kernel do the engine's work themselves: if they find the other ranks ready, that saves waking
/// anybody; if they don't, a thread of TensorFlow's is kept from other work. So who had to wait does not try again soon.
#[derive(Default)]
struct Patience(AtomicU32);

impl Patience {
    /// Submits a tensor that is the only one under way.
    fn submit(&self, engine: &Engine, submission: Submission) -> Result<Ticket, Error> {
        let small = submission.shape.bytes(submission.dtype).is_ok_and(|bytes| bytes <= SMALL);
        let left = self.0.load(Ordering::Relaxed);
        if !small || left > 0 {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            return engine.submit(submission);
        }
        let start = Instant::now();
        let ticket = engine.submit_and_help(submission)?;
        if !ticket.has_ended() || start.elapsed() > A_MOMENT {
            self.0.store(PAUSE, Ordering::Relaxed);
        }
        Ok(ticket)
    }
}

/// What is still to come of a call, and how to end it.
struct Pending {
    kernel: &'static Kernel,
    call: Call,
    left: usize,
    answer: Answer<()>,
    done: Option<Done>,
}

impl Pending {
    fn one_ended(this: &Mutex<Self>, result: Result<Outcome, Error>) {
        let mut pending = this.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = match result {
            Ok(outcome) => guarded(|| pending.kernel.finish(pending.call, &outcome)),
            Err(error) => Err(error.into()),
        };
        if pending.answer.is_ok() {
            pending.answer = finished;
        }
        pending.left -= 1;
        if pending.left > 0 {
            return;
        }
        let answer = std::mem::replace(&mut pending.answer, Ok(()));
        pending.call.report(answer);
        let done = pending.done.take();
        drop(pending);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        if let Some(done) = done {
            done.call();
        }
    }
}

/// Submits, and leaves word how to end the call. On an error nothing was submitted, and `done` is given back.
fn start(kernel: &'static Kernel, call: Call, done: Done) -> Result<(), (Failure, Done)> {
    // If nothing else is under way, what follows in the graph most likely waits for this.
    let alone = UNDER_WAY.fetch_add(1, Ordering::Relaxed) == 0;
    let tickets = guarded(|| {
        let engine = engine()?;
        if kernel.op == Op::Join {
            return Ok(vec![engine.join()?]);
        }
        let mut submissions = kernel.submissions(call)?;
        Ok(match submissions.pop() {
            Some(only) if submissions.is_empty() => {
                vec![if alone { kernel.patience.submit(&engine, only)? } else { engine.submit(only)? }]
            }
            last => {
                submissions.extend(last);
                engine.submit_group(submissions)?
            }
        })
    });
    let tickets = match tickets {
        Ok(tickets) => tickets,
        Err(failure) => {
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
            return Err((failure, done));
        }
    };
    let pending = Arc::new(Mutex::new(Pending { kernel, call, left: tickets.len(), answer: Ok(()), done: Some(done) }));
    for ticket in tickets {
        let pending = Arc::clone(&pending);
        ticket.on_done(move |result| Pending::one_ended(&pending, result));
    }
    Ok(())
}

/// SAFETY: called by TensorFlow with what `create` gave, a context, and a call-back.
unsafe extern "C" fn compute_async(kernel: *mut c_void, context: *mut Context, callback: *mut DoneCallback) {
    // SAFETY: `create` made it. TensorFlow deletes a kernel only when none of its calls is under way.
    let kernel: &'static Kernel = unsafe { &*kernel.cast() };
    let call = Call(context);
    // SAFETY: the call has not returned.
    let done = if kernel.eager { None } else { unsafe { Done::copy(callback) } };
    let answer = match done {
        None => guarded(|| run_here(kernel, call)),
        Some(done) => match start(kernel, call, done) {
            Ok(()) => return,
            Err((failure, done)) => {
                call.report(Err(failure));
                done.call();
                return;
            }
        },
    };
    call.report(answer);
    // SAFETY: the call-back is TensorFlow's own, and this is its one use.
    unsafe { (api().TF_RunAsyncOpKernelDoneCallback)(callback) };
}

/// What asks the engine only for a number.
///
/// SAFETY: called by TensorFlow with what `create` gave and a context.
unsafe extern "C" fn compute(kernel: *mut c_void, context: *mut Context) {
    // SAFETY: as above.
    let kernel: &Kernel = unsafe { &*kernel.cast() };
    let call = Call(context);
    call.report(guarded(|| {
        let engine = engine()?;
        let members = || -> Answer<Vec<usize>> {
            let set = kernel.set(call, 0)?;
            engine.process_set(set).ok_or_else(|| {
                Error::Usage(format!("process set {set} does not exist, or has not been registered")).into()
            })
        };
        let number = match kernel.op {
            Op::Size => members()?.len(),
            Op::ProcessSetIncluded => usize::from(members()?.contains(&engine.rank())),
            Op::LocalSize => job::local_place().1,
            Op::LocalRank => job::local_place().0,
            _ => engine.rank(),
        };
        call.put_int32s(0, &[], &[number as i32])
    }));
}

/// SAFETY: called by TensorFlow once, with what `create` gave.
unsafe extern "C" fn delete(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: `create` made it so.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}

/// Makes the kernel of the operation with this place in [`OPS`].
///
/// SAFETY: called by TensorFlow with a construction that lives through the call.
unsafe extern "C" fn create<const PLACE: usize>(node: *mut Construction) -> *mut c_void {
    match guarded(|| Kernel::read(OPS[PLACE].op, &Attributes(node))) {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(Failure { code, text }) => {
            let status = Status::failure(code, &text);
            // SAFETY: the construction is TensorFlow's, which copies the status.
            unsafe { (api().TF_OpKernelConstruction_Failure)(node, status.raw()) };
            std::ptr::null_mut()
        }
    }
}

const CREATE: [Create; OPS.len()] = [
    create::<0>,
    create::<1>,
    create::<2>,
    create::<3>,
    create::<4>,
    create::<5>,
    create::<6>,
    create::<7>,
    create::<8>,
    create::<9>,
    create::<10>,
    create::<11>,
    create::<12>,
    create::<13>,
    create::<14>,
];

pub(super) fn register_all(api: &Api) -> Result<(), String> {
    for (definition, create) in OPS.iter().zip(CREATE) {
        let name = definition.name.as_ptr();
        let status = Status::new();
        let waits =
            !matches!(definition.op, Op::Size | Op::Rank | Op::LocalSize | Op::LocalRank | Op::ProcessSetIncluded);
        // SAFETY: the functions have the types that TensorFlow calls them by; it owns the builder after the last call.
        unsafe {
            let builder = if waits {
                (api.TF_NewAsyncKernelBuilder)(name, c"CPU".as_ptr(), create, compute_async as ComputeAsync, delete)
            } else {
                (api.TF_NewKernelBuilder)(name, c"CPU".as_ptr(), create, compute as Compute, delete)
            };
            (api.TF_RegisterKernelBuilder)(name, builder, status.raw());
        }
        status.check()?;
    }
    Ok(())
}
