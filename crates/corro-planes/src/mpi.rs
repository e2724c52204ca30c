//! The plane of MPI: host memory, moved and reduced by the MPI library of the site.
//!
//! What ranks agree on, and that one of them is lost, still goes over Corro's own connections: MPI itself would wait for a lost
//! process for ever, or end all others. Before a batch that may be called off all members meet there.
//!
//! Where hosts have several ranks, a large allreduce is done inside of them first, in memory that their ranks share: of what is
//! left, MPI has a part of each from counterparts on all hosts.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_collectives::{Collective, Group, Reduction, Seats};
use corro_core::shape::share;
use corro_core::{DType, Deadline, Error, Rank, ReduceOp, Result};
use corro_mpi::{Communicator, Mpi, Patience, Threads};
use corro_transport::Withdrawal;

use crate::exchange::agree;
use crate::facts::Facts;
use crate::host;
use crate::outcome::Outcomes;
use crate::plane::{Plane, Release, Row, Verdict, Wanted};
use crate::tensor::Tensor;
use crate::wire::Wire;

/// The plane's name.
pub(crate) const NAME: &str = "mpi";
/// Tensors of a batch that are smaller travel together.
const LARGE: usize = 1 << 20;
/// From so many bytes on, hosts reduce what their ranks bring before MPI does.
const BY_HOSTS: usize = 64 << 10;

/// The row of the plane.
#[derive(Debug, Default)]
pub struct MpiRow;

impl Row for MpiRow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, timeout: Duration) -> Result<()> {
        start_in_time(timeout)
    }

    fn describe(&self, facts: &mut Facts, _device: Option<usize>) {
        let ability = started().map(|(mpi, world, threads)| {
            tracing::info!(
                "MPI: {} ({}'s interface) moves tensors",
                mpi.version().unwrap_or_default(),
                mpi.interface()
            );
            let is_blocking = threads == Threads::Multiple && mpi.blocks_better();
            Seat { rank: world.rank(), size: world.size(), is_blocking }.pack()
        });
        facts.says(NAME, ability.map_err(|error| error.to_string()));
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        if let Some(why) = odd_world(&seats_of(facts)) {
            return Some(why);
        }
        if wanted.op == Some(ReduceOp::Adasum) {
            return Some("MPI has no Adasum".into());
        }
        (wanted.collective == Collective::Barrier).then(|| "nothing is to be moved".into())
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        facts: &[Facts],
        _device: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let places = seats_of(facts);
        let is_blocking = places.iter().all(|place| place.is_blocking);
        let places: Vec<usize> = places.iter().map(|place| place.rank).collect();
        let seats = group.seats(false);
        let is_by_hosts = 1 < seats.hosts && seats.hosts < group.size();
        let counterparts = group.counterparts().filter(|_| is_by_hosts);
        let made = started().and_then(|(mpi, world, _)| {
            let mut communicator = world.of_members(&places)?;
            let mut across = counterparts.map(|members| communicator.of_members(&members)).transpose()?;
            if is_blocking {
                communicator.allow_blocking(corro_mpi::LARGE, None);
                if let Some(across) = &mut across {
                    across.allow_blocking(corro_mpi::LARGE, None);
                }
            }
            Ok((mpi, communicator, across))
        });
        let verdict = agree(group, members, made)?;
        Ok(verdict.map(|(mpi, communicator, across)| {
            MpiPlane::boxed(mpi, communicator, is_by_hosts.then_some(Hosts { seats, across }))
        }))
    }
}

pub(crate) fn started() -> Result<(Mpi, Communicator, Threads)> {
    let mpi = Mpi::open(&[])?;
    let threads = mpi.start()?;
    let world = Communicator::world(&mpi)?;
    Ok((mpi, world, threads))
}

/// Starts MPI, which takes all processes of its world: in a thread that can be left behind if one of them never does.
pub(crate) fn start_in_time(timeout: Duration) -> Result<()> {
    in_time(timeout, || drop(started()))
}

fn in_time(timeout: Duration, start: impl FnOnce() + Send + 'static) -> Result<()> {
    let (tell, told) = sync_channel(1);
    let act = move || {
        start();
        // Whoever waits may have left.
        let _ = tell.send(());
    };
    thread::Builder::new()
        .name("corro mpi start".into())
        .spawn(act)
        .map_err(|error| Error::io("starting the thread that starts MPI", error))?;
    match told.recv_timeout(timeout) {
        Err(RecvTimeoutError::Timeout) => Err(Error::io(
            "starting MPI (MPI_Init_thread)",
            format!(
                "not all processes of its world came within {} s. All that mpiexec has started must start MPI: does each call \
                 init()?",
                timeout.as_secs()
            ),
        )),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
    }
}

/// A place in MPI's world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Whether large collectives may block a thread, and should.
    pub(crate) is_blocking: bool,
}

impl Seat {
    /// As one number: MPI counts processes with 31 bits.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.is_blocking) << 63 | (self.rank as u64) << 32 | self.size as u64
    }

    fn unpack(number: u64) -> Self {
        let low = |number: u64| (number & u64::from(u32::MAX >> 1)) as usize;
        Self { rank: low(number >> 32), size: low(number), is_blocking: number >> 63 != 0 }
    }
}

