// SPDX-License-Identifier: Apache-2.0
//! Writing file data: appends to the data logs of one writer.
//!
//! Bytes reach the store before the record that refers to them is logged, and are synced before it
//! becomes durable (`DataLogs::sync` is the tree's barrier), so a recovered record finds its bytes.
//! Concurrency: threads append to shared logs under a mutex; large files have their own logs. One
//! thread at a time syncs; the next waits for it, since that sync may cover its own bytes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use esker_base::store::{AppendLog, LocalFile, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_extent::LogPlace;
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;
use esker_table::tree::TreeStopper;
use parking_lot::Mutex;

use super::file_log::OpenLog;
use super::{FileLog, GarbageEstimate};
use crate::inode::Extent;

/// Approximate maximum size of a log that grows by many appends. Bounds what must be copied before
/// the log can be reclaimed.
pub const LOG_BYTES: u64 = 128 << 20;
/// Files of at least this size get a log of their own.
pub const LARGE_FILE_BYTES: u64 = 8 << 20;
/// Bytes of a large file are appended in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of files that have their own log while they are written, unless the store allows
/// fewer; others share one.
const FILE_LOGS_MAX: usize = 256;
/// One in this many of them may belong to a closed file, in case it is appended to again.
const IDLE_LOGS_SHARE: usize = 16;
/// Logs below this size are not ended for reclaiming: all that can be open hold less garbage than
/// reclaiming leaves.
const ENDED_LOG_BYTES_MIN: u64 = 128 << 10;

/// The data logs of one writer.
pub struct DataLogs {
    store: SharedStore,
    set: SetId,
    state: Mutex<DataLogState>,
    /// Held from before logs are taken from `DataLogState::unsynced` until they are synced.
    syncing: Mutex<()>,
    /// True if there was no room for the last append.
    lacks_room: AtomicBool,
    /// Maximum number of open file logs, and of logs waiting for a sync: each keeps a file open.
    logs_max: usize,
    /// Stops the writer after a failure, since its next records could refer to bytes that were not
    /// stored.
    writer: OnceLock<TreeStopper>,
    garbage: GarbageEstimate,
}

struct DataLogState {
    next: u64,
    /// The current log of each [`PackedLog`].
    packed: [Option<(u64, Arc<dyn AppendLog>)>; 2],
    /// Logs of open files.
    file_logs: Vec<Weak<OpenLog>>,
    /// Logs of this writer to whose bytes only segments refer.
    segment_logs: BTreeSet<u64>,
    /// Logs of closed files, by file, oldest first.
    idle: VecDeque<(u128, FileLog)>,
    /// Logs with bytes that may not be synced, except those that a thread is syncing.
    unsynced: Vec<Arc<dyn AppendLog>>,
    /// Logs of earlier writers to which replayed records refer; those writers may have died before
    /// a sync.
    inherited: BTreeSet<u64>,
    written_bytes: u64,
    /// The first failure, after which nothing is written any more.
    failure: Option<String>,
}

/// A log that several files share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PackedLog {
    /// For small files, to whose bytes records refer.
    Files,
    /// For parts of files, to whose bytes only segments refer.
    Parts,
}

impl DataLogState {
    fn has_room_for_file_log(&mut self, logs_max: usize) -> bool {
        self.file_logs.retain(|open| open.strong_count() > 0);
        self.file_logs.len() < logs_max
    }

    fn file_log(&mut self, number: u64, log: Arc<dyn AppendLog>, is_in_place: bool) -> FileLog {
        let file_log = FileLog::new(number, log, is_in_place);
        self.file_logs.push(Arc::downgrade(file_log.open_log()));
        file_log
    }

    fn open_file_logs(&self) -> impl Iterator<Item = Arc<OpenLog>> {
        self.file_logs.iter().filter_map(Weak::upgrade)
    }
}

impl std::fmt::Debug for DataLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLogs").field("set", &self.set).finish()
    }
}

