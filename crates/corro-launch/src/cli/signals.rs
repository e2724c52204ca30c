//! Signals to this program: passed on to a job by a thread of their own, or waited for.

use corro_core::{Error, Result};
use nix::sys::signal::{SigSet, Signal};

use crate::event::Control;

/// Keeps signals for [`pass_on`]. Before any thread is started, since threads inherit this.
pub(super) fn block() -> Result<SigSet> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1] {
        set.add(signal);
    }
    set.thread_block().map_err(|e| Error::io("setting up signals", e))?;
    Ok(set)
}

pub(super) fn pass_on(set: SigSet, control: Control) {
    let wait = move || {
        while let Ok(signal) = set.wait() {
            if signal == Signal::SIGUSR1 {
                control.notice("corro run got SIGUSR1");
            } else {
                control.interrupt(signal as i32);
            }
        }
    };
    if let Err(e) = std::thread::Builder::new().name("corro-signals".into()).spawn(wait) {
        eprintln!("corro: signals can't be handled: {e}");
    }
}
