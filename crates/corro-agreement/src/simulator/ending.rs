//! How it ends, for a member and in all, and whether that is right.

use corro_core::{Error, Rank};

use super::world::{Checked, Set, SetMember, World};

impl World<'_> {
    pub(super) fn end(&mut self, place: SetMember, error: &Error) -> Checked {
        let (set, me) = place;
        if let Some((before, _)) = self.report.over[set].iter().flatten().next() {
            let dead = |e: &Error| matches!(e, Error::PeerLost { .. }) && self.scenario.deaths.len() > 1;
            if before != error && !(dead(before) && dead(error)) {
                return Err(format!("set {set} ends with \"{error}\" and with \"{before}\""));
            }
        }
        self.report.over[set][me] = Some((error.clone(), self.now));
        let in_order = matches!(error, Error::Shutdown(_));
        let member = self.member(place);
        member.joined = false;
        // A plan that was not left in time: nobody knows who is in the entry.
        let unclear = member.planned && member.lane.running.as_ref().is_some_and(|job| job.planned);
        if !in_order {
            member.lane.tasks.clear();
        }
        if !in_order || unclear {
            member.lane.running = None;
            member.tickets.values_mut().for_each(|t| t.taken &= in_order && !unclear);
        }
        // What was told to run before the end in order still runs: the others count on it.
        let failed: Vec<String> =
            member.tickets.iter().filter(|(_, t)| !(in_order && t.taken)).map(|(name, _)| name.clone()).collect();
        for name in failed {
            self.member(place).tickets.remove(&name);
        }
        self.moved = self.now;
        if set == 0 && self.scenario.deadlock {
            self.end_other_sets(place, error)?;
        }
        Ok(())
    }

    /// With the set of all ranks, all end.
    fn end_other_sets(&mut self, (_, me): SetMember, error: &Error) -> Checked {
        let rank = self.sets[0].members[me];
        for other in 1..self.sets.len() {
            if let Ok(me) = self.sets[other].members.binary_search(&rank) {
                self.member((other, me)).node.close(error.clone());
                self.speak((other, me))?;
            }
        }
        Ok(())
    }

    pub(super) fn check_end(&self) -> Checked {
        for (rank, program) in self.programs.iter().enumerate().filter(|(_, p)| !p.dead) {
            if !program.is_over() {
                return Err(format!(
                    "rank {rank} waits for {:?} in join {:?}, {} steps to go",
                    program.waits,
                    program.joining,
                    program.steps.len()
                ));
            }
        }
        for (set, Set { nodes, members, .. }) in self.sets.iter().enumerate() {
            let dead: Vec<Rank> = members.iter().copied().filter(|m| self.programs[m.index()].dead).collect();
            // No connection tells of a rank that has stopped: nobody looks for it unless somebody waits.
            let stopped = |rank: &Rank| self.scenario.stops.iter().any(|(stops, _)| stops == rank);
            let stops = dead.iter().any(stopped);
            let alive = || nodes.iter().filter(|m| !self.programs[m.rank.index()].dead);
            for member in alive() {
                let over = member.node.over();
                if !member.tickets.is_empty() && over.is_none() {
                    return Err(format!("rank {} still waits for {:?}", member.rank, member.tickets));
                }
                let named = |e: &Error| matches!(e, Error::PeerLost { rank, .. } if dead.contains(rank));
                if over.is_none() && stops {
                    continue;
                }
                if !dead.is_empty() && !over.is_some_and(|e| named(e) || matches!(e, Error::Shutdown(_))) {
                    return Err(format!("rank {} ends set {set} with {over:?} although {dead:?} died", member.rank));
                }
                if !stops && over.is_some() != alive().all(|m| m.node.over().is_some()) {
                    return Err(format!("set {set} is over on some ranks only"));
                }
                if !stops && over.is_some() && !member.node.may_close() {
                    return Err(format!("rank {} may not close set {set} although it is over", member.rank));
                }
            }
            let first = &nodes[0].node;
            if !stops && first.over().is_none() && alive().any(|m| m.node.known() != first.known()) {
                return Err(format!("members of set {set} know different slots"));
            }
        }
        Ok(())
    }
}
