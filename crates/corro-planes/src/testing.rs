//! A device that is not there, for the tests of this crate and of those above it: its memory is vectors behind numbers, and what
//! it does it does when somebody asks.
//!
//! Nothing of it is used in production.

#![expect(unsafe_code, reason = "names memory of a device")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::Group;
use corro_core::{Deadline, Error, Rank, Result};

use crate::{
    DeviceMemory, Done, Facts, Host, Memory, Outcome, Outcomes, Output, Plane, Row, Table, Tensor, Verdict, Wanted,
    agree,
};

/// What the device holds, by address.
#[derive(Default)]
struct Device {
    memory: HashMap<u64, Vec<u8>>,
    next: u64,
}

static DEVICE: LazyLock<Mutex<Device>> = LazyLock::new(Mutex::default);

fn device() -> MutexGuard<'static, Device> {
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees memory of the device.
struct Owner(u64);

impl Drop for Owner {
    fn drop(&mut self) {
        device().memory.remove(&self.0);
    }
}

/// Memory of the device that holds this.
pub fn upload(bytes: &[u8]) -> Memory {
    let mut device = device();
    device.next += 0x1000;
    let address = device.next;
    device.memory.insert(address, bytes.to_vec());
    // SAFETY: nobody takes the address for anything but a number.
    unsafe { DeviceMemory::from_raw(address, bytes.len(), 0, None, Arc::new(Owner(address))) }.into()
}

/// What some memory holds, of the device or not.
pub fn read(memory: &Memory) -> Vec<u8> {
    match memory.device() {
        Some(memory) => device().memory[&memory.span().address()].clone(),
        None => memory.host().unwrap().as_slice().to_vec(),
    }
}

/// The device's work that makes a result: done when somebody has asked so often.
struct Work {
    asks_left: AtomicUsize,
    write: Mutex<Option<(u64, Vec<u8>)>>,
    fails: bool,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

impl Done for Work {
    fn is_done(&self) -> Result<bool> {
        if self.asks_left.load(Ordering::Relaxed) > 0 {
            self.asks_left.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        self.wait(Deadline::never()).map(|()| true)
    }

    fn wait(&self, _: Deadline) -> Result<()> {
        self.asks_left.store(0, Ordering::Relaxed);
        if self.fails {
            return Err(Error::Native { library: "fake".into(), code: 7, text: "the device is on fire".into() });
        }
        if let Some((address, bytes)) = self.write.lock().unwrap().take() {
            device().memory.insert(address, bytes);
        }
        Ok(())
    }
}

/// Carries tensors to the host, has them reduced there, and enqueues the way back.
pub struct Fake {
    pub name: &'static str,
    /// How often it must be asked until the device is done; `None`: all is done when a batch has run.
    pub asks: Option<usize>,
    /// Whether the device fails.
    pub fails: bool,
}

impl Fake {
    pub fn new(name: &'static str) -> Self {
        Self { name, asks: None, fails: false }
    }

    fn outcome(&self, agreed: &Agreed, staged: Outcome, tensor: &mut Tensor) -> Result<Result<Outcome>> {
        let on_device = |memory: &Memory| match memory.device() {
            Some(_) => Ok(()),
            None => Err(Error::Usage("a place on the host for a result on the device".into())),
        };
        let here = !tensor.is_on_device() && matches!(tensor.output, Output::InPlace(_));
        if here {
            // As staging has it, where other members' tensors are on devices.
            tensor.place()?.host_mut()?.as_mut_slice().copy_from_slice(staged.bytes()?);
            return Ok(tensor.outcome(staged.shape));
        }
        tensor.allocate(&staged.shape, agreed.dtype, on_device, |bytes| Ok(upload(&vec![0; bytes])))?;
        let address = tensor.place()?.device().map_or(0, |memory| memory.span().address());
        let Outcome { received_splits, .. } = staged;
        let bytes = staged.output.map_or(Ok(Vec::new()), |memory| Ok(memory.into_host()?.into_vec()))?;
        let write = Mutex::new(Some((address, bytes)));
        let work = Work { asks_left: AtomicUsize::new(self.asks.unwrap_or(0)), write, fails: self.fails };
        let outcome = tensor.outcome(staged.shape);
        if self.asks.is_none() {
            work.wait(Deadline::never())?;
            return Ok(outcome.map(|outcome| Outcome { received_splits, ..outcome }));
        }
        Ok(outcome.map(|outcome| Outcome { received_splits, after: Some(Arc::new(work)), ..outcome }))
    }
}

impl Plane for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes> {
        let in_place = |agreed: &Agreed| matches!(agreed.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
        let staged = |(agreed, tensor): (&Arc<Agreed>, &mut Tensor)| {
            let brought = match (&tensor.input, &tensor.output) {
                (Some(input), _) => Some(read(input)),
                (None, Output::InPlace(place)) if in_place(agreed) => Some(read(place)),
                _ => None,
            };
            Tensor::new(brought.map(Memory::from), Output::None)
        };
        let mut copies: Vec<Tensor> = agreed.iter().zip(tensors.iter_mut()).map(staged).collect();
        let outcomes = Host::default().run(group, members, agreed, &mut copies, planned)?;
        if matches!(agreed[0].kind, Kind::Barrier) {
            return Ok(outcomes);
        }
        let unstaged = agreed.iter().zip(outcomes).zip(tensors);
        unstaged.map(|((agreed, outcome), tensor)| self.outcome(agreed, outcome?, tensor)).collect()
    }
}

/// The row of a [`Fake`] in the table of one rank.
pub struct FakeRow {
    pub name: &'static str,
    /// What this rank says of itself.
    pub ability: std::result::Result<u64, String>,
    pub why_not: fn(Wanted, &[Facts]) -> Option<String>,
    /// Whether it can be opened on this rank.
    pub opens: Result<()>,
    pub asks: Option<usize>,
    pub fails: bool,
    /// How often this rank was asked to describe itself.
    pub described: Arc<AtomicUsize>,
}

impl FakeRow {
    /// One that can serve everything.
    pub fn new(name: &'static str) -> Self {
        let described = Arc::new(AtomicUsize::new(0));
        Self { name, ability: Ok(1), why_not: |_, _| None, opens: Ok(()), asks: None, fails: false, described }
    }
}

impl Row for FakeRow {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self, facts: &mut Facts, _: Option<usize>) {
        self.described.fetch_add(1, Ordering::Relaxed);
        facts.says(self.name, self.ability.clone());
    }

    fn why_not(&self, wanted: Wanted, facts: &[Facts]) -> Option<String> {
        (self.why_not)(wanted, facts)
    }

    fn open(
        &self,
        group: &mut Group,
        members: &[Rank],
        _: &[Facts],
        _: Option<usize>,
    ) -> Result<Verdict<Box<dyn Plane>>> {
        let Self { name, asks, fails, .. } = *self;
        let plane = |()| Box::new(Fake { name, asks, fails }) as Box<dyn Plane>;
        agree(group, members, self.opens.clone().map(plane))
    }
}

/// A table with these rows, and a [`Fake`] called "staged" for what they don't serve.
pub fn table(rows: Vec<FakeRow>) -> Table {
    let rows = rows.into_iter().map(|row| Arc::new(row) as Arc<dyn Row>).collect();
    Table::new(rows, Arc::new(|_| Ok(Box::new(Fake::new("staged")))))
}
