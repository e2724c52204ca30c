//! A member that does not come to a batch: the device of the others waits until it is let go on, and goes on then.

use std::time::{Duration, Instant};

use corro_agreement::request::MemoryPlace;
use corro_collectives::Group;
use corro_core::{DType, Deadline, ReduceOp};
use corro_planes::{Done, Output, Tensor};
use corro_testing::job;
use corro_transport::Fabric;
use std::sync::Arc;

use crate::kit::{OnGpu, start};
use crate::support::cases::Kit;
use crate::support::{agreed, allreduce, world};

fn goes_on(plane: &str, size: usize, near: usize) {
    let mut job = start(lost_rank_process, plane, size, near);
    job.expect(0..size, "ran once");
    job.expect(0..size - 1, "waits");
    job.expect(0..size - 1, "went on");
    job.go(size - 1);
    job.all_end_well();
    println!("{plane}: a member that does not come is no reason to hang");
}

/// Runs one batch, and gives when the device is done.
fn run(kit: &mut OnGpu, group: &mut Group) -> Arc<dyn Done> {
    let agreed = [agreed(allreduce(ReduceOp::Sum), DType::F32, &[1000], MemoryPlace::Gpu)];
    let mut tensors = [Tensor::new(None, Output::InPlace(kit.make(&[0; 4000])))];
    let members = world(group.size());
    let outcome = kit.plane().run(group, &members, &agreed, &mut tensors, false).unwrap().remove(0).unwrap();
    outcome.after.expect("a device that is done later")
}

#[test]
#[ignore = "a rank that other tests start; needs a GPU"]
fn lost_rank_process() {
    let Some(plane) = job::role() else { return };
    let fabric = Fabric::from_env().expect("joining the job");
    let mut group = Group::world(&fabric).expect("opening the world");
    let mut kit = OnGpu::open(&plane, &fabric, &mut group);
    run(&mut kit, &mut group).wait(Deadline::after(Duration::from_secs(20))).unwrap();
    job::say("ran once");
    if group.rank() + 1 == group.size() {
        // It lives, and does not come.
        job::wait_for_go();
        return;
    }
    let after = run(&mut kit, &mut group);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(after.is_done(), Ok(false), "the device did not wait");
    job::say("waits");
    let (release, start) = (kit.plane().release().expect("a way to go on"), Instant::now());
    release().expect("letting the device go on");
    after.wait(Deadline::after(Duration::from_secs(20))).expect("the device goes on");
    println!("{plane}: went on after {:?}", start.elapsed());
    job::say("went on");
}

#[test]
#[ignore = "needs a GPU"]
fn of_cuda_ipc() {
    goes_on("cuda-ipc", 2, 2);
}

#[test]
#[ignore = "needs a GPU"]
fn of_nccl() {
    goes_on("nccl", 2, 2);
}

#[test]
#[ignore = "needs a GPU"]
fn of_both() {
    goes_on("hierarchical", 4, 2);
}
