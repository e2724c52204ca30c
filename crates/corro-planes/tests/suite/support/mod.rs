//! Ranks as threads, each with a group, under a hang limit.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use corro_agreement::matching::Agreed;
use corro_agreement::request::{Kind, MemoryPlace};
use corro_collectives::Group;
use corro_core::{DType, GroupId, Rank, ReduceOp, Shape};
use corro_transport::{Fabric, Settings};

pub(crate) mod cases;

/// Nothing in a test may take longer than this.
const HANG_LIMIT: Duration = Duration::from_secs(240);

/// The members of a world of so many.
pub(crate) fn world(n: usize) -> Vec<Rank> {
    Rank::all(n).collect()
}

/// Runs `act` on ranks with these hosts (`hosts[r]` is the host of rank r), and gives what each gives. Panics if any does.
pub(crate) fn on_fabrics<T: Send + 'static>(
    hosts: &[usize],
    act: impl Fn(&Arc<Fabric>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let settings = Settings { timeout: Duration::from_secs(30), area: 1 << 20, ..Settings::default() };
    let act = Arc::new(act);
    let (send, receive) = mpsc::channel();
    for fabric in Fabric::threads(hosts, &settings) {
        let (act, send) = (Arc::clone(&act), send.clone());
        std::thread::spawn(move || {
            let result = act(&fabric);
            let _ = send.send((fabric.rank(), result));
        });
    }
    drop(send);
    let mut results: Vec<(Rank, T)> =
        hosts.iter().map(|_| receive.recv_timeout(HANG_LIMIT).expect("a rank hangs or has panicked")).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The same, each with the group of all.
pub(crate) fn on_groups<T: Send + 'static>(
    hosts: &[usize],
    act: impl Fn(&mut Group) -> T + Send + Sync + 'static,
) -> Vec<T> {
    on_fabrics(hosts, move |fabric| {
        let mut group = Group::world(fabric).expect("opening the world");
        let result = act(&mut group);
        // Nobody leaves before all are done: leaving early is what lost peers look like.
        group.barrier().expect("the last barrier");
        result
    })
}

/// The `number`-th group of all.
pub(crate) fn group(fabric: &Arc<Fabric>, number: u64) -> Group {
    Group::open(fabric, GroupId(number), &world(fabric.size())).expect("opening a group")
}

/// A tensor that all agreed on.
pub(crate) fn agreed(kind: Kind, dtype: DType, shape: &[usize], place: MemoryPlace) -> Arc<Agreed> {
    let (name, shapes) = ("x".to_owned(), vec![Shape(shape.to_vec())]);
    Arc::new(Agreed { name, kind, dtype, shapes, splits: vec![], place, group: None })
}

/// An allreduce without factors.
pub(crate) fn allreduce(op: ReduceOp) -> Kind {
    Kind::Allreduce { op, prescale: 1f64.to_bits(), postscale: 1f64.to_bits(), compression: None }
}
