//! The operations as TensorFlow's graphs know them: names, inputs, attributes, and the shapes of results.

use std::ffi::{CStr, CString, c_int};

use super::api::{Api, RawStatus, ShapeContext, ShapeFunction, ShapeHandle, Status, api};

/// What an operation does; the order is that of [`OPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Allreduce,
    GroupedAllreduce,
    Allgather,
    GroupedAllgather,
    Broadcast,
    Alltoall,
    Reducescatter,
    GroupedReducescatter,
    Barrier,
    Join,
    Size,
    Rank,
    LocalSize,
    LocalRank,
    ProcessSetIncluded,
}

/// One operation's definition. The names are Horovod's, so that graphs saved with it can be loaded.
pub(super) struct Definition {
    pub(super) op: Op,
    pub(super) name: &'static CStr,
    inputs: &'static [&'static CStr],
    outputs: &'static [&'static CStr],
    attributes: &'static [&'static CStr],
    shape: ShapeFunction,
}

/// What can be added up.
const NUMBERS: &CStr =
    c"T: {uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, bfloat16, float32, float64}";
/// What can be moved.
const ALL: &CStr =
    c"T: {bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, bfloat16, float32, float64}";

/// `process_set` is the set as an input: no tensor, or one that says it when the operation runs.
const SET: &CStr = c"process_set: M * int32";
const SETS: &CStr = c"M: int >= 0 = 0";
const SET_ID: &CStr = c"process_set_id: int = 0";
/// `eager` says that the caller waits for the result, and has no node whose name could be taken.
const EAGER: &CStr = c"eager: bool = false";
const NAME: &CStr = c"tensor_name: string = ''";
const SCOPE: &CStr = c"ignore_name_scope: bool = false";
const COUNT: &CStr = c"N: int >= 1";
const REDUCE: &CStr = c"reduce_op: int = 1";
const PRESCALE: &CStr = c"prescale_factor: float = 1.0";
const POSTSCALE: &CStr = c"postscale_factor: float = 1.0";
/// As `corro-compress` writes it; none by default.
const COMPRESSION: &CStr = c"compression: string = ''";

