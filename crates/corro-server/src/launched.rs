//! Servers that a launcher has started, as the ranks of its job find them.
//!
//! The launcher tells ranks how many there are, and puts into its store where each listens. What they prove to each other comes of
//! the launcher's own secret.

use std::net::SocketAddr;

use corro_core::{Deadline, Error, Result, config};
use corro_transport::secret::Secret;
use corro_transport::{Place, Settings, look_up, store};

use crate::server::job_secret;

/// What the launcher has started.
#[derive(Clone, Debug)]
pub struct Launched {
    /// Whether they have hosts of their own.
    pub apart: bool,
    /// Where each listens.
    pub addresses: Vec<Vec<SocketAddr>>,
}

/// What ranks are told: how many there are, and whether they have hosts of their own.
pub fn setting(servers: usize, apart: bool) -> String {
    format!("{servers}{}", if apart { " apart" } else { "" })
}

/// What [`setting`] said.
pub fn understand(setting: &str) -> Result<(usize, bool)> {
    let (count, rest) = setting.split_once(' ').unwrap_or((setting, ""));
    match (count.parse(), rest) {
        (Ok(count), "" | "apart") => Ok((count, rest == "apart")),
        _ => Err(Error::Usage(format!("CORRO_SERVERS is {setting:?}: `corro run --servers` sets it"))),
    }
}

/// Where in the launcher's store it is said where a server listens: addresses with commas between them.
pub fn key(server: usize) -> String {
    format!("launch/server/{server}")
}

/// In a rank: the servers that its launcher has started. None: there are none.
pub fn servers() -> Result<Option<Launched>> {
    let Some(setting) = config::SERVERS.value() else { return Ok(None) };
    let (count, apart) = understand(&setting)?;
    let settings = Settings::from_env()?;
    let deadline = Deadline::after(settings.connect_timeout);
    let alone = |variable: &config::Variable| {
        Error::Usage(format!("{} is not set: this process was not started as a rank", variable.name))
    };
    let at = look_up(&config::RENDEZVOUS.value().ok_or_else(|| alone(&config::RENDEZVOUS))?)?;
    let secret = Secret::parse(&config::SECRET.value().ok_or_else(|| alone(&config::SECRET))?)?;
    let mut client = store::Client::connect(&at, &secret, settings.tls, deadline)?;
    let mut addresses = Vec::new();
    for server in 0..count {
        let text = String::from_utf8(client.get(&key(server), deadline)?);
        let text = text.map_err(|_| Error::Malformed("the address of a parameter server".into()))?;
        let listens: std::result::Result<Vec<SocketAddr>, _> = text.split(',').map(str::parse).collect();
        addresses
            .push(listens.map_err(|e| Error::Malformed(format!("the address {text:?} of a parameter server: {e}")))?);
    }
    Ok(Some(Launched { apart, addresses }))
}

/// In a rank: what it proves to servers that its launcher has started.
pub fn secret() -> Result<Secret> {
    let place = Place::from_env()?;
    let secret = place.as_ref().and_then(Place::launchers_store).map(|(_, secret)| job_secret(secret));
    secret.ok_or_else(|| Error::Usage("no launcher of corro's has started this process".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_are_told_is_understood() {
        for told in [(3, false), (1, true)] {
            assert_eq!(understand(&setting(told.0, told.1)).unwrap(), told);
        }
        for wrong in ["", "x", "2 spare"] {
            assert!(understand(wrong).is_err());
        }
    }
}
