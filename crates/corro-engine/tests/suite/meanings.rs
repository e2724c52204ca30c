//! What Horovod's users rely on: errors, groups, join, process sets, stalls, shutdown.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{numbers, of, on_hosts, on_ranks, ranks, sum};
use corro_core::{DType, Error, Rank, ReduceOp, Shape};
use corro_engine::{Allocate, Device, Kind, Options, Output, StallLimits, Submission};

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_mismatch_fails_those_tensors_everywhere_and_nothing_else() {
    for warm in [0, 10] {
        let texts = on_ranks(3, move |engine| {
            // With some steps before, the mismatch happens out of the plan.
            for _ in 0..warm {
                engine.run(sum("x", &[1.0, 2.0])).unwrap();
            }
            let odd = engine.rank().index() == 1;
            let good = engine.submit(sum("good", &[1.0])).unwrap();
            let bad = engine.submit(sum("x", if odd { &[1.0][..] } else { &[1.0, 2.0] })).unwrap();
            let text = text(bad.wait());
            assert_eq!(numbers(good.wait().unwrap()), [3.0]);
            assert_eq!(numbers(engine.run(sum("x", &[1.0, 2.0])).unwrap()), [3.0, 6.0]);
            text
        });
        assert!(
            texts[0].contains("Mismatched ALLREDUCE tensor shapes") && texts[0].contains("rank 1: [1]"),
            "{texts:?}"
        );
        assert!(texts.iter().all(|t| *t == texts[0]));
    }
}

#[test]
fn a_place_of_the_wrong_size_fails_that_tensor_everywhere_and_nothing_else() {
    for kind in [Kind::Allgather, Kind::Alltoall { splits: vec![] }, reducescatter()] {
        let texts = on_ranks(2, move |engine| {
            let with_room = |name: &str, bytes: usize| Submission {
                output: Output::InPlace(vec![0; bytes].into()),
                ..of(name, kind.clone(), &[2], &[1.0, 2.0])
            };
            let fits = if matches!(kind, Kind::Allgather) {
                16
            } else if matches!(kind, Kind::Alltoall { .. }) {
                8
            } else {
                4
            };
            let good = engine.submit(with_room("good", fits)).unwrap();
            let bad =
                engine.submit(with_room("bad", if engine.rank().index() == 1 { fits + 1 } else { fits })).unwrap();
            let text = text(bad.wait());
            good.wait().unwrap();
            assert_eq!(numbers(engine.run(sum("x", &[1.0, 2.0])).unwrap()), [2.0, 4.0]);
            text
        });
        assert!(texts[0].contains("Mismatched output size") && texts[0].contains("rank 1"), "{texts:?}");
        assert_eq!(texts[0], texts[1]);
    }
}

#[test]
fn a_rank_that_finds_no_room_for_a_result_fails_alone() {
    for steps in [1, 10] {
        on_ranks(3, move |engine| {
            for step in 0..steps {
                let odd = engine.rank().index() == 1 && step + 1 == steps;
                let room: Allocate = Box::new(move |shape: &Shape| match shape.bytes(DType::F32)? {
                    _ if odd && steps == 1 => Err(Error::io("making room", "there is none")),
                    bytes => Ok(vec![0; bytes + usize::from(odd)].into()),
                });
                let gather = of("g", Kind::Allgather, &[1], &[engine.rank().index() as f32]);
                let result = engine.run(Submission { output: Output::Allocate(room), ..gather });
                match result {
                    Ok(outcome) => assert!(!odd && numbers(outcome) == [0.0, 1.0, 2.0]),
                    Err(error) => assert!(odd, "{error}"),
                }
            }
            assert_eq!(numbers(engine.run(sum("x", &[1.0])).unwrap()), [3.0]);
        });
    }
}

/// The rank whose rows have not changed follows the plan, is called back from it, and then gets another number of rows.
#[test]
fn a_gather_leaves_the_plan_when_one_rank_brings_other_rows() {
    on_ranks(2, |engine| {
        let me = engine.rank().index();
        for step in 0..60 {
            let rows = |rank: usize| if step % 20 == 19 && rank == (step / 20) % 2 { 3 } else { 4 };
            let gather = of("g", Kind::Allgather, &[rows(me)], &vec![me as f32; rows(me)]);
            let room: Allocate = Box::new(|shape: &Shape| Ok(vec![0; shape.bytes(DType::F32)?].into()));
            let output = if step < 40 { Output::None } else { Output::Allocate(room) };
            let all = numbers(engine.run(Submission { output, ..gather }).unwrap());
            let expected: Vec<f32> = (0..2).flat_map(|rank| vec![rank as f32; rows(rank)]).collect();
            assert_eq!(all, expected, "step {step}");
        }
    });
}

