//! What `tf.load_op_library` opens: has `corro._native`, which is loaded already, register its operations meanwhile.
//!
//! Built by `build.rs` as a library of its own, without the standard library: it is a few kilobytes.

#![no_std]

use core::ffi::{c_char, c_int, c_void};

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
/// The longest path that is looked at.
const LONGEST: usize = 4096;
/// Where `corro._native` is, seen from this library's folder (`corro/lib`).
const CORE: &[u8] = b"/../_native.abi3.so\0";
const REGISTER: &[u8] = b"corro_tensorflow_register\0";

#[repr(C)]
struct Found {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_OPEN: unsafe extern "C" fn() = on_open;

/// SAFETY: called by the dynamic linker when the library is opened.
unsafe extern "C" fn on_open() {
    let nothing: *mut c_void = core::ptr::null_mut();
    let mut found = Found { file: nothing.cast(), base: nothing, symbol: nothing.cast(), address: nothing };
    let mut path = [0u8; LONGEST];
    // SAFETY: the answer of `dladdr` is complete if it is not 0; the path is copied up to its end, or not used at all; what
    // `dlsym` finds in our own library by this name is a function without arguments.
    unsafe {
        if dladdr(on_open as *const c_void, &raw mut found) == 0 || found.file.is_null() {
            return;
        }
        let (mut length, mut folder) = (0, usize::MAX);
        loop {
            let byte = found.file.cast::<u8>().add(length).read();
            if byte == 0 {
                break;
            }
            if length + CORE.len() >= LONGEST {
                return;
            }
            if byte == b'/' {
                folder = length;
            }
            path.as_mut_ptr().add(length).write(byte);
            length += 1;
        }
        if folder == usize::MAX {
            return;
        }
        core::ptr::copy_nonoverlapping(CORE.as_ptr(), path.as_mut_ptr().add(folder), CORE.len());
        let core = dlopen(path.as_ptr().cast(), RTLD_LAZY | RTLD_NOLOAD);
        if core.is_null() {
            return;
        }
        let register = dlsym(core, REGISTER.as_ptr().cast());
        if !register.is_null() {
            core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(register)();
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
