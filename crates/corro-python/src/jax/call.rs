//! One call of the handler: what the program asks for, and its buffers.

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::ffi::{c_int, c_void};

use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Result, Shape};
use corro_engine::{Device, Kind, Output, Submission};

use super::ffi::{ARRAY, Array, Attributes, Buffers, CallFrame, F64, RawBuffer, S64, SCALAR, STRING, Scalar, Span};

/// What a program asks for. All of it is constant in a compiled program; none of it depends on how many ranks there are.
pub(super) struct Wanted {
    kind: String,
    /// By which the ranks find each other's calls.
    pub(super) name: String,
    set: u32,
    op: i64,
    prescale: f64,
    postscale: f64,
    pub(super) root: i64,
    splits: Vec<usize>,
    /// On how many devices of this process the program runs, each with the same values.
    pub(super) devices: usize,
}

impl Wanted {
    /// # Safety
    /// The frame is that of a call which is to be executed.
    pub(super) unsafe fn read(frame: *const CallFrame) -> Result<Self> {
        // SAFETY: the frame has attributes.
        let attributes = Named(unsafe { &(*frame).attributes });
        let number = |name| attributes.number(name).ok_or_else(|| missing(name));
        let factor = |name| attributes.factor(name).ok_or_else(|| missing(name));
        let text = |name| attributes.text(name).ok_or_else(|| missing(name));
        let set = number("set")?;
        let unknown = || Error::Usage(format!("process set {set} does not exist, or has not been registered"));
        Ok(Self {
            kind: text("kind")?,
            name: text("name")?,
            set: u32::try_from(set).map_err(|_| unknown())?,
            op: number("op")?,
            prescale: factor("prescale")?,
            postscale: factor("postscale")?,
            root: number("root")?,
            splits: attributes.numbers("splits").into_iter().filter_map(|n| usize::try_from(n).ok()).collect(),
            devices: usize::try_from(number("devices")?).unwrap_or(1),
        })
    }

    /// Whether only the root gets what it asks for: the others get zeros. What flows back through a broadcast is so.
    pub(super) fn is_for_root(&self) -> bool {
        self.kind == "reduce"
    }

    /// Whether it only waits for the other ranks, and hands on what it was given.
    pub(super) fn is_barrier(&self) -> bool {
        self.kind == "barrier"
    }

    /// An error of the engine, with a word about what is particular here: the shapes of results are constants.
    pub(super) fn explained(&self, error: Error) -> Error {
        match error {
            Error::Mismatch(text) if text.starts_with("Mismatched output size") => Error::Mismatch(format!(
                "{text}. Compiled code has a fixed shape for it: that of equally many rows from each rank. Say how many                  rows each brings (hvd.allgather(x, rows=[...]), hvd.alltoall(x, splits=..., received_splits=...)), or call                  it outside of jit. If the number of ranks has changed since, compile the function anew"
            )),
            error => error,
        }
    }

    fn kind(&self) -> Result<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.kind.as_str() {
            "allreduce" => Kind::Allreduce { op: self.op()?, prescale, postscale },
            "reduce" => Kind::Allreduce { op: ReduceOp::Sum, prescale, postscale },
            "reducescatter" => Kind::Reducescatter { op: self.op()?, prescale, postscale },
            "allgather" => Kind::Allgather,
            "alltoall" => Kind::Alltoall { splits: self.splits.clone() },
            "broadcast" => Kind::Broadcast {
                root: usize::try_from(self.root).map(Rank::new).map_err(|_| {
                    Error::Usage(format!("broadcast received invalid root rank {}: ranks begin at 0", self.root))
                })?,
            },
            "barrier" => Kind::Barrier,
            other => return Err(Error::Bug(format!("there is no collective called {other}"))),
        })
    }

    fn op(&self) -> Result<ReduceOp> {
        let op = u8::try_from(self.op).ok().and_then(ReduceOp::from_id);
        op.ok_or_else(|| Error::Usage(format!("{} is not a reduce op; say hvd.Sum, hvd.Average or the like", self.op)))
    }

    /// What the engine is to do: a tensor for each pair of buffers.
    pub(super) fn submissions(&self, tensors: &Tensors) -> Result<Vec<Submission>> {
        let kind = self.kind()?;
        if kind == Kind::Barrier {
            return Ok(vec![Submission { set: self.set, ..Submission::barrier() }]);
        }
        let count = tensors.pairs.len();
        let reduces = matches!(kind, Kind::Allreduce { .. } | Kind::Reducescatter { .. });
        let one = |(i, pair): (usize, &(Tensor, Tensor))| {
            let (input, output) = pair;
            let (dtype, parts) = engine_dtype(input.dtype, reduces).ok_or_else(|| {
                Error::Usage(format!(
                    "{}: elements of this type can't be reduced (XLA's type {}). Convert them first, for example by \
                     x.astype(jnp.bfloat16)",
                    self.name, input.dtype
                ))
            })?;
            let mut shape = input.shape.clone();
            shape.extend((parts > 1).then_some(parts));
            let shape = Shape(shape);
            let bytes = shape.bytes(dtype)?;
            let room = output.elements()?.saturating_mul(parts * dtype.size());
            let name = if count == 1 { self.name.clone() } else { format!("{}_{}of{count}", self.name, i + 1) };
            Ok(Submission {
                set: self.set,
                name,
                kind: kind.clone(),
                dtype,
                shape,
                device: Device::Cpu,
                input: Some(input.memory(bytes).into()),
                output: Output::InPlace(output.memory(room).into()),
            })
        };
        tensors.pairs.iter().enumerate().map(one).collect()
    }
}

