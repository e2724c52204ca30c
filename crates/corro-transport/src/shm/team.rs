//! The ranks of one group on one host: a board on which each shows what it has, and counters that say since when.
//!
//! **The board.** Work goes in rounds, numbered by each member alike. In round `t` a member fills its slot `t % SLOTS`,
//! *publishes* `t`, and then reads the slots of others that have published `t`. Some collectives have a second half: a
//! member writes what it reduced back into its own slot and marks `t` *reduced*, and others read that.
//!
//! **When a slot may be filled again.** The one rule that algorithms must keep: *who publishes round `t` has finished
//! reading every round up to `t - 3`.* It lets them run three stages at once (publish `t`, reduce `t - 1`, collect
//! `t - 2`). Round `t` goes into the slot of round `t - SLOTS`, and with five slots it is enough that all others have
//! published `t - 2`, which they nearly always have: [`Team::next_round`] looks, and seldom waits.
//!
//! **Waiting** is spinning for a few microseconds if every rank of the host has a core of its own, then giving way, then
//! sleeping on the counter (futex). Two ranks that find themselves on one core although there are enough part ways: the
//! system's scheduler, seeing two tasks that give way to each other, is in no hurry to do so. Sleepers look up every
//! [`LOOK_UP`]: whether the one they wait for has exited, whether anyone declared the team dead, whether the time is over.
//! So a death is an error at once, and nothing hangs.
//!
//! Payload is only touched through raw pointers, see `segment`. Between collectives a member's area is its own.

#![expect(unsafe_code, reason = "moves bytes in memory shared with other processes")]

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use corro_core::{DType, Deadline, Error, Rank, ReduceOp, Result};
use smallvec::SmallVec;

use super::counter::Counter;
use super::peek;
use super::pool::{Pooled, Pools};
use super::segment::{ControlWord, SLOTS, Segment};
use super::span::{Source, Span, Target};
use crate::cores;
use crate::secret::random_bytes;
use crate::withdrawal::Withdrawal;

/// How long a sleeper sleeps before it looks whether its peer still lives.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Looks at a counter before giving way: a few microseconds, in which a peer that runs on a core of its own answers.
const SPINS: u32 = 100;

/// Turns given to other runnable ranks before sleeping. A peer that shares this core gets to run without the cost of a
/// sleep and a wake-up; if nobody else wants the core, giving way is just a slower way to spin.
const YIELDS: u32 = 64;

/// How far the mark of what is reduced may fall behind the rounds. Collectives that reduce in one step never set it, and
/// once it were half the circle of numbers behind (2^31 rounds: less than an hour of small messages) it would seem ahead.
const MARK_LAG: u32 = 1 << 20;

/// How often at most a rank moves to another core.
const MOVE_PAUSE: Duration = Duration::from_millis(5);

/// The name of each rank's host, for messages.
pub(crate) type Hosts = Arc<[String]>;

/// A rank of the team, as the others see it.
#[derive(Debug)]
pub struct Member {
    /// Its rank in the job.
    pub rank: Rank,
    /// Its host's name, for messages.
    pub host: String,
    /// Readable once its process has exited; `None` where the system can't tell.
    pub(crate) exit: Option<OwnedFd>,
}

/// This rank's seat in the team.
pub struct Team {
    segment: Arc<Segment>,
    members: Vec<Member>,
    me: usize,
    round: u32,
    may_spin: bool,
    moved: Cell<Option<Instant>>,
    /// What this member is doing, see [`Team::begin`].
    signature: u64,
    hosts: Hosts,
    /// Whether all members can read each other's private memory.
    can_peek: bool,
    /// Set when this member is to stop waiting.
    withdrawn: Withdrawal,
    /// Memory that these ranks share apart from this team.
    pools: Arc<Pools>,
}

impl Team {
    pub(crate) fn new(
        segment: Arc<Segment>,
        members: Vec<Member>,
        me: usize,
        may_spin: bool,
        hosts: Hosts,
        withdrawn: Withdrawal,
    ) -> Self {
        let (moved, pools) = (Cell::new(None), Arc::default());
        Self { segment, members, me, round: 0, may_spin, moved, signature: 0, hosts, can_peek: false, withdrawn, pools }
    }

    /// Knows of these pools from now on.
    pub(crate) fn with_pools(mut self, pools: Arc<Pools>) -> Self {
        self.pools = pools;
        self
    }

