//! The algorithms, one a file. Each head says how many steps it takes and how many bytes it moves.
//!
//! `ring`, `tree`, `halving_doubling` and `pairwise` write schedules: pure plans that run over any links. Such a file says in its
//! [`Planner`] what it can plan, and a line in the table below gives it a name; nothing else need know of it. `direct` works
//! on memory that the ranks of a host share, `hierarchical` joins both, `adasum` needs arithmetic between its steps.

pub(crate) mod adasum;
pub(crate) mod direct;
pub(crate) mod halving_doubling;
pub(crate) mod hierarchical;
pub(crate) mod pairwise;
pub(crate) mod planner;
pub(crate) mod ring;
pub(crate) mod tree;

use corro_core::{Error, Result};

use self::planner::Planner;

macro_rules! algorithms {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $planner:expr;)*) => {
        /// A way to run a collective.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Algorithm {
            /// Every algorithm, for tables and tests.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name in `CORRO_ALGORITHM` and in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it plans, if it writes schedules.
            pub(crate) const fn planner(self) -> Option<&'static Planner> {
                match self {
                    $(Self::$variant => $planner,)*
                }
            }
        }
    };
}

algorithms! {
    /// Through memory shared by all ranks; one host only.
    Direct = "direct", None;
    /// Around the ring.
    Ring = "ring", Some(&ring::PLANNER);
    /// Recursive halving and doubling.
    HalvingDoubling = "halving_doubling", Some(&halving_doubling::PLANNER);
    /// Up and down a binomial tree.
    Tree = "tree", Some(&tree::PLANNER);
    /// Shared memory inside hosts, several ranks at once between them.
    Hierarchical = "hierarchical", None;
    /// Everyone with everyone.
    Pairwise = "pairwise", Some(&pairwise::PLANNER);
}

impl Algorithm {
    /// One of its plans. It must have it: see [`Algorithm::fits`].
    pub(crate) fn plan<F>(self, which: impl FnOnce(&Planner) -> Option<F>) -> Result<F> {
        let plan = self.planner().and_then(which);
        plan.ok_or_else(|| Error::Bug(format!("{} was chosen for what it can't plan", self.name())))
    }
}

/// Plays every schedule of every rank against the others, without a network: 1 to 20 ranks and a few large numbers, in
/// random orders of execution.
#[cfg(test)]
mod tests {
    use std::ops::Range;

    use corro_core::shape::share;

    use super::planner::PlanChunks;
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

    /// This plan of all who have it, with their names.
    fn every<F>(which: impl Fn(&Planner) -> Option<F>) -> impl Iterator<Item = (&'static str, F)> {
        Algorithm::ALL.into_iter().filter_map(move |a| Some((a.name(), which(a.planner()?)?)))
    }

    fn data(n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|r| (0..BYTES).map(|i| (r * 31 + i * 7) as u8).collect()).collect()
    }

    fn sum(n: usize) -> Vec<u8> {
        data(n).iter().fold(vec![0; BYTES], |a, b| a.iter().zip(b).map(|(x, y)| x.wrapping_add(*y)).collect())
    }

    #[test]
    fn allreduces_reduce_everything_everywhere() {
        // What is as short as here takes another way.
        let long: (&str, PlanChunks) = ("halving_doubling, long", halving_doubling::allreduce_long);
        for (name, plan) in every(|planner| planner.allreduce).chain([long]) {
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
        for (_, plan) in every(|planner| planner.reducescatter) {
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
        for (_, plan) in every(|planner| planner.allgather) {
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
                for (name, plan) in every(|planner| planner.broadcast) {
                    let schedules = plans(n, |b, s| plan(b, s, root, 0..BYTES));
                    let mut mains = data(n);
                    play(&schedules, &[], &mut mains, 9);
                    assert!(mains.iter().all(|m| *m == data(n)[root]), "{name} n={n} root={root}");
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
            for (_, plan) in every(|planner| planner.alltoall).filter(|_| n <= BYTES) {
                play(&plans(n, |b, s| plan(b, s, &one, &one)), &data(n), &mut mains, 10);
                for (me, main) in mains.iter().enumerate() {
                    for from in (0..n).filter(|f| *f != me) {
                        assert_eq!(main[from], data(n)[from][me]);
                    }
                }
            }
            for (_, plan) in every(|planner| planner.barrier) {
                play(&plans(n, plan), &[], &mut mains, 11);
            }
        }
    }

    #[test]
    fn costs_are_what_the_heads_say() {
        let sent = |n: usize, plan: PlanChunks| {
            let chunks: Vec<Range<usize>> = (0..n).map(|m| share(64 * n, n, m)).collect();
            plans(n, |b, s| plan(b, s, &chunks)).iter().map(Schedule::bytes_sent).max().unwrap()
        };
        for n in [2, 4, 8, 16] {
            assert_eq!(sent(n, ring::allreduce), 2 * (n - 1) * 64);
            assert_eq!(sent(n, halving_doubling::allreduce_long), 2 * (n - 1) * 64);
            assert_eq!(sent(n, ring::reducescatter), (n - 1) * 64);
        }
    }
}
