// SPDX-License-Identifier: Apache-2.0
//! Listing: returns a directory's entries in the pieces that the kernel asks for, with cookies that
//! stay valid indefinitely.
//!
//! A cookie identifies the position after an entry: the high 52 bits of the hash of its name, and
//! the rank of the entry among names with equal bits (10 bits; almost always the first). Entries
//! come in hash order, so a cookie stays valid while other entries come and go, and across
//! `telldir` and `seekdir`. A handle also remembers the name at its last cookie and continues
//! exactly there.
//!
//! A handle reads a batch of entries at once and, while the kernel processes them, the next batch.
//! Attributes read ahead are used only if nothing in the mount has changed since. Otherwise each
//! entry is looked up again and missing ones are left out, so the kernel never gets a file that it
//! has just removed.

use std::mem;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::Kind;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::list::DirCursor;
use fuser::{Errno, FileAttr};
use parking_lot::Mutex;

use crate::attributes::ListedAttributes;
use crate::indexed::KeyList;
use crate::mount_state::MountState;
use crate::node_table::ROOT;
use crate::nodes::KernelNode;

/// Entries of the first batch; few, so that a small directory is cheap.
const BATCH_FIRST: usize = 512;
/// Entries of later batches. Each batch begins by sorting the directory's entries in a memtable
/// shard, and the previous batch may have used only a part of that order: with few large batches
/// little is sorted twice.
const BATCH_NEXT: usize = 64 << 10;

/// Cookies of the two entries that every directory has; those of others follow.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Bits of a cookie that distinguish names with equal hash bits.
const TIE_BITS: u32 = 10;
/// Bits of the hash that a cookie omits; cookies must be positive as `off_t`.
const DROPPED_BITS: u32 = 64 - 52;
const _: () = assert!(52 + TIE_BITS < 63);

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenListing {
    node: Arc<KernelNode>,
    /// For an indexed directory: its keys.
    keys: Option<KeyList>,
    state: Mutex<ListingState>,
    ahead: Mutex<BatchAhead>,
}

#[derive(Debug, Default)]
struct ListingState {
    batch: EntryBatch,
    /// Index of the next entry of the batch.
    next: usize,
    /// The last cookie given out; 0 if there is no batch.
    cookie: u64,
    /// True if this batch follows another.
    goes_on: bool,
}

/// Entries read at once.
#[derive(Debug, Default)]
struct EntryBatch {
    entries: Vec<ListedEntry>,
    names: Vec<u8>,
    /// True if nothing follows.
    is_end: bool,
    /// The mount's count of changes before these were read.
    changes: u64,
}

/// A batch that was read ahead.
#[derive(Debug, Default)]
struct BatchAhead {
    batch: EntryBatch,
    /// The last name of the batch before it; `None` if nothing was read ahead.
    after: Option<Vec<u8>>,
}

/// Start of a batch.
enum BatchStart<'a> {
    Beginning,
    /// After the entry with this name and cookie.
    After(&'a [u8], u64),
    /// After the entry with this cookie.
    Cookie(u64),
}

/// Outcome of passing an entry to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryOutcome {
    Given,
    /// The entry no longer exists.
    Gone,
    NoRoom,
}

#[derive(Debug)]
struct ListedEntry {
    cookie: u64,
    name: Range<usize>,
    attributes: ListedAttributes,
}

/// Receives entries for a reply to the kernel.
pub(crate) trait EntrySink {
    /// True if the kernel wants attributes, and counts a look-up of each entry.
    const WITH_ATTRIBUTES: bool;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool;
}

/// The attributes of an entry in a listing.
pub(crate) enum ShownEntry {
    /// Number and kind only.
    Kind(u64, FileKind),
    /// Everything.
    All(FileAttr),
}

fn cookie_of(hash: u64, tie: u64) -> u64 {
    let tie = tie.min((1 << TIE_BITS) - 1);
    DOT_DOT + 1 + ((hash >> DROPPED_BITS) << TIE_BITS | tie)
}

