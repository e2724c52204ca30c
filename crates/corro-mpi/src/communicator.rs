//! A group of processes, and its collectives. None of them blocks the caller inside MPI: it waits here, and can be called off.
//!
//! They are started without blocking, and asked for their end. Large ones may block a thread of their own instead: some
//! libraries have better algorithms for that.

#![expect(unsafe_code, reason = "calls MPI")]

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use corro_core::{DType, Error, ReduceOp, Result};

use crate::abi::Handle;
use crate::caller::{Caller, Prepare};
use crate::memory::{Source, Target};
use crate::request::{Patience, Request};
use crate::world::Mpi;

/// As many elements, or bytes, as one call takes: MPI counts in `int`s.
const MOST: usize = 1 << 30;

/// From so many bytes on it pays to have another thread call MPI, and to wait for that.
pub const LARGE: usize = 64 << 10;

/// A collective with all that it needs: with a place for a request it is started, without one it is run to its end.
type Call = Box<dyn Fn(Option<*mut Handle>) -> c_int + Send>;

/// See the module.
#[derive(Debug)]
pub struct Communicator {
    mpi: Mpi,
    /// For collectives from so many bytes on, if all members agree.
    caller: Option<(usize, Mutex<Caller>)>,
    handle: Handle,
    /// Made here, so freed here.
    ours: bool,
    rank: usize,
    size: usize,
}

impl Communicator {
    /// All processes that were started together.
    pub fn world(mpi: &Mpi) -> Result<Self> {
        Self::of(mpi, mpi.abi().world, false)
    }

    /// A communicator of the program's (mpi4py's), which stays the program's.
    ///
    /// # Safety
    /// `handle` is one of this library's communicators, and lives for as long as it is used here.
    pub unsafe fn foreign(mpi: &Mpi, handle: usize) -> Result<Self> {
        Self::of(mpi, handle, false)
    }

    fn of(mpi: &Mpi, handle: Handle, ours: bool) -> Result<Self> {
        let (mut rank, mut size) = (0, 0);
        let turn = mpi.turn();
        // SAFETY: the communicator is this library's; each writes one number.
        let codes = unsafe {
            [
                (mpi.functions().MPI_Comm_rank)(handle, &raw mut rank),
                (mpi.functions().MPI_Comm_size)(handle, &raw mut size),
            ]
        };
        drop(turn);
        codes.into_iter().try_for_each(|code| mpi.check(code, "looking at a communicator"))?;
        let number = |value: c_int| usize::try_from(value).unwrap_or(0);
        Ok(Self { mpi: mpi.clone(), caller: None, handle, ours, rank: number(rank), size: number(size) })
    }

    /// Lets collectives from so many bytes on block a thread, which first does what `prepare` says. All members must, with the
    /// same number: the two kinds don't meet. It needs an MPI that takes calls of several threads at a time
    /// ([`Threads::Multiple`](crate::Threads::Multiple)).
    pub fn allow_blocking(&mut self, least: usize, prepare: Option<Prepare>) {
        self.caller = Some((least, Mutex::new(Caller::new(prepare))));
    }

    /// This process's number in it.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// A new one of these members of it, in this order; this process is among them. Those members must call it, all with the
    /// same, and nobody else.
    pub fn of_members(&self, members: &[usize]) -> Result<Self> {
        let numbers = ints(members)?;
        let (mut all, mut some, mut made): (Handle, Handle, Handle) = (0, 0, 0);
        // Several may be made at the same time, by different members.
        let tag = members.iter().fold(17_usize, |tag, member| (tag * 31 + member) % 30_011) as c_int;
        let (mpi, f) = (&self.mpi, self.mpi.functions());
        let doing = "making a communicator for a process set";
        let turn = mpi.turn();
        // SAFETY: handles of this library; each call writes one. `numbers` has as many as it says.
        let codes = unsafe {
            let codes = [
                (f.MPI_Comm_group)(self.handle, &raw mut all),
                (f.MPI_Group_incl)(all, numbers.len() as c_int, numbers.as_ptr(), &raw mut some),
                (f.MPI_Comm_create_group)(self.handle, some, tag, &raw mut made),
            ];
            (f.MPI_Group_free)(&raw mut some);
            (f.MPI_Group_free)(&raw mut all);
            codes
        };
        drop(turn);
        codes.into_iter().try_for_each(|code| mpi.check(code, doing))?;
        if made == mpi.abi().null_communicator {
            return Err(Error::Bug("a communicator without this process".into()));
        }
        self.report_errors(made)?;
        Self::of(mpi, made, true)
    }

