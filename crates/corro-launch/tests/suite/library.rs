//! Jobs started by a program: a payload for all ranks, a result from each.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::support::corro;
use corro_launch::output::{Output, Style};
use corro_launch::{Failure, Job, Outcome, hosts, placement};

fn probe() -> PathBuf {
    corro().parent().unwrap().join("examples/probe")
}

fn run(np: usize, command: &[&str], payload: Vec<u8>) -> Outcome {
    let words: Vec<OsString> = std::iter::once(probe().into()).chain(command.iter().map(Into::into)).collect();
    let mut job = Job::new(words, placement::place(np, &[hosts::Host::local(np)]).unwrap()).unwrap();
    job.agent = vec![corro().into(), "agent".into()];
    job.payload = Some(payload);
    let style = Style { same_place: true, ..Style::default() };
    let output = Output::new(style, np, [Box::new(std::io::stdout()), Box::new(std::io::stderr())]).unwrap();
    job.run(output, |_| {}).unwrap()
}

#[test]
fn a_payload_goes_out_and_results_come_back_in_order() {
    // More than one part of the store, and bytes of all kinds.
    let payload: Vec<u8> = (0..10_000_000u32).map(|n| (n % 251) as u8).collect();
    let outcome = run(3, &["answer"], payload.clone());
    assert_eq!(outcome.failure, None);
    for (rank, result) in outcome.results.iter().enumerate() {
        let result = result.as_ref().unwrap();
        assert_eq!(result[0], b'0' + rank as u8);
        assert!(result[1..] == payload, "rank {rank}");
    }
}

#[test]
fn a_job_can_be_interrupted_and_failures_are_values() {
    let outcome = run(2, &["nonsense"], Vec::new());
    let Some(Failure::Rank { ending, .. }) = &outcome.failure else { panic!("{outcome:?}") };
    assert_eq!(ending.code(), 1);
    assert!(outcome.last_lines[0].contains("nonsense"), "{outcome:?}");
    assert_eq!(outcome.results, [None, None]);
    let mut job =
        Job::new(vec!["sleep".into(), "300".into()], placement::place(1, &[hosts::Host::local(1)]).unwrap()).unwrap();
    job.agent = vec![corro().into(), "agent".into()];
    let style = Style { same_place: true, ..Style::default() };
    let output = Output::new(style, 1, [Box::new(std::io::sink()), Box::new(std::io::sink())]).unwrap();
    let outcome = job.run(output, |control| control.interrupt(2)).unwrap();
    assert_eq!(outcome.failure, Some(Failure::Interrupted { signal: 2 }));
}