/// The hash at which to continue after `cookie`, and the number of entries with its leading bits to
/// skip.
fn resume(cookie: u64) -> (u64, u64) {
    let place = cookie - DOT_DOT - 1;
    ((place >> TIE_BITS) << DROPPED_BITS, (place & ((1 << TIE_BITS) - 1)) + 1)
}

impl OpenListing {
    pub(crate) fn new(node: Arc<KernelNode>, keys: Option<KeyList>) -> Self {
        Self { node, keys, state: Mutex::default(), ahead: Mutex::default() }
    }

    /// True if a batch seems worth reading ahead; does not wait for a lock.
    pub(crate) fn wants_more(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.wants_more())
    }
}

impl ListingState {
    /// True if the kernel seems to want more than the entries of this batch, and there are more.
    fn wants_more(&self) -> bool {
        (self.goes_on || self.next >= self.batch.entries.len() / 2)
            && self.batch.last_of_more().is_some()
    }

    /// True if the next entry is the one after `cookie`. Moves back within the batch if necessary:
    /// a kernel asks again for entries that did not fit the program's buffer.
    fn is_at(&mut self, cookie: u64) -> bool {
        if cookie == self.cookie {
            return true;
        }
        // The last tie also stands for all later ones.
        let is_one = resume(cookie).1 < 1 << TIE_BITS;
        let passed =
            self.batch.entries[..self.next].binary_search_by_key(&cookie, |one| one.cookie);
        let Some(at) = passed.ok().filter(|_| is_one && self.cookie > 0) else { return false };
        (self.next, self.cookie) = (at + 1, cookie);
        true
    }
}

impl EntryBatch {
    fn name(&self, entry: &ListedEntry) -> &[u8] {
        &self.names[entry.name.clone()]
    }

    /// Name and cookie of the last entry, if the listing continues after it.
    fn last_of_more(&self) -> Option<(&[u8], u64)> {
        let last = self.entries.last().filter(|_| !self.is_end)?;
        Some((self.name(last), last.cookie))
    }
}

impl MountState {
    /// Passes entries after `cookie` to `sink` until it is full or the directory ends.
    pub(crate) fn list<S: EntrySink>(
        &self,
        handle: &OpenListing,
        cookie: u64,
        sink: &mut S,
    ) -> Result<(), Errno> {
        if let Some(keys) = &handle.keys {
            return self.list_keys(&handle.node, keys, cookie, sink);
        }
        let dir = match self.dir(&handle.node) {
            // An open directory that was removed is empty, without even the dots.
            Err(Errno::ENOENT) => return Ok(()),
            dir => dir?,
        };
        let state = &mut *handle.state.lock();
        if cookie < DOT_DOT && !self.list_dots(&handle.node, &dir, cookie, sink) {
            return Ok(());
        }
        if cookie <= DOT_DOT || !state.is_at(cookie) {
            // From here on the listing shows the directory's current state.
            handle.ahead.lock().after = None;
            let start = match cookie {
                ..=DOT_DOT => BatchStart::Beginning,
                _ => BatchStart::Cookie(cookie),
            };
            // 0 until the whole batch is read, so that a failed read is repeated.
            state.cookie = 0;
            self.fill(&dir, start, BATCH_FIRST, &mut state.batch)?;
            (state.next, state.cookie, state.goes_on) = (0, cookie.max(DOT_DOT), false);
        }
        let mut has_given = false;
        loop {
            while state.next < state.batch.entries.len() {
                match self.pass(&dir, state, sink)? {
                    EntryOutcome::NoRoom => return Ok(()),
                    passed => has_given |= passed == EntryOutcome::Given,
                }
            }
            let Some((name, cookie)) = state.batch.last_of_more() else { return Ok(()) };
            // An answer stays within one batch, so that the kernel can go back in it.
            if has_given {
                return Ok(());
            }
            let ahead = &mut *handle.ahead.lock();
            if ahead.after.take().as_deref() != Some(name) {
                self.fill(&dir, BatchStart::After(name, cookie), BATCH_NEXT, &mut ahead.batch)?;
            }
            mem::swap(&mut state.batch, &mut ahead.batch);
            (state.next, state.goes_on) = (0, true);
        }
    }

