//! Tells the launcher how this rank gets on: a thread of its own, which reads what is counted anyway and writes a note twice a
//! second, and at once when the program begins or ends to wait for long. It never waits for the launcher: a note that finds no room is lost, and what matters of it is in the next.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_agreement::node::Gear;
use corro_core::config;
use corro_cuda::nvml::Meter;
use corro_observe::note::{Gpu, MAX_TENSORS, Note, Totals, Usage, pieces};
use corro_observe::rank::host;
use corro_transport::statements::{Channel, Requests};

use super::life::Life;
use super::metrics::Count;
use super::recorder::Recorder;
use crate::core::Core;
use crate::set::ProcessSet;
use crate::sets::Sets;

/// How often it looks, and which of the looks always is a note.
const PERIOD: Duration = Duration::from_millis(125);
const NOTE_EVERY: u64 = 4;
/// Values in one note, if they fit.
const MAX_VALUES: usize = 200;
/// Which of the notes tell what tensors cost.
const COSTS_EVERY: u64 = 10;
/// How long the launcher may take to read a flight record.
const RECORD: Duration = Duration::from_secs(3);
/// Waiting for less is nothing to tell.
const WORTH_TELLING: Duration = Duration::from_millis(200);

/// See the module. The thread ends with [`Feed::stop`].
pub(crate) struct Feed {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Feed {
    /// Begins to tell, if there is somebody to tell it to. `for_host`: this rank also tells of its host's network.
    pub(crate) fn start(core: &Arc<Core>, global: &Arc<ProcessSet>, sets: &Arc<Sets>, for_host: bool) -> Option<Self> {
        core.life.as_ref()?;
        let channel = Channel::of(&config::FEED)?;
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let mut teller = Teller {
            core: Arc::clone(core),
            global: Arc::downgrade(global),
            sets: Arc::downgrade(sets),
            channel,
            requests: Requests::from_env(),
            meter: Meter::default(),
            for_host,
            looks: 0,
            notes: 0,
            waited: false,
            gear: "",
        };
        let watched = Arc::clone(&over);
        let body = move || teller.run(&watched);
        let thread = std::thread::Builder::new().name("corro-feed".into()).spawn(body);
        match thread {
            Ok(thread) => Some(Self { over, thread: Mutex::new(Some(thread)) }),
            Err(error) => {
                core.warn(&format!("nobody can watch this rank, for want of a thread: {error}"));
                None
            }
        }
    }