pub(super) const OPS: [Definition; 15] = [
    Definition {
        op: Op::Allreduce,
        name: c"HorovodAllreduce",
        inputs: &[c"tensor: T", SET],
        outputs: &[c"sum: T"],
        attributes: &[NUMBERS, SETS, SET_ID, EAGER, NAME, SCOPE, REDUCE, PRESCALE, POSTSCALE, COMPRESSION],
        shape: same_shapes,
    },
    Definition {
        op: Op::GroupedAllreduce,
        name: c"HorovodGroupedAllreduce",
        inputs: &[c"tensors: N * T", SET],
        outputs: &[c"sum: N * T"],
        attributes: &[NUMBERS, COUNT, SETS, SET_ID, EAGER, NAME, SCOPE, REDUCE, PRESCALE, POSTSCALE, COMPRESSION],
        shape: same_shapes,
    },
    Definition {
        op: Op::Allgather,
        name: c"HorovodAllgather",
        inputs: &[c"tensor: T", SET],
        outputs: &[c"output: T"],
        attributes: &[ALL, SETS, SET_ID, EAGER, NAME, SCOPE],
        shape: other_rows,
    },
    Definition {
        op: Op::GroupedAllgather,
        name: c"HorovodGroupedAllgather",
        inputs: &[c"tensors: N * T", SET],
        outputs: &[c"output: N * T"],
        attributes: &[ALL, COUNT, SETS, SET_ID, EAGER, NAME, SCOPE],
        shape: other_rows,
    },
    Definition {
        op: Op::Broadcast,
        name: c"HorovodBroadcast",
        inputs: &[c"tensor: T", SET],
        outputs: &[c"output: T"],
        attributes: &[ALL, SETS, SET_ID, EAGER, NAME, SCOPE, c"root_rank: int = 0"],
        shape: same_shapes,
    },
    Definition {
        op: Op::Alltoall,
        name: c"HorovodAlltoall",
        inputs: &[c"tensor: T", c"splits: int32", SET],
        outputs: &[c"output: T", c"received_splits: int32"],
        attributes: &[ALL, SETS, SET_ID, EAGER, NAME, SCOPE],
        shape: rows_and_splits,
    },
    Definition {
        op: Op::Reducescatter,
        name: c"HorovodReducescatter",
        inputs: &[c"tensor: T", SET],
        outputs: &[c"output: T"],
        attributes: &[NUMBERS, SETS, SET_ID, EAGER, NAME, SCOPE, REDUCE, PRESCALE, POSTSCALE],
        shape: other_rows,
    },
    Definition {
        op: Op::GroupedReducescatter,
        name: c"HorovodGroupedReducescatter",
        inputs: &[c"tensors: N * T", SET],
        outputs: &[c"output: N * T"],
        attributes: &[NUMBERS, COUNT, SETS, SET_ID, EAGER, NAME, SCOPE, REDUCE, PRESCALE, POSTSCALE],
        shape: other_rows,
    },
    Definition {
        op: Op::Barrier,
        name: c"HorovodBarrier",
        inputs: &[SET],
        outputs: &[],
        attributes: &[SETS, SET_ID, EAGER],
        shape: nothing,
    },
    Definition {
        op: Op::Join,
        name: c"HorovodJoin",
        inputs: &[],
        outputs: &[c"last_joined: int32"],
        attributes: &[EAGER],
        shape: scalar,
    },
    Definition {
        op: Op::Size,
        name: c"HorovodSize",
        inputs: &[SET],
        outputs: &[c"size: int32"],
        attributes: &[SETS, SET_ID],
        shape: scalar,
    },
    Definition {
        op: Op::Rank,
        name: c"HorovodRank",
        inputs: &[],
        outputs: &[c"rank: int32"],
        attributes: &[],
        shape: scalar,
    },
    Definition {
        op: Op::LocalSize,
        name: c"HorovodLocalSize",
        inputs: &[],
        outputs: &[c"local_size: int32"],
        attributes: &[],
        shape: scalar,
    },
    Definition {
        op: Op::LocalRank,
        name: c"HorovodLocalRank",
        inputs: &[],
        outputs: &[c"local_rank: int32"],
        attributes: &[],
        shape: scalar,
    },
    Definition {
        op: Op::ProcessSetIncluded,
        name: c"HorovodProcessSetIncluded",
        inputs: &[SET],
        outputs: &[c"included: int32"],
        attributes: &[SETS, SET_ID],
        shape: scalar,
    },
];

/// Makes every operation known to TensorFlow.
pub(super) fn define_all(api: &Api) -> Result<(), String> {
    OPS.iter().try_for_each(|definition| definition.register(api))
}

impl Definition {
    /// The names of its inputs and outputs.
    pub(super) fn arguments(&self) -> impl Iterator<Item = CString> {
        let name = |text: &&CStr| {
            let bytes = text.to_bytes();
            let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
            // (A part of a text without zeros has none.)
            CString::new(&bytes[..end]).unwrap_or_default()
        };
        self.inputs.iter().chain(self.outputs).map(name)
    }

    fn register(&self, api: &Api) -> Result<(), String> {
        let status = Status::new();
        // SAFETY: TensorFlow copies the texts; the builder is given back to it by the last call.
        unsafe {
            let builder = (api.TF_NewOpDefinitionBuilder)(self.name.as_ptr());
            for text in self.inputs {
                (api.TF_OpDefinitionBuilderAddInput)(builder, text.as_ptr());
            }
            for text in self.outputs {
                (api.TF_OpDefinitionBuilderAddOutput)(builder, text.as_ptr());
            }
            for text in self.attributes {
                (api.TF_OpDefinitionBuilderAddAttr)(builder, text.as_ptr());
            }
            // An operation without state with constant inputs would be run once, when the graph is optimised, and two
            // with equal inputs would become one.
            (api.TF_OpDefinitionBuilderSetIsStateful)(builder, true);
            (api.TF_OpDefinitionBuilderSetShapeInferenceFunction)(builder, self.shape);
            (api.TF_RegisterOpDefinition)(builder, status.raw());
        }
        status
            .check()
            .map_err(|text| format!("TensorFlow refuses the operation {}: {text}", self.name.to_string_lossy()))
    }
}

