//! The rows of the planes that use NCCL: alone, and between hosts whose members reduce among themselves first.

use std::sync::{Arc, OnceLock};

use corro_collectives::{Collective, Group};
use corro_core::{Error, Rank, Result, config};
use corro_cuda::{Device, Nccl, nccl};

use super::hierarchical::{self, Hierarchical};
use super::nccl::{self as plane, NcclPlane};
use super::row::{MOST_MEMBERS, home};
use super::teams::{sharing, teams};
use crate::facts::Facts;
use crate::plane::{Plane, Row, Verdict, Wanted};

/// The longest name of a host that is told.
const NAME_CAP: usize = 200;

/// NCCL, looked for once: when a job has tensors of GPUs.
#[derive(Clone, Debug, Default)]
struct Library(Arc<OnceLock<Result<Nccl>>>);

impl Library {
    fn get(&self) -> Result<Nccl> {
        self.0.get_or_init(|| Nccl::open(&[])).clone()
    }

    /// Adds to the facts what planes that use it must know; gives the GPU and NCCL's version.
    fn describe(&self, facts: &mut Facts, device: Option<usize>) -> Result<(Device, u64)> {
        let device = home(device)?;
        facts.gpu = Some(device.uuid()?);
        facts.nccl_host = config::foreign("NCCL_HOSTID").map(|name| name.chars().take(NAME_CAP).collect());
        Ok((device, self.get()?.version().into()))
    }
}

/// Both rows, in the order in which they are asked.
pub fn nccl_rows() -> [Arc<dyn Row>; 2] {
    let library = Library::default();
    [Arc::new(CudaHierarchical(library.clone())), Arc::new(CudaNccl(library))]
}

/// The row of [`NcclPlane`].
#[derive(Debug, Default)]
struct CudaNccl(Library);

/// The row of [`Hierarchical`].
#[derive(Debug, Default)]
struct CudaHierarchical(Library);

impl Row for CudaNccl {
    fn name(&self) -> &'static str {
        plane::NAME
    }

    fn describe(&self, facts: &mut Facts, device: Option<usize>) {
        let able = self.0.describe(facts, device);
        facts.says(plane::NAME, able.map(|(_, version)| version).map_err(|error| error.to_string()));
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        let everyone: Vec<usize> = (0..facts.len()).collect();
        lacks(wanted, facts, plane::NAME).or_else(|| sharing(facts, &everyone))
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        _facts: &[Facts],
        device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let opened = NcclPlane::open(group, members, &self.0.get()?, &home(device)?)?;
        Ok(opened.map(|plane| Box::new(plane) as Box<dyn Plane>))
    }
}

impl Row for CudaHierarchical {
    fn name(&self) -> &'static str {
        hierarchical::NAME
    }

    fn describe(&self, facts: &mut Facts, device: Option<usize>) {
        let able = self.0.describe(facts, device).and_then(|(device, version)| Ok((device.has_signals()?, version)));
        let ability = match able {
            _ if !config::HIERARCHICAL_ALLREDUCE.flag(true) => {
                Err(format!("{} is 0", config::HIERARCHICAL_ALLREDUCE.name))
            }
            Ok((true, version)) => Ok(version),
            Ok((false, _)) => Err("its driver has no stream memory operations (CUDA 12 has them)".into()),
            Err(error) => Err(error.to_string()),
        };
        facts.says(hierarchical::NAME, ability);
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        if wanted.collective != Collective::Allreduce {
            return Some("it has no other collective than allreduce".into());
        }
        if let Some(why) = lacks(wanted, facts, hierarchical::NAME) {
            return Some(why);
        }
        let teams = match teams(facts) {
            Ok(teams) => teams,
            Err(why) => return Some(why),
        };
        let near = teams.first().map_or(0, |teams| teams.near.len());
        if near > MOST_MEMBERS {
            return Some(format!("{near} members on a host are more than {MOST_MEMBERS}"));
        }
        teams.iter().find_map(|teams| sharing(facts, &teams.across))
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        facts: &[Facts],
        device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let teams = teams(facts).map_err(Error::Bug)?;
        let mine = teams.get(group.rank()).ok_or_else(|| Error::Bug("a member without a team".into()))?;
        let opened = Hierarchical::open(group, members, mine, (&self.0.get()?, home(device)?))?;
        Ok(opened.map(|plane| Box::new(plane) as Box<dyn Plane>))
    }
}

