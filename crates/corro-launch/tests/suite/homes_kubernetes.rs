//! Jobs on a real Kubernetes cluster of two nodes (`tests/kubernetes-cluster`), in a namespace with Pod Security "restricted". `make homes`
//! makes what it needs (`scripts/kubernetes_tools`) and runs this; about three minutes.
//!
//! One test: its parts share the cluster, one after the other. All of them run, whatever becomes of the others. While one works on them,
//! `CORRO_TEST_CLUSTER=DIR` takes a cluster that is up (`tests/kubernetes-cluster up DIR 2`) and leaves it up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::support::{self, Folder, HANG_LIMIT, Ran, Running, corro, kill, marked, wait_until};

const IMAGE: &str = "localhost/corro:tests";
const TRAIN: &[&str] = &["python3", "/examples/numpy/digits.py", "--data", "/examples/digits.csv.gz"];

struct Cluster {
    /// For what the test writes.
    folder: Folder,
    /// Where the cluster lives.
    home: PathBuf,
    /// Whether it was there before.
    borrowed: bool,
}

/// Where `scripts/kubernetes_tools` has put things.
#[expect(clippy::disallowed_methods, reason = "where programs are is no knob of ours")]
fn tools() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("CORRO_KUBERNETES").map_or_else(|| repository.join("target/homes/kubernetes"), PathBuf::from)
}

/// A cluster that is up, if one was named.
#[expect(clippy::disallowed_methods, reason = "for people who work on this test")]
fn there() -> Option<PathBuf> {
    std::env::var_os("CORRO_TEST_CLUSTER").map(PathBuf::from)
}

