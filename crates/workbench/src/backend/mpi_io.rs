// SPDX-License-Identifier: Apache-2.0
//! MPI-IO: objects are files that MPI writes, reads and deletes, in the directories of a
//! [`PosixBackend`].
//!
//! | operation | calls |
//! |---|---|
//! | create | `MPI_File_open` (`CREATE`, `EXCL`, `WRONLY`), `MPI_File_write`, `MPI_File_close` |
//! | read | `MPI_File_open` (`RDONLY`), `MPI_File_read`, `MPI_File_close` |
//! | delete | `MPI_File_delete` |
//! | all others | those of POSIX: MPI-IO has none for names and directories |
//!
//! Each rank opens its files alone, on a duplicate of MPI_COMM_SELF of its own: threads must not
//! open files on the same communicator at the same time. Failures of MPI's calls are returned, the
//! default for files, and never end the process. Concurrency: a connection stays on the thread that
//! has made it. Source: the plugin `mpiio` of md-workbench, and IOR's `aiori-MPIIO`, whose stat is
//! that of POSIX. Unlike them a create is exclusive, as the contract of backends asks.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_comm::mpi::MpiProcess;

use super::mpi_file::{MpiFailure, MpiFileAccess, MpiFiles};
use super::{Backend, BackendConnection, MPI_IO_PREFIX, PosixBackend};
use crate::pattern::{DatasetId, OBJECT_BYTES_MAX, ObjectId, WorkingSetSize};

/// Bytes that a read asks for beyond the expected size, so that it meets the end of the file.
const READ_AHEAD_BYTES: usize = 4_096;

/// Begins the names of ROMIO's hints; other implementations have none of them.
const ROMIO_HINT: &str = "romio_";

/// Tells Open MPI which implementation of MPI-IO to take; `mpirun --mca io` sets it for the ranks.
const OPEN_MPI_CHOICE: &str = "OMPI_MCA_io";

/// A directory whose files MPI writes and reads.
#[derive(Debug)]
pub struct MpiIoBackend {
    posix: PosixBackend,
    path: PathBuf,
    process: Arc<MpiProcess>,
}

impl MpiIoBackend {
    /// The working set in the directory `path`, which is made when the run begins.
    ///
    /// # Errors
    /// As [`PosixBackend::new`]; `Invalid` for a path that MPI-IO cannot take.
    pub fn new(path: &Path, process: Arc<MpiProcess>) -> Result<Self> {
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.is_empty() || bytes.iter().any(|byte| matches!(byte, 0 | b':')) {
            let what = "not a directory for MPI-IO, which takes what precedes a colon for the type of a \
                        file system: name one without";
            return Err(Error::new(Kind::Invalid, format!("{}: {what}", path.display())));
        }
        if path.to_str().is_none() {
            let what = "not a directory for MPI-IO: its name is not UTF-8";
            return Err(Error::new(Kind::Invalid, format!("{}: {what}", path.display())));
        }
        Ok(Self { posix: PosixBackend::new(path)?, path: path.to_owned(), process })
    }

    fn files(&self) -> Result<MpiFiles> {
        MpiFiles::new(&self.process)
    }

    /// The implementation of MPI-IO that serves the directory, if it can be known.
    fn implementation(&self) -> Result<Option<String>> {
        let mut path = CallPath::default();
        let files = self.files()?;
        // Opening the directory itself for reading changes nothing.
        let keys = files
            .open(path.set(&self.path, "."), MpiFileAccess::Read)
            .and_then(|directory| directory.hint_keys());
        if keys.is_ok_and(|keys| keys.iter().any(|key| key.starts_with(ROMIO_HINT))) {
            return Ok(Some("ROMIO".to_owned()));
        }
        // Open MPI has OMPIO and ROMIO, shows the hints of neither, and chooses by the file system
        // unless it is told.
        let chosen = std::env::var(OPEN_MPI_CHOICE).ok().filter(|chosen| !chosen.is_empty());
        Ok(chosen.map(|chosen| format!("{OPEN_MPI_CHOICE}={chosen}")))
    }
}

impl Backend for MpiIoBackend {
    fn target(&self) -> String {
        format!("{MPI_IO_PREFIX}{}", self.posix.target())
    }

