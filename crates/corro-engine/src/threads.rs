//! Which threads of a program take part in the job, and which of them wait.
//!
//! A thread takes part from the first time it submits something or waits for it, until it ends. If all that take part
//! wait, the program does nothing until something it waits for is done. That is what a rank must know of itself before it
//! can say that it is in a deadlock (see [`corro_agreement::deadlock`]). A thread that hands its tensors over and goes on
//! to other work never counts as waiting, and so neither does its process.
//!
//! Graphs of TensorFlow, code that XLA has compiled, and backward passes of torch on a GPU submit from threads that are not the
//! program's ([`expect_foreign_threads`]). There everything counts as waited for that somebody is to be told the end of, and the
//! program does nothing if all of its process sleeps ([`crate::process`]).
//!
//! Nothing here is in the way of an operation that succeeds at once: a thread is written down when it goes to sleep.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::process::{self, Asleep};

/// All must have waited for so long: most waits are over sooner, and are nobody's business.
const SETTLED: Duration = Duration::from_millis(200);

/// Whether code takes part whose threads are not known.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// From now on tensors of this process may come from threads that work for others: a framework's, which may run any part of a
/// program on any of its threads. To be called before the first of them comes.
pub fn expect_foreign_threads() {
    FOREIGN.store(true, Ordering::Relaxed);
}

fn are_foreign() -> bool {
    FOREIGN.load(Ordering::Relaxed)
}

/// The threads of one engine's program.
pub(crate) struct Threads {
    /// Of all there ever were in this process.
    number: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    taking_part: usize,
    waiting: Vec<Waiting>,
    /// Of those that wait: as the system numbers them.
    sleepers: Vec<u32>,
    /// Code that was told an end, and may be doing what comes next.
    resuming: usize,
    /// The process when it was last looked at, if it slept.
    seen: Option<Asleep>,
    /// Counts all changes; and when the last one was.
    stirred: u64,
    since: Instant,
}

/// A thread that waits for a promise of a process set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) set: u32,
    /// Where it is: this is only ever compared.
    pub(crate) promise: usize,
}

/// All threads wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The same as long as they do nothing else.
    pub(crate) stirred: u64,
    pub(crate) waiting: Vec<Waiting>,
}

thread_local! {
    /// Where this thread takes part.
    static PARTS: RefCell<Vec<Part>> = const { RefCell::new(Vec::new()) };
    /// Where it took part last: that is nearly always where it does now.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Dropped when the thread ends.
struct Part {
    number: u64,
    threads: Weak<Threads>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.upgrade() {
            let mut inner = threads.lock();
            inner.taking_part -= 1;
            inner.stir();
        }
    }
}

impl Inner {
    fn all_wait(&self) -> bool {
        self.taking_part > 0 && self.waiting.len() == self.taking_part
    }

    fn stir(&mut self) {
        self.stirred += 1;
        self.since = Instant::now();
    }

    fn remove(&mut self, waiting: Waiting) {
        if let Some(at) = self.waiting.iter().position(|w| *w == waiting) {
            self.waiting.swap_remove(at);
        }
        self.stir();
    }

    /// What is waited for, if nothing has changed for a while.
    fn blocked(&self) -> Option<Blocked> {
        (self.since.elapsed() >= SETTLED).then(|| Blocked { stirred: self.stirred, waiting: self.waiting.clone() })
    }

    /// The same where threads are not known, given how the process was found to sleep. It must have done so for a while.
    fn blocked_if(&mut self, asleep: Option<Asleep>) -> Option<Blocked> {
        let before = std::mem::replace(&mut self.seen, asleep);
        let now = self.seen.as_ref()?;
        if before.as_ref() != Some(now) {
            self.stir();
        }
        self.blocked()
    }
}