pub(crate) fn seats_of(facts: &[Facts]) -> Vec<Seat> {
    facts.iter().filter_map(|facts| facts.number(NAME)).map(Seat::unpack).collect()
}

/// What is wrong with the worlds of MPI that members say they are in.
pub(crate) fn odd_world(places: &[Seat]) -> Option<String> {
    let Seat { rank: first, size, .. } = *places.first()?;
    if places.len() > 1 && places.iter().all(|place| (place.rank, place.size) == (0, 1)) {
        return Some(
            "MPI takes each rank for one that is alone: start the job with the mpiexec of this MPI library (corro run --mpi), \
             or name the library of the mpiexec that was used in CORRO_MPI_LIBRARY"
                .into(),
        );
    }
    if let Some(Seat { rank: other, size: theirs, .. }) = places.iter().find(|place| place.size != size) {
        return Some(format!(
            "ranks are in different worlds of MPI: one is number {first} of {size}, another number {other} of {theirs}. \
             All must be started by one mpiexec, and use its library"
        ));
    }
    let mut numbers: Vec<usize> = places.iter().map(|place| place.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    (numbers.len() < places.len()).then(|| "two ranks have the same number in MPI's world".into())
}

/// See the module.
struct MpiPlane {
    mpi: Mpi,
    /// Set when the job has ended: nobody waits for others any more.
    released: Arc<AtomicBool>,
    communicator: Communicator,
    hosts: Option<Hosts>,
    /// For small tensors of a batch, which travel together.
    room: Vec<u8>,
    /// For what this rank carries between hosts.
    part: Vec<u8>,
}

/// Hosts of which some have several ranks.
struct Hosts {
    seats: Seats,
    /// This rank's counterparts, if it carries.
    across: Option<Communicator>,
}

impl MpiPlane {
    fn boxed(mpi: Mpi, communicator: Communicator, hosts: Option<Hosts>) -> Box<dyn Plane> {
        Box::new(Self { mpi, released: Arc::default(), communicator, hosts, room: Vec::new(), part: Vec::new() })
    }
}

impl Plane for MpiPlane {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes> {
        if planned {
            group.barrier()?;
        }
        let mut wire = MpiWire {
            communicator: &self.communicator,
            hosts: self.hosts.as_ref(),
            room: &mut self.room,
            part: &mut self.part,
            withdrawal: group.withdrawal(),
            released: &self.released,
            deadline: Deadline::after(group.timeout()),
            group,
        };
        let ran = host::run(&mut wire, members, agreed, tensors, false);
        if ran.is_err() {
            // MPI may still read and write there.
            self.mpi.give_up();
            for tensor in tensors {
                std::mem::forget(std::mem::take(tensor));
            }
            std::mem::forget(std::mem::take(&mut self.room));
            std::mem::forget(std::mem::take(&mut self.part));
        }
        // Who is lost the group knows: it hears of it where MPI does not.
        ran.map_err(
            |error| if matches!(error, Error::Withdrawn) { group.barrier().err().unwrap_or(error) } else { error },
        )
    }

    fn release(&self) -> Option<Release> {
        let (released, mpi) = (Arc::clone(&self.released), self.mpi.clone());
        Some(Box::new(move || {
            released.store(true, Ordering::SeqCst);
            // Ending MPI would wait for whoever is lost, also where nothing was under way.
            mpi.give_up();
            Ok(())
        }))
    }
}

struct MpiWire<'a> {
    group: &'a mut Group,
    communicator: &'a Communicator,
    hosts: Option<&'a Hosts>,
    room: &'a mut Vec<u8>,
    part: &'a mut Vec<u8>,
    withdrawal: Withdrawal,
    released: &'a AtomicBool,
    deadline: Deadline,
}

impl MpiWire<'_> {
    /// Waits as long as the job lives, and no longer than the deadline.
    fn with<T>(&self, act: impl FnOnce(&Communicator, &Patience<'_>) -> Result<T>) -> Result<T> {
        let over = || self.withdrawal.is_set() || self.released.load(Ordering::SeqCst);
        let stop = || over().then_some(Error::Withdrawn);
        act(self.communicator, &Patience { deadline: self.deadline, stop: &stop })
    }

    /// An allreduce of one piece of memory, by hosts if it is large.
    fn reduce(&mut self, kind: (DType, ReduceOp), input: Option<&[u8]>, place: &mut [u8]) -> Result<()> {
        match self.hosts.filter(|_| place.len() >= BY_HOSTS) {
            Some(hosts) => self.reduce_by_hosts(hosts, kind, input, place),
            None => self.with(|mpi, patience| mpi.allreduce(kind, input.map(Into::into), place.into(), patience)),
        }
    }

    fn reduce_by_hosts(
        &mut self,
        Hosts { seats, across }: &Hosts,
        kind: (DType, ReduceOp),
        input: Option<&[u8]>,
        place: &mut [u8],
    ) -> Result<()> {
        let size = kind.0.size();
        let in_bytes = |range: Range<usize>| range.start * size..range.end * size;
        let chunks: Vec<Range<usize>> =
            (0..seats.count).map(|seat| in_bytes(share(place.len() / size, seats.count, seat))).collect();
        let mine = seats.seat.and_then(|seat| chunks.get(seat)).map_or(0, ExactSizeIterator::len);
        let mut part = std::mem::take(self.part);
        part.resize(mine, 0);
        self.group.reduce_in_host(*seats, kind, input.unwrap_or(place), &chunks, &mut part)?;
        if let Some(across) = across {
            let ran = self.with(|_, patience| across.allreduce(kind, None, (&mut part).into(), patience));
            if let Err(error) = ran {
                // MPI may still write there: whoever hears of this keeps it.
                *self.part = part;
                return Err(error);
            }
        }
        self.group.spread_bytes_in_host(*seats, &part, &chunks, place)?;
        *self.part = part;
        Ok(())
    }
}

