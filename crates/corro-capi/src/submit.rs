//! Collectives: from what C says about a tensor to what the engine is asked to do.

#![expect(unsafe_code, reason = "functions of a C library are exported by name, and read and write where C says")]

use std::ffi::{c_char, c_int, c_void};

use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Shape};
use corro_engine::{Kind, Outcome, Output, Submission, Ticket};

use crate::job::engine;
use crate::pointers::{list, null, put, text};
use crate::status::{Answer, Failure, answer, usage};
use crate::tickets::{self, corro_ticket};

/// The type of a tensor's elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum corro_dtype {
    Uint8 = 0,
    Int8 = 1,
    Uint16 = 2,
    Int16 = 3,
    Int32 = 4,
    Int64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    /// One byte, 0 or 1.
    Bool = 9,
    Bfloat16 = 10,
    Uint32 = 11,
    Uint64 = 12,
}

/// How the contributions of all ranks become one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum corro_op {
    /// The sum, divided by the number of ranks. Integers truncate toward zero.
    Average = 0,
    /// The sum. Integers wrap; for bool it is "any".
    Sum = 1,
    /// Adaptive sum: orthogonal vectors add, equal ones average. For floating-point types.
    Adasum = 2,
    /// The smallest; NaN wins. For bool it is "all".
    Min = 3,
    /// The largest; NaN wins. For bool it is "any".
    Max = 4,
    /// The product. Integers wrap; for bool it is "all".
    Product = 5,
}

/// A tensor in host memory, dense, in row-major order. The struct itself, its name and its shape are read during the
/// call only; the memory of its elements is the library's until the operation is done: don't free or write the input,
/// don't touch the output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct corro_tensor {
    /// By which ranks find each other's tensors. Only one tensor of a name may be under way in a process set.
    pub name: *const c_char,
    /// A `corro_dtype`.
    pub dtype: i32,
    /// A process set; 0: all ranks.
    pub process_set: u32,
    /// How many numbers `shape` has. 0: a scalar.
    pub dimensions: usize,
    /// The dimensions.
    pub shape: *const usize,
    /// What this rank brings. `NULL`: what `output` holds (allreduce and broadcast only).
    pub input: *const c_void,
    /// Where the result goes: not into the middle of `input`, though it may be `input` itself (allreduce and broadcast
    /// only). `NULL`: into memory of the library's, see `corro_result`.
    pub output: *mut c_void,
    /// For how many bytes `output` has room. A result that turns out to be larger goes into memory of the library's.
    pub output_bytes: usize,
}

fn dtype(id: i32) -> Result<DType, Failure> {
    let known = u8::try_from(id).ok().and_then(DType::from_id);
    known.ok_or_else(|| usage(format!("{id} is not a type of elements (corro_dtype)")))
}

fn op(id: i32) -> Result<ReduceOp, Failure> {
    let known = u8::try_from(id).ok().and_then(ReduceOp::from_id);
    known.ok_or_else(|| usage(format!("{id} is not a reduction (corro_op)")))
}

/// Memory of the program's.
///
/// # Safety
/// What is said of `corro_tensor`: `at` has `bytes` bytes, which are the library's until the operation is done.
unsafe fn buffer(at: *mut c_void, bytes: usize) -> Buffer {
    // SAFETY: by the contract above. The engine drops its buffers, or hands them to the ticket, before it says that the
    // operation is done; what the ticket has is only read.
    unsafe { Buffer::from_raw(at.cast(), bytes, Box::new(())) }
}

