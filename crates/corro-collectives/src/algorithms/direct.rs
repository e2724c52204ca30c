//! Through shared memory: the ranks of one host show their data on a board and take what they need from each other.
//!
//! | collective | what a rank copies or reduces, for data of N bytes on n ranks |
//! | --- | --- |
//! | allreduce, short | publishes N, reduces n x N; one wait |
//! | allreduce, long | publishes N (n-1)/n, reduces its share N/n from all, collects N (n-1)/n |
//! | the same, where ranks may read each other's memory | reduces its share N/n from all, collects N (n-1)/n |
//! | allreduce in the shared area | reduces its share N/n from all and writes it to all; nothing is copied |
//! | the same for tensors in a pool | as in the shared area |
//! | broadcast | the root publishes N, the others copy N |
//! | allgather, alltoall | publishes its part, copies the others' |
//! | reducescatter | publishes N (n-1)/n, reduces its share from all |
//!
//! Every value is reduced by one rank, or by all of them in the same order, so all end with the same bits; 16-bit floats
//! are summed in 32 bits and rounded once. Long data passes through the board in slots that stay in the cache, several
//! rounds at once. `corro_transport::Team` states the one rule about rounds that makes this safe.

use std::ops::Range;
use std::time::Duration;

use corro_core::shape::share;
use corro_core::{DType, Result};
use corro_transport::{Pooled, Source, Span, Target, Team};

use crate::executor::Arithmetic;
use crate::pieces::{Fragment, Pieces, Tensor};

/// From this many bytes on, private data is read where it is, if members can and each has a core: 15 to 30 %
/// faster than through the board. Where ranks outnumber cores the board is faster.
const PEEK_FROM: usize = 4 << 20;

/// And up to this many. What is longer comes from main memory: the kernel then has to look up and fetch page after page,
/// which on the small pages that frameworks use takes 1.5 times as long as the board.
const PEEK_TO: usize = 32 << 20;

/// Bytes of a rank's share that are reduced before the others may have them.
const PEEK_STAGE: usize = 1024 << 10;

/// Bytes read at once from another's memory: few system calls, yet still in the cache when they are reduced.
const PEEK_BLOCK: usize = 256 << 10;

/// From this many bytes on, members first tell each other whether their tensors lie in a pool. That takes a wait of about
/// a microsecond, so it must be worth it for those who have none.
const POOLED_FROM: usize = 1 << 20;

/// From this many bytes on, a result that goes elsewhere than to its input's place is written past the caches. It would push
/// everything else out of them, and be pushed out itself before anybody reads it.
const STREAM_FROM: usize = 16 << 20;

/// Up to this many bytes over all ranks, everyone reduces everything: cheaper than a second wait.
const SHORT_TOTAL: usize = 128 << 10;

/// Reduces `pieces` over the team, in place.
pub(crate) fn allreduce(
    team: &mut Team,
    pieces: &mut Pieces<'_, '_>,
    how: Arithmetic,
    scratch: &mut Vec<u8>,
    timeout: Duration,
) -> Result<()> {
    let bytes = pieces.len();
    if bytes >= POOLED_FROM {
        let place = pieces.all_in_place().and_then(|places| team.find_in_pool(places));
        let mark = place.as_ref().map_or(0, Pooled::mark);
        let shown = team.show(&[mark, 0], timeout)?;
        let alike = team.others().all(|m| team.shown(m, shown)[0] == mark);
        if let Some(place) = place.filter(|_| alike) {
            return allreduce_pooled(team, pieces, &place, how, timeout);
        }
    }
    if (PEEK_FROM..=PEEK_TO).contains(&bytes)
        && team.can_peek()
        && team.may_spin()
        && let Some(tensor) = pieces.single()
    {
        return allreduce_peeking(team, tensor, how, scratch, timeout);
    }
    if bytes * team.size() <= SHORT_TOTAL && bytes <= team.slot_bytes() {
        allreduce_short(team, pieces, how, timeout)
    } else {
        allreduce_long(team, pieces, how, timeout)
    }
}

pub(crate) fn allreduce_short(
    team: &mut Team,
    pieces: &mut Pieces<'_, '_>,
    how: Arithmetic,
    timeout: Duration,
) -> Result<()> {
    let bytes = pieces.len();
    let round = team.next_round(timeout)?;
    pieces.read(0..bytes, |at, part| team.write(team.slot(team.me(), round, at, part.len()), part));
    team.publish(round);
    team.wait_all_published(round, timeout)?;
    pieces.write(0..bytes, |at, part| {
        let len = part.len();
        reduce_shown(team, how, Target::Private(part), &[], |m| Source::Shared(team.slot(m, round, at, len)));
    });
    Ok(())
}

