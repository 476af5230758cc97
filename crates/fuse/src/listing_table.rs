// SPDX-License-Identifier: Apache-2.0
//! Listing table: the listings that programs have begun, without handles.
//!
//! The kernel opens and closes directories without asking, which saves two requests for each listing.
//! A request finds its listing by directory and cookie. A listing leaves the table at the end of the
//! directory, or when many newer ones exist; a program that then continues it gets a new one, which
//! begins at the cookie.
//!
//! Concurrency: the table's lock is held for a search, which tries the lock of a listing's state; a
//! listing that another thread uses is passed over.

use std::collections::VecDeque;
use std::sync::Arc;

use fuser::Errno;
use parking_lot::Mutex;

use crate::front::MountFront;
use crate::listing::{EntrySink, OpenListing, ShownEntry};

/// Listings in the table. Each may hold two batches of entries.
const LISTINGS_MAX: usize = 32;

/// The listings that programs have begun, each with the inode number of its directory, the most recent
/// last.
#[derive(Debug, Default)]
pub(crate) struct ListingTable(Mutex<VecDeque<(u64, Arc<OpenListing>)>>);

/// Passes entries on, and remembers whether there were any.
struct ObservedSink<'a, S> {
    sink: &'a mut S,
    has_any: bool,
}

impl<S: EntrySink> EntrySink for ObservedSink<'_, S> {
    const WITH_ATTRIBUTES: bool = S::WITH_ATTRIBUTES;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        self.has_any = true;
        self.sink.put(cookie, name, shown)
    }
}

impl ListingTable {
    /// The most recent listing of the directory `number` for which `is_it`.
    fn find(&self, number: u64, is_it: impl Fn(&OpenListing) -> bool) -> Option<Arc<OpenListing>> {
        let listings = self.0.lock();
        let mut of_directory = listings.iter().rev().filter(|(of, _)| *of == number);
        of_directory.find(|(_, listing)| is_it(listing)).map(|(_, listing)| listing.clone())
    }

    fn insert(&self, number: u64, listing: Arc<OpenListing>) {
        let mut listings = self.0.lock();
        let oldest = if listings.len() < LISTINGS_MAX { None } else { listings.pop_front() };
        listings.push_back((number, listing));
        drop(listings);
        // A large one takes a while to free.
        drop(oldest);
    }

    fn remove(&self, listing: &Arc<OpenListing>) {
        self.0.lock().retain(|(_, other)| !Arc::ptr_eq(other, listing));
    }
}

impl MountFront {
    /// Passes entries of the directory `number` after `cookie` to `sink` until it is full or the
    /// directory ends. Returns the listing, for [`MountFront::read_ahead`].
    pub(crate) fn list_directory<S: EntrySink>(
        &self,
        number: u64,
        cookie: u64,
        sink: &mut S,
    ) -> Result<Arc<OpenListing>, Errno> {
        let begun = match cookie {
            0 => None,
            _ => self.listings.find(number, |listing| listing.continues_at(cookie)),
        };
        let is_new = begun.is_none();
        let listing = match begun {
            Some(listing) => listing,
            None => Arc::new(self.begin_listing(number)?),
        };
        let mut observed = ObservedSink { sink, has_any: false };
        self.list(&listing, cookie, &mut observed)?;
        match (is_new, observed.has_any) {
            (true, true) => self.listings.insert(number, listing.clone()),
            (false, false) => self.listings.remove(&listing),
            _ => {}
        }
        Ok(listing)
    }

    /// The listing of the directory `number` whose next batch is worth reading ahead, if any.
    pub(crate) fn listing_to_read_ahead(&self, number: u64) -> Option<Arc<OpenListing>> {
        self.listings.find(number, OpenListing::wants_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_location::NodeLocation;
    use crate::nodes::NodeTable;
    use esker_fs::inode::{FileKind, Inode, NameKind};

    #[test]
    fn the_oldest_listing_makes_room_and_each_is_found_by_its_directory() {
        let inode = Inode::new(NameKind::Is(FileKind::Directory), 0o755, 0);
        let nodes = NodeTable::new(NodeLocation::Gone(Box::new(inode)));
        let table = ListingTable::default();
        let listing = || Arc::new(OpenListing::new(nodes.get(1).expect("the root"), None));
        let last = 10 + LISTINGS_MAX as u64;
        (10..=last).for_each(|number| table.insert(number, listing()));
        assert!(table.find(10, |_| true).is_none(), "it made room");
        assert!(table.find(11, |_| true).is_some() && table.find(11, |_| false).is_none());
        // Of two listings of one directory, the most recent one that fits.
        let (first, second) = (table.find(last, |_| true).expect("it is new"), listing());
        table.insert(last, second.clone());
        let is_second =
            |found: Option<Arc<OpenListing>>| Arc::ptr_eq(&found.expect("one"), &second);
        assert!(is_second(table.find(last, |_| true)));
        assert!(!is_second(table.find(last, |listing| std::ptr::eq(listing, &raw const *first))));
        table.remove(&first);
        table.remove(&second);
        assert!(table.find(last, |_| true).is_none());
    }
}
