//! Why a job failed: one type for jobs of fixed size and for elastic ones, and the words a user reads.
//!
//! Pure. Which process is to blame is decided in [`crate::culprit`].

use corro_core::Rank;

use crate::agent::message::Ending;

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rank ended badly.
    Rank {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// How.
        ending: Ending,
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
        worker: Option<Rank>,
        /// What a shell would exit with.
        code: i32,
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
            Self::NotStarted { code, .. } | Self::Elastic { code, .. } => *code,
            Self::Host { .. } => 1,
            Self::Interrupted { signal } => 128 + signal,
        }
    }

    /// The words with which Horovod's `run` tells of a process that failed: programs look for them.
    pub fn in_horovods_words(&self) -> Option<String> {
        let process = match self {
            Self::Rank { rank, .. } | Self::NotStarted { rank, .. } => *rank,
            Self::Elastic { worker, .. } => (*worker)?,
            Self::Host { .. } | Self::Interrupted { .. } => return None,
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
            Self::Rank { rank, host, ending } => {
                write!(f, "rank {rank} on {host} exited with non-zero status: {ending}; all other ranks were ended")
            }
            Self::NotStarted { rank, host, cause, .. } => {
                write!(f, "rank {rank} on {host} could not be started: {cause}")
            }
            Self::Host { host, ranks, cause } => {
                write!(f, "lost host {host} with rank {}: {cause}; all other ranks were ended", listed(ranks))
            }
            Self::Elastic { why, .. } => f.write_str(why),
            Self::Interrupted { signal } => write!(f, "ended by signal {signal}, and all ranks with it"),
        }
    }
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
        let rank = Failure::Rank { rank: 3, host: "a".into(), ending: Ending::Signal(9) };
        let words = rank.in_horovods_words().unwrap();
        assert!(words.ends_with("Process name: 3\nExit code: 137\n"), "{words}");
        assert!(words.contains("exited with non-zero status"), "{words}");
        assert_eq!(Failure::Interrupted { signal: 2 }.in_horovods_words(), None);
    }

    #[test]
    fn many_ranks_are_not_all_listed() {
        assert_eq!((listed(&[2, 3]), listed(&[])), ("2, 3".into(), String::new()));
        assert_eq!(listed(&(4..1004).collect::<Vec<_>>()), "4 to 1003 (1000 of them)");
    }
}
