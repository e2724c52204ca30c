//! Who is where, and how to reach them.
//!
//! A process holds one [`Fabric`]. It knows every rank's host and addresses, and opens a [`Channel`] for each group of
//! ranks that works together. A channel has its own memory and its own connections, so groups never wait for each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Buffer, Deadline, Error, GroupId, Rank, Result};
use serde::{Deserialize, Serialize};

use crate::cores;
use crate::link::Link;
use crate::mem::Hub;
use crate::reminder::Reminder;
use crate::secret::Secret;
use crate::settings::Settings;
use crate::shm::meet::{Invitation, Seats, meet};
use crate::shm::pool::{Pool, Pools};
use crate::shm::segment::Sizes;
use crate::shm::stream::RingStream;
use crate::shm::team::{Hosts, Member, Team};
use crate::stream::Stream;
use crate::tcp::{Endpoint, EndpointConfig, PeerAddress};
use crate::wait_limit::{GivenUp, WaitLimit};
use crate::withdrawal::Withdrawal;

/// Longest description of a rank that is believed.
const CARD_CAP: usize = 64 << 10;

/// Bytes of a board's slot where a team only meets: what it shows then is two numbers.
const MEETING_SLOT: usize = 4096;

/// How long to look whether a rank has come, once it is too late anyway.
const BRIEFLY: Duration = Duration::from_millis(100);

/// What a rank tells all others about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its host, as people know it.
    pub host: String,
    /// Ranks with the same value can share memory.
    pub locality: String,
    /// Where it can be connected to.
    pub addresses: Vec<SocketAddr>,
}

/// Where ranks leave word for each other before they are connected. The job's store is one.
pub trait Rendezvous {
    /// Leaves `value` under `key` for everyone.
    fn publish(&mut self, key: &str, value: Vec<u8>, deadline: Deadline) -> Result<()>;

    /// What was left under `keys`, in that order; waits until all are there.
    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>>;
}

/// Who is where, and how to reach them.
pub struct Fabric {
    rank: Rank,
    cards: Vec<Card>,
    hosts: Hosts,
    settings: Settings,
    may_spin: bool,
    reach: Reach,
    given_up: GivenUp,
    pools: Arc<Pools>,
    objects: Secret,
}

/// What lies between ranks.
enum Reach {
    Threads(Arc<Hub>),
    Processes {
        endpoint: Box<Endpoint>,
        /// What the names of sockets inside a host are made from.
        names: Secret,
        /// Proves that a local process belongs to the job.
        token: [u8; 32],
    },
}

impl Fabric {
    /// Joins the job that meets at `rendezvous`: tells the others about this rank and learns about them.
    pub fn join(
        rank: Rank,
        size: usize,
        secret: &Secret,
        rendezvous: &mut dyn Rendezvous,
        settings: Settings,
    ) -> Result<Arc<Self>> {
        if rank.index() >= size {
            return Err(Error::Usage(format!("rank {rank} in a job of {size} ranks")));
        }
        let endpoint = Endpoint::bind(EndpointConfig {
            rank,
            secret: secret.clone(),
            tls: settings.tls,
            interfaces: settings.interfaces.clone(),
            one_host: settings.one_host,
        })?;
        let host = settings.host.clone().unwrap_or_else(host_name);
        let card = Card { locality: locality(&host), host, addresses: endpoint.addresses() };
        let card_bytes = corro_core::codec::encode(&card)?;
        let connect = Deadline::after(settings.connect_timeout);
        rendezvous.publish(&card_key(settings.epoch, rank), card_bytes, connect)?;
        let mut cards = Vec::with_capacity(size);
        let all = collect_cards(rank, size, settings.epoch, rendezvous, settings.arrival_deadline())?;
        for (of, bytes) in all.into_iter().enumerate() {
            let card = corro_core::codec::take::<Card>(&bytes, CARD_CAP).ok().flatten().ok_or_else(|| {
                Error::Malformed(format!("rank {of} described itself in a way this corro can't read"))
            })?;
            cards.push(card.0);
        }
        let names = Secret::from_bytes(secret.derive(&format!("socket names {}", settings.epoch)));
        let reach = Reach::Processes { endpoint: Box::new(endpoint), names, token: secret.derive("shared memory") };
        // All ranks of the host count, not only those of one group.
        let here = cards.iter().filter(|c| c.locality == cards[rank.index()].locality).count();
        let (may_spin, epoch) = (may_spin(&settings, here), settings.epoch);
        Ok(Arc::new(Self {
            rank,
            hosts: host_names(&cards),
            cards,
            settings,
            may_spin,
            reach,
            given_up: GivenUp::default(),
            pools: Arc::default(),
            objects: Secret::from_bytes(secret.derive(&format!("objects {epoch}"))),
        }))
    }

