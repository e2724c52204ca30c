//! Whether the requests of all ranks for one name belong together; if not, who differs and how.
//!
//! Pure: requests in, a verdict out. The fragments that scripts match on are Horovod's ("Mismatched data types", ...); what
//! follows them says which ranks ask for what, the smaller party first, since it is more likely the one to be fixed.

use std::borrow::Borrow;
use std::fmt::Write as _;

use corro_core::shape::share;
use corro_core::{DType, Error, Rank, Result, Shape};
use serde::{Deserialize, Serialize};

use crate::request::{Kind, MemoryPlace, Request};

/// What all ranks have agreed to do with one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// The tensor's name.
    pub name: String,
    /// What to do; of an alltoall, this rank's own splits are not part of it.
    pub kind: Kind,
    /// The type of the elements.
    pub dtype: DType,
    /// Each rank's shape where they may differ (allgather, alltoall), else one.
    pub shapes: Vec<Shape>,
    /// Alltoall: each rank's splits.
    pub splits: Vec<Vec<usize>>,
    /// Where the tensors are.
    pub place: MemoryPlace,
    /// The group it completes with.
    pub group: Option<(u64, usize)>,
}

/// Compares the requests of all ranks, each with the rank it came from, for one name. `joined` are the ranks that have
/// run out of data and stand aside.
pub fn match_requests<R: Borrow<Request>>(requests: &[(Rank, R)], joined: &[Rank]) -> Result<Agreed> {
    let requests: Vec<(Rank, &Request)> = requests.iter().map(|(rank, r)| (*rank, r.borrow())).collect();
    let Some((_, first)) = requests.first() else { return Err(Error::Bug("a match of no requests".into())) };
    // Requests may be one and the same, which is quickly seen.
    let alike = requests.iter().all(|(_, r)| std::ptr::eq(*r, *first) || r == first);
    let check = Check { requests: if alike { &[] } else { &requests }, name: &first.name };
    check.equal("Mismatched operations", |r| r.kind.name().to_owned())?;
    check.equal("Mismatched data types", |r| r.dtype.name().to_owned())?;
    let kind = first.kind.name();
    if !joined.is_empty() && !first.kind.works_with_join() {
        return Err(Error::Mismatch(format!(
            "{kind} of tensor {} is not supported with Join at this time: {} already joined",
            first.name,
            ranks(joined)
        )));
    }
    if let Some((rank, _)) = requests.iter().find(|(_, r)| r.kind.needs_rows() && r.shape.0.is_empty()) {
        return Err(Error::Mismatch(format!("rank {rank} tried to {kind} a rank-zero tensor: {}", first.name)));
    }
    check.equal(&format!("Mismatched {kind} tensor shapes"), |r| comparable(&r.kind, &r.shape))?;
    check.equal("Mismatched reduction operation", |r| {
        r.kind
            .reduction()
            .filter(|_| matches!(r.kind, Kind::Allreduce { .. }))
            .map_or(String::new(), |(op, ..)| op.to_string())
    })?;
    check.equal("Mismatched prescale and/or postscale factors", |r| {
        r.kind.reduction().map_or(String::new(), |(op, pre, post)| {
            // Sum and Average of a reducescatter differ in nothing but the factor that is folded into the second.
            let op = if matches!(r.kind, Kind::Reducescatter { .. }) { format!("{op} ") } else { String::new() };
            format!("{op}prescale {} postscale {}", f64::from_bits(pre), f64::from_bits(post))
        })
    })?;
    check.equal("Mismatched compression", |r| {
        r.kind.compression().map_or_else(|| "none".to_owned(), ToString::to_string)
    })?;
    check.equal("Mismatched BROADCAST root ranks", |r| match r.kind {
        Kind::Broadcast { root } => format!("root {root}"),
        _ => String::new(),
    })?;
    check.equal("Mismatched process sets", |r| match &r.kind {
        Kind::AddSet { ranks } => format!("mismatching ranks {ranks:?}"),
        Kind::RemoveSet { id } => format!("mismatching set {id}"),
        _ => String::new(),
    })?;
    check.equal("Mismatched CPU/GPU device selection", |r| if r.device.is_gpu() { "GPU" } else { "CPU" }.to_owned())?;
    check.equal("Mismatched groups", |r| {
        r.group.map_or("no group".into(), |(_, n)| format!("a group of {n} tensors"))
    })?;
    let agreed = agreed(&requests);
    check_room(&requests, &agreed)?;
    Ok(agreed)
}

