//! What servers own, in a file: the frames in which they tell it, one after the other.
//!
//! A file may be loaded into a store with another number of servers, whose keys are then cut into other parts: the value and
//! each list that the optimizer remembers are put together and cut anew, row by row.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use corro_core::{Error, Result};

use crate::frame::{Reader, Response, Snapshot, encode};
use crate::protocol::{Key, Payload};

/// Parts of keys as servers told them.
pub type Saved = Vec<(Key, Snapshot, Payload)>;

/// Writes a file, whole or not at all.
pub fn write(file: &Path, parts: Saved) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("saving parameters to {}", file.display()), e);
    let unfinished = file.with_extension("unfinished");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&unfinished).map_err(failed)?);
    for (key, snapshot, state) in parts {
        let head = encode(&Response::Part { id: 0, key, snapshot }, state.len())?;
        out.write_all(&head).and_then(|()| out.write_all(&state)).map_err(failed)?;
    }
    let end = encode(&Response::Done { id: 0 }, 0)?;
    out.write_all(&end).map_err(failed)?;
    let whole = out.into_inner().map_err(|e| failed(e.into_error()))?;
    whole.sync_all().map_err(failed)?;
    std::fs::rename(&unfinished, file).map_err(failed)
}

/// Reads a file.
pub fn read(file: &Path) -> Result<Saved> {
    let failed = |e: std::io::Error| Error::io(format!("loading parameters from {}", file.display()), e);
    let mut source = std::fs::File::open(file).map_err(failed)?;
    let (mut reader, mut parts) = (Reader::<Response>::default(), Vec::new());
    loop {
        let count = source.read(reader.room()).map_err(failed)?;
        if count == 0 {
            return Err(Error::Malformed(format!("{} is incomplete: it was not written to the end", file.display())));
        }
        reader.filled(count);
        while let Some((response, payload)) = reader.next_frame()? {
            match response {
                Response::Part { key, snapshot, .. } => parts.push((key, snapshot, payload)),
                Response::Done { .. } => return Ok(parts),
                _ => return Err(Error::Malformed(format!("{} is not a file of parameters", file.display()))),
            }
        }
    }
}

/// How the rows of a key are dealt to parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) striped: bool,
    pub(crate) rows: &'a [u64],
}

impl Cut<'_> {
    /// The part that has a row, and where.
    fn find(&self, row: u64) -> (usize, usize) {
        let parts = self.rows.len() as u64;
        if self.striped {
            return ((row % parts) as usize, (row / parts) as usize);
        }
        let mut left = row;
        for (part, rows) in self.rows.iter().enumerate() {
            if left < *rows {
                return (part, left as usize);
            }
            left -= rows;
        }
        (self.rows.len() - 1, left as usize)
    }
}

/// One key's parts, cut anew.
pub(crate) fn recut(parts: &BTreeMap<u32, (Snapshot, Payload)>, striped: bool, rows: &[u64]) -> Result<Saved> {
    let Some((_, (first, _))) = parts.first_key_value() else { return Ok(Vec::new()) };
    let first = first.clone();
    let name = crate::protocol::name_id(&first.name);
    let old: Vec<u64> = parts.values().map(|(snapshot, _)| snapshot.layout.rows).collect();
    let whole: u64 = rows.iter().sum();
    if parts.keys().copied().ne(0..parts.len() as u32) || old.iter().sum::<u64>() != whole {
        return Err(Error::Usage(format!("{:?} was saved with other rows than it has now, or not whole", first.name)));
    }
    // Bytes of a row in the value and in each of the optimizer's lists.
    let mut columns = vec![first.layout.row_bytes()];
    if let Some(optimizer) = first.optimizer {
        let lists = optimizer.slots(first.layout.width as usize, 1);
        columns.extend(lists.iter().map(|list| list.len() * 4));
    }
    let per_row: usize = columns.iter().sum();
    for (snapshot, state) in parts.values() {
        if state.len() as u64 != snapshot.layout.rows * per_row as u64 {
            return Err(Error::Malformed(format!("the state of {:?} has {} bytes", first.name, state.len())));
        }
    }
    let (from, to) = (Cut { striped, rows: &old }, Cut { striped, rows });
    let mut states: Vec<Vec<u8>> = rows.iter().map(|rows| vec![0; *rows as usize * per_row]).collect();
    let sources: Vec<&Payload> = parts.values().map(|(_, state)| state).collect();
    let mut before = 0;
    for column in columns {
        for row in 0..whole {
            let ((a, at), (b, place)) = (from.find(row), to.find(row));
            let begin = before * old[a] as usize + at * column;
            let end = before * rows[b] as usize + place * column;
            states[b][end..end + column].copy_from_slice(&sources[a][begin..begin + column]);
        }
        before += column;
    }
    let cut = (0u32..).zip(states).zip(rows).map(|((part, state), rows)| {
        let mut snapshot = first.clone();
        snapshot.layout.rows = *rows;
        (Key { name, part }, snapshot, Payload::new(state))
    });
    Ok(cut.collect())
}

#[cfg(test)]
mod tests {
    use corro_core::DType;

    use super::*;
    use crate::optimizer::Optimizer;
    use crate::protocol::{Layout, Rule};
    use crate::table::Table;

    #[test]
    fn keys_are_cut_anew_without_losing_a_row_or_its_state() {
        let optimizer = Optimizer::RowAdagrad { lr: 0.1, eps: 0.0, initial: 0.5 };
        for striped in [false, true] {
            let part = |part: u32, rows: u64| {
                let layout = Layout { dtype: DType::F32, rows, width: 2 };
                let cut = Cut { striped, rows: &[3, 2] };
                let mut value = vec![0u8; rows as usize * 8];
                for row in 0..5u64 {
                    if let (p, at) = cut.find(row)
                        && p == part as usize
                    {
                        value[at * 8] = row as u8 + 1;
                    }
                }
                let table = Table::new(layout, Rule::Update, Some(optimizer), &value).unwrap();
                let snapshot = Snapshot {
                    name: "k".into(),
                    layout,
                    rule: Rule::Update,
                    version: 7,
                    change: 9,
                    step: 3,
                    optimizer: Some(optimizer),
                    applied: vec![],
                };
                (part, (snapshot, table.state()))
            };
            let parts = BTreeMap::from([part(0, 3), part(1, 2)]);
            let one = recut(&parts, striped, &[5]).unwrap();
            let values: Vec<u8> = one[0].2[..40].iter().step_by(8).copied().collect();
            assert_eq!((values, one[0].2.len()), (vec![1, 2, 3, 4, 5], 40 + 20));
            let again = BTreeMap::from([(0, (one[0].1.clone(), one[0].2.clone()))]);
            let back = recut(&again, striped, &[3, 2]).unwrap();
            assert_eq!((&back[0].2, &back[1].2), (&parts[&0].1, &parts[&1].1));
            assert!(recut(&parts, striped, &[4]).is_err());
        }
    }
}
