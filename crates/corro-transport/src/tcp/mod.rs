//! TCP between the ranks of a job, plain or through TLS.
//!
//! [`Endpoint`] is a rank's presence on the network: one listening port, one thread that lets those who dial it prove
//! themselves, and the way to dial others. It owns connections until they are handed out as [`Stream`]s; after that
//! it knows nothing of them. It never moves the job's data, and nobody without the job's secret gets past `acceptor`.
//!
//! | part | does |
//! | --- | --- |
//! | `acceptor` | accepts connections, runs their handshakes, turns strangers away |
//! | `registry` | keeps proven connections until they are claimed |
//! | `dial` | tries a peer's addresses, keeps the first that proves itself |
//! | `plain` | one connection: options, errors in words |
//! | `sealed` | one on which nothing can be changed unnoticed |
//! | `socket` | whichever of these a connection is, or TLS |
//! | `health` | whether a silent host is still there |
//! | `refusals` | what is logged about strangers, and how often |

pub(crate) mod acceptor;
pub(crate) mod dial;
pub(crate) mod health;
pub(crate) mod plain;
pub(crate) mod refusals;
mod registry;
mod sealed;
pub(crate) mod socket;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, GroupId, Rank, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

pub use self::plain::TcpStream;

use self::acceptor::Acceptor;
use self::dial::{Dialer, Tried, Verified};
use self::refusals::Refusals;
use self::registry::{Key, Registry};
use self::socket::wait;
use crate::handshake::{MAX_STREAMS, Purpose, Serves};
use crate::nic::{self, NicAddress};
use crate::secret::Secret;
use crate::stream::Stream;
use crate::tls::TlsIdentity;
use crate::wait_limit::WaitLimit;

/// What an [`Endpoint`] is made from.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// This process's rank.
    pub rank: Rank,
    /// The job's secret.
    pub secret: Secret,
    /// Whether everything goes through TLS 1.3. Must be the same on every rank.
    pub tls: bool,
    /// Names of the interfaces at whose addresses it listens; `None`: all.
    pub interfaces: Option<Vec<String>>,
    /// Whether all ranks are on this host: unless interfaces are named, it then listens at the loopback address only.
    pub one_host: bool,
}

/// Where a rank can be reached, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PeerAddress {
    /// Who.
    pub rank: Rank,
    /// Its host's name, for messages.
    pub host: String,
    /// What it published, most promising first.
    pub addresses: Vec<SocketAddr>,
}

/// A rank's presence on the network.
pub struct Endpoint {
    rank: Rank,
    addresses: Vec<SocketAddr>,
    dialer: Dialer,
    registry: Arc<Registry>,
    refusals: Arc<Mutex<Refusals>>,
    /// Per peer, the addresses that worked, one for each of our network cards.
    working: Mutex<HashMap<Rank, Vec<SocketAddr>>>,
    wake: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens where other ranks may come from, and nowhere else, and starts the thread that accepts.
    pub fn bind(config: EndpointConfig) -> Result<Self> {
        let (listeners, addresses) = match &config.interfaces {
            Some(names) => listen_at_each(&nic::addresses(Some(names))?)?,
            None if config.one_host => listen_here()?,
            None => listen_everywhere()?,
        };
        let tls = if config.tls { Some(Arc::new(TlsIdentity::new(&config.secret)?)) } else { None };
        let secret = Arc::new(config.secret);
        let acceptor = Acceptor::new(listeners, secret.clone(), tls.clone(), Serves::Rank(config.rank))?;
        let refusals = acceptor.refusals();
        let registry = Arc::new(Registry::default());
        let wake = Arc::new(wake_fd()?);
        let accepting = std::thread::Builder::new()
            .name("corro-accept".into())
            .spawn({
                let (registry, wake) = (registry.clone(), wake.clone());
                move || accept_until_woken(acceptor, &registry, &wake)
            })
            .map_err(|e| Error::io("starting the thread that accepts connections", e))?;
        tracing::debug!(rank = config.rank.index(), tls = config.tls, ?addresses, "listening");
        Ok(Self {
            rank: config.rank,
            addresses,
            dialer: Dialer { secret, tls },
            registry,
            refusals,
            working: Mutex::default(),
            wake,
            accepting: Some(accepting),
        })
    }

