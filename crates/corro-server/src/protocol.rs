//! What servers and workers tell each other about: who, which key, what kind of key, and how far workers may drift apart.

use std::sync::Arc;

use corro_core::{DType, Error, Result};
use serde::{Deserialize, Serialize};

macro_rules! positions {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The first one.
            pub const FIRST: Self = Self(0);

            /// All of so many.
            pub fn all(count: u32) -> impl DoubleEndedIterator<Item = Self> + Clone {
                (0..count).map(Self)
            }

            /// As an index into a list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        /// The bare number, as in lists of them.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

positions! {
    /// A worker: its position in the process set that the store is for.
    WorkerId;
    /// A server: its position in the store's list of servers.
    ServerId;
}

/// Bytes that several may hold, and nobody changes.
pub type Payload = Arc<Vec<u8>>;

/// The longest part of a key, in bytes: the longest payload is a little longer (row numbers, optimizer state).
pub const MAX_PART_BYTES: usize = 4 << 20;
/// The most workers of a store.
pub const MAX_WORKERS: u32 = 1 << 16;
/// The most servers of a store.
pub const MAX_SERVERS: usize = 1 << 12;

/// One part of what a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// [`name_id`] of the name.
    pub name: u64,
    /// Which part.
    pub part: u32,
}

/// A name as a number, the same in every process. Servers keep the names too, and notice if two have the same number.
pub fn name_id(name: &str) -> u64 {
    // FNV-1a, then a mixer: names often differ in their last letter only.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// How far workers may drift apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// Rounds: what is read has this round's push of every worker in it, added in the order of workers, and no other.
    Bsp,
    /// A read at clock c has every push of every worker up to clock c - `bound`, and all of the reader's own.
    Ssp {
        /// How many clocks the fastest may be ahead of the slowest when it begins a step.
        bound: u64,
    },
    /// Nobody waits for anybody.
    Async {
        /// Whether an update that was computed from a value d versions ago is scaled by 1 / (1 + d).
        staleness_lr: bool,
    },
}

/// What a push does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// The value is the sum of the round's pushes. The server keeps nothing that workers do not have: for [`Consistency::Bsp`].
    Sum,
    /// The same, divided by how many have pushed.
    Average,
    /// It is added to the value.
    Add,
    /// It is a gradient: the server's optimizer updates the value with it (in rounds, with their average).
    Update,
}

impl Rule {
    /// Whether the server has something that would be lost with it.
    pub const fn owns(self) -> bool {
        matches!(self, Self::Add | Self::Update)
    }

    /// Whether this rule makes sense with that consistency.
    pub fn fits(self, consistency: Consistency) -> Result<()> {
        if self.owns() || consistency == Consistency::Bsp {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the rule {self:?} sums one push of every worker, and with {consistency:?} there are no rounds: use the rule add, \
             or an optimizer on the server"
        )))
    }
}

/// The shape of one part: rows of equal width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Of each element.
    pub dtype: DType,
    /// How many rows.
    pub rows: u64,
    /// Elements of a row.
    pub width: u32,
}

impl Layout {
    /// How many elements; an error if that is more than a part may have.
    pub fn elements(&self) -> Result<usize> {
        let elements = self.rows.checked_mul(u64::from(self.width)).and_then(|n| usize::try_from(n).ok());
        match elements.and_then(|n| n.checked_mul(self.dtype.size()).map(|bytes| (n, bytes))) {
            Some((elements, bytes)) if bytes <= MAX_PART_BYTES => Ok(elements),
            _ => Err(Error::Malformed(format!(
                "a part of {} x {} {} is longer than {MAX_PART_BYTES} bytes",
                self.rows,
                self.width,
                self.dtype.name()
            ))),
        }
    }

    /// How many bytes.
    pub fn bytes(&self) -> Result<usize> {
        Ok(self.elements()? * self.dtype.size())
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.dtype.size()
    }
}
