// SPDX-License-Identifier: Apache-2.0
//! Provisional markers: the markers by which a set that is being made holds itself, as a session, and
//! the sets it builds on.
//!
//! The maker puts them, checks that what they hold is live (`marker.rs`), makes the set, and then
//! keeps them. If it fails before, dropping them releases them all, as well as the store permits: a
//! leftover keeps garbage until it is abandoned or swept. A process that dies releases nothing.

use esker_base::Result;
use esker_base::store::{Store, concurrent};
use esker_table::manifest::SetId;

use crate::marker::{self, MarkerHolder};

/// Markers that are released when dropped, unless they are kept.
pub struct ProvisionalMarkers<'a> {
    store: &'a dyn Store,
    set: SetId,
    bases: &'a [SetId],
}

impl<'a> ProvisionalMarkers<'a> {
    /// Prepares the markers of `set`, which builds on `bases`. Puts none.
    pub fn new(store: &'a dyn Store, set: SetId, bases: &'a [SetId]) -> Self {
        Self { store, set, bases }
    }

    /// Puts the markers. Cost: a write for each, concurrent on a far store.
    pub fn put(&self) -> Result<()> {
        let own = (self.set, MarkerHolder::Session);
        let bases = self.bases.iter().map(|base| (*base, MarkerHolder::Set(self.set)));
        let held: Vec<(SetId, MarkerHolder)> = std::iter::once(own).chain(bases).collect();
        let put = |(set, holder): &(SetId, MarkerHolder)| marker::hold(self.store, *set, holder);
        concurrent::try_map(self.store, &held, put).map(drop)
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
