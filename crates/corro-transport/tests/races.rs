//! The lock-free parts under a scheduler of our own: every step of one thread may be followed by any step of another.
//!
//! The sources are the crate's own, compiled once more with other primitives: atomics at which threads may change, and a
//! futex that never wakes by itself, so that a wake-up that is forgotten is a deadlock, which Shuttle reports together with
//! the schedule that replays it. Shuttle takes all atomics for sequentially consistent: whether weaker orderings are
//! enough is for Miri (`make deep`).
//!
//! `CORRO_TEST_SCHEDULES` says how many schedules are tried.

#![expect(unsafe_code, reason = "makes rings in plain memory")]

#[path = "../src/shm/counter.rs"]
#[allow(dead_code, reason = "a part is enough here")]
mod counter;
#[path = "../src/ring.rs"]
#[allow(dead_code, reason = "a part is enough here")]
mod ring;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use counter::Counter;
use primitive::{AtomicU32, Ordering};
use ring::Ring;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

/// In place of `src/primitive.rs`.
mod primitive {
    pub(crate) use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::in_model;

    macro_rules! atomic {
        ($name:ident, $number:ty) => {
            #[derive(Default)]
            #[repr(transparent)]
            pub(crate) struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "each number needs a part")]
            impl $name {
                pub(crate) unsafe fn from_ptr<'a>(at: *mut $number) -> &'a Self {
                    // SAFETY: a transparent wrapper around an atomic, which the caller says may be there.
                    unsafe { &*at.cast() }
                }

                pub(crate) fn load(&self, order: Ordering) -> $number {
                    others_first();
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $number, order: Ordering) {
                    others_first();
                    self.0.store(value, order);
                }

                pub(crate) fn swap(&self, value: $number, order: Ordering) -> $number {
                    others_first();
                    self.0.swap(value, order)
                }

                pub(crate) fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                    others_first();
                    self.0.fetch_add(value, order)
                }

                pub(crate) fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                    others_first();
                    self.0.fetch_sub(value, order)
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    /// Lets any other threads take any number of steps.
    fn others_first() {
        // The tests of the sources themselves run outside of any model.
        if in_model().is_some() {
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    pub(crate) fn sleep_on(word: &AtomicU32, seen: u32, _nap: Duration) {
        let Some(futex) = in_model() else { return };
        let mut woken = futex.0.lock().unwrap();
        if word.load(Ordering::SeqCst) == seen {
            let before = *woken;
            while *woken == before {
                woken = futex.1.wait(woken).unwrap();
            }
        }
    }

    pub(crate) fn wake(_: &AtomicU32) {
        let Some(futex) = in_model() else { return };
        *futex.0.lock().unwrap() += 1;
        futex.1.notify_all();
    }
}

/// One for all words: who is woken in vain looks again.
type Futex = (Mutex<u64>, Condvar);

thread_local! {
    // Shuttle runs all threads of a model on one thread of the system.
    static FUTEX: RefCell<Option<Arc<Futex>>> = const { RefCell::new(None) };
}

fn in_model() -> Option<Arc<Futex>> {
    FUTEX.with_borrow(Clone::clone)
}

/// Runs `model` with many schedules.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(move || {
        FUTEX.set(Some(Arc::new((Mutex::new(0), Condvar::new()))));
        model();
        FUTEX.set(None);
    });
    let schedules = schedules();
    let again = Arc::clone(&model);
    shuttle::check_random(move || again(), schedules);
    // Few changes at unlikely places find what random ones do not.
    shuttle::check_pct(move || model(), schedules, 3);
}

fn schedules() -> usize {
    corro_testing::number("CORRO_TEST_SCHEDULES").map_or(3000, |n| n as usize)
}

const CAPACITY: usize = 8;

/// Both ends of a ring in memory of its own, which the last of them frees.
fn ends() -> (Ring, Ring, Arc<Vec<u64>>) {
    let mut memory = vec![0u64; (ring::CONTROL_BYTES + CAPACITY) / 8];
    let base: *mut u8 = memory.as_mut_ptr().cast();
    // SAFETY: callers keep the vector, unmoved on the heap, as long as both ends; one end writes, the other reads.
    unsafe { (Ring::new(base, CAPACITY), Ring::new(base, CAPACITY), Arc::new(memory)) }
}

/// A doorbell that can be slept on.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.0.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

