//! Operations that were submitted, by number, until they are freed.
//!
//! A ticket of the engine can be waited for once; the flights kept here remember the outcome, so that C programs may
//! ask as often as they like, from several threads.

#![expect(unsafe_code, reason = "functions of a C library are exported by name, and write where C says")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use corro_core::Result;
use corro_engine::{Outcome, Ticket};

use crate::pointers::{null, put, put_list};
use crate::status::{Answer, Failure, answer, bug, status_of, usage};

/// Stands for an operation that was submitted. Never 0.
#[expect(non_camel_case_types, reason = "a name in C")]
pub type corro_ticket = u64;

/// Is told that an operation is done, how it ended (a `corro_status`), and what it was registered with. It may ask for
/// the result, `corro_last_error` among it, and free the ticket; it must not wait for others, nor end the job.
#[expect(non_camel_case_types, reason = "a name in C")]
pub type corro_callback = Option<unsafe extern "C" fn(user: *mut c_void, ticket: corro_ticket, status: i32)>;

struct Flight {
    state: Mutex<State>,
    changed: Condvar,
    outcome: OnceLock<Result<Outcome>>,
}

enum State {
    Flying(Ticket),
    /// Some thread has the ticket, and waits.
    Waited,
    /// The engine will call back.
    Watched,
    Done,
}

struct Table {
    last: corro_ticket,
    flights: HashMap<corro_ticket, Arc<Flight>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| Mutex::new(Table { last: 0, flights: HashMap::new() }));

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a number to a ticket.
pub(crate) fn insert(ticket: Ticket) -> corro_ticket {
    let flight = Flight { state: Mutex::new(State::Flying(ticket)), changed: Condvar::new(), outcome: OnceLock::new() };
    let mut table = lock(&TABLE);
    table.last += 1;
    let number = table.last;
    table.flights.insert(number, Arc::new(flight));
    number
}

fn find(ticket: corro_ticket) -> Result<Arc<Flight>, Failure> {
    lock(&TABLE)
        .flights
        .get(&ticket)
        .cloned()
        .ok_or_else(|| usage(format!("there is no ticket {ticket}: it was never given out, or has been freed already")))
}

/// The outcome of an operation that is done.
fn with_outcome(ticket: corro_ticket, act: impl FnOnce(&Outcome) -> Answer) -> Answer {
    let flight = find(ticket)?;
    flight.wait(Some(Duration::ZERO))?;
    act(flight.outcome()?)
}

/// What became of it; a panic in the engine must not leave others waiting for ever.
fn result_of(ticket: Ticket) -> Result<Outcome> {
    catch_unwind(AssertUnwindSafe(|| ticket.wait())).unwrap_or_else(|panic| Err(bug(&*panic)))
}

impl Flight {
    /// Waits until it is done, or the time is over, and says how it ended.
    fn wait(&self, time: Option<Duration>) -> Answer {
        let until = time.map(|time| Instant::now() + time.min(Duration::from_secs(1 << 30)));
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, State::Waited) {
                State::Done => {
                    *state = State::Done;
                    return self.outcome().map(|_| ());
                }
                State::Flying(ticket) => {
                    drop(state);
                    let over = left().is_some_and(|left| !ticket.wait_timeout(left));
                    if over {
                        // Somebody who waits without a limit may take it now.
                        *lock(&self.state) = State::Flying(ticket);
                        self.changed.notify_all();
                        return Err(Failure::Pending);
                    }
                    self.done(result_of(ticket));
                    state = lock(&self.state);
                }
                before => {
                    *state = before;
                    state = match left() {
                        None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                        Some(Duration::ZERO) => return Err(Failure::Pending),
                        Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                    };
                }
            }
        }
    }

    fn outcome(&self) -> Result<&Outcome, Failure> {
        let known = self.outcome.get().ok_or(Failure::Pending)?;
        known.as_ref().map_err(|error| error.clone().into())
    }

    fn done(&self, outcome: Result<Outcome>) {
        let _ = self.outcome.set(outcome);
        *lock(&self.state) = State::Done;
        self.changed.notify_all();
    }

    /// Has `act` called with how it ended.
    fn on_done(self: &Arc<Self>, act: impl FnOnce(Answer) + Send + 'static) -> Answer {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Watched) {
            State::Flying(ticket) => {
                drop(state);
                let flight = Arc::clone(self);
                ticket.on_done(move |outcome| {
                    flight.done(outcome);
                    act(flight.wait(Some(Duration::ZERO)));
                });
            }
            State::Done => {
                *state = State::Done;
                drop(state);
                act(self.wait(Some(Duration::ZERO)));
            }
            before => {
                *state = before;
                return Err(usage("another thread waits for this ticket already"));
            }
        }
        Ok(())
    }
}

/// Waits until an operation is done, and says how it ended. The waiting thread does the library's work meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn corro_wait(ticket: corro_ticket) -> i32 {
    answer(|| find(ticket)?.wait(None))
}

