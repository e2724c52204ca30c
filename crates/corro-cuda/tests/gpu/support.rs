//! A GPU to test on, elements to test with, and how results are compared.

use corro_core::DType;
use corro_cuda::{Allocation, Device, Kernels, Pinned, Span, Stream, driver};
use corro_testing::Random;

/// A device, with a stream and kernels.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
    pub(crate) kernels: Kernels,
}

impl Gpu {
    pub(crate) fn new() -> Self {
        let device = driver().unwrap().device(0).unwrap();
        let (stream, kernels) = (Stream::new(&device).unwrap(), Kernels::new(&device).unwrap());
        Self { device, stream, kernels }
    }

    pub(crate) fn allocate(&self, len: usize) -> Allocation {
        Allocation::new(&self.device, len).unwrap()
    }

    /// Memory of the GPU that begins with these bytes.
    pub(crate) fn with(&self, bytes: &[u8]) -> Allocation {
        let memory = self.allocate(bytes.len());
        self.write(memory.span(), bytes);
        memory
    }

    pub(crate) fn write(&self, to: Span<'_>, bytes: &[u8]) {
        let mut pinned = Pinned::new(&self.device, bytes.len()).unwrap();
        pinned.bytes_mut().copy_from_slice(bytes);
        self.stream.copy(to, pinned.span()).unwrap();
        self.stream.synchronize().unwrap();
    }

    /// What is there once the stream is done.
    pub(crate) fn read(&self, from: Span<'_>) -> Vec<u8> {
        let pinned = Pinned::new(&self.device, from.len()).unwrap();
        self.stream.copy(pinned.span(), from).unwrap();
        self.stream.synchronize().unwrap();
        pinned.bytes().to_vec()
    }
}

/// `count` elements: mostly ordinary numbers, some bits at random, and what is special about floats.
pub(crate) fn elements(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let size = dtype.size();
    let mut bytes = random.bytes(count * size);
    if !dtype.is_float() {
        return bytes;
    }
    for element in bytes.chunks_exact_mut(size) {
        match random.below(16) {
            // As they are: NaNs, infinities and subnormal numbers among them.
            0 => {}
            1 => write_float(
                dtype,
                element,
                [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN][random.below(6)],
            ),
            _ => write_float(dtype, element, random.unit() * 8.0),
        }
    }
    bytes
}

/// Numbers between -1 and 1.
pub(crate) fn gradients(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * dtype.size()];
    bytes.chunks_exact_mut(dtype.size()).for_each(|element| write_float(dtype, element, random.unit()));
    bytes
}

fn write_float(dtype: DType, element: &mut [u8], value: f64) {
    corro_kernels::cast(DType::F64, dtype, &value.to_ne_bytes(), element);
}

/// The same bits, except in a NaN.
pub(crate) fn assert_same(dtype: DType, found: &[u8], expected: &[u8], case: impl Fn() -> String) {
    if found == expected {
        return;
    }
    assert_eq!(found.len(), expected.len(), "{}", case());
    for (i, (f, e)) in found.chunks_exact(dtype.size()).zip(expected.chunks_exact(dtype.size())).enumerate() {
        assert!(f == e || is_nan(dtype, f) && is_nan(dtype, e), "{}: element {i} is {f:02x?}, not {e:02x?}", case());
    }
}

fn is_nan(dtype: DType, element: &[u8]) -> bool {
    if !dtype.is_float() {
        return false;
    }
    let mut value = [0; 8];
    corro_kernels::cast(dtype, DType::F64, element, &mut value);
    f64::from_ne_bytes(value).is_nan()
}
