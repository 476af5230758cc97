// SPDX-License-Identifier: Apache-2.0
//! Sweeping live sets: objects in their folders that no manifest needs.
//!
//! Tables and logs are numbered by their writer's epoch. Unlisted ones of an epoch before the
//! manifest's can never be listed again: their writer is fenced. Those of the current epoch may be
//! in flight. Tables that compaction replaced wait for the grace period, and for sets that still
//! show them. So do data logs, whose garbage only a scan of all records that may refer to them
//! finds.

use esker_base::store::ObjectInfo;
use esker_base::{Kind, Result};
use esker_extent::SegmentTables;
use esker_table::manifest::{LogNumbers, Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};
use esker_table::schema::Key;
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use super::{GarbageCollection, GcOptions, KnownSet, ns};
use crate::inode::indexed;
use crate::inode::{FileKind, INODE, NameKind, column};
use crate::retention::condemn::{self, DeletionPhase};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker;

/// The objects in a set's folder except its manifests and the tables that the newest of them lists.
pub(super) struct SetFolder {
    pub(super) manifest: Manifest,
    /// The manifest's obsolete tables, to look each table up.
    obsolete: HashSet<u64>,
    objects: Vec<(ObjectName, ObjectInfo)>,
}

/// When unneeded objects may be deleted.
#[derive(Clone, Copy)]
pub(super) struct SweepRules {
    now_ns: u64,
    grace_ns: u64,
    scan_data: bool,
}

impl SweepRules {
    pub(super) fn new(options: &GcOptions, now_ns: u64) -> Self {
        Self { now_ns, grace_ns: ns(options.grace), scan_data: options.scan_data }
    }

    /// True if an event at `then_ns` is older than the grace period.
    pub(super) fn is_old(&self, then_ns: u64) -> bool {
        self.now_ns.saturating_sub(then_ns) >= self.grace_ns
    }

    fn may_log_go(&self, manifest: &Manifest, number: u64, object: &ObjectInfo) -> bool {
        // A reopened part of a job has logs of a later epoch.
        let is_complete = manifest.state == SetState::Sealed && number >> 32 <= manifest.epoch;
        let is_done = is_complete || number < manifest.log_floor;
        is_done && self.is_old(object.modified_ns) && self.is_old(manifest.written_ns)
    }

    fn may_beat_go(manifest: &Manifest, number: u64) -> bool {
        manifest.state == SetState::Sealed || number >> 32 < manifest.epoch
    }

    /// True if an unlisted table of `folder` may be deleted, unless holders or readers need it.
    fn may_table_go(&self, folder: &SetFolder, number: u64) -> bool {
        match folder.obsolete.contains(&number) {
            true => self.is_old(folder.manifest.written_ns),
            false => number >> 32 < folder.manifest.epoch,
        }
    }

    /// True if logs and indexed directories may be deleted if no record refers to them.
    fn may_data_go(&self, manifest: &Manifest, object: &ObjectInfo) -> bool {
        self.scan_data && manifest.state == SetState::Sealed && self.is_old(object.modified_ns)
    }
}

impl SetFolder {
    pub(super) fn new(set: SetId, manifest: Manifest, objects: Vec<ObjectInfo>) -> Self {
        let needed = own_tables(set, &manifest);
        let is_needed = |name: &ObjectName| match name {
            ObjectName::Manifest(..) => true,
            ObjectName::Table(_, number) => needed.contains(number),
            _ => false,
        };
        let named = |object: ObjectInfo| Some((object.name.parse().ok()?, object));
        let objects = objects.into_iter().filter_map(named);
        let objects = objects.filter(|(name, _)| !is_needed(name)).collect();
        let obsolete = manifest.obsolete.iter().copied().collect();
        Self { manifest, obsolete, objects }
    }

