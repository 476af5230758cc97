//! Reclaiming data logs: bytes that are still shown move out of logs that are mostly overwritten,
//! and such logs go.
//!
//! Writers wait meanwhile: from before bytes are appended until a record refers to them they hold
//! `Session::content`, which this takes exclusively. Names go on moving, being linked and being
//! removed, and a record that moves takes its extent along. Therefore a log is deleted only if,
//! after the move and a compaction, neither a record nor a segment of the tables shows it, nor an
//! open file. That is enough: the tables are what a prefix of all operations left, a later operation
//! finds an extent of a log that does not grow only in a record or an open file that has it, and new
//! extents wait.
//! Nothing is deleted that others may read: of a published set, of a part of a job, and of a set with
//! a snapshot. Sessions are published and put the markers of snapshots with `Session::content` held.

use std::collections::BTreeMap;

use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetState;
use esker_table::merge::Merge;
use esker_table::schema::Key;
use esker_table::segment::{LogPlace, Segment, SegmentMerge};
use esker_table::tables::SortedRun;
use hashbrown::HashMap;

use crate::data::{PIECE_BYTES, folder, log_name, read_mapped};
use crate::gc::Place;
use crate::inode::{DirId, Extent, FileKind, INODE, Inode};
use crate::marker::{self, Holder};
use crate::session::Session;

/// A log is given up when less than one part in this many of its bytes is shown.
const LIVE_SHARE_MIN: u64 = 2;

impl Session {
    /// Gives up data logs of this session of which less than half is shown; returns how many
    /// bytes they took: none of a part of a job, of a published set, and where snapshots show them.
    /// Logs of files that are renamed or linked meanwhile, or that are open without a name, stay for
    /// the next time. Cost: a read of all tables of the session, and the bytes that move.
    ///
    /// # Errors
    /// `Corrupt` if bytes that would move are damaged; what the store reports.
    pub fn reclaim_data(&self) -> Result<u64> {
        self.settle()?;
        let _alone = self.content_alone();
        let manifest = self.tree().manifest();
        // Segments of other parts of a job may show what is in the logs of this one.
        if manifest.state != SetState::Open || manifest.job.is_some() {
            return Ok(0);
        }
        self.data().end_idle();
        self.tree().flush()?;
        let mut sparse = self.sparse_logs()?;
        if sparse.is_empty() || self.has_snapshots()? {
            return Ok(0);
        }
        self.move_out_of(&sparse)?;
        // So that no table, not even with a record that is shadowed, refers to them.
        self.tree().compact()?;
        let live = self.live_bytes()?;
        let open = self.files().extents();
        sparse.retain(|log, _| {
            let is_open = |extent: &Extent| extent.set == self.set() && extent.log == *log;
            !live.contains_key(log) && !open.iter().any(is_open)
        });
        let store = &*self.layers().source().store;
        for log in sparse.keys() {
            store.delete(&log_name(self.set(), *log))?;
        }
        Ok(sparse.values().sum())
    }

    /// Logs of which too little is shown, and their sizes.
    fn sparse_logs(&self) -> Result<BTreeMap<u64, u64>> {
        let store = &*self.layers().source().store;
        let open = self.data().open_logs();
        let mut logs = BTreeMap::new();
        // A writer that has taken over has logs of a higher epoch, of which these tables know nothing.
        let end = (self.tree().manifest().epoch + 1) << 32;
        for object in store.list(&folder(self.set()))? {
            if let Some(Place::Data(number)) = Place::of(self.set(), &object.name)
                && !open.contains(&number)
                && number < end
            {
                logs.insert(number, object.bytes);
            }
        }
        if logs.is_empty() {
            return Ok(logs);
        }
        let live = self.live_bytes()?;
        logs.retain(|log, bytes| {
            let live_bytes = live.get(log).copied().unwrap_or(0);
            live_bytes.saturating_mul(LIVE_SHARE_MIN) < *bytes
        });
        Ok(logs)
    }

    /// How many bytes of each log of this session the tables show.
    fn live_bytes(&self) -> Result<HashMap<u64, u64>> {
        let mut live: HashMap<u64, u64> = HashMap::new();
        self.visit_segments(&mut |segment, place| {
            *live.entry(place.log).or_default() += segment.length;
            Ok(())
        })?;
        self.visit_extents(&mut |_, inode| {
            let extent = inode.extent.expect("only those with one are visited");
            *live.entry(extent.log).or_default() += extent.length;
            Ok(())
        })?;
        Ok(live)
    }

