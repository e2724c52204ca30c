//! One call of a kernel, and one node of a graph, as the C API shows them.

use std::ffi::{CStr, c_int};

use super::api::{Construction, Context, Status, Tensor, api};
use super::failure::{Answer, Failure};

const INT32: c_int = 3;

/// One call of a kernel. TensorFlow keeps the context until it is told that the kernel is done.
#[derive(Clone, Copy)]
pub(super) struct Call(pub(super) *mut Context);

// SAFETY: an asynchronous kernel may use its context on any thread, one at a time: the engine makes outputs and reports
// outcomes of one operation one after the other, and those of a group under a lock of their process set.
unsafe impl Send for Call {}

impl Call {
    pub(super) fn inputs(&self) -> usize {
        // SAFETY: the context is TensorFlow's and alive.
        usize::try_from(unsafe { (api().TF_NumInputs)(self.0) }).unwrap_or(0)
    }

    pub(super) fn outputs(&self) -> usize {
        // SAFETY: as above.
        usize::try_from(unsafe { (api().TF_NumOutputs)(self.0) }).unwrap_or(0)
    }

    pub(super) fn input(&self, i: usize) -> Answer<Tensor> {
        let status = Status::new();
        let mut tensor = std::ptr::null_mut();
        // SAFETY: as above; the reference that it gives is ours.
        unsafe {
            (api().TF_GetInput)(self.0, i as c_int, &raw mut tensor, status.raw());
            status.check()?;
            Ok(Tensor::own(tensor))
        }
    }

    /// Room for an output of the shape of input `i`, and whether that is the input itself.
    pub(super) fn forward_or_allocate(&self, i: usize, dims: &[usize]) -> Answer<(Tensor, bool)> {
        let status = Status::new();
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        let (candidate, mut forwarded) = (i as c_int, -1);
        // SAFETY: as above; the arrays live through the call.
        unsafe {
            let tensor = (api().TF_ForwardInputOrAllocateOutput)(
                self.0,
                &raw const candidate,
                1,
                candidate,
                dims.as_ptr(),
                dims.len() as c_int,
                &raw mut forwarded,
                status.raw(),
            );
            status.check()?;
            Ok((Tensor::own(tensor), forwarded == candidate))
        }
    }

    pub(super) fn allocate(&self, i: usize, dtype: c_int, dims: &[usize]) -> Answer<Tensor> {
        let status = Status::new();
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        // SAFETY: as above. TensorFlow computes the size itself and ignores the one that is given.
        unsafe {
            let tensor = (api().TF_AllocateOutput)(
                self.0,
                i as c_int,
                dtype,
                dims.as_ptr(),
                dims.len() as c_int,
                0,
                status.raw(),
            );
            status.check()?;
            Ok(Tensor::own(tensor))
        }
    }

    pub(super) fn put_int32s(&self, i: usize, dims: &[usize], values: &[i32]) -> Answer<()> {
        let tensor = self.allocate(i, INT32, dims)?;
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the tensor has as many elements as there are values.
            unsafe { tensor.data().add(4 * at).cast::<[u8; 4]>().write(value.to_ne_bytes()) };
        }
        Ok(())
    }

    pub(super) fn report(&self, answer: Answer<()>) {
        if let Err(Failure { code, text }) = answer {
            let status = Status::failure(code, &text);
            // SAFETY: as above; TensorFlow copies the status.
            unsafe { (api().TF_OpKernelContext_Failure)(self.0, status.raw()) };
        }
    }
}

/// The attributes of a node.
pub(super) struct Attributes(pub(super) *mut Construction);

impl Attributes {
    pub(super) fn name(&self) -> String {
        // SAFETY: the construction is TensorFlow's; the text belongs to it and is copied.
        unsafe {
            let view = (api().TF_OpKernelConstruction_GetName)(self.0);
            String::from_utf8_lossy(std::slice::from_raw_parts(view.data.cast(), view.len)).into_owned()
        }
    }

    pub(super) fn has(&self, name: &CStr) -> Answer<bool> {
        let status = Status::new();
        // SAFETY: as above.
        let has = unsafe { (api().TF_OpKernelConstruction_HasAttr)(self.0, name.as_ptr(), status.raw()) };
        status.check()?;
        Ok(has)
    }

    pub(super) fn integer(&self, name: &CStr) -> Answer<Option<i64>> {
        if !self.has(name)? {
            return Ok(None);
        }
        let (status, mut value) = (Status::new(), 0);
        // SAFETY: as above; the value is written before the call returns.
        unsafe {
            (api().TF_OpKernelConstruction_GetAttrInt64)(self.0, name.as_ptr(), &raw mut value, status.raw());
        }
        status.check()?;
        Ok(Some(value))
    }

    pub(super) fn flag(&self, name: &CStr) -> Answer<bool> {
        if !self.has(name)? {
            return Ok(false);
        }
        let (status, mut value) = (Status::new(), 0);
        // SAFETY: as above.
        unsafe { (api().TF_OpKernelConstruction_GetAttrBool)(self.0, name.as_ptr(), &raw mut value, status.raw()) };
        status.check()?;
        Ok(value != 0)
    }

    /// A scale factor; 1 where the operation has none.
    pub(super) fn factor(&self, name: &CStr) -> Answer<f64> {
        if !self.has(name)? {
            return Ok(1.0);
        }
        let (status, mut value) = (Status::new(), 0.0);
        // SAFETY: as above.
        unsafe { (api().TF_OpKernelConstruction_GetAttrFloat)(self.0, name.as_ptr(), &raw mut value, status.raw()) };
        status.check()?;
        Ok(f64::from(value))
    }

    pub(super) fn text(&self, name: &CStr) -> Answer<Option<String>> {
        if !self.has(name)? {
            return Ok(None);
        }
        let (status, mut list, mut total) = (Status::new(), 0, 0);
        // SAFETY: as above; the text is written into as many bytes as were asked for.
        unsafe {
            (api().TF_OpKernelConstruction_GetAttrSize)(
                self.0,
                name.as_ptr(),
                &raw mut list,
                &raw mut total,
                status.raw(),
            );
            status.check()?;
            let mut bytes = vec![0u8; usize::try_from(total).unwrap_or(0)];
            (api().TF_OpKernelConstruction_GetAttrString)(
                self.0,
                name.as_ptr(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                status.raw(),
            );
            status.check()?;
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
    }
}
