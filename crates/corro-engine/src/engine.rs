//! The engine as programs see it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use corro_agreement::node::Gear;
use corro_agreement::request::Kind;
use corro_core::{Buffer, Error, Rank, Reason, Result, config};
use corro_planes::{Ledger, Outcome};
use corro_transport::secret::Secret;
use corro_transport::{Fabric, Settings, forks};

use crate::advice;
use crate::core::{Core, Whole};
use crate::options::Options;
use crate::set::{Ended, ProcessSet, group_number, set_request};
use crate::sets::{Sets, duplicate};
use crate::submission::{GLOBAL, Submission};
use crate::ticket::Ticket;
use crate::watch::feed::Feed;
use crate::watch::metrics::{Count, Snapshot};

/// How long the end of a job may take to reach all ranks.
const SHUTDOWN_TIME: Duration = Duration::from_secs(10);

/// One rank's engine. Clones are the same engine; when the last is dropped, the job is shut down.
///
/// ```
/// use corro_core::{DType, ReduceOp, Shape};
/// use corro_engine::{Engine, Options, Submission};
/// use corro_transport::{Fabric, Settings};
///
/// // Two ranks as threads; programs use `Engine::from_env` instead.
/// let ranks = Fabric::threads(&[0, 0], &Settings::default()).into_iter().map(|fabric| {
///     std::thread::spawn(move || {
///         let engine = Engine::start(fabric, Options::default())?;
///         let data = vec![engine.rank().index() as u8 + 1; 4];
///         let sum = Submission::allreduce("gradient", ReduceOp::Sum, DType::U8, Shape(vec![4]), data.into());
///         let ticket = engine.submit(sum)?;
///         // ... compute something else meanwhile ...
///         let sum = ticket.wait()?.into_bytes()?;
///         engine.shutdown();
///         Ok::<_, corro_core::Error>(sum)
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, [3, 3, 3, 3]);
/// }
/// # Ok::<(), corro_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    core: Arc<Core>,
    sets: Arc<Sets>,
    global: Arc<ProcessSet>,
    place: HostPlace,
    /// What tells the launcher how this rank gets on.
    feed: Option<Feed>,
    /// Which process this is, and its number.
    forks: u64,
    process: u32,
}

/// Where this rank is among the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostPlace {
    local_rank: usize,
    local_size: usize,
    cross_rank: usize,
    cross_size: usize,
    homogeneous: bool,
}

impl Engine {
    /// Joins the job the environment describes, or makes a world of one. `epoch` counts how often this process has done
    /// so: all ranks of a job must come with the same one.
    pub fn from_env(epoch: u64) -> Result<Self> {
        let settings = Settings { epoch, ..Settings::from_env()? };
        Self::start(Fabric::from_env_with(settings)?, Options::from_env()?)
    }

    /// Starts on a fabric. All its ranks must do so.
    pub fn start(fabric: Arc<Fabric>, options: Options) -> Result<Self> {
        let place = HostPlace::of(&fabric);
        let (forks, process) = (forks::count(), std::process::id());
        let all: Vec<Rank> = Rank::all(fabric.size()).collect();
        let core = Core::new(fabric, options);
        core.start_observers();
        let sets = Sets::new(Arc::clone(&core));
        sets.add_set(&all)?;
        let global = sets.set(GLOBAL)?;
        core.options.planes.begin(core.fabric.settings().timeout)?;
        if core.options.watching.trace.is_some() {
            global.align_clocks()?;
        }
        let feed = Feed::start(&core, &global, &sets, place.local_rank == 0);
        Ok(Self(Arc::new(Handle { core, sets, global, place, feed, forks, process })))
    }

    /// An error if this process was forked from the one that has joined the job. It may ask for its rank, but nothing of the
    /// job is its own: no collective can run here, and its end is not that of the rank.
    pub fn check_process(&self) -> Result<()> {
        self.0.check_process()
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.0.core.fabric.rank()
    }

    /// The name of its host, as messages have it.
    pub fn host(&self) -> &str {
        &self.0.core.fabric.card(self.rank()).host
    }

