// SPDX-License-Identifier: Apache-2.0
//! MPI file: the calls of MPI-IO that the workbench and replays measure, made safe. All `unsafe` of
//! the workbench is in this file.
//!
//! Invariants: (1) handles do not outlive MPI, since each shares the communicator of its
//! [`MpiFiles`], and that the process's MPI; (2) no two threads open files on the same communicator,
//! which MPI forbids, since each [`MpiFiles`] has its own and stays on its thread; (3) an open handle
//! is closed exactly once.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_comm::mpi::MpiProcess;
use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;
use parking_lot::Mutex;

/// Room for the longest error message and the longest key of a hint.
const TEXT_BYTES: usize = 1_024;
const _: () = assert!(ffi::MPI_MAX_ERROR_STRING as usize <= TEXT_BYTES);
const _: () = assert!(ffi::MPI_MAX_INFO_KEY as usize <= TEXT_BYTES);

/// Held while MPI_COMM_SELF is duplicated, since threads must not do that at the same time.
static DUPLICATION: Mutex<()> = Mutex::new(());

/// A failed call of MPI-IO.
#[derive(Debug)]
pub struct MpiFailure {
    kind: Kind,
    message: String,
}

impl MpiFailure {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The failure as an error that names `path`.
    pub fn at(self, path: impl std::fmt::Display) -> Error {
        Error::new(self.kind, format!("{path}: {}", self.message))
    }

    /// The failure that MPI means by `code`.
    fn of(code: c_int) -> Self {
        let (mut class, mut length) = (0, 0);
        let mut text = [0_u8; TEXT_BYTES];
        // SAFETY: the buffer has room for MPI_MAX_ERROR_STRING bytes; MPI is initialized while any
        // of its codes is handled, and these calls accept every code.
        unsafe {
            if ffi::MPI_Error_class(code, &raw mut class) != 0 {
                class = ffi::MPI_ERR_UNKNOWN as c_int;
            }
            let start = text.as_mut_ptr().cast::<c_char>();
            if ffi::MPI_Error_string(code, start, &raw mut length) != 0 {
                length = 0;
            }
        }
        let length = usize::try_from(length).unwrap_or(0).min(TEXT_BYTES);
        let message = String::from_utf8_lossy(&text[..length]);
        // MPICH appends the stack of its functions, a line each.
        let message = message.lines().collect::<Vec<_>>().join("; ");
        Self::new(kind_of(class, &message), format!("{message} (MPI error class {class})"))
    }
}

/// The C library's texts for errors to which ROMIO gives only the class MPI_ERR_IO.
const CAUSES: [(&str, Kind); 4] = [
    ("No space left on device", Kind::NoSpace),
    ("Disk quota exceeded", Kind::NoSpace),
    ("Read-only file system", Kind::ReadOnly),
    ("Too many open files", Kind::TooManyOpenFiles),
];

/// The kind of an error of `class`; `message` decides where the class says little.
fn kind_of(class: c_int, message: &str) -> Kind {
    match class.cast_unsigned() {
        ffi::MPI_ERR_FILE_EXISTS => Kind::Exists,
        ffi::MPI_ERR_NO_SUCH_FILE => Kind::NotFound,
        ffi::MPI_ERR_ACCESS => Kind::Denied,
        ffi::MPI_ERR_NO_SPACE | ffi::MPI_ERR_QUOTA => Kind::NoSpace,
        ffi::MPI_ERR_READ_ONLY => Kind::ReadOnly,
        ffi::MPI_ERR_FILE_IN_USE => Kind::Conflict,
        ffi::MPI_ERR_BAD_FILE => Kind::Invalid,
        ffi::MPI_ERR_AMODE
        | ffi::MPI_ERR_UNSUPPORTED_DATAREP
        | ffi::MPI_ERR_UNSUPPORTED_OPERATION => Kind::Unsupported,
        _ => {
            let cause = CAUSES.iter().find(|(text, _)| message.contains(text));
            cause.map_or(Kind::DeviceFailed, |(_, kind)| *kind)
        }
    }
}