    pub(crate) fn into_segment(self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// Where all of `pieces` lie, if that is one pool of exactly the members of this team.
    pub fn find_in_pool<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> Option<Pooled> {
        self.pools.find(&self.members.iter().map(|m| m.rank), pieces)
    }

    /// A part of what `member` has in the pool, beginning `start` bytes behind the tensor of that number.
    pub fn pooled<'a>(&self, place: &'a Pooled, member: usize, tensor: usize, start: usize, len: usize) -> Span<'a> {
        Span::new(place.pool.segment.area(member, place.offset(tensor) + start, len), len)
    }

    /// Finds out whether all members can read each other's private memory. All of them must call this.
    pub(crate) fn try_peeking(&mut self, timeout: Duration) -> Result<()> {
        // Random: a member's process number may be another process's here, where they have namespaces of their own, and
        // what is found at that address there must not be taken for the probe.
        let probe = Box::new(u64::from_ne_bytes(*random_bytes()?.first_chunk().expect("eight of 32 bytes")));
        let address = std::ptr::from_ref(&*probe) as u64;
        self.segment.word(self.me, ControlWord::Process).store(std::process::id(), Ordering::SeqCst);
        let shown = self.show(&[address, *probe], timeout)?;
        let sees = |m: usize| {
            let [address, value] = self.shown(m, shown);
            let mut seen = [0; 8];
            let pid = self.segment.word(m, ControlWord::Process).load(Ordering::SeqCst);
            peek::read(pid, address as usize, &mut seen).is_ok() && u64::from_ne_bytes(seen) == value
        };
        let all = self.others().all(sees);
        // Only if everyone can will anyone: they must all run the same algorithm.
        let shown = self.show(&[u64::from(all), 0], timeout)?;
        self.can_peek = all && self.others().all(|m| self.shown(m, shown)[0] == 1);
        // The probe must not move or go before all have looked, which the second round has just proven.
        drop(probe);
        Ok(())
    }

    /// Shows two numbers to all, and waits until all have shown theirs.
    pub fn show(&mut self, numbers: &[u64; 2], timeout: Duration) -> Result<u32> {
        let round = self.next_round(timeout)?;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&numbers[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&numbers[1].to_ne_bytes());
        self.write(self.slot(self.me, round, 0, bytes.len()), &bytes);
        self.publish(round);
        self.wait_all_published(round, timeout)?;
        Ok(round)
    }

    /// What a member showed in `round`.
    pub fn shown(&self, member: usize, round: u32) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.read(self.slot(member, round, 0, bytes.len()), &mut bytes);
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        [number(0), number(8)]
    }

    /// Whether all members can read each other's private memory.
    pub fn can_peek(&self) -> bool {
        self.can_peek
    }

    /// Reads private memory of another member, at an address it has shown.
    pub fn peek(&self, member: usize, address: u64, into: &mut [u8]) -> Result<()> {
        let pid = self.segment.word(member, ControlWord::Process).load(Ordering::Relaxed);
        peek::read(pid, address as usize, into).map_err(|e| {
            let who = &self.members[member];
            Error::peer_lost(
                who.rank,
                &who.host,
                format!("its memory can't be read any more, it has probably exited ({e})"),
            )
        })
    }

    /// Takes the next `rounds` rounds for marks of progress; gives the first. They are over when this member publishes
    /// the last one.
    pub fn take_rounds(&mut self, rounds: u32) -> u32 {
        let first = self.round.wrapping_add(1);
        self.round = self.round.wrapping_add(rounds);
        first
    }

    /// Says what the coming rounds are for. Members that find each other in rounds for different things stop with an
    /// error instead of taking each other's bytes for something else; `0` means a barrier.
    pub fn begin(&mut self, signature: u64) {
        self.signature = signature;
    }

    /// How many members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Which of them this is.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Who they are.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Bytes of one slot of the board.
    pub fn slot_bytes(&self) -> usize {
        self.segment.sizes().slot
    }

    /// Bytes of this member's area; the others' are as large.
    pub fn area_bytes(&self) -> usize {
        self.segment.sizes().area
    }

    /// Whether waiting may spin: every rank of the host has a core of its own.
    pub fn may_spin(&self) -> bool {
        self.may_spin
    }

    /// A part of this member's area. Others write there only inside a collective that this member takes part in; inside
    /// one, take only what no other member writes until you are done with it.
    pub fn area(&mut self, range: Range<usize>) -> &mut [u8] {
        let at = self.segment.area(self.me, range.start, range.len());
        // SAFETY: `segment` has checked that the bytes lie inside this member's area, and they are mapped while `self` lives.
        // In this process `&mut self` keeps them apart from every span and every other slice. Other processes write to an
        // area only between a round that this member has published and the barrier at the collective's end, which it waits
        // for before it returns: outside of that, and for what its collective leaves to this member, nobody writes. (A team
        // that failed may have a member that goes on writing. What it leaves is bytes of no meaning, and the engine uses
        // neither the team nor what was in its area again.)
        unsafe { std::slice::from_raw_parts_mut(at, range.len()) }
    }

    /// A part of this member's workspace: as [`Team::area`], but for the collectives' own use.
    pub fn workspace(&mut self, range: Range<usize>) -> &mut [u8] {
        let at = self.segment.workspace(self.me, range.start, range.len());
        // SAFETY: as in `area`. Windows of the workspace are separated by barriers, see `hierarchical`.
        unsafe { std::slice::from_raw_parts_mut(at, range.len()) }
    }

    /// Bytes of each member's workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.segment.sizes().workspace
    }

    /// Opens the next round: its slot of this member may be filled.
    pub fn next_round(&mut self, timeout: Duration) -> Result<u32> {
        self.round = self.round.wrapping_add(1);
        let reduced = self.segment.word(self.me, ControlWord::Reduced).load(Ordering::Relaxed);
        if self.round.wrapping_sub(reduced) > MARK_LAG {
            // Nobody waits for a round that far back any more.
            self.mark(ControlWord::Reduced, self.round.wrapping_sub(SLOTS as u32));
        }
        for member in self.others() {
            self.wait(member, ControlWord::Published, self.round.wrapping_sub(2), timeout)?;
        }
        Ok(self.round)
    }

    /// Says that this member's slot of `round` is filled.
    pub fn publish(&self, round: u32) {
        self.segment.signature(self.me, round).store(self.signature, Ordering::Relaxed);
        self.mark(ControlWord::Published, round);
    }

    /// Says that this member's part of `round` is reduced.
    pub fn mark_reduced(&self, round: u32) {
        self.mark(ControlWord::Reduced, round);
    }

    /// Waits until `member` has published `round`.
    pub fn wait_published(&self, member: usize, round: u32, timeout: Duration) -> Result<()> {
        self.wait(member, ControlWord::Published, round, timeout)?;
        // The wait has made visible what the member wrote before it published.
        let theirs = self.segment.signature(member, round).load(Ordering::Relaxed);
        if theirs == self.signature {
            return Ok(());
        }
        let who = &self.members[member];
        Err(Error::Mismatch(format!(
            "rank {} on {} is in another collective, or has other lengths or dtypes, than this rank \
             (signatures {theirs:x} and {:x})",
            who.rank, who.host, self.signature
        )))
    }

    /// Waits until all others have published `round`.
    pub fn wait_all_published(&self, round: u32, timeout: Duration) -> Result<()> {
        self.others().try_for_each(|m| self.wait_published(m, round, timeout))
    }

    /// Waits until `member` has reduced its part of `round`.
    pub fn wait_reduced(&self, member: usize, round: u32, timeout: Duration) -> Result<()> {
        self.wait(member, ControlWord::Reduced, round, timeout)
    }

    /// Waits until all members have come here.
    pub fn barrier(&mut self, timeout: Duration) -> Result<()> {
        let doing = std::mem::replace(&mut self.signature, 0);
        let result = self.meet_all(timeout);
        self.signature = doing;
        result
    }

    fn meet_all(&mut self, timeout: Duration) -> Result<()> {
        let round = self.next_round(timeout)?;
        self.publish(round);
        self.wait_all_published(round, timeout)
    }

    /// The others, each starting with its right neighbour, so that not all look at the same one first.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, size) = (self.me, self.size());
        (1..size).map(move |i| (me + i) % size)
    }

    /// A part of the slot in which `member` shows `round`.
    pub fn slot(&self, member: usize, round: u32, start: usize, len: usize) -> Span<'_> {
        Span::new(self.segment.slot(member, round as usize % SLOTS, start, len), len)
    }

    /// A part of the area of `member`.
    pub fn area_of(&self, member: usize, start: usize, len: usize) -> Span<'_> {
        Span::new(self.segment.area(member, start, len), len)
    }

    /// A part of the workspace of `member`.
    pub fn workspace_of(&self, member: usize, start: usize, len: usize) -> Span<'_> {
        Span::new(self.segment.workspace(member, start, len), len)
    }

    /// Copies private bytes into shared memory.
    pub fn write(&self, to: Span<'_>, from: &[u8]) {
        assert_eq!(to.len, from.len(), "lengths differ");
        // SAFETY: a span lies inside mapped shared memory. Private bytes are never part of it: slices of the area come from
        // `&mut self`, so that none is alive here.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.at, to.len) }
    }

    /// Copies shared bytes into private memory.
    pub fn read(&self, from: Span<'_>, into: &mut [u8]) {
        assert_eq!(from.len, into.len(), "lengths differ");
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.at.cast_const(), into.as_mut_ptr(), from.len) }
    }

    /// As [`Team::read`], for memory that nobody reads soon: the bytes go past the caches.
    pub fn stream(&self, from: Span<'_>, into: &mut [u8]) {
        assert_eq!(from.len, into.len(), "lengths differ");
        // SAFETY: as in `write`.
        unsafe { corro_kernels::stream(from.at.cast_const(), into.as_mut_ptr(), from.len) }
    }

    /// Copies shared bytes to another shared place.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>) {
        assert_eq!(to.len, from.len, "lengths differ");
        // SAFETY: spans lie inside mapped memory, and this copy may overlap.
        unsafe { std::ptr::copy(from.at.cast_const(), to.at, to.len) }
    }

    /// `op(sources...) * factor`, in the order of `sources`, goes to `target` and to all of `copies`, in one pass.
    pub fn reduce(
        &self,
        op: ReduceOp,
        dtype: DType,
        target: Target<'_>,
        copies: &[Span<'_>],
        sources: &[Source<'_>],
        factor: f64,
    ) {
        let (to, len) = match target {
            Target::Shared(span) => (span.at, span.len),
            Target::Private(bytes) => (bytes.as_mut_ptr(), bytes.len()),
        };
        let start = |source: &Source<'_>| {
            let (at, there) = match source {
                Source::Shared(span) => (span.at.cast_const(), span.len),
                Source::Private(bytes) => (bytes.as_ptr(), bytes.len()),
                Source::Target => (to.cast_const(), len),
            };
            assert_eq!(there, len, "lengths differ");
            at
        };
        assert!(copies.iter().all(|c| c.len == len), "lengths differ");
        assert_eq!(len % dtype.size(), 0, "not a whole number of {dtype} elements");
        // (Pushed rather than collected: that would move the whole list once more.)
        let (mut targets, mut starts) = (Few::<*mut u8>::new(), Few::<*const u8>::new());
        targets.push(to);
        for copy in copies {
            targets.push(copy.at);
        }
        for source in sources {
            starts.push(start(source));
        }
        // SAFETY: every operand has `len` valid bytes (checked above). A source is a target itself, or private memory that
        // the borrow checker keeps apart from them, or a span of another member or another place.
        unsafe {
            corro_kernels::reduce_many(op, dtype, &targets, &starts, len / dtype.size(), factor);
        }
    }

    /// Declares the team dead because of the rank `culprit`, so that everyone else stops waiting at once.
    pub fn abandon(&self, culprit: Rank) {
        let poison = u32::try_from(culprit.index()).map_or(u32::MAX, |c| c.saturating_add(1));
        let _ = self.segment.poison().compare_exchange(0, poison, Ordering::SeqCst, Ordering::SeqCst);
        for member in 0..self.size() {
            self.counter(member, ControlWord::Published).wake();
            self.counter(member, ControlWord::Reduced).wake();
        }
    }

    fn counter(&self, member: usize, word: ControlWord) -> Counter<'_> {
        Counter::new(self.segment.word(member, word), self.segment.word(member, word.sleepers()))
    }

    fn mark(&self, word: ControlWord, round: u32) {
        self.counter(self.me, word).set(round);
    }

    fn wait(&self, member: usize, word: ControlWord, round: u32, timeout: Duration) -> Result<()> {
        let counter = self.counter(member, word);
        if counter.has_reached(round) {
            return Ok(());
        }
        if self.may_spin {
            for _ in 0..SPINS {
                std::hint::spin_loop();
                if counter.has_reached(round) {
                    return Ok(());
                }
            }
            self.part_ways();
        }
        for _ in 0..YIELDS {
            rustix::thread::sched_yield();
            if counter.has_reached(round) {
                return Ok(());
            }
        }
        self.sleep_until(member, word, round, timeout)
    }

    /// Leaves this core if a member before this one waits here too: ranks that each could have a core should.
    #[cold]
    fn part_ways(&self) {
        let core = |m: usize| (self.segment.word(m, ControlWord::Core).load(Ordering::Relaxed) as usize).checked_sub(1);
        let here = cores::current();
        self.segment.word(self.me, ControlWord::Core).store(here as u32 + 1, Ordering::Relaxed);
        let shared = (0..self.me).any(|m| core(m) == Some(here));
        if shared && self.moved.get().is_none_or(|at| at.elapsed() > MOVE_PAUSE) {
            self.moved.set(Some(Instant::now()));
            cores::move_away(self.others().filter_map(core));
        }
    }

    #[cold]
    fn sleep_until(&self, member: usize, word: ControlWord, round: u32, timeout: Duration) -> Result<()> {
        let counter = self.counter(member, word);
        let deadline = Deadline::after(timeout);
        loop {
            counter.sleep(round, deadline.left().unwrap_or(LOOK_UP).min(LOOK_UP));
            if counter.has_reached(round) {
                return Ok(());
            }
            if let Some(trouble) = self.trouble(member, &deadline) {
                // A member may well leave right after it has done what we wait for.
                if counter.has_reached(round) {
                    return Ok(());
                }
                if let Error::PeerLost { rank, .. } = &trouble {
                    self.abandon(*rank);
                }
                return Err(trouble);
            }
        }
    }

    /// Why waiting for `member` has become pointless, if it has.
    fn trouble(&self, member: usize, deadline: &Deadline) -> Option<Error> {
        let who = &self.members[member];
        let lost = |cause: &str| Some(Error::peer_lost(who.rank, &who.host, cause));
        if self.withdrawn.is_set() {
            return Some(Error::Withdrawn);
        }
        // What somebody else found first is nearer to the cause than what follows from it.
        if let Some(error) = poisoned(&self.segment, &self.hosts) {
            return Some(error);
        }
        if has_exited(who) {
            return lost("its process has exited");
        }
        if self.segment.word(member, ControlWord::State).load(Ordering::SeqCst) != 0 {
            return lost("it has left the group");
        }
        if deadline.passed() {
            let seconds = deadline.granted().as_secs_f64();
            return lost(&format!(
                "it has not come to the collective that the others are in for {seconds} s \
                 (CORRO_TIMEOUT sets this limit)"
            ));
        }
        None
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.segment.word(self.me, ControlWord::State).store(1, Ordering::SeqCst);
        self.counter(self.me, ControlWord::Published).wake();
        self.counter(self.me, ControlWord::Reduced).wake();
    }
}

