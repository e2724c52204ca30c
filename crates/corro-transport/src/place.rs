//! How a process learns its place in the job, and how it meets the others.
//!
//! A launcher of ours says everything: rank, size, where the store is, the secret. Other launchers say who a process is
//! (`launchers`), and then rank 0 serves the store and writes down where (`meeting_file`). Nothing said at all is a world of
//! one.

mod launchers;
mod meeting_file;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corro_core::{Deadline, Error, Rank, Result, config};
use launchers::Identity;

use self::meeting_file::{AGAIN, MeetingPoint, ONE_TRY};
use crate::bind::Bind;
use crate::fabric::{Fabric, Rendezvous};
use crate::holder::hold;
use crate::nic;
use crate::reminder::Reminder;
use crate::secret::Secret;
use crate::settings::Settings;
use crate::store;

/// A place in a job of several processes.
#[derive(Debug)]
pub struct Place {
    /// Which rank.
    pub rank: Rank,
    /// Of how many.
    pub size: usize,
    /// Whether all of them are known to be on this host.
    one_host: bool,
    meeting: Meeting,
}

/// How the ranks of a job meet.
#[derive(Debug)]
enum Meeting {
    /// At a store that the launcher serves.
    Launcher { addresses: Vec<SocketAddr>, secret: Secret },
    /// At a store that rank 0 serves, at an address everybody was told: at the first of these ports that is free there.
    Told { host: String, ports: Vec<u16>, secret: Secret },
    /// At a store that rank 0 serves; where, and with which secret, is said in a file.
    File { path: std::path::PathBuf, port: u16 },
}

impl Place {
    /// What the environment says; `None` if it says nothing: a world of one.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(found) = launchers::find(&|name| launchers::read(name))? else { return Ok(None) };
        let secret = config::SECRET.value().map(|text| Secret::parse(&text)).transpose()?;
        if let Some(text) = config::RENDEZVOUS.value() {
            let secret = secret.ok_or_else(|| found.lacks(config::SECRET.name, "start the job with `corro run`"))?;
            let meeting = Meeting::Launcher { addresses: look_up(&text)?, secret };
            return Ok(Some(Self::new(&found, meeting)));
        }
        if found.size == 1 {
            return Ok(None);
        }
        let meeting = Self::without_launcher(&found, secret)?;
        Ok(Some(Self::new(&found, meeting)))
    }

    fn new(found: &Identity, meeting: Meeting) -> Self {
        Self { rank: found.rank, size: found.size, one_host: found.one_host == Some(true), meeting }
    }

    fn without_launcher(found: &Identity, secret: Option<Secret>) -> Result<Meeting> {
        let port = config::RENDEZVOUS_PORT.number(0u16)?;
        if let (Some(secret), Some((host, master_port))) = (secret, &found.master) {
            let ports = if port == 0 { ports_beside(*master_port) } else { vec![port] };
            // A job of the same user beside this one may have the same secret, and be found at one of these ports.
            let secret = Secret::from_bytes(secret.derive(&format!("the job of master port {master_port}")));
            return Ok(Meeting::Told { host: host.clone(), ports, secret });
        }
        let Some(job) = &found.job else {
            let what = "start the job with `corro run`; or set, to the same on all ranks, CORRO_SECRET (64 random \
                        hexadecimal digits), MASTER_ADDR (rank 0's host) and MASTER_PORT; or, where all hosts share a \
                        home directory, CORRO_JOB_ID";
            return Err(found.lacks(config::RENDEZVOUS.name, what));
        };
        let path = meeting_file::directory(found.one_host == Some(true))?.join(meeting_file::file_name(job));
        Ok(Meeting::File { path, port })
    }

    /// Whether `bytes` are a file that rank 0 could have written. For the fuzzer.
    #[doc(hidden)]
    pub fn is_meeting_file(bytes: &[u8]) -> bool {
        meeting_file::parse(bytes).is_ok()
    }

    /// What all processes that the environment takes for this rank have in common, and no others do; see [`hold`].
    pub fn claim(&self) -> [u8; 32] {
        let rank = (self.rank.index() as u64).to_le_bytes();
        match &self.meeting {
            Meeting::Launcher { secret, .. } => secret.prove("rank", &[&rank]),
            Meeting::Told { host, ports, secret } => {
                let ports: Vec<u8> = ports.iter().flat_map(|port| port.to_le_bytes()).collect();
                secret.prove("rank", &[&rank, host.as_bytes(), &ports])
            }
            Meeting::File { path, .. } => {
                Secret::from_bytes([0; 32]).prove("rank", &[&rank, path.as_os_str().as_encoded_bytes()])
            }
        }
    }

    /// The launcher's store and the job's secret, if a launcher of ours started this process.
    pub fn launchers_store(&self) -> Option<(&[SocketAddr], &Secret)> {
        match &self.meeting {
            Meeting::Launcher { addresses, secret } => Some((addresses, secret)),
            Meeting::Told { .. } | Meeting::File { .. } => None,
        }
    }

    /// Rank 0's host, the ports of which it serves at the first that is free, and the secret, if those are what ranks were
    /// told.
    pub fn told(&self) -> Option<(&str, &[u16], &Secret)> {
        match &self.meeting {
            Meeting::Told { host, ports, secret } => Some((host, ports, secret)),
            Meeting::Launcher { .. } | Meeting::File { .. } => None,
        }
    }
}

