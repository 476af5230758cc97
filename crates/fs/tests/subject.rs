// SPDX-License-Identifier: Apache-2.0
//! Subject: runs operations on a session, and reads the contents of a namespace.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::{Error, Kind, Result};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::list::{DirCursor, DirEntry};
use esker_fs::stack::namespace::{FollowLinks, Namespace};

use crate::operation::{Answer, Attributes, Content, Leaf, Operation, Outcome, TargetPath, Tree};

/// Number of entries that a walk over the tree requests at once: few, so that cursors are used.
const WALK_LIMIT: usize = 3;

/// Runs `operation`; panics at a kind of error that no operation may return.
pub fn run(session: &Session, operation: &Operation) -> Outcome {
    try_run(session, operation).map_err(|error| {
        let lawful = !matches!(
            error.kind(),
            Kind::Corrupt | Kind::Unavailable | Kind::Closed | Kind::Conflict | Kind::Fenced
        );
        assert!(lawful, "{operation:?}: {error:?}");
        error.kind()
    })
}

/// Runs `operation`.
pub fn try_run(session: &Session, operation: &Operation) -> Result<Answer> {
    use Operation as O;
    let dir = |at: &TargetPath| session.namespace().dir(&at.dir);
    match operation {
        O::Create { at, mode } => session.create(&dir(at)?, &at.name, *mode).map(drop)?,
        O::Write { at, mode, content } => {
            session.create_with(&dir(at)?, &at.name, *mode, &mut source(*content)).map(drop)?
        }
        O::Rewrite { at, content } => {
            session.rewrite(&dir(at)?, &at.name, &mut source(*content)).map(drop)?;
        }
        O::Mkdir { at, mode } => session.mkdir(&dir(at)?, &at.name, *mode).map(drop)?,
        O::Mknod { at, kind, mode, rdev } => {
            session.mknod(&dir(at)?, &at.name, *kind, *mode, *rdev).map(drop)?;
        }
        O::Symlink { at, target } => session.symlink(&dir(at)?, &at.name, target).map(drop)?,
        O::Link { from, to } => {
            // A missing first path is reported before the other path is resolved.
            let from_dir = dir(from)?;
            session.namespace().lookup(&from_dir, &from.name, false)?;
            session.link(&from_dir, &from.name, &dir(to)?, &to.name).map(drop)?;
        }
        O::Unlink(at) => session.unlink(&dir(at)?, &at.name).map(drop)?,
        O::Rmdir(at) => session.rmdir(&dir(at)?, &at.name).map(drop)?,
        O::RemoveTree(at) => session.remove_tree(&dir(at)?, &at.name)?,
        O::Rename { from, to, flags } => {
            let from_dir = dir(from)?;
            from_dir_searchable(session, &from_dir)?;
            session.rename((&from_dir, &from.name), (&dir(to)?, &to.name), *flags)?;
        }
        O::SetAttributes { at, changes } => {
            session.setattr(&dir(at)?, &at.name, changes).map(drop)?;
        }
        O::SetXattr { at, name, value, how } => {
            session.set_xattr(&dir(at)?, &at.name, (name, value), *how)?;
        }
        O::RemoveXattr { at, name } => session.remove_xattr(&dir(at)?, &at.name, name)?,
        O::Stat { path, follow } => {
            return session
                .namespace()
                .stat(path, *follow)
                .map(|inode| Answer::Attributes(attributes(&inode)));
        }
        O::List { path, limit } => {
            return list(session.namespace(), &session.namespace().dir(path)?, *limit)
                .map(Answer::Names);
        }
        O::ReadLink(path) => return session.namespace().read_link(path).map(Answer::Bytes),
        O::Read(path) => {
            return read(session.namespace(), &session.namespace().stat(path, FollowLinks::Yes)?)
                .map(Answer::Bytes);
        }
    }
    Ok(Answer::Done)
}

/// A kernel walks to the last name of one path before it resolves the other path.
fn from_dir_searchable(session: &Session, dir: &Dir) -> Result<()> {
    match session.namespace().lookup(dir, b"\x01", false) {
        Err(error) if error.kind() == Kind::Denied => Err(error),
        _ => Ok(()),
    }
}

