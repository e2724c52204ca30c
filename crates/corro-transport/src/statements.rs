//! The way by which a rank states why it ends to the agent that has started it.
//!
//! Owns the rank's end of a pipe that the agent has made ([`Channel`]), and what was said so far ([`EndReport`]). One write that
//! never waits, so that a process can use it when nothing else works any more. A rank that was started in another way has
//! no such pipe, and its peers' errors must do.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use corro_core::{Error, Exception, Rank, Reason, Statement, codec, config};
use rustix::fs::OFlags;

use crate::forks;

/// What a process has said about its own end. Errors that are another rank's fault pass here on their way to the program, so
/// that victims are known from the cause, whatever they do about it.
#[derive(Debug, Default)]
pub struct EndReport {
    channel: OnceLock<Option<Channel>>,
    said: Mutex<Said>,
}

#[derive(Debug)]
struct Said {
    /// Why it leaves. The first is the cause of what follows.
    reason: Option<Reason>,
    /// The first error that was another rank's fault: whose, and its text.
    suffers: Option<(Rank, String)>,
}

impl Said {
    const NOTHING: Self = Self { reason: None, suffers: None };
}

impl Default for Said {
    fn default() -> Self {
        Self::NOTHING
    }
}

impl EndReport {
    /// Of a process that has said nothing yet.
    pub const fn new() -> Self {
        Self { channel: OnceLock::new(), said: Mutex::new(Said::NOTHING) }
    }

    /// Takes hold of the way to the agent, so that no child of this process does: it could speak in its name.
    pub fn open(&self) {
        self.channel.get_or_init(Channel::from_env);
    }

    /// The process joins a job, perhaps again: what was before is over.
    pub fn begin(&self) {
        self.open();
        let mut said = self.said();
        if said.suffers.is_some() || said.reason.is_some() {
            self.tell(&Statement::Returns);
        }
        *said = Said::NOTHING;
    }

    /// The program is about to learn of this error. To be called before it does: what it then does is a consequence.
    pub fn suffers(&self, error: &Error) {
        let Some(from) = error.blames() else { return };
        let mut said = self.said();
        if said.suffers.is_none() {
            let text = error.to_string();
            self.tell(&Statement::suffers(from, &text));
            said.suffers = Some((from, text));
        }
    }

    /// The program comes to its end. `texts` are what its last exception, and those behind it, say: if one of them repeats an
    /// error that was another rank's fault, this process is its victim.
    pub fn leaves(&self, reason: Reason, texts: &[String]) {
        let mut said = self.said();
        let repeated = |(_, error): &&(Rank, String)| texts.iter().any(|text| text.contains(error.as_str()));
        let because_of = said.suffers.as_ref().filter(repeated).map(|(from, _)| *from);
        self.tell(&Statement::Leaves { reason: reason.clone(), because_of });
        said.reason.get_or_insert(reason);
    }

    /// An exception has ended a thread of the process, which goes on.
    pub fn thread_raised(&self, exception: Exception) {
        self.tell(&Statement::ThreadRaised(exception));
    }

    /// Why the process leaves, as far as it has said so.
    pub fn reason(&self) -> Option<Reason> {
        self.said().reason.clone()
    }

