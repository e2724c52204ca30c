//! Several tensors seen as one: what tensor fusion is made of.
//!
//! Packing tensors into one buffer, reducing that, and unpacking again costs two passes over memory. Where data is copied
//! into shared slots anyway, that copy can just as well gather from many places; so algorithms over shared memory take a
//! list of pieces, and a plain buffer is a list of one.

use std::ops::Range;

use corro_core::{DType, Error, Result};
use smallvec::SmallVec;

/// A tensor that is to be reduced.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// What this member brings, if it is not in the result's place already. It is only read.
    input: Option<&'a [u8]>,
    place: &'a mut [u8],
}

impl<'a> Tensor<'a> {
    /// The result takes the place of what this member brings.
    pub fn in_place(data: &'a mut [u8]) -> Self {
        Self { input: None, place: data }
    }

    /// The result goes elsewhere, which must be as long. Costs no copy where ranks share a host.
    pub fn apart(input: &'a [u8], place: &'a mut [u8]) -> Self {
        Self { input: Some(input), place }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.place.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.place.is_empty()
    }

    /// What this member brings.
    pub(crate) fn brought(&self) -> &[u8] {
        self.input.unwrap_or(self.place)
    }

    /// Where the result goes.
    pub(crate) fn place(&mut self) -> &mut [u8] {
        self.place
    }

    /// What this member brings, if that is elsewhere, and the result's place.
    pub fn parts(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        (self.input, self.place)
    }

    /// A part of both: what this member brings, if that is elsewhere, and the result's place.
    pub(crate) fn part(&mut self, range: Range<usize>) -> (Option<&[u8]>, &mut [u8]) {
        (self.input.map(|input| &input[range.clone()]), &mut self.place[range])
    }

    /// Makes it one in place.
    pub(crate) fn settle(&mut self) {
        if let Some(input) = self.input.take() {
            self.place.copy_from_slice(input);
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.input {
            Some(input) if input.len() != self.place.len() => {
                Err(Error::Usage(format!("a result of {} bytes has a place of {}", input.len(), self.place.len())))
            }
            _ => Ok(()),
        }
    }
}

/// Tensors in a row. Positions count through all of them.
#[derive(Debug)]
pub(crate) struct Pieces<'a, 'b> {
    tensors: &'a mut [Tensor<'b>],
    /// Where each begins; one more at the end. Most often there is one tensor: then nothing is allocated.
    starts: SmallVec<[usize; 2]>,
}

/// A part of a tensor.
pub(crate) struct Fragment<'a> {
    /// Which tensor, and where this begins in it.
    pub(crate) tensor: usize,
    pub(crate) from: usize,
    /// What this member brings, if that is elsewhere.
    pub(crate) input: Option<&'a [u8]>,
    pub(crate) place: &'a mut [u8],
}

