//! Autotuning: finds the knobs with which this job's tensors move fastest, by trying and measuring.
//!
//! Owns the search and its log lines. Pure: times come from the caller, nothing is random, and it never touches a knob
//! itself; the engine of rank 0 calls [`Tuner::observe`] after each batch of the global process set, hands a [`Change`] to
//! all ranks in an agreed round, and writes its rows to the log. Other ranks have no tuner.
//!
//! A *sample* is the bytes per microsecond until some tensor has come round `steps_per_sample` times; a *trial* is the
//! median of five samples with the same knobs. After the warm-up come the knobs as they are and a few points spread over
//! the space, then wherever a Gaussian process expects most. At the end the best trial's knobs stay for good.
//!
//! Tuning must not change results. Knobs that move rounding are therefore held unless the user allows that, or, as the
//! crossover sizes, turned only for what does not round: see [`Options::rounding_may_change`] and `docs/autotune.md`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use corro_agreement::message::Knobs;
use serde::{Deserialize, Serialize};

use super::gaussian::{GaussianProcess, Sample};

/// The first line of the log.
pub const LOG_HEADER: &str = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score\n";

/// Samples in a trial.
const SAMPLES: usize = 5;

/// Names that are watched at a time: a program that invents new ones for ever must not fill the memory.
const NAMES: usize = 1 << 16;

/// Where to look before anything is known, as shares of each knob's range; no two agree in any.
const SPREAD: [[f64; 3]; 4] = [[0.6, 0.25, 0.5], [0.35, 0.75, 0.85], [0.85, 0.5, 0.15], [0.1, 0.0, 0.35]];

/// How many parts of a MiB are under way at a time, if nobody tunes: see [`corro_collectives::Tuning::segment`].
pub const PIECES: u32 = 4;

/// The knobs. The last five are not tuned; the log has columns for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "they are columns of Horovod's log, not states")]
pub struct Parameters {
    /// Bytes that may run as one collective.
    pub fusion_threshold: usize,
    /// Parts of a MiB that are under way at a time: messages between hosts are cut into segments of a MiB by this.
    pub pieces: u32,
    /// The sizes at which one algorithm gives way to another are multiplied by two to the power of this. Of collectives that
    /// only move bytes; of those that reduce only where that leaves results as they are, or the user allows it.
    pub crossover: i32,
    /// Horovod's cycle time.
    pub cycle_time_ms: f64,
    /// Whether requests are remembered.
    pub cache_enabled: bool,
    /// Horovod's switch of that name.
    pub hierarchical_allreduce: bool,
    /// Horovod's switch of that name.
    pub hierarchical_allgather: bool,
    /// Horovod's switch of that name.
    pub torus_allreduce: bool,
}

impl Parameters {
    /// What the collectives need to know; `reductions`: whether also theirs may change.
    pub fn knobs(&self, reductions: bool) -> Knobs {
        Knobs { segment: (1 << 20) / self.pieces.max(1) as usize, crossover: self.crossover, reductions }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mb, sizes) = (megabytes(self.fusion_threshold), f64::from(self.crossover).exp2());
        write!(f, "fusion threshold {mb} MB, {} pieces in flight, crossover sizes x {sizes}", self.pieces)
    }
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What the user has set, and therefore stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// The fusion threshold.
    pub fusion_threshold: bool,
    /// The pieces in flight.
    pub pieces: bool,
    /// The crossover sizes, for instance by forcing an algorithm.
    pub crossover: bool,
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Trials that do not count, while the job warms up.
    pub warmup_trials: usize,
    /// How often a tensor comes round in a sample.
    pub steps_per_sample: u32,
    /// Trials that count.
    pub max_trials: usize,
    /// The variance of a measurement, relative to that of all scores, in 0..1.
    pub noise: f64,
    /// Whether tuning may change the order in which floats are summed, and so their last bits.
    pub rounding_may_change: bool,
    /// Whether on this job's network the place of a tensor in a batch has a say in that order: so it is with the ring of
    /// three ranks or more, and not with shared memory. Then the fusion threshold counts as a knob that moves rounding.
    pub place_moves_rounding: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            warmup_trials: 3,
            steps_per_sample: 10,
            max_trials: 20,
            noise: 0.8,
            rounding_may_change: false,
            place_moves_rounding: true,
        }
    }
}

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The knobs from now on; they may be the same as before.
    pub parameters: Parameters,
    /// For the log, at level info.
    pub reason: String,
    /// Lines for the file that `HOROVOD_AUTOTUNE_LOG` names, each with its line break.
    pub rows: String,
    /// Whether these knobs stay for good.
    pub finished: bool,
}

