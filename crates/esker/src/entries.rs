// SPDX-License-Identifier: Apache-2.0
//! Entries: the names in a directory, read page by page.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use esker_base::Result;
use esker_fs::stack::list::{DirCursor, DirEntry as ListedEntry};

use crate::dir::Dir;
use crate::metadata::Metadata;

/// Entries that are read at once.
const PAGE_ENTRIES: usize = 1024;

/// An entry of a directory, with its attributes.
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    metadata: Metadata,
}

impl DirEntry {
    /// The name within the directory.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The attributes, which the listing has read with the name. Links are not followed.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The entries of a directory, in the order in which they are stored: by a hash of their names.
///
/// Entries that are added or removed meanwhile may or may not be seen; all others are seen once. It
/// ends after an error. Memory stays small for directories of any size.
#[derive(Debug)]
pub struct DirEntries {
    dir: Dir,
    page: std::vec::IntoIter<ListedEntry>,
    /// The beginning of the next page; `None` after the last.
    cursor: Option<DirCursor>,
}

impl DirEntries {
    /// Lists `dir` from after `name`.
    pub(crate) fn after(dir: Dir, name: &OsStr) -> Self {
        let cursor = Some(DirCursor::after(name.as_bytes()));
        Self { dir, page: Vec::new().into_iter(), cursor }
    }

    /// Lists `dir` from its start, and reads the first page.
    pub(crate) fn of(dir: Dir) -> Result<Self> {
        let mut entries = Self { dir, page: Vec::new().into_iter(), cursor: None };
        entries.next_page(&DirCursor::default())?;
        Ok(entries)
    }

    fn next_page(&mut self, cursor: &DirCursor) -> Result<()> {
        let page = self.dir.read_page(cursor, PAGE_ENTRIES)?;
        if page.len() == PAGE_ENTRIES {
            self.cursor = page.last().map(|entry| DirCursor::after(&entry.name));
        }
        self.page = page.into_iter();
        Ok(())
    }
}

impl Iterator for DirEntries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                let name = OsString::from_vec(entry.name);
                return Some(Ok(DirEntry { name, metadata: Metadata::new(entry.inode) }));
            }
            let cursor = self.cursor.take()?;
            if let Err(error) = self.next_page(&cursor) {
                return Some(Err(error));
            }
        }
    }
}
