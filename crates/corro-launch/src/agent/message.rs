//! What the launcher and the agent of a host say to each other, framed by [`corro_core::codec`].
//!
//! Orders go to the agent's standard input, reports come from its standard output; over ssh those are the only two
//! channels there are. The secret and the environment travel in here and never on a command line.

use corro_core::{Result, Statement, codec};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::process_id::ProcessId;

/// What an agent says before its first report. A login shell may have printed something in front of it.
pub(crate) const GREETING: &[u8] = b"\0corro agent\n";
/// How much a login shell may print.
pub(crate) const MAX_NOISE: usize = 64 * 1024;
/// The longest order: an environment, mostly.
pub const MAX_ORDER: usize = 32 * 1024 * 1024;
/// The longest report: a piece of output, mostly.
pub const MAX_REPORT: usize = 1024 * 1024;
/// The longest piece of output in one report.
pub(crate) const MAX_OUTPUT: usize = 64 * 1024;

/// To an agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Start the ranks of this host. Comes once.
    Start(Start),
    /// End: send `signal` to everything, and kill what is left after `grace_ms`.
    End {
        /// The signal's number.
        signal: i32,
        /// Milliseconds until SIGKILL.
        grace_ms: u64,
    },
    /// The launcher is alive.
    Beat,
    /// The user has typed this, for the rank that has the terminal; nothing: no more will be typed.
    Type(ByteBuf),
    /// Processes get this signal, which they may handle: nothing is ended by us.
    Pass {
        /// Which.
        signal: i32,
    },
    /// Processes are to tell where their threads are.
    Stacks,
    /// Processes are to tell what their flight recorders hold.
    Records,
    /// In an elastic job: start one more process, as [`Order::Start`] said.
    Launch {
        /// Which.
        process: ProcessId,
        /// The variables that are its alone.
        own: Vec<(String, String)>,
    },
    /// In an elastic job: end one process and its group. It is asked to, and killed if it does not.
    Kill {
        /// Which.
        process: ProcessId,
        /// Milliseconds until SIGKILL.
        grace_ms: u64,
    },
}

/// What to start.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Where the ranks run.
    pub directory: ByteBuf,
    /// The command and its arguments.
    pub command: Vec<ByteBuf>,
    /// The launcher's environment, as far as it is passed on.
    pub environment: Vec<(ByteBuf, ByteBuf)>,
    /// The processes of this host, and the variables that are theirs alone.
    pub processes: Vec<(ProcessId, Vec<(String, String)>)>,
    /// The process that has the user's terminal, and how large that is.
    pub terminal: Option<(ProcessId, Window)>,
    /// This is not the launcher's host: its own `HOME` and the like are kept.
    pub another_host: bool,
    /// So much silence (in ms) means that the launcher is lost; `None`: it never does.
    pub silence_ms: Option<u64>,
    /// Whether processes are to tell how they get on.
    pub feed: bool,
    /// In an elastic job, whose processes come and go: how long (in ms) they go on when the launcher is gone.
    pub orphan_ms: Option<u64>,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Lines.
    pub rows: u16,
    /// Letters in a line.
    pub columns: u16,
}

