//! What every plane must do alike: all kinds, dtypes and ops, against a naive model.
//!
//! [`every_case`] is run by each rank with its [`Kit`]: a plane, and how to make memory for it and read it back. A new plane is a
//! kit and a test in `conformance.rs`, or in `tests/gpu` if it needs a GPU. Ranks may be threads or processes: it only takes a group.
//!
//! Values are small whole numbers (exact in every dtype), so that the order of additions can't hide a mistake.

use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::{Kind, MemoryPlace};
use corro_collectives::Group;
use corro_core::shape::share;
use corro_core::{DType, Deadline, Error, Rank, ReduceOp, Shape};
use corro_planes::{Memory, Outcome, Output, Plane, Tensor, Wanted};
use corro_testing::model::{self, sample};

use super::{agreed, allreduce, world};

/// A plane, and what it takes to test it.
pub(crate) trait Kit {
    fn plane(&mut self) -> &mut dyn Plane;

    /// Where its tensors are.
    fn place(&self) -> MemoryPlace;

    /// Memory of the kind that it works on, with these bytes in it.
    fn make(&self, bytes: &[u8]) -> Memory;

    /// What memory holds, once all that was enqueued is done.
    fn read(&self, memory: &Memory) -> Vec<u8>;

    /// Whether it claims to serve such batches.
    fn serves(&self, _: Wanted) -> bool {
        true
    }
}

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// How a member gives its tensor and takes its result.
#[derive(Clone, Copy, Debug)]
enum Form {
    InPlace,
    Apart,
    /// The plane makes the place.
    Own,
    /// The program does, when it knows the shape.
    Allocated,
}

const FORMS: [Form; 4] = [Form::InPlace, Form::Apart, Form::Own, Form::Allocated];

/// One rank in the middle of the tests.
struct Bench<'a, 'b> {
    kit: &'a mut dyn Kit,
    group: &'b mut Group,
    members: Vec<Rank>,
    /// Every other batch is run as in a plan.
    planned: bool,
}

/// All there is to test, on one of the ranks that take part.
pub(crate) fn every_case(kit: &mut dyn Kit, group: &mut Group) {
    let members = world(group.size());
    let mut bench = Bench { kit, group, members, planned: false };
    bench.allreduces();
    bench.scaled();
    bench.fused();
    bench.adasum();
    bench.adasum_of_different();
    bench.joined();
    bench.refused();
    bench.movers();
    bench.reducescatters();
    let barrier = bench.agreed(Kind::Barrier, DType::U8, &[]);
    bench.run("barrier", &[barrier], vec![Tensor::default()]);
}

/// Tensors so large that planes need not pack them, alone and beside small ones. Apart from the others, as it takes longer.
pub(crate) fn large_cases(kit: &mut dyn Kit, group: &mut Group) {
    let members = world(group.size());
    let mut bench = Bench { kit, group, members, planned: true };
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        bench.large_reductions(dtype);
        bench.large_movers(dtype);
    }
}