/// How far from the master's port rank 0's may be, nearest first. The master's own is taken by whoever the variable was made
/// for, and those next to it may be other jobs'.
const BESIDE: [u16; 4] = [1, 11, 101, 1001];

/// Where rank 0 serves if it was told the master's port only. All ranks come to the same list.
fn ports_beside(master: u16) -> Vec<u16> {
    BESIDE.iter().map(|far| master.checked_add(*far).unwrap_or_else(|| master - far)).collect()
}

/// Where a host may serve at one of these ports, the first ports first.
pub fn look_up_ports(host: &str, ports: &[u16]) -> Result<Vec<SocketAddr>> {
    let doing = || format!("looking up rank 0 at {host}:{}", ports.first().copied().unwrap_or_default());
    let found: Vec<SocketAddr> = (host, 0).to_socket_addrs().map_err(|e| Error::io(doing(), e))?.collect();
    let at = |port: &u16| found.iter().map(|a| SocketAddr::new(a.ip(), *port)).collect::<Vec<_>>();
    Ok(ports.iter().flat_map(at).collect())
}

/// `a:1,b:2` as addresses. Names that lead nowhere are fine as long as one does.
pub fn look_up(text: &str) -> Result<Vec<SocketAddr>> {
    let mut failed = None;
    let mut found = Vec::new();
    for one in text.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        match one.to_socket_addrs() {
            Ok(addresses) => found.extend(addresses),
            Err(e) => failed = Some(Error::io(format!("looking up the rendezvous {one:?}"), e)),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ if found.is_empty() => Err(Error::Usage(format!("{} holds no address", config::RENDEZVOUS.name))),
        _ => Ok(found),
    }
}

impl Fabric {
    /// Joins the job the environment describes, or makes a world of one.
    pub fn from_env() -> Result<Arc<Self>> {
        Self::from_env_with(Settings::from_env()?)
    }

    /// As [`Fabric::from_env`], with settings of the caller's own.
    pub fn from_env_with(settings: Settings) -> Result<Arc<Self>> {
        match Place::from_env()? {
            Some(place) => Self::at(&place, settings),
            None => {
                Self::threads(&[0], &settings).pop().ok_or_else(|| Error::Bug("no fabric for a world of one".into()))
            }
        }
    }

    /// Joins a job at `place`. All ranks must do so, and if they do it again, all of them. A second process that comes for
    /// the same place is refused.
    pub fn at(place: &Place, settings: Settings) -> Result<Arc<Self>> {
        // Counted, so that what is left of an earlier time is never taken for this one.
        static TIMES: AtomicU64 = AtomicU64::new(0);
        hold(&place.claim(), &format!("rank {}", place.rank))?;
        let time = TIMES.fetch_add(1, Ordering::Relaxed);
        let deadline = settings.arrival_deadline();
        let (rank, size) = (place.rank, place.size);
        let settings = Settings { one_host: settings.one_host || place.one_host, ..settings };
        match &place.meeting {
            Meeting::Launcher { addresses, secret } => {
                let connect = Deadline::after(settings.connect_timeout);
                let mut client = store::Client::connect(addresses, secret, settings.tls, connect)?;
                Self::join(rank, size, secret, &mut client, settings)
            }
            Meeting::Told { host, ports, secret } => {
                let client = if rank == Rank::ZERO {
                    serve_at_one_of(host, ports, secret, &settings, deadline)?
                } else {
                    seek_rank_0(host, ports, secret, settings.tls, deadline)?
                };
                join_and_wait(place, secret, Numbered { client, time }, settings, deadline)
            }
            Meeting::File { path, port } => {
                let path = path.with_extension(time.to_string());
                if rank != Rank::ZERO {
                    let (client, secret) = meeting_file::follow(&path, settings.tls, deadline)?;
                    return join_and_wait(place, &secret, Numbered { client, time }, settings, deadline);
                }
                let secret = Secret::random()?;
                let interfaces = settings.interfaces.as_deref().filter(|_| !place.one_host);
                let bind = interfaces.map(|names| Bind::interfaces(names, *port)).transpose()?;
                let server = serve(*port, place.one_host, bind.as_ref(), &secret, settings.tls)?;
                // Removed again when everybody has come, or nobody will any more.
                let _written = meeting_file::write(&path, &MeetingPoint::new(server.addresses()?, &secret))?;
                let client = store::Client::connect(&here(server.address().port()), &secret, settings.tls, deadline)?;
                join_and_wait(place, &secret, Numbered { client, time }, settings, deadline)
            }
        }
    }
}

