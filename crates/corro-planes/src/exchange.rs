//! A few bytes from each member to all of them, over their host connection.

use corro_collectives::Group;
use corro_core::{Error, Rank, Result, codec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::plane::Verdict;

/// The longest reason for a refusal.
const REASON_CAP: usize = 4096;

/// Tells all members something of at most `cap` bytes, and gives what each has told, in their order. All must call this, at the
/// same place in the order of what they do with the group.
pub fn exchange<T: Serialize + DeserializeOwned>(
    group: &mut Group,
    members: &[Rank],
    mine: &T,
    cap: usize,
) -> Result<Vec<T>> {
    const LENGTH: usize = size_of::<u64>();
    let own = codec::encode(mine)?;
    if own.len() > cap {
        return Err(Error::Bug(format!("{} bytes to tell the others, where {cap} are allowed", own.len())));
    }
    let mut lengths = vec![0; LENGTH * group.size()];
    let counts = vec![LENGTH; group.size()];
    group.allgather_bytes(&(own.len() as u64).to_le_bytes(), &counts, &mut lengths)?;
    let wrong = |member: usize, why: &str| {
        let rank = members.get(member).map_or_else(|| format!("member {member}"), |rank| format!("rank {rank}"));
        Error::Malformed(format!("{rank} told what planes can't be chosen by: {why}"))
    };
    // Nothing is made room for before it is known to be short.
    let mut counts = Vec::with_capacity(group.size());
    for (member, length) in lengths.as_chunks::<LENGTH>().0.iter().enumerate() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > cap {
            return Err(wrong(member, &format!("{length} bytes where {cap} are allowed")));
        }
        counts.push(length);
    }
    let mut all = vec![0; counts.iter().sum()];
    group.allgather_bytes(&own, &counts, &mut all)?;
    let mut rest = &all[..];
    let mut told = Vec::with_capacity(group.size());
    for (member, count) in counts.into_iter().enumerate() {
        let (one, after) = rest.split_at(count);
        rest = after;
        match codec::take(one, cap) {
            Ok(Some((message, used))) if used == count => told.push(message),
            Ok(_) => return Err(wrong(member, "no whole message")),
            Err(error) => return Err(wrong(member, &error.to_string())),
        }
    }
    Ok(told)
}

/// Whether something has gone well on all members: then this gives what it gave here, else who could not and why, the same
/// words on all of them. All must call this, at the same place in the order of what they do with the group; also where it
/// has failed, so that nobody waits for somebody who has given up.
pub fn agree<T>(group: &mut Group, members: &[Rank], mine: Result<T>) -> Result<Verdict<T>> {
    let cut = |error: &Error| error.to_string().chars().take(REASON_CAP / 8).collect::<String>();
    let verdicts = exchange(group, members, &mine.as_ref().err().map(cut), REASON_CAP)?;
    let refusal = members.iter().zip(verdicts).find_map(|(rank, refusal)| Some(format!("rank {rank}: {}", refusal?)));
    match (refusal, mine) {
        (Some(refusal), _) => Ok(Err(refusal)),
        (None, Ok(value)) => Ok(Ok(value)),
        (None, Err(error)) => Err(error),
    }
}
