//! Some members of a group, in order, as an algorithm sees them: positions 0 to n - 1.

/// Members that run an algorithm together, and which of them this is.
#[derive(Clone, Debug)]
pub(crate) struct Subset {
    members: Vec<usize>,
    me: usize,
}

impl Subset {
    /// All `size` members of a group, of which this is `me`.
    pub(crate) fn all(size: usize, me: usize) -> Self {
        Self { members: (0..size).collect(), me }
    }

    /// These members; `me` is a position among them.
    pub(crate) fn of(members: Vec<usize>, me: usize) -> Self {
        Self { members, me }
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// This rank's position.
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// The member at a position.
    pub(crate) fn member(&self, position: usize) -> usize {
        self.members[position]
    }

    pub(crate) fn next(&self) -> usize {
        self.members[(self.me + 1) % self.size()]
    }

    pub(crate) fn previous(&self) -> usize {
        self.members[(self.me + self.size() - 1) % self.size()]
    }
}
