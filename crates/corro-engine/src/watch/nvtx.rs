//! The timeline's steps as ranges of NVIDIA's profilers, in Horovod's three domains.

use std::collections::HashMap;

use corro_cuda::nvtx::{Domain, Range, domains};

use super::timeline::Step;

/// See the module. Empty while no profiler watches.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    domains: Option<Domains>,
    /// By tensor, what has begun and not ended.
    open: HashMap<String, Open>,
}

#[derive(Debug)]
struct Domains {
    /// A tensor from its submission to its end.
    ops: Domain,
    /// Its negotiation, and then its operation.
    timeline: Domain,
    /// What is done in the operation.
    activities: Domain,
}

#[derive(Debug, Default)]
struct Open {
    op: Option<Range>,
    timeline: Option<Range>,
    activities: Vec<Range>,
}

impl Ranges {
    /// Begins, if a profiler watches this process.
    pub(crate) fn start(&mut self) -> corro_core::Result<()> {
        let names = [c"HorovodOps", c"HorovodTimeline", c"HorovodTimelineActivities"];
        self.domains = domains(names)?.map(|[ops, timeline, activities]| Domains { ops, timeline, activities });
        Ok(())
    }

    pub(crate) fn is_on(&self) -> bool {
        self.domains.is_some()
    }

    pub(crate) fn step(&mut self, name: &str, step: &Step) {
        let Some(domains) = &self.domains else { return };
        if !self.open.contains_key(name) {
            self.open.insert(name.to_owned(), Open::default());
        }
        let Some(open) = self.open.get_mut(name) else { return };
        let Domains { ops, timeline, activities } = domains;
        match step {
            Step::Negotiate(op) => {
                open.op = Some(ops.start(&format!("{op} {name}")));
                open.timeline = Some(timeline.start(&format!("NEGOTIATE_{op} {name}")));
            }
            Step::RankReady(_) => {}
            Step::Negotiated => end(timeline, &mut open.timeline),
            Step::Start(op) => open.timeline = Some(timeline.start(&format!("{op} {name}"))),
            Step::Begin(activity) => open.activities.push(activities.start(&format!("{activity} {name}"))),
            Step::BeginOn(activity, plane, _) => {
                open.activities.push(activities.start(&format!("{activity} {name} ({plane})")));
            }
            Step::End => end(activities, &mut open.activities.pop()),
            Step::Done(..) | Step::Failed => {
                end(timeline, &mut open.timeline);
                end(ops, &mut open.op);
                self.open.remove(name);
            }
        }
    }
}

fn end(domain: &Domain, range: &mut Option<Range>) {
    if let Some(range) = range.take() {
        domain.end(range);
    }
}
