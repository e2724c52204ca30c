//! A plane on a real GPU, and a rank that has one.

use std::sync::Arc;

use corro_agreement::request::MemoryPlace;
use corro_collectives::Group;
use corro_cuda::{Allocation, BlockPool, Device, Pinned, Stream, driver};
use corro_planes::{CudaIpc, CudaStaging, DeviceMemory, Facts, Host, Memory, Plane, Row, Wanted, exchange, nccl_rows};
use corro_testing::job;
use corro_transport::Fabric;

use crate::support::cases::Kit;
use crate::support::world;

/// What the tests call the plane that goes through host memory, as users do.
const STAGED: &str = "staged";

/// See the module.
pub(crate) struct OnGpu {
    plane: Box<dyn Plane>,
    row: Option<Arc<dyn Row>>,
    facts: Vec<Facts>,
    device: Device,
    stream: Stream,
}

impl OnGpu {
    /// All ranks open the plane of this name together.
    pub(crate) fn open(name: &str, fabric: &Fabric, group: &mut Group) -> Self {
        let device = driver().expect("a GPU").device(0).expect("a GPU");
        let stream = Stream::new(&device).unwrap();
        if name == STAGED {
            let plane = Box::new(CudaStaging::new(None, Host::default()));
            return Self { plane, row: None, facts: vec![], device, stream };
        }
        let [hierarchical, nccl] = nccl_rows();
        let rows: [Arc<dyn Row>; 3] = [Arc::new(CudaIpc), hierarchical, nccl];
        let row = rows.into_iter().find(|row| row.name() == name).expect("a plane of this name");
        let mut mine = Facts { host: fabric.card(fabric.rank()).locality.clone(), ..Facts::default() };
        row.describe(&mut mine, Some(0));
        assert!(mine.number(name).is_some(), "this machine can't test {name}: {:?}", mine.abilities);
        let members = world(group.size());
        let facts = exchange(group, &members, &mine, 8192).expect("telling facts");
        let opened = row.open(group, &members, &facts, Some(0)).expect("opening the plane");
        let plane = opened.unwrap_or_else(|why| panic!("{name} could not be opened: {why}"));
        Self { plane, row: Some(row), facts, device, stream }
    }

    /// Why the plane does not serve such batches.
    pub(crate) fn why_not(&self, wanted: Wanted) -> Option<String> {
        self.row.as_ref().and_then(|row| row.why_not(wanted, &self.facts))
    }
}

impl Kit for OnGpu {
    fn plane(&mut self) -> &mut dyn Plane {
        &mut *self.plane
    }

    fn place(&self) -> MemoryPlace {
        MemoryPlace::Gpu
    }

    fn make(&self, bytes: &[u8]) -> Memory {
        let lease = BlockPool::new(0).take(bytes.len(), |bytes| Allocation::new(&self.device, bytes)).unwrap();
        let memory = DeviceMemory::own(lease, bytes.len()).unwrap();
        let mut pinned = Pinned::new(&self.device, bytes.len()).unwrap();
        pinned.bytes_mut().copy_from_slice(bytes);
        self.stream.copy(memory.span(), pinned.span().part(0..bytes.len()).unwrap()).unwrap();
        self.stream.synchronize().unwrap();
        memory.into()
    }

    fn read(&self, memory: &Memory) -> Vec<u8> {
        let Some(memory) = memory.device() else { return memory.host().unwrap().as_slice().to_vec() };
        let pinned = Pinned::new(&self.device, memory.len()).unwrap();
        self.stream.copy(pinned.span().part(0..memory.len()).unwrap(), memory.span()).unwrap();
        self.stream.synchronize().unwrap();
        pinned.bytes()[..memory.len()].to_vec()
    }

    fn serves(&self, wanted: Wanted) -> bool {
        self.why_not(wanted).is_none()
    }
}

/// Starts ranks that find each other. NCCL takes each for one on a host of its own, since it refuses to share a GPU; `near` of
/// them are on a host, as far as Corro goes.
pub(crate) fn start(test: impl Fn(), role: &str, size: usize, near: usize) -> job::Job {
    let plan = job::Plan::new(test, role, size).adapt(|rank, command| {
        command
            .env("NCCL_HOSTID", format!("rank{rank}"))
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("CORRO_HOSTNAME", format!("host{}", rank / near));
    });
    plan.start()
}
