//! Groups over some of the ranks: any subset, several at once, one after the other under the same number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Transport, settings, with_fabrics};
use corro_collectives::{Algorithm, Error, Group, ReduceOp};
use corro_core::{GroupId, Rank};
use corro_testing::wait_until;
use corro_transport::{Fabric, Settings};

const TRANSPORTS: [Transport; 5] =
    [Transport::Threads, Transport::ThreadsOnHosts, Transport::Shm, Transport::Tcp, Transport::TcpAndShm];

/// Others are through long before.
const SOON: Duration = Duration::from_secs(60);

/// Ranks of the jobs here.
const RANKS: usize = 5;

fn ranks(numbers: &[usize]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank::new).collect()
}

/// Opens the group and checks every collective once.
fn open_and_use(fabric: &Arc<Fabric>, id: u64, members: &[usize]) {
    let mut group = Group::open(fabric, GroupId(id), &ranks(members)).expect("opening a group");
    use_once(&mut group, fabric.rank().index(), members);
    group.barrier().expect("the last barrier");
}

fn use_once(group: &mut Group, rank: usize, members: &[usize]) {
    let case = format!("rank {rank} in {members:?}");
    let me = members.iter().position(|m| *m == rank).expect("a member");
    assert_eq!((group.rank(), group.size()), (me, members.len()), "{case}");

    let mut sum = vec![rank as i64 + 1; 1001];
    group.allreduce(&mut sum, ReduceOp::Sum).expect(&case);
    let want: usize = members.iter().map(|m| m + 1).sum();
    assert!(sum.iter().all(|v| *v == want as i64), "{case}");

    let gathered = group.allgather(&vec![rank as u16; rank + 1]).expect(&case);
    assert_eq!(gathered, members.iter().flat_map(|m| vec![*m as u16; m + 1]).collect::<Vec<_>>(), "{case}");

    // The root is a number in the group, not in the job.
    let root = members.len() - 1;
    let mut data = vec![rank as u32; 77];
    group.broadcast(&mut data, root).expect(&case);
    assert_eq!(data, vec![members[root] as u32; 77], "{case}");

    let letters: Vec<i32> = (0..members.len()).flat_map(|to| support::letter(me, to, 3)).collect();
    let (received, _) = group.alltoall(&letters, &vec![3; members.len()]).expect(&case);
    assert_eq!(
        received,
        (0..members.len()).flat_map(|from| support::letter(from, me, 3)).collect::<Vec<_>>(),
        "{case}"
    );

    let scattered = group.reducescatter(&[1i32; 7], 7, ReduceOp::Sum).expect(&case);
    let mine = corro_core::shape::share(7, members.len(), me);
    assert_eq!(scattered, vec![members.len() as i32; mine.len()], "{case}");
}

#[test]
fn any_subset_works() {
    const SUBSETS: [&[usize]; 8] = [&[1], &[0, 2], &[1, 3, 4], &[0, 2, 4], &[1, 3], &[3, 4], &[0, 1, 2, 3, 4], &[4]];
    for transport in TRANSPORTS {
        with_fabrics(transport, RANKS, &settings(), |fabric| {
            for (number, members) in SUBSETS.into_iter().enumerate() {
                if members.contains(&fabric.rank().index()) {
                    open_and_use(fabric, 10 + number as u64, members);
                }
            }
        });
    }
}

#[test]
fn disjoint_groups_work_at_the_same_time() {
    for transport in TRANSPORTS {
        let through = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        with_fabrics(transport, RANKS, &settings(), move |fabric| {
            let parity = fabric.rank().index() % 2;
            let members: Vec<usize> = (0..RANKS).filter(|r| r % 2 == parity).collect();
            let mut group =
                Group::open(fabric, GroupId(20 + parity as u64), &ranks(&members)).expect("opening a group");
            // Each group holds still, open, while the other works: first the even ranks, then the odd ones.
            if parity == 1 {
                wait_until("the even ranks are through", SOON, || through[0].load(Ordering::SeqCst) == 3);
            }
            for _ in 0..20 {
                use_once(&mut group, fabric.rank().index(), &members);
            }
            through[parity].fetch_add(1, Ordering::SeqCst);
            if parity == 0 {
                wait_until("the odd ranks are through", SOON, || through[1].load(Ordering::SeqCst) == 2);
            }
            // Now both at once.
            for _ in 0..20 {
                use_once(&mut group, fabric.rank().index(), &members);
            }
            group.barrier().expect("the last barrier");
        });
    }
}

