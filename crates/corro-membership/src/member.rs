//! A worker's side of membership: what it knows, what it says, what it may believe.
//!
//! Pure. [`crate::Client`] drives it over a connection; the simulator drives the same code over a network of its own.

use serde_bytes::ByteBuf;

use crate::message::{Cause, Change, Hello, PastSeat, Seat, ToDriver, ToWorker, WorkerId};

/// How its wish for a seat was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It has a seat.
    Seat(Seat),
    /// The job goes on without it, for this reason. It is to end quietly.
    Removed(String),
    /// The job is over.
    Ended {
        /// Whether somebody has finished it.
        success: bool,
        /// Why, in words.
        why: String,
    },
}

/// What a worker knows.
#[derive(Clone, Debug)]
pub struct Member {
    worker: WorkerId,
    host: String,
    /// What it said when it last asked for a seat, as long as that is not answered.
    asked: Option<Hello>,
    seat: Option<Seat>,
    cards: Option<Vec<ByteBuf>>,
    over: Option<Cause>,
    change: Change,
    /// What it waits for, in the driver's words.
    waits_for: String,
    /// The last word.
    dismissed: Option<Joined>,
}

impl Member {
    /// A new process.
    pub fn new(worker: WorkerId, host: String) -> Self {
        Self {
            worker,
            host,
            asked: None,
            seat: None,
            cards: None,
            over: None,
            change: Change::default(),
            waits_for: String::new(),
            dismissed: None,
        }
    }

    /// Who it is.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Asks for a seat; what it has is given up.
    pub fn ask(&mut self, progress: u64, cause: Option<Cause>) -> ToDriver {
        let was = self.seat.as_ref().map(|s| PastSeat { epoch: s.epoch, rank: s.rank });
        let hello = Hello {
            worker: self.worker,
            host: self.host.clone(),
            release: env!("CARGO_PKG_VERSION").into(),
            was,
            progress,
            cause,
        };
        self.asked = Some(hello.clone());
        self.cards = None;
        self.waits_for = "the driver's answer".into();
        ToDriver::Hello(hello)
    }

    /// What to say first on a connection that was made again.
    pub fn again(&self) -> Option<ToDriver> {
        if let Some(hello) = &self.asked {
            return Some(ToDriver::Hello(hello.clone()));
        }
        let seat = self.seat.as_ref()?;
        let seat = PastSeat { epoch: seat.epoch, rank: seat.rank };
        Some(ToDriver::Present { worker: self.worker, host: self.host.clone(), seat })
    }

    /// Takes a message of the driver's.
    pub fn hear(&mut self, message: ToWorker) {
        let epoch = self.seat.as_ref().map_or(0, |s| s.epoch);
        match message {
            ToWorker::Wait(what) => self.waits_for = what,
            // An older seat than the last is a message that came too late.
            ToWorker::Seat(seat) if self.asked.is_some() && seat.epoch > epoch => {
                // What was announced before is in it.
                self.change = Change { number: seat.changes, ..Change::default() };
                (self.asked, self.seat) = (None, Some(seat));
                (self.cards, self.over) = (None, None);
            }
            ToWorker::Cards { epoch: of, cards } if of == epoch && self.asked.is_none() => self.cards = Some(cards),
            ToWorker::Over { epoch: of, culprit, why } if of == epoch => self.over = Some(Cause { culprit, text: why }),
            ToWorker::Changed(change) if change.number > self.change.number => self.change = change,
            ToWorker::Removed(why) => self.dismissed = Some(Joined::Removed(why)),
            ToWorker::Ended { success, why } => self.dismissed = Some(Joined::Ended { success, why }),
            ToWorker::Seat(_) | ToWorker::Cards { .. } | ToWorker::Over { .. } | ToWorker::Changed(_) => {}
        }
    }

    /// The answer to its last question, once it is there.
    pub fn answer(&self) -> Option<Joined> {
        if let Some(dismissed) = &self.dismissed {
            return Some(dismissed.clone());
        }
        if self.asked.is_some() {
            return None;
        }
        self.seat.clone().map(Joined::Seat)
    }

    /// That it has no place in the job any more, if so.
    pub fn dismissed(&self) -> Option<&Joined> {
        self.dismissed.as_ref()
    }

    /// Its seat, also while it asks for another.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// How the ranks of its epoch can be reached, once all have told.
    pub fn cards(&self) -> Option<&[ByteBuf]> {
        self.cards.as_deref()
    }

    /// Why its epoch is over, if it is.
    pub fn over(&self) -> Option<&Cause> {
        self.over.as_ref()
    }

    /// The last change that was announced.
    pub fn change(&self) -> Change {
        self.change
    }

    /// What it waits for.
    pub fn waits_for(&self) -> &str {
        &self.waits_for
    }
}
