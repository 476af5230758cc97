// SPDX-License-Identifier: Apache-2.0
//! Sets without holders: each is doomed by a last manifest and then deleted, which may leave other
//! sets without holders.

use std::collections::BTreeSet;

use esker_base::store::ObjectInfo;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};

use super::{GarbageCollection, KnownSet, SLEEP_MAX, ns};
use crate::names;
use crate::retention::condemn::{self, CondemnVerdict, DeletionPhase};
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::MarkerHolder;

impl GarbageCollection<'_> {
    /// Restores sets that are condemned and held: a process that was reopening a part of a job was
    /// stopped.
    pub(super) fn restore_held(&mut self) -> Result<()> {
        let keeps = |set: SetId| {
            self.markers
                .get(&set)
                .is_some_and(|holders| holders.keys().any(MarkerHolder::keeps_tables))
        };
        let sets = self.sets.keys().copied();
        let condemned: Vec<SetId> = sets
            .filter(|set| self.phase(*set) == Some(DeletionPhase::Condemned) && keeps(*set))
            .collect();
        for set in condemned {
            if self.options.dry_run {
                continue;
            }
            match condemn::restore_held(self.store(), set) {
                Ok(manifest) => {
                    self.sets.insert(set, KnownSet::Manifest(Box::new(manifest)));
                }
                // Another collection has deleted it, or a process has it in hand.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Conflict) => {}
                Err(error) => self.put_off(Err(error))?,
            }
        }
        Ok(())
    }

    /// Deletes sets without markers, and then those that only they held.
    pub(super) fn collect_sets(&mut self) -> Result<()> {
        // A set whose deletion was decided is deleted regardless of markers that losers of the race
        // left.
        let is_decided =
            |set| matches!(self.phase(set), Some(DeletionPhase::Doomed | DeletionPhase::DataOnly));
        let sets = self.sets.keys().copied();
        let mut waiting: Vec<SetId> =
            sets.filter(|set| !self.is_held(*set) || is_decided(*set)).collect();
        let mut postponed: Option<(Vec<SetId>, Error)> = None;
        let mut freed = self.report.objects;
        loop {
            let Some(set) = waiting.pop() else {
                // Retry sets for which there was no room, if others have made some.
                match postponed.take() {
                    Some((sets, _)) if self.report.objects > freed => waiting = sets,
                    Some((_, error)) => return self.put_off(Err(error)),
                    None => return Ok(()),
                }
                freed = self.report.objects;
                continue;
            };
            let collected = match self.sets.get(&set) {
                Some(KnownSet::Manifest(_) | KnownSet::Damaged) => self.collect(set),
                Some(KnownSet::Missing) => self.delete_remains(set),
                None => continue,
            };
            let needed = match collected {
                Err(error) if error.kind() == Kind::NoSpace => {
                    postponed.get_or_insert((Vec::new(), error)).0.push(set);
                    continue;
                }
                // No manifest can follow its last.
                Err(error) if error.kind() == Kind::TooLarge => {
                    self.problem(&error);
                    continue;
                }
                needed => needed?,
            };
            for needed in needed {
                if let Some(holders) = self.markers.get_mut(&needed.set) {
                    holders.remove(&needed.holder);
                }
                if !self.is_held(needed.set) {
                    waiting.push(needed.set);
                }
            }
        }
    }

    /// Dooms one set and deletes it except for its last manifest, which follows later, or deletes
    /// all but the data logs to which others refer. Returns the sets that it no longer holds.
    fn collect(&mut self, set: SetId) -> Result<Vec<SetDependency>> {
        let known = match self.sets.get(&set) {
            Some(KnownSet::Manifest(manifest)) => Some(manifest.clone()),
            _ => None,
        };
        let is_damaged = known.is_none();
        let is_open = known.as_ref().is_some_and(|manifest| {
            matches!(manifest.state, SetState::Open | SetState::CondemnedOpen)
        });
        let is_data_needed = self.is_data_needed(set);
        let verdict = match (self.options.dry_run, known) {
            (false, _) => self.doom(set, is_damaged)?,
            (true, Some(known))
                if condemn::phase(&known) != DeletionPhase::Doomed && is_data_needed =>
            {
                let is_new = condemn::phase(&known) != DeletionPhase::DataOnly;
                CondemnVerdict::DataOnly { before: is_new.then_some(known) }
            }
            (true, Some(mut known)) => {
                if condemn::phase(&known) != DeletionPhase::Doomed {
                    // The manifest that dooms it would be newly written.
                    known.written_ns = self.now_ns;
                }
                CondemnVerdict::Doomed(known)
            }
            (true, None) if is_data_needed => CondemnVerdict::Kept,
            (true, None) => {
                CondemnVerdict::Doomed(Box::new(Manifest::new(Vec::new(), self.now_ns)))
            }
        };
        match verdict {
            CondemnVerdict::Doomed(manifest) => {
                self.delete_doomed(set, manifest, is_damaged || is_open)
            }
            CondemnVerdict::DataOnly { before } => self.keep_referenced_data(set, before),
            CondemnVerdict::Kept | CondemnVerdict::Gone => Ok(Vec::new()),
        }
    }

    /// Deletes the rest of a doomed set, like [`GarbageCollection::collect`]. With `may_hold_more`
    /// the set may have markers on other sets that its last manifest does not imply.
    fn delete_doomed(
        &mut self,
        set: SetId,
        manifest: Box<Manifest>,
        may_hold_more: bool,
    ) -> Result<Vec<SetDependency>> {
        let store = self.store();
        let folder = ObjectFolder::Manifests(set).to_string();
        let (mut manifests, others): (Vec<_>, Vec<_>) = self
            .left_objects(set)?
            .into_iter()
            .partition(|object| object.name.starts_with(&folder));
        let was_doomed = self.is_doomed(set);
        if !was_doomed || !others.is_empty() {
            self.report.sets.push(set);
            // The last set that referred to its data may have gone since.
            self.report.data_only_sets.retain(|kept| *kept != set);
        }
        for object in &others {
            self.delete(&object.name, object.bytes)?;
        }
        let mut needed = dependency::of(set, &manifest);
        if may_hold_more {
            // Only the markers show what an unreadable set needed; an open set, such as that of a
            // killed squash, may have been about to need more than its manifest says.
            for (held, holders) in &self.markers {
                let own = [MarkerHolder::Set(set), MarkerHolder::Data(set)].into_iter();
                let own = own.filter(|holder| holders.contains_key(holder));
                needed.extend(own.map(|holder| SetDependency { set: *held, holder }));
            }
            needed.sort_unstable();
            needed.dedup();
        }
        if !self.options.dry_run {
            self.release_markers_of(set, &needed)?;
            // Processes that have just listed an older manifest list again. The last one stays for
            // a writer that sleeps.
            let (last, older): (Vec<_>, Vec<_>) = manifests.into_iter().partition(|object| {
                object.name == ObjectName::Manifest(set, manifest.number).to_string()
            });
            for older in &older {
                store.delete(&older.name)?;
            }
            manifests = last;
        }
        let age_ns = self.now_ns.saturating_sub(manifest.written_ns);
        if age_ns >= ns(self.options.grace.max(SLEEP_MAX)) {
            for object in &manifests {
                self.delete(&object.name, object.bytes)?;
            }
        }
        self.sets.insert(set, KnownSet::doomed(*manifest));
        Ok(needed)
    }

    fn doom(&self, set: SetId, is_damaged: bool) -> Result<CondemnVerdict> {
        let none = BTreeSet::new();
        let (store, clock) = (self.store(), &**self.repository.clock());
        let stale = self.stale_names.get(&set).unwrap_or(&none);
        if is_damaged {
            return condemn::doom_unreadable(store, set, stale, self.now_ns);
        }
        let fence = |name: &str, condemned: u64| {
            let fence = (set, condemned, name.to_owned());
            if self.fences.borrow().contains(&fence) {
                return Ok(false);
            }
            let stands_for_set = names::fence_publications(store, clock, name, set)?;
            if !stands_for_set {
                self.fences.borrow_mut().insert(fence);
            }
            Ok(stands_for_set)
        };
        condemn::doom(store, set, stale, &fence, self.now_ns)
    }

    /// Deletes the objects that a writer left in a set that has no manifest and no markers.
    fn delete_remains(&mut self, set: SetId) -> Result<Vec<SetDependency>> {
        if self.markers.get(&set).is_some_and(|holders| !holders.is_empty()) {
            // Other sets refer to it, but without manifests it is unknown what they need.
            return Ok(Vec::new());
        }
        let objects = self.left_objects(set)?;
        let has_manifest =
            objects.iter().any(|o| o.name.starts_with(&ObjectFolder::Manifests(set).to_string()));
        if !has_manifest && objects.iter().all(|object| self.is_old(object.modified_ns)) {
            for object in &objects {
                self.delete(&object.name, object.bytes)?;
            }
        }
        Ok(Vec::new())
    }

    /// Lists the objects in the folder of `set`, in a dry run without those it would have deleted.
    pub(super) fn left_objects(&self, set: SetId) -> Result<Vec<ObjectInfo>> {
        let mut objects = self.store().list(&ObjectFolder::All(set).to_string())?;
        objects.retain(|object| !self.counted.contains(&object.name));
        Ok(objects)
    }
}
