//! Allreduce with fewer bytes.
//!
//! [`allreduce`] sums parts of tensors over [`Peers`], who send each other codes instead of the values. What a code leaves
//! out is kept in the [`State`] of the tensor and added the next time (error feedback), so that nothing is lost, only late. A
//! [`Ledger`] keeps the states by the tensors' names. `docs/design/compression.md` has the reasons.
//!
//! It never moves bytes itself (whoever calls it brings the peers) and never decides whether compression pays.
//!
//! | module | holds |
//! | --- | --- |
//! | `peers` | what is asked of those who move bytes |
//! | `part` | what a peer brings |
//! | `state`, `ledger` | what is remembered of a tensor; of all of them |
//! | `codec` | codes of values, one by one: 16, 8, 4, 2 and 1 bits |
//! | `courier` | carries codes beside whoever makes them |
//! | `dense` | codes that owners add up: each peer owns a chunk, adds what comes, and sends the sum as a code |
//! | `sparse` | a few values of many: the largest, or at random places |
//! | `low_rank` | PowerSGD |

#![forbid(unsafe_code)]

mod codec;
mod courier;
mod dense;
mod ledger;
mod low_rank;
mod part;
mod peers;
mod sparse;
mod state;

use corro_core::compression::Method;
use corro_core::{Compression, Error, Result};

pub use dense::Scratch;
pub use ledger::{Entry, Ledger, Taken};
pub use part::Part;
pub use peers::Peers;
pub use state::{Debt, Layout, State};

use codec::Codec;

/// Sums `parts` over all peers, by codes. Gives the bytes that this peer has sent.
///
/// All peers end with the same bits. They must call this with the same compression and parts of the same lengths.
///
/// # Errors
/// Those of the peers; and if one of them has sent what can't be a code.
pub fn allreduce(
    peers: &mut impl Peers,
    compression: &Compression,
    parts: &mut [Part<'_>],
    scratch: &mut Scratch,
) -> Result<usize> {
    compression.check()?;
    if let Some(part) = parts.iter().find(|part| part.state.layout.len != part.values.len()) {
        let (name, len, known) = (part.name, part.values.len(), part.state.layout.len);
        return Err(Error::Bug(format!("tensor {name}: {len} values and the state of {known}")));
    }
    if peers.size() == 1 {
        return Ok(0);
    }
    if has_common_state(compression.method) {
        agree_on_state(peers, parts)?;
    }
    let sent = match compression.method {
        Method::TopK { .. } | Method::Dgc { .. } | Method::Ef21 { .. } => sparse::largest(peers, compression, parts),
        Method::RandomK { density } => sparse::random(peers, compression, density.get(), parts),
        Method::PowerSgd { rank, start, min_rate } => {
            let how = low_rank::LowRank { rank: rank as usize, start: u64::from(start), min_rate: min_rate.get() };
            low_rank::run(peers, compression, how, parts)
        }
        Method::Majority => dense::majority(peers, compression, parts, scratch),
        _ => dense::sum(peers, compression, &Codec::of(compression)?, parts, scratch),
    }?;
    for part in parts.iter_mut() {
        part.state.steps += 1;
        part.state.sent += sent as u64 * part.values.len() as u64;
    }
    Ok(sent)
}

/// Whether peers must remember the same of a tensor, or their parts would not fit together.
fn has_common_state(method: Method) -> bool {
    match method {
        Method::RandomK { .. } | Method::PowerSgd { .. } | Method::Ef21 { .. } => true,
        Method::Dgc { warmup, .. } => warmup > 0,
        _ => false,
    }
}

/// A peer may be new, or have loaded another state than the others: then all forget what must be common.
fn agree_on_state(peers: &mut impl Peers, parts: &mut [Part<'_>]) -> Result<()> {
    const BYTES: usize = size_of::<u64>();
    let mine = parts.iter().fold(0u64, |digest, part| state::mixed(digest ^ part.state.steps));
    let mut all = vec![0; BYTES * peers.size()];
    peers.gather(&mine.to_le_bytes(), &vec![BYTES; peers.size()], &mut all)?;
    if all.as_chunks::<BYTES>().0.iter().any(|other| u64::from_le_bytes(*other) != mine) {
        for part in parts.iter_mut() {
            part.state.forget_common();
        }
    }
    Ok(())
}
