//! Everyone who watches the engine at work: metrics always, timeline and trace when they are on, the tuner when it tunes.
//!
//! Called by process sets at each turn of a tensor's life. With nobody watching, a call is a few counters and one branch.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::node::Gear;
use corro_agreement::request::Request;
use corro_core::{Compression, Error, Rank, Result};
use corro_planes::HOST;

use super::clock::Estimate;
use super::metrics::{Count, Metrics};
use super::nvtx::Ranges;
use super::timeline::{Step, Timeline, activity};
use super::trace::{Span, Tracer};
use crate::tuning::autotune::{Change, Tuner};

pub(crate) struct Observers {
    pub(crate) metrics: Metrics,
    /// Whether timeline, trace or ranges are on.
    watching: AtomicBool,
    timeline: Mutex<Timeline>,
    tracer: Mutex<Tracer>,
    ranges: Mutex<Ranges>,
    tuning: AtomicBool,
    tuner: Mutex<Option<Tuner>>,
}

/// A batch that ran.
pub(crate) struct Ran<'a> {
    pub(crate) set: u32,
    pub(crate) agreed: &'a [Arc<Agreed>],
    /// Who ran it.
    pub(crate) plane: &'static str,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) gear: Gear,
    pub(crate) well: bool,
}

impl Ran<'_> {
    fn bytes(&self) -> u64 {
        self.agreed.iter().map(|tensor| bytes_of(tensor)).sum()
    }
}

/// The bytes of a tensor.
pub(crate) fn bytes_of(tensor: &Agreed) -> u64 {
    tensor.shapes.iter().map(|shape| shape.bytes(tensor.dtype).unwrap_or(0) as u64).sum()
}

impl Observers {
    pub(crate) fn new(tuner: Option<Tuner>) -> Self {
        let tuner = tuner.filter(|t| !t.is_finished());
        Self {
            metrics: Metrics::new(),
            watching: AtomicBool::new(false),
            timeline: Mutex::default(),
            tracer: Mutex::default(),
            ranges: Mutex::default(),
            tuning: AtomicBool::new(tuner.is_some()),
            tuner: Mutex::new(tuner),
        }
    }

    fn is_watched(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// This rank has submitted a tensor.
    pub(crate) fn submitted(&self, now: Duration, request: &Request) {
        if self.is_watched() {
            self.steps().take(&request.name, now, Step::Negotiate(request.kind.name()));
        }
    }

    /// The coordinator has heard that a member, by its place in the set, is in.
    pub(crate) fn rank_ready(&self, now: Duration, name: &str, member: usize) {
        if self.is_watched() {
            self.steps().take(name, now, Step::RankReady(member));
        }
    }

    /// Tensors were agreed on, as one list.
    pub(crate) fn agreed(&self, now: Duration, gear: Gear, agreed: &[Arc<Agreed>]) {
        let rounds = if gear == Gear::Bits { Count::RoundsBits } else { Count::RoundsAnnounce };
        self.metrics.add(rounds, 1);
        if self.is_watched() {
            let mut steps = self.steps();
            steps.timeline.cycle(now);
            for tensor in agreed {
                steps.take(&tensor.name, now, Step::Negotiated);
            }
        }
    }

    /// Ranks did not agree about these.
    pub(crate) fn refused(&self, now: Duration, names: &[String]) {
        self.metrics.add(Count::Failures, names.len() as u64);
        if self.is_watched() {
            let mut steps = self.steps();
            for name in names {
                steps.take(name, now, Step::Negotiated);
                steps.take(name, now, Step::Start("ERROR"));
                steps.take(name, now, Step::Failed);
            }
        }
    }

    /// A batch begins to run, on this plane.
    pub(crate) fn begins(&self, now: Duration, planned: bool, plane: &'static str, agreed: &[Arc<Agreed>]) {
        if planned {
            self.metrics.add(Count::PlanEntries, 1);
        }
        if self.is_watched() {
            let mut steps = self.steps();
            for tensor in agreed {
                let how = tensor.kind.compression().map(Compression::name);
                if planned {
                    steps.take(&tensor.name, now, Step::Negotiated);
                }
                steps.take(&tensor.name, now, Step::Start(tensor.kind.name()));
                steps.take(&tensor.name, now, Step::BeginOn(activity::collective(&tensor.kind), plane, how));
            }
        }
    }

    /// A batch has run. Gives what the tuner wants changed.
    pub(crate) fn ran(&self, ran: &Ran<'_>) -> Option<Change> {
        let bytes = ran.bytes();
        let tensors = ran.agreed.len() as u64;
        self.metrics.ran(&ran.agreed[0].kind, tensors, bytes);
        if ran.plane != HOST {
            self.metrics.ran_on(ran.plane);
        }
        self.metrics.add_time(Count::CollectiveNanos, ran.ended.saturating_sub(ran.began));
        if !ran.well {
            self.metrics.add(Count::Failures, tensors);
        }
        if self.is_watched() {
            self.show(ran, bytes);
        }
        if !self.tuning.load(Ordering::Relaxed) || ran.set != crate::submission::GLOBAL {
            return None;
        }
        let names = ran.agreed.iter().map(|a| a.name.as_str());
        let mut tuner = lock(&self.tuner);
        let change = tuner.as_mut()?.observe(ran.ended, bytes, names)?;
        self.tuning.store(!change.finished, Ordering::Relaxed);
        Some(change)
    }

    fn show(&self, ran: &Ran<'_>, bytes: u64) {
        let mut steps = self.steps();
        for tensor in ran.agreed {
            let shape = tensor.shapes.first().cloned().unwrap_or_default();
            let end = if ran.well { Step::Done(tensor.dtype, shape) } else { Step::Failed };
            steps.take(&tensor.name, ran.ended, Step::End);
            steps.take(&tensor.name, ran.ended, end);
        }
        drop(steps);
        lock(&self.tracer).record(|| Span {
            name: ran.agreed[0].name.clone(),
            what: ran.agreed[0].kind.name(),
            plane: ran.plane,
            compression: ran.agreed[0].kind.compression().map_or("", Compression::name),
            set: ran.set,
            start: ran.began,
            end: ran.ended,
            bytes,
            tensors: ran.agreed.len() as u32,
            gear: match ran.gear {
                Gear::Announce => "announce",
                Gear::Bits => "bits",
                Gear::Plan => "plan",
            },
        });
    }

    fn steps(&self) -> Steps<'_> {
        Steps { timeline: lock(&self.timeline), ranges: lock(&self.ranges) }
    }

