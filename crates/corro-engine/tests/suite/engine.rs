//! The engine with real threads, wires and collectives.

use std::time::Duration;

use crate::support::{LIMIT, numbers, of, on_hosts, on_ranks, sum};
use corro_core::Rank;
use corro_engine::metrics::Count;
use corro_engine::{GLOBAL, Kind, Options};

/// One host; two hosts of two; each on its own; uneven.
const HOSTS: [&[usize]; 5] = [&[0], &[0, 0], &[0, 0, 1, 1], &[0, 1, 2], &[0, 0, 0, 1, 1, 2]];

#[test]
fn tensors_submitted_in_any_order_are_reduced() {
    for hosts in HOSTS {
        let n = hosts.len();
        let results = on_hosts(hosts, Options::default, move |engine| {
            for step in 0..20 {
                let mut order: Vec<usize> = (0..10).collect();
                order.rotate_left((engine.rank().index() * 3 + step) % 10);
                let tickets: Vec<_> = order
                    .iter()
                    .map(|t| (*t, engine.submit(sum(format!("t{t}"), &vec![*t as f32 + step as f32; 100])).unwrap()))
                    .collect();
                for (t, ticket) in tickets {
                    let want = (t + step) as f32 * n as f32;
                    assert_eq!(numbers(ticket.wait().unwrap()), vec![want; 100]);
                }
            }
            // (Not the gear at the end: on a busy machine a plan may just have been given up for a rank that was late.)
            engine.metrics().get(Count::PlanEntries)
        });
        assert!(results.iter().all(|planned| *planned > 0), "{hosts:?}: {results:?}");
    }
}

#[test]
fn every_collective_gives_its_result() {
    for hosts in HOSTS {
        let n = hosts.len();
        on_hosts(hosts, Options::default, move |engine| {
            let r = engine.rank().index();
            for _ in 0..3 {
                let mine = vec![r as f32; (r + 1) * 2];
                let all = engine.run(of("gather", Kind::Allgather, &[r + 1, 2], &mine)).unwrap();
                assert_eq!(all.shape.0, [n * (n + 1) / 2, 2]);
                let want: Vec<f32> = (0..n).flat_map(|m| vec![m as f32; (m + 1) * 2]).collect();
                assert_eq!(numbers(all), want);

                let root = Rank::new(n - 1);
                let sent = engine.run(of("cast", Kind::Broadcast { root }, &[3], &[r as f32; 3])).unwrap();
                assert_eq!(numbers(sent), [root.index() as f32; 3]);

                let rows: Vec<f32> = (0..n).map(|m| (r * n + m) as f32).collect();
                let swapped = engine.run(of("swap", Kind::Alltoall { splits: vec![] }, &[n], &rows)).unwrap();
                assert_eq!(swapped.received_splits, vec![1; n]);
                assert_eq!(numbers(swapped), (0..n).map(|m| (m * n + r) as f32).collect::<Vec<_>>());

                let one = 1f64.to_bits();
                let kind = Kind::Reducescatter { op: corro_core::ReduceOp::Sum, prescale: one, postscale: one };
                let rows: Vec<f32> = (0..=n * 2).map(|i| i as f32).collect();
                let share = engine.run(of("scatter", kind, &[n * 2 + 1], &rows)).unwrap();
                let mine = corro_core::shape::share(n * 2 + 1, n, r);
                assert_eq!(numbers(share), mine.map(|i| (i * n) as f32).collect::<Vec<_>>());

                engine.run(corro_engine::Submission::barrier()).unwrap();
            }
        });
    }
}

#[test]
fn steady_state_needs_no_messages() {
    for hosts in [&[0, 0][..], &[0, 0, 1, 1]] {
        let results = on_hosts(hosts, Options::default, |engine| {
            let step = || {
                let tickets: Vec<_> =
                    (0..5).map(|t| engine.submit(sum(format!("t{t}"), &[1.0; 10])).unwrap()).collect();
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
            };
            // Until a plan is made and refined; how often words are said by then is bounded, and so they end.
            for _ in 0..10 {
                hundred(engine, step);
            }
            (0..10).map(|_| hundred(engine, step)).collect::<Vec<_>>()
        });
        let silent = |of: &Vec<(u64, u64)>| of[7..].iter().all(|messages| *messages == (0, 0));
        assert!(results.iter().all(silent), "{results:?}");
    }
}