    /// Reads the next batch while the kernel processes the current one, if it seems to want more
    /// than a few entries. A failed read is repeated when the batch is needed.
    pub(crate) fn read_ahead(&self, handle: &OpenListing) {
        let Ok(dir) = self.dir(&handle.node) else { return };
        // Otherwise another thread reads ahead, or needs the batch at once.
        let Some(mut ahead) = handle.ahead.try_lock() else { return };
        if ahead.after.is_some() {
            return;
        }
        let Some(state) = handle.state.try_lock() else { return };
        if !state.wants_more() {
            return;
        }
        let Some((name, cookie)) = state.batch.last_of_more() else { return };
        let name = name.to_vec();
        drop(state);
        if self.fill(&dir, BatchStart::After(&name, cookie), BATCH_NEXT, &mut ahead.batch).is_ok() {
            ahead.after = Some(name);
        }
    }

    /// Passes on those of `.` and `..` that come after `cookie`; returns false if there is no room.
    fn list_dots<S: EntrySink>(
        &self,
        node: &KernelNode,
        dir: &Dir,
        cookie: u64,
        sink: &mut S,
    ) -> bool {
        let parent = dir
            .location()
            .map_or(ROOT, |(parent, _)| self.nodes.number(parent.id().0, FileKind::Directory));
        let dots = [(DOT, &b"."[..], node.number), (DOT_DOT, b"..", parent)];
        dots.iter().filter(|dot| dot.0 > cookie).all(|(cookie, name, number)| {
            sink.put(*cookie, name, ShownEntry::Kind(*number, FileKind::Directory))
        })
    }

    /// Passes on the next entry.
    fn pass<S: EntrySink>(
        &self,
        dir: &Dir,
        state: &mut ListingState,
        sink: &mut S,
    ) -> Result<EntryOutcome, Errno> {
        let entry = &state.batch.entries[state.next];
        let name = state.batch.name(entry);
        let mut passed = EntryOutcome::Given;
        if !S::WITH_ATTRIBUTES {
            let number = self.nodes.number(entry.attributes.id, entry.attributes.kind);
            if !sink.put(entry.cookie, name, ShownEntry::Kind(number, entry.attributes.kind)) {
                return Ok(EntryOutcome::NoRoom);
            }
        } else if let Some(current) = self.current(dir, name, entry, state.batch.changes)? {
            let (attributes, node) = current;
            let shown = self.shown_as(&node, attributes);
            let shown = shown.inspect_err(|_| self.forget(node.number, 1))?;
            if !sink.put(entry.cookie, name, ShownEntry::All(shown)) {
                self.forget(node.number, 1);
                return Ok(EntryOutcome::NoRoom);
            }
        } else {
            passed = EntryOutcome::Gone;
        }
        state.cookie = entry.cookie;
        state.next += 1;
        Ok(passed)
    }

    /// The current attributes and node of an entry; `None` if it no longer exists.
    fn current(
        &self,
        dir: &Dir,
        name: &[u8],
        entry: &ListedEntry,
        changes: u64,
    ) -> Result<Option<(ListedAttributes, Arc<KernelNode>)>, Errno> {
        let attributes = entry.attributes;
        let is_plain = attributes.kind != FileKind::Directory && attributes.nlink <= 1;
        if is_plain && changes == self.changes.load(Ordering::Acquire) {
            let node = self.nodes.intern_plain(attributes.id, attributes.kind, dir, name);
            self.check_location(&node, (dir, name));
            return Ok(Some((attributes, node)));
        }
        let inode: Inode = match self.view.namespace().lookup(dir, name, false) {
            Ok(inode) => inode,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(self.errno(&error)),
        };
        let node = self.intern_entry(dir, name, &inode)?;
        let attributes = ListedAttributes::of(self.view.namespace(), &inode);
        Ok(Some((attributes.map_err(|error| self.errno(&error))?, node)))
    }

