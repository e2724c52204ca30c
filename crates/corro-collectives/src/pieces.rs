//! Several buffers seen as one: what tensor fusion is made of.
//!
//! Packing tensors into one buffer, reducing that, and unpacking again costs two passes over memory. Where data is copied
//! into shared slots anyway, that copy can just as well gather from many places; so algorithms over shared memory take a
//! list of pieces, and a plain buffer is a list of one.

use std::ops::Range;

/// Buffers in a row. Positions count through all of them.
#[derive(Debug)]
pub(crate) struct Pieces<'a, 'b> {
    buffers: &'a mut [&'b mut [u8]],
    /// Where each begins; one more at the end.
    starts: Vec<usize>,
}

impl<'a, 'b> Pieces<'a, 'b> {
    pub(crate) fn new(buffers: &'a mut [&'b mut [u8]]) -> Self {
        let mut starts = Vec::with_capacity(buffers.len() + 1);
        let mut at = 0;
        starts.push(0);
        for buffer in buffers.iter() {
            at += buffer.len();
            starts.push(at);
        }
        Self { buffers, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts[self.buffers.len()]
    }

    /// Where each buffer begins, and the end of all.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Calls `act` with each fragment of `range` and where that fragment begins, counted from the start of `range`.
    pub(crate) fn for_each(&mut self, range: Range<usize>, mut act: impl FnMut(usize, &mut [u8])) {
        let mut at = 0;
        self.for_each_within(range, |_, _, fragment| {
            act(at, fragment);
            at += fragment.len();
        });
    }

    /// As [`Pieces::for_each`], but says of each fragment in which buffer it lies and where it begins there.
    pub(crate) fn for_each_within(&mut self, range: Range<usize>, mut act: impl FnMut(usize, usize, &mut [u8])) {
        if range.is_empty() {
            return;
        }
        // The last buffer that begins at or before the range (of empty buffers at one place, the last).
        let mut i = self.starts.partition_point(|s| *s <= range.start) - 1;
        let mut at = range.start;
        while at < range.end {
            let end = self.starts[i + 1].min(range.end);
            if end > at {
                let from = at - self.starts[i];
                act(i, from, &mut self.buffers[i][from..from + (end - at)]);
                at = end;
            }
            i += 1;
        }
    }

    /// The buffers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().map(|buffer| &**buffer)
    }

    /// All of it as one buffer, if it is one.
    pub(crate) fn single(&mut self) -> Option<&mut [u8]> {
        match self.buffers {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Copies everything into one buffer.
    pub(crate) fn gather(&mut self, into: &mut [u8]) {
        let len = self.len();
        self.for_each(0..len, |at, fragment| into[at..at + fragment.len()].copy_from_slice(fragment));
    }

    /// Copies everything back out of one buffer.
    pub(crate) fn scatter(&mut self, from: &[u8]) {
        let len = self.len();
        self.for_each(0..len, |at, fragment| fragment.copy_from_slice(&from[at..at + fragment.len()]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_cover_any_range() {
        let mut a = [0u8, 1, 2];
        let mut empty = [];
        let mut b = [3u8];
        let mut c = [4u8, 5, 6, 7];
        let mut also_empty = [];
        let mut buffers: Vec<&mut [u8]> = vec![&mut empty, &mut a, &mut b, &mut c, &mut also_empty];
        let mut pieces = Pieces::new(&mut buffers);
        assert_eq!(pieces.len(), 8);
        for start in 0..=8 {
            for end in start..=8 {
                let mut seen = Vec::new();
                pieces.for_each(start..end, |at, fragment| {
                    assert_eq!(at, seen.len());
                    seen.extend_from_slice(fragment);
                });
                assert_eq!(seen, (start as u8..end as u8).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn gather_and_scatter_are_inverse() {
        let (mut a, mut b) = ([1u8, 2], [3u8, 4, 5]);
        let mut all = [0; 5];
        let mut buffers: Vec<&mut [u8]> = vec![&mut a, &mut b];
        let mut pieces = Pieces::new(&mut buffers);
        pieces.gather(&mut all);
        assert_eq!(all, [1, 2, 3, 4, 5]);
        all.reverse();
        pieces.scatter(&all);
        assert_eq!((a, b), ([5, 4], [3, 2, 1]));
    }
}
