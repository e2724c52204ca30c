//! What a process set knows at a moment, all of it behind one lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corro_agreement::fusion;
use corro_agreement::matching::Agreed;
use corro_agreement::node::{Gear, Node};
use corro_collectives::Tuning;
use corro_core::{Error, Result};
use corro_planes::{Outcome, Tensor};
use corro_transport::Withdrawal;
use smallvec::SmallVec;

use super::entries::{Ended, Entries};
use super::hand_over::ListenState;
use super::parking::Parking;
use super::wires::{Heard, Traffic, Wires};
use crate::promise::Promise;
use crate::watch::recorder::{Recorder, State as Stage};

/// What the lane does next.
pub(super) enum Job {
    /// Run these as one. The list says which of them this member has submitted; to the others it brings nothing, since
    /// it had joined: also if it submits one of that name before they run.
    Batch(Arc<[Arc<Agreed>]>, SmallVec<[bool; 4]>, Gear),
    /// Open fresh connections: some member withdrew from the old ones.
    Renew,
    /// Run collectives like this from here on.
    Tune(Tuning),
}

/// A job that was taken.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, nearly always a batch, and a box would cost time"
)]
pub(super) enum Running {
    Batch(Batch),
    Renew,
    Tune(Tuning),
}

/// Tensors that run as one. Most often it is one: then nothing is allocated.
pub(super) struct Batch {
    pub(super) agreed: Arc<[Arc<Agreed>]>,
    /// See [`Job::Batch`]; empty: all.
    pub(super) mine: SmallVec<[bool; 4]>,
    /// Of this member; where it has joined, nothing.
    pub(super) tensors: SmallVec<[Tensor; 1]>,
    pub(super) began: Duration,
    /// Once it has run.
    pub(super) ended: Duration,
    pub(super) gear: Gear,
}

pub(super) struct State {
    pub(super) node: Node,
    pub(super) wires: Wires,
    pub(super) entries: Entries,
    pub(super) parking: Parking,
    pub(super) queue: VecDeque<Job>,
    pub(super) fusion: fusion::Limits,
    pub(super) joins: Vec<Arc<Promise>>,
    /// Failed in a collective; they learn why once all agree on what failed first.
    pub(super) doomed: Vec<Arc<Promise>>,
    /// Of the lane in use.
    pub(super) withdrawal: Withdrawal,
    pub(super) over: Option<Error>,
    pub(super) listening: ListenState,
    /// When the first tensor was submitted of which the others were not told.
    pub(super) unsaid: Option<Duration>,
    pub(super) closing: Option<Instant>,
    /// Since when something has been outstanding, as far as anybody has looked.
    pub(super) waiting: Option<Duration>,
    /// When something last got on.
    pub(super) moved: Duration,
    /// What the metrics know of.
    pub(super) counted: Traffic,
    pub(super) recorder: Recorder,
    /// To be done once the lock is released.
    pub(super) after: SmallVec<[After; 1]>,
    pub(super) heard: Vec<Heard>,
}

/// What is done without the lock.
pub(super) enum After {
    Keep(Arc<Promise>, Result<Outcome>),
    Warn(String),
    /// Of interest to who looks for a mistake in Corro.
    Detail(String),
    Over(Error),
    Failed(Error),
    /// This rank's program was waited for too long, or another's.
    Lost(Error),
}

impl State {
    /// A tensor is done with.
    pub(super) fn remove(&mut self, name: &str) -> Option<Ended> {
        self.parking.done(name);
        self.entries.remove(name)
    }

    /// Whether a tensor of this name is under way.
    pub(super) fn is_under_way(&self, name: &str) -> bool {
        self.entries.contains(name)
    }

    /// Since when something here has waited without anything getting on, looking now.
    pub(super) fn waits_since(&mut self, now: Duration) -> Option<Duration> {
        let idle = self.entries.is_empty() && self.joins.is_empty() && self.queue.is_empty();
        self.waiting = if idle { None } else { Some(self.waiting.unwrap_or(now)) };
        self.waiting.map(|since| since.max(self.moved))
    }

    pub(super) fn has_job(&self) -> bool {
        !self.queue.is_empty() || self.node.can_begin()
    }

    pub(super) fn take_job(&mut self, now: Duration) -> Option<Running> {
        let (agreed, mine, gear) = match self.queue.pop_front() {
            Some(Job::Renew) => return Some(Running::Renew),
            Some(Job::Tune(tuning)) => return Some(Running::Tune(tuning)),
            Some(Job::Batch(agreed, mine, gear)) => (agreed, mine, gear),
            None => (self.node.begin(now)?, SmallVec::new(), Gear::Plan),
        };
        let mut tensors = SmallVec::with_capacity(agreed.len());
        for (i, agreed) in agreed.iter().enumerate() {
            let entry = self.entries.get_mut(&agreed.name).filter(|_| *mine.get(i).unwrap_or(&true));
            if let Some(entry) = &entry {
                self.recorder.came_to(entry.record, Stage::Running, now);
            }
            tensors.push(entry.and_then(|e| e.tensor.take()).unwrap_or_default());
        }
        Some(Running::Batch(Batch { agreed, mine, tensors, began: now, ended: now, gear }))
    }

    /// Fails a tensor that does not run.
    pub(super) fn refuse(&mut self, now: Duration, name: &str, error: &Error) {
        if let Some(entry) = self.remove(name) {
            self.recorder.failed(entry.record, error, now);
            self.after.extend(entry.promise.map(|promise| After::Keep(promise, Err(error.clone()))));
        }
    }

    /// Whether nothing is to be waited for any more. (After an orderly shutdown what was agreed on before still runs.)
    pub(super) fn is_called_off(&self) -> bool {
        let failed = self.over.as_ref().is_some_and(|error| !matches!(error, Error::Shutdown(_)));
        failed || self.closing.is_some_and(|until| Instant::now() >= until)
    }

    pub(super) fn may_close(&self, until: Instant) -> bool {
        (self.node.may_close() && self.wires.is_flushed()) || Instant::now() >= until
    }
}