    fn working_set_kind(&self) -> &'static str {
        self.posix.working_set_kind()
    }

    fn create_marker(&self, marker: &[u8]) -> Result<()> {
        self.posix.create_marker(marker)
    }

    fn kind(&self) -> &'static str {
        "mpiio"
    }

    fn connect(&self, rank: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(MpiIoConnection {
            posix: self.posix.connect(rank, size)?,
            files: self.files()?,
            directory: &self.path,
            path: CallPath::default(),
        }))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.posix.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.posix.write_marker(marker)
    }

    fn clear(&self) -> Result<u64> {
        self.posix.clear()
    }

    fn directory(&self) -> Option<&Path> {
        self.posix.directory()
    }

    fn service(&self) -> Result<String> {
        let library = MpiProcess::library();
        Ok(match self.implementation()? {
            Some(implementation) => format!("{library}; {implementation}"),
            None => library,
        })
    }
}

/// The path of the current call, as C has it; reused.
#[derive(Default)]
struct CallPath(String);

impl CallPath {
    /// Sets and returns the path of `name` in `directory`, which has no zero byte.
    fn set(&mut self, directory: &Path, name: impl std::fmt::Display) -> &CStr {
        self.0.clear();
        write!(self.0, "{}/{name}\0", directory.display()).expect("strings grow");
        CStr::from_bytes_with_nul(self.0.as_bytes()).expect("only the last byte is zero")
    }

    fn text(&self) -> &str {
        self.0.trim_end_matches('\0')
    }
}

struct MpiIoConnection<'a> {
    /// Serves what MPI-IO lacks.
    posix: Box<dyn BackendConnection + 'a>,
    files: MpiFiles,
    directory: &'a Path,
    path: CallPath,
}

impl MpiIoConnection<'_> {
    fn failed(&self, failure: MpiFailure) -> Error {
        failure.at(self.path.text())
    }
}

fn create(
    files: &MpiFiles,
    path: &CStr,
    mut content: &[u8],
) -> std::result::Result<(), MpiFailure> {
    let mut file = files.open(path, MpiFileAccess::CreateNew)?;
    while !content.is_empty() {
        let written = file.write(content)?;
        if written == 0 {
            // OMPIO 4.1 keeps the cause to itself, and prints it.
            let what =
                "MPI_File_write reports success and no byte written; is the file system full?";
            return Err(MpiFailure::new(Kind::DeviceFailed, what));
        }
        content = &content[written..];
    }
    file.close()
}

/// Reads a file over `content`; one call suffices if its capacity exceeds the file.
fn read(
    files: &MpiFiles,
    path: &CStr,
    content: &mut Vec<u8>,
) -> std::result::Result<(), MpiFailure> {
    let bytes_max = OBJECT_BYTES_MAX as usize;
    let mut file = files.open(path, MpiFileAccess::Read)?;
    content.resize(content.capacity().clamp(READ_AHEAD_BYTES, bytes_max + READ_AHEAD_BYTES), 0);
    let mut filled = 0;
    loop {
        let count = file.read(&mut content[filled..])?;
        filled += count;
        if filled > bytes_max {
            let what = format!("has over {bytes_max} bytes");
            return Err(MpiFailure::new(Kind::TooLarge, what));
        }
        if filled < content.len() {
            content.truncate(filled);
            return file.close();
        }
        content.resize(filled * 2, 0);
    }
}

impl BackendConnection for MpiIoConnection<'_> {
    fn add_rank(&mut self, rank: u32) -> Result<()> {
        self.posix.add_rank(rank)
    }

    fn remove_rank(&mut self, rank: u32) -> Result<()> {
        self.posix.remove_rank(rank)
    }

    fn mkdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.posix.mkdir(dataset)
    }

    fn rmdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.posix.rmdir(dataset)
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        let path = self.path.set(self.directory, object);
        create(&self.files, path, content).map_err(|failure| self.failed(failure))
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        self.posix.stat(object)
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let path = self.path.set(self.directory, object);
        read(&self.files, path, content).map_err(|failure| self.failed(failure))
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        let path = self.path.set(self.directory, object);
        self.files.delete(path).map_err(|failure| self.failed(failure))
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        self.posix.list(dataset, with_attributes)
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        self.posix.rename(old, new)
    }
}
