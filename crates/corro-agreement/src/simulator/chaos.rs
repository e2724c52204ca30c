//! Scenarios from seeds: the same training program on every rank, in orders of its own, with all that can come between.

use std::time::Duration;

use corro_core::random::Random;
use corro_core::{DType, Rank, Shape};

use super::{Scenario, Step, allreduce};
use crate::coordinator::StallLimits;
use crate::request::{Kind, Request};

/// How the job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everybody has done everything.
    Finished,
    /// One rank shuts a set down, somewhere on the way.
    Shutdown,
    /// Something fails on one rank, somewhere on the way.
    Failure,
    /// One rank dies, some time.
    Death,
    /// One rank stands still for good, some time.
    Stop,
    /// When all is done, two ranks of a set wait for each other.
    Deadlock,
}

impl End {
    /// One of them, by the seed; all but the last.
    pub fn of(seed: u64) -> Self {
        [Self::Finished, Self::Shutdown, Self::Failure, Self::Death, Self::Stop][(seed % 5) as usize]
    }
}

/// A tensor of the training program.
#[derive(Clone, Debug)]
struct Tensor {
    set: usize,
    request: Request,
    /// All ranks submit it before they wait for tensors of a later phase.
    phase: usize,
}

/// What is made up along the way.
struct Maker {
    random: Random,
    scenario: Scenario,
    tensors: Vec<Tensor>,
    phases: usize,
    /// By rank and phase: whether this rank waits at the end of the phase.
    waits: Vec<Vec<bool>>,
    /// Between two submits.
    pause: Duration,
    tag: u64,
}

/// A scenario from a seed, which ends like this.
pub fn scenario(seed: u64, end: End) -> Scenario {
    let mut random = Random::new(seed);
    let ranks = if random.one_in(40) { 40 + random.below(60) } else { 1 + random.below(16) };
    let fan_out = *pick(&mut random, &[2, 2, 3, 32]);
    let per_host = 1 + random.below(6);
    let mut scenario = Scenario::new(ranks, per_host, fan_out);
    for _ in 0..random.below(3) {
        let members: Vec<Rank> = Rank::all(ranks).filter(|_| random.one_in(2)).collect();
        if !members.is_empty() {
            scenario.sets.push(members);
        }
    }
    let seconds = Duration::from_secs;
    scenario.rules.fusion.threshold = *pick(&mut random, &[0, 64, 1000, 128 << 20, 128 << 20]);
    scenario.rules.cache_capacity = *pick(&mut random, &[1024, 1024, 1024, 1024, 7, 2, 0]);
    scenario.rules.plans = !random.one_in(12);
    scenario.rules.stalls = StallLimits {
        warn: *pick(&mut random, &[seconds(60), seconds(60), Duration::ZERO, seconds(1), Duration::from_millis(20)]),
        shutdown: Duration::ZERO,
    };
    scenario.rules.timeout = *pick(&mut random, &[seconds(60), seconds(20), Duration::ZERO]);
    let micros = Duration::from_micros;
    // By a die of its own, so that all else stays as it was.
    scenario.rules.entry_cost = micros(*pick(&mut Random::new(!seed), &[0, 30, 500, 5000]));
    scenario.inside.1 = micros(*pick(&mut random, &[0, 5, 100, 2000]));
    scenario.between.1 = micros(*pick(&mut random, &[0, 50, 500, 5000]));
    scenario.lane = micros(*pick(&mut random, &[10, 300, 3000]));
    scenario.dither = micros(*pick(&mut random, &[0, 20, 500]));
    let pause = micros(*pick(&mut random, &[0, 20, 200, 2000]));
    let phases = 1 + random.below(3);
    let waits = (0..ranks).map(|_| (0..phases).map(|_| random.one_in(4)).collect()).collect();
    let mut maker = Maker { random, scenario, tensors: Vec::new(), phases, waits, pause, tag: 0 };
    for set in 0..maker.scenario.sets.len() {
        maker.model(set);
    }
    for _ in 0..=maker.random.below(3) {
        if maker.random.one_in(4) {
            maker.uneven_steps();
        } else {
            for _ in 0..4 + maker.random.below(14) {
                maker.step();
            }
        }
    }
    maker.finish(end);
    maker.scenario
}

fn pick<'a, T>(random: &mut Random, of: &'a [T]) -> &'a T {
    &of[random.below(of.len())]
}

