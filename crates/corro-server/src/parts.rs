//! Keys as a worker knows them: how they are cut, and what was sent and read of each part. Pure.

use std::collections::VecDeque;

use corro_core::{DType, Error, ReduceOp, Result};

use crate::code::Code;
use crate::frame::Request;
use crate::protocol::{Key, Layout, Payload, Rule, ServerId, WorkerId};
use crate::table::floats;

/// A value that was read.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) value: Payload,
    pub(crate) version: u64,
    pub(crate) min_clock: u64,
}

/// One part of a key.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) layout: Layout,
    /// The first row, of keys that are not striped.
    pub(crate) begin: u64,
    pub(crate) home: ServerId,
    /// How often it was pushed.
    pub(crate) round: u64,
    /// The version that was last read.
    pub(crate) seen: u64,
    /// Pushes that may have to be sent again: their round, id, and what they are.
    pub(crate) sent: VecDeque<(u64, u64, Request, Payload)>,
    pub(crate) cached: Option<Cached>,
    /// Pushes since the cached value was asked for.
    pub(crate) own: Vec<(u64, Payload)>,
    /// What the codes of its pushes have not said yet; empty: nothing.
    pub(crate) rest: Vec<f32>,
}

/// A key.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) rule: Rule,
    pub(crate) order: u64,
    /// Whether row r is in part r mod parts; else parts have rows that follow each other.
    pub(crate) striped: bool,
    /// How whole values travel.
    pub(crate) code: Option<Code>,
    pub(crate) parts: Vec<Part>,
}

/// What a key is to be.
#[derive(Clone, Debug)]
pub struct KeySpec {
    /// Its name.
    pub name: String,
    /// Of each element.
    pub dtype: DType,
    /// How many rows.
    pub rows: u64,
    /// Elements of a row.
    pub width: u32,
    /// What a push does.
    pub rule: Rule,
    /// Whether rows are dealt to parts one by one, for keys of which some rows are read and pushed at a time.
    pub striped: bool,
    /// How this worker pushes whole values, and reads sums: with fewer bytes; none: as they are. Rows always go as they are.
    pub code: Option<Code>,
}

impl Part {
    /// A push with fewer bytes: what earlier ones have left out goes with it, and what this one leaves out stays.
    pub(crate) fn encode(&mut self, code: Code, value: &[u8]) -> Payload {
        let mut values = floats(value).into_owned();
        for (value, rest) in values.iter_mut().zip(&self.rest) {
            *value += rest;
        }
        let payload = code.encode(&mut values);
        self.rest = values;
        payload
    }

    /// A cached value with what we have pushed since, if that can be known.
    pub(crate) fn with_own(&self, rule: Rule, dtype: DType, value: &Payload) -> Option<Payload> {
        if self.own.is_empty() {
            return Some(value.clone());
        }
        if rule != Rule::Add || self.own.iter().any(|(_, own)| own.len() != value.len()) {
            return None;
        }
        let mut total = value.to_vec();
        for (_, own) in &self.own {
            corro_kernels::reduce(ReduceOp::Sum, dtype, &mut total, own);
        }
        Some(Payload::new(total))
    }
}

impl Named {
    pub(crate) fn init(&self, key: Key, id: u64, resume: bool) -> Request {
        let (layout, order) = (self.parts[key.part as usize].layout, self.order);
        Request::Init { id, key, name: self.name.clone(), layout, rule: self.rule, order, resume }
    }

    pub(crate) fn fits(&self, bytes: usize) -> Result<()> {
        let need = self.layout.rows as usize * self.layout.row_bytes();
        if bytes == need {
            return Ok(());
        }
        Err(Error::Usage(format!("{bytes} bytes for {:?}, which has {need}", self.name)))
    }

    /// The part and place of a row.
    pub(crate) fn find(&self, row: u64, me: WorkerId) -> Result<(usize, u64)> {
        if row >= self.layout.rows {
            let rows = self.layout.rows;
            return Err(Error::Usage(format!(
                "row {row} of {:?} on worker {me}: it has the rows 0 to {rows} - 1",
                self.name
            )));
        }
        let parts = self.parts.len() as u64;
        if self.striped {
            return Ok(((row % parts) as usize, row / parts));
        }
        let part = self.parts.partition_point(|part| part.begin <= row) - 1;
        Ok((part, row - self.parts[part].begin))
    }

    /// What a part has of a whole value.
    pub(crate) fn cut(&self, part: usize, value: &[u8]) -> Payload {
        let (width, here) = (self.layout.row_bytes(), &self.parts[part]);
        if self.striped {
            let rows = value.chunks_exact(width.max(1)).skip(part).step_by(self.parts.len());
            return Payload::new(rows.flatten().copied().collect());
        }
        let begin = here.begin as usize * width;
        Payload::new(value[begin..begin + here.layout.rows as usize * width].to_vec())
    }

    /// Puts a part's value to its place in the whole.
    pub(crate) fn put(&self, part: usize, value: &[u8], whole: &mut [u8]) {
        let (width, here) = (self.layout.row_bytes(), &self.parts[part]);
        if self.striped {
            let rows = whole.chunks_exact_mut(width.max(1)).skip(part).step_by(self.parts.len());
            for (to, from) in rows.zip(value.chunks_exact(width.max(1))) {
                to.copy_from_slice(from);
            }
            return;
        }
        let begin = here.begin as usize * width;
        whole[begin..begin + value.len()].copy_from_slice(value);
    }
}
