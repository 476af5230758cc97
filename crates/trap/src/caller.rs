// SPDX-License-Identifier: Apache-2.0
//! Caller: the thread that entered a system call; reads and writes its memory, and asks the kernel
//! about its descriptors, its working directory and its user.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use esker_fs::stack::identity::Identity;
use esker_fs::stack::path::PATH_BYTES_MAX;
use rustix::io::Errno;

/// Strings are read in pieces that do not cross pages, since the next page may not be there.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A thread that waits in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    thread: u32,
}

/// The status of a thread, as `/proc` shows it.
#[derive(Debug)]
pub(crate) struct CallerStatus {
    /// The user for whom it accesses files.
    pub(crate) identity: Identity,
    /// The user who started it, for whom access(2) asks.
    pub(crate) real_identity: Identity,
    /// Mode bits that are cleared in the files it creates.
    pub(crate) umask: u32,
    /// Its process.
    process: u32,
}

impl Caller {
    pub(crate) fn new(thread: u32) -> Self {
        Self { thread }
    }

    pub(crate) fn thread(self) -> u32 {
        self.thread
    }

    /// Reads a path, up to its zero byte.
    ///
    /// # Errors
    /// `FAULT`; `NAMETOOLONG`.
    pub(crate) fn path(self, address: u64) -> Result<Vec<u8>, Errno> {
        self.string(address, PATH_BYTES_MAX).map_err(|error| match error {
            Errno::RANGE => Errno::NAMETOOLONG,
            error => error,
        })
    }

    /// Reads a string of less than `bytes_max` bytes, up to its zero byte.
    ///
    /// # Errors
    /// `FAULT`; `RANGE` if it is longer.
    pub(crate) fn string(self, address: u64, bytes_max: usize) -> Result<Vec<u8>, Errno> {
        let mut string = Vec::with_capacity(64);
        // Most paths are short; the first piece is, too.
        let mut piece_bytes = 256;
        while string.len() < bytes_max {
            let at = address.wrapping_add(string.len() as u64);
            let page_left = (PAGE_BYTES - at % PAGE_BYTES) as usize;
            let known = string.len();
            string.resize(known + page_left.min(piece_bytes).min(bytes_max - known), 0);
            let read = self.read(at, &mut string[known..])?;
            string.truncate(known + read);
            if let Some(end) = string[known..].iter().position(|&byte| byte == 0) {
                string.truncate(known + end);
                return Ok(string);
            }
            piece_bytes = PAGE_BYTES as usize;
        }
        Err(Errno::RANGE)
    }