/// What all members show, in the order of members, times the factor, goes to `target` and `copies`.
pub(crate) fn reduce_shown<'a>(
    team: &Team,
    how: Arithmetic,
    target: Target<'_>,
    copies: &[Span<'_>],
    source: impl Fn(usize) -> Source<'a>,
) {
    let mut few = [Source::Target; 16];
    if let Some(few) = few.get_mut(..team.size()) {
        few.iter_mut().enumerate().for_each(|(m, s)| *s = source(m));
        team.reduce(how.op, how.dtype, target, copies, few, how.factor);
    } else {
        let many: Vec<_> = (0..team.size()).map(source).collect();
        team.reduce(how.op, how.dtype, target, copies, &many, how.factor);
    }
}

/// What this member brings, of which the result goes to the target.
fn brought(input: Option<&[u8]>) -> Source<'_> {
    input.map_or(Source::Target, Source::Private)
}

/// Three stages at once: while block `s` is published, block `s - 1` is reduced and block `s - 2` collected.
fn allreduce_long(team: &mut Team, pieces: &mut Pieces<'_, '_>, how: Arithmetic, timeout: Duration) -> Result<()> {
    let (n, me) = (team.size(), team.me());
    let blocks: Vec<Range<usize>> = blocks(pieces.len(), team.slot_bytes()).collect();
    let mut rounds = Vec::with_capacity(blocks.len());
    let share_of = |block: &Range<usize>, m| element_share(block.len(), n, m, how.dtype);
    let streams = pieces.len() >= STREAM_FROM && pieces.all_apart();
    for stage in 0..blocks.len() + 2 {
        if let Some(block) = blocks.get(stage) {
            let round = team.next_round(timeout)?;
            rounds.push(round);
            // What others reduce of this block; this rank's own share is read where it is.
            let mine = share_of(block, me);
            for part in [0..mine.start, mine.end..block.len()] {
                let from = block.start + part.start..block.start + part.end;
                pieces.read(from, |at, bytes| {
                    team.write(team.slot(me, round, part.start + at, bytes.len()), bytes);
                });
            }
            team.publish(round);
        }
        if let Some(block) = stage.checked_sub(1).and_then(|s| blocks.get(s)) {
            let round = rounds[stage - 1];
            team.wait_all_published(round, timeout)?;
            let mine = share_of(block, me);
            let mut at = mine.start;
            pieces.update(block.start + mine.start..block.start + mine.end, |Fragment { input, place, .. }| {
                // The result goes to its place and onto the board at once.
                let len = place.len();
                let slot = |m: usize| team.slot(m, round, at, len);
                let source = |m: usize| if m == me { brought(input) } else { Source::Shared(slot(m)) };
                if streams {
                    reduce_shown(team, how, Target::Shared(slot(me)), &[], source);
                    team.stream(slot(me), place);
                } else {
                    reduce_shown(team, how, Target::Private(place), &[slot(me)], source);
                }
                at += len;
            });
            team.mark_reduced(round);
        }
        if let Some(block) = stage.checked_sub(2).and_then(|s| blocks.get(s)) {
            let round = rounds[stage - 2];
            for m in team.others() {
                team.wait_reduced(m, round, timeout)?;
                let theirs = share_of(block, m);
                pieces.write(block.start + theirs.start..block.start + theirs.end, |at, bytes| {
                    let result = team.slot(m, round, theirs.start + at, bytes.len());
                    if streams { team.stream(result, bytes) } else { team.read(result, bytes) }
                });
            }
        }
    }
    Ok(())
}

