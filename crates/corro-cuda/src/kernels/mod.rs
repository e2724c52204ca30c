//! The kernels: reduce, copy many pieces, Adasum, codes of values. With the arithmetic of `corro-kernels`, to the bit.
//!
//! All of them are given to a stream and return at once. Pieces of any number and size may be given; as many launches are
//! made as their table needs. Addresses must be whole elements; accesses are 16 bytes wide where all addresses of a piece
//! allow it together.

mod codes;
mod launch;
mod ptx;
mod table;

use corro_core::{DType, Error, ReduceOp, Result};

use crate::device::Device;
use crate::span::Span;
use crate::stream::Stream;
pub use codes::{Encoding, Integers};
use launch::{Function, Launcher};
use table::{AdasumWork, CombineWork, Entry, GATHER_CHUNK, GatherWork, MOST_PLACES, Table, tables};

/// The kernels of one device. Each is compiled by the driver when it is first used, which takes a moment; the driver keeps
/// the result on disk for the next process.
pub struct Kernels(Launcher);

/// What becomes of the elements at one place of all sources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// What they are.
    pub dtype: DType,
    /// How two become one; from the first source to the last. An average is a sum: bring the factor.
    pub op: ReduceOp,
    /// Each is multiplied by it first, and rounded, as if the source had been scaled before.
    pub prescale: f64,
    /// The result is multiplied by it. 1 is no multiplication.
    pub postscale: f64,
    /// 16-bit floats: whether the result is rounded before it is multiplied, and then once more. So do frameworks on GPUs.
    pub rounds_first: bool,
}

impl Reduction {
    /// Without factors.
    pub const fn new(dtype: DType, op: ReduceOp) -> Self {
        Self { dtype, op, prescale: 1.0, postscale: 1.0, rounds_first: false }
    }
}

/// Elements that are combined: the same range of all sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in every source, in bytes.
    pub from: usize,
    /// Where it goes in every destination, in bytes.
    pub to: usize,
    /// How many elements.
    pub count: usize,
}

/// Two vectors that become one by Adasum, in the place of `mine`.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// What this rank holds.
    pub mine: Span<'a>,
    /// What its partner holds.
    pub theirs: Span<'a>,
}

impl Kernels {
    /// Compiles nothing yet.
    pub fn new(device: &Device) -> Result<Self> {
        Launcher::new(device).map(Self)
    }

    /// Lets no launch have more than `most` blocks of 256 threads, so that others can run beside it.
    pub fn limit_blocks(&mut self, most: u32) {
        self.0.limit_blocks(most);
    }

    /// Compiles what reductions of `dtype` need, so that the first one need not wait for it.
    pub fn prepare(&self, dtype: DType) -> Result<()> {
        self.0.prepare(Function::Gather, DType::U8)?;
        self.0.prepare(Function::Combine, dtype)
    }

