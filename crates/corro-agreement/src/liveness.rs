//! Whether the neighbours in the tree still answer. Pure: no I/O, no clock.
//!
//! A rank whose process is stopped, or whose host has vanished, breaks no connection: nothing but its silence tells. But
//! a program may be silent for as long as it likes (it computes, it writes a checkpoint): so it is the *engines* that are
//! asked, and they answer whatever their programs do.
//!
//! Nobody is asked while all goes well. A member asks once somebody has waited for long without anything getting on: its
//! own program, or, as a neighbour's question tells, somebody else's. So questions go through the whole tree, from
//! whoever waits to whoever is silent, and each member watches over its own neighbours only. A neighbour that has not
//! said a word long after it was asked is lost.
//!
//! | after | what happens |
//! | --- | --- |
//! | a quarter of the limit | who waits asks its neighbours, they theirs; again each quarter while somebody waits |
//! | three quarters | who has not answered for half the limit is lost |
//! | all of it | collectives give up by themselves, without knowing whom to blame |
//!
//! Who was away itself (stopped, or starved of processor time) is no judge of others: it asks again.

use std::time::Duration;

use crate::coordinator::Time;

/// See the module.
#[derive(Debug)]
pub struct Liveness {
    /// How long waiting may go on; zero: for ever.
    limit: Duration,
    /// Since when somebody here has waited without anything getting on.
    waits: Option<Time>,
    /// Until when a neighbour's question counts: somebody waits there.
    told: Time,
    looked: Time,
    peers: Vec<Peer>,
}

#[derive(Debug)]
struct Peer {
    member: usize,
    heard: Time,
    /// When it was asked, if it has not said anything since.
    asked: Option<Time>,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Ask these.
    pub ask: Vec<usize>,
    /// These are lost, each after so long without a word.
    pub lost: Vec<(usize, Duration)>,
}

impl Liveness {
    /// For these neighbours.
    pub fn new(limit: Duration, neighbours: impl IntoIterator<Item = usize>) -> Self {
        let peer = |member| Peer { member, heard: Time::ZERO, asked: None };
        let peers = if limit.is_zero() { Vec::new() } else { neighbours.into_iter().map(peer).collect() };
        Self { limit, waits: None, told: Time::ZERO, looked: Time::ZERO, peers }
    }

    /// Since when somebody here has waited without anything getting on; `None`: nobody waits.
    pub fn waits(&mut self, since: Option<Time>) {
        self.waits = since;
    }

