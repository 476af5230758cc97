// SPDX-License-Identifier: Apache-2.0
//! Walk: every entry at and below a path, directories before their entries.
//!
//! Directories are read in pages, so that memory depends on depth, not on the number of entries,
//! unless entries are requested in order of their names.
//! Sets that moved directories independently may together have put one into itself. A walk tracks
//! the directories on its current path, and does not enter one of them again.

use esker_base::{Error, Kind, Result};

use crate::inode::Inode;
use crate::stack::dir::Dir;
use crate::stack::identity::EXECUTE;
use crate::stack::list::{DirCursor, DirEntry};
use crate::stack::namespace::{FollowLinks, Namespace};

/// Number of entries read at once.
const PAGE_ENTRIES: usize = 1024;

/// Order of the entries of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkOrder {
    /// As they are stored: by hash. Memory stays small.
    #[default]
    Stored,
    /// By name. Each directory is read as a whole.
    Name,
}

/// An entry that a walk has reached.
#[derive(Debug)]
pub struct VisitedEntry<'a> {
    /// Its path from the root, starting with a slash.
    pub path: &'a [u8],
    /// Its depth below the start.
    pub depth: usize,
    /// Its inode, with content and extended attributes.
    pub inode: &'a Inode,
    /// True if other names of the file may exist, whatever its link count.
    pub may_have_other_names: bool,
}

impl<'a> VisitedEntry<'a> {
    fn new(path: &'a [u8], depth: usize, inode: &'a Inode, may_have_other_names: bool) -> Self {
        Self { path, depth, inode, may_have_other_names }
    }

    /// The last component of its path; empty for the root.
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        let start = self.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        &self.path[start..]
    }
}

/// An event of a walk.
#[derive(Debug)]
pub enum WalkStep<'a> {
    /// An entry, for the first time.
    Entry(&'a VisitedEntry<'a>),
    /// A directory, after all its entries.
    Left(&'a VisitedEntry<'a>),
    /// A directory that cannot be read, or not to its end; the rest of its entries is skipped.
    Unreadable(&'a VisitedEntry<'a>, Error),
}

/// Continuation of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkNext {
    /// Enter the directory, if it is one.
    Into,
    /// Skip its entries.
    Past,
    /// Stop.
    Stop,
}

/// A directory on the current path of a walk.
struct WalkFrame {
    dir: Dir,
    inode: Inode,
    path_bytes: usize,
    page: std::vec::IntoIter<DirEntry>,
    /// Start of the next page; `None` after the last.
    cursor: Option<DirCursor>,
}

impl WalkFrame {
    fn new(dir: Dir, inode: Inode, path_bytes: usize) -> Self {
        let page = Vec::new().into_iter();
        Self { dir, inode, path_bytes, page, cursor: Some(DirCursor::default()) }
    }

    fn next(&mut self, namespace: &Namespace, order: WalkOrder) -> Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(cursor) = self.cursor.take() else {
                return Ok(None);
            };
            self.dir.check(namespace.identity(), EXECUTE, b"list the directory")?;
            let limit = if order == WalkOrder::Name { usize::MAX } else { PAGE_ENTRIES };
            let mut page = namespace.read_dir(&self.dir, &cursor, limit)?;
            if page.len() == limit {
                self.cursor = page.last().map(|entry| DirCursor::after(&entry.name));
            }
            if order == WalkOrder::Name {
                page.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            }
            self.page = page.into_iter();
        }
    }
}

/// Returns `path` as an absolute path without empty components, `.` and `..`.
#[must_use]
pub fn normalized(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut normal = vec![b'/'];
    normal.extend_from_slice(&parts.join(&b'/'));
    normal
}

impl Namespace {
    /// Visits the file at `start` and everything below it, except that a directory within itself is
    /// not entered: it is a step of [`Kind::Loop`]. Follows a symbolic link
    /// at `start` if `follow` says so, others never. Cost: a listing of each directory.
    ///
    /// # Errors
    /// As [`Namespace::find`] for `start`; errors of `visit`. Directories that cannot be read are
    /// steps, not errors.
    pub fn traverse(
        &self,
        start: &[u8],
        follow: FollowLinks,
        order: WalkOrder,
        visit: &mut dyn FnMut(WalkStep) -> Result<WalkNext>,
    ) -> Result<()> {
        let found = self.find(start, follow)?;
        let mut path = normalized(start);
        let first = VisitedEntry::new(&path, 0, &found.inode, found.inode.nlink > 1);
        if visit(WalkStep::Entry(&first))? != WalkNext::Into || !found.inode.is_directory() {
            return Ok(());
        }
        let dir = if found.name.is_empty() {
            found.dir
        } else {
            self.open_dir(&found.dir, &found.name, &found.inode)?
        };
        let path_bytes = path.len();
        let mut frames = vec![WalkFrame::new(dir, found.inode, path_bytes)];
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path_bytes);
            let entry = match frame.next(self, order) {
                Ok(entry) => entry,
                Err(error) => {
                    frame.cursor = None;
                    let depth = frames.len() - 1;
                    let inode = &frames[depth].inode;
                    let there = VisitedEntry::new(&path, depth, inode, false);
                    if visit(WalkStep::Unreadable(&there, error))? == WalkNext::Stop {
                        return Ok(());
                    }
                    continue;
                }
            };
            let depth = frames.len();
            let Some(entry) = entry else {
                let left = frames.pop().expect("the loop looked at it");
                let there = VisitedEntry::new(&path, depth - 1, &left.inode, false);
                if visit(WalkStep::Left(&there))? == WalkNext::Stop {
                    return Ok(());
                }
                continue;
            };
            if path.len() > 1 {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            let there = VisitedEntry::new(&path, depth, &entry.inode, entry.may_have_other_names);
            match visit(WalkStep::Entry(&there))? {
                WalkNext::Stop => return Ok(()),
                WalkNext::Into
                    if entry.inode.is_directory()
                        && frames.iter().any(|frame| frame.dir.id() == entry.inode.dir_id()) =>
                {
                    if visit(WalkStep::Unreadable(&there, loop_error()))? == WalkNext::Stop
                        || visit(WalkStep::Left(&there))? == WalkNext::Stop
                    {
                        return Ok(());
                    }
                }
                WalkNext::Into if entry.inode.is_directory() => {
                    let dir = self.open_dir(&frames[depth - 1].dir, &entry.name, &entry.inode)?;
                    frames.push(WalkFrame::new(dir, entry.inode, path.len()));
                }
                WalkNext::Into | WalkNext::Past => {}
            }
        }
        Ok(())
    }
}

/// Returns the error for a directory that contains itself.
#[must_use]
pub fn loop_error() -> Error {
    let context = "this directory contains itself, since change sets of the stack moved \
                   directories into each other; remove it at this path to break the loop";
    Error::new(Kind::Loop, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        for (path, normal) in
            [("", "/"), ("/", "/"), ("a//b/./c/", "/a/b/c"), ("/a/../b", "/b"), ("/..", "/")]
        {
            assert_eq!(normalized(path.as_bytes()), normal.as_bytes());
        }
    }
}