fn missing(name: &str) -> Error {
    Error::Bug(format!("a call without the attribute {name}"))
}

/// A buffer of a call. XLA keeps it until the call has ended.
pub(super) struct Tensor {
    dtype: c_int,
    shape: Vec<usize>,
    at: *mut c_void,
}

/// The buffers of a call: what goes in, and where the result goes.
pub(super) struct Tensors {
    pairs: Vec<(Tensor, Tensor)>,
}

// SAFETY: XLA keeps the buffers until the call has ended, and lets any thread work on them until then.
unsafe impl Send for Tensors {}

impl Tensors {
    /// # Safety
    /// The frame is that of a call which is to be executed.
    pub(super) unsafe fn read(frame: *const CallFrame) -> Result<Self> {
        // SAFETY: as above.
        let (inputs, outputs) = unsafe { (tensors(&(*frame).arguments)?, tensors(&(*frame).results)?) };
        if inputs.len() != outputs.len() {
            return Err(Error::Bug(format!("a call with {} arguments and {} results", inputs.len(), outputs.len())));
        }
        Ok(Self { pairs: inputs.into_iter().zip(outputs).collect() })
    }

    /// Fills the results with zeros.
    pub(super) fn clear(&self) -> Result<()> {
        for (_, output) in &self.pairs {
            output.whole()?.as_mut_slice().fill(0);
        }
        Ok(())
    }

    /// Results that are what went in.
    pub(super) fn pass_through(&self) -> Result<()> {
        for (input, output) in &self.pairs {
            copy(input, output)?;
        }
        Ok(())
    }

    /// Gives this call the results of another one.
    pub(super) fn copy_from(&self, other: &Self) -> Result<()> {
        for ((_, from), (_, to)) in other.pairs.iter().zip(&self.pairs) {
            copy(from, to)?;
        }
        Ok(())
    }
}

fn copy(from: &Tensor, to: &Tensor) -> Result<()> {
    let (from, mut to) = (from.whole()?, to.whole()?);
    if from.len() != to.len() {
        return Err(Error::Bug("two calls at the same place with results of different sizes".into()));
    }
    to.as_mut_slice().copy_from_slice(from.as_slice());
    Ok(())
}

impl Tensor {
    fn elements(&self) -> Result<usize> {
        Shape(self.shape.clone()).bytes(DType::U8)
    }

    fn memory(&self, bytes: usize) -> Buffer {
        // SAFETY: the buffer is of the shape and type that the caller has computed `bytes` from; XLA keeps it until the call
        // has ended, which is after the engine is done with it. Arguments are only read.
        unsafe { Buffer::from_raw(self.at.cast(), bytes, Box::new(())) }
    }

    fn whole(&self) -> Result<Buffer> {
        let size = element_size(self.dtype).ok_or_else(|| Error::Bug(format!("XLA's type {} is unknown", self.dtype)))?;
        Ok(self.memory(self.elements()?.saturating_mul(size)))
    }
}

