//! TensorFlow's C API, found at run time: nothing of TensorFlow is needed to build, and one library serves its versions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Declares TensorFlow's own types, which are only ever pointed at.
macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub(super) struct $name { _nothing: [u8; 0] }
    )* };
}

opaque!(Builder Construction Context DoneCallback KernelBuilder RawStatus RawTensor ShapeContext ShapeHandle);

/// `TF_StringView`: text that belongs to TensorFlow.
#[repr(C)]
pub(super) struct StringView {
    pub(super) data: *const c_char,
    pub(super) len: usize,
}

pub(super) type ShapeFunction = unsafe extern "C" fn(*mut ShapeContext, *mut RawStatus);
pub(super) type Create = unsafe extern "C" fn(*mut Construction) -> *mut c_void;
pub(super) type Compute = unsafe extern "C" fn(*mut c_void, *mut Context);
pub(super) type ComputeAsync = unsafe extern "C" fn(*mut c_void, *mut Context, *mut DoneCallback);
pub(super) type Deallocate = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);
pub(super) type Delete = unsafe extern "C" fn(*mut c_void);

/// Declares the functions, and how to find them all.
macro_rules! functions {
    ($($name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions by their names in C.
        #[expect(non_snake_case, reason = "the names of the C API")]
        pub(super) struct Api { $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl Api {
            /// # Safety
            /// `library` must be TensorFlow's framework library: its functions must have these types.
            unsafe fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self { $($name: {
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: the library is open and the name ends with a zero.
                    let at = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
                    if at.is_null() {
                        return Err(format!("this TensorFlow has no function {}", stringify!($name)));
                    }
                    // SAFETY: a function of this name in this library has this type, says its header.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(at) }
                },)* })
            }
        }
    };
}

functions! {
    TF_NewStatus() -> *mut RawStatus;
    TF_DeleteStatus(*mut RawStatus);
    TF_SetStatus(*mut RawStatus, c_int, *const c_char);
    TF_GetCode(*const RawStatus) -> c_int;
    TF_Message(*const RawStatus) -> *const c_char;

    TF_NewTensor(c_int, *const i64, c_int, *mut c_void, usize, Deallocate, *mut c_void) -> *mut RawTensor;
    TF_DeleteTensor(*mut RawTensor);
    TF_TensorData(*const RawTensor) -> *mut c_void;
    TF_TensorByteSize(*const RawTensor) -> usize;
    TF_TensorType(*const RawTensor) -> c_int;
    TF_NumDims(*const RawTensor) -> c_int;
    TF_Dim(*const RawTensor, c_int) -> i64;

    TF_NewOpDefinitionBuilder(*const c_char) -> *mut Builder;
    TF_OpDefinitionBuilderAddAttr(*mut Builder, *const c_char);
    TF_OpDefinitionBuilderAddInput(*mut Builder, *const c_char);
    TF_OpDefinitionBuilderAddOutput(*mut Builder, *const c_char);
    TF_OpDefinitionBuilderSetIsStateful(*mut Builder, bool);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(*mut Builder, ShapeFunction);
    TF_RegisterOpDefinition(*mut Builder, *mut RawStatus);

    TF_ShapeInferenceContextNumInputs(*mut ShapeContext) -> i64;
    TF_NewShapeHandle() -> *mut ShapeHandle;
    TF_DeleteShapeHandle(*mut ShapeHandle);
    TF_ShapeInferenceContextGetInput(*mut ShapeContext, c_int, *mut ShapeHandle, *mut RawStatus);
    TF_ShapeInferenceContextSetOutput(*mut ShapeContext, c_int, *mut ShapeHandle, *mut RawStatus);
    TF_ShapeInferenceContextScalar(*mut ShapeContext) -> *mut ShapeHandle;
    TF_ShapeInferenceContextVectorFromSize(*mut ShapeContext, usize) -> *mut ShapeHandle;
    TF_ShapeInferenceContextRankKnown(*mut ShapeContext, *mut ShapeHandle) -> c_int;
    TF_ShapeInferenceContextWithRankAtLeast(*mut ShapeContext, *mut ShapeHandle, i64, *mut ShapeHandle, *mut RawStatus);
    TF_ShapeInferenceContextSubshape(*mut ShapeContext, *mut ShapeHandle, i64, i64, *mut ShapeHandle, *mut RawStatus);
    TF_ShapeInferenceContextConcatenateShapes(*mut ShapeContext, *mut ShapeHandle, *mut ShapeHandle, *mut ShapeHandle, *mut RawStatus);

    TF_NewKernelBuilder(*const c_char, *const c_char, Create, Compute, Delete) -> *mut KernelBuilder;
    TF_NewAsyncKernelBuilder(*const c_char, *const c_char, Create, ComputeAsync, Delete) -> *mut KernelBuilder;
    TF_KernelBuilder_HostMemory(*mut KernelBuilder, *const c_char);
    TF_RegisterKernelBuilder(*const c_char, *mut KernelBuilder, *mut RawStatus);
    TF_RunAsyncOpKernelDoneCallback(*mut DoneCallback);

    TF_OpKernelConstruction_GetName(*mut Construction) -> StringView;
    TF_OpKernelConstruction_HasAttr(*mut Construction, *const c_char, *mut RawStatus) -> bool;
    TF_OpKernelConstruction_GetAttrSize(*mut Construction, *const c_char, *mut i32, *mut i32, *mut RawStatus);
    TF_OpKernelConstruction_GetAttrInt64(*mut Construction, *const c_char, *mut i64, *mut RawStatus);
    TF_OpKernelConstruction_GetAttrFloat(*mut Construction, *const c_char, *mut f32, *mut RawStatus);
    TF_OpKernelConstruction_GetAttrBool(*mut Construction, *const c_char, *mut u8, *mut RawStatus);
    TF_OpKernelConstruction_GetAttrString(*mut Construction, *const c_char, *mut c_char, usize, *mut RawStatus);
    TF_OpKernelConstruction_Failure(*mut Construction, *mut RawStatus);

    TF_NumInputs(*mut Context) -> c_int;
    TF_NumOutputs(*mut Context) -> c_int;
    TF_GetInput(*mut Context, c_int, *mut *mut RawTensor, *mut RawStatus);
    TF_AllocateOutput(*mut Context, c_int, c_int, *const i64, c_int, usize, *mut RawStatus) -> *mut RawTensor;
    TF_ForwardInputOrAllocateOutput(*mut Context, *const c_int, c_int, c_int, *const i64, c_int, *mut c_int, *mut RawStatus) -> *mut RawTensor;
    TF_SetOutput(*mut Context, c_int, *const RawTensor, *mut RawStatus);
    TF_OpKernelContext_Failure(*mut Context, *mut RawStatus);
}

