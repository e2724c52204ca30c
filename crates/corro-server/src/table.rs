//! One part of a key: its value, what the optimizer remembers of it, and the arithmetic on both.
//!
//! Pure, and the same bits wherever the same changes come in the same order: that is how a copy of it is kept by sending
//! the changes. Sums use the kernels of the collectives, so that a round's sum has the bits of an allreduce.

use std::borrow::Cow;
use std::collections::BTreeMap;

use corro_core::{DType, Error, ReduceOp, Result};

use crate::optimizer::{Optimizer, Step};
use crate::protocol::{Layout, Payload, Rule, WorkerId};

/// What one push, or the sum of a round, brings.
#[derive(Clone, Debug)]
pub struct Change {
    /// How many rows, whose numbers come before their elements; none: all of it.
    pub rows: Option<u32>,
    /// A learning rate in place of the optimizer's own.
    pub rate: Option<f32>,
    /// What the learning rate is multiplied by.
    pub scale: f32,
    /// Row numbers (u64), then elements.
    pub payload: Payload,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Table {
    layout: Layout,
    rule: Rule,
    value: Value,
    optimizer: Option<Optimizer>,
    slots: Vec<Vec<f32>>,
    step: u64,
}

/// Floats are kept as such: updating them needs their alignment.
#[derive(Clone, Debug)]
enum Value {
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

impl Value {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Floats(floats) => bytemuck::cast_slice(floats),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Floats(floats) => bytemuck::cast_slice_mut(floats),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Bytes as floats, wherever they lie.
pub(crate) fn floats(bytes: &[u8]) -> Cow<'_, [f32]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(floats) => Cow::Borrowed(floats),
        Err(_) => Cow::Owned(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
    }
}

/// Row numbers and what follows them.
pub fn split_rows(payload: &[u8], rows: u32) -> Option<(Vec<u64>, &[u8])> {
    let (numbers, rest) = payload.split_at_checked(rows as usize * 8)?;
    let number = |b: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| b[i]));
    Some((numbers.chunks_exact(8).map(number).collect(), rest))
}

impl Table {
    /// With this first value; an empty one is zeros.
    pub fn new(layout: Layout, rule: Rule, optimizer: Option<Optimizer>, value: &[u8]) -> Result<Self> {
        let bytes = layout.bytes()?;
        if rule == Rule::Update && layout.dtype != DType::F32 {
            return Err(Error::Usage(format!(
                "servers update only float32 parameters, and this one is {}: keep the optimizer on the worker",
                layout.dtype.name()
            )));
        }
        let mut table = Self {
            layout,
            rule,
            value: match layout.dtype {
                DType::F32 => Value::Floats(vec![0.0; bytes / 4]),
                _ => Value::Bytes(vec![0; bytes]),
            },
            optimizer: None,
            slots: Vec::new(),
            step: 0,
        };
        table.optimize(optimizer);
        if !value.is_empty() {
            table.fits(value.len(), bytes)?;
            table.value.bytes_mut().copy_from_slice(value);
        }
        Ok(table)
    }

    /// The value.
    pub fn value(&self) -> Payload {
        Payload::new(self.value.bytes().to_vec())
    }

    /// How many steps the optimizer has made, and which it is.
    pub fn progress(&self) -> (u64, Option<Optimizer>) {
        (self.step, self.optimizer)
    }

    /// The value, then the slots: what [`Table::restored`] takes.
    pub fn state(&self) -> Payload {
        let slots = self.slots.iter().flat_map(|slot| bytemuck::cast_slice::<f32, u8>(slot));
        Payload::new(self.value.bytes().iter().chain(slots).copied().collect())
    }

    /// A table as another one was.
    pub fn restored(layout: Layout, rule: Rule, progress: (u64, Option<Optimizer>), state: &[u8]) -> Result<Self> {
        let (step, optimizer) = progress;
        if let Some(optimizer) = optimizer {
            optimizer.check()?;
        }
        let (value, mut rest) = state.split_at_checked(layout.bytes()?).ok_or_else(|| Self::cut_short(state.len()))?;
        let mut table = Self::new(layout, rule, optimizer, value)?;
        for slot in &mut table.slots {
            let (bytes, after) = rest.split_at_checked(slot.len() * 4).ok_or_else(|| Self::cut_short(state.len()))?;
            slot.copy_from_slice(&floats(bytes));
            rest = after;
        }
        table.step = step;
        if rest.is_empty() { Ok(table) } else { Err(Self::cut_short(state.len())) }
    }

    fn cut_short(bytes: usize) -> Error {
        Error::Malformed(format!(
            "{bytes} bytes are not the state of this key: does it have another shape or optimizer?"
        ))
    }

