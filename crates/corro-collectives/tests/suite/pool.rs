//! Tensors that live in a pool: reduced where they are, to the very bits that private memory would give; and if only some
//! members have theirs there, or have them at other places, reduced all the same.

use std::sync::Arc;

use crate::support::{Transport, settings, with_fabrics};
use corro_collectives::{Group, ReduceOp, Reduction, Tensor};
use corro_core::{DType, GroupId, Rank};
use corro_transport::Fabric;

const TRANSPORTS: [Transport; 2] = [Transport::Threads, Transport::Shm];

/// Of which the first is below what is worth asking where it lies, and the others are not multiples of anything.
const LENGTHS: [&[usize]; 4] = [&[1000], &[300_001], &[7, 0, 400_003, 64, 100_001], &[1, 1 << 20]];

/// Floats whose sum depends on the order in which they are added.
fn numbers(rank: usize, len: usize) -> Vec<u8> {
    let mut x = rank as u32 * 7919 + 1;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / 1000.0 - 8000.0
    };
    (0..len).flat_map(|_| next().to_ne_bytes()).collect()
}

/// Cuts tensors of these lengths out of `memory`, the first beginning at byte `at`, with some room between them.
fn cut<'a>(mut memory: &'a mut [u8], at: usize, lengths: &[usize]) -> Vec<&'a mut [u8]> {
    memory = &mut memory[at..];
    let mut tensors = Vec::new();
    for len in lengths {
        let (tensor, rest) = memory.split_at_mut(4 * len);
        tensors.push(tensor);
        memory = &mut rest[64..];
    }
    tensors
}

fn in_place<'a>(tensors: &'a mut [&mut [u8]]) -> Vec<Tensor<'a>> {
    tensors.iter_mut().map(|tensor| Tensor::in_place(tensor)).collect()
}

fn check(fabric: &Arc<Fabric>, begins_at: impl Fn(usize) -> Option<usize>) {
    let members: Vec<Rank> = Rank::all(fabric.size()).collect();
    let mut group = Group::world(fabric).unwrap();
    let mut shared = fabric.pool(GroupId(77), &members, 8 << 20).unwrap().expect("all are on one host");
    assert!(shared.len() >= 8 << 20 && shared.as_slice().iter().all(|b| *b == 0));
    let mut private = vec![0; shared.len()];
    for lengths in LENGTHS {
        for how in [Reduction::new(DType::F32, ReduceOp::Average), Reduction::new(DType::F32, ReduceOp::Max)] {
            let mut wanted = vec![0; private.len()];
            let fill = |tensors: &mut [&mut [u8]]| {
                for (i, tensor) in tensors.iter_mut().enumerate() {
                    tensor.copy_from_slice(&numbers(fabric.rank().index() + 10 * i, tensor.len() / 4));
                }
            };
            let mut reference = cut(&mut wanted, 0, lengths);
            fill(&mut reference);
            group.allreduce_many(&mut in_place(&mut reference), &how).unwrap();
            let (memory, at) = match begins_at(fabric.rank().index()) {
                Some(at) => (shared.as_mut_slice(), at),
                None => (private.as_mut_slice(), 0),
            };
            let mut tensors = cut(memory, at, lengths);
            fill(&mut tensors);
            group.allreduce_withdrawable(&mut in_place(&mut tensors), &how).unwrap();
            for (got, want) in tensors.iter().zip(&reference) {
                assert!(got == want, "rank {} of {}, {lengths:?}, {how:?}", fabric.rank(), fabric.size());
            }
        }
    }
    group.barrier().unwrap();
}

#[test]
fn a_pool_gives_the_same_bits() {
    for transport in TRANSPORTS {
        for n in [2, 3, 5] {
            with_fabrics(transport, n, &settings(), |fabric| check(fabric, |_| Some(128)));
        }
    }
}

#[test]
fn whoever_is_elsewhere_is_met_elsewhere() {
    with_fabrics(Transport::Shm, 3, &settings(), |fabric| check(fabric, |rank| (rank != 1).then_some(128)));
    with_fabrics(Transport::Shm, 3, &settings(), |fabric| check(fabric, |rank| Some(64 * rank)));
    with_fabrics(Transport::Shm, 2, &settings(), |fabric| check(fabric, |_| None));
}

#[test]
fn a_pool_outlives_groups_and_a_part_of_one_member_can_go() {
    with_fabrics(Transport::Shm, 2, &settings(), |fabric| {
        let members = [0, 1].map(Rank::new);
        let how = Reduction::new(DType::U8, ReduceOp::Sum);
        let mut part = fabric.pool(GroupId(77), &members, 2 << 20).unwrap();
        assert!(part.is_some());
        for id in 0..3 {
            let mut group = Group::open(fabric, GroupId(100 + id), &members).unwrap();
            let mut own = vec![1; 2 << 20];
            if id == 2 && fabric.rank() == Rank::new(1) {
                part = None;
            }
            let data = part.as_mut().map_or(&mut own[..], |part| part.as_mut_slice());
            data.fill(1);
            group.allreduce_bytes(data, &how).unwrap();
            assert!(data.iter().all(|b| *b == 2));
            group.barrier().unwrap();
        }
    });
}

#[test]
fn there_is_none_between_hosts_or_alone() {
    with_fabrics(Transport::ThreadsOnHosts, 3, &settings(), |fabric| {
        assert!(fabric.pool(GroupId(77), &[0, 1, 2].map(Rank::new), 1024).unwrap().is_none());
        assert!(fabric.pool(GroupId(78), &[fabric.rank()], 1024).unwrap().is_none());
    });
}
