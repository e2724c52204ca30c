//! Ranks as processes: every collective gives what it must, memory stays small, and nothing is left behind.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support;
use corro_collectives::{Group, ReduceOp};
use corro_testing::job::{Job, Plan, put_into_pid_namespace, role, say, say_result, start_child, wait_for_go};
use corro_transport::Fabric;
use rustix::process::Signal;

const MIB: usize = 1 << 20;

/// What the processes that the tests below start do.
#[test]
#[ignore = "a rank that other tests start"]
fn rank_process() {
    let Some(role) = role() else { return };
    if role == "child" {
        return say(Fabric::from_env().map_or_else(|error| error.to_string(), |_| "joined".into()));
    }
    let fabric = Fabric::from_env().expect("joining the job");
    let mut world = Group::world(&fabric).expect("opening the world");
    match role.as_str() {
        "collectives" => collectives(&mut world),
        "memory" => memory(&mut world),
        "parent" => {
            say(start_child(rank_process, "child"));
            collectives(&mut world);
        }
        "loop" => {
            let mut data = vec![1f32; 300_000];
            say("in");
            loop {
                if let Err(error) = world.allreduce(&mut data, ReduceOp::Max) {
                    say_result::<()>(&Err(error));
                    return;
                }
            }
        }
        other => panic!("no such role: {other}"),
    }
}

/// Every collective, a few lengths each.
fn collectives(world: &mut Group) {
    let (n, me) = (world.size(), world.rank());
    for len in [0, 1, 7, 1000, 300_001] {
        let mut data = support::numbers(me, len);
        world.allreduce(&mut data, ReduceOp::Sum).expect("allreduce");
        assert_eq!(data, support::model::sum_of_numbers(n, len));

        let mut data = support::numbers(me, len);
        world.broadcast(&mut data, n - 1).expect("broadcast");
        assert_eq!(data, support::numbers(n - 1, len));

        let all = world.allgather(&support::numbers(me, len + me)).expect("allgather");
        assert_eq!(all, (0..n).flat_map(|r| support::numbers(r, len + r)).collect::<Vec<_>>());

        let part = world.reducescatter(&support::numbers(me, len), len, ReduceOp::Sum).expect("reducescatter");
        assert_eq!(part, support::model::sum_of_numbers(n, len)[corro_core::shape::share(len, n, me)]);

        let split = |from: usize, to: usize| (len / n + from + 2 * to) % 1000;
        let letters: Vec<i32> = (0..n).flat_map(|to| support::letter(me, to, split(me, to))).collect();
        let splits: Vec<usize> = (0..n).map(|to| split(me, to)).collect();
        let (came, _) = world.alltoall(&letters, &splits).expect("alltoall");
        assert_eq!(came, (0..n).flat_map(|from| support::letter(from, me, split(from, me))).collect::<Vec<_>>());
    }
    world.barrier().expect("barrier");
    say("ok");
}

/// Says by how much 64 MiB of private data made this process grow beyond the data itself.
fn memory(world: &mut Group) {
    let mut small = [1f32; 100];
    world.allreduce(&mut small, ReduceOp::Sum).expect("a first allreduce");
    let mut data = vec![world.rank() as f32 + 1.0; 64 * MIB / 4];
    let before = resident();
    for _ in 0..2 {
        world.allreduce(&mut data, ReduceOp::Max).expect("allreduce");
    }
    let after = resident();
    assert!(data.iter().all(|v| v.to_bits() == (world.size() as f32).to_bits()));
    say(after.saturating_sub(before));
    wait_for_go();
    world.barrier().expect("barrier");
}

/// Resident bytes of this process, shared and private.
fn resident() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = rollup.lines().find(|l| l.starts_with("Rss:")).expect("a line with Rss");
    let kib: usize = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024
}

/// What of ours lies in /dev/shm.
fn files_in_dev_shm() -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("corro")).collect()
}

