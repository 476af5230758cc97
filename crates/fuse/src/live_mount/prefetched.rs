// SPDX-License-Identifier: Apache-2.0
//! Prefetched entries: attributes of all entries of a directory, read at once after several of them
//! were looked up one after another, as `git status` and `rsync` do.
//!
//! An entry is as old as the listing that brought it, and the kernel may keep it only for the rest
//! of its time, so what other clients change shows as soon as without this. Any change by this
//! mount, and any sign that another client has moved a file, makes all of them invalid. Absent
//! names are always looked up at the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_live::client::LiveEntry;
use esker_live::wire::LiveAttributes;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Look-ups in a directory within the time to live after which all its entries are read, at first.
/// Where changes made them invalid before they were of use, it takes more look-ups the next time.
const LOOKUPS_MIN: u32 = 16;
const LOOKUPS_GROWTH: u32 = 4;
const LOOKUPS_MAX: u32 = 1 << 16;
/// Directories with more entries are not read: a listing of this many takes some 3 ms.
pub(super) const PREFETCHED_ENTRIES_MAX: usize = 8192;
/// Directories whose entries, or look-ups, are kept.
const DIRECTORIES_MAX: usize = 64;
/// Time for which a directory with too many entries is not tried again.
const LARGE_NS: u64 = 10_000_000_000;

/// Entries of directories that were read ahead.
#[derive(Debug, Default)]
pub(super) struct PrefetchedEntries {
    directories: Mutex<HashMap<u64, LookedUpDirectory>>,
    /// Number of events after which entries may be stale.
    changes: AtomicU64,
}

/// A directory in which names are looked up.
#[derive(Debug)]
struct LookedUpDirectory {
    /// Start of the time in which look-ups are counted, and their number.
    since_ns: u64,
    lookups: u32,
    /// Look-ups after which all entries are read.
    lookups_needed: u32,
    /// Time until which it counts as too large.
    large_until_ns: u64,
    entries: Option<ReadEntries>,
}

#[derive(Debug)]
struct ReadEntries {
    read_ns: u64,
    changes: u64,
    /// Look-ups that they saved.
    uses: u32,
    by_name: HashMap<Vec<u8>, LiveAttributes>,
}

/// What to do for a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupPlan {
    /// The entry, and the time for which the kernel may keep it.
    Known(LiveAttributes, Duration),
    /// Look it up.
    LookUp,
    /// Look it up, and read all entries of the directory; the number of changes before that.
    ReadAll(u64),
}

impl PrefetchedEntries {
    /// Records that entries may be stale from now on.
    pub(super) fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Plans the look-up of `name` in the directory `number` at `now_ns`.
    pub(super) fn plan(
        &self,
        number: u64,
        name: &[u8],
        (now_ns, ttl): (u64, Duration),
    ) -> LookupPlan {
        let ttl_ns = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let changes = self.changes.load(Ordering::Acquire);
        let mut directories = self.directories.lock();
        if directories.len() >= DIRECTORIES_MAX && !directories.contains_key(&number) {
            directories.clear();
        }
        let directory = directories.entry(number).or_insert(LookedUpDirectory {
            since_ns: now_ns,
            lookups: 0,
            lookups_needed: LOOKUPS_MIN,
            large_until_ns: 0,
            entries: None,
        });
        if let Some(entries) = &mut directory.entries {
            let left_ns = (entries.read_ns + ttl_ns).saturating_sub(now_ns);
            if left_ns == 0 || entries.changes != changes {
                let needed = &mut directory.lookups_needed;
                let was_of_use = entries.uses >= *needed;
                *needed = match was_of_use {
                    true => LOOKUPS_MIN,
                    false => (*needed * LOOKUPS_GROWTH).min(LOOKUPS_MAX),
                };
                // If look-ups go on as before, the next one reads all entries again.
                directory.since_ns = now_ns;
                directory.lookups = if was_of_use && left_ns == 0 { *needed } else { 0 };
                directory.entries = None;
            } else if let Some(found) = entries.by_name.get(name) {
                entries.uses += 1;
                return LookupPlan::Known(found.clone(), Duration::from_nanos(left_ns));
            } else {
                return LookupPlan::LookUp;
            }
        }
        if now_ns - directory.since_ns > ttl_ns {
            (directory.since_ns, directory.lookups) = (now_ns, 0);
        }
        directory.lookups += 1;
        if directory.lookups <= directory.lookups_needed || now_ns < directory.large_until_ns {
            return LookupPlan::LookUp;
        }
        // If that fails or takes long, not every look-up tries again.
        directory.lookups = 0;
        LookupPlan::ReadAll(changes)
    }

