//! A job of fixed size: an Indexed Job, whose pods are the ranks, and a Service by which they find rank 0.

use serde_json::{Value, json};

use super::job::{Job, POD_OF_JOB, network_policy, service};
use super::pod::{pod, rank_container};

/// Where rank 0 is met: any free port would do, since every pod has an address of its own.
const PORT: u16 = 29_400;

/// Its objects, the Job last.
pub(super) fn objects(job: &Job) -> Vec<Value> {
    let pods = json!({POD_OF_JOB: job.name});
    let mut all = vec![service(job, &pods, ("rendezvous", PORT))];
    all.extend(network_policy(job, &pods));
    let mut spec = pod(job, &pods, &rank_container(job, &job.command, variables(job)));
    // With the Service's name this gives pods names in DNS: NAME-0.NAME.
    spec["subdomain"] = job.name.as_str().into();
    // A program that is process 1 does not hear SIGTERM unless it has asked for it, and would be killed only when its time is over.
    spec["shareProcessNamespace"] = true.into();
    let metadata = job.metadata(&job.name);
    all.push(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": job.ranks,
            "parallelism": job.ranks,
            // Without one rank the others can't go on: the job has failed then.
            "backoffLimit": 0,
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": spec},
        },
    }));
    all
}

/// What a rank needs to find the others. Its own number it has from Kubernetes (`JOB_COMPLETION_INDEX`).
fn variables(job: &Job) -> Vec<Value> {
    let said = |name: &str, value: String| json!({"name": name, "value": value});
    vec![
        said("CORRO_SIZE", job.ranks.to_string()),
        said("MASTER_ADDR", format!("{name}-0.{name}", name = job.name)),
        said("MASTER_PORT", PORT.to_string()),
        // Another one each time, also for a job of the same name.
        json!({"name": "CORRO_JOB_ID",
               "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}}),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{kinds, plain, variable};
    use super::*;

    #[test]
    fn ranks_find_rank_0_by_the_name_that_service_and_subdomain_give_it() {
        let all = objects(&plain());
        assert_eq!(kinds(&all), ["Service", "Job"]);
        let (service, job) = (&all[0], &all[1]);
        assert_eq!(service["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]);
        assert_eq!(variable(job, "MASTER_ADDR")["value"], "train-0.train");
        assert_eq!(variable(job, "MASTER_PORT")["value"], service["spec"]["ports"][0]["port"].to_string());
        assert_eq!(service["spec"]["selector"][POD_OF_JOB], "train");
        assert_eq!(variable(job, "CORRO_SIZE")["value"], "3");
        assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(3), &json!(3)));
    }

    #[test]
    fn what_is_asked_for_is_there() {
        let mut job = plain();
        (job.gpus, job.cpus, job.memory) = (2, Some("4".into()), Some("8Gi".into()));
        (job.queue, job.priority_class) = (Some("team".into()), Some("high".into()));
        (job.namespace, job.user, job.network_policy) = (Some("ml".into()), Some(1000), true);
        job.node_selector = vec![("disk".into(), "ssd".into())];
        job.variables = vec![("A".into(), "1".into())];
        let all = objects(&job);
        assert_eq!(kinds(&all), ["Service", "NetworkPolicy", "Job"]);
        assert!(all.iter().all(|object| object["metadata"]["namespace"] == "ml"));
        let spec = &all[2]["spec"];
        assert_eq!(all[2]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
        let pod = &spec["template"]["spec"];
        let limits = &pod["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}));
        assert_eq!((&pod["nodeSelector"]["disk"], &pod["priorityClassName"]), (&json!("ssd"), &json!("high")));
        assert_eq!(pod["securityContext"]["runAsUser"], 1000);
        assert_eq!(variable(&all[2], "A")["value"], "1");
        // Only pods of the job may connect to pods of the job.
        let policy = &all[1]["spec"];
        assert_eq!(policy["ingress"][0]["from"][0]["podSelector"], policy["podSelector"]);
    }
}