/// The nearest bfloat16, ties to even.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Ranks whose tensors are said to be on GPUs, in host memory, as fronts hand them over.
#[test]
fn tensors_of_gpus_are_rounded_as_their_frameworks_do() {
    const N: usize = 3;
    let factor = bf16(0.3);
    let value = |rank: usize, i: usize| bf16(1.0 + 0.37 * i as f32 + 0.011 * (rank * i) as f32);
    let total = |i: usize| (0..N).map(|rank| value(rank, i)).sum::<f32>();
    let reduced = move |device: Device| {
        on_ranks(N, move |engine| {
            let (one, post) = (1f64.to_bits(), f64::from(factor).to_bits());
            let kinds = [
                Kind::Allreduce { op: ReduceOp::Sum, prescale: one, postscale: post, compression: None },
                Kind::Reducescatter { op: ReduceOp::Sum, prescale: one, postscale: post },
            ];
            kinds.map(|kind| {
                let bytes: Vec<u8> = (0..99)
                    .flat_map(|i| value(engine.rank().index(), i).to_bits().to_be_bytes().into_iter().take(2).rev())
                    .collect();
                let tensor = Submission {
                    input: Some(bytes.into()),
                    device,
                    ..Submission::new("x", kind, DType::BF16, Shape(vec![99]))
                };
                let bytes = engine.run(tensor).unwrap().into_bytes().unwrap();
                let number = |b: &[u8]| f32::from_bits(u32::from_be_bytes([b[1], b[0], 0, 0]));
                bytes.chunks_exact(2).map(number).collect::<Vec<f32>>()
            })
        })
    };
    let once: Vec<f32> = (0..99).map(|i| bf16(total(i) * factor)).collect();
    let twice: Vec<f32> = (0..99).map(|i| bf16(bf16(total(i)) * factor)).collect();
    assert_ne!(once, twice);
    for (device, wanted) in [(Device::Cpu, once), (Device::Gpu(0), twice)] {
        for (rank, [all, part]) in reduced(device).into_iter().enumerate() {
            assert_eq!(all, wanted, "{device:?}");
            assert_eq!(part, wanted[rank * 33..rank * 33 + 33], "{device:?}");
        }
    }
}

#[test]
fn a_tensor_on_a_gpu_does_not_meet_one_on_the_host() {
    let texts = on_ranks(3, |engine| {
        let device = if engine.rank().index() == 2 { Device::Gpu(0) } else { Device::Cpu };
        text(engine.run(Submission { device, ..sum("x", &[1.0]) }))
    });
    assert!(
        texts.iter().all(|text| text.contains("CPU/GPU device selection") && text.contains("rank 2: GPU")),
        "{texts:?}"
    );
}

fn reducescatter() -> Kind {
    let one = 1f64.to_bits();
    Kind::Reducescatter { op: ReduceOp::Sum, prescale: one, postscale: one }
}

#[test]
fn wrong_calls_are_refused_at_once() {
    on_ranks(2, |engine| {
        let first = engine.submit(sum("same", &[1.0])).unwrap();
        if engine.rank().index() == 0 {
            assert!(text(engine.submit(sum("same", &[1.0]))).contains("same name as another tensor"));
            let cast = of("cast", Kind::Broadcast { root: Rank::new(7) }, &[1], &[1.0]);
            assert!(text(engine.submit(cast)).contains("broadcast received invalid root rank"));
            let other = Submission { set: 9, ..sum("set", &[1.0]) };
            assert!(text(engine.submit(other)).contains("Process set provided does not exist"));
            let splits = Kind::Alltoall { splits: vec![1, 1, 1] };
            assert!(
                text(engine.submit(of("a2a", splits, &[3], &[1.0; 3]))).contains("does not equal number of workers")
            );
            let splits = Kind::Alltoall { splits: vec![3, 3] };
            assert!(
                text(engine.submit(of("a2a", splits, &[3], &[1.0; 3]))).contains("greater than the first dimension")
            );
            let short = Submission::allreduce("short", ReduceOp::Sum, DType::F32, Shape(vec![4]), vec![0; 3].into());
            assert!(text(engine.submit(short)).contains("has 16 bytes, but 3 were given"));
            let cramped = Submission {
                output: Output::InPlace(vec![0; 3].into()),
                ..of("cramped", Kind::Broadcast { root: Rank::ZERO }, &[1], &[1.0])
            };
            assert!(text(engine.submit(cramped)).contains("has 4 bytes, but 3 were given"));
        }
        assert_eq!(numbers(first.wait().unwrap()), [2.0]);
    });
}

