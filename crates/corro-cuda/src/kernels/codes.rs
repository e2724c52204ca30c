//! Codes of values on a GPU: what the kernels `encode` and `decode` are told. Pure.
//!
//! The struct is laid out as in `kernels/codes.cu`.

use corro_core::{Error, Result};

use super::table::THREADS;
use crate::span::Span;

/// Pieces in one launch.
const MOST_ENTRIES: usize = 40;
/// Codes that are added up at once.
const MOST_ARRIVED: usize = 15;
/// Blocks that a block of threads takes at a time: one for each warp.
const WARPS: u64 = THREADS as u64 / 32;
/// Values of the longest block that a warp holds in its registers.
const LONGEST: u32 = 256;
const FLOAT: usize = size_of::<f32>();

/// What integers stand for values: those of `corro_kernels::Levels` whose scale is the block's largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integers {
    /// Values that share a scale.
    pub block: u32,
    /// Bits of an integer: 8, 4 or 2.
    pub bits: u32,
}

impl Integers {
    /// Whether the kernels can make such codes.
    pub const fn is_supported(self) -> bool {
        matches!(self.bits, 2 | 4 | 8) && self.block > 0 && self.block <= LONGEST && self.block.is_multiple_of(32)
    }

    /// Bytes of the code of so many values.
    pub const fn encoded_len(self, count: usize) -> usize {
        count.div_ceil(self.block as usize) * FLOAT + (count * self.bits as usize).div_ceil(8)
    }
}

/// Values that become a code. Everything is `f32` but the code.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<'a> {
    /// They are read.
    pub values: Span<'a>,
    /// Is added to them; what the code leaves out goes there.
    pub rest: Option<Span<'a>>,
    /// Is added to them, and is zero then.
    pub also: Option<Span<'a>>,
    /// Where in each of the arrived codes the code of these values begins, in bytes.
    pub arrived: usize,
    /// Where the code goes: a multiple of 4 bytes.
    pub code: Span<'a>,
    /// The stream of random numbers, and the place of the first value in it, if rounding is by chance.
    pub noise: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Entry {
    values: u64,
    rest: u64,
    also: u64,
    code: u64,
    arrived: u64,
    key: u64,
    place: u64,
    count: u64,
    /// The number of its first chunk.
    first: u32,
    /// 1 if the addresses of all values are multiples of 16.
    aligned: u32,
}

/// The parameters of `encode` and `decode`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CodesWork {
    arrived: [u64; MOST_ARRIVED],
    codes: u32,
    entries: u32,
    entry: [Entry; MOST_ENTRIES],
    pub(crate) chunks: u32,
    block: u32,
    bits: u32,
    noisy: u32,
}

/// The launches that encode all pieces.
pub(crate) fn encodings(integers: Integers, arrived: &[Span<'_>], pieces: &[Encoding<'_>]) -> Result<Vec<CodesWork>> {
    check(integers)?;
    if arrived.len() > MOST_ARRIVED {
        return Err(Error::Bug(format!("{} codes for one sum on a GPU", arrived.len())));
    }
    let noisy = pieces.iter().any(|piece| piece.noise.is_some());
    let mut work = CodesWork::new(integers);
    (work.codes, work.noisy) = (arrived.len() as u32, noisy.into());
    for (place, code) in work.arrived.iter_mut().zip(arrived) {
        *place = code.address();
    }
    let mut entries = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let floats = [Some(piece.values), piece.rest, piece.also];
        let count = piece.values.len() / FLOAT;
        let bytes = integers.encoded_len(count);
        for code in arrived {
            let code = code.part(piece.arrived..piece.arrived.saturating_add(bytes))?;
            whole(code)?;
        }
        if floats.iter().flatten().any(|floats| floats.len() != piece.values.len())
            || piece.noise.is_some() != noisy
            || piece.code.len() != bytes
        {
            return Err(Error::Bug(format!("{piece:?} as {integers:?} of {bytes} bytes")));
        }
        let address = |span: Option<Span<'_>>| span.map_or(0, Span::address);
        let (key, place) = piece.noise.unwrap_or_default();
        entries.push(Entry {
            values: piece.values.address(),
            rest: address(piece.rest),
            also: address(piece.also),
            code: whole(piece.code)?.address(),
            arrived: piece.arrived as u64,
            key,
            place,
            count: count as u64,
            first: 0,
            aligned: are_aligned(floats.into_iter().flatten())?.into(),
        });
    }
    Ok(work.deal(entries))
}

/// The launches that decode all pieces: (values, code).
pub(crate) fn decodings(integers: Integers, pieces: &[(Span<'_>, Span<'_>)]) -> Result<Vec<CodesWork>> {
    check(integers)?;
    let mut entries = Vec::with_capacity(pieces.len());
    for (values, code) in pieces {
        let count = values.len() / FLOAT;
        if code.len() != integers.encoded_len(count) {
            return Err(Error::Bug(format!("{code:?} as the code of {count} values, {integers:?}")));
        }
        entries.push(Entry {
            values: values.address(),
            code: whole(*code)?.address(),
            count: count as u64,
            aligned: are_aligned([*values])?.into(),
            ..Entry::default()
        });
    }
    Ok(CodesWork::new(integers).deal(entries))
}

