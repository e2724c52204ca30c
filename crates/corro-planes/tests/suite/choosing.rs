//! Who serves a batch: the same on all members, whatever they have to say.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use corro_agreement::request::MemoryPlace;
use corro_collectives::{Collective, Group};
use corro_core::{DType, Error, GroupId, Rank, ReduceOp, Result};
use corro_planes::testing::{FakeRow, read, table, upload};
use corro_planes::{Choice, Facts, HOST, Output, Planes, Releases, Row, Tensor, Wanted, choose};
use corro_transport::{Fabric, Settings};

use crate::support::{agreed, allreduce, on_groups, world};

const WANTED: Wanted = Wanted { collective: Collective::Allreduce, op: Some(ReduceOp::Sum), dtype: DType::F32 };

/// A row that could serve everything but float64, and only on one host.
fn near() -> FakeRow {
    let why_not = |wanted: Wanted, facts: &[Facts]| {
        if wanted.dtype == DType::F64 {
            return Some("it does not know float64".to_owned());
        }
        let apart = facts.iter().find(|f| f.host != facts[0].host)?;
        Some(format!("{} and {} share no memory", facts[0].host, apart.host))
    };
    FakeRow { why_not, ..FakeRow::new("near") }
}

fn rows() -> Vec<Arc<dyn Row>> {
    vec![Arc::new(near()), Arc::new(FakeRow::new("far"))]
}

fn facts(host: &str, near: Result<u64, &str>, far: Result<u64, &str>) -> Facts {
    let mut facts = Facts { host: host.into(), ..Facts::default() };
    facts.says("near", near.map_err(str::to_owned));
    facts.says("far", far.map_err(str::to_owned));
    facts
}

fn chosen(facts: &[Facts], wanted: Wanted) -> Result<Choice> {
    choose(&rows(), &[None, None], &world(facts.len()), facts, wanted)
}

#[test]
fn the_first_row_that_can_serves_and_the_others_say_why_not() {
    let fine = facts("a", Ok(1), Ok(1));
    assert_eq!(chosen(&[fine.clone(), fine.clone()], WANTED), Ok(Choice { row: Some(0), why_not: vec![] }));
    let elsewhere = Facts { host: "b".into(), ..fine.clone() };
    let choice = chosen(&[fine.clone(), elsewhere], WANTED).unwrap();
    assert_eq!((choice.row, choice.to_string().as_str()), (Some(1), "near: a and b share no memory"));
    let wide = Wanted { dtype: DType::F64, ..WANTED };
    assert_eq!(chosen(std::slice::from_ref(&fine), wide).unwrap().to_string(), "near: it does not know float64");
    let poor = facts("a", Err("no driver"), Err("no library"));
    let choice = chosen(&[fine.clone(), poor.clone(), poor], WANTED).unwrap();
    assert_eq!(choice.row, None);
    assert_eq!(
        choice.to_string(),
        "near: rank 1 on a: no driver (1 more can't either); far: rank 1 on a: no library (1 more can't either)"
    );
    // Of another release, or without any of them.
    let stranger = Facts { host: "c".into(), ..Facts::default() };
    assert!(
        chosen(&[fine, stranger], WANTED).unwrap().to_string().contains("rank 1 on c: it does not know this plane")
    );
}

#[test]
fn a_plane_that_was_asked_for_serves_or_is_an_error() {
    let forcing = |facts: Facts, plane: &str| Facts { forced: Some(plane.into()), ..facts };
    let fine = facts("a", Ok(1), Ok(1));
    let both = |plane| chosen(&[forcing(fine.clone(), plane), forcing(fine.clone(), plane)], WANTED);
    assert_eq!(both("far").unwrap().row, Some(1));
    assert_eq!(both(HOST).unwrap().row, None);
    let text = |result: Result<Choice>| result.unwrap_err().to_string();
    assert!(text(both("fra")).contains("\"fra\", which is not among host, near, far"));
    let poor = forcing(facts("a", Ok(1), Err("no library")), "far");
    let refused = text(chosen(&[poor], WANTED));
    assert!(refused.contains("can't serve allreduce (Sum) of float32: rank 0 on a: no library"), "{refused}");
    let differ = text(chosen(&[forcing(fine.clone(), "far"), fine], WANTED));
    assert!(differ.contains("rank 0 for \"far\", rank 1 for none"), "{differ}");
}

/// One allreduce of ones by whatever `planes` choose; gives the plane's name and the sum.
fn sum(
    planes: &mut Planes,
    group: &mut Group,
    place: MemoryPlace,
    tensor: Tensor,
) -> Result<(&'static str, Option<Vec<u8>>)> {
    let (members, agreed) = (world(group.size()), [agreed(allreduce(ReduceOp::Sum), DType::U8, &[4], place)]);
    let mut tensors = [tensor];
    let chosen = planes.choose(group, &members, &agreed, &tensors)?;
    let outcome = chosen.run(group, &members, &agreed, &mut tensors, false)?.remove(0)?;
    Ok((chosen.name(), outcome.output.as_ref().map(read)))
}

