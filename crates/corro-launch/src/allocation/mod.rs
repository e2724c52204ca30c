//! What a batch system has given to the job this process is in: which hosts, and how many ranks each is to take.
//!
//! Pure, over a function that looks variables up and one that reads files. How the hosts are reached is [`crate::start`]'s
//! business. A system is believed only if its job number is set: files and lists may be left over in a shell.
//!
//! | module | reads |
//! | --- | --- |
//! | `system` | what an allocation is |
//! | `nodelist` | Slurm's short way to write many names: `n[1-3,07],m` |
//! | `slurm` | Slurm's variables |
//! | `files` | the variables and files of LSF, PBS and SGE |

mod files;
mod nodelist;
mod slurm;
mod system;

use corro_core::Result;

pub use system::{Allocation, System};
use system::{Get, Read};

/// The allocation this process is in, if it is in one.
pub fn find(get: Get<'_>, read: Read<'_>) -> Result<Option<Allocation>> {
    if let Some(found) = slurm::find(get)? {
        return Ok(Some(found));
    }
    files::find(get, read)
}

/// The hosts of a list as Slurm writes it, each once: what `squeue` prints of a job that runs.
pub(crate) fn expand(list: &str) -> Result<Vec<String>> {
    nodelist::expand(list)
}

/// Whether `text` can be read as a list of Slurm's and as its tasks. For the fuzzer.
#[doc(hidden)]
pub fn understands(text: &str) -> (bool, bool) {
    (nodelist::expand(text).is_ok(), slurm::tasks(text).is_ok())
}
