//! Finding NCCL, and its functions.

#![expect(unsafe_code, reason = "loads NCCL and calls it")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use corro_core::{Error, Result, config};
use libloading::Library;
use libloading::os::unix;
use serde::{Deserialize, Serialize};

use crate::sys::Handle;
use corro_core::functions::{function_table, why};

/// The name under which it is known to the system.
const NAME: &str = "libnccl.so.2";

/// Folders of frameworks that the program has told, see [`Nccl::also_look_in`].
static TOLD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

/// What the ranks of a communicator meet by: made by one of them, told to the others.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct UniqueId(#[serde(with = "serde_bytes")] [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It holds an address and a secret.
        f.write_str("UniqueId(..)")
    }
}

/// An `ncclConfig_t` as 2.14 had it. Newer ones take it by its size and version, and fill in what it lacks.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// What later versions have here they ignore, by the version above.
    _undefined: c_int,
}

impl Config {
    pub(super) const NOT_BLOCKING: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21400, blocking: 0, _undefined: c_int::MIN };
}

/// A pointer to memory of a GPU.
type Memory = *mut c_void;

function_table! {
    /// NCCL's functions, as `nccl.h` declares them. A `Handle` is a communicator, or a stream where it comes last.
    Functions, missing: missing,
    required {
        ncclGetVersion(*mut c_int);
        ncclGetUniqueId(*mut UniqueId);
        ncclGetErrorString(c_int) -> *const c_char;
        ncclCommInitRankConfig(*mut Handle, c_int, UniqueId, c_int, *mut Config);
        ncclCommGetAsyncError(Handle, *mut c_int);
        ncclCommFinalize(Handle);
        ncclCommDestroy(Handle);
        ncclCommAbort(Handle);
        ncclAllReduce(Memory, Memory, usize, c_int, c_int, Handle, Handle);
        ncclAllGather(Memory, Memory, usize, c_int, Handle, Handle);
        ncclReduceScatter(Memory, Memory, usize, c_int, c_int, Handle, Handle);
        ncclBroadcast(Memory, Memory, usize, c_int, c_int, Handle, Handle);
        ncclSend(Memory, usize, c_int, c_int, Handle, Handle);
        ncclRecv(Memory, usize, c_int, c_int, Handle, Handle);
        ncclGroupStart();
        ncclGroupEnd();
    }
    optional {
        ncclGetLastError(Handle) -> *const c_char;
    }
}

fn missing(_library: &Library, name: &str) -> Error {
    Error::Native {
        library: "NCCL".into(),
        code: 0,
        text: format!("the library has no function {name}: NCCL 2.14 or newer is needed"),
    }
}

/// NCCL in this process. A clone is the same; it is never closed again.
#[derive(Clone)]
pub struct Nccl(Arc<Opened>);

struct Opened {
    functions: Functions,
    version: u32,
    found: String,
}

impl Nccl {
    /// From now on it is looked for in this folder too, by everyone in this process.
    pub fn also_look_in(folder: PathBuf) {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&folder) {
            told.push(folder);
        }
    }

    /// Looks for it: where `CORRO_NCCL_LIBRARY` says, and there only; else in this process, where a framework may have loaded
    /// it; in `folders` and those that were told (a framework's own); where the system has it.
    ///
    /// # Errors
    /// It is nowhere, and the text says where it was looked for; or it is too old.
    pub fn open(folders: &[PathBuf]) -> Result<Self> {
        let wished = config::NCCL_LIBRARY.value().map(PathBuf::from);
        let mut tried = Vec::new();
        for place in places(wished, &with_those_told(folders)) {
            match place.open() {
                Ok(library) => return Self::of(library, place.to_string()),
                Err(error) => tried.push(format!("{place}: {}", why(&error))),
            }
        }
        Err(Error::io("opening NCCL", format!("{}; CORRO_NCCL_LIBRARY can say where it is", tried.join("; "))))
    }

    fn of(library: Library, found: String) -> Result<Self> {
        // SAFETY: it has NCCL's name, or the user says it is NCCL. It stays loaded: see below.
        let functions = unsafe { Functions::find(&library) }?;
        // NCCL has threads of its own: it is never unloaded.
        std::mem::forget(library);
        let mut version = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (functions.ncclGetVersion)(&raw mut version) };
        let opened = Self(Arc::new(Opened { functions, version: version as u32, found }));
        opened.check(code, "asking for its version")?;
        Ok(opened)
    }

    /// 22809 is 2.28.9.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// Where it was found.
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// A new id, for one communicator.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: it writes 128 bytes.
        let code = unsafe { (self.0.functions.ncclGetUniqueId)(&raw mut id) };
        self.check(code, "making an id for a communicator (does NCCL_SOCKET_IFNAME name an interface of this host?)")?;
        Ok(id)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.0.functions
    }

    /// An error unless the call has succeeded, or is under way.
    pub(super) fn check(&self, code: c_int, doing: &str) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both return texts that are never freed, or null.
        let (name, last) = unsafe {
            let name = text((self.0.functions.ncclGetErrorString)(code));
            (name, self.0.functions.ncclGetLastError.and_then(|get| text(get(Handle::NULL))))
        };
        let words: Vec<String> = [name, last].into_iter().flatten().filter(|w| !w.trim().is_empty()).collect();
        Err(Error::Native {
            library: "NCCL".into(),
            code: code.into(),
            text: format!("{doing}: {}; NCCL_DEBUG=INFO shows more", words.join(": ")),
        })
    }
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({}, {})", self.version(), self.found())
    }
}

