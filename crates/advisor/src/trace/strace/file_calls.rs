// SPDX-License-Identifier: Apache-2.0
//! File calls: system calls as operations of a trace.
//!
//! Positions of reads and writes without an offset come from the open file, which every call here
//! moves as the kernel does. The end of a file to which writes are appended is the largest that the
//! log shows: the sizes of its `stat` calls, and the ends of writes.

use std::collections::HashMap;

use super::descriptors::{OpenFile, SharedOpenFile};
use super::process_table::TracedThread;
use super::system_call::{SystemCall, number};
use crate::trace::{PATH_BYTES_MAX, TraceOperation};

/// An operation of a call: most have one, copies between files and renames have two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOperation {
    /// The operation.
    pub operation: TraceOperation,
    /// The file.
    pub path: Vec<u8>,
    /// The position in the file.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl FileOperation {
    fn new(operation: TraceOperation, path: Vec<u8>) -> Self {
        Self { operation, path, offset: 0, bytes: 0 }
    }
}

/// Known sizes of files.
pub type FileSizes = HashMap<Vec<u8>, u64>;

/// True for calls that become records, so that their place in the order is kept.
pub fn is_file_call(name: &str) -> bool {
    matches!(
        name,
        "open"
            | "openat"
            | "openat2"
            | "creat"
            | "close"
            | "lseek"
            | "llseek"
            | "_llseek"
            | "sendfile"
            | "sendfile64"
            | "copy_file_range"
    ) || transfer_kind(name).is_some()
        || simple_kind(name).is_some()
}

/// The operations of a call of `thread`, whose descriptors it changes.
pub fn file_operations(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    sizes: &mut FileSizes,
) -> Vec<FileOperation> {
    if let Some((operation, offset_at)) = transfer_kind(call.name) {
        return transfer(call, thread, sizes, operation, offset_at).into_iter().collect();
    }
    match call.name {
        "open" | "creat" => open(call, thread, None, 0).into_iter().collect(),
        "openat" | "openat2" => open(call, thread, Some(0), 1).into_iter().collect(),
        "close" => close(call, thread).into_iter().collect(),
        "lseek" | "llseek" | "_llseek" => seek(call, thread).into_iter().collect(),
        "sendfile" | "sendfile64" => copy(call, thread, sizes, [1, 0], [Some(2), None]),
        "copy_file_range" => copy(call, thread, sizes, [0, 2], [Some(1), Some(3)]),
        _ => {
            change_descriptors(call, thread);
            simple_kind(call.name)
                .map(|operation| simple(call, thread, sizes, operation))
                .unwrap_or_default()
        }
    }
}

/// Reads and writes; the argument that has the offset, if one has.
fn transfer_kind(name: &str) -> Option<(TraceOperation, Option<usize>)> {
    Some(match name {
        "read" | "readv" => (TraceOperation::Read, None),
        "pread64" | "pread" | "preadv" | "preadv2" => (TraceOperation::Read, Some(3)),
        "write" | "writev" => (TraceOperation::Write, None),
        "pwrite64" | "pwrite" | "pwritev" | "pwritev2" => (TraceOperation::Write, Some(3)),
        _ => return None,
    })
}

/// Calls that only have files.
fn simple_kind(name: &str) -> Option<TraceOperation> {
    Some(match name {
        "stat" | "lstat" | "fstat" | "newfstatat" | "fstatat64" | "stat64" | "lstat64"
        | "fstat64" | "statx" | "access" | "faccessat" | "faccessat2" | "readlink"
        | "readlinkat" | "getxattr" | "lgetxattr" | "fgetxattr" | "listxattr" | "llistxattr"
        | "flistxattr" => TraceOperation::Stat,
        "fsync" | "fdatasync" | "sync_file_range" | "syncfs" => TraceOperation::Sync,
        "truncate" | "ftruncate" | "fallocate" => TraceOperation::Truncate,
        "unlink" | "unlinkat" => TraceOperation::Unlink,
        "rmdir" => TraceOperation::RemoveDirectory,
        "mkdir" | "mkdirat" => TraceOperation::MakeDirectory,
        "rename" | "renameat" | "renameat2" => TraceOperation::Rename,
        "getdents" | "getdents64" => TraceOperation::List,
        "link" | "linkat" | "symlink" | "symlinkat" => TraceOperation::Link,
        "chmod" | "fchmod" | "fchmodat" | "fchmodat2" | "chown" | "fchown" | "lchown"
        | "fchownat" | "utime" | "utimes" | "utimensat" | "futimesat" | "setxattr"
        | "lsetxattr" | "fsetxattr" | "removexattr" | "lremovexattr" | "fremovexattr" => {
            TraceOperation::SetAttributes
        }
        _ => return None,
    })
}

