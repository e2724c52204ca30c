//! All objects of a job.

use serde_json::{Value, json};

use super::job::{Job, JobSecret};
use super::{elastic, fixed};

/// All objects of a job, in the order in which they are to be made; the Job itself is the last.
pub(crate) fn objects(job: &Job) -> Vec<Value> {
    let mut all = Vec::new();
    if let JobSecret::Made(digits) = &job.secret {
        all.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": job.metadata(&job.name), "type": "Opaque", "immutable": true,
            "stringData": {"secret": digits},
        }));
    }
    match job.elastic {
        None => all.extend(fixed::objects(job)),
        Some(limits) => all.extend(elastic::objects(job, limits)),
    }
    let last = all.len() - 1;
    if let Some(seconds) = job.seconds {
        all[last]["spec"]["activeDeadlineSeconds"] = seconds.into();
    }
    if let Some(seconds) = job.keep_seconds {
        all[last]["spec"]["ttlSecondsAfterFinished"] = seconds.into();
    }
    all
}

/// The same objects, all but the Job its property: they go with it, whoever deletes it. `uid` is the number that the cluster has given it.
pub(crate) fn owned(objects: &[Value], uid: &str) -> Vec<Value> {
    let Some((job, others)) = objects.split_last() else { return Vec::new() };
    let owner =
        json!({"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"], "uid": uid});
    let own = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["ownerReferences"] = json!([owner]);
        object
    };
    others.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::super::job::Elastic;
    use super::super::job::tests::{kinds, plain, variable};
    use super::*;

    #[test]
    fn the_secret_is_in_its_object_and_nowhere_else() {
        for elastic in [None, Some(Elastic { min: 1, max: 4 })] {
            let mut job = plain();
            job.elastic = elastic;
            job.secret = JobSecret::Made("c0ffee".repeat(8));
            let all = objects(&job);
            assert_eq!(all[0]["stringData"]["secret"], "c0ffee".repeat(8));
            let last = all.last().unwrap();
            assert_eq!(variable(last, "CORRO_SECRET")["valueFrom"]["secretKeyRef"]["name"], all[0]["metadata"]["name"]);
            assert!(all[1..].iter().all(|object| !object.to_string().contains("c0ffee")));
            job.secret = JobSecret::There("ours".into());
            let all = objects(&job);
            assert!(!kinds(&all).contains(&"Secret"));
            assert_eq!(variable(all.last().unwrap(), "CORRO_SECRET")["valueFrom"]["secretKeyRef"]["name"], "ours");
        }
    }

    /// The rules of Kubernetes' Pod Security Standard "restricted" that are about what a pod says.
    #[test]
    fn pods_are_such_as_restricted_namespaces_take() {
        for elastic in [None, Some(Elastic { min: 1, max: 4 })] {
            let all = objects(&Job { elastic, ..plain() });
            for object in all.iter().filter(|object| object["spec"]["template"].is_object()) {
                let pod = &object["spec"]["template"]["spec"];
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
                assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
                assert_eq!(pod["automountServiceAccountToken"], false);
                let container = &pod["containers"][0]["securityContext"];
                assert_eq!(container["allowPrivilegeEscalation"], false);
                assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
                for volume in pod["volumes"].as_array().unwrap() {
                    assert!(volume.get("emptyDir").is_some(), "{volume}");
                }
                for name in ["hostNetwork", "hostPID", "hostIPC"] {
                    assert!(pod.get(name).is_none(), "{name}");
                }
            }
        }
    }

    #[test]
    fn limits_of_time_are_the_jobs() {
        let job = Job { seconds: Some(60), keep_seconds: Some(3600), ..plain() };
        let spec = &objects(&job).pop().unwrap()["spec"];
        assert_eq!((&spec["activeDeadlineSeconds"], &spec["ttlSecondsAfterFinished"]), (&json!(60), &json!(3600)));
    }

    #[test]
    fn everything_but_the_job_may_be_its_property() {
        let all = objects(&plain());
        let others = owned(&all, "u-1");
        assert_eq!(kinds(&others), ["Secret", "Service"]);
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1"}]);
        assert!(others.iter().all(|object| object["metadata"]["ownerReferences"] == owner));
    }
}
