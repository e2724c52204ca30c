//! A tensor's memory, wherever it lies.

use corro_core::{Buffer, Error, Result};
use corro_cuda::DeviceMemory;

/// Memory that knows where it lies: nobody reads a GPU's as a slice by mistake.
#[derive(Debug)]
pub enum Memory {
    /// Of the host.
    Host(Buffer),
    /// Of a GPU. (In a box, so that a tensor of the host is hardly larger for it.)
    Device(Box<DeviceMemory>),
}

impl Memory {
    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// If it is a GPU's.
    #[inline]
    pub fn device(&self) -> Option<&DeviceMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }

    /// As host memory; an error if it is not.
    #[inline]
    pub fn host(&self) -> Result<&Buffer> {
        match self {
            Self::Host(buffer) => Ok(buffer),
            Self::Device(memory) => Err(not_here(memory)),
        }
    }

    /// The same, to be written.
    #[inline]
    pub fn host_mut(&mut self) -> Result<&mut Buffer> {
        match self {
            Self::Host(buffer) => Ok(buffer),
            Self::Device(memory) => Err(not_here(memory)),
        }
    }

    /// The same, to be kept.
    pub fn into_host(self) -> Result<Buffer> {
        match self {
            Self::Host(buffer) => Ok(buffer),
            Self::Device(memory) => Err(not_here(&memory)),
        }
    }
}

#[cold]
fn not_here(memory: &DeviceMemory) -> Error {
    let (len, address, device) = (memory.len(), memory.span().address(), memory.device());
    Error::Bug(format!("{len} bytes at {address:#x} of GPU {device} were taken for host memory"))
}

impl From<Buffer> for Memory {
    fn from(buffer: Buffer) -> Self {
        Self::Host(buffer)
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Host(bytes.into())
    }
}

impl From<DeviceMemory> for Memory {
    fn from(memory: DeviceMemory) -> Self {
        Self::Device(Box::new(memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "names memory that nobody looks into")]
    fn memory_of_a_gpu_is_not_read_as_a_slice() {
        // SAFETY: nothing is ever enqueued.
        let mut gpu = Memory::from(unsafe { DeviceMemory::from_raw(0x7f00, 16, 3, None, std::sync::Arc::new(())) });
        assert_eq!((gpu.len(), gpu.device().map(DeviceMemory::device)), (16, Some(3)));
        let text = gpu.host_mut().unwrap_err().to_string();
        assert!(text.contains("16 bytes at 0x7f00 of GPU 3"), "{text}");
        assert!(gpu.host().is_err() && gpu.into_host().is_err());
        let host = Memory::from(vec![1, 2]);
        assert_eq!((host.host().unwrap().as_slice(), host.device().is_none()), (&[1, 2][..], true));
    }
}