    /// True if something in it may be deleted. A newer manifest does not need it either, since an
    /// object that is no longer needed never will be again.
    pub(super) fn may_shrink(&self, rules: &SweepRules) -> bool {
        let manifest = &self.manifest;
        let may_go = |(name, object): &(ObjectName, ObjectInfo)| match name {
            ObjectName::Manifest(..) => false,
            ObjectName::Log(_, number) => rules.may_log_go(manifest, *number, object),
            ObjectName::Beat(_, number) => SweepRules::may_beat_go(manifest, *number),
            ObjectName::Table(_, number) => rules.may_table_go(self, *number),
            ObjectName::Data(..) | ObjectName::Indexed(..) => rules.may_data_go(manifest, object),
        };
        self.is_left_by_compaction(rules) || self.objects.iter().any(may_go)
    }

    /// True if a sealed set has unlisted tables of its current epoch, the newest of which is
    /// old.
    fn is_left_by_compaction(&self, rules: &SweepRules) -> bool {
        let manifest = &self.manifest;
        let current = |name: &ObjectName| {
            matches!(name, ObjectName::Table(_, number) if number >> 32 == manifest.epoch
                && !self.obsolete.contains(number))
        };
        let left = self.objects.iter().filter(|(name, _)| current(name));
        let newest = left.map(|(_, object)| object.modified_ns).max();
        manifest.state == SetState::Sealed
            && newest.is_some_and(|newest_ns| rules.is_old(newest_ns))
    }
}