    /// On rank 0: logs what the user should know about the environment of this process, see `advice`. For
    /// programs to call once.
    pub fn review_environment(&self) {
        if self.rank() == Rank::ZERO {
            let remarks = config::review_own().into_iter().map(|remark| remark.text);
            for text in remarks.chain(advice::on_threads(self.local_size())) {
                tracing::warn!(rank = self.rank().index(), "{text}");
            }
        }
    }

    /// How many ranks the job has.
    pub fn size(&self) -> usize {
        self.0.core.fabric.size()
    }

    /// The key by which ranks prove that what they were sent is what another rank sent.
    pub fn object_key(&self) -> &Secret {
        self.0.core.fabric.object_key()
    }

    /// This process's place on its host.
    pub fn local_rank(&self) -> usize {
        self.0.place.local_rank
    }

    /// How many ranks its host has.
    pub fn local_size(&self) -> usize {
        self.0.place.local_size
    }

    /// Its host's place among those that have a rank with its local rank.
    pub fn cross_rank(&self) -> usize {
        self.0.place.cross_rank
    }

    /// How many hosts have a rank with its local rank.
    pub fn cross_size(&self) -> usize {
        self.0.place.cross_size
    }

    /// Whether all hosts have equally many ranks.
    pub fn is_homogeneous(&self) -> bool {
        self.0.place.homogeneous
    }

    /// Submits a tensor. All members of the process set must submit one of the same name, in whatever order.
    pub fn submit(&self, submission: Submission) -> Result<Ticket> {
        let set = self.set(submission.set)?;
        let promise = set.submit(submission, false)?;
        Ok(Ticket { promise, set })
    }

    /// A name for the next tensor of this kind, say `allreduce`, that the program has no name for. Members of the set that
    /// ask for names of a kind equally often get the same. Names come round, so that the engine comes to know them: who gets
    /// one must wait until the tensor that had it before is done, and then submit.
    pub fn name(&self, set: u32, kind: &str) -> Result<String> {
        Ok(self.set(set)?.name(kind))
    }

    /// As [`Engine::submit`], for a tensor that the program has no name for: the n-th of a kind, say `allreduce`, is the same on
    /// all ranks. Names come round, so that the engine comes to know them. If the tensor that had the name before is still
    /// under way, this one is submitted when that is done; the caller need not wait for it.
    pub fn submit_unnamed(&self, kind: &str, submission: Submission) -> Result<Ticket> {
        let set = self.set(submission.set)?;
        let promise = set.submit_unnamed(kind, vec![submission], false)?.pop();
        Ok(Ticket { promise: promise.ok_or_else(|| Error::Bug("a tensor without a promise".into()))?, set })
    }

    /// The same for several tensors that complete together, see [`Engine::submit_group`].
    pub fn submit_unnamed_group(&self, kind: &str, submissions: Vec<Submission>) -> Result<Vec<Ticket>> {
        let Some(first) = submissions.first() else { return Ok(vec![]) };
        let set = self.set(first.set)?;
        if submissions.iter().any(|s| s.set != first.set) {
            return Err(Error::Usage("all tensors of a group must belong to the same process set".into()));
        }
        let promises = set.submit_unnamed(kind, submissions, true)?;
        Ok(promises.into_iter().map(|promise| Ticket { promise, set: Arc::clone(&set) }).collect())
    }

