//! What `corro doctor` finds, and how it asks other programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No program that is asked something may take longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Works, but slower or for fewer uses than it could.
    Note,
    /// Jobs will fail.
    Bad,
}

/// One line of the report.
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) about: &'static str,
    pub(super) text: String,
}

pub(super) fn finding(verdict: Verdict, about: &'static str, text: impl Into<String>) -> Finding {
    Finding { verdict, about, text: text.into() }
}

/// What a program prints, if it runs and ends well in time.
pub(super) fn ask(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + PATIENCE;
    // Short answers only: they fit into a pipe, so it can be read after the end.
    let status = loop {
        match child.try_wait().ok()? {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut text = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut()?, &mut text).ok()?;
    status.success().then(|| text.trim().to_owned())
}