/// Joins, and does not go on before everybody has: the store is served by a rank, which may end at any moment after.
fn join_and_wait(
    place: &Place,
    secret: &Secret,
    mut store: Numbered,
    settings: Settings,
    deadline: Deadline,
) -> Result<Arc<Fabric>> {
    let fabric = Fabric::join(place.rank, place.size, secret, &mut store, settings)?;
    store.publish(&format!("joined/{}", place.rank), Vec::new(), deadline)?;
    if place.rank == Rank::ZERO {
        let all: Vec<String> = (0..place.size).map(|rank| format!("joined/{rank}")).collect();
        store.collect(&all, deadline)?;
    }
    Ok(fabric)
}

/// Connects to the store that rank 0 serves. It may come later than we do, and so may its name: where processes are started
/// one by one, as Kubernetes does, a name is known only once its process runs. At some of the ports there may be strangers.
fn seek_rank_0(host: &str, ports: &[u16], secret: &Secret, tls: bool, deadline: Deadline) -> Result<store::Client> {
    let mut reminder = Reminder::new();
    loop {
        let one_try = deadline.left().map_or(ONE_TRY, |left| left.min(ONE_TRY)).max(Duration::from_millis(1));
        let one_try = Deadline::after(one_try);
        let tried =
            look_up_ports(host, ports).and_then(|addresses| store::Client::connect(&addresses, secret, tls, one_try));
        match tried {
            Ok(client) => return Ok(client),
            // Nobody but strangers, or ranks with another secret: no use waiting for more.
            Err(error @ Error::Unauthenticated(_)) if !one_try.passed() => return Err(not_found(host, ports, error)),
            Err(error) if deadline.passed() => return Err(not_found(host, ports, error)),
            Err(error) => {
                if reminder.is_due() {
                    tracing::warn!(
                        "this process waits for rank 0 at {host}, {}, which can't be reached yet ({error}). \
                         CORRO_CONNECT_TIMEOUT says for how long ranks wait",
                        named(ports)
                    );
                }
                std::thread::sleep(AGAIN);
            }
        }
    }
}

/// `port 1` or `ports 1, 2`.
fn named(ports: &[u16]) -> String {
    let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
    format!("port{} {}", if ports.len() == 1 { "" } else { "s" }, list.join(", "))
}

fn not_found(host: &str, ports: &[u16], error: Error) -> Error {
    let doing = format!("finding rank 0 of this job at {host}, {}", named(ports));
    match error {
        Error::Unauthenticated(why) => Error::Unauthenticated(format!("{doing}: {why}")),
        why => Error::io(doing, why),
    }
}

/// Rank 0's own connection to the store that it serves at the first of these ports that is free.
fn serve_at_one_of(
    host: &str,
    ports: &[u16],
    secret: &Secret,
    settings: &Settings,
    deadline: Deadline,
) -> Result<store::Client> {
    let ips = match &settings.interfaces {
        Some(names) => where_they_come(names, host)?,
        None => None,
    };
    let port = serve_for_good(ports, ips.as_deref(), secret, settings.tls)?;
    store::Client::connect(&here(port), secret, settings.tls, deadline)
}

/// Where the others come who were told this host: at its own addresses by that name, and at the interfaces that the user named.
/// `None`: at any, since it is not known by which address this host is called so.
fn where_they_come(names: &[String], host: &str) -> Result<Option<Vec<IpAddr>>> {
    let Bind::Each(mut all, _) = Bind::interfaces(names, 0)? else { return Ok(None) };
    let own: Vec<IpAddr> = nic::addresses(None)?.into_iter().map(|nic| nic.address).collect();
    let called = (host, 0).to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect);
    let called: Vec<IpAddr> =
        called.iter().map(|at: &SocketAddr| at.ip().to_canonical()).filter(|ip| own.contains(ip)).collect();
    if called.is_empty() {
        return Ok(None);
    }
    all.extend(called);
    all.sort_by_key(IpAddr::is_loopback);
    let mut seen = Vec::new();
    all.retain(|ip| {
        !seen.contains(ip) && {
            seen.push(*ip);
            true
        }
    });
    Ok(Some(all))
}

