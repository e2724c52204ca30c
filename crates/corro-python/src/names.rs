//! What tensors are called: `allreduce.x`, or `allreduce.noname.7` if the program has no name for them.
//!
//! Ranks find each other's tensors by name, so all must count unnamed ones alike. Horovod counts all operations of a
//! process in one, for ever. Here each kind of operation counts by itself, in each process set, so that what some ranks do
//! among themselves does not bring them out of line with the others; and numbers come round, so that the engine comes to
//! know the names and need not have them announced. The engine counts: see `corro_agreement::unnamed`. It relies on a tensor
//! being submitted before the next of its stream gets a name; `handles` sees to that.

use crate::job;

/// What the program says about an operation's name.
pub(crate) enum Name {
    Given(String),
    /// Nothing: it gets one when its turn comes.
    Of(Stream),
}

/// Unnamed operations that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) set: u32,
    kind: String,
}

impl Stream {
    /// The name of the next operation.
    pub(crate) fn next_name(&self) -> String {
        // Without an engine, or outside of the set, the submit that follows says what is wrong.
        job::unnamed(self.set, &self.kind).unwrap_or_else(|| format!("{}.noname", self.kind))
    }
}

/// The name of a tensor of its own.
pub(crate) fn of_one(set: u32, kind: &str, name: Option<&str>) -> Name {
    of(set, kind.to_owned(), name)
}

/// What the names of a group's tensors begin with.
pub(crate) fn of_group(set: u32, kind: &str, name: Option<&str>) -> Name {
    of(set, format!("grouped_{kind}"), name)
}

/// The name of an unnamed operation whose caller waits for it before the next one: then there is no turn to wait for. Such
/// operations are counted apart from those that may be many at once.
pub(crate) fn of_eager(set: u32, kind: &str) -> String {
    Stream { set, kind: format!("eager_{kind}") }.next_name()
}

fn of(set: u32, kind: String, name: Option<&str>) -> Name {
    match name {
        Some(name) => Name::Given(format!("{kind}.{name}")),
        None => Name::Of(Stream { set, kind }),
    }
}