    /// What to publish: every usable address of this host with our port, most promising first, loopback last.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Dials `peer`, which must call [`Endpoint::accept`] for us, and opens `streams` connections to it. They are spread
    /// over all network cards that lead there. Goes on until the limit: the peer may start later than we do.
    pub fn connect(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        streams: usize,
        limit: impl Into<WaitLimit>,
    ) -> Result<Vec<Box<dyn Stream>>> {
        self.dial(peer, group, streams, false, &limit.into())
    }

    /// As [`Endpoint::connect`], one stream, for what ranks agree on: nothing on it can be changed unnoticed.
    pub fn connect_control(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        limit: &WaitLimit,
    ) -> Result<Vec<Box<dyn Stream>>> {
        self.dial(peer, group, 1, true, limit)
    }

    fn dial(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        streams: usize,
        control: bool,
        limit: &WaitLimit,
    ) -> Result<Vec<Box<dyn Stream>>> {
        check_streams(streams)?;
        let lost = |tried: &[Tried]| match limit.check() {
            Ok(()) => unreachable(peer, tried, limit.deadline()),
            Err(called_off) => called_off,
        };
        let mut working = self.recall(peer);
        let mut done = Vec::with_capacity(streams);
        while done.len() < streams {
            let index = done.len();
            let purpose = Purpose::Link {
                from: self.rank,
                to: peer.rank,
                group,
                index: index as u32,
                count: streams as u32,
                control,
            };
            let order = order(&peer.addresses, &working, index);
            // Only the first dial to a peer looks for all ways that lead there; later ones know them.
            let wide = working.is_empty() && streams > 1;
            let proven = self.dialer.race(&order, purpose, wide, limit).map_err(|t| lost(&t))?;
            if working.is_empty() {
                working = one_per_card(&proven);
                self.remember(peer, &working);
            }
            let Some(first) = proven.into_iter().next() else { continue };
            let address = first.address;
            match first.complete(limit) {
                Ok(socket) => {
                    tracing::info!(peer = peer.rank.index(), host = peer.host, %address, stream = index, %group, "connected");
                    done.push(socket.into_stream());
                }
                Err(tried) if limit.is_over() => return Err(lost(&[tried])),
                Err(tried) => {
                    tracing::debug!(peer = peer.rank.index(), %address, reason = tried.reason, "dialling again");
                    working.retain(|a| *a != address);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        Ok(done)
    }

    /// Waits until `peer` has dialled us with all `streams` connections, and hands them out.
    pub fn accept(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        streams: usize,
        limit: impl Into<WaitLimit>,
    ) -> Result<Vec<Box<dyn Stream>>> {
        self.claim(peer, group, streams, false, &limit.into())
    }

    /// The other end of [`Endpoint::connect_control`].
    pub fn accept_control(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        limit: &WaitLimit,
    ) -> Result<Vec<Box<dyn Stream>>> {
        self.claim(peer, group, 1, true, limit)
    }

    fn claim(
        &self,
        peer: &PeerAddress,
        group: GroupId,
        streams: usize,
        control: bool,
        limit: &WaitLimit,
    ) -> Result<Vec<Box<dyn Stream>>> {
        check_streams(streams)?;
        let claimed = self.registry.claim(peer.rank, group, control, streams, limit).map_err(|unclaimed| {
            if let Err(called_off) = limit.check() {
                return called_off;
            }
            let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            unclaimed.into_error(peer.rank, &peer.host, streams, limit.deadline(), refusals.recent(Instant::now()))
        })?;
        tracing::info!(peer = peer.rank.index(), host = peer.host, remote = ?claimed.first().map(|(_, r)| r), streams, %group,
            "accepted");
        Ok(claimed.into_iter().map(|(socket, _)| socket.into_stream()).collect())
    }

    /// How many proven connections wait to be claimed.
    pub fn parked(&self) -> usize {
        self.registry.parked()
    }

    fn recall(&self, peer: &PeerAddress) -> Vec<SocketAddr> {
        let working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let known = working.get(&peer.rank).map_or(&[][..], Vec::as_slice);
        // A rank that came back elsewhere publishes other addresses; the old ones mean nothing then.
        known.iter().copied().filter(|a| peer.addresses.contains(a)).collect()
    }

    fn remember(&self, peer: &PeerAddress, working: &[SocketAddr]) {
        self.working.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.rank, working.to_vec());
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        ring(&self.wake);
        self.registry.close();
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            tracing::error!("the thread that accepts connections has panicked; please report it");
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("rank", &self.rank).field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn accept_until_woken(mut acceptor: Acceptor, registry: &Registry, wake: &OwnedFd) {
    loop {
        let now = Instant::now();
        let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
        acceptor.poll_fds(now, &mut fds);
        if let Err(e) = wait(&mut fds, acceptor.timeout(now)) {
            tracing::warn!(error = %e, "the thread that accepts connections");
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !events[0].is_empty() {
            return;
        }
        for proven in acceptor.turn(&events[1..], Instant::now()) {
            // The acceptor lets only links to this rank pass.
            if let Purpose::Link { from, group, index, count, control, .. } = proven.purpose {
                registry.park(Key { from, group, control, index }, count, proven);
            }
        }
    }
}

/// Listeners, and the addresses to publish: most promising first, loopback last.
type Listening = (Vec<TcpListener>, Vec<SocketAddr>);

/// At a free port of every address of this host.
fn listen_everywhere() -> Result<Listening> {
    let nics = nic::addresses(None)?;
    let at = |ip: IpAddr| listen_at(SocketAddr::new(ip, 0));
    let (listener, v6) = match at(Ipv6Addr::UNSPECIFIED.into()) {
        Ok(listener) => (listener, true),
        // A system without IPv6.
        Err(_) => (at(Ipv4Addr::UNSPECIFIED.into()).map_err(cannot_listen)?, false),
    };
    let port = listener.local_addr().map_err(cannot_listen)?.port();
    Ok((vec![listener], nic::with_port(&nics, port, v6)))
}

/// At the loopback address alone: nobody from another host can even try to connect.
fn listen_here() -> Result<Listening> {
    let at = |ip: IpAddr| listen_at(SocketAddr::new(ip, 0));
    let listener = at(Ipv4Addr::LOCALHOST.into()).or_else(|_| at(Ipv6Addr::LOCALHOST.into())).map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;
    Ok((vec![listener], vec![address]))
}

/// At each of these addresses, and no other.
fn listen_at_each(nics: &[NicAddress]) -> Result<Listening> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    let mut failed = None;
    for nic in nics {
        let listening = listen_at(SocketAddr::new(nic.address, 0)).and_then(|l| l.local_addr().map(|at| (l, at)));
        match listening {
            Ok((listener, address)) => {
                listeners.push(listener);
                addresses.push(address);
            }
            Err(e) => failed = Some(e),
        }
    }
    match failed {
        // One of several addresses may be of no use, as an IPv6 one that is still being set up.
        _ if !listeners.is_empty() => Ok((listeners, addresses)),
        Some(e) => Err(cannot_listen(e)),
        None => Err(Error::Usage(format!(
            "the network interfaces that {} names have no address that other hosts could use",
            corro_core::config::INTERFACE.name
        ))),
    }
}

fn cannot_listen(e: std::io::Error) -> Error {
    Error::io("opening a TCP port to listen on", e)
}

/// A listener at `address`; the unspecified IPv6 address also takes IPv4.
pub(crate) fn listen_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM.nonblocking(), Some(socket2::Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if address.port() != 0 {
        // A restarted store must get its port back although connections of the old one linger.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    // All ranks of a job may dial at the same moment. The system cuts this to what it allows.
    socket.listen(4096)?;
    Ok(socket.into())
}

/// Something to poll that another thread can make readable.
pub(crate) fn wake_fd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| Error::io("making an eventfd", e))
}

/// Makes a [`wake_fd`] readable.
pub(crate) fn ring(wake: &OwnedFd) {
    // It can fail only if it was rung 2^64 times already, and then it is readable.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

fn check_streams(streams: usize) -> Result<()> {
    if (1..=MAX_STREAMS).contains(&streams) {
        return Ok(());
    }
    Err(Error::Usage(format!("{streams} streams between two ranks: CORRO_STREAMS must be from 1 to {MAX_STREAMS}")))
}

/// What to try for stream `index`: the known ways in turn, then everything else the peer published.
fn order(published: &[SocketAddr], working: &[SocketAddr], index: usize) -> Vec<SocketAddr> {
    let start = if working.is_empty() { 0 } else { index % working.len() };
    let (before, from) = working.split_at(start);
    let mut seen = HashSet::new();
    from.iter().chain(before).chain(published).copied().filter(|a| seen.insert(*a)).collect()
}

/// Of the ways that work, one for each network card of ours, since two through the same card gain nothing.
fn one_per_card(proven: &[Verified]) -> Vec<SocketAddr> {
    let nics = nic::addresses(None).unwrap_or_default();
    let ways: Vec<_> = proven.iter().map(|v| (v.address, v.local_address().map(|l| l.ip()))).collect();
    choose_ways(&ways, &nics)
}

fn choose_ways(ways: &[(SocketAddr, Option<IpAddr>)], nics: &[NicAddress]) -> Vec<SocketAddr> {
    let only_loopback = ways.iter().all(|(address, _)| address.ip().is_loopback());
    let mut seen = HashSet::new();
    let through_new_card = |(address, local): &&(SocketAddr, Option<IpAddr>)| {
        let card = local.map(|ip| nic::interface_of(ip, nics).map_or_else(|| ip.to_string(), str::to_owned));
        (only_loopback || !address.ip().is_loopback()) && seen.insert(card)
    };
    ways.iter().filter(through_new_card).map(|(address, _)| *address).collect()
}

fn unreachable(peer: &PeerAddress, tried: &[Tried], deadline: Deadline) -> Error {
    let how = if tried.is_empty() { "it has published no address".to_owned() } else { dial::list(tried) };
    Error::peer_lost(
        peer.rank,
        &peer.host,
        format!(
            "can't connect to it{}: {how}. See that rank's own log; if a wrong network is used, name the right \
             interface by CORRO_INTERFACE; if it is just slow to start, raise CORRO_CONNECT_TIMEOUT",
            dial::within(deadline)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_limit::GivenUp;
    use crate::withdrawal::Withdrawal;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn endpoint(rank: Rank, secret: &Secret) -> Endpoint {
        let secret = secret.clone();
        Endpoint::bind(EndpointConfig { rank, secret, tls: false, interfaces: None, one_host: false }).unwrap()
    }

    #[test]
    fn dialling_and_accepting_can_be_called_off() {
        let (secret, reason) = (Secret::random().unwrap(), Error::peer_lost(Rank::new(7), "node7", "it has exited"));
        let one = endpoint(Rank::new(1), &secret);
        // Connects, and then nobody says anything.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = || vec![silent.local_addr().unwrap()];
        let peer = |rank| PeerAddress { rank: Rank::new(rank), host: "node".into(), addresses: addresses() };
        let (withdrawal, given_up) = (Withdrawal::default(), GivenUp::default());
        let wait_limit = || WaitLimit::new(Duration::ZERO, &withdrawal, &given_up);
        std::thread::scope(|scope| {
            let dials = scope.spawn(|| one.connect(&peer(0), GroupId(1), 1, wait_limit()).map(drop));
            let accepts = scope.spawn(|| one.accept(&peer(2), GroupId(1), 1, wait_limit()).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            given_up.set(reason.clone());
            assert_eq!((dials.join().unwrap(), accepts.join().unwrap()), (Err(reason.clone()), Err(reason)));
        });
    }

    /// The addresses at which this process listens with one of these ports, as the kernel tells.
    fn really_listening(ports: &[u16]) -> Vec<IpAddr> {
        let tables =
            ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
        let rows = tables.iter().flat_map(|table| table.lines().skip(1));
        rows.filter_map(|row| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let (ip, port) = words.get(1)?.split_once(':')?;
            let ours = words.get(3) == Some(&"0A") && ports.contains(&u16::from_str_radix(port, 16).ok()?);
            let bytes: Vec<u8> = (0..ip.len() / 8)
                .flat_map(|w| u32::from_str_radix(&ip[8 * w..8 * w + 8], 16).unwrap_or_default().to_le_bytes())
                .collect();
            let ip: IpAddr = match <[u8; 4]>::try_from(bytes.as_slice()) {
                Ok(v4) => v4.into(),
                Err(_) => <[u8; 16]>::try_from(bytes.as_slice()).ok()?.into(),
            };
            ours.then_some(ip)
        })
        .collect()
    }

    #[test]
    fn it_listens_where_it_must_and_nowhere_else() {
        for (interfaces, one_host) in [(Some(vec!["lo".into()]), false), (Some(vec!["lo".into()]), true), (None, true)]
        {
            let secret = Secret::random().unwrap();
            let config =
                EndpointConfig { rank: Rank::ZERO, secret, tls: false, interfaces: interfaces.clone(), one_host };
            let endpoint = Endpoint::bind(config).unwrap();
            let ports: Vec<u16> = endpoint.addresses().iter().map(SocketAddr::port).collect();
            let mut listening = really_listening(&ports);
            let mut published: Vec<IpAddr> = endpoint.addresses().iter().map(SocketAddr::ip).collect();
            listening.sort_unstable();
            published.sort_unstable();
            assert_eq!(listening, published, "{interfaces:?} {one_host}");
            assert!(published.iter().all(IpAddr::is_loopback), "{published:?}");
        }
    }

    #[test]
    fn a_rank_that_has_stopped_listening_is_not_waited_for() {
        let secret = Secret::random().unwrap();
        // Bound, and not listening: nobody else gets the port meanwhile, whom the other rank would then speak to.
        let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        held.bind(&at("127.0.0.1:0").into()).unwrap();
        let addresses = vec![held.local_addr().unwrap().as_socket().unwrap()];
        let gone = PeerAddress { rank: Rank::ZERO, host: "node0".into(), addresses };
        let error =
            endpoint(Rank::new(1), &secret).connect(&gone, GroupId(1), 1, Deadline::never()).map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::PeerLost { rank: Rank::ZERO, cause, .. } if cause.contains("has exited")),
            "{error}"
        );
    }

    #[test]
    fn streams_go_round_the_working_ways_and_fall_back_to_the_rest() {
        let published = [at("10.0.0.1:1"), at("10.1.0.1:1"), at("10.2.0.1:1"), at("127.0.0.1:1")];
        let working = [at("10.0.0.1:1"), at("10.2.0.1:1")];
        assert_eq!(order(&published, &[], 3), published);
        assert_eq!(order(&published, &working, 2)[..2], working);
        assert_eq!(
            order(&published, &working, 1),
            [at("10.2.0.1:1"), at("10.0.0.1:1"), at("10.1.0.1:1"), at("127.0.0.1:1")]
        );
    }

    #[test]
    fn one_way_through_each_card_and_loopback_only_alone() {
        let ways = [
            (at("10.0.0.9:1"), Some("10.0.0.2".parse().unwrap())),
            (at("10.0.0.10:1"), Some("10.0.0.2".parse().unwrap())),
            (at("10.1.0.9:1"), Some("10.1.0.2".parse().unwrap())),
            (at("127.0.0.1:1"), Some("127.0.0.1".parse().unwrap())),
        ];
        assert_eq!(choose_ways(&ways, &[]), [at("10.0.0.9:1"), at("10.1.0.9:1")]);
        assert_eq!(choose_ways(&ways[3..], &[]), [at("127.0.0.1:1")]);
    }
}
