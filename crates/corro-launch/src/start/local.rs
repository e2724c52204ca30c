//! An agent on this very host: a child of ours.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::starter::{Reach, Starter};
use crate::hosts::Host;

/// Starts agents here.
pub(crate) struct Local;

impl Starter for Local {
    fn command(&self, _host: &Host, agent: &[OsString], _limit: Duration) -> Command {
        let mut words = agent.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command.args(words);
        command
    }
}

impl Reach for Local {
    fn name(&self) -> String {
        "this host".into()
    }

    fn advice(&self, _host: &str, _stderr: &str) -> Option<String> {
        None
    }

    fn advice_on_silence(&self) -> String {
        "is this machine overloaded, or its agent (`corro agent`) stopped?".into()
    }
}
