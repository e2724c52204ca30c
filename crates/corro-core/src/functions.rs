//! Tables of the functions of a library that is opened at run time. Whoever uses them has `libloading`; this crate has not.

use std::error::Error;

/// Why a library could not be opened, in the words of the system: what `libloading` says itself is only that it failed.
pub fn why(error: &impl Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Defines a struct with one field for each function of a foreign library, named after it, and `find`, which fills it.
/// Functions return an `int` unless something else is said. `missing` makes the error of one that is not there; those under
/// `optional` may be missing.
#[macro_export]
macro_rules! function_table {
    (
        $(#[$attribute:meta])*
        $table:ident, missing: $missing:path,
        required { $($name:ident($($argument:ty),* $(,)?) $(-> $returns:ty)?;)* }
        optional { $($maybe:ident($($maybe_argument:ty),* $(,)?) $(-> $maybe_returns:ty)?;)* }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the library's names")]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $crate::returned!($($returns)?),)*
            $(pub(crate) $maybe: Option<
                unsafe extern "C" fn($($maybe_argument),*) -> $crate::returned!($($maybe_returns)?),
            >,)*
        }

        impl $table {
            /// Finds all of them. The error names the first that is missing.
            ///
            /// # Safety
            /// `library` must be the one this table is of, or have functions with these names and signatures. It must stay
            /// loaded for as long as the table is used.
            pub(crate) unsafe fn find(library: &libloading::Library) -> $crate::Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller's promise; the signature is that of the library's header.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| $missing(library, stringify!($name)))?
                    },)*
                    // SAFETY: as above.
                    $($maybe: unsafe { library.get(concat!(stringify!($maybe), "\0").as_bytes()) }.ok().map(|f| *f),)*
                })
            }
        }
    };
}

/// What a function returns: an `int`, unless something else is said.
#[doc(hidden)]
#[macro_export]
macro_rules! returned {
    () => {
        std::ffi::c_int
    };
    ($returns:ty) => {
        $returns
    };
}

pub use {function_table, returned};
