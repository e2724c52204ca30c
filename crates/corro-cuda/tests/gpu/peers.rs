//! Memory and events of another process.

use std::path::Path;

use corro_core::{DType, ReduceOp, config};
use corro_cuda::{Event, EventHandle, MappingCache, Piece, Reduction, SharedMemory, sharing};
use corro_testing::{Folder, job};

use crate::support::Gpu;

const ELEMENTS: usize = 1 << 20;
const BYTES: usize = 4 * ELEMENTS;

#[test]
#[ignore = "needs a GPU"]
fn two_processes_add_up_in_each_others_memory() {
    let folder = Folder::new("gpu-peers");
    let role = folder.path().to_str().unwrap().to_owned();
    let mut job = job::Plan::new(rank_process, &role, 2).start();
    for step in ["shown", "recorded", "reduced"] {
        job.expect(0..2, step);
        job.go_all();
    }
    job.expect(0..2, "right");
    job.all_end_well();
}

/// Each rank adds up its half and writes it to both.
#[test]
#[ignore = "a rank that other tests start; needs a GPU"]
fn rank_process() {
    let Some(folder) = job::role() else { return };
    let me: usize = config::RANK.number(0).unwrap();
    let gpu = Gpu::new();
    let host: Vec<u8> = vec![me as f32 + 1.0; ELEMENTS].iter().flat_map(|x| x.to_ne_bytes()).collect();
    // A tensor inside a larger allocation, as frameworks have it.
    let allocation = gpu.allocate(BYTES + 4096);
    let mine = allocation.span().part(1024..1024 + BYTES).unwrap();
    let (ready, done) = (Event::shared(&gpu.device).unwrap(), Event::shared(&gpu.device).unwrap());
    let shared = sharing::share(&gpu.device, mine.address()).unwrap().unwrap();
    show(&folder, me, &(shared, mine.address() - shared.base, ready.handle().unwrap(), done.handle().unwrap()));
    job::say("shown");
    job::wait_for_go();

    let (theirs, offset, their_ready, their_done) = see(&folder, 1 - me);
    gpu.write(mine, &host);
    gpu.stream.record(&ready).unwrap();
    job::say("recorded");
    job::wait_for_go();

    let mut cache = MappingCache::new(gpu.device.clone(), 4);
    let mapping = cache.get(1 - me, &theirs).unwrap();
    let theirs = mapping.span().part(offset as usize..offset as usize + BYTES).unwrap();
    let (their_ready, their_done) =
        (Event::open(&gpu.device, their_ready).unwrap(), Event::open(&gpu.device, their_done).unwrap());
    gpu.stream.wait(&their_ready).unwrap();
    let half = [Piece { from: me * BYTES / 2, to: me * BYTES / 2, count: ELEMENTS / 2 }];
    let both = if me == 0 { [mine, theirs] } else { [theirs, mine] };
    let sum = Reduction::new(DType::F32, ReduceOp::Sum);
    gpu.kernels.combine(&gpu.stream, &sum, &both, &both, &half).unwrap();
    gpu.stream.record(&done).unwrap();
    job::say("reduced");
    job::wait_for_go();

    gpu.stream.wait(&their_done).unwrap();
    let expected: Vec<u8> = vec![3.0f32; ELEMENTS].iter().flat_map(|x| x.to_ne_bytes()).collect();
    assert!(gpu.read(mine) == expected);
    job::say("right");
}

/// What a rank shows the other: its allocation, where in it the tensor begins, and its two events.
type Shown = (SharedMemory, u64, EventHandle, EventHandle);

fn show(folder: &str, rank: usize, shown: &Shown) {
    std::fs::write(Path::new(folder).join(rank.to_string()), postcard::to_allocvec(shown).unwrap()).unwrap();
}

fn see(folder: &str, rank: usize) -> Shown {
    postcard::from_bytes(&std::fs::read(Path::new(folder).join(rank.to_string())).unwrap()).unwrap()
}