impl Cluster {
    fn script() -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes-cluster"));
        command.env("CORRO_KUBERNETES", std::fs::canonicalize(tools()).unwrap());
        command
    }

    fn up() -> Self {
        let folder = Folder::new("kubernetes");
        let there = there();
        let borrowed = there.is_some();
        let cluster = Self { home: there.unwrap_or_else(|| folder.path().to_owned()), folder, borrowed };
        if !borrowed {
            let out = Self::script().arg("up").arg(&cluster.home).arg("2").output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            cluster.kubectl(&["create", "namespace", "jobs"]);
        }
        cluster.kubectl(&[
            "label",
            "--overwrite",
            "namespace",
            "jobs",
            "pod-security.kubernetes.io/enforce=restricted",
        ]);
        // Its default account is made a moment later, and pods need it.
        wait_until("the namespace is ready", HANG_LIMIT, || {
            cluster.program("kubectl", &["get", "serviceaccount", "default"]).output().unwrap().status.success()
        });
        cluster
    }

    /// A program of `bin/`, or `corro`, with the cluster's configuration.
    fn program(&self, name: &str, words: &[&str]) -> Command {
        let path = if name == "corro" { corro().to_owned() } else { tools().join("bin").join(name) };
        let mut command = Command::new(path);
        support::clean(&mut command);
        command.args(words).env("KUBECONFIG", self.home.join("admin.conf")).env("HOME", self.folder.path());
        if name != "corro" {
            command.arg("--namespace=jobs");
        }
        command
    }

    fn kubectl(&self, words: &[&str]) -> String {
        let out = self.program("kubectl", words).stdin(Stdio::null()).output().unwrap();
        assert!(out.status.success(), "kubectl {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// `corro k8s run` of a job of this name.
    fn start(&self, name: &str, flags: &[&str], program: &[&str]) -> Running {
        let kubectl = tools().join("bin/kubectl").display().to_string();
        let common = ["k8s", "run", "--name", name, "--namespace", "jobs", "--kubectl", &kubectl];
        let image = if flags.contains(&"--image") { &[][..] } else { &["--image", IMAGE] };
        let words = [&common[..], &["--image-pull-policy", "Never"], image, flags, program].concat();
        Running::start(&mut self.program("corro", &words))
    }

    /// Nothing of a job is left, within the time in which Kubernetes ends pods.
    fn is_clean(&self, name: &str) {
        let label = format!("app.kubernetes.io/name={name}");
        let kinds = "jobs,statefulsets,pods,services,secrets,networkpolicies";
        wait_until(&format!("nothing is left of {name}"), HANG_LIMIT, || {
            self.kubectl(&["get", kinds, "--selector", &label, "--output=name"]).is_empty()
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.borrowed {
            let _ = Self::script().arg("down").arg(&self.home).status();
        }
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster: make homes"]
fn kubernetes() {
    let cluster = Cluster::up();
    let parts: [fn(&Cluster); 9] = [
        what_is_written_is_what_the_server_takes,
        two_pods_train,
        the_first_that_failed_is_named,
        a_pod_that_can_not_begin_is_told,
        ctrl_c_leaves_nothing,
        an_elastic_job_goes_on,
        a_driver_that_is_to_go_ends_its_job_in_good_order,
        charts_are_what_the_server_takes,
        a_job_of_horovods_values,
    ];
    let failed = parts.iter().filter(|part| catch_unwind(AssertUnwindSafe(|| part(&cluster))).is_err()).count();
    assert_eq!(failed, 0, "of {} parts; each has told why above", parts.len());
}

fn succeeded(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
}

fn what_is_written_is_what_the_server_takes(cluster: &Cluster) {
    for flags in [
        "-n 2 --network-policy --time 60 --cpus 500m --memory 1Gi --gpus-per-rank 1",
        "-n 2 --min-np 1 --max-np 8 --network-policy --read-only-root --run-as-user 1000",
        "-n 4 --min-np 2 --priority-class system-cluster-critical --queue team --node-selector a=b --env A=1",
    ] {
        let words: Vec<&str> =
            ["k8s", "manifest", "--image", "i"].into_iter().chain(flags.split(' ')).chain(["true"]).collect();
        let text = cluster.program("corro", &words).output().unwrap();
        let file = cluster.folder.join("manifest.yaml");
        std::fs::write(&file, &text.stdout).unwrap();
        cluster.kubectl(&["apply", "--server-side", "--dry-run=server", "--filename", &file.display().to_string()]);
    }
}

fn two_pods_train(cluster: &Cluster) {
    let ran = cluster.start("digits", &["-n", "2", "--read-only-root", "--shm-size", "64Mi"], TRAIN).end();
    succeeded(&ran);
    let line = ran.out.lines().find(|line| line.contains("test accuracy")).unwrap_or_else(|| panic!("{}", ran.out));
    assert!(line.starts_with("[0]<stdout>:ranks 2"), "{line}");
    let accuracy: f64 = line.rsplit(' ').next().unwrap().trim_end_matches('%').parse().unwrap();
    assert!(accuracy > 95.0, "{line}");
    eprintln!("two pods: {line}, {:.1} s with everything", ran.took.as_secs_f64());
    cluster.is_clean("digits");
}

fn the_first_that_failed_is_named(cluster: &Cluster) {
    let script = "import numpy, corro.numpy as hvd, sys\nhvd.init()\nhvd.allreduce(numpy.ones(2), name='a')\n\
                  if hvd.rank() == 1: sys.exit(3)\nhvd.allreduce(numpy.ones(2), name='b')";
    let ran = cluster.start("fails", &["-n", "2"], &["python3", "-c", script]).end();
    assert_eq!(ran.code, Some(3), "{}\n{}", ran.out, ran.err);
    assert!(ran.err.contains("rank 1 (pod fails-1-") && ran.err.contains("failed with exit code 3"), "{}", ran.err);
    cluster.is_clean("fails");
}

fn a_pod_that_can_not_begin_is_told(cluster: &Cluster) {
    let running =
        cluster.start("missing", &["-n", "1", "--image", "localhost/nothing:1", "--start-timeout", "20"], &["true"]);
    let ran = running.end();
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("missing-0-") && ran.err.contains("ErrImageNeverPull"), "{}", ran.err);
    cluster.is_clean("missing");
}

fn ctrl_c_leaves_nothing(cluster: &Cluster) {
    let running = cluster.start("stopped", &["-n", "2"], &["sh", "-c", "echo begun; exec sleep 1000"]);
    running.wait_for("[1]<stdout>:begun");
    let twice = cluster.start("stopped", &["-n", "1"], &["true"]).end();
    assert!(twice.code == Some(2) && twice.err.contains("has a Job stopped already"), "{}", twice.err);
    running.signal("INT");
    assert_eq!(running.end().code, Some(130));
    cluster.is_clean("stopped");
}

/// A line that rank 0 of `elastic_pods.py` wrote.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    size: usize,
    at: f64,
}

fn steps(running: &Running) -> Vec<Step> {
    let text = running.out_so_far();
    let read = |line: &str| {
        let mut words = line.split_once(":step ")?.1.split(' ');
        let number = words.next()?.parse().ok()?;
        let size = words.nth(1)?.parse().ok()?;
        let at = words.nth(1)?.parse().ok()?;
        Some(Step { number, size, at })
    };
    text.lines().filter_map(read).collect()
}

/// The first step after `moment` with this many ranks; 0: with any.
fn step_after(running: &Running, moment: f64, size: usize) -> Step {
    let find = || steps(running).into_iter().find(|step| step.at > moment && (size == 0 || step.size == size));
    wait_until(
        &format!("a step of {size} ranks:\n{}\n{}", running.out_so_far(), running.err_so_far()),
        HANG_LIMIT,
        || find().is_some(),
    );
    find().unwrap()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The bar: the next step within 2 s of a kill, full size after the pod's return, nothing for those without the secret.
fn an_elastic_job_goes_on(cluster: &Cluster) {
    let script = include_str!("../elastic_pods.py");
    let flags = ["-n", "2", "--min-np", "1", "--max-np", "3", "--run-as-user", "1000"];
    let running = cluster.start("grows", &flags, &["python3", "-c", script, "3"]);
    step_after(&running, 0.0, 2);

    // Somebody without the secret, in the same namespace.
    let stranger = r#"{"spec": {"containers": [{"name": "stranger", "image": "localhost/corro:tests", "imagePullPolicy": "Never",
        "command": ["corro", "agent", "--join=grows:29401"],
        "env": [{"name": "CORRO_SECRET", "value": "0000000000000000000000000000000000000000000000000000000000000000"}],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}}}"#;
    let overrides = format!("--overrides={stranger}");
    cluster.kubectl(&["run", "stranger", "--restart=Never", "--image", IMAGE, &overrides]);
    let phase = || cluster.kubectl(&["get", "pod", "stranger", "--output=jsonpath={.status.phase}"]);
    wait_until("the stranger is sent away", HANG_LIMIT, || phase() == "Failed");
    let told = cluster.kubectl(&["logs", "stranger"]);
    assert!(told.contains("refused") && told.contains("CORRO_SECRET"), "{told}");
    cluster.kubectl(&["delete", "pod", "stranger", "--wait=false"]);

    for pod in ["grows-worker-1", "grows-worker-0"] {
        let last = steps(&running).last().copied().unwrap();
        // As if the machine had lost it: all its processes at once, and then the pod itself.
        let processes = marked(&format!("HOSTNAME={pod}"));
        assert!(!processes.is_empty(), "{pod} has processes here");
        let killed = now();
        for process in processes {
            kill(process, "KILL");
        }
        cluster.kubectl(&["delete", "pod", pod, "--grace-period=0", "--force"]);
        let next = step_after(&running, killed, 1);
        assert!(next.number > last.number, "nothing that was committed is lost: {last:?} {next:?}");
        let gap = next.at - killed;
        let whole = step_after(&running, next.at, 2);
        eprintln!("{pod} killed: next step after {gap:.2} s, full size after {:.1} s", whole.at - killed);
        assert!(gap < 2.0, "the others waited for {gap:.2} s");
    }

    let asked = now();
    cluster.kubectl(&["scale", "statefulset", "grows-worker", "--replicas=3"]);
    let grown = step_after(&running, asked, 3);
    eprintln!("scaled to 3: a step of 3 ranks after {:.1} s", grown.at - asked);
    cluster.kubectl(&["scale", "statefulset", "grows-worker", "--replicas=2"]);
    let ran = running.end();
    succeeded(&ran);
    // What the driver says comes from its pod's log, which has no standard error of its own.
    assert!(ran.out.contains("leaves: its system has sent"), "a pod that is to go says so first:\n{}", ran.out);
    cluster.is_clean("grows");
}

fn a_driver_that_is_to_go_ends_its_job_in_good_order(cluster: &Cluster) {
    let script = include_str!("../elastic_pods.py");
    let running = cluster.start("leaves", &["-n", "1", "--min-np", "1"], &["python3", "-c", script, "2"]);
    step_after(&running, 0.0, 1);
    let driver = "batch.kubernetes.io/job-name=leaves";
    cluster.kubectl(&["delete", "pod", "--selector", driver, "--wait=false"]);
    let ran = running.end();
    assert_eq!(ran.code, Some(75), "{}\n{}", ran.out, ran.err);
    eprintln!(
        "a driver that is to go: its job has ended by itself, with everything after {:.1} s",
        ran.took.as_secs_f64()
    );
    cluster.is_clean("leaves");
}

fn chart() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docker/helm").display().to_string()
}