    /// Visits segments in the tables whose bytes are in logs of this session.
    fn visit_segments(
        &self,
        visit: &mut dyn FnMut(&Segment, LogPlace) -> Result<()>,
    ) -> Result<()> {
        let tables = self.tree().segment_tables();
        let mut merge = SegmentMerge::new(tables.sources(), &|_| false)?;
        while let Some(segment) = merge.read()? {
            if let Some(place) = segment.place.filter(|place| place.set == self.set()) {
                visit(&segment, place)?;
            }
        }
        Ok(())
    }

    /// Visits records in the tables whose content is an extent in a log of this session.
    pub(super) fn visit_extents(
        &self,
        visit: &mut dyn FnMut(&Key, &Inode) -> Result<()>,
    ) -> Result<()> {
        let runs = self.tree().tables().runs;
        let cursor = |run: &SortedRun| run.cursor(&INODE, &Key::FIRST, &Key::LAST);
        let mut merge = Merge::new(runs.iter().map(cursor).collect(), &Key::FIRST)?;
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

    /// Appends what is shown of `sparse` logs to others, and lets records refer to that.
    fn move_out_of(&self, sparse: &BTreeMap<u64, u64>) -> Result<()> {
        let store = &*self.layers().source().store;
        self.visit_segments(&mut |segment, place| {
            let mut at = segment.offset;
            while sparse.contains_key(&place.log) && at < segment.end() {
                let piece = segment.part(at, segment.end().min(at + PIECE_BYTES));
                let bytes = read_mapped(store, piece.offset..piece.end(), &[piece])?;
                let extent = self.data().append(&bytes)?;
                let to = extent.place();
                if piece.checksum.is_some_and(|checksum| checksum != extent.checksum) {
                    let name = log_name(place.set, place.log);
                    return Err(Error::corrupt(&name, place.offset, "bytes of another checksum"));
                }
                let checksum = Some(extent.checksum);
                let moved = Segment { place: Some(to), checksum, ..piece };
                self.tree().put_segments(&mut [moved])?;
                at = piece.end();
            }
            Ok(())
        })?;
        self.visit_extents(&mut |key, inode| match &inode.extent {
            Some(extent) if sparse.contains_key(&extent.log) => {
                self.move_extent(key, inode, extent)
            }
            _ => Ok(()),
        })
    }

    /// Moves the content of the file whose record, at `key`, is `inode`.
    pub(super) fn move_extent(&self, key: &Key, inode: &Inode, old: &Extent) -> Result<()> {
        let (mut offset, mut checksum) = (0, 0);
        let visible = Inode { size: old.length, ..inode.clone() };
        let moved = self.store_content(&mut |buffer| {
            let bytes = self.read_content(&visible, offset, buffer.len())?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            offset += bytes.len() as u64;
            checksum = crc32c::crc32c_append(checksum, &bytes);
            Ok(bytes.len())
        })?;
        if old.is_checked() && old.length == old.written && checksum != old.checksum {
            let name = log_name(old.set, old.log);
            return Err(Error::corrupt(&name, old.offset, "bytes of another checksum"));
        }
        let dir = DirId(u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]));
        let change = &mut |current: &mut Inode| {
            if current.extent.as_ref() == Some(old) {
                moved.give_place(current);
            }
            Ok(())
        };
        match self.amend_at(dir, true, key.string, change) {
            // The record has moved since the tables were written: its log stays.
            Err(error) if error.kind() == Kind::NotFound => {}
            amended => drop(amended?),
        }
        // After the record, so that a file that is opened meanwhile is either found or read anew.
        if let Some(file) = self.files().get_outdated(inode.id) {
            let mut state = file.state.write();
            if state.inode.extent.as_ref() == Some(old) {
                moved.give_place(&mut state.inode);
            }
        }
        Ok(())
    }

    /// Whether other sets show tables of this one.
    fn has_snapshots(&self) -> Result<bool> {
        let holders = marker::holders(&*self.layers().source().store, self.set())?;
        Ok(holders.iter().any(|holder| matches!(holder, Holder::Set(_))))
    }
}
