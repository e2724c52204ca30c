//! One call of the handler: what the program asks for, and its buffers.

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::ffi::{c_int, c_void};

use std::sync::Arc;

use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Result, Shape};
use corro_cuda::{Event, Span, Stream, driver};
use corro_engine::{Device, Kind, Memory, Output, Submission};

use crate::{gpu, large_pages};

use super::ffi::{Attributes, Buffers, CallFrame, RawBuffer, STRING, Text, U8};

/// What a program asks for. All of it is constant in a compiled program; none of it depends on how many ranks there are.
pub(super) struct Wanted {
    kind: String,
    /// By which the ranks find each other's calls.
    pub(super) name: String,
    set: u32,
    op: i64,
    prescale: f64,
    postscale: f64,
    root: i64,
    splits: Vec<usize>,
    /// On how many devices of this process the program runs, each with the same values.
    pub(super) devices: usize,
}

impl Wanted {
    /// # Safety
    /// The frame is that of a call which is to be executed.
    pub(super) unsafe fn read(frame: *const CallFrame) -> Result<Self> {
        // SAFETY: as above.
        let text = match unsafe { written(&(*frame).attributes) } {
            Some(text) => String::from_utf8_lossy(text),
            // SAFETY: as above.
            None => unsafe { String::from_utf8_lossy(spelled_out(&(*frame).arguments)) },
        };
        Self::parse(&text)
    }

    /// From `kind;set;op;prescale;postscale;root;devices;split,split,...;name`.
    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Bug(format!("a call from XLA with the text {text:?}"));
        let mut fields = text.splitn(9, ';');
        let mut next = || fields.next().ok_or_else(wrong);
        let number = |text: &str| text.parse::<i64>().map_err(|_| wrong());
        let factor = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        Ok(Self {
            kind: next()?.to_owned(),
            set: next()?.parse().map_err(|_| wrong())?,
            op: number(next()?)?,
            prescale: factor(next()?)?,
            postscale: factor(next()?)?,
            root: number(next()?)?,
            devices: next()?.parse().map_err(|_| wrong())?,
            splits: next()?
                .split(',')
                .filter(|split| !split.is_empty())
                .map(|split| split.parse().map_err(|_| wrong()))
                .collect::<Result<_>>()?,
            name: next()?.to_owned(),
        })
    }

    /// Whether this rank gets zeros: only the root gets what it asks for. What flows back through a broadcast is so.
    pub(super) fn is_cleared_on(&self, rank: Rank) -> bool {
        self.kind == "reduce" && usize::try_from(self.root) != Ok(rank.index())
    }

    /// Whether it only waits for the other ranks, and hands on what it was given.
    pub(super) fn is_barrier(&self) -> bool {
        self.kind == "barrier"
    }

    fn kind(&self) -> Result<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.kind.as_str() {
            "allreduce" => Kind::Allreduce { op: self.op()?, prescale, postscale, compression: None },
            "reduce" => Kind::Allreduce { op: ReduceOp::Sum, prescale, postscale, compression: None },
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
            if tensors.home.is_none() {
                // XLA takes large results from the system, and gives them back.
                large_pages::want(output.at.cast(), room);
            }
            let name = if count == 1 { self.name.clone() } else { format!("{}_{}of{count}", self.name, i + 1) };
            Ok(Submission {
                set: self.set,
                name,
                kind: kind.clone(),
                dtype,
                shape,
                device: tensors.device(),
                input: Some(tensors.memory(input, bytes)),
                output: Output::InPlace(tensors.memory(output, room)),
            })
        };
        tensors.pairs.iter().enumerate().map(one).collect()
    }
}

/// An error of the engine, with a word about what is particular here: the shapes of results are constants.
pub(super) fn explained(error: Error) -> Error {
    match error {
        Error::Mismatch(text) if text.starts_with("Mismatched output size") => Error::Mismatch(format!(
            "{text}. Compiled code has a fixed shape for it: that of equally many rows from each rank. Say how many rows \
             each brings (hvd.allgather(x, rows=[...]), hvd.alltoall(x, splits=..., received_splits=...)), or call it \
             outside of jit. If the number of ranks has changed since, compile the function anew"
        )),
        error => error,
    }
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
    /// The GPU that has them, and when they are ready there; None for memory of the host.
    home: Option<(usize, Arc<Event>)>,
}

// SAFETY: XLA keeps the buffers until the call has ended, and lets any thread work on them until then.
unsafe impl Send for Tensors {}

