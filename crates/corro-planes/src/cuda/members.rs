//! A piece of memory of each member, of one length, that all of them can reach.

use corro_collectives::Group;
use corro_core::{Error, Rank, Result};
use corro_cuda::sharing::share;
use corro_cuda::{Allocation, Device, Mapping, SharedMemory, Span, Stream};

use crate::exchange::{agree, exchange};
use crate::plane::Verdict;

/// The longest message by which a member names its piece.
const NAME_CAP: usize = 256;

/// See the module.
pub(super) struct Members {
    mine: Allocation,
    /// By member; none for this one.
    theirs: Vec<Option<Mapping>>,
    me: usize,
}

impl Members {
    /// Zeros. All members do this together, and all have it then or none.
    pub(super) fn open(group: &mut Group, members: &[Rank], device: &Device, len: usize) -> Result<Verdict<Self>> {
        let everyone: Vec<usize> = (0..group.size()).collect();
        Self::open_team(group, members, device, len, &everyone)
    }

    /// The same for a part of the members, this one among them, who are numbered by their place in `team`. All members of the
    /// group do this together, each with its own team, and all have it then or none.
    pub(super) fn open_team(
        group: &mut Group,
        members: &[Rank],
        device: &Device,
        len: usize,
        team: &[usize],
    ) -> Result<Verdict<Self>> {
        let mine = match agree(group, members, allocate(device, len))? {
            Ok(mine) => mine,
            Err(why) => return Ok(Err(why)),
        };
        let (allocation, shared) = mine;
        let named = exchange(group, members, &shared, NAME_CAP)?;
        let open = |member: &usize| -> Result<Option<Mapping>> {
            let shared: &SharedMemory = named.get(*member).ok_or_else(|| stranger(*member))?;
            if *member == group.rank() {
                return Ok(None);
            }
            let mapping = Mapping::open(device, shared.handle)?;
            if mapping.span().len() < len {
                return Err(Error::Malformed(format!("rank {} shares too little memory", members[*member])));
            }
            Ok(Some(mapping))
        };
        let theirs: Result<Vec<_>> = team.iter().map(open).collect();
        let me = team.iter().position(|member| *member == group.rank()).ok_or_else(|| stranger(group.rank()))?;
        Ok(agree(group, members, theirs)?.map(|theirs| Self { mine: allocation, theirs, me }))
    }

    /// This member's number.
    pub(super) fn me(&self) -> usize {
        self.me
    }

    /// All members but this one, beginning with the next: so that not all turn to the same one at once.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, all) = (self.me, self.theirs.len());
        (1..all).map(move |distance| (me + distance) % all)
    }

    /// How many members.
    pub(super) fn count(&self) -> usize {
        self.theirs.len()
    }

    /// How many bytes each has.
    pub(super) fn len(&self) -> usize {
        self.mine.span().len()
    }

    /// The GPU of this member.
    pub(super) fn device(&self) -> &Device {
        self.mine.device()
    }

    /// This member's piece.
    pub(super) fn mine(&self) -> Span<'_> {
        self.mine.span()
    }

    /// A member's piece.
    pub(super) fn of(&self, member: usize) -> Result<Span<'_>> {
        match self.theirs.get(member) {
            Some(Some(mapping)) => mapping.span().part(0..self.len()),
            Some(None) => Ok(self.mine()),
            None => Err(stranger(member)),
        }
    }
}

fn stranger(member: usize) -> Error {
    Error::Bug(format!("there is no member {member}"))
}

fn allocate(device: &Device, len: usize) -> Result<(Allocation, SharedMemory)> {
    let allocation = Allocation::new(device, len)?;
    let stream = Stream::new(device)?;
    stream.zero(allocation.span())?;
    stream.synchronize()?;
    let shared = share(device, allocation.span().address())?;
    let shared = shared.ok_or_else(|| Error::Usage("memory of this GPU can't be shared between processes".into()))?;
    Ok((allocation, shared))
}