/// Where a result goes if there is room.
struct Room {
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: memory that is the library's until the operation is done, whichever thread of it writes there.
unsafe impl Send for Room {}

impl Room {
    /// A place for so many bytes.
    fn place(&self, bytes: usize) -> Buffer {
        if bytes <= self.bytes {
            // SAFETY: `submission` was told that there is room for `self.bytes`.
            unsafe { buffer(self.at, bytes) }
        } else {
            vec![0; bytes].into()
        }
    }
}

/// What the engine is asked to do with a tensor.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says.
unsafe fn submission(tensor: &corro_tensor, kind: Kind) -> Result<Submission, Failure> {
    // SAFETY: by the contract above.
    let (name, shape) = unsafe {
        (text(tensor.name, "the tensor's name")?, list(tensor.shape, tensor.dimensions, "the tensor's shape")?)
    };
    let (dtype, shape) = (dtype(tensor.dtype)?, Shape(shape.to_vec()));
    let bytes = shape.bytes(dtype)?;
    let same_size = matches!(kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
    let room = Room { at: tensor.output, bytes: if tensor.output.is_null() { 0 } else { tensor.output_bytes } };
    if same_size && !tensor.output.is_null() && room.bytes < bytes {
        return Err(usage(format!("tensor {name} has {bytes} bytes, but its output has room for {}", room.bytes)));
    }
    let in_place = same_size && !tensor.output.is_null() && (tensor.input.is_null() || tensor.input == tensor.output);
    let has_input = !in_place && (bytes == 0 || !tensor.input.is_null());
    if has_input && overlap(tensor.input.addr(), bytes, tensor.output.addr(), room.bytes) {
        return Err(usage(format!("the output of tensor {name} overlaps with its input")));
    }
    // SAFETY: by the contract above; as an input it is never written to.
    let input = has_input.then(|| unsafe { buffer(tensor.input.cast_mut(), bytes) }.into());
    let output = match tensor.output {
        at if at.is_null() => Output::None,
        // SAFETY: by the contract above, and there is room.
        at if same_size => Output::InPlace(unsafe { buffer(at, bytes) }.into()),
        _ => Output::Allocate(Box::new(move |shape| Ok(room.place(shape.bytes(dtype)?).into()))),
    };
    let set = tensor.process_set;
    Ok(Submission { set, input, output, ..Submission::new(name, kind, dtype, shape) })
}

fn overlap(a: usize, a_bytes: usize, b: usize, b_bytes: usize) -> bool {
    a_bytes > 0 && b_bytes > 0 && a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}

/// An error if a result did not find the place that was meant for it, and nobody holds a ticket to fetch it by.
fn in_its_place(tensor: &corro_tensor, outcome: &Outcome) -> Answer {
    let result = outcome.bytes()?;
    if result.is_empty() || result.as_ptr().addr() == tensor.output.addr() {
        return Ok(());
    }
    Err(usage(format!(
        "the result has {} bytes, but its output has room for {}: give more, or take a ticket",
        result.len(),
        if tensor.output.is_null() { 0 } else { tensor.output_bytes }
    )))
}

/// Submits a tensor; without a place for the ticket, waits for it.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `ticket` is null or may be written to.
unsafe fn submit(tensor: *const corro_tensor, ticket: *mut corro_ticket, kind: Kind) -> Answer {
    // SAFETY: by the contract above.
    let tensor = unsafe { tensor.as_ref() }.ok_or_else(|| null("the tensor"))?;
    // SAFETY: by the contract above.
    let submission = unsafe { submission(tensor, kind)? };
    if ticket.is_null() {
        if tensor.output.is_null() {
            return Err(usage("without a ticket the result must go somewhere: give the tensor an output"));
        }
        return in_its_place(tensor, &engine()?.run(submission)?);
    }
    let number = tickets::insert(engine()?.submit(submission)?);
    // SAFETY: by the contract above.
    unsafe { put(ticket, number, "the place for the ticket") }
}

/// Submits tensors that complete together; without a place for the tickets, waits for them.
///
/// # Safety
/// `tensors` are `count`, each as the description of `corro_tensor` says; `places` is null or has room for as many.
unsafe fn submit_group(tensors: *const corro_tensor, count: usize, places: *mut corro_ticket, kind: &Kind) -> Answer {
    // SAFETY: by the contract above.
    let tensors = unsafe { list(tensors, count, "the list of tensors")? };
    if places.is_null() && tensors.iter().any(|t| t.output.is_null()) {
        return Err(usage("without tickets the results must go somewhere: give each tensor an output"));
    }
    // SAFETY: by the contract above.
    let submit = |tensor| unsafe { submission(tensor, kind.clone()) };
    let submissions = tensors.iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    let flying = engine()?.submit_group(submissions)?;
    if places.is_null() {
        // All are waited for, also after a failure: the memory must be the program's again.
        let outcomes: Vec<_> = flying.into_iter().map(Ticket::wait).collect();
        return tensors.iter().zip(outcomes).try_for_each(|(tensor, outcome)| in_its_place(tensor, &outcome?));
    }
    for (i, ticket) in flying.into_iter().enumerate() {
        // SAFETY: by the contract above.
        unsafe { places.add(i).write_unaligned(tickets::insert(ticket)) };
    }
    Ok(())
}

fn allreduce(id: i32, prescale: f64, postscale: f64) -> Result<Kind, Failure> {
    Ok(Kind::Allreduce { op: op(id)?, prescale: prescale.to_bits(), postscale: postscale.to_bits(), compression: None })
}

fn reducescatter(id: i32, prescale: f64, postscale: f64) -> Result<Kind, Failure> {
    Ok(Kind::Reducescatter { op: op(id)?, prescale: prescale.to_bits(), postscale: postscale.to_bits() })
}

/// Reduces a tensor over all ranks: each gets `postscale * op(prescale * input)`. The factors are 1 for none; `op` is a
/// `corro_op`.
///
/// Of this function and all that follow, `ticket` may be `NULL`: then the call returns once the operation is done, which
/// is the fastest way if there is nothing else to do meanwhile; the tensor must have an output with room for the result.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_allreduce(
    tensor: *const corro_tensor,
    op: i32,
    prescale: f64,
    postscale: f64,
    ticket: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit(tensor, ticket, allreduce(op, prescale, postscale)?) })
}

/// Puts the tensors of all ranks together along the first dimension, in which they may differ.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_allgather(tensor: *const corro_tensor, ticket: *mut corro_ticket) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit(tensor, ticket, Kind::Allgather) })
}