/// A hundred steps; gives how many messages were sent and received.
fn hundred(engine: &corro_engine::Engine, step: impl Fn()) -> (u64, u64) {
    let before = engine.control_messages(GLOBAL).unwrap();
    (0..100).for_each(|_| step());
    let after = engine.control_messages(GLOBAL).unwrap();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn tensors_without_names_come_into_the_plan() {
    for hosts in [&[0, 0][..], &[0, 0, 1, 1]] {
        let n = hosts.len() as f32;
        let results = on_hosts(hosts, Options::default, move |engine| {
            // Seven of different sizes: 256 names would mean something else in each step.
            let step = || {
                let submit = |t: usize| {
                    let name = engine.name(GLOBAL, "allreduce").unwrap();
                    engine.submit(sum(name, &vec![t as f32; 10 + t])).unwrap()
                };
                let tickets: Vec<_> = (0..7).map(submit).collect();
                for (t, ticket) in tickets.into_iter().enumerate() {
                    assert_eq!(numbers(ticket.wait().unwrap()), vec![t as f32 * n; 10 + t]);
                }
            };
            // (Not the gear at the end: on a busy machine a plan may just have been given up for a rank that was late; and
            // there steps may differ for so long that more of them are needed. All ranks go on until all have had a plan.)
            for round in 0..20 {
                (0..500).for_each(|_| step());
                let planned = engine.metrics().get(Count::PlanEntries);
                let have = numbers(engine.run(sum(format!("round {round}"), &[f32::from(planned > 0)])).unwrap());
                if have == [n] {
                    return planned;
                }
            }
            0
        });
        assert!(results.iter().all(|planned| *planned > 0), "{hosts:?}: {results:?}");
    }
}

#[test]
fn a_plan_is_left_for_something_new_and_found_again() {
    for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 1, 1]] {
        let n = hosts.len() as f32;
        on_hosts(hosts, Options::default, move |engine| {
            for step in 0..60 {
                let tickets: Vec<_> =
                    (0..4).map(|t| engine.submit(sum(format!("t{t}"), &[t as f32; 50])).unwrap()).collect();
                if step % 10 == 9 {
                    assert_eq!(numbers(engine.run(sum(format!("stray{step}"), &[1.0])).unwrap()), [n]);
                }
                for (t, ticket) in tickets.into_iter().enumerate() {
                    assert_eq!(numbers(ticket.wait().unwrap()), vec![t as f32 * n; 50]);
                }
            }
        });
    }
}

/// In the steps that make the plan both tensors are submitted at once; later, one rank waits for the first before it
/// submits the second. A plan that fused them must be left, and the results must be right all the same.
#[test]
fn a_rank_that_waits_between_fused_tensors_does_not_hang() {
    for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 1, 1]] {
        let n = hosts.len() as f32;
        on_hosts(hosts, Options::default, move |engine| {
            for step in 0..12 {
                if engine.rank().index() == 0 && step == 10 {
                    assert_eq!(numbers(engine.run(sum("a", &[1.0; 30])).unwrap()), [n; 30]);
                    assert_eq!(numbers(engine.run(sum("b", &[2.0; 30])).unwrap()), [2.0 * n; 30]);
                } else {
                    let a = engine.submit(sum("a", &[1.0; 30])).unwrap();
                    let b = engine.submit(sum("b", &[2.0; 30])).unwrap();
                    assert_eq!(numbers(a.wait().unwrap()), [n; 30]);
                    assert_eq!(numbers(b.wait().unwrap()), [2.0 * n; 30]);
                }
            }
        });
    }
}

