// SPDX-License-Identifier: Apache-2.0
//! Listing: the entries of a directory of a live namespace, page by page.

use esker_base::Result;
use esker_base::wire::{WireDamage, WireInput};

use super::live_dir::LiveDir;
use super::pending::Request;
use super::tree::LiveTree;
use crate::wire::{LiveAttributes, NAME_BYTES_MAX, take_attributes};

/// Entries of one request of a listing.
pub(super) const LIST_ENTRIES: usize = 4096;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: LiveAttributes,
}

impl LiveTree {
    /// Returns all entries of `dir`, in the order of the hashes of their names. Entries that come
    /// and go meanwhile may or may not be among them. Cost: a round trip for each 4,096, and one to
    /// each seat that has some of them.
    ///
    /// # Errors
    /// `Denied`; `NotFound` once the directory was removed.
    pub fn list(&mut self, dir: &LiveDir) -> Result<Vec<LiveEntry>> {
        let mut entries = self.list_as_named(dir)?;
        let shown = entries.iter_mut().map(|entry| (&entry.name[..], &mut entry.attributes));
        self.show_at_own_seats(dir, shown)?;
        Ok(entries)
    }

    /// Like [`LiveTree::list`], with those at other seats as they were named. Cost: a round trip
    /// for each 4,096.
    ///
    /// # Errors
    /// As [`LiveTree::list`].
    pub fn list_as_named(&mut self, dir: &LiveDir) -> Result<Vec<LiveEntry>> {
        let mut entries: Vec<LiveEntry> = Vec::new();
        for part in dir.parts() {
            let mut after = Vec::new();
            loop {
                let answer = self.call(Request::list(&part, &after, LIST_ENTRIES))?;
                let (is_end, page) = answer.only(take_entries)?;
                let is_stuck = page.is_empty();
                entries.extend(page);
                if is_end || is_stuck {
                    break;
                }
                after = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
            }
        }
        Ok(entries)
    }
}

/// Reads the entries that a listing returns, and whether they are the last ones.
///
/// # Errors
/// Damage if the bytes are not entries.
pub fn take_entries(input: &mut WireInput) -> Result<(bool, Vec<LiveEntry>), WireDamage> {
    let is_end = input.u8()? != 0;
    let count = input.varint_max(input.left(), "as many entries as follow")?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = input.bytes(NAME_BYTES_MAX, "a name")?.to_vec();
        entries.push(LiveEntry { name, attributes: take_attributes(input)? });
    }
    Ok((is_end, entries))
}
