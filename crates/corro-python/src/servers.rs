//! Parameter servers, and stores of parameters at them.
//!
//! `python/corro/ps` decides who starts servers, and how workers learn where they are; here are the two ends.

#![expect(unsafe_code, reason = "arrays arrive as addresses")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corro_core::{DType, Error, Result};
use corro_server::client::{self, Client, ServerAddress, StoreConfig};
use corro_server::server::Server;
use corro_server::session::KeySpec;
use corro_server::{Code, Consistency, Optimizer, Rule, WorkerId, launched};
use corro_transport::secret::Secret;
use corro_transport::{Bind, Settings};
use pyo3::prelude::*;

use crate::arrays::{Memory, numbers, readable, writable};
use crate::error::exception;
use crate::running::engine;
use crate::without_gil::outside;

/// How long a server waits for the last workers to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// What servers of this job and their workers prove to each other: of the launcher's if it has started them, else of the
/// ranks'.
fn secret(py: Python<'_>, launched: bool) -> PyResult<Secret> {
    if !launched {
        return Ok(Secret::from_bytes(engine(py)?.object_key().derive("parameter servers")));
    }
    launched::secret().map_err(|error| exception(py, &error))
}

/// Whether the servers that the launcher has started have hosts of their own, and where each is.
#[pyfunction]
pub(crate) fn launched_servers(py: Python<'_>) -> PyResult<(bool, Vec<Vec<String>>)> {
    outside(py, || {
        let text = |addresses: Vec<SocketAddr>| addresses.iter().map(ToString::to_string).collect();
        let found = launched::servers()?.map(|found| (found.apart, found.addresses.into_iter().map(text).collect()));
        Ok(found.unwrap_or_default())
    })
}

/// The shares of one spare host and of one worker host in the parameters.
#[pyfunction]
pub(crate) fn server_shares(worker_hosts: usize, spare_hosts: usize) -> (f64, f64) {
    corro_server::placement::shares(worker_hosts, spare_hosts)
}

/// A server in a thread of this process.
#[pyclass(frozen)]
pub(crate) struct ParameterServer {
    server: Mutex<Option<Server>>,
    addresses: Vec<String>,
}

#[pymethods]
impl ParameterServer {
    #[new]
    fn new(py: Python<'_>, one_host: bool, launched: bool) -> PyResult<Self> {
        let secret = secret(py, launched)?;
        let server = outside(py, || {
            let settings = Settings::from_env()?;
            Server::start_at(&Bind::reachable(one_host, settings.interfaces.as_deref())?, &secret, settings.tls)
        })?;
        let addresses = server.addresses().iter().map(ToString::to_string).collect();
        Ok(Self { server: Mutex::new(Some(server)), addresses })
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Stops it; with `together`, when all workers have left, but soon in any case.
    fn stop(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        outside(py, move || {
            if let Some(server) = server {
                server.finish(if together { FAREWELL } else { Duration::ZERO });
            }
            Ok(())
        })
    }
}

thread_local! {
    /// What a signal handler has raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Asks Python whether a signal handler has raised, as Ctrl-C's does. Called outside, while a client waits.
fn interrupted() -> bool {
    Python::attach(|py| {
        let raised = py.check_signals().err();
        let is = raised.is_some();
        RAISED.set(raised);
        is
    })
}

/// A value that was asked for.
#[pyclass(frozen)]
pub(crate) struct Pulled(client::Pull);

/// Rows that were asked for.
#[pyclass(frozen)]
pub(crate) struct PulledRows(client::PullRows);

/// A worker's end of a store.
#[pyclass(frozen)]
pub(crate) struct StoreClient(Mutex<Option<Arc<Client>>>);

impl StoreClient {
    /// Does something with the client, outside; a signal that came meanwhile goes first.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Client) -> Result<T> + Send) -> PyResult<T> {
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let client = client.ok_or_else(|| exception(py, &Error::Usage("this store is closed".into())))?;
        let outcome = outside(py, || work(&client));
        match RAISED.with(RefCell::take) {
            Some(raised) => Err(raised),
            None => outcome,
        }
    }
}

#[pymethods]
impl StoreClient {
    #[new]
    #[expect(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "extracted from what Python says")]
    fn new(
        py: Python<'_>,
        store: u64,
        me: u32,
        workers: u32,
        kind: &str,
        bound: u64,
        servers: Vec<(Vec<String>, f64)>,
        launched: bool,
    ) -> PyResult<Self> {
        let secret = secret(py, launched)?;
        let consistency = match kind {
            "bsp" => Consistency::Bsp,
            "ssp" => Consistency::Ssp { bound },
            _ => Consistency::Async { staleness_lr: bound > 0 },
        };
        let client = outside(py, || {
            let settings = Settings::from_env()?;
            let address = |text: &String| {
                text.parse().map_err(|e| Error::Usage(format!("{text:?} is not the address of a server: {e}")))
            };
            let servers = servers.iter().map(|(addresses, share)| {
                let addresses = addresses.iter().map(address).collect::<Result<Vec<SocketAddr>>>()?;
                Ok(ServerAddress { addresses, share: *share })
            });
            Client::connect(StoreConfig {
                store,
                me: WorkerId(me),
                workers,
                consistency,
                servers: servers.collect::<Result<_>>()?,
                secret,
                tls: settings.tls,
                timeout: settings.timeout,
                connect_timeout: settings.connect_timeout,
                interrupted,
            })
        })?;
        Ok(Self(Mutex::new(Some(Arc::new(client)))))
    }

