//! Inside hosts through shared memory, between hosts by several ranks at once.
//!
//! Allreduce of N bytes over hosts with L ranks each, C of which *carry* (C = the smallest L, so that each carrier has a
//! counterpart on every host):
//!
//! 1. every rank puts its data into shared memory (nothing to do if it lives there);
//! 2. the ranks of a host reduce it, each a part, into the memory of the carriers, each of which holds N / C bytes;
//! 3. carrier i of each host allreduces its part with the carriers i of the other hosts: all at once, so that every
//!    stream of the network card is busy;
//! 4. every rank copies the carriers' parts.
//!
//! Between hosts each carrier sends 2 (h - 1) / h of N / C bytes for h hosts. Hosts may have any number of ranks. A rank
//! alone on its host skips 1, 2 and 4.
//!
//! Short data takes fewer waits: see `allreduce_short`. Long data goes in windows, so that the network works on one while memory works on its neighbours: steps 1 and 2 of
//! window k + 1 and step 4 of window k - 1 are done while window k is under way. Window k, counted over all allreduces of
//! the group, lies in part k % 3 of the workspace: a rank fills that part again only after a barrier of window k + 2,
//! which everyone enters after having copied window k.

use std::ops::Range;
use std::time::Duration;

use corro_core::Result;
use corro_transport::{Channel, Links, Source, Target, Team};

use super::direct::{self, blocks_of, element_share, reduce_shown, reduce_spans};
use super::halving_doubling::SHORT;
use crate::executor::{Arithmetic, Buffers, Run};
use crate::pieces::{Pieces, Tensor};
use crate::schedule::Schedule;
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

    /// Whether some host has a single member.
    pub(crate) fn any_alone(&self) -> bool {
        self.count == 1
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

    /// How many hosts, how many ranks of each carry, and which of these this one is.
    pub(crate) fn seats(&self) -> (usize, usize, Option<usize>) {
        (self.hosts.len(), self.count, (self.seat < self.count).then_some(self.seat))
    }

    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// The seat in this host of a member that is here.
    pub(crate) fn seat_of(&self, member: usize) -> usize {
        self.hosts[self.here].iter().position(|m| *m == member).unwrap_or(0)
    }
}

/// Bytes of one window; the workspace holds three.
pub(crate) const WINDOW: usize = 2 << 20;

/// One allreduce: what does not change on the way.
pub(crate) struct Job<'a, B> {
    pub(crate) carriers: &'a Carriers,
    pub(crate) how: Arithmetic,
    pub(crate) timeout: Duration,
    /// The number of the first window, counted over all allreduces of the group.
    pub(crate) first: usize,
    /// Plans how counterparts allreduce that many bytes.
    pub(crate) between: B,
}

/// A window on the network; on ranks that don't carry there is no run.
struct UnderWay {
    place: usize,
    bytes: usize,
    run: Option<Run>,
}