    /// The numbers that its members have in another communicator, in its order; `None` for those that are not in it.
    pub fn numbers_in(&self, other: &Self) -> Result<Vec<Option<usize>>> {
        let mine = ints(&(0..self.size).collect::<Vec<_>>())?;
        let mut theirs = vec![-1; self.size];
        let (mut from, mut to): (Handle, Handle) = (0, 0);
        let f = self.mpi.functions();
        let turn = self.mpi.turn();
        // SAFETY: handles of this library; both lists have as many numbers as it says.
        let codes = unsafe {
            let codes = [
                (f.MPI_Comm_group)(self.handle, &raw mut from),
                (f.MPI_Comm_group)(other.handle, &raw mut to),
                (f.MPI_Group_translate_ranks)(from, mine.len() as c_int, mine.as_ptr(), to, theirs.as_mut_ptr()),
            ];
            (f.MPI_Group_free)(&raw mut from);
            (f.MPI_Group_free)(&raw mut to);
            codes
        };
        drop(turn);
        codes.into_iter().try_for_each(|code| self.mpi.check(code, "comparing communicators"))?;
        Ok(theirs.into_iter().map(|number| usize::try_from(number).ok()).collect())
    }

    /// Errors are told to whoever calls, where MPI would end the process.
    fn report_errors(&self, handle: Handle) -> Result<()> {
        let _turn = self.mpi.turn();
        // SAFETY: both are this library's.
        let code = unsafe { (self.mpi.functions().MPI_Comm_set_errhandler)(handle, self.mpi.abi().errors_return) };
        self.mpi.check(code, "asking MPI to report errors")
    }

    /// Runs a collective of so many bytes, a number that all members know. The memory that it names must live until this
    /// returns `Ok`; after an error MPI may still use it.
    fn run(&self, what: &str, bytes: usize, patience: &Patience<'_>, call: Call) -> Result<()> {
        let ran = match &self.caller {
            Some((least, caller)) if bytes >= *least => {
                let mut caller = caller.lock().unwrap_or_else(PoisonError::into_inner);
                caller.call(what, patience, Box::new(move || call(None))).and_then(|code| self.mpi.check(code, what))
            }
            _ => self.start_and_wait(what, patience, call),
        };
        ran.inspect_err(|_| self.mpi.give_up())
    }

    fn start_and_wait(&self, what: &str, patience: &Patience<'_>, call: Call) -> Result<()> {
        let mut handle: Handle = 0;
        let turn = self.mpi.turn();
        let code = call(Some(&raw mut handle));
        drop(turn);
        self.mpi.check(code, what)?;
        let ended = Request::new(&self.mpi, handle).wait(what, patience);
        if ended.is_err() {
            // MPI may still read the lists that it holds.
            std::mem::forget(call);
        }
        ended
    }

    /// Nobody passes before all have come.
    pub fn barrier(&self, patience: &Patience<'_>) -> Result<()> {
        let (mpi, group) = (self.mpi.clone(), self.handle);
        // SAFETY: the communicator is this library's.
        let call = move |request: Option<*mut Handle>| unsafe {
            let f = mpi.functions();
            request.map_or_else(|| (f.MPI_Barrier)(group), |request| (f.MPI_Ibarrier)(group, request))
        };
        self.run("MPI_Barrier", 0, patience, Box::new(call))
    }

    /// What all bring, reduced, for everyone. Without `from`, what this process brings is in `to`.
    pub fn allreduce(
        &self,
        (dtype, op): (DType, ReduceOp),
        from: Option<Source<'_>>,
        mut to: Target<'_>,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let (kind, op) = self.mpi.reduction(dtype, op)?;
        if from.is_some_and(|from| from.len() != to.len()) {
            return Err(Error::Bug("an allreduce between places of different sizes".into()));
        }
        let piece = MOST * dtype.size();
        let mut at = 0;
        while at < to.len() {
            let end = to.len().min(at + piece);
            let input = from.map_or(self.mpi.abi().in_place, |from| from.part(at..end).address());
            let output = to.part(at..end).address();
            let count = ((end - at) / dtype.size()) as c_int;
            let (mpi, group) = (self.mpi.clone(), self.handle);
            // SAFETY: both places have so many elements, and live until it has ended.
            let call = move |request: Option<*mut Handle>| unsafe {
                let f = mpi.functions();
                match request {
                    None => (f.MPI_Allreduce)(input, output, count, kind, op, group),
                    Some(request) => (f.MPI_Iallreduce)(input, output, count, kind, op, group, request),
                }
            };
            self.run("MPI_Allreduce", end - at, patience, Box::new(call))?;
            at = end;
        }
        Ok(())
    }

