//! Where a server of a job listens: at one address, or at those of the interfaces that the user named.
//!
//! Owns the rule that named interfaces are the only ones at which other hosts can even try to connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use corro_core::{Error, Result};

use crate::nic;
use crate::tcp::listen_at;

/// How often another port is tried, where the one that was free at the first address is taken at the next.
const TRIES: usize = 16;

/// Where a server of a job listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// At this address, which may be the unspecified one.
    At(SocketAddr),
    /// At all of these that this host has, with one port (0: any free one).
    Each(Vec<IpAddr>, u16),
}

impl Bind {
    /// At the addresses of these interfaces, and at loopback, for the processes of this host.
    pub fn interfaces(names: &[String], port: u16) -> Result<Self> {
        let mut all: Vec<IpAddr> = nic::addresses(Some(names))?.into_iter().map(|nic| nic.address).collect();
        if all.is_empty() {
            return Err(Error::Usage(format!(
                "the network interfaces {} have no address that other hosts could use",
                names.join(", ")
            )));
        }
        if !all.contains(&Ipv4Addr::LOCALHOST.into()) {
            all.push(Ipv4Addr::LOCALHOST.into());
        }
        Ok(Self::Each(all, port))
    }

    /// Where the processes of one host come, or those of all hosts by these interfaces, or by any.
    pub fn reachable(one_host: bool, interfaces: Option<&[String]>) -> Result<Self> {
        match interfaces {
            _ if one_host => Ok(Self::At((Ipv4Addr::LOCALHOST, 0).into())),
            Some(names) => Self::interfaces(names, 0),
            None => Ok(Self::At((Ipv4Addr::UNSPECIFIED, 0).into())),
        }
    }

    /// The listeners, and where they listen.
    pub(crate) fn listen(&self) -> std::io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
        let (all, port) = match self {
            Self::At(address) => {
                let listener = listen_at(*address)?;
                let address = listener.local_addr()?;
                return Ok((vec![listener], vec![address]));
            }
            Self::Each(all, port) => (all, *port),
        };
        let mut tries = TRIES;
        loop {
            tries -= 1;
            match listen_at_all(all, port) {
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && port == 0 && tries > 0 => {}
                done => return done,
            }
        }
    }
}

/// At each of these that can be listened at, with the port that the first of them gets.
fn listen_at_all(all: &[IpAddr], mut port: u16) -> std::io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    let mut failed = None;
    for ip in all {
        match listen_at(SocketAddr::new(*ip, port)).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                port = address.port();
                listeners.push(listener);
                addresses.push(address);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => return Err(e),
            // One of several addresses may be of no use, as an IPv6 one that is still being set up.
            Err(e) => failed = Some(e),
        }
    }
    match failed {
        Some(e) if listeners.is_empty() => Err(e),
        _ => Ok((listeners, addresses)),
    }
}

/// Where a server that listens at `addresses` can be reached, most promising first, loopback last.
pub(crate) fn published(addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>> {
    match addresses {
        [all] if all.ip().is_unspecified() => {
            Ok(nic::with_port(&nic::addresses(None)?, all.port(), all.ip() == Ipv6Addr::UNSPECIFIED))
        }
        _ => Ok(addresses.to_vec()),
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::At(address)
    }
}

/// Reads as "opening ...".
impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Each(all, port) => {
                let list: Vec<String> = all.iter().map(|ip| SocketAddr::new(*ip, *port).to_string()).collect();
                f.write_str(&list.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_interfaces_are_listened_at_and_nothing_else() {
        let bind = Bind::reachable(false, Some(&["lo".into()])).unwrap();
        let (listeners, addresses) = bind.listen().unwrap();
        assert!(!listeners.is_empty() && addresses.iter().all(|at| at.ip().is_loopback()), "{addresses:?}");
        assert!(addresses.iter().all(|at| at.port() == addresses[0].port()), "{addresses:?}");
        assert_eq!(published(&addresses).unwrap(), addresses);
        assert!(Bind::interfaces(&["no-such0".into()], 0).unwrap_err().to_string().contains("no-such0"));
    }

    #[test]
    fn an_address_that_is_not_here_is_left_out_and_a_port_is_one_for_all() {
        let ips = vec!["192.0.2.7".parse().unwrap(), Ipv4Addr::LOCALHOST.into(), "127.0.0.2".parse().unwrap()];
        let (_held, addresses) = Bind::Each(ips.clone(), 0).listen().unwrap();
        let found: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        assert_eq!(found, ips[1..]);
        let port = addresses[0].port();
        assert_eq!(addresses[1].port(), port);
        assert!(Bind::Each(ips[..1].to_vec(), 0).listen().is_err());
        assert_eq!(Bind::Each(ips[1..].to_vec(), port).listen().unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
