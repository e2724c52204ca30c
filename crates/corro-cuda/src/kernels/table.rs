//! What a kernel is told: tables of pieces, cut into launches. Pure.
//!
//! A table travels in the parameters of its launch, so nothing has to be allocated, copied or waited for; parameters have
//! room for 4096 bytes. The structs are laid out as in `kernels/*.cu`.

use corro_core::{DType, Error, ReduceOp, Result};

/// Pieces in one launch.
pub(crate) const MOST_ENTRIES: usize = 96;
/// Sources, and destinations, of one launch.
pub(crate) const MOST_PLACES: usize = 16;
/// Threads of a block.
pub(crate) const THREADS: u32 = 256;
/// Bytes of the widest access to memory.
const WIDEST: u64 = 16;
/// Shorter pieces are not cut in two so that their longer part is aligned.
const WORTH_ALIGNING: u64 = 4096;

/// A piece: what the two addresses and the number mean is each kernel's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) count: u64,
    /// The number of its first chunk.
    pub(crate) first: u32,
    /// 1 if all its addresses are multiples of 16; for `gather` the bytes of one access.
    pub(crate) aligned: u32,
}

/// The pieces of one launch, and how many chunks they are.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) entry: [Entry; MOST_ENTRIES],
    pub(crate) entries: u32,
    pub(crate) chunks: u32,
}

/// Deals pieces to launches. `chunk` is how much of a piece a block takes at a time, in what the pieces count.
pub(crate) fn tables(pieces: impl IntoIterator<Item = Entry>, chunk: u64) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for piece in pieces {
        let full = tables.last().is_none_or(|table| table.entries as usize == MOST_ENTRIES);
        if full {
            tables.push(Table { entry: [Entry::default(); MOST_ENTRIES], entries: 0, chunks: 0 });
        }
        if let Some(table) = tables.last_mut() {
            table.entry[table.entries as usize] = Entry { first: table.chunks, ..piece };
            table.entries += 1;
            table.chunks += piece.count.div_ceil(chunk) as u32;
        }
    }
    tables
}

/// The parameters of `combine`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CombineWork {
    pub(crate) source: [u64; MOST_PLACES],
    pub(crate) destination: [u64; MOST_PLACES],
    pub(crate) entry: [Entry; MOST_ENTRIES],
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
    pub(crate) sources: u32,
    pub(crate) destinations: u32,
    pub(crate) entries: u32,
    pub(crate) chunks: u32,
    pub(crate) op: u32,
    pub(crate) rounds_first: u32,
}

/// The parameters of `gather`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GatherWork {
    pub(crate) entry: [Entry; MOST_ENTRIES],
    pub(crate) entries: u32,
    pub(crate) chunks: u32,
}

/// The parameters of `dots`, `fold` and `adasum`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AdasumWork {
    pub(crate) entry: [Entry; MOST_ENTRIES],
    pub(crate) partial: u64,
    pub(crate) sums: u64,
    pub(crate) entries: u32,
    pub(crate) chunks: u32,
    pub(crate) lower: u32,
}

/// Elements of a chunk of `combine`.
pub(crate) const fn combine_chunk(dtype: DType) -> u64 {
    let depth = match dtype {
        DType::F32 | DType::F64 => 4,
        DType::F16 | DType::BF16 => 2,
        _ => 1,
    };
    THREADS as u64 * depth * WIDEST / dtype.size() as u64
}

/// Bytes of a chunk of `gather`.
pub(crate) const GATHER_CHUNK: u64 = THREADS as u64 * 4 * WIDEST;

/// Elements of a chunk of `dots` and `adasum`.
pub(crate) const fn adasum_chunk(dtype: DType) -> u64 {
    THREADS as u64 * 16 * WIDEST / dtype.size() as u64
}

/// What `combine` calls an op. An average is a sum: the caller brings the factor.
pub(crate) fn op_number(op: ReduceOp) -> Result<u32> {
    Ok(match op {
        ReduceOp::Sum | ReduceOp::Average => 0,
        ReduceOp::Product => 1,
        ReduceOp::Min => 2,
        ReduceOp::Max => 3,
        ReduceOp::Adasum => return Err(Error::Bug("adasum is not a reduction of single elements".into())),
    })
}

/// A piece of `combine`: as it is, or as a short beginning and a long rest that is aligned. Nothing for an empty one.
///
/// `sources` and `destinations` are the addresses to which the piece's own are added.
pub(crate) fn combine_entries(
    dtype: DType,
    sources: &[u64],
    destinations: &[u64],
    piece: Entry,
) -> Result<impl Iterator<Item = Entry>> {
    let size = dtype.size() as u64;
    let mut addresses =
        sources.iter().map(|s| s + piece.from).chain(destinations.iter().map(|d| d + piece.to)).peekable();
    let over = addresses.peek().map_or(0, |first| first % WIDEST);
    let (mut whole, mut alike) = (true, true);
    for address in addresses {
        whole &= address.is_multiple_of(size);
        alike &= address % WIDEST == over;
    }
    if !whole {
        return Err(Error::Usage(format!("a tensor of {dtype} on a GPU begins inside an element: copy it first")));
    }
    let head = if over == 0 { 0 } else { (WIDEST - over) / size };
    let aligned = alike && (head == 0 || piece.count >= WORTH_ALIGNING);
    let head = if aligned { head } else { 0 };
    let front = Entry { count: head, aligned: 0, ..piece };
    let rest = Entry {
        from: piece.from + head * size,
        to: piece.to + head * size,
        count: piece.count - head,
        aligned: aligned.into(),
        ..piece
    };
    Ok([front, rest].into_iter().filter(|entry| entry.count > 0))
}

