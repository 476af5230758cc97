// SPDX-License-Identifier: Apache-2.0
//! Listing: the entries of a directory, as getdents64(2) returns them.
//!
//! The real directory behind a descriptor is empty, but it has an offset, which all descriptors of
//! one open share and which lseek(2) sets to go back. A call at offset 0 begins a listing: it reads
//! all entries at once and gives the listing a number. Further offsets consist of the number of the
//! listing and the place in it, so a program sees a directory as it was at one moment.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use esker_base::Result;
use esker_fs::inode::FileKind;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::Namespace;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::attributes::{number_of, type_bits};

/// Bits of an offset that are the place in a listing: listings of up to 16 M entries are read in
/// one go.
const PLACE_BITS: u32 = 24;
/// Numbers of listings, which start again at 1: real file systems allow offsets up to 2^43.
const NUMBERS_MAX: u64 = 1 << 19;
/// Maximum number of listings that are kept, and of bytes of their names; one listing is always
/// kept.
const LISTINGS_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 64 << 20;

/// The listings that programs read.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<KnownListings>);

#[derive(Debug, Default)]
struct KnownListings {
    /// Ordered by the last read, the oldest first.
    known: VecDeque<(u64, Arc<Listing>)>,
    last_number: u64,
    name_bytes: usize,
}

/// The entries of a directory at one moment.
#[derive(Debug, Default)]
struct Listing {
    names: Vec<u8>,
    entries: Vec<ListedEntry>,
}

#[derive(Debug)]
struct ListedEntry {
    number: u64,
    /// End of its name in the names; it begins where the one before ends.
    name_end: usize,
    kind: u8,
}

/// The answer to one call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListedPage {
    /// Entries in the form of getdents64(2).
    pub(crate) bytes: Vec<u8>,
    /// The offset from which the next call goes on.
    pub(crate) offset: u64,
}

impl Listings {
    /// Returns entries of `dir` from `offset`, in up to `bytes_max` bytes.
    ///
    /// # Errors
    /// `INVAL` if not even one fits; errors of the store.
    pub(crate) fn read(
        &self,
        namespace: &Namespace,
        dir: &Dir,
        offset: u64,
        bytes_max: usize,
    ) -> Result<ListedPage, Errno> {
        let (number, place) = (offset >> PLACE_BITS, offset & ((1 << PLACE_BITS) - 1));
        let (number, listing) = match self.find(number) {
            Some(listing) if offset != 0 => (number, listing),
            // If the listing is not kept any more, about the same entries are at that place in a
            // new one.
            _ => {
                let listing = Listing::read(namespace, dir)
                    .map_err(|error| Errno::from_raw_os_error(error.kind().errno()))?;
                self.add(Arc::new(listing))
            }
        };
        let (bytes, end) = listing.encode(number, place as usize, bytes_max);
        if bytes.is_empty() && (place as usize) < listing.entries.len() {
            return Err(Errno::INVAL);
        }
        Ok(ListedPage { bytes, offset: number << PLACE_BITS | end as u64 })
    }

    fn find(&self, number: u64) -> Option<Arc<Listing>> {
        let mut listings = self.0.lock();
        let at = listings.known.iter().rposition(|(known, _)| *known == number)?;
        let found = listings.known.remove(at)?;
        listings.known.push_back(found.clone());
        Some(found.1)
    }

    fn add(&self, listing: Arc<Listing>) -> (u64, Arc<Listing>) {
        let mut listings = self.0.lock();
        listings.last_number = listings.last_number % (NUMBERS_MAX - 1) + 1;
        let number = listings.last_number;
        listings.name_bytes += listing.names.len();
        listings.known.push_back((number, listing.clone()));
        while listings.known.len() > 1
            && (listings.known.len() > LISTINGS_MAX || listings.name_bytes > NAME_BYTES_MAX)
        {
            let oldest = listings.known.pop_front();
            listings.name_bytes -= oldest.map_or(0, |(_, oldest)| oldest.names.len());
        }
        (number, listing)
    }
}

impl Listing {
    fn read(namespace: &Namespace, dir: &Dir) -> Result<Self> {
        let mut listing = Self::default();
        let parent = dir.location().map_or(dir.id(), |(parent, _)| parent.id());
        listing.push(b".", dir.id().0, FileKind::Directory);
        listing.push(b"..", parent.0, FileKind::Directory);
        namespace.list(dir, &DirCursor::default(), &mut |entry| {
            let inode = entry.inode()?;
            listing.push(entry.name(), inode.id, inode.kind().unwrap_or(FileKind::File));
            let is_full = listing.entries.len() >> PLACE_BITS != 0;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(listing)
    }

    fn push(&mut self, name: &[u8], id: u128, kind: FileKind) {
        self.names.extend_from_slice(name);
        let kind = (type_bits(kind) >> 12) as u8;
        let entry = ListedEntry { number: number_of(id), name_end: self.names.len(), kind };
        self.entries.push(entry);
    }

    /// Encodes entries from `place` as `struct linux_dirent64`; returns the place after the last
    /// one.
    fn encode(&self, number: u64, place: usize, bytes_max: usize) -> (Vec<u8>, usize) {
        const HEADER_BYTES: usize = 19;
        let (mut bytes, mut place) = (Vec::new(), place.min(self.entries.len()));
        while let Some(entry) = self.entries.get(place) {
            let start = place.checked_sub(1).map_or(0, |before| self.entries[before].name_end);
            let name = &self.names[start..entry.name_end];
            let length = (HEADER_BYTES + name.len() + 1).next_multiple_of(8);
            if bytes.len() + length > bytes_max {
                break;
            }
            place += 1;
            let end = bytes.len() + length;
            bytes.extend_from_slice(&entry.number.to_ne_bytes());
            bytes.extend_from_slice(&(number << PLACE_BITS | place as u64).to_ne_bytes());
            bytes.extend_from_slice(&(length as u16).to_ne_bytes());
            bytes.push(entry.kind);
            bytes.extend_from_slice(name);
            bytes.resize(end, 0);
        }
        (bytes, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_listing_have_each_entry_once() {
        let mut listing = Listing::default();
        for number in 0..100_u32 {
            listing.push(format!("file-{number}").as_bytes(), number.into(), FileKind::File);
        }
        let (mut place, mut names) = (0, Vec::new());
        loop {
            let (bytes, next) = listing.encode(7, place, 200);
            assert!(bytes.len() <= 200 && next >= place);
            let mut at = 0;
            while at < bytes.len() {
                let length = u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]) as usize;
                let name = bytes[at + 19..at + length].split(|&byte| byte == 0).next();
                names.push(String::from_utf8_lossy(name.expect("a name")).into_owned());
                at += length;
            }
            if next == place {
                break;
            }
            place = next;
        }
        assert_eq!(names, (0..100).map(|number| format!("file-{number}")).collect::<Vec<_>>());
        assert_eq!(listing.encode(7, 0, 10), (Vec::new(), 0));
    }
}
