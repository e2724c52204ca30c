//! Numbers for tensors that the program gives no name: the n-th of its kind gets the same number on all ranks.
//!
//! Ranks find each other's tensors by name, so the n-th unnamed one must be called alike everywhere; and to be known by
//! number, or to be part of a plan, it must be called as it was a step ago. Numbers therefore come round after some
//! *length*. It starts with [`LENGTH`] whatever the program does. If a step of the program has k unnamed tensors, the
//! right length is a multiple of k: then each name means the same in every step. Nobody but the program knows k, and its
//! ranks need not wait at the same points, so no rank may go by what it sees. The root looks for a repetition in what *its*
//! program submits ([`Periods`]), and says in the log from which tensor on which length counts ([`Fold`]): far enough
//! ahead that nobody has come to that tensor before having read that entry of the log.
//!
//! Why that is far enough: who submits the n-th tensor waits until the one that had its number before is done. What is done
//! on any member has been submitted by the root. So who has not read the entry has submitted less than one length more than
//! the root had when it wrote it; and the root says *from two lengths ahead*.

use std::collections::VecDeque;

/// How many numbers there are at first. A fraction of the cache, which named tensors need as well; and enough for
/// programs that have many under way.
pub const LENGTH: u64 = 256;

/// The longest repetition that is looked for, and so the most numbers there can be.
pub const LONGEST: usize = 768;

/// A look for repetitions after so many tensors.
const EVERY: u64 = 32;

/// From tensor `base` on, the n-th has the number `(n - base) % length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Where it begins.
    pub base: u64,
    /// How many numbers there are.
    pub length: u64,
}

impl Fold {
    const FIRST: Self = Self { base: 0, length: LENGTH };

    fn number(self, n: u64) -> u64 {
        (n - self.base) % self.length
    }
}

/// The unnamed tensors of one kind.
#[derive(Debug)]
pub struct Stream {
    count: u64,
    fold: Fold,
    /// What counts from its base on.
    next: Option<Fold>,
}

impl Default for Stream {
    fn default() -> Self {
        Self { count: 0, fold: Fold::FIRST, next: None }
    }
}

impl Stream {
    /// The number of the next tensor.
    pub fn number(&mut self) -> u64 {
        let n = self.count;
        self.count += 1;
        if let Some(next) = self.next.take_if(|next| n >= next.base) {
            self.fold = next;
        }
        self.fold.number(n)
    }

    /// The log has said how to go on. False if that comes too late, which it never does (see the module).
    #[must_use]
    pub fn apply(&mut self, fold: Fold) -> bool {
        let in_time = fold.base >= self.count && fold.length > 0 && self.next.is_none();
        if in_time {
            self.next = Some(fold);
        }
        in_time
    }

    /// Whether numbers mean the same in each step of a program that repeats itself after `period` tensors.
    pub fn suits(&self, period: u64) -> bool {
        self.next.is_none() && period > 0 && self.fold.length.is_multiple_of(period)
    }

    /// What the root should say, if its program repeats itself after `period` tensors. `None` if all is well, or it is too
    /// early: everybody must have come to what was said last.
    pub fn better(&self, period: u64) -> Option<Fold> {
        let Fold { base, length } = self.fold;
        let settled = self.next.is_none() && (base == 0 || self.count >= base + 2 * length.max(LENGTH));
        if period == 0 || length.is_multiple_of(period) || !settled {
            return None;
        }
        // At the end of a round of numbers: so a number that comes again soon is never one that was just used.
        let ahead = self.count + 2 * length - base;
        Some(Fold { base: base + ahead.next_multiple_of(length), length: LENGTH.next_multiple_of(period) })
    }
}

/// Looks for repetitions in what the root's program submits.
#[derive(Debug, Default)]
pub struct Periods {
    /// What the last ones were like, as hashes.
    seen: VecDeque<u64>,
    count: u64,
    period: Option<u64>,
}

impl Periods {
    /// Another tensor.
    pub fn observe(&mut self, hash: u64) {
        self.seen.push_front(hash);
        self.seen.truncate(3 * LONGEST);
        self.count += 1;
        if self.count.is_multiple_of(EVERY) {
            self.period = self.longest_repetition();
        }
    }

    /// Of all repetitions that came at least three times in a row, the one that goes back furthest: a step may end with
    /// many that are alike, which repeat sooner than the step does, but only as far back as the step's end. What a program
    /// did at its start, which it need not do again, hides nothing that came after.
    fn longest_repetition(&self) -> Option<u64> {
        let mut best: Option<(usize, usize)> = None;
        for k in 1..=self.seen.len() / 3 {
            // What ends a repetition ends its multiples.
            if best.is_some_and(|(period, covered)| k.is_multiple_of(period) && k <= covered) {
                continue;
            }
            let alike = self.seen.iter().zip(self.seen.iter().skip(k)).take_while(|(a, b)| a == b).count();
            let covered = alike + k;
            if covered >= 3 * k && best.is_none_or(|(_, most)| covered > most) {
                best = Some((k, covered));
            }
            if covered == self.seen.len() {
                break;
            }
        }
        best.map(|(period, _)| period as u64)
    }

