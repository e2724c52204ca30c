//! The planes of one process set, and the table they come from.
//!
//! Owns the planes that are in use, and what members know of each other. They outlive the group, which is handed to each
//! call: after a withdrawal that is another one, and the planes stay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::request::MemoryPlace;
use corro_collectives::{Collective, Group};
use corro_core::{Error, Rank, ReduceOp, Result, config};

use crate::cuda::{CudaIpc, CudaMpi, Staging as CudaStaging, nccl_rows};
use crate::host::{HOST, Host};
use crate::ledgers::Ledgers;
use crate::mpi::{self, MpiRow};
use crate::plane::{Plane, Pool, Releases, Row, Wanted};
use crate::rows::Rows;
use crate::tensor::Tensor;

/// What users call the way of a GPU's tensors through host memory.
const STAGED: &str = "staged";

/// Makes the plane that carries tensors between GPUs and the host, and there does what [`Host`] does. To the other members
/// the two are the same, so each uses whichever of them its own memory asks for.
pub type Staging = Arc<dyn Fn(Option<Pool>) -> Result<Box<dyn Plane>> + Send + Sync>;

/// Which planes there are. The same on all ranks of a job, whatever their hardware. By default only the host's.
#[derive(Clone, Default)]
pub struct Table {
    /// For tensors in the memory of GPUs.
    rows: Vec<Arc<dyn Row>>,
    staging: Option<Staging>,
    forced: Option<String>,
    ledgers: Ledgers,
    /// For tensors of the host, in place of Corro's own connections. One that can't serve is an error: the user asks for it.
    host: Vec<Arc<dyn Row>>,
}

impl Table {
    /// For tensors in the memory of GPUs: the rows in the order in which they are asked, and what serves where all decline.
    pub fn new(rows: Vec<Arc<dyn Row>>, staging: Staging) -> Self {
        Self { rows, staging: Some(staging), forced: None, ledgers: Ledgers::default(), host: Vec::new() }
    }

    /// The planes of this release. Nothing is opened before a tensor of a GPU comes.
    pub fn standard() -> Self {
        let ledgers = Ledgers::default();
        let host = Host::new(ledgers.clone());
        let staging = move |pool| Ok(Box::new(CudaStaging::new(pool, host.clone())) as Box<dyn Plane>);
        let mut rows: Vec<Arc<dyn Row>> = vec![Arc::new(CudaIpc)];
        rows.extend(nccl_rows());
        Self { ledgers, ..Self::new(rows, Arc::new(staging)) }
    }

    /// The same, with the planes that the environment asks for.
    ///
    /// # Errors
    /// It names none of them.
    pub fn from_env() -> Result<Self> {
        let mut table = Self::standard();
        match wished(&config::GPU_PLANE)? {
            // First, and not alone: many MPIs take no memory of GPUs, and none has all reductions.
            Some(wish) if wish == mpi::NAME => table.rows.insert(0, Arc::new(CudaMpi)),
            // To the other members what is staged is as if it lay on the host.
            Some(wish) => table.forced = Some(if wish == STAGED { HOST.to_owned() } else { wish }),
            None => {}
        }
        if wished(&config::CPU_OPERATIONS)?.is_some_and(|wish| wish == mpi::NAME) {
            table.host.push(Arc::new(MpiRow));
        }
        Ok(table)
    }

    /// The same, with a plane that the user asks for. If it can't serve a batch, that is an error.
    #[must_use]
    pub fn forced(self, plane: Option<String>) -> Self {
        Self { forced: plane, ..self }
    }

    /// When the job begins: what takes all of its ranks, see [`Row::begin`].
    ///
    /// # Errors
    /// Not all came in time.
    pub fn begin(&self, timeout: Duration) -> Result<()> {
        self.rows.iter().chain(&self.host).try_for_each(|row| row.begin(timeout))
    }

    /// What compression remembers, of all process sets.
    pub const fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    /// Whether tensors may be handed over in the memory of GPUs.
    pub const fn takes_device_memory(&self) -> bool {
        self.staging.is_some()
    }
}

/// Whether ranks send each other codes of these tensors. A batch has one way for all.
fn is_compressed(agreed: &[Arc<Agreed>]) -> bool {
    agreed.first().is_some_and(|agreed| agreed.kind.compression().is_some())
}

/// What the user asks for, in small letters.
fn wished(variable: &config::Variable) -> Result<Option<String>> {
    let Some(wish) = variable.value() else { return Ok(None) };
    let wish = wish.trim().to_ascii_lowercase();
    variable.check(&wish, variable.name)?;
    Ok(Some(wish))
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rows.iter().chain(&self.host).map(|row| row.name())).finish()
    }
}

