//! Collectives in code that XLA has compiled (`jit_compile=True`), on the CPU: one custom call for all of them.
//!
//! XLA finds the function by name in a registry, which C++ code fills through two functions of TensorFlow's large library.
//! There is no C API for it: they are found by their mangled names, and take a `std::string` of libstdc++ by
//! reference. Where they are missing, [`register`] says so, and the Python side refuses to be compiled.
//!
//! The call waits for its collective, in the order of the compiled program, which is the same on all ranks. Shape, dtype and
//! the rest are constants of that program: they come as text.

use std::ffi::{CStr, c_char, c_void};

use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Shape};
use corro_engine::{Device, Kind, Output, Submission};

use super::failure::{Answer, Failure, engine, guarded};

/// By what compiled programs name the function; also in `corro/tensorflow/_xla.py`.
const TARGET: &str = "corro_collective";
const PLATFORM: &str = "Host";
const GLOBAL: &CStr = c"_ZN3xla24CustomCallTargetRegistry6GlobalEv";
const REGISTER: &CStr =
    c"_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_";

/// `std::string` of libstdc++, as far as a reader of it looks; also what [`fail`] leaves for it to own.
#[repr(C)]
struct Text {
    data: *const c_char,
    len: usize,
    /// What the memory holds at most, if the data is on the heap.
    capacity: [usize; 2],
}

/// `XlaCustomCallStatus`: a `std::optional<std::string>`, which is empty when all went well.
#[repr(C)]
struct CallStatus {
    message: Text,
    is_failure: bool,
}

/// Enters the function into XLA's registry.
pub(super) fn register() -> Result<(), String> {
    // SAFETY: opens nothing new; the names end with a zero.
    let (global, register) = unsafe {
        let library = libc::dlopen(c"libtensorflow_cc.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return Err("its library libtensorflow_cc.so.2 is not loaded".into());
        }
        (libc::dlsym(library, GLOBAL.as_ptr()), libc::dlsym(library, REGISTER.as_ptr()))
    };
    if global.is_null() || register.is_null() {
        return Err("it has no registry of custom calls".into());
    }
    let text = |text: &'static str| Text { data: text.as_ptr().cast(), len: text.len(), capacity: [text.len(), 0] };
    let (target, platform) = (text(TARGET), text(PLATFORM));
    // SAFETY: functions with these mangled names have these types; the strings are only read, and copied.
    unsafe {
        let global = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(global);
        let register = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*mut c_void, *const Text, *mut c_void, *const Text),
        >(register);
        register(global(), &raw const target, collective as *mut c_void, &raw const platform);
    }
    Ok(())
}

/// What the compiled program calls.
///
/// SAFETY: called by XLA with the buffers of the operands and of the one result, the text that `_xla.py` wrote, and a status.
unsafe extern "C" fn collective(
    output: *mut c_void,
    inputs: *const *const c_void,
    text: *const c_char,
    length: usize,
    status: *mut CallStatus,
) {
    let answer = guarded(|| {
        // SAFETY: as above.
        let (input, text) = unsafe { (*inputs, std::slice::from_raw_parts(text.cast::<u8>(), length)) };
        let wanted = Wanted::parse(&String::from_utf8_lossy(text))?;
        let bytes = wanted.shape.bytes(wanted.dtype)?;
        // SAFETY: XLA gives an operand and a result of the shape that the program has; both live until this returns,
        // which is after the engine is done with them; the operand is only read.
        let (input, output) = unsafe {
            (
                Buffer::from_raw(input.cast_mut().cast(), bytes, Box::new(())),
                Buffer::from_raw(output.cast(), bytes, Box::new(())),
            )
        };
        engine()?.run(Submission {
            set: wanted.set,
            name: wanted.name,
            kind: wanted.kind,
            dtype: wanted.dtype,
            shape: wanted.shape,
            device: Device::Cpu,
            input: Some(input.into()),
            output: Output::InPlace(output.into()),
        })?;
        Ok(())
    });
    if let Err(Failure { text, .. }) = answer {
        // SAFETY: the status is XLA's, and empty.
        unsafe { fail(status, &text) };
    }
}

/// SAFETY: `status` must be XLA's, and say nothing yet.
unsafe fn fail(status: *mut CallStatus, text: &str) {
    // SAFETY: XLA frees the memory as a `std::string` does: with `operator delete`, which is `free`.
    unsafe {
        let copy = libc::malloc(text.len() + 1).cast::<u8>();
        if copy.is_null() {
            std::process::abort();
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), copy, text.len());
        copy.add(text.len()).write(0);
        (*status).message = Text { data: copy.cast(), len: text.len(), capacity: [text.len(), 0] };
        (*status).is_failure = true;
    }
}

/// What the program says: `kind;dtype;op or root;prescale;postscale;set;dims;name`.
struct Wanted {
    kind: Kind,
    dtype: DType,
    shape: Shape,
    set: u32,
    name: String,
}

impl Wanted {
    fn parse(text: &str) -> Answer<Self> {
        let wrong = || Failure::from(Error::Bug(format!("a custom call with the text {text:?}")));
        let mut fields = text.splitn(8, ';');
        let mut next = || fields.next().ok_or_else(wrong);
        let kind = next()?;
        let dtype = next()?.parse().ok().and_then(DType::from_id).ok_or_else(wrong)?;
        let which: u8 = next()?.parse().map_err(|_| wrong())?;
        let mut factor = || Ok::<_, Failure>(next()?.parse::<f64>().map_err(|_| wrong())?.to_bits());
        let (prescale, postscale) = (factor()?, factor()?);
        let set = next()?.parse().map_err(|_| wrong())?;
        let dims = next()?;
        let dims = dims.split(',').filter(|d| !d.is_empty()).map(str::parse).collect::<Result<_, _>>();
        let kind = match kind {
            "allreduce" => Kind::Allreduce {
                op: ReduceOp::from_id(which).ok_or_else(wrong)?,
                prescale,
                postscale,
                compression: None,
            },
            "broadcast" => Kind::Broadcast { root: Rank::new(usize::from(which)) },
            _ => return Err(wrong()),
        };
        Ok(Self { kind, dtype, shape: Shape(dims.map_err(|_| wrong())?), set, name: next()?.to_owned() })
    }
}