    /// Fabrics for threads of this process: `hosts[r]` is the (simulated) host of rank `r`.
    pub fn threads(hosts: &[usize], settings: &Settings) -> Vec<Arc<Self>> {
        let hub = Arc::new(Hub::default());
        let cards: Vec<Card> = hosts
            .iter()
            .map(|h| Card { host: format!("host{h}"), locality: format!("host{h}"), addresses: vec![] })
            .collect();
        Rank::all(hosts.len())
            .map(|rank| {
                let reach = Reach::Threads(Arc::clone(&hub));
                let may_spin = may_spin(settings, hosts.len());
                let (hosts, cards) = (host_names(&cards), cards.clone());
                let (settings, given_up, pools) = (settings.clone(), GivenUp::default(), Arc::default());
                // Nothing leaves the process.
                let objects = Secret::from_bytes([0; 32]);
                Arc::new(Self { rank, cards, hosts, settings, may_spin, reach, given_up, pools, objects })
            })
            .collect()
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks the job has.
    pub fn size(&self) -> usize {
        self.cards.len()
    }

    /// What each rank said about itself.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// What this rank of the job said about itself.
    pub fn card(&self, rank: Rank) -> &Card {
        &self.cards[rank.index()]
    }

    /// How it behaves.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The key by which ranks prove that what they were sent is what another rank sent, where the bytes themselves travel
    /// unprotected.
    pub fn object_key(&self) -> &Secret {
        &self.objects
    }

    /// Nothing more will come of this job, for this reason: whoever waits for ranks to connect stops with this error within
    /// moments, and so does whoever begins to. Channels that are open stay so. The first reason counts.
    pub fn give_up(&self, reason: Error) {
        self.given_up.set(reason);
    }

    /// Opens a channel for `members` (ascending ranks, this one among them). All of them must do so, and the number
    /// must be theirs alone.
    pub fn open(self: &Arc<Self>, id: GroupId, members: &[Rank]) -> Result<Channel> {
        self.open_withdrawable(id, members, Withdrawal::default())
    }

    /// As [`Fabric::open`], with a mark by which another thread ends waiting on the channel: for it to open, too.
    pub fn open_withdrawable(
        self: &Arc<Self>,
        id: GroupId,
        members: &[Rank],
        withdrawal: Withdrawal,
    ) -> Result<Channel> {
        self.channel(id, members, |ranks| Sizes::for_team(ranks, self.settings.area), withdrawal)
    }

    /// As [`Fabric::open`], but for plain byte streams to some of the members, by their places in `members`: for control
    /// messages, whose ends know nothing beforehand. Both ends of a stream must ask for it.
    pub fn streams(
        self: &Arc<Self>,
        id: GroupId,
        members: &[Rank],
        to: impl IntoIterator<Item = usize>,
    ) -> Result<Wires> {
        let sizes = |ranks| Sizes { slot: MEETING_SLOT, workspace: 0, ..Sizes::for_team(ranks, 0) };
        let Channel { team, links } = self.channel(id, members, sizes, Withdrawal::default())?;
        let streams = to.into_iter().map(|member| links.control_stream(member)).collect::<Result<_>>()?;
        Ok(Wires { streams, _team: team })
    }

    /// Makes memory that `members` share, `bytes` for each, and gives this member's part of it: zeros. A tensor that lies there
    /// is reduced without a copy. All members must call this, with a number that is theirs alone. `None` unless there are
    /// several and all are on one host.
    pub fn pool(self: &Arc<Self>, id: GroupId, members: &[Rank], bytes: usize) -> Result<Option<Buffer>> {
        let here = |r: &Rank| self.cards.get(r.index()).is_some_and(|c| c.locality == self.card(self.rank).locality);
        if members.len() < 2 || !members.iter().all(here) {
            return Ok(None);
        }
        let sizes = |ranks| Sizes { slot: MEETING_SLOT, workspace: 0, ..Sizes::for_team(ranks, bytes) };
        let Channel { team, links } = self.channel(id, members, sizes, Withdrawal::default())?;
        let Some(team) = team else { return Ok(None) };
        let (pool, part) = Pool::new(team.into_segment(), id, members.to_vec(), links.me);
        self.pools.add(&pool);
        Ok(Some(part))
    }

    fn channel(
        self: &Arc<Self>,
        id: GroupId,
        members: &[Rank],
        sizes: impl FnOnce(usize) -> Sizes,
        withdrawal: Withdrawal,
    ) -> Result<Channel> {
        let me = members
            .iter()
            .position(|r| *r == self.rank)
            .ok_or_else(|| Error::Usage(format!("rank {} is not a member of the provided process set", self.rank)))?;
        if !members.is_sorted_by(|a, b| a < b) || members.last().is_some_and(|r| r.index() >= self.size()) {
            return Err(Error::Usage(format!("{members:?} are not ascending ranks of a job of {}", self.size())));
        }
        let locality = |rank: Rank| &self.card(rank).locality;
        let local: Vec<usize> = (0..members.len()).filter(|m| locality(members[*m]) == locality(self.rank)).collect();
        let mut links = Links {
            fabric: Arc::clone(self),
            id,
            members: members.to_vec(),
            me,
            local,
            here: None,
            elsewhere: None,
            open: members.iter().map(|_| None).collect(),
            withdrawal,
        };
        let withdrawal = links.withdrawal.clone();
        let team = self.given_up.while_opening(&withdrawal, || links.meet(sizes))?;
        Ok(Channel { team, links })
    }
}

/// Whether ranks may spin while they wait, when `here` ranks share this host.
fn may_spin(settings: &Settings, here: usize) -> bool {
    settings.spin.unwrap_or_else(|| cores::may_spin(here))
}

/// Byte streams to some members of a group, see [`Fabric::streams`].
pub struct Wires {
    /// In the order in which they were asked for.
    pub streams: Vec<Box<dyn Stream>>,
    /// Has served to meet. Leaving it would mark this member as gone, which the streams would take for its end.
    _team: Option<Team>,
}

/// What a group of ranks works with: shared memory with those of this host, links to anyone.
pub struct Channel {
    /// The members of this host with whom memory is shared; `None` if this rank is alone here.
    pub team: Option<Team>,
    /// Links to all members.
    pub links: Links,
}

impl Channel {
    /// Ends all connections, so that peers learn at once that this rank has given up, and because of whom.
    pub fn abandon(&mut self, cause: &Error) {
        let own = self.links.members[self.links.me];
        let culprit = if let Error::PeerLost { rank, .. } = cause { *rank } else { own };
        if let Some(team) = &self.team {
            team.abandon(culprit);
        }
        for mut link in self.links.open.iter_mut().filter_map(Option::take) {
            link.say_goodbye(culprit);
        }
    }
}

/// The links of a channel, connected on first use.
pub struct Links {
    fabric: Arc<Fabric>,
    id: GroupId,
    members: Vec<Rank>,
    me: usize,
    local: Vec<usize>,
    /// Memory shared with the members of this host.
    here: Option<Seats>,
    /// Threads only: the rings that stand in for a network.
    elsewhere: Option<Seats>,
    open: Vec<Option<Link>>,
    withdrawal: Withdrawal,
}

impl Links {
    /// The members' ranks, ascending.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Which member this is.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Members by host: hosts in the order of their first member.
    pub fn hosts(&self) -> Vec<Vec<usize>> {
        let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (member, rank) in self.members.iter().enumerate() {
            let locality = self.fabric.card(*rank).locality.as_str();
            match hosts.iter_mut().find(|(l, _)| *l == locality) {
                Some((_, members)) => members.push(member),
                None => hosts.push((locality, vec![member])),
            }
        }
        hosts.into_iter().map(|(_, members)| members).collect()
    }