/// The path that `name` means in `directory`.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match name {
        b"" => directory.to_owned(),
        _ if name.starts_with(b"/") || directory.is_empty() => name.to_owned(),
        _ => [directory, if directory.ends_with(b"/") { b"" } else { b"/" }, name].concat(),
    }
}

/// The path at argument `text_at`, relative to the descriptor at `directory_at` if there is one,
/// and else to the working directory.
fn path(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    directory_at: Option<usize>,
    text_at: usize,
) -> Option<Vec<u8>> {
    let name = call.text(text_at).unwrap_or_default();
    let directory = directory_at.and_then(|at| call.descriptor(at));
    match directory {
        Some(directory) if directory.number.is_some() => Some(join(&directory.path, &name)),
        Some(directory) if !directory.path.is_empty() => {
            thread.directory.replace(directory.path.clone());
            Some(join(&directory.path, &name))
        }
        _ if name.is_empty() => None,
        _ => Some(join(&thread.directory.borrow(), &name)),
    }
}

/// The open file of the descriptor at `index`, and its path.
fn open_file(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    index: usize,
) -> Option<(SharedOpenFile, Vec<u8>)> {
    let found = call.descriptor(index)?;
    let number = found.number?;
    let file = thread.descriptors.borrow_mut().file(number, &found.path);
    // The log's path is newer: the file may have been renamed.
    let path = if found.path.is_empty() { file.borrow().path.clone() } else { found.path };
    Some((file, path))
}

fn open(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    directory_at: Option<usize>,
    text_at: usize,
) -> Option<FileOperation> {
    let flags = text_at + 1;
    let creates = call.name == "creat" || call.has_flag(flags, b"O_CREAT");
    let operation = if creates { TraceOperation::Create } else { TraceOperation::Open };
    let asked = path(call, thread, directory_at, text_at)?;
    let path = call.result_path.clone().unwrap_or(asked);
    if let Some(number) = call.result.and_then(|number| i32::try_from(number).ok())
        && number >= 0
    {
        let appends = call.has_flag(flags, b"O_APPEND");
        let file = OpenFile { path: path.clone(), position: 0, appends };
        let closes = call.has_flag(flags, b"O_CLOEXEC");
        thread.descriptors.borrow_mut().open(number, file, closes);
    }
    Some(FileOperation::new(operation, path))
}

fn close(call: &SystemCall<'_>, thread: &TracedThread) -> Option<FileOperation> {
    let (_, path) = open_file(call, thread, 0)?;
    let number = call.descriptor(0)?.number?;
    thread.descriptors.borrow_mut().close(number);
    Some(FileOperation::new(TraceOperation::Close, path))
}

fn seek(call: &SystemCall<'_>, thread: &TracedThread) -> Option<FileOperation> {
    let (file, path) = open_file(call, thread, 0)?;
    let offset = u64::try_from(call.result?).unwrap_or_default();
    if call.result? >= 0 {
        file.borrow_mut().position = offset;
    }
    Some(FileOperation { offset, ..FileOperation::new(TraceOperation::Seek, path) })
}

