// SPDX-License-Identifier: Apache-2.0
//! Rank calls: the calls of one rank as operations of a trace.
//!
//! A file is named by the argument that the text has for it: a descriptor in version 2, and the
//! path in version 3. Reads and writes without an offset get the position of that file, which every
//! call here moves; the end of a file is the largest that the text shows.

use std::collections::HashMap;

use super::call::RecorderCall;
use crate::trace::TraceOperation;

/// Stands for errors, whose number the text does not have: the largest that Linux returns.
const ERROR_UNKNOWN: i64 = -4_095;

/// Flags of `open` on Linux.
const O_CREAT: i64 = 0o100;
const O_APPEND: i64 = 0o2000;

/// An operation of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankOperation {
    /// The operation.
    pub operation: TraceOperation,
    /// The file; empty for barriers.
    pub path: String,
    /// The position in the file.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The result.
    pub result: i64,
}

impl RankOperation {
    /// True if it is a barrier, which concerns no file.
    pub fn is_barrier(&self) -> bool {
        self.operation == TraceOperation::Barrier
    }
}

/// The meaning of a call for a trace.
#[derive(Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Records.
    Operations(Vec<RankOperation>),
    /// A call on no file, or of a library above POSIX.
    Ignored,
    /// A call on a file that the text does not name.
    Unknown,
}

/// A file that is open.
#[derive(Debug, Default)]
struct RankFile {
    path: String,
    position: u64,
    appends: bool,
}

/// The arguments of a function: its file, and the positions of its numbers, counted from the last
/// argument.
enum CallKind {
    /// The path, with a number of other arguments after it.
    Path {
        operation: TraceOperation,
        before: usize,
        after: usize,
    },
    /// An open file with bytes, and an offset.
    Transfer {
        is_write: bool,
        after: usize,
        bytes: [Option<usize>; 2],
        offset: Option<usize>,
    },
    Open,
    OpenStream,
    Close,
    Seek,
    Sync,
    Truncate {
        is_open: bool,
    },
    Rename,
    Barrier,
    Duplicate,
    Other,
}

fn classify_call(function: &str) -> CallKind {
    use TraceOperation::{Link, List, MakeDirectory, RemoveDirectory, SetAttributes, Stat, Unlink};
    let path = |operation, before, after| CallKind::Path { operation, before, after };
    let transfer =
        |is_write, after, bytes, offset| CallKind::Transfer { is_write, after, bytes, offset };
    match function {
        "open" | "open64" | "creat" | "creat64" => CallKind::Open,
        "fopen" | "fopen64" => CallKind::OpenStream,
        "close" | "fclose" => CallKind::Close,
        "read" | "write" => transfer(function == "write", 2, [Some(0), None], None),
        "pread" | "pread64" => transfer(false, 3, [Some(1), None], Some(0)),
        "pwrite" | "pwrite64" => transfer(true, 3, [Some(1), None], Some(0)),
        "readv" | "writev" => transfer(function == "writev", 2, [Some(1), None], None),
        // The stream is the last argument: address, size, number, stream.
        "fread" | "fwrite" => transfer(function == "fwrite", 0, [Some(2), Some(1)], None),
        "fprintf" => transfer(true, 1, [Some(0), None], None),
        "lseek" | "lseek64" | "fseek" | "fseeko" => CallKind::Seek,
        "fsync" | "fdatasync" => CallKind::Sync,
        "truncate" => CallKind::Truncate { is_open: false },
        "ftruncate" => CallKind::Truncate { is_open: true },
        "rename" => CallKind::Rename,
        "MPI_Barrier" => CallKind::Barrier,
        "dup" | "dup2" => CallKind::Duplicate,
        "mkdir" => path(MakeDirectory, 0, 1),
        "rmdir" => path(RemoveDirectory, 0, 0),
        "unlink" | "remove" => path(Unlink, 0, 0),
        "opendir" => path(List, 0, 0),
        "chmod" | "utime" => path(SetAttributes, 0, 1),
        "chown" | "lchown" => path(SetAttributes, 0, 2),
        "access" | "stat" | "lstat" | "stat64" | "lstat64" => path(Stat, 0, 1),
        "__xstat" | "__xstat64" | "__lxstat" | "__lxstat64" => path(Stat, 1, 1),
        "link" | "symlink" => path(Link, 1, 0),
        _ => CallKind::Other,
    }
}

/// The open files of a rank.
pub struct RankCalls<'a> {
    sizes: &'a mut HashMap<String, u64>,
    files: HashMap<String, RankFile>,
}

