//! Peers as threads that share a table; and a tensor of each, with all it takes to reduce it.

use std::sync::{Arc, Barrier, Mutex};

use corro_compress::{Layout, Ledger, Part, Peers, Scratch, allreduce};
use corro_core::{Compression, Result};

/// One of several peers.
pub(crate) struct Member {
    me: usize,
    table: Arc<Mutex<Vec<Vec<u8>>>>,
    barrier: Arc<Barrier>,
}

impl Member {
    /// Lays bytes on the table and calls `look` with what all have laid there.
    fn show<T>(&self, own: Vec<u8>, look: impl FnOnce(&[Vec<u8>]) -> T) -> T {
        self.table.lock().unwrap()[self.me] = own;
        self.barrier.wait();
        let seen = look(&self.table.lock().unwrap());
        self.barrier.wait();
        seen
    }
}

impl Peers for Member {
    fn size(&self) -> usize {
        self.table.lock().unwrap().len()
    }

    fn me(&self) -> usize {
        self.me
    }

    fn exchange(&mut self, out: &[u8], sends: &[usize], into: &mut [u8], receives: &[usize]) -> Result<()> {
        assert_eq!(sends.iter().sum::<usize>(), out.len());
        assert_eq!(sends[self.me] + receives[self.me], 0, "nothing for itself");
        let before: usize = sends.iter().sum();
        let lengths = sends.iter().flat_map(|s| (*s as u64).to_le_bytes());
        let letter: Vec<u8> = lengths.chain(out.iter().copied()).collect();
        self.show(letter, |all| {
            let mut at = 0;
            for (peer, letter) in all.iter().enumerate() {
                let length = |p: usize| u64::from_le_bytes(letter[p * 8..][..8].try_into().unwrap()) as usize;
                let start = all.len() * 8 + (0..self.me).map(length).sum::<usize>();
                assert_eq!(length(self.me), receives[peer], "from {peer} to {}", self.me);
                into[at..at + receives[peer]].copy_from_slice(&letter[start..start + receives[peer]]);
                at += receives[peer];
            }
            assert_eq!(at, into.len());
        });
        assert_eq!(before, out.len());
        Ok(())
    }

    fn gather(&mut self, own: &[u8], counts: &[usize], into: &mut [u8]) -> Result<()> {
        assert_eq!(own.len(), counts[self.me]);
        self.show(own.to_vec(), |all| {
            assert!(all.iter().map(Vec::len).eq(counts.iter().copied()));
            into.copy_from_slice(&all.concat());
        });
        Ok(())
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<()> {
        let own = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.show(own, |all| {
            values.fill(0.0);
            for bytes in all {
                assert_eq!(bytes.len(), values.len() * 4);
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value += f32::from_le_bytes(*bytes);
                }
            }
        });
        Ok(())
    }
}

/// Runs `act` on `n` peers; what each of them gives.
pub(crate) fn together<T: Send>(n: usize, act: impl Fn(Member) -> T + Sync) -> Vec<T> {
    let table = Arc::new(Mutex::new(vec![Vec::new(); n]));
    let barrier = Arc::new(Barrier::new(n));
    std::thread::scope(|scope| {
        let start = |me| {
            let member = Member { me, table: Arc::clone(&table), barrier: Arc::clone(&barrier) };
            let act = &act;
            scope.spawn(move || act(member))
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A tensor of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Sums tensors over all peers as a rank of the job does: with the states of its ledger, and what they still owe.
pub(crate) fn reduce(peers: &mut Member, ledger: &mut Ledger, compression: &Compression, tensors: &mut [Tensor]) {
    let (n, me) = (peers.size(), peers.me());
    let layout = |len| Layout { compression: *compression, first: 0, len, peers: n, me, ranks: n };
    let mut taken: Vec<_> =
        tensors.iter().map(|tensor| ledger.take(&tensor.name, layout(tensor.values.len()), true)).collect();
    let mut parts: Vec<Part<'_>> = Vec::new();
    for (tensor, taken) in tensors.iter_mut().zip(&mut taken) {
        for debt in taken.debts.drain(..) {
            for (value, owed) in tensor.values[debt.first..].iter_mut().zip(debt.values) {
                *value += owed;
            }
        }
        let matrix = <[usize; 2]>::try_from(&tensor.shape[..]).ok();
        parts.push(Part { name: &tensor.name, matrix, values: &mut tensor.values, state: &mut taken.state });
    }
    allreduce(peers, compression, &mut parts, &mut Scratch::default()).unwrap();
    drop(parts);
    for (tensor, taken) in tensors.iter().zip(taken) {
        ledger.put(&tensor.name, taken.state);
    }
}

pub(crate) fn method(text: &str) -> Compression {
    text.parse().unwrap()
}