impl Tensors {
    /// # Safety
    /// The frame is that of a call which is to be executed.
    pub(super) unsafe fn read(frame: *const CallFrame) -> Result<Self> {
        // SAFETY: as above.
        let (mut inputs, outputs) = unsafe { (tensors(&(*frame).arguments)?, tensors(&(*frame).results)?) };
        if inputs.len() == outputs.len() + 1 {
            // What the call is in words: `Wanted` has read it.
            inputs.remove(0);
        }
        if inputs.len() != outputs.len() {
            return Err(Error::Bug(format!("a call with {} arguments and {} results", inputs.len(), outputs.len())));
        }
        Ok(Self { pairs: inputs.into_iter().zip(outputs).collect(), home: None })
    }

    /// The number of the GPU that has the buffers; if all are empty, the first.
    pub(super) fn gpu(&self) -> Result<usize> {
        let buffers = self.pairs.iter().flat_map(|(input, output)| [input.at, output.at]);
        buffers.map(|at| at as u64).find(|at| *at != 0).map_or(Ok(0), |at| driver()?.device_with(at))
    }

    /// They are in the memory of this GPU, from this moment on.
    pub(super) fn on_gpu(self, ordinal: usize, ready: Arc<Event>) -> Self {
        Self { home: Some((ordinal, ready)), ..self }
    }

    fn device(&self) -> Device {
        let number = |home: &(usize, Arc<Event>)| u32::try_from(home.0).map_or(Device::Cpu, Device::Gpu);
        self.home.as_ref().map_or(Device::Cpu, number)
    }

    fn memory(&self, tensor: &Tensor, bytes: usize) -> Memory {
        match &self.home {
            // The program's stream waits for the result, and XLA uses the buffers in the order of that stream.
            Some((ordinal, ready)) => gpu::memory(tensor.at as usize, bytes, *ordinal, ready, Arc::new(())),
            None => tensor.memory(bytes).into(),
        }
    }

    /// As [`Tensors::clear`], in the order of a stream.
    pub(super) fn clear_on(&self, stream: &Stream) -> Result<()> {
        self.pairs.iter().try_for_each(|(_, output)| stream.zero(output.span()?))
    }

    /// As [`Tensors::pass_through`], in the order of a stream.
    pub(super) fn pass_through_on(&self, stream: &Stream) -> Result<()> {
        self.pairs.iter().try_for_each(|(input, output)| stream.copy(output.span()?, input.span()?))
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

    fn bytes(&self) -> Result<usize> {
        let size =
            element_size(self.dtype).ok_or_else(|| Error::Bug(format!("XLA's type {} is unknown", self.dtype)))?;
        Ok(self.elements()?.saturating_mul(size))
    }

    fn whole(&self) -> Result<Buffer> {
        Ok(self.memory(self.bytes()?))
    }

    fn span(&self) -> Result<Span<'_>> {
        // SAFETY: the buffer is of this shape and type, on the GPU that the call is for; XLA uses it in the order of the
        // call's stream, and so does whoever gets this.
        Ok(unsafe { Span::from_raw(self.at as u64, self.bytes()?) })
    }
}

/// # Safety
/// These are the buffers of a call which is to be executed.
unsafe fn tensors(buffers: &Buffers) -> Result<Vec<Tensor>> {
    let count = usize::try_from(buffers.count).unwrap_or(0);
    let one = |i| {
        // SAFETY: there are as many buffers as it says, each with as many dimensions as it says.
        let (buffer, dims) = unsafe {
            let buffer: &RawBuffer = &**buffers.places.add(i);
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

/// The call in words: its one attribute. None where there is none.
///
/// # Safety
/// These are the attributes of a call which is to be executed.
unsafe fn written(attributes: &Attributes) -> Option<&[u8]> {
    // SAFETY: as above; attributes of this kind are texts.
    unsafe {
        let is_text = attributes.count == 1 && *attributes.types == STRING;
        is_text
            .then(|| &*(*attributes.values).cast::<Text>())
            .filter(|text| text.len > 0)
            .map(|text| std::slice::from_raw_parts(text.at, text.len))
    }
}

/// The same as an argument, the first: some versions of XLA for CPUs can't have attributes in programs that multiply matrices.
///
/// # Safety
/// These are the arguments of a call which is to be executed, and which has no attributes.
unsafe fn spelled_out(arguments: &Buffers) -> &[u8] {
    // SAFETY: `_primitive.py` has put a vector of bytes there.
    unsafe {
        if arguments.count < 1 {
            return &[];
        }
        let first: &RawBuffer = &**arguments.places;
        if first.rank != 1 || first.dtype != U8 {
            return &[];
        }
        std::slice::from_raw_parts(first.data.cast(), usize::try_from(*first.dims).unwrap_or(0))
    }
}
