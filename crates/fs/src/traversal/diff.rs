// SPDX-License-Identifier: Apache-2.0
//! Diff: differences between two trees, by path.
//!
//! Content is compared only where it could differ: two records that name the same bytes are equal
//! without reading any. Times of directories are ignored, since they follow from the rest; so are
//! link counts and times of last access and of inode changes.

use std::cmp::Ordering;

use esker_base::Result;

use crate::inode::{FileKind, Inode};
use crate::stack::dir::Dir;
use crate::stack::identity::EXECUTE;
use crate::stack::list::{DirCursor, DirEntry};
use crate::stack::namespace::{FollowLinks, Namespace, PathTarget};
use crate::stack::path::show as show_path;
use crate::traversal::walk::loop_error;

/// Content is compared in pieces of this size.
const PIECE_BYTES: usize = 4 << 20;

/// One way in which two entries of one path differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiffAspect {
    /// Kind of file.
    Kind,
    /// Bytes of content, or the target of a symbolic link.
    Content,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// Time of last modification.
    Time,
    /// Device number.
    Device,
    /// Extended attributes.
    Xattrs,
}

/// A path at which two trees differ.
#[derive(Debug)]
pub struct Difference<'a> {
    /// The path, from where the comparison starts, beginning with a slash.
    pub path: &'a [u8],
    /// Inode in the first tree.
    pub before: Option<&'a Inode>,
    /// Inode in the second tree.
    pub after: Option<&'a Inode>,
    /// Their differences, if both exist.
    pub aspects: &'a [DiffAspect],
}

/// Two namespaces to compare.
pub(crate) struct NamespaceDiff<'a> {
    pub(crate) before: &'a Namespace,
    pub(crate) after: &'a Namespace,
}

/// A directory that is in both trees, or in one.
struct DiffFrame {
    dirs: (Option<Dir>, Option<Dir>),
    pairs: std::vec::IntoIter<(Option<DirEntry>, Option<DirEntry>)>,
    path_bytes: usize,
}

/// Passes every path at which the tree at `after` differs from the one at `before` to `show`, in
/// order of names. Cost: a listing of each directory of both; content only where nothing else
/// tells.
///
/// # Errors
/// As [`Namespace::find`] and [`Namespace::list`]; errors of `show`. `Loop`, after everything else
/// was compared, if a directory contains itself.
pub fn diff(
    before: (&Namespace, &[u8]),
    after: (&Namespace, &[u8]),
    show: &mut dyn FnMut(&Difference) -> Result<()>,
) -> Result<()> {
    let diff = NamespaceDiff { before: before.0, after: after.0 };
    let old = before.0.find(before.1, FollowLinks::Yes)?;
    let new = after.0.find(after.1, FollowLinks::Yes)?;
    let mut path = vec![b'/'];
    diff.show_pair(&path, Some(&old.inode), Some(&new.inode), show)?;
    path.clear();
    let dirs = (open(before.0, &old)?, open(after.0, &new)?);
    let mut frames = vec![diff.frame(dirs, 0)?];
    let mut first_loop = None;
    while let Some(frame) = frames.last_mut() {
        path.truncate(frame.path_bytes);
        let Some((old, new)) = frame.pairs.next() else {
            frames.pop();
            continue;
        };
        let name = old.as_ref().or(new.as_ref()).map_or(&b""[..], |entry| &entry.name);
        path.push(b'/');
        path.extend_from_slice(name);
        let inodes = (old.as_ref().map(|e| &e.inode), new.as_ref().map(|e| &e.inode));
        diff.show_pair(&path, inodes.0, inodes.1, show)?;
        let mut dirs = (
            open_entry(before.0, frame.dirs.0.as_ref(), old.as_ref())?,
            open_entry(after.0, frame.dirs.1.as_ref(), new.as_ref())?,
        );
        let is_loop = |dir: &Option<Dir>, side: fn(&DiffFrame) -> Option<&Dir>| {
            let id = dir.as_ref().map(|dir| dir.id());
            id.is_some() && frames.iter().any(|frame| side(frame).map(|dir| dir.id()) == id)
        };
        let loops = (
            is_loop(&dirs.0, |frame| frame.dirs.0.as_ref()),
            is_loop(&dirs.1, |frame| frame.dirs.1.as_ref()),
        );
        if loops.0 || loops.1 {
            first_loop.get_or_insert_with(|| loop_error().within(show_path(&path)));
            dirs = (dirs.0.filter(|_| !loops.0), dirs.1.filter(|_| !loops.1));
        }
        if dirs.0.is_some() || dirs.1.is_some() {
            let frame = diff.frame(dirs, path.len());
            frames.push(frame.map_err(|error| error.within(show_path(&path)))?);
        }
    }
    first_loop.map_or(Ok(()), Err)
}

