//! Following a job's pods to their end. Pure: what is seen of them goes in; whose log is to be read, what the user should know,
//! and how it ended come out.

use std::collections::{BTreeMap, BTreeSet};

use super::pods::{End, Pod, State, Wait};

/// Victims of a lost rank raise this, by whatever name their program imports it.
const VICTIMS_WORD: &str = "HorovodInternalError";

/// What the follower is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This pod has a log now, which is this rank's (0: the driver's).
    Read { pod: String, rank: usize },
    /// The user should know.
    Say(String),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// What to exit with.
    pub(crate) code: u8,
    /// What to say, if it failed.
    pub(crate) why: Option<String>,
}

/// What is known of a job's pods.
#[derive(Debug)]
pub(crate) struct Following {
    /// How many pods with an index end a job by ending: its ranks, or the one that drives an elastic job.
    ranks: usize,
    /// Whether these are drivers, and everybody else is a worker.
    driven: bool,
    /// By name.
    pods: BTreeMap<String, Pod>,
    read: BTreeSet<String>,
    said: BTreeSet<String>,
}

impl Following {
    /// Of a job with so many ranks, a pod each.
    pub(crate) fn ranks(ranks: usize) -> Self {
        Self { ranks, driven: false, pods: BTreeMap::new(), read: BTreeSet::new(), said: BTreeSet::new() }
    }

    /// Of an elastic job, whose driver's pod shows what all ranks write, and ends with the job.
    pub(crate) fn driver() -> Self {
        Self { driven: true, ..Self::ranks(1) }
    }

    /// A pod has changed.
    pub(crate) fn see(&mut self, pod: Pod) -> Vec<Step> {
        let mut steps = Vec::new();
        if let Some(rank) = pod.index
            && matches!(pod.state, State::Running | State::Ended(_))
            && self.read.insert(pod.name.clone())
        {
            steps.push(Step::Read { pod: pod.name.clone(), rank });
        }
        if let State::Waiting(Some(Wait { why, .. })) = &pod.state
            && self.said.insert(format!("{} {why}", pod.name))
        {
            steps.push(Step::Say(format!("{} waits: {why}", pod.place())));
        }
        self.pods.insert(pod.name.clone(), pod);
        steps
    }

    /// How it ended, if that is known by now. A failure that is the consequence of another one may be seen first: ask again after
    /// a moment.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let ends: Vec<(&Pod, &End)> = self
            .indexed()
            .filter_map(|pod| if let State::Ended(end) = &pod.state { Some((pod, end)) } else { None })
            .collect();
        if let Some((pod, end)) = ends.iter().filter(|(_, end)| end.code != 0).min_by_key(|(pod, end)| blame(pod, end))
        {
            let last = end.last_line().map(|line| format!(": {line}")).unwrap_or_default();
            let why = format!("{} failed with {}{last}", self.who(pod), end.words());
            // What a shell would make of it; never 0 for a failure.
            let code = u8::try_from(end.code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1);
            return Some(Verdict { code, why: Some(why) });
        }
        let done: BTreeSet<usize> = ends.iter().filter_map(|(pod, _)| pod.index).collect();
        if done.len() == self.ranks {
            return Some(Verdict { code: 0, why: None });
        }
        let gone =
            self.indexed().find(|pod| pod.state == State::Gone && !pod.index.is_some_and(|i| done.contains(&i)))?;
        Some(Verdict { code: 1, why: Some(format!("{} was deleted while the job ran", self.who(gone))) })
    }

    /// Who has not begun, and why, when the time for that is over.
    pub(crate) fn late(&self) -> Option<String> {
        let begun = self.indexed().filter(|pod| !matches!(pod.state, State::Waiting(_))).count();
        if begun >= self.ranks {
            return None;
        }
        let reason = |pod: &Pod| match &pod.state {
            State::Waiting(Some(wait)) => format!("{}: {}", pod.place(), wait.why),
            _ => pod.place(),
        };
        let waiting: Vec<String> =
            self.pods.values().filter(|pod| matches!(pod.state, State::Waiting(_))).take(3).map(reason).collect();
        let missing = self.ranks - begun;
        let pods = if waiting.is_empty() { "the job has created none".to_owned() } else { waiting.join("; ") };
        Some(format!("{missing} of {} pods have not started ({pods})", self.ranks))
    }

    /// A pod that will not begin by itself, and why. A worker of an elastic job is none: the job may go on without it.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.indexed().find_map(|pod| match &pod.state {
            State::Waiting(Some(wait)) if wait.stuck => Some(format!("{} can't start: {}", pod.place(), wait.why)),
            _ => None,
        })
    }

    fn indexed(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(|pod| pod.index.is_some())
    }

    fn who(&self, pod: &Pod) -> String {
        match pod.index {
            Some(rank) if !self.driven => format!("rank {rank} ({})", pod.place()),
            _ => pod.place(),
        }
    }
}

