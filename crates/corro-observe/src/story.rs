//! What a launcher knows of its job, made from what ranks tell and from what happens to them. Pure: times are arguments, in
//! milliseconds since the job's start.
//!
//! Bounded, whatever the job's length and whatever ranks say: for each rank about 35 KB of history; besides that some megabytes at most of
//! what was written, happened and was logged.

mod history;
mod lines;
mod member;
mod training;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

pub use history::{COLUMNS, Cells, History, Row};
pub use lines::{Line, Lines};
pub use member::{Member, State};
pub use training::{Mean, Training};

use crate::note::{Note, Piece, shortened};
use crate::shares::{Aligner, Share};

/// How often a row is made, in milliseconds.
pub const TICK: u64 = 1000;
/// Rows of the last minutes, and of all time.
const RECENT_ROWS: usize = 300;
const ALL_ROWS: usize = 600;
/// Events that are kept.
const MAX_EVENTS: usize = 500;
/// Processes that have ended and are still shown.
const MAX_ENDED: usize = 256;
/// Bytes of the stacks of one process.
const MAX_STACKS: usize = 64 * 1024;
/// Bytes of the flight record of one process.
const MAX_RECORD: usize = 256 * 1024;
/// A rank that makes others wait for so long, in milliseconds, is shown as doing so; longer where steps themselves take long.
const STALL: u64 = 400;
/// And one for which they wait so long is an event.
const LONG_STALL: u64 = 10_000;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Events before it.
    pub number: u64,
    /// When.
    pub at: u64,
    /// `info`, `warning` or `error`.
    pub kind: &'static str,
    /// What.
    pub text: String,
}

/// Ranks wait for others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// Milliseconds so far.
    pub lasts: u64,
    /// What they wait in.
    pub tensor: String,
    /// Who waits.
    pub waiting: Vec<u32>,
    /// Who has not come. None: all have, and the bytes take long.
    pub awaited: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Story {
    /// What was started.
    pub command: String,
    /// When, in milliseconds since 1970.
    pub began: u64,
    /// When it ended, and why if it failed.
    pub ended: Option<(u64, Option<String>)>,
    members: BTreeMap<u32, Member>,
    /// How often ranks have met, and how many they are.
    epoch: Option<(u64, u32)>,
    aligner: Aligner,
    /// All time of those ranks that are no more.
    pub(crate) recent: History,
    pub(crate) all: History,
    events: VecDeque<Event>,
    events_so_far: u64,
    /// What ranks have written.
    pub lines: Lines,
    /// What they have logged.
    pub training: Training,
    /// Where the threads of processes were when they were last asked.
    stacks: BTreeMap<u32, String>,
    /// The flight records that processes have told, and whether they are whole, until somebody takes them.
    records: BTreeMap<u32, (String, bool)>,
    ticked: u64,
    told_stall: bool,
}

impl Story {
    /// Of a job that was just started.
    pub fn new(command: &str, began: u64) -> Self {
        Self {
            command: shortened(command, 4000),
            began,
            ended: None,
            members: BTreeMap::new(),
            epoch: None,
            aligner: Aligner::default(),
            recent: History::of_late(RECENT_ROWS),
            all: History::of_all(ALL_ROWS),
            events: VecDeque::new(),
            events_so_far: 0,
            lines: Lines::default(),
            training: Training::default(),
            stacks: BTreeMap::new(),
            records: BTreeMap::new(),
            ticked: 0,
            told_stall: false,
        }
    }

    fn member(&mut self, process: u32, host: &str) -> &mut Member {
        self.members.entry(process).or_insert_with(|| Member::new(host))
    }

    /// A process was started.
    pub fn started(&mut self, at: u64, process: u32, host: &str, pid: i32) {
        self.member(process, host).pid = Some(pid);
        self.event(at, "info", &format!("process {process} runs on {host} (pid {pid})"));
    }

    /// A process has ended.
    pub fn exited(&mut self, at: u64, process: u32, host: &str, well: bool, how: &str) {
        self.lines.finish(at, process);
        self.align();
        let epoch = self.epoch.map(|(epoch, _)| epoch);
        let member = self.member(process, host);
        member.state = State::Ended { well, how: how.to_owned() };
        let who = member.rank.map_or_else(|| format!("process {process}"), |rank| format!("rank {rank}"));
        // In an elastic job its rank may be another's by now.
        if let Some(rank) = member.rank.filter(|_| epoch == Some(member.note.epoch)) {
            self.aligner.remove(rank);
        }
        self.event(at, if well { "info" } else { "error" }, &format!("{who} on {host} has ended: {how}"));
        let ended = |member: &Member| matches!(member.state, State::Ended { .. });
        if self.members.values().filter(|member| ended(member)).count() > MAX_ENDED
            && let Some(oldest) = self.members.iter().find(|(_, member)| ended(member)).map(|(process, _)| *process)
        {
            self.members.remove(&oldest);
        }
    }

