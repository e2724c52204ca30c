//! How calls end: a number for the program, and a text for whoever reads its log.

#![expect(unsafe_code, reason = "functions of a C library are exported by name")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use corro_core::Error;
use corro_transport::statements::EndReport;

/// How a call, or an operation, has ended. The same numbers in all versions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum corro_status {
    /// Well.
    Ok = 0,
    /// The call itself is wrong: fix the program.
    Usage = 1,
    /// The ranks disagree about what is to be done: fix the program where they differ.
    Mismatch = 2,
    /// A rank is gone, or has made no progress until the deadline. A job may be begun again without it.
    PeerLost = 3,
    /// The set of hosts has changed. A job may be begun again.
    HostsChanged = 4,
    /// A library found at run time (NCCL, MPI, CUDA) failed.
    Native = 5,
    /// The operating system refused something.
    Io = 6,
    /// Another rank sent what is no message.
    Malformed = 7,
    /// Somebody could not prove to belong to this job.
    Unauthenticated = 8,
    /// The job is over: some rank has shut it down.
    Shutdown = 9,
    /// Called off before all ranks had begun.
    Withdrawn = 10,
    /// A mistake in Corro: please report it.
    Bug = 11,
    /// `corro_init` was not called, or `corro_shutdown` was.
    NotInitialized = 12,
    /// Not done yet. No error.
    Pending = 13,
}

/// What this process has said to whoever started it about its own end.
pub(crate) static END_REPORT: EndReport = EndReport::new();

/// Why a call did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    NotInitialized,
    Pending,
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(crate) type Answer = Result<(), Failure>;

/// An error of the caller.
pub(crate) fn usage(text: impl Into<String>) -> Failure {
    Failure::Error(Error::Usage(text.into()))
}

impl Failure {
    fn status(&self) -> corro_status {
        match self {
            Self::NotInitialized => corro_status::NotInitialized,
            Self::Pending => corro_status::Pending,
            Self::Error(error) => match error {
                Error::Usage(_) => corro_status::Usage,
                Error::Mismatch(_) => corro_status::Mismatch,
                Error::PeerLost { .. } => corro_status::PeerLost,
                Error::HostsChanged(_) => corro_status::HostsChanged,
                Error::Native { .. } => corro_status::Native,
                Error::Io { .. } => corro_status::Io,
                Error::Malformed(_) => corro_status::Malformed,
                Error::Unauthenticated(_) => corro_status::Unauthenticated,
                Error::Shutdown(_) => corro_status::Shutdown,
                Error::Withdrawn => corro_status::Withdrawn,
                _ => corro_status::Bug,
            },
        }
    }

    fn text(&self) -> String {
        match self {
            Self::NotInitialized => "corro has not been initialized; call corro_init first".into(),
            Self::Pending => "not done yet".into(),
            Self::Error(error) => error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs what a function of the library does; gives its status, and keeps the text of an error for this thread.
pub(crate) fn answer(act: impl FnOnce() -> Answer) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(bug(&*panic).into()));
    status_of(result)
}

/// As [`answer`], for what has ended already.
pub(crate) fn status_of(result: Answer) -> i32 {
    let Err(failure) = result else { return corro_status::Ok as i32 };
    if let Failure::Error(error) = &failure {
        END_REPORT.suffers(error);
    }
    if !matches!(failure, Failure::Pending) {
        let text = failure.text().replace('\0', " ");
        LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
    }
    failure.status() as i32
}

/// What a panic becomes.
pub(crate) fn bug(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::Bug(text.unwrap_or("a panic without a message").to_owned())
}

/// What went wrong in the last call of this thread that did not end well; empty if none has. The text is good until
/// the next such call of this thread. Never `NULL`.
#[unsafe(no_mangle)]
pub extern "C" fn corro_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// The version of the library, `"0.1.0"` for one. Never `NULL`.
#[unsafe(no_mangle)]
pub extern "C" fn corro_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use corro_core::Rank;

    use super::*;

    fn last() -> String {
        // SAFETY: a text of the library, which is not called before it is copied.
        unsafe { CStr::from_ptr(corro_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(answer(|| panic!("of {}", "mine")), corro_status::Bug as i32);
        assert!(last().contains("of mine"), "{}", last());
    }

    #[test]
    fn each_error_has_a_status_and_leaves_its_text() {
        for (error, status) in [
            (Error::Usage("a\0b".into()), corro_status::Usage),
            (Error::Mismatch("m".into()), corro_status::Mismatch),
            (Error::peer_lost(Rank::new(3), "node7", "gone"), corro_status::PeerLost),
            (Error::HostsChanged("h".into()), corro_status::HostsChanged),
            (Error::Native { library: "l".into(), code: 1, text: "t".into() }, corro_status::Native),
            (Error::io("reading", "no"), corro_status::Io),
            (Error::Malformed("x".into()), corro_status::Malformed),
            (Error::Unauthenticated("u".into()), corro_status::Unauthenticated),
            (Error::Shutdown("s".into()), corro_status::Shutdown),
            (Error::Withdrawn, corro_status::Withdrawn),
            (Error::Bug("b".into()), corro_status::Bug),
        ] {
            let text = error.to_string().replace('\0', " ");
            assert_eq!(answer(|| Err(error.into())), status as i32, "{text}");
            assert_eq!(last(), text);
        }
        assert_eq!(answer(|| Err(Failure::NotInitialized)), corro_status::NotInitialized as i32);
        let before = last();
        assert_eq!(answer(|| Err(Failure::Pending)), corro_status::Pending as i32);
        assert_eq!(answer(|| Ok(())), corro_status::Ok as i32);
        assert_eq!(last(), before, "no error, no new text");
    }
}