/// See the module.
pub struct Planes {
    /// Where this process runs.
    locality: String,
    host: Host,
    /// What moves tensors of the host in its place; most jobs have none.
    for_host: Option<Rows>,
    for_gpus: Rows,
    staging: Option<Staging>,
    staged: Option<Box<dyn Plane>>,
    releases: Releases,
    pool: Option<Pool>,
}

impl Planes {
    /// Those of a process set. `locality` is the same in all processes that could share memory.
    pub fn new(table: Table, locality: String, releases: Releases) -> Self {
        let Table { rows, staging, forced, ledgers, host } = table;
        Self {
            locality,
            host: Host::new(ledgers),
            for_host: (!host.is_empty()).then(|| Rows::new("the host", host, None)),
            for_gpus: Rows::new("GPUs", rows, forced),
            staging,
            staged: None,
            releases,
            pool: None,
        }
    }

    /// The same, with a way to make memory that the members share.
    #[must_use]
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// The plane that runs this batch, the same on all members but for [`Staging`]. All must ask for the same batches in the same
    /// order: the first that is all in the memory of GPUs has them tell each other what they can do.
    #[inline]
    pub fn choose(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &[Tensor],
    ) -> Result<&mut dyn Plane> {
        match agreed.first().map_or(MemoryPlace::Host, |first| first.place) {
            // What is compressed is put together here, whoever else moves bytes.
            MemoryPlace::Host if self.for_host.is_none() || is_compressed(agreed) => Ok(&mut self.host),
            MemoryPlace::Host => self.choose_for_host(group, members, agreed),
            place => self.choose_for_gpus(group, members, (place, agreed), tensors),
        }
    }

    fn choose_for_host(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
    ) -> Result<&mut dyn Plane> {
        let wanted = agreed.first().and_then(|agreed| Wanted::of(agreed));
        let (Some(rows), Some(wanted)) = (&mut self.for_host, wanted) else { return Ok(&mut self.host) };
        match rows.choose(group, members, wanted, (&self.locality, None), &self.releases)? {
            Ok(plane) => Ok(plane),
            // What nobody else has, Corro does.
            Err(_) if wanted.op == Some(ReduceOp::Adasum) || wanted.collective == Collective::Barrier => {
                Ok(&mut self.host)
            }
            Err(choice) => Err(Error::Usage(format!(
                "{wanted} is to be done by what CORRO_CPU_OPERATIONS (HOROVOD_CPU_OPERATIONS) asks for, which can't: {choice}. \
                 Without it Corro's own connections are used"
            ))),
        }
    }

    fn choose_for_gpus(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        (place, agreed): (MemoryPlace, &[Arc<Agreed>]),
        tensors: &[Tensor],
    ) -> Result<&mut dyn Plane> {
        // What is compressed goes through the host: the links that it is for are no faster than that.
        let first = agreed.first().filter(|_| place == MemoryPlace::Gpu && !is_compressed(agreed));
        let wanted = first.and_then(|agreed| Wanted::of(agreed));
        let device = tensors.iter().find_map(Tensor::device);
        if let Some(wanted) = wanted
            && let Ok(plane) = self.for_gpus.choose(group, members, wanted, (&self.locality, device), &self.releases)?
        {
            return Ok(plane);
        }
        // Where all are in the memory of GPUs, also who has joined and brings nothing does as the others.
        if place != MemoryPlace::Gpu && !tensors.iter().any(Tensor::is_on_device) {
            return Ok(&mut self.host);
        }
        if self.staged.is_none() {
            let staging = self.staging.as_ref();
            let staging = staging.ok_or_else(|| Error::Bug("GPU memory in an engine that takes none".into()))?;
            self.staged = Some(staging(self.pool.clone())?);
        }
        let staged = self.staged.as_mut().ok_or_else(|| Error::Bug("a plane just made is gone".into()))?;
        Ok(&mut **staged)
    }
}

#[cfg(test)]
mod tests {
    use corro_core::config::{GPU_PLANE, Kind};

    use super::*;

    #[test]
    fn users_can_ask_for_every_row_and_for_none() {
        let rows = Table::standard().rows;
        let names: Vec<&str> = rows.iter().map(|row| row.name()).chain([STAGED, CudaMpi.name()]).collect();
        assert!(matches!(GPU_PLANE.kind, Kind::OneOf(known) if known == names), "{names:?}");
    }
}