    /// Reads up to `into.len()` bytes; fewer only where the memory ends.
    ///
    /// # Errors
    /// `FAULT` if there is none at `address`.
    fn read(self, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes to `into` only; it checks the other process's memory.
        let read = unsafe {
            libc::process_vm_readv(self.thread as i32, &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(read) {
            Ok(0) => Err(Errno::FAULT),
            Ok(read) => Ok(read),
            Err(_) => Err(last_errno()),
        }
    }

    /// Reads exactly `N` bytes.
    ///
    /// # Errors
    /// `FAULT`.
    pub(crate) fn bytes<const N: usize>(self, address: u64) -> Result<[u8; N], Errno> {
        let mut bytes = [0; N];
        match self.read(address, &mut bytes)? {
            read if read == N => Ok(bytes),
            _ => Err(Errno::FAULT),
        }
    }

    /// Reads `length` bytes.
    ///
    /// # Errors
    /// `FAULT`.
    pub(crate) fn byte_vec(self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        if length > 0 && self.read(address, &mut bytes)? != length {
            return Err(Errno::FAULT);
        }
        Ok(bytes)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `FAULT`.
    pub(crate) fn write(self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel reads `bytes`, and checks the other process's memory.
        let written = unsafe {
            libc::process_vm_writev(
                self.thread as i32,
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        match usize::try_from(written) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(_) => Err(last_errno()),
        }
    }

    /// The path of the file behind a descriptor.
    ///
    /// # Errors
    /// `BADF`.
    pub(crate) fn descriptor_path(self, descriptor: i32) -> Result<Vec<u8>, Errno> {
        let link = format!("/proc/{}/fd/{descriptor}", self.thread);
        let path = std::fs::read_link(link).map_err(|error| match errno_of(&error) {
            Errno::NAMETOOLONG => Errno::NAMETOOLONG,
            _ => Errno::BADF,
        })?;
        Ok(path.into_os_string().into_vec())
    }

    /// The working directory.
    ///
    /// # Errors
    /// `NOENT` if the thread is gone.
    pub(crate) fn working_directory(self) -> Result<Vec<u8>, Errno> {
        let link = format!("/proc/{}/cwd", self.thread);
        let path = std::fs::read_link(link).map_err(|error| match errno_of(&error) {
            Errno::NAMETOOLONG => Errno::NAMETOOLONG,
            _ => Errno::NOENT,
        })?;
        Ok(path.into_os_string().into_vec())
    }

    /// Returns a descriptor of the open file behind the caller's `descriptor`; both share its
    /// offset.
    ///
    /// # Errors
    /// `BADF`, `PERM`.
    pub(crate) fn share_descriptor(self, descriptor: i32) -> Result<File, Errno> {
        let process = self.process_handle()?;
        // SAFETY: the call takes no pointers.
        let shared = unsafe {
            libc::syscall(libc::SYS_pidfd_getfd, as_raw(&process), i64::from(descriptor), 0)
        };
        if shared < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just made this descriptor for the supervisor.
        Ok(unsafe { File::from_raw_fd(shared as i32) })
    }

    /// A descriptor of the caller's process.
    fn process_handle(self) -> Result<OwnedFd, Errno> {
        let mut process = self.thread;
        loop {
            // SAFETY: the call takes no pointers.
            let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, i64::from(process), 0) };
            if handle >= 0 {
                // SAFETY: the kernel has just made this descriptor for the supervisor.
                return Ok(unsafe { OwnedFd::from_raw_fd(handle as i32) });
            }
            let error = last_errno();
            // A thread has no such descriptor; its leader has one.
            let leader = self.status()?.process;
            if leader == process {
                return Err(error);
            }
            process = leader;
        }
    }

    /// Size up to which the process may extend files; `u64::MAX` without a limit.
    pub(crate) fn file_bytes_max(self) -> u64 {
        let mut limit =
            libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the kernel writes to `limit`, which has the size of its type.
        unsafe {
            libc::prlimit(self.thread as i32, libc::RLIMIT_FSIZE, std::ptr::null(), &raw mut limit)
        };
        limit.rlim_cur
    }

    /// Returns the status of the thread. Cost: reads a file of `/proc`.
    ///
    /// # Errors
    /// `SRCH` if it is gone; others, for example `MFILE`, if that cannot be found out.
    pub(crate) fn status(self) -> Result<CallerStatus, Errno> {
        let status = std::fs::read(format!("/proc/{}/status", self.thread));
        let status = status.map_err(|error| match errno_of(&error) {
            Errno::NOENT => Errno::SRCH,
            error => error,
        })?;
        CallerStatus::parse(&status).ok_or(Errno::SRCH)
    }
}

impl CallerStatus {
    fn parse(status: &[u8]) -> Option<Self> {
        let field = |name: &[u8]| {
            let line =
                status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
            std::str::from_utf8(line).ok().map(str::split_ascii_whitespace)
        };
        let number = |name: &[u8], at: usize| field(name)?.nth(at)?.parse::<u32>().ok();
        // Real, effective, saved, and for files.
        let groups: Vec<u32> = field(b"Groups:")?.filter_map(|group| group.parse().ok()).collect();
        let identity = |at: usize| {
            let (uid, gid) = (number(b"Uid:", at)?, number(b"Gid:", at)?);
            Some(Identity { uid, gid, groups: groups.clone() })
        };
        Some(Self {
            identity: identity(3)?,
            real_identity: identity(0)?,
            umask: u32::from_str_radix(field(b"Umask:")?.next()?, 8).ok()?,
            process: number(b"Tgid:", 0)?,
        })
    }
}

fn as_raw(descriptor: &OwnedFd) -> i64 {
    i64::from(std::os::fd::AsRawFd::as_raw_fd(descriptor))
}

pub(crate) fn last_errno() -> Errno {
    errno_of(&io::Error::last_os_error())
}

pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Caller {
        Caller::new(rustix::thread::gettid().as_raw_nonzero().get() as u32)
    }

    #[test]
    fn a_string_ends_at_its_zero_byte_also_over_pages() {
        let text = [vec![b'x'; 9000], vec![0], vec![b'y'; 100]].concat();
        let read = own().string(text.as_ptr() as u64, 10_000);
        assert_eq!(read, Ok(vec![b'x'; 9000]));
        assert_eq!(own().string(text.as_ptr() as u64, 9000), Err(Errno::RANGE));
        assert_eq!(own().path(text.as_ptr() as u64), Err(Errno::NAMETOOLONG));
        assert_eq!(own().string(8, 100), Err(Errno::FAULT));
    }

    #[test]
    fn the_status_is_that_of_the_thread() {
        let status = own().status().expect("alive");
        assert_eq!(status.identity.uid, rustix::process::geteuid().as_raw());
        assert_eq!(status.process, std::process::id());
        assert!(CallerStatus::parse(b"Uid:\tx").is_none());
    }
}