fn checked(code: c_int) -> std::result::Result<(), MpiFailure> {
    if code.cast_unsigned() == ffi::MPI_SUCCESS { Ok(()) } else { Err(MpiFailure::of(code)) }
}

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug)]
pub enum MpiFileAccess {
    /// Writing a file that does not exist yet.
    CreateNew,
    /// Reading.
    Read,
    /// Reading and writing a file that exists.
    ReadWrite,
}

impl MpiFileAccess {
    fn mode(self) -> c_int {
        let mode = match self {
            Self::CreateNew => ffi::MPI_MODE_CREATE | ffi::MPI_MODE_EXCL | ffi::MPI_MODE_WRONLY,
            Self::Read => ffi::MPI_MODE_RDONLY,
            Self::ReadWrite => ffi::MPI_MODE_RDWR,
        };
        mode.cast_signed()
    }
}

/// The ranks that open files together.
struct FileCommunicator {
    /// A duplicate; freed before MPI can be finalized.
    communicator: SimpleCommunicator,
    _process: Arc<MpiProcess>,
}

/// One thread's access to files by MPI-IO.
pub struct MpiFiles {
    /// Not for other threads.
    shared: Rc<FileCommunicator>,
}

impl MpiFiles {
    /// Access for the calling thread alone.
    ///
    /// # Errors
    /// `Unsupported` if the thread may not call MPI.
    pub fn new(process: &Arc<MpiProcess>) -> Result<Self> {
        Self::on(process, SimpleCommunicator::self_comm)
    }

    /// Access for all processes of the job together. Collective: each calls it, and so it is with
    /// opening, syncing and closing these files, and with the calls on them whose names end in
    /// `_all`.
    ///
    /// # Errors
    /// As [`MpiFiles::new`].
    pub fn of_job(process: &Arc<MpiProcess>) -> Result<Self> {
        Self::on(process, SimpleCommunicator::world)
    }

    fn on(process: &Arc<MpiProcess>, of: impl FnOnce() -> SimpleCommunicator) -> Result<Self> {
        process.check_thread()?;
        let communicator = {
            let _alone = DUPLICATION.lock();
            of().duplicate()
        };
        let shared = FileCommunicator { communicator, _process: process.clone() };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn open(
        &self,
        path: &CStr,
        access: MpiFileAccess,
    ) -> std::result::Result<MpiFile, MpiFailure> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the communicator is alive and only this thread uses it; the path ends with a zero
        // byte; MPI keeps none of the pointers.
        let raw = unsafe {
            raw.write(ffi::RSMPI_FILE_NULL);
            checked(ffi::MPI_File_open(
                self.shared.communicator.as_raw(),
                path.as_ptr(),
                access.mode(),
                ffi::RSMPI_INFO_NULL,
                raw.as_mut_ptr(),
            ))?;
            raw.assume_init()
        };
        if is_null(raw) {
            return Err(MpiFailure::new(Kind::DeviceFailed, "MPI_File_open returned no file"));
        }
        Ok(MpiFile { raw, _shared: self.shared.clone() })
    }

    /// Deletes the file at `path`.
    pub(super) fn delete(&self, path: &CStr) -> std::result::Result<(), MpiFailure> {
        // SAFETY: the path ends with a zero byte, and MPI does not keep it.
        checked(unsafe { ffi::MPI_File_delete(path.as_ptr(), ffi::RSMPI_INFO_NULL) })
    }
}

fn is_null(raw: ffi::MPI_File) -> bool {
    // SAFETY: a constant of the library, which nothing writes.
    raw == unsafe { ffi::RSMPI_FILE_NULL }
}

/// An open file.
pub struct MpiFile {
    /// MPI_FILE_NULL once closed.
    raw: ffi::MPI_File,
    _shared: Rc<FileCommunicator>,
}

