// SPDX-License-Identifier: Apache-2.0
//! Live node: a file of a live namespace that the kernel knows.
//!
//! A node has the name under which the kernel last saw the file. Other clients may have moved it
//! since, so requests also carry its identity. Concurrency: `place` is a leaf. `opens` is held over
//! the request that opens or closes the file at the server, so that these come in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use esker_fs::inode::{DirId, FileKind, SeatFile};
use esker_live::client::{LiveDir, LiveFile, SeatPlace};
use esker_live::wire::{LiveAttributes, PATH_BYTES_MAX};
use parking_lot::Mutex;

use crate::node_table::{NumberedNode, ROOT};

/// A file of a live namespace that the kernel knows.
#[derive(Debug)]
pub(super) struct LiveNode {
    /// Its inode number.
    pub(super) number: u64,
    /// Its identity.
    pub(super) id: u128,
    pub(super) kind: FileKind,
    /// Its seat, if it is a directory at another seat than its name.
    seat: Option<u16>,
    /// The permission bits that the kernel was last told.
    pub(super) mode: AtomicU32,
    /// The state of the content that the kernel was last told.
    pub(super) shown: Mutex<Option<ContentState>>,
    /// Number of losses of changes up to which a sync of this file has failed.
    pub(super) losses: AtomicU64,
    /// True once this mount has removed its last name.
    pub(super) is_unnamed: AtomicBool,
    /// Its name; `None` for the root.
    place: Mutex<Option<NodePlace>>,
    pub(super) opens: Mutex<NodeOpens>,
}

/// The name of a node.
#[derive(Clone, Debug)]
struct NodePlace {
    parent: Arc<LiveNode>,
    name: Box<[u8]>,
    /// The file, if it is at another seat than the name.
    file: Option<SeatFile>,
}

/// The opens of a file.
#[derive(Debug, Default)]
pub(super) struct NodeOpens {
    /// Their number. The server has the file open while it is above 0.
    pub(super) count: u64,
    /// The state of the file at the last open: while it is the same, the kernel's pages are valid.
    pub(super) seen: Option<ContentState>,
}

/// The attributes that change with the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentState {
    mtime_ns: i64,
    ctime_ns: i64,
    size: u64,
}

/// The file of a node as requests name it.
#[derive(Debug)]
pub(super) struct FileReference {
    dir: LiveDir,
    name: Box<[u8]>,
    id: u128,
}

impl ContentState {
    pub(super) fn of(attributes: &LiveAttributes) -> Self {
        let LiveAttributes { mtime_ns, ctime_ns, size, .. } = *attributes;
        Self { mtime_ns, ctime_ns, size }
    }
}

impl FileReference {
    pub(super) fn file(&self) -> LiveFile<'_> {
        LiveFile { dir: &self.dir, name: &self.name, id: self.id }
    }
}

impl LiveNode {
    pub(super) fn root() -> Self {
        Self::new(ROOT, ((DirId::ROOT.0, FileKind::Directory), None), None)
    }

    /// The node of a file that was found as `name` in `parent`: identity and kind, and its seat if it
    /// is a directory at another one.
    pub(super) fn at(
        number: u64,
        of: ((u128, FileKind), Option<u16>),
        (parent, name): (&Arc<Self>, &[u8]),
    ) -> Self {
        let place = NodePlace { parent: parent.clone(), name: name.into(), file: None };
        Self::new(number, of, Some(place))
    }

    fn new(
        number: u64,
        ((id, kind), seat): ((u128, FileKind), Option<u16>),
        place: Option<NodePlace>,
    ) -> Self {
        let (place, opens) = (Mutex::new(place), Mutex::default());
        let (mode, is_unnamed) = (AtomicU32::new(0), AtomicBool::new(false));
        let (shown, losses) = (Mutex::default(), AtomicU64::new(0));
        Self { number, id, kind, seat, mode, shown, losses, is_unnamed, place, opens }
    }

    /// Records that the file is now `name` in `parent`, or `file` at another seat that has this name.
    pub(super) fn moved(&self, parent: &Arc<Self>, name: &[u8], file: Option<SeatFile>) {
        if self.number != ROOT && self.number != parent.number {
            let place = NodePlace { parent: parent.clone(), name: name.into(), file };
            let before = self.place.lock().replace(place);
            drop(before);
            self.is_unnamed.store(false, Ordering::Relaxed);
        }
    }

    /// The name and the directory of a file, for a look-up; `None` for the root.
    pub(super) fn parent_and_name(&self) -> Option<(LiveDir, Box<[u8]>)> {
        let place = self.place.lock().clone();
        place.map(|place| (place.parent.dir(), place.name))
    }

    /// The number of the directory above; that of the root for the root.
    pub(super) fn parent_number(&self) -> u64 {
        self.place.lock().as_ref().map_or(ROOT, |place| place.parent.number)
    }

