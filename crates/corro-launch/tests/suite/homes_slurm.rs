//! Jobs on a real Slurm cluster: slurmctld and two slurmd, each on a host of its own (`tests/slurm-cluster`). `make homes` installs
//! Slurm and runs this; about a minute.
//!
//! One test: its parts share the cluster, one after the other.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, Folder, HANG_LIMIT, corro, example, marked, training, wait_until};

struct Cluster {
    folder: Folder,
}

impl Cluster {
    fn script() -> Command {
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm-cluster"))
    }

    fn up() -> Self {
        let folder = Folder::new("slurm");
        let cluster = Self { folder };
        let out = Self::script().arg("up").arg(cluster.folder.path()).arg("2").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        cluster
    }

    /// A program of Slurm's.
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        support::clean(&mut command);
        command.args(words).env("SLURM_CONF", self.folder.join("slurm.conf")).env("HOME", self.folder.path());
        command
    }

    fn ask(&self, program: &str, words: &[&str]) -> String {
        let out = self.command(program, words).stdin(Stdio::null()).output().unwrap();
        assert!(out.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// Queues a batch script.
    fn submit(&self, flags: &[&str], script: &str) -> Batch<'_> {
        let file = self.folder.join("script");
        std::fs::write(&file, script).unwrap();
        let log = format!("{}/job-%j.log", self.folder.path().display());
        let path = file.display().to_string();
        let number = self.ask("sbatch", &[&["--parsable", "--output", &log][..], flags, &[&path]].concat());
        Batch { cluster: self, log: self.folder.join(format!("job-{number}.log")), number }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Self::script().arg("down").arg(self.folder.path()).status();
    }
}

/// A job in the queue.
struct Batch<'a> {
    cluster: &'a Cluster,
    number: String,
    log: std::path::PathBuf,
}

impl Batch<'_> {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is written:\n{}", self.text()), HANG_LIMIT, || self.text().contains(text));
    }

    /// Waits for its end, and gives what it wrote.
    fn end(&self) -> String {
        // One that is over is kept for a while, and then is no job any more.
        let over = || self.cluster.command("squeue", &["-h", "-j", &self.number, "-t", "PD,R,CG"]).output().unwrap();
        wait_until(&format!("job {} ends:\n{}", self.number, self.text()), HANG_LIMIT, || over().stdout.is_empty());
        self.text()
    }
}

/// A line in which `corro` is what is tested.
fn with_path(script: &str) -> String {
    let folder = corro().parent().unwrap().display().to_string();
    format!("#!/bin/bash\nexport PATH={folder}:$PATH CORRO_FLIGHT_RECORD_DIR=none\n{script}\n")
}

#[test]
#[ignore = "needs Slurm: make homes"]
fn slurm() {
    let cluster = Cluster::up();
    ranks_are_started_by_srun(&cluster);
    corro_run_uses_the_allocation(&cluster);
    a_failing_rank_ends_the_job(&cluster);
    a_node_is_taken_down(&cluster);
    preemption_is_a_commit_and_a_requeue(&cluster);
    its_time_is_up(&cluster);
    sixty_four_ranks_start_as_fast_as_by_srun(&cluster);
}

/// `srun program`, without any launcher of ours.
fn ranks_are_started_by_srun(cluster: &Cluster) {
    let text = cluster.ask("srun", &["-N2", "--ntasks-per-node=2", training(), "--steps", "40"]);
    assert!(text.contains("4 ranks: accuracy"), "{text}");
}

/// Neither `-np` nor hosts, and no ssh: in a batch script, and from outside of it by `salloc`.
fn corro_run_uses_the_allocation(cluster: &Cluster) {
    let show = r#"sh -c 'echo "rank $CORRO_RANK of $CORRO_SIZE local $CORRO_LOCAL_RANK on $(hostname) gpus $CUDA_VISIBLE_DEVICES"'"#;
    let flags = ["-N2", "--ntasks-per-node=2", "--gpus-per-node=2"];
    let text = cluster.submit(&flags, &with_path(&format!("corro run {show}"))).end();
    for line in ["rank 0 of 4 local 0 on s1 gpus 0,1", "rank 3 of 4 local 1 on s2 gpus 0,1"] {
        assert!(text.contains(line), "{text}");
    }
    // Only hosts were asked for: they share what -np says.
    let text = cluster.submit(&["-N2"], &with_path(&format!("corro run -np 6 {show}"))).end();
    assert!(text.contains("rank 2 of 6 local 2 on s1") && text.contains("rank 5 of 6 local 2 on s2"), "{text}");
    let train = format!("corro run {} --steps 40", training());
    let text = cluster.submit(&["-N2", "-n4"], &with_path(&train)).end();
    assert!(text.contains("4 ranks: accuracy"), "{text}");
    // The launcher on a login node: all hosts are others.
    let run = with_path(&format!("corro run {show}"));
    let text = cluster.ask("salloc", &["--quiet", "-N2", "-n2", "bash", "-c", &run]);
    assert!(text.contains("rank 0 of 2 local 0 on s1") && text.contains("rank 1 of 2 local 0 on s2"), "{text}");
}

