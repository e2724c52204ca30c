//! The rank's side of an elastic job: how it gets a seat, what it tells the driver, and what it hears from it.
//!
//! Decisions are the driver's (`corro-membership`): whether to go on, with whom, and who is rank 0. A process that is not wanted
//! any more, or whose job is over, ends here, by `SystemExit`: it is neither an error of the program nor a result.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use corro_core::{Error, Result};
use corro_engine::{Engine, Options};
use corro_membership::{Client, JoinRequest, Joined};
use corro_transport::Settings;
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;

use crate::error::exception;
use crate::running::{Running, is_forked, running};
use crate::without_gil::outside;

/// How often a Python that waits for a seat is asked whether the user has pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// How far this process's state is, see `corro/_front/elastic.py`.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
/// What ended the last epoch here.
static CAUSE: Mutex<Option<Error>> = Mutex::new(None);
/// This process ends because it was told to, not because it has finished its work.
static DISMISSED: AtomicBool = AtomicBool::new(false);
/// Whether this process ends because its job does so at a commit.
static EARLY: AtomicBool = AtomicBool::new(false);

/// The connection to the driver, if this is an elastic job.
pub(crate) fn client() -> Result<Option<&'static Client>> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.as_ref());
    }
    let client = Client::from_env()?;
    Ok(CLIENT.get_or_init(|| client).as_ref())
}

/// Notes why the engine ended, for the driver to know. That another rank shut it down is no cause: the driver hears that
/// rank's own, or sees it end.
pub(crate) fn remember(cause: Option<Error>) {
    let cause = cause.filter(|error| !matches!(error, Error::Shutdown(_)));
    *CAUSE.lock().unwrap_or_else(PoisonError::into_inner) = cause;
}

/// What came of asking for a seat.
enum Answer {
    Seat(Running),
    Leave { success: bool, why: String },
}

/// Waits for a seat in the job, and meets the others there.
pub(crate) fn start(py: Python<'_>, client: &'static Client) -> PyResult<Running> {
    let (sender, mut answers) = channel();
    // A thread of its own, so that this one can be interrupted: a spare may wait for days.
    let spawned = std::thread::Builder::new().name("corro-join".into()).spawn(move || {
        let _ = sender.send(seated(client));
    });
    spawned.map_err(|error| exception(py, &Error::io("starting a thread to join the job", error)))?;
    loop {
        let answers = &mut answers;
        let answer = outside(py, move || match answers.recv_timeout(LOOK) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Bug("the thread that joins the job has panicked".into())),
        });
        match answer {
            Ok(Some(Answer::Seat(running))) => return Ok(running),
            Ok(Some(Answer::Leave { success, why })) => return Err(dismissed(success, &why)),
            Ok(None) => py.check_signals()?,
            Err(error) => return Err(error),
        }
    }
}

/// Asks until the ranks of a seat's epoch have met. How often that may fail is the driver's to say.
fn seated(client: &Client) -> Result<Answer> {
    let mut cause = CAUSE.lock().unwrap_or_else(PoisonError::into_inner).take();
    loop {
        let coming = JoinRequest { progress: PROGRESS.load(Ordering::Relaxed), cause: cause.as_ref() };
        // Horovod's users expect ValueError from a failed init, whatever failed.
        let joined = client.join(coming).map_err(|error| Error::Usage(error.to_string()))?;
        let seat = match joined {
            Joined::Seat(seat) => seat,
            Joined::Removed(why) => return Ok(Answer::Leave { success: true, why }),
            Joined::Ended { success, why } => return Ok(Answer::Leave { success, why }),
        };
        let settings = Settings { epoch: seat.epoch, ..Settings::from_env()? };
        let options = Options::from_env()?;
        match client.fabric(&seat, settings).and_then(|fabric| Engine::start(fabric, options)) {
            Ok(engine) => {
                client.when_lost(&seat, engine.ender());
                return Ok(Answer::Seat(Running { engine, epoch: seat.epoch, seat: Some(seat) }));
            }
            Err(error @ Error::Usage(_)) => return Err(error),
            Err(error) => cause = Some(error),
        }
    }
}

fn dismissed(success: bool, why: &str) -> PyErr {
    DISMISSED.store(true, Ordering::Relaxed);
    tracing::warn!("this process ends: {why}");
    PySystemExit::new_err(i32::from(!success))
}

/// Says how far this process's state is: who has the highest number is rank 0 of the next epoch.
#[pyfunction]
pub(crate) fn set_progress(progress: u64) {
    PROGRESS.store(progress, Ordering::Relaxed);
}

/// What the driver wants changed that this epoch does not have yet: 1 hosts leave, 2 hosts come, 3 both, 4 the job ends, 0
/// nothing.
#[pyfunction]
pub(crate) fn host_changes() -> u8 {
    let Ok(Some(client)) = client() else { return 0 };
    let changes = client.changes();
    let known = running().as_ref().and_then(|running| running.seat.as_ref().map(|seat| seat.changes));
    match known {
        Some(known) if changes.number > known => match (changes.removed, changes.added) {
            _ if changes.ending => 4,
            (true, false) => 1,
            (false, true) => 2,
            _ => 3,
        },
        _ => 0,
    }
}

/// This process ends at a commit because the job does, and not because its work is done: [`leave`] says so.
#[pyfunction]
pub(crate) fn end_early() {
    EARLY.store(true, Ordering::Relaxed);
}

/// This process has done its work, and will end with success.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) -> PyResult<()> {
    outside(py, || {
        if let Ok(Some(client)) = client()
            && !is_forked()
            && !DISMISSED.load(Ordering::Relaxed)
        {
            client.leave(EARLY.load(Ordering::Relaxed));
        }
        Ok(())
    })
}
