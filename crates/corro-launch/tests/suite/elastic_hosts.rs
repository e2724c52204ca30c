//! Elastic jobs over several hosts: network namespaces, each with a real sshd. Ranks and hosts are lost, hosts come and go.

use std::time::Duration;

use crate::support::elastic::{Job, worker};
use crate::support::netns::Hosts;
use crate::support::{Folder, kill, marked, skip, wait_until};

/// Agents that have lost their launcher end what they have started within this.
const SOON: Duration = Duration::from_secs(60);

fn hosts(test: &str, count: usize) -> Option<Hosts> {
    Hosts::new(count).map_err(|why| skip(test, &why)).ok()
}

/// The engine's own patience is longer than the test: what is known to the driver must be enough.
fn start(hosts: &Hosts, flags: &[&str], steps: u64) -> Job {
    let (worker, steps) = (worker(), steps.to_string());
    let mut command = hosts.run_command(&[flags, &[&worker, &steps]].concat());
    command.env("CORRO_TIMEOUT", "600").env("CORRO_CONNECT_TIMEOUT", "600").env("CORRO_ELASTIC_ORPHAN_TIME", "2");
    Job::of(&mut command)
}

fn assert_empty(hosts: &Hosts, count: usize, limit: Duration) {
    for at in 0..count {
        hosts.wait_until_empty(at, limit);
    }
}

#[test]
fn a_rank_killed_on_another_host_is_replaced_there() {
    let Some(hosts) = hosts("a_rank_killed_on_another_host_is_replaced_there", 2) else { return };
    let job = start(&hosts, &["-H", &hosts.list(2), "-np", "4", "--min-np", "2"], 600);
    job.steps_in(1);
    kill(job.process(3, 4, 1), "KILL");
    let epoch = job.steps_in(2);
    // Full size again, on the same hosts.
    job.process(3, 4, epoch);
    let ran = job.finish(600);
    assert!(ran.err.contains("rank 3 on 10.78.0.2 was killed by signal 9 (SIGKILL)"), "{}", ran.err);
    assert!(!ran.err.contains("blacklisted"), "{}", ran.err);
    assert_empty(&hosts, 2, SOON);
}

/// Nobody closes a connection: the driver misses the host's word, and the ranks learn it from the driver. When the link is mended
/// later, those that were cut off find closed doors.
#[test]
fn a_host_that_is_cut_off_is_given_up() {
    let Some(hosts) = hosts("a_host_that_is_cut_off_is_given_up", 3) else { return };
    for mended in [false, true] {
        let flags = ["-H", &hosts.list(1), "-np", "3", "--min-np", "1", "--host-timeout", "2"];
        let job = start(&hosts, &flags, 800);
        job.steps_in(1);
        hosts.link(2, "down");
        job.process(0, 2, 2);
        job.steps_in(2);
        if mended {
            hosts.link(2, "up");
        }
        let mark = job.mark.clone();
        let ran = job.end(800);
        let text = "host 10.78.0.3 is blacklisted for the rest of the job (--blacklist-cooldown-range would give it another \
                    chance): nothing was heard from it for 2s (--host-timeout)";
        assert!(ran.err.contains(text), "{}", ran.err);
        // On the other side of the cut they find out by themselves.
        wait_until("nothing is left", SOON, || marked(&mark).is_empty());
        assert_empty(&hosts, 3, SOON);
        hosts.link(2, "up");
    }
}

#[test]
fn hosts_come_leave_and_vanish() {
    let Some(mut hosts) = hosts("hosts_come_leave_and_vanish", 3) else { return };
    let folder = Folder::new("elastic-hosts");
    let file = folder.join("hosts");
    let write = |list: &[usize]| {
        let text: Vec<String> = list.iter().map(|at| format!("{}:1\n", Hosts::address(*at))).collect();
        let draft = folder.join("draft");
        std::fs::write(&draft, text.concat()).unwrap();
        std::fs::rename(draft, &file).unwrap();
    };
    write(&[0, 1]);
    let script = format!("cat {}", file.display());
    let flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", &script, "--host-timeout", "2"];
    let job = start(&hosts, &flags, 2000);
    let epoch = job.steps_in(1);
    write(&[0, 1, 2]);
    job.process(2, 3, epoch + 1);
    // One leaves: in good order, and nothing stays there. That its machine is switched off then is no loss.
    write(&[0, 2]);
    let epoch = epoch + 2;
    job.process(1, 2, epoch);
    hosts.wait_until_empty(1, SOON);
    hosts.link(1, "down");
    // And comes back.
    hosts.link(1, "up");
    write(&[0, 1, 2]);
    job.process(2, 3, epoch + 1);
    let epoch = job.steps_in(epoch + 1);
    // Another vanishes without a word.
    hosts.crash(2);
    job.process(1, 2, epoch + 1);
    let ran = job.finish(2000);
    assert!(ran.err.contains("host 10.78.0.3 is blacklisted"), "{}", ran.err);
    assert!(!ran.err.contains("10.78.0.2 is blacklisted"), "{}", ran.err);
    assert_empty(&hosts, 3, SOON);
}