    /// As [`Engine::run_while`], for a tensor that the program has no name for, see [`Engine::submit_unnamed`].
    pub fn run_unnamed_while(
        &self,
        kind: &str,
        submission: Submission,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<std::result::Result<Outcome, Ticket>> {
        let set = self.set(submission.set)?;
        let promise = match set.name_or_park(kind, submission)? {
            Ok(submission) => return self.run_while(submission, go_on),
            Err(promise) => promise,
        };
        let ticket = Ticket { promise, set };
        Ok(if ticket.wait_while(go_on) { Ok(ticket.take()?) } else { Err(ticket) })
    }

    /// As [`Engine::submit`], and does the engine's work for a moment. A small tensor that all ranks submit at about the
    /// same time is then done without anybody being woken; if not, nothing is lost, and nobody has waited for long.
    pub fn submit_and_help(&self, submission: Submission) -> Result<Ticket> {
        let set = self.set(submission.set)?;
        let promise = set.submit(submission, true)?;
        set.drive_a_while(&promise, &mut || true);
        Ok(Ticket { promise, set })
    }

    /// Submits several tensors that complete together; if one of them is refused, none is submitted.
    pub fn submit_group(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>> {
        let Some(first) = submissions.first() else { return Ok(vec![]) };
        let set = self.set(first.set)?;
        if submissions.iter().any(|s| s.set != first.set) {
            return Err(Error::Usage("all tensors of a group must belong to the same process set".into()));
        }
        let mut names: Vec<&str> = submissions.iter().map(|s| s.name.as_str()).collect();
        let number = group_number(names.iter().copied());
        names.sort_unstable();
        let equal = |pair: &[&str]| if let [a, b] = pair { (a == b).then(|| (*a).to_owned()) } else { None };
        if let Some(twice) = names.windows(2).find_map(equal) {
            return Err(Error::Usage(format!("a group has two tensors with the same name: {twice}")));
        }
        let promises = set.submit_group(submissions, number)?;
        Ok(promises.into_iter().map(|promise| Ticket { promise, set: Arc::clone(&set) }).collect())
    }

    /// Submits a tensor and waits for it: faster than one after the other, since nobody else needs to be woken.
    pub fn run(&self, submission: Submission) -> Result<Outcome> {
        self.run_while(submission, &mut || true)?.map_err(|_| Error::Bug("nobody said to stop waiting".into()))
    }

    /// As [`Engine::run`], but asks `go_on` every now and then, and stops waiting if it says no. The tensor is then still
    /// on its way, and comes back as a ticket. A collective that this rank has begun is not left before the others have
    /// come or the plan that it belongs to is given up, which takes about a second.
    pub fn run_while(
        &self,
        submission: Submission,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<std::result::Result<Outcome, Ticket>> {
        self.0.check_process()?;
        let other = if submission.set == GLOBAL { None } else { Some(self.0.sets.set(submission.set)?) };
        let set = other.as_ref().unwrap_or(&self.0.global);
        let ended = run(set, submission, go_on)?;
        Ok(ended.map_err(|promise| Ticket { promise, set: Arc::clone(set) }))
    }

    fn set(&self, id: u32) -> Result<Arc<ProcessSet>> {
        self.0.check_process()?;
        if id == GLOBAL { Ok(Arc::clone(&self.0.global)) } else { self.0.sets.set(id) }
    }

    /// This rank has no more data: it takes part in the others' allreduces with zeros until all have joined. The
    /// outcome says who came last.
    pub fn join(&self) -> Result<Ticket> {
        self.0.check_process()?;
        let promise = self.0.global.join()?;
        Ok(Ticket { promise, set: Arc::clone(&self.0.global) })
    }

    /// Makes a process set of these ranks. All ranks of the job must call this, in the same order. Gives its number.
    pub fn add_process_set(&self, ranks: &[Rank]) -> Result<u32> {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        if ranks.is_empty() || ranks.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Usage(format!(
                "{ranks:?} can't be the ranks of a process set: give at least one rank, and none twice"
            )));
        }
        if let Some(absent) = ranks.iter().find(|r| r.index() >= self.size()) {
            return Err(Error::Usage(format!(
                "a process set names rank {absent}, but the job has only {} ranks",
                self.size()
            )));
        }
        if let Some(id) = self.0.sets.find(&ranks) {
            return Err(duplicate(id, &ranks));
        }
        self.run(set_request(Kind::AddSet { ranks: ranks.clone() }))?;
        self.0.sets.find(&ranks).ok_or_else(|| Error::Bug("a process set just made is gone".into()))
    }

    /// Makes memory that the members of a process set share, so many bytes for each; this is the caller's own part of it.
    /// Tensors that lie there, at the same places on all members, are reduced without a copy. All members must call this,
    /// in the same order. `None` if they are not all on one host, or there is one only.
    pub fn shared_memory(&self, set: u32, bytes: usize) -> Result<Option<Buffer>> {
        self.set(set)?.shared_memory(bytes)
    }

    /// Gives a number to a process set that can't be made of the ranks this job has at present, so that others keep theirs
    /// in an elastic job. All ranks must do so, in the same order as they make sets. Using it is an error that says so.
    pub fn reserve_process_set(&self, ranks: &[Rank]) -> u32 {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        self.0.sets.reserve_set(ranks)
    }

    /// Removes a process set. All ranks of the job must call this. False if there is none with this number, or it is the
    /// global one.
    pub fn remove_process_set(&self, id: u32) -> Result<bool> {
        if id == GLOBAL || self.0.sets.members(id).is_none() {
            return Ok(false);
        }
        self.run(set_request(Kind::RemoveSet { id })).map(|_| true)
    }

    /// The ranks of a process set.
    pub fn process_set(&self, id: u32) -> Option<Vec<Rank>> {
        self.0.sets.members(id)
    }

    /// What compression remembers of the tensors of a process set, and what it has done with them: `act` is called with it.
    /// Tensors that are in flight are not in it, so that whoever saves or changes it waits for them first.
    pub fn with_compression<T>(&self, set: u32, act: impl FnOnce(&mut Ledger) -> T) -> Result<T> {
        let members = self.process_set(set);
        let members = members.ok_or_else(|| Error::Usage(format!("there is no process set {set}")))?;
        Ok(self.0.core.options.planes.ledgers().with(&members, act))
    }

    /// All process sets: numbers and ranks.
    pub fn process_sets(&self) -> Vec<(u32, Vec<Rank>)> {
        self.0.sets.all_members()
    }

    /// Starts a timeline in Horovod's format; one that runs is finished first. Only rank 0 writes.
    pub fn start_timeline(&self, path: &str, mark_cycles: bool) -> Result<()> {
        let core = &self.0.core;
        if !core.options.watching.on_request {
            return Err(Error::Usage(
                "a timeline can be started only if that was asked for at the start of the job. Set \
                 HOROVOD_TIMELINE=DYNAMIC, or to a path"
                    .into(),
            ));
        }
        if self.rank() == Rank::ZERO {
            core.observers.start_timeline(path.as_ref(), core.options.watching.cap, mark_cycles, core.now())?;
        }
        Ok(())
    }

    /// Finishes the timeline, if one runs.
    pub fn stop_timeline(&self) -> Result<()> {
        self.0.core.observers.stop_timeline()
    }

    /// The program says that a step of its training has ended: for those who watch the job. To be called when the step's
    /// tensors are there, which is the same moment on all ranks.
    pub fn mark_step(&self) {
        let core = &self.0.core;
        if let Some(life) = &core.life {
            life.step_ended(core.nanos(), core.observers.metrics.get(Count::CollectiveNanos));
        }
    }

    /// Whether anybody watches the job.
    pub fn is_watched(&self) -> bool {
        self.0.core.life.is_some()
    }

    /// From now on this process writes down where its threads are when it gets this signal, into the pipe that
    /// [`config::STACKS`] describes: those who watch the job may ask for it.
    pub fn dumps_on(&self, signal: u8) {
        if let Some(life) = &self.0.core.life {
            life.dumps.store(signal, Ordering::Relaxed);
        }
    }

    /// Tells those who watch the job a value of its training. Does nothing if nobody does.
    pub fn log_value(&self, step: u64, name: &str, value: f64) {
        if let Some(life) = &self.0.core.life {
            life.log(step, name, value);
        }
    }

    /// What this rank's engine has counted so far.
    pub fn metrics(&self) -> Snapshot {
        let mut snapshot = self.0.core.observers.metrics.snapshot(self.rank());
        snapshot.compression = self.0.core.options.planes.ledgers().totals();
        snapshot
    }

    /// Ends the job, for all ranks: what waits anywhere fails, and so does whatever comes later.
    pub fn shutdown(&self) {
        self.leave(Reason::ShutDown { after: None });
    }

    /// As [`Engine::shutdown`], and tells the other ranks why: what waits there fails with an error that says so.
    pub fn leave(&self, reason: Reason) {
        self.0.leave(reason);
    }

    /// What ends all work of this engine, for somebody who learns from outside that nothing more will come of it: the driver
    /// of an elastic job knows of lost hosts long before the network does. It does not keep the engine alive.
    pub fn ender(&self) -> impl Fn(Error) + Send + use<> {
        let global = Arc::downgrade(&self.0.global);
        move |error| {
            if let Some(global) = global.upgrade() {
                global.close(error);
            }
        }
    }

    /// Why the job is over, if it is.
    pub fn over(&self) -> Option<Error> {
        self.0.core.over()
    }

    /// How the members of a process set agree at present.
    pub fn gear(&self, set: u32) -> Result<Gear> {
        Ok(self.0.sets.set(set)?.traffic().0)
    }

    /// Messages sent and received so far to agree, by this rank in this process set.
    pub fn control_messages(&self, set: u32) -> Result<(u64, u64)> {
        let (_, traffic) = self.0.sets.set(set)?.traffic();
        Ok((traffic.sent, traffic.received))
    }

    /// The last operations of this rank, as text.
    pub fn flight_record(&self) -> String {
        self.0.sets.flight_record()
    }
}

fn run(set: &ProcessSet, mut submission: Submission, go_on: &mut dyn FnMut() -> bool) -> Result<Ended> {
    let result = match set.run_at_once(&mut submission, go_on) {
        Some(result) => result,
        None => {
            let promise = set.submit(submission, true)?;
            if set.drive(&promise, go_on) { promise.take().map(Ok) } else { Ok(Err(promise)) }
        }
    };
    set.looked();
    result
}

impl Handle {
    fn check_process(&self) -> Result<()> {
        if forks::now() == self.forks {
            return Ok(());
        }
        let (rank, process) = (self.core.fabric.rank(), self.process);
        Err(Error::Usage(format!(
            "this process was forked from rank {rank} (process {process}), and the job belongs to that one: no collective \
             can run here. Run it in the process that has called init, or start this one without fork \
             (multiprocessing's \"spawn\" method)"
        )))
    }