#[test]
fn groups_complete_together_or_not_at_all() {
    on_hosts(&[0, 0, 1], Options::default, |engine| {
        for step in 0..8 {
            let group: Vec<_> = (0..3).map(|t| sum(format!("g{t}"), &[t as f32])).collect();
            let tickets = engine.submit_group(group).unwrap();
            let values: Vec<f32> = tickets.into_iter().flat_map(|t| numbers(t.wait().unwrap())).collect();
            assert_eq!(values, [0.0, 3.0, 6.0], "step {step}");
        }
        let odd = if engine.rank().index() == 2 { 2 } else { 1 };
        let group = vec![sum("h0", &[1.0]), sum("h1", &vec![1.0; odd]), sum("h2", &[1.0])];
        for ticket in engine.submit_group(group).unwrap() {
            assert!(text(ticket.wait()).contains("Mismatched ALLREDUCE tensor shapes"));
        }
        let twice = engine.submit_group(vec![sum("i", &[1.0]), sum("i", &[1.0])]);
        assert!(text(twice).contains("same name"));
        assert_eq!(numbers(engine.run(sum("i", &[1.0])).unwrap()), [3.0]);
    });
}

#[test]
fn the_joined_bring_zeros_and_all_learn_who_came_last() {
    let last = on_hosts(&[0, 0, 1], Options::default, |engine| {
        let mut results = Vec::new();
        for round in 0..2 {
            // Rank r has r + 4 steps of data: enough for a plan before the first joins.
            for step in 0..engine.rank().index() + 6 {
                let sum = numbers(engine.run(sum("x", &[1.0])).unwrap());
                let still = (0..3).filter(|r| r + 6 > step).count();
                assert_eq!(sum, [still as f32], "round {round} step {step}");
            }
            if engine.rank().index() == 2 {
                let gather = engine.run(of("gather", Kind::Allgather, &[1], &[1.0]));
                assert!(text(gather).contains("is not supported with Join at this time"));
            }
            results.push(engine.join().unwrap().wait().unwrap().last_joined);
        }
        results
    });
    assert!(last.iter().all(|l| *l == [Some(Rank::new(2)); 2]), "{last:?}");
}

#[test]
fn process_sets_come_and_go_and_work_side_by_side() {
    on_hosts(&[0, 0, 1, 1], Options::default, |engine| {
        let even = engine.add_process_set(&ranks(&[0, 2])).unwrap();
        let odd = engine.add_process_set(&ranks(&[3, 1])).unwrap();
        assert_eq!((even, odd), (1, 2));
        assert!(text(engine.add_process_set(&ranks(&[2, 0]))).contains("duplicate process set"));
        assert!(text(engine.add_process_set(&ranks(&[0, 9]))).contains("rank 9"));
        let mine = if engine.rank().index() % 2 == 0 { even } else { odd };
        let other = even + odd - mine;
        let stranger = Submission { set: other, ..sum("x", &[1.0]) };
        assert!(text(engine.submit(stranger)).contains("is not a member of the provided process set"));
        for step in 0..10 {
            // The same name in several sets at once; the odd ones do many more steps than the even ones.
            for _ in 0..=(engine.rank().index() % 2) * 5 {
                let x = Submission { set: mine, ..sum("x", &[engine.rank().index() as f32]) };
                let want = if mine == even { 2.0 } else { 4.0 };
                assert_eq!(numbers(engine.run(x).unwrap()), [want], "step {step}");
            }
        }
        let root = Rank::new(if mine == even { 2 } else { 1 });
        let cast =
            Submission { set: mine, ..of("cast", Kind::Broadcast { root }, &[1], &[engine.rank().index() as f32]) };
        assert_eq!(numbers(engine.run(cast).unwrap()), [root.index() as f32]);
        assert!(engine.remove_process_set(even).unwrap());
        assert!(!engine.remove_process_set(even).unwrap() && !engine.remove_process_set(0).unwrap());
        assert_eq!(engine.process_sets(), [(0, ranks(&[0, 1, 2, 3])), (2, ranks(&[1, 3]))]);
        // Freed numbers are used again.
        assert_eq!(engine.add_process_set(&ranks(&[0, 1, 2])).unwrap(), 1);
        assert_eq!(numbers(engine.run(sum("x", &[1.0])).unwrap()), [4.0]);
    });
}

#[test]
fn ranks_that_add_different_sets_are_told() {
    let texts = on_ranks(2, |engine| text(engine.add_process_set(&[engine.rank()])));
    assert!(texts.iter().all(|t| t.contains("mismatching") && *t == texts[0]), "{texts:?}");
}

