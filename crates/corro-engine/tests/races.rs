//! Tickets, and who does a process set's work, under a scheduler of our own: every step of one thread may be followed by
//! any step of another. Nothing wakes by itself here, so that a wake-up that is forgotten is a deadlock, which Shuttle
//! reports together with the schedule that replays it.
//!
//! Tickets, and the hand-over of work between programs, runner and watcher, are the crate's own source, compiled once more
//! with Shuttle's primitives. Only what is handed over is made up here: see [`Set`].
//!
//! `CORRO_TEST_SCHEDULES` says how many schedules are tried.

#[path = "../src/set/hand_over.rs"]
mod hand_over;
#[path = "../src/promise.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part is enough here")]
mod promise;
#[path = "../src/ticket.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part is enough here")]
mod ticket;

use std::collections::VecDeque;
use std::sync::Arc;

use corro_core::{Error, Rank, Result};
use corro_planes::Outcome;
use hand_over::{HandOver, ListenState, Work};
use promise::Promise;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;
use ticket::Ticket;

/// In place of `src/primitive.rs`.
mod primitive {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, TryLockError};
}

/// In place of `src/set.rs`: somebody else does the work.
mod set {
    use crate::promise::Promise;

    pub(crate) struct ProcessSet;

    /// In place of that of `src/threads.rs`.
    pub(crate) struct Call;

    impl Call {
        pub(crate) fn ends(self, tell: impl FnOnce()) {
            let _ = self;
            tell();
        }
    }

    impl ProcessSet {
        pub(crate) fn drive_until(&self, promise: &Promise, go_on: &mut dyn FnMut() -> bool) -> bool {
            while !promise.is_kept() && go_on() && !promise.sleep(std::time::Duration::MAX) {}
            let _ = self;
            promise.is_kept()
        }

        pub(crate) fn help(&self, promise: &Promise) {
            let _ = (self, promise);
        }

        pub(crate) fn looked(&self) {
            let _ = self;
        }

        pub(crate) fn flies(&self, promise: &Promise) -> Option<Call> {
            let _ = (self, promise);
            None
        }

        pub(crate) fn has_landed(&self) {
            let _ = self;
        }

        pub(crate) fn program_waits<R>(&self, wait: impl FnOnce() -> R) -> R {
            let _ = self;
            wait()
        }
    }
}

/// Runs `model` with many schedules.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    shuttle::check_random(move || again(), schedules());
    // Few changes at unlikely places find what random ones do not.
    shuttle::check_pct(move || model(), schedules(), 3);
}

fn schedules() -> usize {
    corro_testing::number("CORRO_TEST_SCHEDULES").map_or(3000, |n| n as usize)
}

fn ticket(promise: &Arc<Promise>) -> Ticket {
    Ticket { promise: Arc::clone(promise), set: Arc::new(set::ProcessSet) }
}

fn outcome(rank: usize) -> Outcome {
    Outcome { last_joined: Some(Rank::new(rank)), ..Outcome::default() }
}

fn rank(outcome: Result<Outcome>) -> Option<usize> {
    outcome.unwrap().last_joined.map(Rank::index)
}

#[test]
fn whoever_waits_gets_the_result() {
    explore(|| {
        let promise = Promise::new();
        let waiter = thread::spawn({
            let ticket = ticket(&promise);
            move || rank(ticket.wait())
        });
        // Sleeps on the same promise without taking the result, as a second driver would.
        let onlooker = thread::spawn({
            let promise = Arc::clone(&promise);
            move || while !promise.sleep(std::time::Duration::MAX) {}
        });
        promise.keep(Ok(outcome(7)));
        assert_eq!(waiter.join().unwrap(), Some(7));
        onlooker.join().unwrap();
    });
}

