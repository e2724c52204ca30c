//! Which threads of a program take part in the job, and which of them wait.
//!
//! A thread takes part from the first time it submits something or waits for it, until it ends. If all that take part
//! wait, the program does nothing until something it waits for is done. That is what a rank must know of itself before it
//! can say that it is in a deadlock (see [`corro_agreement::deadlock`]). A thread that hands its tensors over and goes on
//! to other work, as TensorFlow's do, never counts as waiting, and so neither does its process.
//!
//! Nothing here is in the way of an operation that succeeds at once: a thread is written down when it goes to sleep.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// All must have waited for so long: most waits are over sooner, and are nobody's business.
const SETTLED: Duration = Duration::from_millis(200);

/// The threads of one engine's program.
pub(crate) struct Threads {
    /// Of all there ever were in this process.
    number: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    taking_part: usize,
    waiting: Vec<Waiting>,
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
}

impl Threads {
    pub(crate) fn new() -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let inner = Inner { taking_part: 0, waiting: Vec::new(), stirred: 0, since: Instant::now() };
        Arc::new(Self { number, inner: Mutex::new(inner) })
    }

    /// This thread takes part: to be called before it does anything that others could wait for.
    pub(crate) fn take_part(self: &Arc<Self>) {
        if LAST.get() != self.number {
            self.write_down();
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
    pub(crate) fn wait(self: &Arc<Self>, set: u32, promise: usize) -> Asleep<'_> {
        self.take_part();
        let waiting = Waiting { set, promise };
        let mut inner = self.lock();
        inner.waiting.push(waiting);
        inner.stir();
        Asleep { threads: self, waiting }
    }

    /// What all threads wait for, if all wait and have done so for a while.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        let inner = self.lock();
        (inner.all_wait() && inner.since.elapsed() >= SETTLED)
            .then(|| Blocked { stirred: inner.stirred, waiting: inner.waiting.clone() })
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
pub(crate) struct Asleep<'a> {
    threads: &'a Arc<Threads>,
    waiting: Waiting,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let mut inner = self.threads.lock();
        if let Some(at) = inner.waiting.iter().position(|w| *w == self.waiting) {
            inner.waiting.swap_remove(at);
        }
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