    /// The root's bytes, for everyone.
    pub fn broadcast(&self, mut bytes: Target<'_>, root: usize, patience: &Patience<'_>) -> Result<()> {
        for at in (0..bytes.len()).step_by(MOST) {
            let piece = bytes.part(at..at.saturating_add(MOST));
            let length = piece.len();
            let (place, count, root) = (piece.address(), length as c_int, root as c_int);
            let (mpi, group) = (self.mpi.clone(), self.handle);
            // SAFETY: the place has so many bytes, and lives until it has ended.
            let call = move |request: Option<*mut Handle>| unsafe {
                let (byte, f) = (mpi.abi().byte, mpi.functions());
                match request {
                    None => (f.MPI_Bcast)(place, count, byte, root, group),
                    Some(request) => (f.MPI_Ibcast)(place, count, byte, root, group, request),
                }
            };
            self.run("MPI_Bcast", length, patience, Box::new(call))?;
        }
        Ok(())
    }

    /// What all bring, one after the other, for everyone.
    pub fn allgather(
        &self,
        input: Source<'_>,
        counts: &[usize],
        output: Target<'_>,
        patience: &Patience<'_>,
    ) -> Result<()> {
        if counts.len() != self.size || input.len() != counts[self.rank] || output.len() != counts.iter().sum::<usize>()
        {
            return Err(Error::Bug("an allgather of other sizes than it was told".into()));
        }
        let unit = Unit::of(&self.mpi, counts)?;
        let (sizes, places) = (unit.counts(counts)?, unit.places(counts)?);
        let length = output.len();
        let (from, to, mine) = (input.address(), output.address(), sizes[self.rank]);
        let group = self.handle;
        // SAFETY: the places have the sizes that are checked above, and live until it has ended, as do the lists.
        let call = move |request: Option<*mut Handle>| unsafe {
            let (f, kind, sizes, places) = (unit.mpi.functions(), unit.handle, sizes.as_ptr(), places.as_ptr());
            match request {
                None => (f.MPI_Allgatherv)(from, mine, kind, to, sizes, places, kind, group),
                Some(request) => (f.MPI_Iallgatherv)(from, mine, kind, to, sizes, places, kind, group, request),
            }
        };
        self.run("MPI_Allgatherv", length, patience, Box::new(call))
    }

