//! Tensors in the memory of a device, from submit to the end: a device that is not there, and a plane for it.

use std::time::Duration;

use corro_core::{DType, Deadline, Error, ReduceOp, Shape};
use corro_engine::metrics::Count;
use corro_engine::{Device, Engine, Options, Submission, Watching};
use corro_planes::testing::{FakeRow, read, table, upload};
use corro_testing::Folder;

use crate::support::{on_hosts, on_ranks};

fn sum(name: &str, data: corro_engine::Memory) -> Submission {
    let shape = Shape(vec![data.len()]);
    Submission { device: Device::Gpu(0), ..Submission::allreduce(name, ReduceOp::Sum, DType::U8, shape, data) }
}

fn with_row(row: impl Fn() -> FakeRow) -> impl Fn() -> Options {
    move || Options { planes: table(vec![row()]), ..Options::default() }
}

fn run(engine: &Engine, name: &str, bytes: &[u8]) -> Vec<u8> {
    read(&engine.run(sum(name, upload(bytes))).unwrap().output.unwrap())
}

#[test]
fn they_go_by_their_plane_which_is_written_down() {
    let folder = Folder::new("planes");
    let (timeline, trace) = (folder.join("timeline.json"), folder.join("trace"));
    let watching = Watching { timeline: Some(timeline.clone()), trace: Some(trace.clone()), ..Watching::default() };
    let options = move || Options { watching: watching.clone(), ..with_row(|| FakeRow::new("far"))() };
    on_hosts(&[0, 0, 1], options, |engine| {
        for step in 0..20 {
            assert_eq!(run(engine, "x", &[1, step]), [3, 3 * step]);
        }
        engine.run(Submission::barrier()).unwrap();
        let snapshot = engine.metrics();
        assert_eq!(snapshot.planes().collect::<Vec<_>>(), [("host", 1), ("far", 20)]);
        assert_eq!(snapshot.get(Count::Batches), 21);
        assert!(snapshot.get(Count::PlanEntries) > 0);
        assert!(snapshot.prometheus().contains("corro_plane_batches_total{rank="));
        let record = engine.flight_record();
        let on = |plane: &str| record.lines().filter(|l| l.split_whitespace().any(|word| word == plane)).count();
        assert_eq!((on("far"), on("host")), (20, 1), "{record}");
    });
    let text = std::fs::read_to_string(timeline).unwrap();
    assert!(text.contains(r#""name":"CORRO_ALLREDUCE""#) && text.contains(r#""args":{"plane":"far"}"#), "{text}");
    let shard = corro_engine::trace::shard(&trace, corro_core::Rank::new(1));
    assert!(std::fs::read_to_string(shard).unwrap().contains(r#""plane":"far""#));
}

#[test]
fn a_ticket_is_done_when_the_device_is() {
    on_hosts(&[0, 0], with_row(|| FakeRow { asks: Some(2), ..FakeRow::new("far") }), |engine| {
        for step in 0..10 {
            let ticket = engine.submit(sum("x", upload(&[1, 2]))).unwrap();
            assert!(ticket.wait_timeout(Duration::from_secs(30)));
            // All is enqueued, and that is enough for who goes on using the result on the device.
            assert_eq!([(); 3].map(|()| ticket.is_done()), [false, false, true], "step {step}");
            let outcome = ticket.wait().unwrap();
            assert_eq!(read(&outcome.output.unwrap()), [2, 4]);
            let outcome = engine.run(sum("y", upload(&[1, 2]))).unwrap();
            let after = outcome.after.unwrap();
            assert_eq!(read(outcome.output.as_ref().unwrap()), [1, 2], "nothing has happened yet");
            after.wait(Deadline::never()).unwrap();
            assert_eq!(read(&outcome.output.unwrap()), [2, 4]);
        }
    });
}

#[test]
fn a_device_that_fails_fails_the_ticket() {
    on_hosts(&[0, 0], with_row(|| FakeRow { asks: Some(0), fails: true, ..FakeRow::new("far") }), |engine| {
        let ticket = engine.submit(sum("x", upload(&[1, 2]))).unwrap();
        assert!(ticket.wait_timeout(Duration::from_secs(30)) && ticket.is_done());
        assert!(matches!(ticket.wait(), Err(Error::Native { code: 7, .. })));
    });
}

#[test]
fn a_copy_on_one_rank_keeps_all_off_the_devices() {
    on_hosts(&[0, 0, 1], with_row(|| FakeRow::new("far")), |engine| {
        for step in 0..10 {
            let mine = if engine.rank().index() == 1 { vec![1, 2].into() } else { upload(&[1, 2]) };
            let on_device = mine.device().is_some();
            let output = engine.run(sum("x", mine)).unwrap().output.unwrap();
            assert_eq!((output.device().is_some(), read(&output)), (on_device, vec![3, 6]), "step {step}");
            // Once no rank has one, the plane serves.
            assert_eq!(run(engine, "y", &[4]), [12]);
        }
        let mine = if engine.rank().index() == 1 { "host" } else { "staged" };
        let planes: Vec<_> = engine.metrics().planes().filter(|(_, n)| *n > 0).collect();
        assert!(planes.contains(&("far", 10)) && planes.contains(&(mine, 10)), "{planes:?}");
    });
}

#[test]
fn what_a_plan_is_left_in_runs_again() {
    on_hosts(&[0, 1], with_row(|| FakeRow::new("far")), |engine| {
        for round in 0..5 {
            for _ in 0..20 {
                assert_eq!(run(engine, "x", &[1, 2]), [2, 4]);
            }
            // Rank 0 begins the next entry of the plan; rank 1 does something else first, and so the plan is left.
            if engine.rank().index() == 0 {
                let both = [engine.submit(sum("x", upload(&[5, 5]))), engine.submit(sum("y", upload(&[6, 6])))];
                let results = both.map(|ticket| read(&ticket.unwrap().wait().unwrap().output.unwrap()));
                assert_eq!(results, [[10, 10], [12, 12]], "round {round}");
            } else {
                assert_eq!(run(engine, "y", &[6, 6]), [12, 12], "round {round}");
                assert_eq!(run(engine, "x", &[5, 5]), [10, 10], "round {round}");
            }
        }
        assert!(engine.metrics().get(Count::PlansLeft) > 0);
    });
}

#[test]
fn an_engine_without_planes_for_it_refuses_device_memory() {
    on_ranks(2, |engine| {
        let text = engine.submit(sum("x", upload(&[1]))).unwrap_err().to_string();
        assert!(text.contains("tensor x is in the memory of GPU 0"), "{text}");
        let mislabelled = Submission { device: Device::Cpu, ..sum("x", upload(&[1])) };
        let text = engine.submit(mislabelled).unwrap_err().to_string();
        assert!(text.contains("was submitted as a tensor of the host"), "{text}");
        // In host memory it may say that it is a GPU's, as ever.
        let output = engine.run(sum("x", vec![1].into())).unwrap();
        assert_eq!(output.into_bytes().unwrap(), [2]);
    });
}
