//! MPI in this process: who starts it, who ends it, and how many threads may call it.

#![expect(unsafe_code, reason = "calls MPI")]

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use corro_core::{DType, Error, ReduceOp, Result};

use crate::abi::{Abi, Handle};
use crate::library::{Functions, Opened, open};
use crate::operators::operator;

/// The longest text that a library writes (MPICH's version has 8192 bytes).
const TEXT: usize = 8192;

/// The one of this process: libraries can't be unloaded, and there must not be two.
static OPENED: OnceLock<Mpi> = OnceLock::new();

/// Whether [`at_exit`] is to end MPI: it was started here, and nobody is lost.
static ENDS: AtomicBool = AtomicBool::new(false);

/// How many threads may call MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threads {
    /// There is one.
    Single,
    /// The one that started MPI.
    Funneled,
    /// Any, one at a time.
    Serialized,
    /// Any.
    Multiple,
}

const THREADS: [Threads; 4] = [Threads::Single, Threads::Funneled, Threads::Serialized, Threads::Multiple];

impl std::fmt::Display for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Single => "MPI_THREAD_SINGLE",
            Self::Funneled => "MPI_THREAD_FUNNELED",
            Self::Serialized => "MPI_THREAD_SERIALIZED",
            Self::Multiple => "MPI_THREAD_MULTIPLE",
        })
    }
}

/// MPI in this process. A clone is the same.
#[derive(Clone)]
pub struct Mpi(Arc<Inner>);

struct Inner {
    opened: Opened,
    /// Held during calls where MPI takes one thread at a time only.
    turn: Mutex<()>,
    /// Types and ops that were made for reductions which MPI lacks.
    made: Mutex<HashMap<(DType, ReduceOp), (Handle, Handle)>>,
    takes_one: AtomicBool,
}

impl Mpi {
    /// The library that fits this process: what is loaded already; else where `CORRO_MPI_LIBRARY` says; else by who has
    /// started this process, in `folders` and where the system looks. It is looked for once.
    ///
    /// # Errors
    /// There is none, and the text says where it was looked for.
    pub fn open(folders: &[PathBuf]) -> Result<Self> {
        if let Some(mpi) = OPENED.get() {
            return Ok(mpi.clone());
        }
        let inner = Inner {
            opened: open(folders)?,
            turn: Mutex::new(()),
            made: Mutex::default(),
            takes_one: AtomicBool::new(false),
        };
        Ok(OPENED.get_or_init(|| Self(Arc::new(inner))).clone())
    }

    /// Starts MPI, unless the program has. Gives how many threads may call it.
    ///
    /// # Errors
    /// Only the thread that started it may: Corro's has others.
    pub fn start(&self) -> Result<Threads> {
        if self.is_finalized()? {
            return Err(Error::Usage("the program has ended MPI already (MPI_Finalize), so Corro can't use it".into()));
        }
        let ours = !self.is_started()?;
        let mut given = 0;
        if ours {
            let wanted = self.abi().threads[Threads::Multiple as usize];
            // SAFETY: MPI takes no arguments of the program's; it writes one number.
            let code = unsafe {
                (self.functions().MPI_Init_thread)(
                    std::ptr::null_mut(),
                    std::ptr::null_mut::<*mut *mut c_char>(),
                    wanted,
                    &raw mut given,
                )
            };
            self.check(code, "starting MPI (MPI_Init_thread)")?;
            ENDS.store(true, Ordering::SeqCst);
            // SAFETY: a function of no arguments, that stays.
            unsafe { libc::atexit(at_exit) };
        } else {
            // SAFETY: it writes one number.
            let code = unsafe { (self.functions().MPI_Query_thread)(&raw mut given) };
            self.check(code, "asking how many threads may call MPI")?;
        }
        // Numbers grow with what is allowed, in every interface.
        let place = self.abi().threads.iter().rposition(|number| given >= *number).unwrap_or(0);
        let threads = THREADS[place];
        self.0.takes_one.store(threads == Threads::Serialized, Ordering::Relaxed);
        if threads < Threads::Serialized {
            let who = if ours { "this MPI library gives" } else { "the program has started MPI with" };
            return Err(Error::Usage(format!(
                "{who} {threads}, and Corro calls MPI from threads of its own: start it with MPI_THREAD_MULTIPLE (mpi4py's \
                 default), or let Corro start it"
            )));
        }
        Ok(threads)
    }

