//! A set's work, for whoever does it at the moment: see [`HandOver`].

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use corro_agreement::node::Gear;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hand_over::{HandOver, ListenState, Work};
use super::lane::Lane;
use super::process_set::ProcessSet;
use super::running::Done;
use super::state::{Running, State};
use super::wires::Wires;
use crate::primitive::MutexGuard;
use crate::promise::Promise;
use crate::submission::GLOBAL;
use crate::threads::Call;

/// Looks for something to do before a waiting program gives way, if every rank has a core.
const SPINS: u32 = 200;
/// Turns given to others before it goes to sleep.
const YIELDS: u32 = 64;
/// How long a sleeping program sleeps before it looks again; it is woken when its ticket is done.
const NAP: Duration = Duration::from_millis(200);
/// How long the watcher sleeps at most: programs in a plan don't wake it, yet somebody must see when they wait in vain.
const LOOK_UP: Duration = Duration::from_millis(250);

impl ProcessSet {
    /// The program has learned that something is done.
    pub(crate) fn looked(&self) {
        self.core.look();
    }

    /// A tensor is under way for which nobody will wait. Somebody is told of its end, which may count as waiting.
    pub(crate) fn flies(&self, promise: &Promise) -> Option<Call> {
        if let Some(life) = &self.core.life {
            life.flying.begins(self.core.nanos());
        }
        self.core.threads.call(self.id, promise.address())
    }

    /// It is done.
    pub(crate) fn has_landed(&self) {
        if let Some(life) = &self.core.life {
            life.flying.ends(self.core.nanos());
        }
    }

    /// The program waits meanwhile.
    pub(crate) fn program_waits<R>(&self, wait: impl FnOnce() -> R) -> R {
        let _waits = self.core.waits_here();
        wait()
    }

    /// Does the set's work in the caller's thread until the promise is kept; sleeps when there is none to do. Asks `go_on`
    /// every now and then, and leaves if it says no: then this is false, and the promise is still to be kept.
    pub(crate) fn drive_until(&self, promise: &Promise, go_on: &mut dyn FnMut() -> bool) -> bool {
        promise.is_kept() || {
            self.hand_over.enlist();
            self.drive(promise, go_on)
        }
    }

    /// As [`ProcessSet::drive_until`], for a caller that counts as driver already.
    pub(crate) fn drive(&self, promise: &Promise, go_on: &mut dyn FnMut() -> bool) -> bool {
        let _waits = self.core.waits_here();
        self.drive_a_while(promise, go_on);
        if promise.is_kept() {
            return true;
        }
        let _asleep = self.core.threads.wait(self.id, promise.address());
        while !promise.is_kept() {
            if !go_on() {
                return promise.is_kept();
            }
            promise.sleep(NAP);
        }
        true
    }

    /// As [`ProcessSet::drive`], but where that would sleep, it leaves the rest to others.
    pub(crate) fn drive_a_while(&self, promise: &Promise, go_on: &mut dyn FnMut() -> bool) {
        self.hand_over.drive(self, promise, go_on);
    }

    /// As [`ProcessSet::drive_a_while`], for a caller that does not count as driver yet.
    pub(crate) fn help(&self, promise: &Promise) {
        if !promise.is_kept() {
            self.hand_over.enlist();
            self.drive_a_while(promise, &mut || true);
        }
    }

    /// Wakes whoever is needed for what was just submitted.
    pub(super) fn wake_for(&self, st: &mut State, now: Duration) {
        if st.node.gear() == Gear::Plan {
            if st.node.can_begin() {
                self.hand_over.wake_runner();
            }
            if !st.node.has_news() {
                return;
            }
        }
        st.unsaid.get_or_insert(now);
        HandOver::wake_watcher(self, st);
    }

    /// The watcher: answers the neighbours when nobody else does.
    pub(super) fn watch(&self, watched: &[(OwnedFd, usize)]) {
        loop {
            let hear = |st: &mut State| {
                self.look_for_waiting(st);
                self.look_for_deadlock(st);
                let hold_back = self.hold_back(st);
                if hold_back.is_none() {
                    self.turn(st);
                }
                let mut heard = Vec::new();
                st.wires.check(&mut heard);
                st.heard.append(&mut heard);
                hold_back
            };
            let (interest, nap) = self.hand_over.look_round(self, hear, |st, hold_back| {
                let nap = hold_back.unwrap_or_else(|| self.nap(st));
                (st.wires.interest(watched), nap)
            });
            let done = self.with_state(|st| st.closing.is_some_and(|until| st.may_close(until)));
            if done {
                self.core.waits(self.id, None);
                self.core.leave_standing(self.id);
                return;
            }
            let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
            fds.extend(interest.iter().map(|(i, flags)| PollFd::from_borrowed_fd(watched[*i].0.as_fd(), *flags)));
            let nap = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) };
            let _ = poll(&mut fds, Some(&nap));
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
            Wires::silence(watched);
        }
    }

    /// Takes note of whether anything waits here in vain. The global set looks after the ranks for all sets.
    fn look_for_waiting(&self, st: &mut State) {
        let since = self.core.waits(self.id, st.waits_since(self.core.now()));
        if self.id == GLOBAL {
            st.node.waits(since);
        }
    }

    /// How long to hold back what was submitted, for those who set a cycle time.
    pub(super) fn hold_back(&self, st: &State) -> Option<Duration> {
        let until = st.unsaid? + self.core.options.cycle_time?;
        let left = until.saturating_sub(self.core.now());
        (!left.is_zero() && self.hand_over.is_undriven() && st.over.is_none()).then_some(left)
    }

    pub(super) fn nap(&self, st: &State) -> Duration {
        let tick = st.node.next_tick().map_or(LOOK_UP, |at| at.saturating_sub(self.core.now()));
        tick.clamp(Duration::from_millis(1), LOOK_UP)
    }
}

impl Work for ProcessSet {
    type State = State;
    type Lane = Option<Lane>;
    type Job = Running;
    type Done = Done;

    fn listening(st: &mut State) -> &mut ListenState {
        &mut st.listening
    }

    fn has_job(&self, st: &State) -> bool {
        st.has_job()
    }

    fn is_closing(&self, st: &State) -> bool {
        st.closing.is_some()
    }

    fn arm(&self, st: &mut State) {
        st.wires.arm();
    }

    fn disarm(&self, st: &mut State) {
        st.wires.disarm();
    }

    fn turn(&self, st: &mut State) -> bool {
        Self::turn(self, st)
    }

    fn next_job(&self, st: &mut State, done: Option<Done>) -> Option<Running> {
        Self::next_job(self, st, done)
    }

    fn run(&self, lane: &mut Option<Lane>, job: Running) -> Done {
        self.run_job(lane, job)
    }

    #[inline]
    fn release(&self, st: MutexGuard<'_, State>) {
        // Most often there is nothing.
        if !st.after.is_empty() {
            self.do_after(st);
        }
    }

    fn idle(&self, times: u32) -> bool {
        let spins = if self.core.may_spin { SPINS } else { 0 };
        if times < spins {
            std::hint::spin_loop();
        } else if times < spins + YIELDS {
            rustix::thread::sched_yield();
        } else {
            return false;
        }
        true
    }

    fn ring(&self) {
        // A full counter (never in practice) means it is ringing already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
