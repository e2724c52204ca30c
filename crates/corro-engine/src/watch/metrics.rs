//! What a process counts about its engine, and how a scraper reads it.
//!
//! Owns the counters of one engine. Every count is one relaxed `fetch_add`: the engine's threads never meet in a lock
//! here, and nobody may draw conclusions from the order in which two counters change. (The reason of the last gear
//! change is text under a mutex; gears change a few times in a job.) It never opens a socket or a file: the engine
//! counts, and whoever is asked takes a [`Snapshot`] and shows it, as words or in Prometheus' text format.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use corro_agreement::request::Kind;
use corro_core::{Rank, ReduceOp};
use corro_planes::{CompressionEntry, HOST};

/// What is counted with one number. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`COUNTERS` says each in words, which are also what a scraper is told")]
pub enum Count {
    ControlMessagesSent,
    ControlMessagesReceived,
    ControlBytesSent,
    ControlBytesReceived,
    RoundsAnnounce,
    RoundsBits,
    GearChanges,
    Batches,
    FusedTensors,
    CollectiveNanos,
    Failures,
    Stalls,
    CacheHits,
    CacheMisses,
    PlanEntries,
    PlansLeft,
}

/// How a counter is shown.
struct Counter {
    count: Count,
    name: &'static str,
    /// A label that tells counters of one name apart, as `key="value"`.
    label: &'static str,
    help: &'static str,
}

const fn counter(count: Count, name: &'static str, label: &'static str, help: &'static str) -> Counter {
    Counter { count, name, label, help }
}

