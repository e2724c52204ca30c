//! The launcher's end of one agent: its process, the thread that reads its reports and shows what ranks write, and the
//! thread that writes orders to it. Neither can hold up the launcher itself.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Error, Result, codec};

use crate::agent::message::{Inbox, MAX_REPORT, Order, Report};
use crate::event::Event;
use crate::output::Output;
use crate::process_tree;
use crate::watch::Watch;

/// How much of an agent's (or ssh's) standard error is kept for error texts.
const LAST_WORDS_BYTES: usize = 8 * 1024;

/// Output, shared by the threads that read from agents.
pub(crate) type SharedOutput = Arc<Mutex<Output>>;

/// Where an agent is.
enum Whereabouts {
    /// A child of ours is, or leads to, its process.
    Child(Child),
    /// It has joined by itself, and is at the other end of this.
    Joined(UnixStream),
}

/// An agent that was started, or has joined.
pub(crate) struct AgentProcess {
    whereabouts: Whereabouts,
    /// `None` once its standard input is closed.
    orders: Option<Sender<Vec<u8>>>,
    last_words: Arc<Mutex<Vec<u8>>>,
    /// Set while its reader shows something, and so does not listen.
    showing: Arc<AtomicBool>,
    /// The reader of its standard error, then that of its reports.
    readers: Vec<JoinHandle<()>>,
}

