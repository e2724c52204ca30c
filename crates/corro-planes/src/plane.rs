//! What a plane must do, and what its row in the table says of it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::{Collective, Group};
use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Result};

use crate::facts::Facts;
use crate::outcome::Outcomes;
use crate::tensor::Tensor;

/// Moves and reduces the bytes of batches, for one member of a process set.
///
/// What it must keep to, besides giving the right numbers (the conformance tests check those):
///
/// 1. Batches come in the same order on all members. A member that has joined brings nothing, and takes part with zeros.
/// 2. In a plan a batch may be called off before all members have begun it: waiting on the group then gives
///    [`Error::Withdrawn`](corro_core::Error::Withdrawn), and whatever else waits looks at `group.withdrawal()`. So with
///    `planned`, `run` does not return on any member before all have begun it, and leaves the program's tensors as they are
///    until then (a factor that was applied is remembered, see [`Tensor`]). A batch that was called off leaves no trace in
///    the plane: it will be run again, with another group.
/// 3. Everything that waits has a deadline, and says whom it waited for. Any other error ends the job.
/// 4. A member that has no place for its result takes part nevertheless, with memory of the plane's own: the others are in the
///    collective already. Only its own ticket fails.
pub trait Plane: Send {
    /// Its name in timelines, metrics, messages and settings.
    fn name(&self) -> &'static str;

    /// Runs one batch. `tensors[i]` belongs to `agreed[i]`. The group is the host connection among the members: for the bytes
    /// themselves, or for the few that it takes to coordinate devices. It is another one after a withdrawal.
    ///
    /// Gives an outcome for each tensor, or one error for all. A device need not be done when this returns: the outcome
    /// then says when it is.
    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes>;

    /// If its device may wait for other members: what ends that, from any thread, when one of them is lost. The device then
    /// goes on with what it has, which is of no worth; all operations that are still to come fail.
    fn release(&self) -> Option<Release> {
        None
    }
}

/// Makes memory that the members share, so many bytes for each, if all are on one host. All of them must call it.
pub type Pool = Arc<dyn Fn(usize) -> Result<Option<Buffer>> + Send + Sync>;

/// See [`Plane::release`].
pub type Release = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// How the devices of a process set are let go on when it has ended.
#[derive(Clone, Default)]
pub struct Releases(Arc<Mutex<Vec<Release>>>);

impl Releases {
    pub(crate) fn add(&self, release: Release) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(release);
    }

    /// Lets all of them go on. An error if one could not be told.
    pub fn run(&self) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().try_for_each(|release| release())
    }
}

impl fmt::Debug for Releases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Releases")
    }
}

/// Something that all members agree to have, or why they do not: the same words on all of them.
pub type Verdict<T> = std::result::Result<T, String>;

/// A plane in the table, before anybody needs it.
///
/// Ranks of a job run the same release and so have the same table, but not the same hardware. Where a plane can't work,
/// its row is there all the same, and says why.
pub trait Row: Send + Sync {
    /// The plane's name.
    fn name(&self) -> &'static str;

    /// When the job begins, on all of its ranks: what takes all of them, since a first tensor may be one of a process set that
    /// leaves some out. What it can't do is said later, to whoever needs it.
    ///
    /// # Errors
    /// Not all came in time.
    fn begin(&self, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    /// Adds what this process can say about itself: above all [`Facts::says`], whether it could take part. Called once, in
    /// a job that has tensors of GPUs; here, or in [`Row::begin`], a library may be looked for. `device` is the GPU of the first tensor
    /// that this member has brought; it may have brought none.
    fn describe(&self, facts: &mut Facts, device: Option<usize>);

    /// Why it can't serve such a batch; `None` if it can. `facts` are those of all members, each of whom has said that it
    /// could take part. Pure, since all members must come to the same.
    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String>;

    /// Makes it. All members do so at the same time. The verdict must be the same on all of them: see
    /// [`agree`](crate::agree). If it is "no", the next row is asked.
    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        facts: &[Facts],
        device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>>;
}

/// What of a batch decides who can serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What is to be done.
    pub collective: Collective,
    /// How, where something is reduced.
    pub op: Option<ReduceOp>,
    /// The type of the elements.
    pub dtype: DType,
}

impl Wanted {
    /// What this tensor, and others that run with it, want; `None` if it is no collective.
    pub fn of(agreed: &Agreed) -> Option<Self> {
        let collective = match agreed.kind {
            Kind::Allreduce { .. } => Collective::Allreduce,
            Kind::Allgather => Collective::Allgather,
            Kind::Broadcast { .. } => Collective::Broadcast,
            Kind::Alltoall { .. } => Collective::Alltoall,
            Kind::Reducescatter { .. } => Collective::Reducescatter,
            Kind::Barrier => Collective::Barrier,
            Kind::AddSet { .. } | Kind::RemoveSet { .. } => return None,
        };
        Some(Self { collective, op: agreed.kind.reduction().map(|(op, ..)| op), dtype: agreed.dtype })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{:?}", self.collective).to_lowercase())?;
        if let Some(op) = self.op {
            write!(f, " ({op})")?;
        }
        write!(f, " of {}", self.dtype)
    }
}

/// An error if what all have agreed on, as a peer tells it, can't have come from matching their requests.
pub(crate) fn check(agreed: &Agreed, members: usize) -> Result<()> {
    let shapes = if agreed.kind.has_free_rows() { members } else { 1 };
    let has_rows = !agreed.kind.needs_rows() || agreed.shapes.iter().all(|shape| !shape.0.is_empty());
    let has_splits = agreed.splits.iter().all(|splits| splits.is_empty() || splits.len() == members);
    if agreed.shapes.len() == shapes && has_rows && has_splits {
        return Ok(());
    }
    Err(Error::Malformed(format!("tensor {} is to run with {} shapes", agreed.name, agreed.shapes.len())))
}