    /// Names a key; `shape` is (rows, width), `memory` the first value.
    #[expect(clippy::too_many_arguments, reason = "called by one line of Python")]
    fn init(
        &self,
        py: Python<'_>,
        name: String,
        dtype: u8,
        shape: (u64, u32),
        rule: &str,
        striped: bool,
        memory: Option<Memory>,
        compression: Option<&str>,
    ) -> PyResult<()> {
        let dtype = DType::from_id(dtype).ok_or_else(|| exception(py, &Error::Usage("an unknown dtype".into())))?;
        let rule = match rule {
            "sum" => Rule::Sum,
            "average" => Rule::Average,
            "add" => Rule::Add,
            _ => Rule::Update,
        };
        let code = compression.map(|text| Code::of(&text.parse()?)).transpose().map_err(|e| exception(py, &e))?;
        let spec = KeySpec { name, dtype, rows: shape.0, width: shape.1, rule, striped, code };
        // SAFETY: corro/ps holds the array until this returns.
        let value = memory.map(|memory| unsafe { readable(memory) });
        self.with(py, |client| client.init(spec, value))
    }

    fn push(&self, py: Python<'_>, name: &str, memory: Memory, priority: i64, rate: Option<f32>) -> PyResult<()> {
        // SAFETY: corro/ps holds the array until this returns; its bytes are copied.
        let value = unsafe { readable(memory) };
        self.with(py, |client| client.push(name, value, priority, rate))
    }

    fn push_rows(
        &self,
        py: Python<'_>,
        name: &str,
        rows: Memory,
        elements: Memory,
        priority: i64,
        rate: Option<f32>,
    ) -> PyResult<()> {
        // SAFETY: corro/ps holds both arrays until this returns; their bytes are copied.
        let (rows, elements) = unsafe { (readable(rows), readable(elements)) };
        self.with(py, |client| client.push_rows(name, &numbers(rows), elements, priority, rate))
    }

    fn pull(&self, py: Python<'_>, name: &str, priority: i64) -> PyResult<Pulled> {
        self.with(py, |client| client.pull(name, priority).map(Pulled))
    }

    /// Waits for a value; gives how many workers are in it.
    fn value(&self, py: Python<'_>, pull: &Pulled, into: Memory) -> PyResult<u32> {
        // SAFETY: corro/ps holds the array until this returns, and it is the caller's own to be written to.
        let into = unsafe { writable(into) };
        self.with(py, |client| client.value(&pull.0, into))
    }

    fn has_come(&self, py: Python<'_>, pull: &Pulled) -> PyResult<bool> {
        self.with(py, |client| Ok(client.has_come(&pull.0)))
    }

    fn pull_rows(&self, py: Python<'_>, name: &str, rows: Memory, priority: i64) -> PyResult<PulledRows> {
        // SAFETY: corro/ps holds the array until this returns; its bytes are copied.
        let rows = unsafe { readable(rows) };
        self.with(py, |client| client.pull_rows(name, &numbers(rows), priority).map(PulledRows))
    }

    fn rows(&self, py: Python<'_>, pull: &PulledRows, into: Memory) -> PyResult<()> {
        // SAFETY: corro/ps holds the array until this returns, and it is the caller's own to be written to.
        let into = unsafe { writable(into) };
        self.with(py, |client| client.rows(&pull.0, into))
    }

    fn clock(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::clock)
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::barrier)
    }

    #[expect(clippy::needless_pass_by_value, reason = "extracted from a Python list")]
    fn set_optimizer(&self, py: Python<'_>, name: &str, numbers: Vec<(String, f64)>) -> PyResult<()> {
        self.with(py, |client| client.set_optimizer(Optimizer::named(name, &numbers)?))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Vec<Vec<(String, u64)>>> {
        self.with(py, Client::stats)
    }

    /// Bytes that came from and went to servers, and which servers are lost.
    fn traffic(&self, py: Python<'_>) -> PyResult<(u64, u64, Vec<u32>)> {
        self.with(py, |client| {
            let (came, went) = client.bytes_moved();
            Ok((came, went, client.lost().into_iter().map(|server| server.0).collect()))
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "extracted from a Python path")]
    fn save(&self, py: Python<'_>, file: PathBuf) -> PyResult<()> {
        self.with(py, |client| client.save(&file))
    }

    #[expect(clippy::needless_pass_by_value, reason = "extracted from a Python path")]
    fn load(&self, py: Python<'_>, file: PathBuf) -> PyResult<()> {
        self.with(py, |client| client.load(&file))
    }

    /// Says goodbye; with `together`, when all do.
    fn close(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        let outcome = if together { self.with(py, Client::barrier) } else { Ok(()) };
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        outside(py, move || {
            drop(client);
            Ok(())
        })?;
        outcome
    }
}