/// Gives the tensor of rank `root` to all. `root` counts among all ranks, also in a process set. The others need no
/// input.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_broadcast(tensor: *const corro_tensor, root: c_int, ticket: *mut corro_ticket) -> i32 {
    answer(|| {
        let root = usize::try_from(root)
            .map(Rank::new)
            .map_err(|_| usage(format!("broadcast received invalid root rank {root}: ranks begin at 0")))?;
        // SAFETY: by the contract above.
        unsafe { submit(tensor, ticket, Kind::Broadcast { root }) }
    })
}

/// Sends rows to each rank: `splits[i]` of them to the i-th of the process set, in order. `count` is the size of the
/// set; 0 deals all rows out equally. `corro_result_splits` tells how many came from whom.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `splits` are `count`; `ticket` is `NULL` or may be written
/// to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_alltoall(
    tensor: *const corro_tensor,
    splits: *const usize,
    count: usize,
    ticket: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe {
        let splits = list(splits, count, "the list of splits")?.to_vec();
        submit(tensor, ticket, Kind::Alltoall { splits })
    })
}

/// Reduces as `corro_allreduce` does, by sum or average, and gives each rank a part of the rows; the first ranks get
/// one more if they can't be dealt out equally.
///
/// # Safety
/// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_reducescatter(
    tensor: *const corro_tensor,
    op: i32,
    prescale: f64,
    postscale: f64,
    ticket: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit(tensor, ticket, reducescatter(op, prescale, postscale)?) })
}

/// As `corro_allreduce`, for `count` tensors of one process set that complete together. `tickets` has room for as many,
/// or is `NULL`. If one tensor is refused, none is submitted.
///
/// # Safety
/// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_grouped_allreduce(
    tensors: *const corro_tensor,
    count: usize,
    op: i32,
    prescale: f64,
    postscale: f64,
    tickets: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit_group(tensors, count, tickets, &allreduce(op, prescale, postscale)?) })
}

/// As `corro_allgather`, for tensors that complete together, see `corro_grouped_allreduce`.
///
/// # Safety
/// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_grouped_allgather(
    tensors: *const corro_tensor,
    count: usize,
    tickets: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit_group(tensors, count, tickets, &Kind::Allgather) })
}

/// As `corro_reducescatter`, for tensors that complete together, see `corro_grouped_allreduce`.
///
/// # Safety
/// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_grouped_reducescatter(
    tensors: *const corro_tensor,
    count: usize,
    op: i32,
    prescale: f64,
    postscale: f64,
    tickets: *mut corro_ticket,
) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { submit_group(tensors, count, tickets, &reducescatter(op, prescale, postscale)?) })
}

/// Waits until all ranks of a process set have come here.
#[unsafe(no_mangle)]
pub extern "C" fn corro_barrier(process_set: u32) -> i32 {
    answer(|| {
        engine()?.run(Submission { set: process_set, ..Submission::barrier() })?;
        Ok(())
    })
}

/// This rank has no more data: until all ranks have called this, it takes part in the allreduces of the others with
/// zeros. Writes who came last to `last`, which may be `NULL`.
///
/// # Safety
/// `last` is `NULL` or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_join(last: *mut c_int) -> i32 {
    answer(|| {
        let outcome = engine()?.join()?.wait()?;
        let rank = outcome.last_joined.ok_or_else(|| Error::Bug("a join ended without a last rank".into()))?;
        if last.is_null() {
            return Ok(());
        }
        // SAFETY: by the contract above.
        unsafe { put(last, rank.index() as c_int, "the place for the rank") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_reductions_have_the_engines_numbers() {
        use {corro_dtype as c, corro_op as o};
        let types = [
            (DType::U8, c::Uint8),
            (DType::I8, c::Int8),
            (DType::U16, c::Uint16),
            (DType::I16, c::Int16),
            (DType::I32, c::Int32),
            (DType::I64, c::Int64),
            (DType::F16, c::Float16),
            (DType::F32, c::Float32),
            (DType::F64, c::Float64),
            (DType::Bool, c::Bool),
            (DType::BF16, c::Bfloat16),
            (DType::U32, c::Uint32),
            (DType::U64, c::Uint64),
        ];
        assert_eq!(types.map(|(ours, _)| ours), DType::ALL);
        for (ours, theirs) in types {
            assert_eq!(dtype(theirs as i32).unwrap(), ours);
        }
        let ops = [o::Average, o::Sum, o::Adasum, o::Min, o::Max, o::Product];
        assert_eq!(ops.map(|theirs| op(theirs as i32).unwrap()), ReduceOp::ALL);
        for nonsense in [-1, 6, 13, 263, i32::MAX] {
            assert!(op(nonsense).is_err() && (nonsense == 6 || dtype(nonsense).is_err()), "{nonsense}");
        }
    }

    #[test]
    fn overlaps_are_seen() {
        assert!(
            overlap(100, 8, 100, 8) && overlap(100, 8, 107, 8) && overlap(107, 8, 100, 8) && overlap(100, 1, 90, 20)
        );
        assert!(
            !overlap(100, 8, 108, 8) && !overlap(108, 8, 100, 8) && !overlap(100, 0, 100, 8) && !overlap(0, 8, 100, 0)
        );
        assert!(overlap(usize::MAX - 1, 10, usize::MAX - 3, 10));
    }
}
