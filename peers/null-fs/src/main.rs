// SPDX-License-Identifier: Apache-2.0
//! Null file system: the upper bound for any FUSE file system with these options on this machine.
//!
//! Names, attributes and bytes are in memory behind one short lock, and gone when it ends: no log,
//! no checks, no sizes beyond memory. No user-space file system does more per second.
//!
//! usage: null-fs [--threads N] [--transport threads|uring] MOUNTPOINT
//! It stays in the foreground until it is unmounted.

mod by_rings;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectoryPlus, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};

/// As long as Esker's, so that the kernel asks for nothing twice.
const TTL: Duration = Duration::from_secs(3600);
const GENERATION: Generation = Generation(0);
const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

struct Node {
    attr: FileAttr,
    data: Vec<u8>,
    /// Entries of a directory in order of creation; offsets are positions.
    entries: Vec<Option<(Box<OsStr>, u64)>>,
    places: HashMap<Box<OsStr>, usize>,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

#[derive(Clone)]
struct NullFs {
    tree: Arc<Mutex<Tree>>,
    /// Whether the kernel is asked for rings.
    wants_rings: bool,
}

impl Tree {
    fn make(&mut self, kind: FileType, mode: u32, (uid, gid): (u32, u32)) -> FileAttr {
        let ino = self.next;
        self.next += 1;
        let now = SystemTime::now();
        let attr = FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: UNIX_EPOCH,
            kind,
            perm: (mode & 0o7777) as u16,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let (entries, places) = Default::default();
        self.nodes.insert(ino, Node { attr, data: Vec::new(), entries, places });
        attr
    }

    fn put(&mut self, parent: u64, name: &OsStr, ino: u64) -> Result<(), Errno> {
        let dir = self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?;
        dir.places.insert(name.into(), dir.entries.len());
        dir.entries.push(Some((name.into(), ino)));
        Ok(())
    }

    fn take(&mut self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        let dir = self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?;
        let place = dir.places.remove(name).ok_or(Errno::ENOENT)?;
        let (_, ino) = dir.entries[place].take().ok_or(Errno::EIO)?;
        Ok(ino)
    }

    /// Writes `data` at `start` of a file; returns its length.
    fn write(&mut self, ino: u64, start: usize, data: &[u8]) -> Result<u32, Errno> {
        let node = self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)?;
        if node.data.len() == start {
            node.data.extend_from_slice(data);
        } else {
            let length = node.data.len().max(start + data.len());
            node.data.resize(length, 0);
            node.data[start..start + data.len()].copy_from_slice(data);
        }
        node.attr.size = node.data.len() as u64;
        Ok(data.len() as u32)
    }

    fn find(&self, parent: u64, name: &OsStr) -> Option<&FileAttr> {
        let dir = self.nodes.get(&parent)?;
        let (_, ino) = dir.entries[*dir.places.get(name)?].as_ref()?;
        self.nodes.get(ino).map(|node| &node.attr)
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO;
        if self.wants_rings {
            wanted |= InitFlags::FUSE_OVER_IO_URING;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        let mut tree = self.tree.lock().expect("nobody panics");
        tree.next = 1;
        tree.make(FileType::Directory, 0o755, user(req));
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree.lock().expect("nobody panics").find(parent.0, name) {
            Some(attr) => reply.entry(&TTL, attr, GENERATION),
            // Inode number 0 lets the kernel cache the absence.
            None => reply.entry(&TTL, &NOTHING, GENERATION),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.lock().expect("nobody panics").nodes.get(&ino.0) {
            Some(node) => reply.attr(&TTL, &node.attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.tree.lock().expect("nobody panics").nodes.get_mut(&ino.0) {
            Some(node) => {
                node.attr.perm = mode.map_or(node.attr.perm, |mode| (mode & 0o7777) as u16);
                if let Some(size) = size {
                    node.data.resize(size as usize, 0);
                    node.attr.size = size;
                }
                reply.attr(&TTL, &node.attr);
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let mut tree = self.tree.lock().expect("nobody panics");
        let attr = tree.make(FileType::Directory, mode, user(req));
        match tree.put(parent.0, name, attr.ino.0) {
            Ok(()) => reply.entry(&TTL, &attr, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut tree = self.tree.lock().expect("nobody panics");
        match tree.take(parent.0, name) {
            // Files still open elsewhere are dropped, too: this file system is not for keeping
            // data.
            Ok(ino) => {
                let gone = tree.nodes.remove(&ino);
                drop(tree);
                drop(gone);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.unlink(req, parent, name, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut tree = self.tree.lock().expect("nobody panics");
        let moved = tree.take(parent.0, name).and_then(|ino| {
            if let Ok(replaced) = tree.take(new_parent.0, new_name) {
                tree.nodes.remove(&replaced);
            }
            tree.put(new_parent.0, new_name, ino)
        });
        match moved {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut tree = self.tree.lock().expect("nobody panics");
        let attr = tree.make(FileType::RegularFile, mode, user(req));
        let done = tree.put(parent.0, name, attr.ino.0);
        drop(tree);
        match done {
            Ok(()) => reply.created(&TTL, &attr, GENERATION, FileHandle(0), open_flags()),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), open_flags());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.tree.lock().expect("nobody panics").nodes.get(&ino.0) {
            Some(node) => {
                let start = node.data.len().min(offset as usize);
                let end = node.data.len().min(start + size as usize);
                reply.data(&node.data[start..end]);
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut tree = self.tree.lock().expect("nobody panics");
        match tree.write(ino.0, offset as usize, data) {
            Ok(count) => reply.written(count),
            Err(errno) => reply.error(errno),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree.lock().expect("nobody panics");
        let Some(dir) = tree.nodes.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        for (place, entry) in dir.entries.iter().enumerate().skip(offset as usize) {
            let Some((name, child)) = entry else { continue };
            let kind = tree.nodes[child].attr.kind;
            if reply.add(INodeNo(*child), place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let tree = self.tree.lock().expect("nobody panics");
        let Some(dir) = tree.nodes.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        for (place, entry) in dir.entries.iter().enumerate().skip(offset as usize) {
            let Some((name, child)) = entry else { continue };
            let attr = &tree.nodes[child].attr;
            if reply.add(attr.ino, place as u64 + 1, name, &TTL, attr, GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }
}

fn user(request: &Request) -> (u32, u32) {
    (request.uid(), request.gid())
}

fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut threads, mut wants_rings, mut mountpoint) = (4, false, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(4),
            "--transport" => wants_rings = arguments.next().as_deref() == Some("uring"),
            _ => mountpoint = Some(argument),
        }
    }
    let mountpoint = mountpoint.expect("usage: null-fs [--threads N] [--transport threads|uring] MOUNTPOINT");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("null-fs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let tree = Arc::new(Mutex::new(Tree { nodes: HashMap::new(), next: 1 }));
    let null = NullFs { tree, wants_rings };
    if wants_rings {
        return by_rings::serve(null, &mountpoint, &config, threads);
    }
    fuser::mount(null, mountpoint, &config)
}