impl<'a> RankCalls<'a> {
    /// A rank without open files; `sizes` are those of all ranks.
    pub fn new(sizes: &'a mut HashMap<String, u64>) -> Self {
        Self { sizes, files: HashMap::new() }
    }

    /// Adds a call.
    pub fn add(&mut self, call: &RecorderCall<'_>) -> CallOutcome {
        let operations = match classify_call(call.function) {
            CallKind::Other => return CallOutcome::Ignored,
            CallKind::Duplicate => {
                self.duplicate(call);
                return CallOutcome::Ignored;
            }
            CallKind::Barrier => match call.arguments[..] {
                ["MPI_COMM_WORLD"] => Some(vec![simple(TraceOperation::Barrier, String::new(), 0)]),
                _ => return CallOutcome::Ignored,
            },
            CallKind::Path { operation, before, after } => {
                call.path(before, after).map(|path| vec![simple(operation, path, result(call))])
            }
            CallKind::Rename => match call.arguments[..] {
                [from, to] => Some(self.rename(call, from, to)),
                _ => None,
            },
            CallKind::Open => self.open(call).map(|operation| vec![operation]),
            CallKind::OpenStream => self.open_stream(call).map(|operation| vec![operation]),
            CallKind::Close => self.close(call).map(|operation| vec![operation]),
            CallKind::Seek => self.seek(call).map(|operation| vec![operation]),
            CallKind::Sync => self
                .path_of_open(call, 0)
                .map(|path| vec![simple(TraceOperation::Sync, path, result(call))]),
            CallKind::Truncate { is_open } => self.truncate(call, is_open).map(|done| vec![done]),
            CallKind::Transfer { is_write, after, bytes, offset } => {
                self.transfer(call, is_write, after, bytes, offset).map(|done| vec![done])
            }
        };
        operations.map_or(CallOutcome::Unknown, CallOutcome::Operations)
    }

    /// The name of the open file before the last `after` arguments; `None` for a stream of
    /// version 2.
    fn key(&self, call: &RecorderCall<'_>, after: usize) -> Option<String> {
        let is_stream_call = matches!(call.function, "fread" | "fwrite");
        let key = call.path(if is_stream_call { 3 } else { 0 }, after)?;
        let is_file = call.result.is_none() || key.parse::<i32>().is_ok();
        is_file.then_some(key)
    }

    fn path_of_open(&self, call: &RecorderCall<'_>, after: usize) -> Option<String> {
        let key = self.key(call, after)?;
        match (self.files.get(&key), call.result) {
            (Some(file), _) => Some(file.path.clone()),
            // The key of version 3 is the path.
            (None, None) => Some(key),
            (None, Some(_)) => None,
        }
    }

    fn open(&mut self, call: &RecorderCall<'_>) -> Option<RankOperation> {
        let is_creat = call.function.starts_with("creat");
        // A mode follows only where a file may be made.
        let with_mode = call.number(1).filter(|flags| flags & O_CREAT != 0);
        let (flags, after) = match (is_creat, with_mode) {
            (true, _) => (O_CREAT, 1),
            (false, Some(flags)) => (flags, 2),
            (false, None) => (call.number(0)?, 1),
        };
        let path = call.path(0, after)?;
        self.begin_file(call, &path, flags & O_APPEND != 0);
        let creates = flags & O_CREAT != 0;
        let operation = if creates { TraceOperation::Create } else { TraceOperation::Open };
        Some(simple(operation, path, result(call)))
    }

    fn open_stream(&mut self, call: &RecorderCall<'_>) -> Option<RankOperation> {
        let path = call.path(0, 1)?;
        let mode = call.arguments.last()?;
        let creates = mode.starts_with(['w', 'a']);
        let operation = if creates { TraceOperation::Create } else { TraceOperation::Open };
        // In version 2 the result is an address.
        if call.result.is_none() {
            self.begin_file(call, &path, mode.starts_with('a'));
        }
        Some(simple(operation, path, 0))
    }

    fn begin_file(&mut self, call: &RecorderCall<'_>, path: &str, appends: bool) {
        let key = match call.result {
            None => path.to_owned(),
            Some(descriptor) if descriptor >= 0 => descriptor.to_string(),
            Some(_) => return,
        };
        self.files.insert(key, RankFile { path: path.to_owned(), position: 0, appends });
    }

    fn duplicate(&mut self, call: &RecorderCall<'_>) {
        let Some(new) = call.result.filter(|new| *new >= 0) else { return };
        let old = call.arguments.first().and_then(|old| self.files.get(*old));
        if let Some(RankFile { path, position, appends }) = old {
            let file = RankFile { path: path.clone(), position: *position, appends: *appends };
            self.files.insert(new.to_string(), file);
        }
    }

