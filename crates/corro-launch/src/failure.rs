//! Why a job failed: one type for jobs of fixed size and for elastic ones, and the words a user reads.
//!
//! Pure. Which process is to blame is decided in [`crate::culprit`].

use corro_core::Rank;
use corro_membership::WorkerId;

use crate::agent::message::Ending;

/// What sysexits.h calls `EX_TEMPFAIL`: whoever started the job may start it again.
const TRY_AGAIN: i32 = 75;

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rank ended badly, or in good order while the others still needed it.
    Rank {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// How.
        ending: Ending,
        /// The exception behind it, on one line, if its program has told of one.
        exception: Option<String>,
    },
    /// A rank made the others fail, and did not end by itself.
    Stuck {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// What the others were told.
        cause: String,
        /// What the first of them exited with.
        code: i32,
    },
    /// A rank could not be started.
    NotStarted {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// What a shell would exit with.
        code: i32,
        /// Why.
        cause: String,
    },
    /// A host is gone.
    Host {
        /// Which.
        host: String,
        /// Its ranks.
        ranks: Vec<Rank>,
        /// How we know.
        cause: String,
    },
    /// An elastic job could not go on.
    Elastic {
        /// Why.
        why: String,
        /// The process whose failure ended it, if one's did.
        worker: Option<WorkerId>,
        /// What a shell would exit with.
        code: i32,
    },
    /// An elastic job was told to end at its next commit, and did. There is work left.
    Early {
        /// Why.
        why: String,
    },
    /// The user, or a batch system, ended the job.
    Interrupted {
        /// By this signal.
        signal: i32,
    },
}

impl Failure {
    /// The exit code that fits.
    pub fn code(&self) -> i32 {
        match self {
            Self::Rank { ending, .. } => ending.code(),
            Self::Stuck { code, .. } | Self::NotStarted { code, .. } | Self::Elastic { code, .. } => *code,
            Self::Host { .. } => 1,
            Self::Early { .. } => TRY_AGAIN,
            Self::Interrupted { signal } => 128 + signal,
        }
    }

    /// The words with which Horovod's `run` tells of a process that failed: programs look for them.
    pub fn in_horovods_words(&self) -> Option<String> {
        let process = match self {
            Self::Rank { rank, .. } | Self::Stuck { rank, .. } | Self::NotStarted { rank, .. } => rank.to_string(),
            Self::Elastic { worker, .. } => (*worker)?.to_string(),
            Self::Host { .. } | Self::Interrupted { .. } | Self::Early { .. } => return None,
        };
        Some(format!(
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. \
             The first process to do so was:\nProcess name: {process}\nExit code: {}\n",
            self.code()
        ))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank { rank, host, ending, exception } => {
                write!(f, "rank {rank} on {host} {}; all other ranks were ended", how(*ending, exception.as_deref()))
            }
            Self::Stuck { rank, host, cause, .. } => {
                write!(f, "rank {rank} on {host} made the others fail: {cause}; all ranks were ended")
            }
            Self::NotStarted { rank, host, cause, .. } => {
                write!(f, "rank {rank} on {host} could not be started: {cause}")
            }
            Self::Host { host, ranks, cause } => {
                write!(f, "lost host {host} with rank {}: {cause}; all other ranks were ended", listed(ranks))
            }
            Self::Elastic { why, .. } => f.write_str(why),
            Self::Early { why } => write!(f, "{why}; start it again to go on (exit code {TRY_AGAIN})"),
            Self::Interrupted { signal } => write!(f, "ended by signal {signal}, and all ranks with it"),
        }
    }
}

/// How a process ended, to be read after its name.
pub(crate) fn how(ending: Ending, exception: Option<&str>) -> String {
    let mut text = match ending {
        Ending::Code(0) => format!("has ended ({ending}) while other ranks still needed it"),
        _ => format!("exited with non-zero status: {ending}"),
    };
    if ending == Ending::Signal(libc::SIGKILL) {
        text.push_str(" (often by the system, when memory runs out: see dmesg)");
    }
    if let Some(exception) = exception {
        text.push_str(", after ");
        text.push_str(exception);
    }
    text
}

/// Ranks as people read them: all if they are few, else the first and the last. They are in ascending order.
pub(crate) fn listed(ranks: &[Rank]) -> String {
    const FEW: usize = 16;
    match ranks {
        [first, .., last] if ranks.len() > FEW => format!("{first} to {last} ({} of them)", ranks.len()),
        _ => ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_look_for_is_there() {
        let rank = Failure::Rank { rank: Rank::new(3), host: "a".into(), ending: Ending::Signal(9), exception: None };
        let words = rank.in_horovods_words().unwrap();
        assert!(words.ends_with("Process name: 3\nExit code: 137\n"), "{words}");
        assert!(words.contains("exited with non-zero status"), "{words}");
        assert_eq!(Failure::Interrupted { signal: 2 }.in_horovods_words(), None);
    }

    #[test]
    fn the_exception_is_told_with_the_end() {
        let failed = |ending, exception: Option<&str>| {
            let exception = exception.map(str::to_owned);
            Failure::Rank { rank: Rank::new(1), host: "b".into(), ending, exception }.to_string()
        };
        assert_eq!(
            failed(Ending::Code(1), Some("ValueError: bad (train.py:42 in step)")),
            "rank 1 on b exited with non-zero status: exit code 1, after ValueError: bad (train.py:42 in step); all other \
             ranks were ended"
        );
        assert!(failed(Ending::Code(0), None).contains("rank 1 on b has ended (exit code 0) while other ranks"));
        assert!(failed(Ending::Signal(9), None).contains("signal 9 (SIGKILL) (often by the system"));
    }

    #[test]
    fn many_ranks_are_not_all_listed() {
        assert_eq!((listed(&[2, 3].map(Rank::new)), listed(&[])), ("2, 3".into(), String::new()));
        assert_eq!(listed(&Rank::all(1004).skip(4).collect::<Vec<_>>()), "4 to 1003 (1000 of them)");
    }
}