    /// After how many tensors the program repeats itself, if it had done so when this was last looked at.
    pub fn period(&self) -> Option<u64> {
        self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corro_core::random::Random;

    #[test]
    fn numbers_come_round_and_change_where_the_log_says() {
        let mut stream = Stream::default();
        let first: Vec<u64> = (0..300).map(|_| stream.number()).collect();
        assert_eq!((first[255], first[256]), (255, 0));
        let fold = stream.better(100).unwrap();
        assert_eq!(fold, Fold { base: 1024, length: 300 });
        assert!(stream.apply(fold));
        let rest: Vec<u64> = (300..1400).map(|_| stream.number()).collect();
        let at = |n: usize| rest[n - 300];
        assert_eq!((at(1023), at(1024), at(1323), at(1324)), (255, 0, 299, 0));
        assert_eq!(stream.better(100), None, "a multiple already");
        assert_eq!(stream.better(7), None, "too early");
        assert!(!Stream { count: 9, ..Stream::default() }.apply(Fold { base: 8, length: 4 }));
    }

    #[test]
    fn a_repetition_is_found_and_noise_is_none() {
        let find = |of: &dyn Fn(u64) -> u64| {
            let mut periods = Periods::default();
            (0..5000).for_each(|i| periods.observe(of(i)));
            periods.period()
        };
        assert_eq!(find(&|_| 3), Some(1));
        assert_eq!(find(&|i| u64::from(i % 100 == 0)), Some(100));
        assert_eq!(find(&|i| i % 161), Some(161));
        assert_eq!(find(&|i| u64::from(i % 100 > 60)), Some(100), "not the 39 that are alike");
        assert_eq!(find(&|i| if i < 4000 { i } else { i % 50 }), Some(50), "what it does now");
        assert_eq!(find(&|i| i * i), None);
        assert_eq!(find(&|i| i % 1000), None, "too long");
    }

    /// One member: what it has submitted, and how much of the log it has read.
    #[derive(Default)]
    struct Member {
        stream: Stream,
        /// The name of each tensor.
        names: Vec<u64>,
        /// Of each tensor: whether it is done here.
        done: Vec<bool>,
        /// Who had each name last.
        last: std::collections::HashMap<u64, usize>,
        /// A name whose tensor waits for the one that had it before.
        waits: Option<u64>,
        read: usize,
    }

    impl Member {
        /// Submits a tensor, if the one that had its name before is done here.
        fn submit(&mut self) -> bool {
            let name = self.waits.take().unwrap_or_else(|| self.stream.number());
            if self.last.get(&name).is_some_and(|before| !self.done[*before]) {
                self.waits = Some(name);
                return false;
            }
            self.last.insert(name, self.names.len());
            self.names.push(name);
            self.done.push(false);
            true
        }
    }

    /// Entries of the log.
    enum Said {
        Run(usize),
        Fold(Fold),
    }

    /// Members submit and read the log each at a pace of its own, and the root's program changes its ways: the n-th tensor
    /// has the same name on all, and the log is never too late. Gives how often the length changed.
    fn any_interleaving(seed: u64) -> u64 {
        let mut random = Random::new(seed);
        let mut ranks: Vec<Member> = (0..2 + random.below(4)).map(|_| Member::default()).collect();
        let periods: Vec<u64> = (0..4).map(|_| 1 + random.below(LONGEST) as u64).collect();
        let most = 1 + random.below(600);
        let (mut log, mut ran, mut folds) = (Vec::new(), 0, 0);
        for _ in 0..400 {
            let who = random.below(ranks.len());
            let reads = random.one_in(2);
            for _ in 0..random.below(most) {
                if reads {
                    let rank = &mut ranks[who];
                    match log.get(rank.read) {
                        Some(Said::Run(n)) => rank.done[*n] = true,
                        Some(Said::Fold(fold)) => {
                            assert!(who == 0 || rank.stream.apply(*fold), "seed {seed}: too late");
                        }
                        None => break,
                    }
                    rank.read += 1;
                } else if !ranks[who].submit() {
                    break;
                }
                // The root: what all have submitted runs.
                let all = ranks.iter().map(|r| r.names.len()).min().unwrap_or(0);
                log.extend((ran..all).map(Said::Run));
                ran = all;
                let n = ranks[0].names.len();
                let period = periods[n / 2000 % periods.len()];
                if let Some(fold) = ranks[0].stream.better(period).filter(|_| who == 0 && n.is_multiple_of(32)) {
                    assert!(ranks[0].stream.apply(fold));
                    log.push(Said::Fold(fold));
                    folds += 1;
                }
            }
        }
        let (root, others) = ranks.split_first().unwrap();
        for other in others {
            let both = root.names.len().min(other.names.len());
            assert_eq!(root.names[..both], other.names[..both], "seed {seed}");
        }
        folds
    }

    #[test]
    fn all_members_count_alike_in_all_interleavings() {
        let folds: u64 = (0..400).map(any_interleaving).sum();
        assert!(folds > 400, "{folds}");
    }
}
