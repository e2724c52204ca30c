//! Runs a schedule: moves whatever can move, over all lanes at once, and sleeps when nothing can.
//!
//! One thread, the caller's. A pass tries every lane; while passes move bytes there is no reason to sleep. When nothing
//! moves, it spins for a moment if every rank has a core, then sleeps in `poll` on all streams it waits for, and looks
//! up now and then for peers that are gone and for the deadline.

use std::ops::Range;
use std::time::Duration;

use corro_core::{DType, Deadline, Error, ReduceOp, Result};
use corro_transport::{Incoming, Link, Links, Outgoing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::schedule::{Action, Schedule, Step};

/// How long a sleeper sleeps before it looks whether its peers still live.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Passes without movement before giving way to other ranks, if every rank has a core of its own.
const SPINS: u32 = 50;

/// Passes without movement, giving way each time, before sleeping.
const YIELDS: u32 = 32;

/// Bytes read at once for reducing: they should still be in the cache when they are added.
pub(crate) const SCRATCH: usize = 128 << 10;

/// How arriving bytes are reduced, and the factor for values that are complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) op: ReduceOp,
    pub(crate) dtype: DType,
    pub(crate) factor: f64,
}

/// What a schedule works on.
pub(crate) struct Buffers<'a> {
    /// Only sent from.
    pub(crate) input: &'a [u8],
    /// Sent from and received into.
    pub(crate) main: &'a mut [u8],
    /// At least [`SCRATCH`] bytes where anything is reduced.
    pub(crate) scratch: &'a mut [u8],
}

/// Runs `schedule` to its end.
pub(crate) fn run(
    links: &mut Links,
    schedule: Schedule,
    mut buffers: Buffers<'_>,
    arithmetic: Option<Arithmetic>,
) -> Result<()> {
    Run::start(links, schedule, arithmetic)?.finish(links, &mut buffers)
}

#[derive(Default)]
struct LaneState {
    next_send: usize,
    next_receive: usize,
    /// Under way, at most one per stream.
    sending: Vec<(usize, Outgoing)>,
    receiving: Vec<Receiving>,
}

struct Receiving {
    step: usize,
    message: Incoming,
    /// Bytes already reduced.
    reduced: usize,
    /// Bytes of an element that has not come whole yet.
    carry: Vec<u8>,
}

/// A schedule under way. It does not hold its buffers, so that its owner can do something else with other parts of them
/// between passes; they must be the same ones each time.
pub(crate) struct Run {
    schedule: Schedule,
    arithmetic: Option<Arithmetic>,
    lanes: Vec<LaneState>,
    done: Vec<bool>,
    left: usize,
}

impl Run {
    /// Connects whoever is not connected yet. Nothing moves before the first pass.
    pub(crate) fn start(links: &mut Links, schedule: Schedule, arithmetic: Option<Arithmetic>) -> Result<Self> {
        for lane in &schedule.lanes {
            links.to(lane.peer)?;
        }
        let lanes = schedule.lanes.iter().map(|_| LaneState::default()).collect();
        let left = schedule.steps.len();
        Ok(Self { schedule, arithmetic, lanes, done: vec![false; left], left })
    }

    /// Passes until all is done.
    pub(crate) fn finish(&mut self, links: &mut Links, buffers: &mut Buffers<'_>) -> Result<()> {
        let spins = if links.may_spin() { SPINS } else { 0 };
        let mut idle = 0;
        let mut deadline = None;
        while self.left > 0 {
            if self.pass(links, buffers)? {
                (idle, deadline) = (0, None);
            } else if idle < spins {
                idle += 1;
                std::hint::spin_loop();
            } else if idle < spins + YIELDS {
                idle += 1;
                rustix::thread::sched_yield();
            } else {
                let until = *deadline.get_or_insert_with(|| Deadline::after(links.timeout()));
                if self.sleep(links, buffers, until)? {
                    (idle, deadline) = (0, None);
                }
            }
        }
        Ok(())
    }