/// A point in the space: a level of each knob.
type Point = [usize; 3];

/// The values each knob may take, ascending; one value for a knob that is held.
#[derive(Debug)]
struct Space {
    fusion: Vec<usize>,
    pieces: Vec<u32>,
    crossover: Vec<i32>,
    rest: Parameters,
}

impl Space {
    fn new(start: Parameters, fixed: Fixed, options: &Options) -> Self {
        let hold_fusion = fixed.fusion_threshold || (options.place_moves_rounding && !options.rounding_may_change);
        // From 64 KiB up to what the buffer was made for.
        let fusion = (16..usize::BITS).map(|log2| 1 << log2).take_while(|bytes| *bytes < start.fusion_threshold);
        Self {
            fusion: levels(start.fusion_threshold, hold_fusion, fusion),
            pieces: levels(start.pieces, fixed.pieces, (0..5).map(|log2| 1 << log2)),
            crossover: levels(start.crossover, fixed.crossover, -3..=3),
            rest: start,
        }
    }

    fn sizes(&self) -> Point {
        [self.fusion.len(), self.pieces.len(), self.crossover.len()]
    }

    fn places(&self) -> impl Iterator<Item = Point> {
        let [fusion, pieces, crossover] = self.sizes();
        (0..fusion).flat_map(move |f| (0..pieces).flat_map(move |p| (0..crossover).map(move |c| [f, p, c])))
    }

    fn at(&self, place: Point) -> Parameters {
        let [f, p, c] = place;
        let (fusion_threshold, pieces, crossover) = (self.fusion[f], self.pieces[p], self.crossover[c]);
        Parameters { fusion_threshold, pieces, crossover, ..self.rest }
    }

    /// As the Gaussian process wants it: each knob in 0..1. One that is held is the same everywhere, so it says nothing.
    fn coordinates(&self, place: Point) -> Vec<f64> {
        place.iter().zip(self.sizes()).map(|(level, size)| *level as f64 / (size - 1).max(1) as f64).collect()
    }

    fn nearest(&self, shares: [f64; 3]) -> Point {
        let sizes = self.sizes();
        std::array::from_fn(|knob| (shares[knob] * (sizes[knob] - 1) as f64).round() as usize)
    }
}

/// The values of a knob: those given and the one it has, or only the latter.
fn levels<T: Ord + Copy>(start: T, held: bool, values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = values.filter(|_| !held).collect();
    all.push(start);
    all.sort_unstable();
    all.dedup();
    all
}

/// A place and how fast it was, in bytes per microsecond.
#[derive(Clone, Copy, Debug)]
struct Trial {
    place: Point,
    score: f64,
}

/// The search.
#[derive(Debug)]
pub struct Tuner {
    options: Options,
    space: Space,
    /// Where the knobs stand.
    place: Point,
    /// When the sample began; `None`: with the next batch.
    began: Option<Duration>,
    bytes: u64,
    /// How often each tensor has come round in this sample.
    seen: HashMap<String, u32>,
    samples: Vec<f64>,
    warmup_left: usize,
    trials: Vec<Trial>,
    finished: bool,
}

impl Tuner {
    /// Starts from the knobs as they are. With nothing to tune it has finished at once.
    pub fn new(start: Parameters, fixed: Fixed, options: Options) -> Self {
        let space = Space::new(start, fixed, &options);
        let place = space.places().find(|p| space.at(*p) == start).unwrap_or_default();
        let finished = space.places().nth(1).is_none() || options.max_trials == 0;
        Self {
            options,
            space,
            place,
            began: None,
            bytes: 0,
            seen: HashMap::new(),
            samples: Vec::with_capacity(SAMPLES),
            warmup_left: options.warmup_trials,
            trials: Vec::new(),
            finished,
        }
    }

