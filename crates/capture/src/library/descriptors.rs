// SPDX-License-Identifier: Apache-2.0
//! Descriptors: the files behind descriptors, as texts of the log.
//!
//! A descriptor's entry is made when the program opens a file, by the path that it names, or when it first uses a
//! descriptor that it has by other means (inherited, duplicated, received), by the path that the kernel knows.
//! It goes when the program closes the descriptor. If a program closes a descriptor and gets it again for another file,
//! both without the C library, calls on it count for the first file.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU64, Ordering};

use super::call_slot::TEXT_BYTES_MAX;
use super::kernel::{self, AT_FDCWD, WorkingDirectory};
use super::log_writer::LogWriter;

/// Descriptors with entries; the paths of others are asked for with each call.
const ENTRIES: usize = 1 << 16;

/// Paths up to this size need no more of the log than their own bytes.
const SHORT_BYTES: usize = 256;

const UNKNOWN: u64 = 0;
/// A pipe, a socket, or anything else that is no file.
const NO_FILE: u64 = 1;

static FILES: [AtomicU64; ENTRIES] = [const { AtomicU64::new(UNKNOWN) }; ENTRIES];

/// The text of the working directory, until the program changes it.
static WORKING_DIRECTORY: AtomicU64 = AtomicU64::new(UNKNOWN);

/// Walks of directories that are under way.
static WALKS: AtomicU64 = AtomicU64::new(0);

fn entry(descriptor: c_int) -> Option<&'static AtomicU64> {
    FILES.get(usize::try_from(descriptor).ok()?)
}

/// The text that is the path of `descriptor`; `None` if it is no file, or there is no room for the text.
pub fn file_of(writer: &LogWriter, descriptor: c_int) -> Option<u64> {
    let entry = entry(descriptor);
    let known = entry.map_or(UNKNOWN, |entry| entry.load(Ordering::Relaxed));
    if known != UNKNOWN {
        return (known != NO_FILE).then_some(known);
    }
    let file = put_path_of(writer, descriptor);
    if let Some(entry) = entry.filter(|_| writer.owns_memory()) {
        entry.store(file, Ordering::Relaxed);
    }
    (file > NO_FILE).then_some(file)
}

/// The text of the directory at which paths begin that are relative to `descriptor`; 0 if it is unknown.
pub fn directory_of(writer: &LogWriter, descriptor: c_int) -> u64 {
    if descriptor != AT_FDCWD {
        return file_of(writer, descriptor).unwrap_or(UNKNOWN);
    }
    // A child of `vfork` has its own.
    let is_certain = WALKS.load(Ordering::Relaxed) == 0 && writer.owns_memory();
    let known = WORKING_DIRECTORY.load(Ordering::Relaxed);
    if known != UNKNOWN && is_certain {
        return if known == NO_FILE { UNKNOWN } else { known };
    }
    let mut short = [0; SHORT_BYTES];
    let text = match kernel::working_directory(&mut short) {
        WorkingDirectory::Path(length) => writer.put_text(0, &short[..length]),
        WorkingDirectory::TooLong => {
            writer.put_text_with(0, TEXT_BYTES_MAX, |into| match kernel::working_directory(into) {
                WorkingDirectory::Path(length) => Some(length),
                _ => None,
            })
        }
        WorkingDirectory::Nowhere => NO_FILE,
    };
    if is_certain {
        WORKING_DIRECTORY.store(text, Ordering::Relaxed);
    }
    if text == NO_FILE { UNKNOWN } else { text }
}

/// Makes `walk`, in which the C library itself may change the working directory.
pub fn walk<R>(walk: impl FnOnce() -> R) -> R {
    WALKS.fetch_add(1, Ordering::Relaxed);
    let result = walk();
    WALKS.fetch_sub(1, Ordering::Relaxed);
    WORKING_DIRECTORY.store(UNKNOWN, Ordering::Relaxed);
    result
}

/// Forgets the working directory, which the program has changed.
pub fn forget_working_directory(writer: &LogWriter) {
    if writer.owns_memory() {
        WORKING_DIRECTORY.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Makes the entry of a descriptor that was opened as `file`.
pub fn opened(writer: &LogWriter, descriptor: c_int, file: u64) {
    if let Some(entry) = entry(descriptor).filter(|_| writer.owns_memory()) {
        entry.store(file, Ordering::Relaxed);
    }
}

/// The file of a descriptor that is about to be closed, if it has been used; forgets it.
pub fn closing(writer: &LogWriter, descriptor: c_int) -> Option<u64> {
    let entry = entry(descriptor)?;
    let known = entry.load(Ordering::Relaxed);
    if known != UNKNOWN && writer.owns_memory() {
        entry.store(UNKNOWN, Ordering::Relaxed);
    }
    (known > NO_FILE).then_some(known)
}

/// Forgets a descriptor that another file has got.
pub fn forget(writer: &LogWriter, descriptor: c_int) {
    opened(writer, descriptor, UNKNOWN);
}

/// Forgets the descriptors from `first` to `last`.
pub fn forget_range(writer: &LogWriter, first: u32, last: u32) {
    if writer.owns_memory() {
        let files = FILES.iter().take((last as usize).saturating_add(1)).skip(first as usize);
        files.for_each(|entry| entry.store(UNKNOWN, Ordering::Relaxed));
    }
}

/// Puts the absolute path of `descriptor`; [`NO_FILE`] if it is no file of a directory.
fn put_path_of(writer: &LogWriter, descriptor: c_int) -> u64 {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut link = [0; PREFIX.len() + 11];
    link[..PREFIX.len()].copy_from_slice(PREFIX);
    let Ok(mut rest) = u32::try_from(descriptor) else { return NO_FILE };
    let digits = rest.checked_ilog10().unwrap_or(0) as usize + 1;
    for digit in link[PREFIX.len()..PREFIX.len() + digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let Ok(link) = CStr::from_bytes_until_nul(&link) else { return NO_FILE };
    let mut short = [0; SHORT_BYTES];
    let Some(length) = kernel::read_link(link, &mut short) else { return NO_FILE };
    let path = &short[..length];
    if !path.starts_with(b"/") || path.starts_with(b"/memfd:") {
        return NO_FILE;
    }
    if length < SHORT_BYTES {
        return writer.put_text(0, existing(path));
    }
    writer.put_text_with(0, TEXT_BYTES_MAX, |into| {
        let length = kernel::read_link(link, into)?;
        Some(existing(&into[..length]).len())
    })
}

/// The path without the words by which the kernel marks files that were removed.
fn existing(path: &[u8]) -> &[u8] {
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}
