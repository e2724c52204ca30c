//! What tensors are called: `allreduce.x`, or `allreduce.noname.7` if the program has no name for them.
//!
//! Ranks find each other's tensors by name, so all must count unnamed ones alike. Horovod counts all operations of a
//! process in one, for ever. Here each kind of operation counts by itself, in each process set, so that what some ranks do
//! among themselves does not bring them out of line with the others; and the count starts over at [`CYCLE`], so that
//! the engine comes to know the names and need not have them announced. A tensor whose name is still another's is
//! submitted when that one is done, and those behind it are named only then (see `handles`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many unnamed tensors of a kind can be agreed on at once in a process set. A fraction of the engine's cache of names, which
/// the named ones need as well.
const CYCLE: u64 = 256;

/// The tensors without a name that are counted together: a process set, and a kind of operation in it.
pub(crate) type Stream = (u32, String);

static UNNAMED: Mutex<Option<HashMap<Stream, u64>>> = Mutex::new(None);

fn unnamed() -> MutexGuard<'static, Option<HashMap<Stream, u64>>> {
    UNNAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a tensor is called that the program calls `name`.
pub(crate) fn given(kind: &str, name: &str) -> String {
    format!("{kind}.{name}")
}

/// The name of the stream's next tensor. To be asked for when that is about to be submitted, and not much earlier: ranks
/// must not get far ahead of each other in counting.
pub(crate) fn next(stream: &Stream) -> String {
    let mut unnamed = unnamed();
    let next = unnamed.get_or_insert_default().entry(stream.clone()).or_default();
    let number = *next;
    *next = (number + 1) % CYCLE;
    format!("{}.noname.{number}", stream.1)
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