impl Bench<'_, '_> {
    fn me(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn agreed(&self, kind: Kind, dtype: DType, shape: &[usize]) -> Arc<Agreed> {
        agreed(kind, dtype, shape, self.kit.place())
    }

    /// A tensor whose result has so many bytes.
    fn tensor(&self, form: Form, brought: &[u8], room: usize) -> Tensor {
        let (input, output) = match form {
            Form::InPlace => return Tensor::new(None, Output::InPlace(self.kit.make(brought))),
            Form::Apart => (brought, Output::InPlace(self.kit.make(&vec![7; room]))),
            Form::Own => (brought, Output::None),
            Form::Allocated => {
                let mut room = Some(self.kit.make(&vec![7; room]));
                (brought, Output::Allocate(Box::new(move |_| Ok(room.take().expect("asked once")))))
            }
        };
        Tensor::new(Some(self.kit.make(input)), output)
    }

    /// Runs a batch, unless the plane does not claim to serve such; gives the bytes of the results.
    fn run(&mut self, case: &str, agreed: &[Arc<Agreed>], tensors: Vec<Tensor>) -> Option<Vec<Vec<u8>>> {
        let outcomes = self.outcomes(case, agreed, tensors)?;
        let bytes = outcomes.into_iter().map(|outcome| {
            let outcome = outcome.unwrap_or_else(|error| panic!("{case}: {error}"));
            outcome.output.as_ref().map_or(Vec::new(), |memory| self.kit.read(memory))
        });
        Some(bytes.collect())
    }

    fn outcomes(
        &mut self,
        case: &str,
        agreed: &[Arc<Agreed>],
        mut tensors: Vec<Tensor>,
    ) -> Option<Vec<Result<Outcome, Error>>> {
        if !self.kit.serves(Wanted::of(&agreed[0])?) {
            return None;
        }
        self.planned = !self.planned;
        let ran = self.kit.plane().run(self.group, &self.members, agreed, &mut tensors, self.planned);
        let outcomes = ran.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(outcomes.len(), agreed.len(), "{case}");
        for after in outcomes.iter().flatten().filter_map(|outcome| outcome.after.as_ref()) {
            after.wait(Deadline::never()).expect(case);
            assert_eq!(after.is_done(), Ok(true), "{case}");
        }
        Some(outcomes.into_vec())
    }

    fn allreduces(&mut self) {
        let (me, n) = (self.me(), self.size());
        for dtype in DType::ALL {
            for op in OPS.into_iter().filter(|op| op.supports(dtype)) {
                for (i, len) in [0, 1, 7, 100, 3001].into_iter().enumerate() {
                    // Members need not give their tensors in the same way.
                    let form = FORMS[(i + me) % FORMS.len()];
                    let case = format!("allreduce {dtype} {op} n={n} len={len} {form:?}");
                    let brought = sample(dtype, me, len);
                    let tensor = self.tensor(form, &brought, brought.len());
                    let agreed = self.agreed(allreduce(op), dtype, &[len]);
                    let Some(results) = self.run(&case, &[agreed], vec![tensor]) else { continue };
                    assert!(model::same(dtype, &results[0], &model::allreduce(dtype, op, n, len)), "{case}");
                }
            }
        }
    }

    /// Factors before and after, of allreduce and reducescatter.
    fn scaled(&mut self) {
        let (me, n) = (self.me(), self.size());
        let (prescale, postscale) = (4f64.to_bits(), 0.5f64.to_bits());
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32, DType::I64] {
            let twice_the_sum = |i: usize| model::encode(dtype, 2 * (0..n).map(|r| model::value(r, i)).sum::<i64>());
            let want: Vec<u8> = (0..100).flat_map(twice_the_sum).collect();
            let op = ReduceOp::Sum;
            let mine = share(100, n, me);
            let mine = mine.start * dtype.size()..mine.end * dtype.size();
            for form in FORMS {
                let case = format!("scaled {dtype} n={n} {form:?}");
                let brought = sample(dtype, me, 100);
                let agreed = self.agreed(Kind::Allreduce { op, prescale, postscale, compression: None }, dtype, &[100]);
                let tensor = self.tensor(form, &brought, brought.len());
                if let Some(results) = self.run(&case, &[agreed], vec![tensor]) {
                    assert!(model::same(dtype, &results[0], &want), "{case}");
                }
                if matches!(form, Form::InPlace) {
                    continue;
                }
                let agreed = self.agreed(Kind::Reducescatter { op, prescale, postscale }, dtype, &[100]);
                let tensor = self.tensor(form, &brought, mine.len());
                if let Some(results) = self.run(&case, &[agreed], vec![tensor]) {
                    assert!(model::same(dtype, &results[0], &want[mine.clone()]), "reducescatter {case}");
                }
            }
        }
    }

    /// Several tensors at once, one of them empty.
    fn fused(&mut self) {
        const LENGTHS: [usize; 4] = [5, 0, 300, 64];
        let (me, n) = (self.me(), self.size());
        for dtype in [DType::F32, DType::BF16, DType::U8, DType::F64] {
            let case = format!("fused {dtype} n={n}");
            let batch = LENGTHS.map(|len| self.agreed(allreduce(ReduceOp::Sum), dtype, &[len]));
            let brought = LENGTHS.map(|len| sample(dtype, me, len));
            let tensors = brought.iter().zip(FORMS).map(|(b, form)| self.tensor(form, b, b.len())).collect();
            let Some(results) = self.run(&case, &batch, tensors) else { continue };
            for (result, len) in results.iter().zip(LENGTHS) {
                assert!(model::same(dtype, result, &model::allreduce(dtype, ReduceOp::Sum, n, len)), "{case} {len}");
            }
        }
    }

    /// Of equal tensors Adasum gives that tensor.
    fn adasum(&mut self) {
        if !self.size().is_power_of_two() {
            return;
        }
        for dtype in [DType::F16, DType::F32, DType::F64] {
            let (case, same) = (format!("adasum {dtype}"), sample(dtype, 1, 50));
            let agreed = self.agreed(allreduce(ReduceOp::Adasum), dtype, &[50]);
            let tensor = self.tensor(Form::Apart, &same, same.len());
            let Some(results) = self.run(&case, &[agreed], vec![tensor]) else { continue };
            assert!(model::same(dtype, &results[0], &same), "{case}");
        }
    }

