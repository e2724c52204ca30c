//! Starting jobs, for `corro.runner`: a payload goes to all ranks and a result comes back from each, as bytes, through the
//! job's authenticated store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use corro_core::{Error, Result};
use corro_launch::hosts::{self, Host};
use corro_launch::output::{Output, Style};
use corro_launch::{Failure, Job, placement, worker};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::exception;
use crate::gate::outside;

/// How often a waiting Python is asked whether the user has pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
const SIGINT: i32 = 2;

/// What is wanted, in the words of `corro.runner.run`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wanted {
    command: Vec<String>,
    size: usize,
    hosts: Option<String>,
    agent: Vec<String>,
    payload: Vec<u8>,
    variables: Vec<(String, String)>,
    interfaces: Vec<String>,
    start_timeout: Option<f64>,
    output_directory: Option<PathBuf>,
    verbose: bool,
}

impl Wanted {
    fn job(&self) -> Result<Job> {
        let hosts = self.hosts.as_deref().map_or_else(|| Ok(vec![Host::local(self.size)]), hosts::parse_list)?;
        let words = |words: &[String]| words.iter().map(OsString::from).collect();
        let mut job = Job::new(words(&self.command), placement::place(self.size, &hosts)?)?;
        job.agent = words(&self.agent);
        job.payload = Some(self.payload.clone());
        job.variables.clone_from(&self.variables);
        job.interfaces.clone_from(&self.interfaces);
        job.verbose = self.verbose;
        if let Some(seconds) = self.start_timeout {
            job.start_timeout = Duration::try_from_secs_f64(seconds)
                .map_err(|_| Error::Usage(format!("start_timeout is {seconds}, which is not a number of seconds")))?;
        }
        Ok(job)
    }

    fn output(&self) -> Result<Output> {
        let style =
            Style { timestamps: false, colour: false, same_place: false, directory: self.output_directory.clone() };
        Output::new(style, self.size, [Box::new(std::io::stdout()), Box::new(std::io::stderr())])
    }
}

/// The results of a job's ranks, and why it failed, if it did.
type Ended = (Vec<Option<Py<PyBytes>>>, Option<String>);

/// Runs a job to its end.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from a Python dict")]
pub(crate) fn start_job(py: Python<'_>, wanted: Wanted) -> PyResult<Ended> {
    let (job, output) = outside(py, || Ok((wanted.job()?, wanted.output()?)))?;
    let (sender, control) = channel();
    let running = std::thread::spawn(move || {
        job.run(output, move |control| {
            let _ = sender.send(control);
        })
    });
    let mut interrupted = None;
    while !running.is_finished() {
        outside(py, || {
            std::thread::sleep(LOOK);
            Ok(())
        })?;
        if let Err(error) = py.check_signals() {
            interrupted = Some(error);
            if let Ok(control) = control.try_recv() {
                control.interrupt(SIGINT);
            }
        }
    }
    let outcome = running.join().unwrap_or_else(|_| Err(Error::Bug("the launcher panicked".into())));
    if let Some(error) = interrupted {
        return Err(error);
    }
    let outcome = outcome.map_err(|error| exception(py, &error))?;
    let failure = outcome.failure.as_ref().map(|failure| describe(failure, &outcome.last_lines));
    let results = outcome.results.into_iter().map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes).unbind()));
    Ok((results.collect(), failure))
}

fn describe(failure: &Failure, last_lines: &[String]) -> String {
    let what = match failure {
        Failure::Rank { rank, host, ending } => format!("rank {rank} on {host} exited with non-zero status: {ending}"),
        Failure::NotStarted { rank, host, cause, .. } => format!("rank {rank} on {host} could not be started: {cause}"),
        Failure::Host { host, cause, .. } => format!("lost host {host}: {cause}"),
        Failure::Elastic { why, .. } => why.clone(),
        Failure::Interrupted { signal } => format!("the job was ended by signal {signal}"),
    };
    std::iter::once(what).chain(last_lines.iter().cloned()).collect::<Vec<_>>().join("\n    ")
}

/// In a rank: what the starter of the job has sent.
#[pyfunction]
pub(crate) fn payload(py: Python<'_>) -> PyResult<Py<PyBytes>> {
    Ok(PyBytes::new(py, &outside(py, worker::payload)?).unbind())
}

/// In a rank: what the starter of the job is to get.
#[pyfunction]
pub(crate) fn give_result(py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
    outside(py, || worker::give_result(bytes))
}
