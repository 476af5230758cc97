// SPDX-License-Identifier: Apache-2.0
//! Live driver: the kernel's requests to a mount of a live namespace, one method for each.
//!
//! Other clients change the namespace, so the kernel caches names and attributes only for a short
//! time, absent names not at all, and drops the pages of a file whose attributes have changed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use esker_fs::inode::FileKind;
use esker_fuse_ring::AttrChanges;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::OFlags;

use super::live_state::LiveState;
use crate::driver::{ListReply, REQUEST_BYTES_MAX, caller, statfs};
use crate::listing::{EntrySink, ShownEntry};
use crate::make::CreateRequest;
use crate::replies::{GENERATION, attributes, drops_set_id, empty, entry, new_time, value};
use crate::ring_driver::rename_flags;
use crate::statistics::RequestKind;

/// The state of a mount of a live namespace behind the FUSE library's interface.
pub(crate) struct LiveDriver(pub(super) Arc<LiveState>);

impl LiveDriver {
    fn list<S: ListReply>(&self, handle: FileHandle, cookie: u64, mut reply: S) {
        let listing = self.0.listing(handle.0);
        let listed = listing.and_then(|listing| self.0.list(&listing, cookie, &mut reply));
        reply.end(listed);
    }

    fn make(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        asked: Result<CreateRequest, Errno>,
        reply: ReplyEntry,
    ) {
        let make = |asked: CreateRequest| {
            self.0.make(parent.0, name.as_bytes(), &asked.by(caller(request)))
        };
        let made = asked.and_then(make);
        entry(reply, &self.0.ttl, made);
    }
}

/// A directory listing with attributes, which the kernel may keep for a while.
struct TimedListing<'a> {
    reply: ReplyDirectoryPlus,
    state: &'a LiveState,
}

impl EntrySink for TimedListing<'_> {
    const WITH_ATTRIBUTES: bool = true;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        let attr = match shown {
            ShownEntry::All(attr) => attr,
            // For the two dots the kernel reads only number and kind.
            ShownEntry::Kind(number, kind) => crate::replies::dot(number, kind),
        };
        let name = OsStr::from_bytes(name);
        !self.reply.add(attr.ino, cookie, name, &self.state.ttl, &attr, GENERATION)
    }
}

impl ListReply for TimedListing<'_> {
    fn end(self, listed: Result<(), Errno>) {
        self.reply.end(listed);
    }
}

impl Filesystem for LiveDriver {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_AUTO_INVAL_DATA
            // Files that are opened to append to are not cached.
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            // A file handle would work only while the kernel remembers the file.
            | InitFlags::FUSE_NO_EXPORT_SUPPORT;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        // Fails if the kernel reads ahead less anyway.
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.0.count(RequestKind::LookUp);
        match self.0.lookup(parent.0, name.as_bytes()) {
            Ok((attr, ttl)) => reply.entry(&ttl, &attr, GENERATION),
            // Absent names, too: another client may make one at any time.
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, count: u64) {
        self.0.count(RequestKind::Forget);
        self.0.forget(number.0, count);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.0.count(RequestKind::GetAttr);
        attributes(reply, &self.0.ttl, self.0.attributes(number.0));
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
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.0.count(RequestKind::SetAttr);
        let (atime, mtime) = (atime.map(new_time), mtime.map(new_time));
        let wanted = AttrChanges { mode, uid, gid, size, atime, mtime, ctime: None };
        let changed = self.0.set_attributes(number.0, &wanted, drops_set_id(request));
        attributes(reply, &self.0.ttl, changed);
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
        self.make(request, (parent, name), CreateRequest::node(mode, rdev), reply);
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
        self.make(request, (parent, name), Ok(asked), reply);
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
        self.make(request, (parent, name), Ok(asked), reply);
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
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        empty(reply, rename_flags(flags).and_then(|flags| self.0.rename(from, to, flags)));
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.0.count(RequestKind::Link);
        entry(reply, &self.0.ttl, self.0.link(number.0, parent.0, name.as_bytes()));
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.0.count(RequestKind::Open);
        match self.0.open(number.0, OFlags::from_bits_retain(flags.0.cast_unsigned())) {
            Ok(flags) => reply.opened(FileHandle(0), flags),
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
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let wanted = (&asked.by(caller(request)), flags.contains(OFlags::EXCL));
        match self.0.create(parent.0, name.as_bytes(), wanted) {
            Ok(attr) => {
                let flags = match flags.contains(OFlags::APPEND) {
                    true => FopenFlags::FOPEN_DIRECT_IO,
                    false => FopenFlags::FOPEN_KEEP_CACHE,
                };
                reply.created(&self.0.ttl, &attr, GENERATION, FileHandle(0), flags);
            }
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
        opened: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.count(RequestKind::Write);
        let drops_set_id = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let opened = OFlags::from_bits_retain(opened.0.cast_unsigned());
        let written = match opened.contains(OFlags::APPEND) {
            true => self.0.append(number.0, (data, drops_set_id)),
            false => self.0.write(number.0, offset, (data, drops_set_id)),
        };
        // The kernel itself syncs what it writes through its pages.
        let syncs = opened.contains(OFlags::APPEND) && opened.intersects(OFlags::DSYNC);
        let written =
            written.and_then(|()| if syncs { self.0.sync_file(number.0) } else { Ok(()) });
        match written {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.count(RequestKind::Flush);
        // The server has every write that was answered. After this answer the kernel sends no more
        // flushes; it goes on to write pages of mapped files at each close.
        reply.error(Errno::ENOSYS);
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
        empty(reply, self.0.sync_file(number.0));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.count(RequestKind::OpenDir);
        match self.0.open_listing(number.0) {
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
        self.list(handle, cookie, TimedListing { reply, state: &self.0 });
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
        self.0.close_listing(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.count(RequestKind::FsyncDir);
        empty(reply, self.0.sync_file(number.0));
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
        empty(reply, self.0.set_xattr(number.0, (name.as_bytes(), value), flags));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.0.count(RequestKind::GetXattr);
        value(reply, size, self.0.xattr(number.0, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.0.count(RequestKind::ListXattr);
        value(reply, size, self.0.xattr_names(number.0, request.uid() == 0));
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
        empty(reply, self.0.allocate(number.0, (offset, length), how));
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.count(RequestKind::RemoveXattr);
        empty(reply, self.0.remove_xattr(number.0, name.as_bytes()));
    }
}
