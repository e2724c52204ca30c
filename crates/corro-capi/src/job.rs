//! The process's part in a job: made by `corro_init`, gone after `corro_shutdown`, and so on.

#![expect(unsafe_code, reason = "functions of a C library are exported by name, and write where C says")]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use corro_core::{Exception, Reason};
use corro_engine::Engine;

use crate::pointers::{put, put_list, text};
use crate::status::{END_REPORT, Failure, answer};

/// The engine of this process.
static ENGINE: RwLock<Option<Engine>> = RwLock::new(None);
/// How often this process has joined a job; ranks that meet must have done so equally often.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// Held while the engine comes or goes, which may take seconds; `ENGINE` itself is locked for moments only.
static CHANGE: Mutex<()> = Mutex::new(());

/// The engine, if there is one.
pub(crate) fn engine() -> Result<Engine, Failure> {
    ENGINE.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Failure::NotInitialized)
}

/// Joins the job that the environment describes (docs/environment.md), or makes one of a single rank if it describes
/// none. All ranks must call this. Does nothing if that was done already. After `corro_shutdown` it can be called again,
/// by all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn corro_init() -> i32 {
    answer(|| {
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(engine) = engine() {
            engine.check_process()?;
        } else {
            END_REPORT.begin();
            corro_log::init_rank();
            let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
            let engine = Engine::from_env(epoch)?;
            corro_log::identify(engine.rank(), engine.host(), None);
            if epoch == 0 {
                engine.review_environment();
            }
            *ENGINE.write().unwrap_or_else(PoisonError::into_inner) = Some(engine);
        }
        Ok(())
    })
}

/// Ends the job, for all ranks: what is under way fails with `CORRO_STATUS_SHUTDOWN`. Tickets remain, to be freed. Does
/// nothing if there is no job.
#[unsafe(no_mangle)]
pub extern "C" fn corro_shutdown() -> i32 {
    answer(|| {
        leave(Reason::ShutDown { after: None });
        Ok(())
    })
}

/// As `corro_shutdown`, for a program that can't go on: `why` says what went wrong. The other ranks find it in the text of their
/// error, and the launcher shows it as the reason why the job failed.
///
/// # Safety
/// `why` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_shutdown_because(why: *const c_char) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let why = unsafe { text(why, "the reason")? };
        let reason = Reason::Raised(Exception::new(why, "", Vec::new()));
        END_REPORT.leaves(reason.clone(), &[why.to_owned()]);
        leave(reason);
        Ok(())
    })
}

fn leave(reason: Reason) {
    if engine().is_ok_and(|engine| engine.check_process().is_err()) {
        // Forked from the process that has joined: its job is not ours to end.
        return;
    }
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = ENGINE.write().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(engine) = engine {
        engine.leave(reason);
    }
}

/// Tells those who watch the job (`corro run --page`) that a step of the training has ended. To be called when the step's tensors are
/// there. Without it a step ends, for them, when a tensor comes again.
#[unsafe(no_mangle)]
pub extern "C" fn corro_mark_step() -> i32 {
    answer(|| {
        engine()?.mark_step();
        Ok(())
    })
}

/// Tells those who watch the job a value of its training, such as `"loss"`: they see the mean over the ranks that say it. Does nothing
/// if nobody watches.
///
/// # Safety
/// `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_log_value(step: u64, name: *const c_char, value: f64) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let name = unsafe { text(name, "the name of the value")? };
        engine()?.log_value(step, name, value);
        Ok(())
    })
}

/// 1 between `corro_init` and `corro_shutdown`, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn corro_is_initialized() -> c_int {
    c_int::from(engine().is_ok())
}

/// Writes one of the engine's numbers to where C wants it.
///
/// # Safety
/// `to` is null or may be written to.
unsafe fn tell(to: *mut c_int, number: impl FnOnce(&Engine) -> usize) -> i32 {
    // SAFETY: by the contract above.
    answer(|| unsafe { put(to, number(&engine()?) as c_int, "the place for the number") })
}

/// This process's rank in the job, from 0.
///
/// # Safety
/// `rank` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_rank(rank: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(rank, |engine| engine.rank().index()) }
}

/// How many ranks the job has.
///
/// # Safety
/// `size` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_size(size: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(size, Engine::size) }
}

/// This process's place among the ranks of its host.
///
/// # Safety
/// `rank` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_local_rank(rank: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(rank, Engine::local_rank) }
}

/// How many ranks its host has.
///
/// # Safety
/// `size` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_local_size(size: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(size, Engine::local_size) }
}

/// Its host's place among those that have a rank with its local rank.
///
/// # Safety
/// `rank` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_cross_rank(rank: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(rank, Engine::cross_rank) }
}

/// How many hosts have a rank with its local rank.
///
/// # Safety
/// `size` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_cross_size(size: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(size, Engine::cross_size) }
}

/// Whether all hosts have equally many ranks: 1 or 0.
///
/// # Safety
/// `homogeneous` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_is_homogeneous(homogeneous: *mut c_int) -> i32 {
    // SAFETY: by the contract above.
    unsafe { tell(homogeneous, |engine| usize::from(engine.is_homogeneous())) }
}

/// The last operations of this rank, as text: what to look at when something hangs. Writes at most `room` bytes, a zero
/// byte at the end among them, and to `needed` how many would hold it all. `text` may be `NULL` if `room` is 0.
///
/// # Safety
/// `text` has `room` bytes, and `needed` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_flight_record(text: *mut c_char, room: usize, needed: *mut usize) -> i32 {
    answer(|| {
        let record = engine()?.flight_record();
        let mut bytes: Vec<c_char> = record.bytes().filter(|b| *b != 0).map(|b| b as c_char).collect();
        bytes.push(0);
        // SAFETY: by the contract above.
        unsafe { put_list(&bytes, text, room, needed, "the place for the text")? };
        if room > 0 && room < bytes.len() {
            // SAFETY: the last of the `room` bytes, which were written just now.
            unsafe { text.add(room - 1).write(0) };
        }
        Ok(())
    })
}
