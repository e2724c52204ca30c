//! Who is who.
//!
//! Which number says who, and of which type it is:
//!
//! * A [`Rank`] is a process's number in the whole job. Errors, messages between ranks and process sets name processes so.
//! * A *position* (a `usize`: `member`, `position`, `me`) is a place in a list of ranks: the members of a group or process
//!   set, the ranks of a host (Horovod's local rank), the hosts (its cross rank). Algorithms compute with positions.
//! * A rank is turned into a position by looking it up in the list. Only in the list of all ranks are the two the same
//!   number, and there the code says so: [`Rank::index`], [`Rank::new`]. Nothing turns one into the other by itself.

/// A process's number in the job, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Rank(usize);

impl Rank {
    /// The first one, which every job has.
    pub const ZERO: Self = Self(0);

    /// The rank with this number.
    #[inline]
    pub const fn new(number: usize) -> Self {
        Self(number)
    }

    /// Its number: its place in a list of all ranks.
    #[inline]
    pub const fn index(self) -> usize {
        self.0
    }

    /// All ranks of a job of `size`, in order.
    pub fn all(size: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..size).map(Self)
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The number alone: lists of ranks are shown to people.
impl std::fmt::Debug for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Rank {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A set of ranks that run collectives together. The world is group 0; the creator of a group picks a number that all
/// its members agree on and that no other living group of the job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct GroupId(pub u64);

impl GroupId {
    /// All ranks of the job.
    pub const WORLD: Self = Self(0);
}

impl std::fmt::Display for GroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::WORLD { f.write_str("world") } else { write!(f, "group {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn a_rank_looks_like_its_number() {
        let ranks: Vec<Rank> = Rank::all(3).collect();
        assert_eq!(format!("{} {ranks:?} {:>3}", ranks[2], ranks[1]), "2 [0, 1, 2]   1");
        assert_eq!("7".parse(), Ok(Rank::new(7)));
        assert!("-1".parse::<Rank>().is_err());
    }

    /// What ranks of one job send each other must not change by itself.
    #[test]
    fn a_rank_is_a_bare_number_on_the_wire() {
        for number in [0, 1, 127, 128, 70_000, usize::MAX] {
            let ranks = (Rank::new(number), vec![Rank::new(number)], Some(Rank::new(number)));
            let bytes = codec::encode(&ranks).unwrap();
            assert_eq!(bytes, codec::encode(&(number, vec![number], Some(number))).unwrap());
        }
    }
}