/// From an agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It is there.
    Hello {
        /// Its release of corro.
        release: String,
        /// The launcher's address as this host sees it, if it came by ssh.
        caller: Option<String>,
        /// How many cores ranks may use there, by affinity mask and CPU quota.
        cores: u32,
    },
    /// A process runs.
    Started {
        /// Which.
        process: ProcessId,
        /// Its process.
        pid: i32,
    },
    /// A process could not be started.
    NotStarted {
        /// Which.
        process: ProcessId,
        /// What a shell would exit with: 127 for a command that is not there, 126 for one that can't be run.
        code: i32,
        /// Why.
        cause: String,
    },
    /// A process has written something.
    Output {
        /// Which.
        process: ProcessId,
        /// To standard error rather than to standard output.
        error: bool,
        /// What.
        bytes: ByteBuf,
    },
    /// A process has stated something about its own end. Comes before that.
    Stated {
        /// Which.
        process: ProcessId,
        /// What.
        statement: Statement,
    },
    /// The batch system has told this agent that it will end the job, by this signal.
    Notice {
        /// Which.
        signal: i32,
    },
    /// This host, and no other, will go: its system has sent this signal to the agent. Its ranks may end in good order for a while.
    Leaving {
        /// Which.
        signal: i32,
    },
    /// A line of the agent's own log.
    Logged(String),
    /// A process has told how it gets on.
    Told {
        /// Which.
        process: ProcessId,
        /// A note as [`corro_observe::Note::encode`] gives it.
        note: ByteBuf,
    },
    /// A process has told some of where its threads are.
    Stacks {
        /// Which.
        process: ProcessId,
        /// A piece of text.
        bytes: ByteBuf,
    },
    /// A process has ended.
    Exited {
        /// Which.
        process: ProcessId,
        /// How.
        ending: Ending,
    },
    /// The host is alive.
    Beat,
    /// Somebody other than the launcher has sent this signal to the agent, which ends its ranks for that.
    Ending {
        /// The signal's number.
        signal: i32,
    },
    /// Nothing is left of the job on this host.
    Done,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ending {
    /// Whether all is well.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// What a shell would call it: 128 and the signal's number for a signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => 128 + number,
        }
    }

    /// Whether it was killed by somebody, or by the system, rather than for a fault of its own.
    pub fn is_from_outside(self) -> bool {
        let own_faults =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];
        matches!(self, Self::Signal(number) if !own_faults.contains(&number))
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match nix::sys::signal::Signal::try_from(*number) {
                Ok(signal) => write!(f, "signal {number} ({signal})"),
                Err(_) => write!(f, "signal {number}"),
            },
        }
    }
}

/// Bytes that arrive in pieces, cut into messages.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// More bytes have come.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if it is there.
    pub fn next<T: serde::de::DeserializeOwned>(&mut self, cap: usize) -> Result<Option<T>> {
        let Some((message, used)) = codec::take(&self.bytes[self.taken..], cap)? else { return Ok(None) };
        self.taken += used;
        Ok(Some(message))
    }

    /// Skips what a login shell printed, up to and with the agent's greeting. True once it was found. The error holds
    /// what came in its place.
    pub(crate) fn find_greeting(&mut self) -> Result<bool, String> {
        if let Some(at) = self.bytes.windows(GREETING.len()).position(|w| w == GREETING) {
            self.taken = at + GREETING.len();
            return Ok(true);
        }
        if self.bytes.len() > MAX_NOISE {
            return Err(format!("its shell prints without end: {:?}", self.noise()));
        }
        Ok(false)
    }

    /// The beginning of what is there, for error texts.
    pub(crate) fn noise(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(200)]).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use corro_core::Rank;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_come_in_pieces_after_a_shells_noise() {
        let report =
            Report::Output { process: ProcessId::of_rank(Rank::new(3)), error: true, bytes: ByteBuf::from(b"\xff\0x") };
        let bytes = [b"Welcome to node7\n".as_slice(), GREETING, &codec::encode(&report).unwrap()].concat();
        for size in 1..bytes.len() {
            let mut inbox = Inbox::default();
            let (mut greeted, mut got) = (false, None);
            for piece in bytes.chunks(size) {
                inbox.receive(piece);
                greeted = greeted || inbox.find_greeting().unwrap();
                if greeted {
                    got = got.or(inbox.next::<Report>(MAX_REPORT).unwrap());
                }
            }
            assert_eq!(got.as_ref(), Some(&report), "pieces of {size}");
        }
    }

    #[test]
    fn endless_noise_is_given_up() {
        let mut inbox = Inbox::default();
        inbox.receive(&vec![b'x'; MAX_NOISE + 1]);
        assert!(inbox.find_greeting().unwrap_err().contains("xxx"));
    }

    #[test]
    fn endings_read_as_a_shell_would_say() {
        assert_eq!((Ending::Code(3).code(), Ending::Signal(9).code()), (3, 137));
        assert_eq!(Ending::Signal(11).to_string(), "signal 11 (SIGSEGV)");
        assert!(Ending::Signal(9).is_from_outside() && Ending::Signal(15).is_from_outside());
        assert!(!Ending::Signal(11).is_from_outside() && !Ending::Code(1).is_from_outside());
    }

    proptest! {
        #[test]
        fn any_bytes_give_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut inbox = Inbox::default();
            inbox.receive(&bytes);
            while let Ok(Some(_)) = inbox.next::<Order>(MAX_ORDER) {}
            let mut inbox = Inbox::default();
            inbox.receive(&bytes);
            while let Ok(Some(_)) = inbox.next::<Report>(MAX_REPORT) {}
        }
    }
}