impl DataLogs {
    /// Creates the logs of `set`, numbered from `next`.
    #[must_use]
    pub fn new(store: SharedStore, set: SetId, next: u64) -> Self {
        let state = DataLogState {
            next,
            packed: [None, None],
            file_logs: Vec::new(),
            segment_logs: BTreeSet::new(),
            idle: VecDeque::new(),
            unsynced: Vec::new(),
            inherited: BTreeSet::new(),
            written_bytes: 0,
            failure: None,
        };
        let (state, syncing) = (Mutex::new(state), Mutex::new(()));
        let logs_max = FILE_LOGS_MAX.min(store.open_logs_max());
        let (lacks_room, writer) = (AtomicBool::new(false), OnceLock::new());
        let garbage = GarbageEstimate::default();
        Self { store, set, state, syncing, lacks_room, logs_max, writer, garbage }
    }

    /// Makes a failure to store bytes stop `writer`: no later operation may outlive the failed one.
    pub(crate) fn stop_on_failure(&self, writer: TreeStopper) {
        let _ = self.writer.set(writer);
    }

    /// Numbers logs from `next`. Call this before any log is made.
    pub(crate) fn number_from(&self, next: u64) {
        self.state.lock().next = next;
    }

    /// Makes the next sync include log `number` of an earlier writer, to which a replayed record
    /// refers.
    pub(crate) fn inherit(&self, number: u64) {
        self.state.lock().inherited.insert(number);
    }

    /// Bytes appended so far.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// Estimated garbage of the logs.
    pub(crate) fn garbage(&self) -> &GarbageEstimate {
        &self.garbage
    }

    /// True if there was no room for the last append: bytes buffered in memory now may find none
    /// either.
    pub(crate) fn lacks_room(&self) -> bool {
        self.lacks_room.load(Ordering::Relaxed)
    }

    /// Records the outcome of an append. An append that found no room left its log unchanged, and
    /// the next may succeed; any other failure is final.
    fn record_append(&self, state: &mut DataLogState, appended: Result<u64>) -> Result<u64> {
        let failure = appended.as_ref().err();
        let is_full = failure.is_some_and(|error| error.kind() == Kind::NoSpace);
        self.lacks_room.store(is_full, Ordering::Relaxed);
        if let Some(error) = failure.filter(|_| !is_full) {
            self.poison(state, error);
        }
        appended
    }

    fn open(&self, state: &mut DataLogState) -> Result<(u64, Arc<dyn AppendLog>)> {
        let number = state.next;
        state.next += 1;
        let log = self.store.append_log(&ObjectName::Data(self.set, number).to_string())?;
        Ok((number, Arc::from(log)))
    }

    /// Appends the bytes of a small file to a packed log. Cost: one store write.
    pub fn append(&self, bytes: &[u8]) -> Result<Extent> {
        let LogPlace { set, log, offset } = self.append_packed(PackedLog::Files, bytes)?;
        let (length, checksum) = (bytes.len() as u64, crc32c::crc32c(bytes));
        Ok(Extent { set, log, offset, length, checksum, written: length })
    }

    /// Appends a part of a file, to which only segments will refer, to a packed log of such parts.
    /// Cost: one store write.
    pub(crate) fn append_part(&self, bytes: &[u8]) -> Result<LogPlace> {
        self.append_packed(PackedLog::Parts, bytes)
    }

    fn append_packed(&self, which: PackedLog, bytes: &[u8]) -> Result<LogPlace> {
        let mut state = self.state.lock();
        check(&state)?;
        drop(state.packed[which as usize].take_if(|(_, log)| log.bytes() >= LOG_BYTES));
        let (number, log) = match &state.packed[which as usize] {
            Some(packed) => packed.clone(),
            None => {
                let packed = self.open(&mut state)?;
                state.packed[which as usize] = Some(packed.clone());
                if which == PackedLog::Parts {
                    state.segment_logs.insert(packed.0);
                }
                packed
            }
        };
        let offset = self.record_append(&mut state, log.append(bytes))?;
        mark_unsynced(&mut state, &log);
        self.add_written(&mut state, bytes.len() as u64);
        Ok(LogPlace { set: self.set, log: number, offset })
    }

    fn add_written(&self, state: &mut DataLogState, bytes: u64) {
        state.written_bytes += bytes;
        self.garbage.add_stored(bytes);
    }

    /// Returns a new log for the bytes of one open file; `None` if there are too many such logs.
    pub(crate) fn file_log(&self) -> Result<Option<FileLog>> {
        self.sync_oldest()?;
        let mut state = self.state.lock();
        check(&state)?;
        if !state.has_room_for_file_log(self.logs_max) {
            return Ok(None);
        }
        match self.open(&mut state) {
            // The logs that are open have to suffice.
            Err(error) if error.kind() == Kind::TooManyOpenFiles => Ok(None),
            opened => opened.map(|(number, log)| {
                state.segment_logs.insert(number);
                Some(state.file_log(number, log, false))
            }),
        }
    }