fn here(port: u16) -> Vec<SocketAddr> {
    vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))]
}

fn serve(port: u16, one_host: bool, bind: Option<&Bind>, secret: &Secret, tls: bool) -> Result<store::Server> {
    let limits = store::Limits::default();
    if let Some(bind) = bind {
        return store::Server::start_at(bind, secret, tls, limits);
    }
    if one_host {
        return store::Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), secret, tls, limits);
    }
    store::Server::start(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), secret, tls, limits)
        // A system without IPv6.
        .or_else(|_| store::Server::start(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), secret, tls, limits))
}

/// Serves at the first of these ports that is free, which it gives, until the process ends: a rank that joins anew may come to
/// the store of the time before, and must find it there.
fn serve_for_good(ports: &[u16], ips: Option<&[IpAddr]>, secret: &Secret, tls: bool) -> Result<u16> {
    static SERVED: Mutex<Vec<store::Server>> = Mutex::new(Vec::new());
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = served.iter().map(|s| s.address().port()).find(|port| ports.contains(port)) {
        return Ok(before);
    }
    let store = first_free(ports, |port| {
        let bind = ips.map(|ips| Bind::Each(ips.to_vec(), port));
        serve(port, false, bind.as_ref(), secret, tls)
    })?;
    let port = store.address().port();
    served.push(store);
    Ok(port)
}

/// What `open` gives at the first port where it can.
pub fn first_free<T>(ports: &[u16], mut open: impl FnMut(u16) -> Result<T>) -> Result<T> {
    let mut taken = Vec::new();
    for port in ports {
        match open(*port) {
            Ok(opened) => return Ok(opened),
            Err(error) if ports.len() == 1 => return Err(error),
            Err(error) => {
                tracing::debug!(port, %error, "trying the next port");
                taken.push(error.to_string());
            }
        }
    }
    let what = "set CORRO_RENDEZVOUS_PORT, on all ranks alike, to a port that is free on rank 0's host";
    Err(Error::io(format!("serving at one of {}", named(ports)), format!("{}. {what}", taken.join("; "))))
}

/// A store in which the keys of each time ranks join are apart.
struct Numbered {
    client: store::Client,
    time: u64,
}

impl Numbered {
    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.time)
    }
}

impl Rendezvous for Numbered {
    fn publish(&mut self, key: &str, value: Vec<u8>, deadline: Deadline) -> Result<()> {
        self.client.set(&self.key(key), value, deadline)
    }

    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<String> = keys.iter().map(|k| self.key(k)).collect();
        self.client.get_many(&keys, deadline)
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn several_addresses_are_one_rendezvous() {
        let found = look_up("127.0.0.1:7, [::1]:8,").unwrap();
        assert_eq!(found, ["127.0.0.1:7".parse().unwrap(), "[::1]:8".parse().unwrap()]);
        assert!(look_up("").is_err() && look_up("nonsense").is_err());
        assert_eq!(look_up("nonsense,127.0.0.1:7").unwrap().len(), 1);
    }

    #[test]
    fn a_name_that_is_not_known_yet_is_looked_up_until_the_deadline() {
        let deadline = Deadline::after(Duration::from_millis(200));
        let error = seek_rank_0("rank0.invalid", &[1], &Secret::random().unwrap(), false, deadline).err().unwrap();
        assert!(deadline.passed(), "{error}");
        assert!(error.to_string().contains("looking up rank 0 at rank0.invalid:1"), "{error}");
    }

    #[test]
    fn the_ports_beside_the_masters_are_ports() {
        assert_eq!(ports_beside(29500), [29501, 29511, 29601, 30501]);
        assert_eq!(ports_beside(65535), [65534, 65524, 65434, 64534]);
    }

