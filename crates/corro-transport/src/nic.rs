//! Which addresses this host can be reached at.
//!
//! Asks the system, filters by name if the user gave names, and orders: the network cards, then other interfaces, then
//! bridges (docker's and the like, which often exist with the same address on every host), then loopback. It never
//! decides that an address works: that is found out by connecting.

use std::net::{IpAddr, SocketAddr};

use corro_core::{Error, Result};
use nix::net::if_::InterfaceFlags;

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    /// The interface's name.
    pub interface: String,
    /// Its address.
    pub address: IpAddr,
    /// How little we expect of it.
    kind: Kind,
}

/// From the most to the least promising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Card,
    Other,
    Bridge,
    Loopback,
}

/// The usable addresses, most promising first. With `names`, only those of these interfaces.
pub fn addresses(names: Option<&[String]>) -> Result<Vec<NicAddress>> {
    let found = nix::ifaddrs::getifaddrs().map_err(|e| Error::io("listing the network interfaces", e))?;
    let all = found.filter(|i| i.flags.contains(InterfaceFlags::IFF_UP)).filter_map(|i| {
        let storage = i.address?;
        let address = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        let kind = match i.flags {
            flags if flags.contains(InterfaceFlags::IFF_LOOPBACK) => Kind::Loopback,
            _ if in_sysfs(&i.interface_name, "bridge") => Kind::Bridge,
            _ if in_sysfs(&i.interface_name, "device") => Kind::Card,
            _ => Kind::Other,
        };
        Some(NicAddress { interface: i.interface_name, address, kind })
    });
    choose(all.collect(), names)
}

/// The interface that owns `address`, for telling the streams of several cards apart.
pub(crate) fn interface_of(address: IpAddr, nics: &[NicAddress]) -> Option<&str> {
    nics.iter().find(|n| n.address == address.to_canonical()).map(|n| n.interface.as_str())
}

/// `addresses` with a port; IPv6 ones only if the listener takes them.
pub(crate) fn with_port(addresses: &[NicAddress], port: u16, v6: bool) -> Vec<SocketAddr> {
    addresses.iter().filter(|n| v6 || n.address.is_ipv4()).map(|n| SocketAddr::new(n.address, port)).collect()
}

fn in_sysfs(interface: &str, what: &str) -> bool {
    // Interface names may not hold a slash, but nothing here depends on that promise.
    !interface.contains('/') && std::path::Path::new("/sys/class/net").join(interface).join(what).exists()
}

fn choose(mut all: Vec<NicAddress>, names: Option<&[String]>) -> Result<Vec<NicAddress>> {
    let mut existing: Vec<&str> = all.iter().map(|n| n.interface.as_str()).collect();
    existing.sort_unstable();
    existing.dedup();
    if let Some(missing) = names.unwrap_or_default().iter().find(|name| !existing.contains(&name.as_str())) {
        return Err(Error::Usage(format!(
            "CORRO_INTERFACE names {missing:?}, but this host has no such interface with an address that is up; it has: {}",
            existing.join(", ")
        )));
    }
    all.retain(|n| is_usable(n.address) && names.is_none_or(|names| names.contains(&n.interface)));
    // Stable, so that within a kind the system's own order remains; IPv4 first because more networks route it.
    all.sort_by_key(|n| (n.kind, n.address.is_ipv6()));
    Ok(all)
}

/// Link-local addresses mean something only together with an interface of the *other* host.
fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified() && !v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(interface: &str, address: &str, kind: Kind) -> NicAddress {
        NicAddress { interface: interface.into(), address: address.parse().unwrap(), kind }
    }

    fn sample() -> Vec<NicAddress> {
        vec![
            nic("lo", "127.0.0.1", Kind::Loopback),
            nic("docker0", "172.17.0.1", Kind::Bridge),
            nic("eth0", "fe80::1", Kind::Card),
            nic("eth0", "fd00::2", Kind::Card),
            nic("wg0", "10.9.0.1", Kind::Other),
            nic("eth0", "10.0.0.2", Kind::Card),
        ]
    }

    #[test]
    fn cards_first_bridges_and_loopback_last() {
        let order: Vec<String> = choose(sample(), None).unwrap().iter().map(|n| n.address.to_string()).collect();
        assert_eq!(order, ["10.0.0.2", "fd00::2", "10.9.0.1", "172.17.0.1", "127.0.0.1"]);
    }

    #[test]
    fn names_filter_and_a_wrong_name_lists_the_right_ones() {
        let chosen = choose(sample(), Some(&["wg0".into(), "lo".into()])).unwrap();
        assert_eq!(chosen.iter().map(|n| n.interface.as_str()).collect::<Vec<_>>(), ["wg0", "lo"]);
        let text = choose(sample(), Some(&["ib0".into()])).unwrap_err().to_string();
        assert!(text.contains("ib0") && text.contains("docker0, eth0, lo, wg0"), "{text}");
    }

    #[test]
    fn this_host_has_loopback() {
        assert!(addresses(None).unwrap().iter().any(|n| n.address.is_loopback()));
    }
}
