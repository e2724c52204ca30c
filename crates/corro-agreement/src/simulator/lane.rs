//! What is modelled of the data plane: collectives run one after another, and complete once all members have begun.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use corro_core::Rank;

use crate::matching::Agreed;
use crate::request::Kind;

/// One collective of a set.
#[derive(Debug)]
pub(super) struct Collective {
    /// Names, and the tag of each use, once somebody who takes part with data has begun.
    pub(super) tensors: Vec<(String, Option<u64>)>,
    /// Of a broadcast, which does not wait for all.
    pub(super) root: Option<Rank>,
    /// Members inside, by their places.
    pub(super) begun: Vec<usize>,
    pub(super) completed: usize,
}

/// What a lane does next.
#[derive(Debug)]
pub(super) enum Task {
    Run(Job),
    /// Goes on with fresh connections.
    Renew,
}

/// The first, the second, ... collective of a set, since its connections were fresh for the first, the second, ... time.
pub(super) type Nth = (usize, usize);

/// Tensors to run as one, and this member's tags; `None`: it has joined.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) tensors: Vec<(String, Option<u64>)>,
    pub(super) root: Option<Rank>,
    pub(super) planned: bool,
}

impl Job {
    pub(super) fn new(agreed: &[Arc<Agreed>], tickets: &BTreeMap<String, Ticket>, planned: bool) -> Self {
        let root = agreed.iter().find_map(|a| if let Kind::Broadcast { root } = a.kind { Some(root) } else { None });
        // One that runs already is an earlier use of the name: this member has joined since.
        let tag = |a: &Arc<Agreed>| (a.name.clone(), tickets.get(&a.name).filter(|t| !t.taken).map(|t| t.tag));
        Self { tensors: agreed.iter().map(tag).collect(), root, planned }
    }
}

/// A tensor on its way.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) tag: u64,
    pub(super) fails: Option<&'static str>,
    /// Whether it was told to run.
    pub(super) taken: bool,
}

/// One member's lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) tasks: VecDeque<Task>,
    pub(super) running: Option<Job>,
    /// The next collective.
    pub(super) next: Nth,
}

/// All collectives of a set.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<Nth, Collective>);

impl History {
    /// A member begins a collective, which must be that of the others. Gives the members that complete by this.
    pub(super) fn begin(&mut self, members: &[Rank], me: usize, at: Nth, job: &Job) -> Result<Vec<usize>, String> {
        let new = || Collective { tensors: job.tensors.clone(), root: job.root, begun: Vec::new(), completed: 0 };
        let collective = self.0.entry(at).or_insert_with(new);
        let same = collective.tensors.len() == job.tensors.len()
            && collective.tensors.iter_mut().zip(&job.tensors).all(|((name, tag), (my_name, my_tag))| {
                let same = name == my_name && (tag.is_none() || my_tag.is_none() || tag == my_tag);
                *tag = tag.or(*my_tag);
                same
            });
        if !same {
            return Err(format!(
                "rank {} runs {:?} as collective {at:?}, others run {:?}",
                members[me], job.tensors, collective.tensors
            ));
        }
        collective.begun.push(me);
        if let Some(root) = collective.root {
            let root_is_in = collective.begun.iter().any(|m| members[*m] == root);
            return Ok(match (root_is_in, members[me] == root) {
                (true, true) => collective.begun.clone(),
                (true, false) => vec![me],
                (false, _) => vec![],
            });
        }
        Ok(if collective.begun.len() == members.len() { collective.begun.clone() } else { vec![] })
    }

    /// A member has completed a collective.
    pub(super) fn complete(&mut self, at: Nth) {
        if let Some(collective) = self.0.get_mut(&at) {
            collective.completed += 1;
        }
    }

    /// A member withdraws from a collective, which nobody may have completed nor be about to.
    pub(super) fn withdraw(&mut self, members: usize, at: Nth) -> Result<(), String> {
        match self.0.get(&at) {
            Some(c) if c.completed == 0 && c.begun.len() < members => Ok(()),
            other => Err(format!("withdrawal from collective {at:?}, which all had begun: {other:?}")),
        }
    }
}
