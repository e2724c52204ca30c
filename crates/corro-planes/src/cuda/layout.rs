//! Where members find what each of them brings: in its own memory, or in the window that it has opened to all. Pure: all members
//! work from what all have told, and come to the same.

use corro_core::Result;
use corro_cuda::SharedMemory;
use serde::{Deserialize, Serialize};

/// From this size on a tensor is read where it lies; smaller ones are packed, which one kernel does for many of them. Telling
/// others where a tensor lies takes as long as copying a few megabytes.
pub(super) const LARGE: usize = 4 << 20;
/// What lies in a window begins at multiples of it: kernels read 16 bytes at a time, and memory comes in lines.
const ALIGNED: usize = 256;

/// A place in an allocation of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spot {
    pub(super) memory: SharedMemory,
    pub(super) offset: u64,
}

/// Where a member has a tensor, if others can reach it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) input: Spot,
    /// Where others write the result; none if that is where it brings it.
    pub(super) output: Option<Spot>,
}

/// Where one tensor of one member is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Where it lies.
    There(Told),
    /// In the member's window, from this byte on.
    Packed(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Layout {
    /// By tensor, and then by member.
    found: Vec<Vec<Found>>,
    /// How much of each member's window is used.
    packed: Vec<usize>,
}

impl Layout {
    /// `bytes[tensor][member]` is what each brings, `told[member][tensor]` where it has it. With `alike` members' tensors are
    /// combined, and so must all be found in the same way.
    pub(super) fn new(bytes: &[Vec<usize>], told: &[Vec<Option<Told>>], alike: bool) -> Self {
        let members = bytes.first().map_or(0, Vec::len);
        let mut packed = vec![0; members];
        let mut found = Vec::with_capacity(bytes.len());
        for (tensor, bytes) in bytes.iter().enumerate() {
            let there = |member: usize| told.get(member).and_then(|told| told.get(tensor).copied().flatten());
            let all_there = (0..members).all(|member| there(member).is_some());
            let one = |member: usize| match there(member) {
                Some(told) if all_there || !alike => Found::There(told),
                _ => {
                    let at = packed[member];
                    packed[member] += bytes[member].next_multiple_of(ALIGNED);
                    Found::Packed(at)
                }
            };
            found.push((0..members).map(one).collect());
        }
        Self { found, packed }
    }

    /// Where a member's tensor is found.
    pub(super) fn found(&self, tensor: usize, member: usize) -> Result<Found> {
        let found = self.found.get(tensor).and_then(|members| members.get(member)).copied();
        found.ok_or_else(|| corro_core::Error::Bug(format!("tensor {tensor} of member {member} is nowhere")))
    }

    /// How large a window must be at least.
    pub(super) fn window(&self) -> usize {
        self.packed.iter().copied().max().unwrap_or(0)
    }

    /// Whether anything of anybody is read, or written, where it lies.
    pub(super) fn reaches_tensors(&self) -> bool {
        self.found.iter().flatten().any(|found| matches!(found, Found::There(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(base: u64) -> Told {
        let bytes = postcard::to_allocvec(&(&[7u8; 64][..], base, 1000u64)).unwrap();
        let memory = postcard::from_bytes(&bytes).unwrap();
        Told { input: Spot { memory, offset: 0 }, output: None }
    }

    #[test]
    fn what_can_not_be_reached_on_one_member_is_packed_on_all() {
        let bytes = [vec![10, 10], vec![2000, 2000], vec![300, 300]];
        let members = [vec![None, Some(told(1)), None], vec![None, None, None]];
        let layout = Layout::new(&bytes, &members, true);
        let packed = |tensor| [layout.found(tensor, 0).unwrap(), layout.found(tensor, 1).unwrap()];
        assert_eq!(packed(0), [Found::Packed(0); 2]);
        assert_eq!(packed(1), [Found::Packed(256); 2]);
        assert_eq!(packed(2), [Found::Packed(256 + 2048); 2]);
        assert_eq!((layout.window(), layout.reaches_tensors()), (256 + 2048 + 512, false));
        assert!(layout.found(3, 0).is_err() && layout.found(0, 2).is_err());
    }

    #[test]
    fn where_nothing_is_combined_each_member_does_as_it_can() {
        let layout = Layout::new(&[vec![2000, 1000]], &[vec![Some(told(1))], vec![None]], false);
        assert_eq!(layout.found(0, 0).unwrap(), Found::There(told(1)));
        assert_eq!(layout.found(0, 1).unwrap(), Found::Packed(0));
        assert_eq!((layout.window(), layout.reaches_tensors()), (1024, true));
    }
}
