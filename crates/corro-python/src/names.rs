//! What tensors are called: `allreduce.x`, or `allreduce.noname.7` if the program has no name for them.
//!
//! Ranks find each other's tensors by name, so all must count unnamed ones alike. Horovod counts all operations of a
//! process in one, for ever. Here each kind of operation counts by itself, in each process set, so that what some ranks do
//! among themselves does not bring them out of line with the others; and the count starts over at [`CYCLE`], so that
//! the engine comes to know the names and need not have them announced. A tensor whose name is still another's is
//! submitted when that one is done (see `handles`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many unnamed tensors of a kind can be agreed on at once in a process set. A fraction of the engine's cache of names, which
/// the named ones need as well.
const CYCLE: u64 = 256;

/// A tensor's name, and whether the program gave it.
pub(crate) struct Name {
    pub(crate) full: String,
    pub(crate) given: bool,
}

type Counters = HashMap<(u32, String), u64>;

static UNNAMED: Mutex<Option<Counters>> = Mutex::new(None);

fn unnamed() -> MutexGuard<'static, Option<Counters>> {
    UNNAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a tensor of its own.
pub(crate) fn of_one(set: u32, kind: &str, name: Option<&str>) -> Name {
    full(set, kind.to_owned(), name)
}

/// What the names of a group's tensors begin with.
pub(crate) fn of_group(set: u32, kind: &str, name: Option<&str>) -> Name {
    full(set, format!("grouped_{kind}"), name)
}

fn full(set: u32, kind: String, name: Option<&str>) -> Name {
    let Some(name) = name else {
        let text = kind.clone();
        let mut unnamed = unnamed();
        let next = unnamed.get_or_insert_default().entry((set, kind)).or_default();
        let number = *next;
        *next = (number + 1) % CYCLE;
        return Name { full: format!("{text}.noname.{number}"), given: false };
    };
    Name { full: format!("{kind}.{name}"), given: true }
}

/// A new set counts from 0, also when its number was another one's before.
pub(crate) fn forget_set(set: u32) {
    if let Some(counters) = unnamed().as_mut() {
        counters.retain(|(of, _), _| *of != set);
    }
}

/// The engine has ended: the next one counts from 0.
pub(crate) fn forget() {
    *unnamed() = None;
}
