//! What tensors are called: `allreduce.x`, or `allreduce.noname.7` if the program has no name for them.
//!
//! Ranks find each other's tensors by name, so all must count unnamed ones alike. Horovod counts all operations of a
//! process in one, for ever. Here each kind of operation counts by itself, in each process set, so that what some ranks do
//! among themselves does not bring them out of line with the others; and numbers come round, so that the engine comes to
//! know the names and need not have them announced. The engine counts: see `corro_engine::unnamed`. A name whose last
//! tensor is still under way is waited for.

use crate::job;

/// A tensor's name, and whether the program gave it.
pub(crate) struct Name {
    pub(crate) full: String,
    pub(crate) given: bool,
}

/// The name of a tensor of its own.
pub(crate) fn of_one(set: u32, kind: &str, name: Option<&str>) -> Name {
    full(set, kind, name)
}

/// What the names of a group's tensors begin with.
pub(crate) fn of_group(set: u32, kind: &str, name: Option<&str>) -> Name {
    full(set, &format!("grouped_{kind}"), name)
}

fn full(set: u32, kind: &str, name: Option<&str>) -> Name {
    match name {
        Some(name) => Name { full: format!("{kind}.{name}"), given: true },
        // Without an engine, or outside of the set, the submit that follows says what is wrong.
        None => Name { full: job::unnamed(set, kind).unwrap_or_else(|| format!("{kind}.noname")), given: false },
    }
}
