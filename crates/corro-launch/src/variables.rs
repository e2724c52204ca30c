//! The variables by which a rank learns its place: Corro's names, Horovod's, and what other libraries expect.
//!
//! Pure.

use std::net::SocketAddr;

use corro_core::config;
use corro_membership::WorkerId;

use crate::placement::Slot;

/// What is the same for all ranks of a job.
pub(crate) struct Common {
    /// Where the store can be reached, most promising first.
    pub(crate) rendezvous: Vec<SocketAddr>,
    /// The job's secret, in hexadecimal.
    pub(crate) secret: String,
    /// Whether traffic between hosts is encrypted.
    pub(crate) tls: bool,
    /// Network interfaces to use, if the user named some.
    pub(crate) interfaces: Vec<String>,
    /// How many threads its libraries compute with.
    pub(crate) threads: Vec<(String, String)>,
    /// What flags, the config file and the caller asked for.
    pub(crate) settings: Vec<(String, String)>,
}

/// The variables of the rank at `slot` on `host`. Those of the user come last, and win.
pub(crate) fn of_rank(common: &Common, slot: &Slot, host: &str) -> Vec<(String, String)> {
    let place = [
        (&config::RANK, slot.rank.index()),
        (&config::SIZE, slot.size),
        (&config::LOCAL_RANK, slot.local_rank),
        (&config::LOCAL_SIZE, slot.local_size),
        (&config::CROSS_RANK, slot.cross_rank),
        (&config::CROSS_SIZE, slot.cross_size),
    ];
    with_common(place.map(|(variable, number)| (variable, number.to_string())).to_vec(), common, host)
}

/// The variables of process `worker` of an elastic job on `host`. It learns its place when it joins, and again each time.
pub(crate) fn of_worker(common: &Common, worker: WorkerId, driver: &[SocketAddr], host: &str) -> Vec<(String, String)> {
    let driver: Vec<String> = driver.iter().map(ToString::to_string).collect();
    let own = [
        (&config::ELASTIC, "1".to_owned()),
        (&config::WORKER, worker.to_string()),
        (&config::DRIVER, driver.join(",")),
    ];
    with_common(own.to_vec(), common, host)
}

fn with_common(own: Vec<(&config::Variable, String)>, common: &Common, host: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut both = |variable: &config::Variable, value: String| {
        all.extend(variable.horovod.map(|name| (name.to_owned(), value.clone())));
        all.push((variable.name.to_owned(), value));
    };
    for (variable, value) in own {
        both(variable, value);
    }
    both(&config::HOSTNAME, host.to_owned());
    let addresses: Vec<String> = common.rendezvous.iter().map(ToString::to_string).collect();
    both(&config::RENDEZVOUS, addresses.join(","));
    // The environment of a process is readable by its own user only, unlike its command line.
    both(&config::SECRET, common.secret.clone());
    both(&config::TLS, u8::from(common.tls).to_string());
    if !common.interfaces.is_empty() {
        both(&config::INTERFACE, common.interfaces.join(","));
        all.push(("NCCL_SOCKET_IFNAME".into(), common.interfaces.join(",")));
    }
    // Scripts look at these to learn how they were started.
    for (name, value) in [
        ("HOROVOD_CONTROLLER", "gloo"),
        ("HOROVOD_CPU_OPERATIONS", "gloo"),
        // So that what a rank prints is seen when it is printed.
        ("PYTHONUNBUFFERED", "1"),
    ] {
        all.push((name.into(), value.into()));
    }
    if let Some(first) = common.rendezvous.first() {
        all.push(("HOROVOD_GLOO_RENDEZVOUS_ADDR".into(), first.ip().to_string()));
        all.push(("HOROVOD_GLOO_RENDEZVOUS_PORT".into(), first.port().to_string()));
    }
    all.extend(common.threads.iter().chain(&common.settings).cloned());
    all
}

#[cfg(test)]
mod tests {
    use corro_core::Rank;

    use super::*;

    #[test]
    fn a_rank_knows_its_place_by_both_names() {
        let common = Common {
            rendezvous: vec!["10.0.0.1:7".parse().unwrap(), "[fd00::1]:7".parse().unwrap()],
            secret: "aa".into(),
            tls: true,
            interfaces: vec!["eth0".into()],
            threads: vec![("OMP_NUM_THREADS".into(), "4".into())],
            settings: vec![("HOROVOD_CYCLE_TIME".into(), "2".into())],
        };
        let slot = Slot { rank: Rank::new(3), size: 4, local_rank: 1, local_size: 2, cross_rank: 1, cross_size: 2 };
        let all = of_rank(&common, &slot, "node2");
        for (name, value) in [
            ("CORRO_RANK", "3"),
            ("HOROVOD_RANK", "3"),
            ("HOROVOD_SIZE", "4"),
            ("HOROVOD_LOCAL_RANK", "1"),
            ("HOROVOD_LOCAL_SIZE", "2"),
            ("HOROVOD_CROSS_RANK", "1"),
            ("HOROVOD_CROSS_SIZE", "2"),
            ("HOROVOD_HOSTNAME", "node2"),
            ("CORRO_HOSTNAME", "node2"),
            ("CORRO_RENDEZVOUS", "10.0.0.1:7,[fd00::1]:7"),
            ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"),
            ("HOROVOD_GLOO_RENDEZVOUS_PORT", "7"),
            ("HOROVOD_GLOO_IFACE", "eth0"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("CORRO_TLS", "1"),
            ("HOROVOD_CONTROLLER", "gloo"),
            ("HOROVOD_CYCLE_TIME", "2"),
            ("OMP_NUM_THREADS", "4"),
        ] {
            let found: Vec<&str> = all.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect();
            assert_eq!(found, [value], "{name}");
        }
    }
}