/// As MPI reduces it: an average is a sum, and scaled afterwards.
pub(crate) fn mpi_op(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Average { ReduceOp::Sum } else { op }
}

impl Wire for MpiWire<'_> {
    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn barrier(&mut self) -> Result<()> {
        self.with(Communicator::barrier)
    }

    fn allreduce(
        &mut self,
        tensors: &mut [corro_collectives::Tensor<'_>],
        how: &Reduction,
        _planned: bool,
    ) -> Result<()> {
        let kind = (how.dtype, mpi_op(how.op));
        let alone = tensors.len() == 1;
        let mut room = std::mem::take(self.room);
        room.clear();
        for tensor in tensors.iter_mut() {
            let (input, place) = tensor.parts();
            if alone || place.len() >= LARGE {
                self.reduce(kind, input, place)?;
            } else {
                room.extend_from_slice(input.unwrap_or(place));
            }
        }
        if !room.is_empty() {
            self.reduce(kind, None, &mut room)?;
        }
        let mut at = 0;
        for tensor in tensors.iter_mut() {
            let (_, place) = tensor.parts();
            if !alone && place.len() < LARGE {
                place.copy_from_slice(&room[at..at + place.len()]);
                at += place.len();
            }
            let factor = how.factor(self.communicator.size());
            if factor != 1.0 {
                corro_kernels::scale(how.dtype, place, factor);
            }
        }
        *self.room = room;
        Ok(())
    }

    fn allgather(&mut self, input: &[u8], counts: &[usize], output: &mut [u8]) -> Result<()> {
        self.with(|mpi, patience| mpi.allgather(input.into(), counts, output.into(), patience))
    }

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        self.with(|mpi, patience| mpi.broadcast(bytes.into(), root, patience))
    }

    fn alltoall(
        &mut self,
        input: &[u8],
        sent: &[usize],
        output: &mut [u8],
        received: &[usize],
        longest: usize,
    ) -> Result<()> {
        self.with(|mpi, patience| mpi.alltoall((input.into(), sent), (output.into(), received), longest, patience))
    }

    fn reducescatter(&mut self, input: &[u8], rows: usize, output: &mut [u8], how: &Reduction) -> Result<()> {
        let size = self.communicator.size();
        let width = input.len().checked_div(rows).unwrap_or(0) / how.dtype.size();
        let shares: Vec<usize> = (0..size).map(|member| share(rows, size, member).len() * width).collect();
        let mut scaled = Vec::new();
        let input = if how.prescale == 1.0 {
            input
        } else {
            scaled.extend_from_slice(input);
            corro_kernels::scale(how.dtype, &mut scaled, how.prescale);
            &scaled
        };
        let kind = (how.dtype, mpi_op(how.op));
        self.with(|mpi, patience| mpi.reduce_scatter(kind, input.into(), &shares, (&mut *output).into(), patience))?;
        let factor = how.factor(size);
        if factor != 1.0 {
            corro_kernels::scale(how.dtype, output, factor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_ever_for_mpi_to_start() {
        in_time(Duration::from_secs(60), || ()).unwrap();
        let (_end, ended) = sync_channel::<()>(0);
        let why = in_time(Duration::from_millis(10), move || ended.recv().unwrap_or(())).unwrap_err().to_string();
        assert!(why.contains("MPI_Init_thread") && why.contains("not all processes"), "{why}");
    }

    #[test]
    fn worlds_that_do_not_fit_are_named() {
        let odd = |places: &[(usize, usize)]| {
            let seat = |&(rank, size): &(usize, usize)| Seat { rank, size, is_blocking: true };
            odd_world(&places.iter().map(seat).collect::<Vec<_>>())
        };
        assert_eq!(odd(&[(1, 4), (3, 4)]), None);
        assert_eq!(odd(&[(0, 1)]), None);
        assert!(odd(&[(0, 1), (0, 1)]).unwrap().contains("alone"));
        assert!(odd(&[(0, 2), (0, 1)]).unwrap().contains("different worlds"));
        assert!(odd(&[(1, 4), (1, 4)]).unwrap().contains("same number"));
        for is_blocking in [false, true] {
            let seat = Seat { rank: 7, size: 1 << 20, is_blocking };
            assert_eq!(Seat::unpack(seat.pack()), seat);
        }
    }
}
