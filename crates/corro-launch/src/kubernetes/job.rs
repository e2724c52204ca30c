//! What a job on Kubernetes is to be, and what its objects have in common.

use serde_json::{Value, json};

/// The label by which the pods of a Job are known.
pub(super) const POD_OF_JOB: &str = "batch.kubernetes.io/job-name";

/// Where the job's secret comes from.
pub(crate) enum JobSecret {
    /// A Secret of this name that is there already, with the digits under `secret`.
    There(String),
    /// These digits, in a Secret that is made with the job.
    Made(String),
}

/// What is wanted.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    /// How many ranks; an elastic job begins with so many.
    pub(crate) ranks: usize,
    /// Whether ranks may come and go.
    pub(crate) elastic: Option<Elastic>,
    pub(crate) secret: JobSecret,
    pub(crate) cpus: Option<String>,
    pub(crate) memory: Option<String>,
    pub(crate) gpus: usize,
    /// The most that `/dev/shm` holds.
    pub(crate) shared_memory: String,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) node_selector: Vec<(String, String)>,
    pub(crate) user: Option<u32>,
    pub(crate) read_only_root: bool,
    pub(crate) pull_policy: Option<String>,
    pub(crate) priority_class: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) seconds: Option<u64>,
    /// How long its objects stay when it is over; `None`: until somebody deletes them.
    pub(crate) keep_seconds: Option<u64>,
    pub(crate) network_policy: bool,
}

/// How few and how many ranks an elastic job may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elastic {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl Job {
    pub(super) fn secret_name(&self) -> &str {
        match &self.secret {
            JobSecret::There(name) => name,
            JobSecret::Made(_) => &self.name,
        }
    }

    /// The labels of everything that belongs to it.
    pub(crate) fn labels(&self) -> Value {
        json!({"app.kubernetes.io/name": self.name, "app.kubernetes.io/managed-by": "corro"})
    }

    pub(super) fn metadata(&self, name: &str) -> Value {
        let mut metadata = json!({"name": name, "labels": self.labels()});
        // Kueue lets the job begin when its queue has room for all pods.
        if let Some(queue) = &self.queue {
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = queue.as_str().into();
        }
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        metadata
    }
}

/// A Service without an address of its own: a name for the pods that `selector` chooses.
pub(super) fn service(job: &Job, selector: &Value, port: (&str, u16)) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": job.metadata(&job.name),
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            // Pods look for each other before anybody could call them ready.
            "publishNotReadyAddresses": true,
            "ports": [{"name": port.0, "port": port.1}],
        },
    })
}

/// Only pods that `selector` chooses may connect to them.
pub(super) fn network_policy(job: &Job, selector: &Value) -> Option<Value> {
    job.network_policy.then(|| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": job.metadata(&job.name),
            "spec": {
                "podSelector": {"matchLabels": selector},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": selector}}]}],
            },
        })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A job that asks for nothing special.
    pub(in super::super) fn plain() -> Job {
        Job {
            name: "train".into(),
            namespace: None,
            image: "image:1".into(),
            command: vec!["python".into(), "train.py".into()],
            ranks: 3,
            elastic: None,
            secret: JobSecret::Made("ab".into()),
            cpus: None,
            memory: None,
            gpus: 0,
            shared_memory: "1Gi".into(),
            variables: Vec::new(),
            node_selector: Vec::new(),
            user: None,
            read_only_root: false,
            pull_policy: None,
            priority_class: None,
            queue: None,
            seconds: None,
            keep_seconds: None,
            network_policy: false,
        }
    }

    pub(in super::super) fn kinds(all: &[Value]) -> Vec<&str> {
        all.iter().map(|object| object["kind"].as_str().unwrap()).collect()
    }

    /// A variable of the first container of an object's pods.
    pub(in super::super) fn variable<'a>(object: &'a Value, name: &str) -> &'a Value {
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == name).unwrap()
    }
}
