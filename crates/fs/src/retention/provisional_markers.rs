// SPDX-License-Identifier: Apache-2.0
//! Provisional markers: the markers by which a set that is being made holds itself, as a session,
//! and the sets it builds on.
//!
//! States: a value of [`ProvisionalMarkers`] is held from the start, since only
//! [`ProvisionalMarkers::hold`] makes one. The maker checks that the held sets are live
//! (`marker.rs`), commits a manifest that needs them, and then keeps them, which ends the value. If
//! it fails before, dropping the value releases all markers, as well as the store permits: a
//! leftover keeps garbage until it is abandoned or swept. A process that dies releases nothing.
//!
//! The commit of a session's first manifest may take effect although its maker fails, and another
//! process may take the session over then. The maker therefore announces that commit with
//! [`ProvisionalMarkers::may_begin`]. From then on the value releases markers only after a commit
//! has made sure that no process uses the session: the set cannot begin any more, or its first
//! writer gave it up.

use esker_base::store::{Store, concurrent};
use esker_base::{Clock, Kind, Result};
use esker_table::manifest::{Manifest, SetId};

use crate::retention::condemn;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker::{self, FIRST_EPOCH};

/// Markers that have been put, and that are released when dropped, unless they are kept.
#[must_use = "markers are released when dropped"]
pub struct ProvisionalMarkers<'a> {
    store: &'a dyn Store,
    set: SetId,
    bases: &'a [SetId],
    /// Set once the set may begin, and others may resume it.
    clock: Option<&'a dyn Clock>,
}

impl<'a> ProvisionalMarkers<'a> {
    /// Puts the markers of `set`, which builds on `bases`. If that fails, releases those that were
    /// put. Cost: a write for each, concurrent on a far store.
    pub fn hold(store: &'a dyn Store, set: SetId, bases: &'a [SetId]) -> Result<Self> {
        let markers = Self { store, set, bases, clock: None };
        let own = (set, MarkerHolder::Session);
        let bases = bases.iter().map(|base| (*base, MarkerHolder::Set(set)));
        let held: Vec<(SetId, MarkerHolder)> = std::iter::once(own).chain(bases).collect();
        let put = |(set, holder): &(SetId, MarkerHolder)| marker::hold(store, *set, holder);
        concurrent::try_map(store, &held, put)?;
        Ok(markers)
    }

    /// Announces that the set may begin from now on, and that other processes may resume it then.
    pub fn may_begin(&mut self, clock: &'a dyn Clock) {
        self.clock = Some(clock);
    }

    /// Makes sure that no process uses the set, whose maker has failed; true if it has not begun,
    /// so that it needs no markers.
    fn give_up(&self, clock: &dyn Clock) -> Result<bool> {
        let (store, set, now_ns) = (self.store, self.set, clock.now_ns());
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

    /// Keeps all markers: the set has begun.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Keeps the marker of the set itself, and releases the others: the set has come to need
    /// nothing of the sets it was made from.
    pub fn keep_own(self) -> Result<()> {
        let (store, set, bases) = (self.store, self.set, self.bases);
        self.keep();
        bases.iter().try_for_each(|base| marker::release(store, *base, &MarkerHolder::Set(set)))
    }
}

impl Drop for ProvisionalMarkers<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The cause of a panic may be in the store.
            return;
        }
        if let Some(clock) = self.clock
            && !self.give_up(clock).unwrap_or(false)
        {
            return;
        }
        let _ = marker::release(self.store, self.set, &MarkerHolder::Session);
        for base in self.bases {
            let _ = marker::release(self.store, *base, &MarkerHolder::Set(self.set));
        }
    }
}
