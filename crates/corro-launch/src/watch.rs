//! What those who watch a job are told of it: all that agents report, before anything is decided about it.

use std::sync::Arc;

use corro_core::codec;
use corro_observe::note::MAX_NOTE;
use corro_observe::{Note, Watcher};

use crate::agent::message::Report;
use crate::process_id::ProcessId;

/// What the reports of one host are told to, if somebody watches.
pub(crate) struct Watch(Option<(Arc<Watcher>, String)>);

impl Watch {
    pub(crate) fn new(watcher: Option<&Arc<Watcher>>, host: &str) -> Self {
        Self(watcher.map(|watcher| (Arc::clone(watcher), host.to_owned())))
    }

    /// Something was reported.
    pub(crate) fn note(&self, report: &Report) {
        let Some((watcher, host)) = &self.0 else { return };
        let number = |process: &ProcessId| process.number() as u32;
        watcher.with(|story, now| match report {
            Report::Started { process, pid } => story.started(now, number(process), host, *pid),
            Report::NotStarted { process, cause, .. } => {
                story.exited(now, number(process), host, false, &format!("it could not be started: {cause}"));
            }
            Report::Output { process, error, bytes } => story.wrote(now, number(process), *error, bytes),
            Report::Exited { process, ending } => {
                story.exited(now, number(process), host, ending.is_success(), &ending.to_string());
            }
            Report::Stacks { process, bytes } => story.told_stacks(number(process), bytes),
            Report::Told { process, note } => {
                // The agent has read it already; what it could not read it has not passed on.
                if let Ok(Some((note, _))) = codec::take::<Note>(note, MAX_NOTE) {
                    story.heard(now, number(process), host, note);
                }
            }
            Report::Hello { .. }
            | Report::Stated { .. }
            | Report::Logged(_)
            | Report::Beat
            | Report::Ending { .. }
            | Report::Notice { .. }
            | Report::Leaving { .. }
            | Report::Done => {}
        });
    }
}
