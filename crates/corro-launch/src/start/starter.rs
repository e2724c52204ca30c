//! What a way to start agents must be able to do.

use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::Duration;

use crate::hosts::Host;

/// A way to reach a host, for error texts.
pub(crate) trait Reach {
    /// What it is called: "ssh", "srun".
    fn name(&self) -> String;

    /// What the user can do about `stderr`, the last that was heard from `host`, if that is known.
    fn advice(&self, host: &str, stderr: &str) -> Option<String>;

    /// What the user can look at if nothing at all was heard from a host.
    fn advice_on_silence(&self) -> String;
}

/// A way to start an agent on a host.
pub(crate) trait Starter: Reach {
    /// The command that runs `agent` on `host` and joins its standard input and output to its own. It should not try for longer
    /// than `limit` to reach the host.
    fn command(&self, host: &Host, agent: &[OsString], limit: Duration) -> Command;
}

/// The command line of an agent as one word for a shell on the other side.
pub(super) fn line(agent: &[OsString]) -> OsString {
    agent.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(OsStr::new(" "))
}

/// What to do if the other side can't find its program, whichever way it was reached.
pub(super) fn advice_on_missing_program(stderr: &str) -> Option<String> {
    let missing = ["not found", "No such file"].iter().any(|complaint| stderr.contains(complaint));
    missing.then(|| "install corro there at the same path, or give --remote-corro PATH".into())
}

/// A word that any POSIX shell reads as itself.
fn quoted(word: &OsStr) -> OsString {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+=:@%".contains(b);
    let bytes = word.as_encoded_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return word.to_owned();
    }
    let text = word.to_string_lossy().replace('\'', r"'\''");
    format!("'{text}'").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["plain/path", "with space", "it's", "$(x);`y`", "", "-dash"] {
            let out = Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(OsStr::new(word)).display()))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
        }
    }
}