#[test]
fn shutdown_from_any_rank_ends_what_waits_everywhere() {
    for hosts in [&[0, 0, 0][..], &[0, 0, 1]] {
        for warm in [0, 8] {
            let texts = on_hosts(hosts, Options::default, move |engine| {
                for _ in 0..warm {
                    engine.run(sum("x", &[1.0])).unwrap();
                }
                if engine.rank().index() == 1 {
                    std::thread::sleep(Duration::from_millis(100));
                    engine.shutdown();
                    return text(engine.run(sum("y", &[1.0])));
                }
                let waiting = text(engine.run(sum("x", &[1.0])));
                assert!(text(engine.run(sum("y", &[1.0]))).contains("Horovod has been shut down"));
                waiting
            });
            assert!(texts.iter().all(|t| t.contains("Horovod has been shut down")), "{texts:?}");
        }
    }
}

/// How many threads of engines in this process may run on `core` alone.
fn threads_on(core: usize) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let file = |task: &std::fs::DirEntry, name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
    let is_there = |task: &std::fs::DirEntry| {
        file(task, "comm").starts_with("corro-")
            && file(task, "status")
                .lines()
                .any(|l| l.strip_prefix("Cpus_allowed_list:").map(str::trim) == Some(&core.to_string()))
    };
    tasks.filter(is_there).count()
}

#[test]
fn the_engines_threads_stay_where_the_user_wants_them() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        let test = "the_engines_threads_stay_where_the_user_wants_them";
        return corro_testing::skip(test, "where there is one core, all threads are on it");
    }
    let core = corro_transport::cores::current();
    let options = move || Options { cores: vec![core], ..Options::default() };
    on_hosts(&[0, 0], options, move |engine| {
        assert_eq!(numbers(engine.run(sum("x", &[1.0])).unwrap()), [2.0]);
        let until = Instant::now() + Duration::from_secs(20);
        // Those of one rank: the other has no core in the list.
        while threads_on(core) != 2 {
            assert!(Instant::now() < until, "{} threads on core {core}", threads_on(core));
            std::thread::sleep(Duration::from_millis(5));
        }
        engine.run(sum("y", &[1.0])).unwrap();
    });
}

/// Options, and a list into which the log of this process goes from now on: that of tests beside this one, too.
fn heard(limits: StallLimits) -> (impl Fn() -> Options, Arc<Mutex<Vec<String>>>) {
    static LISTS: Mutex<Vec<Arc<Mutex<Vec<String>>>>> = Mutex::new(Vec::new());
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let sink = |line: &str| LISTS.lock().unwrap().iter().for_each(|l| l.lock().unwrap().push(line.to_owned()));
        let options = corro_log::Options { with_time: false, colour: false, ..corro_log::Options::from_env() };
        tracing::subscriber::set_global_default(corro_log::Log::new(options, Box::new(sink))).unwrap();
    });
    let lines = Arc::new(Mutex::new(Vec::new()));
    LISTS.lock().unwrap().push(Arc::clone(&lines));
    (move || Options { stalls: limits, ..Options::default() }, lines)
}

#[test]
fn a_rank_that_withholds_a_tensor_is_named_once_for_all() {
    for warm in [0, 3, 8] {
        const WARN: Duration = Duration::from_millis(300);
        let (options, lines) = heard(StallLimits { warn: WARN, shutdown: Duration::ZERO });
        let (start, written) = (Instant::now(), Arc::clone(&lines));
        on_hosts(&[0, 0, 1], options, move |engine| {
            for _ in 0..warm {
                engine.run(sum("tardy", &[1.0])).unwrap();
            }
            if engine.rank().index() == 1 {
                corro_testing::wait_until("a warning is written", Duration::from_secs(20), || {
                    !written.lock().unwrap().is_empty()
                });
                std::thread::sleep(5 * WARN);
            }
            assert_eq!(numbers(engine.run(sum("tardy", &[1.0])).unwrap()), [3.0]);
        });
        let lines = lines.lock().unwrap();
        let told = |rank: usize| {
            let tells = |l: &&String| l.contains(&format!("[{rank}]")) && l.contains("Missing ranks:\n1: [tardy]");
            lines.iter().filter(tells).count()
        };
        // At 0.3 s, 0.6 s, 1.2 s and so on: not every 0.3 s, and not from everybody.
        let most = (start.elapsed().as_secs_f64() / WARN.as_secs_f64()).log2().ceil() as usize + 1;
        assert!((1..=most).contains(&told(0)) && told(1) + told(2) == 0, "after {warm} steps: {lines:?}");
    }
}

