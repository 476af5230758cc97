// SPDX-License-Identifier: Apache-2.0
//! Unsynced changes: the files and directories that a mount has changed since its last sync, by
//! identity, so that a sync of each fails once if a server died with its changes.
//!
//! A program may write a file, close it, and sync it later, while the kernel forgets the file
//! between. A file stays here from its change until a sync succeeds, or, if a server died first,
//! until a sync of that file has failed. So no loss is hidden, and the sync of a file that was not
//! changed never fails because of it.
//! Concurrency: the lock is a leaf.

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

/// Files that may have unsynced changes, some 40 bytes each. The mount syncs when there are more, so
/// a server that dies adds at most this many to those whose loss no sync has reported.
const UNSYNCED_FILES_MAX: usize = 1 << 16;

/// The files that a mount has changed and not synced.
#[derive(Debug, Default)]
pub(super) struct UnsyncedChanges(Mutex<ChangedFiles>);

#[derive(Debug, Default)]
struct ChangedFiles {
    /// Number of syncs that have begun.
    syncs: u64,
    unsynced: HashMap<u128, UnsyncedFile>,
    /// Files whose changes may be lost, until a sync of each has failed.
    lost: HashSet<u128>,
}

/// A file with changes that no sync has covered.
#[derive(Clone, Copy, Debug)]
struct UnsyncedFile {
    /// Number of losses before the first of these changes.
    losses: u64,
    /// Number of syncs that had begun when the last of them was answered.
    syncs: u64,
}

impl UnsyncedChanges {
    /// Records changes of `files` that were answered, and before which there were `losses`. Returns
    /// true if the mount has to sync before it changes more files.
    pub(super) fn add(&self, files: &[u128], losses: u64) -> bool {
        let mut state = self.0.lock();
        let syncs = state.syncs;
        for file in files {
            let changed = state.unsynced.entry(*file).or_insert(UnsyncedFile { losses, syncs });
            changed.losses = changed.losses.min(losses);
            changed.syncs = syncs;
        }
        state.unsynced.len() > UNSYNCED_FILES_MAX
    }

    /// Begins a sync; returns its number for [`UnsyncedChanges::end_sync`].
    pub(super) fn begin_sync(&self) -> u64 {
        let mut state = self.0.lock();
        state.syncs += 1;
        state.syncs
    }

    /// Records that the sync `number` has succeeded, before which there were `losses`: it covers
    /// the changes that were answered before it began and that none of these followed.
    pub(super) fn end_sync(&self, number: u64, losses: u64) {
        let ChangedFiles { unsynced, lost, .. } = &mut *self.0.lock();
        unsynced.retain(|file, changed| {
            if changed.losses < losses {
                lost.insert(*file);
                changed.losses = losses;
            }
            changed.syncs >= number
        });
    }

    /// True if changes of `file` may be lost and no sync of it has said so. The caller reports it.
    pub(super) fn take_loss(&self, file: u128) -> bool {
        self.0.lock().lost.remove(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sync from begin to end, by which there were `losses`.
    fn sync(changes: &UnsyncedChanges, losses: u64) {
        let number = changes.begin_sync();
        changes.end_sync(number, losses);
    }

    #[test]
    fn a_loss_after_a_change_is_reported_once_for_its_file() {
        let changes = UnsyncedChanges::default();
        changes.add(&[1, 2], 0);
        sync(&changes, 0);
        changes.add(&[2, 3], 0);
        sync(&changes, 1);
        let reported = [1, 2, 3, 2, 3].map(|file| changes.take_loss(file));
        assert_eq!(reported, [false, true, true, false, false]);
        assert!(changes.0.lock().unsynced.is_empty());
    }

    #[test]
    fn a_sync_covers_what_was_answered_before_it_began() {
        let changes = UnsyncedChanges::default();
        changes.add(&[1, 2], 0);
        let number = changes.begin_sync();
        changes.add(&[2], 0);
        changes.end_sync(number, 0);
        sync(&changes, 1);
        assert_eq!([1, 2].map(|file| changes.take_loss(file)), [false, true]);
    }

    #[test]
    fn a_change_after_a_loss_is_another_matter() {
        let changes = UnsyncedChanges::default();
        changes.add(&[1], 0);
        let number = changes.begin_sync();
        changes.add(&[1], 1);
        changes.end_sync(number, 1);
        assert!(changes.take_loss(1));
        sync(&changes, 1);
        assert!(!changes.take_loss(1), "the second change is synced");
        changes.add(&[1], 1);
        sync(&changes, 2);
        assert!(changes.take_loss(1), "the third one is lost");
    }

    #[test]
    fn a_loss_waits_for_a_sync_of_its_file() {
        let changes = UnsyncedChanges::default();
        changes.add(&[1], 0);
        for losses in 1..4 {
            sync(&changes, losses);
            assert!(!changes.take_loss(2));
        }
        assert!(changes.take_loss(1) && !changes.take_loss(1));
    }

    #[test]
    fn many_changed_files_ask_for_a_sync() {
        let changes = UnsyncedChanges::default();
        let asks = (0..=UNSYNCED_FILES_MAX as u128).filter(|file| changes.add(&[*file], 0));
        assert_eq!(asks.collect::<Vec<_>>(), [UNSYNCED_FILES_MAX as u128]);
        sync(&changes, 0);
        assert!(!changes.add(&[1], 0));
    }
}