    /// A neighbour has said something, whatever it was.
    pub fn heard(&mut self, now: Time, member: usize) {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.member == member) {
            (peer.heard, peer.asked) = (now, None);
        }
    }

    /// A neighbour has asked: somebody waits there.
    pub fn was_asked(&mut self, now: Time) {
        self.told = self.told.max(now + self.limit / 2);
    }

    /// Asks one of them out of turn, if it is watched. True if it is to be told.
    pub fn ask(&mut self, now: Time, member: usize) -> bool {
        match self.peers.iter_mut().find(|p| p.member == member && p.asked.is_none()) {
            Some(peer) => {
                peer.asked = Some(now);
                self.was_asked(now);
                true
            }
            None => false,
        }
    }

    /// If one of them was asked and has not said a word since: when it must have, if somebody wants to know sooner than
    /// usual, and how long it has been silent.
    pub fn owes_answer(&self, now: Time, member: usize) -> Option<(Time, Duration)> {
        let peer = self.peers.iter().find(|p| p.member == member)?;
        Some((peer.asked? + self.limit / 8, now.saturating_sub(peer.heard)))
    }

    /// When to look, if nothing happens before.
    pub fn next_look(&self) -> Option<Time> {
        let begins = if self.told > self.looked { Some(self.looked) } else { self.begins() }?;
        let due = |peer: &Peer| match peer.asked {
            // Often enough to know whether this member was here all the time.
            Some(asked) => (asked + self.limit / 2).min(self.looked + self.limit / 8),
            None => peer.heard + self.limit / 4,
        };
        Some(self.peers.iter().map(due).min()?.max(begins))
    }

    /// Time has passed.
    pub fn look(&mut self, now: Time) -> Findings {
        let mut findings = Findings::default();
        let away = now.saturating_sub(self.looked) > self.limit / 4;
        self.looked = now;
        if self.told <= now && self.begins().is_none_or(|at| now < at) {
            self.peers.iter_mut().for_each(|p| p.asked = None);
            return findings;
        }
        let Self { limit, peers, .. } = self;
        for peer in peers.iter_mut() {
            match peer.asked {
                Some(asked) if !away && now >= asked + *limit / 2 => {
                    findings.lost.push((peer.member, now.saturating_sub(peer.heard)));
                }
                Some(_) if !away => {}
                None if now < peer.heard + *limit / 4 => {}
                _ => {
                    peer.asked = Some(now);
                    findings.ask.push(peer.member);
                }
            }
        }
        peers.retain(|p| findings.lost.iter().all(|(member, _)| *member != p.member));
        findings
    }

    /// When somebody here will have waited for long enough to ask.
    fn begins(&self) -> Option<Time> {
        self.waits.map(|since| since + self.limit / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn asks(members: &[usize]) -> Findings {
        Findings { ask: members.to_vec(), lost: vec![] }
    }

    #[test]
    fn nobody_is_asked_while_nobody_waits_for_long() {
        let mut liveness = Liveness::new(LIMIT, [1, 2]);
        assert_eq!((liveness.next_look(), liveness.look(at(100))), (None, Findings::default()));
        for second in 100..120 {
            liveness.waits(Some(at(second)));
            assert_eq!(liveness.next_look(), Some(at(second + 2)));
            assert_eq!(liveness.look(at(second + 1)), Findings::default(), "something got on each second");
        }
    }

    #[test]
    fn who_does_not_answer_is_lost_and_who_does_is_asked_again() {
        let mut liveness = Liveness::new(LIMIT, [1, 2]);
        liveness.waits(Some(at(10)));
        assert_eq!(liveness.next_look(), Some(at(12)));
        assert_eq!(liveness.look(at(12)), asks(&[1, 2]));
        liveness.heard(at(12), 2);
        assert_eq!(liveness.look(at(13)), Findings::default());
        assert_eq!(liveness.look(at(14)), asks(&[2]), "a quarter later");
        liveness.heard(at(15), 2);
        assert_eq!(liveness.look(at(15)), Findings::default());
        assert_eq!(liveness.look(at(16)), Findings { ask: vec![], lost: vec![(1, at(16))] });
        assert_eq!(liveness.look(at(17)), asks(&[2]), "the lost one is not spoken of again");
    }

    #[test]
    fn a_question_makes_others_ask_for_a_while() {
        let mut liveness = Liveness::new(LIMIT, [1]);
        liveness.heard(at(9), 1);
        liveness.was_asked(at(10));
        assert_eq!(liveness.next_look(), Some(at(11)), "a quarter after it was heard");
        assert_eq!(liveness.look(at(11)), asks(&[1]));
        liveness.heard(at(11), 1);
        assert_eq!(liveness.look(at(13)), asks(&[1]));
        assert_eq!(liveness.look(at(14)), Findings::default(), "nobody has asked again");
        assert_eq!(liveness.look(at(20)), Findings::default());
        assert_eq!(liveness.next_look(), None);
    }

    #[test]
    fn who_was_away_itself_asks_again() {
        let mut liveness = Liveness::new(LIMIT, [1]);
        liveness.waits(Some(at(0)));
        assert_eq!(liveness.look(at(2)), asks(&[1]));
        assert_eq!(liveness.look(at(100)), asks(&[1]));
        for second in 101..104 {
            assert_eq!(liveness.look(at(second)), Findings::default());
        }
        assert_eq!(liveness.look(at(104)).lost.len(), 1);
    }

    #[test]
    fn one_may_be_asked_out_of_turn() {
        let mut liveness = Liveness::new(LIMIT, [1, 2]);
        assert_eq!(liveness.look(at(9)), Findings::default());
        liveness.heard(at(9), 1);
        assert!(liveness.ask(at(10), 1) && !liveness.ask(at(10), 1), "once is enough");
        assert_eq!(liveness.owes_answer(at(10), 1), Some((at(11), at(1))));
        assert_eq!(liveness.look(at(10)), asks(&[2]), "somebody wants to know");
        liveness.heard(at(11), 1);
        assert_eq!(liveness.owes_answer(at(11), 1), None);
    }

    #[test]
    fn without_a_limit_nobody_is_ever_asked() {
        let mut liveness = Liveness::new(Duration::ZERO, [1]);
        liveness.waits(Some(at(0)));
        liveness.was_asked(at(3));
        assert!(!liveness.ask(at(3), 1));
        assert_eq!((liveness.next_look(), liveness.look(at(1000))), (None, Findings::default()));
    }
}
