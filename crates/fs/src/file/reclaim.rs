// SPDX-License-Identifier: Apache-2.0
//! Reclaiming data logs: moves bytes that are still shown out of logs that are mostly garbage, and
//! deletes those logs, while other threads read and write.
//!
//! One pass, by one thread at a time:
//! 1. End the logs that have grown, so that new writes go to others; flush; and scan the tables for
//!    the bytes of each log that are shown.
//! 2. Copy the shown bytes of sparse logs to other logs, and put segments and records for the
//!    copies, a batch at a time, wherever nothing was written over them meanwhile.
//! 3. Compact and flush, so that a committed manifest shows the copies; that manifest fences a
//!    writer that was taken over. Then delete the sparse logs that nothing refers to.
//!
//! Nothing refers to a deleted log later, for these reasons. The last flush runs under
//! `Session::exclude_writers`, and writers hold `Session::pin_data_logs` from looking up a place
//! until they have put a segment or an extent for it. The flushed tables are a prefix of all
//! operations. A later operation can find a log only in those tables, in an operation after them,
//! or in an open file, whose logs stay. Readers that looked up a place earlier find the log missing
//! and look again: a reader of an open file at its inode, a reader of a part of a file at the
//! segments, and a reader of an inode at the records of all files.
//!
//! There are two kinds of logs: those of parts of files, to which only segments refer, and all
//! others. Segments are few, so a pass scans records only if the first kind does not have enough
//! garbage.
//!
//! Logs that others may read stay: those of a part of a job or of a sealed set, those that a
//! snapshot may show, and those to which a squash of a snapshot refers. A snapshot puts its marker
//! before it reads the manifest, and a pass lists the markers after it commits the manifest that
//! shows the copies. So a snapshot that the pass does not see shows the copies, too. A squash marks
//! the session while the snapshot still does, so of two listings at least one shows one of the two;
//! logs that either keeps stay. All logs stay while a set with a marker on the session is neither
//! complete nor doomed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use esker_base::{Bytes, Error, Kind, Result};
use esker_extent::{LogPlace, Segment, SegmentMerge, SegmentOverlay, SegmentTables};
use esker_table::manifest::{LogNumbers, SetId, SetState};
use esker_table::merge::RecordMerge;
use esker_table::object_name::{ObjectFolder, ObjectName};
use esker_table::schema::Key;
use esker_table::tables::TableRuns;
use esker_table::tree::Tree;
use hashbrown::HashMap;

use crate::data::{
    GARBAGE_BYTES_HARD, GARBAGE_BYTES_SOFT, LIVE_SHARE_MIN, MOVED_BYTES_MAX, PIECE_BYTES,
    has_checksum,
};
use crate::inode::{DirId, Extent, FileKind, INODE, Inode, column};
use crate::retention::condemn;
use crate::retention::dependency;
use crate::retention::marker::{self, MarkerHolder};
use crate::session::Session;
use crate::stack::namespace::Namespace;

/// Maximum number of segments put while other threads wait.
const BATCH_SEGMENTS_MAX: usize = 1024;

/// The data logs of a session that snapshots may show.
#[derive(Debug, Default)]
pub(crate) struct SharedLogs {
    /// Complete snapshots, which show only logs before `first_own`.
    snapshots: BTreeSet<SetId>,
    /// The first log that no snapshot shows.
    first_own: u64,
    /// Logs to which squashes of snapshots refer, by squashed set.
    referenced: BTreeMap<SetId, LogNumbers>,
}

impl SharedLogs {
    /// True if another set may show `log`.
    fn may_show(&self, log: u64) -> bool {
        log < self.first_own || self.referenced.values().any(|numbers| numbers.contains(log))
    }
}

/// Scope of one pass.
#[derive(Clone, Copy)]
struct ReclaimScope {
    /// True if logs to which records refer are scanned too.
    with_records: bool,
    /// Maximum bytes copied in one pass.
    moved_bytes_max: u64,
}

/// A closed log, and how much of it is shown.
#[derive(Clone, Copy)]
struct ScannedLog {
    bytes: u64,
    shown_bytes: u64,
}

impl ScannedLog {
    fn garbage_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.shown_bytes)
    }

    fn is_sparse(&self) -> bool {
        self.shown_bytes.saturating_mul(LIVE_SHARE_MIN) < self.bytes
    }
}

