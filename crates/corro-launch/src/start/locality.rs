//! Whether a host is the machine this runs on.

use std::net::{IpAddr, ToSocketAddrs};

use corro_core::Result;
use corro_transport::nic;

use crate::hosts::Host;

/// Whether `host` is the machine this runs on. A host with a user is another one in any case.
pub fn is_local(host: &Host) -> Result<bool> {
    if host.user.is_some() {
        return Ok(false);
    }
    if host.name == "localhost" || host.name.parse::<IpAddr>().is_ok_and(|a| a.is_loopback()) || host.name == own_name()
    {
        return Ok(true);
    }
    // A name that can't be looked up may still mean something to ssh (its configuration can hold names of its own).
    let Ok(found) = (host.name.as_str(), 0).to_socket_addrs() else { return Ok(false) };
    let own = nic::addresses(None)?;
    Ok(found.map(|a| a.ip().to_canonical()).any(|a| a.is_loopback() || own.iter().any(|n| n.address == a)))
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    #[test]
    fn this_machine_is_known_by_its_names() {
        let host = |text: &str| hosts::parse_list(text).unwrap().remove(0);
        for name in ["localhost", "127.0.0.1", "127.0.1.1", "[::1]:2", &own_name()] {
            assert!(is_local(&host(name)).unwrap(), "{name}");
        }
        assert!(!is_local(&host("me@localhost")).unwrap());
        assert!(!is_local(&host("192.0.2.1")).unwrap());
    }
}
