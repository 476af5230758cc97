// SPDX-License-Identifier: Apache-2.0
//! Markers of sessions: `session`, which is put before a set begins, and one for each time that a
//! complete part of a job is reopened.
//!
//! Invariant: a marker of a set that has begun is removed only once the newest manifest says that
//! no process can use the session again: it was given up (`Manifest::is_given_up`), or the set is
//! complete. A process that commits to an open set that was not given up therefore finds it marked,
//! and resuming a session puts no marker. A complete part can be reopened. The process that does so
//! first puts a marker under an epoch that the set does not have yet; a process that publishes the
//! part removes markers only up to the epoch that it published.

use esker_base::Result;
use esker_base::store::{Store, concurrent};
use esker_table::manifest::{Manifest, SetId};
use esker_table::set_writer::SetWriter;

use crate::retention::marker::{self, MarkerHolder};

/// Epoch of the writer that begins a set; a part that was reopened has a higher one.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// True if `set` has a marker of a session. Cost: a listing.
pub(crate) fn is_held(store: &dyn Store, set: SetId) -> Result<bool> {
    holders(store, set).map(|holders| !holders.is_empty())
}

fn holders(store: &dyn Store, set: SetId) -> Result<Vec<MarkerHolder>> {
    let mut holders = marker::holders(store, set)?;
    holders.retain(MarkerHolder::is_session);
    Ok(holders)
}

/// Removes the session's markers of a set that was published as `known`. Cost: one request, for a
/// part that was reopened a listing and two or more.
pub(crate) fn release_published(store: &dyn Store, set: SetId, known: &Manifest) -> Result<()> {
    let may_be_reopened = known.job.is_some() && known.epoch > FIRST_EPOCH;
    let mut released =
        if may_be_reopened { holders(store, set)? } else { vec![MarkerHolder::Session] };
    released.retain(|holder| !is_after(holder, known.epoch));
    release(store, set, &released)
}

/// Removes the session's markers of a set that was given up. Cost: a listing, and a request for
/// each.
pub(crate) fn release_given_up(store: &dyn Store, set: SetId) -> Result<()> {
    release(store, set, &holders(store, set)?)
}

/// Changes the newest manifest of a set to the one that gives its session up. Its commit fences the
/// writer, and every process that has read an earlier manifest.
pub(crate) fn give_up(manifest: &mut Manifest) {
    manifest.epoch += 1;
    manifest.is_given_up = true;
    manifest.writer = manifest.writer.take().map(SetWriter::released);
}

/// True if `holder` is the marker of a process that reopens a part, or has, under an epoch after
/// `epoch`.
pub(crate) fn is_after(holder: &MarkerHolder, epoch: u64) -> bool {
    matches!(holder, MarkerHolder::Reopened { epoch: own, .. } if *own > epoch)
}

fn release(store: &dyn Store, set: SetId, holders: &[MarkerHolder]) -> Result<()> {
    concurrent::try_map(store, holders, |holder| marker::release(store, set, holder)).map(drop)
}
