//! Elastic jobs as processes: killed one by one and together, stopped, resized, left by their launcher. The worker is
//! `examples/elastic.rs`: its sum tells whether a step was lost or made twice.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::elastic::{Job, places, worker};
use crate::support::{Folder, HANG_LIMIT, kill, marked, wait_until};

/// Long enough for what is done to it in between.
const STEPS: u64 = 300;

#[test]
fn losses_are_survived_whoever_it_is() {
    for ranks in [&[2][..], &[0], &[1, 3], &[0, 1]] {
        let job = Job::start(&["-np", "4", "--min-np", "2"], &[], STEPS);
        job.steps_in(1);
        let victims: Vec<i32> = ranks.iter().map(|rank| job.process(*rank, 4, 1)).collect();
        let killed = Instant::now();
        for pid in victims {
            kill(pid, "KILL");
        }
        job.steps_in(2);
        eprintln!("{ranks:?} killed: ten steps of the next epoch were made after {:?}", killed.elapsed());
        let ran = job.finish(STEPS);
        assert!(ran.err.contains("was killed by signal 9 (SIGKILL)"), "{}", ran.err);
        // The lost ones were replaced on the same, only, host: full size again.
        assert!(ran.out.contains("finished at") && ran.out.contains("of 4\n"), "{}", ran.out);
    }
}

#[test]
fn a_spare_takes_the_place_at_once() {
    let job = Job::start(&["-np", "2", "--min-np", "1", "--spares", "1"], &[], STEPS);
    job.steps_in(1);
    job.running.wait_for_error("is ready to take a lost one's place");
    kill(job.process(1, 2, 1), "KILL");
    let pid = job.process(1, 2, 2);
    let ran = job.finish(STEPS);
    let first = places(&ran.out).into_iter().find(|p| p.0 == pid).unwrap();
    assert_eq!(first.3, 2, "the spare is in the very next epoch: {}", ran.out);
}

/// If a command can't be started at first, the job ends (see below). Later it is one worker's trouble: the others go on.
#[test]
fn a_command_that_has_vanished_costs_the_workers_that_are_started_later() {
    let folder = Folder::new("vanished");
    let link = folder.join("worker");
    std::os::unix::fs::symlink(worker(), &link).unwrap();
    let steps = STEPS.to_string();
    let job = Job::start_command(&["-np", "3", "--min-np", "2"], &[], &[link.to_str().unwrap(), &steps]);
    job.steps_in(1);
    std::fs::remove_file(&link).unwrap();
    kill(job.process(1, 3, 1), "KILL");
    job.steps_in(2);
    job.running.wait_for_error("could not be started: the command");
    let ran = job.finish(STEPS);
    assert!(ran.out.contains("of 2\n"), "{}", ran.out);
}

#[test]
fn one_that_dies_before_it_joins_is_started_again() {
    let worker = worker();
    let script = format!("if [ $CORRO_WORKER = 1 ]; then kill -9 $$; fi; exec {worker} 40");
    let job = Job::start_command(&["-np", "3", "--min-np", "3"], &[], &["sh", "-c", &script]);
    let ran = job.finish(40);
    assert!(ran.err.contains("worker 1 on localhost was killed by signal 9"), "{}", ran.err);
}

/// Killed at each moment of its first epoch's beginning. The others must not wait for it until the connect timeout, which is
/// longer here than the test may take.
#[test]
fn one_that_dies_while_ranks_meet_is_not_waited_for() {
    let probe = support::example("probe");
    let moments = ["seat".to_owned(), "card".to_owned()].into_iter().chain(support::moments(10, 10_000));
    for (turn, moment) in moments.enumerate() {
        // The first is whom the others of the host meet at.
        let victim = turn % 3;
        let script =
            format!("if [ $CORRO_WORKER = {victim} ]; then exec {probe} die {moment}; fi; exec {} 30", worker());
        let flags = ["-np", "3", "--min-np", "2"];
        let job = Job::start_command(&flags, &[("CORRO_CONNECT_TIMEOUT", "600")], &["sh", "-c", &script]);
        let ran = job.finish(30);
        assert!(ran.err.contains("was killed by signal 9 (SIGKILL)"), "worker {victim} at {moment}: {}", ran.err);
        eprintln!("worker {victim} killed at {moment}: done after {:?}", ran.took);
    }
}

#[test]
fn a_stopped_process_is_named_and_replaced() {
    let job = Job::start(&["-np", "3", "--min-np", "2"], &[("CORRO_ELASTIC_SILENCE", "2")], STEPS);
    job.steps_in(1);
    kill(job.process(1, 3, 1), "STOP");
    job.steps_in(2);
    let ran = job.finish(STEPS);
    assert!(
        ran.err.contains("rank 1 on localhost gave no sign of life for 2 s (CORRO_ELASTIC_SILENCE)"),
        "{}",
        ran.err
    );
}