    /// The directory of a node that is one.
    pub(super) fn dir(&self) -> LiveDir {
        let (mut seat, mut names, mut bytes) = (self.seat, Vec::new(), 0);
        // Ends once the path is too long for any server: after moves by other clients the nodes may
        // even form a loop.
        let mut top = (DirId(self.id), self.place.lock().clone());
        while let (None, Some(NodePlace { parent, name, .. })) = (seat, &top.1) {
            bytes += name.len() + 1;
            names.push(name.clone());
            if bytes > PATH_BYTES_MAX {
                break;
            }
            seat = parent.seat;
            let above = (DirId(parent.id), parent.place.lock().clone());
            top = above;
        }
        names.reverse();
        let path: Arc<[u8]> = names.join(&b'/').into();
        let (seat, top) = seat.map_or((0, DirId::ROOT), |seat| (seat, top.0));
        // Entries of a spread directory are at the seats that have their names there.
        let seat = match names.first() {
            Some(name) if top.parts() > 1 => top.part_of(name),
            _ => seat,
        };
        let place = SeatPlace { seat, top, path: path.clone() };
        LiveDir { id: DirId(self.id), path, place }
    }

    /// The file as requests name it: a directory by itself, other files by their directories.
    pub(super) fn reference(&self) -> FileReference {
        if self.kind == FileKind::Directory {
            return FileReference { dir: self.dir(), name: Box::default(), id: self.id };
        }
        let place = self.place.lock().clone();
        match place {
            Some(NodePlace { file: Some(file), .. }) => {
                let (dir, name) = (LiveDir::seat_roots(file.seat), file.root_name());
                FileReference { dir, name: name.into_bytes().into(), id: self.id }
            }
            Some(NodePlace { parent, name, .. }) => {
                FileReference { dir: parent.dir(), name, id: self.id }
            }
            None => FileReference { dir: LiveDir::root(), name: Box::default(), id: self.id },
        }
    }

    /// True if a write by somebody else than the superuser removes permission bits.
    pub(super) fn has_set_id(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & 0o6000 != 0
    }
}

impl NumberedNode for LiveNode {
    fn number(&self) -> u64 {
        self.number
    }

    fn id(&self) -> u128 {
        self.id
    }

    fn is_unused(&self) -> bool {
        self.opens.try_lock().is_some_and(|opens| opens.count == 0)
    }
}

impl Drop for LiveNode {
    /// Frees the directories above one after another: there may be too many for a recursion.
    fn drop(&mut self) {
        let mut next = self.place.get_mut().take();
        while let Some(place) = next {
            next = Arc::into_inner(place.parent).and_then(|mut node| node.place.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(parent: &Arc<LiveNode>, number: u64, name: &[u8]) -> Arc<LiveNode> {
        let of = ((u128::from(number), FileKind::Directory), None);
        Arc::new(LiveNode::at(number, of, (parent, name)))
    }

    #[test]
    fn paths_follow_moves_and_end_in_a_loop() {
        let root = Arc::new(LiveNode::root());
        let a = child(&root, 2, b"a");
        let b = child(&a, 3, b"b");
        assert_eq!((&*root.dir().path, &*b.dir().path), (&b""[..], &b"a/b"[..]));
        a.moved(&root, b"c", None);
        assert_eq!(&*b.dir().path, b"c/b");
        a.moved(&b, b"a", None);
        assert!(b.dir().path.len() > PATH_BYTES_MAX);
        // Break the loop, which would leak.
        a.moved(&root, b"a", None);
    }

    #[test]
    fn paths_begin_at_the_directory_that_is_at_another_seat() {
        let root = Arc::new(LiveNode::root());
        let of = ((7, FileKind::Directory), Some(3));
        let far = Arc::new(LiveNode::at(2, of, (&root, b"far")));
        let below = child(&far, 8, b"below");
        let places = [far.dir(), below.dir()].map(|dir| dir.place);
        assert_eq!((places[0].seat, places[0].top, &*places[0].path), (3, DirId(7), &b""[..]));
        assert_eq!((places[1].seat, places[1].top, &*places[1].path), (3, DirId(7), &b"below"[..]));
        assert_eq!(far.parent_and_name().expect("it has a name").0.place.seat, 0);
    }

    #[test]
    fn a_file_at_another_seat_than_its_name_is_named_there() {
        let root = Arc::new(LiveNode::root());
        let node = LiveNode::at(2, ((7, FileKind::File), None), (&root, b"f"));
        assert_eq!(node.reference().file().name, b"f");
        let file = SeatFile::new(3, 7, 0);
        node.moved(&root, b"f", Some(file));
        let reference = node.reference();
        assert_eq!(reference.file().name, file.root_name().as_bytes());
        assert_eq!((reference.dir.place.seat, reference.dir.id), (3, DirId::SEAT_ROOTS));
        assert_eq!(&*node.parent_and_name().expect("it has a name").1, b"f");
    }

    #[test]
    fn a_deep_chain_is_freed_without_recursion() {
        let mut node = Arc::new(LiveNode::root());
        for number in 2..1_000_000 {
            node = child(&node, number, b"d");
        }
        drop(node);
    }
}
