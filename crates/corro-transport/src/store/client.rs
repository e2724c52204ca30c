//! A process's end of the rendezvous store.
//!
//! Owns one connection, on which it asks one thing at a time. Waits with a deadline only. It does not reconnect: when
//! the store is gone, so is the job.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Deadline, Error, Result, codec};
use rustix::event::{PollFd, PollFlags};
use serde_bytes::ByteBuf;

use super::message::{Action, Answer, Request, Response};
use super::{FRAME_EXTRA, MAX_KEYS, MAX_VALUE_BYTES};
use crate::handshake::Purpose;
use crate::secret::Secret;
use crate::stream::{Broken, Stream};
use crate::tcp::dial::{self, Dialer, Failure, Tried};
use crate::tcp::socket::wait;
use crate::tls::TlsIdentity;

/// How long finding out what was missing may take, after a deadline has passed.
const POST_MORTEM: Duration = Duration::from_secs(1);
/// How many missing keys an error names.
const NAMED_KEYS: usize = 5;

/// A connection to the store.
pub struct Client {
    stream: Box<dyn Stream>,
    address: SocketAddr,
    next_id: u64,
    input: Vec<u8>,
    /// Why the connection is of no more use.
    broken: Option<String>,
}

impl Client {
    /// Connects to the store, which may be reachable by several addresses and may start later than we do.
    pub fn connect(addresses: &[SocketAddr], secret: &Secret, tls: bool, deadline: Deadline) -> Result<Self> {
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let dialer = Dialer { secret: Arc::new(secret.clone()), tls };
        loop {
            let proven = dialer
                .race(addresses, Purpose::Store, false, &deadline.into())
                .map_err(|tried| unreachable(&tried, deadline))?;
            let Some(first) = proven.into_iter().next() else { continue };
            let address = first.address;
            match first.complete(&deadline.into()) {
                Ok(socket) => {
                    tracing::debug!(%address, "connected to the rendezvous store");
                    let stream = socket.into_stream();
                    return Ok(Self { stream, address, next_id: 0, input: Vec::new(), broken: None });
                }
                Err(tried) if deadline.passed() => return Err(unreachable(&[tried], deadline)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Where the store is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets `key`, whether or not it is there, and wakes everyone who waits for it.
    pub fn set(&mut self, key: &str, value: impl Into<Vec<u8>>, deadline: Deadline) -> Result<()> {
        let doing = || format!("setting {key:?}");
        let value = ByteBuf::from(value.into());
        if value.len() > MAX_VALUE_BYTES {
            let reason = format!("its value has {} bytes, at most {MAX_VALUE_BYTES} are possible", value.len());
            return Err(self.refused(&doing(), &reason));
        }
        match self.call(Action::Set { key: key.into(), value }, &doing, deadline)? {
            Answer::Done => Ok(()),
            other => Err(self.strange(&doing(), &other)),
        }
    }

    /// The value of `key`; waits until it is set.
    pub fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let values = self.get_many(std::slice::from_ref(&key), deadline)?;
        values.into_iter().next().ok_or_else(|| Error::Bug("the store gave no value for one key".into()))
    }

    /// The values of `keys`, in their order; waits until all are set.
    pub fn get_many<K: AsRef<str>>(&mut self, keys: &[K], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut values = Vec::with_capacity(keys.len());
        while values.len() < keys.len() {
            let rest = &keys[values.len()..];
            let rest: Vec<String> = rest.iter().take(MAX_KEYS).map(|k| k.as_ref().to_owned()).collect();
            let doing = || format!("waiting for {}", name(&rest));
            let action = Action::Get { keys: rest.clone(), wait: true };
            let found = match self.exchange(action, deadline) {
                Ok(Some(answer)) => self.values(&doing(), answer, rest.len())?,
                Ok(None) => return Err(self.timed_out_waiting(&rest, deadline)),
                Err(cause) => return Err(self.failed(&doing(), &cause)),
            };
            for value in found {
                let missing = || self.failed(&doing(), "the store answered before the key was set");
                values.push(value.ok_or_else(missing)?);
            }
        }
        Ok(values)
    }

    /// The value of `key` if it is set.
    pub fn try_get(&mut self, key: &str, deadline: Deadline) -> Result<Option<Vec<u8>>> {
        let doing = || format!("reading {key:?}");
        let answer = self.call(Action::Get { keys: vec![key.into()], wait: false }, &doing, deadline)?;
        Ok(self.values(&doing(), answer, 1)?.into_iter().next().flatten())
    }

    /// Adds `by` to the number at `key`, which is 0 if it is not set, and gives the sum. No two callers get the same
    /// step of a counter.
    pub fn add(&mut self, key: &str, by: i64, deadline: Deadline) -> Result<i64> {
        let doing = || format!("adding to {key:?}");
        match self.call(Action::Add { key: key.into(), by }, &doing, deadline)? {
            Answer::Number(sum) => Ok(sum),
            other => Err(self.strange(&doing(), &other)),
        }
    }

    /// Removes `key` and says whether it was there.
    pub fn delete(&mut self, key: &str, deadline: Deadline) -> Result<bool> {
        let doing = || format!("deleting {key:?}");
        match self.call(Action::Delete { key: key.into() }, &doing, deadline)? {
            Answer::Existed(existed) => Ok(existed),
            other => Err(self.strange(&doing(), &other)),
        }
    }

    fn call(&mut self, action: Action, doing: &dyn Fn() -> String, deadline: Deadline) -> Result<Answer> {
        match self.exchange(action, deadline) {
            Ok(Some(Answer::Refused(reason))) => Err(self.refused(&doing(), &reason)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                let cause = format!(
                    "the store did not answer within {:?}; it may be overloaded, or its host or network may hang \
                     (CORRO_CONNECT_TIMEOUT gives it more time)",
                    deadline.granted()
                );
                Err(self.failed(&doing(), &cause))
            }
            Err(cause) => Err(self.failed(&doing(), &cause)),
        }
    }

    fn values(&self, doing: &str, answer: Answer, asked: usize) -> Result<Vec<Option<Vec<u8>>>> {
        match answer {
            Answer::Values(values) if (1..=asked).contains(&values.len()) => {
                Ok(values.into_iter().map(|v| v.map(ByteBuf::into_vec)).collect())
            }
            Answer::Refused(reason) => Err(self.refused(doing, &reason)),
            other => Err(self.strange(doing, &other)),
        }
    }

    /// Asks and waits for the answer. `None`: the deadline has passed; the connection is still good.
    fn exchange(&mut self, action: Action, deadline: Deadline) -> Result<Option<Answer>, String> {
        if let Some(cause) = &self.broken {
            return Err(cause.clone());
        }
        let outcome = self.try_exchange(action, deadline);
        if let Err(cause) = &outcome {
            self.broken = Some(cause.clone());
        }
        outcome
    }

    fn try_exchange(&mut self, action: Action, deadline: Deadline) -> Result<Option<Answer>, String> {
        let id = self.next_id;
        self.next_id += 1;
        let bytes = codec::encode(&Request { id, action }).map_err(|e| e.to_string())?;
        let mut sent = 0;
        let mut flushed = false;
        loop {
            if sent < bytes.len() {
                sent += self.stream.try_write(&bytes[sent..]).map_err(|b| words(&b))?;
            }
            if sent == bytes.len() && !flushed {
                flushed = self.stream.try_flush().map_err(|b| words(&b))?;
            }
            // Answers to requests that were given up on earlier may still come.
            while let Some(response) = self.next_response()? {
                if response.id == id {
                    return Ok(Some(response.answer));
                }
            }
            if self.receive()? > 0 {
                continue;
            }
            if deadline.passed() {
                if flushed {
                    return Ok(None);
                }
                return Err(format!("the store did not take a request within {:?}", deadline.granted()));
            }
            let interest = if flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let mut fds = [PollFd::from_borrowed_fd(self.stream.fd(), interest)];
            wait(&mut fds, deadline.left()).map_err(|e| e.to_string())?;
        }
    }

    fn receive(&mut self) -> Result<usize, String> {
        let mut bytes = [0; 16 * 1024];
        let count = self.stream.try_read(&mut bytes).map_err(|b| words(&b))?;
        self.input.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn next_response(&mut self) -> Result<Option<Response>, String> {
        let taken = codec::take(&self.input, MAX_VALUE_BYTES + FRAME_EXTRA).map_err(|e| e.to_string())?;
        let Some((response, used)) = taken else { return Ok(None) };
        self.input.drain(..used);
        Ok(Some(response))
    }

    /// Says which of `keys` are missing. Asking also ends the waiting at the server.
    fn timed_out_waiting(&mut self, keys: &[String], deadline: Deadline) -> Error {
        let action = Action::Get { keys: keys.to_vec(), wait: false };
        let found = match self.exchange(action, Deadline::after(POST_MORTEM)) {
            Ok(Some(Answer::Values(values))) => values,
            _ => Vec::new(),
        };
        let there = |i: usize| found.get(i).is_some_and(Option::is_some);
        let missing: Vec<String> = (0..keys.len()).filter(|i| !there(*i)).map(|i| keys[i].clone()).collect();
        let cause = format!(
            "nobody has set {} within {:?}; who should may have failed or not have started: see its log, or raise \
             CORRO_CONNECT_TIMEOUT (Wait timeout after {} seconds for key(s); HOROVOD_GLOO_TIMEOUT_SECONDS is read as well)",
            if missing.is_empty() { "the last of them".into() } else { name(&missing) },
            deadline.granted(),
            deadline.granted().as_secs_f64()
        );
        self.failed(&format!("waiting for {}", name(keys)), &cause)
    }

    fn failed(&self, doing: &str, cause: &str) -> Error {
        Error::io(format!("{doing} in the rendezvous store at {}", self.address), cause)
    }

    fn refused(&self, doing: &str, reason: &str) -> Error {
        Error::Usage(format!("{doing} in the rendezvous store at {}: {reason}", self.address))
    }

    fn strange(&self, doing: &str, answer: &Answer) -> Error {
        match answer {
            Answer::Refused(reason) => self.refused(doing, reason),
            _ => Error::Malformed(format!("{doing}: the store gave an answer of another kind")),
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

fn words(broken: &Broken) -> String {
    format!("lost the store: {} (did the launcher, or rank 0, end?)", broken.0)
}

/// `"a", "b" and 3 more keys`.
fn name(keys: &[String]) -> String {
    let named: Vec<String> = keys.iter().take(NAMED_KEYS).map(|k| format!("{k:?}")).collect();
    let more = keys.len().saturating_sub(NAMED_KEYS);
    let more = if more == 0 { String::new() } else { format!(" and {more} more keys") };
    format!("{}{more}", named.join(", "))
}

fn unreachable(tried: &[Tried], deadline: Deadline) -> Error {
    let how = if tried.is_empty() { "no address was given".into() } else { dial::list(tried) };
    let how = format!(
        "not possible{}: {how}. Is CORRO_RENDEZVOUS right, and can this host reach it? CORRO_CONNECT_TIMEOUT gives it \
         more time",
        dial::within(deadline)
    );
    if tried.iter().any(|t| t.failure == Failure::Impostor) {
        return Error::Unauthenticated(format!("connecting to the rendezvous store: {how}"));
    }
    Error::io("connecting to the rendezvous store", how)
}
