//! Kernels in the driver: compiled when they are first needed, and launched.

#![expect(unsafe_code, reason = "calls the driver, and trusts what kernels take")]

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

use corro_core::{DType, Error, Result};

use super::codes::CodesWork;
use super::ptx::{Source, ptx};
use super::table::{AdasumWork, CombineWork, GatherWork, THREADS};
use crate::device::Device;
use crate::stream::Stream;
use crate::sys::Handle;

/// Blocks for each multiprocessor: enough to have eight of 256 threads on each, which is all it can hold.
const BLOCKS: u32 = 8;

/// A function of one of the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Function {
    Combine,
    Gather,
    Dots,
    Fold,
    Adasum,
    Encode,
    Decode,
}

impl Function {
    fn source(self) -> Source {
        match self {
            Self::Combine => Source::Combine,
            Self::Gather => Source::Gather,
            Self::Dots | Self::Fold | Self::Adasum => Source::Adasum,
            Self::Encode | Self::Decode => Source::Codes,
        }
    }

    fn name(self) -> &'static CStr {
        match self {
            Self::Combine => c"combine",
            Self::Gather => c"gather",
            Self::Dots => c"dots",
            Self::Fold => c"fold",
            Self::Adasum => c"adasum",
            Self::Encode => c"encode",
            Self::Decode => c"decode",
        }
    }
}

/// What a kernel takes as its one parameter.
pub(crate) trait Work {
    /// Whether `function` takes it.
    fn is_for(function: Function) -> bool;
}

impl Work for CombineWork {
    fn is_for(function: Function) -> bool {
        function == Function::Combine
    }
}

impl Work for GatherWork {
    fn is_for(function: Function) -> bool {
        function == Function::Gather
    }
}

impl Work for AdasumWork {
    fn is_for(function: Function) -> bool {
        function.source() == Source::Adasum
    }
}

impl Work for CodesWork {
    fn is_for(function: Function) -> bool {
        function.source() == Source::Codes
    }
}

/// The kernels of one device.
pub(crate) struct Launcher {
    device: Device,
    blocks: u32,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<(Source, DType), Handle>,
    functions: HashMap<(Function, DType), Handle>,
}

impl Launcher {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let blocks = device.multiprocessors()?.saturating_mul(BLOCKS);
        Ok(Self { device: device.clone(), blocks, loaded: Mutex::default() })
    }

    /// At most so many blocks, and one at least.
    pub(crate) fn limit_blocks(&mut self, most: u32) {
        self.blocks = most.max(1);
    }

    /// One block for each of `chunks`, as far as the device can run them at once; the rest follows in the same blocks.
    pub(crate) fn grid(&self, chunks: u32) -> u32 {
        chunks.min(self.blocks)
    }

    /// Launches `grid` blocks. The work must speak of memory that is there: whoever made it had spans.
    pub(crate) fn launch<W: Work>(
        &self,
        stream: &Stream,
        (function, dtype): (Function, DType),
        grid: u32,
        work: &W,
    ) -> Result<()> {
        if grid == 0 {
            return Ok(());
        }
        if !W::is_for(function) || *stream.device() != self.device {
            return Err(Error::Bug(format!("kernel {function:?} of {:?} on {stream:?}", self.device)));
        }
        let _entered = self.device.enter()?;
        let handle = self.function(function, dtype)?;
        let mut parameters = [std::ptr::from_ref(work).cast_mut().cast::<c_void>()];
        // SAFETY: the kernel takes one parameter of this very type (`is_for`, and a test of the sizes), which the driver copies
        // before it returns. What it does with memory, spans have vouched for.
        let code = unsafe {
            (self.device.functions().cuLaunchKernel)(
                handle,
                grid,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.device.check(code, || format!("launching the kernel {function:?} for {dtype}"))
    }

    /// Compiles a function now if it was not before.
    pub(crate) fn prepare(&self, function: Function, dtype: DType) -> Result<()> {
        let _entered = self.device.enter()?;
        self.function(function, dtype).map(drop)
    }

    /// The function in the driver. The context must be current.
    fn function(&self, function: Function, dtype: DType) -> Result<Handle> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = loaded.functions.get(&(function, dtype)) {
            return Ok(*handle);
        }
        let module = match loaded.modules.get(&(function.source(), dtype)) {
            Some(module) => *module,
            None => {
                let module = self.load(function.source(), dtype)?;
                loaded.modules.insert((function.source(), dtype), module);
                module
            }
        };
        let mut handle = Handle::NULL;
        // SAFETY: it writes one handle, which lives as long as the module. The name ends with a 0.
        let code =
            unsafe { (self.device.functions().cuModuleGetFunction)(&raw mut handle, module, function.name().as_ptr()) };
        self.device.check(code, || format!("looking for the kernel {function:?}"))?;
        loaded.functions.insert((function, dtype), handle);
        Ok(handle)
    }

    fn load(&self, source: Source, dtype: DType) -> Result<Handle> {
        let Some(text) = ptx(source, dtype) else {
            return Err(Error::Bug(format!("there is no kernel {source:?} for {dtype}")));
        };
        let mut module = Handle::NULL;
        // SAFETY: it writes one handle, which is unloaded once. The text is PTX, and ends with a 0.
        let code = unsafe { (self.device.functions().cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
        self.device.check(code, || format!("compiling the kernel {source:?} for {dtype}"))?;
        Ok(module)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let loaded = std::mem::take(self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner));
        if let Ok(_entered) = self.device.enter() {
            for module in loaded.modules.into_values() {
                // SAFETY: loaded once, by `load`; nobody else has its functions. The driver waits for kernels that run.
                unsafe { (self.device.functions().cuModuleUnload)(module) };
            }
        }
    }
}
