//! What an element is, and what can be done with one: the only place that knows the arithmetic of each dtype.
//!
//! Everything here works on single values. The loops over them are in `reduce`, `cast` and `adasum`, written so that the
//! compiler turns each into vector code for the instruction set it is instantiated for. Nothing here looks at the CPU.

#![expect(unsafe_code, reason = "reads and writes raw memory that may belong to several processes")]

/// The type a computation runs in: the element's own, except that 16-bit floats compute in `f32`.
pub(crate) trait Arithmetic: Copy {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// `self * factor`: floats in their own type, integers through `f64`, truncated toward zero and saturated.
    fn scale(self, factor: f64) -> Self;
}

/// A value as it lies in memory.
pub(crate) trait Element: Copy {
    type Acc: Arithmetic;

    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;

    /// Reads `N` consecutive elements into registers.
    ///
    /// # Safety
    /// `from` must be readable for `N` elements; it need not be aligned.
    #[inline(always)]
    unsafe fn load<const N: usize>(from: *const Self) -> [Self::Acc; N] {
        let mut block = [Self::Acc::ZERO; N];
        for (i, acc) in block.iter_mut().enumerate() {
            // SAFETY: i < N, and the caller vouches for N elements.
            *acc = unsafe { from.add(i).read_unaligned() }.widen();
        }
        block
    }

    /// Writes `N` consecutive elements.
    ///
    /// # Safety
    /// `to` must be writable for `N` elements; it need not be aligned.
    #[inline(always)]
    unsafe fn store<const N: usize>(block: [Self::Acc; N], to: *mut Self) {
        let mut narrowed = [Self::narrow(Self::Acc::ZERO); N];
        for i in 0..N {
            narrowed[i] = Self::narrow(block[i]);
        }
        // One store of the whole array: element by element the compiler would have to prove that they do not overlap.
        // SAFETY: the caller vouches for N elements.
        unsafe { to.cast::<[Self; N]>().write_unaligned(narrowed) }
    }

    /// As [`Self::load`], in any order that [`Self::store_permuted`] undoes: for work on each element by itself, where an
    /// order that is cheaper to load may be taken.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    unsafe fn load_permuted<const N: usize>(from: *const Self) -> [Self::Acc; N] {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from) }
    }

    /// As [`Self::store`], for a block in the order of [`Self::load_permuted`].
    ///
    /// # Safety
    /// As for [`Self::store`].
    #[inline(always)]
    unsafe fn store_permuted<const N: usize>(block: [Self::Acc; N], to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { Self::store(block, to) }
    }
}

/// How two values become one.
pub(crate) trait Combine {
    fn apply<A: Arithmetic>(a: A, b: A) -> A;
}

macro_rules! combine_by {
    ($name:ident, $method:ident) => {
        pub(crate) struct $name;
        impl Combine for $name {
            #[inline(always)]
            fn apply<A: Arithmetic>(a: A, b: A) -> A {
                a.$method(b)
            }
        }
    };
}
combine_by!(Sum, add);
combine_by!(Product, mul);
combine_by!(Min, min);
combine_by!(Max, max);

/// Elements that are computed with as they are.
macro_rules! plain_element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(acc: Self) -> Self {
                acc
            }
        }
    )*};
}
plain_element!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Arithmetic for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            #[allow(clippy::cast_lossless, reason = "64-bit integers have no other way")]
            fn scale(self, factor: f64) -> Self {
                (factor * self as f64) as Self
            }
        }
    )*};
}
integer!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Arithmetic for $t {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            /// NaN wins, and -0.0 is less than +0.0.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // The two choices differ only where neither value is less: for zeros of both signs the "or" gives -0.0,
                // and with a NaN it gives a NaN, whose exponent is all ones and whose fraction is not zero.
                let this = if self < other { self } else { other };
                let that = if other < self { other } else { self };
                Self::from_bits(this.to_bits() | that.to_bits())
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // As in min, where "and" gives +0.0. It would not keep a NaN, so that is chosen apart.
                let this = if self > other { self } else { other };
                let that = if other > self { other } else { self };
                let number = Self::from_bits(this.to_bits() & that.to_bits());
                if self.is_nan() | other.is_nan() { self + other } else { number }
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                self * factor as Self
            }
        }
    )*};
}
float!(f32, f64);

/// A bool as one byte: any value but 0 is true when read, and 0 or 1 is written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Truth(pub(crate) u8);

impl Element for Truth {
    type Acc = Self;
    #[inline(always)]
    fn widen(self) -> Self {
        Self(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn narrow(acc: Self) -> Self {
        acc
    }
}

impl Arithmetic for Truth {
    const ZERO: Self = Self(0);
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.mul(other)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.add(other)
    }
    /// Never called: half of "true" is not a bool, so the public functions refuse a factor.
    #[inline(always)]
    fn scale(self, _factor: f64) -> Self {
        self
    }
}
