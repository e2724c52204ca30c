//! Memory that the ranks of one host share for as long as they like. A tensor that lives there is reduced without a copy:
//! its peers read and write it where it is.
//!
//! Every member has a part of the pool, and the parts are of one size. A pool has no counters of its own: a [`Team`] whose
//! members are those of the pool says when a peer may touch what. So it outlives the teams that work with it.
//!
//! [`Team`]: super::team::Team

#![expect(unsafe_code, reason = "gives memory shared with other processes to the program")]

use std::sync::{Arc, PoisonError, RwLock, Weak};

use corro_core::{Buffer, GroupId, Rank};

use super::segment::Segment;

/// See the module.
pub(crate) struct Pool {
    pub(crate) segment: Arc<Segment>,
    /// The same on all members, and no other pool's.
    pub(crate) id: GroupId,
    /// Who the members are.
    pub(crate) ranks: Vec<Rank>,
    /// Which of them this is.
    pub(crate) me: usize,
}

impl Pool {
    /// A pool, and this member's part of it, which begins with zeros. The part is given out here and nowhere else, since
    /// two buffers of the same memory would each think that it is theirs alone.
    pub(crate) fn new(segment: Arc<Segment>, id: GroupId, ranks: Vec<Rank>, me: usize) -> (Arc<Self>, Buffer) {
        let pool = Arc::new(Self { segment, id, ranks, me });
        let len = pool.segment.sizes().area;
        let at = pool.segment.area(me, 0, len);
        // SAFETY: `area` has checked that these bytes are in the mapping, which lives as long as the pool, and the buffer keeps
        // that. In this process nobody else has them: this is the only buffer made of them, and nothing but the areas is used
        // of a pool's segment. Other members' processes map them too, but touch them only within a collective that this
        // member takes part in with that very memory: after their team's counters have said that it has come, and before
        // these say to it that all are done. Meanwhile each member writes its own share only.
        let part = unsafe { Buffer::from_raw(at, len, Box::new(Arc::clone(&pool))) };
        (pool, part)
    }

    /// Where in this member's part `bytes` lie, if they do.
    fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let len = self.segment.sizes().area;
        let offset = bytes.as_ptr().addr().checked_sub(self.segment.area(self.me, 0, len).addr())?;
        (offset < len && bytes.len() <= len - offset).then_some(offset)
    }
}

/// The pools that this rank has, as its teams see them.
#[derive(Default)]
pub(crate) struct Pools(RwLock<Vec<Weak<Pool>>>);

impl Pools {
    pub(crate) fn add(&self, pool: &Arc<Pool>) {
        let mut pools = self.0.write().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Where all of `pieces` lie, if that is one pool of exactly these ranks.
    pub(crate) fn find<'a>(
        &self,
        ranks: &(impl Iterator<Item = Rank> + Clone),
        mut pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Pooled> {
        let pools = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if pools.is_empty() {
            return None;
        }
        let first = pieces.next()?;
        let pool = pools
            .iter()
            .filter_map(Weak::upgrade)
            .find(|pool| pool.offset_of(first).is_some() && pool.ranks.iter().copied().eq(ranks.clone()))?;
        let offsets = std::iter::once(first).chain(pieces).map(|piece| pool.offset_of(piece));
        let offsets = offsets.collect::<Option<Vec<_>>>()?;
        Some(Pooled { pool, offsets })
    }
}

/// Tensors that lie in a pool.
pub struct Pooled {
    pub(crate) pool: Arc<Pool>,
    /// Where each begins.
    offsets: Vec<usize>,
}

impl Pooled {
    /// A number that tells places apart, and is not 0. Members that show the same one have their tensors at the same places.
    pub fn mark(&self) -> u64 {
        // FNV-1a.
        let mix = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        let all = self.offsets.iter().fold(mix(0xcbf2_9ce4_8422_2325, self.pool.id.0), |h, at| mix(h, *at as u64));
        all | 1
    }

    /// Where the tensor of this number begins in each member's part.
    pub fn offset(&self, tensor: usize) -> usize {
        self.offsets[tensor]
    }
}
