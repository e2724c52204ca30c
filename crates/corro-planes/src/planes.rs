//! The planes of one process set, and the table they come from.
//!
//! Owns the planes that are in use, and what members know of each other. They outlive the group, which is handed to each
//! call: after a withdrawal that is another one, and the planes stay.

use std::fmt;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Place;
use corro_collectives::Group;
use corro_core::{Error, Rank, Result, config};

use crate::choice::{Choice, choose};
use crate::cuda::{CudaIpc, Staging as CudaStaging, nccl_rows};
use crate::exchange::exchange;
use crate::facts::{FACTS_CAP, Facts};
use crate::host::{HOST, Host};
use crate::ledgers::Ledgers;
use crate::plane::{Plane, Pool, Releases, Row, Wanted};
use crate::tensor::Tensor;

/// What users call the way of a GPU's tensors through host memory.
const STAGED: &str = "staged";

/// Makes the plane that carries tensors between GPUs and the host, and there does what [`Host`] does. To the other members
/// the two are the same, so each uses whichever of them its own memory asks for.
pub type Staging = Arc<dyn Fn(Option<Pool>) -> Result<Box<dyn Plane>> + Send + Sync>;

/// Which planes there are. The same on all ranks of a job, whatever their hardware. By default only the host's.
#[derive(Clone, Default)]
pub struct Table {
    rows: Vec<Arc<dyn Row>>,
    staging: Option<Staging>,
    forced: Option<String>,
    ledgers: Ledgers,
}

impl Table {
    /// For tensors in the memory of GPUs: the rows in the order in which they are asked, and what serves where all decline.
    pub fn new(rows: Vec<Arc<dyn Row>>, staging: Staging) -> Self {
        Self { rows, staging: Some(staging), forced: None, ledgers: Ledgers::default() }
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

    /// The same, with the plane that the environment asks for.
    ///
    /// # Errors
    /// It names none of them.
    pub fn from_env() -> Result<Self> {
        let Some(wish) = config::GPU_PLANE.value() else { return Ok(Self::standard()) };
        let wish = wish.trim().to_ascii_lowercase();
        config::GPU_PLANE.check(&wish, config::GPU_PLANE.name)?;
        // To the other members what is staged is as if it lay on the host.
        let plane = if wish == STAGED { HOST.to_owned() } else { wish };
        Ok(Self::standard().forced(Some(plane)))
    }

    /// The same, with a plane that the user asks for. If it can't serve a batch, that is an error.
    #[must_use]
    pub fn forced(self, plane: Option<String>) -> Self {
        Self { forced: plane, ..self }
    }

    /// What compression remembers, of all process sets.
    pub const fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    /// Whether tensors may be handed over in the memory of GPUs.
    pub const fn takes_device_memory(&self) -> bool {
        self.staging.is_some()
    }

    /// What this process says about itself.
    fn describe(&self, host: &str, device: Option<usize>) -> Facts {
        let mut facts = Facts { host: host.to_owned(), forced: self.forced.clone(), ..Facts::default() };
        for row in &self.rows {
            row.describe(&mut facts, device);
        }
        facts
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rows.iter().map(|row| row.name())).finish()
    }
}

/// See the module.
pub struct Planes {
    table: Table,
    /// Where this process runs.
    locality: String,
    host: Host,
    staged: Option<Box<dyn Plane>>,
    /// By their rows in the table.
    open: Vec<Option<Box<dyn Plane>>>,
    /// Why a row was tried and given up, by all members.
    struck: Vec<Option<String>>,
    /// Of all members; none until a batch asks for them.
    facts: Vec<Facts>,
    /// What was chosen before.
    chosen: Vec<(Wanted, Option<usize>)>,
    releases: Releases,
    pool: Option<Pool>,
}