/// A rank that hangs in its own code lives and says so; only those who wait for it can tell. They do, when `CORRO_TIMEOUT` is
/// over, and then it is ended and replaced.
#[test]
fn a_rank_that_hangs_in_its_own_code_is_named_and_replaced() {
    let worker = worker();
    let script = format!("if [ $CORRO_WORKER = 1 ]; then exec {worker} {STEPS} 10 20; fi; exec {worker} {STEPS}");
    let timeout = Duration::from_secs(4);
    let seconds = timeout.as_secs().to_string();
    let variables = [("CORRO_TIMEOUT", seconds.as_str())];
    let started = Instant::now();
    let job = Job::start_command(&["-np", "3", "--min-np", "2"], &variables, &["sh", "-c", &script]);
    job.running.wait_for("hangs at step 20");
    let (hung, to_start) = (Instant::now(), started.elapsed());
    let victim = job.process(1, 3, 1);
    job.process(0, 2, 2);
    let took = hung.elapsed();
    eprintln!("CORRO_TIMEOUT={seconds}: the others went on {took:?} after one of them hung");
    // A machine under load takes longer to start anything, the replacement too.
    let limit = timeout + Duration::from_secs(5) + 5 * to_start;
    assert!(took < limit, "{took:?}, and not {limit:?}; the job itself took {to_start:?} to start");
    wait_until("the one that hung is ended", HANG_LIMIT, || !marked(&job.mark).contains(&victim));
    let ran = job.finish(STEPS);
    assert!(ran.err.contains("rank 1 on localhost made the others wait in vain"), "{}", ran.err);
    assert!(ran.out.contains("of 3\n"), "it was replaced: {}", ran.out);
}

#[test]
fn a_discovery_script_that_runs_ends_with_the_job() {
    let folder = Folder::new("discovery");
    let asked = folder.join("asked");
    // Asked for the second time, it hangs, with a child in a session of its own.
    let script = format!(
        "echo localhost:2; [ -e {0} ] && {{ setsid sleep 300 & sleep 300 & touch {0}.again; wait; }}; touch {0}",
        asked.display()
    );
    let job = Job::start(&["-np", "2", "--min-np", "1", "--host-discovery-script", &script], &[], STEPS);
    wait_until("the script hangs", HANG_LIMIT, || folder.join("asked.again").exists());
    job.finish(STEPS);
}

#[test]
fn a_script_scales_the_job_up_and_down() {
    let folder = Folder::new("elastic");
    let hosts = folder.join("hosts");
    let write = |slots: usize| {
        let draft = folder.join("draft");
        std::fs::write(&draft, format!("localhost:{slots}\n")).unwrap();
        std::fs::rename(draft, &hosts).unwrap();
    };
    write(2);
    let script = format!("cat {}", hosts.display());
    let flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", &script];
    let job = Job::start(&flags, &[], 2000);
    let mut epoch = job.steps_in(1);
    let sizes = [3, 1, 4, 2, 3, 1];
    for size in sizes {
        write(size);
        job.process(0, size, epoch + 1);
        epoch = job.steps_in(epoch + 1);
    }
    let ran = job.finish(2000);
    eprintln!("{} changes of size in {:?}", sizes.len(), ran.took);
}

#[test]
fn below_the_least_it_ends_with_a_clear_word() {
    let ran =
        Job::start_command(&["-np", "2", "--min-np", "2"], &[], &["sh", "-c", "echo oh no >&2; exit 3"]).running.end();
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("of the 2 it takes to start (-np)") && ran.err.contains("oh no"), "{}", ran.err);

    // Those that are started in place of lost ones fail.
    let worker = worker();
    let script = format!("if [ $CORRO_WORKER -ge 3 ]; then exit 9; fi; exec {worker} 1000000");
    let job = Job::start_command(&["-np", "3", "--min-np", "3"], &[], &["sh", "-c", &script]);
    job.steps_in(1);
    kill(job.process(2, 3, 1), "KILL");
    let mark = job.mark.clone();
    let ran = job.running.end();
    assert_eq!(ran.code, Some(9), "{ran:?}");
    assert!(ran.err.contains("2 processes are left of the 3 it takes to go on (--min-np)"), "{}", ran.err);
    assert!(ran.err.contains("host localhost is blacklisted"), "{}", ran.err);
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn the_reset_limit_holds_and_lost_state_is_told() {
    let job = Job::start(&["-np", "3", "--min-np", "1", "--reset-limit", "0"], &[], 1_000_000);
    job.steps_in(1);
    kill(job.process(1, 3, 1), "KILL");
    let ran = job.running.end();
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert!(ran.err.contains("number of resets during elastic job exceeded limit: 0"), "{}", ran.err);

    let job = Job::start(&["-np", "2", "--min-np", "1"], &[], 1_000_000);
    job.steps_in(1);
    for pid in [job.process(0, 2, 1), job.process(1, 2, 1)] {
        kill(pid, "KILL");
    }
    let ran = job.running.end();
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert!(ran.err.contains("every process that held the state of the training is gone"), "{}", ran.err);
}

