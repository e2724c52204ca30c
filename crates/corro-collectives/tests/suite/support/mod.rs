//! Ranks as threads over any transport.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use corro_collectives::{Error, Group, Result};
use corro_core::{Deadline, Rank};
pub(crate) use corro_testing::model::{self, letter, numbers, sample};
use corro_transport::secret::Secret;
use corro_transport::{Fabric, Rendezvous, Settings};

/// What lies between the ranks of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Threads of one host.
    Threads,
    /// Threads that pretend to be on several hosts with unequal numbers of ranks.
    ThreadsOnHosts,
    /// Shared memory that ranks meet at, as processes do.
    Shm,
    /// Each rank a host of its own.
    Tcp,
    Tls,
    /// TCP between hosts, shared memory inside.
    TcpAndShm,
}

/// Nothing in a test may take longer than this.
const HANG_LIMIT: Duration = Duration::from_secs(240);

pub(crate) fn settings() -> Settings {
    Settings { timeout: Duration::from_secs(30), area: 1 << 20, ..Settings::default() }
}

/// Three hosts with 3, 2 and 1 ranks, over and over; with few ranks the first hosts get them.
fn host_of(rank: usize) -> usize {
    [0, 1, 0, 1, 2, 0][rank % 6] + 3 * (rank / 12)
}

/// Runs `act` on every rank of a world of `n`, each with its group. Panics if any rank does, or after the hang limit.
pub(crate) fn on_ranks(transport: Transport, n: usize, act: impl Fn(&mut Group) + Send + Sync + 'static) {
    with_fabrics(transport, n, &settings(), move |fabric| {
        let mut group = Group::world(fabric).expect("opening the world");
        act(&mut group);
        // Nobody leaves before all are done: leaving early is what lost peers look like.
        group.force(None);
        group.barrier().expect("the last barrier");
    });
}

pub(crate) fn with_fabrics(
    transport: Transport,
    n: usize,
    settings: &Settings,
    act: impl Fn(&Arc<Fabric>) + Send + Sync + 'static,
) {
    let act = Arc::new(act);
    let (done, finished) = mpsc::channel();
    let threads = start(transport, n, settings);
    let handles: Vec<_> = threads
        .into_iter()
        .map(|make| {
            let (act, done) = (Arc::clone(&act), done.clone());
            std::thread::spawn(move || {
                let fabric = make();
                act(&fabric);
                let _ = done.send(fabric.rank());
            })
        })
        .collect();
    drop(done);
    for _ in 0..n {
        match finished.recv_timeout(HANG_LIMIT) {
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{transport:?} with {n} ranks hangs"),
        }
    }
    for handle in handles {
        if let Err(panic) = handle.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

type MakeFabric = Box<dyn FnOnce() -> Arc<Fabric> + Send>;

fn start(transport: Transport, n: usize, settings: &Settings) -> Vec<MakeFabric> {
    let hosts: Vec<usize> = match transport {
        Transport::Threads => vec![0; n],
        _ => (0..n).map(host_of).collect(),
    };
    if matches!(transport, Transport::Threads | Transport::ThreadsOnHosts) {
        let fabrics = Fabric::threads(&hosts, settings);
        return fabrics.into_iter().map(|f| Box::new(move || f) as MakeFabric).collect();
    }
    let secret = Secret::random().expect("randomness");
    let board = Arc::new(Board::default());
    (0..n)
        .map(|rank| {
            let mut settings = settings.clone();
            settings.tls = transport == Transport::Tls;
            settings.host = Some(match transport {
                Transport::Shm => "host0".to_owned(),
                Transport::TcpAndShm => format!("host{}", hosts[rank]),
                _ => format!("host{rank}"),
            });
            let (secret, board) = (secret.clone(), Arc::clone(&board));
            Box::new(move || {
                Fabric::join(Rank::new(rank), n, &secret, &mut BoardClient(board), settings).expect("joining the job")
            }) as MakeFabric
        })
        .collect()
}

/// A rendezvous inside this process.
#[derive(Default)]
struct Board {
    notes: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

struct BoardClient(Arc<Board>);

impl Rendezvous for BoardClient {
    fn publish(&mut self, key: &str, value: Vec<u8>, _: Deadline) -> Result<()> {
        self.0.notes.lock().unwrap().insert(key.to_owned(), value);
        self.0.changed.notify_all();
        Ok(())
    }

    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut notes = self.0.notes.lock().unwrap();
        loop {
            if let Some(found) = keys.iter().map(|k| notes.get(k).cloned()).collect() {
                return Ok(found);
            }
            let Some(left) = deadline.left().filter(|l| !l.is_zero()) else {
                return Err(Error::Usage("the others did not come".into()));
            };
            notes = self.0.changed.wait_timeout(notes, left).unwrap().0;
        }
    }
}
