//! When the device has done a batch.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Deadline, Error, Result};
use corro_cuda::Event;

use crate::outcome::Done;

/// How long the host sleeps between two looks at an event that takes its time.
const NAP: Duration = Duration::from_micros(50);
/// So many looks without a nap: most of what is waited for takes microseconds.
const LOOKS: u32 = 200;

/// So long a GPU may take until it has computed a tensor and copied it: programs enqueue many steps ahead.
const WAIT: Duration = Duration::from_secs(600);

/// Has the host wait for an event.
pub(super) fn wait_for(event: &Event) -> Result<()> {
    wait_until(event, Deadline::after(WAIT))
}

fn wait_until(event: &Event, deadline: Deadline) -> Result<()> {
    for look in 0.. {
        if event.is_done()? {
            return Ok(());
        }
        if deadline.passed() {
            return Err(Error::Io {
                doing: "waiting for a GPU".into(),
                cause: "it has not done in time what was given to it: it is busy with something else, or another \
                        process that takes part hangs"
                    .into(),
            });
        }
        if look < LOOKS {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}

/// The event after the last piece of work on a batch, and what that work needs.
pub struct CudaDone {
    event: Event,
    _keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl CudaDone {
    pub(super) fn new(event: Event, keep: Vec<Arc<dyn Any + Send + Sync>>) -> Self {
        Self { event, _keep: keep }
    }

    /// What a stream waits for that is to use the results.
    pub fn event(&self) -> &Event {
        &self.event
    }
}

impl Done for CudaDone {
    fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    fn wait(&self, deadline: Deadline) -> Result<()> {
        wait_until(&self.event, deadline)
    }
}

impl fmt::Debug for CudaDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDone({:?})", self.event)
    }
}