    /// Updates with `optimizer` from now on. Another kind begins anew; the same kind with other numbers goes on.
    pub fn optimize(&mut self, optimizer: Option<Optimizer>) {
        let Some(optimizer) = optimizer.filter(|_| self.rule == Rule::Update) else { return };
        let fresh = optimizer.slots(self.value.bytes().len() / 4, self.layout.rows as usize);
        let same = self.optimizer.is_some_and(|o| std::mem::discriminant(&o) == std::mem::discriminant(&optimizer));
        if !same || fresh.len() != self.slots.len() {
            (self.slots, self.step) = (fresh, 0);
        }
        self.optimizer = Some(optimizer);
    }

    /// Some rows of the value.
    pub fn rows(&self, numbers: &[u64]) -> Result<Payload> {
        let width = self.layout.row_bytes();
        let mut found = Vec::with_capacity(numbers.len() * width);
        for number in numbers {
            let at = self.row(*number)? * width;
            found.extend_from_slice(&self.value.bytes()[at..at + width]);
        }
        Ok(Payload::new(found))
    }

    fn row(&self, number: u64) -> Result<usize> {
        if number < self.layout.rows {
            return Ok(number as usize);
        }
        Err(Error::Usage(format!("row {number} of a part that has {}", self.layout.rows)))
    }

    fn fits(&self, have: usize, need: usize) -> Result<()> {
        if have == need {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{have} bytes for a part of {} x {} {}, which needs {need}: do workers disagree about the shape?",
            self.layout.rows,
            self.layout.width,
            self.layout.dtype.name()
        )))
    }

    /// Whether `apply` will take this. After it, a change that is made is made whole.
    pub fn check(&self, rows: Option<u32>, payload: &[u8]) -> Result<()> {
        if self.rule == Rule::Update && self.optimizer.is_none() {
            return Err(Error::Usage("a gradient was pushed before set_optimizer".into()));
        }
        let Some(rows) = rows else { return self.fits(payload.len(), self.layout.bytes()?) };
        if !self.rule.owns() {
            return Err(Error::Usage(format!(
                "rows were pushed to a key with the rule {:?}, which sums whole values",
                self.rule
            )));
        }
        let Some((numbers, rest)) = split_rows(payload, rows) else {
            return Err(Error::Malformed(format!("{rows} rows in {} bytes", payload.len())));
        };
        self.fits(rest.len(), rows as usize * self.layout.row_bytes())?;
        numbers.iter().try_for_each(|number| self.row(*number).map(drop))
    }

    /// Makes a change that [`Table::check`] has let through. Rows must be there once.
    pub fn apply(&mut self, change: &Change) {
        match (self.rule, change.rows) {
            (Rule::Sum | Rule::Average, _) => {
                let room = self.value.bytes_mut();
                if room.len() == change.payload.len() {
                    room.copy_from_slice(&change.payload);
                }
            }
            (Rule::Add, None) => {
                corro_kernels::reduce(ReduceOp::Sum, self.layout.dtype, self.value.bytes_mut(), &change.payload);
            }
            (Rule::Add, Some(rows)) => {
                let Some((numbers, elements)) = split_rows(&change.payload, rows) else { return };
                let width = self.layout.row_bytes();
                for (number, row) in numbers.iter().zip(elements.chunks_exact(width.max(1))) {
                    let at = *number as usize * width;
                    corro_kernels::reduce(
                        ReduceOp::Sum,
                        self.layout.dtype,
                        &mut self.value.bytes_mut()[at..at + width],
                        row,
                    );
                }
            }
            (Rule::Update, _) => self.update(change),
        }
    }

    fn update(&mut self, change: &Change) {
        let (Some(optimizer), Value::Floats(value)) = (self.optimizer, &mut self.value) else { return };
        self.step += 1;
        let step = Step { number: self.step, rate: change.rate, scale: change.scale };
        let width = self.layout.width as usize;
        let by_row = optimizer.remembers_rows();
        let (numbers, elements): (Option<Vec<u64>>, &[u8]) = match change.rows {
            None if !by_row => (None, &change.payload),
            None => (Some((0..self.layout.rows).collect()), &change.payload),
            Some(rows) => match split_rows(&change.payload, rows) {
                Some((numbers, elements)) => (Some(numbers), elements),
                None => return,
            },
        };
        let gradient = floats(elements);
        let Some(numbers) = numbers else {
            let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
            return optimizer.update(step, value, &gradient, &mut slots);
        };
        for (number, row) in numbers.iter().zip(gradient.chunks_exact(width.max(1))) {
            let (row_at, at) = (*number as usize, *number as usize * width);
            let slots = self.slots.iter_mut();
            let mut slots: Vec<&mut [f32]> =
                slots.map(|slot| if by_row { &mut slot[row_at..=row_at] } else { &mut slot[at..at + width] }).collect();
            optimizer.update(step, &mut value[at..at + width], row, &mut slots);
        }
    }
}

/// The sum of a round's payloads in the order of workers, or their average: the bits of an allreduce.
pub fn sum(dtype: DType, average: bool, payloads: &[Payload]) -> Payload {
    let Some(first) = payloads.first() else { return Payload::default() };
    let factor = if average { 1.0 / payloads.len() as f64 } else { 1.0 };
    let mut total = vec![0; first.len()];
    let sources: Vec<&[u8]> = payloads.iter().map(|p| p.as_slice()).collect();
    corro_kernels::reduce_slices(ReduceOp::Sum, dtype, &mut total, &sources, factor);
    Payload::new(total)
}