/// Without the board: each rank reads its share from the others' private memory, and then their shares of the result.
///
/// Stage by stage: a rank reduces its share of stage s, marks it, and takes the others' shares of stage s - 1. It takes a
/// share only after its owner has marked it, which is after the owner has read this rank's old bytes there. Nobody
/// returns before all have taken everything.
fn allreduce_peeking(
    team: &mut Team,
    tensor: &mut Tensor<'_>,
    how: Arithmetic,
    scratch: &mut Vec<u8>,
    timeout: Duration,
) -> Result<()> {
    let (n, me) = (team.size(), team.me());
    scratch.resize(PEEK_BLOCK * n, 0);
    // Where this rank's data is, and where its share of the result will be.
    let addresses = [tensor.brought().as_ptr() as u64, tensor.place().as_ptr() as u64];
    let shown = team.show(&addresses, timeout)?;
    let (data_of, result_of): (Vec<u64>, Vec<u64>) = (0..n).map(|m| team.shown(m, shown)).map(|a| (a[0], a[1])).unzip();
    let stages: Vec<Range<usize>> = blocks(tensor.len(), PEEK_STAGE * n).collect();
    let share_of = |stage: &Range<usize>, m: usize| {
        let share = element_share(stage.len(), n, m, how.dtype);
        stage.start + share.start..stage.start + share.end
    };
    let first = team.take_rounds(stages.len() as u32 + 1);
    for s in 0..=stages.len() {
        if let Some(stage) = stages.get(s) {
            for block in blocks_of(share_of(stage, me), PEEK_BLOCK) {
                for m in team.others() {
                    team.peek(m, data_of[m] + block.start as u64, &mut scratch[m * PEEK_BLOCK..][..block.len()])?;
                }
                let (input, place) = tensor.part(block.clone());
                reduce_shown(team, how, Target::Private(place), &[], |m| {
                    if m == me { brought(input) } else { Source::Private(&scratch[m * PEEK_BLOCK..][..block.len()]) }
                });
            }
            team.mark_reduced(first.wrapping_add(s as u32));
        }
        if let Some(before) = s.checked_sub(1) {
            for m in team.others() {
                team.wait_reduced(m, first.wrapping_add(before as u32), timeout)?;
                let theirs = share_of(&stages[before], m);
                team.peek(m, result_of[m] + theirs.start as u64, &mut tensor.place()[theirs])?;
            }
        }
    }
    let last = first.wrapping_add(stages.len() as u32);
    team.publish(last);
    team.wait_all_published(last, timeout)
}

/// Reduces tensors that lie at the same places of a pool on all members, who have all come: each reduces its share and
/// writes it to everyone.
fn allreduce_pooled(
    team: &mut Team,
    pieces: &mut Pieces<'_, '_>,
    place: &Pooled,
    how: Arithmetic,
    timeout: Duration,
) -> Result<()> {
    let (n, me) = (team.size(), team.me());
    let mut others = Vec::with_capacity(n - 1);
    pieces.update(element_share(pieces.len(), n, me, how.dtype), |mine| {
        let len = mine.place.len();
        let part = |m: usize| team.pooled(place, m, mine.tensor, mine.from, len);
        others.clear();
        others.extend(team.others().map(part));
        reduce_shown(team, how, Target::Private(mine.place), &others, |m| {
            if m == me { Source::Target } else { Source::Shared(part(m)) }
        });
    });
    // Nobody goes on before all have written what is theirs to reduce.
    team.barrier(timeout)
}

/// Reduces a part of the shared area, where everyone's data already is, in place in all members' areas.
pub(crate) fn allreduce_area(team: &mut Team, range: &Range<usize>, how: Arithmetic, timeout: Duration) -> Result<()> {
    team.barrier(timeout)?;
    let (me, mine) = (team.me(), element_share(range.len(), team.size(), team.me(), how.dtype));
    let part = |m: usize| team.area_of(m, range.start + mine.start, mine.len());
    let others: Vec<Span<'_>> = team.others().map(part).collect();
    reduce_spans(team, how, me, &others, part);
    team.barrier(timeout)
}

/// Reduces the same part of everyone's shared memory into that of `owner`, and into `copies`.
pub(crate) fn reduce_spans<'a>(
    team: &Team,
    how: Arithmetic,
    owner: usize,
    copies: &[Span<'_>],
    part: impl Fn(usize) -> Span<'a>,
) {
    reduce_shown(team, how, Target::Shared(part(owner)), copies, |m| {
        if m == owner { Source::Target } else { Source::Shared(part(m)) }
    });
}

/// `data` of `root` becomes everyone's.
pub(crate) fn broadcast(team: &mut Team, root: usize, data: &mut [u8], timeout: Duration) -> Result<()> {
    let me = team.me();
    for block in blocks(data.len(), team.slot_bytes()) {
        let round = team.next_round(timeout)?;
        if me == root {
            team.write(team.slot(me, round, 0, block.len()), &data[block]);
            team.publish(round);
        } else {
            team.publish(round);
            team.wait_published(root, round, timeout)?;
            team.read(team.slot(root, round, 0, block.len()), &mut data[block]);
        }
    }
    Ok(())
}