/// Returns a source of the bytes of `content`, in pieces of odd sizes.
pub fn source(content: Content) -> impl FnMut(&mut [u8]) -> Result<usize> {
    let bytes = content.make();
    let mut given = 0;
    move |buffer: &mut [u8]| {
        let count = (bytes.len() - given).min(buffer.len()).min(40_961);
        buffer[..count].copy_from_slice(&bytes[given..given + count]);
        given += count;
        Ok(count)
    }
}

/// Returns the names in `dir`, listed `limit` at a time, sorted.
pub fn list(namespace: &Namespace, dir: &Dir, limit: usize) -> Result<Vec<Vec<u8>>> {
    let entries = entries(namespace, dir, limit)?;
    let names: BTreeSet<Vec<u8>> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), entries.len(), "a listing shows an entry twice");
    Ok(names.into_iter().collect())
}

/// Returns the entries of `dir`, listed `limit` at a time.
pub fn entries(namespace: &Namespace, dir: &Dir, limit: usize) -> Result<Vec<DirEntry>> {
    let mut all: Vec<DirEntry> = Vec::new();
    let mut cursor = DirCursor::default();
    loop {
        let page = namespace.read_dir(dir, &cursor, limit)?;
        assert!(page.len() <= limit, "a listing gives more than was asked for");
        let Some(last) = page.last() else { return Ok(all) };
        cursor = DirCursor::after(&last.name);
        let full = page.len() == limit;
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}

/// Returns all bytes of the file `inode`.
pub fn read(namespace: &Namespace, inode: &Inode) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    namespace.read_all(inode, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

pub fn attributes(inode: &Inode) -> Attributes {
    Attributes {
        kind: inode.kind().expect("an operation shows no tombstones and no links"),
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        rdev: inode.rdev,
        size: inode.size,
        mtime_ns: inode.mtime_ns,
        ctime_ns: inode.ctime_ns,
        atime_ns: inode.atime_ns,
    }
}

/// Returns the whole tree of `namespace`, which must be open as the superuser.
pub fn tree(namespace: &Namespace) -> Result<Tree> {
    let mut walk = Walk { namespace, tree: Tree::new(), first_names: BTreeMap::new() };
    let root = namespace.stat_dir(namespace.root())?;
    walk.add(Vec::new(), &root)?;
    walk.enter(Vec::new(), namespace.root())?;
    let Walk { mut tree, first_names, .. } = walk;
    for leaf in tree.values_mut() {
        let id = leaf.first_name.as_slice().try_into().expect("an id was put here");
        leaf.first_name.clone_from(&first_names[&u128::from_be_bytes(id)]);
    }
    Ok(tree)
}

struct Walk<'a> {
    namespace: &'a Namespace,
    tree: Tree,
    /// The first path of each file.
    first_names: BTreeMap<u128, Vec<u8>>,
}

impl Walk<'_> {
    fn enter(&mut self, path: Vec<u8>, dir: &Dir) -> Result<()> {
        for entry in entries(self.namespace, dir, WALK_LIMIT)? {
            let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let below = [&path, separator, &entry.name].concat();
            let inode = self.namespace.lookup(dir, &entry.name, true)?;
            if inode != entry.inode {
                let context = format!("listed as {:?}, looked up as {inode:?}", entry.inode);
                return Err(Error::new(Kind::Corrupt, context));
            }
            self.add(below.clone(), &inode)?;
            if inode.is_directory() {
                let absolute = [b"/", below.as_slice()].concat();
                self.enter(below, &self.namespace.dir(absolute)?)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: Vec<u8>, inode: &Inode) -> Result<()> {
        let first = self.first_names.entry(inode.id).or_insert_with(|| path.clone());
        if path < *first {
            first.clone_from(&path);
        }
        let bytes = match inode.kind() {
            Some(FileKind::File) => read(self.namespace, inode)?,
            Some(FileKind::Symlink) => inode.content.clone(),
            _ => Vec::new(),
        };
        let leaf = Leaf {
            attributes: attributes(inode),
            bytes,
            xattrs: self.namespace.xattrs(inode)?,
            first_name: inode.id.to_be_bytes().to_vec(),
        };
        self.tree.insert(path, leaf);
        Ok(())
    }
}
