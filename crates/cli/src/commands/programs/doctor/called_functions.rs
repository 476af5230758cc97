// SPDX-License-Identifier: Apache-2.0
//! Called functions: what the names of functions and libraries in a program say about the way that
//! it needs.
//!
//! A static program has no such names, and a program may load further libraries while it runs, so
//! that a name is absent proves nothing.

use super::elf_file::NativeProgram;

/// Functions that `esker run --at` refuses or answers differently, and what follows for a program.
const DIFFERENT: &[(&str, &str)] = &[
    ("inotify_add_watch", WATCHES),
    ("fanotify_mark", WATCHES),
    ("name_to_handle_at", "file handles (name_to_handle_at) are refused"),
    ("msync", "msync reaches only the spool: use fsync, or a mount"),
    ("mkfifo", PIPES),
    ("mkfifoat", PIPES),
    ("io_uring_queue_init", IO_URING),
    ("io_uring_queue_init_params", IO_URING),
];

const WATCHES: &str = "watches of files (inotify) are refused, and the program must poll";
const PIPES: &str = "named pipes can be made, but not opened";
const IO_URING: &str = "io_uring is refused, and the program must use other calls";

/// Functions that open a file by MPI-IO, in C and Fortran.
const MPI_IO: &[&str] = &[
    "MPI_File_open",
    "PMPI_File_open",
    "mpi_file_open_",
    "mpi_file_open__",
    "mpi_file_open_f08_",
    "MPI_FILE_OPEN",
];

/// Libraries that open files by MPI-IO for their callers.
const MPI_IO_LIBRARIES: &[&str] =
    &["libhdf5_openmpi", "libhdf5_mpich", "libhdf5_parallel", "libpnetcdf", "libnetcdf_mpi"];

/// Continuations of `libmpi` in names of MPI libraries; `libmpir` has none of them.
const AFTER_LIBMPI: &[&str] = &[".", "_", "ch", "cxx", "fort", "f77", "f90"];

/// The names of functions to find in a program.
pub fn wanted() -> Vec<&'static str> {
    DIFFERENT.iter().map(|(name, _)| *name).chain(MPI_IO.iter().copied()).collect()
}

/// The differences that this program meets under `esker run --at`, each once.
pub fn differences(program: &NativeProgram) -> Vec<&'static str> {
    let called = DIFFERENT.iter().filter(|(name, _)| program.symbols.contains(name));
    let mut found: Vec<&'static str> = called.map(|(_, what)| *what).collect();
    found.dedup();
    found
}

/// The library of MPI that the program needs, or the one that needs MPI for it.
pub fn mpi_library(program: &NativeProgram) -> Option<&str> {
    let is_mpi = |library: &&String| {
        let rest = library.strip_prefix("libmpi");
        rest.is_some_and(|rest| AFTER_LIBMPI.iter().any(|after| rest.starts_with(after)))
    };
    let found = program.libraries.iter().find(is_mpi).map(String::as_str);
    found.or_else(|| mpi_io_library(program))
}

/// The function or library by which the program opens files through MPI-IO.
pub fn mpi_io(program: &NativeProgram) -> Option<&str> {
    let function = MPI_IO.iter().find(|name| program.symbols.contains(*name));
    function.copied().or_else(|| mpi_io_library(program))
}

fn mpi_io_library(program: &NativeProgram) -> Option<&str> {
    let is_one =
        |library: &&String| MPI_IO_LIBRARIES.iter().any(|start| library.starts_with(start));
    program.libraries.iter().find(is_one).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(libraries: &[&str], symbols: &[&'static str]) -> NativeProgram {
        NativeProgram {
            linker: Some("/lib/ld.so".into()),
            libraries: libraries.iter().map(|name| (*name).to_owned()).collect(),
            symbols: symbols.iter().copied().collect(),
            ..NativeProgram::default()
        }
    }

    #[test]
    fn libraries_of_mpi_are_known_by_name() {
        for (library, is_mpi) in [
            ("libmpi.so.40", true),
            ("libmpi_mpifh.so.40", true),
            ("libmpi_cray.so.12", true),
            ("libmpich.so.12", true),
            ("libmpifort.so.12", true),
            ("libpnetcdf.so.4", true),
            ("libmpir.so.23", false),
            ("libmpiexec.so", false),
            ("libc.so.6", false),
        ] {
            let program = program(&["libm.so.6", library], &[]);
            assert_eq!(mpi_library(&program), is_mpi.then_some(library));
        }
    }

    #[test]
    fn mpi_io_is_known_by_function_or_library() {
        assert_eq!(mpi_io(&program(&["libmpi.so.40"], &["MPI_File_open"])), Some("MPI_File_open"));
        let library = "libhdf5_openmpi.so.103";
        assert_eq!(mpi_io(&program(&[library, "libmpi.so.40"], &[])), Some(library));
        assert_eq!(mpi_io(&program(&["libmpi.so.40"], &["msync"])), None);
    }

    #[test]
    fn each_difference_is_named_once() {
        let found = differences(&program(&[], &["mkfifo", "mkfifoat", "msync"]));
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("msync") && found[1].contains("pipes"), "{found:?}");
        assert!(differences(&program(&[], &["MPI_File_open"])).is_empty());
    }
}