/// Both sides sleep whenever they can't go on. No byte is lost or changed, and nobody sleeps for ever.
#[test]
fn a_ring_loses_no_byte_and_no_bell() {
    const BYTES: usize = 40;
    explore(|| {
        let (mut tx, mut rx, memory) = ends();
        let bells = Arc::new((Bell::default(), Bell::default()));
        let (there, kept) = (Arc::clone(&bells), Arc::clone(&memory));
        let writer = thread::spawn(move || {
            let bytes: Vec<u8> = (0..BYTES as u8).collect();
            let mut at = 0;
            while at < BYTES {
                let try_write = |tx: &mut Ring, at: usize| {
                    let n = tx.write(&bytes[at..BYTES.min(at + 5)]);
                    if n > 0 && tx.reader_wants_bell() {
                        there.1.ring();
                    }
                    n
                };
                let mut n = try_write(&mut tx, at);
                if n == 0 {
                    tx.arm_writer();
                    n = try_write(&mut tx, at);
                    if n == 0 {
                        there.0.sleep();
                    }
                    tx.disarm_writer();
                }
                at += n;
            }
            drop(kept);
        });
        let mut seen = Vec::new();
        while seen.len() < BYTES {
            let try_read = |rx: &mut Ring, seen: &mut Vec<u8>| {
                let mut bytes = [0; 3];
                let n = rx.read(&mut bytes);
                if n > 0 && rx.writer_wants_bell() {
                    bells.0.ring();
                }
                seen.extend(&bytes[..n]);
                n
            };
            if try_read(&mut rx, &mut seen) == 0 {
                rx.arm_reader();
                if try_read(&mut rx, &mut seen) == 0 {
                    bells.1.sleep();
                }
                rx.disarm_reader();
            }
        }
        assert_eq!(seen, (0..BYTES as u8).collect::<Vec<_>>());
        writer.join().unwrap();
        drop(memory);
    });
}

/// Words of one member.
#[derive(Default)]
struct Words {
    rounds: AtomicU32,
    sleepers: AtomicU32,
}

impl Words {
    fn counter(&self) -> Counter<'_> {
        Counter::new(&self.rounds, &self.sleepers)
    }

    fn wait(&self, round: u32) {
        while !self.counter().has_reached(round) {
            self.counter().sleep(round, Duration::MAX);
        }
    }
}

/// Several sleep on one counter, for different rounds; the rounds wrap around meanwhile.
#[test]
fn whoever_sleeps_on_a_counter_is_woken() {
    explore(|| {
        let start = u32::MAX - 1;
        let words = Arc::new(Words { rounds: start.into(), ..Words::default() });
        let waiters: Vec<_> = [1, 3, 4]
            .map(|rounds| {
                let words = Arc::clone(&words);
                thread::spawn(move || words.wait(start.wrapping_add(rounds)))
            })
            .into();
        for round in 1..=4 {
            words.counter().set(start.wrapping_add(round));
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(words.sleepers.load(Ordering::SeqCst), 0);
    });
}

impl From<u32> for AtomicU32 {
    fn from(value: u32) -> Self {
        let new = Self::default();
        new.store(value, Ordering::SeqCst);
        new
    }
}

/// The rule of the board (`shm/team.rs`) at its limit: who publishes round `t` reads round `t - 2` only then. Five slots are
/// enough to fill the next one as soon as all others have published two rounds before. (Four are not.)
#[test]
fn no_slot_of_the_board_is_filled_while_it_is_read() {
    const SLOTS: usize = 5;
    const ROUNDS: u32 = 9;
    #[derive(Default)]
    struct Member {
        published: Words,
        slots: [AtomicU32; SLOTS],
    }
    explore(|| {
        let board: Arc<[Member; 3]> = Arc::default();
        let members: Vec<_> = (0..3)
            .map(|me| {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    let others = || board.iter().enumerate().filter(|(m, _)| *m != me).map(|(_, member)| member);
                    let slot =
                        |member: &Member, round: u32| member.slots[round as usize % SLOTS].load(Ordering::Relaxed);
                    for round in 1..=ROUNDS + 2 {
                        others().for_each(|other| other.published.wait(round.saturating_sub(2)));
                        board[me].slots[round as usize % SLOTS].store(round, Ordering::Relaxed);
                        board[me].published.counter().set(round);
                        if round > 2 {
                            for other in others() {
                                assert_eq!(slot(other, round - 2), round - 2, "read by {me}");
                            }
                        }
                    }
                })
            })
            .collect();
        for member in members {
            member.join().unwrap();
        }
    });
}