    /// Tries everything once. True if anything moved.
    pub(crate) fn pass(&mut self, links: &mut Links, buffers: &mut Buffers<'_>) -> Result<bool> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            let link = links.to(self.schedule.lanes[lane].peer)?;
            // Receives first: they are what sends wait for.
            moved |= self.receive(lane, link, buffers)?;
            moved |= self.send(lane, link, buffers)?;
        }
        Ok(moved)
    }

    fn is_ready(&self, step: usize) -> bool {
        self.schedule.waits[step].iter().all(|w| self.done[*w])
    }

    fn send(&mut self, lane: usize, link: &mut Link, buffers: &Buffers<'_>) -> Result<bool> {
        let queue = &self.schedule.lanes[lane].sends;
        let mut moved = false;
        loop {
            while self.lanes[lane].sending.iter().all(|(_, m)| m.stream() != link.next_outgoing_stream())
                && let Some(step) = queue.get(self.lanes[lane].next_send).copied()
                && self.is_ready(step)
            {
                let message = link.start_send(outgoing(&self.schedule, step, buffers).len())?;
                self.lanes[lane].sending.push((step, message));
                self.lanes[lane].next_send += 1;
            }
            let mut finished = false;
            for i in 0..self.lanes[lane].sending.len() {
                let step = self.lanes[lane].sending[i].0;
                let payload = outgoing(&self.schedule, step, buffers);
                let message = &mut self.lanes[lane].sending[i].1;
                moved |= link.try_send(message, payload)?;
                if message.is_sent() {
                    self.done[step] = true;
                    self.left -= 1;
                    finished = true;
                }
            }
            if !finished {
                return Ok(moved);
            }
            let done = &self.done;
            self.lanes[lane].sending.retain(|(step, _)| !done[*step]);
        }
    }

    fn receive(&mut self, lane: usize, link: &mut Link, buffers: &mut Buffers<'_>) -> Result<bool> {
        let queue = &self.schedule.lanes[lane].receives;
        let mut moved = false;
        loop {
            while self.lanes[lane].receiving.iter().all(|r| r.message.stream() != link.next_incoming_stream())
                && let Some(step) = queue.get(self.lanes[lane].next_receive).copied()
                && self.is_ready(step)
                && let Step::Receive { range, .. } = &self.schedule.steps[step]
            {
                let message = link.start_receive(range.len())?;
                self.lanes[lane].receiving.push(Receiving { step, message, reduced: 0, carry: Vec::new() });
                self.lanes[lane].next_receive += 1;
            }
            let mut finished = false;
            for i in 0..self.lanes[lane].receiving.len() {
                let receiving = &mut self.lanes[lane].receiving[i];
                let Step::Receive { range, action, last, .. } = &self.schedule.steps[receiving.step] else { continue };
                let target = &mut buffers.main[range.clone()];
                moved |= match action {
                    Action::Store => link.try_receive(&mut receiving.message, target)?,
                    Action::Reduce | Action::ReduceUnder => {
                        let arithmetic =
                            self.arithmetic.ok_or_else(|| Error::Bug("a reduction without an op".into()))?;
                        let factor = if *last { arithmetic.factor } else { 1.0 };
                        let how = Arithmetic { factor, ..arithmetic };
                        receive_and_reduce(link, receiving, target, buffers.scratch, how, *action)?
                    }
                };
                if receiving.message.is_received() {
                    self.done[receiving.step] = true;
                    self.left -= 1;
                    finished = true;
                }
            }
            if !finished {
                return Ok(moved);
            }
            let done = &self.done;
            self.lanes[lane].receiving.retain(|r| !done[r.step]);
        }
    }

    /// Sleeps until a stream that matters stirs, for [`LOOK_UP`] at most. True if anything moved.
    fn sleep(&mut self, links: &mut Links, buffers: &mut Buffers<'_>, deadline: Deadline) -> Result<bool> {
        let busy: Vec<usize> = self.schedule.lanes.iter().map(|l| l.peer).collect();
        for peer in &busy {
            links.to(*peer)?.streams_mut().for_each(|s| s.arm());
        }
        // Whatever came before the bells were armed is found by this pass; whatever comes after rings.
        let moved = self.pass(links, buffers);
        let rang = match moved {
            Ok(false) if self.left > 0 => self.poll(links, deadline),
            _ => Ok(false),
        };
        for peer in &busy {
            links.to(*peer)?.streams_mut().for_each(|s| s.disarm());
        }
        if moved? || self.left == 0 {
            return Ok(true);
        }
        if rang? {
            for peer in &busy {
                links.to(*peer)?.streams_mut().for_each(|s| s.silence());
            }
            if self.pass(links, buffers)? {
                return Ok(true);
            }
        }
        // Also if a bell woke us for nothing: one that rings on and on must not keep us from seeing that the wait is over.
        self.look_up(links, buffers, &busy, deadline)
    }

    /// Nothing moves: an error if there is nothing to wait for any more. True if something has moved after all.
    fn look_up(
        &mut self,
        links: &mut Links,
        buffers: &mut Buffers<'_>,
        busy: &[usize],
        deadline: Deadline,
    ) -> Result<bool> {
        for peer in busy {
            if let Err(gone) = links.to(*peer)?.check() {
                // A peer may well leave right after it has sent what we wait for.
                return if self.pass(links, buffers)? { Ok(true) } else { Err(gone) };
            }
        }
        if links.withdrawal().is_set() {
            return Err(Error::Withdrawn);
        }
        if deadline.passed() { Err(self.too_late(links, deadline)) } else { Ok(false) }
    }

    /// True if something stirred, false after [`LOOK_UP`].
    fn poll(&self, links: &Links, deadline: Deadline) -> Result<bool> {
        let mut fds = Vec::new();
        for (lane, state) in self.schedule.lanes.iter().zip(&self.lanes) {
            let Some(link) = links.connected(lane.peer) else { continue };
            for (_, message) in &state.sending {
                let stream = link.stream_of_outgoing(message);
                let flags = if stream.writable_by_poll() { PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::from_borrowed_fd(stream.fd(), flags));
            }
            for receiving in &state.receiving {
                let stream = link.stream_of_incoming(&receiving.message);
                fds.push(PollFd::from_borrowed_fd(stream.fd(), PollFlags::IN));
            }
        }
        let nap = deadline.left().unwrap_or(LOOK_UP).min(LOOK_UP);
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
        match poll(&mut fds, Some(&nap)) {
            Ok(n) => Ok(n > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(Error::io("waiting for peers", e)),
        }
    }

    fn too_late(&self, links: &Links, deadline: Deadline) -> Error {
        let waits = |lane: &LaneState| lane.receiving.first().map(|r| r.step).or(lane.sending.first().map(|s| s.0));
        let stuck =
            self.lanes.iter().zip(&self.schedule.lanes).find_map(|(state, lane)| Some((waits(state)?, lane.peer)));
        let Some((step, peer)) = stuck else { return Error::Bug("nothing is under way, yet not all is done".into()) };
        let doing = match &self.schedule.steps[step] {
            Step::Receive { range, .. } => format!("nothing came from it while {} bytes are due", range.len()),
            Step::Send { range, .. } | Step::SendInput { range, .. } => {
                format!("it does not take {} bytes", range.len())
            }
        };
        let seconds = deadline.granted().as_secs_f64();
        let cause =
            format!("{doing}, for {seconds} s (step {step} of {}; CORRO_TIMEOUT sets this limit)", self.done.len());
        match links.connected(peer) {
            Some(link) => link.lost(corro_transport::Broken(cause)),
            None => Error::Bug(cause),
        }
    }
}

