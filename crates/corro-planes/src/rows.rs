//! The rows of a table for one kind of memory, and those of them that are in use.

use std::sync::Arc;

use corro_collectives::Group;
use corro_core::{Error, Rank, Result};

use crate::choice::{Choice, choose};
use crate::exchange::exchange;
use crate::facts::{FACTS_CAP, Facts};
use crate::plane::{Plane, Releases, Row, Wanted};

/// See the module.
pub(crate) struct Rows {
    /// Whose memory it is, in words.
    memory: &'static str,
    table: Vec<Arc<dyn Row>>,
    forced: Option<String>,
    /// By their rows in the table.
    open: Vec<Option<Box<dyn Plane>>>,
    /// Why a row was tried and given up, by all members.
    struck: Vec<Option<String>>,
    /// Of all members; none until a batch asks for them.
    facts: Vec<Facts>,
    /// What was chosen before.
    chosen: Vec<(Wanted, Choice)>,
}

impl Rows {
    pub(crate) fn new(memory: &'static str, rows: Vec<Arc<dyn Row>>, forced: Option<String>) -> Self {
        let open = rows.iter().map(|_| None).collect();
        let struck = vec![None; rows.len()];
        Self { memory, table: rows, forced, open, struck, facts: Vec::new(), chosen: Vec::new() }
    }

    /// The plane that serves such batches, or why none does. All members must ask for the same in the same order: the first time
    /// they tell each other what they can do, `locality` among it, which is the same in all processes that could share memory.
    pub(crate) fn choose(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        wanted: Wanted,
        (locality, device): (&str, Option<usize>),
        releases: &Releases,
    ) -> Result<std::result::Result<&mut dyn Plane, &Choice>> {
        let known = match self.chosen.iter().position(|(before, _)| *before == wanted) {
            Some(known) => known,
            None => self.decide(group, members, wanted, (locality, device), releases)?,
        };
        let choice = &self.chosen[known].1;
        let Some(row) = choice.row else { return Ok(Err(choice)) };
        let open = self.open.get_mut(row).and_then(Option::as_mut);
        Ok(Ok(&mut **open.ok_or_else(|| Error::Bug("a plane was chosen and not opened".into()))?))
    }

    fn decide(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        wanted: Wanted,
        (locality, device): (&str, Option<usize>),
        releases: &Releases,
    ) -> Result<usize> {
        if self.facts.is_empty() {
            let mine = self.describe(locality, device);
            self.facts = exchange(group, members, &mine, FACTS_CAP)?;
        }
        let choice = loop {
            let choice = choose(&self.table, &self.struck, members, &self.facts, wanted)?;
            match choice.row {
                Some(row) if self.open[row].is_none() => {
                    match self.table[row].open(group, members, &self.facts, device)? {
                        Ok(plane) => {
                            if let Some(release) = plane.release() {
                                releases.add(release);
                            }
                            self.open[row] = Some(plane);
                        }
                        Err(why) => {
                            self.struck[row] = Some(why);
                            continue;
                        }
                    }
                }
                _ => {}
            }
            break choice;
        };
        // All members would say the same.
        if group.rank() == 0 {
            self.tell(members[0], wanted, &choice);
        }
        self.chosen.push((wanted, choice));
        Ok(self.chosen.len() - 1)
    }

    /// What this process says about itself.
    fn describe(&self, host: &str, device: Option<usize>) -> Facts {
        let mut facts = Facts { host: host.to_owned(), forced: self.forced.clone(), ..Facts::default() };
        for row in &self.table {
            row.describe(&mut facts, device);
        }
        facts
    }

    fn tell(&self, rank: Rank, wanted: Wanted, choice: &Choice) {
        let plane = choice.row.map_or("host memory", |row| self.table[row].name());
        let why = if choice.why_not.is_empty() { String::new() } else { format!(", since {choice}") };
        tracing::info!(rank = rank.index(), "{wanted} on {} goes by {plane}{why}", self.memory);
    }
}
