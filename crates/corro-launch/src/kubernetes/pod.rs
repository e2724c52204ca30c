//! The pods of a job.

use serde_json::{Value, json};

use super::job::Job;

/// How long a pod of a node that is gone counts as there. Kubernetes' own is five minutes.
const NODE_GONE_SECONDS: u32 = 30;
/// How long ranks may take to end when their pod is.
const GRACE_SECONDS: u32 = 60;

/// A pod with this container. `spread`: the labels of pods that should not all be on one node.
pub(super) fn pod(job: &Job, spread: &Value, container: &Value) -> Value {
    let gone = |state: &str| {
        json!({"key": format!("node.kubernetes.io/{state}"), "operator": "Exists", "effect": "NoExecute",
               "tolerationSeconds": NODE_GONE_SECONDS})
    };
    let mut security = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    if let Some(user) = job.user {
        security["runAsUser"] = user.into();
        security["runAsGroup"] = user.into();
        security["fsGroup"] = user.into();
    }
    let mut spec = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": security,
        "tolerations": [gone("not-ready"), gone("unreachable")],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": spread},
        }],
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shared_memory}},
            {"name": "tmp", "emptyDir": {}},
        ],
    });
    if !job.node_selector.is_empty() {
        let fields = job.node_selector.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        spec["nodeSelector"] = Value::Object(fields.collect());
    }
    if let Some(class) = &job.priority_class {
        spec["priorityClassName"] = class.as_str().into();
    }
    spec
}

/// A container of the job's image that runs `command`, with all that a rank was promised.
pub(super) fn rank_container(job: &Job, command: &[String], variables: Vec<Value>) -> Value {
    let mut resources = json!({});
    for (name, amount) in [("cpu", &job.cpus), ("memory", &job.memory)] {
        if let Some(amount) = amount {
            resources["requests"][name] = amount.as_str().into();
            resources["limits"][name] = amount.as_str().into();
        }
    }
    if job.gpus > 0 {
        resources["limits"]["nvidia.com/gpu"] = job.gpus.to_string().into();
    }
    container(job, command, variables, &resources)
}

/// A container of the job's image.
pub(super) fn container(job: &Job, command: &[String], mut variables: Vec<Value>, resources: &Value) -> Value {
    variables.push(
        json!({"name": "CORRO_SECRET", "valueFrom": {"secretKeyRef": {"name": job.secret_name(), "key": "secret"}}}),
    );
    variables.extend(job.variables.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let mut container = json!({
        "name": "rank",
        "image": job.image,
        "command": command,
        "env": variables,
        "resources": resources,
        // The end of the log of one that failed is its last word, which is all that is left when its pod is deleted.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": job.read_only_root,
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}],
    });
    if let Some(policy) = &job.pull_policy {
        container["imagePullPolicy"] = policy.as_str().into();
    }
    container
}
