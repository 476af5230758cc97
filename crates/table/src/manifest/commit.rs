// SPDX-License-Identifier: Apache-2.0
//! Commit: puts the next manifest of a set, and finds out whether it rules.
//!
//! A commit is one `put_if_absent` of the next number; the highest number rules. A writer of a
//! higher epoch fences those of lower ones, which notice here. A store that does not report the
//! outcome of the put is asked again.

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};

use super::encoding::encode_manifest;
use super::{Manifest, SetId};
use crate::set_writer::SetWriter;

/// Times a writer looks for its commit if the store did not report the outcome.
const LOOKS_MAX: usize = 3;
/// Maximum number of epochs that a claim tries while it finds its own snapshot at each.
const CLAIMS_MAX: usize = 4;

impl Manifest {
    /// Commits this snapshot as the next one of `set`, after number `self.number`, and advances
    /// `self.number` to its own. Durable once it returns. One write, one listing, and one delete of
    /// an old snapshot.
    ///
    /// If the answer to the put is lost, an identical snapshot that rules counts as this one. So
    /// call it where that is true: the writer has committed this epoch before, or has drawn the
    /// identity of the set; or the caller wants only the effect, whoever commits it, and writes
    /// nothing under this epoch.
    ///
    /// # Errors
    /// `Fenced` if a writer of a higher epoch has committed; `Conflict` if another of the same
    /// epoch has. `NoSpace` if this snapshot is known to be absent, so that the caller may commit
    /// it again once there is room; `Closed` if it may be present. `TooLarge` and `Invalid`, with
    /// nothing written, as [`encode_manifest`]. Other errors of the store.
    pub fn commit(&mut self, store: &dyn Store, set: SetId, now_ns: u64) -> Result<()> {
        self.commit_as(store, set, now_ns, true)
    }