/// Result of a scan of the tables.
struct ReclaimScan {
    logs: BTreeMap<u64, ScannedLog>,
    /// Bytes of logs that were not scanned.
    unknown_bytes: u64,
}

impl ReclaimScan {
    /// Returns the sparsest logs, with at most `moved_bytes_max` shown bytes in total, but at least
    /// one log.
    fn sparsest(&self, moved_bytes_max: u64) -> BTreeMap<u64, ScannedLog> {
        let mut sparse: Vec<_> = self.logs.iter().filter(|(_, log)| log.is_sparse()).collect();
        sparse.sort_by_key(|(number, log)| (log.shown_bytes, **number));
        let mut moved_bytes = 0u64;
        let within = sparse.into_iter().enumerate().take_while(|(index, (_, log))| {
            moved_bytes = moved_bytes.saturating_add(log.shown_bytes);
            *index == 0 || moved_bytes <= moved_bytes_max
        });
        within.map(|(_, (number, log))| (*number, *log)).collect()
    }
}

/// True if `found` has the content of `inode` at a different place.
fn shows_same_content(found: &Inode, inode: &Inode) -> bool {
    let content = |inode: &Inode| inode.extent.map(|extent| (extent.length, extent.checksum));
    let is_elsewhere = found.mapped || found.extent != inode.extent;
    let is_same = found.mapped || content(found) == content(inode);
    is_elsewhere && is_same && found.size == inode.size
}

impl Namespace {
    /// Returns the current record of the file `inode`, which was looked up before its log was
    /// reclaimed. A log is deleted only after its records are in tables, so searching the tables is
    /// enough; an inode does not know its name, so all records are read. A writer that was taken
    /// over may find an older record, since the new writer deleted the log; its content must not be
    /// taken for that of `inode`.
    ///
    /// # Errors
    /// As [`Namespace::explain_missing`] if the writer's tables have no other record of the same
    /// content, where `missing` is the error of reading the log; errors of the store.
    #[cold]
    pub(super) fn find_moved(&self, inode: &Inode, missing: Error) -> Result<Inode> {
        let Some(tree) = self.layers().writer() else { return Err(missing) };
        let mut cursors = Vec::new();
        tree.older_sources().rows().cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
        let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
        while merge.advance()? {
            let mut row = merge.row();
            INODE.restore(&mut row.ints);
            let [high, low] = [column::ID_HIGH, column::ID_LOW].map(|at| u128::from(row.ints[at]));
            if high << 64 | low != inode.id {
                continue;
            }
            let found = Inode::of_row(&row)?;
            if found.kind() == Some(FileKind::File) && shows_same_content(&found, inode) {
                return Ok(found);
            }
        }
        Err(self.explain_missing(missing))
    }

    /// Returns the error for a data log that does not exist: `missing`, or `Fenced` if another
    /// writer has taken the session over. The log may then have been of changes that the takeover
    /// lost, and this writer has not noticed. Cost: a listing.
    #[cold]
    pub(super) fn explain_missing(&self, missing: Error) -> Error {
        match self.layers().writer().map(Tree::check_owner) {
            Some(Err(fenced)) if fenced.kind() == Kind::Fenced => fenced.with_source(missing),
            _ => missing,
        }
    }
}

impl Session {
    /// Reclaims data logs of this session of which less than half is shown; returns the bytes
    /// freed. Keeps logs of a part of a job, of a sealed set, and those that snapshots show.
    /// Logs of files that are renamed or linked meanwhile, or that are open without a name, stay
    /// for the next pass. Other threads read and write meanwhile; they wait only for a flush and
    /// for each batch that moves. Cost: reads of all tables of the session, a compaction, and the
    /// bytes that move.
    ///
    /// # Errors
    /// `Corrupt` if bytes to be moved are damaged; errors of the store.
    pub fn reclaim_data(&self) -> Result<u64> {
        self.write_back_metadata()?;
        let mut shared = self.reclaiming().lock();
        let scope = ReclaimScope { with_records: true, moved_bytes_max: u64::MAX };
        self.reclaim(&mut shared, scope)
    }

