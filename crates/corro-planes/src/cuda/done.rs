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
/// Every so many looks a library that may have failed is asked.
const WATCHED: u32 = 256;

/// An error if what the device waits for will never come.
pub(super) type Watch = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// So long a GPU may take until it has computed a tensor and copied it: programs enqueue many steps ahead.
const WAIT: Duration = Duration::from_secs(600);

/// Has the host wait for an event.
pub(super) fn wait_for(event: &Event) -> Result<()> {
    wait_until(event, Deadline::after(WAIT), &|| Ok(()))
}

/// `check` is asked now and then: an error if what the device waits for will never come.
fn wait_until(event: &Event, deadline: Deadline, check: &dyn Fn() -> Result<()>) -> Result<()> {
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
        if look % WATCHED == WATCHED - 1 {
            check()?;
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
    watch: Option<Watch>,
    _keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl CudaDone {
    pub(super) fn new(event: Event, keep: Vec<Arc<dyn Any + Send + Sync>>) -> Self {
        Self { event, watch: None, _keep: keep }
    }

    /// The same, for work of a library that may fail without a word to the device.
    pub(super) fn watched(self, watch: Watch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// What a stream waits for that is to use the results.
    pub fn event(&self) -> &Event {
        &self.event
    }

    fn check(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch())
    }
}

impl Done for CudaDone {
    fn is_done(&self) -> Result<bool> {
        let done = self.event.is_done()?;
        if !done {
            self.check()?;
        }
        Ok(done)
    }

    fn wait(&self, deadline: Deadline) -> Result<()> {
        wait_until(&self.event, deadline, &|| self.check())
    }
}

impl fmt::Debug for CudaDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDone({:?})", self.event)
    }
}