    /// How long a peer may make no progress while this rank waits for it.
    pub fn timeout(&self) -> Duration {
        self.fabric.settings.timeout
    }

    /// Whether waiting may spin.
    pub fn may_spin(&self) -> bool {
        self.fabric.may_spin
    }

    /// The mark by which another thread ends this rank's waiting on the channel.
    pub fn withdrawal(&self) -> &Withdrawal {
        &self.withdrawal
    }

    /// The link to `member`, connected on first use. Both ends must ask for it.
    pub fn to(&mut self, member: usize) -> Result<&mut Link> {
        if self.open[member].is_none() {
            self.open[member] = Some(self.connect(member)?);
        }
        self.open[member].as_mut().ok_or_else(|| Error::Bug("a link just made is gone".into()))
    }

    /// The link to `member`, if it is connected.
    pub fn connected(&self, member: usize) -> Option<&Link> {
        self.open[member].as_ref()
    }

    /// Meets the members of this host, and makes the team with them.
    fn meet(&mut self, sizes: impl FnOnce(usize) -> Sizes) -> Result<Option<Team>> {
        let ranks: Vec<Rank> = self.local.iter().map(|m| self.members[*m]).collect();
        let me = self.local.iter().position(|m| *m == self.me).unwrap_or(0);
        let limit = self.wait_limit();
        if ranks.len() > 1 {
            let sizes = sizes(ranks.len());
            self.here = Some(match &self.fabric.reach {
                Reach::Threads(hub) => hub.meet(self.id, &ranks, sizes, &limit)?,
                Reach::Processes { names, token, .. } => {
                    meet(&Invitation { names, token, group: self.id, local: &ranks, me, sizes }, &limit)?
                }
            });
        }
        if let Reach::Threads(hub) = &self.fabric.reach
            && ranks.len() < self.members.len()
        {
            let sizes = Sizes { slot: 0, workspace: 0, ..Sizes::for_team(self.members.len(), 0) };
            self.elsewhere = Some(hub.meet(self.id, &self.members, sizes, &limit)?);
        }
        let Some(seats) = &self.here else { return Ok(None) };
        let members = ranks.iter().enumerate().map(|(seat, rank)| self.member(*rank, seats, seat)).collect();
        let hosts = Arc::clone(&self.fabric.hosts);
        let segment = Arc::clone(&seats.segment);
        let mut team = Team::new(segment, members, me, self.fabric.may_spin, hosts, self.withdrawal.clone());
        team.try_peeking(self.fabric.settings.connect_timeout)?;
        Ok(Some(team.with_pools(Arc::clone(&self.fabric.pools))))
    }

