//! Folders that only this user can use.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use corro_core::{Error, Result, config};

/// Where this user's processes on this host may keep something for each other.
pub(crate) fn of_this_host() -> PathBuf {
    match config::foreign("XDG_RUNTIME_DIR") {
        Some(runtime) => PathBuf::from(runtime).join("corro"),
        None => temporary(),
    }
}

/// As [`of_this_host`], where that one can't be used.
pub(crate) fn temporary() -> PathBuf {
    std::env::temp_dir().join(format!("corro-{}", rustix::process::getuid().as_raw()))
}

/// Makes the folder if it is not there, and refuses it if others could write to it. `why` reads after "preparing /folder".
pub(crate) fn prepare(path: &Path, why: &str) -> Result<()> {
    let doing = || format!("preparing {} {why}", path.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| Error::io(doing(), e))?;
    let found = std::fs::symlink_metadata(path).map_err(|e| Error::io(doing(), e))?;
    let ours = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    if !ours || found.permissions().mode() & 0o022 != 0 {
        return Err(Error::io(doing(), "it must be a directory of this user that nobody else can write to"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_others_are_refused() {
        let path = std::env::temp_dir().join(format!("corro-dir-{}", std::process::id()));
        prepare(&path, "for a test").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&path, "for a test").unwrap_err().to_string().contains("nobody else can write"));
        std::fs::remove_dir(&path).unwrap();
    }
}