    /// Reads a batch of at most `size` entries.
    fn fill(
        &self,
        dir: &Dir,
        start: BatchStart<'_>,
        size: usize,
        batch: &mut EntryBatch,
    ) -> Result<(), Errno> {
        let bits_and_ties = |cookie: u64| {
            let (hash, ties) = resume(cookie);
            (hash >> DROPPED_BITS, ties)
        };
        // The leading bits of the last hash and the number of entries with them so far; and, if
        // only a cookie is known, the entries to skip.
        let (cursor, mut tie, passed_over) = match start {
            BatchStart::Beginning => (DirCursor::default(), None, None),
            BatchStart::After(name, cookie) => {
                (DirCursor::after(name), Some(bits_and_ties(cookie)), None)
            }
            BatchStart::Cookie(cookie) => {
                (DirCursor::at_hash(resume(cookie).0), None, Some(bits_and_ties(cookie)))
            }
        };
        // Before anything is read, so that later changes are noticed.
        batch.changes = self.changes.load(Ordering::Acquire);
        batch.entries.clear();
        batch.names.clear();
        batch.is_end = true;
        let listed = self.view.namespace().list(dir, &cursor, &mut |entry| {
            let bits = entry.hash() >> DROPPED_BITS;
            let ties = match tie {
                Some((same, ties)) if same == bits => ties,
                _ => 0,
            };
            tie = Some((bits, ties + 1));
            if passed_over.is_some_and(|(first, count)| first == bits && ties < count) {
                return Ok(ControlFlow::Continue(()));
            }
            let start = batch.names.len();
            batch.names.extend_from_slice(entry.name());
            batch.entries.push(ListedEntry {
                cookie: cookie_of(entry.hash(), ties),
                name: start..batch.names.len(),
                attributes: ListedAttributes::of(self.view.namespace(), &entry.inode()?)?,
            });
            if batch.entries.len() < size {
                return Ok(ControlFlow::Continue(()));
            }
            batch.is_end = false;
            Ok(ControlFlow::Break(()))
        });
        match listed {
            // The directory was removed a moment ago.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            listed => listed.map_err(|error| self.errno(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_goes_back_to_what_it_was_given_of_a_batch() {
        use esker_fs::inode::NameKind;
        let attributes =
            ListedAttributes::from(&Inode::new(NameKind::Is(FileKind::File), 0o644, 0));
        let cookies = [(5, 0), (7, 1_023), (7, 1_500), (9, 0), (11, 0)];
        let cookies = cookies.map(|(hash, tie)| cookie_of(hash << 12, tie));
        let entries = cookies.map(|cookie| ListedEntry { cookie, name: 0..0, attributes }).into();
        let batch = EntryBatch { entries, ..EntryBatch::default() };
        let mut state = ListingState { batch, next: 4, cookie: cookies[3], goes_on: true };
        assert!(state.is_at(cookies[3]) && state.next == 4);
        assert!(!state.is_at(cookies[4]), "it was not given that yet");
        assert!(!state.is_at(cookies[1]), "which of two it was is not known");
        assert!(state.is_at(cookies[0]));
        assert_eq!((state.next, state.cookie), (1, cookies[0]));
        assert!(!state.is_at(cookies[3]) && !ListingState::default().is_at(cookies[0]));
    }

    #[test]
    fn cookies_are_positive_and_ordered() {
        let hashes = [0, 1, 1 << 12, u64::MAX >> 1, u64::MAX - (1 << 13), u64::MAX];
        let cookies: Vec<u64> = hashes.iter().map(|hash| cookie_of(*hash, 0)).collect();
        assert!(cookies.is_sorted() && cookies[0] > DOT_DOT);
        assert!(i64::try_from(cookie_of(u64::MAX, u64::MAX)).is_ok());
        for (hash, tie) in [(0, 0), (77 << 12, 3), (u64::MAX, 1_023), (5 << 40, 5_000)] {
            let (from, passed_over) = resume(cookie_of(hash, tie));
            assert_eq!(from, hash >> 12 << 12);
            assert_eq!(passed_over, tie.min(1_023) + 1);
        }
    }
}