impl Planes {
    /// Those of a process set. `locality` is the same in all processes that could share memory.
    pub fn new(table: Table, locality: String, releases: Releases) -> Self {
        let host = Host::new(table.ledgers.clone());
        let open = table.rows.iter().map(|_| None).collect();
        let struck = vec![None; table.rows.len()];
        Self {
            table,
            locality,
            host,
            staged: None,
            open,
            struck,
            facts: Vec::new(),
            chosen: Vec::new(),
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
        match agreed.first().map_or(Place::Host, |first| first.place) {
            Place::Host => Ok(&mut self.host),
            place => self.choose_for_gpus(group, members, (place, agreed), tensors),
        }
    }

    fn choose_for_gpus(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        (place, agreed): (Place, &[Arc<Agreed>]),
        tensors: &[Tensor],
    ) -> Result<&mut dyn Plane> {
        // What is compressed goes through the host: the links that it is for are no faster than that.
        let plain = |agreed: &&Arc<Agreed>| agreed.kind.compression().is_none();
        let first = agreed.first().filter(plain).filter(|_| place == Place::Gpu);
        let wanted = first.and_then(|agreed| Wanted::of(agreed));
        let device = tensors.iter().find_map(Tensor::device);
        let row = wanted.map_or(Ok(None), |wanted| self.row(group, members, wanted, device))?;
        if let Some(row) = row {
            let open = self.open.get_mut(row).and_then(Option::as_mut);
            return Ok(&mut **open.ok_or_else(|| Error::Bug("a plane was chosen and not opened".into()))?);
        }
        // Where all are in the memory of GPUs, also who has joined and brings nothing does as the others.
        if place != Place::Gpu && !tensors.iter().any(Tensor::is_on_device) {
            return Ok(&mut self.host);
        }
        if self.staged.is_none() {
            let staging = self.table.staging.as_ref();
            let staging = staging.ok_or_else(|| Error::Bug("GPU memory in an engine that takes none".into()))?;
            self.staged = Some(staging(self.pool.clone())?);
        }
        let staged = self.staged.as_mut().ok_or_else(|| Error::Bug("a plane just made is gone".into()))?;
        Ok(&mut **staged)
    }

    /// The row that serves such batches.
    fn row(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        wanted: Wanted,
        device: Option<usize>,
    ) -> Result<Option<usize>> {
        if let Some((_, row)) = self.chosen.iter().find(|(before, _)| *before == wanted) {
            return Ok(*row);
        }
        if self.facts.is_empty() {
            let mine = self.table.describe(&self.locality, device);
            self.facts = exchange(group, members, &mine, FACTS_CAP)?;
        }
        let choice = loop {
            let choice = choose(&self.table.rows, &self.struck, members, &self.facts, wanted)?;
            match choice.row {
                Some(row) if self.open[row].is_none() => {
                    match self.table.rows[row].open(group, members, &self.facts, device)? {
                        Ok(plane) => {
                            if let Some(release) = plane.release() {
                                self.releases.add(release);
                            }
                            self.open[row] = Some(plane);
                        }
                        Err(why) => {
                            self.struck[row] = Some(why);
                            continue;
                        }
                    }
                }
                _ => {}
            }
            break choice;
        };
        // All members would say the same.
        if group.rank() == 0 {
            self.tell(members[0], wanted, &choice);
        }
        self.chosen.push((wanted, choice.row));
        Ok(choice.row)
    }

    fn tell(&self, rank: Rank, wanted: Wanted, choice: &Choice) {
        let plane = choice.row.map_or("host memory", |row| self.table.rows[row].name());
        let why = if choice.why_not.is_empty() { String::new() } else { format!(", since {choice}") };
        tracing::info!(rank = rank.index(), "{wanted} on GPUs goes by {plane}{why}");
    }
}

#[cfg(test)]
mod tests {
    use corro_core::config::{GPU_PLANE, Kind};

    use super::*;

    #[test]
    fn users_can_ask_for_every_row_and_for_none() {
        let rows = Table::standard().rows;
        let names: Vec<&str> = rows.iter().map(|row| row.name()).chain([STAGED]).collect();
        assert!(matches!(GPU_PLANE.kind, Kind::OneOf(known) if known == names), "{names:?}");
    }
}