fn transfer(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    sizes: &mut FileSizes,
    operation: TraceOperation,
    offset_at: Option<usize>,
) -> Option<FileOperation> {
    let is_vector = call.name.contains("readv") || call.name.contains("writev");
    let bytes = match is_vector {
        // With `-s 0` a log leaves vectors out; the bytes that were moved then take their place.
        true => {
            let moved = u64::try_from(call.result.unwrap_or_default()).unwrap_or_default();
            call.vector_bytes(1)?.max(moved)
        }
        false => u64::try_from(call.number(2)?).ok()?,
    };
    let offset = offset_at.and_then(|at| call.number(at)).and_then(|at| u64::try_from(at).ok());
    transfer_bytes(call, thread, sizes, FileTransfer { operation, descriptor_at: 0, offset, bytes })
}

/// A read or write of the descriptor at an argument, at `offset` or at the file's position.
struct FileTransfer {
    operation: TraceOperation,
    descriptor_at: usize,
    offset: Option<u64>,
    bytes: u64,
}

fn transfer_bytes(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    sizes: &mut FileSizes,
    transfer: FileTransfer,
) -> Option<FileOperation> {
    let FileTransfer { operation, descriptor_at, offset, bytes } = transfer;
    let (file, path) = open_file(call, thread, descriptor_at)?;
    let mut file = file.borrow_mut();
    let is_write = operation == TraceOperation::Write;
    let size = sizes.get(&path).copied().unwrap_or_default();
    let begin = match offset {
        Some(offset) => offset,
        None if is_write && file.appends => size,
        None => file.position,
    };
    let moved = u64::try_from(call.result.unwrap_or_default()).unwrap_or_default().min(bytes);
    // Sums of numbers that a log claims; the writer refuses records beyond the largest file.
    let end = begin.saturating_add(moved);
    if offset.is_none() {
        file.position = end;
    }
    if is_write && moved > 0 && end > size {
        sizes.insert(path.clone(), end);
    }
    Some(FileOperation { operation, path, offset: begin, bytes })
}

/// A copy from the descriptor at `[from, to]`, with the arguments that may have offsets.
fn copy(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    sizes: &mut FileSizes,
    descriptors: [usize; 2],
    offsets: [Option<usize>; 2],
) -> Vec<FileOperation> {
    let count_at = if call.name == "copy_file_range" { 4 } else { 3 };
    let bytes = call.number(count_at).and_then(|bytes| u64::try_from(bytes).ok());
    let Some(bytes) = bytes else { return Vec::new() };
    let mut operations = Vec::new();
    let kinds = [TraceOperation::Read, TraceOperation::Write];
    for ((operation, descriptor_at), offset_at) in kinds.into_iter().zip(descriptors).zip(offsets) {
        let offset = offset_at.and_then(|at| offset_in(call.argument(at)));
        let transfer = FileTransfer { operation, descriptor_at, offset, bytes };
        operations.extend(transfer_bytes(call, thread, sizes, transfer));
    }
    operations
}

/// The offset before the call of `[0] => [60]`; `None` for `NULL`.
fn offset_in(text: &[u8]) -> Option<u64> {
    let inside = text.strip_prefix(b"[")?;
    let end = inside.iter().position(|byte| matches!(byte, b']' | b' '))?;
    u64::try_from(number(&inside[..end])?).ok()
}

