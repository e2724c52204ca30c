//! Who is who.

/// A process's place in the job, from 0.
pub type Rank = usize;

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
