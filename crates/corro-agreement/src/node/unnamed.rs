//! Names for what the program gives none (see [`crate::unnamed`]).

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::names::Names;
use super::state::Node;
use crate::message::Decision;
use crate::request::Request;
use crate::unnamed::{Fold, Stream};

impl Node {
    /// A name for the next tensor of `stream`, such as `allreduce`. All members that ask as often get the same ones. It
    /// may have had an earlier tensor: that one must be waited for.
    pub fn name(&mut self, stream: &str) -> String {
        if !self.requests.unnamed.streams.contains_key(stream) {
            self.requests.unnamed.streams.insert(stream.to_owned(), Stream::default());
        }
        let number = self.requests.unnamed.streams.get_mut(stream).map_or(0, Stream::number);
        let name = format!("{stream}.noname.{number}");
        if self.root.is_some() {
            self.requests.unnamed.given = Some((stream.to_owned(), name.clone()));
        }
        name
    }

    /// The program submits this. If it is what a name was given for, the root learns what its program repeats.
    pub(super) fn learn_unnamed(&mut self, request: &Request) {
        let unnamed = &mut self.requests.unnamed;
        // Of a group, the first stands for all.
        let bears = |(_, name): &mut (String, String)| {
            request.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with("_1of"))
        };
        let Some((stream, _)) = unnamed.given.take_if(bears) else { return };
        // A program that looks at results begins something new.
        let looked = std::mem::replace(&mut unnamed.looks, self.plan.looks) != self.plan.looks;
        let size = request.group.map(|(_, size)| size);
        // Only this rank sees the hash, so any will do.
        let like = (&request.kind, request.dtype, &request.shape, size, looked);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(like);
        let periods = unnamed.periods.entry(stream.clone()).or_default();
        periods.observe(hash);
        let fold = periods.period().and_then(|period| unnamed.streams.get(&stream)?.better(period));
        // Not while a plan is followed: nothing is decided then. And not more than can be remembered.
        let fits = |f: &Fold| f.length <= (self.rules.cache_capacity as u64).saturating_mul(3) / 4;
        if let Some(Fold { base, length }) =
            fold.filter(fits).filter(|_| self.plan.following.is_none() && self.ending.over.is_none())
        {
            self.decide(Decision::Fold { stream, base, length });
        }
    }

    pub(super) fn apply_fold(&mut self, stream: String, base: u64, length: u64) {
        if !self.requests.unnamed.streams.entry(stream).or_default().apply(Fold { base, length }) {
            let why = format!("rank {} learns too late what to call tensors without a name", self.rank);
            self.end(corro_core::Error::Bug(why));
        }
    }

    /// All have joined: some may have asked for more names than others, so all begin again.
    pub(super) fn restart_unnamed(&mut self) {
        self.requests.unnamed = Names::default();
    }
}