    /// Starts ranges for NVIDIA's profilers, if one watches this process.
    pub(crate) fn start_ranges(&self) -> Result<()> {
        let mut ranges = lock(&self.ranges);
        ranges.start()?;
        self.watching.fetch_or(ranges.is_on(), Ordering::Relaxed);
        Ok(())
    }

    /// Starts Horovod's timeline.
    pub(crate) fn start_timeline(&self, path: &Path, cap: u64, mark_cycles: bool, now: Duration) -> Result<()> {
        lock(&self.timeline)
            .start(path, cap, mark_cycles, now)
            .map_err(|e| Error::io(format!("starting a timeline in {}", path.display()), e))?;
        self.watching.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends it.
    pub(crate) fn stop_timeline(&self) -> Result<()> {
        let mut timeline = lock(&self.timeline);
        self.watching.store(lock(&self.tracer).is_on() || lock(&self.ranges).is_on(), Ordering::Relaxed);
        timeline.stop().map_err(|e| Error::io("writing the timeline", e))
    }

    /// Starts this rank's part of the trace of all ranks.
    pub(crate) fn start_trace(&self, path: &Path, rank: Rank, host: &str, cap: u64) -> Result<()> {
        lock(&self.tracer)
            .start(path, rank, host, cap)
            .map_err(|e| Error::io(format!("starting a trace in {}", path.display()), e))?;
        self.watching.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// How this rank's clock stands to rank 0's.
    pub(crate) fn clock(&self, now: Duration, estimate: Estimate) {
        lock(&self.tracer).clock(now, estimate);
    }

    /// Closes all files.
    pub(crate) fn stop(&self) -> Result<()> {
        let timeline = self.stop_timeline();
        self.watching.store(false, Ordering::Relaxed);
        lock(&self.tracer).stop().map_err(|e| Error::io("writing the trace", e)).and(timeline)
    }
}

/// Those who want to hear of each step of a tensor.
struct Steps<'a> {
    timeline: MutexGuard<'a, Timeline>,
    ranges: MutexGuard<'a, Ranges>,
}

impl Steps<'_> {
    fn take(&mut self, name: &str, at: Duration, step: Step) {
        self.ranges.step(name, &step);
        self.timeline.step(name, at, || step);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
