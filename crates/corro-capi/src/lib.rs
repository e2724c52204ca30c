//! `libcorro.so`: the engine for C and C++, and for whatever can call C.
//!
//! Owns what a process has only one of: its engine ([`job`]), the tickets that were given out ([`tickets`]), and each
//! thread's last error ([`status`]). Decides nothing about collectives. `include/corro.h` is made from these files by
//! `make gen`; what is written here above a function is what its users read there.
//!
//! Every function can be called from any thread. No panic leaves: it becomes `CORRO_STATUS_BUG`. Addresses that are
//! null and numbers that mean nothing are errors; other wrong addresses can't be told from right ones.

pub mod job;
mod pointers;
pub mod sets;
pub mod status;
pub mod stores;
pub mod submit;
pub mod tickets;