    /// To each its part of what this process brings; from each its part for this process. `longest` is the most bytes that go
    /// between any two.
    pub fn alltoall(
        &self,
        (input, sent): (Source<'_>, &[usize]),
        (output, received): (Target<'_>, &[usize]),
        longest: usize,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let fits = |bytes: usize, counts: &[usize]| counts.len() == self.size && bytes == counts.iter().sum::<usize>();
        if !fits(input.len(), sent) || !fits(output.len(), received) {
            return Err(Error::Bug("an alltoall of other sizes than it was told".into()));
        }
        // Types may differ as long as the bytes are the same.
        let (out, back) = (Unit::of(&self.mpi, sent)?, Unit::of(&self.mpi, received)?);
        let (sizes, places) = (out.counts(sent)?, out.places(sent)?);
        let (sizes_back, places_back) = (back.counts(received)?, back.places(received)?);
        let (from, to, group) = (input.address(), output.address(), self.handle);
        // SAFETY: as in `allgather`.
        let call = move |request: Option<*mut Handle>| unsafe {
            let (f, kind, kind_back) = (out.mpi.functions(), out.handle, back.handle);
            let (sizes, places) = (sizes.as_ptr(), places.as_ptr());
            let (back, places_back) = (sizes_back.as_ptr(), places_back.as_ptr());
            match request {
                None => (f.MPI_Alltoallv)(from, sizes, places, kind, to, back, places_back, kind_back, group),
                Some(request) => {
                    (f.MPI_Ialltoallv)(from, sizes, places, kind, to, back, places_back, kind_back, group, request)
                }
            }
        };
        self.run("MPI_Alltoallv", longest, patience, Box::new(call))
    }

    /// What all bring, reduced, each its share: so many elements.
    pub fn reduce_scatter(
        &self,
        (dtype, op): (DType, ReduceOp),
        input: Source<'_>,
        shares: &[usize],
        output: Target<'_>,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let size = dtype.size();
        let whole = shares.iter().sum::<usize>() * size;
        if shares.len() != self.size || input.len() != whole || output.len() != shares[self.rank] * size {
            return Err(Error::Bug("a reducescatter of other sizes than it was told".into()));
        }
        let (kind, op) = self.mpi.reduction(dtype, op)?;
        let (counts, from, to) = (ints(shares)?, input.address(), output.address());
        let (mpi, group) = (self.mpi.clone(), self.handle);
        // SAFETY: as in `allgather`.
        let call = move |request: Option<*mut Handle>| unsafe {
            let (f, counts) = (mpi.functions(), counts.as_ptr());
            match request {
                None => (f.MPI_Reduce_scatter)(from, to, counts, kind, op, group),
                Some(request) => (f.MPI_Ireduce_scatter)(from, to, counts, kind, op, group, request),
            }
        };
        self.run("MPI_Reduce_scatter", whole, patience, Box::new(call))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let caller = self.caller.as_mut().map(|(_, caller)| caller.get_mut().unwrap_or_else(PoisonError::into_inner));
        let is_in_use = caller.is_some_and(|caller| caller.is_left_behind());
        if self.ours && !is_in_use {
            self.mpi.free(self.handle);
        }
    }
}

/// As MPI counts.
fn ints(numbers: &[usize]) -> Result<Vec<c_int>> {
    let too_large = |number: usize| Error::Usage(format!("{number} is more than MPI can count in one call"));
    numbers.iter().map(|number| c_int::try_from(*number).map_err(|_| too_large(*number))).collect()
}

/// The largest piece of which all counts are multiples, as a type: MPI counts in `int`s, tensors have more bytes.
struct Unit {
    mpi: Mpi,
    bytes: usize,
    handle: Handle,
}

impl Unit {
    fn of(mpi: &Mpi, counts: &[usize]) -> Result<Self> {
        let total: usize = counts.iter().sum();
        let bytes =
            if total <= MOST { 1 } else { counts.iter().fold(0, |a, b| greatest_divisor(a, *b)).clamp(1, MOST) };
        if bytes == 1 {
            return Ok(Self { mpi: mpi.clone(), bytes, handle: mpi.abi().byte });
        }
        // Of a clamped one not all counts need be multiples.
        let bytes = if counts.iter().all(|count| count.is_multiple_of(bytes)) { bytes } else { 1 };
        let mut handle: Handle = 0;
        let _turn = mpi.turn();
        // SAFETY: the type is made of this library's, and each call writes one handle.
        let codes = unsafe {
            let f = mpi.functions();
            [
                (f.MPI_Type_contiguous)(bytes as c_int, mpi.abi().byte, &raw mut handle),
                (f.MPI_Type_commit)(&raw mut handle),
            ]
        };
        codes.into_iter().try_for_each(|code| mpi.check(code, "making a type"))?;
        Ok(Self { mpi: mpi.clone(), bytes, handle })
    }

    fn counts(&self, counts: &[usize]) -> Result<Vec<c_int>> {
        ints(&counts.iter().map(|count| count / self.bytes).collect::<Vec<_>>())
    }

    fn places(&self, counts: &[usize]) -> Result<Vec<c_int>> {
        let places = counts.iter().scan(0, |next, count| {
            let here = *next;
            *next += count / self.bytes;
            Some(here)
        });
        ints(&places.collect::<Vec<_>>())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if self.handle != self.mpi.abi().byte {
            let _turn = self.mpi.turn();
            // SAFETY: made here; MPI keeps it for as long as something is under way with it.
            unsafe { (self.mpi.functions().MPI_Type_free)(&raw mut self.handle) };
        }
    }
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_large_rows_have_a_large_divisor() {
        let counts = [3_usize << 30, 5 << 30, 0];
        assert_eq!(counts.iter().fold(0, |a, b| greatest_divisor(a, *b)), 1 << 30);
        assert!(ints(&counts).unwrap_err().to_string().contains("3221225472"));
    }
}
