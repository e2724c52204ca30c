//! What is remembered of a tensor from one allreduce to the next.

use std::ops::Range;

use corro_core::Compression;
use corro_core::compression::Method;
use corro_core::shape::share;
use serde::{Deserialize, Serialize};

/// Values that share a scale where the scale says nothing but whether they are numbers.
pub(crate) const MAJORITY_BLOCK: usize = 2048;

/// For what a state is: another layout can't go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// How the tensor is compressed.
    pub compression: Compression,
    /// Where in the tensor this rank's part begins.
    pub first: usize,
    /// How many values it has.
    pub len: usize,
    /// How many peers exchange such parts.
    pub peers: usize,
    /// Which of them this is.
    pub me: usize,
    /// How many ranks the sum is over; if it is an average, by how many it is divided.
    pub ranks: usize,
}

/// See the module. The vectors are empty until they are needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// For what it is.
    pub layout: Layout,
    /// How many allreduces it has seen.
    pub steps: u64,
    /// What codes have not said yet of what this peer brought.
    pub(crate) residual: Vec<f32>,
    /// What codes have not said yet of the sum of the chunk that this peer owns.
    pub(crate) owned: Vec<f32>,
    /// DGC: momentum.
    pub(crate) velocity: Vec<f32>,
    /// PowerSGD: where the next one begins; the same on all peers.
    pub(crate) basis: Vec<f32>,
    /// EF21: what the others know of this peer.
    pub(crate) mirror: Vec<f32>,
    /// EF21: the sum of all mirrors; the same on all peers.
    pub(crate) common: Vec<f32>,
    /// Bytes that went out in the batches it was part of, times its values: its share is for the report to work out.
    #[serde(skip)]
    pub(crate) sent: u64,
}

/// Values that are still owed to a sum: from a place in the tensor on.
#[derive(Clone, Debug, PartialEq)]
pub struct Debt {
    /// The place of the first.
    pub first: usize,
    /// What is to be added there.
    pub values: Vec<f32>,
}

impl State {
    /// Nothing is remembered yet.
    pub fn new(layout: Layout) -> Self {
        let none = Vec::new;
        Self {
            layout,
            steps: 0,
            residual: none(),
            owned: none(),
            velocity: none(),
            basis: none(),
            mirror: none(),
            common: none(),
            sent: 0,
        }
    }

    /// What is still owed. Whoever can't go on with this state adds it to what it brings next, and nothing is lost.
    pub fn into_debts(self) -> impl Iterator<Item = Debt> {
        let chunk = chunk(self.layout.len, unit(&self.layout.compression), self.layout.peers, self.layout.me);
        let owned = if self.owned.len() == chunk.len() { self.owned } else { Vec::new() };
        let first = self.layout.first;
        let debts = [Debt { first, values: self.residual }, Debt { first: first + chunk.start, values: owned }];
        debts.into_iter().filter(|debt| !debt.values.is_empty())
    }

    /// Multiplies all that this peer will still bring: for another number of peers.
    pub fn scale(&mut self, factor: f32) {
        self.scale_debts(factor);
        self.velocity.iter_mut().for_each(|value| *value *= factor);
    }

    /// Multiplies what is owed: after a change of the learning rate, since what is owed was meant for the old one. Momentum is
    /// not owed: an optimizer's does not follow the rate either.
    pub fn scale_debts(&mut self, factor: f32) {
        self.residual.iter_mut().chain(&mut self.owned).for_each(|value| *value *= factor);
    }

    /// The norm of what is owed by this peer.
    pub fn residual_norm(&self) -> f64 {
        let squares = self.residual.iter().chain(&self.owned).map(|value| f64::from(*value) * f64::from(*value));
        squares.sum::<f64>().sqrt()
    }

    /// Whether its vectors have the lengths that they must have; states may come from a file.
    pub fn is_sound(&self) -> bool {
        let Layout { compression, first, len, peers, me, ranks } = self.layout;
        let absurd = |number: usize| number > 1 << 40;
        if compression.check().is_err() || me >= peers || [first, len, peers, ranks].into_iter().any(absurd) {
            return false;
        }
        let chunk = chunk(len, unit(&compression), peers, me).len();
        let whole = [&self.residual, &self.velocity, &self.mirror, &self.common];
        whole.into_iter().all(|values| values.is_empty() || values.len() == len)
            && (self.owned.is_empty() || self.owned.len() == chunk)
    }

    /// Forgets what must be the same on all peers.
    pub(crate) fn forget_common(&mut self) {
        self.steps = 0;
        for values in [&mut self.basis, &mut self.mirror, &mut self.common] {
            values.clear();
        }
    }

    /// A stream of random numbers of this tensor: for this step, and, unless it is to be the same for all, this peer.
    pub(crate) fn key(&self, name: &str, whose: Option<usize>) -> u64 {
        let start = mixed(self.layout.compression.seed ^ mixed(self.steps));
        let named = name.bytes().fold(start, |key, byte| mixed(key ^ u64::from(byte)));
        mixed(named ^ whose.map_or(0, |peer| peer as u64 + 1))
    }
}

/// The values of this vector, which has that many; zeros the first time.
pub(crate) fn filled(values: &mut Vec<f32>, len: usize) -> &mut Vec<f32> {
    values.resize(len, 0.0);
    values
}

/// The chunk that a peer owns, of `len` values in blocks of `unit`.
pub(crate) fn chunk(len: usize, unit: usize, peers: usize, peer: usize) -> Range<usize> {
    let blocks = share(len.div_ceil(unit), peers, peer);
    (blocks.start * unit).min(len)..(blocks.end * unit).min(len)
}

/// Values that a code keeps together.
pub(crate) fn unit(compression: &Compression) -> usize {
    match compression.method {
        Method::Majority => MAJORITY_BLOCK,
        _ => compression.block().map_or(1, |block| block as usize),
    }
}

/// A permutation of 64 bits in which every bit of the input moves half of the output (the finish of splitmix64).
pub(crate) fn mixed(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}