#[test]
fn overlapping_groups_never_wait_for_each_other() {
    const LEFT: [usize; 3] = [0, 1, 2];
    const RIGHT: [usize; 4] = [1, 2, 3, 4];
    for transport in TRANSPORTS {
        let right_is_through = Arc::new(AtomicBool::new(false));
        with_fabrics(transport, RANKS, &settings(), move |fabric| {
            let rank = fabric.rank().index();
            std::thread::scope(|scope| {
                if LEFT.contains(&rank) {
                    scope.spawn(|| {
                        let mut left = Group::open(fabric, GroupId(30), &ranks(&LEFT)).expect("opening the left group");
                        if rank == 0 {
                            // Ranks 1 and 2 hang in the left group for as long as the right one works.
                            wait_until("the right group is through", SOON, || right_is_through.load(Ordering::SeqCst));
                        }
                        for _ in 0..20 {
                            use_once(&mut left, rank, &LEFT);
                        }
                        left.barrier().expect("the last barrier");
                    });
                }
                if RIGHT.contains(&rank) {
                    scope.spawn(|| {
                        let mut right =
                            Group::open(fabric, GroupId(31), &ranks(&RIGHT)).expect("opening the right group");
                        for _ in 0..20 {
                            use_once(&mut right, rank, &RIGHT);
                        }
                        right.barrier().expect("the last barrier");
                        right_is_through.store(true, Ordering::SeqCst);
                    });
                }
            });
        });
    }
}

#[test]
fn two_groups_of_the_same_ranks_are_busy_at_once() {
    const ALL: [usize; 4] = [0, 1, 2, 3];
    for transport in [Transport::Threads, Transport::Shm, Transport::Tcp, Transport::TcpAndShm] {
        with_fabrics(transport, 4, &settings(), move |fabric| {
            std::thread::scope(|scope| {
                for id in [40, 41, 42] {
                    scope.spawn(move || {
                        let mut group = Group::open(fabric, GroupId(id), &ranks(&ALL)).expect("opening a group");
                        for round in 0..30 {
                            let mut data = vec![id + round; 3000];
                            group.allreduce(&mut data, ReduceOp::Sum).expect("allreduce");
                            assert!(data.iter().all(|v| *v == 4 * (id + round)), "{transport:?} group {id}");
                        }
                        group.barrier().expect("the last barrier");
                    });
                }
            });
        });
    }
}

#[test]
fn wrong_members_are_wrong_usage() {
    for transport in [Transport::Threads, Transport::Shm, Transport::Tcp] {
        with_fabrics(transport, 3, &settings(), |fabric| {
            let (me, other) = (fabric.rank().index(), (fabric.rank().index() + 1) % 3);
            let refusal = |members: &[usize]| match Group::open(fabric, GroupId(50), &ranks(members)).err() {
                Some(Error::Usage(text)) => text,
                wrong => panic!("{members:?}: {wrong:?}"),
            };
            assert!(refusal(&[other]).contains("is not a member of the provided process set"));
            assert!(refusal(&[]).contains("is not a member of the provided process set"));
            assert!(refusal(&[me.max(other), me.min(other)]).contains("ascending"));
            assert!(refusal(&[me, me]).contains("ascending"));
            assert!(refusal(&[me, 3]).contains("job of 3"));
            assert!(refusal(&[me, usize::MAX]).contains("job of 3"));
            // Nobody is worse off for it.
            open_and_use(fabric, 0, &[0, 1, 2]);
        });
    }
}

