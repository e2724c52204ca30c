//! The two loops of Adasum, for floats only.
//!
//! Ranks compute the same dot products on different machines and must come to the same coefficients. So the order of
//! additions is part of the contract: see [`LANES`].

#![expect(unsafe_code, reason = "reads and writes raw memory that may belong to several processes")]

use crate::element::{Arithmetic, Element};

/// Element `i` is added to partial sum `i % LANES`; the partial sums are folded in halves. On every instruction set.
const LANES: usize = 16;

/// Elements [`combine`] handles at a time. With fewer the compiler unrolls before it vectorises, and does that badly.
const WIDE: usize = 64;

/// The types floats are computed in.
pub(crate) trait Float: Arithmetic {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Float for f32 {
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as Self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Float for f64 {
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// `(a.b, a.a, b.b)`.
///
/// # Safety
/// `a` and `b` must be readable for `count` elements.
#[inline(always)]
pub(crate) unsafe fn dot_and_norms<E: Element<Acc: Float>>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    let mut sums = [[0.0; LANES]; 3];
    let whole = count - count % LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: at + LANES <= whole <= count.
        let (x, y) = unsafe { (E::load::<LANES>(a.cast::<E>().add(at)), E::load::<LANES>(b.cast::<E>().add(at))) };
        for lane in 0..LANES {
            add_products(&mut sums, lane, x[lane].to_f64(), y[lane].to_f64());
        }
        at += LANES;
    }
    for at in whole..count {
        // SAFETY: at < count.
        let (x, y) = unsafe { (a.cast::<E>().add(at).read_unaligned(), b.cast::<E>().add(at).read_unaligned()) };
        add_products(&mut sums, at - whole, x.widen().to_f64(), y.widen().to_f64());
    }
    sums.map(fold)
}

#[inline(always)]
fn add_products(sums: &mut [[f64; LANES]; 3], lane: usize, x: f64, y: f64) {
    sums[0][lane] += x * y;
    sums[1][lane] += x * x;
    sums[2][lane] += y * y;
}

#[inline(always)]
fn fold(mut sums: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

/// `a[i] = ca * a[i] + cb * b[i]`.
///
/// # Safety
/// `a` must be writable and `b` readable for `count` elements.
#[inline(always)]
pub(crate) unsafe fn combine<E: Element<Acc: Float>>(a: *mut u8, ca: f64, b: *const u8, cb: f64, count: usize) {
    // SAFETY: the caller's promise; the second call starts where the first has stopped.
    unsafe {
        let at = combine_blocks::<E, WIDE>(a, ca, b, cb, 0, count);
        combine_blocks::<E, 1>(a, ca, b, cb, at, count);
    }
}

/// Handles all whole blocks of `N` elements from `at` on; returns where it stopped.
///
/// # Safety
/// As for [`combine`].
#[inline(always)]
unsafe fn combine_blocks<E: Element<Acc: Float>, const N: usize>(
    a: *mut u8,
    ca: f64,
    b: *const u8,
    cb: f64,
    mut at: usize,
    count: usize,
) -> usize {
    let (ca, cb) = (E::Acc::from_f64(ca), E::Acc::from_f64(cb));
    while count - at >= N {
        // SAFETY: at + N <= count.
        unsafe {
            let mut x = E::load_permuted::<N>(a.cast::<E>().add(at));
            let y = E::load_permuted::<N>(b.cast::<E>().add(at));
            for i in 0..N {
                x[i] = ca.mul(x[i]).add(cb.mul(y[i]));
            }
            E::store_permuted(x, a.cast::<E>().add(at));
        }
        at += N;
    }
    at
}