    /// A process has told something of itself.
    pub fn heard(&mut self, at: u64, process: u32, host: &str, note: Note) {
        let newer = self.epoch.is_none_or(|(epoch, _)| note.epoch > epoch);
        if newer {
            // A rank may say anything, but not make us hold more than a job may have.
            let size = note.size.min(corro_core::config::MAX_RANKS as u32);
            if self.epoch.is_some() {
                let text = format!("epoch {}: ranks meet anew, {size} of them", note.epoch);
                self.event(at, "info", &text);
            }
            self.align();
            self.epoch = Some((note.epoch, size));
            self.aligner.begin(0..size);
        }
        let (epoch, size) = self.epoch.unwrap_or_default();
        if note.epoch != epoch || note.rank >= size {
            return;
        }
        if let Some(piece) = &note.record {
            return self.told_record(process, piece);
        }
        self.aligner.hear(note.rank, &note.marks);
        for value in &note.values {
            self.training.hear(at, note.rank, size, value);
        }
        let member = self.member(process, host);
        if matches!(member.state, State::Ended { .. }) {
            return;
        }
        member.rank = Some(note.rank);
        member.state = State::Running;
        member.heard = at.max(1);
        member.step = note.marks.last().map_or(member.step, |mark| mark.step);
        if !note.host.is_empty() {
            member.host.clone_from(&note.host);
        }
        if !note.tensors.is_empty() {
            member.tensors.clone_from(&note.tensors);
        }
        member.note = Note { marks: Vec::new(), values: Vec::new(), tensors: Vec::new(), ..note };
    }

    /// A process has written something.
    pub fn wrote(&mut self, at: u64, process: u32, error: bool, bytes: &[u8]) {
        self.lines.write(at, process, error, bytes);
    }

    /// Processes are asked where their threads are.
    pub fn ask_stacks(&mut self) {
        self.stacks.clear();
    }

    /// A process has told some of it.
    pub fn told_stacks(&mut self, process: u32, bytes: &[u8]) {
        let text = self.stacks.entry(process).or_default();
        if text.len() + bytes.len() <= MAX_STACKS {
            text.push_str(&String::from_utf8_lossy(bytes));
        }
    }

    /// Where the threads of processes were when they were last asked.
    pub fn stacks(&self) -> &BTreeMap<u32, String> {
        &self.stacks
    }

    fn told_record(&mut self, process: u32, piece: &Piece) {
        if !self.members.contains_key(&process) {
            return;
        }
        let (text, whole) = self.records.entry(process).or_default();
        if piece.first {
            text.clear();
        }
        if text.len() + piece.text.len() <= MAX_RECORD {
            text.push_str(&piece.text);
        }
        *whole = piece.last;
    }

    /// Processes are asked for their flight records.
    pub fn ask_records(&mut self) {
        self.records.clear();
    }

    /// Whether all processes that run have told theirs.
    pub fn has_records(&self) -> bool {
        let mut running = self.members.iter().filter(|(_, member)| member.state == State::Running);
        running.all(|(process, _)| self.records.get(process).is_some_and(|(_, whole)| *whole))
    }

    /// Gives the flight records that were told, by rank.
    pub fn take_records(&mut self) -> Vec<(u32, String)> {
        let records = std::mem::take(&mut self.records).into_iter();
        let mut records: Vec<_> =
            records.filter_map(|(process, (text, _))| Some((self.members.get(&process)?.rank?, text))).collect();
        records.sort();
        records
    }

    /// Something has happened.
    pub fn event(&mut self, at: u64, kind: &'static str, text: &str) {
        let text = shortened(text, 4000);
        self.events.push_back(Event { number: self.events_so_far, at, kind, text });
        self.events_so_far += 1;
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
    }

    /// The job is over, well or for this reason.
    pub fn over(&mut self, at: u64, failure: Option<String>) {
        self.align();
        self.row(at);
        self.training.finish(at);
        let (kind, text) = match &failure {
            None => ("info", "the job has ended".to_owned()),
            Some(why) => ("error", format!("the job has failed: {why}")),
        };
        self.event(at, kind, &text);
        self.ended = Some((at, failure));
    }

    /// Time passes: to be called a few times a second.
    pub fn tick(&mut self, at: u64) {
        self.align();
        let long = self.stall(at).filter(|stall| stall.lasts >= LONG_STALL);
        if long.is_some() != self.told_stall {
            self.told_stall = long.is_some();
            match long {
                Some(Stall { waiting, awaited, tensor, .. }) => {
                    let text = format!(
                        "{} waited for by {} in {tensor:?}",
                        listed(&awaited, "is", "are"),
                        listed(&waiting, "", "")
                    );
                    self.event(at, "warning", &text);
                }
                None => self.event(at, "info", "nobody waits any more"),
            }
        }
        if at >= self.ticked + TICK && self.ended.is_none() {
            self.row(at);
        }
    }

