//! A batch of a plan that is called off before all have begun it is run again, with the same tensors on other connections.

use std::sync::Arc;
use std::time::Duration;

use corro_agreement::request::{Kind, MemoryPlace};
use corro_core::{DType, Error, ReduceOp};
use corro_planes::testing::{FakeRow, read, table, upload};
use corro_planes::{Memory, Output, Planes, Table, Tensor};

use crate::support::{agreed, group, on_fabrics, world};

fn withdrawn_and_run_again(place: MemoryPlace, planes: fn() -> Table, memory: fn(&[u8]) -> Memory, name: &'static str) {
    let turn = Arc::new(std::sync::Barrier::new(2));
    on_fabrics(&[0, 1], move |fabric| {
        let members = world(2);
        // A factor that comes first must not be applied twice.
        let kind = Kind::Allreduce {
            op: ReduceOp::Sum,
            prescale: 3f64.to_bits(),
            postscale: 1f64.to_bits(),
            compression: None,
        };
        let agreed = [agreed(kind, DType::U8, &[4], place)];
        let mut planes = Planes::new(planes(), "here".into(), corro_planes::Releases::default());
        let mut before = group(fabric, 1);
        let fresh = || [Tensor::new(None, Output::InPlace(memory(&[1, 2, 3, 4])))];
        // As in any job: what is in a plan has been run before.
        let mut tensors = fresh();
        let chosen = planes.choose(&mut before, &members, &agreed, &tensors).unwrap();
        assert_eq!(chosen.name(), name);
        chosen.run(&mut before, &members, &agreed, &mut tensors, false).unwrap();
        let mut tensors = fresh();
        if fabric.rank().index() == 0 {
            let withdrawal = before.withdrawal();
            let call_off = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                withdrawal.set();
            });
            let chosen = planes.choose(&mut before, &members, &agreed, &tensors).unwrap();
            let result = chosen.run(&mut before, &members, &agreed, &mut tensors, true);
            assert_eq!(result.err(), Some(Error::Withdrawn));
            call_off.join().unwrap();
        }
        turn.wait();
        let mut after = group(fabric, 2);
        let chosen = planes.choose(&mut after, &members, &agreed, &tensors).unwrap();
        let mut outcomes = chosen.run(&mut after, &members, &agreed, &mut tensors, true).unwrap();
        let outcome = outcomes.remove(0).unwrap();
        assert_eq!(outcome.output.as_ref().map(read), Some(vec![6, 12, 18, 24]));
        after.barrier().unwrap();
    });
}

#[test]
fn of_the_host() {
    withdrawn_and_run_again(MemoryPlace::Host, Table::default, |bytes| bytes.to_vec().into(), "host");
}

#[test]
fn of_a_device() {
    withdrawn_and_run_again(MemoryPlace::Gpu, || table(vec![FakeRow::new("far")]), upload, "far");
}
