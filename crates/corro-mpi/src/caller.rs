//! A thread for calls that block inside MPI. Whoever waits for one can be called off, and MPI can't: the thread then stays behind.

use std::ffi::c_int;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use corro_core::{Error, Result};

use crate::request::Patience;

/// So often whoever waits looks whether it still makes sense.
const TICK: Duration = Duration::from_millis(10);

/// A call into MPI, with all that it needs; it gives MPI's code.
pub(crate) type Job = Box<dyn FnOnce() -> c_int + Send>;

/// What a thread does before it first calls MPI.
pub type Prepare = Box<dyn FnOnce() + Send>;

/// See the module. It is started by the first call.
pub(crate) enum Caller {
    NotStarted(Option<Prepare>),
    Started {
        jobs: SyncSender<Job>,
        codes: Receiver<c_int>,
    },
    /// In a call that has not ended, and may never.
    LeftBehind,
}

impl Caller {
    pub(crate) fn new(prepare: Option<Prepare>) -> Self {
        Self::NotStarted(prepare)
    }

    /// Whether its thread may still be inside MPI.
    pub(crate) fn is_left_behind(&self) -> bool {
        matches!(self, Self::LeftBehind)
    }

    /// Has the thread make a call, and waits for its code as long as there is patience. After an error the call may still be
    /// under way.
    pub(crate) fn call(&mut self, what: &str, patience: &Patience<'_>, job: Job) -> Result<c_int> {
        if let Self::NotStarted(prepare) = self {
            *self = Self::start(prepare.take())?;
        }
        let Self::Started { jobs, codes } = self else {
            return Err(Error::io(format!("calling {what}"), "MPI is still in a call that was given up"));
        };
        let gone = || Error::Bug("the thread that calls MPI has ended".into());
        jobs.send(job).map_err(|_| gone())?;
        loop {
            match codes.recv_timeout(TICK) {
                Ok(code) => return Ok(code),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(why) = patience.why_over(what) {
                *self = Self::LeftBehind;
                return Err(why);
            }
        }
    }

    fn start(prepare: Option<Prepare>) -> Result<Self> {
        let (jobs, taken) = sync_channel::<Job>(1);
        let (tell, codes) = sync_channel(1);
        // It ends when nobody can give it work any more; nobody waits for that.
        thread::Builder::new()
            .name("corro mpi".into())
            .spawn(move || {
                if let Some(prepare) = prepare {
                    prepare();
                }
                for job in taken {
                    // Whoever asked may have left.
                    let _ = tell.send(job());
                }
            })
            .map_err(|error| Error::io("starting a thread that calls MPI", error))?;
        Ok(Self::Started { jobs, codes })
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotStarted(_) => "not started",
            Self::Started { .. } => "started",
            Self::LeftBehind => "left behind",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use corro_core::Deadline;

    use super::*;

    fn patience(stop: &dyn Fn() -> Option<Error>, limit: Duration) -> Patience<'_> {
        Patience { deadline: Deadline::after(limit), stop }
    }

    #[test]
    fn codes_come_back_in_order() {
        let mut caller = Caller::new(None);
        let endless = patience(&|| None, Duration::from_secs(60));
        for code in 0..100 {
            assert_eq!(caller.call("MPI_Barrier", &endless, Box::new(move || code)).unwrap(), code);
        }
    }

    #[test]
    fn a_call_that_never_ends_is_left_behind() {
        let (end, ended) = channel::<()>();
        let mut caller = Caller::new(None);
        let lost = patience(&|| Some(Error::Withdrawn), Duration::from_secs(60));
        let job = Box::new(move || ended.recv().map_or(0, |()| 1));
        assert!(matches!(caller.call("MPI_Bcast", &lost, job), Err(Error::Withdrawn)));
        assert!(caller.is_left_behind());
        let again = caller.call("MPI_Bcast", &lost, Box::new(|| 0)).unwrap_err().to_string();
        assert!(again.contains("MPI_Bcast") && again.contains("given up"), "{again}");
        drop(end);
    }

    #[test]
    fn waiting_has_a_limit_that_says_what_was_waited_for() {
        let (_end, ended) = channel::<()>();
        let short = patience(&|| None, Duration::from_millis(30));
        let job = Box::new(move || ended.recv().map_or(0, |()| 1));
        let why = Caller::new(None).call("MPI_Allreduce", &short, job).unwrap_err().to_string();
        assert!(why.contains("MPI_Allreduce") && why.contains("not all came"), "{why}");
    }
}