    /// Reclaims garbage if there may be much of it; a background thread calls this periodically. At
    /// most as many bytes move as are garbage. Returns how many bytes of data logs were deleted.
    /// Cost: nothing while there is little garbage; otherwise as [`Session::reclaim_data`], with
    /// the tables of records only if segments do not account for the garbage.
    ///
    /// # Errors
    /// As [`Session::reclaim_data`]; the work is then deferred.
    pub fn give_up_garbage(&self) -> Result<u64> {
        self.bring_garbage_below(GARBAGE_BYTES_SOFT)
    }

    /// Leaves the existing logs to `snapshot`, which is complete, and continues in other logs,
    /// which the snapshot does not show. Waits for a pass in progress.
    pub(crate) fn keep_logs_of(&self, snapshot: SetId) {
        let mut shared = self.reclaiming().lock();
        self.data().end_grown_logs();
        shared.snapshots.insert(snapshot);
        shared.first_own = self.data().next_number();
    }

    /// Keeps the data logs within twice the shown bytes plus a constant, before more is written. A
    /// failure here does not fail the caller's write; it surfaces when the session is compacted.
    pub(crate) fn bound_garbage(&self) {
        if self.data().garbage().exceeds(GARBAGE_BYTES_HARD) {
            let _ = self.bring_garbage_below(GARBAGE_BYTES_HARD);
        }
    }

    /// Counts the shown bytes of `inode` as garbage: its content is about to go.
    pub(crate) fn add_garbage_of(&self, inode: &Inode) {
        let extent = inode.extent.filter(|extent| extent.set == self.set());
        let bytes =
            if inode.mapped { inode.size } else { extent.map_or(0, |extent| extent.length) };
        self.data().garbage().add_garbage(bytes);
    }

    fn bring_garbage_below(&self, over: u64) -> Result<u64> {
        let garbage = self.data().garbage();
        if !garbage.exceeds(over) {
            return Ok(0);
        }
        let mut shared = self.reclaiming().lock();
        let mut freed_bytes = 0;
        let mut scope = ReclaimScope { with_records: false, moved_bytes_max: MOVED_BYTES_MAX };
        while garbage.exceeds(over) {
            let reclaimed = self.reclaim(&mut shared, scope);
            match reclaimed {
                Ok(0) if !scope.with_records => scope.with_records = true,
                Ok(bytes) if bytes > 0 => freed_bytes += bytes,
                nothing => {
                    garbage.defer_scan();
                    return nothing.map(|_| freed_bytes);
                }
            }
        }
        Ok(freed_bytes)
    }

    /// Runs one pass; returns the bytes of the logs that were deleted.
    fn reclaim(&self, shared: &mut SharedLogs, scope: ReclaimScope) -> Result<u64> {
        let manifest = self.tree().manifest();
        // Segments of other parts of a job may refer to the logs of this one.
        if manifest.state != SetState::Open || manifest.job.is_some() {
            return Ok(0);
        }
        let before = self.data().garbage().before_scan();
        self.data().end_grown_logs();
        self.tree().flush()?;
        if !self.find_shared_logs(shared)? {
            return Ok(0);
        }
        let scan = self.scan_logs(shared, scope)?;
        let mut sparse = scan.sparsest(scope.moved_bytes_max);
        let mut freed_bytes = 0;
        if !sparse.is_empty() {
            self.move_out_of(&sparse, scope)?;
            let referenced = self.logs_referenced(scope)?;
            sparse.retain(|log, _| !referenced.contains(log));
            let is_known = self.find_shared_logs(shared)?;
            sparse.retain(|log, _| is_known && !shared.may_show(*log));
            let store = &*self.namespace().layers().source().store;
            for (number, log) in &sparse {
                store.delete(&ObjectName::Data(self.set(), *number).to_string())?;
                self.data().forget(*number);
                freed_bytes += log.bytes;
            }
        }
        let stored_bytes =
            scan.logs.values().map(|log| log.bytes).sum::<u64>() + scan.unknown_bytes;
        let garbage_of = |logs: &BTreeMap<u64, ScannedLog>| -> u64 {
            logs.values().map(ScannedLog::garbage_bytes).sum()
        };
        let garbage_bytes = garbage_of(&scan.logs) - garbage_of(&sparse);
        let stored_bytes = stored_bytes - freed_bytes;
        self.data().garbage().replace(before, stored_bytes, garbage_bytes, scan.unknown_bytes);
        Ok(freed_bytes)
    }

