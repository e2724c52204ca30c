//! Proofs for Python objects on their way between ranks.
//!
//! An object travels as a pickle over the links for data, which are not protected between hosts unless `CORRO_TLS` is set. Who
//! unpickles bytes runs whatever they say. So each pickle carries a proof, made with a key that only this job's ranks have, of
//! which call it belongs to and who sent it, and is not unpickled without.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use corro_core::{Error, Rank};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::unregistered;
use crate::job;
use crate::running::engine;
use crate::without_gil::outside;

const PROOF: usize = 32;

/// How often objects were sent, by epoch, process set and name: all ranks of a set count alike.
static CALLS: Mutex<Option<(u64, Counts)>> = Mutex::new(None);

type Counts = HashMap<(u32, String), u64>;

/// One sending of objects, as all ranks know it.
#[derive(FromPyObject)]
pub(crate) struct Call(u32, String, u64);

impl Call {
    fn proof(&self, key: &corro_transport::secret::Secret, sender: Rank, data: &[u8]) -> [u8; PROOF] {
        key.prove("object", &self.parts(sender, data).each_ref().map(|part| &**part))
    }

    fn parts<'a>(&'a self, sender: Rank, data: &'a [u8]) -> [std::borrow::Cow<'a, [u8]>; 5] {
        let Self(set, name, number) = self;
        let number = number.to_le_bytes().to_vec();
        [
            set.to_le_bytes().to_vec().into(),
            name.as_bytes().into(),
            number.into(),
            (sender.index() as u64).to_le_bytes().to_vec().into(),
            data.into(),
        ]
    }
}

/// The next call of this name on this process set. Every rank of the set must make it.
#[pyfunction]
#[pyo3(signature = (set_id, name))]
pub(crate) fn object_call(py: Python<'_>, set_id: Option<u32>, name: &str) -> PyResult<(u32, String, u64)> {
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let epoch = job::epoch(py)?;
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = match &mut *calls {
        Some((of, counts)) if *of == epoch => counts,
        calls => &mut calls.insert((epoch, Counts::new())).1,
    };
    let number = counts.entry((set, name.to_owned())).or_default();
    *number += 1;
    Ok((set, name.to_owned(), *number))
}

/// A proof that rank `sender` sends `data` in this call.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from a Python tuple")]
pub(crate) fn object_proof(py: Python<'_>, call: Call, sender: usize, data: &[u8]) -> PyResult<Py<PyBytes>> {
    let engine = engine(py)?;
    let proof = outside(py, || Ok(call.proof(engine.object_key(), Rank::new(sender), data)))?;
    Ok(PyBytes::new(py, &proof).unbind())
}

/// An exception unless `sealed` is what rank `sender` sent in this call, with its proof behind it.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from a Python tuple")]
pub(crate) fn check_object(py: Python<'_>, call: Call, sender: usize, sealed: &[u8]) -> PyResult<()> {
    let engine = engine(py)?;
    outside(py, || {
        let proven = sealed.split_last_chunk::<PROOF>().is_some_and(|(data, proof)| {
            let parts = call.parts(Rank::new(sender), data);
            engine.object_key().verify("object", &parts.each_ref().map(|part| &**part), proof)
        });
        if proven {
            return Ok(());
        }
        let own = engine.rank();
        Err(Error::Unauthenticated(format!(
            "the object that rank {sender} sent as {:?} is not what rank {own} received: something between their hosts has \
             changed it. It was not unpickled. Find out what that is; with CORRO_TLS=1 nobody between the hosts can read or \
             change anything",
            call.1
        )))
    })
}
