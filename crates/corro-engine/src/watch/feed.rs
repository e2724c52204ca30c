//! Tells the launcher how this rank gets on: a thread of its own, which reads what is counted anyway and writes a note twice a
//! second. It never waits for the launcher: a note that finds no room is lost, and what matters of it is in the next.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use corro_agreement::node::Gear;
use corro_core::config;
use corro_observe::note::{Note, Totals};
use corro_observe::rank::host;
use corro_transport::statements::Channel;

use super::life::Life;
use super::metrics::Count;
use super::recorder::Recorder;
use crate::core::Core;
use crate::set::ProcessSet;

/// How often.
const PERIOD: Duration = Duration::from_millis(500);
/// Values in one note, if they fit.
const MAX_VALUES: usize = 200;
/// Waiting for less is nothing to tell.
const WORTH_TELLING: Duration = Duration::from_millis(300);

/// See the module. The thread ends with [`Feed::stop`].
pub(crate) struct Feed {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Feed {
    /// Begins to tell, if there is somebody to tell it to. `for_host`: this rank also tells of its host's network.
    pub(crate) fn start(core: &Arc<Core>, global: &Arc<ProcessSet>, for_host: bool) -> Option<Self> {
        core.life.as_ref()?;
        let channel = Channel::of(&config::FEED)?;
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let teller = Teller { core: Arc::clone(core), global: Arc::downgrade(global), channel, for_host };
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
    channel: Channel,
    for_host: bool,
}

impl Teller {
    fn run(&self, (over, woken): &(Mutex<bool>, Condvar)) {
        loop {
            let guard = lock(over);
            let guard = if *guard {
                guard
            } else {
                woken.wait_timeout(guard, PERIOD).unwrap_or_else(PoisonError::into_inner).0
            };
            let last = *guard;
            drop(guard);
            self.tell(last);
            if last {
                return;
            }
        }
    }

    /// One note; the last time all of what is left to tell.
    fn tell(&self, last: bool) {
        let Some(life) = &self.core.life else { return };
        loop {
            let (marks, steps_are_told) = life.take_steps();
            let (values, values_lost) = life.values(MAX_VALUES);
            let more = values.len() == MAX_VALUES;
            let note = Note { marks, steps_are_told, values, values_lost, ..self.note(life) };
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
        let gear = match self.global.upgrade().map(|set| set.traffic().0) {
            Some(Gear::Announce) => "announce",
            Some(Gear::Bits) => "bits",
            Some(Gear::Plan) => "plan",
            None => "",
        };
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
            gear: gear.to_owned(),
            planes: counted.planes().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect(),
            waits: self.waits(life, now),
            dumps: life.dumps.load(Ordering::Relaxed),
            usage: host::usage(),
            network: if self.for_host { host::network() } else { Vec::new() },
            ..Note::default()
        }
    }

    /// What the program waits for, if it has for a while.
    fn waits(&self, life: &Life, now: u64) -> Option<(u64, String)> {
        let lasts = Duration::from_nanos(life.waiting.since(now).or_else(|| life.flying.since(now))?);
        if lasts < WORTH_TELLING {
            return None;
        }
        let oldest = |record: &Recorder| {
            let under_way = record.entries().filter(|entry| !entry.state.is_over());
            under_way.min_by_key(|entry| entry.submitted).map(|entry| entry.name.clone())
        };
        let name = self.global.upgrade().and_then(|set| set.with_recorder(oldest)).unwrap_or_default();
        Some((lasts.as_millis() as u64, name))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
