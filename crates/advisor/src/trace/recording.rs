// SPDX-License-Identifier: Apache-2.0
//! Recording: makes a trace of the calls that `esker-capture` has recorded.
//!
//! A process with calls on selected files is a rank. Its number is the one that its environment has (of `mpirun`,
//! `srun`, `esker run`) for the first process with this number that transfers bytes; others have numbers after
//! all of these. A path is the one by which the program named the
//! file, without symbolic links as far as its directories still exist. Records of one rank are in the order of their
//! beginnings; where threads began calls at the same time, the log has the order, and a record that would
//! begin before the one ahead of it begins with that.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use esker_base::Result;
use esker_capture::operation::{MAP, READ, WRITE};
use esker_capture::{CallLog, RecordedCall, RecordedEvent};

use super::file_selection::FileSelection;
use super::rank_numbers::number_ranks;
use super::{ImportSummary, TraceFile, TraceOperation, TraceOrigin, TraceRecord, TraceWriter};

/// Directories whose real paths are remembered.
const DIRECTORIES_MAX: usize = 1 << 13;

/// Paths of files that are not taken that are remembered.
const REFUSED_MAX: usize = 1 << 13;

/// Longest path whose links are followed, as in Linux.
const PATH_BYTES_LINKS: usize = 4096;

/// The counts of an import of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingSummary {
    /// Those of any import. Calls are incomplete if they did not return, or their file or its position is not
    /// known.
    pub import: ImportSummary,
    /// Processes for whose streams nothing that they read or write is in the log.
    pub without_streams: u64,
    /// All processes.
    pub processes: u64,
    /// Files that were mapped into memory, where no accesses to them are recorded.
    pub mapped_files: u64,
    /// If no call was on the files that were asked for, so that the trace has all: the calls that there were.
    pub instead: Option<ImportSummary>,
}

/// The files of a log that become a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordedFiles<'a> {
    /// Those at and below these paths; without any, all but those of the system and those of `outputs`.
    pub paths: &'a [Vec<u8>],
    /// Files that the program has for its output, as a batch system gives it: its messages go there.
    pub outputs: &'a [Vec<u8>],
}

/// Writes the trace of `files` of `log` to `output`; if no call is on these, of all files, since the program may not
/// run again. Errors name the trace `object`.
///
/// # Errors
/// `Corrupt` for a log that a program has overwritten; `TooLarge` for more paths than a trace holds; as the
/// output answers.
pub fn import_recording<W: Write>(
    log: &CallLog,
    object: &str,
    output: W,
    files: RecordedFiles<'_>,
) -> Result<(W, RecordingSummary)> {
    let mut processes = RecordedProcesses::find(log, files)?;
    let all = [b"/".to_vec()];
    let (mut files, mut instead) = (files, None);
    if processes.ranks.is_empty() && processes.left_out.left_out > 0 {
        files = RecordedFiles { paths: &all, outputs: &[] };
        let found = RecordedProcesses::find(log, files)?;
        instead = Some(std::mem::replace(&mut processes, found).left_out);
    }
    let program = processes.program.as_deref().map_or_else(|| object.to_owned(), super::path_text);
    let origin = TraceOrigin { program, source: "recording".into(), epoch_ns: log.epoch_ns() };
    let mut import = RecordingImport {
        writer: TraceWriter::new(output, object, origin)?,
        files: SelectedFiles::new(files),
        ranks: BTreeMap::new(),
        mapped: HashSet::new(),
        incomplete: 0,
    };
    log.visit(|event| match event {
        RecordedEvent::Call(call) => import.add(log, &processes, &call),
        RecordedEvent::Process(_) => Ok(()),
    })?;
    let (output, summary) = import.finish(&processes)?;
    Ok((output, RecordingSummary { instead, ..summary }))
}

/// The processes of a log.
#[derive(Debug, Default)]
struct RecordedProcesses {
    /// Ranks of those with calls on selected files.
    ranks: HashMap<u32, u32>,
    program: Option<Vec<u8>>,
    count: u64,
    without_streams: u64,
    /// The calls on other files.
    left_out: ImportSummary,
}