/// The lowest is the one to name: not a victim of another's end, the first, and one that was killed before one that raised. Those
/// that Kubernetes has ended because the job had failed (SIGTERM) come last.
fn blame(pod: &Pod, end: &End) -> (bool, bool, String, bool, String) {
    let ended_by_job = end.code == 143;
    let victim = end.message.contains(VICTIMS_WORD);
    (ended_by_job, victim, end.at.clone(), end.code <= 128, pod.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(index: usize, state: State) -> Pod {
        Pod { name: format!("train-{index}"), node: Some("n1".into()), index: Some(index), state }
    }

    fn ended(code: i32, message: &str, at: &str) -> State {
        State::Ended(End { code, reason: None, message: message.into(), at: at.into() })
    }

    #[test]
    fn a_log_is_read_once_and_a_reason_is_said_once() {
        let mut following = Following::ranks(2);
        let waits = State::Waiting(Some(Wait { why: "no room".into(), stuck: false }));
        assert_eq!(following.see(pod(0, waits.clone())), [Step::Say("pod train-0 on n1 waits: no room".into())]);
        assert_eq!(following.see(pod(0, waits)), []);
        assert!(following.late().unwrap().contains("2 of 2 pods") && following.stuck().is_none());
        assert_eq!(following.see(pod(0, State::Running)), [Step::Read { pod: "train-0".into(), rank: 0 }]);
        assert_eq!(following.see(pod(0, ended(0, "", "1"))), []);
        // One that was quick has a log too.
        assert_eq!(following.see(pod(1, ended(0, "", "1"))), [Step::Read { pod: "train-1".into(), rank: 1 }]);
        assert_eq!(following.verdict(), Some(Verdict { code: 0, why: None }));
        assert_eq!(following.late(), None);
    }

    #[test]
    fn the_first_that_failed_is_named_and_not_its_victims() {
        let verdict = |states: [State; 3]| {
            let mut following = Following::ranks(3);
            states.into_iter().enumerate().for_each(|(index, state)| drop(following.see(pod(index, state))));
            following.verdict().unwrap()
        };
        let victim = "Traceback\nHorovodInternalError: lost rank 1 on n1";
        let raised = verdict([ended(1, victim, "1"), ended(3, "ValueError: no data\n", "1"), ended(143, "", "1")]);
        assert_eq!(raised.code, 3);
        assert_eq!(raised.why.unwrap(), "rank 1 (pod train-1 on n1) failed with exit code 3: ValueError: no data");
        let killed = verdict([ended(1, "other words", "1"), ended(137, "", "1"), State::Running]);
        assert_eq!((killed.code, killed.why.unwrap().contains("rank 1")), (137, true));
        let first = verdict([ended(1, "b", "2"), ended(1, "a", "1"), State::Running]);
        assert!(first.why.unwrap().contains("rank 1"));
        // All that is left is an end by the job itself.
        assert_eq!(verdict([ended(143, "", "1"), State::Running, State::Running]).code, 143);
    }

    #[test]
    fn a_pod_that_is_deleted_is_a_failure_unless_another_took_its_place() {
        let mut following = Following::ranks(1);
        following.see(pod(0, State::Gone));
        assert_eq!(following.verdict().unwrap().code, 1);
        following.see(Pod { name: "again".into(), ..pod(0, ended(0, "", "1")) });
        assert_eq!(following.verdict().unwrap().code, 0);
    }

    #[test]
    fn of_an_elastic_job_the_driver_decides_alone() {
        let mut following = Following::driver();
        let worker = Pod { name: "train-worker-0".into(), node: None, index: None, state: State::Gone };
        assert_eq!(following.see(worker.clone()), []);
        assert_eq!(following.verdict(), None);
        let stuck = State::Waiting(Some(Wait { why: "ErrImagePull".into(), stuck: true }));
        let said = following.see(Pod { state: stuck.clone(), ..worker });
        assert_eq!(said, [Step::Say("pod train-worker-0 waits: ErrImagePull".into())]);
        assert_eq!(following.stuck(), None, "a job that has lost a worker may go on without it");
        following.see(pod(0, stuck));
        assert!(following.stuck().unwrap().contains("train-0 on n1 can't start"));
        following.see(pod(0, ended(75, "", "1")));
        let verdict = following.verdict().unwrap();
        assert_eq!((verdict.code, verdict.why.unwrap().starts_with("pod train-0 on n1 failed")), (75, true));
    }
}