impl MpiFile {
    /// Writes at the file pointer, which advances; returns the number of bytes written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> std::result::Result<usize, MpiFailure> {
        let count = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        let mut status = MaybeUninit::zeroed();
        // SAFETY: the file is open; the buffer has `count` bytes, which MPI only reads, during the
        // call.
        unsafe {
            checked(ffi::MPI_File_write(
                self.raw,
                bytes.as_ptr().cast::<c_void>(),
                count,
                ffi::RSMPI_UINT8_T,
                status.as_mut_ptr(),
            ))?;
        }
        transferred(&status, count)
    }

    /// Reads at the file pointer, which advances; returns the number of bytes read, which is lower
    /// than the length of the buffer only at the end of the file.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::result::Result<usize, MpiFailure> {
        let count = c_int::try_from(buffer.len()).unwrap_or(c_int::MAX);
        let mut status = MaybeUninit::zeroed();
        // SAFETY: the file is open; the buffer has room for `count` bytes and is only borrowed for
        // the call.
        unsafe {
            checked(ffi::MPI_File_read(
                self.raw,
                buffer.as_mut_ptr().cast::<c_void>(),
                count,
                ffi::RSMPI_UINT8_T,
                status.as_mut_ptr(),
            ))?;
        }
        transferred(&status, count)
    }

    /// Writes at `offset`; returns the number of bytes written.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> std::result::Result<usize, MpiFailure> {
        self.write_by(ffi::MPI_File_write_at, offset, bytes)
    }

    /// Like [`MpiFile::write_at`], of all processes that opened the file, at offsets of their own.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn write_at_all(
        &self,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<usize, MpiFailure> {
        self.write_by(ffi::MPI_File_write_at_all, offset, bytes)
    }

    fn write_by(
        &self,
        call: WriteAt,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<usize, MpiFailure> {
        let (offset, count) = mpi_range(offset, bytes.len())?;
        let mut status = MaybeUninit::zeroed();
        let start = bytes.as_ptr().cast::<c_void>();
        // SAFETY: the file is open; the buffer has `count` bytes, which MPI only reads, during the
        // call.
        checked(unsafe {
            call(self.raw, offset, start, count, ffi::RSMPI_UINT8_T, status.as_mut_ptr())
        })?;
        transferred(&status, count)
    }

    /// Reads at `offset`; returns the number of bytes read, which is lower than the length of the
    /// buffer only at the end of the file.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn read_at(
        &self,
        offset: u64,
        buffer: &mut [u8],
    ) -> std::result::Result<usize, MpiFailure> {
        self.read_by(ffi::MPI_File_read_at, offset, buffer)
    }

    /// Like [`MpiFile::read_at`], of all processes that opened the file, at offsets of their own.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn read_at_all(
        &self,
        offset: u64,
        buffer: &mut [u8],
    ) -> std::result::Result<usize, MpiFailure> {
        self.read_by(ffi::MPI_File_read_at_all, offset, buffer)
    }

    fn read_by(
        &self,
        call: ReadAt,
        offset: u64,
        buffer: &mut [u8],
    ) -> std::result::Result<usize, MpiFailure> {
        let (offset, count) = mpi_range(offset, buffer.len())?;
        let mut status = MaybeUninit::zeroed();
        let start = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: the file is open; the buffer has room for `count` bytes and is only borrowed for
        // the call.
        checked(unsafe {
            call(self.raw, offset, start, count, ffi::RSMPI_UINT8_T, status.as_mut_ptr())
        })?;
        transferred(&status, count)
    }

    /// Makes all bytes of this process durable, and those of others visible.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn sync(&self) -> std::result::Result<(), MpiFailure> {
        // SAFETY: the file is open.
        checked(unsafe { ffi::MPI_File_sync(self.raw) })
    }

    /// Closes the file.
    ///
    /// # Errors
    /// As MPI answers.
    pub fn close(mut self) -> std::result::Result<(), MpiFailure> {
        self.close_handle()
    }

    fn close_handle(&mut self) -> std::result::Result<(), MpiFailure> {
        let mut raw = self.raw;
        // SAFETY: a constant of the library, which nothing writes.
        self.raw = unsafe { ffi::RSMPI_FILE_NULL };
        if is_null(raw) {
            return Ok(());
        }
        // SAFETY: the file is open, and its handle is not used any more, even if this call fails.
        checked(unsafe { ffi::MPI_File_close(&raw mut raw) })
    }

    /// The keys of the hints in effect, by which implementations of MPI-IO differ.
    pub(super) fn hint_keys(&self) -> std::result::Result<Vec<String>, MpiFailure> {
        let mut keys = Vec::new();
        let mut info = MaybeUninit::uninit();
        let mut count = 0;
        // SAFETY: the file is open; MPI fills `info`, which is freed once and not used after that;
        // the buffer has room for the longest key and its zero byte, and always has a zero byte.
        unsafe {
            checked(ffi::MPI_File_get_info(self.raw, info.as_mut_ptr()))?;
            let mut info = info.assume_init();
            if info == ffi::RSMPI_INFO_NULL {
                return Ok(keys);
            }
            let counted = checked(ffi::MPI_Info_get_nkeys(info, &raw mut count));
            for index in 0..count {
                let mut text = [0_u8; TEXT_BYTES + 1];
                let start = text.as_mut_ptr().cast::<c_char>();
                if ffi::MPI_Info_get_nthkey(info, index, start) == 0 {
                    keys.extend(
                        CStr::from_bytes_until_nul(&text).map(|key| key.to_string_lossy().into()),
                    );
                }
            }
            let freed = checked(ffi::MPI_Info_free(&raw mut info));
            counted.and(freed)?;
        }
        Ok(keys)
    }
}

