//! A command that is a Python script: `corro run -np 2 train.py`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// `command`, with a Python in front of it if its first word is a Python file. It is the Python that this program was
/// installed with, since that one has the package.
pub(super) fn with_python(command: Vec<OsString>) -> Vec<OsString> {
    let own = std::env::current_exe().ok();
    with_python_beside(own.as_deref().and_then(Path::parent), command)
}

/// The Python that this program was installed with, else the one that comes first in PATH, as the shell would find it.
pub(super) fn python() -> OsString {
    let own = std::env::current_exe().ok();
    python_beside(own.as_deref().and_then(Path::parent))
}

fn with_python_beside(folder: Option<&Path>, mut command: Vec<OsString>) -> Vec<OsString> {
    let is_script = command.first().is_some_and(|word| Path::new(word).extension() == Some(OsStr::new("py")));
    if is_script {
        command.insert(0, python_beside(folder));
    }
    command
}

fn python_beside(folder: Option<&Path>) -> OsString {
    let beside = |name: &&str| folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
    let python = ["python3", "python"].iter().find_map(beside);
    python.map_or_else(|| OsString::from("python3"), PathBuf::into_os_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<OsString> {
        command.iter().map(Into::into).collect()
    }

    #[test]
    fn only_python_files_get_a_python() {
        assert_eq!(
            with_python_beside(None, words(&["train.py", "--lr", "x.py"])),
            words(&["python3", "train.py", "--lr", "x.py"])
        );
        for command in [&["python", "train.py"][..], &["./train"], &["train.pyc"], &[]] {
            assert_eq!(with_python_beside(None, words(command)), words(command));
        }
    }

    #[test]
    fn the_python_beside_this_program_comes_first() {
        let folder = std::env::temp_dir().join(format!("corro-beside-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("python"), "").unwrap();
        let command = with_python_beside(Some(&folder), words(&["dir/train.py"]));
        assert_eq!(command, [folder.join("python").into_os_string(), "dir/train.py".into()]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
