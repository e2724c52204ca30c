//! What programs ask of a process set.

use std::sync::Arc;
use std::time::Duration;

use corro_agreement::request::Kind;
use corro_core::{DType, Error, Result, Shape};
use corro_planes::Tensor;

use super::entries::Entry;
use super::parking::{Parked, name_group};
use super::process_set::ProcessSet;
use super::state::{After, State};
use crate::promise::Promise;
use crate::submission::Submission;

/// A tensor with its name, to be run; or, if that is in use, a promise that it will be.
pub(crate) type Named = std::result::Result<Submission, Arc<Promise>>;

impl ProcessSet {
    /// Takes a tensor. With `driving`, the caller is about to drive until it is done, and nobody needs to be woken.
    pub(crate) fn submit(&self, submission: Submission, driving: bool) -> Result<Arc<Promise>> {
        self.check(&submission)?;
        self.core.threads.take_part();
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            let now = self.core.now();
            let promise = Promise::new();
            self.take(st, now, submission, None, Arc::clone(&promise))?;
            if driving {
                self.hand_over.enlist_with_job();
            } else {
                self.wake_for(st, now);
            }
            Ok(promise)
        })
    }

    /// As [`ProcessSet::submit`], for a tensor, or a group of them, that has no name: it gets one of this stream. If that is in use,
    /// it is submitted as soon as it is not.
    pub(crate) fn submit_unnamed(
        &self,
        stream: &str,
        mut submissions: Vec<Submission>,
        is_group: bool,
    ) -> Result<Vec<Arc<Promise>>> {
        for submission in &mut submissions {
            stream.clone_into(&mut submission.name);
            self.check(submission)?;
        }
        self.core.threads.take_part();
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            let now = self.core.now();
            let promises: Vec<Arc<Promise>> = submissions.iter().map(|_| Promise::new()).collect();
            let given = promises.clone();
            let name = if st.parking.has(stream) { None } else { Some(st.node.name(stream)) };
            let parked = Parked { submissions, promises, is_group, name };
            if parked.name.as_ref().is_some_and(|name| !st.parking.is_borne(name, &st.entries)) {
                self.take_named(st, now, parked)?;
            } else {
                st.parking.park(stream, parked);
            }
            self.wake_for(st, now);
            Ok(given)
        })
    }

    /// Names the next tensor of a stream, which the caller then runs; if the name is in use, takes it as
    /// [`ProcessSet::submit_unnamed`] does.
    pub(crate) fn name_or_park(&self, stream: &str, mut submission: Submission) -> Result<Named> {
        stream.clone_into(&mut submission.name);
        self.check(&submission)?;
        self.core.threads.take_part();
        let mut st = self.hand_over.state();
        let name = if st.parking.has(stream) { None } else { Some(st.node.name(stream)) };
        match name {
            Some(name) if !st.parking.is_borne(&name, &st.entries) => Ok(Ok(Submission { name, ..submission })),
            _ if st.over.is_some() => Err(st.over.clone().unwrap_or(Error::Withdrawn)),
            name => {
                let promise = Promise::new();
                let (submissions, promises) = (vec![submission], vec![Arc::clone(&promise)]);
                st.parking.park(stream, Parked { submissions, promises, is_group: false, name });
                Ok(Err(promise))
            }
        }
    }

    /// Something is done: submits what has waited for its name.
    pub(super) fn submit_parked(&self, st: &mut State, now: Duration) {
        while !st.parking.is_empty() && st.over.is_none() {
            let State { parking, entries, node, .. } = st;
            let Some(parked) = parking.next(entries, |stream| node.name(stream)) else { return };
            let promises = parked.promises.clone();
            if let Err(error) = self.take_named(st, now, parked) {
                st.after.extend(promises.into_iter().map(|promise| After::Keep(promise, Err(error.clone()))));
            }
            self.wake_for(st, now);
        }
    }

    fn take_named(&self, st: &mut State, now: Duration, parked: Parked) -> Result<()> {
        let Parked { mut submissions, promises, is_group, name } = parked;
        let name = name.unwrap_or_default();
        let mut group = None;
        if is_group {
            name_group(&name, &mut submissions);
            group = Some((group_number(submissions.iter().map(|s| s.name.as_str())), submissions.len()));
            st.parking.begin_group(&name, submissions.len());
        } else if let Some(submission) = submissions.first_mut() {
            submission.name = name;
        }
        for (submission, promise) in submissions.into_iter().zip(promises) {
            self.take(st, now, submission, group, promise)?;
        }
        Ok(())
    }

    /// A name for a tensor that has none.
    pub(crate) fn name(&self, kind: &str) -> String {
        self.hand_over.state().node.name(kind)
    }

    /// Takes tensors that complete together, or none of them.
    pub(crate) fn submit_group(&self, submissions: Vec<Submission>, number: u64) -> Result<Vec<Arc<Promise>>> {
        for submission in &submissions {
            self.check(submission)?;
        }
        self.core.threads.take_part();
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            for submission in &submissions {
                if st.is_under_way(&submission.name) {
                    return Err(self.duplicate(&submission.name));
                }
            }
            let now = self.core.now();
            let group = Some((number, submissions.len()));
            let mut promises = Vec::with_capacity(submissions.len());
            for submission in submissions {
                let promise = Promise::new();
                self.take(st, now, submission, group, Arc::clone(&promise))?;
                promises.push(promise);
            }
            self.wake_for(st, now);
            Ok(promises)
        })
    }

    /// Takes one tensor.
    pub(super) fn take(
        &self,
        st: &mut State,
        now: Duration,
        mut submission: Submission,
        group: Option<(u64, usize)>,
        promise: Arc<Promise>,
    ) -> Result<()> {
        if st.is_under_way(&submission.name) {
            return Err(self.duplicate(&submission.name));
        }
        let request = submission.request(group);
        let record = st.recorder.submitted(&request.name, request.kind.name(), request.bytes(), now);
        self.core.observers.submitted(now, &request);
        let Submission { input, output, .. } = submission;
        let tensor = Tensor::new(input, output);
        st.node.note_looks(self.core.looks());
        let entry = Entry { tensor: Some(tensor), verdict: None, promise: Some(promise), record, since: now };
        if st.node.submit_to_plan(now, &request) {
            st.entries.insert(request.name, entry);
        } else {
            st.entries.insert(request.name.clone(), entry);
            st.node.submit(now, request);
        }
        self.core.observers.metrics.set_queue_depth(st.entries.len() as u64);
        Ok(())
    }

    /// An error if this set can't run such a tensor whatever the other members say.
    pub(super) fn check(&self, submission: &Submission) -> Result<()> {
        submission.check(&self.members)?;
        match submission.gpu_memory().filter(|_| !self.core.options.planes.takes_device_memory()) {
            None => Ok(()),
            Some(memory) => Err(Error::Usage(format!(
                "tensor {} is in the memory of GPU {}: this engine can't move GPU memory; pass a host copy",
                submission.name,
                memory.device()
            ))),
        }
    }

    pub(super) fn duplicate(&self, name: &str) -> Error {
        Error::Usage(format!(
            "requested to process a tensor with the same name as another tensor that is currently being processed: \
             {name} (process set {}). Give each tensor that is under way a name of its own.",
            self.id
        ))
    }

    /// This rank has run out of data.
    pub(crate) fn join(&self) -> Result<Arc<Promise>> {
        let promise = Promise::new();
        self.core.threads.take_part();
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            if !st.joins.is_empty() {
                return Err(self.duplicate("join.noname"));
            }
            st.joins.push(Arc::clone(&promise));
            st.node.join(self.core.now());
            self.turn(st);
            Ok(())
        })?;
        Ok(promise)
    }
}

/// The request a member makes of the global set to change the process sets.
pub(crate) fn set_request(kind: Kind) -> Submission {
    let name = match kind {
        Kind::AddSet { .. } => "add_process_set.noname",
        _ => "remove_process_set.noname",
    };
    Submission::new(name, kind, DType::U8, Shape(vec![]))
}

/// A number for a group of tensors that is the same on all ranks and in every step: made of their names.
pub(crate) fn group_number<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    // FNV-1a: stable across processes and releases, unlike the standard hasher.
    names
        .flat_map(|n| n.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