impl Drop for MpiFile {
    fn drop(&mut self) {
        // A call has failed before: that error is the one to report.
        let _ = self.close_handle();
    }
}

type WriteAt = unsafe extern "C" fn(
    ffi::MPI_File,
    ffi::MPI_Offset,
    *const c_void,
    c_int,
    ffi::MPI_Datatype,
    *mut ffi::MPI_Status,
) -> c_int;

type ReadAt = unsafe extern "C" fn(
    ffi::MPI_File,
    ffi::MPI_Offset,
    *mut c_void,
    c_int,
    ffi::MPI_Datatype,
    *mut ffi::MPI_Status,
) -> c_int;

/// An offset and a length, as MPI takes them.
fn mpi_range(
    offset: u64,
    bytes: usize,
) -> std::result::Result<(ffi::MPI_Offset, c_int), MpiFailure> {
    let converted = (ffi::MPI_Offset::try_from(offset), c_int::try_from(bytes));
    let (Ok(offset), Ok(count)) = converted else {
        let what = format!("{bytes} bytes at {offset} are beyond the numbers of MPI");
        return Err(MpiFailure::new(Kind::Invalid, what));
    };
    Ok((offset, count))
}

/// The number of bytes of a transfer of at most `count`, as its status has it.
fn transferred(
    status: &MaybeUninit<ffi::MPI_Status>,
    count: c_int,
) -> std::result::Result<usize, MpiFailure> {
    let mut moved = 0;
    // SAFETY: a successful transfer has filled the status, and zeroes are a status anyway.
    checked(unsafe { ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut moved) })?;
    if !(0..=count).contains(&moved) {
        let what = format!("MPI reports {moved} bytes of a transfer of {count}");
        return Err(MpiFailure::new(Kind::DeviceFailed, what));
    }
    Ok(moved.cast_unsigned() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_kinds() {
        for (class, kind) in [
            (ffi::MPI_ERR_FILE_EXISTS, Kind::Exists),
            (ffi::MPI_ERR_NO_SUCH_FILE, Kind::NotFound),
            (ffi::MPI_ERR_ACCESS, Kind::Denied),
            (ffi::MPI_ERR_NO_SPACE, Kind::NoSpace),
            (ffi::MPI_ERR_QUOTA, Kind::NoSpace),
            (ffi::MPI_ERR_READ_ONLY, Kind::ReadOnly),
            (ffi::MPI_ERR_IO, Kind::DeviceFailed),
            (ffi::MPI_ERR_OTHER, Kind::DeviceFailed),
        ] {
            assert_eq!(kind_of(class.cast_signed(), "no error"), kind, "{class}");
        }
    }

    /// MPICH 4.0 on a full file system.
    #[test]
    fn messages_tell_more_than_the_class_of_all_failures() {
        let class = ffi::MPI_ERR_IO.cast_signed();
        let message = "ADIOI_GEN_WRITECONTIG(80): Other I/O error No space left on device";
        assert_eq!(kind_of(class, message), Kind::NoSpace);
        let class = ffi::MPI_ERR_NO_SUCH_FILE.cast_signed();
        assert_eq!(kind_of(class, "File Disk quota exceeded does not exist"), Kind::NotFound);
    }
}
