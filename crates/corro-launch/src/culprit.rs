//! Whose end made a job fail: the one place that decides it, for jobs of fixed size and for elastic ones.
//!
//! Pure: what was heard about the ends of processes goes in, the one to name comes out. When one process fails, its peers
//! fail with it, and so do those whom the launcher ends; the first that is heard of is seldom the first that failed. So
//! processes state why they end, and victims say of whom they are ([`Statement`]). Each bad end is a vote for the process at
//! the end of its chain of blame.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use corro_core::{Exception, Rank, Reason, Statement};

use crate::agent::message::Ending;
use crate::process_id::ProcessId;

/// All that was heard about the ends of a job's processes.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// In the order in which it was heard.
    signs: Vec<Sign>,
    /// How much was heard so far, also of what is forgotten.
    heard: usize,
    /// How much was heard when processes were started that came later than the others.
    starts: BTreeMap<ProcessId, usize>,
    /// Whether the launcher has asked all to end, and when it kills those that have not.
    kill_at: Option<Instant>,
}

#[derive(Debug)]
struct Sign {
    /// How much was heard before.
    order: usize,
    process: ProcessId,
    what: What,
    /// The launcher had asked all to end before this was heard.
    late: bool,
}

/// A [`Statement`] names ranks; here they are processes.
#[derive(Debug)]
enum What {
    Leaves {
        reason: Reason,
        because_of: Option<ProcessId>,
    },
    Suffers {
        from: ProcessId,
        text: String,
    },
    ThreadRaised(Exception),
    Ended {
        ending: Ending,
        /// The launcher itself may have caused it.
        ours: bool,
    },
}

/// The process to name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) process: ProcessId,
    /// How it ended, if it did so by itself.
    pub(crate) ending: Option<Ending>,
    /// Why it said it would.
    pub(crate) reason: Option<Reason>,
    /// What the first of its victims was told.
    pub(crate) accusation: Option<String>,
    /// What the job may exit with for it: never 0.
    pub(crate) code: i32,
}

impl Culprit {
    /// How it ended by itself, or would have, had the launcher not been quicker.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.or_else(|| self.reason.as_ref()?.code().map(Ending::Code))
    }

    /// The exception behind its end, on one line.
    pub(crate) fn exception(&self) -> Option<String> {
        Some(self.reason.as_ref()?.exception()?.to_string())
    }
}

impl Deaths {
    /// A process is started while others run or have run.
    pub(crate) fn started(&mut self, process: ProcessId) {
        self.starts.insert(process, self.heard);
    }

    /// A process has ended.
    pub(crate) fn note(&mut self, process: ProcessId, ending: Ending, now: Instant) {
        let fails = !ending.is_success() && self.kill_at.is_none();
        if let Some(start) = self.starts.remove(&process).filter(|_| fails) {
            // Those who died before it was started had been replaced when it failed. (Not if it was us who ended it.)
            let died_before = |sign: &&Sign| sign.order < start && matches!(sign.what, What::Ended { .. });
            let replaced: Vec<ProcessId> = self.signs.iter().filter(died_before).map(|sign| sign.process).collect();
            self.signs.retain(|sign| !replaced.contains(&sign.process));
        }
        let ours = match (ending, self.kill_at) {
            (_, None) => false,
            // A program may answer SIGTERM with any code.
            (Ending::Signal(libc::SIGTERM) | Ending::Code(_), Some(_)) => true,
            (Ending::Signal(_), Some(kill_at)) => now >= kill_at,
        };
        self.hear(process, What::Ended { ending, ours });
    }

    /// A process has stated something. `known` is the process that has a rank, as far as its own job is concerned; of ranks
    /// that nobody has nothing is believed.
    pub(crate) fn stated(
        &mut self,
        process: ProcessId,
        statement: Statement,
        known: impl Fn(Rank) -> Option<ProcessId>,
    ) {
        let what = match statement {
            Statement::Suffers { from, text } => match known(from) {
                Some(from) => What::Suffers { from, text },
                None => return,
            },
            Statement::Leaves { reason, because_of } => What::Leaves { reason, because_of: because_of.and_then(known) },
            Statement::ThreadRaised(exception) => What::ThreadRaised(exception),
            // An elastic job goes on, and so does this process.
            Statement::Returns => return self.signs.retain(|sign| sign.process != process),
        };
        self.hear(process, what);
    }

