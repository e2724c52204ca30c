//! The driver inside a process of the job, where a scheduler starts processes and there is no launcher.
//!
//! Owns the message server at the rendezvous address and the machine behind it. It starts and ends nobody: a worker that is lost is
//! forgotten, and whoever the scheduler starts in its place comes by itself. When this very process is lost, the one
//! started in its place holds a new machine, to which the others come back and tell what they were.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use corro_transport::messages::{MessageEvent, MessageServer};
use corro_transport::secret::Secret;

use crate::machine::{Decision, Input, Machine, Rules};
use crate::message::{DRIVER, MAX_TO_DRIVER, ToDriver};

/// How often the machine looks at the clock when nothing happens.
const TICK: Duration = Duration::from_millis(100);

/// A driver that runs in this process. Stops when dropped.
pub struct EmbeddedDriver {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    living: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedDriver {
    /// Serves at `port`, on all addresses of this host.
    pub fn start(port: u16, secret: &Secret, tls: bool, rules: Rules) -> Result<Self> {
        let (sender, heard) = channel();
        let open = |bind: SocketAddr| {
            let sender = sender.clone();
            MessageServer::open::<ToDriver>(DRIVER, bind, secret, tls, MAX_TO_DRIVER, move |heard| {
                drop(sender.send(heard));
            })
        };
        let messages = open(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            // A system without IPv6.
            .or_else(|_| open(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?;
        let address = messages.address();
        let (stop, living) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let serve = {
            let (stop, living) = (Arc::clone(&stop), Arc::clone(&living));
            move || serve(&messages, &heard, rules, &stop, &living)
        };
        let thread = std::thread::Builder::new()
            .name("corro-driver".into())
            .spawn(serve)
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Self { address, stop, living, thread: Some(thread) })
    }

    /// Where this process itself reaches it.
    pub fn own_addresses(&self) -> Vec<SocketAddr> {
        let port = self.address.port();
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))]
    }

    /// Waits until all workers have left, but no longer than `limit`: they may still need the driver.
    pub fn wait_for_the_others(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.living.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for EmbeddedDriver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    messages: &MessageServer,
    heard: &Receiver<MessageEvent<ToDriver>>,
    rules: Rules,
    stop: &AtomicBool,
    living: &AtomicUsize,
) {
    let begin = Instant::now();
    let mut machine = Machine::new(rules, begin.elapsed());
    while !stop.load(Ordering::Acquire) {
        let input = match heard.recv_timeout(TICK) {
            Ok(MessageEvent::Connected(_)) => continue,
            Ok(MessageEvent::Received(link, message)) => Input::Said(link, message),
            Ok(MessageEvent::Disconnected(link, why)) => Input::Lost(link, why),
            Err(RecvTimeoutError::Timeout) => Input::Tick,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for output in machine.handle(input, begin.elapsed()) {
            match output {
                Decision::Tell(link, message) => {
                    if let Err(error) = messages.tell(link, &message) {
                        tracing::error!(%error, "the driver of this elastic job can't speak");
                    }
                }
                Decision::Close(link) => messages.close(link),
                Decision::Say(text) => tracing::warn!("elastic: {text}"),
                Decision::Formed { epoch, members, why } => {
                    tracing::info!(epoch, size = members.len(), why, "elastic: a new epoch");
                }
                Decision::Finished(verdict) => tracing::info!(verdict.success, verdict.why, "elastic: the job is over"),
                // Nobody is ours to start or to end.
                Decision::Start { .. } | Decision::Kill { .. } => {}
            }
        }
        living.store(machine.living(), Ordering::Release);
    }
}

impl std::fmt::Debug for EmbeddedDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedDriver").field("address", &self.address).finish_non_exhaustive()
    }
}
