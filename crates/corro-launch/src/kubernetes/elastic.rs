//! An elastic job: a Job of one pod, in which `corro run` drives it, and a `StatefulSet` of workers, whose agents join the driver. Who
//! is there is known from who has joined, so no pod needs rights in the cluster.

use serde_json::{Value, json};

use super::job::{Elastic, Job, POD_OF_JOB, network_policy, service};
use super::pod::{container, pod, rank_container};

/// Where agents join.
const PORT: u16 = 29_401;
/// How long a driver waits for workers: nodes may have to be made for them, and images to be pulled.
const PATIENCE_SECONDS: u32 = 1800;
/// What a driver needs: it moves no data.
const DRIVER_CPU: &str = "200m";
const DRIVER_MEMORY: &str = "256Mi";

/// Its objects, the Job last.
pub(super) fn objects(job: &Job, limits: Elastic) -> Vec<Value> {
    let everybody = job.labels();
    let driver = json!({POD_OF_JOB: job.name});
    let mut all = vec![service(job, &driver, ("join", PORT))];
    all.extend(network_policy(job, &everybody));
    all.push(workers(job));
    let resources = json!({
        "requests": {"cpu": DRIVER_CPU, "memory": DRIVER_MEMORY}, "limits": {"memory": DRIVER_MEMORY},
    });
    let mut runs = container(job, &driver_command(job, limits), Vec::new(), &resources);
    // Its end is told to the ranks first, which commit: then it ends by itself (75), before Kubernetes would have it ended.
    runs["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "kill -USR1 1; while kill -0 1 2>/dev/null; do sleep 0.2; done"]}}});
    let metadata = job.metadata(&job.name);
    let labels = with(&metadata["labels"], "driver");
    all.push(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": pod(job, &driver, &runs)},
        },
    }));
    all
}

/// The set that `kubectl scale` makes larger and smaller.
fn workers(job: &Job) -> Value {
    let name = format!("{}-worker", job.name);
    let labels = with(&job.labels(), "worker");
    let command = ["corro", "agent", &format!("--join={}:{PORT}", job.name)].map(str::to_owned);
    let mut spec = pod(job, &labels, &rank_container(job, &command, Vec::new()));
    // A set's pods are always started again; an agent whose job is over waits for the next.
    spec["restartPolicy"] = "Always".into();
    let mut metadata = job.metadata(&name);
    // The queue's room is asked for by the set itself.
    metadata["labels"]["app.kubernetes.io/component"] = "worker".into();
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata,
        "spec": {
            "serviceName": job.name,
            "replicas": job.ranks,
            // All at once, and each is replaced without waiting for others.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    })
}

fn driver_command(job: &Job, limits: Elastic) -> Vec<String> {
    let mut words: Vec<String> = ["corro", "run", "--join-port"].map(str::to_owned).into();
    words.push(PORT.to_string());
    let numbers = [("-np", job.ranks), ("--min-np", limits.min), ("--max-np", limits.max)];
    for (flag, number) in numbers {
        words.extend([flag.to_owned(), number.to_string()]);
    }
    words.extend(["--elastic-timeout".into(), PATIENCE_SECONDS.to_string(), "--".into()]);
    words.extend(job.command.iter().cloned());
    words
}

fn with(labels: &Value, component: &str) -> Value {
    let mut labels = labels.clone();
    labels["app.kubernetes.io/component"] = component.into();
    labels
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{kinds, plain, variable};
    use super::*;

    #[test]
    fn workers_join_the_driver_by_the_name_of_its_service() {
        let all = objects(&Job { network_policy: true, ..plain() }, Elastic { min: 2, max: 8 });
        assert_eq!(kinds(&all), ["Service", "NetworkPolicy", "StatefulSet", "Job"]);
        let (service, set, driver) = (&all[0], &all[2], &all[3]);
        assert_eq!(service["spec"]["selector"][POD_OF_JOB], driver["metadata"]["name"]);
        let agent = &set["spec"]["template"]["spec"]["containers"][0]["command"];
        assert_eq!(agent, &json!(["corro", "agent", "--join=train:29401"]));
        assert_eq!(
            (&service["metadata"]["name"], &service["spec"]["ports"][0]["port"]),
            (&json!("train"), &json!(29_401))
        );
        let runs: Vec<&str> = driver["spec"]["template"]["spec"]["containers"][0]["command"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        let want = "corro run --join-port 29401 -np 3 --min-np 2 --max-np 8 --elastic-timeout 1800 -- python train.py";
        assert_eq!(runs.join(" "), want);
        assert_eq!(set["spec"]["replicas"], 3);
        assert!(variable(set, "CORRO_SECRET")["valueFrom"].is_object());
        // The policy lets workers and driver talk, which have different roles.
        let policy = &all[1]["spec"]["podSelector"]["matchLabels"];
        for pods in [&set["spec"]["template"]["metadata"]["labels"], &driver["spec"]["template"]["metadata"]["labels"]]
        {
            assert!(policy.as_object().unwrap().iter().all(|(name, value)| &pods[name] == value), "{pods}");
        }
        let chosen = &set["spec"]["selector"]["matchLabels"];
        assert_eq!(chosen, &set["spec"]["template"]["metadata"]["labels"]);
        assert!(
            driver["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
                != chosen["app.kubernetes.io/component"]
        );
    }

    #[test]
    fn what_ranks_were_promised_is_the_workers_and_not_the_drivers() {
        let mut job = plain();
        (job.gpus, job.memory) = (1, Some("8Gi".into()));
        let all = objects(&job, Elastic { min: 1, max: 4 });
        let limits = |at: usize| &all[at]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits(1), &json!({"memory": "8Gi", "nvidia.com/gpu": "1"}));
        assert_eq!(limits(2), &json!({"memory": "256Mi"}));
    }
}