#[test]
fn without_its_launcher_a_job_goes_on_for_a_while_and_nobody_is_left() {
    // Long work: ended when the time is over. Short work: finished before.
    for (steps, orphan_time) in [("1000000", "3"), ("150", "60")] {
        let job = Job::start_command(
            &["-np", "3", "--min-np", "2"],
            &[("CORRO_ELASTIC_ORPHAN_TIME", orphan_time)],
            &[&worker(), steps],
        );
        job.steps_in(1);
        let mark = job.mark.clone();
        job.running.signal("KILL");
        job.running.end();
        let killed = Instant::now();
        assert!(marked(&mark).len() >= 3, "the workers go on");
        wait_until("nothing is left of the job", Duration::from_secs(50), || marked(&mark).is_empty());
        let took = killed.elapsed();
        eprintln!("{steps} steps: the last process ended {took:?} after the launcher was killed");
        assert!(steps != "1000000" || took > Duration::from_secs(2), "{took:?}");
    }
}

#[test]
fn an_interrupt_ends_it_all() {
    let job = Job::start(&["-np", "3", "--min-np", "2"], &[], 1_000_000);
    job.steps_in(1);
    job.running.signal("INT");
    let mark = job.mark.clone();
    let ran = job.running.end();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn commands_that_never_join_and_those_that_cannot_run() {
    let ran = Job::start_command(&["-np", "2", "--min-np", "1"], &[], &["true"]).running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = Job::start_command(&["-np", "2", "--min-np", "1"], &[], &["no-such-command"]).running.end();
    assert_eq!(ran.code, Some(127), "{ran:?}");
    let words = "on localhost could not be started: the command \"no-such-command\" was not found";
    assert!(ran.err.contains(words), "{}", ran.err);
    let ran = Job::start_command(&["-np", "2", "--host-discovery-script", "exit 5"], &[], &["true"]).running.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("the host discovery script exit 5"), "{}", ran.err);
}

#[test]
fn hosts_that_let_nobody_in_are_named_and_the_job_ends_without_enough() {
    for (hosts, left) in [("refuses.invalid:2", 0), ("localhost:1,refuses.invalid:1", 1)] {
        let flags = ["-np", "2", "--min-np", "1", "-H", hosts, "--remote-shell", "/bin/false"];
        let ran = Job::start_command(&flags, &[], &[&worker(), "20"]).running.end();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("host refuses.invalid is blacklisted"), "{}", ran.err);
        assert!(ran.err.contains(&format!("{left} processes are left of the 2 it takes to start")), "{}", ran.err);
    }
}

/// Processes that somebody else starts, and starts again, as a scheduler does.
struct Scheduled {
    port: u16,
    secret: String,
    steps: String,
    processes: Vec<Child>,
    output: Folder,
}

impl Scheduled {
    fn spawn(&self, rank: usize) -> Child {
        let mut command = Command::new(worker());
        support::clean(&mut command);
        let variables = [
            ("CORRO_ELASTIC", "1".to_owned()),
            ("CORRO_ELASTIC_MIN_NP", "1".to_owned()),
            ("CORRO_RANK", rank.to_string()),
            ("CORRO_SIZE", "3".to_owned()),
            ("CORRO_SECRET", self.secret.clone()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", (self.port - 1).to_string()),
        ];
        let output = std::fs::File::create(self.output.join(rank.to_string())).unwrap();
        command.arg(&self.steps).envs(variables).stdout(output).spawn().unwrap()
    }

    /// Waits until `rank` has made a step since it was started.
    fn works(&self, rank: usize) {
        let path = self.output.join(rank.to_string());
        wait_until(&format!("rank {rank} makes a step"), HANG_LIMIT, || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|line| line.starts_with("step ")))
        });
    }
}

#[test]
fn without_a_launcher_ranks_find_the_job_again() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let secret = format!("{:064x}", u128::from(std::process::id()) * 7919);
    let mut job =
        Scheduled { port, secret, steps: "800".into(), processes: Vec::new(), output: Folder::new("scheduled") };
    job.processes = (0..3).map(|rank| job.spawn(rank)).collect();
    // A member, then the one that holds the driver: both come back as new processes.
    for rank in [1, 0] {
        (0..3).for_each(|rank| job.works(rank));
        let process = &mut job.processes[rank];
        assert_eq!(process.try_wait().unwrap(), None, "it works when it is killed");
        process.kill().unwrap();
        process.wait().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        job.processes[rank] = job.spawn(rank);
    }
    for process in &mut job.processes {
        assert_eq!(support::wait(process, HANG_LIMIT).code(), Some(0));
    }
}
