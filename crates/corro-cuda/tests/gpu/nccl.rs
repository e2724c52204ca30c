//! NCCL: alone, in two processes, and with a rank that does not come.
//!
//! NCCL refuses two ranks on one GPU of one host, so each is told that it is on a host of its own, and they talk by sockets.

use std::path::Path;
use std::time::{Duration, Instant};

use corro_core::{DType, Error, ReduceOp, config};
use corro_cuda::{Communicator, Nccl, UniqueId, driver};
use corro_testing::{Folder, job, skip, wait_until};

use crate::support::Gpu;

const TIMEOUT: Duration = Duration::from_secs(50);

/// CUDA first, so that a host without it says so; none if NCCL is not there.
fn nccl() -> Option<Nccl> {
    driver().unwrap();
    match Nccl::open(&[]) {
        Ok(nccl) => Some(nccl),
        Err(why) => {
            skip("nccl", &why.to_string());
            None
        }
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn a_group_of_one_has_its_own_data() {
    let Some(nccl) = nccl() else { return };
    println!("{nccl:?}");
    let gpu = Gpu::new();
    let id = nccl.unique_id().unwrap();
    let mut alone = Communicator::init(&nccl, &id, (0, 1), &gpu.device, || None, TIMEOUT).unwrap();
    let from = gpu.with(&floats(&[1.0, 2.0, 3.0]));
    let to = gpu.allocate(12);
    alone.all_reduce(&gpu.stream, DType::F32, ReduceOp::Sum, &[(to.span(), from.span())]).unwrap();
    assert_eq!(gpu.read(to.span()), floats(&[1.0, 2.0, 3.0]));
    alone.check().unwrap();
    assert!(alone.all_reduce(&gpu.stream, DType::Bool, ReduceOp::Sum, &[(to.span(), from.span())]).is_err());
    alone.abort();
    assert!(alone.broadcast(&gpu.stream, &[(to.span(), from.span(), 0)]).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn a_rank_that_does_not_come_is_no_reason_to_hang() {
    let Some(nccl) = nccl() else { return };
    let gpu = Gpu::new();
    let (id, start) = (nccl.unique_id().unwrap(), Instant::now());
    let stop = move || (start.elapsed() > Duration::from_millis(300)).then(|| Error::Bug("called off".into()));
    let error = Communicator::init(&nccl, &id, (0, 2), &gpu.device, stop, TIMEOUT).unwrap_err();
    assert_eq!(error, Error::Bug("called off".into()));
    let id = nccl.unique_id().unwrap();
    let error = Communicator::init(&nccl, &id, (0, 2), &gpu.device, || None, Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("meeting 2 ranks as rank 0"), "{error}");
    assert_eq!(gpu.read(gpu.with(&[1, 2]).span()), [1, 2]);
}

#[test]
#[ignore = "needs a GPU"]
fn two_processes_reduce_gather_and_exchange() {
    if nccl().is_none() {
        return;
    }
    let folder = Folder::new("gpu-nccl");
    let role = folder.path().to_str().unwrap().to_owned();
    let plan = job::Plan::new(nccl_rank_process, &role, 2).adapt(|rank, command| {
        command.env("NCCL_HOSTID", format!("host{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
    });
    let mut job = plan.start();
    job.expect(0..2, "right");
    job.all_end_well();
}

#[test]
#[ignore = "a rank that other tests start; needs a GPU"]
fn nccl_rank_process() {
    let Some(folder) = job::role() else { return };
    let me: usize = config::RANK.number(0).unwrap();
    let (gpu, nccl) = (Gpu::new(), nccl().unwrap());
    let id = meet(&nccl, &folder, me);
    let mut pair = Communicator::init(&nccl, &id, (me, 2), &gpu.device, || None, TIMEOUT).unwrap();
    let mine = [me as f32 + 1.0, 10.0 * me as f32];
    let (from, to, all) = (gpu.with(&floats(&mine)), gpu.allocate(8), gpu.allocate(16));

    pair.all_reduce(&gpu.stream, DType::F32, ReduceOp::Average, &[(to.span(), from.span())]).unwrap();
    assert_eq!(gpu.read(to.span()), floats(&[3.0, 10.0]));
    pair.all_reduce(&gpu.stream, DType::F32, ReduceOp::Min, &[(to.span(), from.span())]).unwrap();
    assert_eq!(gpu.read(to.span()), floats(&[1.0, 0.0]));
    pair.all_gather(&gpu.stream, all.span(), from.span()).unwrap();
    assert_eq!(gpu.read(all.span()), floats(&[1.0, 0.0, 2.0, 10.0]));
    let half = to.span().part(0..4).unwrap();
    pair.reduce_scatter(&gpu.stream, DType::F32, ReduceOp::Max, half, from.span()).unwrap();
    assert_eq!(gpu.read(half), floats(&[[2.0, 10.0][me]]));
    pair.broadcast(&gpu.stream, &[(to.span(), from.span(), 1)]).unwrap();
    assert_eq!(gpu.read(to.span()), floats(&[2.0, 10.0]));
    pair.exchange(&gpu.stream, &[(1 - me, from.span())], &[(1 - me, to.span())]).unwrap();
    assert_eq!(gpu.read(to.span()), floats(&[2.0 - me as f32, 10.0 * (1 - me) as f32]));
    pair.check().unwrap();
    drop(pair);
    job::say("right");
}

/// Rank 0 makes the id and leaves it in the folder.
fn meet(nccl: &Nccl, folder: &str, me: usize) -> UniqueId {
    let (file, unfinished) = (Path::new(folder).join("id"), Path::new(folder).join("id.new"));
    if me == 0 {
        let id = nccl.unique_id().unwrap();
        std::fs::write(&unfinished, postcard::to_allocvec(&id).unwrap()).unwrap();
        std::fs::rename(unfinished, file).unwrap();
        return id;
    }
    wait_until("rank 0 has made an id", TIMEOUT, || file.exists());
    postcard::from_bytes(&std::fs::read(file).unwrap()).unwrap()
}