fn simple(
    call: &SystemCall<'_>,
    thread: &TracedThread,
    sizes: &mut FileSizes,
    operation: TraceOperation,
) -> Vec<FileOperation> {
    let first = call.argument(0);
    let begins_with_text = first.starts_with(b"\"");
    // `symlink(target, name)` and `symlinkat(target, directory, name)`: the target is only a text.
    let found = match call.name {
        "symlink" => path(call, thread, None, 1),
        "symlinkat" => path(call, thread, Some(1), 2),
        "link" => path(call, thread, None, 1),
        "linkat" => path(call, thread, Some(2), 3),
        _ if begins_with_text => path(call, thread, None, 0),
        _ if call.argument(1).starts_with(b"\"") && !call.name.starts_with('f') => {
            path(call, thread, Some(0), 1)
        }
        "faccessat" | "faccessat2" | "fchmodat" | "fchmodat2" | "fchownat" | "futimesat"
        | "fstatat64" => path(call, thread, Some(0), 1),
        _ => open_file(call, thread, 0).map(|(_, path)| path),
    };
    let Some(found) = found else { return Vec::new() };
    let mut result = FileOperation::new(operation, found);
    match operation {
        TraceOperation::Stat => {
            if let Some(size) = size_in(call) {
                sizes.insert(result.path.clone(), size);
            }
        }
        TraceOperation::Truncate => {
            let number = |at| call.number(at).and_then(|number| u64::try_from(number).ok());
            let (offset, bytes) = match call.name {
                "fallocate" => (number(2), number(3)),
                _ => (number(1), Some(0)),
            };
            (result.offset, result.bytes) = (offset.unwrap_or(0), bytes.unwrap_or(0));
            if call.name != "fallocate" && call.result == Some(0) {
                sizes.insert(result.path.clone(), result.offset);
            }
        }
        TraceOperation::Unlink if call.has_flag(2, b"AT_REMOVEDIR") => {
            result.operation = TraceOperation::RemoveDirectory;
        }
        TraceOperation::Rename => {
            let target = match call.name {
                "rename" => path(call, thread, None, 1),
                _ => path(call, thread, Some(2), 3),
            };
            let Some(target) = target else { return Vec::new() };
            if call.result == Some(0)
                && let Some(size) = sizes.remove(&result.path)
            {
                sizes.insert(target.clone(), size);
            }
            return vec![result, FileOperation::new(TraceOperation::RenameTarget, target)];
        }
        _ => {}
    }
    if operation == TraceOperation::Unlink && call.result == Some(0) {
        sizes.remove(&result.path);
    }
    vec![result]
}

/// The size in the attributes that a call has returned.
fn size_in(call: &SystemCall<'_>) -> Option<u64> {
    let key = [&b"st_size="[..], b"stx_size="];
    for argument in &call.arguments {
        for key in key {
            let at = argument.windows(key.len()).position(|window| window == key);
            let Some(digits) = at.map(|at| &argument[at + key.len()..]) else { continue };
            let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
            return u64::try_from(number(&digits[..end])?).ok();
        }
    }
    None
}

/// Carries out calls that do not become records, but change descriptors or the working directory.
fn change_descriptors(call: &SystemCall<'_>, thread: &TracedThread) {
    let Some(result) = call.result.filter(|result| *result >= 0) else { return };
    let descriptor = call.descriptor(0).and_then(|found| Some((found.number?, found.path)));
    match (call.name, descriptor) {
        ("dup" | "dup2" | "dup3", Some((old, path))) => {
            let closes = call.has_flag(2, b"O_CLOEXEC");
            if let Ok(new) = i32::try_from(result)
                && new != old
            {
                thread.descriptors.borrow_mut().duplicate(old, new, &path, closes);
            }
        }
        ("fcntl" | "fcntl64", Some((old, path))) => {
            let closes = call.has_flag(1, b"F_DUPFD_CLOEXEC");
            if (closes || call.has_flag(1, b"F_DUPFD"))
                && let Ok(new) = i32::try_from(result)
            {
                thread.descriptors.borrow_mut().duplicate(old, new, &path, closes);
            } else if call.has_flag(1, b"F_SETFL") {
                let file = thread.descriptors.borrow_mut().file(old, &path);
                file.borrow_mut().appends = call.has_flag(2, b"O_APPEND");
            }
        }
        ("close_range", _) if !call.has_flag(2, b"CLOSE_RANGE_CLOEXEC") => {
            if let (Some(first), Some(last)) = (call.number(0), call.number(1)) {
                thread.descriptors.borrow_mut().close_range(first, last);
            }
        }
        ("execve" | "execveat", _) => thread.descriptors.borrow_mut().execute(),
        ("chdir", _) => {
            if let Some(path) = path(call, thread, None, 0) {
                // The directory is unknown then; a log of `chdir` alone would make it ever longer.
                let is_path = path.len() <= PATH_BYTES_MAX;
                thread.directory.replace(if is_path { path } else { Vec::new() });
            }
        }
        ("fchdir", Some((_, path))) => drop(thread.directory.replace(path)),
        ("getcwd", _) => {
            if let Some(path) = call.text(0) {
                thread.directory.replace(path);
            }
        }
        _ => {}
    }
}