    /// Whether the knobs stay as they are for good.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// The knobs as they should be now.
    pub fn parameters(&self) -> Parameters {
        self.space.at(self.place)
    }

    /// A batch with these tensors was done at `now`. Says what to change, at the end of a trial.
    pub fn observe<'a>(
        &mut self,
        now: Duration,
        bytes: u64,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<Change> {
        if self.finished {
            return None;
        }
        let Some(began) = self.began else {
            // It took time that nobody measured, so its bytes do not count.
            self.began = Some(now);
            return None;
        };
        self.bytes += bytes;
        let mut most = 0;
        for name in names {
            most = most.max(self.count(name));
        }
        if most < self.options.steps_per_sample.max(1) {
            return None;
        }
        let nanos = now.saturating_sub(began).as_nanos().max(1);
        self.samples.push(std::mem::take(&mut self.bytes) as f64 * 1e3 / nanos as f64);
        self.seen.values_mut().for_each(|times| *times = 0);
        self.began = Some(now);
        if self.samples.len() < SAMPLES {
            return None;
        }
        self.samples.sort_by(f64::total_cmp);
        let score = self.samples[SAMPLES / 2];
        self.samples.clear();
        // What follows first still runs with the knobs of before.
        self.began = None;
        self.end_trial(score)
    }

    fn count(&mut self, name: &str) -> u32 {
        if let Some(times) = self.seen.get_mut(name) {
            *times += 1;
            return *times;
        }
        if self.seen.len() == NAMES {
            self.seen.clear();
        }
        self.seen.insert(name.to_owned(), 1);
        1
    }