impl<'a, 'b> Pieces<'a, 'b> {
    pub(crate) fn new(tensors: &'a mut [Tensor<'b>]) -> Self {
        let mut starts = SmallVec::with_capacity(tensors.len() + 1);
        let mut at = 0;
        starts.push(0);
        for tensor in tensors.iter() {
            at += tensor.len();
            starts.push(at);
        }
        Self { tensors, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts[self.tensors.len()]
    }

    /// Where each tensor begins, and the end of all.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Multiplies what is there.
    pub(crate) fn scale(&mut self, dtype: DType, factor: f64) {
        if factor != 1.0 {
            let len = self.len();
            self.write(0..len, |_, part| corro_kernels::scale(dtype, part, factor));
        }
    }

    /// Calls `act` with each part of `range` that this member brings, and where it begins, counted from the start of
    /// `range`.
    pub(crate) fn read(&self, range: Range<usize>, mut act: impl FnMut(usize, &[u8])) {
        let start = range.start;
        for (i, within) in parts(&self.starts, range) {
            act(self.starts[i] + within.start - start, &self.tensors[i].brought()[within]);
        }
    }

    /// Calls `act` with each part of `range` as a place for the result, and where it begins, counted from the start of
    /// `range`.
    pub(crate) fn write(&mut self, range: Range<usize>, mut act: impl FnMut(usize, &mut [u8])) {
        let start = range.start;
        for (i, within) in parts(&self.starts, range) {
            act(self.starts[i] + within.start - start, &mut self.tensors[i].place[within]);
        }
    }

    /// Calls `act` with each part of `range`.
    pub(crate) fn update(&mut self, range: Range<usize>, mut act: impl FnMut(Fragment<'_>)) {
        for (tensor, within) in parts(&self.starts, range) {
            let from = within.start;
            let (input, place) = self.tensors[tensor].part(within);
            act(Fragment { tensor, from, input, place });
        }
    }

    /// Puts what this member brings of `range` into the result's place.
    pub(crate) fn settle(&mut self, range: Range<usize>) {
        self.update(range, |Fragment { input, place, .. }| {
            if let Some(input) = input {
                place.copy_from_slice(input);
            }
        });
    }

    /// The tensors' places, if all are reduced in place.
    pub(crate) fn all_in_place(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let all = self.tensors.iter().all(|tensor| tensor.input.is_none());
        all.then(|| self.tensors.iter().map(|tensor| &*tensor.place))
    }

    /// Whether all results go elsewhere.
    pub(crate) fn all_apart(&self) -> bool {
        self.tensors.iter().all(|tensor| tensor.input.is_some())
    }

    /// The tensor, if there is one only.
    pub(crate) fn single(&mut self) -> Option<&mut Tensor<'b>> {
        match self.tensors {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Copies everything that this member brings into one buffer.
    pub(crate) fn gather(&self, into: &mut [u8]) {
        self.read(0..self.len(), |at, fragment| into[at..at + fragment.len()].copy_from_slice(fragment));
    }

    /// Copies results out of one buffer.
    pub(crate) fn scatter(&mut self, from: &[u8]) {
        self.write(0..self.len(), |at, fragment| fragment.copy_from_slice(&from[at..at + fragment.len()]));
    }
}

/// `range` cut where tensors begin: which tensor, and which part of it.
fn parts(starts: &[usize], range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    // The last tensor that begins at or before the range (of empty tensors at one place, the last).
    let mut i = starts.partition_point(|s| *s <= range.start).saturating_sub(1);
    let mut at = range.start;
    std::iter::from_fn(move || {
        while at < range.end {
            let (tensor, start, end) = (i, starts[i], starts[i + 1].min(range.end));
            i += 1;
            if end > at {
                let part = at - start..end - start;
                at = end;
                return Some((tensor, part));
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_cover_any_range() {
        let mut a = [0u8, 1, 2];
        let mut empty = [];
        let (b, mut b_place) = ([3u8], [9u8]);
        let mut c = [4u8, 5, 6, 7];
        let mut also_empty = [];
        let mut tensors = vec![
            Tensor::in_place(&mut empty),
            Tensor::in_place(&mut a),
            Tensor::apart(&b, &mut b_place),
            Tensor::in_place(&mut c),
            Tensor::in_place(&mut also_empty),
        ];
        let mut pieces = Pieces::new(&mut tensors);
        assert_eq!(pieces.len(), 8);
        assert!(pieces.all_in_place().is_none());
        for start in 0..=8 {
            for end in start..=8 {
                let mut seen = Vec::new();
                pieces.read(start..end, |at, fragment| {
                    assert_eq!(at, seen.len());
                    seen.extend_from_slice(fragment);
                });
                assert_eq!(seen, (start as u8..end as u8).collect::<Vec<_>>());
                let mut again = Vec::new();
                pieces.update(start..end, |f| again.extend_from_slice(f.input.unwrap_or(f.place)));
                assert_eq!(again, seen);
                let mut places = 0;
                pieces.write(start..end, |at, fragment| {
                    assert_eq!(at, places);
                    places += fragment.len();
                });
                assert_eq!(places, end - start);
            }
        }
        pieces.settle(0..8);
        assert_eq!(b_place, b);
    }

    #[test]
    fn gather_and_scatter_are_inverse() {
        let (mut a, b, mut b_place) = ([1u8, 2], [3u8, 4, 5], [0; 3]);
        let mut all = [0; 5];
        let mut tensors = [Tensor::in_place(&mut a), Tensor::apart(&b, &mut b_place)];
        let mut pieces = Pieces::new(&mut tensors);
        pieces.gather(&mut all);
        assert_eq!(all, [1, 2, 3, 4, 5]);
        all.reverse();
        pieces.scatter(&all);
        assert_eq!((a, b, b_place), ([5, 4], [3, 4, 5], [3, 2, 1]));
    }

    #[test]
    fn a_place_must_be_as_long() {
        assert!(Tensor::apart(&[1, 2], &mut [0]).check().is_err());
        assert!(Tensor::apart(&[1, 2], &mut [0, 0]).check().is_ok());
    }
}
