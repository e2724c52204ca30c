//! Conversion between element types: the rules of Rust's `as`, and the loop.

#![expect(unsafe_code, reason = "reads and writes raw memory that may belong to several processes")]

use crate::element::{Arithmetic, Element, Truth};

/// Elements handled at a time. With fewer the compiler unrolls the loops before it vectorises them, and does that badly.
const WIDE: usize = 64;

/// Conversion between two of the types that are computed in.
pub(crate) trait CastTo<T> {
    /// Rust's `as`: integers wrap, floats to integers truncate and saturate, NaN becomes 0.
    fn cast(self) -> T;

    /// For a result that will be rounded once more, to a 16-bit float. Rounding twice to nearest can go wrong by one, so
    /// the first one rounds to odd: a last bit of 1 then stands for "and something behind it".
    fn cast_to_odd(self) -> T;
}

/// `dst[i] = src[i]`, converted.
///
/// # Safety
/// `src` must be readable and `dst` writable for `count` elements, and they must not overlap.
#[inline(always)]
pub(crate) unsafe fn cast<F, T>(src: *const u8, dst: *mut u8, count: usize)
where
    F: Element<Acc: CastTo<T::Acc>>,
    T: Element,
{
    // SAFETY: the caller's promise; the second call starts where the first has stopped.
    unsafe {
        let at = cast_blocks::<F, T, WIDE>(src, dst, 0, count);
        cast_blocks::<F, T, 1>(src, dst, at, count);
    }
}

/// Handles all whole blocks of `N` elements from `at` on; returns where it stopped.
///
/// # Safety
/// As for [`cast`].
#[inline(always)]
unsafe fn cast_blocks<F, T, const N: usize>(src: *const u8, dst: *mut u8, mut at: usize, count: usize) -> usize
where
    F: Element<Acc: CastTo<T::Acc>>,
    T: Element,
{
    let store_rounds = size_of::<T>() < size_of::<T::Acc>();
    while count - at >= N {
        // SAFETY: at + N <= count.
        unsafe {
            let block = F::load::<N>(src.cast::<F>().add(at));
            let mut converted = [T::Acc::ZERO; N];
            for i in 0..N {
                converted[i] = if store_rounds { block[i].cast_to_odd() } else { block[i].cast() };
            }
            T::store(converted, dst.cast::<T>().add(at));
        }
        at += N;
    }
    at
}

macro_rules! cast_as {
    ($from:ty => $($to:ty),*) => {$(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
            #[inline(always)]
            fn cast_to_odd(self) -> $to {
                self as $to
            }
        }
    )*};
}

/// To `f32` from a type that has more bits than it.
macro_rules! cast_to_odd {
    ($from:ty, $to_odd:expr) => {
        impl CastTo<f32> for $from {
            #[inline(always)]
            fn cast(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn cast_to_odd(self) -> f32 {
                $to_odd(self)
            }
        }
    };
}

cast_as!(u8 => u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
cast_as!(i8 => u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
cast_as!(u16 => u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
cast_as!(i16 => u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
cast_as!(u32 => u8, i8, u16, i16, u32, i32, u64, i64, f64);
cast_as!(i32 => u8, i8, u16, i16, u32, i32, u64, i64, f64);
cast_as!(u64 => u8, i8, u16, i16, u32, i32, u64, i64, f64);
cast_as!(i64 => u8, i8, u16, i16, u32, i32, u64, i64, f64);
cast_as!(f32 => u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
cast_as!(f64 => u8, i8, u16, i16, u32, i32, u64, i64, f64);
cast_to_odd!(f64, f64_to_odd_f32);
cast_to_odd!(u32, |x: u32| f64_to_odd_f32(f64::from(x)));
cast_to_odd!(i32, |x: i32| f64_to_odd_f32(f64::from(x)));
cast_to_odd!(u64, |x: u64| f64_to_odd_f32(if x >> 53 == 0 { x } else { x & !0x7ff | sticky(x & 0x7ff) } as f64));
cast_to_odd!(i64, |x: i64| {
    // Zero for what fits 53 bits and a sign. Otherwise at least 53 bits are left in front of the sticky one, and the
    // places where a 16-bit float changes are far in front of it.
    let fits = (x >> 53) == (x >> 63);
    f64_to_odd_f32(if fits { x } else { x & !0x7ff | sticky((x & 0x7ff) as u64) as i64 } as f64)
});

/// The last of the bits an `f64` can hold behind 2^63, if any of the `cut` bits below is set.
#[inline(always)]
fn sticky(cut: u64) -> u64 {
    u64::from(cut != 0) << 11
}

#[inline(always)]
fn f64_to_odd_f32(exact: f64) -> f32 {
    let nearest = exact as f32;
    let back = f64::from(nearest);
    // One step toward zero if rounding went away from it; then the last bit says whether anything was cut off.
    let toward_zero = nearest.to_bits() - u32::from(back.abs() > exact.abs());
    f32::from_bits(toward_zero | u32::from(back != exact))
}

macro_rules! cast_truth {
    ($($t:ty),*) => {$(
        impl CastTo<$t> for Truth {
            #[inline(always)]
            fn cast(self) -> $t {
                self.0.cast()
            }
            #[inline(always)]
            fn cast_to_odd(self) -> $t {
                self.0.cast()
            }
        }
        impl CastTo<Truth> for $t {
            #[inline(always)]
            fn cast(self) -> Truth {
                Truth(u8::from(self != <$t>::ZERO))
            }
            #[inline(always)]
            fn cast_to_odd(self) -> Truth {
                self.cast()
            }
        }
    )*};
}
cast_truth!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl CastTo<Self> for Truth {
    #[inline(always)]
    fn cast(self) -> Self {
        self
    }
    #[inline(always)]
    fn cast_to_odd(self) -> Self {
        self
    }
}