/// Nothing is left, on no node.
fn a_failing_rank_ends_the_job(cluster: &Cluster) {
    let mark = format!("corro-slurm-{}", std::process::id());
    let script = format!("corro run sh -c 'test $CORRO_RANK = 1 && exit 7; sleep 300' {mark}; echo code $?");
    let text = cluster.submit(&["-N2", "-n2"], &with_path(&script)).end();
    assert!(text.contains("rank 1 on s2 exited with non-zero status: 7") && text.contains("code 7"), "{text}");
    wait_until("nothing is left", HANG_LIMIT, || marked(&mark).is_empty());
    // A host that is no node of the job: who says so, and what to do.
    let text = cluster.submit(&["-N1"], &with_path("corro run -H nowhere:1 true")).end();
    assert!(text.contains("nowhere") && text.contains("srun"), "{text}");
}

/// An elastic job goes on with the nodes that are left.
fn a_node_is_taken_down(cluster: &Cluster) {
    let run = format!("corro run -np 2 --min-np 1 {} 600 20; echo code $?", example("elastic"));
    let batch = cluster.submit(&["-N2", "-n2", "--no-kill"], &with_path(&run));
    batch.wait_for("step 20 rank 1 of 2");
    cluster.ask("scontrol", &["update", "nodename=s2", "state=down", "reason=test"]);
    batch.wait_for("is rank 0 of 1");
    cluster.ask("scontrol", &["update", "nodename=s2", "state=resume"]);
    let text = batch.end();
    assert!(text.contains("finished at step 600 sum 179700 as rank 0 of 1") && text.contains("code 0"), "{text}");
}

/// The batch file that `corro slurm script` writes, with what it is to run.
fn written(words: &[&str]) -> String {
    let out = Command::new(corro()).args(["slurm", "script"]).args(words).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let folder = corro().parent().unwrap().display().to_string();
    // The options of sbatch come first, then the shell's business.
    text.replacen("\n\n", &format!("\n\nexport PATH={folder}:$PATH CORRO_FLIGHT_RECORD_DIR=none\n"), 1)
}

/// A job that matters more wants the nodes: the elastic one ends at a commit, is queued again, and starts anew.
fn preemption_is_a_commit_and_a_requeue(cluster: &Cluster) {
    let worker = example("elastic");
    let script = written(&["-N", "2", "--min-np", "1", "--time", "10", &worker, "4000", "20"]);
    let batch = cluster.submit(&["--partition=low", "--exclusive"], &script);
    batch.wait_for("step 20 rank 1 of 2");
    let other = cluster.submit(&["-N2", "--exclusive", "--partition=high"], &with_path("echo it runs; sleep 2"));
    other.wait_for("it runs");
    let text = batch.text();
    assert!(text.contains("the batch system has sent signal 15 (SIGTERM) to s2"), "{text}");
    assert!(text.contains("saved at step") && text.contains("exit code 75"), "{text}");
    // Requeued jobs wait for two minutes; this one need not.
    let held = || cluster.ask("squeue", &["-h", "-o", "%T", "-j", &batch.number]);
    wait_until("it is queued again", HANG_LIMIT, || held().contains("PENDING"));
    other.end();
    cluster.ask("scontrol", &["update", &format!("JobId={}", batch.number), "StartTime=now"]);
    wait_until("it starts again", HANG_LIMIT, || batch.text().matches("is rank 1 of 2 in epoch 1").count() >= 2);
    cluster.ask("scancel", &[&batch.number]);
    batch.end();
}

/// Slurm tells the batch script before its time is up; here the test does.
fn its_time_is_up(cluster: &Cluster) {
    let worker = example("elastic");
    let batch = cluster.submit(&["--no-requeue"], &written(&["-N", "2", "--min-np", "1", &worker, "4000", "20"]));
    batch.wait_for("step 20 rank 1 of 2");
    cluster.ask("scancel", &["--batch", "--signal=USR1", &batch.number]);
    let text = batch.end();
    assert!(text.contains("corro run got SIGUSR1") && text.matches("saved at step").count() == 2, "{text}");
    assert!(text.contains("start it again to go on (exit code 75)"), "{text}");
}

/// The bar: no slower than srun's own start of as many processes, and a fifth. By turns, in one allocation; the median of each.
fn sixty_four_ranks_start_as_fast_as_by_srun(cluster: &Cluster) {
    const TIMES: usize = 7;
    let script = format!(
        "for i in $(seq {TIMES}); do\n\
           a=$(date +%s%N); srun -N2 -n64 --overlap --oversubscribe true; b=$(date +%s%N); corro run true; c=$(date +%s%N)\n\
           echo took $((b - a)) $((c - b))\n\
         done"
    );
    let begin = Instant::now();
    let text = cluster.submit(&["-N2", "-n64", "--ntasks-per-node=32"], &with_path(&script)).end();
    let took = text.lines().filter_map(|line| line.strip_prefix("took "));
    let pairs: Vec<Vec<u64>> = took.map(|line| line.split(' ').filter_map(|n| n.parse().ok()).collect()).collect();
    assert_eq!(pairs.len(), TIMES, "{text}");
    let median = |at: usize| {
        let mut all: Vec<u64> = pairs.iter().map(|pair| pair[at]).collect();
        all.sort_unstable();
        Duration::from_nanos(all[TIMES / 2])
    };
    let (srun, ours) = (median(0), median(1));
    println!(
        "64 ranks on two nodes, to the end of the job: srun {srun:?}, corro run {ours:?} ({:?} in all)",
        begin.elapsed()
    );
    assert!(ours <= srun.mul_f64(1.2) + Duration::from_millis(100), "srun {srun:?}, corro run {ours:?}\n{text}");
}