    /// Like [`DataLogs::file_log`], for a log to be written in place through the returned file;
    /// also `None` if the store has no files.
    pub(crate) fn log_in_place(&self) -> Result<Option<(FileLog, LocalFile)>> {
        let Some(files) = self.store.local_files() else { return Ok(None) };
        self.sync_oldest()?;
        let mut state = self.state.lock();
        check(&state)?;
        if !state.has_room_for_file_log(self.logs_max) {
            return Ok(None);
        }
        let number = state.next;
        state.next += 1;
        let (log, file) = files.create_log(&ObjectName::Data(self.set, number).to_string())?;
        Ok(Some((state.file_log(number, Arc::from(log), true), file)))
    }

    /// Keeps `log` of the closed file `file`, in case the file is appended to again.
    pub(crate) fn keep_idle(&self, file: u128, log: FileLog) {
        if log.is_ended() {
            return;
        }
        let mut state = self.state.lock();
        if state.idle.len() >= (self.logs_max / IDLE_LOGS_SHARE).max(1) {
            state.idle.pop_front();
        }
        state.idle.push_back((file, log));
    }

    /// Takes back the log of `file` from [`DataLogs::keep_idle`].
    pub(crate) fn take_idle(&self, file: u128) -> Option<FileLog> {
        let mut state = self.state.lock();
        let index = state.idle.iter().position(|(idle, _)| *idle == file)?;
        state.idle.remove(index).map(|(_, log)| log)
    }

    /// Ends all logs that have grown, except those written in place: further appends go to new
    /// logs.
    pub(crate) fn end_grown_logs(&self) {
        let mut state = self.state.lock();
        for open in state.open_file_logs() {
            if !open.is_in_place && open.log.bytes() >= ENDED_LOG_BYTES_MIN {
                open.end();
            }
        }
        state.idle.retain(|(_, log)| !log.is_ended());
        for packed in &mut state.packed {
            drop(packed.take_if(|(_, log)| log.bytes() >= ENDED_LOG_BYTES_MIN));
        }
    }

    /// Accounts for a log that was written in place and whose bytes may not be synced.
    pub(crate) fn record_written(&self, file: &FileLog, bytes: u64) {
        let mut state = self.state.lock();
        mark_unsynced(&mut state, file.log());
        self.add_written(&mut state, bytes);
    }

    /// Returns the numbers of the logs that may still grow.
    pub(crate) fn open_logs(&self) -> BTreeSet<u64> {
        let state = self.state.lock();
        let files = state.open_file_logs().filter(|open| !open.is_ended());
        let packed = state.packed.iter().flatten();
        files.map(|open| open.number).chain(packed.map(|(number, _)| *number)).collect()
    }

    /// Returns the numbers of the logs to whose bytes only segments refer.
    pub(crate) fn segment_logs(&self) -> BTreeSet<u64> {
        self.state.lock().segment_logs.clone()
    }

    /// Forgets a log that was deleted.
    pub(crate) fn forget(&self, number: u64) {
        self.state.lock().segment_logs.remove(&number);
    }

    /// Returns the number of the next log.
    pub(crate) fn next_number(&self) -> u64 {
        self.state.lock().next
    }

    /// Appends bytes of a file to its own log. Cost: one store write.
    pub(crate) fn append_to(&self, file: &FileLog, bytes: &[u8]) -> Result<LogPlace> {
        let offset = file.log().append(bytes);
        let mut state = self.state.lock();
        check(&state)?;
        let offset = self.record_append(&mut state, offset)?;
        mark_unsynced(&mut state, file.log());
        self.add_written(&mut state, bytes.len() as u64);
        Ok(LogPlace { set: self.set, log: file.number(), offset })
    }