/// A copy of `bytes` bytes, as one or two pieces of `gather`, each with the widest access that both addresses allow.
pub(crate) fn gather_entries(from: u64, to: u64, bytes: u64) -> impl Iterator<Item = Entry> {
    // What two addresses have in common is where they can be aligned together.
    let width = match (from ^ to) % WIDEST {
        0 => WIDEST,
        4 | 8 | 12 => 4,
        _ => 1,
    };
    let head = (width - from % width) % width;
    let head = head.min(bytes);
    let front = Entry { from, to, count: head, first: 0, aligned: 1 };
    let rest = Entry { from: from + head, to: to + head, count: bytes - head, first: 0, aligned: width as u32 };
    [front, rest].into_iter().filter(|entry| entry.count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(counts: &[u64]) -> Vec<Entry> {
        counts.iter().map(|&count| Entry { count, ..Entry::default() }).collect()
    }

    #[test]
    fn chunks_are_numbered_through() {
        let tables = tables(pieces(&[10, 0, 25, 1]), 10);
        assert_eq!((tables.len(), tables[0].entries, tables[0].chunks), (1, 4, 5));
        assert_eq!(tables[0].entry[..4].iter().map(|e| e.first).collect::<Vec<_>>(), [0, 1, 1, 4]);
    }

    #[test]
    fn more_pieces_than_fit_are_several_launches() {
        let tables = tables(pieces(&[7; 2 * MOST_ENTRIES + 1]), 10);
        assert_eq!(tables.iter().map(|t| t.entries).collect::<Vec<_>>(), [96, 96, 1]);
        assert_eq!((tables[1].entry[0].first, tables[1].chunks), (0, 96));
        assert!(super::tables([], 10).is_empty());
    }

    fn cut(sources: &[u64], destinations: &[u64], count: u64) -> Vec<(u64, u64, u64, u32)> {
        let piece = Entry { count, ..Entry::default() };
        let entries = combine_entries(DType::F32, sources, destinations, piece).unwrap();
        entries.map(|e| (e.from, e.to, e.count, e.aligned)).collect()
    }

    #[test]
    fn a_long_piece_is_cut_where_all_addresses_are_aligned() {
        assert_eq!(cut(&[0, 32], &[64], 9000), [(0, 0, 9000, 1)]);
        assert_eq!(cut(&[4, 36], &[68], 9000), [(0, 0, 3, 0), (12, 12, 8997, 1)]);
        // Not alike, or not worth it.
        assert_eq!(cut(&[4, 32], &[64], 9000), [(0, 0, 9000, 0)]);
        assert_eq!(cut(&[4, 36], &[68], 100), [(0, 0, 100, 0)]);
        assert_eq!(cut(&[0, 32], &[64], 1), [(0, 0, 1, 1)]);
        assert!(cut(&[0], &[64], 0).is_empty());
    }

    #[test]
    fn an_element_that_is_cut_is_refused() {
        let piece = Entry { from: 2, count: 1, ..Entry::default() };
        assert!(combine_entries(DType::F32, &[0], &[0], piece).is_err());
        assert!(combine_entries(DType::F16, &[0], &[0], piece).is_ok());
    }

    #[test]
    fn copies_use_the_widest_access_both_addresses_allow() {
        let cut = |from, to, bytes| {
            let entries: Vec<_> = gather_entries(from, to, bytes).map(|e| (e.from, e.to, e.count, e.aligned)).collect();
            entries
        };
        assert_eq!(cut(0, 64, 100), [(0, 64, 100, 16)]);
        assert_eq!(cut(5, 21, 100), [(5, 21, 11, 1), (16, 32, 89, 16)]);
        assert_eq!(cut(4, 8, 100), [(4, 8, 100, 4)]);
        assert_eq!(cut(5, 9, 100), [(5, 9, 3, 1), (8, 12, 97, 4)]);
        assert_eq!(cut(0, 1, 100), [(0, 1, 100, 1)]);
        assert_eq!(cut(5, 21, 3), [(5, 21, 3, 1)]);
        assert!(cut(5, 21, 0).is_empty());
    }

    /// The bytes that a file of PTX says its kernel takes.
    fn parameters(ptx: &str, kernel: &str) -> usize {
        let name = format!("{kernel}_param_0[");
        let after = &ptx[ptx.find(&name).unwrap() + name.len()..];
        after[..after.find(']').unwrap()].parse().unwrap()
    }

    #[test]
    fn the_kernels_take_what_they_are_given() {
        use crate::kernels::ptx::{Source, ptx};
        for dtype in DType::ALL {
            assert_eq!(parameters(ptx(Source::Combine, dtype).unwrap(), "combine"), size_of::<CombineWork>());
        }
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
            for kernel in ["dots", "fold", "adasum"] {
                assert_eq!(parameters(ptx(Source::Adasum, dtype).unwrap(), kernel), size_of::<AdasumWork>());
            }
        }
        assert_eq!(parameters(ptx(Source::Gather, DType::U8).unwrap(), "gather"), size_of::<GatherWork>());
        assert!(size_of::<CombineWork>() <= 4096 && size_of::<AdasumWork>() <= 4096);
    }
}