/// What is shown. Counters of one name stand together; the first one's help is the name's. A plan's entry is also a round of
/// agreement, in which nothing needs to be said: one count under two names.
#[rustfmt::skip]
const COUNTERS: [Counter; 17] = [
    counter(Count::ControlMessagesSent, "corro_control_messages_total", r#"direction="sent""#, "Messages about what to run next."),
    counter(Count::ControlMessagesReceived, "corro_control_messages_total", r#"direction="received""#, ""),
    counter(Count::ControlBytesSent, "corro_control_bytes_total", r#"direction="sent""#, "Bytes of messages about what to run next."),
    counter(Count::ControlBytesReceived, "corro_control_bytes_total", r#"direction="received""#, ""),
    counter(Count::RoundsAnnounce, "corro_rounds_total", r#"gear="announce""#, "Rounds of agreement, by gear."),
    counter(Count::RoundsBits, "corro_rounds_total", r#"gear="bits""#, ""),
    counter(Count::PlanEntries, "corro_rounds_total", r#"gear="plan""#, ""),
    counter(Count::GearChanges, "corro_gear_changes_total", "", "Changes between the gears of agreement."),
    counter(Count::Batches, "corro_batches_total", "", "Collectives run; fused tensors share one."),
    counter(Count::FusedTensors, "corro_fused_tensors_total", "", "Tensors that shared a collective with others."),
    counter(Count::CollectiveNanos, "corro_collective_seconds_total", "", "Time spent in collectives."),
    counter(Count::Failures, "corro_failures_total", "", "Operations that ended with an error."),
    counter(Count::Stalls, "corro_stalls_total", "", "Reports of tensors that some ranks did not submit."),
    counter(Count::CacheHits, "corro_cache_requests_total", r#"result="hit""#, "Requests looked up in the response cache."),
    counter(Count::CacheMisses, "corro_cache_requests_total", r#"result="miss""#, ""),
    counter(Count::PlanEntries, "corro_plan_entries_total", "", "Collectives run from a static plan, without a message."),
    counter(Count::PlansLeft, "corro_plans_left_total", "", "Static plans left because a step departed from them."),
];

impl Count {
    /// All of them.
    pub const ALL: [Self; Self::PlansLeft as usize + 1] = {
        let mut all = [Self::Batches; Self::PlansLeft as usize + 1];
        let mut i = 0;
        while i < COUNTERS.len() {
            all[COUNTERS[i].count as usize] = COUNTERS[i].count;
            i += 1;
        }
        all
    };

    const fn is_time(self) -> bool {
        matches!(self, Self::CollectiveNanos)
    }
}

/// The kinds that are told apart: [`Kind::name`] in lower case.
const KINDS: [&str; 8] =
    ["allreduce", "adasum", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "other"];

fn place(kind: &Kind) -> usize {
    match kind {
        Kind::Allreduce { op: ReduceOp::Adasum, .. } => 1,
        Kind::Allreduce { .. } => 0,
        Kind::Allgather => 2,
        Kind::Broadcast { .. } => 3,
        Kind::Alltoall { .. } => 4,
        Kind::Reducescatter { .. } => 5,
        Kind::Barrier => 6,
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => 7,
    }
}

/// How many planes besides the host's are told apart; there are fewer.
const PLANES: usize = 7;

/// The latency's first bucket ends at 2^10 ns, about a microsecond; each further one at twice the last, up to 69 s.
const FIRST_BUCKET: u32 = 10;
const BUCKETS: usize = 28;

/// The bucket of a latency: the first whose end is not before it; the last one takes whatever is longer.
fn bucket(nanos: u64) -> usize {
    let log2_rounded_up = u64::BITS - nanos.saturating_sub(1).leading_zeros();
    (log2_rounded_up.saturating_sub(FIRST_BUCKET) as usize).min(BUCKETS - 1)
}

/// Where a bucket ends, in seconds; the last has no end.
fn bucket_end(bucket: usize) -> Option<f64> {
    (bucket < BUCKETS - 1).then(|| (1u64 << (FIRST_BUCKET as usize + bucket)) as f64 / 1e9)
}

/// The counters of one engine.
#[derive(Debug, Default)]
pub struct Metrics {
    counts: [AtomicU64; Count::ALL.len()],
    tensors: [AtomicU64; KINDS.len()],
    bytes: [AtomicU64; KINDS.len()],
    /// Batches of planes besides the host's, which has the rest: so a batch of the host is not counted twice.
    planes: [(OnceLock<&'static str>, AtomicU64); PLANES],
    latency: [AtomicU64; BUCKETS],
    latency_nanos: AtomicU64,
    last_gear_change: Mutex<String>,
    queue_depth: AtomicU64,
}

impl Metrics {
    /// All zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `n` more.
    pub fn add(&self, count: Count, n: u64) {
        self.counts[count as usize].fetch_add(n, Relaxed);
    }

    /// What is counted so far.
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// A batch of `tensors` with `bytes` in all has been run. Once a batch, not once a tensor: that keeps it cheap.
    pub fn ran(&self, kind: &Kind, tensors: u64, bytes: u64) {
        self.add(Count::Batches, 1);
        if tensors > 1 {
            self.add(Count::FusedTensors, tensors);
        }
        self.tensors[place(kind)].fetch_add(tensors, Relaxed);
        self.bytes[place(kind)].fetch_add(bytes, Relaxed);
    }

    /// That batch was run by another plane than the host's.
    pub fn ran_on(&self, plane: &'static str) {
        let own = self.planes.iter().find(|(name, _)| *name.get_or_init(|| plane) == plane);
        if let Some((_, batches)) = own {
            batches.fetch_add(1, Relaxed);
        }
    }

    /// The gear has changed, and why.
    pub fn changed_gear(&self, reason: &str) {
        self.add(Count::GearChanges, 1);
        let mut last = self.last_gear_change.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        last.clear();
        last.push_str(reason);
    }

    /// So many tensors are submitted and not yet done. The engine knows; a store is all it takes.
    pub fn set_queue_depth(&self, tensors: u64) {
        self.queue_depth.store(tensors, Relaxed);
    }

    /// Counts a length of time more.
    pub fn add_time(&self, count: Count, time: Duration) {
        self.add(count, time.as_nanos() as u64);
    }

    /// The tickets of a batch completed, each so long after it was submitted. They are added up here first,
    /// because tickets of a batch mostly share a bucket.
    pub fn completed(&self, latencies: impl IntoIterator<Item = Duration>) {
        let (mut at, mut tickets, mut nanos) = (0, 0, 0u64);
        for latency in latencies.into_iter().map(|l| l.as_nanos() as u64) {
            let bucket = bucket(latency);
            if bucket != at && tickets > 0 {
                self.latency[at].fetch_add(std::mem::take(&mut tickets), Relaxed);
            }
            at = bucket;
            tickets += 1;
            nanos = nanos.saturating_add(latency);
        }
        self.latency[at].fetch_add(tickets, Relaxed);
        self.latency_nanos.fetch_add(nanos, Relaxed);
    }

    /// What stands there now. Counters that change meanwhile may be seen at slightly different moments.
    pub fn snapshot(&self, rank: Rank) -> Snapshot {
        let read = |n: &AtomicU64| n.load(Relaxed);
        Snapshot {
            rank,
            counts: self.counts.each_ref().map(read),
            tensors: self.tensors.each_ref().map(read),
            bytes: self.bytes.each_ref().map(read),
            planes: self.planes.iter().filter_map(|(name, n)| Some((*name.get()?, read(n)))).collect(),
            latency: self.latency.each_ref().map(read),
            latency_nanos: read(&self.latency_nanos),
            queue_depth: read(&self.queue_depth),
            last_gear_change: self.last_gear_change.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone(),
            compression: CompressionEntry::default(),
        }
    }
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Whose.
    pub rank: Rank,
    counts: [u64; Count::ALL.len()],
    tensors: [u64; KINDS.len()],
    bytes: [u64; KINDS.len()],
    planes: Vec<(&'static str, u64)>,
    latency: [u64; BUCKETS],
    latency_nanos: u64,
    /// Tensors submitted and not yet done.
    pub queue_depth: u64,
    /// Why the gear last changed; empty if it never did.
    pub last_gear_change: String,
    /// What compression has done with all tensors; nothing by default.
    pub compression: CompressionEntry,
}

impl Snapshot {
    /// One counter.
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Tensors and bytes of this kind.
    pub fn of(&self, kind: &Kind) -> (u64, u64) {
        (self.tensors[place(kind)], self.bytes[place(kind)])
    }

    /// Tensors and bytes of all kinds.
    pub fn of_all(&self) -> (u64, u64) {
        (self.tensors.iter().sum(), self.bytes.iter().sum())
    }

    /// Collectives by the plane that ran them.
    pub fn planes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let elsewhere: u64 = self.planes.iter().map(|(_, n)| n).sum();
        // Making and removing process sets is no collective.
        let [.., no_collective] = self.tensors;
        let host = self.get(Count::Batches).saturating_sub(elsewhere + no_collective);
        std::iter::once((HOST, host)).chain(self.planes.iter().copied())
    }

    /// Tickets completed.
    pub fn tickets(&self) -> u64 {
        self.latency.iter().sum()
    }

    /// The latency in seconds that this share (0 to 1) of tickets did not exceed: the end of its bucket, so up to twice
    /// too long, never too short. `None` without tickets, or if it was longer than all buckets.
    pub fn latency(&self, share: f64) -> Option<f64> {
        let wanted = (share.clamp(0.0, 1.0) * self.tickets() as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let found = self.latency.iter().position(|n| {
            below += n;
            below >= wanted
        });
        found.and_then(bucket_end)
    }

    /// In Prometheus' text format.
    pub fn prometheus(&self) -> String {
        prometheus(std::slice::from_ref(self))
    }
}

/// The snapshots of several ranks in Prometheus' text format, version 0.0.4: all lines of a name stand together.
///
/// The reason of the last gear change is left out: as a label it would make a new time series for every text.
pub fn prometheus(ranks: &[Snapshot]) -> String {
    let mut page = String::new();
    let mut shown = "";
    for c in &COUNTERS {
        if c.name != shown {
            shown = c.name;
            head(&mut page, c.name, c.help, "counter");
            // All series of the name, of all ranks, before the next name.
            for series in COUNTERS.iter().filter(|s| s.name == shown) {
                for r in ranks {
                    let label = if series.label.is_empty() { String::new() } else { format!(",{}", series.label) };
                    let n = r.get(series.count);
                    let value = if series.count.is_time() { seconds(n) } else { n.to_string() };
                    let _ = writeln!(page, "{shown}{{rank=\"{}\"{label}}} {value}", r.rank);
                }
            }
        }
    }
    let by_kind = |page: &mut String, name: &str, help: &str, of: fn(&Snapshot) -> &[u64]| {
        head(page, name, help, "counter");
        for r in ranks {
            for (kind, n) in KINDS.iter().zip(of(r)) {
                let _ = writeln!(page, "{name}{{rank=\"{}\",kind=\"{kind}\"}} {n}", r.rank);
            }
        }
    };
    by_kind(&mut page, "corro_tensors_total", "Tensors done, by kind of collective.", |r| &r.tensors);
    by_kind(&mut page, "corro_bytes_total", "Bytes of tensors done, by kind of collective.", |r| &r.bytes);
    let name = "corro_plane_batches_total";
    head(&mut page, name, "Collectives run, by the plane that moved the bytes.", "counter");
    for r in ranks {
        for (plane, n) in r.planes() {
            let _ = writeln!(page, "{name}{{rank=\"{}\",plane=\"{plane}\"}} {n}", r.rank);
        }
    }
    compression(&mut page, ranks);
    head(&mut page, "corro_queue_depth", "Tensors submitted and not yet done.", "gauge");
    for r in ranks {
        let _ = writeln!(page, "corro_queue_depth{{rank=\"{}\"}} {}", r.rank, r.queue_depth);
    }
    let name = "corro_ticket_latency_seconds";
    head(&mut page, name, "Time from submitting a tensor to its completion.", "histogram");
    for r in ranks {
        let mut below = 0;
        for (i, n) in r.latency.iter().enumerate() {
            below += n;
            let end = bucket_end(i).map_or_else(|| "+Inf".to_owned(), |s| s.to_string());
            let _ = writeln!(page, "{name}_bucket{{rank=\"{}\",le=\"{end}\"}} {below}", r.rank);
        }
        let _ = writeln!(page, "{name}_sum{{rank=\"{}\"}} {}", r.rank, seconds(r.latency_nanos));
        let _ = writeln!(page, "{name}_count{{rank=\"{}\"}} {below}", r.rank);
    }
    page
}

/// What compression has done, if any rank has compressed anything.
fn compression(page: &mut String, ranks: &[Snapshot]) {
    if ranks.iter().all(|r| r.compression.calls == 0) {
        return;
    }
    let mut show = |name: &str, help: &str, kind: &str, of: fn(&CompressionEntry) -> f64| {
        head(page, name, help, kind);
        for r in ranks {
            let _ = writeln!(page, "{name}{{rank=\"{}\"}} {}", r.rank, of(&r.compression));
        }
    };
    show("corro_compression_plain_bytes_total", "Bytes that would have left the host uncompressed.", "counter", |c| {
        c.plain_bytes as f64
    });
    show("corro_compression_sent_bytes_total", "Bytes that left the host instead.", "counter", |c| c.sent_bytes as f64);
    show("corro_compression_seconds_total", "Time in compressed collectives.", "counter", |c| c.seconds);
    show("corro_compression_residual_norm", "Norm of what is still owed, lately.", "gauge", |c| c.residual_norm);
}

fn head(page: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Nanoseconds as seconds, to the last digit; an `f64` would lose some after a few weeks.
fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |c| self.get(c);
        let ms = |c| n(c) as f64 / 1e6;
        write!(f, "rank {}: {} tensors in {} batches", self.rank, self.tensors.iter().sum::<u64>(), n(Count::Batches))?;
        write!(f, " ({} fused), {} bytes", n(Count::FusedTensors), self.bytes.iter().sum::<u64>())?;
        write!(f, "; {} failed, {} stalls, {} queued", n(Count::Failures), n(Count::Stalls), self.queue_depth)?;
        write!(f, "; rounds: {} announce, ", n(Count::RoundsAnnounce))?;
        write!(f, "{} bits, {} plan", n(Count::RoundsBits), n(Count::PlanEntries))?;
        write!(f, "; {} control messages", n(Count::ControlMessagesSent) + n(Count::ControlMessagesReceived))?;
        write!(f, "; {:.3} ms in collectives", ms(Count::CollectiveNanos))?;
        if let (Some(half), Some(most)) = (self.latency(0.5), self.latency(0.99)) {
            write!(f, "; latency at most {:.3} ms (half), {:.3} ms (99 %)", half * 1e3, most * 1e3)?;
        }
        if !self.last_gear_change.is_empty() {
            let times = n(Count::GearChanges);
            write!(f, "; gear changed {times} times, last because {}", self.last_gear_change)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    /// Reads the text format and checks its rules; gives every sample by name and labels.
    fn parse(page: &str) -> BTreeMap<String, f64> {
        let is_name = |s: &str| {
            s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let (mut samples, mut types, mut family) = (BTreeMap::new(), BTreeMap::new(), String::new());
        let mut closed = HashSet::new();
        assert!(page.ends_with('\n'));
        for line in page.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let (keyword, rest) = comment.split_once(' ').unwrap();
                let (name, text) = rest.split_once(' ').unwrap();
                if keyword == "HELP" {
                    assert!(is_name(name) && !text.is_empty() && !text.contains('\\'), "{line}");
                    closed.insert(std::mem::replace(&mut family, name.to_owned()));
                    assert!(!closed.contains(name), "{name} comes twice");
                } else {
                    assert_eq!((keyword, name), ("TYPE", family.as_str()));
                    assert!(["counter", "gauge", "histogram"].contains(&text));
                    assert_eq!(types.insert(name.to_owned(), text.to_owned()), None);
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
            assert!(is_name(name) && base == family && types.contains_key(base), "{line}");
            assert!(types[base] != "counter" || name.ends_with("_total"), "{line}");
            for label in labels.strip_suffix('}').unwrap().split(',') {
                let (key, text) = label.split_once('=').unwrap();
                assert!(is_name(key) && text.len() >= 2 && text.starts_with('"') && text.ends_with('"'), "{line}");
            }
            assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} comes twice");
        }
        samples
    }

    #[test]
    fn every_count_is_shown_and_names_stand_together() {
        for (i, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(count as usize, i);
            assert!(COUNTERS.iter().any(|c| c.count == count), "{count:?} is not shown");
        }
        for (i, c) in COUNTERS.iter().enumerate() {
            let first_of_name = i == 0 || COUNTERS[i - 1].name != c.name;
            assert_eq!(first_of_name, !c.help.is_empty(), "{}", c.name);
        }
    }

    #[test]
    fn what_is_counted_is_what_is_scraped() {
        let metrics = Metrics::new();
        for (i, count) in Count::ALL.into_iter().enumerate() {
            metrics.add(count, 100 + i as u64);
        }
        metrics.ran(&Kind::Allgather, 3, 4096);
        for plane in ["nccl", "cuda-ipc", "nccl"] {
            metrics.ran_on(plane);
        }
        metrics.changed_gear("grad.7 is new");
        metrics.set_queue_depth(3);
        metrics.completed([1_500, u64::MAX / 4, 1_500].map(Duration::from_nanos));
        metrics.completed([]);
        let mut snapshot = metrics.snapshot(Rank::new(3));
        assert!(!snapshot.prometheus().contains("compression"), "nobody asked for any");
        snapshot.compression =
            CompressionEntry { calls: 1, plain_bytes: 400, sent_bytes: 100, residual_norm: 0.5, ..Default::default() };
        assert_eq!(snapshot.of(&Kind::Allgather), (3, 4096));
        assert_eq!(snapshot.get(Count::GearChanges), 107);
        assert_eq!((snapshot.latency(0.5), snapshot.latency(1.0)), (Some(2048e-9), None));
        let samples = parse(&snapshot.prometheus());
        for (series, value) in [
            (r#"corro_control_messages_total{rank="3",direction="sent"}"#, 100.0),
            (r#"corro_rounds_total{rank="3",gear="plan"}"#, 114.0),
            (r#"corro_batches_total{rank="3"}"#, 108.0),
            (r#"corro_collective_seconds_total{rank="3"}"#, 109e-9),
            (r#"corro_tensors_total{rank="3",kind="allgather"}"#, 3.0),
            (r#"corro_plane_batches_total{rank="3",plane="host"}"#, 105.0),
            (r#"corro_plane_batches_total{rank="3",plane="nccl"}"#, 2.0),
            (r#"corro_plane_batches_total{rank="3",plane="cuda-ipc"}"#, 1.0),
            (r#"corro_compression_plain_bytes_total{rank="3"}"#, 400.0),
            (r#"corro_compression_sent_bytes_total{rank="3"}"#, 100.0),
            (r#"corro_compression_residual_norm{rank="3"}"#, 0.5),
            (r#"corro_queue_depth{rank="3"}"#, 3.0),
            (r#"corro_ticket_latency_seconds_bucket{rank="3",le="0.000001024"}"#, 0.0),
            (r#"corro_ticket_latency_seconds_bucket{rank="3",le="0.000002048"}"#, 2.0),
            (r#"corro_ticket_latency_seconds_count{rank="3"}"#, 3.0),
        ] {
            assert_eq!(samples.get(series), Some(&value), "{series}");
        }
        assert!(snapshot.to_string().contains("gear changed 107 times, last because grad.7 is new"), "{snapshot}");
    }

    proptest! {
        #[test]
        fn a_latency_lies_in_its_bucket(nanos in any::<u64>()) {
            let i = bucket(nanos);
            let seconds = nanos as f64 / 1e9;
            prop_assert!(bucket_end(i).is_none_or(|end| seconds <= end));
            prop_assert!(i == 0 || bucket_end(i - 1).is_some_and(|end| end < seconds));
        }

        #[test]
        fn any_counts_of_any_ranks_make_a_valid_page(
            adds in proptest::collection::vec((0..Count::ALL.len(), 0u64..1 << 40), 0..40),
            latencies in proptest::collection::vec(any::<u64>(), 0..40),
            ranks in 1usize..5,
        ) {
            let metrics = Metrics::new();
            for (which, n) in adds {
                metrics.add(Count::ALL[which], n);
            }
            metrics.completed(latencies.iter().map(|nanos| Duration::from_nanos(nanos / 64)));
            let snapshots: Vec<_> = Rank::all(ranks).map(|r| metrics.snapshot(r)).collect();
            let samples = parse(&prometheus(&snapshots));
            for r in 0..ranks {
                let of = |end: &str| samples[&format!("corro_ticket_latency_seconds{end}")];
                let all = latencies.len() as f64;
                prop_assert_eq!(of(&format!("_bucket{{rank=\"{r}\",le=\"+Inf\"}}")), all);
                prop_assert_eq!(of(&format!("_count{{rank=\"{r}\"}}")), all);
            }
        }
    }

    #[test]
    fn threads_lose_no_count() {
        let metrics = Metrics::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| metrics.add(Count::CacheHits, 1)));
            }
        });
        assert_eq!(metrics.snapshot(Rank::ZERO).get(Count::CacheHits), 4000);
    }

    /// `cargo test --release -p corro-engine -- --ignored --nocapture what_an_operation`
    #[test]
    #[ignore = "measures; needs a release build and a quiet machine"]
    fn what_an_operation_costs() {
        use crate::watch::recorder::{Recorder, State};
        let (mut recorder, metrics) = (Recorder::default(), Metrics::new());
        let names: Vec<String> = (0..100).map(|i| format!("layer.{i}.attention.weight")).collect();
        let mut rounds = Vec::new();
        for _ in 0..50 {
            let began = std::time::Instant::now();
            for now in (0..200).map(Duration::from_millis) {
                let mut last = 0;
                for name in &names {
                    last = recorder.submitted(name, "ALLREDUCE", 40_000, now);
                }
                for state in [State::Agreed, State::Running, State::Done] {
                    (last - 99..=last).for_each(|n| recorder.came_to(n, state, now));
                }
                metrics.completed((0..100).map(|n| now + Duration::from_nanos(n)));
                metrics.ran(&Kind::Allgather, 100, 4_000_000);
                metrics.add(Count::PlanEntries, 1);
                metrics.set_queue_depth(last);
            }
            rounds.push(began.elapsed().as_nanos() as f64 / (200.0 * 100.0));
        }
        rounds.sort_by(f64::total_cmp);
        let (best, median) = (rounds[0], rounds[25]);
        println!(
            "an operation, with four states recorded and all metrics: {best:.1} ns at best, {median:.1} ns median"
        );
        assert!(best < 120.0, "2 % of 600 us for 100 tensors");
    }
}