impl Threads {
    pub(crate) fn new() -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let inner = Inner {
            taking_part: 0,
            waiting: Vec::new(),
            sleepers: Vec::new(),
            resuming: 0,
            seen: None,
            stirred: 0,
            since: Instant::now(),
        };
        Arc::new(Self { number, inner: Mutex::new(inner) })
    }

    /// This thread takes part: to be called before it does anything that others could wait for.
    pub(crate) fn take_part(self: &Arc<Self>) {
        if LAST.get() != self.number {
            self.write_down();
        }
        if are_foreign() {
            self.lock().stir();
        }
    }

    #[cold]
    fn write_down(self: &Arc<Self>) {
        // While a thread ends, there is nothing left to note it with; and nothing that it could wait for.
        let _ = PARTS.try_with(|parts| {
            let mut parts = parts.borrow_mut();
            parts.retain(|part| part.threads.strong_count() > 0);
            if parts.iter().all(|part| part.number != self.number) {
                parts.push(Part { number: self.number, threads: Arc::downgrade(self) });
                let mut inner = self.lock();
                inner.taking_part += 1;
                inner.stir();
            }
            LAST.set(self.number);
        });
    }

    /// This thread waits until what is given here is dropped.
    pub(crate) fn wait(self: &Arc<Self>, set: u32, promise: usize) -> Sleeper<'_> {
        self.take_part();
        let (waiting, thread) = (Waiting { set, promise }, process::this_thread());
        let mut inner = self.lock();
        inner.waiting.push(waiting);
        inner.sleepers.push(thread);
        inner.stir();
        Sleeper { threads: self, waiting, thread }
    }

    /// Somebody is told when a promise is kept, and may be unable to go on before. `None` if that is nothing to wait for: the
    /// threads that take part do that by themselves.
    pub(crate) fn call(self: &Arc<Self>, set: u32, promise: usize) -> Option<Call> {
        are_foreign().then(|| {
            let waiting = Waiting { set, promise };
            let mut inner = self.lock();
            inner.waiting.push(waiting);
            inner.stir();
            Call { threads: Arc::clone(self), waiting }
        })
    }

    /// What the program waits for, if it does nothing else and has done so for a while.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        let mut inner = self.lock();
        if !are_foreign() {
            return if inner.all_wait() { inner.blocked() } else { None };
        }
        if inner.waiting.is_empty() || inner.resuming > 0 || inner.since.elapsed() < SETTLED {
            return None;
        }
        let asleep = process::asleep(&inner.sleepers);
        inner.blocked_if(asleep)
    }

    /// Whether all wait at this moment, be it only since a moment ago.
    pub(crate) fn all_wait(&self) -> bool {
        self.lock().all_wait()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that waits.
pub(crate) struct Sleeper<'a> {
    threads: &'a Arc<Threads>,
    waiting: Waiting,
    thread: u32,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mut inner = self.threads.lock();
        if let Some(at) = inner.sleepers.iter().position(|t| *t == self.thread) {
            inner.sleepers.swap_remove(at);
        }
        inner.remove(self.waiting);
    }
}

/// Somebody who is to be told that a promise is kept.
pub(crate) struct Call {
    threads: Arc<Threads>,
    waiting: Waiting,
}

impl Call {
    /// Tells it by `tell`. Whatever comes next may be done in there.
    pub(crate) fn ends(self, tell: impl FnOnce()) {
        {
            let mut inner = self.threads.lock();
            inner.resuming += 1;
            inner.remove(self.waiting);
        }
        tell();
        let mut inner = self.threads.lock();
        inner.resuming -= 1;
        inner.stir();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_a_while(threads: &Threads) -> Option<Blocked> {
        threads.lock().since -= SETTLED;
        threads.blocked()
    }

    #[test]
    fn all_that_take_part_must_wait() {
        let threads = Threads::new();
        assert_eq!(after_a_while(&threads), None, "nobody takes part");
        threads.take_part();
        assert_eq!(after_a_while(&threads), None, "this one works");
        let asleep = threads.wait(3, 77);
        assert!(threads.all_wait());
        assert_eq!(threads.blocked(), None, "not for long yet");
        let blocked = after_a_while(&threads).unwrap();
        assert_eq!(blocked.waiting, [Waiting { set: 3, promise: 77 }]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                threads.take_part();
                assert_eq!(after_a_while(&threads), None, "another one works");
            });
            other.join().unwrap();
        });
        let later = after_a_while(&threads).unwrap();
        assert_eq!(later.waiting, blocked.waiting, "the other one has ended");
        assert_ne!(later.stirred, blocked.stirred, "it might have submitted something");
        drop(asleep);
        assert_eq!(after_a_while(&threads), None);
    }

    #[test]
    fn a_process_must_sleep_for_a_while() {
        let threads = Threads::new();
        let mut inner = threads.lock();
        inner.waiting.push(Waiting { set: 0, promise: 5 });
        let mut looks = |asleep: Option<Asleep>| {
            inner.since -= SETTLED;
            inner.blocked_if(asleep)
        };
        let (one, two) = (Asleep::from([(1, 10)]), Asleep::from([(1, 11)]));
        assert_eq!(looks(Some(one.clone())), None, "only seen once");
        let blocked = looks(Some(one.clone())).unwrap();
        assert_eq!(blocked.waiting, [Waiting { set: 0, promise: 5 }]);
        assert_eq!(looks(Some(one.clone())), Some(blocked.clone()), "nothing has happened");
        assert_eq!(looks(Some(two.clone())), None, "a thread has been awake in between");
        let later = looks(Some(two.clone())).unwrap();
        assert_ne!(later.stirred, blocked.stirred);
        assert_eq!(looks(None), None, "one is awake");
        assert_eq!(looks(Some(two)), None, "it is only seen once again");
    }

    #[test]
    fn a_call_is_waited_for_until_it_is_told() {
        let threads = Threads::new();
        assert!(threads.call(0, 7).is_none(), "threads of this process are known");
        let waiting = Waiting { set: 0, promise: 7 };
        threads.lock().waiting.push(waiting);
        let call = Call { threads: Arc::clone(&threads), waiting };
        call.ends(|| {
            let inner = threads.lock();
            assert!(inner.waiting.is_empty());
            assert_eq!(inner.resuming, 1);
        });
        assert_eq!(threads.lock().resuming, 0);
    }

    #[test]
    fn engines_of_one_process_are_told_apart() {
        let (one, two) = (Threads::new(), Threads::new());
        one.take_part();
        two.take_part();
        one.take_part();
        let _asleep = one.wait(0, 1);
        assert!(after_a_while(&one).is_some() && after_a_while(&two).is_none());
        assert_eq!((one.lock().taking_part, two.lock().taking_part), (1, 1));
    }
}
