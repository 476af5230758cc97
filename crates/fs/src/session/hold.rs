// SPDX-License-Identifier: Apache-2.0
//! Hold: whether an open set is still being written, as far as that can be known.
//!
//! A takeover is always safe: the higher epoch fences the old writer. This only decides whether one
//! happens without being requested. A process of this machine is looked up; for any other, a recent
//! beat or commit, by the store's clock, counts as a sign of life.
//! Source: docs/design/0006-who-writes.md.

use std::time::Duration;

use esker_base::process::{ProcessIdentity, ProcessState};
use esker_base::store::Store;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId};
use esker_table::set_writer::SetWriter;
use esker_table::tree::{BEAT_AGE_MAX, last_beat_ns};

use crate::repository::Repository;
use crate::session::SessionOptions;

/// State of a set's writer as readers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It is running, or was very recently.
    Alive,
    /// It ended in an orderly way.
    Released,
    /// It was a process of this machine that is gone, and did not release the set: it was killed,
    /// or exited without ending its session.
    Ended,
    /// It was not seen for [`BEAT_AGE_MAX`], and nothing more is known.
    Silent,
}

/// The current or last writer of an open set.
#[derive(Clone, Debug)]
pub struct WriterHold {
    /// The writer.
    pub writer: SetWriter,
    /// Its last write or beat, in nanoseconds since the Unix epoch.
    pub seen_ns: u64,
    /// State of the writer.
    pub state: HolderState,
}

impl Repository {
    /// Returns the writer of the set of `manifest`; `None` if no writer identified itself. Cost: a
    /// listing.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn hold(&self, set: SetId, manifest: &Manifest) -> Result<Option<WriterHold>> {
        self.hold_seen_by(set, manifest, &ProcessIdentity::current())
    }

    fn hold_seen_by(
        &self,
        set: SetId,
        manifest: &Manifest,
        observer: &ProcessIdentity,
    ) -> Result<Option<WriterHold>> {
        let Some(writer) = manifest.writer.clone() else { return Ok(None) };
        let seen_ns = last_seen_ns(&**self.store(), set, manifest)?;
        let age_ns = self.clock().now_ns().saturating_sub(seen_ns);
        let is_young = u128::from(age_ns) < BEAT_AGE_MAX.as_nanos();
        let state = match writer.process.state_seen_by(observer) {
            // A command that completed a set of its own still has to name it.
            _ if !writer.is_writing && !writer.is_private => HolderState::Released,
            ProcessState::Lives => HolderState::Alive,
            ProcessState::Unknown if is_young => HolderState::Alive,
            ProcessState::Ended => HolderState::Ended,
            ProcessState::Unknown => HolderState::Silent,
        };
        Ok(Some(WriterHold { writer, seen_ns, state }))
    }

    /// Fails if another process still writes the set of `manifest`, unless `options` allow a
    /// takeover. Cost: no store request if its last writer ended in an orderly way, otherwise a
    /// listing.
    ///
    /// # Errors
    /// `Conflict`, which names the writer; errors of the store.
    pub fn check_not_held(
        &self,
        set: SetId,
        manifest: &Manifest,
        options: &SessionOptions,
    ) -> Result<()> {
        let Some(writer) = manifest.writer.as_ref().filter(|writer| writer.is_writing) else {
            return Ok(());
        };
        let observer = match &options.heartbeat {
            Some(heartbeat) => heartbeat.writer.process.clone(),
            None => ProcessIdentity::current(),
        };
        // A process knows about its own sessions.
        if options.take_over || writer.process == observer {
            return Ok(());
        }
        match self.hold_seen_by(set, manifest, &observer)? {
            Some(hold) if hold.state == HolderState::Alive => {
                Err(held(set, &hold, self.clock().now_ns()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns when the writer of `manifest` was last seen.
fn last_seen_ns(store: &dyn Store, set: SetId, manifest: &Manifest) -> Result<u64> {
    let beat_ns = last_beat_ns(store, set, manifest.epoch)?;
    Ok(manifest.written_ns.max(beat_ns.unwrap_or(0)))
}

fn held(set: SetId, hold: &WriterHold, now_ns: u64) -> Error {
    let age = |then_ns: u64| age_text(Duration::from_nanos(now_ns.saturating_sub(then_ns)));
    let (begun, seen) = (age(hold.writer.began_ns), age(hold.seen_ns));
    let who = &hold.writer;
    let context = format!(
        "@{set} is being written by {who}, begun {begun} ago, last seen {seen} ago: wait for \
         it to end, or take the session over with --take-over"
    );
    Error::new(Kind::Conflict, context)
}

/// Formats a duration for users.
fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_that_fits() {
        let of = |seconds| age_text(Duration::from_secs(seconds));
        assert_eq!([of(0), of(119), of(120)], ["0 s", "119 s", "2 min"]);
        assert_eq!([of(7_199), of(7_200), of(259_200)], ["119 min", "2 h", "3 days"]);
    }
}