    /// What the library says of itself, on one line.
    pub fn version(&self) -> Result<String> {
        let mut text = vec![0_u8; TEXT];
        let mut length = 0;
        // SAFETY: there is room for the longest.
        let code =
            unsafe { (self.functions().MPI_Get_library_version)(text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
        self.check(code, "asking MPI for its version")?;
        text.truncate(usize::try_from(length).unwrap_or(0).min(TEXT));
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().next().unwrap_or_default().trim_end_matches('\0');
        Ok(line.split(", package").next().unwrap_or(line).split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Where it was found.
    pub fn found(&self) -> &str {
        &self.0.opened.found
    }

    /// Whose binary interface it has.
    pub fn interface(&self) -> &'static str {
        self.abi().interface.name()
    }

    /// Whether it says that it takes memory of GPUs.
    pub fn takes_gpu_memory(&self) -> bool {
        // SAFETY: it takes and changes nothing.
        self.functions().MPIX_Query_cuda_support.is_some_and(|ask| unsafe { ask() } == 1)
    }

    /// Whether its blocking collectives are so much better that they are worth a thread. Measured: Open MPI's others take up to
    /// three times as long (libnbc); MPICH's have the same algorithms.
    pub fn blocks_better(&self) -> bool {
        self.version().is_ok_and(|version| version.starts_with("Open MPI"))
    }

    /// Somebody is lost: MPI is not ended in order any more, which would wait for them.
    pub fn give_up(&self) {
        ENDS.store(false, Ordering::SeqCst);
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.0.opened.functions
    }

    pub(crate) fn abi(&self) -> &Abi {
        &self.0.opened.abi
    }

    /// To be held during a call: one thread at a time, where MPI wants that.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let takes_one = self.0.takes_one.load(Ordering::Relaxed);
        takes_one.then(|| self.0.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The type and op of a reduction: MPI's own, or made for it.
    pub(crate) fn reduction(&self, dtype: DType, op: ReduceOp) -> Result<(Handle, Handle)> {
        if let Some(native) = self.abi().native(dtype, op) {
            return Ok(native);
        }
        let mut made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.get(&(dtype, op)) {
            return Ok(*known);
        }
        let act = operator(dtype, op).ok_or_else(|| Error::Bug(format!("{op} of {dtype} by MPI")))?;
        let (mut kind, mut handle): (Handle, Handle) = (0, 0);
        let turn = self.turn();
        // SAFETY: a type of as many bytes as an element has; a function that stays, and combines in any order.
        let codes = unsafe {
            let f = self.functions();
            [
                (f.MPI_Type_contiguous)(dtype.size() as c_int, self.abi().byte, &raw mut kind),
                (f.MPI_Type_commit)(&raw mut kind),
                (f.MPI_Op_create)(act, 1, &raw mut handle),
            ]
        };
        drop(turn);
        codes.into_iter().try_for_each(|code| self.check(code, "making a reduction"))?;
        made.insert((dtype, op), (kind, handle));
        Ok((kind, handle))
    }

    fn is_started(&self) -> Result<bool> {
        let mut yes = 0;
        // SAFETY: it writes one number, and may be called at any time.
        let code = unsafe { (self.functions().MPI_Initialized)(&raw mut yes) };
        self.check(code, "asking whether MPI runs").map(|()| yes != 0)
    }

    fn is_finalized(&self) -> Result<bool> {
        let mut yes = 0;
        // SAFETY: as above.
        let code = unsafe { (self.functions().MPI_Finalized)(&raw mut yes) };
        self.check(code, "asking whether MPI has ended").map(|()| yes != 0)
    }

    pub(crate) fn check(&self, code: c_int, doing: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0_u8; TEXT];
        let mut length = 0;
        // SAFETY: there is room for the longest.
        unsafe { (self.functions().MPI_Error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0).min(TEXT));
        let said = String::from_utf8_lossy(&text).replace('\n', " ");
        Err(Error::Native {
            library: "MPI".into(),
            code: code.into(),
            text: format!("{doing}: {} ({})", said.trim(), self.found()),
        })
    }

    pub(crate) fn free(&self, communicator: Handle) {
        let mut handle = communicator;
        if self.is_finalized().unwrap_or(true) {
            return;
        }
        let _turn = self.turn();
        // SAFETY: it is one of this library's, made here, and used no more.
        unsafe { (self.functions().MPI_Comm_free)(&raw mut handle) };
    }
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mpi({}, {})", self.found(), self.interface())
    }
}

/// Launchers of MPI take a process that leaves without this for one that has failed.
extern "C" fn at_exit() {
    if let Some(mpi) = OPENED.get()
        && ENDS.load(Ordering::SeqCst)
        && mpi.is_finalized().is_ok_and(|over| !over)
    {
        // SAFETY: it was started here; nothing is under way, or the job has failed and `give_up` was called.
        unsafe { (mpi.functions().MPI_Finalize)() };
    }
}
