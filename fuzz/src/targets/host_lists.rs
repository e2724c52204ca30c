//! Lists of hosts as Slurm writes them, and its counts of tasks: any text is one or an error, and never more hosts than are
//! believed.

use corro_launch::allocation;

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let _ = allocation::understands(&String::from_utf8_lossy(bytes));
}