    fn tell(&self, statement: &Statement) {
        if let Some(channel) = self.channel.get_or_init(Channel::from_env) {
            channel.tell(statement);
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to the agent. See the module.
#[derive(Debug)]
pub struct Channel {
    pipe: File,
    /// The process that is the rank. Its children inherit much, but do not speak for it.
    process: u32,
}

impl Channel {
    /// The one that the environment describes, if it does and the pipe is still there: something between the agent and us
    /// may have closed it, and its number may be another file by now.
    pub fn from_env() -> Option<Self> {
        Self::of(&config::STATEMENTS)
    }

    /// The one that a variable describes. See [`Channel::from_env`].
    pub fn of(variable: &config::Variable) -> Option<Self> {
        Self::open(&variable.value()?)
    }

    fn open(word: &str) -> Option<Self> {
        let pipe = reopened(word, OpenOptions::new().write(true))?;
        Some(Self { pipe, process: std::process::id() })
    }

    /// States it. Nothing is done about a pipe that is full or closed: there is no better place to complain to.
    pub fn tell(&self, statement: &Statement) {
        if let Ok(bytes) = codec::encode(statement) {
            self.send(&bytes);
        }
    }

    /// Sends bytes, whole or not at all if they are no more than [`corro_core::departure::MAX_STATEMENT`]: a pipe takes that much
    /// at once. False if it is full or closed.
    pub fn send(&self, bytes: &[u8]) -> bool {
        self.process == std::process::id() && (&self.pipe).write(bytes).is_ok_and(|count| count == bytes.len())
    }
}

/// The pipe that a word describes, if it is still the one that has this number.
fn reopened(word: &str, options: &mut OpenOptions) -> Option<File> {
    let mut numbers = word.split(':').map(str::parse::<u64>);
    let (Some(Ok(descriptor)), Some(Ok(device)), Some(Ok(inode)), None) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    else {
        return None;
    };
    // Opened anew, so that it is ours to close, and does not wait.
    let pipe = options
        .custom_flags((OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32)
        .open(format!("/proc/self/fd/{descriptor}"))
        .ok()?;
    let found = pipe.metadata().ok()?;
    let is_it = found.file_type().is_fifo() && (found.dev(), found.ino()) == (device, inode);
    if is_it {
        // A child may import Corro as well, and fail for reasons that are not this process's.
        forks::close_on_exec(descriptor as i32);
    }
    is_it.then_some(pipe)
}

/// The way by which the agent asks this process for something.
#[derive(Debug)]
pub struct Requests {
    pipe: File,
}

impl Requests {
    /// The one that the environment describes. See [`Channel::from_env`].
    pub fn from_env() -> Option<Self> {
        Self::open(&config::REQUESTS.value()?)
    }

    fn open(word: &str) -> Option<Self> {
        reopened(word, OpenOptions::new().read(true)).map(|pipe| Self { pipe })
    }

    /// Whether something was asked since the last time. Never waits.
    pub fn take(&self) -> bool {
        let mut bytes = [0; 64];
        let mut asked = false;
        while matches!((&self.pipe).read(&mut bytes), Ok(1..)) {
            asked = true;
        }
        asked
    }
}

/// What [`config::STATEMENTS`] is to hold, in a process that inherits `pipe` under the number it has here.
pub fn describe(pipe: impl std::os::fd::AsFd) -> std::io::Result<String> {
    use std::os::fd::AsRawFd;
    let found = rustix::fs::fstat(&pipe)?;
    Ok(format!("{}:{}:{}", pipe.as_fd().as_raw_fd(), found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use corro_core::departure::MAX_STATEMENT;

    use super::*;

    #[test]
    fn what_is_stated_arrives() {
        let (mut from, to) = std::io::pipe().unwrap();
        let channel = Channel::open(&describe(&to).unwrap()).unwrap();
        let statements = [
            Statement::suffers(Rank::new(3), "lost rank 3"),
            Statement::Leaves { reason: corro_core::Reason::ShutDown { after: None }, because_of: None },
        ];
        for statement in &statements {
            channel.tell(statement);
        }
        drop((channel, to));
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        let (first, used) = codec::take::<Statement>(&bytes, MAX_STATEMENT).unwrap().unwrap();
        let (second, more) = codec::take::<Statement>(&bytes[used..], MAX_STATEMENT).unwrap().unwrap();
        assert_eq!(([first, second], used + more), (statements, bytes.len()));
    }

    #[test]
    fn programs_that_are_started_later_do_not_speak_for_this_one() {
        let (mut from, to) = std::io::pipe().unwrap();
        // As the agent hands it over: to be inherited.
        rustix::io::fcntl_setfd(&to, rustix::io::FdFlags::empty()).unwrap();
        let says = format!("echo it is me >&{}", to.as_raw_fd());
        // As C's `system`, which closes nothing.
        let speaks = || std::process::Command::new("sh").args(["-c", &says]).output().unwrap().status.success();
        assert!(speaks(), "the test itself");
        let channel = Channel::open(&describe(&to).unwrap()).unwrap();
        assert!(!speaks());
        channel.send(b"only this");
        drop((channel, to));
        let mut heard = String::new();
        from.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "it is me\nonly this");
    }

    #[test]
    fn what_is_asked_is_asked_once() {
        let (asked, mut asks) = std::io::pipe().unwrap();
        let requests = Requests::open(&describe(&asked).unwrap()).unwrap();
        assert!(!requests.take());
        asks.write_all(b"??").unwrap();
        assert!(requests.take() && !requests.take());
        drop(asks);
        assert!(!requests.take(), "who is gone asks nothing");
        assert!(Requests::open("7:1:2").is_none());
    }

    #[test]
    fn another_file_under_that_number_is_left_alone() {
        let (from, to) = std::io::pipe().unwrap();
        let word = describe(&to).unwrap();
        assert!(Channel::open(&word.replace(':', ":1")).is_none());
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(Channel::open(&describe(&other).unwrap()).is_none());
        for nonsense in ["", "7", "x:1:2", "1:2:3:4", "18446744073709551616:1:1", "4294967295:1:1"] {
            assert!(Channel::open(nonsense).is_none(), "{nonsense}");
        }
        drop((from, to));
        assert!(Channel::open(&word).is_none(), "it is closed");
    }

    #[test]
    fn a_victim_is_known_by_what_its_exception_repeats() {
        let (mut from, to) = std::io::pipe().unwrap();
        let report = EndReport::new();
        report.channel.set(Channel::open(&describe(&to).unwrap())).unwrap();
        report.suffers(&Error::Usage("its own fault".into()));
        report.suffers(&Error::peer_lost(Rank::new(3), "node7", "gone"));
        report.suffers(&Error::peer_lost(Rank::new(4), "node7", "a consequence"));
        let raised = || Reason::Raised(Exception::new("E", "", vec![]));
        report.leaves(raised(), &["wrapped".into(), "step 3: lost rank 3 on node7: gone".into()]);
        report.leaves(Reason::Ended { code: None, after: None }, &["another matter".into()]);
        assert_eq!(report.reason(), Some(raised()));
        report.begin();
        report.begin();
        assert_eq!(report.reason(), None);
        drop((report, to));
        let (mut bytes, mut statements, mut at) = (Vec::new(), Vec::new(), 0);
        from.read_to_end(&mut bytes).unwrap();
        while let Some((statement, used)) = codec::take::<Statement>(&bytes[at..], MAX_STATEMENT).unwrap() {
            statements.push(statement);
            at += used;
        }
        let wanted = [
            Statement::suffers(Rank::new(3), "lost rank 3 on node7: gone"),
            Statement::Leaves { reason: raised(), because_of: Some(Rank::new(3)) },
            Statement::Leaves { reason: Reason::Ended { code: None, after: None }, because_of: None },
            Statement::Returns,
        ];
        assert_eq!(statements, wanted);
    }

    #[test]
    fn a_full_or_broken_pipe_holds_nobody_up() {
        let (from, to) = std::io::pipe().unwrap();
        let channel = Channel::open(&describe(&to).unwrap()).unwrap();
        for _ in 0..100 {
            channel.tell(&Statement::suffers(Rank::new(1), &"x".repeat(5000)));
        }
        drop(from);
        channel.tell(&Statement::suffers(Rank::new(1), "nobody reads"));
    }
}
