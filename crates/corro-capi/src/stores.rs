//! Stores of parameters at servers, by number, until they are closed. `docs/parameter-server.md` says what they are for.

#![expect(unsafe_code, reason = "functions of a C library are exported by name, and read and write where C says")]

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use corro_core::{DType, Error};
use corro_engine::store::Store;
use corro_server::session::KeySpec;
use corro_server::{Code, Consistency, Optimizer, Rule};

use crate::job::engine;
use crate::pointers::{list, null, put, text};
use crate::status::{Answer, Failure, answer, usage};

/// Stands for a store. Never 0.
#[expect(non_camel_case_types, reason = "a name in C")]
pub type corro_store = u64;

/// How far the workers of a store may drift apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum corro_consistency {
    /// Rounds: what is pulled has one push of every worker in it, added in the order of ranks.
    Bsp = 0,
    /// A worker that begins a step is at most `bound` steps ahead of the slowest.
    Ssp = 1,
    /// Nobody waits for anybody. With a `bound` of 1, updates that come d versions late count 1 / (1 + d).
    Async = 2,
}

/// What a push does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum corro_rule {
    /// The value is the sum of one push of every worker. In rounds only.
    Sum = 0,
    /// The same, divided by how many have pushed.
    Average = 1,
    /// It is added to the value.
    Add = 2,
    /// It is a gradient: the optimizer of `corro_store_set_optimizer` updates the value with it.
    Update = 3,
}

#[derive(Default)]
struct Table {
    last: corro_store,
    stores: HashMap<corro_store, Arc<Store>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(store: corro_store) -> Result<Arc<Store>, Failure> {
    let found = table().stores.get(&store).cloned();
    found.ok_or_else(|| usage(format!("there is no store {store}: it was never opened, or has been closed already")))
}

/// The bytes at `at`.
///
/// # Safety
/// As [`list`].
unsafe fn bytes<'a>(at: *const c_void, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract above.
    unsafe { list(at.cast::<u8>(), len, what) }
}

/// Room for bytes at `at`.
///
/// # Safety
/// `at` is null or points to `len` bytes that nobody else touches for `'a`.
unsafe fn room<'a>(at: *mut c_void, len: usize) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() {
        return Err(null("the place for the value"));
    }
    // SAFETY: not null, and ours by the contract above; every bit pattern is a byte, and bytes need no alignment.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) })
}

/// Makes a store of named arrays at the servers of this job, for the ranks of a process set (0: all). All of them must. Servers are
/// those that `corro run --servers` has started; without them, one in a thread of every rank. `consistency` is a
/// `corro_consistency`, and `bound` the number of steps for those that have one.
///
/// # Safety
/// `store` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_open(
    process_set: u32,
    consistency: i32,
    bound: u64,
    store: *mut corro_store,
) -> i32 {
    answer(|| {
        let consistency = match consistency {
            0 => Consistency::Bsp,
            1 => Consistency::Ssp { bound },
            2 => Consistency::Async { staleness_lr: bound > 0 },
            other => return Err(usage(format!("{other} is not a corro_consistency"))),
        };
        if store.is_null() {
            return Err(null("the place for the store"));
        }
        let opened = Arc::new(Store::open(&engine()?, process_set, consistency)?);
        let mut table = table();
        table.last += 1;
        let number = table.last;
        table.stores.insert(number, opened);
        // SAFETY: by the contract above.
        unsafe { put(store, number, "the place for the store") }
    })
}

/// Names an array of `rows` times `width` elements, and waits until it has its first value: that of the set's first rank (`NULL`:
/// zeros). Every rank must name the same arrays in the same order. `dtype` is a `corro_dtype`, `rule` a `corro_rule`. `by_rows` other
/// than 0: rows are pushed and pulled one by one. `compression` (`NULL`: none) is `"fp16"`, `"bf16"` or `"int8"`: a float32 array is
/// pushed with fewer bytes, and what a push leaves out goes with the next.
///
/// # Safety
/// `name` is a text, `compression` a text or `NULL`, and `value` the whole array or `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_init(
    store: corro_store,
    name: *const c_char,
    dtype: i32,
    rows: u64,
    width: u32,
    rule: i32,
    by_rows: i32,
    compression: *const c_char,
    value: *const c_void,
) -> i32 {
    answer(|| {
        let dtype = u8::try_from(dtype).ok().and_then(DType::from_id);
        let dtype = dtype.ok_or_else(|| usage("the dtype is not a corro_dtype"))?;
        let rule = match rule {
            0 => Rule::Sum,
            1 => Rule::Average,
            2 => Rule::Add,
            3 => Rule::Update,
            other => return Err(usage(format!("{other} is not a corro_rule"))),
        };
        // SAFETY: by the contract above.
        let name = unsafe { text(name, "the name of the array")? }.to_owned();
        let code = if compression.is_null() {
            None
        } else {
            // SAFETY: by the contract above.
            Some(Code::of(&unsafe { text(compression, "the compression")? }.parse()?)?)
        };
        let size = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(width as usize * dtype.size()));
        let size = size.ok_or_else(|| usage(format!("{name:?} is too large: {rows} x {width}")))?;
        let spec = KeySpec { name, dtype, rows, width, rule, striped: by_rows != 0, code };
        // SAFETY: by the contract above.
        let value = if value.is_null() { None } else { Some(unsafe { bytes(value, size, "the value")? }) };
        Ok(find(store)?.init(spec, value)?)
    })
}

