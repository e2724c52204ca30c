//! What children of this process inherit, and whether it is itself a child that was forked after it had joined a job.
//!
//! `fork` copies memory and connections, but no threads: a child that goes on with its parent's engine would wait for
//! threads that are not there, and would end the parent's job when it ends itself. So whoever owns something of a job
//! remembers how often this process was forked by then ([`count`]), and looks whether that is still so. Looking costs a load.

#![expect(unsafe_code, reason = "pthread_atfork has no safe wrapper; a descriptor that is not ours to own is marked")]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the first of its ancestors that looked.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that is the same as long as this process is the same. (One that runs another program is a new one.)
pub fn count() -> u64 {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler lives as long as the program, and adds to an atomic number, which any handler may.
        // Should it fail for want of memory, forks go unnoticed: no worse than without it.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    now()
}

/// As [`count`], for one who has called that before.
pub fn now() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Programs that this process starts from now on don't have this file.
pub(crate) fn close_on_exec(descriptor: i32) {
    // SAFETY: sets a flag of a file and touches no memory. A number that is no file (any more) is refused.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let before = count();
        // SAFETY: the child does nothing but look at a number and leave.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let noticed = now() == before + 1;
            // SAFETY: leaves at once, without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!noticed)) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child above, and writes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(now(), before, "the parent is the same");
    }
}