/// What NCCL has not, or which members have it in different versions: those of one communicator must be alike.
fn lacks(wanted: Wanted, facts: &[Facts], name: &str) -> Option<String> {
    if wanted.collective == Collective::Barrier {
        return Some("nothing is to be moved".into());
    }
    if let Some(op) = wanted.op
        && !nccl::reduces(wanted.dtype, op)
    {
        return Some(format!("NCCL has no {op} of {}", wanted.dtype));
    }
    let version = |facts: &Facts| facts.number(name).unwrap_or(0);
    let first = facts.first().map(version)?;
    let (member, other) = facts.iter().map(version).enumerate().find(|(_, other)| *other != first)?;
    let text = |v: u64| format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100);
    Some(format!("member 0 has NCCL {}, member {member} {}", text(first), text(other)))
}

#[cfg(test)]
mod tests {
    use corro_core::{DType, ReduceOp};

    use super::*;

    const SUM: Wanted = Wanted { collective: Collective::Allreduce, op: Some(ReduceOp::Sum), dtype: DType::F32 };

    fn facts(host: &str, gpu: u8, version: u64) -> Facts {
        let mut facts = Facts { host: host.into(), gpu: Some([gpu; 16]), ..Facts::default() };
        facts.says(plane::NAME, Ok(version));
        facts.says(hierarchical::NAME, Ok(version));
        facts
    }

    #[test]
    fn nccl_serves_what_it_has_on_gpus_of_their_own() {
        let row = CudaNccl::default();
        let two = [facts("a", 1, 22809), facts("b", 2, 22809)];
        assert_eq!(row.why_not(SUM, &two), None);
        let moved = Wanted { collective: Collective::Alltoall, op: None, dtype: DType::Bool };
        assert_eq!(row.why_not(moved, &two), None);
        let why = |wanted, facts: &[Facts]| row.why_not(wanted, facts).unwrap();
        assert_eq!(why(Wanted { dtype: DType::I16, ..SUM }, &two), "NCCL has no Sum of int16");
        assert!(why(Wanted { op: Some(ReduceOp::Adasum), ..SUM }, &two).contains("Adasum"));
        assert!(why(SUM, &[facts("a", 1, 22809), facts("a", 1, 22809)]).contains("share a GPU"));
        let old = [facts("a", 1, 22809), facts("b", 2, 21403)];
        assert_eq!(why(SUM, &old), "member 0 has NCCL 2.28.9, member 1 2.14.3");
    }

    #[test]
    fn hierarchical_takes_allreduces_of_several_hosts_with_several_members() {
        let row = CudaHierarchical::default();
        let four = [facts("a", 1, 22809), facts("a", 1, 22809), facts("b", 2, 22809), facts("b", 2, 22809)];
        // Those of one host may share a GPU: NCCL does not see them together.
        assert_eq!(row.why_not(SUM, &four), None);
        assert!(row.why_not(SUM, &four[..2]).unwrap().contains("one host"));
        let moved = Wanted { collective: Collective::Allgather, op: None, dtype: DType::F32 };
        assert!(row.why_not(moved, &four).unwrap().contains("no other collective"));
        let same = [facts("a", 1, 1), facts("a", 2, 1), facts("b", 1, 1), facts("b", 2, 1)];
        assert!(row.why_not(SUM, &same).unwrap().contains("members 0 and 2 share a GPU"));
    }
}
