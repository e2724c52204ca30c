//! What Kubernetes' API says of a pod, as far as a job's follower needs it. Pure: JSON in, words and states out.

use serde_json::Value;

/// Why a container that waits will not begin by itself, in Kubernetes' words.
const STUCK: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// A pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    /// Where it is, once it has a place.
    pub(crate) node: Option<String>,
    /// Its number in an Indexed Job.
    pub(crate) index: Option<usize>,
    pub(crate) state: State,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not begun, for this reason if one is known.
    Waiting(Option<Wait>),
    /// Its program runs, or ran: there is a log.
    Running,
    /// Its program has ended.
    Ended(End),
    /// It is gone, and nobody says how its program ended.
    Gone,
}

/// Why a pod has not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) why: String,
    /// It will not begin by itself.
    pub(crate) stuck: bool,
}

/// How a pod's program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) code: i32,
    /// Kubernetes' word for it where it has one: `OOMKilled`, `Evicted`.
    pub(crate) reason: Option<String>,
    /// The last that it wrote, or what Kubernetes says.
    pub(crate) message: String,
    /// When, to the second; times of the API sort as texts.
    pub(crate) at: String,
}

impl Pod {
    /// From an object of the API. `gone`: it was deleted. Nothing if it is no pod.
    pub(crate) fn read(object: &Value, gone: bool) -> Option<Self> {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let metadata = &object["metadata"];
        let index = |holder: &str| metadata[holder]["batch.kubernetes.io/job-completion-index"].as_str()?.parse().ok();
        let state = match state(&object["status"]) {
            State::Ended(end) => State::Ended(end),
            _ if gone => State::Gone,
            state => state,
        };
        Some(Self {
            name: text(&metadata["name"])?,
            node: text(&object["spec"]["nodeName"]),
            index: index("labels").or_else(|| index("annotations")),
            state,
        })
    }

    /// Itself and where it is, for sentences.
    pub(crate) fn place(&self) -> String {
        match &self.node {
            Some(node) => format!("pod {} on {node}", self.name),
            None => format!("pod {}", self.name),
        }
    }
}

fn state(status: &Value) -> State {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let container = &status["containerStatuses"][0]["state"];
    if let Some(code) = container["terminated"]["exitCode"].as_i64() {
        let ended = &container["terminated"];
        return State::Ended(End {
            code: i32::try_from(code).unwrap_or(1),
            reason: text(&ended["reason"]).filter(|reason| !["Error", "Completed"].contains(&reason.as_str())),
            message: text(&ended["message"]).unwrap_or_default(),
            at: text(&ended["finishedAt"]).unwrap_or_default(),
        });
    }
    if status["phase"] == "Failed" {
        // Ended by Kubernetes before its container could say anything: evicted, or its node is gone.
        return State::Ended(End {
            code: 1,
            reason: text(&status["reason"]),
            message: text(&status["message"]).unwrap_or_default(),
            at: String::new(),
        });
    }
    if container["running"].is_object() {
        return State::Running;
    }
    if let Some(reason) = text(&container["waiting"]["reason"])
        && reason != "ContainerCreating"
        && reason != "PodInitializing"
    {
        let why = text(&container["waiting"]["message"]).map_or_else(|| reason.clone(), |m| format!("{reason}: {m}"));
        return State::Waiting(Some(Wait { why, stuck: STUCK.contains(&reason.as_str()) }));
    }
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let unplaced = conditions.iter().find(|c| c["type"] == "PodScheduled" && c["status"] == "False");
    let why = unplaced.and_then(|condition| text(&condition["message"]).or_else(|| text(&condition["reason"])));
    // Room may come, so this is not stuck.
    State::Waiting(why.map(|why| Wait { why, stuck: false }))
}

impl End {
    /// For sentences: `exit code 3`, `exit code 137 (OOMKilled)`.
    pub(crate) fn words(&self) -> String {
        let signal = (129..=192).contains(&self.code).then(|| format!("signal {}", self.code - 128));
        match self.reason.clone().or(signal) {
            Some(reason) => format!("exit code {} ({reason})", self.code),
            None => format!("exit code {}", self.code),
        }
    }

    /// The last line that says something.
    pub(crate) fn last_line(&self) -> Option<&str> {
        self.message.lines().map(str::trim).rfind(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> Pod {
        let labels = json!({"batch.kubernetes.io/job-completion-index": "2"});
        let object =
            json!({"metadata": {"name": "train-2-x", "labels": labels}, "spec": {"nodeName": "n1"}, "status": status});
        Pod::read(&object, false).unwrap()
    }

    fn container(state: &Value) -> Value {
        json!({"containerStatuses": [{"state": state}]})
    }

    #[test]
    fn states_are_read() {
        assert_eq!(pod(&json!({})).state, State::Waiting(None));
        assert_eq!(pod(&container(&json!({"waiting": {"reason": "ContainerCreating"}}))).state, State::Waiting(None));
        assert_eq!(pod(&container(&json!({"running": {}}))).state, State::Running);
        let unplaced =
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]});
        let State::Waiting(Some(wait)) = pod(&unplaced).state else { panic!() };
        assert!(!wait.stuck && wait.why.contains("0/2 nodes"));
        let State::Waiting(Some(wait)) =
            pod(&container(&json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}))).state
        else {
            panic!()
        };
        assert!(wait.stuck && wait.why == "ErrImagePull: no such image");
        assert_eq!((pod(&json!({})).index, pod(&json!({})).place().as_str()), (Some(2), "pod train-2-x on n1"));
    }

    #[test]
    fn ends_are_read_also_of_pods_that_are_gone() {
        let ended = container(
            &json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "a\nb\n", "finishedAt": "2026-01-01T00:00:00Z"}}),
        );
        let State::Ended(end) = pod(&ended).state else { panic!() };
        assert_eq!((end.words().as_str(), end.last_line()), ("exit code 137 (OOMKilled)", Some("b")));
        let State::Ended(end) = pod(&container(&json!({"terminated": {"exitCode": 143, "reason": "Error"}}))).state
        else {
            panic!()
        };
        assert_eq!(end.words(), "exit code 143 (signal 15)");
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        let State::Ended(end) = pod(&evicted).state else { panic!() };
        assert_eq!((end.words().as_str(), end.last_line()), ("exit code 1 (Evicted)", Some("low on memory")));
        let gone =
            |status: Value| Pod::read(&json!({"metadata": {"name": "a"}, "status": status}), true).unwrap().state;
        assert_eq!(gone(container(&json!({"running": {}}))), State::Gone);
        assert!(matches!(gone(ended), State::Ended(_)));
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for value in [json!(null), json!([]), json!({"metadata": {}}), json!({"metadata": {"name": 3}})] {
            assert_eq!(Pod::read(&value, false), None);
        }
    }
}