    /// Different vectors, large and small, on any number of members.
    fn adasum_of_different(&mut self) {
        let (me, n) = (self.me(), self.size());
        for len in [33, 1_500_000] {
            let vector = |member: usize| -> Vec<f64> {
                (0..len).map(|i| ((member * 7 + i * 3) % 11) as f64 / 4.0 - 1.1).collect()
            };
            let bytes: Vec<u8> = vector(me).iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            let agreed = self.agreed(allreduce(ReduceOp::Adasum), DType::F32, &[len]);
            let tensor = self.tensor(Form::InPlace, &bytes, bytes.len());
            let Some(results) = self.run("adasum", &[agreed], vec![tensor]) else { continue };
            let wanted = adasum((0..n).map(vector).collect());
            for (i, (result, wanted)) in results[0].as_chunks::<4>().0.iter().zip(wanted).enumerate() {
                let result = f64::from(f32::from_le_bytes(*result));
                assert!(
                    (result - wanted).abs() < 1e-4 * (1.0 + wanted.abs()),
                    "adasum {len} at {i}: {result} {wanted}"
                );
            }
        }
    }

    /// The last member has joined: it brings nothing, and nobody misses it.
    fn joined(&mut self) {
        let (me, n) = (self.me(), self.size());
        if n == 1 {
            return;
        }
        for dtype in [DType::F32, DType::I8] {
            let brought = sample(dtype, me, 33);
            let mine =
                if me + 1 == n { Tensor::default() } else { self.tensor(Form::InPlace, &brought, brought.len()) };
            let agreed = self.agreed(allreduce(ReduceOp::Sum), dtype, &[33]);
            let Some(results) = self.run("joined", &[agreed], vec![mine]) else { continue };
            assert!(model::same(dtype, &results[0], &model::allreduce(dtype, ReduceOp::Sum, n - 1, 33)), "{dtype}");
        }
    }

    /// The first member has no room for the result: only that one goes without.
    fn refused(&mut self) {
        let (me, n) = (self.me(), self.size());
        let no_room = || Error::io("making room", "there is none");
        for too_small in [false, true] {
            let mut room = too_small.then(|| self.kit.make(&[0; 3]));
            let allocate = move |_: &Shape| room.take().ok_or_else(no_room);
            let output = if me == 0 { Output::Allocate(Box::new(allocate)) } else { Output::None };
            let brought = self.kit.make(&sample(DType::F32, me, 3));
            let agreed = self.agreed(allreduce(ReduceOp::Sum), DType::F32, &[3]);
            let tensor = Tensor::new(Some(brought), output);
            let Some(mut outcomes) = self.outcomes("refused", &[agreed], vec![tensor]) else { return };
            match outcomes.remove(0) {
                Ok(outcome) => {
                    let bytes = self.kit.read(&outcome.output.unwrap());
                    assert!(me != 0 && bytes == model::allreduce(DType::F32, ReduceOp::Sum, n, 3));
                }
                Err(error) if too_small => assert!(me == 0 && error.to_string().contains("a place of 3"), "{error}"),
                Err(error) => assert!(me == 0 && error == no_room(), "{error}"),
            }
        }
    }

    /// The collectives that only move bytes.
    fn movers(&mut self) {
        let (me, n) = (self.me(), self.size());
        for dtype in DType::ALL {
            let size = dtype.size();
            // Member m has (2 m + 1) % 4 rows of three, and the second tensor one row more.
            let rows = |m: usize, more: usize| (2 * m + 1) % 4 + more;
            let gathered = |more| (0..n).flat_map(|m| sample(dtype, m, rows(m, more) * 3)).collect::<Vec<u8>>();
            for count in [1, 2] {
                let case = format!("allgather of {count} {dtype} n={n}");
                let (mut batch, mut tensors) = (vec![], vec![]);
                for more in 0..count {
                    let shapes = (0..n).map(|m| Shape(vec![rows(m, more), 3])).collect();
                    let one = self.agreed(Kind::Allgather, dtype, &[]);
                    batch.push(Arc::new(Agreed { shapes, ..Agreed::clone(&one) }));
                    let brought = sample(dtype, me, rows(me, more) * 3);
                    let form = [Form::Apart, Form::Own, Form::Allocated][(me + more) % 3];
                    tensors.push(self.tensor(form, &brought, gathered(more).len()));
                }
                let Some(results) = self.run(&case, &batch, tensors) else { continue };
                assert!(results == (0..count).map(gathered).collect::<Vec<_>>(), "{case}");
            }
            for root in [0, n - 1] {
                let case = format!("broadcast {dtype} n={n} root={root}");
                let agreed = self.agreed(Kind::Broadcast { root: Rank::new(root) }, dtype, &[41]);
                let form = FORMS[(me + root) % FORMS.len()];
                let tensor = self.tensor(form, &sample(dtype, me, 41), 41 * size);
                let Some(results) = self.run(&case, &[agreed], vec![tensor]) else { continue };
                assert!(results[0] == sample(dtype, root, 41), "{case}");
            }
            for even in [true, false] {
                self.alltoall(dtype, even);
            }
        }
    }