    fn align(&mut self) {
        for shares in self.aligner.take() {
            for (rank, share) in shares {
                let epoch = self.epoch.map(|(epoch, _)| epoch);
                let is_it = |member: &&mut Member| member.rank == Some(rank) && epoch == Some(member.note.epoch);
                if let Some(member) = self.members.values_mut().find(is_it) {
                    member.total.add(&share);
                    member.late.add(&share);
                }
            }
        }
    }

    fn row(&mut self, at: u64) {
        self.ticked = at;
        let (epoch, size) = self.epoch.unwrap_or_default();
        // What a rank says about the size must not make us hold more than there are processes.
        let mut ranks = vec![history::NOTHING; (size as usize).min(self.members.len())];
        for member in self.members.values_mut().filter(|member| member.note.epoch == epoch) {
            if let Some(cells) = member.rank.and_then(|rank| ranks.get_mut(rank as usize)) {
                *cells = member.row();
            }
        }
        let row = Row { at, ranks };
        self.recent.push(row.clone());
        self.all.push(row);
    }

    /// Who waits for whom, if somebody has for a while.
    pub fn stall(&self, at: u64) -> Option<Stall> {
        let running: Vec<&Member> = self.members.values().filter(|member| member.state == State::Running).collect();
        let waits = |member: &&&Member| {
            let (lasts, tensor) = member.note.waits.as_ref()?;
            Some((lasts + at.saturating_sub(member.heard), tensor.clone(), member.rank?))
        };
        let patience = self.patience();
        let waiting: Vec<(u64, String, u32)> =
            running.iter().filter_map(|m| waits(&m)).filter(|(lasts, ..)| *lasts >= patience).collect();
        let (lasts, tensor, _) = waiting.iter().max_by_key(|(lasts, ..)| *lasts)?.clone();
        let waiting: Vec<u32> = waiting.into_iter().map(|(.., rank)| rank).collect();
        let awaited = running.iter().filter_map(|m| m.rank).filter(|rank| !waiting.contains(rank)).collect();
        Some(Stall { lasts, tensor, waiting, awaited })
    }

    /// How long ranks may wait for others before that is a stall: two of their steps.
    fn patience(&self) -> u64 {
        let step = self.members.values().filter_map(|member| member.total.step_ms()).fold(0.0, f64::max);
        ((2.0 * step) as u64).clamp(STALL, LONG_STALL)
    }

    /// What changes when something happens that a reader should see at once: a number of each kind.
    pub fn pulse(&self, at: u64) -> [u64; 3] {
        let stall = self.stall(at).filter(|_| self.ended.is_none()).map_or(0, |stall| 1 + stall.awaited.len() as u64);
        [self.events_so_far, stall, u64::from(self.ended.is_some())]
    }

    /// The processes, by number.
    pub fn members(&self) -> &BTreeMap<u32, Member> {
        &self.members
    }

    /// How often ranks have met, and how many they are.
    pub fn epoch(&self) -> Option<(u64, u32)> {
        self.epoch
    }

    /// Events from this number on.
    pub fn events(&self, number: u64) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.number >= number)
    }

    /// How each rank has spent its time so far.
    pub fn shares(&self) -> Vec<(u32, &Member, Share)> {
        let shares = self.members.values().filter_map(|member| Some((member.rank?, member, member.total)));
        let mut shares: Vec<_> = shares.filter(|(.., share)| share.steps > 0).collect();
        shares.sort_by_key(|(rank, ..)| *rank);
        shares
    }
}

