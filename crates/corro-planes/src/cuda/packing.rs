//! How small tensors lie together while a library works on them: a block for each member, and in it a part of each tensor. Pure:
//! all members come to the same.

use std::ops::Range;

/// Parts begin at multiples of it: libraries and kernels read 16 bytes at a time, and memory comes in lines.
const ALIGNED: usize = 256;

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// By tensor, and then by member; none if the tensor is not packed.
    parts: Vec<Option<Vec<Range<usize>>>>,
    blocks: Vec<Range<usize>>,
}

impl Packing {
    /// `bytes[tensor][member]` is how long each part is; tensors that are not in `packed` stay where they are. With `equal`
    /// all blocks have the length of the longest.
    pub(super) fn new(bytes: &[Vec<usize>], packed: &[bool], equal: bool) -> Self {
        let members = bytes.first().map_or(0, Vec::len);
        let mut lengths = vec![0; members];
        // Within the blocks first, since where those begin is not known yet.
        let mut parts: Vec<Option<Vec<Range<usize>>>> = Vec::with_capacity(bytes.len());
        for (bytes, packed) in bytes.iter().zip(packed) {
            let place = |(length, bytes): (&mut usize, &usize)| {
                let from = *length;
                *length += bytes.next_multiple_of(ALIGNED);
                from..from + bytes
            };
            parts.push(packed.then(|| lengths.iter_mut().zip(bytes).map(place).collect()));
        }
        if equal {
            let longest = lengths.iter().copied().max().unwrap_or(0);
            lengths.fill(longest);
        }
        let mut end = 0;
        let block = |length: usize| {
            end += length;
            end - length..end
        };
        let blocks: Vec<_> = lengths.into_iter().map(block).collect();
        for parts in parts.iter_mut().flatten() {
            for (part, block) in parts.iter_mut().zip(&blocks) {
                *part = part.start + block.start..part.end + block.start;
            }
        }
        Self { parts, blocks }
    }

    /// Where a member's part of a tensor lies; none if the tensor is not packed.
    pub(super) fn part(&self, tensor: usize, member: usize) -> Option<Range<usize>> {
        self.parts.get(tensor)?.as_ref()?.get(member).cloned()
    }

    /// Where a member's block lies.
    pub(super) fn block(&self, member: usize) -> Range<usize> {
        self.blocks.get(member).cloned().unwrap_or_default()
    }

    /// How long all blocks are together.
    pub(super) fn len(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    /// Whether all blocks are of one length.
    pub(super) fn is_even(&self) -> bool {
        self.blocks.iter().all(|block| block.len() == self.block(0).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_member_lie_together_and_nothing_overlaps() {
        let bytes = [vec![10, 300], vec![7, 7], vec![0, 5]];
        let packing = Packing::new(&bytes, &[true, false, true], false);
        assert_eq!((packing.part(0, 0), packing.part(0, 1)), (Some(0..10), Some(256..556)));
        assert_eq!((packing.part(1, 0), packing.part(2, 0)), (None, Some(256..256)));
        assert_eq!(packing.part(2, 1), Some(256 + 512..256 + 512 + 5));
        assert_eq!((packing.block(0), packing.block(1)), (0..256, 256..256 + 768));
        assert_eq!((packing.len(), packing.is_even()), (1024, false));
    }

    #[test]
    fn equal_blocks_are_as_long_as_the_longest() {
        let packing = Packing::new(&[vec![1000, 10, 0]], &[true], true);
        assert_eq!((packing.block(1), packing.part(0, 2)), (1024..2048, Some(2048..2048)));
        assert!(packing.is_even() && packing.len() == 3 * 1024);
        let nothing = Packing::new(&[vec![5, 5]], &[false], true);
        assert_eq!((nothing.len(), nothing.is_even(), nothing.part(0, 0)), (0, true, None));
    }
}
