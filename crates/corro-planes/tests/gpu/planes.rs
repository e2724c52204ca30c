//! The table of cases, on each plane.

use corro_collectives::{Collective, Group};
use corro_core::{DType, ReduceOp};
use corro_planes::Wanted;
use corro_testing::job;
use corro_transport::Fabric;

use crate::kit::{OnGpu, start};
use crate::support::cases::{every_case, large_cases};

const SUM: Wanted = Wanted { collective: Collective::Allreduce, op: Some(ReduceOp::Sum), dtype: DType::F32 };

fn conforms(plane: &str, size: usize, near: usize) {
    let mut job = start(plane_rank_process, plane, size, near);
    for part in ["opened", "every case is right", "large tensors are right"] {
        job.expect(0..size, part);
    }
    job.all_end_well();
    println!("{plane}: {size} ranks, {near} a host: all right");
}

#[test]
#[ignore = "a rank that other tests start; needs a GPU"]
fn plane_rank_process() {
    let Some(plane) = job::role() else { return };
    let fabric = Fabric::from_env().expect("joining the job");
    let mut group = Group::world(&fabric).expect("opening the world");
    let mut kit = OnGpu::open(&plane, &fabric, &mut group);
    assert_eq!(kit.why_not(SUM), None, "{plane} serves nothing");
    job::say("opened");
    every_case(&mut kit, &mut group);
    job::say("every case is right");
    large_cases(&mut kit, &mut group);
    job::say("large tensors are right");
    group.barrier().expect("the last barrier");
}

#[test]
#[ignore = "needs a GPU"]
fn cuda_ipc() {
    for size in [2, 4] {
        conforms("cuda-ipc", size, size);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn nccl() {
    conforms("nccl", 2, 2);
    conforms("nccl", 3, 1);
}

#[test]
#[ignore = "needs a GPU"]
fn hierarchical() {
    conforms("hierarchical", 4, 2);
}

#[test]
#[ignore = "needs a GPU"]
fn staged() {
    conforms("staged", 2, 2);
    conforms("staged", 3, 1);
}
