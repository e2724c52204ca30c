//! Which plane serves a batch, and why others don't. Pure: the same facts give the same answer on all members.

use std::fmt;
use std::sync::Arc;

use corro_core::{Error, Rank, Result};

use crate::facts::Facts;
use crate::host::HOST;
use crate::plane::{Row, Wanted};

/// Who serves such batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its row in the table; `None`: they go through host memory.
    pub row: Option<usize>,
    /// The rows before it, and why they can't.
    pub why_not: Vec<(&'static str, String)>,
}

/// The first row of the table that can serve such batches of these members, whose facts are in the same order. `struck` has
/// why a row was tried and given up.
pub fn choose(
    rows: &[Arc<dyn Row>],
    struck: &[Option<String>],
    members: &[Rank],
    facts: &[Facts],
    wanted: Wanted,
) -> Result<Choice> {
    let why_not = |row: usize| {
        let given_up = struck.get(row).cloned().flatten();
        given_up.or_else(|| unable(rows[row].name(), members, facts)).or_else(|| rows[row].why_not(wanted, facts))
    };
    if let Some(forced) = forced(members, facts)? {
        if forced == HOST {
            return Ok(Choice { row: None, why_not: Vec::new() });
        }
        let Some(row) = rows.iter().position(|row| row.name() == forced) else {
            let known: Vec<&str> = [HOST].into_iter().chain(rows.iter().map(|row| row.name())).collect();
            return Err(Error::Usage(format!(
                "tensors are to be moved by {forced:?}, which is not among {}",
                known.join(", ")
            )));
        };
        return match why_not(row) {
            None => Ok(Choice { row: Some(row), why_not: Vec::new() }),
            Some(why) => Err(Error::Usage(format!(
                "tensors are to be moved by {forced}, which can't serve {wanted}: {why}. Ask for another, or for none"
            ))),
        };
    }
    let mut reasons = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        match why_not(i) {
            None => return Ok(Choice { row: Some(i), why_not: reasons }),
            Some(why) => reasons.push((row.name(), why)),
        }
    }
    Ok(Choice { row: None, why_not: reasons })
}

/// Why a member can't take part in a plane, if one can't.
fn unable(plane: &str, members: &[Rank], facts: &[Facts]) -> Option<String> {
    let lacking = |facts: &Facts| match facts.abilities.get(plane) {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(why.clone()),
        None => Some("it does not know this plane".to_owned()),
    };
    let mut all = members.iter().zip(facts).filter_map(|(rank, facts)| Some((rank, &facts.host, lacking(facts)?)));
    let (rank, host, why) = all.next()?;
    let more = all.count();
    let others = if more == 0 { String::new() } else { format!(" ({more} more can't either)") };
    Some(format!("rank {rank} on {host}: {why}{others}"))
}

/// The plane that the user asks for, which all members must do alike.
fn forced<'a>(members: &[Rank], facts: &'a [Facts]) -> Result<Option<&'a str>> {
    let of = |facts: &'a Facts| facts.forced.as_deref();
    let Some(first) = facts.first().map(of) else { return Ok(None) };
    let Some((rank, other)) = members.iter().zip(facts).map(|(r, f)| (r, of(f))).find(|(_, f)| *f != first) else {
        return Ok(first);
    };
    let said = |wish: Option<&str>| wish.map_or("none".to_owned(), |plane| format!("{plane:?}"));
    Err(Error::Usage(format!(
        "ranks ask for different planes to move tensors: rank {} for {}, rank {rank} for {}. All must ask for the same",
        members[0],
        said(first),
        said(other)
    )))
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons: Vec<String> = self.why_not.iter().map(|(plane, why)| format!("{plane}: {why}")).collect();
        f.write_str(&reasons.join("; "))
    }
}
