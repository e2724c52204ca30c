//! How our programs end where they themselves have something to say: exit codes, and errors for people.

use std::io::Write;

use corro_core::Error;

/// The command line is wrong.
pub(super) const USAGE_ERROR: u8 = 2;

/// Tells the user on standard error. That it can't be written, on a full disk for instance, is no reason to fail.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says what is wrong, and gives the exit code.
pub(super) fn complain(name: &str, error: &Error) -> u8 {
    tell(&format!("{name}: {error}"));
    if matches!(error, Error::Usage(_)) { USAGE_ERROR } else { 1 }
}

/// Shows what clap has to say about a command line: what is wrong with it, or the help that was asked for.
pub(super) fn show(error: &clap::Error) -> u8 {
    let _ = error.print();
    if error.use_stderr() { USAGE_ERROR } else { 0 }
}
