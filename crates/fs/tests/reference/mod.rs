// SPDX-License-Identifier: Apache-2.0
//! Reference: a small, simple in-memory file system that behaves like POSIX and Linux.
//!
//! Nodes are in a map by number; directories map names to numbers. Every operation checks in the
//! kernel's order (`fs/namei.c`, `fs/attr.c`), so that of several errors the same one is returned.
//! Where Esker legitimately differs, this follows Esker: directories have one link, `remove_tree`
//! removes a tree in one step and leaves link counts of files that have names elsewhere, and every
//! error is a `Kind`.

mod rename;

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::clock::{Clock, ManualClock};
use esker_base::{Kind, Result as EskerResult};
use esker_fs::inode::FileKind;
use esker_fs::inode::timestamp;
use esker_fs::ops::{AttributeChanges, XattrSet};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;

use crate::operation::{ANY_TIME, Answer, Attributes, Leaf, Operation, Outcome, TargetPath, Tree};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
const ROOT: u64 = 0;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

type Result<T> = EskerResult<T, Kind>;

/// A file of any kind.
#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    rdev: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    atime_ns: i64,
    /// Content, or a symbolic link's target.
    bytes: Arc<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, u64>,
    parent: u64,
    /// True if it ever had several names.
    was_linked: bool,
}

/// The reference file system.
#[derive(Clone, Debug)]
pub struct Reference {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    clock: Arc<ManualClock>,
    /// The acting user.
    pub identity: Identity,
}

