//! What a job is: what to run, where, and how; and how it ended.
//!
//! [`crate::fixed`] runs it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank, Result, config};
use corro_observe::Watcher;

use crate::failure::Failure;
use crate::placement::Assignment;
use crate::server_plan::ServerPlan;
use crate::start::Remote;

/// What to run, where, and how.
#[derive(Clone, Debug)]
pub struct Job {
    /// The command and its arguments; the same on all ranks.
    pub command: Vec<OsString>,
    /// Who runs where, from [`crate::placement::place`].
    pub placement: Vec<Assignment>,
    /// Where ranks run; the same path on every host.
    pub directory: PathBuf,
    /// Variables for all ranks, on top of this process's environment.
    pub variables: Vec<(String, String)>,
    /// Encrypt everything between hosts.
    pub tls: bool,
    /// Network interfaces to use between hosts; none: whatever works.
    pub interfaces: Vec<String>,
    /// The store's port; 0: any free one.
    pub rendezvous_port: u16,
    /// How other hosts are reached.
    pub remote: Remote,
    /// The command that starts an agent on this host, and on others unless [`Remote::corro`] says otherwise.
    pub agent: Vec<OsString>,
    /// Within this time all hosts must have been reached.
    pub start_timeout: Duration,
    /// A host that has been silent for so long is lost.
    pub host_timeout: Duration,
    /// What ranks get between being asked to end and being killed.
    pub grace: Duration,
    /// What every rank can ask for with [`crate::worker::payload`].
    pub payload: Option<Vec<u8>>,
    /// The rank that has the user's terminal: this process's standard input is read for it. For jobs of fixed size.
    pub debug: Option<Rank>,
    /// Who watches it.
    pub watcher: Option<Arc<Watcher>>,
    /// Its parameter servers.
    pub servers: ServerPlan,
    /// Say what is being done.
    pub verbose: bool,
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// What each rank gave back with [`crate::worker::give_result`], in the order of ranks.
    pub results: Vec<Option<Vec<u8>>>,
    /// The last lines the failing rank wrote to standard error.
    pub last_lines: Vec<String>,
}

impl Job {
    /// `command` on this host's `placement`, with the usual limits.
    pub fn new(command: Vec<OsString>, placement: Vec<Assignment>) -> Result<Self> {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        let directory = std::env::current_dir().map_err(|e| Error::io("finding the working directory", e))?;
        Ok(Self {
            command,
            placement,
            directory,
            variables: Vec::new(),
            tls: config::TLS.flag(false),
            interfaces: Vec::new(),
            rendezvous_port: config::RENDEZVOUS_PORT.number(0)?,
            remote: Remote::default(),
            agent: vec![program.into(), "agent".into()],
            start_timeout: config::START_TIMEOUT.seconds(Duration::from_secs(30))?,
            host_timeout: Duration::from_secs(10),
            grace: Duration::from_millis(1500),
            payload: None,
            debug: None,
            watcher: None,
            servers: ServerPlan::default(),
            verbose: false,
        })
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.placement.iter().map(|a| a.slots.len()).sum()
    }
}