impl GarbageCollection<'_> {
    /// Deletes the objects that live sets do not need, in the sets that had garbage when they were
    /// surveyed.
    pub(super) fn sweep_sets(&mut self) -> Result<()> {
        let live: Vec<SetId> = self
            .sets
            .iter()
            .filter(|(set, known)| match known {
                KnownSet::Manifest(manifest) => {
                    condemn::phase(manifest) == DeletionPhase::Live && self.littered.contains(set)
                }
                _ => false,
            })
            .map(|(set, _)| *set)
            .collect();
        let unmarked: HashSet<SetId> = self.unrestored.iter().map(|(set, _)| *set).collect();
        for set in live {
            if unmarked.contains(&set) {
                // The markers of sets that show its tables may be missing.
                continue;
            }
            match self.sweep_set(set) {
                Err(error) if error.kind() == Kind::NoSpace => self.put_off(Err(error))?,
                Err(error)
                    if matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::TooLarge) =>
                {
                    if self.is_still_live(set)? {
                        self.problem(&error);
                    }
                }
                swept => swept?,
            }
        }
        Ok(())
    }

    /// True if `set` is live now. Objects of a set that another collector deletes go missing while
    /// this one reads them.
    fn is_still_live(&self, set: SetId) -> Result<bool> {
        match Manifest::load(self.store(), set) {
            Ok(manifest) => Ok(condemn::phase(&manifest) == DeletionPhase::Live),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) if error.kind() == Kind::Corrupt => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn sweep_set(&mut self, set: SetId) -> Result<()> {
        let store = self.store();
        // The manifest before the objects: newer listed objects are of its epoch or a later one.
        let manifest = Manifest::load(store, set)?;
        if condemn::phase(&manifest) != DeletionPhase::Live {
            return Ok(());
        }
        let objects = store.list(&ObjectFolder::All(set).to_string())?;
        let mut folder = SetFolder::new(set, manifest, objects);
        self.retire_epoch(set, &mut folder)?;
        self.sweep_logs(&folder)?;
        self.sweep_beats(&folder)?;
        self.sweep_tables(set, &folder)?;
        if self.options.scan_data {
            self.sweep_data(set, &folder)?;
        }
        Ok(())
    }

    /// Fences a compaction of a sealed set. Its unlisted tables of the current epoch belong to a
    /// compaction, in progress or abandoned; if none is newer than the grace period, it is fenced,
    /// and they can be deleted.
    fn retire_epoch(&mut self, set: SetId, folder: &mut SetFolder) -> Result<()> {
        if !folder.is_left_by_compaction(&self.rules()) {
            return Ok(());
        }
        let manifest = &mut folder.manifest;
        let mut next = manifest.clone();
        next.epoch += 1;
        if self.options.dry_run {
            *manifest = next;
            return Ok(());
        }
        match next.claim(self.store(), set, manifest.written_ns) {
            Ok(()) => *manifest = next,
            Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Fenced) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn sweep_logs(&mut self, folder: &SetFolder) -> Result<()> {
        let manifest = &folder.manifest;
        for (name, object) in &folder.objects {
            let ObjectName::Log(_, number) = name else { continue };
            if self.rules().may_log_go(manifest, *number, object) {
                self.delete(&object.name, object.bytes)?;
            }
        }
        Ok(())
    }

    /// Deletes leftover beats of dead writers.
    fn sweep_beats(&mut self, folder: &SetFolder) -> Result<()> {
        let manifest = &folder.manifest;
        for (name, object) in &folder.objects {
            let ObjectName::Beat(_, number) = name else { continue };
            if SweepRules::may_beat_go(manifest, *number) {
                self.delete(&object.name, object.bytes)?;
            }
        }
        Ok(())
    }

    fn sweep_tables(&mut self, set: SetId, folder: &SetFolder) -> Result<()> {
        let garbage = folder.objects.iter().filter_map(|(name, object)| match name {
            ObjectName::Table(_, number) => Some((*number, object)),
            _ => None,
        });
        let garbage: Vec<_> =
            garbage.filter(|(number, _)| self.rules().may_table_go(folder, *number)).collect();
        if garbage.is_empty() {
            return Ok(());
        }
        let Some(shown) = self.shown_by_holders(set)? else {
            return Ok(());
        };
        if self.is_being_read(set)? {
            return Ok(());
        }
        for (number, object) in garbage {
            if !shown.contains(&number) {
                self.delete(&object.name, object.bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the tables of `set` that other sets show; `None` if one of those is not written yet.
    fn shown_by_holders(&self, set: SetId) -> Result<Option<HashSet<u64>>> {
        let store = self.store();
        let mut shown = HashSet::new();
        for holder in self.holders(set)? {
            let MarkerHolder::Set(other) = holder else { continue };
            match Manifest::load(store, other) {
                Ok(manifest) => shown.extend(own_tables(set, &manifest)),
                // It is about to be written or damaged, or the marker is stale: wait.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(shown))
    }

    /// True if a reader has opened `set` or one that is built on it. A reader puts its marker
    /// before it reads manifests, so reads through a manifest older than the collector's are
    /// covered. Cost: a listing of all markers.
    fn is_being_read(&self, set: SetId) -> Result<bool> {
        let mut holders: HashMap<SetId, Vec<(MarkerHolder, u64)>> = HashMap::new();
        for marker in marker::all(self.store())? {
            holders.entry(marker.set).or_default().push((marker.holder, marker.put_ns));
        }
        let mut waiting = vec![set];
        while let Some(held) = waiting.pop() {
            for (holder, put_ns) in holders.remove(&held).into_iter().flatten() {
                match holder {
                    MarkerHolder::Reader { .. } if !self.has_expired(put_ns) => return Ok(true),
                    MarkerHolder::Set(above) => waiting.push(above),
                    _ => {}
                }
            }
        }
        Ok(false)
    }

    /// Deletes data logs and indexed directories of a sealed set to which neither its records
    /// refer nor those of sets that build on it.
    fn sweep_data(&mut self, set: SetId, folder: &SetFolder) -> Result<()> {
        let manifest = &folder.manifest;
        if manifest.state != SetState::Sealed {
            return Ok(());
        }
        // Before a part is published, other parts may refer to its logs.
        let is_part = manifest.job.is_some();
        if is_part && session_marker::is_held(self.store(), set)? {
            return Ok(());
        }
        let logs = folder.objects.iter().filter_map(|(name, object)| match name {
            ObjectName::Data(_, number) | ObjectName::Indexed(_, number, _) => {
                Some((*number, object))
            }
            _ => None,
        });
        let logs: Vec<_> =
            logs.filter(|(_, object)| self.rules().may_data_go(manifest, object)).collect();
        if logs.is_empty() || self.is_being_read(set)? {
            return Ok(());
        }
        let (mut referred, mut listed) = (HashSet::new(), LogNumbers::default());
        let mut waiting = vec![set];
        let mut seen = HashSet::new();
        while let Some(reader) = waiting.pop() {
            if !seen.insert(reader) {
                continue;
            }
            match self.collect_logs(set, reader, &mut referred) {
                // It is about to be written, or its marker is stale: wait.
                Err(error) if reader != set && error.kind() == Kind::NotFound => return Ok(()),
                collected => collected?,
            }
            for holder in self.holders(reader)? {
                match holder {
                    MarkerHolder::Set(other) => waiting.push(other),
                    // It lists the logs, so its tables need not be read.
                    MarkerHolder::Data(other) => match self.listed_logs(set, other)? {
                        Some(numbers) => listed.extend(&numbers),
                        None => return Ok(()),
                    },
                    _ => {}
                }
            }
        }
        for (number, object) in logs {
            if !referred.contains(&number) && !listed.contains(number) {
                self.delete(&object.name, object.bytes)?;
            }
        }
        Ok(())
    }

    /// Adds the data logs of `set` to which records in tables of `reader` refer.
    fn collect_logs(&self, set: SetId, reader: SetId, out: &mut HashSet<u64>) -> Result<()> {
        let manifest = Manifest::load(self.store(), reader)?;
        let tables = TableRuns::new(&manifest.tables, &INODE, self.repository.source());
        let (high, low) = ((set.0 >> 64) as u64, set.0 as u64);
        for run in &tables.runs {
            let mut merge = run.merge(&INODE, &Key::FIRST, &Key::LAST)?;
            while merge.advance()? {
                let row = merge.row();
                let ints = row.ints;
                if ints[column::ENTRY] == NameKind::Is(FileKind::Indexed).number() {
                    let earlier = indexed::earlier_parts(row.strings[column::CONTENT]);
                    out.extend(earlier.filter(|part| part.set == set).map(|part| part.number));
                }
                if ints[column::LOG_SET_HIGH] == high && ints[column::LOG_SET_LOW] == low {
                    out.insert(ints[column::LOG]);
                }
            }
        }
        let segments = SegmentTables::new(&manifest.tables, self.repository.source());
        for source in segments.sources() {
            source.visit_places(&mut |place| {
                out.extend((place.set == set).then_some(place.log));
            })?;
        }
        Ok(())
    }
}

/// Returns the numbers of the tables in the folder of `set` that `manifest` shows.
fn own_tables(set: SetId, manifest: &Manifest) -> HashSet<u64> {
    let own = manifest.tables.iter().filter(|table| table.set == set);
    own.map(|table| table.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with 50,000 tables that were replaced, one that a writer of an earlier epoch left, and
    /// one that may be on its way. A search of the list for each took thirty times as long as a look-up.
    #[test]
    fn tables_go_if_they_were_replaced_before_the_grace_or_their_writer_is_fenced() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let set = SetId(7);
        let mut manifest = Manifest::new(Vec::new(), 0);
        manifest.epoch = 3;
        manifest.obsolete = (0..50_000).map(|count| 2 << 32 | count).collect();
        let left = 2 << 32 | 50_000;
        let on_its_way = 3 << 32 | 1;
        let numbers = manifest.obsolete.iter().copied().chain([left, on_its_way]);
        let object = |number: u64| ObjectInfo {
            name: ObjectName::Table(set, number).to_string(),
            bytes: 1,
            modified_ns: 0,
        };
        let folder = SetFolder::new(set, manifest.clone(), numbers.map(object).collect());
        let goes_at = |now_ns: u64| -> Vec<u64> {
            let rules = SweepRules { now_ns, grace_ns: HOUR_NS, scan_data: false };
            let numbers = folder.objects.iter().map(|(name, _)| match name {
                ObjectName::Table(_, number) => *number,
                other => panic!("{other}"),
            });
            numbers.filter(|number| rules.may_table_go(&folder, *number)).collect()
        };
        assert_eq!(goes_at(HOUR_NS - 1), [left]);
        let all: Vec<u64> = manifest.obsolete.iter().copied().chain([left]).collect();
        assert_eq!(goes_at(HOUR_NS), all);
    }
}