impl AgentProcess {
    /// Starts an agent as `command` says. It is `host` in all its events.
    pub(crate) fn start(
        mut command: Command,
        host: usize,
        events: &Sender<Event>,
        output: &SharedOutput,
        watch: Watch,
    ) -> Result<Self> {
        let what = command.get_program().to_string_lossy().into_owned();
        let failed = |e: std::io::Error| Error::io(format!("starting {what}"), e);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Away from the terminal's Ctrl-C: the launcher decides what that means.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::Bug("an agent without pipes".into()));
        };
        Self::over(Whereabouts::Child(child), (stdin, stdout, stderr), host, events, output, watch)
    }

    /// The agent at the other end of `connection`. It is `host` in all its events.
    pub(crate) fn joined(
        connection: UnixStream,
        host: usize,
        events: &Sender<Event>,
        output: &SharedOutput,
        watch: Watch,
    ) -> Result<Self> {
        let again = || connection.try_clone().map_err(|e| Error::io("sharing the connection to an agent", e));
        // What it has to say on its standard error is in its own log.
        let pipes = (LastWriter(again()?), again()?, std::io::empty());
        Self::over(Whereabouts::Joined(connection), pipes, host, events, output, watch)
    }

    fn over(
        whereabouts: Whereabouts,
        (stdin, stdout, stderr): (impl Write + Send + 'static, impl Read + Send + 'static, impl Read + Send + 'static),
        host: usize,
        events: &Sender<Event>,
        output: &SharedOutput,
        watch: Watch,
    ) -> Result<Self> {
        let (orders, to_write) = channel();
        let last_words = Arc::new(Mutex::new(Vec::new()));
        let showing = Arc::new(AtomicBool::new(false));
        thread("corro-orders", move || write_orders(stdin, &to_write))?;
        let readers = vec![
            thread("corro-last-words", {
                let last_words = Arc::clone(&last_words);
                move || keep_last_words(stderr, &last_words)
            })?,
            thread("corro-reports", {
                let (events, output, showing) = (events.clone(), Arc::clone(output), Arc::clone(&showing));
                let reader = Reader { host, events, output, showing, watch };
                move || reader.read(stdout)
            })?,
        ];
        Ok(Self { whereabouts, orders: Some(orders), last_words, showing, readers })
    }

    /// Sends an order. An agent that is gone tells so by its silence, not here.
    pub(crate) fn order(&self, order: &Order) -> Result<()> {
        if let Some(orders) = &self.orders {
            let _ = orders.send(codec::encode(order)?);
        }
        Ok(())
    }

    /// The end of what it, or ssh in its place, wrote to standard error. Waits for all of it, but no longer than `limit`.
    pub(crate) fn last_words(&self, limit: Duration) -> String {
        let until = Instant::now() + limit;
        while self.readers.first().is_some_and(|r| !r.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Whether what it said is being shown right now, so that nothing more is heard of it.
    pub(crate) fn is_showing(&self) -> bool {
        self.showing.load(Ordering::Relaxed)
    }

    /// How it ended, if it is a process of ours and ends within `limit`.
    pub(crate) fn status(&mut self, limit: Duration) -> Option<ExitStatus> {
        let Whereabouts::Child(child) = &mut self.whereabouts else { return None };
        let until = Instant::now() + limit;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Lets go: the agent, should it still be there, ends everything it has started. One that does not go within `limit`
    /// is killed, and all that descends from it.
    pub(crate) fn release(&mut self, limit: Duration) {
        self.orders = None;
        let ended = self.status(limit).is_some();
        match &mut self.whereabouts {
            Whereabouts::Child(child) if !ended => {
                // Not only itself: a remote shell has children of its own, and an agent that is stopped has ranks.
                if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                    process_tree::kill_tree(pid);
                }
                let _ = child.wait();
            }
            Whereabouts::Child(_) => {}
            Whereabouts::Joined(connection) => {
                let until = Instant::now() + limit;
                while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
        let until = Instant::now() + Duration::from_millis(200);
        for reader in self.readers.drain(..) {
            // A reader may be stuck at an output that nobody reads; that must not keep the launcher.
            while !reader.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if reader.is_finished() {
                let _ = reader.join();
            }
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.release(Duration::ZERO);
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body).map_err(|e| Error::io("starting a thread", e))
}

/// An end of a connection at which nothing is said any more once it is dropped: the other side hears that.
struct LastWriter(UnixStream);

impl Write for LastWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for LastWriter {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

fn write_orders(mut stdin: impl Write, orders: &Receiver<Vec<u8>>) {
    for bytes in orders {
        if stdin.write_all(&bytes).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn keep_last_words(mut stderr: impl Read, last_words: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut bytes) {
        let mut kept = last_words.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&bytes[..count]);
        let excess = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..excess);
    }
}

/// What the thread that reads from an agent holds.
struct Reader {
    host: usize,
    events: Sender<Event>,
    output: SharedOutput,
    showing: Arc<AtomicBool>,
    watch: Watch,
}

impl Reader {
    fn read(&self, mut stdout: impl Read) {
        let mut inbox = Inbox::default();
        let mut greeted = false;
        let mut bytes = vec![0; 64 * 1024];
        let reason = loop {
            match stdout.read(&mut bytes) {
                Ok(0) if greeted => break None,
                Ok(0) => break Some(inbox.noise()).filter(|n| !n.is_empty()).map(|n| format!("it said {n:?}")),
                Ok(count) => inbox.receive(&bytes[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => break Some(e.to_string()),
            }
            if !greeted {
                match inbox.find_greeting() {
                    Ok(found) => greeted = found,
                    Err(reason) => break Some(reason),
                }
            }
            if greeted && let Err(reason) = self.take(&mut inbox) {
                break Some(reason.to_string());
            }
        };
        let _ = self.events.send(Event::Silent(self.host, reason));
    }

    fn take(&self, inbox: &mut Inbox) -> Result<()> {
        while let Some(report) = inbox.next::<Report>(MAX_REPORT)? {
            // Before it is shown, which may wait for whoever reads the output.
            self.watch.note(&report);
            self.showing.store(true, Ordering::Relaxed);
            let shown = match &report {
                Report::Output { process, error, bytes } => lock(&self.output).put(*process, *error, bytes),
                Report::Exited { process, .. } => lock(&self.output).finish(*process),
                Report::Logged(line) => {
                    corro_log::pass_on(line);
                    Ok(())
                }
                _ => Ok(()),
            };
            self.showing.store(false, Ordering::Relaxed);
            if shown.is_err() {
                let _ = self.events.send(Event::OutputClosed);
            }
            let event = match report {
                Report::Output { .. }
                | Report::Told { .. }
                | Report::Stacks { .. }
                | Report::Logged(_)
                | Report::Beat => Event::Alive(self.host),
                report => Event::Report(self.host, report),
            };
            let _ = self.events.send(event);
        }
        Ok(())
    }
}

/// As [`lock`], but not for long: who holds it may be stuck at an output that nobody reads.
pub(crate) fn lock_soon(output: &SharedOutput) -> Option<std::sync::MutexGuard<'_, Output>> {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        match output.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// A panic of another thread is no reason not to show the rest.
fn lock(output: &SharedOutput) -> std::sync::MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}
