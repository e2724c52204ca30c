//! Starting jobs, for `corro.runner`: a payload goes to all ranks and a result comes back from each, as bytes, through the
//! job's authenticated store.

use std::ffi::OsString;
use std::sync::mpsc::channel;
use std::time::Duration;

use corro_core::{Error, Result};
use corro_launch::cli::{self, Asked};
use corro_launch::{Failure, worker};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::exception;
use crate::without_gil::outside;

/// How often a waiting Python is asked whether the user has pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
const SIGINT: i32 = 2;

/// What is wanted: flags of `corro run` and the command of a rank, and what only a program can give.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wanted {
    flags: Vec<String>,
    command: Vec<String>,
    agent: Vec<String>,
    payload: Vec<u8>,
    variables: Vec<(String, String)>,
}

impl Wanted {
    fn understand(&self) -> Result<Asked> {
        let words = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let line = [words(&self.flags), vec!["--".into()], words(&self.command)].concat();
        let mut asked = cli::understand(&line, Some(&words(&self.agent)))?;
        asked.plan.job().payload = Some(self.payload.clone());
        asked.plan.job().variables.extend(self.variables.iter().cloned());
        Ok(asked)
    }
}

/// The results of a job's ranks; why it failed, if it did, and because of which rank, if it was one.
type Ended = (Vec<Option<Py<PyBytes>>>, Option<(String, Option<usize>)>);

/// Runs a job to its end.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from a Python dict")]
pub(crate) fn start_job(py: Python<'_>, wanted: Wanted) -> PyResult<Ended> {
    let asked = outside(py, || wanted.understand())?;
    for remark in &asked.remarks {
        eprintln!("corro.run: {remark}");
    }
    let (sender, control) = channel();
    let running = std::thread::spawn(move || {
        asked.run("corro.run", move |control| {
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
    let failure = outcome.failure.as_ref().map(|failure| {
        let rank = match failure {
            Failure::Rank { rank, .. } | Failure::Stuck { rank, .. } => Some(rank.index()),
            _ => None,
        };
        (describe(failure, &outcome.last_lines), rank)
    });
    let results = outcome.results.into_iter().map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes).unbind()));
    Ok((results.collect(), failure))
}

fn describe(failure: &Failure, last_lines: &[String]) -> String {
    let what = match failure {
        Failure::Rank { .. } | Failure::Stuck { .. } | Failure::Early { .. } => failure.to_string(),
        Failure::NotStarted { rank, host, cause, .. } => format!("rank {rank} on {host} could not be started: {cause}"),
        Failure::Host { host, cause, .. } => format!("lost host {host}: {cause}"),
        Failure::Elastic { why, .. } => why.clone(),
        Failure::Interrupted { signal } => format!("the job was ended by signal {signal}"),
    };
    let ours = std::iter::once(what).chain(last_lines.iter().cloned()).collect::<Vec<_>>().join("\n    ");
    match failure.in_horovods_words() {
        Some(theirs) => format!("{ours}\n{theirs}"),
        None => ours,
    }
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
