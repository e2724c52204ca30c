//! The row of the plane of CUDA IPC: members on one host, whose GPUs reach each other.

use corro_collectives::{Collective, Group};
use corro_core::{Rank, ReduceOp, Result};
use corro_cuda::{Device, driver};

use super::ipc::{Ipc, NAME};
use crate::facts::Facts;
use crate::plane::{Plane, Row, Verdict, Wanted};

/// As many as a kernel has room for.
pub(super) const MOST_MEMBERS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct CudaIpc;

impl Row for CudaIpc {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self, facts: &mut Facts, device: Option<usize>) {
        let able = home(device).and_then(|device| Ok((device.uuid()?, device.has_signals()?)));
        let ability = match able {
            Ok((uuid, true)) => {
                facts.gpu = Some(uuid);
                Ok(1)
            }
            Ok((_, false)) => Err("its driver has no stream memory operations (CUDA 12 has them)".into()),
            Err(error) => Err(error.to_string()),
        };
        facts.says(NAME, ability);
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        let first = facts.first()?;
        if facts.iter().any(|facts| facts.host != first.host) {
            return Some("members are on several hosts, or in containers that share no memory".into());
        }
        if facts.len() > MOST_MEMBERS {
            return Some(format!("{} members are more than {MOST_MEMBERS}", facts.len()));
        }
        if wanted.collective == Collective::Barrier {
            return Some("nothing is to be moved".into());
        }
        (wanted.op == Some(ReduceOp::Adasum)).then(|| "it has no Adasum".into())
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        _facts: &[Facts],
        device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let opened = Ipc::open(group, members, home(device)?)?;
        Ok(opened.map(|plane| Box::new(plane) as Box<dyn Plane>))
    }
}

/// The GPU that this member works on: where its first tensor lies; one that brings none uses the first.
pub(super) fn home(device: Option<usize>) -> Result<Device> {
    driver()?.device(device.unwrap_or(0))
}