    fn end_trial(&mut self, score: f64) -> Option<Change> {
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            return None;
        }
        let tried = Trial { place: self.place, score };
        self.trials.push(tried);
        let mut rows = self.row(tried);
        // The first of equals; there is one, just pushed.
        let best = self.trials.iter().copied().reduce(|a, b| if b.score > a.score { b } else { a })?;
        let number = self.trials.len();
        let result = format!("Autotuner: trial {number}: {}: {score:.0} bytes/us", self.space.at(tried.place));
        let next = if number < self.options.max_trials { self.next() } else { None };
        let (reason, finished) = match next {
            Some((place, why)) => {
                self.place = place;
                let next = self.space.at(place);
                (format!("{result}; best so far {:.0} bytes/us; next {next}, {why}", best.score), false)
            }
            None => {
                self.place = best.place;
                rows.push_str(&self.row(best));
                let winner = self.space.at(best.place);
                (
                    format!("{result}; settled on the best of {number} trials, {:.0} bytes/us: {winner}", best.score),
                    true,
                )
            }
        };
        self.finished = finished;
        Some(Change { parameters: self.parameters(), reason, rows, finished })
    }

    /// Where to look next, and why; `None` if every place was tried.
    fn next(&self) -> Option<(Point, &'static str)> {
        let untried = |place: &Point| self.trials.iter().all(|t| t.place != *place);
        // The first trial was the start.
        if let Some(shares) = SPREAD.get(self.trials.len() - 1) {
            let place = self.space.nearest(*shares);
            if untried(&place) {
                return Some((place, "to see more of the range"));
            }
        }
        let places: Vec<Point> = self.space.places().filter(untried).collect();
        let samples = self.trials.iter().map(|t| Sample { at: self.space.coordinates(t.place), score: t.score });
        let coordinates: Vec<_> = places.iter().map(|p| self.space.coordinates(*p)).collect();
        let fit = GaussianProcess::fit(samples.collect(), self.options.noise);
        let chosen = fit.and_then(|f| f.most_promising(coordinates.iter().map(Vec::as_slice))).unwrap_or(0);
        Some((*places.get(chosen)?, "where the model expects the most improvement"))
    }

    /// A trial as a line of the log.
    fn row(&self, trial: Trial) -> String {
        let p = self.space.at(trial.place);
        format!(
            "{},{},{},{},{},{},{}\n",
            u8::from(p.hierarchical_allreduce),
            u8::from(p.hierarchical_allgather),
            u8::from(p.torus_allreduce),
            u8::from(p.cache_enabled),
            p.cycle_time_ms,
            megabytes(p.fusion_threshold),
            trial.score
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Parameters = Parameters {
        fusion_threshold: 128 << 20,
        pieces: 4,
        crossover: 0,
        cycle_time_ms: 1.0,
        cache_enabled: true,
        hierarchical_allreduce: false,
        hierarchical_allgather: false,
        torus_allreduce: false,
    };

    fn all_allowed() -> Options {
        Options { rounding_may_change: true, ..Options::default() }
    }

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// Small numbers that look random, the same for the same seed; in -1..1.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0
        }
    }

    /// A job whose speed, in bytes per microsecond, is what `speed` says, give or take `noise`, and sometimes far less.
    fn run(tuner: &mut Tuner, speed: impl Fn(&Parameters) -> f64, noise: f64, chance: u64) -> Vec<Change> {
        let (mut random, mut now, mut changes) = (Noise(chance), Duration::ZERO, Vec::new());
        let mut parameters = tuner.parameters();
        for _ in 0..100_000 {
            let hiccup = if random.next() > 0.96 { 0.3 } else { 1.0 };
            let bytes = 1_000_000u64;
            let micros = bytes as f64 / (speed(&parameters) * (1.0 + noise * random.next()) * hiccup);
            now += Duration::from_secs_f64(micros / 1e6);
            if let Some(change) = tuner.observe(now, bytes, ["a", "b"]) {
                parameters = change.parameters;
                changes.push(change);
            }
            if tuner.is_finished() {
                return changes;
            }
        }
        panic!("it never ends");
    }

    /// A hill over the logarithms of the knobs, as such knobs have: gentle near the top, bad far away.
    fn hill(fusion: f64, pieces: f64, crossover: f64) -> impl Fn(&Parameters) -> f64 {
        move |p| {
            let far = |x: f64, top: f64, width: f64| ((x - top) / width).powi(2);
            let bad = far((p.fusion_threshold as f64).log2(), fusion, 6.0)
                + far(f64::from(p.pieces).log2(), pieces, 4.0)
                + far(f64::from(p.crossover), crossover, 5.0);
            4000.0 / (1.0 + bad)
        }
    }

    fn best(tuner: &Tuner, speed: impl Fn(&Parameters) -> f64) -> f64 {
        tuner.space.places().map(|p| speed(&tuner.space.at(p))).fold(0.0, f64::max)
    }

    #[test]
    fn it_comes_within_5_percent_of_the_best_on_noisy_hills_anywhere() {
        let held = |pieces, crossover| Fixed { fusion_threshold: false, pieces, crossover };
        // Three knobs have 420 places, of which 20 are tried: a hill in 50 may be missed, but never by much.
        for (fixed, may_miss) in [(held(false, false), 1), (held(false, true), 0), (held(true, true), 0)] {
            let mut missed = 0;
            for seed in 0..50 {
                let mut top = Noise(seed + 1000);
                top.next();
                let speed = hill(21.5 + 5.5 * top.next(), 2.0 + 2.0 * top.next(), 3.0 * top.next());
                let mut tuner = Tuner::new(START, fixed, all_allowed());
                let changes = run(&mut tuner, &speed, 0.05, seed);
                assert!(changes.len() <= 20 && changes.last().unwrap().finished);
                let share = speed(&tuner.parameters()) / best(&tuner, &speed);
                assert!(share > 0.85, "seed {seed}: {share}");
                missed += usize::from(share < 0.95);
            }
            assert!(missed <= may_miss, "{missed} of 50 with {fixed:?}");
        }
    }

    #[test]
    fn the_log_is_horovods_and_ends_with_the_best() {
        let speed = hill(22.0, 2.0, 0.0);
        let mut tuner = Tuner::new(START, Fixed { pieces: true, ..Fixed::default() }, all_allowed());
        let changes = run(&mut tuner, &speed, 0.0, 1);
        let log = changes.iter().fold(LOG_HEADER.to_owned(), |log, change| log + &change.rows);
        let rows: Vec<Vec<f64>> =
            log.lines().skip(1).map(|row| row.split(',').map(|x| x.parse().unwrap()).collect()).collect();
        assert_eq!(rows.len(), 20 + 1);
        assert!(rows.iter().all(|row| row.len() == LOG_HEADER.split(',').count()));
        assert_eq!(rows[0][..6], [0.0, 0.0, 0.0, 1.0, 1.0, 128.0]);
        let last = rows.last().unwrap();
        assert!(rows.iter().all(|row| row[6] <= last[6]));
        assert_eq!(last[5] * f64::from(1 << 20), tuner.parameters().fusion_threshold as f64);
        let reason = &changes[0].reason;
        assert!(
            reason
                .starts_with("Autotuner: trial 1: fusion threshold 128 MB, 4 pieces in flight, crossover sizes x 1: "),
            "{reason}"
        );
        assert!(changes.last().unwrap().reason.contains("; settled on the best of 20 trials, "));
    }

    #[test]
    fn warm_up_samples_and_medians_are_counted_as_the_options_say() {
        let options = Options { warmup_trials: 2, steps_per_sample: 3, ..all_allowed() };
        let mut tuner = Tuner::new(START, Fixed::default(), options);
        // One batch starts the clock of each trial; then 5 samples of 3 steps each.
        let steps = |trials: u64| trials * (1 + 5 * 3);
        for step in 1..steps(3) {
            assert_eq!(tuner.observe(us(step), 50, ["a", "b"]), None, "step {step}");
        }
        let change = tuner.observe(us(steps(3)), 50, ["a"]).expect("the end of the first trial that counts");
        assert!(change.rows.ends_with(",128,50\n"), "{}", change.rows);
        assert!(!change.finished && change.parameters != START && change.parameters == tuner.parameters());
    }

    #[test]
    fn names_that_never_come_again_do_no_harm() {
        let mut tuner = Tuner::new(START, Fixed::default(), all_allowed());
        for i in 0..200_000u64 {
            assert_eq!(tuner.observe(us(i), 1, [format!("t{i}").as_str()]), None);
        }
        assert!(tuner.seen.len() <= NAMES);
    }

    proptest! {
        #[test]
        fn what_is_fixed_stays_and_the_same_job_is_tuned_alike(
            fusion_threshold: bool, pieces: bool, crossover: bool,
            rounding_may_change: bool, place_moves_rounding: bool, seed: u64, bytes in 1usize..1 << 30,
        ) {
            let fixed = Fixed { fusion_threshold, pieces, crossover };
            let options = Options { rounding_may_change, place_moves_rounding, warmup_trials: 0, ..Options::default() };
            let start = Parameters { fusion_threshold: bytes, pieces: 3, ..START };
            let tuned = || {
                let mut tuner = Tuner::new(start, fixed, options);
                if tuner.is_finished() { Vec::new() } else { run(&mut tuner, hill(20.0, 1.0, 1.0), 0.1, seed) }
            };
            let changes = tuned();
            prop_assert_eq!(&changes, &tuned());
            for p in changes.iter().map(|c| c.parameters) {
                prop_assert!(p.fusion_threshold <= bytes, "more than the buffer holds");
                let fusion_held = fusion_threshold || (place_moves_rounding && !rounding_may_change);
                prop_assert!(!fusion_held || p.fusion_threshold == bytes);
                prop_assert!(!pieces || p.pieces == 3);
                prop_assert!(!crossover || p.crossover == 0);
                let tuned = Parameters { fusion_threshold: bytes, pieces: 3, crossover: 0, ..p };
                prop_assert_eq!(tuned, start);
            }
        }
    }
}