/// An error if a rank has given a place of the wrong size for its result.
fn check_room(requests: &[(Rank, &Request)], agreed: &Agreed) -> Result<()> {
    for (member, (rank, request)) in requests.iter().enumerate() {
        let Some(room) = request.room else { continue };
        let bytes = result_shape(agreed, member, requests.len()).bytes(agreed.dtype)?;
        if room != bytes {
            return Err(Error::Mismatch(format!(
                "Mismatched output size for tensor {}: rank {rank} has given a place of {room} bytes for a result of \
                 {bytes}",
                agreed.name
            )));
        }
    }
    Ok(())
}

/// The shape of what a member gets, of those that deal out rows or put them together.
fn result_shape(agreed: &Agreed, member: usize, members: usize) -> Shape {
    let mut shape = agreed.shapes[0].clone();
    let rows = |shape: &Shape| shape.0.first().copied().unwrap_or(0);
    let all = match &agreed.kind {
        Kind::Allgather => agreed.shapes.iter().map(rows).fold(0, usize::saturating_add),
        Kind::Alltoall { .. } => {
            let sent = agreed.shapes.iter().zip(&agreed.splits).map(|(shape, splits)| match splits.get(member) {
                Some(split) => *split,
                None => rows(shape) / members,
            });
            sent.fold(0, usize::saturating_add)
        }
        Kind::Reducescatter { .. } => share(rows(&shape), members, member).len(),
        _ => return shape,
    };
    if let Some(rows) = shape.0.first_mut() {
        *rows = all;
    }
    shape
}

fn agreed(requests: &[(Rank, &Request)]) -> Agreed {
    let first = requests[0].1;
    let shapes = if first.kind.has_free_rows() {
        requests.iter().map(|(_, r)| r.shape.clone()).collect()
    } else {
        vec![first.shape.clone()]
    };
    let splits = requests
        .iter()
        .filter_map(|(_, r)| if let Kind::Alltoall { splits } = &r.kind { Some(splits.clone()) } else { None })
        .collect();
    let kind =
        if let Kind::Alltoall { .. } = first.kind { Kind::Alltoall { splits: vec![] } } else { first.kind.clone() };
    let place = MemoryPlace::of(requests.iter().map(|(_, r)| r.device));
    Agreed { name: first.name.clone(), kind, dtype: first.dtype, shapes, splits, place, group: first.group }
}

/// What of a shape must be equal: all of it, or all but the first dimension.
fn comparable(kind: &Kind, shape: &Shape) -> String {
    if !kind.has_free_rows() {
        return shape.to_string();
    }
    let rest: Vec<String> = shape.0.iter().skip(1).map(usize::to_string).collect();
    format!("[*{}{}]", if rest.is_empty() { "" } else { ", " }, rest.join(", "))
}

struct Check<'a> {
    requests: &'a [(Rank, &'a Request)],
    name: &'a str,
}

impl Check<'_> {
    /// An error that begins with `lead` and says which ranks ask for what, if `of` differs between ranks.
    fn equal(&self, lead: &str, of: impl Fn(&Request) -> String) -> Result<()> {
        let mut parties: Vec<(String, Vec<Rank>)> = Vec::new();
        for (rank, request) in self.requests {
            let value = of(request);
            match parties.iter_mut().find(|(v, _)| *v == value) {
                Some((_, ranks)) => ranks.push(*rank),
                None => parties.push((value, vec![*rank])),
            }
        }
        if parties.len() <= 1 {
            return Ok(());
        }
        parties.sort_by_key(|(_, ranks)| ranks.len());
        let mut text = format!("{lead} for tensor {}: ", self.name);
        for (i, (value, who)) in parties.iter().enumerate() {
            let _ = write!(text, "{}{}: {value}", if i == 0 { "" } else { "; " }, ranks(who));
        }
        Err(Error::Mismatch(text))
    }
}