/// Hosts of 2, 1, 2, 1, ... ranks.
fn on_several_hosts(plan: Plan<'_>) -> Plan<'_> {
    plan.adapt(|rank, command| {
        command.env("CORRO_HOSTNAME", format!("host{}", rank % 3 / 2 + rank / 3 * 2));
        command.env("CORRO_FUSION_THRESHOLD", (4 * MIB).to_string());
    })
}

fn runs_well(plan: Plan<'_>) {
    let mut job = plan.start();
    job.expect(0..job.len(), "ok");
    job.all_end_well();
}

#[test]
fn two_processes() {
    runs_well(Plan::new(rank_process, "collectives", 2));
}

#[test]
fn four_processes() {
    runs_well(Plan::new(rank_process, "collectives", 4));
}

#[test]
fn eight_processes() {
    runs_well(Plan::new(rank_process, "collectives", 8));
}

#[test]
fn processes_that_only_tcp_connects() {
    runs_well(Plan::new(rank_process, "collectives", 3).apart());
}

#[test]
fn processes_on_several_hosts() {
    runs_well(on_several_hosts(Plan::new(rank_process, "collectives", 5)));
}

fn growths(job: &mut Job) -> Vec<usize> {
    let growths = job.hear_all().iter().map(|text| text.parse().expect("a number")).collect();
    job.go_all();
    job.all_end_well();
    growths
}

/// The board is 5 slots of 256 KiB a member; long private data passes through it. A copy of the data would be 64 MiB.
#[test]
fn private_data_is_never_copied_whole_in_shared_memory() {
    let before = files_in_dev_shm();
    let mut job = Plan::new(rank_process, "memory", 2).start();
    let growths = growths(&mut job);
    assert!(growths.iter().all(|g| *g < 16 * MIB), "{growths:?}");
    assert!(files_in_dev_shm().is_subset(&before));
}

#[test]
fn private_data_is_never_copied_whole_over_tcp() {
    let growths = growths(&mut Plan::new(rank_process, "memory", 2).apart().start());
    assert!(growths.iter().all(|g| *g < 16 * MIB), "{growths:?}");
}

/// Between hosts the data passes through the areas: 4 MiB here, of which a rank sees its own and its neighbour's.
#[test]
fn private_data_is_never_copied_whole_between_hosts() {
    let growths = growths(&mut on_several_hosts(Plan::new(rank_process, "memory", 3)).start());
    assert!(growths.iter().all(|g| *g < 24 * MIB), "{growths:?}");
}

#[test]
fn nothing_is_left_of_a_job_that_was_killed() {
    let before = files_in_dev_shm();
    let mut job = Plan::new(rank_process, "loop", 3).start();
    job.expect(0..3, "in");
    std::thread::sleep(Duration::from_millis(200));
    assert!(files_in_dev_shm().is_subset(&before), "while it runs");
    assert!(!sockets_of(&job), "the meeting is over, its socket gone");
    assert_eq!(processes_of(&job).len(), 3);
    for i in 0..3 {
        job.signal(i, Signal::KILL);
    }
    for i in 0..3 {
        assert!(!job.ended_well(i));
    }
    assert!(files_in_dev_shm().is_subset(&before), "afterwards");
    assert!(!sockets_of(&job));
    assert_eq!(processes_of(&job), Vec::<u32>::new());
}

/// Processes that were started to meet at this job's store.
fn processes_of(job: &Job) -> Vec<u32> {
    let sign = format!("CORRO_RENDEZVOUS={}", job.store.address());
    let is_ours = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == sign.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// Whether a socket with the job's name is open.
fn sockets_of(job: &Job) -> bool {
    let derived = job.secret.derive("job name");
    let name = format!("{:032x}", u128::from_be_bytes(derived[..16].try_into().expect("16 bytes")));
    std::fs::read_to_string("/proc/net/unix").unwrap_or_default().contains(&name)
}

/// A process with the environment of a rank is told whose it is, and the job goes on.
fn children_are_no_ranks(plan: Plan<'_>) {
    let mut job = plan.start();
    for (rank, said) in job.hear_all().into_iter().enumerate() {
        let holder = format!("rank {rank} of this job is held by process {} on ", job.pid(rank));
        assert!(said.starts_with(&holder) && said.contains("__main__"), "{said}");
    }
    job.expect(0..3, "ok");
    job.all_end_well();
}

#[test]
fn a_child_of_a_rank_is_told_that_it_is_none() {
    children_are_no_ranks(Plan::new(rank_process, "parent", 3));
}

/// As Open MPI starts ranks, which then meet by a file.
fn without_our_launcher(rank: usize, command: &mut std::process::Command, namespace: &str, folder: &std::path::Path) {
    for ours in ["CORRO_RANK", "CORRO_SIZE", "CORRO_RENDEZVOUS", "CORRO_SECRET"] {
        command.env_remove(ours);
    }
    command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
    command.envs([("OMPI_COMM_WORLD_SIZE", "3"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"), ("PMIX_NAMESPACE", namespace)]);
    command.env("CORRO_MEET_DIR", folder);
}

#[test]
fn a_child_of_a_rank_that_another_launcher_started_is_told_that_it_is_none() {
    let folder = std::env::temp_dir().join(format!("corro-children-{}", std::process::id()));
    let namespace = format!("children-{}", std::process::id());
    let adapt = |rank: usize, command: &mut std::process::Command| {
        without_our_launcher(rank, command, &namespace, &folder);
    };
    children_are_no_ranks(Plan::new(rank_process, "parent", 3).adapt(adapt));
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 0, "something was left in it");
    std::fs::remove_dir(&folder).expect("removing it");
}

/// One container a rank, with the network of the host: a rank's process number means nothing to the others.
#[test]
fn ranks_in_process_namespaces_of_their_own_share_memory() {
    let adapt = |_: usize, command: &mut std::process::Command| put_into_pid_namespace(command);
    let mut job = Plan::new(rank_process, "collectives", 3).adapt(adapt).start();
    job.expect(0..3, "ok");
    job.all_end_well();
}

#[test]
fn a_death_in_another_process_namespace_is_noticed() {
    let adapt = |_: usize, command: &mut std::process::Command| put_into_pid_namespace(command);
    let job = Plan::new(rank_process, "loop", 3).adapt(adapt).start();
    job.expect(0..3, "in");
    // The process that was started waits for the rank, and takes it along.
    job.signal(1, Signal::KILL);
    for i in [0, 2] {
        let said = job.hear(i);
        assert!(said.contains("rank 1"), "{said}");
    }
}
