//! What a launcher hears, from all its threads, in one queue.

use std::sync::mpsc::Sender;

use corro_membership::message::ToDriver;
use corro_observe::watcher::Question;
use corro_transport::messages::MessageEvent;

use crate::agent::message::Report;
use crate::hosts::Host;

/// What the launcher hears. Agents are named by their place among those that were started.
#[derive(Debug)]
pub(crate) enum Event {
    /// From an agent.
    Report(usize, Report),
    /// Something came from an agent that needs no answer.
    Alive(usize),
    /// An agent says no more, for this reason if it gave one.
    Silent(usize, Option<String>),
    /// Nobody reads what we write.
    OutputClosed,
    /// The job is to end, by this signal.
    Interrupt(i32),
    /// The job can't go on here for long, for this reason: it is to end in good order, if it can.
    Notice(String),
    /// The user has typed this, for the rank that has the terminal; nothing: no more will be typed.
    Typed(Vec<u8>),
    /// In an elastic job: from a worker.
    Membership(MessageEvent<ToDriver>),
    /// In an elastic job: these hosts are there now, and whether each is this one.
    Hosts(Vec<(Host, bool)>),
    /// In an elastic job: the hosts could not be found out at all.
    NoHosts(String),
    /// Somebody wants to know this of all processes.
    Asked(Question),
    /// Something the user should know.
    Complaint(String),
}

/// Lets another thread end a job that runs.
#[derive(Clone, Debug)]
pub struct Control {
    events: Sender<Event>,
}

impl Control {
    pub(crate) fn new(events: Sender<Event>) -> Self {
        Self { events }
    }

    /// The job can't go on here for long. An elastic one ends at its next commit; the ranks of others get SIGUSR1.
    pub fn notice(&self, why: &str) {
        let _ = self.events.send(Event::Notice(why.to_owned()));
    }

    /// Sends `signal` to every process of the job, as Ctrl-C does. Asked twice, kills them.
    pub fn interrupt(&self, signal: i32) {
        let _ = self.events.send(Event::Interrupt(signal));
    }
}
