//! The objects of a job.

use serde_json::{Value, json};

/// Where rank 0 is met: any free port would do, since every pod has an address of its own.
const PORT: u16 = 29_400;
/// How long a pod of a node that is gone counts as there. Kubernetes' own is five minutes.
const NODE_GONE_SECONDS: u32 = 30;
/// How long ranks may take to end when their pod is.
const GRACE_SECONDS: u32 = 60;
const POD_OF_JOB: &str = "batch.kubernetes.io/job-name";

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
    pub(crate) ranks: usize,
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
    pub(crate) network_policy: bool,
}

impl Job {
    fn secret_name(&self) -> &str {
        match &self.secret {
            JobSecret::There(name) => name,
            JobSecret::Made(_) => &self.name,
        }
    }

    fn metadata(&self) -> Value {
        let mut labels = json!({"app.kubernetes.io/name": self.name, "app.kubernetes.io/managed-by": "corro"});
        // Kueue lets the job begin when its queue has room for all pods.
        if let Some(queue) = &self.queue {
            labels["kueue.x-k8s.io/queue-name"] = queue.as_str().into();
        }
        let mut metadata = json!({"name": self.name, "labels": labels});
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        metadata
    }
}

/// All of them, in the order in which they are to be made.
pub(crate) fn objects(job: &Job) -> Vec<Value> {
    let pods = json!({POD_OF_JOB: job.name});
    let mut all = Vec::new();
    if let JobSecret::Made(digits) = &job.secret {
        all.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": job.metadata(), "type": "Opaque", "immutable": true,
            "stringData": {"secret": digits},
        }));
    }
    all.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": job.metadata(),
        "spec": {
            "clusterIP": "None",
            "selector": pods,
            // Ranks look for rank 0 before anybody could call it ready.
            "publishNotReadyAddresses": true,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }));
    if job.network_policy {
        all.push(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": job.metadata(),
            "spec": {
                "podSelector": {"matchLabels": pods},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": pods}}]}],
            },
        }));
    }
    let mut spec = json!({
        "completionMode": "Indexed",
        "completions": job.ranks,
        "parallelism": job.ranks,
        // Without one rank the others can't go on: the job has failed then.
        "backoffLimit": 0,
        "template": {"metadata": {"labels": job.metadata()["labels"]}, "spec": pod(job, &pods)},
    });
    if let Some(seconds) = job.seconds {
        spec["activeDeadlineSeconds"] = seconds.into();
    }
    all.push(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": job.metadata(), "spec": spec}));
    all
}

fn pod(job: &Job, pods: &Value) -> Value {
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
        // With the Service's name this gives pods names in DNS: NAME-0.NAME.
        "subdomain": job.name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": security,
        "tolerations": [gone("not-ready"), gone("unreachable")],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": pods},
        }],
        "containers": [container(job)],
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

