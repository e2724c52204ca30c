//! Starting an agent on a host: one small trait, and a file for each way to do it.
//!
//! A way to start has one duty: to get `corro agent` to run on a host, with its standard input and output joined to ours.
//! Everything about the job, its secret too, goes through there and never onto a command line. So whatever can run a
//! command elsewhere (srun, mpiexec, kubectl exec, qrsh) is one more file here, and nothing else needs to know.
//!
//! | module | holds |
//! | --- | --- |
//! | `starter` | the traits |
//! | `local`, `ssh`, `remote_shell`, `srun`, `batch` | the ways |
//! | `joined` | agents that come by themselves (see [`crate::join`]) |
//! | `remote` | which way other hosts are reached, as the user said |
//! | `locality` | whether a host is this one |

mod batch;
mod joined;
mod local;
mod locality;
mod remote;
mod remote_shell;
mod srun;
mod ssh;
mod starter;

pub(crate) use joined::Joined;
pub(crate) use local::Local;
pub use locality::is_local;
pub use remote::Remote;
pub use ssh::HostKeys;
pub(crate) use starter::{Reach, Starter};
