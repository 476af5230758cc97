// SPDX-License-Identifier: Apache-2.0
//! Commit: the end of each operation, outside its locks: log, back pressure, durability.
//!
//! Operations that wait for a sync together share it, and the check for another writer (group
//! commit).

use std::sync::atomic::Ordering;

use esker_base::Result;

use super::no_space::{NoSpaceReason, is_full};
use super::{Durability, LOG_BYTES, TreeShared};
use crate::memtable::SHARDS;

/// A shard's log is written once this many bytes of it are pending, so that all shards together
/// stay under [`LOG_BYTES`].
pub(super) const SHARD_LOG_BYTES: usize = LOG_BYTES / SHARDS;

impl TreeShared {
    /// Finishes an operation outside its locks: log, memory, durability.
    #[inline]
    pub(super) fn after_write(&self, seq: u64, log_full: bool, grown_bytes: usize) -> Result<()> {
        match self.options.durability {
            Durability::None => {}
            Durability::Async if !log_full => {}
            Durability::Async => match self.write_log(false) {
                // The operation is done and waits to be written like any other; the next change
                // gets the error.
                written if is_full(&written) => {}
                written => drop(written?),
            },
            Durability::Always => self.sync_through(seq)?,
        }
        if grown_bytes > 0 {
            let active = self.active_bytes.fetch_add(grown_bytes, Ordering::Relaxed) + grown_bytes;
            if active >= self.backlog.allowed_bytes() {
                match self.make_room() {
                    made if is_full(&made) => self.no_space.set(NoSpaceReason::Memory, true),
                    made => made?,
                }
            }
        }
        Ok(())
    }

    /// Returns once operation `seq` is acknowledged. Operations that wait together share one sync
    /// and one check for another writer, which may have read the log before the sync.
    fn sync_through(&self, seq: u64) -> Result<()> {
        let mut log = self.log.lock();
        if log.acknowledged_below > seq {
            return self.check_failure();
        }
        let below = self.write_log_of(&mut log, true)?;
        self.check_owned()?;
        log.acknowledged_below = below;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::Kind;
    use esker_base::store::{FaultStore, MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::{Manifest, SetId};
    use crate::tree::test_setup;
    use crate::tree::{Tree, TreeSetup};

    const SET: SetId = SetId(1);

    fn setup(store: &SharedStore) -> TreeSetup {
        test_setup::setup(store, Durability::Always)
    }

    /// Takes a number and logs it, as an operation does before it waits for its sync.
    fn log_operation(inner: &TreeShared) -> u64 {
        let shard = &mut inner.shards[0].lock();
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        shard.log.start(seq, 0);
        seq
    }

    /// Symptom: at durability `always` a put was acknowledged, and then lost to a writer that had
    /// taken over the set.
    /// Cause: a sync recorded that it covered the put before it checked for another writer, and the
    /// record stayed when that check failed.
    /// Fix: a put is acknowledged once a check after its sync has found no other writer.
    #[test]
    fn a_sync_whose_look_for_another_writer_fails_acknowledges_nothing() {
        let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let store: SharedStore = fault.clone();
        let tree = Tree::create(setup(&store), SET, Manifest::new(vec![], 0)).expect("create");
        let inner = &*tree.inner;
        let seq = log_operation(inner);
        // An append, a sync, the check.
        fault.fail_at(fault.operations() + 3, Kind::Unavailable);
        assert_eq!(tree.sync().expect_err("no answer").kind(), Kind::Unavailable);
        // No chunk may record it as synced: the set may have another writer already.
        assert_eq!(inner.log.lock().acknowledged_below, 0);
        let _second = Tree::resume(setup(&store), SET, None, &mut |_| Ok(true)).expect("resume");
        let refused = inner.sync_through(seq).expect_err("taken over");
        assert_eq!(refused.kind(), Kind::Fenced);
    }
}