/// "rank 3 is", "ranks 1, 2 are".
fn listed(ranks: &[u32], one: &str, many: &str) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let (word, verb) = if ranks.len() == 1 { ("rank", one) } else { ("ranks", many) };
    format!("{word} {} {verb}", names.join(", ")).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::Mark;

    /// A note of a rank that takes 10 ms a step and waits for some of it.
    pub(crate) fn note(rank: u32, size: u32, steps: std::ops::RangeInclusive<u64>, waits_us: u64) -> Note {
        let mark = |step| Mark { step, at: step * 10_000_000, waited: step * waits_us * 1000, collective: 0 };
        Note { rank, size, host: "node".into(), marks: steps.map(mark).collect(), ..Note::default() }
    }

    #[test]
    fn a_story_from_the_first_process_to_the_last() {
        let mut story = Story::new("train.py", 0);
        for process in 0..2 {
            story.started(0, process, "node", 100 + process as i32);
        }
        for tick in 1..=10u64 {
            for rank in 0..2 {
                let steps = (tick * 100 - 99)..=(tick * 100);
                story.heard(tick * 1000 - 500, rank, "node", note(rank, 2, steps, 1000 + u64::from(rank) * 2000));
            }
            story.tick(tick * 1000);
        }
        let shares = story.shares();
        let parts = |share: &Share| {
            [share.computing, share.communication, share.waiting].map(|n| (share.part(n) * 100.0).round())
        };
        assert_eq!(parts(&shares[0].2), [90.0, 10.0, 0.0]);
        assert_eq!(parts(&shares[1].2), [70.0, 10.0, 20.0]);
        assert_eq!(story.recent.since(None).len(), 10);
        assert_eq!(story.recent.since(None)[3].ranks[1][0], 10.0);
        story.exited(11_000, 1, "node", false, "signal 9 (SIGKILL)");
        story.over(11_000, Some("rank 1 was killed".into()));
        let last: Vec<&str> = story.events(0).map(|event| event.text.as_str()).collect();
        assert!(last[last.len() - 2].contains("rank 1 on node has ended: signal 9"), "{last:?}");
    }

    #[test]
    fn who_is_waited_for_is_named() {
        let mut story = Story::new("x", 0);
        for rank in 0..3 {
            let waits = (rank != 1).then(|| (2000, "gradient".to_owned()));
            story.heard(1000, rank, "node", Note { waits, ..note(rank, 3, 1..=1, 0) });
        }
        let before = story.pulse(0);
        let stall = story.stall(1500).unwrap();
        assert_eq!((stall.lasts, stall.awaited, stall.waiting), (2500, vec![1], vec![0, 2]));
        story.exited(1600, 1, "node", false, "signal 9");
        assert_ne!(story.pulse(1600), before);
        story.heard(1700, 3, "node", Note { rank: 1, ..note(1, 3, 1..=1, 0) });
        story.tick(20_000);
        assert!(story.events(0).any(|event| event.text == "rank 1 is waited for by ranks 0, 2 in \"gradient\""));
    }

    #[test]
    fn flight_records_come_in_pieces_and_are_given_once() {
        let mut story = Story::new("x", 0);
        (0..2).for_each(|rank| story.heard(1, rank, "node", note(rank, 2, 1..=1, 0)));
        assert!(!story.has_records());
        let text = "an operation\n".repeat(1000);
        for rank in 0..2 {
            for piece in crate::note::pieces(&text) {
                story.heard(2, rank, "node", Note { rank, size: 2, record: Some(piece), ..Note::default() });
            }
        }
        assert!(story.has_records());
        assert_eq!(story.take_records(), [(0, text.clone()), (1, text)]);
        assert!(story.take_records().is_empty() && story.members()[&1].step == 1, "it tells nothing else");
    }

    #[test]
    fn members_of_an_elastic_job_come_and_go() {
        let mut story = Story::new("x", 0);
        story.heard(1, 0, "a", note(0, 2, 1..=2, 0));
        story.heard(1, 1, "b", note(1, 2, 1..=2, 0));
        story.exited(2, 1, "b", false, "signal 9");
        story.heard(3, 0, "a", Note { epoch: 1, ..note(0, 1, 1..=5, 0) });
        story.tick(4);
        assert_eq!(story.epoch(), Some((1, 1)));
        assert_eq!(story.shares()[0].2.steps, 5, "one step of the first epoch, four of the second");
        // Nothing that a stranger says makes it hold more.
        story.heard(5, 7, "c", Note { rank: 9, size: u32::MAX, epoch: 9, ..Note::default() });
        story.tick(2000);
        assert_eq!(story.recent.since(None).last().unwrap().ranks.len(), 3, "as many as there are processes");
    }

    #[test]
    fn a_million_steps_of_64_ranks_are_bounded() {
        let mut story = Story::new("x", 0);
        for tick in 1..=2000u64 {
            for rank in 0..64 {
                let last = tick * 500;
                let mut note = note(rank, 64, (last - 3)..=last, 100);
                note.marks.retain(|mark| mark.step % 2 == 0);
                story.heard(tick * 1000 - 1, rank, "node", note);
                story.wrote(tick * 1000, rank, false, b"a line of a rank\n");
            }
            story.tick(tick * 1000);
        }
        assert!(story.shares()[0].2.steps > 999_000);
        let cells = |history: &History| {
            history.since(None).iter().map(|row| row.ranks.len() * size_of::<Cells>()).sum::<usize>()
        };
        let bytes = cells(&story.recent) + cells(&story.all);
        assert!(bytes <= 900 * 64 * 36, "{bytes}");
        assert_eq!(story.events(0).count(), 0);
    }
}