/// The bytes that `step` sends.
fn outgoing<'a>(schedule: &Schedule, step: usize, buffers: &'a Buffers<'_>) -> &'a [u8] {
    match &schedule.steps[step] {
        Step::Send { range, .. } => &buffers.main[range.clone()],
        Step::SendInput { range, .. } => &buffers.input[range.clone()],
        Step::Receive { .. } => &[],
    }
}

/// Takes what has come, as whole elements, and reduces it into its place.
fn receive_and_reduce(
    link: &mut Link,
    receiving: &mut Receiving,
    target: &mut [u8],
    scratch: &mut [u8],
    how: Arithmetic,
    action: Action,
) -> Result<bool> {
    let mut moved = false;
    loop {
        let kept = receiving.carry.len();
        scratch[..kept].copy_from_slice(&receiving.carry);
        let got = link.try_receive_some(&mut receiving.message, &mut scratch[kept..])?;
        if got == 0 {
            return Ok(moved);
        }
        moved = true;
        let there = kept + got;
        let whole = there - there % how.dtype.size();
        receiving.carry.clear();
        receiving.carry.extend_from_slice(&scratch[whole..there]);
        let into: Range<usize> = receiving.reduced..receiving.reduced + whole;
        receiving.reduced += whole;
        reduce(&mut target[into], &mut scratch[..whole], how, action);
    }
}

fn reduce(mine: &mut [u8], theirs: &mut [u8], how: Arithmetic, action: Action) {
    if action == Action::ReduceUnder {
        corro_kernels::reduce(how.op, how.dtype, theirs, mine);
        mine.copy_from_slice(theirs);
    } else {
        corro_kernels::reduce(how.op, how.dtype, mine, theirs);
    }
    if how.factor != 1.0 {
        corro_kernels::scale(how.dtype, mine, how.factor);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;

    use corro_core::Rank;
    use corro_transport::{Fabric, Settings};

    use super::*;
    use crate::Group;

    fn rings(bell: impl AsFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    /// Rank 0 waits for rank 1, which does not come; and a bell has rung late, for what was found without it.
    fn wait_in_vain(timeout: Duration, withdrawn: bool) -> Error {
        let mut fabrics = Fabric::threads(&[0, 1], &Settings { timeout, ..Settings::default() });
        let other = fabrics.pop().unwrap();
        std::thread::scope(|scope| {
            let (done, wait) = channel::<()>();
            scope.spawn(move || {
                let _group = Group::world(&other).unwrap();
                let _ = wait.recv();
            });
            let mut group = Group::world(&fabrics[0]).unwrap();
            let stream = group.channel.links.to(1).unwrap().streams_mut().next().unwrap();
            let bell = stream.fd().try_clone_to_owned().unwrap();
            rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
            if withdrawn {
                group.withdrawal().set();
            }
            let error = group.barrier().unwrap_err();
            assert!(!rings(&bell), "nobody took the ring off the bell");
            drop(done);
            error
        })
    }

    #[test]
    fn a_bell_that_rang_late_keeps_nobody_from_seeing_that_the_wait_is_over() {
        assert_eq!(wait_in_vain(Duration::from_secs(60), true), Error::Withdrawn);
        let late = wait_in_vain(Duration::from_millis(200), false);
        assert!(matches!(late, Error::PeerLost { rank, .. } if rank == Rank::new(1)), "{late}");
    }
}
