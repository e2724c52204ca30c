//! The algorithms, one a file. Each head says how many steps it takes and how many bytes it moves.
//!
//! `ring`, `tree`, `halving_doubling` and `pairwise` write schedules: pure plans that run over any links. `direct` works
//! on memory that the ranks of a host share, `hierarchical` joins both, `adasum` needs arithmetic between its steps.

pub(crate) mod adasum;
pub(crate) mod direct;
pub(crate) mod halving_doubling;
pub(crate) mod hierarchical;
pub(crate) mod pairwise;
pub(crate) mod ring;
pub(crate) mod tree;

/// Plays every schedule of every rank against the others, without a network: 1 to 20 ranks and a few large numbers, in
/// random orders of execution.
#[cfg(test)]
mod tests {
    use std::ops::Range;

    use corro_core::shape::share;

    use super::*;
    use crate::schedule::tests::play;
    use crate::schedule::{Builder, Schedule};
    use crate::subset::Subset;

    const BYTES: usize = 61;

    fn sizes() -> impl Iterator<Item = usize> {
        (2..=20).chain([31, 32, 33, 64])
    }

    fn chunks(n: usize) -> Vec<Range<usize>> {
        (0..n).map(|m| share(BYTES, n, m)).collect()
    }

    fn plans(n: usize, plan: impl Fn(&mut Builder, &Subset)) -> Vec<Schedule> {
        let one = |me| {
            let mut b = Builder::default();
            plan(&mut b, &Subset::all(n, me));
            b.finish()
        };
        (0..n).map(one).collect()
    }

    fn data(n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|r| (0..BYTES).map(|i| (r * 31 + i * 7) as u8).collect()).collect()
    }

    fn sum(n: usize) -> Vec<u8> {
        data(n).iter().fold(vec![0; BYTES], |a, b| a.iter().zip(b).map(|(x, y)| x.wrapping_add(*y)).collect())
    }

    #[test]
    fn allreduces_reduce_everything_everywhere() {
        type Plan = fn(&mut Builder, &Subset, &[Range<usize>]);
        let plans_by_name: [(&str, Plan); 4] = [
            ("ring", ring::allreduce),
            ("halving", halving_doubling::allreduce),
            ("short", |b, s, _| halving_doubling::allreduce_short(b, s, &(0..BYTES))),
            ("tree", |b, s, _| tree::allreduce(b, s, &(0..BYTES))),
        ];
        for (name, plan) in plans_by_name {
            for n in sizes() {
                let schedules = plans(n, |b, s| plan(b, s, &chunks(n)));
                for seed in 1..4 {
                    let mut mains = data(n);
                    play(&schedules, &[], &mut mains, seed);
                    assert!(mains.iter().all(|m| *m == sum(n)), "{name} n={n} seed={seed}");
                }
            }
        }
    }

    #[test]
    fn reducescatters_leave_each_rank_its_chunk() {
        for plan in [ring::reducescatter, halving_doubling::reducescatter] {
            for n in sizes() {
                let mut mains = data(n);
                play(&plans(n, |b, s| plan(b, s, &chunks(n))), &[], &mut mains, 7);
                for (chunk, main) in chunks(n).into_iter().zip(&mains) {
                    assert_eq!(main[chunk.clone()], sum(n)[chunk]);
                }
            }
        }
    }

    #[test]
    fn allgathers_gather() {
        for plan in [ring::allgather, halving_doubling::allgather] {
            for n in sizes() {
                let want = data(1).remove(0);
                let mut mains = vec![vec![0; BYTES]; n];
                for (chunk, main) in chunks(n).into_iter().zip(&mut mains) {
                    main[chunk.clone()].copy_from_slice(&want[chunk]);
                }
                play(&plans(n, |b, s| plan(b, s, &chunks(n))), &[], &mut mains, 8);
                assert!(mains.iter().all(|m| *m == want), "n={n}");
            }
        }
    }

    #[test]
    fn broadcasts_reach_everyone_from_any_root() {
        for n in sizes() {
            for root in [0, 1, n / 2, n - 1] {
                for by_tree in [true, false] {
                    let schedules = plans(n, |b, s| {
                        if by_tree {
                            tree::broadcast(b, s, root, &(0..BYTES));
                        } else {
                            ring::broadcast(b, s, root, 0..BYTES);
                        }
                    });
                    let mut mains = data(n);
                    play(&schedules, &[], &mut mains, 9);
                    assert!(mains.iter().all(|m| *m == data(n)[root]), "n={n} root={root} tree={by_tree}");
                }
            }
        }
    }

    #[test]
    fn alltoall_delivers_and_barriers_end() {
        for n in sizes() {
            let mut mains = vec![vec![0; BYTES]; n];
            // Byte b of each rank's input goes to rank b. (64 ranks are more than there are bytes.)
            let one: Vec<Range<usize>> = (0..n).map(|m| m..m + 1).collect();
            if n <= BYTES {
                play(&plans(n, |b, s| pairwise::alltoall(b, s, &one, &one)), &data(n), &mut mains, 10);
                for (me, main) in mains.iter().enumerate() {
                    for from in (0..n).filter(|f| *f != me) {
                        assert_eq!(main[from], data(n)[from][me]);
                    }
                }
            }
            play(&plans(n, pairwise::barrier), &[], &mut mains, 11);
        }
    }

    #[test]
    fn costs_are_what_the_heads_say() {
        let sent = |n: usize, plan: fn(&mut Builder, &Subset, &[Range<usize>])| {
            let chunks: Vec<Range<usize>> = (0..n).map(|m| share(64 * n, n, m)).collect();
            plans(n, |b, s| plan(b, s, &chunks)).iter().map(Schedule::bytes_sent).max().unwrap()
        };
        for n in [2, 4, 8, 16] {
            assert_eq!(sent(n, ring::allreduce), 2 * (n - 1) * 64);
            assert_eq!(sent(n, halving_doubling::allreduce), 2 * (n - 1) * 64);
            assert_eq!(sent(n, ring::reducescatter), (n - 1) * 64);
        }
    }
}