impl<B: Fn(&Subset, usize) -> Result<Schedule>> Job<'_, B> {
    /// Allreduces the pieces.
    pub(crate) fn allreduce(
        &self,
        channel: &mut Channel,
        pieces: &mut Pieces<'_, '_>,
        scratch: &mut [u8],
    ) -> Result<()> {
        if pieces.len() <= SHORT {
            return self.allreduce_short(channel, pieces, scratch);
        }
        let windows: Vec<Range<usize>> = blocks_of(0..pieces.len(), WINDOW).collect();
        let Channel { team, links } = channel;
        let Some(team) = team else { return self.alone(links, pieces, &windows, scratch) };
        let mut last: Option<UnderWay> = None;
        for k in 0..=windows.len() {
            if let Some(window) = windows.get(k) {
                let place = place(self.first + k);
                self.show(team, pieces, place, window);
                self.nudge(team, links, scratch, &mut last)?;
                team.barrier(self.timeout)?;
                self.reduce_window(team, pieces, place, window);
                self.nudge(team, links, scratch, &mut last)?;
                team.barrier(self.timeout)?;
            }
            let finished = last.take();
            if let Some(UnderWay { place, bytes, run: Some(mut run) }) = finished {
                self.on_part(team, place, bytes, scratch, |buffers| run.finish(links, buffers))?;
            }
            if let Some(window) = windows.get(k) {
                let run = self.start(links, window.len())?;
                last = Some(UnderWay { place: place(self.first + k), bytes: window.len(), run });
                self.nudge(team, links, scratch, &mut last)?;
            }
            if let Some(before) = k.checked_sub(1) {
                team.barrier(self.timeout)?;
                self.collect(team, pieces, place(self.first + before), &windows[before]);
            }
        }
        Ok(())
    }

    /// For short data fewer waits count more than shared work: everyone sums the host's values, the first rank of each host
    /// exchanges them, and tells the others.
    fn allreduce_short(&self, channel: &mut Channel, pieces: &mut Pieces<'_, '_>, scratch: &mut [u8]) -> Result<()> {
        let mut data = vec![0; pieces.len()];
        pieces.gather(&mut data);
        let Channel { team, links } = channel;
        if let Some(team) = team {
            direct::allreduce_short(
                team,
                &mut Pieces::new(&mut [Tensor::in_place(&mut data)]),
                self.unscaled(),
                self.timeout,
            )?;
        }
        if self.carriers.seat == 0 {
            let firsts = Subset::of(self.carriers.hosts.iter().map(|host| host[0]).collect(), self.carriers.here);
            let mut run = Run::start(links, (self.between)(&firsts, data.len())?, Some(self.how))?;
            run.finish(links, &mut Buffers { input: &[], main: &mut data, scratch })?;
        }
        if let Some(team) = team {
            direct::broadcast(team, 0, &mut data, self.timeout)?;
        }
        pieces.scatter(&data);
        Ok(())
    }

    /// Allreduces a part of the shared area, in place.
    pub(crate) fn allreduce_area(&self, channel: &mut Channel, range: &Range<usize>, scratch: &mut [u8]) -> Result<()> {
        let Channel { team: Some(team), links } = channel else { return Ok(()) };
        team.barrier(self.timeout)?;
        for (carrier, part) in self.dealt(team, range.len()) {
            let span = |m: usize| team.area_of(m, range.start + part.start, part.len());
            reduce_spans(team, self.unscaled(), carrier, &[], span);
        }
        team.barrier(self.timeout)?;
        if let Some(mut run) = self.start(links, range.len())? {
            let part = self.carried(range.len(), self.carriers.seat);
            let main = team.area(range.start + part.start..range.start + part.end);
            run.finish(links, &mut Buffers { input: &[], main, scratch })?;
        }
        team.barrier(self.timeout)?;
        for carrier in (0..self.carriers.count).filter(|c| *c != team.me()) {
            let part = self.carried(range.len(), carrier);
            let span = |m: usize| team.area_of(m, range.start + part.start, part.len());
            team.copy(span(team.me()), span(carrier));
        }
        // The others may still be copying from this rank's area.
        team.barrier(self.timeout)
    }

    /// For a rank that shares memory with nobody: its data goes to the network as it is.
    fn alone(
        &self,
        links: &mut Links,
        pieces: &mut Pieces<'_, '_>,
        windows: &[Range<usize>],
        scratch: &mut [u8],
    ) -> Result<()> {
        let mut run_on = |window: &Range<usize>, main: &mut [u8]| match self.start(links, window.len())? {
            Some(mut run) => run.finish(links, &mut Buffers { input: &[], main, scratch }),
            None => Ok(()),
        };
        let mut packed = Vec::new();
        for window in windows {
            if pieces.single().is_some() {
                pieces.settle(window.clone());
            }
            if let Some(tensor) = pieces.single() {
                run_on(window, &mut tensor.place()[window.clone()])?;
            } else {
                packed.resize(window.len(), 0);
                pieces.read(window.clone(), |at, part| packed[at..at + part.len()].copy_from_slice(part));
                run_on(window, &mut packed)?;
                pieces.write(window.clone(), |at, part| part.copy_from_slice(&packed[at..at + part.len()]));
            }
        }
        Ok(())
    }

    /// The part of `bytes` bytes that `carrier` carries.
    fn carried(&self, bytes: usize, carrier: usize) -> Range<usize> {
        element_share(bytes, self.carriers.count, carrier, self.how.dtype)
    }

    /// What this rank reduces of `bytes` bytes over the ranks of the host, and for which carrier. The work is dealt evenly,
    /// whoever carries the result.
    fn dealt(&self, team: &Team, bytes: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mine = element_share(bytes, team.size(), team.me(), self.how.dtype);
        (0..self.carriers.count).filter_map(move |carrier| {
            let part = self.carried(bytes, carrier);
            let both = mine.start.max(part.start)..mine.end.min(part.end);
            (!both.is_empty()).then_some((carrier, both))
        })
    }

    /// Inside the host nothing is scaled yet: more is to come.
    fn unscaled(&self) -> Arithmetic {
        Arithmetic { factor: 1.0, ..self.how }
    }

    /// Puts a window of this rank's data where the others of the host see it, but for what this rank reduces itself.
    fn show(&self, team: &mut Team, pieces: &Pieces<'_, '_>, place: usize, window: &Range<usize>) {
        let mine = element_share(window.len(), team.size(), team.me(), self.how.dtype);
        for part in [0..mine.start, mine.end..window.len()] {
            let own = team.workspace(place + part.start..place + part.end);
            pieces.read(window.start + part.start..window.start + part.end, |at, bytes| {
                own[at..][..bytes.len()].copy_from_slice(bytes);
            });
        }
    }

    /// Reduces this rank's share of a window into the carriers' workspaces.
    fn reduce_window(&self, team: &Team, pieces: &Pieces<'_, '_>, place: usize, window: &Range<usize>) {
        for (carrier, part) in self.dealt(team, window.len()) {
            pieces.read(window.start + part.start..window.start + part.end, |at, bytes| {
                let span = |m: usize| team.workspace_of(m, place + part.start + at, bytes.len());
                reduce_shown(team, self.unscaled(), Target::Shared(span(carrier)), &[], |m| {
                    if m == team.me() { Source::Private(bytes) } else { Source::Shared(span(m)) }
                });
            });
        }
    }

    /// Begins to reduce what this rank carries of `bytes` bytes with its counterparts, if it carries.
    fn start(&self, links: &mut Links, bytes: usize) -> Result<Option<Run>> {
        let Some(subset) = self.carriers.counterparts() else { return Ok(None) };
        let part = self.carried(bytes, self.carriers.seat);
        Run::start(links, (self.between)(&subset, part.len())?, Some(self.how)).map(Some)
    }

    /// Moves what can move without waiting.
    fn nudge(&self, team: &mut Team, links: &mut Links, scratch: &mut [u8], on: &mut Option<UnderWay>) -> Result<()> {
        let Some(UnderWay { place, bytes, run: Some(run) }) = on else { return Ok(()) };
        self.on_part(team, *place, *bytes, scratch, |buffers| run.pass(links, buffers).map(drop))
    }

    /// Calls `act` with what this rank carries of a window.
    fn on_part(
        &self,
        team: &mut Team,
        place: usize,
        bytes: usize,
        scratch: &mut [u8],
        act: impl FnOnce(&mut Buffers<'_>) -> Result<()>,
    ) -> Result<()> {
        let part = self.carried(bytes, self.carriers.seat);
        let main = team.workspace(place + part.start..place + part.end);
        act(&mut Buffers { input: &[], main, scratch })
    }

    /// Takes the finished window from the carriers.
    fn collect(&self, team: &Team, pieces: &mut Pieces<'_, '_>, place: usize, window: &Range<usize>) {
        for carrier in 0..self.carriers.count {
            let part = self.carried(window.len(), carrier);
            pieces.write(window.start + part.start..window.start + part.end, |at, bytes| {
                team.read(team.workspace_of(carrier, place + part.start + at, bytes.len()), bytes);
            });
        }
    }
}

/// Where a window lies in the workspace.
fn place(window: usize) -> usize {
    window % 3 * WINDOW
}
