//! A story as one JSON object: what the page draws, what a recording holds, what a report is made of. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::advice::{self, Advice};
use crate::note::{MAX_TENSORS, Tensor};
use crate::shares::Share;
use crate::story::{COLUMNS, Event, Line, Member, Row, Stall, State, Story};

/// Raised when a reader of old ones would be wrong about a new one.
pub const VERSION: u32 = 1;

/// What the reader has already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Since {
    /// The time of its last row.
    pub row: Option<u64>,
    /// How many lines and events it has.
    pub lines: u64,
    /// Events, likewise.
    pub events: u64,
}

/// See the module.
#[derive(Debug, Serialize)]
pub struct View {
    /// Of this form.
    pub version: u32,
    /// By which corro.
    pub corro: &'static str,
    /// What was started.
    pub command: String,
    /// When, in milliseconds since 1970. All other times are since then.
    pub began: u64,
    /// The present.
    pub now: u64,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    /// Why it failed.
    pub failure: Option<String>,
    /// How often ranks have met, and how many they are.
    pub epoch: u64,
    /// How many ranks.
    pub size: u32,
    /// The processes.
    pub ranks: Vec<Rank>,
    /// Who waits for whom.
    pub stall: Option<Stall>,
    /// Where the threads of those are who are waited for, by rank.
    pub stacks: Vec<(u32, String)>,
    /// What the numbers of rows are.
    pub columns: [&'static str; COLUMNS.len()],
    /// Of the last minutes.
    pub recent: Vec<Rows>,
    /// Of all time.
    pub all: Vec<Rows>,
    /// What happened.
    pub events: Vec<Event>,
    /// What was written.
    pub lines: Vec<Line>,
    /// How many lines there were.
    pub lines_so_far: u64,
    /// What was logged: for each name, steps and values.
    pub training: BTreeMap<String, Vec<(u64, Option<f64>)>>,
    /// What to do.
    pub advice: Vec<Advice>,
    /// The tensors that took most of the time in collectives: name, how often, bytes, milliseconds, all in all. A rank that comes early
    /// waits in a collective for the others, so what a tensor took is the least that it took on any rank.
    pub tensors: Vec<(String, u64, u64, f64)>,
    /// The flight records of ranks, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<(u32, String)>,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct Rank {
    /// Its number for the launcher.
    pub process: u32,
    /// Its rank.
    pub rank: Option<u32>,
    /// Where.
    pub host: String,
    /// Its process there.
    pub pid: Option<i32>,
    /// `starting`, `running`, `done` or `failed`.
    pub state: &'static str,
    /// How it ended.
    pub ending: Option<String>,
    /// Steps so far.
    pub step: u64,
    /// Whether its front says what a step is.
    pub steps_are_told: bool,
    /// Whether its communication may be hidden behind computing.
    pub hidden: bool,
    /// How ranks agree.
    pub gear: String,
    /// Who moves the bytes.
    pub planes: Vec<(String, u64)>,
    /// Tensors in a collective.
    pub fusion: Option<f64>,
    /// Bytes so far.
    pub bytes: u64,
    /// Tensors under way.
    pub queued: u64,
    /// Milliseconds a step, over all.
    pub step_ms: Option<f64>,
    /// Shares of all steps: computing, communication, waiting.
    pub shares: Option<[f64; 3]>,
    /// Milliseconds of a step in which collectives ran, hidden or not.
    pub collective_ms: Option<f64>,
    /// The share of steps in which all others waited for it.
    pub last: Option<f64>,
    /// What it waits for.
    pub waits: Option<(u64, String)>,
    /// Memory of its GPU.
    pub gpu_memory: Option<u64>,
    /// Network interfaces of its host: name, bits a second it says it can do, the most it has carried, bytes so far.
    pub network: Vec<(String, u64, f64, u64)>,
    /// When it last told something.
    pub heard: u64,
}

/// A row: when, and for each rank the columns.
#[derive(Debug, Serialize)]
pub struct Rows {
    /// When.
    pub at: u64,
    /// By rank; nothing is null.
    pub ranks: Vec<[Option<f32>; COLUMNS.len()]>,
}

impl View {
    /// How a story stands at this time, for a reader that has so much of it.
    pub fn of(story: &Story, now: u64, since: Since) -> Self {
        let (epoch, size) = story.epoch().unwrap_or_default();
        let stall = story.stall(now).filter(|_| story.ended.is_none());
        let now = story.ended.as_ref().map_or(now, |(at, _)| *at);
        let state = match &story.ended {
            None => "running",
            Some((_, None)) => "done",
            Some((_, Some(_))) => "failed",
        };
        Self {
            version: VERSION,
            corro: env!("CARGO_PKG_VERSION"),
            command: story.command.clone(),
            began: story.began,
            now,
            state,
            failure: story.ended.as_ref().and_then(|(_, failure)| failure.clone()),
            epoch,
            size,
            ranks: story.members().iter().map(|(process, member)| Rank::of(*process, member)).collect(),
            stacks: stall.as_ref().map(|stall| stacks(story, stall)).unwrap_or_default(),
            stall,
            columns: COLUMNS,
            recent: story.recent.since(since.row).iter().map(Rows::of).collect(),
            // Coarser rows come when there are many: a reader that has some asks for the last minutes alone.
            all: if since.row.is_none() { story.all.since(None).iter().map(Rows::of).collect() } else { Vec::new() },
            events: story.events(since.events).cloned().collect(),
            lines: story.lines.since(since.lines).cloned().collect(),
            lines_so_far: story.lines.count(),
            training: story.training.curves().map(|(name, curve)| (name.clone(), finite(curve))).collect(),
            advice: advice::on(story),
            tensors: tensors(story),
            records: Vec::new(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> String {
        // Its parts are numbers, texts and lists, which always can be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn tensors(story: &Story) -> Vec<(String, u64, u64, f64)> {
    let told: Vec<&[Tensor]> =
        story.members().values().map(|member| member.tensors.as_slice()).filter(|list| !list.is_empty()).collect();
    let Some(first) = told.first() else { return Vec::new() };
    let on = |list: &[Tensor], name: &str| {
        let found = list.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.nanos);
        // One that a rank does not name took less there than all that it names.
        found.or_else(|| list.last().filter(|_| list.len() >= MAX_TENSORS).map(|last| last.nanos))
    };
    let least = |name: &str| told.iter().filter_map(|list| on(list, name)).min().unwrap_or(0);
    let mut all: Vec<_> =
        first.iter().map(|t| (t.name.clone(), t.times, t.bytes, least(&t.name) as f64 / 1e6)).collect();
    all.sort_by(|a, b| b.3.total_cmp(&a.3));
    all
}

/// Of a few of those who are waited for.
fn stacks(story: &Story, stall: &Stall) -> Vec<(u32, String)> {
    let of = |(process, text): (&u32, &String)| {
        let rank = story.members().get(process)?.rank?;
        stall.awaited.contains(&rank).then(|| (rank, text.clone()))
    };
    story.stacks().iter().filter_map(of).take(4).collect()
}

/// JSON knows no infinity.
fn finite(curve: &[(u64, f64)]) -> Vec<(u64, Option<f64>)> {
    curve.iter().map(|(step, value)| (*step, Some(*value).filter(|v| v.is_finite()))).collect()
}

impl Rows {
    fn of(row: &Row) -> Self {
        let known =
            |cells: &[f32; COLUMNS.len()]| cells.map(|value| Some(value).filter(|v| v.is_finite()).map(rounded));
        Self { at: row.at, ranks: row.ranks.iter().map(known).collect() }
    }
}

/// Four digits are all that can be seen, and a quarter of the bytes.
fn rounded(value: f32) -> f32 {
    if value == 0.0 {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits);
    ((f64::from(value) * scale).round() / scale) as f32
}

impl Rank {
    fn of(process: u32, member: &Member) -> Self {
        let (state, ending) = match &member.state {
            State::Starting => ("starting", None),
            State::Running => ("running", None),
            State::Ended { well: true, how } => ("done", Some(how.clone())),
            State::Ended { well: false, how } => ("failed", Some(how.clone())),
        };
        let (note, share): (_, &Share) = (&member.note, &member.total);
        let known = share.steps > 0;
        let most = |name: &str| member.carried.iter().find(|(n, _)| n == name).map_or(0.0, |(_, bits)| *bits);
        Self {
            process,
            rank: member.rank,
            host: member.host.clone(),
            pid: member.pid,
            state,
            ending,
            step: member.step,
            steps_are_told: note.steps_are_told,
            hidden: note.hidden,
            gear: note.gear.clone(),
            planes: note.planes.clone(),
            fusion: (note.totals.batches > 0).then(|| note.totals.tensors as f64 / note.totals.batches as f64),
            bytes: note.totals.bytes,
            queued: note.totals.queued,
            step_ms: share.step_ms(),
            shares: known.then(|| [share.computing, share.communication, share.waiting].map(|n| share.part(n))),
            collective_ms: known.then(|| share.collective as f64 / share.steps as f64 / 1e6),
            last: known.then(|| share.last as f64 / share.steps as f64),
            waits: note.waits.clone(),
            gpu_memory: note.usage.gpu.map(|gpu| gpu.memory),
            network: note
                .network
                .iter()
                .map(|n| (n.name.clone(), n.speed, most(&n.name), n.sent.max(n.received)))
                .collect(),
            heard: member.heard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::{Note, Value};

    #[test]
    fn a_reader_gets_only_what_is_new() {
        let mut story = Story::new("train.py --rate 0.1", 1000);
        for tick in 1..=5u64 {
            let values = vec![Value { step: tick, name: "loss".into(), value: f64::NAN }];
            story.heard(tick * 1000, 0, "node", Note { size: 1, values, ..Note::default() });
            story.wrote(tick * 1000, 0, false, format!("line {tick}\n").as_bytes());
            story.tick(tick * 1000);
        }
        let whole: serde_json::Value = serde_json::from_str(&View::of(&story, 5000, Since::default()).json()).unwrap();
        assert_eq!(whole["recent"].as_array().unwrap().len(), 5);
        assert_eq!(whole["training"]["loss"][0][1], serde_json::Value::Null);
        let since = Since { row: Some(3000), lines: 4, events: 0 };
        let part: serde_json::Value = serde_json::from_str(&View::of(&story, 5000, since).json()).unwrap();
        assert_eq!((part["recent"].as_array().unwrap().len(), part["lines"][0]["text"].as_str()), (2, Some("line 5")));
    }

    #[test]
    fn a_tensor_costs_what_it_costs_the_rank_that_comes_last() {
        let mut story = Story::new("x", 0);
        let tensor = |name: &str, nanos| Tensor { name: name.into(), times: 2, bytes: 8, nanos };
        let tensors = [
            vec![tensor("first", 9_000_000), tensor("second", 2_000_000)],
            vec![tensor("second", 3_000_000), tensor("first", 1_000_000)],
        ];
        for (rank, tensors) in tensors.into_iter().enumerate() {
            story.heard(1, rank as u32, "node", Note { rank: rank as u32, size: 2, tensors, ..Note::default() });
        }
        let view = View::of(&story, 1, Since::default());
        assert_eq!(view.tensors, [("second".into(), 2, 8, 2.0), ("first".into(), 2, 8, 1.0)]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([12.345_678, 0.000_123_456, 0.0, 98765.4].map(rounded), [12.35, 0.000_123_5, 0.0, 98770.0]);
    }
}