impl RecordedProcesses {
    fn find(log: &CallLog, files: RecordedFiles<'_>) -> Result<Self> {
        let mut found = Self::default();
        let mut files = SelectedFiles::new(files);
        let mut asked_ranks: HashMap<u32, u32> = HashMap::new();
        let (mut with_records, mut transferring) = (Vec::new(), Vec::new());
        let (mut known, mut known_to_transfer) = (HashSet::new(), HashSet::new());
        log.visit(|event| {
            match event {
                RecordedEvent::Process(process) => {
                    found.count += 1;
                    found.without_streams += u64::from(!process.has_streams);
                    if let Some(rank) = process.rank {
                        asked_ranks.insert(process.process, rank);
                    }
                    if let Some(text) = process.program.filter(|_| found.program.is_none()) {
                        found.program = log.path(text)?;
                    }
                }
                RecordedEvent::Call(call) => {
                    let Some(text) = call.file.filter(|_| call.operation != MAP) else {
                        return Ok(());
                    };
                    let place = (log, text, call.operation);
                    if files.take(place, |_| Ok(TraceFile(0)))?.is_none() {
                        return Ok(());
                    }
                    if known.insert(call.process) {
                        with_records.push(call.process);
                    }
                    let moves_bytes = call.returned.is_some_and(|(_, result)| result > 0);
                    let transfers = matches!(call.operation, READ | WRITE) && moves_bytes;
                    if transfers && known_to_transfer.insert(call.process) {
                        transferring.push(call.process);
                    }
                }
            }
            Ok(())
        })?;
        let asked = |process| asked_ranks.get(&process).copied();
        found.ranks = number_ranks(asked, &transferring, &with_records);
        found.left_out.left_out = files.selection.left_out();
        found.left_out.left_out_directories = files.selection.directories();
        Ok(found)
    }
}

/// The files of a log that an import takes.
struct SelectedFiles<'a> {
    files: RecordedFiles<'a>,
    selection: FileSelection<'a>,
    /// Those taken so far, by their text in the log.
    taken: HashMap<u64, TraceFile>,
    /// Paths of others, so that calls on them are counted; all go when there are many.
    refused: HashMap<u64, Vec<u8>>,
    real_paths: RealPaths,
}

impl<'a> SelectedFiles<'a> {
    fn new(files: RecordedFiles<'a>) -> Self {
        Self {
            files,
            selection: FileSelection::new(files.paths),
            taken: HashMap::new(),
            refused: HashMap::new(),
            real_paths: RealPaths::default(),
        }
    }

    /// The file of the text `text` if the import takes it; otherwise counts a call on it. `file` gives the
    /// file of a path.
    fn take(
        &mut self,
        (log, text, operation): (&CallLog, u64, u32),
        file: impl FnOnce(&[u8]) -> Result<TraceFile>,
    ) -> Result<Option<TraceFile>> {
        if let Some(file) = self.taken.get(&text) {
            return Ok(Some(*file));
        }
        if let Some(path) = self.refused.get(&text) {
            // An empty one is unknown.
            if !path.is_empty() {
                self.selection.leave_out(path);
            }
            return Ok(None);
        }
        let path = log.path(text)?;
        let path = path.map(|path| self.real_paths.of(&path, follows_links(operation)));
        let path = path.unwrap_or_default();
        let is_output = self.files.paths.is_empty() && self.files.outputs.contains(&path);
        if is_output {
            self.selection.leave_out(&path);
        }
        if is_output || path.is_empty() || !self.selection.takes(&path) {
            if self.refused.len() == REFUSED_MAX {
                self.refused.clear();
            }
            self.refused.insert(text, path);
            return Ok(None);
        }
        let file = file(&path)?;
        self.taken.insert(text, file);
        Ok(Some(file))
    }
}

/// An import in progress.
struct RecordingImport<'a, W: Write> {
    writer: TraceWriter<W>,
    files: SelectedFiles<'a>,
    ranks: BTreeMap<u32, RankProgress>,
    mapped: HashSet<TraceFile>,
    incomplete: u64,
}

/// The records of a rank so far.
#[derive(Default)]
struct RankProgress {
    begin_ns: u64,
    transfers: bool,
}

impl<W: Write> RecordingImport<'_, W> {
    fn add(
        &mut self,
        log: &CallLog,
        processes: &RecordedProcesses,
        call: &RecordedCall,
    ) -> Result<()> {
        let Some(text) = call.file else {
            self.incomplete += 1;
            return Ok(());
        };
        let writer = &mut self.writer;
        let place = (log, text, call.operation);
        let Some(file) = self.files.take(place, |path| writer.file(path))? else { return Ok(()) };
        if call.operation == MAP {
            self.mapped.insert(file);
            return Ok(());
        }
        let operation = u8::try_from(call.operation).ok().and_then(TraceOperation::of_number);
        let rank = processes.ranks.get(&call.process);
        let (Some(operation), Some((end_ns, result)), Some(rank)) =
            (operation, call.returned, rank.copied())
        else {
            self.incomplete += 1;
            return Ok(());
        };
        // A copy to the end asks for more than any file has, and a failed call may ask for anything.
        let offset = call.offset.filter(|offset| i64::try_from(*offset).is_ok());
        let fits = |bytes: &u64| {
            let end = offset.unwrap_or(0).checked_add(*bytes);
            end.is_some_and(|end| i64::try_from(end).is_ok())
        };
        let moved = u64::try_from(result).unwrap_or(0);
        let bytes = Some(call.bytes).filter(fits).or(Some(moved).filter(fits));
        let position = if result < 0 { Some(offset.unwrap_or(0)) } else { offset };
        let Some((offset, bytes)) = position.zip(bytes) else {
            self.incomplete += 1;
            return Ok(());
        };
        let progress = self.ranks.entry(rank).or_default();
        progress.begin_ns = progress.begin_ns.max(call.begin_ns);
        let record = TraceRecord {
            process: call.process,
            thread: call.thread,
            file,
            offset,
            bytes,
            begin_ns: progress.begin_ns,
            end_ns: end_ns.max(progress.begin_ns),
            result,
            ..TraceRecord::new(rank, operation)
        };
        progress.transfers |= operation.is_transfer() && record.bytes_moved() > 0;
        self.writer.push(&record)
    }

    fn finish(self, processes: &RecordedProcesses) -> Result<(W, RecordingSummary)> {
        let import = ImportSummary {
            records: self.writer.rows(),
            ranks: self.ranks.len() as u32,
            transferring_ranks: self.ranks.values().filter(|rank| rank.transfers).count() as u32,
            left_out: self.files.selection.left_out(),
            left_out_directories: self.files.selection.directories(),
            incomplete: self.incomplete,
        };
        let RecordedProcesses { count, without_streams, .. } = *processes;
        let mapped_files = self.mapped.len() as u64;
        let summary = RecordingSummary {
            import,
            without_streams,
            processes: count,
            mapped_files,
            instead: None,
        };
        Ok((self.writer.finish()?, summary))
    }
}