/// Servers update with this optimizer from now on: its name and numbers, as in `"adam lr=0.01 beta1=0.9"`. There are sgd (lr, momentum,
/// nesterov, `weight_decay`), adam and adamw (lr, beta1, beta2, eps, `weight_decay`), adagrad (lr, eps, `weight_decay`,
/// `initial_accumulator_value`) and `row_adagrad` (lr, eps, `initial_accumulator_value`).
///
/// # Safety
/// `optimizer` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_set_optimizer(store: corro_store, optimizer: *const c_char) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let said = unsafe { text(optimizer, "the optimizer")? };
        let mut words = said.split_whitespace();
        let name = words.next().unwrap_or_default();
        let number = |word: &str| {
            let (key, value) = word.split_once('=')?;
            Some((key.to_owned(), value.parse().ok()?))
        };
        let numbers: Option<Vec<(String, f64)>> = words.map(number).collect();
        let numbers =
            numbers.ok_or_else(|| usage(format!("the optimizer {said:?} is not of the form name key=number")))?;
        Ok(find(store)?.set_optimizer(Optimizer::named(name, &numbers)?)?)
    })
}

/// Pushes all of an array, and does not wait: its memory may be used again at once. Lower priorities go first. `rate` is a learning rate
/// in place of the optimizer's own; not a number: none.
///
/// # Safety
/// `name` is a text, and `value` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_push(
    store: corro_store,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    priority: i64,
    rate: f32,
) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let (name, value) = unsafe { (text(name, "the name of the array")?, bytes(value, size, "the value")?) };
        Ok(find(store)?.push(name, value, priority, Some(rate).filter(|rate| !rate.is_nan()))?)
    })
}

/// Reads all of an array; in rounds it waits for those who have not pushed yet.
///
/// # Safety
/// `name` is a text, and `value` has `size` bytes that nobody else touches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_pull(
    store: corro_store,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let (name, into) = unsafe { (text(name, "the name of the array")?, room(value, size)?) };
        let store = find(store)?;
        let pull = store.pull(name, 0)?;
        store.value(&pull, into)?;
        Ok(())
    })
}

/// Pushes some rows of an array; one that is there twice is added up. In rounds every rank must, if only with none.
///
/// # Safety
/// `name` is a text, `rows` has `count` numbers, and `values` `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_push_rows(
    store: corro_store,
    name: *const c_char,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    size: usize,
    rate: f32,
) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let (name, rows) = unsafe { (text(name, "the name of the array")?, list(rows, count, "the row numbers")?) };
        // SAFETY: by the contract above.
        let values = unsafe { bytes(values, size, "the values")? };
        Ok(find(store)?.push_rows(name, rows, values, 0, Some(rate).filter(|rate| !rate.is_nan()))?)
    })
}

/// Reads some rows of an array, in the order of `rows`.
///
/// # Safety
/// `name` is a text, `rows` has `count` numbers, and `values` `size` bytes that nobody else touches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_pull_rows(
    store: corro_store,
    name: *const c_char,
    rows: *const u64,
    count: usize,
    values: *mut c_void,
    size: usize,
) -> i32 {
    answer(|| {
        // SAFETY: by the contract above.
        let (name, rows) = unsafe { (text(name, "the name of the array")?, list(rows, count, "the row numbers")?) };
        // SAFETY: by the contract above.
        let into = unsafe { room(values, size)? };
        let store = find(store)?;
        let pull = store.pull_rows(name, rows, 0)?;
        Ok(store.rows(&pull, into)?)
    })
}

/// A step of this rank is over: with a bound, the others may go on as far as it allows.
#[unsafe(no_mangle)]
pub extern "C" fn corro_store_clock(store: corro_store) -> i32 {
    answer(|| Ok(find(store)?.clock()?))
}

/// Waits until all ranks of the store are here, and what they have pushed before is in what is pulled after.
#[unsafe(no_mangle)]
pub extern "C" fn corro_store_barrier(store: corro_store) -> i32 {
    answer(|| Ok(find(store)?.barrier()?))
}

/// Writes all that servers own to a file of the first rank's. All must call it.
///
/// # Safety
/// `file` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_save(store: corro_store, file: *const c_char) -> i32 {
    // SAFETY: by the contract above.
    answer(|| Ok(find(store)?.save(Path::new(unsafe { text(file, "the name of the file")? }))?))
}

/// Gives servers what `corro_store_save` has written, after the same inits; there may be more or fewer servers now.
///
/// # Safety
/// `file` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_store_load(store: corro_store, file: *const c_char) -> i32 {
    // SAFETY: by the contract above.
    answer(|| Ok(find(store)?.load(Path::new(unsafe { text(file, "the name of the file")? }))?))
}

/// Leaves the store when all do.
#[unsafe(no_mangle)]
pub extern "C" fn corro_store_close(store: corro_store) -> i32 {
    answer(|| close(store))
}

fn close(number: corro_store) -> Answer {
    let store = find(number)?;
    table().stores.remove(&number);
    match Arc::try_unwrap(store) {
        Ok(store) => Ok(store.close()?),
        Err(_) => Err(Failure::Error(Error::Usage(format!(
            "store {number} is closed while another thread still uses it: wait for that thread first"
        )))),
    }
}
