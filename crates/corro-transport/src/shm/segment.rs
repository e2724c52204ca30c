//! A piece of memory that several ranks of one host map, and what lies where in it.
//!
//! Owns the mapping. Hands out atomics (for counters) and checked raw pointers (for payload), never a reference into
//! payload: another process may write there at any time, and only the counters say when it won't. Whoever makes a reference
//! from such a pointer must show that nobody writes to *those bytes* while it lives: `Team::area`, `Team::workspace` and
//! `Pool::new` do, and nobody else.
//!
//! The memory is a `memfd`: it has no name in any file system, is not limited by the size of `/dev/shm`, and is gone
//! with the last process that maps it, however that process ends. Its size is sealed: a process that shrank it would make
//! all others die of SIGBUS.
//!
//! ```text
//! header page      poison
//! per member:      control page    published, reduced, sleepers, state
//!                  slots           SLOTS x slot_bytes: what the board shows (see `team`)
//!                  rings           one per member, for byte streams from this member to that one (see `ring`)
//!                  area            the fusion buffer, or whatever else the caller shares
//!                  workspace       where hierarchical collectives put what goes between hosts
//! ```
//! Pages cost memory only once touched, so rings and areas that nobody uses are free.

#![expect(unsafe_code, reason = "maps memory and computes addresses in it")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use corro_core::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Slots of a member's board; `team` explains the number.
pub(crate) const SLOTS: usize = 5;

/// What nobody can do any more to memory that was handed over.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Bytes kept for the control words of one member, and for the header.
const PAGE: usize = 4096;

/// Words that must not share a cache line stand this far apart (the adjacent-line prefetcher pulls lines in pairs).
const LINE: usize = 128;

/// Sizes of the parts, equal for all members of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// How many ranks share the segment.
    pub(crate) members: usize,
    /// Bytes of one slot of the board.
    pub(crate) slot: usize,
    /// Bytes of one ring, a power of two.
    pub(crate) ring: usize,
    /// Bytes of a member's area.
    pub(crate) area: usize,
    /// Bytes of a member's workspace.
    pub(crate) workspace: usize,
}

impl Sizes {
    /// The sizes used in production: slots that stay in a core's second-level cache together, rings that hold a few
    /// pieces, an area of `area` bytes, and a workspace for three windows of 2 MiB.
    pub(crate) fn for_team(members: usize, area: usize) -> Self {
        // An area that long is refused by `total`.
        let area = area.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        Self { members, slot: 256 << 10, ring: 256 << 10, area, workspace: 6 << 20 }
    }

    fn ring_stride(&self) -> usize {
        crate::ring::CONTROL_BYTES + self.ring
    }

    fn rings_offset(&self) -> usize {
        PAGE + SLOTS * self.slot
    }

    fn area_offset(&self) -> usize {
        (self.rings_offset() + self.members * self.ring_stride()).next_multiple_of(PAGE)
    }

    fn member_stride(&self) -> usize {
        self.workspace_offset() + self.workspace
    }

    fn workspace_offset(&self) -> usize {
        self.area_offset() + self.area
    }

    /// All bytes; `None` if that is more than an address can tell apart. Every offset above is a part of this sum, so where
    /// this one does not overflow, none does: a segment exists only if this is `Some`.
    fn total(&self) -> Option<usize> {
        let slots = self.slot.checked_mul(SLOTS)?.checked_add(PAGE)?;
        let ring = crate::ring::CONTROL_BYTES.checked_add(self.ring)?;
        let area_offset = ring.checked_mul(self.members)?.checked_add(slots)?.checked_next_multiple_of(PAGE)?;
        let stride = area_offset.checked_add(self.area)?.checked_add(self.workspace)?;
        let total = stride.checked_mul(self.members)?.checked_add(PAGE)?;
        isize::try_from(total).is_ok().then_some(total)
    }
}

/// A counter of a member that others wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlWord {
    /// The last round this member has put on its board.
    Published,
    /// The last round whose share this member has reduced.
    Reduced,
    /// [`ControlWord::Published`]'s sleepers: how many ranks sleep on it.
    PublishedSleepers,
    /// [`ControlWord::Reduced`]'s sleepers.
    ReducedSleepers,
    /// 0 while the member takes part, 1 once it has left.
    State,
    /// The core on which this member last waited, plus 1; 0 if it never did.
    Core,
    /// The member's process id.
    Process,
}

impl ControlWord {
    const fn offset(self) -> usize {
        LINE * match self {
            Self::Published => 0,
            Self::Reduced => 1,
            Self::PublishedSleepers => 2,
            Self::ReducedSleepers => 3,
            Self::State => 4,
            Self::Core => 5,
            Self::Process => 6,
        }
    }