/// # Safety
/// These are the buffers of a call which is to be executed.
unsafe fn tensors(buffers: &Buffers) -> Result<Vec<Tensor>> {
    let count = usize::try_from(buffers.count).unwrap_or(0);
    let one = |i| {
        // SAFETY: there are as many buffers as it says, each with as many dimensions as it says.
        let (buffer, dims) = unsafe {
            let buffer: &RawBuffer = &**buffers.buffers.add(i);
            let rank = usize::try_from(buffer.rank).unwrap_or(0);
            (buffer, if rank == 0 { &[][..] } else { std::slice::from_raw_parts(buffer.dims, rank) })
        };
        let shape = dims.iter().map(|dim| usize::try_from(*dim)).collect::<std::result::Result<_, _>>();
        let shape = shape.map_err(|_| Error::Bug(format!("a buffer with the dimensions {dims:?}")))?;
        Ok(Tensor { dtype: buffer.dtype, shape, at: buffer.data })
    };
    (0..count).map(one).collect()
}

/// XLA's number of an element type as the engine's, and how many of those make one element.
fn engine_dtype(number: c_int, reduces: bool) -> Option<(DType, usize)> {
    Some(match number {
        1 => (DType::Bool, 1),
        2 => (DType::I8, 1),
        3 => (DType::I16, 1),
        4 => (DType::I32, 1),
        5 => (DType::I64, 1),
        6 => (DType::U8, 1),
        7 => (DType::U16, 1),
        8 => (DType::U32, 1),
        9 => (DType::U64, 1),
        10 => (DType::F16, 1),
        11 => (DType::F32, 1),
        12 => (DType::F64, 1),
        16 => (DType::BF16, 1),
        // Complex numbers: what can be done with them is done with both of their parts.
        15 => (DType::F32, 2),
        18 => (DType::F64, 2),
        // Floats of 8 bits can be moved.
        19 | 20 | 23 | 24 | 25 | 28 | 29 | 33 if !reduces => (DType::U8, 1),
        _ => return None,
    })
}

fn element_size(number: c_int) -> Option<usize> {
    engine_dtype(number, false).map(|(dtype, parts)| dtype.size() * parts)
}

/// Attributes by name.
struct Named<'a>(&'a Attributes);

impl Named<'_> {
    /// The attribute of this name, if it is of this kind.
    fn find(&self, name: &str, kind: c_int) -> Option<*const c_void> {
        let count = usize::try_from(self.0.count).unwrap_or(0);
        (0..count).find_map(|i| {
            // SAFETY: there are as many attributes as it says.
            unsafe {
                let found = &**self.0.names.add(i);
                (bytes(found) == name.as_bytes() && *self.0.types.add(i) == kind).then(|| *self.0.values.add(i))
            }
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        let value = self.find(name, STRING)?.cast::<Span>();
        // SAFETY: attributes of this kind are texts.
        Some(String::from_utf8_lossy(unsafe { bytes(&*value) }).into_owned())
    }

    fn scalar(&self, name: &str, dtype: c_int) -> Option<*const c_void> {
        // SAFETY: attributes of this kind are scalars.
        let scalar = unsafe { &*self.find(name, SCALAR)?.cast::<Scalar>() };
        (scalar.dtype == dtype).then_some(scalar.value)
    }

    fn number(&self, name: &str) -> Option<i64> {
        // SAFETY: the type was compared.
        self.scalar(name, S64).map(|value| unsafe { value.cast::<i64>().read_unaligned() })
    }

    fn factor(&self, name: &str) -> Option<f64> {
        // SAFETY: the type was compared.
        self.scalar(name, F64).map(|value| unsafe { value.cast::<f64>().read_unaligned() })
    }

    fn numbers(&self, name: &str) -> Vec<i64> {
        let Some(array) = self.find(name, ARRAY) else { return Vec::new() };
        // SAFETY: attributes of this kind are arrays, with as many numbers as they say.
        unsafe {
            let array = &*array.cast::<Array>();
            if array.dtype != S64 || array.len == 0 {
                return Vec::new();
            }
            (0..array.len).map(|i| array.data.cast::<i64>().add(i).read_unaligned()).collect()
        }
    }
}

/// # Safety
/// The span is XLA's.
unsafe fn bytes(span: &Span) -> &[u8] {
    if span.len == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(span.at, span.len) }
}