fn open(namespace: &Namespace, found: &PathTarget) -> Result<Option<Dir>> {
    if !found.inode.is_directory() {
        return Ok(None);
    }
    if found.name.is_empty() {
        return Ok(Some(found.dir.clone()));
    }
    namespace.open_dir(&found.dir, &found.name, &found.inode).map(Some)
}

fn open_entry(
    namespace: &Namespace,
    parent: Option<&Dir>,
    entry: Option<&DirEntry>,
) -> Result<Option<Dir>> {
    match (parent, entry) {
        (Some(parent), Some(entry)) if entry.inode.is_directory() => {
            namespace.open_dir(parent, &entry.name, &entry.inode).map(Some)
        }
        _ => Ok(None),
    }
}

impl NamespaceDiff<'_> {
    fn frame(&self, dirs: (Option<Dir>, Option<Dir>), path_bytes: usize) -> Result<DiffFrame> {
        let old = entries(self.before, dirs.0.as_ref())?;
        let new = entries(self.after, dirs.1.as_ref())?;
        Ok(DiffFrame { dirs, pairs: pair(old, new).into_iter(), path_bytes })
    }

    fn show_pair(
        &self,
        path: &[u8],
        old: Option<&Inode>,
        new: Option<&Inode>,
        show: &mut dyn FnMut(&Difference) -> Result<()>,
    ) -> Result<()> {
        let aspects = match (old, new) {
            (Some(old), Some(new)) => self.aspects(old, new)?,
            _ => Vec::new(),
        };
        if old.is_some() && new.is_some() && aspects.is_empty() {
            return Ok(());
        }
        show(&Difference { path, before: old, after: new, aspects: &aspects })
    }

    /// Returns how two entries differ.
    pub(crate) fn aspects(&self, old: &Inode, new: &Inode) -> Result<Vec<DiffAspect>> {
        let mut aspects = Vec::new();
        let mut add_aspect = |differs: bool, aspect| {
            if differs {
                aspects.push(aspect);
            }
        };
        let same_kind = old.kind() == new.kind();
        add_aspect(!same_kind, DiffAspect::Kind);
        if same_kind {
            add_aspect(!self.same_content(old, new)?, DiffAspect::Content);
            add_aspect(old.rdev != new.rdev, DiffAspect::Device);
        }
        add_aspect(old.mode != new.mode, DiffAspect::Mode);
        add_aspect((old.uid, old.gid) != (new.uid, new.gid), DiffAspect::Owner);
        let timed = !(old.is_directory() && new.is_directory());
        add_aspect(timed && old.mtime_ns != new.mtime_ns, DiffAspect::Time);
        add_aspect(old.xattrs != new.xattrs, DiffAspect::Xattrs);
        aspects.sort_unstable();
        Ok(aspects)
    }

    fn same_content(&self, old: &Inode, new: &Inode) -> Result<bool> {
        if old.is_directory() {
            return Ok(true);
        }
        if old.size != new.size {
            return Ok(false);
        }
        let is_mapped = old.mapped || new.mapped;
        if (!is_mapped && old.extent == new.extent && old.content == new.content)
            || old.kind() != Some(FileKind::File)
        {
            return Ok(old.content == new.content);
        }
        let mut offset = 0;
        while offset < old.size {
            let bytes = self.before.read(old, offset, PIECE_BYTES)?;
            if bytes != self.after.read(new, offset, PIECE_BYTES)? {
                return Ok(false);
            }
            offset += bytes.len() as u64;
        }
        Ok(true)
    }
}

fn entries(namespace: &Namespace, dir: Option<&Dir>) -> Result<Vec<DirEntry>> {
    let Some(dir) = dir else { return Ok(Vec::new()) };
    dir.check(namespace.identity(), EXECUTE, b"list the directory")?;
    let mut entries = namespace.read_dir(dir, &DirCursor::default(), usize::MAX)?;
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Merges two sorted lists, pairing entries of the same name.
fn pair(old: Vec<DirEntry>, new: Vec<DirEntry>) -> Vec<(Option<DirEntry>, Option<DirEntry>)> {
    let mut pairs = Vec::with_capacity(old.len().max(new.len()));
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
        };
        pairs.push((
            if order.is_le() { old.next() } else { None },
            if order.is_ge() { new.next() } else { None },
        ));
    }
}
