//! Process sets: ranks that work together apart from the others.

#![expect(unsafe_code, reason = "functions of a C library are exported by name, and read and write where C says")]

use std::ffi::c_int;

use corro_core::Rank;

use crate::job::engine;
use crate::pointers::{list, null, put, put_list};
use crate::status::{answer, usage};

/// Makes a process set of `count` ranks and writes its number to `set`. All ranks of the job must call this, in the same
/// order; all of them give the same ranks. Number 0 is the set of all ranks, which is always there.
///
/// # Safety
/// `ranks` points to `count` numbers, and `set` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_add_process_set(ranks: *const c_int, count: usize, set: *mut u32) -> i32 {
    answer(|| {
        if set.is_null() {
            return Err(null("the place for the set's number"));
        }
        // SAFETY: by the contract above.
        let ranks = unsafe { list(ranks, count, "the list of ranks")? };
        let rank = |number: &c_int| {
            usize::try_from(*number).map(Rank::new).map_err(|_| usage(format!("{number} is not a rank")))
        };
        let id = engine()?.add_process_set(&ranks.iter().map(rank).collect::<Result<Vec<_>, _>>()?)?;
        // SAFETY: by the contract above.
        unsafe { put(set, id, "the place for the set's number") }
    })
}

/// Removes a process set. All ranks of the job must call this.
#[unsafe(no_mangle)]
pub extern "C" fn corro_remove_process_set(set: u32) -> i32 {
    answer(|| {
        if engine()?.remove_process_set(set)? {
            Ok(())
        } else {
            Err(usage(format!("there is no process set {set} that could be removed")))
        }
    })
}

/// The numbers of all process sets. Writes at most `room` of them, and how many there are to `count`. `sets` may be
/// `NULL` if `room` is 0.
///
/// # Safety
/// `sets` has room for `room` numbers, and `count` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_process_sets(sets: *mut u32, room: usize, count: *mut usize) -> i32 {
    answer(|| {
        let all: Vec<u32> = engine()?.process_sets().into_iter().map(|(id, _)| id).collect();
        // SAFETY: by the contract above.
        unsafe { put_list(&all, sets, room, count, "the place for the sets") }
    })
}

/// The ranks of a process set, ascending. Writes at most `room` of them, and how many there are to `count`. `ranks` may
/// be `NULL` if `room` is 0.
///
/// # Safety
/// `ranks` has room for `room` numbers, and `count` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corro_process_set_ranks(set: u32, ranks: *mut c_int, room: usize, count: *mut usize) -> i32 {
    answer(|| {
        let members = engine()?.process_set(set).ok_or_else(|| usage(format!("there is no process set {set}")))?;
        let members: Vec<c_int> = members.into_iter().map(|rank| rank.index() as c_int).collect();
        // SAFETY: by the contract above.
        unsafe { put_list(&members, ranks, room, count, "the place for the ranks") }
    })
}