    /// A port that another program has, which says this to whoever comes.
    fn stranger(says: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut others = Vec::new();
            for mut other in listener.incoming().flatten() {
                let _ = other.write_all(says);
                others.push(other);
            }
        });
        port
    }

    fn free_port() -> u16 {
        TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port()
    }

    const GARBAGE: &[u8] =
        b"SSH-2.0-OpenSSH_9.6 and a good deal more, so that nobody takes it for the start of something\r\n";

    #[test]
    fn ranks_meet_where_strangers_have_the_first_ports() {
        for tls in [false, true] {
            let ports = vec![stranger(b""), stranger(GARBAGE), free_port()];
            let secret = Secret::random().unwrap();
            let ranks: Vec<_> = Rank::all(3)
                .map(|rank| {
                    let (ports, secret) = (ports.clone(), secret.clone());
                    std::thread::spawn(move || {
                        let deadline = Deadline::after(Duration::from_secs(20));
                        let settings = Settings { tls, ..Settings::default() };
                        let client = if rank == Rank::ZERO {
                            serve_at_one_of("127.0.0.1", &ports, &secret, &settings, deadline).unwrap()
                        } else {
                            seek_rank_0("127.0.0.1", &ports, &secret, tls, deadline).unwrap()
                        };
                        assert_eq!(client.address().port(), ports[2]);
                    })
                })
                .collect();
            for rank in ranks {
                rank.join().unwrap();
            }
        }
    }

    #[test]
    fn rank_0_serves_at_the_named_interfaces_and_where_it_was_said_to_be() {
        let lo = ["lo".to_owned()];
        let all = where_they_come(&lo, "127.0.0.1").unwrap().unwrap();
        assert!(all.iter().all(IpAddr::is_loopback), "{all:?}");
        // By which way this name leads here, nobody knows.
        assert_eq!(where_they_come(&lo, "192.0.2.1").unwrap(), None);
        let bind = Bind::interfaces(&lo, 0).unwrap();
        let server = serve(0, false, Some(&bind), &Secret::random().unwrap(), false).unwrap();
        assert!(server.addresses().unwrap().iter().all(|at| at.ip().is_loopback()), "{server:?}");
    }

    #[test]
    fn where_rank_0_is_not_it_is_said_what_is_there() {
        let (silent, talks, free) = (stranger(b""), stranger(GARBAGE), free_port());
        let (secret, deadline) = (Secret::random().unwrap(), Deadline::after(Duration::from_millis(400)));
        let error =
            seek_rank_0("127.0.0.1", &[silent, talks, free], &secret, false, deadline).err().unwrap().to_string();
        assert!(error.contains(&format!("at 127.0.0.1, ports {silent}, {talks}, {free}")), "{error}");
        assert!(error.contains(&format!(":{silent}: the connection was taken, but nobody of this job")), "{error}");
        assert!(
            error.contains(&format!(":{talks}: ")) && error.contains(&format!(":{free}: nothing listens")),
            "{error}"
        );
        let error = serve_for_good(&[silent, talks], None, &secret, false).unwrap_err().to_string();
        assert!(error.contains(&silent.to_string()) && error.contains(&talks.to_string()), "{error}");
        assert!(error.contains("set CORRO_RENDEZVOUS_PORT"), "{error}");
    }

    #[test]
    fn ranks_may_come_late_unless_the_user_says_otherwise() {
        let connect_timeout = Duration::from_secs(30);
        let granted = |arrival_timeout| {
            Settings { connect_timeout, arrival_timeout, ..Settings::default() }.arrival_deadline().granted()
        };
        assert_eq!(granted(None), connect_timeout);
        assert_eq!(granted(Some(Duration::from_secs(600))), Duration::from_secs(600));
    }

    /// Ranks as threads that meet by a file, twice.
    #[test]
    fn ranks_meet_by_a_file_and_leave_nothing() {
        let directory = std::env::temp_dir().join(format!("corro-meet-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("job");
        let ranks: Vec<_> = Rank::all(3)
            .map(|rank| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let secret_and_client = |path: &std::path::Path| {
                        meeting_file::follow(path, false, Deadline::after(Duration::from_secs(20)))
                    };
                    let deadline = Deadline::after(Duration::from_secs(20));
                    let meeting = Meeting::File { path: path.clone(), port: 0 };
                    let place = Place { rank, size: 3, one_host: true, meeting };
                    let settings = Settings { area: 1 << 16, ..Settings::default() };
                    if rank != Rank::ZERO {
                        let (client, secret) = secret_and_client(&path).unwrap();
                        return join_and_wait(&place, &secret, Numbered { client, time: 0 }, settings, deadline)
                            .unwrap()
                            .size();
                    }
                    let secret = Secret::random().unwrap();
                    let server = serve(0, true, None, &secret, false).unwrap();
                    let _written =
                        meeting_file::write(&path, &MeetingPoint::new(server.addresses().unwrap(), &secret)).unwrap();
                    let client =
                        store::Client::connect(&here(server.address().port()), &secret, false, deadline).unwrap();
                    join_and_wait(&place, &secret, Numbered { client, time: 0 }, settings, deadline).unwrap().size()
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), 3);
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}