    /// Commits this snapshot as [`Manifest::commit`] does, as the first commit of a writer that
    /// takes over a set for which others may compete: at most one of them goes on.
    ///
    /// Two writers that claim one epoch within one tick of the clock may write identical snapshots.
    /// So a writer that finds a snapshot like its own, which it may have put although the answer was
    /// lost, fences it: it claims the next epoch, and advances `self.epoch` to that.
    ///
    /// # Errors
    /// As [`Manifest::commit`].
    pub fn claim(&mut self, store: &dyn Store, set: SetId, now_ns: u64) -> Result<()> {
        for left in (0..CLAIMS_MAX).rev() {
            match self.commit_as(store, set, now_ns, false) {
                Err(error) if error.kind() == Kind::Exists && left > 0 => {
                    self.number += 1;
                    self.epoch += 1;
                }
                claimed => return claimed.map_err(|error| without_exists(error, set)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Commits this snapshot as the first one of `set`, whose identity other writers may use, too:
    /// at most one of them succeeds.
    ///
    /// # Errors
    /// As [`Manifest::commit`], and `Conflict`, or the store's error, also if this writer's own put
    /// took effect and its answer was lost.
    pub(crate) fn claim_new(&mut self, store: &dyn Store, set: SetId, now_ns: u64) -> Result<()> {
        let claimed = self.commit_as(store, set, now_ns, false);
        claimed.map_err(|error| without_exists(error, set))
    }

    /// Commits this snapshot. `Exists` if it is there after its put failed, and `owns_epoch` does not
    /// say that nobody else can have put it.
    fn commit_as(
        &mut self,
        store: &dyn Store,
        set: SetId,
        now_ns: u64,
        owns_epoch: bool,
    ) -> Result<()> {
        self.written_ns = now_ns;
        self.number += 1;
        let committed = encode_manifest(self).and_then(|bytes| {
            let put = self.put(store, set, &bytes, owns_epoch);
            put.map_err(|error| self.certain(store, set, error))
        });
        if committed.is_err() {
            self.number -= 1;
        } else if let Some(old) = self.number.checked_sub(2).filter(|old| *old > 0) {
            // The previous snapshot stays for readers that have just listed it. Failing to delete
            // an older one does no harm.
            drop(store.delete(&Self::object(set, old)));
        }
        committed
    }

    /// Returns the error to report for `error` of a commit: `NoSpace` only if the snapshot is known
    /// to be absent.
    fn certain(&self, store: &dyn Store, set: SetId, error: Error) -> Error {
        let name = Self::object(set, self.number);
        let is_absent = || store.size(&name).is_err_and(|error| error.kind() == Kind::NotFound);
        if error.kind() != Kind::NoSpace || is_absent() {
            return error;
        }
        let what =
            format!("{name}: it is unknown whether this was committed; resume the change set");
        Error::new(Kind::Closed, what).with_source(error)
    }

    /// Puts the snapshot and determines whether it rules, even if the store did not report the
    /// outcome.
    fn put(&self, store: &dyn Store, set: SetId, bytes: &[u8], owns_epoch: bool) -> Result<()> {
        let put = store.put_if_absent(&Self::object(set, self.number), bytes);
        let look = || match &put {
            Ok(()) => self.check_newest(store, set),
            Err(_) => self.recognize(store, set, owns_epoch),
        };
        let mut found = look();
        for _ in 1..LOOKS_MAX {
            if found.as_ref().is_err_and(|error| error.kind() == Kind::Unavailable) {
                found = look();
            }
        }
        match (&put, &found) {
            // The snapshot is absent, or its state is unknown: the put's own error says most.
            (Err(error), Err(looked))
                if error.kind() != Kind::Exists
                    && looked.kind() != Kind::Exists
                    && !(owns_epoch && is_race(looked)) =>
            {
                put
            }
            _ => found,
        }
    }

    /// Checks that this snapshot, just put, is the newest and that the one before it is present.
    fn check_newest(&self, store: &dyn Store, set: SetId) -> Result<()> {
        // The name is also free if a writer that continued has deleted its snapshot of this number.
        // The highest number rules, so it decides here too.
        let numbers = Self::numbers(store, set)?;
        if numbers.iter().any(|number| *number > self.number) {
            return Err(self.superseded_by(&Self::load(store, set)?, set));
        }
        // The previous snapshot stays for as long as this one is the newest.
        if self.number > 1 && !numbers.contains(&(self.number - 1)) {
            drop(store.delete(&Self::object(set, self.number)));
            let what = format!("change set {set} was deleted; this writer has stopped");
            return Err(Error::new(Kind::Fenced, what));
        }
        Ok(())
    }

    /// Checks that the newest snapshot is this one, after its put failed: the put may have taken
    /// effect although its answer was lost. A claim cannot tell its own put from that of another
    /// claimant: `Exists`.
    fn recognize(&self, store: &dyn Store, set: SetId, owns_epoch: bool) -> Result<()> {
        let newest = Self::load(store, set)?;
        if newest == *self {
            let what = || format!("{} is there", Self::object(set, self.number));
            return owns_epoch.then_some(()).ok_or_else(|| Error::new(Kind::Exists, what()));
        }
        if newest.number < self.number {
            let what = format!("{} is not there", Self::object(set, self.number));
            return Err(Error::new(Kind::NotFound, what));
        }
        Err(self.superseded_by(&newest, set))
    }

    /// Checks that no other writer has taken over, even if this writer has committed newer
    /// snapshots since. One store request, a listing, while this is the newest snapshot.
    ///
    /// # Errors
    /// `Fenced`, and errors of the store.
    pub(crate) fn check_owned(&self, store: &dyn Store, set: SetId) -> Result<()> {
        if Self::newest_number(store, set)? == self.number {
            return Ok(());
        }
        let newest = Self::load(store, set)?;
        if newest.epoch > self.epoch { Err(self.superseded_by(&newest, set)) } else { Ok(()) }
    }

    fn superseded_by(&self, other: &Self, set: SetId) -> Error {
        if other.epoch > self.epoch {
            return Error::new(
                Kind::Fenced,
                format!(
                    "change set {set} was taken over by {} (epoch {} after {}); this writer has \
                     stopped, and nothing that it synced is lost",
                    other.writer.as_ref().map_or("another writer".into(), SetWriter::to_string),
                    other.epoch,
                    self.epoch
                ),
            );
        }
        changed(set)
    }
}

fn changed(set: SetId) -> Error {
    Error::new(Kind::Conflict, format!("change set {set} was changed by another writer; retry"))
}

/// Returns the error to report for a claim that found its own snapshot and did not go on.
fn without_exists(error: Error, set: SetId) -> Error {
    if error.kind() == Kind::Exists { changed(set).with_source(error) } else { error }
}

fn is_race(error: &Error) -> bool {
    matches!(error.kind(), Kind::Conflict | Kind::Fenced)
}
