//! A group of processes, and its collectives. None of them blocks inside MPI: the caller waits here, and can be called off.

#![expect(unsafe_code, reason = "calls MPI")]

use std::ffi::c_int;

use corro_core::{DType, Error, ReduceOp, Result};

use crate::abi::Handle;
use crate::request::{Patience, Request};
use crate::world::Mpi;

/// As many elements, or bytes, as one call takes: MPI counts in `int`s.
const MOST: usize = 1 << 30;

/// See the module.
#[derive(Debug)]
pub struct Communicator {
    mpi: Mpi,
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
        Ok(Self { mpi: mpi.clone(), handle, ours, rank: number(rank), size: number(size) })
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

    /// Starts a collective, and waits for its end. The memory that `start` names must live until this returns `Ok`; after an
    /// error MPI may still use it.
    fn run(&self, what: &str, patience: &Patience<'_>, start: impl FnOnce(*mut Handle) -> c_int) -> Result<()> {
        let mut handle: Handle = 0;
        let turn = self.mpi.turn();
        let code = start(&raw mut handle);
        drop(turn);
        self.mpi.check(code, what)?;
        Request::new(&self.mpi, handle).wait(what, patience)
    }

    /// Nobody passes before all have come.
    pub fn barrier(&self, patience: &Patience<'_>) -> Result<()> {
        // SAFETY: the communicator is this library's.
        self.run("MPI_Ibarrier", patience, |request| unsafe {
            (self.mpi.functions().MPI_Ibarrier)(self.handle, request)
        })
    }

    /// What all bring, reduced, for everyone. Without `from`, what this process brings is in `to`.
    pub fn allreduce(
        &self,
        (dtype, op): (DType, ReduceOp),
        from: Option<&[u8]>,
        to: &mut [u8],
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
            let input = from.map_or(self.mpi.abi().in_place, |from| address(&from[at..end]));
            let output = address_mut(&mut to[at..end]);
            let count = ((end - at) / dtype.size()) as c_int;
            // SAFETY: both places have so many elements, and live until it has ended.
            self.run("MPI_Iallreduce", patience, |request| unsafe {
                (self.mpi.functions().MPI_Iallreduce)(input, output, count, kind, op, self.handle, request)
            })?;
            at = end;
        }
        Ok(())
    }

    /// The root's bytes, for everyone.
    pub fn broadcast(&self, bytes: &mut [u8], root: usize, patience: &Patience<'_>) -> Result<()> {
        for piece in bytes.chunks_mut(MOST) {
            let (place, count) = (address_mut(piece), piece.len() as c_int);
            // SAFETY: the place has so many bytes, and lives until it has ended.
            self.run("MPI_Ibcast", patience, |request| unsafe {
                let (byte, f) = (self.mpi.abi().byte, self.mpi.functions());
                (f.MPI_Ibcast)(place, count, byte, root as c_int, self.handle, request)
            })?;
        }
        Ok(())
    }

    /// What all bring, one after the other, for everyone.
    pub fn allgather(&self, input: &[u8], counts: &[usize], output: &mut [u8], patience: &Patience<'_>) -> Result<()> {
        if counts.len() != self.size || input.len() != counts[self.rank] || output.len() != counts.iter().sum::<usize>()
        {
            return Err(Error::Bug("an allgather of other sizes than it was told".into()));
        }
        let unit = Unit::of(&self.mpi, counts)?;
        let (sizes, places) = (unit.counts(counts)?, unit.places(counts)?);
        let (from, to, mine) = (address(input), address_mut(output), sizes[self.rank]);
        // SAFETY: the places have the sizes that are checked above, and live until it has ended, as do the lists.
        self.run("MPI_Iallgatherv", patience, |request| unsafe {
            let f = self.mpi.functions();
            let kind = unit.handle;
            (f.MPI_Iallgatherv)(from, mine, kind, to, sizes.as_ptr(), places.as_ptr(), kind, self.handle, request)
        })
    }

    /// To each its part of what this process brings; from each its part for this process.
    pub fn alltoall(
        &self,
        (input, sent): (&[u8], &[usize]),
        (output, received): (&mut [u8], &[usize]),
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
        let (from, to) = (address(input), address_mut(output));
        // SAFETY: as in `allgather`.
        self.run("MPI_Ialltoallv", patience, |request| unsafe {
            (self.mpi.functions().MPI_Ialltoallv)(
                from,
                sizes.as_ptr(),
                places.as_ptr(),
                out.handle,
                to,
                sizes_back.as_ptr(),
                places_back.as_ptr(),
                back.handle,
                self.handle,
                request,
            )
        })
    }

    /// What all bring, reduced, each its share: so many elements.
    pub fn reduce_scatter(
        &self,
        (dtype, op): (DType, ReduceOp),
        input: &[u8],
        shares: &[usize],
        output: &mut [u8],
        patience: &Patience<'_>,
    ) -> Result<()> {
        let size = dtype.size();
        let whole = shares.iter().sum::<usize>() * size;
        if shares.len() != self.size || input.len() != whole || output.len() != shares[self.rank] * size {
            return Err(Error::Bug("a reducescatter of other sizes than it was told".into()));
        }
        let (kind, op) = self.mpi.reduction(dtype, op)?;
        let (counts, from, to) = (ints(shares)?, address(input), address_mut(output));
        // SAFETY: as in `allgather`.
        self.run("MPI_Ireduce_scatter", patience, |request| unsafe {
            let f = self.mpi.functions();
            (f.MPI_Ireduce_scatter)(from, to, counts.as_ptr(), kind, op, self.handle, request)
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.ours {
            self.mpi.free(self.handle);
        }
    }
}

/// Where something lies. Rust has empty slices begin at 1, which is what MPI calls `MPI_IN_PLACE`.
fn address(bytes: &[u8]) -> usize {
    static NOTHING: u64 = 0;
    if bytes.is_empty() { &raw const NOTHING as usize } else { bytes.as_ptr() as usize }
}

fn address_mut(bytes: &mut [u8]) -> usize {
    if bytes.is_empty() { address(bytes) } else { bytes.as_mut_ptr() as usize }
}

/// As MPI counts.
fn ints(numbers: &[usize]) -> Result<Vec<c_int>> {
    let too_large = |number: usize| Error::Usage(format!("{number} is more than MPI can count in one call"));
    numbers.iter().map(|number| c_int::try_from(*number).map_err(|_| too_large(*number))).collect()
}

/// The largest piece of which all counts are multiples, as a type: MPI counts in `int`s, tensors have more bytes.
struct Unit<'a> {
    mpi: &'a Mpi,
    bytes: usize,
    handle: Handle,
}

impl<'a> Unit<'a> {
    fn of(mpi: &'a Mpi, counts: &[usize]) -> Result<Self> {
        let total: usize = counts.iter().sum();
        let bytes =
            if total <= MOST { 1 } else { counts.iter().fold(0, |a, b| greatest_divisor(a, *b)).clamp(1, MOST) };
        if bytes == 1 {
            return Ok(Self { mpi, bytes, handle: mpi.abi().byte });
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
        Ok(Self { mpi, bytes, handle })
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

impl Drop for Unit<'_> {
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
