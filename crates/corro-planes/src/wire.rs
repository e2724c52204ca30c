//! What moves and reduces bytes of host memory: Corro's own connections, or MPI.

use corro_collectives::{Group, Reduction, Tensor};
use corro_core::Result;

/// The collectives that a batch of tensors in host memory comes down to. What a call says of sizes is the same on all
/// members, or agrees between each two of them.
pub(crate) trait Wire {
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    fn barrier(&mut self) -> Result<()>;

    /// With `planned`, nothing is changed before all members have begun, and until then it may be called off.
    fn allreduce(&mut self, tensors: &mut [Tensor<'_>], how: &Reduction, planned: bool) -> Result<()>;

    fn allgather(&mut self, input: &[u8], counts: &[usize], output: &mut [u8]) -> Result<()>;

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()>;

    /// `longest` is the most bytes that go between any two members.
    fn alltoall(
        &mut self,
        input: &[u8],
        sent: &[usize],
        output: &mut [u8],
        received: &[usize],
        longest: usize,
    ) -> Result<()>;

    fn reducescatter(&mut self, input: &[u8], rows: usize, output: &mut [u8], how: &Reduction) -> Result<()>;
}

impl Wire for Group {
    #[inline]
    fn rank(&self) -> usize {
        Self::rank(self)
    }

    #[inline]
    fn size(&self) -> usize {
        Self::size(self)
    }

    fn barrier(&mut self) -> Result<()> {
        Self::barrier(self)
    }

    #[inline]
    fn allreduce(&mut self, tensors: &mut [Tensor<'_>], how: &Reduction, planned: bool) -> Result<()> {
        if planned { self.allreduce_withdrawable(tensors, how) } else { self.allreduce_many(tensors, how) }
    }

    fn allgather(&mut self, input: &[u8], counts: &[usize], output: &mut [u8]) -> Result<()> {
        self.allgather_bytes(input, counts, output)
    }

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        self.broadcast_bytes(bytes, root)
    }

    fn alltoall(
        &mut self,
        input: &[u8],
        sent: &[usize],
        output: &mut [u8],
        received: &[usize],
        longest: usize,
    ) -> Result<()> {
        self.alltoall_bytes(input, sent, output, received, longest)
    }

    fn reducescatter(&mut self, input: &[u8], rows: usize, output: &mut [u8], how: &Reduction) -> Result<()> {
        self.reducescatter_bytes(input, rows, output, how)
    }
}
