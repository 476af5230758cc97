// SPDX-License-Identifier: Apache-2.0
//! Heartbeat: shows others that a writer still works, and detects one that took over.
//!
//! The manifest names the writer. While it lives, a thread puts empty objects,
//! `set/<set>/beat/<epoch>-<count>`, each replacing the one before, and then looks for a manifest
//! of a higher epoch. The first beat comes only after an interval, so a writer that ends earlier
//! puts none. Nothing durable depends on beats: they may be late or missing.
//! Source: docs/design/0006-who-writes.md.

use std::time::Duration;

use esker_base::store::{ObjectInfo, Store};
use esker_base::{Error, Kind, Result};

use super::TreeShared;
use crate::manifest::SetId;
use crate::object_name::{ObjectFolder, ObjectName};
use crate::set_writer::SetWriter;

/// Interval between beats. Short enough that a writer that was taken over notices within the time
/// that a person waits, long enough that a thousand ranks cost a store only 600 requests a second.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A writer whose last beat is no older than this counts as alive if nothing better is known.
pub const BEAT_AGE_MAX: Duration = Duration::from_secs(30);
const _: () = assert!(BEAT_AGE_MAX.as_secs() >= 4 * BEAT_INTERVAL.as_secs());

/// The signs of life that a writer gives to others.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The writer.
    pub writer: SetWriter,
    /// Interval between beats. `None` starts no thread, as in a simulation.
    pub interval: Option<Duration>,
    /// Called once, by that thread, when another writer has taken over.
    pub on_fenced: Option<fn(&Error)>,
}

impl Heartbeat {
    /// Makes the heartbeat of this process, run by `user`, every [`BEAT_INTERVAL`].
    #[must_use]
    pub fn of_process(user: impl Into<String>) -> Self {
        let writer = SetWriter::of_process(user);
        Self { writer, interval: Some(BEAT_INTERVAL), on_fenced: None }
    }
}

/// Returns the time of the last beat of the writer of `epoch`, in nanoseconds since the Unix epoch,
/// by the store's clock. One listing.
///
/// # Errors
/// Errors of the store.
pub fn last_beat_ns(store: &dyn Store, set: SetId, epoch: u64) -> Result<Option<u64>> {
    let beats = store.list(&ObjectFolder::Beats(set).to_string())?;
    let is_own = |beat: &&ObjectInfo| match beat.name.parse() {
        Ok(ObjectName::Beat(_, number)) => number >> 32 == epoch,
        _ => false,
    };
    let own = beats.iter().filter(is_own);
    Ok(own.map(|beat| beat.modified_ns).max())
}

/// Puts a beat at each interval until the writer ends or is fenced.
pub(super) fn beat_loop(inner: &TreeShared, heartbeat: &Heartbeat, interval: Duration) {
    let (store, epoch) = (inner.store(), inner.committed.load().epoch);
    let mut last = None;
    for count in 1..=u64::from(u32::MAX) {
        {
            let mut pending = inner.pending.lock();
            if !pending.stopping {
                // A spurious wake-up only makes one beat early.
                inner.stopped.wait_for(&mut pending, interval);
            }
            if pending.stopping {
                break;
            }
        }
        if inner.failure.get().is_some_and(|(kind, _)| *kind != Kind::Fenced) {
            // The tree writes nothing any more, so beats stop; its readers may continue.
            continue;
        }
        if let Err(fenced) = inner.check_owned()
            && fenced.kind() == Kind::Fenced
        {
            if let Some(on_fenced) = heartbeat.on_fenced {
                on_fenced(&fenced);
            }
            break;
        }
        let beat = ObjectName::Beat(inner.set, epoch << 32 | count).to_string();
        // A missing beat harms nothing: only writers that prefer not to fence look for it.
        if store.put_if_absent(&beat, b"").is_ok()
            && let Some(before) = last.replace(beat)
        {
            drop(store.delete(&before));
        }
    }
    if let Some(last) = last {
        drop(store.delete(&last));
    }
}