    /// Keeps all `entries` of the directory `number`, read from `read_ns` on, when the number of
    /// changes was `changes`; `None` if there are too many.
    pub(super) fn keep(
        &self,
        number: u64,
        (read_ns, changes): (u64, u64),
        entries: Option<Vec<LiveEntry>>,
    ) {
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&number) else { return };
        match entries {
            None => directory.large_until_ns = read_ns + LARGE_NS,
            Some(entries) => {
                let entries = entries.into_iter().map(|entry| (entry.name, entry.attributes));
                let by_name = entries.collect();
                directory.entries = Some(ReadEntries { read_ns, changes, uses: 0, by_name });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use esker_fs::inode::FileKind;

    use super::*;

    const TTL: Duration = Duration::from_secs(1);
    const MS: u64 = 1_000_000;

    fn entry(name: &[u8]) -> LiveEntry {
        let attributes = LiveAttributes {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 7,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            id: 5,
            seat: None,
            seat_file: None,
        };
        LiveEntry { name: name.to_vec(), attributes }
    }

    /// Looks up until all entries are to be read; returns the number of changes.
    fn read_all(entries: &PrefetchedEntries, now_ns: u64) -> u64 {
        for _ in 0..=LOOKUPS_MIN {
            if let LookupPlan::ReadAll(changes) = entries.plan(9, b"x", (now_ns, TTL)) {
                return changes;
            }
        }
        panic!("many look-ups read all entries");
    }

    #[test]
    fn entries_are_kept_for_the_rest_of_their_time() {
        let entries = PrefetchedEntries::default();
        let changes = read_all(&entries, 5 * MS);
        entries.keep(9, (5 * MS, changes), Some(vec![entry(b"f")]));
        let known = |now_ms: u64| entries.plan(9, b"f", (now_ms * MS, TTL));
        let left = |ms: u64| LookupPlan::Known(entry(b"f").attributes, Duration::from_millis(ms));
        assert_eq!(known(405), left(600));
        assert_eq!(entries.plan(9, b"absent", (405 * MS, TTL)), LookupPlan::LookUp);
        for _ in 0..LOOKUPS_MIN {
            assert_eq!(known(1004), left(1));
        }
        // Then they are read again, since look-ups go on.
        assert_eq!(known(1005), LookupPlan::ReadAll(0));
        assert_eq!(known(1006), LookupPlan::LookUp);
    }

    /// Symptom: a program that removed the files of a directory made the mount read all its entries
    /// for each file. Cause: entries that a change had made invalid were read again at once.
    #[test]
    fn entries_are_read_rarely_where_each_look_up_is_followed_by_a_change() {
        let entries = PrefetchedEntries::default();
        let mut reads = 0;
        for round in 0..10_000 {
            let now_ns = round * MS / 10;
            if let LookupPlan::ReadAll(changes) = entries.plan(9, b"f", (now_ns, TTL)) {
                entries.keep(9, (now_ns, changes), Some(vec![entry(b"f")]));
                reads += 1;
            }
            entries.invalidate();
        }
        assert!((1..10).contains(&reads), "{reads} reads");
    }

    #[test]
    fn changes_make_entries_invalid_also_while_they_are_read() {
        let entries = PrefetchedEntries::default();
        let changes = read_all(&entries, MS);
        entries.invalidate();
        entries.keep(9, (MS, changes), Some(vec![entry(b"f")]));
        assert!(!matches!(entries.plan(9, b"f", (2 * MS, TTL)), LookupPlan::Known(..)));
    }

    #[test]
    fn few_look_ups_and_large_directories_read_nothing_ahead() {
        let entries = PrefetchedEntries::default();
        for round in 0..100 {
            let now_ns = round * 100 * MS;
            assert_eq!(entries.plan(9, b"f", (now_ns, TTL)), LookupPlan::LookUp, "{round}");
        }
        let changes = read_all(&entries, 20_000 * MS);
        entries.keep(9, (20_000 * MS, changes), None);
        for _ in 0..1000 {
            assert_eq!(entries.plan(9, b"f", (21_000 * MS, TTL)), LookupPlan::LookUp);
        }
        read_all(&entries, 31_000 * MS);
        // With no time to live, nothing is ever kept.
        let none = (32_000 * MS, Duration::ZERO);
        entries.keep(9, (32_000 * MS, 0), Some(vec![entry(b"f")]));
        assert!(!matches!(entries.plan(9, b"f", none), LookupPlan::Known(..)));
    }
}