impl Maker {
    /// The tensors that a set works on, over and over.
    fn model(&mut self, set: usize) {
        let plain = self.random.one_in(2);
        for i in 0..=self.random.below(8) {
            let mut request = allreduce(&format!("s{set}.t{i}"), 1 + self.random.below(300));
            match self.random.below(14) {
                0 | 1 if !plain => request.kind = Kind::Allgather,
                2 if !plain => request.kind = Kind::Barrier,
                3 if !plain => {
                    request.kind = Kind::Broadcast { root: *pick(&mut self.random, &self.scenario.sets[set]) };
                }
                4 | 5 => request.dtype = DType::F64,
                6 if !plain => request.shape = Shape(vec![0]),
                _ => {}
            }
            let phase = self.random.below(self.phases);
            self.tensors.push(Tensor { set, request, phase });
        }
        if self.random.one_in(3) {
            // Some of one phase form a group.
            let phase = self.random.below(self.phases);
            let mut group: Vec<&mut Tensor> =
                self.tensors.iter_mut().filter(|t| t.set == set && t.phase == phase).take(3).collect();
            let size = group.len();
            for tensor in &mut group {
                tensor.request.group = Some((7, size));
            }
        }
    }

    fn any_rank(&mut self) -> Rank {
        Rank::new(self.random.below(self.scenario.ranks))
    }

    fn members(&self, set: usize) -> &[Rank] {
        &self.scenario.sets[set]
    }