    /// Tells the last, and ends.
    pub(crate) fn stop(&self) {
        *lock(&self.over.0) = true;
        self.over.1.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

struct Teller {
    core: Arc<Core>,
    global: Weak<ProcessSet>,
    sets: Weak<Sets>,
    channel: Channel,
    requests: Option<Requests>,
    meter: Meter,
    for_host: bool,
    /// Looks and notes so far, and whether the last one told that the program waits.
    looks: u64,
    notes: u64,
    waited: bool,
    /// How ranks agreed before the end: who leaves first makes the others change.
    gear: &'static str,
}

impl Teller {
    fn run(&mut self, (over, woken): &(Mutex<bool>, Condvar)) {
        loop {
            let guard = lock(over);
            let guard = if *guard {
                guard
            } else {
                woken.wait_timeout(guard, PERIOD).unwrap_or_else(PoisonError::into_inner).0
            };
            let last = *guard;
            drop(guard);
            self.looks += 1;
            if last || self.looks.is_multiple_of(NOTE_EVERY) || self.waits_now() != self.waited {
                self.tell(last);
            }
            if self.requests.as_ref().is_some_and(Requests::take) {
                self.tell_record();
            }
            if last {
                return;
            }
        }
    }

    /// One note; the last time all of what is left to tell.
    fn tell(&mut self, last: bool) {
        let core = Arc::clone(&self.core);
        let Some(life) = &core.life else { return };
        let costs = last || self.notes.is_multiple_of(COSTS_EVERY);
        let tensors = if costs { life.costliest(MAX_TENSORS) } else { Vec::new() };
        self.notes += 1;
        let usage = self.usage();
        self.waited = self.waits_now();
        if !last || self.gear.is_empty() {
            self.gear = self.gear_now();
        }
        loop {
            let (marks, steps_are_told) = life.take_steps();
            let (values, values_lost) = life.values(MAX_VALUES);
            let more = values.len() == MAX_VALUES;
            let tensors = tensors.clone();
            let note = Note { marks, steps_are_told, values, values_lost, tensors, usage, ..self.note(life) };
            let sent = note.encode().ok().filter(|(bytes, _)| self.channel.send(bytes));
            match sent {
                Some((_, values)) => {
                    life.told_values(values);
                    if !(last && (more || values < note.values.len())) {
                        return;
                    }
                }
                None => return life.put_back(note.marks),
            }
        }
    }

    fn note(&self, life: &Life) -> Note {
        let (core, now) = (&self.core, self.core.nanos());
        let (rank, fabric) = (core.fabric.rank(), &core.fabric);
        let counted = core.observers.metrics.snapshot(rank);
        let (tensors, bytes) = counted.of_all();
        let messages = counted.get(Count::ControlMessagesSent) + counted.get(Count::ControlMessagesReceived);
        Note {
            rank: rank.index() as u32,
            size: fabric.size() as u32,
            host: fabric.card(rank).host.clone(),
            epoch: fabric.settings().epoch,
            hidden: life.is_hidden(now),
            totals: Totals {
                batches: counted.get(Count::Batches),
                tensors,
                bytes,
                collective: counted.get(Count::CollectiveNanos),
                messages,
                plans_left: counted.get(Count::PlansLeft),
                stalls: counted.get(Count::Stalls),
                failures: counted.get(Count::Failures),
                queued: counted.queue_depth,
            },
            gear: self.gear.to_owned(),
            planes: counted.planes().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect(),
            waits: self.waits(life, now),
            dumps: life.dumps.load(Ordering::Relaxed),
            network: if self.for_host { host::network() } else { Vec::new() },
            ..Note::default()
        }
    }

    fn gear_now(&self) -> &'static str {
        match self.global.upgrade().map(|set| set.traffic().0) {
            Some(Gear::Announce) => "announce",
            Some(Gear::Bits) => "bits",
            Some(Gear::Plan) => "plan",
            None => "",
        }
    }

    fn waits_now(&self) -> bool {
        let now = self.core.nanos();
        self.core.life.as_ref().is_some_and(|life| waits_since(life, now).is_some())
    }

    /// What this process uses.
    fn usage(&mut self) -> Usage {
        let gpu = self.meter.read().unwrap_or_else(|error| {
            tracing::info!("how busy the GPU is can't be told: {error}");
            None
        });
        let gpu = gpu.map(|gpu| Gpu { load: gpu.load, used: gpu.used, memory: gpu.memory });
        Usage { gpu, ..host::usage() }
    }

    /// Tells what the flight recorder holds, in as many notes as it needs. The launcher reads them meanwhile.
    fn tell_record(&self) {
        let Some(sets) = self.sets.upgrade() else { return };
        let (fabric, until) = (&self.core.fabric, Instant::now() + RECORD);
        for piece in pieces(&sets.flight_record()) {
            let note = Note {
                rank: fabric.rank().index() as u32,
                size: fabric.size() as u32,
                epoch: fabric.settings().epoch,
                record: Some(piece),
                ..Note::default()
            };
            let Ok((bytes, _)) = note.encode() else { return };
            while !self.channel.send(&bytes) {
                if Instant::now() >= until {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// What the program waits for, if it has for a while.
    fn waits(&self, life: &Life, now: u64) -> Option<(u64, String)> {
        let lasts = waits_since(life, now)?;
        let oldest = |record: &Recorder| {
            let under_way = record.entries().filter(|entry| !entry.state.is_over());
            under_way.min_by_key(|entry| entry.submitted).map(|entry| entry.name.clone())
        };
        let name = self.global.upgrade().and_then(|set| set.with_recorder(oldest)).unwrap_or_default();
        Some((lasts.as_millis() as u64, name))
    }
}

/// For how long the program has waited, if that is worth telling.
fn waits_since(life: &Life, now: u64) -> Option<Duration> {
    let lasts = Duration::from_nanos(life.waiting.since(now).or_else(|| life.flying.since(now))?);
    (lasts >= WORTH_TELLING).then_some(lasts)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