fn on_device() -> Tensor {
    Tensor::new(None, Output::InPlace(upload(&[1; 4])))
}

fn on_host() -> Tensor {
    Tensor::new(None, Output::InPlace(vec![1; 4].into()))
}

#[test]
fn all_members_choose_the_same_though_they_differ() {
    // Rank 2 lacks the first plane, rank 1 can't open the second, and the third serves.
    let names = on_groups(&[0, 0, 1], |group| {
        let me = group.rank();
        let first = FakeRow { ability: if me == 2 { Err("no driver".into()) } else { Ok(1) }, ..FakeRow::new("first") };
        let broken = || Err(Error::io("opening a handle", "not permitted"));
        let second = FakeRow { opens: if me == 1 { broken() } else { Ok(()) }, ..FakeRow::new("second") };
        let third = FakeRow::new("third");
        let described = Arc::clone(&third.described);
        let mut planes = Planes::new(table(vec![first, second, third]), format!("host{me}"), Releases::default());
        // Tensors of the host ask nobody anything.
        assert_eq!(sum(&mut planes, group, MemoryPlace::Host, on_host()).unwrap(), (HOST, Some(vec![3; 4])));
        // Nor do tensors of which some rank has made a copy.
        let copied = if me == 0 { (HOST, on_host()) } else { ("staged", on_device()) };
        assert_eq!(sum(&mut planes, group, MemoryPlace::Copied, copied.1).unwrap(), (copied.0, Some(vec![3; 4])));
        assert_eq!(described.load(Ordering::Relaxed), 0);
        let names = [(), ()].map(|()| sum(&mut planes, group, MemoryPlace::Gpu, on_device()).unwrap());
        // They have told each other once.
        assert_eq!(described.load(Ordering::Relaxed), 1);
        names
    });
    assert!(names.into_iter().flatten().all(|served| served == ("third", Some(vec![3; 4]))));
}

#[test]
fn where_no_plane_serves_tensors_go_through_the_host() {
    let names = on_groups(&[0, 0, 0], |group| {
        let me = group.rank();
        // The last one knows no plane, and has joined: it has no tensor, and does as the others, who may cut theirs into pieces.
        let rows = if me == 2 { vec![] } else { vec![FakeRow::new("far")] };
        let mut planes = Planes::new(table(rows), "here".into(), Releases::default());
        let mine = if me == 2 { Tensor::default() } else { on_device() };
        sum(&mut planes, group, MemoryPlace::Gpu, mine).unwrap()
    });
    assert!(names.iter().all(|served| *served == ("staged", Some(vec![2; 4]))), "{names:?}");
}

#[test]
fn ranks_that_ask_for_different_planes_all_learn_it() {
    let texts = on_groups(&[0, 0], |group| {
        let wish = (group.rank() == 1).then(|| "far".to_owned());
        let mut planes = Planes::new(table(vec![FakeRow::new("far")]).forced(wish), "here".into(), Releases::default());
        sum(&mut planes, group, MemoryPlace::Gpu, on_device()).unwrap_err().to_string()
    });
    assert!(texts[0].contains("rank 0 for none, rank 1 for \"far\""), "{texts:?}");
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_peer_that_is_lost_is_named_in_every_phase() {
    // Rank 2 leaves before it has told its facts; after that; and after the plane was opened.
    for phase in 0..3 {
        let settings = Settings { timeout: Duration::from_secs(20), ..Settings::default() };
        let ranks: Vec<_> = Fabric::threads(&[0, 0, 0], &settings)
            .into_iter()
            .map(|fabric| {
                std::thread::spawn(move || {
                    let me = fabric.rank();
                    let members = world(3);
                    let mut group = Group::open(&fabric, GroupId(7), &members).unwrap();
                    group.barrier().unwrap();
                    let mut planes = Planes::new(table(vec![FakeRow::new("far")]), "here".into(), Releases::default());
                    let agreed = [agreed(allreduce(ReduceOp::Sum), DType::U8, &[4], MemoryPlace::Gpu)];
                    let mut tensors = [on_device()];
                    if me == Rank::new(2) {
                        match phase {
                            0 => {}
                            1 => drop(corro_planes::exchange(&mut group, &members, &Facts::default(), 8192).unwrap()),
                            _ => drop(planes.choose(&mut group, &members, &agreed, &tensors).map(|p| p.name())),
                        }
                        return None;
                    }
                    let plane = match planes.choose(&mut group, &members, &agreed, &tensors) {
                        Ok(plane) => plane,
                        Err(error) => return Some(error),
                    };
                    plane.run(&mut group, &members, &agreed, &mut tensors, false).err()
                })
            })
            .collect();
        let errors: Vec<Error> = ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect();
        assert_eq!(errors.len(), 2, "phase {phase}: {errors:?}");
        assert!(errors.iter().all(|e| matches!(e, Error::PeerLost { .. })), "phase {phase}: {errors:?}");
        assert!(errors.iter().any(|e| e.blames() == Some(Rank::new(2))), "phase {phase}: {errors:?}");
    }
}