/// # Safety
/// A text with a 0 at its end, or null.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Where NCCL may be.
#[derive(Debug, PartialEq, Eq)]
enum LibraryPlace {
    File(PathBuf),
    Loaded,
    System,
}

fn with_those_told(folders: &[PathBuf]) -> Vec<PathBuf> {
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    folders.iter().chain(&*told).cloned().collect()
}

/// Where to look, in this order.
fn places(wished: Option<PathBuf>, folders: &[PathBuf]) -> Vec<LibraryPlace> {
    if let Some(file) = wished {
        return vec![LibraryPlace::File(file)];
    }
    let files = folders.iter().map(|folder| LibraryPlace::File(folder.join(NAME)));
    [LibraryPlace::Loaded].into_iter().chain(files).chain([LibraryPlace::System]).collect()
}

impl LibraryPlace {
    fn open(&self) -> std::result::Result<Library, libloading::Error> {
        // SAFETY: NCCL's initialisers are made to be run in any process; one that is loaded already has run them.
        unsafe {
            match self {
                Self::File(file) => Library::new(file),
                Self::System => Library::new(NAME),
                Self::Loaded => unix::Library::open(Some(NAME), unix::RTLD_NOW | libc::RTLD_NOLOAD).map(Library::from),
            }
        }
    }
}

impl std::fmt::Display for LibraryPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Loaded => f.write_str("in this process"),
            Self::System => write!(f, "the system's {NAME}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_names_is_taken_alone_and_the_system_comes_last() {
        let folders = ["/a".into(), "/b".into()];
        assert_eq!(places(Some("/x/nccl.so".into()), &folders), [LibraryPlace::File("/x/nccl.so".into())]);
        let all: Vec<String> = places(None, &folders).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["in this process", "/a/libnccl.so.2", "/b/libnccl.so.2", "the system's libnccl.so.2"]);
    }

    #[test]
    fn folders_that_were_told_are_looked_at_by_everyone() {
        Nccl::also_look_in("/corro-told".into());
        Nccl::also_look_in("/corro-told".into());
        let all = with_those_told(&["/a".into()]);
        assert_eq!(all, [PathBuf::from("/a"), "/corro-told".into()]);
        if let Err(error) = Nccl::open(&[]) {
            let text = error.to_string();
            assert!(text.contains("/corro-told/libnccl.so.2"), "{text}");
        }
    }

    #[test]
    fn a_library_that_is_not_loaded_is_not_loaded_for_that() {
        if let Err(why) = LibraryPlace::Loaded.open() {
            assert!(!why.to_string().is_empty());
        }
        assert!(LibraryPlace::File("/corro-no-such-folder/libnccl.so.2".into()).open().is_err());
    }

    #[test]
    fn a_library_that_is_not_nccl_is_refused_by_name() {
        // SAFETY: it is loaded already.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let text = Nccl::of(library, "here".into()).unwrap_err().to_string();
        assert!(text.contains("ncclGetVersion") && text.contains("2.14"), "{text}");
    }

    #[test]
    fn an_id_travels_and_is_not_shown() {
        let id = UniqueId([9; 128]);
        let bytes = postcard::to_allocvec(&id).unwrap();
        assert!(postcard::from_bytes::<UniqueId>(&bytes).unwrap() == id);
        assert_eq!(format!("{id:?}"), "UniqueId(..)");
    }

    #[test]
    fn the_configuration_is_laid_out_as_in_the_header() {
        assert_eq!((size_of::<Config>(), std::mem::offset_of!(Config, blocking)), (24, 16));
    }
}
