// SPDX-License-Identifier: Apache-2.0
//! Driver: the kernel's requests, one method for each, answered by the operations of the other
//! modules.
//!
//! The driver itself decides only which features it asks of the kernel (`init`) and how long the
//! kernel may cache replies.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use esker_fs::inode::FileKind;
use esker_fuse_ring::{AttrChanges, KEPT_SECONDS};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use rustix::fs::OFlags;

use crate::attributes::type_of;
use crate::backing::Backing;
use crate::listing::{EntrySink, ShownEntry};
use crate::make::{Caller, CreateRequest};
use crate::mount_state::MountState;
use crate::replies::{GENERATION, attributes, dot, drops_set_id, empty, entry, new_time, value};
use crate::ring_driver::rename_flags;
use crate::statistics::RequestKind;

/// Time for which the kernel may cache names and attributes.
const TTL: Duration = Duration::from_secs(KEPT_SECONDS);
/// Blocks of 4 KiB reported for stores of unknown size: 4 PiB.
const BLOCKS_UNKNOWN: u64 = 1 << 40;
/// Bytes of one request; the kernel's own limit unless `fs.fuse.max_pages_limit` was raised.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Number of requests that the kernel may have in flight in the background: read-ahead and
/// write-back.
const BACKGROUND_MAX: u16 = 64;

/// The mount's state behind the FUSE library's interface.
pub(crate) struct FuseDriver(pub(crate) Arc<MountState>);

/// A listing that is sent by the FUSE library.
pub(crate) trait ListReply: EntrySink {
    /// Sends the entries, or the error.
    fn end(self, listed: Result<(), Errno>);
}

impl EntrySink for ReplyDirectory {
    const WITH_ATTRIBUTES: bool = false;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        let (number, kind) = match shown {
            ShownEntry::Kind(number, kind) => (INodeNo(number), type_of(kind)),
            ShownEntry::All(attr) => (attr.ino, attr.kind),
        };
        !self.add(number, cookie, kind, OsStr::from_bytes(name))
    }
}

impl ListReply for ReplyDirectory {
    fn end(self, listed: Result<(), Errno>) {
        match listed {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }
}

impl EntrySink for ReplyDirectoryPlus {
    const WITH_ATTRIBUTES: bool = true;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        let attr = match shown {
            ShownEntry::All(attr) => attr,
            // For the two dots the kernel reads only number and kind.
            ShownEntry::Kind(number, kind) => dot(number, kind),
        };
        !self.add(attr.ino, cookie, OsStr::from_bytes(name), &TTL, &attr, GENERATION)
    }
}