#[test]
fn a_result_that_is_seen_can_be_had_at_once() {
    explore(|| {
        let promise = Promise::new();
        let poller = thread::spawn({
            let ticket = ticket(&promise);
            move || {
                for _ in 0..3 {
                    if ticket.is_done() {
                        // Must not sleep: nobody would wake it.
                        assert!(ticket.wait_timeout(std::time::Duration::MAX));
                        return rank(ticket.wait());
                    }
                }
                rank(ticket.wait())
            }
        });
        promise.keep(Ok(outcome(7)));
        assert_eq!(poller.join().unwrap(), Some(7));
    });
}

#[test]
fn a_callback_is_called_once_whenever_it_comes() {
    explore(|| {
        let promise = Promise::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let watcher = thread::spawn({
            let (ticket, calls) = (ticket(&promise), Arc::clone(&calls));
            move || {
                ticket.on_done(move |result| {
                    assert_eq!(rank(result), Some(7));
                    calls.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        promise.keep(Ok(outcome(7)));
        watcher.join().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

/// A collective that ends and a job that ends may both want to keep a promise.
#[test]
fn of_two_results_one_counts() {
    explore(|| {
        let promise = Promise::new();
        let keepers = [Ok(outcome(7)), Err(Error::Withdrawn)].map(|result| {
            let promise = Arc::clone(&promise);
            thread::spawn(move || promise.keep(result))
        });
        let result = ticket(&promise).wait();
        assert!(matches!(result, Err(Error::Withdrawn)) || rank(result) == Some(7));
        for keeper in keepers {
            keeper.join().unwrap();
        }
        assert!(matches!(promise.take(), Err(Error::Bug(_))), "the second word is not kept for anyone");
    });
}

/// A process set without agreement and collectives. A job is a number, and to run it is to keep the promise of that number.
/// What a neighbour says is the number of a job that is agreed on; what it is told it agrees to.
struct Set {
    hand_over: HandOver<Self>,
    wires: Wires,
    promises: Vec<Arc<Promise>>,
    /// Set when the neighbour calls off what runs: see [`CALL_OFF`].
    called_off: (Mutex<bool>, Condvar),
}

/// A job that takes until the neighbour says [`CALL_OFF`]: a collective in which somebody is waited for.
const ENDLESS: usize = 0;
/// Not a job.
const CALL_OFF: usize = usize::MAX;

#[derive(Default)]
struct State {
    listening: ListenState,
    /// Submitted, and the neighbour does not know.
    unsaid: VecDeque<usize>,
    queue: VecDeque<usize>,
    /// Promises to be kept once the lock is released.
    after: Vec<usize>,
    closing: bool,
}

/// One neighbour, which rings when it is asked to; and the set's own bell. The watcher sleeps on both.
#[derive(Default)]
struct Wires {
    inbox: Mutex<VecDeque<usize>>,
    armed: AtomicBool,
    bells: Mutex<Bells>,
    rung: Condvar,
}

#[derive(Default)]
struct Bells {
    own: bool,
    neighbours: bool,
}

impl Wires {
    fn ring(&self, ring: impl FnOnce(&mut Bells)) {
        ring(&mut self.bells.lock().unwrap());
        self.rung.notify_one();
    }

    fn sleep(&self) {
        let mut bells = self.bells.lock().unwrap();
        while !bells.own && !bells.neighbours {
            bells = self.rung.wait(bells).unwrap();
        }
        *bells = Bells::default();
    }

    /// The neighbour's.
    fn say(&self, what: usize) {
        self.inbox.lock().unwrap().push_back(what);
        if self.armed.swap(false, Ordering::SeqCst) {
            self.ring(|bells| bells.neighbours = true);
        }
    }
}

impl Work for Set {
    type State = State;
    type Lane = ();
    type Job = usize;
    type Done = usize;

    fn listening(st: &mut State) -> &mut ListenState {
        &mut st.listening
    }

    fn has_job(&self, st: &State) -> bool {
        !st.queue.is_empty()
    }

    fn is_closing(&self, st: &State) -> bool {
        st.closing
    }

    fn arm(&self, _: &mut State) {
        self.wires.armed.store(true, Ordering::SeqCst);
    }

    fn disarm(&self, _: &mut State) {
        if !self.wires.armed.swap(false, Ordering::SeqCst) {
            // It has rung, or will in a moment: whoever listens need not be told.
            self.wires.bells.lock().unwrap().neighbours = false;
        }
    }

    fn turn(&self, st: &mut State) -> bool {
        let mut stirred = false;
        loop {
            let said = self.wires.inbox.lock().unwrap().pop_front();
            match said.or_else(|| st.unsaid.pop_front()) {
                None => return stirred,
                Some(CALL_OFF) => {
                    *self.called_off.0.lock().unwrap() = true;
                    self.called_off.1.notify_one();
                }
                Some(job) => {
                    st.queue.push_back(job);
                    self.hand_over.wake_runner();
                }
            }
            stirred = true;
        }
    }

    fn next_job(&self, st: &mut State, done: Option<usize>) -> Option<usize> {
        st.after.extend(done);
        st.queue.pop_front()
    }

    fn run(&self, (): &mut (), job: usize) -> usize {
        if job == ENDLESS {
            let mut over = self.called_off.0.lock().unwrap();
            while !*over {
                over = self.called_off.1.wait(over).unwrap();
            }
        }
        job
    }

    fn release(&self, mut st: MutexGuard<'_, State>) {
        let after = std::mem::take(&mut st.after);
        drop(st);
        for job in after {
            self.promises[job].keep(Ok(outcome(job)));
        }
    }

    fn idle(&self, times: u32) -> bool {
        thread::yield_now();
        times < 2
    }

    fn ring(&self) {
        self.wires.ring(|bells| bells.own = true);
    }
}

/// How a job comes that the neighbour does not speak of.
#[derive(Clone, Copy)]
enum Submitted {
    /// The next entry of a plan: it can be run, and the neighbour need not be told. Others are left to do so.
    Planned,
    /// The neighbour must be told, and others are left to do so.
    Unplanned,
    /// By a program that then drives.
    Driving,
    /// It runs in the program's own thread, if the lane is free.
    AtOnce,
}

impl Set {
    /// With promises of so many jobs. Unless it is `endless`, the first job is as the others.
    fn new(jobs: usize, endless: bool) -> Arc<Self> {
        Arc::new(Self {
            hand_over: HandOver::new(State::default(), ()),
            wires: Wires::default(),
            promises: (0..jobs).map(|_| Promise::new()).collect(),
            called_off: (Mutex::new(!endless), Condvar::new()),
        })
    }

    /// Submits a job, and returns when it is done.
    fn submit(&self, job: usize, how: Submitted) {
        let promise = &self.promises[job];
        match how {
            Submitted::Planned => self.hand_over.with_state(self, |st| {
                st.queue.push_back(job);
                self.hand_over.wake_runner();
            }),
            Submitted::Unplanned => self.hand_over.with_state(self, |st| {
                st.unsaid.push_back(job);
                HandOver::wake_watcher(self, st);
            }),
            Submitted::AtOnce if self.run_at_once(job) => (),
            Submitted::Driving | Submitted::AtOnce => {
                self.hand_over.with_state(self, |st| {
                    st.unsaid.push_back(job);
                    self.hand_over.enlist_with_job();
                });
                self.hand_over.drive(self, promise, &mut || true);
            }
        }
        while !promise.sleep(std::time::Duration::MAX) {}
    }

    fn run_at_once(&self, job: usize) -> bool {
        let Some(mut lane) = self.hand_over.free_lane() else { return false };
        if !self.hand_over.state().queue.is_empty() {
            return false;
        }
        let done = self.run(&mut lane, job);
        self.hand_over.with_state(self, |st| st.after.push(done));
        true
    }

    /// Waits for a job; does not drive any more once `go_on` says no.
    fn wait(&self, job: usize, go_on: &mut dyn FnMut() -> bool) {
        let promise = &self.promises[job];
        if !promise.is_kept() {
            self.hand_over.enlist();
            self.hand_over.drive(self, promise, go_on);
        }
        while !promise.sleep(std::time::Duration::MAX) {}
        assert!(promise.is_kept());
    }

    fn run_jobs(&self) {
        self.hand_over.run_jobs(self);
    }

    fn watch(&self) {
        let hear = |st: &mut State| {
            self.turn(st);
            None
        };
        while !self.hand_over.look_round(self, hear, |st, _| st.closing) {
            self.wires.sleep();
        }
    }
}

/// What happens in a process while its neighbour speaks of some jobs.
#[derive(Clone, Copy)]
struct Life {
    /// Threads that wait for the neighbour's jobs.
    programs: usize,
    /// How many jobs the neighbour speaks of.
    jobs: usize,
    /// The first job lasts until the neighbour has said everything.
    endless: bool,
    /// Programs do not drive any more after they have done something.
    hasty: bool,
    /// One job more.
    submitted: Submitted,
}

const QUIET: Life = Life { programs: 1, jobs: 3, endless: false, hasty: false, submitted: Submitted::Planned };

/// Programs come and go as drivers while the neighbour speaks; whoever is there when a job comes, somebody runs it.
fn nobody_waits_for_a_job_that_nobody_runs(life: Life) {
    let Life { programs, jobs, endless, hasty, submitted } = life;
    explore(move || {
        let set = Set::new(jobs + 1, endless);
        let start = |act: Box<dyn FnOnce(&Set) + Send>| {
            let set = Arc::clone(&set);
            thread::spawn(move || act(&set))
        };
        let servants = [start(Box::new(Set::watch)), start(Box::new(Set::run_jobs))];
        let neighbour = start(Box::new(move |set| (0..jobs).chain([CALL_OFF]).for_each(|what| set.wires.say(what))));
        let submitter = start(Box::new(move |set| set.submit(jobs, submitted)));
        let programs: Vec<_> = (0..programs)
            .map(|program| {
                start(Box::new(move |set| {
                    (program..jobs).step_by(programs).for_each(|job| set.wait(job, &mut || !hasty));
                }))
            })
            .collect();
        for thread in programs.into_iter().chain([neighbour, submitter]) {
            thread.join().unwrap();
        }
        for promise in &set.promises {
            promise.take().unwrap();
        }
        set.hand_over.close(&set, |st| st.closing = true);
        for servant in servants {
            servant.join().unwrap();
        }
    });
}

#[test]
fn one_program_and_the_servants_hand_work_over() {
    nobody_waits_for_a_job_that_nobody_runs(QUIET);
}

#[test]
fn two_programs_and_the_servants_hand_work_over() {
    nobody_waits_for_a_job_that_nobody_runs(Life { programs: 2, ..QUIET });
}

/// A program that has listened, and then runs a collective, hears nothing meanwhile: others must.
#[test]
fn what_neighbours_say_is_heard_while_a_program_runs_a_collective() {
    nobody_waits_for_a_job_that_nobody_runs(Life { jobs: 2, endless: true, ..QUIET });
}

#[test]
fn what_is_submitted_is_said_to_the_neighbours() {
    nobody_waits_for_a_job_that_nobody_runs(Life { jobs: 1, submitted: Submitted::Unplanned, ..QUIET });
}

#[test]
fn programs_that_submit_drive_beside_those_that_wait() {
    nobody_waits_for_a_job_that_nobody_runs(Life { jobs: 2, submitted: Submitted::Driving, ..QUIET });
}

#[test]
fn what_comes_while_a_program_has_the_lane_is_run_after_it() {
    nobody_waits_for_a_job_that_nobody_runs(Life { jobs: 2, submitted: Submitted::AtOnce, ..QUIET });
}

#[test]
fn programs_that_stop_driving_leave_the_rest_to_others() {
    nobody_waits_for_a_job_that_nobody_runs(Life { hasty: true, ..QUIET });
}
