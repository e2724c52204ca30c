//! What a trace says, on one screen. Pure.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::{Span, Trace};
use crate::report::printable;

/// Rows and kinds that are shown.
const MOST: usize = 20;

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    time: f64,
    longest: f64,
    bytes: u64,
    late: f64,
}

impl Sum {
    fn add(&mut self, span: &Span) {
        self.count += 1;
        self.time += span.length;
        self.longest = self.longest.max(span.length);
        self.bytes += span.bytes;
    }
}

/// See the module.
pub fn summary(trace: &Trace) -> String {
    let mut page = String::new();
    let outer = || trace.spans.iter().filter(|span| span.depth == 0);
    let begin = trace.spans.first().map_or(0.0, |span| span.start);
    let end = trace.spans.iter().map(|span| span.start + span.length).fold(begin, f64::max);
    let _ = writeln!(page, "{:.3} s, {} operations in {} rows", (end - begin) / 1e6, outer().count(), trace.rows.len());
    for (count, what) in [
        (trace.unreadable, "lines could not be read: a rank that was killed leaves one"),
        (trace.left_out, "operations found no room here"),
        (u64::from(trace.lossy), "note says that the file does not have all that happened"),
    ] {
        if count > 0 {
            let _ = writeln!(page, "{count} {what}");
        }
    }
    let late = lateness(trace);
    let mut rows: Vec<Sum> = vec![Sum::default(); trace.rows.len()];
    let mut kinds: BTreeMap<(&str, &str), Sum> = BTreeMap::new();
    for span in outer() {
        if let Some(row) = rows.get_mut(span.row as usize) {
            row.add(span);
        }
        let of = trace.rows.get(span.row as usize).map_or("", String::as_str);
        let tensor = if span.tensor.is_empty() { of } else { span.tensor.as_str() };
        kinds.entry((span.what.as_str(), tensor)).or_default().add(span);
    }
    for (row, late) in rows.iter_mut().zip(late) {
        row.late = late;
    }
    let whole = (end - begin).max(1e-9);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| rows[*b].time.total_cmp(&rows[*a].time));
    let _ = writeln!(page, "\n  operations   ms in all  of the time  longest ms          MB    late ms  row");
    for at in order.iter().take(MOST) {
        let Sum { count, time, longest, bytes, late } = rows[*at];
        let _ = writeln!(
            page,
            "{count:>12} {:>11.2} {:>10.1} % {:>11.3} {:>11.2} {:>10.3}  {}",
            time / 1e3,
            100.0 * time / whole,
            longest / 1e3,
            bytes as f64 / 1e6,
            late / 1e3,
            printable(&trace.rows[*at])
        );
    }
    more(&mut page, order.len());
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|(_, a), (_, b)| b.time.total_cmp(&a.time));
    let _ = writeln!(page, "\n       times   ms in all      mean ms  longest ms          MB  operation");
    for ((what, tensor), sum) in kinds.iter().take(MOST) {
        let _ = writeln!(
            page,
            "{:>12} {:>11.2} {:>12.3} {:>11.3} {:>11.2}  {} {}",
            sum.count,
            sum.time / 1e3,
            sum.time / sum.count as f64 / 1e3,
            sum.longest / 1e3,
            sum.bytes as f64 / 1e6,
            printable(what),
            printable(tensor)
        );
    }
    more(&mut page, kinds.len());
    page
}

fn more(page: &mut String, count: usize) {
    if count > MOST {
        let _ = writeln!(page, "{:>12} more", count - MOST);
    }
}

/// What was done, with which tensor, for the how-manieth time.
type Turn<'a> = (&'a str, &'a str, u64);

/// How much later than the first rank each began what all of them did, in the mean. Zero where rows are no ranks.
fn lateness(trace: &Trace) -> Vec<f64> {
    let mut times: HashMap<(u32, &str, &str), u64> = HashMap::new();
    let mut groups: HashMap<Turn<'_>, Vec<(u32, f64)>> = HashMap::new();
    for span in trace.spans.iter().filter(|span| span.depth == 0 && !span.tensor.is_empty()) {
        // The n-th time on one rank is the n-th on all others.
        let time = times.entry((span.row, &span.what, &span.tensor)).or_default();
        groups.entry((&span.what, &span.tensor, *time)).or_default().push((span.row, span.start));
        *time += 1;
    }
    let mut late = vec![(0.0, 0u64); trace.rows.len()];
    for group in groups.values().filter(|group| group.len() == trace.rows.len()) {
        let first = group.iter().map(|(_, start)| *start).fold(f64::INFINITY, f64::min);
        for (row, start) in group {
            if let Some((sum, count)) = late.get_mut(*row as usize) {
                *sum += start - first;
                *count += 1;
            }
        }
    }
    late.into_iter().map(|(sum, count)| if count == 0 { 0.0 } else { sum / count as f64 }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MERGED, trace};
    use super::*;

    #[test]
    fn one_screen_says_what_took_the_time_and_who_was_late() {
        let text = summary(&trace(MERGED));
        for part in [
            "0.002 s, 3 operations in 2 rows",
            "1 lines could not be read",
            "           2        1.40       93.3 %       0.900        0.00      0.000  rank 0 node0",
            "           1        0.50       33.3 %       0.500        0.00      0.400  rank 1 node1",
            "           2        1.40        0.700       0.900        0.01  ALLREDUCE w",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn nothing_gives_a_summary() {
        assert!(summary(&Trace::default()).contains("0 operations in 0 rows"));
    }
}