    /// Writes a large file to a log of its own. `fill` reads its bytes into a buffer and returns 0
    /// at the end.
    pub fn write_large(&self, fill: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<Extent> {
        self.sync_oldest()?;
        let (number, log) = {
            let mut state = self.state.lock();
            check(&state)?;
            self.open(&mut state)?
        };
        let mut buffer = vec![0; PIECE_BYTES];
        let (mut length, mut checksum) = (0u64, 0);
        loop {
            let count = fill(&mut buffer)?;
            if count == 0 {
                break;
            }
            let appended = log.append(&buffer[..count]);
            self.record_append(&mut self.state.lock(), appended)?;
            checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
            length += count as u64;
        }
        // Only now: an earlier sync would have removed the half-written log from the list.
        let mut state = self.state.lock();
        mark_unsynced(&mut state, &log);
        self.add_written(&mut state, length);
        Ok(Extent { set: self.set, log: number, offset: 0, length, checksum, written: length })
    }

    /// Returns once all bytes appended before the call survive power loss. Waits for a sync that
    /// another thread has begun.
    ///
    /// # Errors
    /// Errors of the store; `Closed` after that, also for threads that waited.
    pub fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        let (unsynced, inherited) = {
            let mut state = self.state.lock();
            check(&state)?;
            (std::mem::take(&mut state.unsynced), std::mem::take(&mut state.inherited))
        };
        for number in inherited {
            match self.store.sync_log(&ObjectName::Data(self.set, number).to_string()) {
                // Replay found the bytes of all records that it took, so this log was not needed.
                Err(error) if error.kind() == Kind::NotFound => {}
                synced => {
                    synced.inspect_err(|error| self.poison(&mut self.state.lock(), error))?;
                }
            }
        }
        unsynced.iter().try_for_each(|log| self.sync_log(&**log))
    }

    /// Syncs the older half of the unsynced logs if there are many: each keeps a file open until it
    /// is synced, even when nothing is appended to it any more.
    fn sync_oldest(&self) -> Result<()> {
        let excess = |state: &DataLogState| {
            let unsynced = state.unsynced.len();
            if unsynced < self.logs_max { 0 } else { unsynced - self.logs_max / 2 }
        };
        if excess(&self.state.lock()) == 0 {
            return Ok(());
        }
        let _syncing = self.syncing.lock();
        let oldest: Vec<_> = {
            let mut state = self.state.lock();
            check(&state)?;
            let count = excess(&state);
            state.unsynced.drain(..count).collect()
        };
        oldest.iter().try_for_each(|log| self.sync_log(&**log))
    }

    /// Like [`DataLogs::sync`], but only for bytes written in place to `file`.
    pub(crate) fn sync_in_place(&self, file: &FileLog) -> Result<()> {
        check(&self.state.lock())?;
        self.sync_log(&**file.log())
    }

    fn sync_log(&self, log: &dyn AppendLog) -> Result<()> {
        log.sync().inspect_err(|error| self.poison(&mut self.state.lock(), error))
    }

    fn poison(&self, state: &mut DataLogState, error: &Error) {
        state.failure.get_or_insert_with(|| error.to_string());
        if let Some(writer) = self.writer.get() {
            writer(&format!("file data could not be written: {error}; resume the session"));
        }
    }
}

fn check(state: &DataLogState) -> Result<()> {
    let Some(failure) = &state.failure else { return Ok(()) };
    let context = format!("file data cannot be written any more: {failure}; resume the session");
    Err(Error::new(Kind::Closed, context))
}

fn mark_unsynced(state: &mut DataLogState, log: &Arc<dyn AppendLog>) {
    if !state.unsynced.iter().any(|unsynced| Arc::ptr_eq(unsynced, log)) {
        state.unsynced.push(log.clone());
    }
}

#[cfg(test)]
mod tests {
    use esker_base::store::{FaultStore, MemoryStore};

    use super::*;

    /// Symptom: a sync returned Ok although that for which it waited had failed, and the bytes were
    /// lost.
    #[test]
    fn every_sync_after_a_failed_one_fails() {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let logs = DataLogs::new(store.clone(), SetId(1), 0);
        let mut left = 10;
        let mut fill = |buffer: &mut [u8]| {
            let count = std::mem::take(&mut left);
            buffer[..count].fill(1);
            Ok(count)
        };
        logs.write_large(&mut fill).expect("write");
        store.fail_one_in(1, Kind::DeviceFailed);
        assert_eq!(logs.sync().expect_err("a failing store").kind(), Kind::DeviceFailed);
        store.fail_one_in(0, Kind::DeviceFailed);
        assert_eq!(logs.sync().expect_err("its bytes are not durable").kind(), Kind::Closed);
    }
}
