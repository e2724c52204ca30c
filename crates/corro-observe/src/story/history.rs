//! Numbers over time, in bounded memory: when there are too many rows, two become one.

/// What is known of a rank at a moment; [`f32::NAN`]: nothing.
pub type Cells = [f32; COLUMNS.len()];

/// What the numbers of a row are.
pub const COLUMNS: [&str; 9] =
    ["step_ms", "computing", "communication", "waiting", "bytes", "cpu", "memory", "gpu", "gpu_memory"];

/// Nothing is known.
pub(super) const NOTHING: Cells = [f32::NAN; COLUMNS.len()];

/// A row: when (milliseconds), and what was known of each rank.
#[derive(Clone, Debug)]
pub struct Row {
    /// Milliseconds since the job's start.
    pub at: u64,
    /// By rank.
    pub ranks: Vec<Cells>,
}

/// Rows, the oldest first.
#[derive(Debug)]
pub struct History {
    rows: Vec<Row>,
    most: usize,
    /// Whether the oldest are forgotten when there are too many. Else all become coarser.
    forgets: bool,
    /// So many that came make one that is kept.
    each: u32,
    gathered: Vec<Row>,
}

impl History {
    /// Of the last `most` rows.
    pub fn of_late(most: usize) -> Self {
        Self { rows: Vec::new(), most, forgets: true, each: 1, gathered: Vec::new() }
    }

    /// Of everything, in at most this many rows.
    pub fn of_all(most: usize) -> Self {
        Self { forgets: false, ..Self::of_late(most) }
    }

    /// One more row.
    pub fn push(&mut self, row: Row) {
        self.gathered.push(row);
        if self.gathered.len() < self.each as usize {
            return;
        }
        let row = mean(&std::mem::take(&mut self.gathered));
        self.rows.push(row);
        if self.rows.len() > self.most {
            if self.forgets {
                let surplus = self.rows.len() - self.most;
                self.rows.drain(..surplus);
            } else {
                self.rows = self.rows.chunks(2).map(mean).collect();
                self.each *= 2;
            }
        }
    }

    /// All rows that came after this time.
    pub fn since(&self, at: Option<u64>) -> &[Row] {
        let first = at.map_or(0, |at| self.rows.partition_point(|row| row.at <= at));
        &self.rows[first..]
    }
}

/// One row that stands for several. What is not known in some does not count.
fn mean(rows: &[Row]) -> Row {
    let Some(last) = rows.last() else { return Row { at: 0, ranks: Vec::new() } };
    let ranks = rows.iter().map(|row| row.ranks.len()).max().unwrap_or(0);
    let cell = |rank: usize, column: usize| {
        let known = rows.iter().filter_map(|row| row.ranks.get(rank)).map(|cells| cells[column]);
        let (sum, count) = known.filter(|v| !v.is_nan()).fold((0.0f64, 0u32), |(s, n), v| (s + f64::from(v), n + 1));
        if count == 0 { f32::NAN } else { (sum / f64::from(count)) as f32 }
    };
    Row { at: last.at, ranks: (0..ranks).map(|rank| std::array::from_fn(|column| cell(rank, column))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: u64, step: f32) -> Row {
        let mut cells = NOTHING;
        cells[0] = step;
        Row { at, ranks: vec![cells] }
    }

    #[test]
    fn of_late_forgets() {
        let mut history = History::of_late(3);
        (1..=5).for_each(|at| history.push(row(at, 1.0)));
        assert_eq!(history.since(None).iter().map(|row| row.at).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(history.since(Some(4)).len(), 1);
    }

    #[test]
    fn of_all_becomes_coarser_and_keeps_the_mean() {
        let mut history = History::of_all(100);
        for at in 1..=1_000_000u64 {
            history.push(row(at, if at % 2 == 0 { 2.0 } else { f32::NAN }));
        }
        let rows = history.since(None);
        assert!((50..=100).contains(&rows.len()), "{}", rows.len());
        assert!(rows.iter().all(|row| row.ranks[0][0] == 2.0));
        assert!(rows[0].at < 20_000 && rows.last().unwrap().at > 980_000);
        assert!(rows.iter().all(|row| row.ranks[0][1].is_nan()));
    }
}
