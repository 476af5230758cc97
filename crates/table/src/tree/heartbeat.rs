//! Heartbeat: how a writer shows others that it still works, and learns of one that took over.
//!
//! The manifest names the writer. While it lives a thread puts one empty object after the other,
//! `set/<set>/beat/<epoch>-<count>`, each in place of the one before, and then looks for a manifest of
//! a higher epoch. The first comes only after an interval, so a writer that ends before that puts
//! none. Nothing that is durable depends on beats: they may be late, or missing.
//! Source: docs/design/0006-who-writes.md.

use std::time::Duration;

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};

use super::Inner;
use crate::manifest::SetId;
use crate::set_writer::SetWriter;

/// How often a writer shows that it lives. Short enough that one that was taken over notices within
/// what a person waits for, long enough that a thousand ranks cost a store 600 requests a second.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A writer that was seen within this time counts as alive where nothing better is known.
pub const BEAT_AGE_MAX: Duration = Duration::from_secs(30);
const _: () = assert!(BEAT_AGE_MAX.as_secs() >= 4 * BEAT_INTERVAL.as_secs());

/// How a writer makes itself known to others.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Who it is.
    pub writer: SetWriter,
    /// How often it shows that it lives. Without it no thread does, as in a simulation.
    pub interval: Option<Duration>,
    /// Told once, by that thread, when another writer has taken over.
    pub on_fenced: Option<fn(&Error)>,
}

impl Heartbeat {
    /// That of `writer`, every [`BEAT_INTERVAL`].
    #[must_use]
    pub fn of(writer: SetWriter) -> Self {
        Self { writer, interval: Some(BEAT_INTERVAL), on_fenced: None }
    }
}

fn folder(set: SetId) -> String {
    format!("set/{set}/beat/")
}

fn name(set: SetId, epoch: u64, count: u64) -> String {
    format!("{}{epoch:08x}-{count:08x}", folder(set))
}

/// When the writer of `epoch` showed last that it lives, in nanoseconds since the Unix epoch, by the
/// store's clock. One listing.
///
/// # Errors
/// What the store reports.
pub fn last_beat_ns(store: &dyn Store, set: SetId, epoch: u64) -> Result<Option<u64>> {
    let prefix = format!("{}{epoch:08x}-", folder(set));
    let beats = store.list(&folder(set))?;
    let own = beats.iter().filter(|beat| beat.name.starts_with(&prefix));
    Ok(own.map(|beat| beat.modified_ns).max())
}

/// Shows at each interval that the writer lives, until it ends or is fenced.
pub(super) fn beat_loop(inner: &Inner, heartbeat: &Heartbeat, interval: Duration) {
    let (store, epoch) = (inner.store(), inner.committed.load().epoch);
    let mut last = None;
    for count in 1..=u64::from(u32::MAX) {
        {
            let mut pending = inner.pending.lock();
            if !pending.stopping {
                // What wakes it early makes one beat come early.
                inner.stopped.wait_for(&mut pending, interval);
            }
            if pending.stopping {
                break;
            }
        }
        if inner.failure.get().is_some_and(|(kind, _)| *kind != Kind::Fenced) {
            // It writes nothing any more; whoever knows that it is there may still read.
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
        let beat = name(inner.set, epoch, count);
        // A beat that is not there is missed by nobody but those who are polite.
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