impl CodesWork {
    fn new(integers: Integers) -> Self {
        Self {
            arrived: [0; MOST_ARRIVED],
            codes: 0,
            entries: 0,
            entry: [Entry::default(); MOST_ENTRIES],
            chunks: 0,
            block: integers.block,
            bits: integers.bits,
            noisy: 0,
        }
    }

    /// The same work, with as many launches as the pieces need.
    fn deal(self, mut pieces: Vec<Entry>) -> Vec<Self> {
        pieces.retain(|piece| piece.count > 0);
        let launch = |pieces: &[Entry]| {
            let mut work = self;
            for (entry, piece) in work.entry.iter_mut().zip(pieces) {
                *entry = Entry { first: work.chunks, ..*piece };
                work.chunks += piece.count.div_ceil(WARPS * u64::from(self.block)) as u32;
            }
            work.entries = pieces.len() as u32;
            work
        };
        pieces.chunks(MOST_ENTRIES).map(launch).collect()
    }
}

fn check(integers: Integers) -> Result<()> {
    if integers.is_supported() {
        return Ok(());
    }
    Err(Error::Bug(format!("{integers:?} on a GPU: ask Integers::is_supported first")))
}

/// Whether all addresses are multiples of 16; an error unless all are whole `f32`.
fn are_aligned<'a>(floats: impl IntoIterator<Item = Span<'a>>) -> Result<bool> {
    floats.into_iter().try_fold(true, |aligned, span| {
        whole(span)?;
        if !span.len().is_multiple_of(FLOAT) {
            return Err(Error::Bug(format!("{span:?} is not a whole number of float32 elements")));
        }
        Ok(aligned && span.address().is_multiple_of(16))
    })
}

fn whole(span: Span<'_>) -> Result<Span<'_>> {
    if span.address().is_multiple_of(FLOAT as u64) {
        return Ok(span);
    }
    Err(Error::Usage(format!(
        "{span:?}: a code, or a tensor of float32 on a GPU, begins inside an element: copy it first"
    )))
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "spans of memory that is never touched")]

    use super::*;
    use crate::kernels::ptx::{Source, ptx};

    const INT8: Integers = Integers { block: 256, bits: 8 };

    fn span(address: u64, len: usize) -> Span<'static> {
        // SAFETY: never given to a GPU.
        unsafe { Span::from_raw(address, len) }
    }

    fn encoding(count: usize) -> Encoding<'static> {
        let values = span(0x1000, count * 4);
        let code = span(0x9000, INT8.encoded_len(count));
        Encoding { values, rest: None, also: None, arrived: 0, code, noise: None }
    }

    #[test]
    fn pieces_are_dealt_to_launches_and_chunks_are_numbered_through() {
        let works = encodings(INT8, &[], &[encoding(2049), encoding(0), encoding(1)]).unwrap();
        let numbers: Vec<_> = works[0].entry[..2].iter().map(|entry| (entry.first, entry.count)).collect();
        assert_eq!((works.len(), works[0].entries, works[0].chunks, &numbers[..]), (1, 2, 3, &[(0, 2049), (2, 1)][..]));
        let works = encodings(INT8, &[], &[encoding(5); 2 * MOST_ENTRIES + 1]).unwrap();
        assert_eq!(
            works.iter().map(|work| (work.entries, work.chunks)).collect::<Vec<_>>(),
            [(40, 40), (40, 40), (1, 1)]
        );
        assert!(decodings(INT8, &[]).unwrap().is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let piece = encoding(256);
        let refused = |piece: Encoding<'_>| encodings(INT8, &[], &[piece]).is_err();
        assert!(!refused(piece));
        assert!(refused(Encoding { rest: Some(span(0, 1020)), ..piece }));
        assert!(refused(Encoding { code: span(0x9000, 259), ..piece }));
        assert!(refused(Encoding { code: span(0x9002, 260), ..piece }));
        assert!(refused(Encoding { values: span(0x1002, 1024), ..piece }));
        assert!(encodings(INT8, &[span(0, 259)], &[piece]).is_err());
        assert!(encodings(INT8, &[span(0, 260)], &[piece]).is_ok());
        assert!(encodings(INT8, &[], &[piece, Encoding { noise: Some((1, 0)), ..piece }]).is_err());
        assert!(encodings(INT8, &[span(0, 260); 16], &[piece]).is_err());
        for (block, bits) in [(512, 8), (0, 8), (48, 8), (64, 3)] {
            assert!(encodings(Integers { block, bits }, &[], &[]).is_err());
        }
    }

    #[test]
    fn aligned_is_what_can_be_read_sixteen_bytes_at_a_time() {
        let piece = encoding(8);
        let aligned = |piece| encodings(INT8, &[], &[piece]).unwrap()[0].entry[0].aligned;
        assert_eq!(aligned(piece), 1);
        assert_eq!(aligned(Encoding { rest: Some(span(0x104, 32)), ..piece }), 0);
    }

    #[test]
    fn the_kernels_take_what_they_are_given() {
        let text = ptx(Source::Codes, corro_core::DType::F32).unwrap();
        for kernel in ["encode", "decode"] {
            assert!(text.contains(&format!("{kernel}_param_0[{}]", size_of::<CodesWork>())));
        }
    }
}
