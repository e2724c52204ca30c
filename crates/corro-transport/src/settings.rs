//! How a fabric behaves.

use std::time::Duration;

use corro_core::{Deadline, Result, config};

/// How long ranks may take to come, unless the user says otherwise. Whoever ends meanwhile is noticed by its launcher, which
/// then ends the others.
const ARRIVAL: Duration = Duration::from_secs(600);

/// How a fabric behaves. [`Settings::from_env`] is what programs use; tests make their own.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a rank may make no progress while another waits for it. Zero: for ever.
    pub timeout: Duration,
    /// How long ranks may take to connect to each other once all have come.
    pub connect_timeout: Duration,
    /// How long they may take to come, which includes whatever programs do before that; `None`: as long as to connect.
    pub arrival_timeout: Option<Duration>,
    /// Connections between each pair of ranks on different hosts.
    pub streams: usize,
    /// Bytes of each member's shared area: the fusion buffer.
    pub area: usize,
    /// Whether waiting may spin; `None`: only while every rank of the host has a core of its own.
    pub spin: Option<bool>,
    /// Whether traffic between hosts is encrypted.
    pub tls: bool,
    /// Names of the network interfaces to use; `None`: all.
    pub interfaces: Option<Vec<String>>,
    /// Whether all ranks are known to be on this host, so that nobody from elsewhere need reach this one.
    pub one_host: bool,
    /// How often this process has joined its job before: ranks only meet those that have as often.
    pub epoch: u64,
    /// This host's name; `None`: the system's. Ranks with different names never share memory.
    pub host: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            arrival_timeout: None,
            streams: 1,
            area: 128 << 20,
            spin: None,
            tls: false,
            interfaces: None,
            one_host: false,
            epoch: 0,
            host: None,
        }
    }
}

impl Settings {
    /// What the environment says, see [`corro_core::config`].
    pub fn from_env() -> Result<Self> {
        let default = Self::default();
        let spin = config::SPIN.value().filter(|v| v != "auto").map(|_| config::SPIN.flag(true));
        let interfaces = config::INTERFACE.value().map(|names| names.split(',').map(|n| n.trim().to_owned()).collect());
        Ok(Self {
            timeout: config::TIMEOUT.seconds(default.timeout)?,
            connect_timeout: config::CONNECT_TIMEOUT.seconds(default.connect_timeout)?,
            // A program may import for a minute before it comes, and is well.
            arrival_timeout: config::CONNECT_TIMEOUT.value().is_none().then_some(ARRIVAL),
            streams: config::STREAMS.number(default.streams)?.clamp(1, 64),
            area: config::FUSION_THRESHOLD.number(default.area)?,
            spin,
            tls: config::TLS.flag(false),
            interfaces,
            one_host: false,
            epoch: 0,
            host: config::HOSTNAME.value(),
        })
    }

    /// When all ranks must have come.
    pub(crate) fn arrival_deadline(&self) -> Deadline {
        Deadline::after(self.arrival_timeout.unwrap_or(self.connect_timeout))
    }
}
