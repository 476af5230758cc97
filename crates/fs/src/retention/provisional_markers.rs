// SPDX-License-Identifier: Apache-2.0
//! Provisional markers: markers that were put for a commit that is still to happen.
//!
//! The order of steps, for all that put markers of their own for a manifest:
//!
//! 1. *Held*: [`ProvisionalMarkers::hold`] puts a marker, and then its owner checks that the held
//!    set is live (`marker.rs`). If the owner fails, dropping the value releases all markers, as
//!    well as the store permits: a leftover keeps garbage until it is abandoned or swept. A process
//!    that dies releases nothing.
//! 2. *Committed*: the owner commits a manifest that needs them, and hands the result to
//!    [`ProvisionalMarkers::committed`]. Markers whose commit did not happen are released; those
//!    whose commit is in doubt stay.
//! 3. *Confirmed*: [`ProvisionalMarkers::keep`] ends the value, and the markers stay.
//!
//! The commit of a session's first manifest may take effect although its maker fails, and another
//! process may take the session over then. The maker therefore announces that commit with
//! [`ProvisionalMarkers::may_begin`]. From then on the value releases markers only after a commit
//! has made sure that no process uses the session: the set cannot begin any more, or its first
//! writer gave it up.
//!
//! Markers that another process may put for the same reason are not provisional, since nobody can
//! tell whose they are: those of names, of former names, and those that a join puts on its parts.
//! Markers of snapshots of live namespaces are put by several processes. Collections sweep all of
//! them.

use esker_base::store::{Store, concurrent};
use esker_base::{Clock, Kind, Result};
use esker_table::manifest::{Manifest, SetId};

use crate::retention::condemn;
use crate::retention::dependency::SetDependency;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker::{self, FIRST_EPOCH};

/// Markers that have been put, and that are released when dropped, unless they are kept.
#[must_use = "markers are released when dropped"]
pub struct ProvisionalMarkers<'a> {
    store: &'a dyn Store,
    put: Vec<SetDependency>,
    /// The session that may have begun, and that others may resume then.
    begun: Option<(SetId, &'a dyn Clock)>,
}

impl<'a> ProvisionalMarkers<'a> {
    /// Returns a value without markers.
    pub fn new(store: &'a dyn Store) -> Self {
        Self { store, put: Vec::new(), begun: None }
    }

    /// Puts the markers by which `set`, a session, keeps itself and its `bases`. If that fails,
    /// releases those that were put. Cost: a write for each, concurrent on a far store.
    pub fn hold_session(store: &'a dyn Store, set: SetId, bases: &[SetId]) -> Result<Self> {
        let own = SetDependency { set, holder: MarkerHolder::Session };
        let needed = |base: &SetId| SetDependency { set: *base, holder: MarkerHolder::Set(set) };
        let put = std::iter::once(own).chain(bases.iter().map(needed)).collect();
        let markers = Self { store, put, begun: None };
        let hold = |marker: &SetDependency| marker::hold(store, marker.set, &marker.holder);
        concurrent::try_map(store, &markers.put, hold)?;
        Ok(markers)
    }

    /// Puts another marker, by which `holder` keeps `set`. Cost: one write.
    pub fn hold(&mut self, set: SetId, holder: MarkerHolder) -> Result<()> {
        // First, since a failed write may have put it.
        self.put.push(SetDependency { set, holder });
        let SetDependency { set, holder } = &self.put[self.put.len() - 1];
        marker::hold(self.store, *set, holder)
    }

    /// Announces that the session `set` may begin from now on, and that other processes may resume
    /// it then.
    pub fn may_begin(&mut self, set: SetId, clock: &'a dyn Clock) {
        self.begun = Some((set, clock));
    }

    /// Takes the result of a commit that needs the markers, and returns them if it happened.
    /// Otherwise releases them if another process committed first, and keeps them if the manifest
    /// may exist all the same.
    pub fn committed(self, result: Result<()>) -> Result<Self> {
        match result {
            Ok(()) => Ok(self),
            Err(error) => {
                if !condemn::is_race(&error) {
                    self.keep();
                }
                Err(error)
            }
        }
    }

    /// Makes sure that no process uses the set, whose maker has failed; true if it has not begun,
    /// so that it needs no markers.
    fn give_up(&self, (set, clock): (SetId, &dyn Clock)) -> Result<bool> {
        let (store, now_ns) = (self.store, clock.now_ns());
        match condemn::doom_missing(store, set, now_ns) {
            Ok(false) => {}
            // No other process begins it, and its maker's attempt has ended.
            Err(error) if error.kind() == Kind::NoSpace => {
                return match Manifest::newest_number(store, set) {
                    Err(error) if error.kind() == Kind::NotFound => Ok(true),
                    begun => begun.map(|_| false),
                };
            }
            doomed => return doomed,
        }
        let mut manifest = Manifest::load(store, set)?;
        // A process that has taken it over has a higher epoch, and keeps it.
        if manifest.epoch == FIRST_EPOCH {
            session_marker::give_up(&mut manifest);
            manifest.commit(store, set, now_ns)?;
            session_marker::release_given_up(store, set)?;
        }
        Ok(false)
    }

    /// Keeps all markers: a manifest needs them, or may do so.
    pub fn keep(mut self) {
        self.put.clear();
        self.begun = None;
    }

    /// Keeps the markers of which `is_needed` is true after all commits, and releases the others.
    pub fn keep_needed(mut self, is_needed: impl Fn(&SetDependency) -> bool) -> Result<()> {
        let mut needless = std::mem::take(&mut self.put);
        needless.retain(|marker| !is_needed(marker));
        let store = self.store;
        self.keep();
        needless.iter().try_for_each(|marker| marker::release(store, marker.set, &marker.holder))
    }
}

impl Drop for ProvisionalMarkers<'_> {
    fn drop(&mut self) {
        if self.put.is_empty() || std::thread::panicking() {
            // The cause of a panic may be in the store.
            return;
        }
        if let Some(begun) = self.begun
            && !self.give_up(begun).unwrap_or(false)
        {
            return;
        }
        for marker in &self.put {
            let _ = marker::release(self.store, marker.set, &marker.holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use esker_base::Error;
    use esker_base::store::MemoryStore;

    use super::*;

    #[test]
    fn markers_stay_unless_their_commit_did_not_happen() {
        let failed = |kind| Err(Error::new(kind, "refused"));
        for (committed, stays) in
            [(Ok(()), true), (failed(Kind::Unavailable), true), (failed(Kind::Conflict), false)]
        {
            let store = MemoryStore::new();
            let (set, holder) = (SetId(1), MarkerHolder::Set(SetId(2)));
            let mut markers = ProvisionalMarkers::new(&store);
            markers.hold(set, holder.clone()).expect("hold");
            if let Ok(markers) = markers.committed(committed) {
                markers.keep();
            }
            assert_eq!(marker::is_held(&store, set, &holder).expect("look"), stays);
        }
    }

    #[test]
    fn markers_without_a_commit_are_released() {
        let store = MemoryStore::new();
        let (session, base) = (SetId(1), SetId(2));
        let held = || marker::all(&store).expect("list").len();
        let markers = ProvisionalMarkers::hold_session(&store, session, &[base]).expect("hold");
        assert_eq!(held(), 2);
        drop(markers);
        assert_eq!(held(), 0);
        let markers = ProvisionalMarkers::hold_session(&store, session, &[base]).expect("hold");
        markers.keep_needed(|marker| marker.set == session).expect("release");
        assert_eq!(marker::holders(&store, session).expect("list"), [MarkerHolder::Session]);
        assert_eq!(held(), 1);
    }
}
