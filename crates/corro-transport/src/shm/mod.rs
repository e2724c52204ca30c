//! Ranks of one host: shared memory, and streams through it.

pub(crate) mod counter;
pub(crate) mod meet;
pub(crate) mod peek;
pub(crate) mod pool;
pub(crate) mod segment;
pub(crate) mod span;
pub(crate) mod stream;
pub(crate) mod team;
