//! How calls of kernels run.
//!
//! A collective in a graph is asynchronous: the kernel submits and returns, so that no thread of TensorFlow's waits, and the
//! engine's call-back ends it. That is also why ranks may run the nodes of a graph in different orders, with as few
//! threads as they like. Who is alone with a small tensor lends the engine its thread for a moment, see
//! [`super::work_in_place::WorkInPlace`].

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use corro_core::{Error, Rank};
use corro_engine::{Outcome, Ticket};

use super::api::{Api, Compute, ComputeAsync, Construction, Context, Create, DoneCallback, Status, api};
use super::done_callback::Done;
use super::failure::{Answer, Failure, engine, guarded};
use super::kernel::Kernel;
use super::node::{Attributes, Call};
use super::ops::{Definition, OPS, Op};
use crate::running;

/// A collective that waits where it is called: in eager execution, where somebody waits for it anyway, and then the engine
/// is fastest in the hands of the one who waits.
fn run_here(kernel: &Kernel, call: Call) -> Answer<()> {
    let engine = engine()?;
    let outcomes = if kernel.op == Op::Join {
        vec![engine.join()?.wait()?]
    } else {
        let mut submissions = kernel.submissions(call)?;
        match submissions.pop() {
            Some(only) if submissions.is_empty() => vec![engine.run(only)?],
            last => {
                submissions.extend(last);
                let tickets = engine.submit_group(submissions)?;
                // All have ended, also if one has failed: TensorFlow takes back what they use.
                let ended: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
                ended.into_iter().collect::<Result<Vec<_>, _>>()?
            }
        }
    };
    outcomes.into_iter().enumerate().try_for_each(|(i, outcome)| kernel.finish(call, i, outcome))
}

/// How many calls of kernels wait for the engine.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// What is still to come of a call, and how to end it.
struct Pending {
    kernel: &'static Kernel,
    call: Call,
    left: usize,
    answer: Answer<()>,
    done: Option<Done>,
}

impl Pending {
    fn one_ended(this: &Mutex<Self>, i: usize, result: Result<Outcome, Error>) {
        let mut pending = this.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = match result {
            Ok(outcome) => guarded(|| pending.kernel.finish(pending.call, i, outcome)),
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
                vec![if alone { kernel.work_in_place.submit(&engine, only)? } else { engine.submit(only)? }]
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
    for (i, ticket) in tickets.into_iter().enumerate() {
        let pending = Arc::clone(&pending);
        ticket.on_done(move |result| Pending::one_ended(&pending, i, result));
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
        let members = || -> Answer<Vec<Rank>> {
            let set = kernel.set(call, 0)?;
            engine.process_set(set).ok_or_else(|| {
                Error::Usage(format!("process set {set} does not exist, or has not been registered")).into()
            })
        };
        let number = match kernel.op {
            Op::Size => members()?.len(),
            Op::ProcessSetIncluded => usize::from(members()?.contains(&engine.rank())),
            Op::LocalSize => running::local_place().1,
            Op::LocalRank => running::local_place().0,
            _ => engine.rank().index(),
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

/// Gives every operation its kernels; TensorFlow must know the operations by then.
///
/// That for GPUs is the same, and asks for all its tensors in the memory of the host: TensorFlow's C interface gives no stream of a
/// GPU, by which one could tell when a tensor is there. TensorFlow itself copies them, by way of pinned memory.
pub(super) fn register_kernels(api: &Api) -> Result<(), String> {
    for (definition, create) in OPS.iter().zip(CREATE) {
        for device in [c"CPU", c"GPU"] {
            register_kernel(api, definition, create, device)?;
        }
    }
    Ok(())
}

fn register_kernel(api: &Api, definition: &Definition, create: Create, device: &CStr) -> Result<(), String> {
    let (name, device_name) = (definition.name.as_ptr(), device.as_ptr());
    let status = Status::new();
    let waits = !matches!(definition.op, Op::Size | Op::Rank | Op::LocalSize | Op::LocalRank | Op::ProcessSetIncluded);
    // SAFETY: the functions have the types that TensorFlow calls them by; it copies texts, and owns the builder after the last
    // call.
    unsafe {
        let builder = if waits {
            (api.TF_NewAsyncKernelBuilder)(name, device_name, create, compute_async as ComputeAsync, delete)
        } else {
            (api.TF_NewKernelBuilder)(name, device_name, create, compute as Compute, delete)
        };
        if device == c"GPU" {
            for argument in definition.arguments() {
                (api.TF_KernelBuilder_HostMemory)(builder, argument.as_ptr());
            }
        }
        (api.TF_RegisterKernelBuilder)(name, builder, status.raw());
    }
    status.check()
}