fn container(job: &Job) -> Value {
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
    let mut container = json!({
        "name": "rank",
        "image": job.image,
        "command": job.command,
        "env": variables(job),
        "resources": resources,
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

/// What a rank needs to find the others. Its own number it has from Kubernetes (`JOB_COMPLETION_INDEX`).
fn variables(job: &Job) -> Vec<Value> {
    let said = |name: &str, value: String| json!({"name": name, "value": value});
    let mut all = vec![
        said("CORRO_SIZE", job.ranks.to_string()),
        said("MASTER_ADDR", format!("{name}-0.{name}", name = job.name)),
        said("MASTER_PORT", PORT.to_string()),
        // Another one each time, also for a job of the same name.
        json!({"name": "CORRO_JOB_ID",
               "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}}),
        json!({"name": "CORRO_SECRET", "valueFrom": {"secretKeyRef": {"name": job.secret_name(), "key": "secret"}}}),
    ];
    all.extend(job.variables.iter().map(|(name, value)| said(name, value.clone())));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            name: "train".into(),
            namespace: None,
            image: "image:1".into(),
            command: vec!["python".into(), "train.py".into()],
            ranks: 3,
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
            network_policy: false,
        }
    }

    fn kinds(all: &[Value]) -> Vec<&str> {
        all.iter().map(|object| object["kind"].as_str().unwrap()).collect()
    }

    fn variable<'a>(all: &'a [Value], name: &str) -> &'a Value {
        let rank = &all.last().unwrap()["spec"]["template"]["spec"]["containers"][0];
        rank["env"].as_array().unwrap().iter().find(|variable| variable["name"] == name).unwrap()
    }

    #[test]
    fn ranks_find_rank_0_by_the_name_that_service_and_subdomain_give_it() {
        let all = objects(&job());
        assert_eq!(kinds(&all), ["Secret", "Service", "Job"]);
        let (service, pod) = (&all[1], &all[2]["spec"]["template"]["spec"]);
        assert_eq!(service["metadata"]["name"], pod["subdomain"]);
        assert_eq!(variable(&all, "MASTER_ADDR")["value"], "train-0.train");
        assert_eq!(variable(&all, "MASTER_PORT")["value"], service["spec"]["ports"][0]["port"].to_string());
        assert_eq!(service["spec"]["selector"][POD_OF_JOB], "train");
        assert_eq!(variable(&all, "CORRO_SIZE")["value"], "3");
        assert_eq!((&all[2]["spec"]["completions"], &all[2]["spec"]["parallelism"]), (&json!(3), &json!(3)));
    }

    #[test]
    fn the_secret_is_in_its_object_and_nowhere_else() {
        let mut job = job();
        job.secret = JobSecret::Made("c0ffee".repeat(8));
        let all = objects(&job);
        assert_eq!(all[0]["stringData"]["secret"], "c0ffee".repeat(8));
        assert_eq!(variable(&all, "CORRO_SECRET")["valueFrom"]["secretKeyRef"]["name"], all[0]["metadata"]["name"]);
        assert!(all[1..].iter().all(|object| !object.to_string().contains("c0ffee")));
        job.secret = JobSecret::There("ours".into());
        let all = objects(&job);
        assert_eq!(kinds(&all), ["Service", "Job"]);
        assert_eq!(variable(&all, "CORRO_SECRET")["valueFrom"]["secretKeyRef"]["name"], "ours");
    }

    /// The rules of Kubernetes' Pod Security Standard "restricted" that are about what a pod says.
    #[test]
    fn pods_are_such_as_restricted_namespaces_take() {
        let all = objects(&job());
        let pod = &all[2]["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let rank = &pod["containers"][0]["securityContext"];
        assert_eq!(rank["allowPrivilegeEscalation"], false);
        assert_eq!(rank["capabilities"]["drop"], json!(["ALL"]));
        for volume in pod["volumes"].as_array().unwrap() {
            assert!(volume.get("emptyDir").is_some(), "{volume}");
        }
        for name in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod.get(name).is_none(), "{name}");
        }
    }

    #[test]
    fn what_is_asked_for_is_there() {
        let mut job = job();
        (job.gpus, job.cpus, job.memory) = (2, Some("4".into()), Some("8Gi".into()));
        (job.queue, job.priority_class, job.seconds) = (Some("team".into()), Some("high".into()), Some(60));
        (job.namespace, job.user, job.network_policy) = (Some("ml".into()), Some(1000), true);
        job.node_selector = vec![("disk".into(), "ssd".into())];
        job.variables = vec![("A".into(), "1".into())];
        let all = objects(&job);
        assert_eq!(kinds(&all), ["Secret", "Service", "NetworkPolicy", "Job"]);
        assert!(all.iter().all(|object| object["metadata"]["namespace"] == "ml"));
        let spec = &all[3]["spec"];
        assert_eq!(spec["activeDeadlineSeconds"], 60);
        assert_eq!(all[3]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
        let pod = &spec["template"]["spec"];
        let limits = &pod["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}));
        assert_eq!((&pod["nodeSelector"]["disk"], &pod["priorityClassName"]), (&json!("ssd"), &json!("high")));
        assert_eq!(pod["securityContext"]["runAsUser"], 1000);
        assert_eq!(variable(&all, "A")["value"], "1");
        // Only pods of the job may connect to pods of the job.
        let policy = &all[2]["spec"];
        assert_eq!(policy["ingress"][0]["from"][0]["podSelector"], policy["podSelector"]);
    }
}
