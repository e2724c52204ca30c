//! Values that travel between whoever starts a job and its ranks, through the job's authenticated store: something to
//! do for all ranks, and a result from each.
//!
//! Bytes only; what they mean is the caller's business. Long values are stored in parts.

use corro_core::{Deadline, Error, Rank, Result, config};
use corro_transport::secret::Secret;
use corro_transport::{Place, Settings, look_up, store};

/// Where the job's payload lies.
pub(crate) const PAYLOAD: &str = "launch/payload";
/// Well below what a store takes at once.
const PART_BYTES: usize = 4 * 1024 * 1024;
/// The longest value: a fifth of what a store holds.
const MAX_BYTES: usize = 200 * 1024 * 1024;

pub(crate) fn result_key(rank: Rank) -> String {
    format!("launch/result/{rank}")
}

/// In a rank: what [`crate::Job::payload`] holds.
pub fn payload() -> Result<Vec<u8>> {
    let (mut client, deadline) = connect()?;
    take(&mut client, PAYLOAD, deadline)?
        .ok_or_else(|| Error::Usage("this job was started without a payload: see corro_launch::Job".into()))
}

/// In a rank: what [`crate::Outcome::results`] is to hold for it.
pub fn give_result(bytes: &[u8]) -> Result<()> {
    let alone = || {
        Error::Usage("this process has no rank: in an elastic job it gets one by init(), which its function must call before it returns".into())
    };
    give_result_as(Place::from_env()?.ok_or_else(alone)?.rank, bytes)
}

/// As [`give_result`], for a process of an elastic job, which learns its rank only when it joins.
pub fn give_result_as(rank: Rank, bytes: &[u8]) -> Result<()> {
    let (mut client, deadline) = connect()?;
    put(&mut client, &result_key(rank), bytes, deadline)
}

fn connect() -> Result<(store::Client, Deadline)> {
    let settings = Settings::from_env()?;
    let deadline = Deadline::after(settings.connect_timeout);
    let alone = |variable: &config::Variable| {
        Error::Usage(format!("{} is not set: this process was not started as a rank", variable.name))
    };
    let addresses = look_up(&config::RENDEZVOUS.value().ok_or_else(|| alone(&config::RENDEZVOUS))?)?;
    let secret = Secret::parse(&config::SECRET.value().ok_or_else(|| alone(&config::SECRET))?)?;
    Ok((store::Client::connect(&addresses, &secret, settings.tls, deadline)?, deadline))
}

/// Stores `value` in parts, and last how many there are.
pub(crate) fn put(client: &mut store::Client, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
    if value.len() > MAX_BYTES {
        return Err(Error::Usage(format!(
            "{} bytes are too many to travel through the store ({MAX_BYTES} at most): put them in a file that all hosts \
             can read, and send its name",
            value.len()
        )));
    }
    for (at, part) in value.chunks(PART_BYTES).enumerate() {
        client.set(&format!("{key}/{at}"), part, deadline)?;
    }
    client.set(key, value.len().div_ceil(PART_BYTES).to_string(), deadline)
}

/// What [`put`] stored, if anything.
pub(crate) fn take(client: &mut store::Client, key: &str, deadline: Deadline) -> Result<Option<Vec<u8>>> {
    let Some(parts) = client.try_get(key, deadline)? else { return Ok(None) };
    let parts = String::from_utf8(parts).ok().and_then(|t| t.parse::<usize>().ok());
    let parts = parts.filter(|n| *n <= MAX_BYTES.div_ceil(PART_BYTES));
    let parts = parts.ok_or_else(|| Error::Malformed(format!("the number of parts of {key:?}")))?;
    let mut value = Vec::new();
    for at in 0..parts {
        value.extend(client.get(&format!("{key}/{at}"), deadline)?);
    }
    Ok(Some(value))
}