/// True for calls on the file behind a symbolic link, as those on open files are.
fn follows_links(operation: u32) -> bool {
    let operation = u8::try_from(operation).ok().and_then(TraceOperation::of_number);
    use TraceOperation::{Close, Create, List, Open, Read, Seek, Sync, Truncate, Write};
    matches!(operation, Some(Close | Create | List | Open | Read | Seek | Sync | Truncate | Write))
}

/// The path of `path`, which is absolute, without symbolic links as far as its directories exist, as imports of
/// recordings have it.
#[must_use]
pub fn real_path(path: &[u8]) -> Vec<u8> {
    RealPaths::default().of(path, true)
}

/// The paths at which files are that programs have named.
#[derive(Default)]
struct RealPaths(HashMap<Vec<u8>, Vec<u8>>);

impl RealPaths {
    /// The path without `.`, `..` and symbolic links, as far as these still exist; a link that it names is only
    /// followed if the call does (`follows`).
    fn of(&mut self, path: &[u8], follows: bool) -> Vec<u8> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let name = &path[(end + 1).min(path.len())..];
        let mut real = self.of_directory(&path[..end]);
        match name {
            b"" | b"." => {}
            b".." => real.truncate(real.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => {
                real.push(b'/');
                real.extend_from_slice(name);
                let found = || std::fs::symlink_metadata(OsStr::from_bytes(&real));
                let is_link = follows && found().is_ok_and(|found| found.is_symlink());
                if is_link && let Ok(found) = std::fs::canonicalize(OsStr::from_bytes(&real)) {
                    real = found.into_os_string().into_vec();
                }
            }
        }
        if real.is_empty() { b"/".to_vec() } else { real }
    }

    /// The real path of a directory; an empty one for the root.
    fn of_directory(&mut self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() {
            return Vec::new();
        }
        if path.len() > PATH_BYTES_LINKS {
            return path.to_owned();
        }
        if let Some(real) = self.0.get(path) {
            return real.clone();
        }
        let real = self.of(path, true);
        let real = if real == b"/" { Vec::new() } else { real };
        if self.0.len() == DIRECTORIES_MAX {
            self.0.clear();
        }
        self.0.insert(path.to_owned(), real.clone());
        real
    }
}

#[cfg(test)]
mod tests {
    use esker_capture::operation as recorded;

    use super::TraceOperation as Traced;

    /// The recorder counts operations as traces do.
    #[test]
    fn operations_have_one_number() {
        let pairs = [
            (recorded::OPEN, Traced::Open),
            (recorded::CREATE, Traced::Create),
            (recorded::CLOSE, Traced::Close),
            (recorded::READ, Traced::Read),
            (recorded::WRITE, Traced::Write),
            (recorded::SEEK, Traced::Seek),
            (recorded::STAT, Traced::Stat),
            (recorded::SYNC, Traced::Sync),
            (recorded::TRUNCATE, Traced::Truncate),
            (recorded::UNLINK, Traced::Unlink),
            (recorded::MAKE_DIRECTORY, Traced::MakeDirectory),
            (recorded::REMOVE_DIRECTORY, Traced::RemoveDirectory),
            (recorded::RENAME, Traced::Rename),
            (recorded::RENAME_TARGET, Traced::RenameTarget),
            (recorded::LIST, Traced::List),
            (recorded::LINK, Traced::Link),
            (recorded::SET_ATTRIBUTES, Traced::SetAttributes),
        ];
        for (number, operation) in pairs {
            assert_eq!(number, u32::from(operation.number()), "{operation:?}");
        }
        assert!(u8::try_from(recorded::MAP).ok().and_then(Traced::of_number).is_none());
    }
}
