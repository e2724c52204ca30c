//! Which process holds a rank: one, and no other.
//!
//! Whatever a rank starts (`DataLoader` workers, `multiprocessing`, `subprocess`) inherits the variables that made it a rank. If
//! such a process joined, it would disturb the job, or form a second one with its like. So a process holds its rank from the
//! moment it joins until it ends, and others that come with the same variables are told who does.
//!
//! What is held is one byte of a file of this user's that all its jobs on the host share: a lock of the kind that belongs to a
//! *process*. The kernel drops it when that process ends, however it ends; a forked child does not have it; and whoever asks
//! for it in vain is told by whom it is held. The file is empty and stays.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use corro_core::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::private_folder;

/// The file, once this process holds something. Opened once and never closed: closing any descriptor of it would let go of
/// all that this process holds.
static FILE: Mutex<Option<File>> = Mutex::new(None);

/// Holds `what` ("rank 3") for this process until it ends, or says who does. `key` is the same for all who have a claim on
/// it. Holding it again is nothing. Where locks can't be had (no folder to write to) nobody is refused.
pub fn hold(key: &[u8; 32], what: &str) -> Result<()> {
    let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    if file.is_none() {
        let folders = [private_folder::of_this_host(), private_folder::temporary()];
        *file = folders.iter().find_map(|folder| open(folder).ok());
    }
    let Some(file) = &*file else {
        tracing::debug!("no folder for the file that tells which process is {what}");
        return Ok(());
    };
    let mut lock = byte_of(key);
    // Whoever holds it may end between the two questions.
    for _ in 0..3 {
        match fcntl(file, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) => {}
            Err(e) => {
                tracing::debug!(error = %e, "can't lock the file that tells which process is {what}");
                return Ok(());
            }
        }
        let asked = fcntl(file, FcntlArg::F_GETLK(&mut lock));
        if asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK {
            return Err(taken(what, lock.l_pid));
        }
        lock = byte_of(key);
    }
    Err(taken(what, 0))
}

fn open(folder: &Path) -> Result<File> {
    private_folder::prepare(folder, "for processes to say which rank they hold")?;
    let path = folder.join("ranks");
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| Error::io(format!("opening {}", path.display()), e))
}

/// The byte that stands for `key`. Two keys have the same one about as often as two jobs have the same secret.
fn byte_of(key: &[u8; 32]) -> libc::flock {
    let place = (u64::from_le_bytes(*key.first_chunk().expect("eight of 32 bytes")) >> 2).cast_signed();
    let (kind, from) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type: kind, l_whence: from, l_start: place, l_len: 1, l_pid: 0 }
}

fn taken(what: &str, holder: libc::pid_t) -> Error {
    let host = crate::host_name();
    let holder = match holder {
        // It is in a namespace of its own.
        ..=0 => "another process".to_owned(),
        holder => format!("process {holder}"),
    };
    Error::Usage(format!(
        "{what} of this job is held by {holder} on {host}, and only one process can be it. This process ({}) has inherited \
         its environment, as DataLoader workers, multiprocessing and subprocess do, but it is no rank. Call init() in the \
         rank's own process only, under `if __name__ == \"__main__\":`. A program that is to be a job of its own must be \
         started by `corro run`, or without the variables that name this one (CORRO_RANK and the like)",
        std::process::id()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_process_may_hold_it_again() {
        let key = crate::secret::random_bytes().unwrap();
        hold(&key, "rank 1").unwrap();
        hold(&key, "rank 1").unwrap();
    }

    #[test]
    fn keys_differ_in_their_bytes() {
        let (one, other) = ([1; 32], [2; 32]);
        assert_ne!(byte_of(&one).l_start, byte_of(&other).l_start);
        assert!(byte_of(&[255; 32]).l_start > 0, "a place in a file is not negative");
    }
}