#[test]
fn with_a_shutdown_time_all_fail_with_the_same_text() {
    let limits = StallLimits { warn: Duration::from_millis(200), shutdown: Duration::from_millis(600) };
    for warm in [0, 8] {
        let (options, lines) = heard(limits);
        let start = Instant::now();
        let heard = Arc::clone(&lines);
        let texts = on_hosts(&[0, 0, 1], options, move |engine| {
            for _ in 0..warm {
                engine.run(sum("late", &[1.0])).unwrap();
            }
            if engine.rank().index() == 1 {
                // Not before the others are known to wait: who waits longest is right.
                corro_testing::wait_until("a warning is written", Duration::from_secs(20), || {
                    !heard.lock().unwrap().is_empty()
                });
                let _own = engine.submit(sum("own", &[1.0])).unwrap();
                while engine.over().is_none() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            text(engine.run(sum("late", &[1.0])))
        });
        assert!(texts[0].contains("lost rank 1") && texts[0].contains("1!: [late]"), "{texts:?}");
        assert!(texts[0].contains("last submitted allreduce own"), "{texts:?}");
        assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
        let lines = lines.lock().unwrap();
        for rank in [0, 2] {
            assert!(lines.iter().any(|l| l.contains(&format!("[{rank}]")) && l.contains("\n1!: [late]")), "{lines:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(50));
    }
}

/// Without any limit: what is found here is not found by waiting.
fn for_ever() -> Options {
    let stalls = StallLimits { warn: Duration::ZERO, shutdown: Duration::ZERO };
    Options { stalls, ..Options::default() }
}

#[test]
fn who_waits_for_whom_is_told_at_once_where_nothing_can_come() {
    for warm in [0, 8] {
        let texts = on_hosts(&[0, 0, 1], for_ever, move |engine| {
            for _ in 0..warm {
                engine.run(sum("x", &[1.0])).unwrap();
            }
            // One that all have submitted, nobody waits for, and that is done.
            let done = engine.submit(sum("done", &[1.0])).unwrap();
            let text = text(engine.run(sum(if engine.rank().index() == 1 { "own" } else { "late" }, &[1.0])));
            done.wait().unwrap();
            text
        });
        assert!(texts[0].contains("waits for 'late', which rank 1 has not submitted"), "{texts:?}");
        assert!(texts[0].contains("waits for 'own', which ranks 0, 2 have not submitted"), "{texts:?}");
        assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
    }
}

#[test]
fn ranks_of_a_process_set_that_wait_for_each_other_are_found_while_others_work() {
    let texts = on_hosts(&[0, 0, 1], for_ever, move |engine| {
        let set = engine.add_process_set(&ranks(&[0, 1])).unwrap();
        if engine.rank().index() == 2 {
            while engine.over().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let name = if engine.rank().index() == 0 { "a" } else { "b" };
        let set = if engine.rank().index() == 2 { 0 } else { set };
        text(engine.run(Submission { set, ..sum(name, &[1.0]) }))
    });
    assert!(texts[0].contains("waits for 'a', which rank 1 has not submitted"), "{texts:?}");
    assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
}

#[test]
fn a_join_that_waits_for_one_who_waits_for_a_tensor_is_found() {
    let texts = on_hosts(&[0, 0, 1], for_ever, move |engine| match engine.rank().index() {
        0 => text(engine.join().unwrap().wait()),
        // Rank 0 stands aside, but rank 2 and rank 1 want different things.
        1 => text(engine.run(sum("a", &[1.0]))),
        _ => text(engine.run(sum("b", &[1.0]))),
    });
    assert!(texts[0].contains("waits for 'join', which ranks 1, 2 have not submitted"), "{texts:?}");
}

#[test]
fn a_rank_with_a_thread_that_still_works_is_not_taken_for_blocked() {
    on_hosts(&[0, 0], for_ever, move |engine| {
        if engine.rank().index() == 1 {
            assert_eq!(numbers(engine.run(sum("b", &[1.0])).unwrap()), [2.0]);
            assert_eq!(numbers(engine.run(sum("a", &[1.0])).unwrap()), [2.0]);
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Has taken part, and comes back to it much later.
                engine.submit(sum("c", &[1.0])).unwrap();
                std::thread::sleep(Duration::from_millis(1500));
                engine.run(sum("b", &[1.0])).unwrap();
            });
            assert_eq!(numbers(engine.run(sum("a", &[1.0])).unwrap()), [2.0]);
        });
    });
}