    fn leave(&self, reason: Reason) {
        if self.check_process().is_err() {
            return;
        }
        let sets = self.sets.take_sets();
        let Some(global) = sets.last() else { return };
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        global.shut_down(reason);
        let deadline = Instant::now() + SHUTDOWN_TIME;
        while !global.is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        if !global.is_over() {
            let seconds = SHUTDOWN_TIME.as_secs();
            self.core.warn(&format!("the other ranks did not hear of the shutdown within {seconds} s"));
            global.close(Error::Shutdown("Horovod has been shut down".into()));
        }
        if let Err(error) = self.core.observers.stop() {
            self.core.warn(&error.to_string());
        }
        for set in &sets {
            set.close(Error::Shutdown("Horovod has been shut down".into()));
            set.stop(set.id == GLOBAL);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.leave(Reason::ShutDown { after: None });
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine(rank {} of {})", self.rank(), self.size())
    }
}

impl HostPlace {
    fn of(fabric: &Fabric) -> Self {
        let mut hosts: Vec<(&str, Vec<Rank>)> = Vec::new();
        for (rank, card) in Rank::all(fabric.size()).zip(fabric.cards()) {
            match hosts.iter_mut().find(|(host, _)| *host == card.locality) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((&card.locality, vec![rank])),
            }
        }
        let hosts: Vec<Vec<Rank>> = hosts.into_iter().map(|(_, ranks)| ranks).collect();
        let of_host = |host: &Vec<Rank>| host.iter().position(|r| *r == fabric.rank());
        let (here, local_rank) =
            hosts.iter().enumerate().find_map(|(h, host)| Some((h, of_host(host)?))).unwrap_or((0, 0));
        let as_large = |hosts: &[Vec<Rank>]| hosts.iter().filter(|h| h.len() > local_rank).count();
        Self {
            local_rank,
            local_size: hosts[here].len(),
            cross_rank: as_large(&hosts[..here]),
            cross_size: as_large(&hosts),
            homogeneous: hosts.iter().all(|h| h.len() == hosts[0].len()),
        }
    }
}