impl ListReply for ReplyDirectoryPlus {
    fn end(self, listed: Result<(), Errno>) {
        match listed {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }
}

/// The reply flags for a file opened with `flags`. The kernel's cached pages stay valid. It sends a
/// `flush` at each close only if that close must wait for the store.
pub(crate) fn open_flags(flags: OFlags, flushes_at_close: bool) -> FopenFlags {
    let may_change = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    if flushes_at_close && may_change {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
    }
}

pub(crate) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

/// Replies with the room in the directory `store`, if the store is one.
pub(crate) fn statfs(reply: ReplyStatfs, store: Option<&Path>) {
    let (blocks, free, available) = space_of(store);
    // No limit on the number of files; programs check for free ones.
    let files = u64::from(u32::MAX);
    reply.statfs(blocks, free, available, files, files, 4096, 255, 4096);
}

/// Blocks of 4 KiB in the directory `store`: in total, free, and available to ordinary users.
pub(crate) fn space_of(store: Option<&Path>) -> (u64, u64, u64) {
    let known = store.and_then(|store| rustix::fs::statvfs(store).ok());
    known.map_or((BLOCKS_UNKNOWN, BLOCKS_UNKNOWN, BLOCKS_UNKNOWN), |room| {
        let of = |blocks: u64| blocks.saturating_mul(room.f_frsize) / 4096;
        (of(room.f_blocks), of(room.f_bfree), of(room.f_bavail))
    })
}

impl FuseDriver {
    /// Replies with entries after `cookie`, then reads ahead.
    fn list<S: ListReply>(&self, handle: FileHandle, cookie: u64, mut reply: S) {
        let handle = match self.0.handle(handle.0) {
            Ok(handle) => handle,
            Err(errno) => return reply.end(Err(errno)),
        };
        let listed = self.0.list(&handle, cookie, &mut reply);
        let goes_on = listed.is_ok();
        reply.end(listed);
        if goes_on {
            self.0.read_ahead(&handle);
        }
    }
}

impl Filesystem for FuseDriver {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Not FUSE_ASYNC_DIO: after an asynchronous O_DIRECT write the kernel keeps pages with old
        // bytes that a buffered read brought in meanwhile; after a synchronous one it drops them.
        // Not FUSE_ATOMIC_O_TRUNC: a file would be truncated before the kernel notices that it is
        // being executed, and refuses.
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        // A file handle would work only while the kernel remembers the file. Refuse handles, rather
        // than give out some that break later.
        wanted |= InitFlags::FUSE_NO_EXPORT_SUPPORT;
        if self.0.writes_back {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if self.0.may_pass_through() {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
            // The store's own file system may not support stacking.
            let _ = config.set_max_stack_depth(1);
        }
        if self.0.wants_rings.load(Ordering::Relaxed) {
            wanted |= InitFlags::FUSE_OVER_IO_URING;
        }
        let offered = wanted & config.capabilities();
        let passes_through = offered.contains(InitFlags::FUSE_PASSTHROUGH);
        self.0.passes_through.store(passes_through, Ordering::Relaxed);
        let has_rings = offered.contains(InitFlags::FUSE_OVER_IO_URING);
        self.0.wants_rings.store(has_rings, Ordering::Relaxed);
        // Older kernels lack some. All are for speed except one, without which the kernel itself
        // removes set-id bits.
        let _ = config.add_capabilities(offered);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        // Fails if the kernel reads ahead less anyway.
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.0.count(RequestKind::LookUp);
        match self.0.lookup(parent.0, name.as_bytes()) {
            Ok(Some(attr)) => reply.entry(&TTL, &attr, GENERATION),
            // Number 0 lets the kernel cache that there is no such entry.
            Ok(None) => reply.entry(&TTL, &dot(0, FileKind::File), GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, count: u64) {
        self.0.count(RequestKind::Forget);
        self.0.forget(number.0, count);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.0.count(RequestKind::GetAttr);
        attributes(reply, &TTL, self.0.node(number.0).and_then(|node| self.0.attributes(&node)));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.0.count(RequestKind::SetAttr);
        let drops_set_id = drops_set_id(request);
        let (atime, mtime) = (atime.map(new_time), mtime.map(new_time));
        let ctime = ctime.map(|time| new_time(TimeOrNow::SpecificTime(time)));
        let wanted = AttrChanges { mode, uid, gid, size, atime, mtime, ctime };
        let node = self.0.node(number.0);
        attributes(reply, &TTL, node.and_then(|node| self.0.change(&node, &wanted, drops_set_id)));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.0.count(RequestKind::ReadLink);
        match self.0.target(number.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.0.count(RequestKind::MkNod);
        let asked = CreateRequest::node(mode, rdev);
        let name = name.as_bytes();
        entry(
            reply,
            &TTL,
            asked.and_then(|asked| self.0.make(caller(request), parent.0, name, &asked)),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.0.count(RequestKind::MkDir);
        let asked = CreateRequest::new(FileKind::Directory, mode);
        entry(reply, &TTL, self.0.make(caller(request), parent.0, name.as_bytes(), &asked));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.0.count(RequestKind::SymLink);
        let target = target.as_os_str().as_bytes();
        let asked = CreateRequest { target, ..CreateRequest::new(FileKind::Symlink, 0o777) };
        entry(reply, &TTL, self.0.make(caller(request), parent.0, name.as_bytes(), &asked));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.count(RequestKind::Unlink);
        empty(reply, self.0.unlink(parent.0, name.as_bytes()));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.count(RequestKind::RmDir);
        empty(reply, self.0.rmdir(parent.0, name.as_bytes()));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::Rename);
        let flags = match rename_flags(flags) {
            Ok(flags) => flags,
            Err(errno) => return reply.error(errno),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        empty(reply, self.0.rename(from, to, flags));
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.0.count(RequestKind::Link);
        entry(reply, &TTL, self.0.link(number.0, parent.0, name.as_bytes()));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.0.count(RequestKind::Open);
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        let register = |file: &File| reply.open_backing(file).map(Backing::OfLibrary);
        match self.0.open(number.0, flags, drops_set_id(request), register) {
            Ok(None) => {
                let flags = open_flags(flags, self.0.flushes_at_close());
                reply.opened(FileHandle(0), flags);
            }
            // Never a file of a session that syncs each change, so `close` need not wait.
            Ok(Some(backing)) => match &*backing {
                Backing::OfLibrary(backing) => {
                    reply.opened_passthrough(FileHandle(0), FopenFlags::FOPEN_NOFLUSH, backing);
                }
                Backing::Own(_) => reply.error(Errno::EIO),
            },
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.0.count(RequestKind::Create);
        let asked = CreateRequest::new(FileKind::File, mode);
        let register = |file: &File| reply.open_backing(file).map(Backing::OfLibrary);
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let asked = (&asked, flags);
        match self.0.create(caller(request), parent.0, name.as_bytes(), asked, register) {
            Ok((attr, None)) => {
                let flags = open_flags(flags, self.0.flushes_at_close());
                reply.created(&TTL, &attr, GENERATION, FileHandle(0), flags);
            }
            Ok((attr, Some(backing))) => match &*backing {
                Backing::OfLibrary(backing) => {
                    let (handle, flags) = (FileHandle(0), FopenFlags::FOPEN_NOFLUSH);
                    reply.created_passthrough(&TTL, &attr, GENERATION, handle, flags, backing);
                }
                Backing::Own(_) => reply.error(Errno::EIO),
            },
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.count(RequestKind::Read);
        match self.0.read(number.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.count(RequestKind::Write);
        match self.0.write(number.0, offset, data, flags) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, number: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.count(RequestKind::Flush);
        if self.0.flushes_at_close() {
            empty(reply, self.0.flush(number.0));
        } else {
            // No program waits for a release. After this answer the kernel sends no more flushes.
            reply.error(Errno::ENOSYS);
        }
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::Release);
        empty(reply, self.0.release(number.0));
    }

    fn fsync(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::Fsync);
        empty(reply, self.0.fsync(number.0));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.count(RequestKind::OpenDir);
        match self.0.open_handle(number.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectory,
    ) {
        self.0.count(RequestKind::ReadDir);
        self.list(handle, cookie, reply);
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.0.count(RequestKind::ReadDirPlus);
        self.list(handle, cookie, reply);
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::ReleaseDir);
        self.0.close_handle(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.0.count(RequestKind::FsyncDir);
        empty(reply, self.0.sync_all());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.0.count(RequestKind::StatFs);
        statfs(reply, self.0.store.as_deref());
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::SetXattr);
        empty(reply, self.0.set_xattr(number.0, name.as_bytes(), value, flags));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.0.count(RequestKind::GetXattr);
        value(reply, size, self.0.xattr(number.0, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.0.count(RequestKind::ListXattr);
        value(reply, size, self.0.xattr_names(number.0, request.uid() == 0));
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.count(RequestKind::RemoveXattr);
        empty(reply, self.0.remove_xattr(number.0, name.as_bytes()));
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::Fallocate);
        let how = (mode, drops_set_id(request));
        empty(reply, self.0.fallocate(number.0, offset, length, how));
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.0.count(RequestKind::Lseek);
        match self.0.seek(number.0, offset, whence) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.0.count(RequestKind::CopyFileRange);
        let drops_set_id = drops_set_id(request);
        match self.0.copy((from.0, offset), (to.0, to_offset), length, drops_set_id) {
            Ok(count) => reply.written(u32::try_from(count).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