/// The same for rows: each row once, in the order of rows, its elements added in the order of workers.
pub fn merge_rows(layout: &Layout, divide_by: usize, given: &BTreeMap<WorkerId, (u32, Payload)>) -> (u32, Payload) {
    let width = layout.row_bytes();
    let mut found: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
    for (rows, payload) in given.values() {
        let Some((numbers, elements)) = split_rows(payload, *rows) else { continue };
        for (number, row) in numbers.into_iter().zip(elements.chunks_exact(width.max(1))) {
            found.entry(number).or_default().push(row);
        }
    }
    let mut merged: Vec<u8> = found.keys().flat_map(|number| number.to_le_bytes()).collect();
    let mut total = vec![0; width];
    for rows in found.values() {
        corro_kernels::reduce_slices(ReduceOp::Sum, layout.dtype, &mut total, rows, 1.0 / divide_by.max(1) as f64);
        merged.extend_from_slice(&total);
    }
    (found.len() as u32, Payload::new(merged))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { dtype: DType::F32, rows: 4, width: 2 };

    fn bytes(floats: &[f32]) -> Vec<u8> {
        floats.iter().flat_map(|f| f.to_le_bytes()).collect()
    }

    fn rows(numbers: &[u64], elements: &[f32]) -> (u32, Payload) {
        let ids: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        (numbers.len() as u32, Payload::new([ids, bytes(elements)].concat()))
    }

    #[test]
    fn the_same_row_of_two_workers_is_updated_once_with_its_sum() {
        let optimizer = Optimizer::Adagrad { lr: 1.0, eps: 0.0, weight_decay: 0.0, initial: 0.0 };
        let mut table = Table::new(LAYOUT, Rule::Update, Some(optimizer), &[]).unwrap();
        let given = BTreeMap::from([
            (WorkerId(0), rows(&[3, 1], &[1.0, 1.0, 2.0, 2.0])),
            (WorkerId(1), rows(&[1], &[4.0, 4.0])),
        ]);
        let (count, payload) = merge_rows(&LAYOUT, 2, &given);
        assert_eq!(count, 2);
        table.check(Some(count), &payload).unwrap();
        table.apply(&Change { rows: Some(count), rate: None, scale: 1.0, payload });
        // Adagrad's first step has length lr whatever the gradient; applied twice it would be longer.
        assert_eq!(*table.value(), bytes(&[0.0, 0.0, -1.0, -1.0, 0.0, 0.0, -1.0, -1.0]));
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        for optimizer in [
            Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0, decoupled: true },
            Optimizer::RowAdagrad { lr: 0.1, eps: 1e-8, initial: 0.1 },
            Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.1 },
        ] {
            let start: Vec<f32> = (0..8u8).map(f32::from).collect();
            let mut table = Table::new(LAYOUT, Rule::Update, Some(optimizer), &bytes(&start)).unwrap();
            let change = Change { rows: None, rate: None, scale: 0.5, payload: Payload::new(bytes(&start)) };
            table.apply(&change);
            let mut again = Table::restored(LAYOUT, Rule::Update, table.progress(), &table.state()).unwrap();
            for table in [&mut table, &mut again] {
                table.apply(&change);
            }
            assert_eq!(table.state(), again.state());
            assert!(Table::restored(LAYOUT, Rule::Update, table.progress(), &table.state()[1..]).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_anything_changes() {
        let table = Table::new(LAYOUT, Rule::Add, None, &[]).unwrap();
        let refused = |count, payload: &[u8]| table.check(count, payload).unwrap_err().to_string();
        assert!(refused(None, &[0; 4]).contains("needs 32"));
        let (count, payload) = rows(&[4], &[0.0, 0.0]);
        assert!(refused(Some(count), &payload).contains("row 4"));
        assert!(refused(Some(9), &payload).contains("9 rows"));
        assert!(Table::new(Layout { rows: u64::MAX, ..LAYOUT }, Rule::Add, None, &[]).is_err());
        let update = Table::new(LAYOUT, Rule::Update, None, &[]).unwrap();
        assert!(update.check(None, &[0; 32]).unwrap_err().to_string().contains("set_optimizer"));
        assert!(Table::new(Layout { dtype: DType::F64, ..LAYOUT }, Rule::Update, None, &[]).is_err());
    }

    #[test]
    fn sums_do_not_depend_on_anything_but_the_order_of_workers() {
        let payloads: Vec<Payload> = [1e8f32, 1.0, -1e8].map(|f| Payload::new(bytes(&[f]))).into();
        assert_eq!(*sum(DType::F32, false, &payloads), bytes(&[(1e8f32 + 1.0) - 1e8]));
        assert_eq!(*sum(DType::F32, true, &payloads[..1]), bytes(&[1e8]));
    }
}