    pub(crate) const fn sleepers(self) -> Self {
        match self {
            Self::Reduced | Self::ReducedSleepers => Self::ReducedSleepers,
            _ => Self::PublishedSleepers,
        }
    }
}

/// The mapped memory.
pub(crate) struct Segment {
    base: *mut u8,
    bytes: usize,
    sizes: Sizes,
}

// SAFETY: the mapping is plain memory that stays valid until drop; all shared access goes through atomics or through
// raw pointers whose users state who may touch what when.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New zeroed memory of these sizes, and the descriptor by which other processes map it.
    pub(crate) fn create(sizes: Sizes) -> Result<(Self, OwnedFd)> {
        let bytes = Self::total(sizes)?;
        let fd = rustix::fs::memfd_create("corro", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::io("creating shared memory", e))?;
        rustix::fs::ftruncate(&fd, bytes as u64)
            .map_err(|e| Error::io(format!("reserving {bytes} bytes of shared memory"), e))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| Error::io("sealing the size of shared memory", e))?;
        Ok((Self::map(fd.as_fd(), sizes)?, fd))
    }

    /// Maps memory another process created. Its size is checked against `sizes`, and that it can't change any more, so no
    /// access can leave it.
    pub(crate) fn attach(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(fd).map_err(|e| Error::io("looking at shared memory", e))?;
        if !sealed.contains(SEALS) {
            return Err(Error::Malformed(
                "the shared memory that a rank of this host handed over could be resized".into(),
            ));
        }
        let there = rustix::fs::fstat(fd).map_err(|e| Error::io("looking at shared memory", e))?.st_size;
        let wanted = Self::total(sizes)?;
        if usize::try_from(there) != Ok(wanted) {
            return Err(Error::Mismatch(format!(
                "the shared memory has {there} bytes where this rank expects {wanted}: set the same CORRO_FUSION_THRESHOLD on every rank"
            )));
        }
        Self::map(fd, sizes)
    }

    fn total(sizes: Sizes) -> Result<usize> {
        sizes.total().ok_or_else(|| Error::Usage(format!("shared memory for {sizes:?} would not fit any machine")))
    }

    fn map(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<Self> {
        let bytes = Self::total(sizes)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours; the file is at least
        // `bytes` long (created so, or checked in `attach`), and its size is sealed.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )
        }
        .map_err(|e| Error::io(format!("mapping {bytes} bytes of shared memory"), e))?
        .cast::<u8>();
        // Fewer page faults and TLB misses where the system allows it; where it does not, nothing is lost.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
        Ok(Self { base, bytes, sizes })
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What `member` said it is doing in `round`; on the same cache line as the round itself, so that reading it is free.
    /// Four rounds are kept: nobody gets further ahead of a rank that still looks.
    pub(crate) fn signature(&self, member: usize, round: u32) -> &AtomicU64 {
        let offset = self.member_offset(member) + ControlWord::Published.offset() + 8 + 8 * (round as usize % 4);
        // SAFETY: aligned to 8, inside the control page, and only ever accessed atomically.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    /// The word that is not zero once somebody declared this team dead: the culprit's rank + 1.
    pub(crate) fn poison(&self) -> &AtomicU32 {
        self.atomic(0)
    }

    pub(crate) fn word(&self, member: usize, word: ControlWord) -> &AtomicU32 {
        self.atomic(self.member_offset(member) + word.offset())
    }

    /// Where `len` bytes at `start` of slot number `slot` of `member` are.
    pub(crate) fn slot(&self, member: usize, slot: usize, start: usize, len: usize) -> *mut u8 {
        assert!(slot < SLOTS && start <= self.sizes.slot && len <= self.sizes.slot - start, "outside the slot");
        self.at(self.member_offset(member) + PAGE + slot * self.sizes.slot + start)
    }

    /// Where `len` bytes at `start` of the area of `member` are.
    pub(crate) fn area(&self, member: usize, start: usize, len: usize) -> *mut u8 {
        assert!(start <= self.sizes.area && len <= self.sizes.area - start, "outside the area");
        self.at(self.member_offset(member) + self.sizes.area_offset() + start)
    }

    /// Where `len` bytes at `start` of the workspace of `member` are.
    pub(crate) fn workspace(&self, member: usize, start: usize, len: usize) -> *mut u8 {
        let there = self.sizes.workspace;
        assert!(start <= there && len <= there - start, "outside the workspace");
        self.at(self.member_offset(member) + self.sizes.workspace_offset() + start)
    }

    /// Where the ring that leads from one member to another begins, with its control words.
    pub(crate) fn ring(&self, from: usize, to: usize) -> *mut u8 {
        assert!(to < self.sizes.members, "no such member");
        self.at(self.member_offset(from) + self.sizes.rings_offset() + to * self.sizes.ring_stride())
    }

    fn member_offset(&self, member: usize) -> usize {
        assert!(member < self.sizes.members, "no such member");
        PAGE + member * self.sizes.member_stride()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes, "offset outside the segment");
        // SAFETY: every caller checked that `offset` lies inside the mapping.
        unsafe { self.base.add(offset) }
    }

    fn atomic(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: control words lie at multiples of LINE inside the mapping and are only ever accessed atomically, by
        // every process that maps them.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing that points into it outlives the segment.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let sizes = Sizes { members: 3, slot: 8192, ring: 4096, area: 4096, workspace: 4096 };
        let (segment, _fd) = Segment::create(sizes).unwrap();
        let mut starts = Vec::new();
        for m in 0..3 {
            for s in 0..SLOTS {
                starts.push((segment.slot(m, s, 0, 8192) as usize, 8192));
            }
            for to in 0..3 {
                starts.push((segment.ring(m, to) as usize, sizes.ring_stride()));
            }
            starts.push((segment.area(m, 0, 4096) as usize, 4096));
            starts.push((segment.workspace(m, 0, 4096) as usize, 4096));
            starts.push((segment.word(m, ControlWord::Published).as_ptr() as usize, 7 * LINE));
        }
        starts.push((segment.poison().as_ptr() as usize, 4));
        starts.sort_unstable();
        assert!(starts.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{starts:?}");
        let end = starts.last().unwrap();
        assert!(end.0 + end.1 <= segment.base as usize + segment.bytes);
    }

    #[test]
    fn a_second_mapping_sees_the_same_memory() {
        let sizes = Sizes { members: 2, slot: 4096, ring: 4096, area: 0, workspace: 0 };
        let (one, fd) = Segment::create(sizes).unwrap();
        let two = Segment::attach(fd.as_fd(), sizes).unwrap();
        one.word(1, ControlWord::Reduced).store(7, Ordering::Release);
        assert_eq!(two.word(1, ControlWord::Reduced).load(Ordering::Acquire), 7);
        assert!(Segment::attach(fd.as_fd(), Sizes { area: 8192, ..sizes }).is_err());
    }

    #[test]
    fn nobody_can_change_its_size() {
        let sizes = Sizes { members: 2, slot: 4096, ring: 4096, area: 0, workspace: 0 };
        let (segment, fd) = Segment::create(sizes).unwrap();
        for bytes in [0, segment.bytes - 1, segment.bytes + 1] {
            assert_eq!(rustix::fs::ftruncate(&fd, bytes as u64), Err(rustix::io::Errno::PERM), "{bytes}");
        }
        let open = rustix::fs::memfd_create("corro", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, segment.bytes as u64).unwrap();
        assert!(matches!(Segment::attach(open.as_fd(), sizes), Err(Error::Malformed(_))));
    }

    #[test]
    fn sizes_beyond_all_memory_are_refused() {
        let fits = Sizes::for_team(4, 1 << 20);
        let huge = [usize::MAX, usize::MAX - PAGE, isize::MAX as usize, isize::MAX as usize / 4, usize::MAX / 4 + 1];
        let variants: [fn(Sizes, usize) -> Sizes; 5] = [
            |s, n| Sizes { members: n, ..s },
            |s, n| Sizes { slot: n, ..s },
            |s, n| Sizes { ring: n, ..s },
            |s, n| Sizes { area: n, ..s },
            |s, n| Sizes { workspace: n, ..s },
        ];
        for bytes in huge {
            assert!(matches!(Segment::create(Sizes::for_team(4, bytes)), Err(Error::Usage(_))), "{bytes:#x}");
            for variant in variants {
                let sizes = variant(fits, bytes);
                assert!(matches!(Segment::create(sizes), Err(Error::Usage(_))), "{sizes:?}");
            }
        }
        assert!(fits.total().is_some());
    }

    #[test]
    #[should_panic(expected = "outside the slot")]
    fn slots_are_checked() {
        let (segment, _fd) =
            Segment::create(Sizes { members: 1, slot: 4096, ring: 4096, area: 0, workspace: 0 }).unwrap();
        segment.slot(0, 0, 4000, 97);
    }
}