    /// Determines which data logs other sets show; false while a set that may show any of them is
    /// being made.
    fn find_shared_logs(&self, shared: &mut SharedLogs) -> Result<bool> {
        let store = &*self.namespace().layers().source().store;
        let holders = marker::holders(store, self.set())?;
        let sets: BTreeSet<SetId> = holders
            .iter()
            .filter_map(|holder| match holder {
                MarkerHolder::Set(set) | MarkerHolder::Data(set) => Some(*set),
                _ => None,
            })
            .collect();
        shared.snapshots.retain(|snapshot| sets.contains(snapshot));
        shared.referenced.retain(|squashed, _| sets.contains(squashed));
        if shared.snapshots.is_empty() {
            shared.first_own = 0;
        }
        for holder in &holders {
            let (MarkerHolder::Set(set) | MarkerHolder::Data(set)) = holder else { continue };
            if shared.snapshots.contains(set) || shared.referenced.contains_key(set) {
                continue;
            }
            let manifest = match condemn::load_live(store, *set) {
                Ok(manifest) if manifest.state == SetState::Sealed => manifest,
                Ok(_) => return Ok(false),
                // It cannot commit any more that it needs a log.
                Err(_) if condemn::is_doomed(store, *set) => continue,
                Err(error) if error.kind() == Kind::NotFound => return Ok(false),
                Err(error) => return Err(error),
            };
            if holder.keeps_tables() {
                // The bytes it shows were in the store before its manifest, and never change.
                shared.first_own = self.data().next_number();
                shared.snapshots.insert(*set);
            } else {
                let numbers = dependency::referenced_logs(&manifest, self.set());
                shared.referenced.insert(*set, numbers.cloned().unwrap_or_default());
            }
        }
        Ok(true)
    }

    /// Returns the closed logs that are not `shared`, and how much of each the tables show.
    fn scan_logs(&self, shared: &SharedLogs, scope: ReclaimScope) -> Result<ReclaimScan> {
        let store = &*self.namespace().layers().source().store;
        let open = self.data().open_logs();
        let of_segments = self.data().segment_logs();
        let mut scan = ReclaimScan { logs: BTreeMap::new(), unknown_bytes: 0 };
        // A writer that took over has logs of a higher epoch, which these tables do not know.
        let end = (self.tree().manifest().epoch + 1) << 32;
        for object in store.list(&ObjectFolder::Data(self.set()).to_string())? {
            let Ok(ObjectName::Data(_, number)) = object.name.parse() else {
                continue;
            };
            if open.contains(&number) || number >= end || shared.may_show(number) {
                continue;
            }
            if scope.with_records || of_segments.contains(&number) {
                let log = ScannedLog { bytes: object.bytes, shown_bytes: 0 };
                scan.logs.insert(number, log);
            } else {
                scan.unknown_bytes += object.bytes;
            }
        }
        if scan.logs.is_empty() {
            return Ok(scan);
        }
        let mut shown: HashMap<u64, u64> = HashMap::new();
        let (tables, segments) = self.extents().all_tables();
        self.visit_segments(&segments, &mut |segment, place| {
            *shown.entry(place.log).or_default() += segment.length;
            Ok(())
        })?;
        if scope.with_records {
            self.visit_extents(&tables, &mut |_, inode| {
                let extent = inode.extent.expect("only those with one are visited");
                *shown.entry(extent.log).or_default() += extent.length;
                Ok(())
            })?;
        }
        for (number, log) in &mut scan.logs {
            log.shown_bytes = shown.get(number).copied().unwrap_or(0);
        }
        Ok(scan)
    }

    /// Visits segments of `tables` whose bytes are in logs of this session.
    fn visit_segments(
        &self,
        tables: &SegmentTables,
        visit: &mut dyn FnMut(&Segment, LogPlace) -> Result<()>,
    ) -> Result<()> {
        let mut merge = SegmentMerge::new(tables.sources(), &|_| false)?;
        while let Some(segment) = merge.read()? {
            if let Some(place) = segment.place.filter(|place| place.set == self.set()) {
                visit(&segment, place)?;
            }
        }
        Ok(())
    }

