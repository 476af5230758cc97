// SPDX-License-Identifier: Apache-2.0
//! Markers of a collection: the holders of each set, the stale markers, and their removal.
//!
//! Invariant: a marker is stale only if the survey shows that nothing depends on it and it is old
//! enough to tell; any dependency that a damaged part of the name table may imply counts as one.

use std::collections::BTreeMap;

use esker_base::Result;
use esker_table::manifest::{Manifest, SetId, SetState};

use super::{GarbageCollection, KnownSet, ns};
use crate::job::{JobId, joined_job};
use crate::retention::condemn;
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::read_lease::LEASE;
use crate::retention::session_marker;

impl GarbageCollection<'_> {
    /// True if the content of `set` is held.
    pub(super) fn is_held(&self, set: SetId) -> bool {
        self.markers.get(&set).is_some_and(|holders| holders.keys().any(MarkerHolder::keeps_tables))
    }

    /// True if a marker put at `put_ns` is old enough to judge whether it is stale.
    fn is_due(&self, holder: &MarkerHolder, put_ns: u64) -> bool {
        match holder {
            MarkerHolder::Reader { .. } => self.has_expired(put_ns),
            _ => self.is_old(put_ns),
        }
    }

    /// True if the lease of a reader's marker put at `put_ns` has expired.
    pub(super) fn has_expired(&self, put_ns: u64) -> bool {
        self.now_ns.saturating_sub(put_ns) >= ns(LEASE)
    }

    /// True if a marker, old enough to judge, has lost its holder.
    pub(super) fn is_stale(&self, set: SetId, holder: &MarkerHolder) -> bool {
        match holder {
            MarkerHolder::Name(name) => match self.names.get(name) {
                Some(named) => *named != set,
                None => !self.damaged_names.may_have(name),
            },
            MarkerHolder::Set(other) | MarkerHolder::Data(other) => {
                self.is_doomed(*other)
                    || self.never_began(*other)
                    || self.is_needless(*other, set, holder)
            }
            MarkerHolder::Former { .. } | MarkerHolder::Reader { .. } => true,
            MarkerHolder::Session | MarkerHolder::Reopened { .. } => {
                self.is_doomed(set)
                    || self.never_began(set)
                    || self.is_given_up(set)
                    || self.is_published(set)
            }
            MarkerHolder::Live(name) => !self.is_live(name, set),
        }
    }

    /// True if the session of `set` was given up.
    fn is_given_up(&self, set: SetId) -> bool {
        matches!(self.sets.get(&set), Some(KnownSet::Manifest(manifest)) if manifest.is_given_up)
    }

    /// True if `set` may be a seat of the live namespace `name`.
    fn is_live(&self, name: &str, set: SetId) -> bool {
        let is_seat =
            |seats: &Option<Vec<SetId>>| seats.as_ref().is_none_or(|seats| seats.contains(&set));
        self.live.get(name).is_some_and(is_seat)
    }

    /// True if `other`, by which `holder` holds `set`, is complete and does not need it: it died
    /// before it released the marker.
    fn is_needless(&self, other: SetId, set: SetId, holder: &MarkerHolder) -> bool {
        let needed = SetDependency { set, holder: holder.clone() };
        matches!(self.sets.get(&other), Some(KnownSet::Manifest(manifest))
            if dependency::is_needless(other, manifest, &needed))
    }

    /// True if `set` has no manifest, and nothing suggests that it had one: no name, no set that
    /// needs it, and only markers of its own beginning, older than the grace period.
    pub(super) fn never_began(&self, set: SetId) -> bool {
        let is_own = |(holder, put_ns): (&MarkerHolder, &u64)| {
            let is_own = match holder {
                MarkerHolder::Session
                | MarkerHolder::Reopened { .. }
                | MarkerHolder::Former { .. }
                | MarkerHolder::Reader { .. } => true,
                MarkerHolder::Live(name) => !self.is_live(name, set),
                MarkerHolder::Name(name) => {
                    !self.names.contains_key(name) && !self.damaged_names.may_have(name)
                }
                MarkerHolder::Set(other) | MarkerHolder::Data(other) => {
                    self.is_missing(*other) || self.is_doomed(*other)
                }
            };
            is_own && self.is_due(holder, *put_ns)
        };
        self.is_missing(set)
            && self.markers.get(&set).into_iter().flatten().all(is_own)
            && self.names.values().all(|named| *named != set)
    }

    fn is_missing(&self, set: SetId) -> bool {
        matches!(self.sets.get(&set), None | Some(KnownSet::Missing))
    }

    /// True if `set` is sealed and held by a name of its own or of its job, so that no session
    /// writes it.
    fn is_published(&self, set: SetId) -> bool {
        let Some(manifest) = self.sealed(set) else { return false };
        let job = manifest.job.map(|part| JobId(part.job));
        let joins = |other: SetId| {
            let joined = self.sealed(other).and_then(joined_job);
            joined.is_some() && joined == job && self.has_name(other)
        };
        self.has_name(set)
            || self.holders_at_survey(set).any(|holder| match holder {
                MarkerHolder::Set(other) => joins(*other),
                _ => false,
            })
    }

    /// True if a name holds `set`.
    fn has_name(&self, set: SetId) -> bool {
        self.holders_at_survey(set).any(|holder| match holder {
            MarkerHolder::Name(name) => self.names.get(name) == Some(&set),
            _ => false,
        })
    }

    fn holders_at_survey(&self, set: SetId) -> impl Iterator<Item = &MarkerHolder> {
        self.markers.get(&set).into_iter().flat_map(BTreeMap::keys)
    }

    /// Returns the manifest of `set` if it is sealed, or was when its reopening was stopped.
    fn sealed(&self, set: SetId) -> Option<&Manifest> {
        match self.sets.get(&set) {
            Some(KnownSet::Manifest(manifest))
                if matches!(manifest.state, SetState::Sealed | SetState::CondemnedSealed) =>
            {
                Some(manifest)
            }
            _ => None,
        }
    }

    pub(super) fn sweep_markers(&mut self) -> Result<()> {
        let mut stale = Vec::new();
        for (set, holders) in &self.markers {
            for (holder, put_ns) in holders {
                if self.is_due(holder, *put_ns) && self.is_stale(*set, holder) {
                    stale.push((*set, holder.clone()));
                }
            }
        }
        for (set, holder) in stale {
            let swept = self.sweep_marker(set, holder);
            self.put_off(swept)?;
        }
        Ok(())
    }

    fn sweep_marker(&mut self, set: SetId, holder: MarkerHolder) -> Result<()> {
        let owner = match &holder {
            MarkerHolder::Set(other) | MarkerHolder::Data(other) => {
                (!self.is_needless(*other, set, &holder)).then_some(*other)
            }
            MarkerHolder::Session
            | MarkerHolder::Reopened { .. }
            | MarkerHolder::Name(_)
            | MarkerHolder::Live(_) => self.never_began(set).then_some(set),
            MarkerHolder::Former { .. } | MarkerHolder::Reader { .. } => None,
        };
        if let Some(owner) = owner
            && !self.doom_missing(owner)?
        {
            // It has begun meanwhile, and needs the marker.
            return Ok(());
        }
        match &holder {
            MarkerHolder::Name(_) => {
                self.stale_names.entry(set).or_default().insert(holder.clone());
            }
            _ if self.options.dry_run => {}
            MarkerHolder::Reopened { .. } if !self.fence_reopening(set, &holder)? => {
                return Ok(());
            }
            _ => marker::release(self.store(), set, &holder)?,
        }
        // Only now: one whose removal is put off is swept again.
        self.markers.entry(set).or_default().remove(&holder);
        self.report.stale_markers += 1;
        Ok(())
    }

    /// Releases the markers of `set`, which no longer needs `needed`, and those on it by stale
    /// names.
    pub(super) fn release_markers_of(
        &mut self,
        set: SetId,
        needed: &[SetDependency],
    ) -> Result<()> {
        let store = self.store();
        for needed in needed {
            marker::release(store, needed.set, &needed.holder)?;
        }
        for name in self.stale_names.remove(&set).into_iter().flatten() {
            marker::release(store, set, &name)?;
        }
        Ok(())
    }

    /// Makes sure that the process of `holder` does not reopen the complete part `set` any more;
    /// false if `set` has changed since the survey.
    fn fence_reopening(&self, set: SetId, holder: &MarkerHolder) -> Result<bool> {
        match self.sealed(set) {
            Some(manifest)
                if session_marker::is_after(holder, manifest.epoch) && !manifest.is_given_up =>
            {
                condemn::fence(self.store(), set, manifest.clone())
            }
            _ => Ok(true),
        }
    }
}