/// A list that allocates only when it is long: an allocation would be most of the cost of reducing a few bytes.
type Few<T> = SmallVec<[T; 16]>;

/// The error, if somebody declared the team dead.
pub(crate) fn poisoned(segment: &Segment, hosts: &Hosts) -> Option<Error> {
    let culprit = Rank::new((segment.poison().load(Ordering::SeqCst) as usize).checked_sub(1)?);
    let host = hosts.get(culprit.index()).map_or("an unknown host", String::as_str);
    Some(Error::peer_lost(culprit, host, "another rank found it gone or stuck, or it gave up itself"))
}

pub(crate) fn has_exited(member: &Member) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(exit) = &member.exit else { return false };
    let mut fds = [PollFd::new(exit, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::super::segment::Sizes;
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Two members as threads.
    fn pair(act: impl Fn(&mut Team) + Sync) {
        let sizes = Sizes { members: 2, slot: 4096, ring: 4096, area: 0, workspace: 0 };
        let segment = Arc::new(Segment::create(sizes).unwrap().0);
        let hosts: Hosts = ["host".to_owned(), "host".to_owned()].into();
        std::thread::scope(|scope| {
            for me in 0..2 {
                let member = |rank| Member { rank: Rank::new(rank), host: "host".into(), exit: None };
                let mut team = Team::new(
                    Arc::clone(&segment),
                    vec![member(0), member(1)],
                    me,
                    false,
                    Arc::clone(&hosts),
                    Withdrawal::default(),
                );
                let act = &act;
                scope.spawn(move || act(&mut team));
            }
        });
    }

    /// Goes on by a quarter of the circle of round numbers.
    fn leap(team: &mut Team) {
        let last = team.take_rounds(1 << 30).wrapping_add((1 << 30) - 1);
        team.publish(last);
        team.wait_all_published(last, LONG).unwrap();
        team.barrier(LONG).unwrap();
    }

    #[test]
    fn rounds_go_on_past_the_end_of_their_numbers() {
        pair(|team| (0..9).for_each(|_| leap(team)));
    }

    #[test]
    fn a_mark_that_nobody_set_for_long_is_not_taken_for_a_later_one() {
        pair(|team| {
            (0..3).for_each(|_| leap(team));
            let other = 1 - team.me();
            let never_marked = team.round;
            assert!(team.wait_reduced(other, never_marked, Duration::from_millis(20)).is_err());
        });
    }

    #[test]
    fn members_in_different_collectives_notice() {
        pair(|team| {
            team.begin(7 + team.me() as u64);
            let round = team.next_round(LONG).unwrap();
            team.publish(round);
            assert!(matches!(team.wait_all_published(round, LONG), Err(Error::Mismatch(_))));
        });
    }
}