/// A handle to a shape, in the inference of one node's shapes.
struct Shape(*mut ShapeHandle);

impl Shape {
    fn new() -> Self {
        // SAFETY: no arguments.
        Self(unsafe { (api().TF_NewShapeHandle)() })
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { (api().TF_DeleteShapeHandle)(self.0) };
    }
}

/// What `TF_ShapeInferenceContextVectorFromSize` takes for a length that is not known: -1 in its own type.
const UNKNOWN: usize = usize::MAX;

/// Sets each output to what `shape` makes of the input with the same number. Inputs that are not tensors of the operation
/// come last, so that those beyond the outputs are left alone.
unsafe fn each(
    context: *mut ShapeContext,
    outputs: usize,
    status: *mut RawStatus,
    shape: impl Fn(&Shape) -> Option<Shape>,
) {
    let api = api();
    // SAFETY: TensorFlow gives its own context and status; handles live until after the call that takes them.
    unsafe {
        let inputs = usize::try_from((api.TF_ShapeInferenceContextNumInputs)(context)).unwrap_or(0);
        for i in 0..inputs.min(outputs) {
            let input = Shape::new();
            (api.TF_ShapeInferenceContextGetInput)(context, i as c_int, input.0, status);
            let beyond = Status::new();
            let output = shape(&input);
            let output = output.as_ref().unwrap_or(&input);
            if (api.TF_GetCode)(status) != 0 {
                return;
            }
            (api.TF_ShapeInferenceContextSetOutput)(context, i as c_int, output.0, beyond.raw());
            if beyond.check().is_err() {
                return;
            }
        }
    }
}

unsafe extern "C" fn same_shapes(context: *mut ShapeContext, status: *mut RawStatus) {
    // SAFETY: what TensorFlow gave.
    unsafe { each(context, usize::MAX, status, |_| None) };
}

/// The number of rows depends on the other ranks.
unsafe extern "C" fn other_rows(context: *mut ShapeContext, status: *mut RawStatus) {
    // SAFETY: what TensorFlow gave.
    unsafe { each(context, usize::MAX, status, |input| with_unknown_rows(context, input, status)) };
}

unsafe extern "C" fn rows_and_splits(context: *mut ShapeContext, status: *mut RawStatus) {
    // SAFETY: what TensorFlow gave; a vector of unknown length is a shape.
    unsafe {
        each(context, 1, status, |input| with_unknown_rows(context, input, status));
        let splits = Shape((api().TF_ShapeInferenceContextVectorFromSize)(context, UNKNOWN));
        (api().TF_ShapeInferenceContextSetOutput)(context, 1, splits.0, status);
    }
}

fn with_unknown_rows(context: *mut ShapeContext, input: &Shape, status: *mut RawStatus) -> Option<Shape> {
    let api = api();
    // SAFETY: the context and the status are TensorFlow's, the handles ours.
    unsafe {
        if (api.TF_ShapeInferenceContextRankKnown)(context, input.0) == 0 {
            return None;
        }
        let (row, result, checked) = (Shape::new(), Shape::new(), Shape::new());
        (api.TF_ShapeInferenceContextWithRankAtLeast)(context, input.0, 1, checked.0, status);
        if (api.TF_GetCode)(status) != 0 {
            return None;
        }
        (api.TF_ShapeInferenceContextSubshape)(context, input.0, 1, i64::MAX, row.0, status);
        let rows = Shape((api.TF_ShapeInferenceContextVectorFromSize)(context, UNKNOWN));
        (api.TF_ShapeInferenceContextConcatenateShapes)(context, rows.0, row.0, result.0, status);
        Some(result)
    }
}

unsafe extern "C" fn scalar(context: *mut ShapeContext, status: *mut RawStatus) {
    // SAFETY: what TensorFlow gave.
    unsafe {
        let scalar = Shape((api().TF_ShapeInferenceContextScalar)(context));
        (api().TF_ShapeInferenceContextSetOutput)(context, 0, scalar.0, status);
    }
}

unsafe extern "C" fn nothing(_context: *mut ShapeContext, _status: *mut RawStatus) {}