    fn alltoall(&mut self, dtype: DType, even: bool) {
        let (me, n) = (self.me(), self.size());
        let case = format!("alltoall {dtype} n={n} even={even}");
        // From a to b go two rows of two, or (a + 2 b) % 3.
        let split = |a: usize, b: usize| if even { 2 } else { (a + 2 * b) % 3 };
        let splits = |a: usize| (0..n).map(|b| split(a, b)).collect::<Vec<_>>();
        // Each row from a to b holds what a sample of rank a + 3 b does.
        let letter = |a: usize, b: usize| sample(dtype, a + 3 * b, split(a, b) * 2);
        let one = self.agreed(Kind::Alltoall { splits: vec![] }, dtype, &[]);
        let agreed = Agreed {
            shapes: (0..n).map(|a| Shape(vec![splits(a).iter().sum(), 2])).collect(),
            splits: (0..n).map(|a| if even { vec![] } else { splits(a) }).collect(),
            ..Agreed::clone(&one)
        };
        let brought: Vec<u8> = (0..n).flat_map(|b| letter(me, b)).collect();
        let want: Vec<u8> = (0..n).flat_map(|a| letter(a, me)).collect();
        let tensor = self.tensor([Form::Apart, Form::Own][me % 2], &brought, want.len());
        let Some(mut outcomes) = self.outcomes(&case, &[Arc::new(agreed)], vec![tensor]) else { return };
        let outcome = outcomes.remove(0).expect(&case);
        assert_eq!(outcome.received_splits, (0..n).map(|a| split(a, me)).collect::<Vec<_>>(), "{case}");
        assert!(self.kit.read(&outcome.output.unwrap()) == want, "{case}");
    }