static API: OnceLock<Api> = OnceLock::new();

/// The functions; only after [`load`] has found them, which all kernels are.
pub(super) fn api() -> &'static Api {
    API.get().expect("TensorFlow calls no kernel before all are registered")
}

/// Finds the functions in the TensorFlow that this process has loaded.
pub(super) fn load() -> Result<&'static Api, String> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    // Not the symbols of the whole process: TensorFlow's are visible there only in its newest versions.
    let open = |name: &CStr| {
        // SAFETY: opens nothing new, so that no foreign code runs.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    };
    let library = open(c"libtensorflow_framework.so.2");
    if library.is_null() {
        return Err("TensorFlow's framework library is not loaded in this process".into());
    }
    // SAFETY: this is the library that has the functions.
    let found = unsafe { Api::find(library) }?;
    Ok(API.get_or_init(|| found))
}

/// A `TF_Status` of our own.
pub(super) struct Status(*mut RawStatus);

impl Status {
    pub(super) fn new() -> Self {
        // SAFETY: no arguments.
        Self(unsafe { (api().TF_NewStatus)() })
    }

    /// One that says what went wrong.
    pub(super) fn failure(code: c_int, text: &str) -> Self {
        let status = Self::new();
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the status is ours, and the text is copied.
        unsafe { (api().TF_SetStatus)(status.0, code, text.as_ptr()) };
        status
    }

    pub(super) fn raw(&self) -> *mut RawStatus {
        self.0
    }

    /// What the last call said.
    pub(super) fn check(&self) -> Result<(), String> {
        // SAFETY: the status is ours; the message belongs to it and is copied.
        unsafe {
            if (api().TF_GetCode)(self.0) == 0 {
                return Ok(());
            }
            Err(CStr::from_ptr((api().TF_Message)(self.0)).to_string_lossy().into_owned())
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { (api().TF_DeleteStatus)(self.0) };
    }
}

/// A tensor of TensorFlow's, of which this is one reference.
pub(super) struct Tensor(*mut RawTensor);

// SAFETY: references are counted atomically; the data is used by one side at a time, as a kernel's contract says.
unsafe impl Send for Tensor {}

impl Tensor {
    /// # Safety
    /// `raw` is a reference that the caller owns and gives away.
    pub(super) unsafe fn own(raw: *mut RawTensor) -> Self {
        Self(raw)
    }

    pub(super) fn raw(&self) -> *const RawTensor {
        self.0
    }

    pub(super) fn data(&self) -> *mut u8 {
        // SAFETY: the reference keeps the tensor.
        unsafe { (api().TF_TensorData)(self.0) }.cast()
    }

    pub(super) fn bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (api().TF_TensorByteSize)(self.0) }
    }

    pub(super) fn dtype(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (api().TF_TensorType)(self.0) }
    }

    pub(super) fn dims(&self) -> Vec<usize> {
        // SAFETY: as above, and the index is below the number of dimensions.
        unsafe { (0..(api().TF_NumDims)(self.0)).map(|i| (api().TF_Dim)(self.0, i) as usize).collect() }
    }

    /// The elements of an int32 tensor.
    pub(super) fn int32s(&self) -> Vec<i32> {
        let count = self.bytes() / 4;
        // SAFETY: the reference keeps the data; every index is below the number of elements.
        (0..count).map(|i| i32::from_ne_bytes(unsafe { self.data().add(4 * i).cast::<[u8; 4]>().read() })).collect()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: gives back the one reference that this was.
        unsafe { (api().TF_DeleteTensor)(self.0) };
    }
}
