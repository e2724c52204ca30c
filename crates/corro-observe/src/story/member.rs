//! One process of a job, as its launcher knows it.

use super::history::{Cells, NOTHING};
use crate::note::{Network, Note, Tensor};
use crate::shares::Share;

/// How a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not spoken yet.
    Starting,
    /// It has.
    Running,
    /// It has ended, well or not, in these words.
    Ended {
        /// With 0.
        well: bool,
        /// How.
        how: String,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Member {
    /// Its rank, if it is known.
    pub rank: Option<u32>,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: Option<i32>,
    /// How it is.
    pub state: State,
    /// What it told last, and when.
    pub note: Note,
    /// When, in milliseconds since the job's start.
    pub heard: u64,
    /// Its last step.
    pub step: u64,
    /// All its time.
    pub total: Share,
    /// Its time since the last row.
    pub late: Share,
    /// What it had told when the last row was made, and when.
    before: Option<(u64, Note)>,
    /// The tensors that cost it most, as it last told.
    pub tensors: Vec<Tensor>,
    /// The most that each interface has carried in a second, in bits: sent and received together.
    pub carried: Vec<(String, f64)>,
}

impl Member {
    pub(super) fn new(host: &str) -> Self {
        Self {
            rank: None,
            host: host.to_owned(),
            pid: None,
            state: State::Starting,
            note: Note::default(),
            heard: 0,
            step: 0,
            total: Share::default(),
            late: Share::default(),
            before: None,
            tensors: Vec::new(),
            carried: Vec::new(),
        }
    }

    /// What it did since the last row.
    pub(super) fn row(&mut self) -> Cells {
        let share = std::mem::take(&mut self.late);
        let mut cells = NOTHING;
        if let Some(step) = share.step_ms() {
            cells[0] = step as f32;
            cells[1] = share.part(share.computing) as f32;
            cells[2] = share.part(share.communication) as f32;
            cells[3] = share.part(share.waiting) as f32;
        }
        if self.state != State::Running || self.heard == 0 {
            return cells;
        }
        match &self.before {
            Some((at, _)) if *at == self.heard => return cells,
            Some((at, before)) if before.epoch == self.note.epoch => {
                let seconds = (self.heard - at) as f64 / 1000.0;
                let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                cells[4] = per_second(self.note.totals.bytes, before.totals.bytes) as f32;
                // Milliseconds in a second, as percent of one core.
                cells[5] = (per_second(self.note.usage.cpu, before.usage.cpu) / 10.0) as f32;
                for now in &self.note.network {
                    let Some(before) = before.network.iter().find(|b| b.name == now.name) else { continue };
                    let bytes = |n: &Network| n.sent.max(n.received);
                    carry(&mut self.carried, &now.name, per_second(bytes(now), bytes(before)) * 8.0);
                }
            }
            _ => {}
        }
        cells[6] = self.note.usage.memory as f32;
        if let Some(gpu) = self.note.usage.gpu {
            cells[7] = gpu.load.map_or(f32::NAN, |load| load as f32);
            cells[8] = gpu.used as f32;
        }
        self.before = Some((self.heard, self.note.clone()));
        cells
    }
}

fn carry(carried: &mut Vec<(String, f64)>, name: &str, bits: f64) {
    match carried.iter_mut().find(|(known, _)| known == name) {
        Some((_, most)) => *most = most.max(bits),
        None => carried.push((name.to_owned(), bits)),
    }
}
