//! Starting the processes of a job: `corro run`, `horovodrun`, `corro doctor`, and the same for Rust programs.
//!
//! A job is placed ([`placement`]) on hosts ([`hosts`]); each host gets one agent ([`agent`]), started there in one of several
//! ways ([`start`]), which starts the ranks. The launcher serves the rendezvous, shows what ranks write ([`output`]), and ends
//! everything when one fails. It knows nothing of what ranks do.
//!
//! | module | holds |
//! | --- | --- |
//! | `cli` | the command line, the config file |
//! | [`hosts`], [`placement`], `variables`, `threads` | who runs where and what it is told (pure) |
//! | [`allocation`] | what a batch system has given to the job this runs in (pure) |
//! | `job`, `failure` | what a job is, and why one failed |
//! | `culprit` | whose end made a job fail (pure) |
//! | `kubernetes` | jobs on Kubernetes: the objects that are asked for, and following them |
//! | [`start`] | the ways to start an agent on a host |
//! | `join` | agents that come by themselves |
//! | `launcher`, `agent_process`, `event` | what all launchers share: the store, the output, the agents |
//! | `fixed`, `lifecycle` | jobs of fixed size, and their decisions (pure) |
//! | [`elastic`] | jobs whose processes come and go |
//! | [`agent`] | what runs on each host |
//! | `process_id` | who is who for the launcher and its agents |
//! | `process_tree` | processes and all that descends from them |
//! | `server_plan`, `servers` | a job's parameter servers |
//! | [`output`], `keyboard` | what the user sees, and types |
//! | `watch` | what those who watch a job are told of it |
//! | [`worker`] | values between the starter of a job and its ranks |
//! | `local` | ranks for Rust programs that start themselves |

pub mod agent;
mod agent_process;
pub mod allocation;
pub mod cli;
mod culprit;
pub mod elastic;
mod event;
mod failure;
mod fixed;
pub mod hosts;
mod job;
mod join;
mod keyboard;
mod kubernetes;
mod launcher;
mod lifecycle;
mod local;
pub mod output;
pub mod placement;
mod process_id;
mod process_tree;
mod server_plan;
mod servers;
pub mod start;
mod threads;
mod variables;
mod watch;
pub mod worker;

pub use agent::message::Ending;
pub use event::Control;
pub use failure::Failure;
pub use job::{Job, Outcome};
pub use local::run_local;
pub use process_id::ProcessId;
pub use server_plan::ServerPlan;
