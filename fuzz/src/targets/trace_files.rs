//! Timelines and traces, of ranks that were killed and of other programs.

use corro_observe::timeline::{self, Trace};

/// What is read can be summed up and drawn, whatever it was.
pub fn run(bytes: &[u8]) {
    let trace = Trace::read(bytes).expect("bytes can be read");
    assert!(trace.spans.iter().all(|span| (span.row as usize) < trace.rows.len()));
    assert!(timeline::summary(&trace).contains("operations"));
    assert!(!timeline::picture(&trace, "x").contains("/*data*/"));
}
