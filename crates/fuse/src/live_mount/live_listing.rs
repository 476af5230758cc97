// SPDX-License-Identifier: Apache-2.0
//! Live listing: returns the entries of a directory of a live namespace in the pieces that the
//! kernel asks for.
//!
//! A handle reads a page of entries at a time, in the order of the hashes of their names, and
//! remembers after which name each page begins. A cookie is the place of an entry: the number of
//! its page, and its index there. It stays valid for as long as the handle is open; a handle that
//! goes back to an earlier page reads it again from the server, with the changes of others since.

use std::sync::Arc;

use esker_base::Kind;
use esker_fs::inode::FileKind;
use esker_live::client::{LiveEntry, Request, take_entries};
use esker_live::wire::LiveAttributes;
use fuser::Errno;
use parking_lot::Mutex;

use super::live_node::LiveNode;
use super::live_state::LiveState;
use crate::listing::{EntrySink, ShownEntry};

/// Entries of a page: some 400 KB on the wire.
const PAGE_ENTRIES: usize = 4096;
/// Cookies of the two entries that every directory has; those of others follow.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// An open directory.
#[derive(Debug)]
pub(super) struct LiveListing {
    node: Arc<LiveNode>,
    state: Mutex<PagedListing>,
}

#[derive(Debug, Default)]
struct PagedListing {
    /// The place of each page after the first: the last name of the page before, in the same part
    /// of the directory, or nothing at the beginning of a part.
    starts: Vec<(usize, Box<[u8]>)>,
    page: Option<ListedPage>,
}

#[derive(Debug)]
struct ListedPage {
    number: usize,
    entries: Vec<LiveEntry>,
    /// True if no page follows.
    is_end: bool,
}

impl LiveListing {
    pub(super) fn new(node: Arc<LiveNode>) -> Self {
        Self { node, state: Mutex::default() }
    }
}

fn cookie_of(page: usize, index: usize) -> u64 {
    DOT_DOT + 1 + (page * PAGE_ENTRIES + index) as u64
}

impl LiveState {
    /// Passes entries after `cookie` to `sink` until it is full or the directory ends.
    pub(super) fn list<S: EntrySink>(
        &self,
        listing: &LiveListing,
        cookie: u64,
        sink: &mut S,
    ) -> Result<(), Errno> {
        let node = &listing.node;
        if node.kind != FileKind::Directory {
            // Indexed directories are read in snapshots.
            return Err(Errno::EOPNOTSUPP);
        }
        let state = &mut *listing.state.lock();
        if cookie < DOT_DOT {
            // From here on the listing shows the directory's current state.
            *state = PagedListing::default();
            let dots = [(DOT, &b"."[..], node.number), (DOT_DOT, b"..", node.parent_number())];
            for (at, name, number) in dots.into_iter().filter(|(at, ..)| *at > cookie) {
                if !sink.put(at, name, ShownEntry::Kind(number, FileKind::Directory)) {
                    return Ok(());
                }
            }
        }
        let next = usize::try_from(cookie.saturating_sub(DOT_DOT)).unwrap_or(usize::MAX);
        let (mut number, mut index) = (next / PAGE_ENTRIES, next % PAGE_ENTRIES);
        loop {
            // A cookie that this handle did not give out is one at the end.
            let Some(page) = self.page(node, state, number)? else { return Ok(()) };
            while let Some(entry) = page.entries.get(index) {
                if !self.pass(node, cookie_of(number, index), entry, sink)? {
                    return Ok(());
                }
                index += 1;
            }
            if page.is_end {
                return Ok(());
            }
            (number, index) = (number + 1, 0);
        }
    }

    fn pass<S: EntrySink>(
        &self,
        parent: &Arc<LiveNode>,
        cookie: u64,
        entry: &LiveEntry,
        sink: &mut S,
    ) -> Result<bool, Errno> {
        let found = &entry.attributes;
        if !S::WITH_ATTRIBUTES {
            let number = self.nodes.number(found.id, found.kind);
            return Ok(sink.put(cookie, &entry.name, ShownEntry::Kind(number, found.kind)));
        }
        // Nobody has permissions for a directory or file whose attributes are unknown.
        let unknown = || LiveAttributes { mode: 0, ..found.clone() };
        let at_own_seat = match self.at_own_seat(&parent.dir(), &entry.name, found.clone()) {
            // A file that was removed since the page was read.
            Err(errno) if i32::from(errno) == i32::from(Errno::ENOENT) => None,
            found => found?,
        };
        let found = &at_own_seat.unwrap_or_else(unknown);
        let node = self.intern(parent, &entry.name, found);
        let has_room = sink.put(cookie, &entry.name, ShownEntry::All(self.shown(&node, found)));
        if !has_room {
            self.forget(node.number, 1);
        }
        Ok(has_room)
    }

    /// The page `number` of the listing, read if it is not the current one; `None` beyond the end.
    fn page<'a>(
        &self,
        node: &LiveNode,
        state: &'a mut PagedListing,
        number: usize,
    ) -> Result<Option<&'a ListedPage>, Errno> {
        if number > state.starts.len() {
            return Ok(None);
        }
        if state.page.as_ref().is_none_or(|page| page.number != number) {
            let (part, after) = match number {
                0 => (0, &b""[..]),
                _ => (state.starts[number - 1].0, &*state.starts[number - 1].1),
            };
            let dir = node.dir();
            let mut parts = dir.parts().skip(part);
            let (asked, has_others) = (parts.next().unwrap_or(dir.clone()), parts.next().is_some());
            let answer = self.call(Request::list(&asked, after, PAGE_ENTRIES))?;
            let (is_end, entries) = match answer.only(take_entries) {
                // An open directory that was removed is empty.
                Err(error) if error.kind() == Kind::NotFound => (true, Vec::new()),
                listed => listed.map_err(|error| self.errno(&error))?,
            };
            let next = match entries.last().filter(|_| !is_end) {
                Some(last) => Some((part, last.name.as_slice().into())),
                None => has_others.then(|| (part + 1, Box::default())),
            };
            let is_end = next.is_none();
            if number == state.starts.len() {
                state.starts.extend(next);
            }
            state.page = Some(ListedPage { number, entries, is_end });
        }
        Ok(state.page.as_ref())
    }
}