    fn close(&mut self, call: &RecorderCall<'_>) -> Option<RankOperation> {
        let path = self.path_of_open(call, 0)?;
        // Another descriptor of the path may be open in version 3.
        if call.result.is_some() {
            self.files.remove(&self.key(call, 0)?);
        }
        Some(simple(TraceOperation::Close, path, result(call)))
    }

    fn seek(&mut self, call: &RecorderCall<'_>) -> Option<RankOperation> {
        let path = self.path_of_open(call, 2)?;
        let (offset, whence) = (call.number(1)?, call.number(0)?);
        let size = self.sizes.get(&path).copied().unwrap_or_default();
        let file = self.file(call, 2, &path)?;
        let from = match whence {
            0 => 0,
            1 => file.position,
            _ => size,
        };
        let position = from.saturating_add_signed(offset);
        if result(call) >= 0 {
            file.position = position;
        }
        let done = simple(TraceOperation::Seek, path, result(call));
        Some(RankOperation { offset: position, ..done })
    }

    fn file(&mut self, call: &RecorderCall<'_>, after: usize, path: &str) -> Option<&mut RankFile> {
        let key = self.key(call, after)?;
        let file = self
            .files
            .entry(key)
            .or_insert_with(|| RankFile { path: path.to_owned(), ..RankFile::default() });
        Some(file)
    }

    fn transfer(
        &mut self,
        call: &RecorderCall<'_>,
        is_write: bool,
        after: usize,
        bytes: [Option<usize>; 2],
        offset: Option<usize>,
    ) -> Option<RankOperation> {
        let path = self.path_of_open(call, after)?;
        let number = |at: usize| {
            let is_stream_call = matches!(call.function, "fread" | "fwrite");
            // Sizes before a stream are counted from the front, since its path may have blanks.
            let value = match is_stream_call {
                true => call.arguments.get(3 - at)?.parse().ok(),
                false => call.number(at),
            };
            value.and_then(|value: i64| u64::try_from(value).ok())
        };
        let count = number(bytes[0].expect("each transfer has a size"))?;
        let bytes = match bytes[1] {
            Some(at) => count.checked_mul(number(at)?)?,
            // Recorder counts the zero byte that ends the text.
            None if call.function == "fprintf" => count.saturating_sub(1),
            None => count,
        };
        let given = match offset {
            Some(at) => Some(number(at)?),
            None => None,
        };
        let size = self.sizes.get(&path).copied().unwrap_or_default();
        let file = self.file(call, after, &path)?;
        let begin = match given {
            Some(offset) => offset,
            None if is_write && file.appends => size,
            None => file.position,
        };
        // Version 2 prints 0 for all transfers.
        let result = match call.result {
            Some(result) if result < 0 => ERROR_UNKNOWN,
            _ => i64::try_from(bytes).ok()?,
        };
        let end = begin.saturating_add(u64::try_from(result).unwrap_or_default().min(bytes));
        if given.is_none() {
            file.position = end;
        }
        if is_write && end > size {
            self.sizes.insert(path.clone(), end);
        }
        let operation = if is_write { TraceOperation::Write } else { TraceOperation::Read };
        Some(RankOperation { operation, path, offset: begin, bytes, result })
    }

    fn truncate(&mut self, call: &RecorderCall<'_>, is_open: bool) -> Option<RankOperation> {
        let path = if is_open { self.path_of_open(call, 1)? } else { call.path(0, 1)? };
        let size = u64::try_from(call.number(0)?).ok()?;
        self.sizes.insert(path.clone(), size);
        Some(RankOperation { offset: size, ..simple(TraceOperation::Truncate, path, result(call)) })
    }

    fn rename(&mut self, call: &RecorderCall<'_>, from: &str, to: &str) -> Vec<RankOperation> {
        let result = result(call);
        if let Some(size) = self.sizes.remove(from).filter(|_| result >= 0) {
            self.sizes.insert(to.to_owned(), size);
        }
        vec![
            simple(TraceOperation::Rename, from.to_owned(), result),
            simple(TraceOperation::RenameTarget, to.to_owned(), result),
        ]
    }
}

/// The result of the call; 0 if the text does not have it.
fn result(call: &RecorderCall<'_>) -> i64 {
    call.result.map_or(0, |result| if result < 0 { ERROR_UNKNOWN } else { result })
}

fn simple(operation: TraceOperation, path: String, result: i64) -> RankOperation {
    RankOperation { operation, path, offset: 0, bytes: 0, result }
}