    fn hear(&mut self, process: ProcessId, what: What) {
        self.signs.push(Sign { order: self.heard, process, what, late: self.kill_at.is_some() });
        self.heard += 1;
    }

    /// The launcher ends everything from now on, and kills what is left at `kill_at`.
    pub(crate) fn launcher_ends_all(&mut self, kill_at: Instant) {
        self.kill_at = Some(self.kill_at.map_or(kill_at, |at| at.min(kill_at)));
    }

    /// The job goes on without those who died until now: none of them is to blame for what comes.
    pub(crate) fn forgive(&mut self) {
        self.signs.clear();
    }

    /// The exception that a process has told of, on one line.
    pub(crate) fn exception_of(&self, process: ProcessId) -> Option<String> {
        self.case().describe(process).exception()
    }

    /// Because of whom a process failed, if that was another, who has not ended yet: it should be given the time to.
    pub(crate) fn awaited_cause(&self, process: ProcessId) -> Option<ProcessId> {
        let heard = self.case();
        let cause = heard.cause_of(process);
        let has_ended = heard.of(cause).any(|sign| matches!(sign.what, What::Ended { .. }));
        (cause != process && !has_ended).then_some(cause)
    }

    /// Whether a process has failed because of another.
    pub(crate) fn is_victim(&self, process: ProcessId) -> bool {
        self.case().blamed_by(process).is_some()
    }

    /// Who is to be named, if anybody ended badly.
    ///
    /// Whoever has most votes of others; of those with equally many one that was killed, for it could say nothing and takes its
    /// peers along; of those the one whose first vote was heard first.
    pub(crate) fn culprit(&self) -> Option<Culprit> {
        let heard = self.case();
        let mut polls: BTreeMap<ProcessId, Poll> = BTreeMap::new();
        for (order, voter) in heard.voters() {
            let cause = heard.cause_of(voter);
            let poll = polls.entry(cause).or_insert(Poll { votes_of_others: 0, first: order });
            poll.votes_of_others += usize::from(voter != cause);
            poll.first = poll.first.min(order);
        }
        let weight = |(process, poll): &(&ProcessId, &Poll)| {
            (poll.votes_of_others, heard.was_killed(**process), std::cmp::Reverse(poll.first))
        };
        let (process, _) = polls.iter().max_by_key(weight)?;
        Some(heard.describe(*process))
    }

    /// Everything but what is said, once the launcher ends all, of those whom nothing was wrong with before: processes lose
    /// each other then, because of us.
    fn case(&self) -> Case<'_> {
        let mut in_trouble = BTreeSet::new();
        for sign in &self.signs {
            match sign.what {
                What::Ended { ours: true, .. } => {}
                What::Ended { ours: false, .. } => drop(in_trouble.insert(sign.process)),
                _ if sign.late => {}
                _ => in_trouble.extend([sign.process].into_iter().chain(sign.accused())),
            }
        }
        // Whoever was in trouble before has a reason to accuse another, who then was in trouble too, and so on.
        loop {
            let known = in_trouble.len();
            let accusers = self.signs.iter().filter(|sign| in_trouble.contains(&sign.process));
            let accused: Vec<ProcessId> = accusers.filter_map(Sign::accused).collect();
            in_trouble.extend(accused);
            if in_trouble.len() == known {
                break;
            }
        }
        let credible = |sign: &&Sign| !sign.late || sign.accused().is_none_or(|accused| in_trouble.contains(&accused));
        let signs: Vec<&Sign> = self.signs.iter().filter(credible).collect();
        let mut by_process: BTreeMap<ProcessId, Vec<&Sign>> = BTreeMap::new();
        for sign in &signs {
            by_process.entry(sign.process).or_default().push(sign);
        }
        Case { signs, by_process }
    }
}

/// What is credible of all that was heard.
struct Case<'a> {
    signs: Vec<&'a Sign>,
    by_process: BTreeMap<ProcessId, Vec<&'a Sign>>,
}

