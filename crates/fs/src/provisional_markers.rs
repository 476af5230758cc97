// SPDX-License-Identifier: Apache-2.0
//! Provisional markers: the markers by which a set that is being made holds itself, as a session, and
//! the sets it builds on.
//!
//! States: a value of [`ProvisionalMarkers`] is held from the start, since only
//! [`ProvisionalMarkers::hold`] makes one. The maker checks that what the markers hold is live
//! (`marker.rs`), commits a manifest that needs them, and then keeps them, which ends the value. If
//! it fails before, dropping the value releases all markers, as well as the store permits: a leftover
//! keeps garbage until it is abandoned or swept. A process that dies releases nothing.

use esker_base::Result;
use esker_base::store::{Store, concurrent};
use esker_table::manifest::SetId;

use crate::marker::{self, MarkerHolder};

/// Markers that have been put, and that are released when dropped, unless they are kept.
#[must_use = "markers are released when dropped"]
pub struct ProvisionalMarkers<'a> {
    store: &'a dyn Store,
    set: SetId,
    bases: &'a [SetId],
}

impl<'a> ProvisionalMarkers<'a> {
    /// Puts the markers of `set`, which builds on `bases`. If that fails, releases those that were
    /// put. Cost: a write for each, concurrent on a far store.
    pub fn hold(store: &'a dyn Store, set: SetId, bases: &'a [SetId]) -> Result<Self> {
        let markers = Self { store, set, bases };
        let own = (set, MarkerHolder::Session);
        let bases = bases.iter().map(|base| (*base, MarkerHolder::Set(set)));
        let held: Vec<(SetId, MarkerHolder)> = std::iter::once(own).chain(bases).collect();
        let put = |(set, holder): &(SetId, MarkerHolder)| marker::hold(store, *set, holder);
        concurrent::try_map(store, &held, put)?;
        Ok(markers)
    }

    /// Keeps all markers: the set has begun.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Keeps the marker of the set itself, and releases the others: the set has come to need nothing
    /// of the sets it was made from.
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
        let _ = marker::release(self.store, self.set, &MarkerHolder::Session);
        for base in self.bases {
            let _ = marker::release(self.store, *base, &MarkerHolder::Set(self.set));
        }
    }
}