    /// Each piece: what the sources have there is combined and goes to every destination. At most 16 of either.
    ///
    /// A destination may be exactly where a source is; they overlap in no other way.
    pub fn combine(
        &self,
        stream: &Stream,
        how: &Reduction,
        destinations: &[Span<'_>],
        sources: &[Span<'_>],
        pieces: &[Piece],
    ) -> Result<()> {
        for piece in pieces {
            let bytes = piece.count.saturating_mul(how.dtype.size());
            inside(sources, piece.from, bytes)?;
            inside(destinations, piece.to, bytes)?;
        }
        let entries = pieces.iter().map(|p| Entry {
            from: p.from as u64,
            to: p.to as u64,
            count: p.count as u64,
            ..Entry::default()
        });
        self.combine_entries(stream, how, &addresses(destinations), &addresses(sources), entries)
    }

    /// As [`Self::combine`], for pieces that each have a place of their own: (where in every source, where to).
    pub fn combine_into(
        &self,
        stream: &Stream,
        how: &Reduction,
        sources: &[Span<'_>],
        pieces: &[(usize, Span<'_>)],
    ) -> Result<()> {
        for (from, to) in pieces {
            inside(sources, *from, to.len())?;
            whole(how.dtype, *to)?;
        }
        let size = how.dtype.size();
        let entries = pieces.iter().map(|(from, to)| Entry {
            from: *from as u64,
            to: to.address(),
            count: (to.len() / size) as u64,
            ..Entry::default()
        });
        // One destination at 0: then the piece says the whole address.
        self.combine_entries(stream, how, &[0], &addresses(sources), entries)
    }

    /// Multiplies in place, with the rounding of `corro_kernels::scale`.
    pub fn scale(&self, stream: &Stream, dtype: DType, memory: Span<'_>, factor: f64) -> Result<()> {
        let count = whole(dtype, memory)?;
        let how = Reduction { postscale: factor, ..Reduction::new(dtype, ReduceOp::Sum) };
        self.combine(stream, &how, &[memory], &[memory], &[Piece { from: 0, to: 0, count }])
    }

    fn combine_entries(
        &self,
        stream: &Stream,
        how: &Reduction,
        destinations: &[u64],
        sources: &[u64],
        pieces: impl Iterator<Item = Entry>,
    ) -> Result<()> {
        if sources.is_empty() || sources.len() > MOST_PLACES || destinations.len() > MOST_PLACES {
            return Err(Error::Bug(format!(
                "a kernel for {} sources and {} destinations",
                sources.len(),
                destinations.len()
            )));
        }
        if how.dtype == DType::Bool && (how.prescale != 1.0 || how.postscale != 1.0) {
            return Err(Error::Usage("a bool cannot be scaled".into()));
        }
        let mut work = CombineWork {
            source: places(sources),
            destination: places(destinations),
            entry: [Entry::default(); table::MOST_ENTRIES],
            prescale: how.prescale,
            postscale: how.postscale,
            sources: sources.len() as u32,
            destinations: destinations.len() as u32,
            entries: 0,
            chunks: 0,
            op: table::op_number(how.op)?,
            rounds_first: how.rounds_first.into(),
        };
        let mut entries = Vec::with_capacity(pieces.size_hint().0);
        for piece in pieces {
            entries.extend(table::combine_entries(how.dtype, sources, destinations, piece)?);
        }
        for table in tables(entries, table::combine_chunk(how.dtype)) {
            (work.entry, work.entries, work.chunks) = (table.entry, table.entries, table.chunks);
            self.0.launch(stream, (Function::Combine, how.dtype), self.0.grid(table.chunks), &work)?;
        }
        Ok(())
    }

    /// Copies all pieces, (where to, where from), in one launch or few. No two of them overlap.
    pub fn gather(&self, stream: &Stream, pieces: &[(Span<'_>, Span<'_>)]) -> Result<()> {
        if let Some((to, from)) = pieces.iter().find(|(to, from)| to.len() != from.len()) {
            return Err(Error::Bug(format!("a copy of {} bytes to {}", from.len(), to.len())));
        }
        let entries =
            pieces.iter().flat_map(|(to, from)| table::gather_entries(from.address(), to.address(), from.len() as u64));
        for Table { entry, entries, chunks } in tables(entries, GATHER_CHUNK) {
            let work = GatherWork { entry, entries, chunks };
            self.0.launch(stream, (Function::Gather, DType::U8), self.0.grid(chunks), &work)?;
        }
        Ok(())
    }

    /// Bytes that [`Self::dots`] needs beside its result.
    pub fn dots_scratch(dtype: DType, pairs: &[Pair<'_>]) -> usize {
        let chunk = table::adasum_chunk(dtype) as usize * dtype.size();
        pairs.iter().map(|pair| pair.mine.len().div_ceil(chunk) * 3 * size_of::<f64>()).sum()
    }

    /// a.b, a.a and b.b of each pair, as `f64`, into `sums`. `lower` says that "mine" is a; otherwise it is b.
    ///
    /// The order of additions depends on the lengths alone, so all who have the same vectors get the same bits.
    pub fn dots(
        &self,
        stream: &Stream,
        dtype: DType,
        pairs: &[Pair<'_>],
        lower: bool,
        scratch: Span<'_>,
        sums: Span<'_>,
    ) -> Result<()> {
        if scratch.len() < Self::dots_scratch(dtype, pairs) || !scratch.address().is_multiple_of(8) {
            return Err(Error::Bug(format!("{scratch:?} as scratch for the dot products of {} pairs", pairs.len())));
        }
        let mut partial = scratch.address();
        for mut work in adasum_works(dtype, pairs, lower, sums)? {
            work.partial = partial;
            partial += u64::from(work.chunks) * 3 * size_of::<f64>() as u64;
            self.0.launch(stream, (Function::Dots, dtype), work.chunks, &work)?;
            self.0.launch(stream, (Function::Fold, dtype), work.entries, &work)?;
        }
        Ok(())
    }

    /// Adasum of each pair, by the `sums` that [`Self::dots`] has left there (and that others may have added to since).
    pub fn adasum(&self, stream: &Stream, dtype: DType, pairs: &[Pair<'_>], lower: bool, sums: Span<'_>) -> Result<()> {
        for work in adasum_works(dtype, pairs, lower, sums)? {
            self.0.launch(stream, (Function::Adasum, dtype), self.0.grid(work.chunks), &work)?;
        }
        Ok(())
    }

    /// Makes the codes of all pieces. What has arrived, codes of the same values of others, is added up first.
    ///
    /// With `rest` and nothing that has arrived, that is a rank's own code, with error feedback; with `also` and what has
    /// arrived, that of the sum of those who own it.
    pub fn encode(
        &self,
        stream: &Stream,
        integers: Integers,
        arrived: &[Span<'_>],
        pieces: &[Encoding<'_>],
    ) -> Result<()> {
        for work in codes::encodings(integers, arrived, pieces)? {
            self.0.launch(stream, (Function::Encode, DType::F32), self.0.grid(work.chunks), &work)?;
        }
        Ok(())
    }

    /// Writes what codes say: (values, code) of each piece.
    pub fn decode(&self, stream: &Stream, integers: Integers, pieces: &[(Span<'_>, Span<'_>)]) -> Result<()> {
        for work in codes::decodings(integers, pieces)? {
            self.0.launch(stream, (Function::Decode, DType::F32), self.0.grid(work.chunks), &work)?;
        }
        Ok(())
    }
}

/// The launches of one of Adasum's kernels.
fn adasum_works(dtype: DType, pairs: &[Pair<'_>], lower: bool, sums: Span<'_>) -> Result<Vec<AdasumWork>> {
    if sums.len() < pairs.len() * 3 * size_of::<f64>() || !sums.address().is_multiple_of(8) {
        return Err(Error::Bug(format!("{sums:?} for the dot products of {} pairs", pairs.len())));
    }
    let mut entries = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let (from, to) = (pair.mine.address(), pair.theirs.address());
        let count = whole(dtype, pair.mine)?;
        if whole(dtype, pair.theirs)? != count {
            return Err(Error::Bug(format!("adasum of {:?} and {:?}", pair.mine, pair.theirs)));
        }
        // Not cut where it could be aligned: an entry is a vector.
        let aligned = (from | to).is_multiple_of(16);
        if !(from | to).is_multiple_of(dtype.size() as u64) {
            return Err(Error::Usage(format!("a tensor of {dtype} on a GPU begins inside an element: copy it first")));
        }
        entries.push(Entry { from, to, count: count as u64, first: 0, aligned: aligned.into() });
    }
    let mut at = sums.address();
    let works = tables(entries, table::adasum_chunk(dtype)).into_iter().map(|Table { entry, entries, chunks }| {
        let work = AdasumWork { entry, partial: 0, sums: at, entries, chunks, lower: lower.into() };
        at += u64::from(entries) * 3 * size_of::<f64>() as u64;
        work
    });
    Ok(works.collect())
}

/// How many elements it has.
fn whole(dtype: DType, span: Span<'_>) -> Result<usize> {
    if span.len().is_multiple_of(dtype.size()) {
        return Ok(span.len() / dtype.size());
    }
    Err(Error::Bug(format!("{span:?} is not a whole number of {dtype} elements")))
}

/// An error unless all of `spans` have `bytes` bytes from `at` on.
fn inside(spans: &[Span<'_>], at: usize, bytes: usize) -> Result<()> {
    spans.iter().try_for_each(|span| span.part(at..at.saturating_add(bytes)).map(drop))
}

fn addresses(spans: &[Span<'_>]) -> Vec<u64> {
    spans.iter().map(|span| span.address()).collect()
}

fn places(addresses: &[u64]) -> [u64; MOST_PLACES] {
    std::array::from_fn(|i| addresses.get(i).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "spans of memory that is never touched")]

    use super::*;

    fn span(address: u64, len: usize) -> Span<'static> {
        // SAFETY: never given to a GPU.
        unsafe { Span::from_raw(address, len) }
    }

    #[test]
    fn sums_and_scratch_go_on_from_launch_to_launch() {
        let pairs: Vec<_> = (0..100).map(|_| Pair { mine: span(0, 8), theirs: span(64, 8) }).collect();
        let works = adasum_works(DType::F32, &pairs, true, span(0x1000, 2400)).unwrap();
        assert_eq!(works.iter().map(|w| (w.entries, w.chunks)).collect::<Vec<_>>(), [(96, 96), (4, 4)]);
        assert_eq!((works[0].sums, works[1].sums), (0x1000, 0x1000 + 96 * 24));
        assert_eq!(Kernels::dots_scratch(DType::F32, &pairs), 2400);
        assert!(adasum_works(DType::F32, &pairs, true, span(0x1000, 2399)).is_err());
    }

    #[test]
    fn vectors_of_unequal_length_are_refused() {
        let pair = Pair { mine: span(0, 8), theirs: span(64, 12) };
        assert!(adasum_works(DType::F32, &[pair], true, span(0, 24)).is_err());
        assert!(whole(DType::F64, span(0, 12)).is_err());
        assert!(inside(&[span(0, 8), span(0, 4)], 4, 4).is_err());
    }
}
