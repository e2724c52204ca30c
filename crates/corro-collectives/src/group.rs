//! The collectives as programs call them.
//!
//! A group checks the arguments, picks an algorithm and runs it. After an error other than a wrong argument a group is
//! of no more use: its streams may be in the middle of a message. It then ends its connections, so that the other
//! members fail at once too, and answers every later call with the same error.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corro_core::shape::share;
use corro_core::{Error, GroupId, Rank, ReduceOp, Result};
use corro_transport::{Channel, Fabric, Withdrawal};

use crate::algorithms::halving_doubling::SHORT;
use crate::algorithms::hierarchical::Carriers;
use crate::algorithms::{Algorithm, direct, ring, tree};
use crate::choice::{Wishes, choose};
use crate::collective::{Collective, Topology};
use crate::element::Element;
use crate::executor::{self, Arithmetic, Buffers, SCRATCH};
use crate::pieces::{Pieces, Tensor};
use crate::reduction::Reduction;
use crate::schedule::Builder;
use crate::subset::Subset;
use crate::tuning::Tuning;

/// Ranks that run collectives together. See the crate's page for an example.
pub struct Group {
    pub(crate) channel: Channel,
    pub(crate) all: Subset,
    pub(crate) carriers: Carriers,
    topology: Topology,
    wishes: Wishes,
    pub(crate) tuning: Tuning,
    pub(crate) scratch: Vec<u8>,
    /// The shared area of a rank that is alone on its host.
    pub(crate) own_area: Vec<u8>,
    pub(crate) area: usize,
    pub(crate) timeout: Duration,
    /// Windows that hierarchical allreduces have used so far.
    pub(crate) windows: usize,
    broken: Option<Error>,
}

impl Group {
    /// All ranks of the job.
    pub fn world(fabric: &Arc<Fabric>) -> Result<Self> {
        Self::open(fabric, GroupId::WORLD, &Rank::all(fabric.size()).collect::<Vec<_>>())
    }

    /// These ranks (ascending, this one among them). All of them must call this with the same number, which must not be
    /// in use by another group.
    pub fn open(fabric: &Arc<Fabric>, id: GroupId, members: &[Rank]) -> Result<Self> {
        Self::open_withdrawable(fabric, id, members, Withdrawal::default())
    }

    /// As [`Group::open`], with the mark that [`Group::withdrawal`] will give: it calls off the opening, too.
    pub fn open_withdrawable(
        fabric: &Arc<Fabric>,
        id: GroupId,
        members: &[Rank],
        withdrawal: Withdrawal,
    ) -> Result<Self> {
        let channel = fabric.open_withdrawable(id, members, withdrawal)?;
        let links = &channel.links;
        let hosts = links.hosts();
        let topology = match hosts.len() {
            1 => Topology::OneHost,
            n if n == members.len() => Topology::OneEach,
            _ => Topology::SharedHosts,
        };
        Ok(Self {
            all: Subset::all(members.len(), links.me()),
            carriers: Carriers::new(hosts, links.me()),
            topology,
            wishes: Wishes::from_env()?,
            tuning: Tuning::default(),
            scratch: Vec::new(),
            own_area: Vec::new(),
            area: fabric.settings().area,
            timeout: links.timeout(),
            windows: 0,
            broken: None,
            channel,
        })
    }

    /// This rank's position in the group: the number of its [`Rank`] only if the group is the world.
    pub fn rank(&self) -> usize {
        self.all.me()
    }

    /// How many ranks.
    pub fn size(&self) -> usize {
        self.all.size()
    }

    /// How the ranks lie.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// How long its members wait for each other.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The mark by which another thread calls off what this rank waits in. The group is then of no more use, but must be
    /// kept until all members have finished what came before.
    pub fn withdrawal(&self) -> Withdrawal {
        self.channel.links.withdrawal().clone()
    }

    /// Makes every collective use `algorithm` where it can run it. All members must do the same.
    pub fn force(&mut self, algorithm: Option<Algorithm>) {
        self.wishes.forced = algorithm;
    }

