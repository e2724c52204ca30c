//! The speed report: where the time of a step goes, who is slow, what the links carried, and what to do. One screen of text, and
//! one HTML file that needs nothing else. Made from a recording, also right after a job. Pure.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::advice::bits;

/// What is read of a recording.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Recorded {
    command: String,
    now: u64,
    state: String,
    failure: Option<String>,
    ranks: Vec<RecordedRank>,
    training: std::collections::BTreeMap<String, Vec<(u64, Option<f64>)>>,
    advice: Vec<RecordedAdvice>,
    tensors: Vec<(String, u64, u64, f64)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedRank {
    rank: Option<u32>,
    host: String,
    step: u64,
    step_ms: Option<f64>,
    shares: Option<[f64; 3]>,
    last: Option<f64>,
    collective_ms: Option<f64>,
    bytes: u64,
    fusion: Option<f64>,
    gear: String,
    hidden: bool,
    steps_are_told: bool,
    network: Vec<(String, u64, f64, u64)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedAdvice {
    text: String,
}

/// The report of a recording as text; `against` is another of the same program, on fewer ranks.
pub fn text(recording: &Value, against: Option<&Value>) -> String {
    let job = Recorded::deserialize(recording).unwrap_or_default();
    let mut page = String::new();
    let _ = writeln!(page, "{}", printable(&job.command));
    let how = job.failure.as_ref().map_or_else(|| job.state.clone(), |why| format!("failed: {}", printable(why)));
    let _ = writeln!(page, "{} ranks, {}, {how}\n", job.ranks.len(), length(job.now));
    let known: Vec<&RecordedRank> = job.ranks.iter().filter(|rank| rank.shares.is_some()).collect();
    if known.is_empty() {
        page.push_str("No step was seen on all ranks, so nothing is known of where the time went.\n");
    } else {
        steps(&mut page, &known);
        if let Some(against) = against {
            let other = Recorded::deserialize(against).unwrap_or_default();
            page.push_str(&scaling(&known, &other));
        }
        tensors(&mut page, &job.tensors, &known);
    }
    links(&mut page, &job.ranks);
    for (name, curve) in &job.training {
        if let (Some((_, Some(first))), Some((step, Some(last)))) = (curve.first(), curve.last()) {
            let _ = writeln!(page, "{}: {first:.4} at first, {last:.4} at step {step}", printable(name));
        }
    }
    page.push_str("\nWhat to do\n");
    for advice in &job.advice {
        let _ = writeln!(page, "  - {}", printable(&advice.text));
    }
    if job.advice.is_empty() {
        page.push_str("  Nothing stands out.\n");
    }
    page
}

fn steps(page: &mut String, known: &[&RecordedRank]) {
    let told = known.iter().all(|rank| rank.steps_are_told);
    let bound = known.iter().any(|rank| rank.hidden);
    page.push_str(
        "rank  host                  steps   ms/step  computing  communication  waiting  came last    MB/step\n",
    );
    for rank in known {
        let [computing, communication, waiting] = rank.shares.unwrap_or_default().map(|share| share * 100.0);
        let _ = writeln!(
            page,
            "{:>4}  {:<18} {:>8} {:>9.2} {computing:>8.1} % {communication:>12.1} % {waiting:>6.1} % {:>8.0} % {:>10.2}",
            rank.rank.map_or_else(|| "-".into(), |rank| rank.to_string()),
            printable(&rank.host).chars().take(18).collect::<String>(),
            rank.step,
            rank.step_ms.unwrap_or(0.0),
            rank.last.unwrap_or(0.0) * 100.0,
            rank.bytes as f64 / rank.step.max(1) as f64 / 1e6,
        );
    }
    let mean = |of: fn(&RecordedRank) -> f64| known.iter().map(|rank| of(rank)).sum::<f64>() / known.len() as f64;
    let busy = mean(|rank| rank.shares.unwrap_or_default()[0]);
    let _ = writeln!(
        page,
        "\nA step takes {:.2} ms; ranks compute {:.1} % of it, so {} do the work of {:.2}.",
        mean(|rank| rank.step_ms.unwrap_or(0.0)),
        busy * 100.0,
        known.len(),
        busy * known.len() as f64
    );
    let fusion = mean(|rank| rank.fusion.unwrap_or(0.0));
    let gear = known.first().map_or("", |rank| rank.gear.as_str());
    let _ = writeln!(page, "{fusion:.1} tensors run as one collective; ranks agree by {}.", printable(gear));
    // Who comes early waits in a collective: what one takes is the least that it took on any rank.
    let collective = least_collective(known);
    let exposed = mean(|rank| rank.shares.unwrap_or_default()[1] * rank.step_ms.unwrap_or(0.0));
    if collective > 0.0 && !bound {
        let hidden = (1.0 - exposed / collective).clamp(0.0, 1.0);
        let _ = writeln!(
            page,
            "Collectives run {collective:.2} ms of a step; computing hides {:.0} % of that.",
            hidden * 100.0
        );
    }
    if !told {
        page.push_str("No optimizer of corro's says when a step ends: it is taken to end when a tensor comes again.\n");
    }
    if bound {
        page.push_str("Nothing of this program waits for tensors, so communication is at most what is shown.\n");
    }
}

/// Steps in a second that all ranks together take in, against those of fewer ranks: what more ranks are worth.
fn scaling(known: &[&RecordedRank], other: &Recorded) -> String {
    let mean = |ranks: &[f64]| ranks.iter().sum::<f64>() / ranks.len() as f64;
    let before: Vec<f64> = other.ranks.iter().filter(|rank| rank.shares.is_some()).filter_map(|r| r.step_ms).collect();
    let now: Vec<f64> = known.iter().filter_map(|rank| rank.step_ms).collect();
    if before.is_empty() || now.is_empty() || mean(&now) <= 0.0 {
        return "The recording to compare with has no steps.\n".into();
    }
    let efficiency = mean(&before) / mean(&now);
    let plural = |count: usize| if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") };
    format!(
        "Against {} with {:.2} ms a step: {} are {:.2} times as fast, an efficiency of {:.1} %, if each rank's batch is the same.\n",
        plural(before.len()),
        mean(&before),
        plural(now.len()),
        efficiency * now.len() as f64 / before.len() as f64,
        efficiency * 100.0
    )
}

fn tensors(page: &mut String, tensors: &[(String, u64, u64, f64)], known: &[&RecordedRank]) {
    let Some(first) = known.first().filter(|_| !tensors.is_empty()) else { return };
    let all = least_collective(known) * first.step as f64;
    page.push_str("\nTensors that took most of the time in collectives\n");
    page.push_str("      times    ms each    MB each  of that time  name\n");
    for (name, times, bytes, ms) in tensors {
        let each = (*times).max(1) as f64;
        let _ = writeln!(
            page,
            "{times:>11} {:>10.3} {:>10.3} {:>11.1} %  {}",
            ms / each,
            *bytes as f64 / each / 1e6,
            if all > 0.0 { (100.0 * ms / all).min(100.0) } else { 0.0 },
            printable(name)
        );
    }
}

fn least_collective(known: &[&RecordedRank]) -> f64 {
    known.iter().filter_map(|rank| rank.collective_ms).reduce(f64::min).unwrap_or(0.0)
}

fn links(page: &mut String, ranks: &[RecordedRank]) {
    for rank in ranks {
        for (name, speed, most, _) in &rank.network {
            let can = if *speed > 0 { format!(", it says it can do {}", bits(*speed as f64)) } else { String::new() };
            let _ = writeln!(page, "{} {}: {} at most{can}", printable(&rank.host), printable(name), bits(*most));
        }
    }
}

fn length(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..=119 => format!("{:.1} s", milliseconds as f64 / 1000.0),
        120..=7199 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// What comes from a rank does nothing to a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_screen_says_where_the_time_goes() {
        let rank = |rank: u32, shares: [f64; 3]| {
            json!({"rank": rank, "host": "node", "step": 100, "step_ms": 50.0, "shares": shares, "last": 0.5,
                   "bytes": 1_000_000_000u64, "fusion": 4.0, "gear": "plan", "steps_are_told": true,
                   "collective_ms": 10.0, "network": [["eth0", 1_000_000_000u64, 9.4e8, 5]]})
        };
        let recording = json!({
            "version": 1, "command": "train.py\u{1b}[2J", "now": 65_000, "state": "done",
            "ranks": [rank(0, [0.7, 0.1, 0.2]), rank(1, [0.9, 0.1, 0.0])],
            "training": {"loss": [[1, 2.0], [100, 0.5]]},
            "advice": [{"rule": "slow rank", "text": "rank 1 is slow"}],
            "tensors": [["embedding", 100, 800_000_000u64, 600.0]],
        });
        let report = text(&recording, None);
        for part in [
            "train.py [2J\n2 ranks, 65.0 s, done",
            "   0  node                    100     50.00     70.0 %         10.0 %   20.0 %       50 %      10.00",
            "ranks compute 80.0 % of it, so 2 do the work of 1.60",
            "node eth0: 940 Mbit/s at most, it says it can do 1.0 Gbit/s",
            "Collectives run 10.00 ms of a step; computing hides 50 % of that.",
            "        100      6.000      8.000        60.0 %  embedding",
            "loss: 2.0000 at first, 0.5000 at step 100",
            "  - rank 1 is slow",
        ] {
            assert!(report.contains(part), "{part:?} in\n{report}");
        }
    }

    #[test]
    fn ranks_are_worth_what_they_add() {
        let rank = |ms: f64| json!({"rank": 0, "step": 100, "step_ms": ms, "shares": [1.0, 0.0, 0.0]});
        let (one, four) = (json!({"ranks": [rank(40.0)]}), json!({"ranks": vec![rank(50.0); 4]}));
        let said = text(&four, Some(&one));
        let wanted = "Against 1 rank with 40.00 ms a step: 4 ranks are 3.20 times as fast, an efficiency of 80.0 %";
        assert!(said.contains(wanted), "{said}");
        assert!(text(&four, Some(&json!({}))).contains("has no steps"));
    }

    #[test]
    fn anything_gives_a_report() {
        for strange in [json!(null), json!([]), json!({"ranks": 7}), json!({"ranks": [{}], "advice": []})] {
            assert!(text(&strange, Some(&strange)).contains("Nothing stands out"), "{strange}");
        }
    }
}
