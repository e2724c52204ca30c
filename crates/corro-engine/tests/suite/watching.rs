//! What is written down about a job: timeline, trace, metrics, flight recorder, the tuner's log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{numbers, on_hosts, on_ranks, sum};
use corro_core::Rank;
use corro_engine::metrics::Count;
use corro_engine::{GLOBAL, Options, StallLimits, Tuning, Watching, autotune, trace};
use corro_testing::{Folder, wait_until};
use serde_json::Value;

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Vec<Value>>(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_timeline_has_horovods_records() {
    let folder = Folder::new("timeline");
    let file = folder.join("timeline.json");
    let watching =
        Watching { timeline: Some(file.clone()), on_request: true, mark_cycles: true, ..Watching::default() };
    let options = move || Options { watching: watching.clone(), ..Options::default() };
    let second = folder.join("second.json");
    let path = second.clone();
    on_hosts(&[0, 0], options, move |engine| {
        for _ in 0..10 {
            engine.run(sum("x", &[1.0, 2.0])).unwrap();
        }
        engine.stop_timeline().unwrap();
        engine.start_timeline(path.to_str().unwrap(), false).unwrap();
        engine.run(sum("y", &[1.0])).unwrap();
        engine.stop_timeline().unwrap();
    });
    let first = events(&file);
    let named = |name: &str| first.iter().filter(|e| e["name"] == name).count();
    assert_eq!(named("NEGOTIATE_ALLREDUCE"), 10);
    assert_eq!(named("ALLREDUCE"), 10);
    assert_eq!(named("CORRO_ALLREDUCE"), 10);
    assert!(named("CYCLE_START") > 0);
    // In full the first time, by number after that. (Rank 1 may be ahead, and ask for the next tensor in time for this file.)
    assert_eq!(named("0"), 1);
    assert!((1..=2).contains(&named("1")));
    assert!(first.iter().any(|e| e["args"]["name"] == "x"));
    let count = |phase: &str| first.iter().filter(|e| e["ph"] == phase).count();
    assert_eq!(count("B"), count("E"));
    assert!(first.iter().any(|e| e["args"]["shape"] == "[2]" && e["args"]["dtype"] == "float32"));
    assert!(events(&second).iter().any(|e| e["args"]["name"] == "y"));
}

#[test]
fn the_traces_of_all_ranks_become_one() {
    let folder = Folder::new("trace");
    let path = folder.join("trace");
    let watching = Watching { trace: Some(path.clone()), ..Watching::default() };
    let options = move || Options { watching: watching.clone(), ..Options::default() };
    on_hosts(&[0, 0, 1], options, |engine| {
        for _ in 0..10 {
            engine.run(sum("x", &[1.0, 2.0])).unwrap();
        }
    });
    let shards: Vec<PathBuf> = Rank::all(3).map(|rank| trace::shard(&path, rank)).collect();
    let mut out = Vec::new();
    let merged = trace::merge(&shards, &mut out).unwrap();
    assert!(merged.unaligned.is_empty() && merged.unreadable == 0, "{merged:?}");
    let all: Value = serde_json::from_slice(&out).unwrap();
    let all = all.as_array().cloned().unwrap_or_else(|| all["traceEvents"].as_array().unwrap().clone());
    for rank in 0..3 {
        let spans = all.iter().filter(|e| e["ph"] == "X" && e["pid"] == rank).count();
        assert_eq!(spans, 10, "rank {rank}");
    }
}

#[test]
fn metrics_count_what_happens() {
    on_ranks(2, |engine| {
        for _ in 0..50 {
            engine.run(sum("x", &[1.0, 2.0])).unwrap();
        }
        let counted = engine.metrics();
        assert!(counted.get(Count::PlanEntries) > 20, "{counted}");
        assert!(counted.get(Count::RoundsAnnounce) >= 1 && counted.get(Count::RoundsBits) >= 1, "{counted}");
        assert_eq!(counted.tickets(), 50);
        assert!(counted.get(Count::CacheMisses) == 1, "{counted}");
        let (sent, received) = engine.control_messages(GLOBAL).unwrap();
        assert_eq!(counted.get(Count::ControlMessagesSent), sent);
        assert_eq!(counted.get(Count::ControlMessagesReceived), received);
        assert!(counted.prometheus().contains("corro_plan_entries_total"));
        let record = engine.flight_record();
        assert!(record.contains('x') && record.lines().count() > 40, "{record}");
    });
}

/// Which is what tells, when all is over, who did what last.
#[test]
fn a_job_that_fails_leaves_the_record_of_every_rank() {
    let folder = Folder::new("records");
    let watching = Watching { records: Some(folder.path().into()), ..Watching::default() };
    let stalls = StallLimits { warn: Duration::from_millis(100), shutdown: Duration::from_millis(300) };
    let options = move || Options { watching: watching.clone(), stalls, ..Options::default() };
    on_hosts(&[0, 0], options, |engine| {
        engine.run(sum("first", &[1.0])).unwrap();
        // Rank 1 does not come, and is lost after a while.
        if engine.rank() == Rank::ZERO {
            engine.run(sum("last", &[1.0])).unwrap_err();
        }
        wait_until("the job is over", Duration::from_secs(20), || engine.over().is_some());
    });
    let records = || {
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read_to_string(file.path()).unwrap()))
    };
    for rank in 0..2 {
        wait_until("its record is written", Duration::from_secs(20), || {
            records().any(|(name, text)| name.contains(&format!("-rank{rank}-")) && text.contains("first"))
        });
    }
}

#[test]
fn the_tuner_settles_and_writes_down_how() {
    let folder = Folder::new("tuning");
    let log = folder.join("tuning.csv");
    let search =
        autotune::Options { warmup_trials: 1, steps_per_sample: 2, max_trials: 6, ..autotune::Options::default() };
    let tuning = Tuning { search, log: Some(log.clone()), fusion_threshold: 128 << 20, ..Tuning::default() };
    let options = move || Options { tuning: Some(tuning.clone()), ..Options::default() };
    on_hosts(&[0, 0], options, |engine| {
        for step in 0..200 {
            let tickets: Vec<_> =
                (0..6).map(|t| engine.submit(sum(format!("t{t}"), &vec![t as f32; 1000])).unwrap()).collect();
            for (t, ticket) in tickets.into_iter().enumerate() {
                assert_eq!(numbers(ticket.wait().unwrap()), vec![2.0 * t as f32; 1000], "step {step}");
            }
        }
        // Once it has settled, plans may be made.
        assert!(engine.metrics().get(Count::PlanEntries) > 0);
    });
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("hierarchical_allreduce,") && lines.len() > 6, "{text}");
}