#[test]
fn callbacks_run_and_polling_works() {
    on_ranks(2, |engine| {
        let (send, receive) = std::sync::mpsc::channel();
        engine.submit(sum("called", &[1.0])).unwrap().on_done(move |result| {
            let _ = send.send(result.map(numbers));
        });
        assert_eq!(receive.recv_timeout(LIMIT).unwrap().unwrap(), [2.0]);
        let ticket = engine.submit(sum("polled", &[1.0])).unwrap();
        while !ticket.is_done() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(numbers(ticket.wait().unwrap()), [2.0]);
    });
}

#[test]
fn a_wait_can_be_given_up_and_taken_up_again() {
    for rounds in [1, 60] {
        // Rank 1 comes only once rank 0 has given up; in a plan that takes the second after which plans are left.
        let given_up = std::sync::Arc::new(std::sync::Barrier::new(2));
        on_ranks(2, move |engine| {
            for _ in 0..rounds {
                engine.run(sum("again", &vec![1.0; 50_000])).unwrap();
            }
            let ticket = if engine.rank().index() == 0 {
                let mut asked = 0;
                let left = engine.run_while(sum("again", &vec![1.0; 50_000]), &mut || {
                    asked += 1;
                    asked < 3
                });
                let ticket = left.unwrap().expect_err("nobody else has come");
                assert!(!ticket.is_done() && !ticket.wait_while(&mut || false));
                given_up.wait();
                ticket
            } else {
                given_up.wait();
                engine.submit(sum("again", &vec![1.0; 50_000])).unwrap()
            };
            assert!(ticket.wait_while(&mut || true));
            assert_eq!(numbers(ticket.take().unwrap()), vec![2.0; 50_000]);
            assert_eq!(numbers(engine.run(sum("after", &[1.0])).unwrap()), [2.0]);
        });
    }
}

#[test]
fn memory_is_shared_on_one_host_only() {
    for (hosts, shared) in [(&[0, 0, 0][..], true), (&[0, 0, 1], false), (&[0], false)] {
        on_hosts(hosts, Options::default, move |engine| {
            for bytes in [100, 1 << 20] {
                let part = engine.shared_memory(GLOBAL, bytes).unwrap();
                assert_eq!(
                    part.map(|part| part.len() >= bytes),
                    shared.then_some(true),
                    "rank {}",
                    engine.rank().index()
                );
            }
            assert!(engine.shared_memory(7, 1).is_err());
        });
    }
}

#[test]
fn more_unnamed_tensors_than_there_are_names_may_be_under_way() {
    on_ranks(2, |engine| {
        // The first of rank 0 wait for rank 1, which comes late: names come round before anything is done.
        if engine.rank().index() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let tickets: Vec<_> = (0..700).map(|i| engine.submit_unnamed("sum", sum("", &[i as f32])).unwrap()).collect();
        let pairs: Vec<_> = (0..300)
            .map(|i| engine.submit_unnamed_group("pair", vec![sum("", &[i as f32]), sum("", &[1.0, 2.0])]).unwrap())
            .collect();
        // One that is waited for takes its turn after all those before it.
        let last = engine.run_unnamed_while("sum", sum("", &[5.0]), &mut || true).unwrap().unwrap();
        assert_eq!(numbers(last), [10.0]);
        for (i, ticket) in tickets.into_iter().enumerate() {
            assert_eq!(numbers(ticket.wait().unwrap()), [2.0 * i as f32]);
        }
        for (i, pair) in pairs.into_iter().enumerate() {
            let results: Vec<Vec<f32>> = pair.into_iter().map(|t| numbers(t.wait().unwrap())).collect();
            assert_eq!(results, [vec![2.0 * i as f32], vec![2.0, 4.0]]);
        }
        engine.run(corro_engine::Submission::barrier()).unwrap();
    });
}

#[test]
fn unnamed_tensors_that_wait_for_their_names_fail_with_the_job() {
    on_ranks(2, |engine| {
        if engine.rank().index() == 1 {
            std::thread::sleep(Duration::from_millis(200));
            return engine.shutdown();
        }
        let submit = |_| engine.submit_unnamed("sum", sum("", &[1.0]));
        let tickets: Vec<_> = (0..600).map_while(|i| submit(i).ok()).collect();
        assert!(tickets.into_iter().all(|ticket| ticket.wait().is_err()));
    });
}
