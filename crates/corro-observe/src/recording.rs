//! A recording: the [`crate::View`] of a job in a file, to be looked at later.
//!
//! A view is bounded, so a recording is, too. It is written whole, beside its place, and then put there: a reader never sees half of
//! one, and a launcher that is killed leaves the last that it wrote.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use corro_core::{Error, Result};
use serde_json::Value;

use crate::view::VERSION;

/// The longest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Writes a view. Only this user can read it: it holds what ranks have written.
pub fn write(path: &Path, view: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("writing the recording {}", path.display()), e);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| file.write_all(view.as_bytes()))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written.map_err(failed)
}

/// Reads one. Gives it as text, and as what it says.
pub fn read(path: &Path) -> Result<(String, Value)> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        .map_err(|e| Error::io(format!("reading the recording {}", path.display()), e))?;
    let value =
        parse(&text).map_err(|why| Error::Usage(format!("{} is no recording of corro: {why}", path.display())))?;
    Ok((text, value))
}

/// What a recording says, or why it is none.
pub fn parse(text: &str) -> std::result::Result<Value, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it is longer than {} MB", MAX_BYTES >> 20));
    }
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    match value.get("version").and_then(Value::as_u64) {
        Some(version) if version <= u64::from(VERSION) => Ok(value),
        Some(version) => Err(format!("it is of form {version}, and this corro knows those up to {VERSION}")),
        None => Err("it has no version".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;
    use crate::view::{Since, View};

    #[test]
    fn what_is_written_can_be_read() {
        let path = std::env::temp_dir().join(format!("corro-recording-{}.json", std::process::id()));
        let view = View::of(&Story::new("train.py", 7), 5, Since::default()).json();
        write(&path, &view).unwrap();
        write(&path, &view).unwrap();
        let (text, value) = read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!((text, value["command"].as_str()), (view, Some("train.py")));
        assert!(write(Path::new("/nowhere/x.json"), "").unwrap_err().to_string().contains("/nowhere/x.json"));
    }

    #[test]
    fn other_files_are_refused_in_words() {
        assert!(parse("{\"version\":99}").unwrap_err().contains("form 99"));
        assert!(parse("[]").unwrap_err().contains("no version"));
        assert!(parse("x").is_err());
    }
}
