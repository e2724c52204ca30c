//! Inside hosts through shared memory, between hosts by several ranks at once.
//!
//! Allreduce of N bytes over hosts with L ranks each, C of which *carry* (C = the smallest L, so that each carrier has a
//! counterpart on every host):
//!
//! 1. every rank puts its data into its shared area (nothing to do if it lives there);
//! 2. the ranks of a host reduce it, each a part, into the areas of the carriers, each of which holds N / C bytes;
//! 3. carrier i of each host allreduces its part with the carriers i of the other hosts: all at once, so that every
//!    stream of the network card is busy;
//! 4. every rank copies the carriers' parts.
//!
//! Between hosts each carrier sends 2 (h - 1) / h of N / C bytes for h hosts. Hosts may have any number of ranks. A rank
//! alone on its host skips 1, 2 and 4.

use std::ops::Range;
use std::time::Duration;

use corro_core::Result;
use corro_transport::{Channel, Links, Team};

use super::direct::{area, element_share, reduce_areas};
use crate::executor::Arithmetic;
use crate::pieces::Pieces;
use crate::subset::Subset;

/// Which ranks carry data between hosts.
#[derive(Clone, Debug)]
pub(crate) struct Carriers {
    /// Members by host.
    hosts: Vec<Vec<usize>>,
    /// Which host this is.
    here: usize,
    /// Which of its ranks this is.
    seat: usize,
    /// How many ranks of each host carry.
    count: usize,
}

impl Carriers {
    pub(crate) fn new(hosts: Vec<Vec<usize>>, me: usize) -> Self {
        let seat_on = |host: &Vec<usize>| host.iter().position(|m| *m == me);
        let (here, seat) = hosts.iter().enumerate().find_map(|(h, host)| Some((h, seat_on(host)?))).unwrap_or((0, 0));
        let count = hosts.iter().map(Vec::len).min().unwrap_or(1);
        Self { hosts, here, seat, count }
    }

    /// Those that carry the same part as this rank, one per host, or `None` if it doesn't carry.
    pub(crate) fn counterparts(&self) -> Option<Subset> {
        let members = |seat: usize| self.hosts.iter().map(|host| host[seat]).collect();
        (self.seat < self.count).then(|| Subset::of(members(self.seat), self.here))
    }

    /// One rank per host, `root` for its own host, with the root's position among them.
    pub(crate) fn representatives(&self, root: usize) -> (Vec<usize>, usize) {
        let at = self.hosts.iter().position(|host| host.contains(&root)).unwrap_or(0);
        let members = self.hosts.iter().enumerate().map(|(h, host)| if h == at { root } else { host[0] }).collect();
        (members, at)
    }

    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// The seat in this host of a member that is here.
    pub(crate) fn seat_of(&self, member: usize) -> usize {
        self.hosts[self.here].iter().position(|m| *m == member).unwrap_or(0)
    }
}

/// Allreduces the pieces, `window` bytes (as many as an area holds, on all hosts alike) at a time; `between` allreduces
/// a buffer among counterparts.
pub(crate) fn allreduce(
    channel: &mut Channel,
    carriers: &Carriers,
    pieces: &mut Pieces<'_, '_>,
    window: usize,
    how: Arithmetic,
    timeout: Duration,
    mut between: impl FnMut(&mut Links, &mut [u8], &Subset) -> Result<()>,
) -> Result<()> {
    let total = pieces.len();
    let mut start = 0;
    while start < total {
        let part = start..total.min(start.saturating_add(window));
        let len = part.len();
        if let Some(team) = channel.team.as_mut() {
            let own = team.area();
            pieces.for_each(part.clone(), |at, bytes| own[at..at + bytes.len()].copy_from_slice(bytes));
            allreduce_area(channel, carriers, 0..len, how, timeout, &mut between)?;
            if let Some(team) = channel.team.as_mut() {
                let own = team.area();
                pieces.for_each(part.clone(), |at, bytes| bytes.copy_from_slice(&own[at..at + bytes.len()]));
            }
        } else if let Some(subset) = carriers.counterparts() {
            match pieces.single() {
                Some(buffer) => between(&mut channel.links, &mut buffer[part.clone()], &subset)?,
                None => {
                    let mut packed = vec![0; len];
                    pieces.gather(&mut packed);
                    between(&mut channel.links, &mut packed, &subset)?;
                    pieces.scatter(&packed);
                }
            }
        }
        start = part.end;
    }
    Ok(())
}

/// Allreduces a part of the shared area, in place.
pub(crate) fn allreduce_area(
    channel: &mut Channel,
    carriers: &Carriers,
    range: Range<usize>,
    how: Arithmetic,
    timeout: Duration,
    between: &mut impl FnMut(&mut Links, &mut [u8], &Subset) -> Result<()>,
) -> Result<()> {
    let Some(team) = channel.team.as_mut() else { return Ok(()) };
    let (size, me) = (team.size(), team.me());
    let carried = |carrier: usize| {
        let part = element_share(range.len(), carriers.count, carrier, how.dtype);
        range.start + part.start..range.start + part.end
    };
    team.barrier(timeout)?;
    // Reducing is dealt evenly to all ranks of the host, whoever carries the result.
    let mine = element_share(range.len(), size, me, how.dtype);
    let mine = range.start + mine.start..range.start + mine.end;
    let unscaled = Arithmetic { factor: 1.0, ..how };
    for carrier in 0..carriers.count {
        let part = carried(carrier);
        let overlap = mine.start.max(part.start)..mine.end.min(part.end);
        if !overlap.is_empty() {
            reduce_areas(team, overlap, unscaled, carrier, |_| ());
        }
    }
    team.barrier(timeout)?;
    if let Some(subset) = carriers.counterparts() {
        between(&mut channel.links, &mut team.area()[carried(carriers.seat)], &subset)?;
    }
    team.barrier(timeout)?;
    collect(team, carriers, carried);
    // The others may still be copying from this rank's area.
    team.barrier(timeout)
}

fn collect(team: &Team, carriers: &Carriers, carried: impl Fn(usize) -> Range<usize>) {
    for carrier in (0..carriers.count).filter(|c| *c != team.me()) {
        let part = carried(carrier);
        team.copy(area(team, team.me(), &part), area(team, carrier, &part));
    }
}
