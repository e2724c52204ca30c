//! Ranks as real processes: this very test program, started again to run one ignored test of it in a role.
//!
//! A test starts a [`Job`], tells its ranks to go on (a line to their standard input) and hears from them (lines that
//! begin with `@` on their standard output). Nothing waits longer than [`HANG_LIMIT`], and no rank outlives its job.
//!
//! The test that ranks run is named once, by itself: `Plan::new(rank_process, "role", 3)`, with
//! `#[test] #[ignore = "a rank that other tests start"] fn rank_process() { let Some(role) = role() else { return }; ... }`.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use corro_core::{Error, Result};
use corro_transport::secret::Secret;
use corro_transport::store;
use rustix::process::{Pid, Signal, kill_process};

use crate::wait_until;

/// How this program is told to be a rank.
fn rank_arguments(test: &str) -> [&str; 5] {
    ["--exact", test, "--nocapture", "--ignored", "--test-threads=1"]
}

/// What the test harness calls a test: the path of its function without that of its crate.
fn name_of<Test: Fn()>(_test: Test) -> &'static str {
    let path = std::any::type_name::<Test>();
    path.split_once("::").map_or(path, |(_, test)| test)
}

/// Names the role of a rank.
const ROLE: &str = "CORRO_TEST_ROLE";

/// Nothing in a test may take longer than this.
pub const HANG_LIMIT: Duration = Duration::from_secs(60);

/// What the environment says this process is; `None`: somebody ran the ignored tests by hand.
#[expect(clippy::disallowed_methods, reason = "a knob of the tests, not of corro")]
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Tells the test something.
pub fn say(text: impl std::fmt::Display) {
    let text = text.to_string().replace('\n', " ");
    println!("\n@{text}");
    std::io::stdout().flush().expect("flushing to the test");
}

/// Waits until the test says to go on.
pub fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("hearing from the test");
    assert_eq!(line, "go\n", "the test is gone");
}

/// Tells the test how something ended: `ok`, or the kind of error and its text.
pub fn say_result<T>(result: &Result<T>) {
    match result {
        Ok(_) => say("ok"),
        Err(error) => {
            let kind = match error {
                Error::PeerLost { rank, .. } => format!("lost {rank}"),
                Error::Mismatch(_) => "mismatch".into(),
                Error::Usage(_) => "usage".into(),
                Error::Io { .. } => "io".into(),
                Error::Unauthenticated(_) => "unauthenticated".into(),
                Error::Bug(_) => "bug".into(),
                _ => "other".into(),
            };
            say(format!("{kind}: {error}"));
        }
    }
}

/// In a rank: starts a process that runs `test`, inherits all of its environment but the role, and gives what it says.
pub fn start_child(test: impl Fn(), role: &str) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(rank_arguments(name_of(test))).env(ROLE, role).stdin(Stdio::null());
    let output = command.output().expect("starting a child");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix('@')).unwrap_or("nothing").to_owned()
}

/// Changes `command` so that what it starts has process numbers of its own, as in a container.
pub fn put_into_pid_namespace(command: &mut Command) {
    let mut inside = Command::new("unshare");
    inside
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(command.get_program())
        .args(command.get_args());
    inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    inside.stdin(Stdio::piped()).stdout(Stdio::piped());
    *command = inside;
}

/// Processes that belong together, and the store they meet at.
pub struct Job {
    ranks: Vec<Running>,
    /// Where they meet.
    pub store: store::Server,
    /// What they prove each other.
    pub secret: Secret,
}

struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

/// Changes what a rank is started with.
type Adapt<'a> = Box<dyn Fn(usize, &mut Command) + 'a>;

/// How to start a job: a role for all ranks, and what differs between them.
pub struct Plan<'a> {
    test: &'static str,
    role: &'a str,
    size: usize,
    tls: bool,
    adapt: Adapt<'a>,
    absent: Option<usize>,
}

impl<'a> Plan<'a> {
    /// `size` ranks that each run `test`, an ignored test of the calling program, and find `role` there.
    pub fn new(test: impl Fn(), role: &'a str, size: usize) -> Self {
        Self { test: name_of(test), role, size, tls: false, adapt: Box::new(|_, _| {}), absent: None }
    }

