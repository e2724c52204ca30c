//! Messages between one process and others that know its key, over TLS: how `corro.spark` talks with the tasks of a job.
//!
//! The connections are `corro_transport::messages`. Here they get a Python face that waits, with a limit and without the
//! GIL, and queues that are bounded: whoever has more to say than the other side takes waits.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error};
use corro_transport::Broken;
use corro_transport::messages::{self, ConnectionId, MessageEvent, Waker};
use corro_transport::secret::{SECRET_BYTES, Secret};
use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::without_gil::outside;

/// The longest message. Whoever has more to say cuts it.
const MOST: usize = 1 << 20;
/// What the encoding adds to a message, and then some.
const ENVELOPE: usize = 16;
/// How many messages may wait to be taken by Python, or to be sent.
const QUEUE: usize = 64;
/// How often a thread that waits for the other side of a queue looks whether that is still wanted.
const LOOK: Duration = Duration::from_millis(5);
/// The longest sleep of a thread that has nothing to do.
const SLEEP: Duration = Duration::from_secs(1);
/// How long the last words of a client may take to be on their way.
const GOODBYE: Duration = Duration::from_secs(10);

/// What a server tells Python: which connection, what happened (`came`, `said`, `gone`), and what was said.
type Told = (ConnectionId, &'static str, Option<Py<PyBytes>>);

/// Takes connections of those who know the key.
#[pyclass(module = "corro._native", frozen)]
pub(crate) struct MessageServer {
    server: Mutex<Option<messages::MessageServer>>,
    heard: Mutex<Receiver<MessageEvent<Vec<u8>>>>,
    closing: Arc<AtomicBool>,
    address: SocketAddr,
}

#[pymethods]
impl MessageServer {
    #[new]
    fn new(py: Python<'_>, host: &str, key: &[u8]) -> PyResult<Self> {
        let (address, secret) = (socket_address(host, 0)?, secret(key)?);
        let (sender, heard) = sync_channel(QUEUE);
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closing);
        let hear = move |event| pass_on(&sender, event, &is_closing);
        let opened = outside(py, || {
            Ok(messages::MessageServer::open("corro.spark", address, &secret, true, MOST + ENVELOPE, hear))
        })?;
        let server = opened.map_err(|error| broken(&error))?;
        let address = server.address();
        Ok(Self { server: Mutex::new(Some(server)), heard: Mutex::new(heard), closing, address })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// The next thing that happens; `None` if nothing does in that time, or the server is closed.
    fn next(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<Told>> {
        let limit = duration(seconds)?;
        let event = outside(py, || Ok(locked(&self.heard).recv_timeout(limit).ok()))?;
        Ok(event.map(|event| match event {
            MessageEvent::Connected(id) => (id, "came", None),
            MessageEvent::Received(id, bytes) => (id, "said", Some(PyBytes::new(py, &bytes).unbind())),
            MessageEvent::Disconnected(id, why) => (id, "gone", Some(PyBytes::new(py, why.as_bytes()).unbind())),
        }))
    }

    /// Tells a connection something. One that is gone hears nothing.
    fn tell(&self, py: Python<'_>, connection: ConnectionId, message: &[u8]) -> PyResult<()> {
        check_length(message)?;
        outside(py, || match &*locked(&self.server) {
            Some(server) => server.tell(connection, &message),
            None => Ok(()),
        })
    }

    /// Ends a connection, of which nothing is heard any more.
    fn end(&self, connection: ConnectionId) {
        if let Some(server) = &*locked(&self.server) {
            server.close(connection);
        }
    }

    /// Ends all connections, after what they were told is on its way.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.closing.store(true, Ordering::Relaxed);
        outside(py, || {
            let server = locked(&self.server).take();
            drop(server);
            Ok(())
        })
    }
}

/// Waits while Python has not taken enough of what was heard; for nobody, once the server closes.
fn pass_on<T>(queue: &SyncSender<T>, mut event: T, closing: &AtomicBool) {
    while !closing.load(Ordering::Relaxed) {
        match queue.try_send(event) {
            Err(TrySendError::Full(back)) => {
                event = back;
                std::thread::sleep(LOOK);
            }
            Ok(()) | Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

/// A connection to a server. One thread may say something while another hears.
#[pyclass(module = "corro._native", frozen)]
pub(crate) struct MessageClient {
    orders: Mutex<Option<SyncSender<Vec<u8>>>>,
    heard: Mutex<Receiver<Result<Vec<u8>, Broken>>>,
    closing: Arc<AtomicBool>,
    waker: Waker,
    address: SocketAddr,
}

#[pymethods]
impl MessageClient {
    /// Connects to the first of some addresses at which somebody knows the key; `ConnectionError` after so many seconds.
    #[new]
    fn new(py: Python<'_>, addresses: Vec<(String, u16)>, key: &[u8], seconds: f64) -> PyResult<Self> {
        let places = addresses.into_iter().map(|(host, port)| socket_address(&host, port)).collect::<PyResult<Vec<_>>>()?;
        let (secret, limit) = (secret(key)?, duration(seconds)?);
        let opened = outside(py, || {
            let limit = Deadline::after(limit);
            Ok(messages::MessageClient::connect("corro.spark at the driver", &places, &secret, true, limit)
                .and_then(|client| Ok((client, Waker::new()?))))
        })?;
        let (client, waker) = opened.map_err(|error| broken(&error))?;
        let address = client.address();
        let (orders, to_say) = sync_channel(QUEUE);
        let (hears, heard) = sync_channel(QUEUE);
        let closing = Arc::new(AtomicBool::new(false));
        let talk = Talk { client, to_say, hears, closing: Arc::clone(&closing), waker: waker.clone() };
        std::thread::Builder::new()
            .name("corro-spark".into())
            .spawn(move || talk.run())
            .map_err(|e| broken(&Error::io("starting a thread for messages", e)))?;
        Ok(Self { orders: Mutex::new(Some(orders)), heard: Mutex::new(heard), closing, waker, address })
    }

    /// Where the server is.
    #[getter]
    fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// Says something, and waits while too much is on its way already.
    fn say(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        check_length(message)?;
        let orders = locked(&self.orders).clone();
        let sent = outside(py, || {
            let sent = orders.is_some_and(|orders| orders.send(message.to_vec()).is_ok());
            self.waker.ring();
            Ok(sent)
        })?;
        if sent { Ok(()) } else { Err(PyConnectionError::new_err("the connection is closed")) }
    }

    /// What comes next; `None` if nothing does in that time. `ConnectionError` with the reason once the server is gone.
    fn hear(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<Py<PyBytes>>> {
        let limit = duration(seconds)?;
        match outside(py, || Ok(locked(&self.heard).recv_timeout(limit)))? {
            Ok(Ok(bytes)) => Ok(Some(PyBytes::new(py, &bytes).unbind())),
            Ok(Err(Broken(why))) => Err(PyConnectionError::new_err(why)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(PyConnectionError::new_err("the connection is closed")),
        }
    }

    /// Ends the connection, after what was said is on its way; who hears just now is told within a second.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        locked(&self.orders).take();
        self.waker.ring();
    }
}

impl Drop for MessageClient {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that owns a client's connection.
struct Talk {
    client: messages::MessageClient,
    to_say: Receiver<Vec<u8>>,
    hears: SyncSender<Result<Vec<u8>, Broken>>,
    closing: Arc<AtomicBool>,
    waker: Waker,
}

impl Talk {
    fn run(mut self) {
        let mut last_said = None;
        loop {
            self.waker.silence();
            let more = match self.speak() {
                Ok(more) => more,
                Err(broken) => return self.pass_on(Err(broken)),
            };
            match self.client.turn(MOST + ENVELOPE) {
                Ok(messages) => messages.into_iter().for_each(|message| self.pass_on(Ok(message))),
                Err(broken) => return self.pass_on(Err(broken)),
            }
            if !more {
                let since: &mut Instant = last_said.get_or_insert_with(Instant::now);
                if !self.client.is_sending() || since.elapsed() > GOODBYE {
                    return;
                }
            }
            if self.client.wait(self.waker.as_fd(), SLEEP).is_err() {
                return;
            }
        }
    }

    /// Says what there is to say, unless the last of it still waits to be sent. False when nothing will follow.
    fn speak(&mut self) -> Result<bool, Broken> {
        while !self.client.is_sending() {
            match self.to_say.try_recv() {
                Ok(message) => self.client.say(&message)?,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn pass_on(&self, heard: Result<Vec<u8>, Broken>) {
        pass_on(&self.hears, heard, &self.closing);
    }
}

fn secret(key: &[u8]) -> PyResult<Secret> {
    let bytes: [u8; SECRET_BYTES] =
        key.try_into().map_err(|_| PyValueError::new_err(format!("a key has {SECRET_BYTES} bytes")))?;
    Ok(Secret::from_bytes(bytes))
}

fn socket_address(host: &str, port: u16) -> PyResult<SocketAddr> {
    let ip: IpAddr = host.parse().map_err(|e| PyValueError::new_err(format!("{host:?} is no address: {e}")))?;
    Ok(SocketAddr::new(ip, port))
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| PyValueError::new_err(format!("{seconds} seconds: {e}")))
}

fn check_length(message: &[u8]) -> PyResult<()> {
    if message.len() <= MOST {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("a message of {} bytes; {MOST} are the most.", message.len())))
}

fn broken(error: &Error) -> PyErr {
    PyConnectionError::new_err(error.to_string())
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