impl Reference {
    /// Creates an empty file system of the superuser.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        let mut reference =
            Self { nodes: BTreeMap::new(), next: 0, clock, identity: Identity::root() };
        let root = reference.fresh(FileKind::Directory, 0o755);
        reference.nodes.insert(ROOT, root);
        reference.next = ROOT + 1;
        reference
    }

    /// Changes attributes of the root, which is in no directory.
    pub fn set_root_attributes(&mut self, changes: &AttributeChanges) {
        let now_ns = self.now_ns();
        let root = self.node(ROOT);
        root.mode = changes.mode.unwrap_or(root.mode);
        root.uid = changes.uid.unwrap_or(root.uid);
        root.gid = changes.gid.unwrap_or(root.gid);
        root.ctime_ns = now_ns;
    }

    /// Returns the content of the file at a place, if it may be written.
    pub fn content(&self, at: &TargetPath) -> Result<Arc<Vec<u8>>> {
        let (_, number) = self.find(at)?;
        self.check_writable(number).map(|()| self.nodes[&number].bytes.clone())
    }

    /// Replaces the content of the file at a place.
    pub fn replace_content(&mut self, at: &TargetPath, bytes: Vec<u8>) -> Result<()> {
        self.rewrite(at, bytes)
    }

    /// Runs `operation`.
    pub fn run(&mut self, operation: &Operation) -> Outcome {
        use Operation as O;
        let done = |()| Answer::Done;
        match operation {
            O::Create { at, mode } => self.create(at, FileKind::File, *mode, |_| {}).map(done),
            O::Write { at, mode, content } => self
                .create(at, FileKind::File, *mode, |node| node.bytes = Arc::new(content.make()))
                .map(done),
            O::Rewrite { at, content } => self.rewrite(at, content.make()).map(done),
            O::Mkdir { at, mode } => self.create(at, FileKind::Directory, *mode, |_| {}).map(done),
            O::Mknod { at, kind, mode, rdev } => {
                self.create(at, *kind, *mode, |node| node.rdev = *rdev).map(done)
            }
            O::Symlink { at, target } => self
                .create(at, FileKind::Symlink, 0o777, |node| node.bytes = Arc::new(target.clone()))
                .map(done),
            O::Link { from, to } => self.link(from, to).map(done),
            O::Unlink(at) => self.unlink(at).map(done),
            O::Rmdir(at) => self.rmdir(at).map(done),
            O::RemoveTree(at) => self.remove_tree(at).map(done),
            O::Rename { from, to, flags } => self.rename(from, to, *flags).map(done),
            O::SetAttributes { at, changes } => self.set_attributes(at, changes).map(done),
            O::SetXattr { at, name, value, how } => self.set_xattr(at, name, value, *how).map(done),
            O::RemoveXattr { at, name } => self.remove_xattr(at, name).map(done),
            O::Stat { path, follow } => {
                let node = self.resolve(path, *follow == FollowLinks::Yes)?;
                Ok(Answer::Attributes(self.nodes[&node].attributes()))
            }
            O::List { path, .. } => {
                let node = self.resolve_dir(path)?;
                self.check(node, READ)?;
                Ok(Answer::Names(self.nodes[&node].entries.keys().cloned().collect()))
            }
            O::ReadLink(path) => {
                let node = &self.nodes[&self.resolve(path, false)?];
                if node.kind != FileKind::Symlink {
                    return Err(Kind::Invalid);
                }
                Ok(Answer::Bytes(node.bytes.to_vec()))
            }
            O::Read(path) => {
                let number = self.resolve(path, true)?;
                self.check(number, READ)?;
                match self.nodes[&number].kind {
                    FileKind::File => Ok(Answer::Bytes(self.nodes[&number].bytes.to_vec())),
                    FileKind::Directory => Err(Kind::IsADirectory),
                    _ => Err(Kind::Invalid),
                }
            }
        }
    }

    /// Returns the whole tree.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first_names = BTreeMap::new();
        let mut waiting = vec![(Vec::new(), ROOT)];
        while let Some((path, number)) = waiting.pop() {
            let node = &self.nodes[&number];
            for (name, entry) in &node.entries {
                let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                waiting.push(([&path, separator, name].concat(), *entry));
            }
            let first: &mut Vec<u8> = first_names.entry(number).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            let leaf = Leaf {
                attributes: node.attributes(),
                bytes: node.bytes.to_vec(),
                xattrs: node.xattrs.clone(),
                first_name: number.to_be_bytes().to_vec(),
            };
            tree.insert(path, leaf);
        }
        for leaf in tree.values_mut() {
            let number = leaf.first_name.as_slice().try_into().expect("a number was put here");
            leaf.first_name = first_names[&u64::from_be_bytes(number)].clone();
        }
        tree
    }

    /// Returns every path and its kind, for choosing the next operation.
    pub fn paths(&self) -> Vec<(Vec<u8>, FileKind)> {
        let mut paths = Vec::new();
        let mut waiting = vec![(Vec::new(), ROOT)];
        while let Some((path, number)) = waiting.pop() {
            for (name, entry) in &self.nodes[&number].entries {
                waiting.push(([&path, &b"/"[..], name].concat(), *entry));
            }
            paths.push((path, self.nodes[&number].kind));
        }
        paths
    }

    fn now_ns(&self) -> i64 {
        timestamp::of_clock(self.clock.now_ns())
    }

    fn node(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).expect("a number of a node")
    }

    /// True if this identity has the permissions `wanted` on a node.
    fn may(&self, number: u64, wanted: u32) -> bool {
        let node = &self.nodes[&number];
        let identity = &self.identity;
        if identity.uid == 0 {
            let directory = node.kind == FileKind::Directory;
            return wanted & EXECUTE == 0 || directory || node.mode & 0o111 != 0;
        }
        let bits = if identity.uid == node.uid {
            node.mode >> 6
        } else if self.is_member(node.gid) {
            node.mode >> 3
        } else {
            node.mode
        };
        bits & wanted == wanted
    }

    fn is_member(&self, gid: u32) -> bool {
        self.identity.gid == gid || self.identity.groups.contains(&gid)
    }

    fn is_root(&self) -> bool {
        self.identity.uid == 0
    }

    fn check(&self, number: u64, wanted: u32) -> Result<()> {
        if self.may(number, wanted) { Ok(()) } else { Err(Kind::Denied) }
    }

    fn check_owner(&self, number: u64) -> Result<()> {
        let owns = self.is_root() || self.identity.uid == self.nodes[&number].uid;
        if owns { Ok(()) } else { Err(Kind::NotPermitted) }
    }

    /// Fails unless `number` may be removed from `dir`.
    fn check_removal(&self, dir: u64, number: u64) -> Result<()> {
        self.check(dir, WRITE | EXECUTE)?;
        let sticky = self.nodes[&dir].mode & STICKY != 0;
        let owner = |number: u64| self.nodes[&number].uid == self.identity.uid;
        if sticky && !self.is_root() && !owner(dir) && !owner(number) {
            return Err(Kind::NotPermitted);
        }
        Ok(())
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<u64> {
        self.walk(ROOT, path, follow, &mut 0)
    }

    fn resolve_dir(&self, path: &[u8]) -> Result<u64> {
        let number = self.resolve(path, true)?;
        self.check_dir(number).map(|()| number)
    }

    fn check_dir(&self, number: u64) -> Result<()> {
        let directory = self.nodes[&number].kind == FileKind::Directory;
        if directory { Ok(()) } else { Err(Kind::NotADirectory) }
    }

    fn walk(&self, from: u64, path: &[u8], follow: bool, links: &mut usize) -> Result<u64> {
        if path.len() >= 4096 {
            return Err(Kind::TooLarge);
        }
        let mut at = if path.starts_with(b"/") { ROOT } else { from };
        let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let named = |part: &&[u8]| !part.is_empty();
        let count = parts.iter().copied().filter(|part| named(part)).count();
        for (index, part) in parts.iter().copied().filter(named).enumerate() {
            self.check_dir(at)?;
            self.check(at, EXECUTE)?;
            let last = index + 1 == count;
            at = match part {
                b"." => at,
                b".." => self.nodes[&at].parent,
                name => {
                    let next = self.entry(at, name)?;
                    let node = &self.nodes[&next];
                    let through = !last || follow || path.ends_with(b"/");
                    if node.kind == FileKind::Symlink && through {
                        *links += 1;
                        if *links > 40 {
                            return Err(Kind::Loop);
                        }
                        self.walk(at, &node.bytes, true, links)?
                    } else {
                        next
                    }
                }
            };
        }
        if path.ends_with(b"/") {
            self.check_dir(at)?;
        }
        Ok(at)
    }

    /// Returns the node of `name` in `dir`.
    fn entry(&self, dir: u64, name: &[u8]) -> Result<u64> {
        if name.len() > 255 {
            return Err(Kind::TooLarge);
        }
        self.nodes[&dir].entries.get(name).copied().ok_or(Kind::NotFound)
    }

    /// Returns the directory of a place, which may be searched.
    fn dir_of(&self, at: &TargetPath) -> Result<u64> {
        let dir = self.resolve_dir(&at.dir)?;
        self.check(dir, EXECUTE).map(|()| dir)
    }

    /// Returns the directory and the node of a place.
    fn find(&self, at: &TargetPath) -> Result<(u64, u64)> {
        let dir = self.dir_of(at)?;
        Ok((dir, self.entry(dir, &at.name)?))
    }

    /// Returns the directory of a vacant place into which a file may be put.
    fn vacant(&self, at: &TargetPath) -> Result<u64> {
        let dir = self.dir_of(at)?;
        match self.entry(dir, &at.name) {
            Ok(_) => return Err(Kind::Exists),
            Err(Kind::NotFound) => {}
            Err(kind) => return Err(kind),
        }
        self.check(dir, WRITE | EXECUTE).map(|()| dir)
    }

    fn fresh(&self, kind: FileKind, mode: u32) -> Node {
        let now_ns = self.now_ns();
        Node {
            kind,
            mode,
            uid: self.identity.uid,
            gid: self.identity.gid,
            nlink: 1,
            rdev: 0,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            atime_ns: now_ns,
            bytes: Arc::default(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent: ROOT,
            was_linked: false,
        }
    }

    fn create(
        &mut self,
        at: &TargetPath,
        kind: FileKind,
        mode: u32,
        finish: impl FnOnce(&mut Node),
    ) -> Result<()> {
        let dir = self.vacant(at)?;
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.is_root() {
            return Err(Kind::NotPermitted);
        }
        let mut node = self.fresh(kind, mode);
        node.parent = dir;
        let above = &self.nodes[&dir];
        if above.mode & SET_GID != 0 {
            node.gid = above.gid;
            if kind == FileKind::Directory {
                node.mode |= SET_GID;
            } else if node.mode & (SET_GID | 0o010) == SET_GID | 0o010
                && !self.is_root()
                && !self.is_member(node.gid)
            {
                node.mode &= !SET_GID;
            }
        }
        finish(&mut node);
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        self.node(dir).entries.insert(at.name.clone(), number);
        self.touch(dir);
        Ok(())
    }

    /// Updates the times of `dir` after an entry was added or removed.
    fn touch(&mut self, dir: u64) {
        let now_ns = self.now_ns();
        let node = self.node(dir);
        (node.mtime_ns, node.ctime_ns) = (now_ns, now_ns);
    }

    fn rewrite(&mut self, at: &TargetPath, bytes: Vec<u8>) -> Result<()> {
        let (_, number) = self.find(at)?;
        self.check_writable(number)?;
        self.give_content(number, bytes);
        Ok(())
    }

    fn check_writable(&self, number: u64) -> Result<()> {
        match self.nodes[&number].kind {
            FileKind::File => self.check(number, WRITE),
            FileKind::Directory => Err(Kind::IsADirectory),
            _ => Err(Kind::Invalid),
        }
    }

    /// Changes content; a write by an ordinary user drops set-id bits.
    fn give_content(&mut self, number: u64, bytes: Vec<u8>) {
        let now_ns = self.now_ns();
        if !self.is_root() {
            self.drop_set_id(number);
        }
        let node = self.node(number);
        node.bytes = Arc::new(bytes);
        (node.mtime_ns, node.ctime_ns) = (now_ns, now_ns);
    }

    fn drop_set_id(&mut self, number: u64) {
        let foreign = !self.is_root() && !self.is_member(self.nodes[&number].gid);
        let node = self.node(number);
        node.mode &= !SET_UID;
        if node.mode & 0o010 != 0 || foreign {
            node.mode &= !SET_GID;
        }
    }

    fn link(&mut self, from: &TargetPath, to: &TargetPath) -> Result<()> {
        let (_, number) = self.find(from)?;
        let dir = self.vacant(to)?;
        if self.nodes[&number].kind == FileKind::Directory {
            return Err(Kind::IsADirectory);
        }
        self.node(dir).entries.insert(to.name.clone(), number);
        let now_ns = self.now_ns();
        let node = self.node(number);
        node.nlink += 1;
        node.ctime_ns = now_ns;
        node.was_linked = true;
        self.touch(dir);
        Ok(())
    }

    fn unlink(&mut self, at: &TargetPath) -> Result<()> {
        let (dir, number) = self.find(at)?;
        self.check_removal(dir, number)?;
        if self.nodes[&number].kind == FileKind::Directory {
            return Err(Kind::IsADirectory);
        }
        self.node(dir).entries.remove(&at.name);
        self.drop_name(number);
        self.touch(dir);
        Ok(())
    }

    /// Removes one name of a file.
    fn drop_name(&mut self, number: u64) {
        let now_ns = self.now_ns();
        let node = self.node(number);
        node.nlink -= 1;
        node.ctime_ns = now_ns;
        if node.nlink == 0 {
            self.nodes.remove(&number);
        }
    }

    fn rmdir(&mut self, at: &TargetPath) -> Result<()> {
        let (dir, number) = self.find(at)?;
        self.check_removal(dir, number)?;
        self.check_dir(number)?;
        if !self.nodes[&number].entries.is_empty() {
            return Err(Kind::NotEmpty);
        }
        self.node(dir).entries.remove(&at.name);
        self.nodes.remove(&number);
        self.touch(dir);
        Ok(())
    }

    fn remove_tree(&mut self, at: &TargetPath) -> Result<()> {
        let (dir, number) = self.find(at)?;
        self.check_removal(dir, number)?;
        self.check_dir(number)?;
        self.check_owner(number)?;
        self.node(dir).entries.remove(&at.name);
        // Nodes in the tree stay in the map, reachable only by other names.
        self.touch(dir);
        Ok(())
    }

    fn set_attributes(&mut self, at: &TargetPath, changes: &AttributeChanges) -> Result<()> {
        let (_, number) = self.find(at)?;
        if let Some(mode) = changes.mode {
            self.check_owner(number)?;
            let foreign = !self.is_root() && !self.is_member(self.nodes[&number].gid);
            self.node(number).mode = if foreign { mode & !SET_GID } else { mode };
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            self.chown(number, changes)?;
        }
        let now_ns = self.now_ns();
        if let Some(size) = changes.size {
            self.check_writable(number)?;
            let mut bytes = self.nodes[&number].bytes.to_vec();
            bytes.resize(usize::try_from(size).expect("a size that fits memory"), 0);
            self.give_content(number, bytes);
        }
        if changes.atime_ns.is_some() || changes.mtime_ns.is_some() {
            self.check_owner(number)?;
            let node = self.node(number);
            node.atime_ns = changes.atime_ns.unwrap_or(node.atime_ns);
            node.mtime_ns = changes.mtime_ns.unwrap_or(node.mtime_ns);
        }
        self.node(number).ctime_ns = now_ns;
        Ok(())
    }

    fn chown(&mut self, number: u64, changes: &AttributeChanges) -> Result<()> {
        let node = &self.nodes[&number];
        if !self.is_root() {
            self.check_owner(number)?;
            let gives_away = changes.uid.is_some_and(|uid| uid != node.uid);
            let joins = changes.gid.is_some_and(|gid| gid != node.gid && !self.is_member(gid));
            if gives_away || joins {
                return Err(Kind::NotPermitted);
            }
        }
        if node.kind != FileKind::Directory {
            self.drop_set_id(number);
        }
        let node = self.node(number);
        node.uid = changes.uid.unwrap_or(node.uid);
        node.gid = changes.gid.unwrap_or(node.gid);
        Ok(())
    }

    /// Fails unless this identity may change the attribute `name` of a node.
    fn check_xattr(&self, number: u64, name: &[u8]) -> Result<()> {
        if !name.starts_with(b"user.") {
            return if self.is_root() { Ok(()) } else { Err(Kind::NotPermitted) };
        }
        let node = &self.nodes[&number];
        match node.kind {
            FileKind::File => {}
            FileKind::Directory if node.mode & STICKY == 0 => {}
            FileKind::Directory => self.check_owner(number)?,
            _ => return Err(Kind::NotPermitted),
        }
        self.check(number, WRITE)
    }

    fn set_xattr(
        &mut self,
        at: &TargetPath,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        let (_, number) = self.find(at)?;
        self.check_xattr(number, name)?;
        match (how, self.nodes[&number].xattrs.contains_key(name)) {
            (XattrSet::Create, true) => return Err(Kind::Exists),
            (XattrSet::Replace, false) => return Err(Kind::NoAttribute),
            _ => {}
        }
        let now_ns = self.now_ns();
        let node = self.node(number);
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.ctime_ns = now_ns;
        Ok(())
    }

    fn remove_xattr(&mut self, at: &TargetPath, name: &[u8]) -> Result<()> {
        let (_, number) = self.find(at)?;
        self.check_xattr(number, name)?;
        let now_ns = self.now_ns();
        let node = self.node(number);
        node.xattrs.remove(name).ok_or(Kind::NoAttribute)?;
        node.ctime_ns = now_ns;
        Ok(())
    }
}

impl Node {
    fn attributes(&self) -> Attributes {
        Attributes {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            rdev: self.rdev,
            size: self.bytes.len() as u64,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            atime_ns: self.atime_ns,
        }
    }

    /// Records a rename. POSIX leaves open whether that changes the inode's time.
    fn moved(&mut self, now_ns: i64) {
        self.ctime_ns = if self.was_linked { ANY_TIME } else { now_ns };
    }
}