/// "rank 3", "ranks 0, 2, 5", "ranks 1, 2, 3, 4, 5, 6 and 250 more".
fn ranks(who: &[Rank]) -> String {
    const SHOWN: usize = 6;
    let list: Vec<String> = who.iter().take(SHOWN).map(Rank::to_string).collect();
    let more = if who.len() > SHOWN { format!(" and {} more", who.len() - SHOWN) } else { String::new() };
    format!("{} {}{more}", if who.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corro_core::ReduceOp;

    use super::*;
    use crate::request::Device;

    fn allreduce() -> Kind {
        Kind::Allreduce { op: ReduceOp::Sum, prescale: 1f64.to_bits(), postscale: 1f64.to_bits(), compression: None }
    }

    fn request(kind: Kind) -> Request {
        let shape = Shape(vec![2, 3]);
        Request { name: "g".into(), kind, dtype: DType::F32, shape, device: Device::Cpu, group: None, room: None }
    }

    /// Four ranks of which rank 2 asks for something else.
    fn with_odd_one(usual: &Request, odd: &Request) -> Result<Agreed> {
        let requests: Vec<_> =
            Rank::all(4).map(|rank| (rank, if rank == Rank::new(2) { odd.clone() } else { usual.clone() })).collect();
        match_requests(&requests, &[])
    }

    fn text(result: Result<Agreed>) -> String {
        match result {
            Err(Error::Mismatch(text)) => text,
            other => panic!("not a mismatch: {other:?}"),
        }
    }

    #[test]
    fn equal_requests_agree() {
        let agreed = with_odd_one(&request(allreduce()), &request(allreduce())).unwrap();
        assert_eq!((agreed.kind, agreed.shapes), (allreduce(), vec![Shape(vec![2, 3])]));
    }

    #[test]
    fn every_difference_has_its_text_and_names_the_odd_rank() {
        let usual = request(allreduce());
        let scaled = Kind::Allreduce {
            op: ReduceOp::Sum,
            prescale: 0.5f64.to_bits(),
            postscale: 1f64.to_bits(),
            compression: None,
        };
        let min = Kind::Allreduce {
            op: ReduceOp::Min,
            prescale: 1f64.to_bits(),
            postscale: 1f64.to_bits(),
            compression: None,
        };
        let one = 1f64.to_bits();
        let int8 = Some("int8".parse().unwrap());
        let compressed = Kind::Allreduce { op: ReduceOp::Sum, prescale: one, postscale: one, compression: int8 };
        let cases = [
            ("Mismatched data types", Request { dtype: DType::F64, ..usual.clone() }),
            ("Mismatched operations", request(Kind::Allgather)),
            ("Mismatched ALLREDUCE tensor shapes", Request { shape: Shape(vec![3, 2]), ..usual.clone() }),
            ("Mismatched prescale and/or postscale factors", request(scaled)),
            ("Mismatched reduction operation", request(min)),
            ("Mismatched compression", request(compressed)),
            ("CPU/GPU device selection", Request { device: Device::Gpu(0), ..usual.clone() }),
            ("Mismatched groups", Request { group: Some((1, 2)), ..usual.clone() }),
        ];
        for (fragment, odd) in cases {
            let text = text(with_odd_one(&usual, &odd));
            assert!(text.contains(fragment), "{text}");
            assert!(text.contains(": rank 2: ") && text.contains("ranks 0, 1, 3: "), "{text}");
        }
        let text = text(with_odd_one(
            &request(Kind::Broadcast { root: Rank::ZERO }),
            &request(Kind::Broadcast { root: Rank::new(1) }),
        ));
        assert!(text.contains("Mismatched BROADCAST root ranks"), "{text}");
    }

    #[test]
    fn allgather_frees_the_first_dimension_only() {
        let with = |shape: Vec<usize>| Request { shape: Shape(shape), ..request(Kind::Allgather) };
        let agreed = with_odd_one(&with(vec![2, 3]), &with(vec![7, 3])).unwrap();
        assert_eq!(agreed.shapes[2], Shape(vec![7, 3]));
        let text1 = text(with_odd_one(&with(vec![2, 3]), &with(vec![2, 4])));
        assert!(text1.contains("Mismatched ALLGATHER tensor shapes"), "{text1}");
        assert!(text(with_odd_one(&with(vec![]), &with(vec![]))).contains("a rank-zero tensor"));
    }

    #[test]
    fn gpus_may_differ_in_number() {
        let on = |gpu| Request { device: Device::Gpu(gpu), ..request(allreduce()) };
        assert_eq!(with_odd_one(&on(0), &on(3)).unwrap().place, MemoryPlace::Gpu);
    }

    #[test]
    fn one_copy_in_host_memory_is_enough_to_keep_all_off_the_gpus() {
        let on = |device| Request { device, ..request(allreduce()) };
        let place = |usual, odd| with_odd_one(&on(usual), &on(odd)).unwrap().place;
        assert_eq!(place(Device::Gpu(0), Device::Copied(0)), MemoryPlace::Copied);
        assert_eq!(place(Device::Copied(0), Device::Gpu(1)), MemoryPlace::Copied);
        assert_eq!(place(Device::Copied(0), Device::Copied(0)), MemoryPlace::Copied);
        assert_eq!(place(Device::Cpu, Device::Cpu), MemoryPlace::Host);
    }

    #[test]
    fn only_allreduce_goes_on_without_the_joined() {
        let gather: Vec<_> = Rank::all(2).map(|r| (r, request(Kind::Allgather))).collect();
        let text = text(match_requests(&gather, &[Rank::new(2)]));
        assert!(text.contains("is not supported with Join at this time") && text.contains("rank 2"), "{text}");
        let reduce: Vec<_> = Rank::all(2).map(|r| (r, request(allreduce()))).collect();
        assert!(match_requests(&reduce, &[Rank::new(2)]).is_ok());
    }

    #[test]
    fn long_lists_of_ranks_are_cut() {
        assert_eq!(ranks(&[Rank::new(3)]), "rank 3");
        assert_eq!(ranks(&Rank::all(256).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5 and 250 more");
    }

    #[test]
    fn a_place_of_the_wrong_size_is_a_mismatch() {
        let of = |kind: Kind, rows: usize, room: usize| {
            Arc::new(Request { shape: Shape(vec![rows, 2]), room: Some(room * 8), ..request(kind) })
        };
        let members = [0, 4, 7].map(Rank::new);
        let verdict =
            |requests: [Arc<Request>; 3]| match_requests(&members.into_iter().zip(requests).collect::<Vec<_>>(), &[]);
        let one = 1f64.to_bits();
        let scatter = || Kind::Reducescatter { op: ReduceOp::Sum, prescale: one, postscale: one };
        let swap = |splits: &[usize]| Kind::Alltoall { splits: splits.to_vec() };
        let fine = [
            [of(Kind::Allgather, 1, 6), of(Kind::Allgather, 2, 6), of(Kind::Allgather, 3, 6)],
            [of(scatter(), 5, 2), of(scatter(), 5, 2), of(scatter(), 5, 1)],
            [of(swap(&[1, 2, 3]), 6, 3), of(swap(&[0, 0, 4]), 4, 4), of(swap(&[]), 6, 9)],
        ];
        for requests in fine {
            assert_eq!(verdict(requests.clone()).err(), None);
            let mut wrong = requests;
            let room = wrong[1].room.map(|room| room + 8);
            Arc::make_mut(&mut wrong[1]).room = room;
            let error = verdict(wrong).unwrap_err().to_string();
            assert!(error.starts_with("Mismatched output size") && error.contains("rank 4"), "{error}");
        }
    }
}