    /// Sets the environment of each rank.
    #[must_use]
    pub fn adapt(mut self, adapt: impl Fn(usize, &mut Command) + 'a) -> Self {
        self.adapt = Box::new(adapt);
        self
    }

    /// Gives each rank a host of its own, so that only TCP leads from one to the other.
    #[must_use]
    pub fn apart(self) -> Self {
        self.adapt(|rank, command| {
            command.env("CORRO_HOSTNAME", format!("host{rank}"));
        })
    }

    /// Leaves one rank out.
    #[must_use]
    pub fn without(mut self, rank: usize) -> Self {
        self.absent = Some(rank);
        self
    }

    /// Starts the processes. They run until their test ends, or the job is dropped.
    pub fn start(self) -> Job {
        let secret = Secret::random().expect("randomness");
        let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let store = store::Server::start(bind, &secret, self.tls, store::Limits::default()).expect("the store");
        let mut job = Job { ranks: Vec::new(), store, secret };
        for rank in (0..self.size).filter(|r| Some(*r) != self.absent) {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command
                .args(rank_arguments(self.test))
                .env(ROLE, self.role)
                .env("CORRO_RANK", rank.to_string())
                .env("CORRO_SIZE", self.size.to_string())
                .env("CORRO_RENDEZVOUS", job.store.address().to_string())
                .env("CORRO_SECRET", job.secret.to_hex())
                .env("CORRO_TIMEOUT", "30")
                .env("CORRO_CONNECT_TIMEOUT", "30")
                .env("CORRO_FLIGHT_RECORD_DIR", "none")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            (self.adapt)(rank, &mut command);
            let mut child = command.spawn().expect("starting a rank");
            let stdout = child.stdout.take().expect("its output");
            let (sender, lines) = mpsc::channel();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                    if let Some(text) = line.strip_prefix('@') {
                        let _ = sender.send(text.to_owned());
                    }
                }
            });
            job.ranks.push(Running { child, lines });
        }
        job
    }
}

impl Job {
    /// Whether nobody was started.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// How many processes.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The process id of the `i`-th process.
    pub fn pid(&self, i: usize) -> u32 {
        self.ranks[i].child.id()
    }

    /// What the `i`-th process says next.
    pub fn hear(&self, i: usize) -> String {
        self.ranks[i].lines.recv_timeout(HANG_LIMIT).unwrap_or_else(|e| panic!("process {i} says nothing: {e}"))
    }

    /// What all processes say next.
    pub fn hear_all(&self) -> Vec<String> {
        (0..self.len()).map(|i| self.hear(i)).collect()
    }

    /// Waits until these processes say exactly this.
    pub fn expect(&self, who: impl IntoIterator<Item = usize>, what: &str) {
        for i in who {
            assert_eq!(self.hear(i), what, "process {i}");
        }
    }

    /// Lets a process go on.
    pub fn go(&mut self, i: usize) {
        self.ranks[i].child.stdin.as_mut().expect("its input").write_all(b"go\n").expect("talking to a rank");
    }

    /// Lets all go on.
    pub fn go_all(&mut self) {
        (0..self.len()).for_each(|i| self.go(i));
    }

    /// Sends a signal.
    pub fn signal(&self, i: usize, signal: Signal) {
        let pid = Pid::from_raw(self.pid(i).cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("sending a signal");
    }

    /// Waits until a process has ended, and says whether it was content.
    pub fn ended_well(&mut self, i: usize) -> bool {
        let (child, mut ended) = (&mut self.ranks[i].child, None);
        wait_until(&format!("process {i} ends"), HANG_LIMIT, || {
            ended = child.try_wait().expect("waiting for a rank");
            ended.is_some()
        });
        ended.is_some_and(|status| status.success())
    }

    /// Waits until all have ended, all of them content.
    pub fn all_end_well(&mut self) {
        for i in 0..self.len() {
            assert!(self.ended_well(i), "process {i} failed");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}
