//! Whether all of this process sleeps: what can be known of threads that are not ours, from the system's own tables.
//!
//! A thread that waits for another thread of its process is in the system call `futex`, on a word that is private to the process.
//! If all are, and have not been out of it between two looks, then none of them goes on before one of ours wakes it; or
//! before its time is over, if it has set itself a limit: idle workers of XLA do, before they end. One that computes, sleeps for a time, reads a
//! file, or listens to another process is in another call, or in none: then the process is awake. So is it wherever the system does not
//! tell: nothing is concluded from what is not known.
//!
//! The main thread may have been out of it. Python has to look for signals, so whoever waits for long in there does so in turns; JAX
//! does, five times a second.
//!
//! Ours are known by their names. What they do in others' name is counted where it is done ([`crate::threads`]). So are those of
//! NVIDIA's driver, which listen to the kernel and never to another program: nothing of a job comes from them.

use std::collections::BTreeMap;
use std::fs;

/// Threads that wait for others, and how often each has gone to sleep.
pub(crate) type Asleep = BTreeMap<u32, u64>;

#[cfg(target_arch = "x86_64")]
const FUTEX: &str = "202";
#[cfg(not(target_arch = "x86_64"))]
const FUTEX: &str = "98";
/// In a futex's operation: nobody outside of the process can wake it.
const PRIVATE: u64 = 0x80;

/// What a thread is in, by its line in `/proc/self/task/*/syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It runs, or could.
    Runs,
    /// It waits for another thread of this process.
    Waits,
    /// It sleeps for another reason.
    Sleeps,
}

impl Doing {
    fn read(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let number = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
        match words.next() {
            None | Some("running") => Self::Runs,
            Some(FUTEX) => {
                // The word's address, then the operation.
                let is_private = number(words.nth(1)).is_some_and(|operation| operation & PRIVATE != 0);
                if is_private { Self::Waits } else { Self::Sleeps }
            }
            Some(_) => Self::Sleeps,
        }
    }
}

/// The number by which the system knows this thread.
pub(crate) fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// All threads that are not ours, if all wait for others. Those of `sleepers` are known to.
pub(crate) fn asleep(sleepers: &[u32]) -> Option<Asleep> {
    let (main, own) = (std::process::id(), this_thread());
    let mut asleep = Asleep::new();
    for entry in fs::read_dir("/proc/self/task").ok()? {
        let path = entry.ok()?.path();
        let thread: u32 = path.file_name()?.to_str()?.parse().ok()?;
        if thread == own || sleepers.contains(&thread) {
            continue;
        }
        let doing = Doing::read(&fs::read_to_string(path.join("syscall")).ok()?);
        match doing {
            Doing::Waits if thread == main => {}
            Doing::Waits | Doing::Sleeps if never_submits(&fs::read_to_string(path.join("comm")).ok()?) => {}
            Doing::Waits => {
                let status = fs::read_to_string(path.join("status")).ok()?;
                asleep.insert(thread, times_slept(&status)?);
            }
            _ => return None,
        }
    }
    Some(asleep)
}

/// By a thread's name; those of a thread's children are the same until they say otherwise. CUDA's are `cuda-EvtHandlr` and
/// `cuda` with a number.
fn never_submits(name: &str) -> bool {
    name.starts_with("corro") || name.starts_with("cuda-Evt") || name.starts_with("cuda0")
}

fn times_slept(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn lines_of_the_system_are_read() {
        let futex = |operation: &str| {
            Doing::read(&format!("{FUTEX} 0x7f69129e5ae0 {operation} 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f69\n"))
        };
        assert_eq!(futex("0x189"), Doing::Waits);
        assert_eq!(futex("0x80"), Doing::Waits);
        assert_eq!(futex("0x109"), Doing::Sleeps, "shared with other processes");
        assert_eq!(Doing::read("running\n"), Doing::Runs);
        assert_eq!(Doing::read(""), Doing::Runs);
        assert_eq!(Doing::read("230 0x0 0x0 0x7ffd 0x0 0x0 0x0 0x7ffe 0x7f69\n"), Doing::Sleeps);
        assert_eq!(Doing::read(&format!("{FUTEX} 0x1")), Doing::Sleeps, "cut off");
        assert_eq!(times_slept("Name:\tx\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n"), Some(17));
    }

    /// Whether that is so within a while, or `None` where the system does not show what threads do.
    fn comes_to(wanted: bool, thread: u32) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        let seen = || {
            let path = format!("/proc/self/task/{thread}/syscall");
            let doing = fs::read_to_string(path).map(|line| Doing::read(&line));
            doing.is_ok_and(|doing| doing == Doing::Waits) == wanted
        };
        while !seen() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        seen()
    }

    #[test]
    fn threads_are_seen_as_they_are() {
        let (tell, told) = channel();
        let (wake, woken) = channel::<()>();
        let waits = std::thread::spawn(move || {
            tell.send(this_thread()).unwrap();
            woken.recv().unwrap();
            tell.send(0).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        });
        let thread = told.recv().unwrap();
        assert!(comes_to(true, thread), "one that waits for this one");
        wake.send(()).unwrap();
        told.recv().unwrap();
        assert!(comes_to(false, thread), "one that sleeps for a time");
        waits.join().unwrap();
        // The test's own main thread waits for this one, so what is said of the process depends on how tests are run.
        let _ = asleep(&[]);
    }
}