/// As `corro_wait`, for at most so many milliseconds: `CORRO_STATUS_PENDING` if it is not done by then.
#[unsafe(no_mangle)]
pub extern "C" fn corro_wait_for(ticket: corro_ticket, milliseconds: u64) -> i32 {
    answer(|| find(ticket)?.wait(Some(Duration::from_millis(milliseconds))))
}

/// How an operation ended, or `CORRO_STATUS_PENDING` if it is not done.
#[unsafe(no_mangle)]
pub extern "C" fn corro_poll(ticket: corro_ticket) -> i32 {
    corro_wait_for(ticket, 0)
}

/// What a callback is registered with.
struct User(*mut c_void);

// SAFETY: the library never looks at it; who registers it knows that the callback may run on any thread.
unsafe impl Send for User {}

impl User {
    // A method, so that closures take the whole of it and not the bare pointer, which they may not send.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Has `callback` called once the operation is done: on any thread, or right here if it is done already. At most one
/// for each ticket. Freeing the ticket does not take it back.
///
/// # Safety
/// `callback` may be called from any thread with `user`, once, at any time until it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_on_done(ticket: corro_ticket, callback: corro_callback, user: *mut c_void) -> i32 {
    answer(|| {
        let callback = callback.ok_or_else(|| null("the callback"))?;
        let user = User(user);
        find(ticket)?.on_done(move |how| {
            let status = status_of(how);
            // SAFETY: by the contract above.
            unsafe { callback(user.get(), ticket, status) };
        })
    })
}

/// Gives a ticket back, and the library's memory with its result. The operation must be done, or have a callback.
#[unsafe(no_mangle)]
pub extern "C" fn corro_free(ticket: corro_ticket) -> i32 {
    answer(|| {
        let flight = find(ticket)?;
        let watched = matches!(*lock(&flight.state), State::Watched);
        if !watched && matches!(flight.wait(Some(Duration::ZERO)), Err(Failure::Pending)) {
            return Err(usage(format!(
                "ticket {ticket} can't be freed: its operation still uses the tensor's memory; wait for it first"
            )));
        }
        let freed = lock(&TABLE).flights.remove(&ticket);
        // The memory may be large: not under the lock of all tickets.
        drop(freed);
        Ok(())
    })
}

/// `corro_wait`, then `corro_free`.
#[unsafe(no_mangle)]
pub extern "C" fn corro_finish(ticket: corro_ticket) -> i32 {
    answer(|| {
        let flight = find(ticket)?;
        let ended = flight.wait(None);
        let freed = lock(&TABLE).flights.remove(&ticket);
        drop(freed);
        ended
    })
}

/// Where the result of an operation is, and how many bytes it has. That is the tensor's own `output` if it has room
/// for it; otherwise memory of the library's, good until the ticket is freed.
///
/// # Safety
/// `data` and `bytes` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_result(ticket: corro_ticket, data: *mut *const c_void, bytes: *mut usize) -> i32 {
    answer(|| {
        with_outcome(ticket, |outcome| {
            let result = outcome.bytes()?;
            // SAFETY: by the contract above.
            unsafe {
                put(data, result.as_ptr().cast(), "the place for the address")?;
                put(bytes, result.len(), "the place for the number of bytes")
            }
        })
    })
}

/// Copies the result of an operation to `to`, which must have room for all of it.
///
/// # Safety
/// `to` has `room` bytes, and is not inside the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_result_copy(ticket: corro_ticket, to: *mut c_void, room: usize) -> i32 {
    answer(|| {
        with_outcome(ticket, |outcome| {
            let result = outcome.bytes()?;
            if result.len() > room {
                return Err(usage(format!("the result has {} bytes, but there is room for {room}", result.len())));
            }
            let mut count = 0;
            // SAFETY: by the contract above.
            unsafe { put_list(result, to.cast(), room, &raw mut count, "the place for the result") }
        })
    })
}

/// The dimensions of a result. Writes at most `room` of them, and how many there are to `dimensions`. `shape` may be
/// `NULL` if `room` is 0.
///
/// # Safety
/// `shape` has room for `room` numbers, and `dimensions` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_result_shape(
    ticket: corro_ticket,
    shape: *mut usize,
    room: usize,
    dimensions: *mut usize,
) -> i32 {
    answer(|| {
        with_outcome(ticket, |outcome| {
            // SAFETY: by the contract above.
            unsafe { put_list(&outcome.shape.0, shape, room, dimensions, "the place for the shape") }
        })
    })
}

/// After an alltoall: how many rows came from each rank of the set. Writes at most `room` numbers, and how many there
/// are to `count`. `splits` may be `NULL` if `room` is 0.
///
/// # Safety
/// `splits` has room for `room` numbers, and `count` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_result_splits(
    ticket: corro_ticket,
    splits: *mut usize,
    room: usize,
    count: *mut usize,
) -> i32 {
    answer(|| {
        with_outcome(ticket, |outcome| {
            // SAFETY: by the contract above.
            unsafe { put_list(&outcome.received_splits, splits, room, count, "the place for the splits") }
        })
    })
}
