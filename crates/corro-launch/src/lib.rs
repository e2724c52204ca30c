//! Starting the processes of a job: `corro run`, `horovodrun`, `corro doctor`, and the same for Rust programs.
//!
//! A job is placed ([`placement`]) on hosts ([`hosts`]); each host gets one agent ([`agent`]), here or by ssh ([`remote`]),
//! which starts the ranks there. The launcher ([`Job`]) serves the rendezvous, shows what ranks write ([`output`]), and ends
//! everything when one fails. It knows nothing of what ranks do.
//!
//! | module | holds |
//! | --- | --- |
//! | `cli` | the command line, the config file |
//! | [`hosts`], [`placement`], `variables` | who runs where and what it is told (pure) |
//! | `job`, `lifecycle`, `agent_process` | a running job, its decisions (pure), its agents |
//! | [`elastic`] | jobs whose processes come and go |
//! | [`agent`] | what runs on each host |
//! | [`output`] | what the user sees |
//! | [`worker`] | values between the starter of a job and its ranks |
//! | `local` | ranks for Rust programs that start themselves |

pub mod agent;
mod agent_process;
pub mod cli;
pub mod elastic;
pub mod hosts;
mod job;
mod lifecycle;
mod local;
pub mod output;
pub mod placement;
pub mod remote;
mod variables;
pub mod worker;

pub use agent::message::Ending;
pub use job::{Control, Job, Outcome};
pub use lifecycle::Failure;
pub use local::run_local;