    /// One step of training, on all ranks.
    fn step(&mut self) {
        self.tag += 1;
        if self.random.one_in(12) {
            // From here on one tensor has another shape.
            let at = self.random.below(self.tensors.len());
            self.tensors[at].request.shape = Shape(vec![1 + self.random.below(300)]);
        }
        if self.random.one_in(10) {
            let rank = self.any_rank();
            let phase = self.random.below(self.phases);
            self.waits[rank.index()][phase] ^= true;
        }
        let mut tensors = self.tensors.clone();
        if self.random.one_in(12) {
            let set = self.random.below(self.scenario.sets.len());
            let request = allreduce(&format!("stray{}", self.tag), 5);
            tensors.push(Tensor { set, request, phase: self.random.below(self.phases) });
        }
        if self.random.one_in(15) && tensors.len() > 1 {
            // Left out, for once; groups stay whole.
            let at = self.random.below(tensors.len());
            if tensors[at].request.group.is_none() {
                tensors.remove(at);
            }
        }
        let odd = self.mismatch(&tensors);
        if self.random.one_in(30) {
            let set = self.random.below(self.scenario.sets.len());
            let threshold = *pick(&mut self.random, &[0, 200, 2000]);
            let first = self.members(set)[0];
            self.scenario.programs[first.index()].push(Step::Tune { set, threshold });
        }
        let slow = self.random.one_in(25).then(|| self.any_rank());
        for rank in Rank::all(self.scenario.ranks) {
            let mine: Vec<(Tensor, Option<&'static str>)> = tensors
                .iter()
                .enumerate()
                .filter(|(_, t)| self.members(t.set).contains(&rank))
                .map(|(i, t)| {
                    let mut tensor = t.clone();
                    if matches!(t.request.kind, Kind::Allgather) {
                        // Rows of its own.
                        tensor.request.shape = Shape(vec![t.request.shape.0[0] + rank.index() % 3]);
                    }
                    let fails = odd.as_ref().filter(|o| o.fails.contains(&i)).map(|_| "Mismatched data types");
                    if odd.as_ref().is_some_and(|o| o.rank == rank && o.tensor == i) {
                        tensor.request.dtype = DType::U8;
                    }
                    (tensor, fails)
                })
                .collect();
            if slow == Some(rank) {
                let time = Duration::from_millis(self.random.number() % 5000);
                self.scenario.programs[rank.index()].push(Step::Compute(time));
            }
            self.submit(rank, mine, self.tag, true);
        }
    }

    /// Sometimes one rank asks for another type; who, for what, and what fails by it.
    fn mismatch(&mut self, tensors: &[Tensor]) -> Option<Odd> {
        if !self.random.one_in(15) {
            return None;
        }
        let tensor = self.random.below(tensors.len());
        let Tensor { set, request, .. } = &tensors[tensor];
        if self.members(*set).len() < 2 {
            return None;
        }
        let fails = (0..tensors.len())
            .filter(|i| {
                let grouped = request.group.is_some() && tensors[*i].request.group == request.group;
                *i == tensor || (grouped && tensors[*i].set == *set)
            })
            .collect();
        let members = self.scenario.sets[*set].clone();
        Some(Odd { rank: *pick(&mut self.random, &members), tensor, fails })
    }

    /// A rank's way through one step: phase after phase, in any order where it does not wait between them.
    fn submit(&mut self, rank: Rank, mut tensors: Vec<(Tensor, Option<&'static str>)>, tag: u64, wait: bool) {
        let mut steps = Vec::new();
        let mut names: Vec<(usize, String)> = Vec::new();
        for phase in 0..self.phases {
            let last = phase + 1 == self.phases;
            if !last && !self.waits[rank.index()][phase] {
                continue;
            }
            let (mut now, later) = tensors.into_iter().partition(|(t, _)| t.phase <= phase);
            tensors = later;
            self.random.shuffle(&mut now);
            // A group is submitted at once.
            let place = |t: &Tensor| t.request.group.map(|_| t.set);
            let first = |list: &[(Tensor, _)], set| list.iter().position(|(t, _): &(Tensor, _)| place(t) == Some(set));
            let order: Vec<usize> =
                now.iter().enumerate().map(|(i, (t, _))| place(t).and_then(|s| first(&now, s)).unwrap_or(i)).collect();
            let mut now: Vec<_> = order.into_iter().zip(now).collect();
            now.sort_by_key(|(order, _)| *order);
            for (_, (Tensor { set, request, .. }, fails)) in now {
                if request.group.is_none() && self.random.one_in(3) {
                    steps.push(Step::Compute(self.random.time(self.pause)));
                }
                names.push((set, request.name.clone()));
                steps.push(Step::Submit { set, request, tag, fails });
            }
            if wait || !last {
                for set in 0..self.scenario.sets.len() {
                    let names: Vec<String> = names.iter().filter(|(s, _)| *s == set).map(|(_, n)| n.clone()).collect();
                    if !names.is_empty() {
                        steps.push(Step::Wait { set, names });
                    }
                }
            }
        }
        self.scenario.programs[rank.index()].append(&mut steps);
    }

    /// Ranks of one set have more data or less; they join when they have run out of it.
    fn uneven_steps(&mut self) {
        let set = self.random.below(self.scenario.sets.len());
        let joinable = |t: &&Tensor| t.set == set && t.request.group.is_none() && t.request.kind.works_with_join();
        let tensors: Vec<Tensor> = self.tensors.iter().filter(joinable).cloned().collect();
        let most = 1 + self.random.below(9);
        for rank in self.members(set).to_vec() {
            let count = self.random.below(most + 1);
            let in_a_hurry = self.random.one_in(3);
            for step in 0..count {
                let mine = tensors.iter().cloned().map(|t| (t, None)).collect();
                let wait = !(in_a_hurry && step + 1 == count);
                self.submit(rank, mine, self.tag + 1 + step as u64, wait);
            }
            self.scenario.programs[rank.index()].push(Step::Join { set });
            let names = tensors.iter().map(|t| t.request.name.clone()).collect();
            self.scenario.programs[rank.index()].push(Step::Wait { set, names });
        }
        self.tag += most as u64 + 1;
    }

    /// A rank waits for a tensor that another has not submitted, and that other one for one that the first has not. All others
    /// of the set wait for both.
    fn deadlock(&mut self, set: usize, one: Rank) {
        let Some(other) = self.members(set).iter().copied().find(|rank| *rank != one) else { return };
        self.scenario.deadlock = true;
        for rank in self.members(set).to_vec() {
            let mut names = vec!["x", "y"];
            names.retain(|name| (rank != one || *name == "x") && (rank != other || *name == "y"));
            self.random.shuffle(&mut names);
            let submit = |name: &&str| Step::Submit { set, request: allreduce(name, 7), tag: 0, fails: None };
            let pause = Step::Compute(self.random.time(self.pause));
            let program = &mut self.scenario.programs[rank.index()];
            program.push(pause);
            program.extend(names.iter().map(submit));
            program.push(Step::Wait { set, names: names.iter().map(ToString::to_string).collect() });
        }
    }

    fn finish(&mut self, end: End) {
        let set = self.random.below(self.scenario.sets.len());
        let rank = *pick(&mut self.random, &self.scenario.sets[set]);
        let program = &mut self.scenario.programs[rank.index()];
        let at = self.random.below(program.len() + 1);
        match end {
            End::Finished => {}
            End::Deadlock => self.deadlock(set, rank),
            End::Shutdown => program.insert(at, Step::Shutdown { set }),
            End::Failure => program.insert(at, Step::Fail { set, text: "it was to fail".into() }),
            End::Stop => {
                let when = Duration::from_micros(self.random.number() % 60_000);
                self.scenario.stops.push((rank, when));
                // Programs may be busy for much longer than that.
                self.scenario.rules.timeout = Duration::from_millis(*pick(&mut self.random, &[400, 4000, 60_000]));
                return;
            }
            End::Death => {
                let when = Duration::from_micros(self.random.number() % 60_000);
                self.scenario.deaths.push((rank, when));
                if self.random.one_in(4) {
                    let another = self.any_rank();
                    self.scenario.deaths.push((another, when + self.random.time(Duration::from_millis(1))));
                }
            }
        }
        if self.random.one_in(5) {
            let rank = self.any_rank();
            let at = Duration::from_micros(self.random.number() % 60_000);
            let length = Duration::from_millis(self.random.number() % 3000);
            self.scenario.freezes.push((rank, at, length));
        }
    }
}

/// A rank that asks for something else.
struct Odd {
    rank: Rank,
    tensor: usize,
    /// What fails by it, on all ranks.
    fails: Vec<usize>,
}
