//! What tickets and process sets wait with, taken from here so that `tests/races.rs` can put in its place what lets threads change at every
//! step.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, TryLockError};
