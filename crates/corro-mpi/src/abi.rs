//! What differs between the binary interfaces of MPI libraries: the numbers behind the names of the standard.
//!
//! | interface | library | handles |
//! | --- | --- | --- |
//! | the standard's (MPI 5) | `libmpi_abi.so` of MPICH, Intel and, with time, all others | pointers with small numbers |
//! | MPICH's, and its kin's (Intel, Cray, MVAPICH) | `libmpi.so.12` | `int` |
//! | Open MPI's | `libmpi.so.40` | addresses of its globals |
//!
//! One word holds a handle of all three, if it is zero before a call writes to it: MPICH writes four bytes.

use std::ffi::c_int;

use corro_core::{DType, ReduceOp};

/// A communicator, type, op, request, group or the like.
pub(crate) type Handle = usize;

/// Which of them a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Standard,
    Mpich,
    OpenMpi,
}

impl Interface {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Standard => "the standard's (MPI 5)",
            Self::Mpich => "MPICH's",
            Self::OpenMpi => "Open MPI's",
        }
    }

    /// What a library is: whether it has Open MPI's globals, and which version of the standard's interface it says it has.
    pub(crate) fn of(has_globals: bool, standard: Option<c_int>) -> Self {
        match standard {
            _ if has_globals => Self::OpenMpi,
            // MPICH in its own interface has the function, too, and says -1.
            Some(1..) => Self::Standard,
            _ => Self::Mpich,
        }
    }
}

/// The numbers of one library.
#[derive(Debug)]
pub(crate) struct Abi {
    pub(crate) interface: Interface,
    pub(crate) world: Handle,
    pub(crate) null_communicator: Handle,
    pub(crate) errors_return: Handle,
    pub(crate) byte: Handle,
    pub(crate) in_place: usize,
    pub(crate) status_ignore: usize,
    /// `MPI_THREAD_SINGLE`, `FUNNELED`, `SERIALIZED`, `MULTIPLE`.
    pub(crate) threads: [c_int; 4],
    types: [Handle; 10],
    ops: [Handle; 4],
}

/// The element types that MPI has too, in the order of `types`.
const TYPES: [DType; 10] = [
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F32,
    DType::F64,
];

impl Abi {
    /// That of a library. `global` gives the address of one of its globals.
    pub(crate) fn of(interface: Interface, global: impl Fn(&str) -> Option<Handle>) -> Option<Self> {
        Some(match interface {
            Interface::Standard => Self {
                interface,
                world: 0x101,
                null_communicator: 0x100,
                errors_return: 0x143,
                byte: 0x247,
                in_place: 1,
                status_ignore: 0,
                threads: [0, 1024, 2048, 4096],
                types: [0x240, 0x241, 0x248, 0x249, 0x250, 0x251, 0x258, 0x259, 0x210, 0x214],
                ops: [0x21, 0x22, 0x23, 0x24],
            },
            Interface::Mpich => Self {
                interface,
                world: 0x4400_0000,
                null_communicator: 0x0400_0000,
                errors_return: 0x5400_0001,
                byte: 0x4c00_010d,
                in_place: usize::MAX,
                status_ignore: 1,
                threads: [0, 1, 2, 3],
                types: [
                    0x4c00_0137,
                    0x4c00_013b,
                    0x4c00_0238,
                    0x4c00_023c,
                    0x4c00_0439,
                    0x4c00_043d,
                    0x4c00_083a,
                    0x4c00_083e,
                    0x4c00_040a,
                    0x4c00_080b,
                ],
                ops: [0x5800_0003, 0x5800_0002, 0x5800_0001, 0x5800_0004],
            },
            Interface::OpenMpi => {
                let named = |names: [&str; 10]| -> Option<[Handle; 10]> {
                    let found: Option<Vec<Handle>> = names.iter().map(|n| global(&format!("ompi_mpi_{n}"))).collect();
                    found?.try_into().ok()
                };
                let ops: Option<Vec<Handle>> =
                    ["sum", "min", "max", "prod"].iter().map(|n| global(&format!("ompi_mpi_op_{n}"))).collect();
                Self {
                    interface,
                    world: global("ompi_mpi_comm_world")?,
                    null_communicator: global("ompi_mpi_comm_null")?,
                    errors_return: global("ompi_mpi_errors_return")?,
                    byte: global("ompi_mpi_byte")?,
                    in_place: 1,
                    status_ignore: 0,
                    threads: [0, 1, 2, 3],
                    types: named([
                        "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
                        "float", "double",
                    ])?,
                    ops: ops?.try_into().ok()?,
                }
            }
        })
    }

    /// MPI's own type and op for this reduction; `None` where it has none that does as Corro's.
    pub(crate) fn native(&self, dtype: DType, op: ReduceOp) -> Option<(Handle, Handle)> {
        native(dtype, op).map(|(kind, op)| (self.types[kind], self.ops[op]))
    }
}

/// Which of MPI's types and ops a reduction is, if MPI does what Corro does.
fn native(dtype: DType, op: ReduceOp) -> Option<(usize, usize)> {
    let kind = TYPES.iter().position(|known| *known == dtype)?;
    let float = matches!(dtype, DType::F32 | DType::F64);
    let op = match op {
        // Open MPI's vector instructions for them stop at the largest number, where sums should wrap.
        ReduceOp::Sum | ReduceOp::Product if dtype.size() < 4 => return None,
        ReduceOp::Sum => 0,
        // What MPI makes of a NaN here is not said anywhere.
        ReduceOp::Min if !float => 1,
        ReduceOp::Max if !float => 2,
        ReduceOp::Product => 3,
        _ => return None,
    };
    Some((kind, op))
}

/// Whether MPI has a reduction itself. The others are functions of ours, which know the host's memory alone.
pub fn has_own(dtype: DType, op: ReduceOp) -> bool {
    native(dtype, op).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_what_it_has() {
        assert_eq!(Interface::of(true, None), Interface::OpenMpi);
        assert_eq!(Interface::of(false, Some(1)), Interface::Standard);
        assert_eq!(Interface::of(false, Some(-1)), Interface::Mpich);
        assert_eq!(Interface::of(false, None), Interface::Mpich);
    }

    #[test]
    fn what_mpi_would_do_otherwise_is_left_to_corro() {
        for interface in [Interface::Standard, Interface::Mpich] {
            let abi = Abi::of(interface, |_| None).unwrap();
            assert!(abi.native(DType::F32, ReduceOp::Sum).is_some() && abi.native(DType::I8, ReduceOp::Max).is_some());
            for (dtype, op) in [(DType::F16, ReduceOp::Sum), (DType::U8, ReduceOp::Sum), (DType::F32, ReduceOp::Min)] {
                assert!(abi.native(dtype, op).is_none(), "{dtype} {op}");
            }
        }
        assert!(Abi::of(Interface::OpenMpi, |_| None).is_none());
    }
}
