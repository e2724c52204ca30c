//! The tests of this crate from outside, as one program: linking takes longer than compiling any of them.

mod command_line;
mod debug;
mod elastic;
mod elastic_hosts;
mod homes;
mod homes_kubernetes;
mod homes_slurm;
mod hosts;
mod joining;
mod launch;
mod library;
mod other_launchers;
mod slow_jobs;
mod support;
mod timeline;
mod watching;