fn charts_are_what_the_server_takes(cluster: &Cluster) {
    let sets = std::fs::read_dir(Path::new(&chart()).join("ci")).unwrap();
    let mut files: Vec<PathBuf> = sets.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10);
    for file in &files {
        let values = file.display().to_string();
        let lint = cluster.program("helm", &["lint", "--strict", &chart(), "--values", &values]).output().unwrap();
        assert!(lint.status.success(), "{values}: {}", String::from_utf8_lossy(&lint.stdout));
        let out = cluster.program("helm", &["template", "job", &chart(), "--values", &values]).output().unwrap();
        assert!(out.status.success(), "{values}: {}", String::from_utf8_lossy(&out.stderr));
        let rendered = cluster.folder.join("chart.yaml");
        std::fs::write(&rendered, &out.stdout).unwrap();
        // Not only known fields: admission too, which only warns of pods that a Job would make.
        let apply =
            ["apply", "--dry-run=server", "--warnings-as-errors", "--filename", &rendered.display().to_string()];
        let restricted = !["host", "privileged"].iter().any(|word| values.contains(word));
        let words = if restricted { &apply[..] } else { &["apply", "--dry-run=server", "--filename", apply[4]][..] };
        cluster.kubectl(words);
    }
    let wrong = cluster.program("helm", &["template", "job", &chart(), "--set", "worker.count=2"]).output().unwrap();
    assert!(!wrong.status.success(), "the schema knows what there is");
}

fn a_job_of_horovods_values(cluster: &Cluster) {
    let values = Path::new(&chart()).join("ci/horovod-values.yaml").display().to_string();
    let begin = Instant::now();
    let images = ["driver", "worker"].map(|part| {
        format!("{part}.image.repository=localhost/corro,{part}.image.tag=tests,{part}.image.pullPolicy=Never")
    });
    let install = [
        "install",
        "hvd",
        &chart(),
        "--values",
        &values,
        "--set",
        &images.join(","),
        "--wait",
        "--wait-for-jobs",
        "--timeout=80s",
    ];
    let out = cluster.program("helm", &install).output().unwrap();
    let log = cluster.program("kubectl", &["logs", "job/hvd-corro-driver"]).output().unwrap();
    let text = String::from_utf8_lossy(&log.stdout);
    assert!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("ranks 3   test accuracy"), "{text}");
    eprintln!("Horovod's values: trained after {:.1} s", begin.elapsed().as_secs_f64());
    let out = cluster.program("helm", &["uninstall", "hvd", "--wait", "--timeout=80s"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