    /// Turns the knobs. All members must, between the same two collectives.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning.sane();
    }

    /// Everyone's `input`, one after the other; inputs may differ in length.
    pub fn allgather<T: Element>(&mut self, input: &[T]) -> Result<Vec<T>> {
        let counts = self.exchange_counts(std::mem::size_of_val(input))?;
        let total: usize = counts.iter().sum();
        let mut output = vec![T::zeroed(); total / size_of::<T>()];
        self.allgather_bytes(bytemuck::cast_slice(input), &counts, bytemuck::cast_slice_mut(&mut output))?;
        Ok(output)
    }

    /// As [`Group::allgather`] where all members know how many bytes each of them brings.
    pub fn allgather_bytes(&mut self, input: &[u8], counts: &[usize], output: &mut [u8]) -> Result<()> {
        let places = self.places(counts)?;
        let total = places.last().map_or(0, |p| p.end);
        if input.len() != counts[self.rank()] || output.len() != total {
            return Err(Error::Usage(format!(
                "allgather of {} bytes into {} where the counts say {} into {total}",
                input.len(),
                output.len(),
                counts[self.rank()]
            )));
        }
        output[places[self.rank()].clone()].copy_from_slice(input);
        if self.size() == 1 || total == 0 {
            return Ok(());
        }
        self.begin(Collective::Allgather, None, total);
        self.guarded(|group| match (group.choose(Collective::Allgather, total)?, &mut group.channel.team) {
            (Algorithm::Direct, Some(team)) => direct::allgather(team, &places, output, group.timeout),
            (algorithm, _) => {
                let plan = algorithm.plan(|planner| planner.allgather)?;
                group.run(&[], output, None, |b, s| plan(b, s, &places))
            }
        })
    }

    /// `data` of member `root` becomes everyone's. Lengths must be equal.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        self.broadcast_bytes(bytemuck::cast_slice_mut(data), root)
    }

    /// As [`Group::broadcast`], for bytes.
    pub fn broadcast_bytes(&mut self, data: &mut [u8], root: usize) -> Result<()> {
        if root >= self.size() {
            return Err(Error::Usage(format!(
                "broadcast received invalid root rank {root} in a group of {}",
                self.size()
            )));
        }
        if self.size() == 1 || data.is_empty() {
            return Ok(());
        }
        let bytes = data.len();
        self.begin(Collective::Broadcast, None, bytes << 12 | root);
        self.guarded(|group| match (group.choose(Collective::Broadcast, bytes)?, &mut group.channel.team) {
            (Algorithm::Direct, Some(team)) => direct::broadcast(team, root, data, group.timeout),
            (Algorithm::Hierarchical, _) => group.broadcast_by_hosts(data, root),
            (algorithm, _) => {
                let plan = algorithm.plan(|planner| planner.broadcast)?;
                group.run(&[], data, None, |b, s| plan(b, s, root, 0..bytes))
            }
        })
    }

    /// `splits[m]` elements of the input, in order, go to member m. Gives what came from each member, in order, and how
    /// many elements from each.
    pub fn alltoall<T: Element>(&mut self, input: &[T], splits: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
        let width = size_of::<T>();
        let sends = self.places(splits)?;
        if sends.last().is_some_and(|p| p.end > input.len()) {
            let sum = sends[sends.len() - 1].end;
            return Err(Error::Usage(format!(
                "the splits add up to {sum}, greater than the first dimension {}",
                input.len()
            )));
        }
        let in_bytes: Vec<usize> = splits.iter().map(|s| s * width).collect();
        let table = self.exchange_table(&in_bytes)?;
        let me = self.rank();
        let received: Vec<usize> = table.iter().map(|row| row[me]).collect();
        let longest = table.iter().flatten().copied().max().unwrap_or(0);
        let mut output = vec![T::zeroed(); received.iter().sum::<usize>() / width];
        let (from, into) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(&mut output));
        self.alltoall_bytes(from, &in_bytes, into, &received, longest)?;
        Ok((output, received.iter().map(|r| r / width).collect()))
    }

    /// As [`Group::alltoall`] where all is known: what this rank sends to and receives from each member, in bytes, and
    /// the longest part between any two members.
    pub fn alltoall_bytes(
        &mut self,
        input: &[u8],
        sends: &[usize],
        output: &mut [u8],
        receives: &[usize],
        longest: usize,
    ) -> Result<()> {
        let (out, into) = (self.places(sends)?, self.places(receives)?);
        let me = self.rank();
        let ends = |places: &[Range<usize>]| places.last().map_or(0, |p| p.end);
        if ends(&out) > input.len() || ends(&into) != output.len() || out[me].len() != into[me].len() {
            return Err(Error::Usage(format!(
                "alltoall of {} bytes into {} where the splits say {sends:?} and {receives:?}",
                input.len(),
                output.len()
            )));
        }
        if self.size() == 1 {
            output.copy_from_slice(&input[out[me].clone()]);
            return Ok(());
        }
        self.begin(Collective::Alltoall, None, longest);
        self.guarded(|group| match (group.choose(Collective::Alltoall, longest)?, &mut group.channel.team) {
            (Algorithm::Direct, Some(team)) => {
                direct::alltoall(team, input, &out, output, &into, longest, group.timeout)
            }
            (algorithm, _) => {
                let plan = algorithm.plan(|planner| planner.alltoall)?;
                output[into[me].clone()].copy_from_slice(&input[out[me].clone()]);
                group.run(input, output, None, |b, s| plan(b, s, &out, &into))
            }
        })
    }

    /// Reduces `input` over all members and gives this one its rows of the result: of `rows` rows the first
    /// `rows % size` members get one more than the others.
    pub fn reducescatter<T: Element>(&mut self, input: &[T], rows: usize, op: ReduceOp) -> Result<Vec<T>> {
        let mine = share(rows, self.size(), self.rank()).len();
        let width = input.len().checked_div(rows).unwrap_or(0);
        let mut output = vec![T::zeroed(); mine * width];
        let how = Reduction::new(T::DTYPE, op);
        self.reducescatter_bytes(bytemuck::cast_slice(input), rows, bytemuck::cast_slice_mut(&mut output), &how)?;
        Ok(output)
    }

    /// As [`Group::reducescatter`], for bytes of any dtype and with scale factors.
    pub fn reducescatter_bytes(&mut self, input: &[u8], rows: usize, output: &mut [u8], how: &Reduction) -> Result<()> {
        how.check(input.len())?;
        if how.op == ReduceOp::Adasum {
            return Err(Error::Usage("reducescatter of Adasum is not supported".into()));
        }
        if rows > 0 && !input.len().is_multiple_of(rows * how.dtype.size()) {
            return Err(Error::Usage(format!("{} bytes are not {rows} rows of {} elements", input.len(), how.dtype)));
        }
        let width = input.len().checked_div(rows).unwrap_or(0);
        let chunks: Vec<Range<usize>> = (0..self.size())
            .map(|m| share(rows, self.size(), m))
            .map(|rows| rows.start * width..rows.end * width)
            .collect();
        let mine = chunks[self.rank()].clone();
        if output.len() != mine.len() {
            return Err(Error::Usage(format!(
                "this rank's rows have {} bytes, the output {}",
                mine.len(),
                output.len()
            )));
        }
        let mut scaled = Vec::new();
        let input = if how.prescale == 1.0 {
            input
        } else {
            scaled.extend_from_slice(input);
            corro_kernels::scale(how.dtype, &mut scaled, how.prescale);
            &scaled
        };
        if self.size() == 1 {
            output.copy_from_slice(input);
            Pieces::new(&mut [Tensor::in_place(output)]).scale(how.dtype, how.factor(1));
            return Ok(());
        }
        if input.is_empty() {
            return Ok(());
        }
        let arithmetic = self.arithmetic(how);
        self.begin(Collective::Reducescatter, Some(how), input.len());
        self.guarded(|group| match (group.choose(Collective::Reducescatter, input.len())?, &mut group.channel.team) {
            (Algorithm::Direct, Some(team)) => {
                direct::reducescatter(team, input, &chunks, output, arithmetic, group.timeout)
            }
            (algorithm, _) => {
                let plan = algorithm.plan(|planner| planner.reducescatter)?;
                let mut work = input.to_vec();
                group.run(&[], &mut work, Some(arithmetic), |b, s| plan(b, s, &chunks))?;
                output.copy_from_slice(&work[mine]);
                Ok(())
            }
        })
    }

    /// Returns when all members have called it.
    pub fn barrier(&mut self) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.guarded(|group| match (group.choose(Collective::Barrier, 0)?, &mut group.channel.team) {
            (Algorithm::Direct, Some(team)) => team.barrier(group.timeout),
            (algorithm, _) => {
                let plan = algorithm.plan(|planner| planner.barrier)?;
                group.run(&[], &mut [0], None, plan)
            }
        })
    }

    /// What each member says, as numbers of bytes.
    fn exchange_counts(&mut self, mine: usize) -> Result<Vec<usize>> {
        Ok(self.exchange_table(&[mine])?.into_iter().map(|row| row[0]).collect())
    }

    /// A row of numbers from each member; rows are equally long.
    fn exchange_table(&mut self, mine: &[usize]) -> Result<Vec<Vec<usize>>> {
        let row: Vec<u64> = mine.iter().map(|n| *n as u64).collect();
        let bytes = row.len() * size_of::<u64>();
        let mut all = vec![0u64; row.len() * self.size()];
        let counts = vec![bytes; self.size()];
        self.allgather_bytes(bytemuck::cast_slice(&row), &counts, bytemuck::cast_slice_mut(&mut all))?;
        all.chunks_exact(row.len())
            .map(|row| {
                let number = |n: &u64| isize::try_from(*n).ok().map(isize::cast_unsigned);
                row.iter().map(number).collect::<Option<_>>().ok_or_else(|| Error::Malformed("an absurd length".into()))
            })
            .collect()
    }

    /// Where each member's part lies when all are put in a row.
    fn places(&self, lengths: &[usize]) -> Result<Vec<Range<usize>>> {
        if lengths.len() != self.size() {
            return Err(Error::Usage(format!(
                "{} splits were given, which does not equal number of workers {}",
                lengths.len(),
                self.size()
            )));
        }
        let mut at = 0usize;
        lengths
            .iter()
            .map(|len| {
                let start = at;
                at = at
                    .checked_add(*len)
                    .ok_or_else(|| Error::Usage("lengths that add up to more than memory".into()))?;
                Ok(start..at)
            })
            .collect()
    }

    pub(crate) fn arithmetic(&self, how: &Reduction) -> Arithmetic {
        Arithmetic { op: how.op, dtype: how.dtype, factor: how.factor(self.size()) }
    }

    pub(crate) fn choose(&self, collective: Collective, bytes: usize) -> Result<Algorithm> {
        choose(collective, self.topology, self.size(), bytes, self.wishes, self.tuning)
    }

    /// The error that ended this group, if one did.
    pub(crate) fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Tells the ranks of this host what comes, so that ranks in different collectives notice.
    pub(crate) fn begin(&mut self, collective: Collective, how: Option<&Reduction>, bytes: usize) {
        if let Some(team) = &mut self.channel.team {
            // Never 0, which is a barrier.
            let (dtype, op) = how.map_or((0, 0), |h| (h.dtype as u64 + 1, h.op as u64 + 1));
            team.begin((bytes as u64) << 16 | op << 12 | dtype << 8 | (collective as u64 + 1));
        }
    }

    /// Runs a collective; an error of the network or of a peer is this group's end.
    pub(crate) fn guarded(&mut self, collective: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.usable()?;
        let result = collective(self);
        if let Err(error) = &result {
            // What was withdrawn may still be finishing elsewhere: others must not be told that this rank is gone.
            if *error != Error::Withdrawn {
                self.channel.abandon(error);
            }
            self.broken = Some(error.clone());
        }
        result
    }

    fn broadcast_by_hosts(&mut self, data: &mut [u8], root: usize) -> Result<()> {
        let (members, at) = self.carriers.representatives(root);
        let here = members[self.carriers.here()];
        if here == self.rank() {
            let subset = Subset::of(members, self.carriers.here());
            let mut b = Builder::cutting(self.tuning.segment);
            if data.len() <= SHORT {
                tree::broadcast(&mut b, &subset, at, 0..data.len());
            } else {
                ring::broadcast(&mut b, &subset, at, 0..data.len());
            }
            let buffers = Buffers { input: &[], main: data, scratch: &mut [] };
            executor::run(&mut self.channel.links, b.finish(), buffers, None)?;
        }
        let seat = self.carriers.seat_of(here);
        match &mut self.channel.team {
            Some(team) => direct::broadcast(team, seat, data, self.timeout),
            None => Ok(()),
        }
    }

    fn run(
        &mut self,
        input: &[u8],
        main: &mut [u8],
        arithmetic: Option<Arithmetic>,
        plan: impl FnOnce(&mut Builder, &Subset),
    ) -> Result<()> {
        let mut b = Builder::cutting(self.tuning.segment);
        plan(&mut b, &self.all);
        self.scratch.resize(SCRATCH, 0);
        let buffers = Buffers { input, main, scratch: &mut self.scratch };
        executor::run(&mut self.channel.links, b.finish(), buffers, arithmetic)
    }
}