impl Case<'_> {
    /// Processes that failed, with when that was first heard. Those whom the launcher has ended are not among them.
    fn voters(&self) -> impl Iterator<Item = (usize, ProcessId)> {
        self.by_process.iter().filter_map(|(process, signs)| {
            let first = signs.iter().find(|sign| sign.is_bad())?;
            // A statement alone is no failure: its process may yet recover.
            let failed = signs.iter().any(|sign| match &sign.what {
                What::Ended { ending, .. } => !ending.is_success(),
                What::Leaves { .. } => sign.is_bad(),
                What::Suffers { .. } | What::ThreadRaised(_) => false,
            });
            failed.then_some((first.order, *process))
        })
    }

    /// The process at the end of the chain of blame that begins with `process`.
    fn cause_of(&self, process: ProcessId) -> ProcessId {
        let (mut last, mut seen) = (process, BTreeSet::from([process]));
        while let Some(next) = self.blamed_by(last).filter(|next| seen.insert(*next)) {
            last = next;
        }
        last
    }

    /// Because of whom a process failed, if it was not because of itself.
    fn blamed_by(&self, process: ProcessId) -> Option<ProcessId> {
        let mut suffers = None;
        for sign in self.of(process) {
            match &sign.what {
                What::Suffers { from, .. } => suffers = suffers.or(Some(*from)),
                What::Leaves { because_of: Some(other), .. } => suffers = suffers.or(Some(*other)),
                What::Leaves { reason: Reason::Raised(_), because_of: None } => {
                    // Its own exception. If it was told of another's end before, that was the first cause, unless the
                    // other just had no more to do.
                    return suffers.filter(|other| *other != process && !self.is_well(*other));
                }
                _ => {}
            }
        }
        suffers.filter(|other| *other != process)
    }

    /// Whether a process came to a good end.
    fn is_well(&self, process: ProcessId) -> bool {
        let ended_well = |sign: &Sign| matches!(sign.what, What::Ended { ending: Ending::Code(0), .. });
        self.of(process).any(ended_well) && !self.of(process).any(Sign::is_bad)
    }

    fn was_killed(&self, process: ProcessId) -> bool {
        self.of(process).any(|sign| matches!(sign.what, What::Ended { ending: Ending::Signal(_), ours: false }))
    }

    fn of(&self, process: ProcessId) -> impl Iterator<Item = &Sign> {
        self.by_process.get(&process).into_iter().flatten().copied()
    }

    fn describe(&self, process: ProcessId) -> Culprit {
        let signs = || self.of(process).map(|sign| &sign.what);
        let reason = signs().find_map(|what| match what {
            What::Leaves { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        let in_thread = || {
            signs().find_map(|what| match what {
                What::ThreadRaised(raised) => Some(Reason::Ended { code: None, after: Some(raised.clone()) }),
                _ => None,
            })
        };
        let ending = signs().find_map(|what| match what {
            What::Ended { ending, ours: false } => Some(*ending),
            // It had said what it would do before we asked.
            What::Ended { ending: ending @ Ending::Code(code), .. } if reason.as_ref()?.code()? == *code => {
                Some(*ending)
            }
            _ => None,
        });
        let accusation = self.signs.iter().find_map(|sign| match &sign.what {
            What::Suffers { from, text } if *from == process => Some(text.clone()),
            _ => None,
        });
        let first_bad = self.signs.iter().find_map(|sign| match sign.what {
            What::Ended { ending, ours: false } if !ending.is_success() => Some(ending.code()),
            _ => None,
        });
        let own = ending.map(Ending::code).filter(|code| *code != 0);
        let said = reason.as_ref().and_then(Reason::code).filter(|code| *code != 0);
        Culprit {
            process,
            ending,
            code: own.or(said).or(first_bad).unwrap_or(1),
            reason: reason.or_else(in_thread),
            accusation,
        }
    }
}

struct Poll {
    votes_of_others: usize,
    first: usize,
}

impl Sign {
    /// The process whose fault it says it is.
    fn accused(&self) -> Option<ProcessId> {
        match &self.what {
            What::Suffers { from, .. } => Some(*from),
            What::Leaves { because_of, .. } => *because_of,
            What::ThreadRaised(_) | What::Ended { .. } => None,
        }
    }

    /// Whether it tells of a failure that is not the launcher's doing.
    fn is_bad(&self) -> bool {
        match &self.what {
            What::Ended { ending, ours } => !ours && !ending.is_success(),
            What::Suffers { .. } | What::Leaves { because_of: Some(_), .. } => true,
            What::Leaves { reason: Reason::Raised(_), .. } => !self.late,
            What::Leaves { reason, .. } => !self.late && reason.code().is_some_and(|code| code != 0),
            What::ThreadRaised(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
