//! What becomes of a tensor.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use corro_core::{Deadline, Rank, Result, Shape};
use smallvec::SmallVec;

use crate::memory::Memory;

/// What became of a tensor.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Where the result is: the memory that was given for it, or that was allocated.
    pub output: Option<Memory>,
    /// The result's dimensions.
    pub shape: Shape,
    /// Alltoall: rows from each rank of the set.
    pub received_splits: Vec<usize>,
    /// Join: who came last.
    pub last_joined: Option<Rank>,
    /// If the result is there only once a device has done what was enqueued: when that is.
    pub after: Option<Arc<dyn Done>>,
}

/// What became of each tensor of a batch, on this member.
pub type Outcomes = SmallVec<[Result<Outcome>; 1]>;

/// Work that a device was given, and has perhaps not done yet. Keeps the memory that the device works on until it has.
///
/// Who knows the device finds its own kind of event in it (`after as &dyn Any`), and has the device wait instead of the host.
pub trait Done: Any + Debug + Send + Sync {
    /// Whether it is done; an error if it has failed. Does not wait.
    fn is_done(&self) -> Result<bool>;

    /// Waits until it is done. An error if it has failed, or the deadline has passed.
    fn wait(&self, deadline: Deadline) -> Result<()>;
}

impl Outcome {
    /// The bytes of a result in host memory; none if there is no result.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.output.as_ref().map_or(Ok(&[]), |memory| Ok(memory.host()?.as_slice()))
    }

    /// The same as a vector: without a copy if they were one.
    pub fn into_bytes(self) -> Result<Vec<u8>> {
        self.output.map_or(Ok(Vec::new()), |memory| Ok(memory.into_host()?.into_vec()))
    }
}
