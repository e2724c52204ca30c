//! Hash tables with a fast hash: names are short, looked up several times per tensor, and come from ranks that have proven
//! to belong to the job.

/// See the module.
pub type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
/// See the module.
pub type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;
