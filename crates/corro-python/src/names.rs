//! What tensors are called: `allreduce.x`, or `allreduce.noname.7` if the program has no name for them.
//!
//! Ranks find each other's tensors by name, so all must count unnamed ones alike. Horovod counts all operations of a
//! process in one, for ever. Here each kind of operation counts by itself, in each process set, so that what some ranks do
//! among themselves does not bring them out of line with the others; and numbers come round, so that the engine comes to
//! know the names and need not have them announced. The engine counts (see `corro_agreement::unnamed`), and keeps a tensor
//! until its name is free.

use crate::running;

/// What the program says about an operation's name.
pub(crate) enum Name {
    Given(String),
    /// Nothing: it gets one of this kind.
    Of(String),
}

/// The name of a tensor of its own.
pub(crate) fn of_one(kind: &str, name: Option<&str>) -> Name {
    of(kind.to_owned(), name)
}

/// What the names of a group's tensors begin with.
pub(crate) fn of_group(kind: &str, name: Option<&str>) -> Name {
    of(format!("grouped_{kind}"), name)
}

/// The name of an unnamed operation whose caller waits for it before the next one: then there is no turn to wait for. Such
/// operations are counted apart from those that may be many at once.
pub(crate) fn of_eager(set: u32, kind: &str) -> String {
    let kind = format!("eager_{kind}");
    // Without an engine, or outside of the set, the submit that follows says what is wrong.
    running::unnamed(set, &kind).unwrap_or_else(|| format!("{kind}.noname"))
}

fn of(kind: String, name: Option<&str>) -> Name {
    match name {
        Some(name) => Name::Given(format!("{kind}.{name}")),
        None => Name::Of(kind),
    }
}
