//! The plane of MPI does what the plane of the host does, with each binary interface: real `mpiexec`s of Open MPI and MPICH, which
//! `scripts/mpi_env` installs.

#[path = "../suite/support/mod.rs"]
#[allow(dead_code, reason = "a part is enough here")]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corro_agreement::request::MemoryPlace;
use corro_collectives::Group;
use corro_planes::{Facts, Memory, MpiRow, Plane, Row, Wanted, exchange};
use corro_testing::{Folder, skip};
use corro_transport::Fabric;

use crate::support::cases::{Kit, every_case, large_cases};
use crate::support::world;

/// Nothing here may take longer.
const HANG_LIMIT: Duration = Duration::from_secs(120);
/// Set in a rank.
const RANK: &str = "CORRO_TEST_MPI_RANK";

struct OnMpi {
    plane: Box<dyn Plane>,
    facts: Vec<Facts>,
}

impl OnMpi {
    fn open(fabric: &Fabric, group: &mut Group) -> Self {
        let mut mine = Facts { host: fabric.card(fabric.rank()).locality.clone(), ..Facts::default() };
        MpiRow.describe(&mut mine, None);
        let members = world(group.size());
        let facts = exchange(group, &members, &mine, 8192).expect("telling facts");
        let opened = MpiRow.open(group, &members, &facts, None).expect("opening the plane");
        Self { plane: opened.unwrap_or_else(|why| panic!("MPI could not be opened: {why}")), facts }
    }
}

impl Kit for OnMpi {
    fn plane(&mut self) -> &mut dyn Plane {
        &mut *self.plane
    }

    fn place(&self) -> MemoryPlace {
        MemoryPlace::Host
    }

    fn make(&self, bytes: &[u8]) -> Memory {
        bytes.to_vec().into()
    }

    fn read(&self, memory: &Memory) -> Vec<u8> {
        memory.host().unwrap().as_slice().to_vec()
    }

    fn serves(&self, wanted: Wanted) -> bool {
        MpiRow.why_not(wanted, &self.facts).is_none()
    }
}

#[test]
#[ignore = "a rank that other tests start"]
#[expect(clippy::disallowed_methods, reason = "a variable of this test")]
fn rank_process() {
    if std::env::var_os(RANK).is_none() {
        return;
    }
    let fabric = Fabric::from_env().expect("joining the job");
    let mut group = Group::world(&fabric).expect("opening the world");
    let mut kit = OnMpi::open(&fabric, &mut group);
    every_case(&mut kit, &mut group);
    large_cases(&mut kit, &mut group);
    group.barrier().expect("the last barrier");
    println!("@rank {} is right, on one of {} hosts", fabric.rank(), group.seats(false).hosts);
}

fn conforms(test: &str, mpi: &str, library: &str, sizes: &[usize]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv-mpi");
    if !folder.exists() {
        return skip(test, ".venv-mpi is not there: run scripts/mpi_env");
    }
    let folder = folder.join(mpi).canonicalize().unwrap();
    for size in sizes {
        let said = mpiexec(&folder, library, *size, 0);
        for rank in 0..*size {
            assert!(said.contains(&format!("@rank {rank} is right")), "{mpi}, {library}, {size} ranks:\n{said}");
        }
    }
}

/// What the ranks say, if all end well. With `per_host`, ranks take so many of them for a host's.
fn mpiexec(folder: &Path, library: &str, size: usize, per_host: usize) -> String {
    let meeting = Folder::new("mpi");
    let (out, program): (PathBuf, PathBuf) = (meeting.join("out"), std::env::current_exe().unwrap());
    let mut command = Command::new(folder.join("bin/mpiexec"));
    if folder.ends_with("openmpi") {
        // Ranks of MPI spin; more of them than cores must not.
        command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
    }
    command.args(["-n", &size.to_string()]);
    if per_host > 0 {
        let host = format!("h$(( ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} / {per_host} ))");
        command.args(["sh", "-c", &format!("CORRO_HOSTNAME={host} exec \"$0\" \"$@\"")]);
    }
    command.arg(program);
    command.args(["rank_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(RANK, "1").env("CORRO_MPI_LIBRARY", folder.join("lib").join(library));
    command.env("XDG_RUNTIME_DIR", meeting.path()).env("CORRO_TIMEOUT", "60");
    let file = std::fs::File::create(&out).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().expect("starting mpiexec");
    let began = Instant::now();
    let code = loop {
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        if began.elapsed() > HANG_LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{} hangs:\n{}", folder.display(), std::fs::read_to_string(&out).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&out).unwrap()).into_owned();
    assert!(code.success(), "{said}");
    said
}

/// Ranks of a host reduce among themselves first, and counterparts by MPI; also where a host has fewer than the others.
#[test]
fn by_hosts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv-mpi");
    if !folder.exists() {
        return skip("by_hosts", ".venv-mpi is not there: run scripts/mpi_env");
    }
    for (mpi, library, size) in [("openmpi", "libmpi.so.40", 4), ("mpich", "libmpi_abi.so.1", 3)] {
        let said = mpiexec(&folder.join(mpi).canonicalize().unwrap(), library, size, 2);
        for rank in 0..size {
            assert!(said.contains(&format!("@rank {rank} is right, on one of 2 hosts")), "{mpi}:\n{said}");
        }
    }
}

#[test]
fn open_mpi() {
    conforms("open_mpi", "openmpi", "libmpi.so.40", &[2, 3]);
}

#[test]
fn mpich_in_the_standards_interface() {
    conforms("mpich_in_the_standards_interface", "mpich", "libmpi_abi.so.1", &[2, 3]);
}

#[test]
fn mpich_in_its_own_interface() {
    conforms("mpich_in_its_own_interface", "mpich", "libmpi.so.12", &[2, 3]);
}