    fn reducescatters(&mut self) {
        let (me, n) = (self.me(), self.size());
        for dtype in DType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Average].into_iter().filter(|op| op.supports(dtype)) {
                for rows in [0, 1, 2 * n + 1] {
                    let case = format!("reducescatter {dtype} {op} n={n} rows={rows}");
                    let one = 1f64.to_bits();
                    let kind = Kind::Reducescatter { op, prescale: one, postscale: one };
                    let mine = share(rows, n, me);
                    let mine = mine.start * 5 * dtype.size()..mine.end * 5 * dtype.size();
                    let form = [Form::Apart, Form::Own, Form::Allocated][(me + rows) % 3];
                    let tensor = self.tensor(form, &sample(dtype, me, rows * 5), mine.len());
                    let agreed = self.agreed(kind, dtype, &[rows, 5]);
                    let Some(results) = self.run(&case, &[agreed], vec![tensor]) else { continue };
                    assert!(model::same(dtype, &results[0], &model::allreduce(dtype, op, n, rows * 5)[mine]), "{case}");
                }
            }
        }
    }

    fn large_reductions(&mut self, dtype: DType) {
        let (me, n, size) = (self.me(), self.size(), dtype.size());
        // Small beside large, of odd lengths; 1 MiB is large.
        let lengths = [(1 << 20) / size + 5, 100, (3 << 20) / size, 0];
        for (pre, post) in [(1f64, 1f64), (4.0, 0.5)] {
            if dtype == DType::U8 && pre != 1.0 {
                continue;
            }
            let case = format!("large {dtype} n={n} factors {pre} {post}");
            let (op, prescale, postscale) = (ReduceOp::Sum, pre.to_bits(), post.to_bits());
            let factor = (pre * post) as i64;
            let sum = |i: usize| model::encode(dtype, factor * (0..n).map(|r| model::value(r, i)).sum::<i64>());
            let want = |len: usize| (0..len).flat_map(sum).collect::<Vec<u8>>();
            let batch = lengths
                .map(|len| self.agreed(Kind::Allreduce { op, prescale, postscale, compression: None }, dtype, &[len]));
            let brought = lengths.map(|len| sample(dtype, me, len));
            let tensors = brought.iter().zip(FORMS).map(|(b, form)| self.tensor(form, b, b.len())).collect();
            if let Some(results) = self.run(&case, &batch, tensors) {
                for (result, len) in results.iter().zip(lengths) {
                    assert!(model::same(dtype, result, &want(len)), "allreduce {case} {len}");
                }
            }
            // Shares of one length, and shares that differ by a row.
            for rows in [1024 * n, 1024 * n + 1] {
                let width = (1 << 20) / size / 1024;
                let kind = Kind::Reducescatter { op, prescale, postscale };
                let mine = share(rows, n, me);
                let mine = mine.start * width * size..mine.end * width * size;
                let brought = sample(dtype, me, rows * width);
                let tensor = self.tensor(Form::Apart, &brought, mine.len());
                let agreed = self.agreed(kind, dtype, &[rows, width]);
                let Some(results) = self.run(&case, &[agreed], vec![tensor]) else { continue };
                assert!(model::same(dtype, &results[0], &want(rows * width)[mine]), "reducescatter {case} {rows}");
            }
        }
    }

    fn large_movers(&mut self, dtype: DType) {
        let (me, n, size) = (self.me(), self.size(), dtype.size());
        let width = (1 << 20) / size / 1024;
        for even in [true, false] {
            let case = format!("large allgather {dtype} n={n} even={even}");
            let rows = |m: usize| if even { 1025 } else { 1024 + 3 * m };
            let shapes = (0..n).map(|m| Shape(vec![rows(m), width])).collect();
            let agreed = Arc::new(Agreed { shapes, ..Agreed::clone(&self.agreed(Kind::Allgather, dtype, &[])) });
            let want: Vec<u8> = (0..n).flat_map(|m| sample(dtype, m, rows(m) * width)).collect();
            let tensor = self.tensor(Form::Apart, &sample(dtype, me, rows(me) * width), want.len());
            if let Some(results) = self.run(&case, &[agreed], vec![tensor]) {
                assert!(results[0] == want, "{case}");
            }
        }
        let lengths = [1025 * width, 10];
        let batch = lengths.map(|len| self.agreed(Kind::Broadcast { root: Rank::new(n - 1) }, dtype, &[len]));
        let brought = lengths.map(|len| sample(dtype, me, len));
        let tensors = brought.iter().zip([Form::InPlace, Form::Apart]).map(|(b, form)| self.tensor(form, b, b.len()));
        let tensors = tensors.collect();
        if let Some(results) = self.run("large broadcast", &batch, tensors) {
            for (result, len) in results.iter().zip(lengths) {
                assert!(*result == sample(dtype, n - 1, len), "large broadcast {dtype} {len}");
            }
        }
        let letter = |a: usize, b: usize| sample(dtype, a + 3 * b, (500 + a + 2 * b) * width);
        let splits = |a: usize| (0..n).map(|b| 500 + a + 2 * b).collect::<Vec<_>>();
        let agreed = Agreed {
            shapes: (0..n).map(|a| Shape(vec![splits(a).iter().sum(), width])).collect(),
            splits: (0..n).map(splits).collect(),
            ..Agreed::clone(&self.agreed(Kind::Alltoall { splits: vec![] }, dtype, &[]))
        };
        let brought: Vec<u8> = (0..n).flat_map(|b| letter(me, b)).collect();
        let want: Vec<u8> = (0..n).flat_map(|a| letter(a, me)).collect();
        let tensor = self.tensor(Form::Apart, &brought, want.len());
        if let Some(results) = self.run("large alltoall", &[Arc::new(agreed)], vec![tensor]) {
            assert!(results[0] == want, "large alltoall {dtype}");
        }
    }
}

/// What Adasum gives, in `f64`: see `corro_collectives`. The first members pair up if they are no power of two.
fn adasum(mut vectors: Vec<Vec<f64>>) -> Vec<f64> {
    let combine = |a: &[f64], b: &[f64]| -> Vec<f64> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let (of_a, of_b) = (1.0 - dot(a, b) / (2.0 * dot(a, a)), 1.0 - dot(a, b) / (2.0 * dot(b, b)));
        a.iter().zip(b).map(|(x, y)| of_a * x + of_b * y).collect()
    };
    let extra = vectors.len() - (1 << vectors.len().ilog2());
    let rest = vectors.split_off(2 * extra);
    vectors = vectors.chunks(2).map(|pair| combine(&pair[0], &pair[1])).chain(rest).collect();
    while vectors.len() > 1 {
        vectors = vectors.chunks(2).map(|pair| combine(&pair[0], &pair[1])).collect();
    }
    vectors.remove(0)
}