    /// Visits records of `tables` whose content is an extent in a log of this session.
    pub(super) fn visit_extents(
        &self,
        tables: &TableRuns,
        visit: &mut dyn FnMut(&Key, &Inode) -> Result<()>,
    ) -> Result<()> {
        let mut cursors = Vec::new();
        tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
        let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
        while merge.advance()? {
            let mut row = merge.row();
            let key = INODE.key(&row);
            INODE.restore(&mut row.ints);
            let inode = Inode::of_row(&row)?;
            let is_file = inode.kind() == Some(FileKind::File);
            if is_file && inode.extent.is_some_and(|extent| extent.set == self.set()) {
                visit(&key, &inode)?;
            }
        }
        Ok(())
    }

    /// Appends the shown bytes of `sparse` logs to other logs, and updates segments and records.
    fn move_out_of(&self, sparse: &BTreeMap<u64, ScannedLog>, scope: ReclaimScope) -> Result<()> {
        let (tables, segments) = self.extents().all_tables();
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        self.visit_segments(&segments, &mut |segment, place| {
            if sparse.contains_key(&place.log) && segment.length > PIECE_BYTES {
                self.check_whole(segment, place)?;
            }
            let mut at = segment.offset;
            while sparse.contains_key(&place.log) && at < segment.end() {
                let piece = segment.part(at, segment.end().min(at + PIECE_BYTES));
                batch.push(piece);
                batch_bytes += piece.length;
                at = piece.end();
                if batch.len() == BATCH_SEGMENTS_MAX || batch_bytes >= PIECE_BYTES {
                    self.move_segments(&batch)?;
                    batch.clear();
                    batch_bytes = 0;
                }
            }
            Ok(())
        })?;
        self.move_segments(&batch)?;
        if scope.with_records {
            self.visit_extents(&tables, &mut |key, inode| match &inode.extent {
                Some(extent) if sparse.contains_key(&extent.log) => {
                    self.move_extent(key, inode, extent)
                }
                _ => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Copies the bytes of `old` segments, and puts segments for the copies where the old ones are
    /// still shown. Writers wait while those are put, so that nothing they write gets hidden.
    fn move_segments(&self, old: &[Segment]) -> Result<()> {
        if old.is_empty() {
            return Ok(());
        }
        let copied = self.read_checked(old)?;
        let place = self.data().append_part(&copied.concat())?;
        let (mut moved, mut moved_bytes, mut offset) = (Vec::new(), 0, place.offset);
        let _alone = self.exclude_writers();
        for (old, bytes) in old.iter().zip(&copied) {
            let checksum = Some(crc32c::crc32c(bytes));
            let new = Segment { place: Some(LogPlace { offset, ..place }), checksum, ..*old };
            offset += old.length;
            let mut overlay = SegmentOverlay::new(old.file, old.offset..old.end());
            self.extents().read_segments(&mut overlay)?;
            for piece in overlay.pieces() {
                if piece.place == old.part(piece.offset, piece.end()).place {
                    moved.push(new.part(piece.offset, piece.end()));
                    moved_bytes += piece.length;
                }
            }
        }
        self.data().garbage().add_garbage(offset - place.offset - moved_bytes);
        if moved.is_empty() { Ok(()) } else { self.extents().put_segments(&mut moved).map(drop) }
    }

    /// Verifies the checksum of a segment whose parts, which have none, are about to be moved.
    fn check_whole(&self, segment: &Segment, place: LogPlace) -> Result<()> {
        let Some(checksum) = segment.checksum else { return Ok(()) };
        let store = &*self.namespace().layers().source().store;
        match has_checksum(store, place, segment.length, checksum)? {
            true => Ok(()),
            false => {
                Err(other_checksum(&ObjectName::Data(place.set, place.log).to_string(), place))
            }
        }
    }

    /// Returns the bytes of each of `segments`, after verifying their checksums.
    fn read_checked(&self, segments: &[Segment]) -> Result<Vec<Bytes>> {
        let store = &*self.namespace().layers().source().store;
        let mut by_log: BTreeMap<u64, Vec<(usize, LogPlace)>> = BTreeMap::new();
        for (index, segment) in segments.iter().enumerate() {
            let place = segment.place.expect("only segments with bytes are moved");
            by_log.entry(place.log).or_default().push((index, place));
        }
        let mut all = vec![Bytes::new(); segments.len()];
        for (log, places) in by_log {
            let range = |(index, place): &(usize, LogPlace)| -> Range<u64> {
                place.offset..place.offset + segments[*index].length
            };
            let name = ObjectName::Data(self.set(), log).to_string();
            let ranges: Vec<_> = places.iter().map(range).collect();
            for ((index, place), bytes) in places.iter().zip(store.get_ranges(&name, &ranges)?) {
                let checksum = segments[*index].checksum;
                if checksum.is_some_and(|checksum| checksum != crc32c::crc32c(&bytes)) {
                    return Err(other_checksum(&name, *place));
                }
                all[*index] = bytes;
            }
        }
        Ok(all)
    }

    /// Moves the content of the file whose record, at `key`, is `inode`.
    pub(super) fn move_extent(&self, key: &Key, inode: &Inode, old: &Extent) -> Result<()> {
        let _content = self.pin_data_logs();
        let (mut offset, mut checksum) = (0, 0);
        let visible = Inode { size: old.length, ..inode.clone() };
        let moved = self.store_content(&mut |buffer| {
            let bytes = self.namespace().read_content(&visible, offset, buffer.len())?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            offset += bytes.len() as u64;
            checksum = crc32c::crc32c_append(checksum, &bytes);
            Ok(bytes.len())
        })?;
        if old.is_checked() && old.length == old.written && checksum != old.checksum {
            let name = ObjectName::Data(old.set, old.log).to_string();
            return Err(Error::corrupt(&name, old.offset, "bytes of another checksum"));
        }
        let dir = DirId(u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]));
        let mut is_moved = false;
        let change = &mut |current: &mut Inode| {
            is_moved = current.extent.as_ref() == Some(old);
            if is_moved {
                moved.put_content_in(current);
            }
            Ok(())
        };
        // If the record was moved to another key since the tables were written, its log stays.
        self.update_record(dir, true, key.string, change)?;
        if !is_moved {
            self.data().garbage().add_garbage(old.length);
        }
        // After the record, so that a file opened meanwhile is either found here or reads the new
        // record.
        if let Some(file) = self.namespace().files().get_outdated(inode.id) {
            let mut state = file.state.write();
            if state.inode.extent.as_ref() == Some(old) {
                moved.put_content_in(&mut state.inode);
            }
        }
        Ok(())
    }

    /// Compacts and flushes; returns the logs that a record, a segment or an open file refers to,
    /// even one hidden by a newer one. Other threads wait for the flush only.
    fn logs_referenced(&self, scope: ReclaimScope) -> Result<BTreeSet<u64>> {
        if scope.with_records {
            self.tree().compact()?
        } else {
            self.tree().compact_family()?
        }
        // Before and after the flush: a file may be written back and closed in between.
        let mut open = self.namespace().files().extents();
        let (tables, segments): (TableRuns, SegmentTables) = {
            let _alone = self.exclude_writers();
            self.tree().flush()?;
            self.extents().all_tables()
        };
        open.extend(self.namespace().files().extents());
        let own = open.iter().filter(|extent| extent.set == self.set());
        let mut referenced: BTreeSet<u64> = own.map(|extent| extent.log).collect();
        for source in segments.sources() {
            let mut merge = SegmentMerge::new(std::slice::from_ref(source), &|_| false)?;
            while let Some(segment) = merge.read()? {
                let place = segment.place.filter(|place| place.set == self.set());
                referenced.extend(place.map(|place| place.log));
            }
        }
        if scope.with_records {
            for run in tables.runs {
                self.visit_extents(&TableRuns { runs: vec![run] }, &mut |_, inode| {
                    referenced.extend(inode.extent.map(|extent| extent.log));
                    Ok(())
                })?;
            }
        }
        Ok(referenced)
    }
}

/// Returns the error for bytes at `place`, in log `name`, that do not have their checksum.
fn other_checksum(name: &str, place: LogPlace) -> Error {
    Error::corrupt(name, place.offset, "bytes of another checksum")
}