    /// How long the others may take to come.
    fn wait_limit(&self) -> WaitLimit {
        let fabric = &self.fabric;
        WaitLimit::new(fabric.settings.connect_timeout, &self.withdrawal, &fabric.given_up)
    }

    fn member(&self, rank: Rank, seats: &Seats, seat: usize) -> Member {
        let exit = seats.exits[seat].as_ref().and_then(|fd| fd.try_clone().ok());
        Member { rank, host: self.fabric.card(rank).host.clone(), exit }
    }

    fn connect(&self, member: usize) -> Result<Link> {
        let streams = match self.ring(member)? {
            Some(ring) => vec![ring],
            None => self.network(member, Some(self.fabric.settings.streams))?,
        };
        Ok(Link::new(self.members[member], Arc::clone(&self.fabric.hosts), streams))
    }

    /// A stream for what ranks agree on.
    fn control_stream(&self, member: usize) -> Result<Box<dyn Stream>> {
        match self.ring(member)? {
            Some(ring) => Ok(ring),
            None => self.network(member, None)?.pop().ok_or_else(|| Error::Bug("a connection without a stream".into())),
        }
    }

    /// A stream through memory, if there is memory between us.
    fn ring(&self, member: usize) -> Result<Option<Box<dyn Stream>>> {
        if member == self.me {
            return Err(Error::Bug("a link to oneself".into()));
        }
        Ok(self.find_ring(member))
    }