/// Member m's bytes come to `places[m]` of everyone's `output`. This member's own are there already.
pub(crate) fn allgather(team: &mut Team, places: &[Range<usize>], output: &mut [u8], timeout: Duration) -> Result<()> {
    let me = team.me();
    let slot = team.slot_bytes();
    let rounds = places.iter().map(|p| p.len().div_ceil(slot)).max().unwrap_or(0);
    let part = |m: usize, k: usize| {
        let from = places[m].start + (k * slot).min(places[m].len());
        from..(from + slot).min(places[m].end)
    };
    let mut shown = 0;
    // Publish round k, then read round k - 1: the others have had time to publish that one.
    for k in 0..=rounds {
        let before = shown;
        if k < rounds {
            shown = team.next_round(timeout)?;
            let mine = part(me, k);
            team.write(team.slot(me, shown, 0, mine.len()), &output[mine]);
            team.publish(shown);
        }
        if k > 0 {
            for m in team.others() {
                let theirs = part(m, k - 1);
                team.wait_published(m, before, timeout)?;
                team.read(team.slot(m, before, 0, theirs.len()), &mut output[theirs]);
            }
        }
    }
    Ok(())
}

/// Slots cut into one compartment per reader, for collectives that give each member something else.
struct Compartments {
    bytes: usize,
}

impl Compartments {
    fn of(team: &Team) -> Self {
        // Whole cache lines, and so whole elements. A team so large that a slot has no line for each takes more rounds.
        Self { bytes: (team.slot_bytes() / team.size() / 64 * 64).max(64) }
    }

    /// The k-th part of `range` that fits a compartment.
    fn part(&self, range: &Range<usize>, k: usize) -> Range<usize> {
        let from = range.start + (k * self.bytes).min(range.len());
        from..(from + self.bytes).min(range.end)
    }

    fn rounds(&self, lengths: impl Iterator<Item = usize>) -> usize {
        lengths.map(|l| l.div_ceil(self.bytes)).max().unwrap_or(0)
    }
}

/// Shows the k-th part of each reader's range of `input` in its compartment; one's own is not shown.
fn show_parts(
    team: &mut Team,
    c: &Compartments,
    input: &[u8],
    out: &[Range<usize>],
    k: usize,
    timeout: Duration,
) -> Result<u32> {
    let round = team.next_round(timeout)?;
    for m in team.others() {
        let part = c.part(&out[m], k);
        team.write(team.slot(team.me(), round, m * c.bytes, part.len()), &input[part]);
    }
    team.publish(round);
    Ok(round)
}

/// `out[m]` of the input goes to member m; what m has for this one comes to `into[m]` of the output.
/// `longest` is the longest such part between any two members, which all must know alike.
pub(crate) fn alltoall(
    team: &mut Team,
    input: &[u8],
    out: &[Range<usize>],
    output: &mut [u8],
    into: &[Range<usize>],
    longest: usize,
    timeout: Duration,
) -> Result<()> {
    let c = Compartments::of(team);
    let me = team.me();
    output[into[me].clone()].copy_from_slice(&input[out[me].clone()]);
    let rounds = c.rounds(std::iter::once(longest));
    let mut shown = 0;
    for k in 0..=rounds {
        let before = shown;
        if k < rounds {
            shown = show_parts(team, &c, input, out, k, timeout)?;
        }
        if k > 0 {
            for m in team.others() {
                let part = c.part(&into[m], k - 1);
                team.wait_published(m, before, timeout)?;
                team.read(team.slot(m, before, me * c.bytes, part.len()), &mut output[part]);
            }
        }
    }
    Ok(())
}

/// `output` = the reduction of everyone's `input[chunks[me]]`.
pub(crate) fn reducescatter(
    team: &mut Team,
    input: &[u8],
    chunks: &[Range<usize>],
    output: &mut [u8],
    how: Arithmetic,
    timeout: Duration,
) -> Result<()> {
    let c = Compartments::of(team);
    let me = team.me();
    let rounds = c.rounds(chunks.iter().map(ExactSizeIterator::len));
    let mut shown = 0;
    for k in 0..=rounds {
        let before = shown;
        if k < rounds {
            shown = show_parts(team, &c, input, chunks, k, timeout)?;
        }
        if k > 0 {
            let part = c.part(&chunks[me], k - 1);
            team.wait_all_published(before, timeout)?;
            let target = &mut output[part.start - chunks[me].start..part.end - chunks[me].start];
            let len = target.len();
            reduce_shown(team, how, Target::Private(target), &[], |m| {
                if m == me {
                    Source::Private(&input[part.clone()])
                } else {
                    Source::Shared(team.slot(m, before, me * c.bytes, len))
                }
            });
        }
    }
    Ok(())
}

/// `len` bytes cut into blocks of `size`.
fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    blocks_of(0..len, size)
}

pub(crate) fn blocks_of(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(size).map(move |start| start..(start + size).min(end))
}

/// The share of `bytes` bytes that member `m` of `n` reduces: whole elements.
pub(crate) fn element_share(bytes: usize, n: usize, m: usize, dtype: DType) -> Range<usize> {
    let elements = share(bytes / dtype.size(), n, m);
    elements.start * dtype.size()..elements.end * dtype.size()
}
