//! Results in memory that the engine has allocated, handed to Python without a copy: to numpy by `__array_interface__`,
//! to everything else by `DLPack`. (The buffer protocol is not part of Python 3.10's stable interface.)

#![expect(unsafe_code, reason = "DLPack is a C interface")]

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use corro_core::Buffer;
use corro_cuda::DeviceMemory;
use corro_engine::{Memory, Outcome};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{IntoPyObjectExt, ffi};

use crate::error::exception;
use crate::gpu;

/// See the module. Its elements are bytes to the outside; the front knows the dtype.
#[pyclass(frozen)]
pub(crate) struct Output {
    /// Empty if the result is on a GPU.
    memory: Arc<Buffer>,
    on_gpu: Option<DeviceMemory>,
    shape: Vec<usize>,
    received_splits: Vec<usize>,
}

impl Output {
    pub(crate) fn new(outcome: Outcome) -> Self {
        let (memory, on_gpu) = match outcome.output {
            Some(Memory::Host(memory)) => (memory, None),
            Some(Memory::Device(memory)) => (Vec::new().into(), Some(*memory)),
            None => (Vec::new().into(), None),
        };
        let (shape, received_splits) = (outcome.shape.0, outcome.received_splits);
        Self { memory: Arc::new(memory), on_gpu, shape, received_splits }
    }
}

#[pymethods]
impl Output {
    #[getter]
    fn address(&self) -> usize {
        self.memory.as_slice().as_ptr().addr()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.on_gpu.as_ref().map_or(self.memory.len(), DeviceMemory::len)
    }

    /// Whether the result is in the memory of a GPU. Then `copy_to` is the way to have it.
    #[getter]
    fn is_on_gpu(&self) -> bool {
        self.on_gpu.is_some()
    }

    /// Has a stream copy the result to `nbytes` bytes at `address`, on the same GPU.
    fn copy_to(&self, py: Python<'_>, address: usize, stream: u64) -> PyResult<()> {
        let Some(memory) = &self.on_gpu else { return Ok(()) };
        gpu::copy_out(memory, address, stream).map_err(|error| exception(py, &error))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn received_splits(&self) -> Vec<usize> {
        self.received_splits.clone()
    }

    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.memory.len(),))?;
        interface.set_item("data", (self.address(), false))?;
        Ok(interface)
    }

    #[pyo3(signature = (**_options))]
    fn __dlpack__(&self, py: Python<'_>, _options: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let tensor = Managed::new(Arc::clone(&self.memory));
        // SAFETY: the pointer is valid until somebody calls its deleter: the consumer, who then renames the capsule, or
        // `drop_capsule`, which checks that name.
        unsafe {
            let capsule = ffi::PyCapsule_New(tensor.cast(), FRESH.as_ptr(), Some(drop_capsule));
            if capsule.is_null() {
                delete(tensor);
            }
            Bound::from_owned_ptr_or_err(py, capsule)?.into_py_any(py)
        }
    }

    #[expect(clippy::unused_self, reason = "a method of the DLPack protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }
}

const CPU: i32 = 1;
const UNSIGNED: u8 = 1;
const FRESH: &CStr = c"dltensor";

/// `DLManagedTensor` of dlpack.h, with its `DLTensor` written out.
#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// What `owner` points to.
struct Owner {
    shape: [i64; 1],
    _memory: Arc<Buffer>,
}

impl Managed {
    fn new(memory: Arc<Buffer>) -> *mut Self {
        let data = memory.as_slice().as_ptr().cast_mut().cast();
        let owner = Box::into_raw(Box::new(Owner { shape: [memory.len() as i64], _memory: memory }));
        Box::into_raw(Box::new(Self {
            data,
            device_type: CPU,
            device_id: 0,
            dimensions: 1,
            type_code: UNSIGNED,
            type_bits: 8,
            type_lanes: 1,
            // SAFETY: the owner was made just above, and lives until `delete`.
            shape: unsafe { &raw mut (*owner).shape }.cast(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
            owner: owner.cast(),
            deleter: Some(delete),
        }))
    }
}

/// SAFETY: to be called once, with what `Managed::new` gave; on any thread, with or without the GIL.
unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: both were made by `Box::into_raw` in `Managed::new`, and nobody has freed them before.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.owner.cast::<Owner>()));
    }
}

/// Python drops a capsule: if nobody has taken the tensor out, it is still ours to delete.
///
/// SAFETY: called by Python with the capsule that `__dlpack__` made.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that still has its first name still holds the pointer it was made with.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
        }
    }
}