    fn find_ring(&self, member: usize) -> Option<Box<dyn Stream>> {
        let seat = |member: usize| self.local.iter().position(|m| *m == member);
        let (seats, me, peer) = match seat(member) {
            Some(peer) => (self.here.as_ref()?, seat(self.me)?, peer),
            None => (self.elsewhere.as_ref()?, self.me, member),
        };
        let who = self.member(self.members[member], seats, peer);
        let (segment, doorbells) = (Arc::clone(&seats.segment), Arc::clone(&seats.doorbells));
        Some(Box::new(RingStream::new(segment, me, peer, doorbells, who, Arc::clone(&self.fabric.hosts))))
    }

    /// That many streams for data; with `None`, one for control.
    fn network(&self, member: usize, streams: Option<usize>) -> Result<Vec<Box<dyn Stream>>> {
        let Reach::Processes { endpoint, .. } = &self.fabric.reach else {
            return Err(Error::Bug("threads have no network".into()));
        };
        let rank = self.members[member];
        let card = self.fabric.card(rank);
        let peer = PeerAddress { rank, host: card.host.clone(), addresses: card.addresses.clone() };
        let limit = self.wait_limit();
        // The higher rank dials. Dialling never waits for the other's program, only for its listener, and accepting
        // waits only for higher ranks: so no circle of ranks can wait for each other.
        match (self.fabric.rank > rank, streams) {
            (true, Some(streams)) => endpoint.connect(&peer, self.id, streams, limit),
            (true, None) => endpoint.connect_control(&peer, self.id, &limit),
            (false, Some(streams)) => endpoint.accept(&peer, self.id, streams, limit),
            (false, None) => endpoint.accept_control(&peer, self.id, &limit),
        }
    }
}

fn host_names(cards: &[Card]) -> Hosts {
    cards.iter().map(|c| c.host.clone()).collect()
}

/// What all ranks say about themselves, once they have come. Says now and then whom it still waits for.
fn collect_cards(
    rank: Rank,
    size: usize,
    epoch: u64,
    rendezvous: &mut dyn Rendezvous,
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>> {
    let keys: Vec<String> = Rank::all(size).map(|rank| card_key(epoch, rank)).collect();
    let mut reminder = Reminder::new();
    loop {
        let left = deadline.left().unwrap_or(Duration::MAX).min(reminder.left());
        let part = Deadline::after(left.max(Duration::from_millis(1)));
        let error = match rendezvous.collect(&keys, part) {
            Ok(all) => return Ok(all),
            Err(error) => error,
        };
        let over = deadline.passed() || !part.passed();
        let missing = missing(epoch, size, rendezvous);
        if over {
            let Some(first) = missing.first() else { return Err(error) };
            let cause = format!("ranks {missing:?} did not come to the rendezvous: {error}");
            return Err(Error::peer_lost(*first, "an unknown host", cause));
        }
        // The first of those who are here speaks for all.
        if reminder.is_due() && !missing.is_empty() && Rank::all(rank.index()).all(|lower| missing.contains(&lower)) {
            tracing::warn!(
                "rank {rank} waits for ranks {missing:?}, which have not come to the rendezvous yet. They may still be busy \
                 before init(); see what they write. CORRO_CONNECT_TIMEOUT says for how long ranks wait"
            );
        }
    }
}

/// Which ranks have not left their card, as far as a short look tells: the first few.
fn missing(epoch: u64, size: usize, rendezvous: &mut dyn Rendezvous) -> Vec<Rank> {
    let mut absent = |rank: &Rank| rendezvous.collect(&[card_key(epoch, *rank)], Deadline::after(BRIEFLY)).is_err();
    Rank::all(size).filter(|rank| absent(rank)).take(4).collect()
}

fn card_key(epoch: u64, rank: Rank) -> String {
    format!("card/{epoch}/{rank}")
}

/// The name the system gives this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_str().map_or_else(|_| "unknown host".into(), str::to_owned)
}

/// Processes with the same value can meet at an abstract Unix socket and share memory: the same running kernel, the same
/// network namespace, the same user (whose number means something only within a user namespace), and not told apart by
/// name. Process namespaces may differ: nothing depends on a process's number. Ranks with different values use the network.
fn locality(host: &str) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").map(|p| p.display().to_string()).unwrap_or_default();
    let users = std::fs::read_link("/proc/self/ns/user").map(|p| p.display().to_string()).unwrap_or_default();
    format!("{host} {} {network} {users} {}", boot.trim(), rustix::process::geteuid().as_raw())
}
