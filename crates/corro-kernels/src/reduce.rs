//! The reduction loop: every dtype, op and number of sources, in one pass over memory.
//!
//! A block of each source is read, combined in registers and written once; that is all the memory traffic there is.
//! Elements are never peeled off for alignment: the index of an element alone decides how it is handled.

#![expect(unsafe_code, reason = "reads and writes raw memory that may belong to several processes")]

use crate::element::{Arithmetic, Combine, Element};

/// `srcs[0][i] op srcs[1][i] op .. * factor`, from left to right, goes to element `i` of every destination.
///
/// `WIDE` elements should fill several of the widest registers, `SLIM` about one: it shortens what is left for the
/// element-by-element end.
///
/// # Safety
/// All of `srcs` must be readable, and `dsts` writable, for `count` elements. Each of `dsts` may start where one of `srcs`
/// starts; they overlap in no other way. `srcs` is not empty.
#[inline(always)]
pub(crate) unsafe fn reduce<E: Element, C: Combine, const WIDE: usize, const SLIM: usize>(
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    factor: f64,
) {
    // SAFETY: the caller's promise, and each call starts where the one before has stopped.
    unsafe {
        let at = reduce_blocks::<E, C, WIDE>(dsts, srcs, 0, count, factor);
        let at = reduce_blocks::<E, C, SLIM>(dsts, srcs, at, count, factor);
        reduce_blocks::<E, C, 1>(dsts, srcs, at, count, factor);
    }
}

/// Handles all whole blocks of `N` elements from `at` on; returns where it stopped.
///
/// # Safety
/// As for [`reduce`].
#[inline(always)]
unsafe fn reduce_blocks<E: Element, C: Combine, const N: usize>(
    dsts: &[*mut u8],
    srcs: &[*const u8],
    mut at: usize,
    count: usize,
    factor: f64,
) -> usize {
    let [first, rest @ ..] = srcs else { return count };
    while count - at >= N {
        // SAFETY: at + N <= count. The block is read from every source before any of it is written, so a destination may be one.
        unsafe {
            let mut acc = E::load_permuted::<N>(first.cast::<E>().add(at));
            for src in rest {
                let block = E::load_permuted::<N>(src.cast::<E>().add(at));
                for i in 0..N {
                    acc[i] = C::apply(acc[i], block[i]);
                }
            }
            if factor != 1.0 {
                for value in &mut acc {
                    *value = value.scale(factor);
                }
            }
            for dst in dsts {
                E::store_permuted(acc, dst.cast::<E>().add(at));
            }
        }
        at += N;
    }
    at
}
