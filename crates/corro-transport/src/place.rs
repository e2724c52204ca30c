//! How a process learns its place in the job: from the variables its launcher set, or from there being none.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use corro_core::{Deadline, Error, Rank, Result, config};

use crate::fabric::{Fabric, Rendezvous, Settings};
use crate::secret::Secret;
use crate::store;

/// A place in a job of several processes.
#[derive(Debug)]
pub struct Place {
    /// Which rank.
    pub rank: Rank,
    /// Of how many.
    pub size: usize,
    /// Where the job's store is.
    pub rendezvous: Vec<SocketAddr>,
    /// What all of them know and nobody else.
    pub secret: Secret,
}

impl Place {
    /// What the environment says; `None` if it says nothing: a world of one.
    pub fn from_env() -> Result<Option<Self>> {
        if config::RANK.value().is_none() && config::SIZE.value().is_none() {
            return Ok(None);
        }
        let (rank, size) = (config::RANK.number(0)?, config::SIZE.number(1)?);
        if size == 1 && config::RENDEZVOUS.value().is_none() {
            return Ok(None);
        }
        let need = |variable: &config::Variable| {
            variable.value().ok_or_else(|| {
                Error::Usage(format!(
                    "{} is set but {} is not: start the job with `corro run`",
                    config::RANK.name,
                    variable.name
                ))
            })
        };
        let address = need(&config::RENDEZVOUS)?;
        let rendezvous = address
            .to_socket_addrs()
            .map_err(|e| Error::io(format!("looking up the rendezvous {address:?}"), e))?
            .collect();
        Ok(Some(Self { rank, size, rendezvous, secret: Secret::parse(&need(&config::SECRET)?)? }))
    }
}

impl Fabric {
    /// Joins the job the environment describes, or makes a world of one.
    pub fn from_env() -> Result<Arc<Self>> {
        let settings = Settings::from_env()?;
        let Some(place) = Place::from_env()? else {
            return Self::threads(&[0], &settings)
                .pop()
                .ok_or_else(|| Error::Bug("no fabric for a world of one".into()));
        };
        let deadline = Deadline::after(settings.connect_timeout);
        let mut store = store::Client::connect(&place.rendezvous, &place.secret, settings.tls, deadline)?;
        Self::join(place.rank, place.size, &place.secret, &mut store, settings)
    }
}

impl Rendezvous for store::Client {
    fn publish(&mut self, key: &str, value: Vec<u8>, deadline: Deadline) -> Result<()> {
        self.set(key, value, deadline)
    }

    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.get_many(keys, deadline)
    }
}
