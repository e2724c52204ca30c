//! Where the jobs of this user that run on this host can be reached: a folder that nobody else may enter, with a socket for each.
//!
//! Behind a socket the same is answered as by the page, without a token: who may open it is the user.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corro_core::{Error, Result, config};

/// How long a job may take to answer, and the longest answer.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 64 << 20;

/// A socket that is there until this is dropped.
#[derive(Debug)]
pub struct JobSocket {
    path: PathBuf,
}

impl Drop for JobSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Wakes the thread that waits there, if it still can.
        let _ = UnixStream::connect(&self.path);
    }
}

/// The folder of this user's jobs. It is made if it is not there; an error if it is somebody else's, or others may enter.
pub fn folder() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = match config::foreign("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("corro"),
        None => std::env::temp_dir().join(format!("corro-jobs-{user}")),
    };
    prepare(&folder, user).map(|()| folder)
}

fn prepare(folder: &Path, user: u32) -> Result<()> {
    let doing = || format!("making the folder {} for running jobs", folder.display());
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io(doing(), e)),
    }
    // Not through a link: where it leads somebody else may decide.
    let found = fs::symlink_metadata(folder).map_err(|e| Error::io(doing(), e))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(Error::io(doing(), "it exists, but is not a folder that only you can use"));
    }
    Ok(())
}

/// Opens a socket for the job of this process.
pub(crate) fn open(folder: &Path) -> Result<(JobSocket, UnixListener)> {
    let path = folder.join(format!("{}.socket", std::process::id()));
    // Of a process that was killed, and had our number.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
    Ok((JobSocket { path }, listener))
}

/// The jobs that run: launchers' process numbers, and their sockets. What killed ones have left is removed.
pub fn jobs(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    let mut jobs: Vec<(u32, PathBuf)> = found
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.strip_suffix(".socket")?.parse().ok()?;
            if UnixStream::connect(&path).is_err() {
                let _ = fs::remove_file(&path);
                return None;
            }
            Some((number, path))
        })
        .collect();
    jobs.sort_unstable();
    jobs
}

/// Asks a job for something, say `/view`, and gives what it answers.
pub fn ask(socket: &Path, target: &str) -> Result<String> {
    let failed = |e: std::io::Error| Error::io(format!("asking the job at {}", socket.display()), e);
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).map_err(failed)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        Some((_, why)) => Err(Error::io(format!("asking the job at {}", socket.display()), why.trim())),
        None => Err(Error::Malformed(format!("the job at {} does not answer", socket.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let folder = std::env::temp_dir().join(format!("corro-job-socket-{}", std::process::id()));
        let user = rustix::process::getuid().as_raw();
        prepare(&folder, user).unwrap();
        prepare(&folder, user).unwrap();
        assert!(prepare(&folder, user + 1).is_err(), "somebody else's");
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(prepare(&folder, user).unwrap_err().to_string().contains("not a folder that only you can use"));
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn jobs_that_are_gone_are_forgotten() {
        let folder = std::env::temp_dir().join(format!("corro-doors-{}", std::process::id()));
        prepare(&folder, rustix::process::getuid().as_raw()).unwrap();
        drop(UnixListener::bind(folder.join("123456.socket")).unwrap());
        fs::write(folder.join("notes.txt"), "not ours").unwrap();
        let (socket, _listener) = open(&folder).unwrap();
        assert_eq!(jobs(&folder).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [std::process::id()]);
        drop(socket);
        assert!(jobs(&folder).is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
