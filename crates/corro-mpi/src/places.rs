//! Where an MPI library may be. Pure: what is loaded and set are arguments.

use std::path::PathBuf;

/// Names of libraries: those of the standard's interface, of MPICH and its kin, of Open MPI.
const STANDARD: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"];
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so.20"];

/// Who has started this process, as far as its variables tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// Open MPI's `mpirun`, or another that speaks `PMIx`.
    Pmix,
    /// MPICH's, Intel's, Cray's, or another that speaks PMI.
    Pmi,
    /// None that speaks to MPI.
    None,
}

impl Launcher {
    pub(crate) fn of(is_set: impl Fn(&str) -> bool) -> Self {
        if is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_NAMESPACE") {
            Self::Pmix
        } else if is_set("PMI_SIZE") {
            Self::Pmi
        } else {
            Self::None
        }
    }
}

/// Where a library may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LibraryPlace {
    /// In this process already.
    Loaded(&'static str),
    File(PathBuf),
    /// Wherever the system finds this name.
    System(&'static str),
}

/// Where to look, in this order. What the program has loaded (mpi4py, say) comes first: there must not be two in a process.
/// Else what the user names; else what fits the launcher, in the folders of Python's packages and of the system.
pub(crate) fn places(wished: Option<PathBuf>, folders: &[PathBuf], launcher: Launcher) -> Vec<LibraryPlace> {
    let names: Vec<&'static str> = match launcher {
        Launcher::Pmix => [OPEN_MPI, STANDARD, MPICH].concat(),
        Launcher::Pmi => [STANDARD, MPICH, OPEN_MPI].concat(),
        Launcher::None => [STANDARD, OPEN_MPI, MPICH].concat(),
    };
    let mut found: Vec<LibraryPlace> = names.iter().map(|name| LibraryPlace::Loaded(name)).collect();
    if let Some(file) = wished {
        found.push(LibraryPlace::File(file));
        return found;
    }
    for name in names {
        found.extend(
            folders.iter().map(|folder| folder.join(name)).filter(|file| file.exists()).map(LibraryPlace::File),
        );
        found.push(LibraryPlace::System(name));
    }
    found
}

impl std::fmt::Display for LibraryPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loaded(name) => write!(f, "{name} in this process"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::System(name) => write!(f, "the system's {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_of_system(launcher: Launcher) -> LibraryPlace {
        places(None, &[], launcher).into_iter().find(|place| matches!(place, LibraryPlace::System(_))).unwrap()
    }

    #[test]
    fn the_launcher_says_which_library_fits() {
        assert_eq!(Launcher::of(|name| name == "OMPI_COMM_WORLD_SIZE"), Launcher::Pmix);
        assert_eq!(Launcher::of(|name| name == "PMI_SIZE"), Launcher::Pmi);
        assert_eq!(Launcher::of(|_| false), Launcher::None);
        assert_eq!(first_of_system(Launcher::Pmix), LibraryPlace::System("libmpi.so.40"));
        assert_eq!(first_of_system(Launcher::Pmi), LibraryPlace::System("libmpi_abi.so.1"));
    }

    #[test]
    fn what_is_loaded_comes_first_and_what_the_user_names_then_alone() {
        let all = places(Some("/x/libmpi.so".into()), &["/y".into()], Launcher::None);
        assert!(matches!(all[0], LibraryPlace::Loaded(_)));
        assert_eq!(all.last(), Some(&LibraryPlace::File("/x/libmpi.so".into())));
        assert!(!all.iter().any(|place| matches!(place, LibraryPlace::System(_))));
    }
}
