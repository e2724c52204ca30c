//! Saving what the flight recorder holds when a job has failed.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use corro_core::{Error, Rank, Result};

/// Writes a record into a file of its own in this folder, which only this user can read. Gives its path.
pub(crate) fn save(folder: &Path, rank: Rank, record: &str) -> Result<PathBuf> {
    let process = std::process::id();
    // A job may fail several times in the life of a process, if it is elastic.
    for number in 0..1000 {
        let path = folder.join(format!("corro-flight-record-{process}-rank{rank}-{number}.txt"));
        // Never one that is there: somebody else may have put it there.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(record.as_bytes());
                return written.map(|()| path.clone()).map_err(|e| Error::io(format!("writing {}", path.display()), e));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format!("making {}", path.display()), error)),
        }
    }
    Err(Error::io(format!("making a file in {}", folder.display()), "too many are there already"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_has_a_file_of_its_own() {
        let folder = std::env::temp_dir().join(format!("corro-records-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let paths = [save(&folder, Rank::new(3), "first"), save(&folder, Rank::new(3), "second")].map(Result::unwrap);
        assert_eq!(paths.each_ref().map(|path| std::fs::read_to_string(path).unwrap()), ["first", "second"]);
        std::fs::remove_dir_all(&folder).unwrap();
        let error = save(&folder, Rank::new(3), "third").unwrap_err().to_string();
        assert!(error.contains("rank3-0.txt"), "{error}");
    }
}