#[test]
fn wrong_arguments_leave_the_group_usable() {
    for transport in [Transport::Threads, Transport::Tcp] {
        with_fabrics(transport, 3, &settings(), |fabric| {
            let mut group = Group::world(fabric).expect("opening the world");
            let usage = |result: corro_collectives::Result<()>, what: &str| match result {
                Err(Error::Usage(text)) => assert!(text.contains(what), "{text}"),
                other => panic!("{what}: {other:?}"),
            };
            usage(group.broadcast(&mut [1u8], 3), "invalid root rank 3");
            usage(group.alltoall(&[1u8, 2], &[1, 1]).map(drop), "does not equal number of workers");
            usage(group.alltoall(&[1u8, 2], &[1, 1, 1]).map(drop), "greater than the first dimension");
            usage(group.alltoall(&[1u8], &[usize::MAX, 1, 1]).map(drop), "add up to more");
            usage(group.reducescatter(&[1i32; 7], 3, ReduceOp::Sum).map(drop), "rows");
            usage(group.allgather_bytes(&[1], &[1, 1, 1], &mut [0; 2]), "allgather of");
            use_once(&mut group, fabric.rank().index(), &[0, 1, 2]);
            group.barrier().expect("the last barrier");
        });
    }
}

/// A number is free again once all members have dropped its group. They must know that they have: here a barrier of the
/// world tells them.
#[test]
fn a_number_can_be_used_again() {
    for transport in TRANSPORTS {
        with_fabrics(transport, RANKS, &settings(), |fabric| {
            let mut world = Group::world(fabric).expect("opening the world");
            for members in [&[0usize, 2, 3][..], &[0, 2, 3], &[2, 3], &[0, 1, 2, 3, 4]] {
                if members.contains(&fabric.rank().index()) {
                    open_and_use(fabric, 60, members);
                }
                world.barrier().expect("a barrier between groups");
            }
        });
    }
}

/// Whoever is through with its last collective may leave: what others still need of it is already theirs.
#[test]
fn leaving_after_the_last_collective_harms_nobody() {
    for transport in [Transport::Threads, Transport::ThreadsOnHosts, Transport::Shm, Transport::Tcp, Transport::Tls] {
        with_fabrics(transport, 3, &settings(), move |fabric| {
            for number in 0..40u64 {
                let case = format!("{transport:?} group {number} rank {}", fabric.rank().index());
                let mut group = Group::open(fabric, GroupId(100 + number), &ranks(&[0, 1, 2])).expect(&case);
                // Arrive at changing times, by up to 3 ms.
                std::thread::sleep(Duration::from_micros((number * 7919 + fabric.rank().index() as u64 * 977) % 3000));
                let mut data = vec![1i32; if number % 2 == 0 { 3 } else { 20_000 }];
                group.allreduce(&mut data, ReduceOp::Sum).expect(&case);
                assert!(data.iter().all(|v| *v == 3), "{case}");
            }
        });
    }
}

/// As above, aimed at the moment when a rank that waits looks up, after 50 ms, whether the other is still there: data
/// that comes, and a sender that leaves, between its last look at the data and its look at the sender.
#[test]
fn leaving_while_others_look_up_harms_nobody() {
    const LOOK_UP: Duration = Duration::from_millis(50);
    for (transport, algorithm) in [
        (Transport::Shm, Algorithm::Direct),
        (Transport::Shm, Algorithm::Ring),
        (Transport::ThreadsOnHosts, Algorithm::Ring),
        (Transport::Tcp, Algorithm::Ring),
        (Transport::Tls, Algorithm::Ring),
    ] {
        let settings = Settings { connect_timeout: Duration::from_secs(10), ..settings() };
        with_fabrics(transport, 2, &settings, move |fabric| {
            let hunt = |thread: u64| {
                for round in 0..30 {
                    let case = format!("{transport:?} {algorithm:?} thread {thread} round {round}");
                    let id = GroupId(1000 * (thread + 1) + round);
                    let mut group = Group::open(fabric, id, &ranks(&[0, 1])).expect(&case);
                    group.force(Some(algorithm));
                    let mut data = [fabric.rank().index() as i32];
                    // Over the network, connecting takes its time: the second one is the one that is aimed.
                    group.broadcast(&mut data, 1).expect(&case);
                    if group.rank() == 1 {
                        let late = LOOK_UP + Duration::from_micros((round * 13 + thread * 7) % 400);
                        let start = Instant::now();
                        std::thread::sleep(late.saturating_sub(Duration::from_micros(300)));
                        while start.elapsed() < late {
                            std::hint::spin_loop();
                        }
                    }
                    group.broadcast(&mut data, 1).expect(&case);
                    assert_eq!(data, [1], "{case}");
                }
            };
            std::thread::scope(|scope| (0..20).for_each(|thread| drop(scope.spawn(move || hunt(thread)))));
        });
    }
}
