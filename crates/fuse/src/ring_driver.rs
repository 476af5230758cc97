// SPDX-License-Identifier: Apache-2.0
//! Ring driver: answers requests that come through rings by the operations of the other modules.
//!
//! The counterpart of `driver`, which answers the requests that the FUSE library reads. Both decide
//! only the flags and cache times that accompany an operation's outcome; `Filesystem::init` is in
//! `driver` for both. This file also decides which requests the thread of a ring answers itself.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esker_base::Bytes;
use esker_fs::inode::FileKind;
use esker_fs::ops::RenameFlags;
use esker_fuse_ring::{Answer, Answerer, FollowUp, Listing, Operation, Request};
use fuser::{Errno, FileAttr, FopenFlags, WriteFlags};
use rustix::fs::OFlags;

use crate::attributes::type_of;
use crate::backing::Backing;
use crate::driver::{open_flags, space_of};
use crate::listing::{EntrySink, ShownEntry};
use crate::make::{Caller, CreateRequest};
use crate::mount_state::MountState;
use crate::replies::dot;
use crate::statistics::RequestKind;

/// Helpers answer larger reads and writes, which take longer than waking a helper.
const QUICK_BYTES_MAX: usize = 64 << 10;

/// The mount's state behind the interface of rings.
pub(crate) struct RingDriver {
    pub(crate) state: Arc<MountState>,
    /// The mount's device, at which files of the store are registered.
    pub(crate) device: Arc<OwnedFd>,
}

/// A listing without attributes.
struct Names(Listing);

/// A listing with attributes; the kernel counts a look-up of each entry.
struct Entries(Listing);

impl EntrySink for Names {
    const WITH_ATTRIBUTES: bool = false;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        let (number, kind) = match shown {
            ShownEntry::Kind(number, kind) => (number, type_of(kind)),
            ShownEntry::All(attr) => (attr.ino.0, attr.kind),
        };
        self.0.add(number, cookie, kind, name)
    }
}

impl EntrySink for Entries {
    const WITH_ATTRIBUTES: bool = true;

    fn put(&mut self, cookie: u64, name: &[u8], shown: ShownEntry) -> bool {
        let attr = match shown {
            ShownEntry::All(attr) => attr,
            // For the two dots the kernel reads only number and kind.
            ShownEntry::Kind(number, kind) => dot(number, kind),
        };
        self.0.add_with_attributes(&attr, cookie, name)
    }
}

impl Answerer for RingDriver {
    fn is_quick(&self, request: &Request<'_>) -> bool {
        let is_change = !matches!(
            request.operation,
            Operation::LookUp { .. }
                | Operation::GetAttr
                | Operation::ReadLink
                | Operation::Open { .. }
                | Operation::Read { .. }
                | Operation::OpenDir
                | Operation::ReadDir { .. }
                | Operation::ReleaseDir { .. }
                | Operation::GetXattr { .. }
                | Operation::ListXattr { .. }
        );
        match request.operation {
            Operation::Read { size, .. } if size as usize > QUICK_BYTES_MAX => false,
            Operation::Write { data, .. } if data.len() > QUICK_BYTES_MAX => false,
            Operation::Fsync
            | Operation::FsyncDir
            | Operation::StatFs
            | Operation::Fallocate { .. }
            | Operation::Lseek { .. }
            | Operation::CopyFileRange { .. } => false,
            Operation::Release if self.state.is_backed(request.node) => false,
            // The thread that holds the file's lock may wait for the store.
            Operation::GetAttr
            | Operation::SetAttr(_)
            | Operation::Open { .. }
            | Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::Flush
            | Operation::Release
                if self.state.is_busy(request.node) =>
            {
                false
            }
            // What gets a name is written first.
            Operation::Rename { .. } | Operation::Link { .. } if self.state.has_changed_files() => {
                false
            }
            // These changes wait for a shared sync, so many of them should be in flight at a time.
            _ if is_change && self.state.flushes_at_close() => false,
            _ => !self.state.is_far,
        }
    }

    fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno> {
        let Request { node, uid, gid, operation } = *request;
        let (state, caller) = (&*self.state, Caller { uid, gid });
        state.count(RequestKind::of(&operation));
        let drops_set_id = uid != 0;
        let done = |done: Result<(), Errno>| done.map(|()| Answer::Empty);
        match operation {
            Operation::LookUp { name } => {
                let found = state.lookup(node, name)?;
                // Number 0 lets the kernel cache that there is no such entry.
                Ok(Answer::Entry(found.unwrap_or_else(|| dot(0, FileKind::File))))
            }
            Operation::GetAttr => state.attributes(&*state.node(node)?).map(Answer::Attr),
            Operation::SetAttr(wanted) => {
                state.change(&*state.node(node)?, &wanted, drops_set_id).map(Answer::Attr)
            }
            Operation::ReadLink => state.target(node).map(data),
            Operation::SymLink { .. } | Operation::MkNod { .. } | Operation::MkDir { .. } => {
                self.make(node, caller, &operation).map(Answer::Entry)
            }
            Operation::Unlink { name } => done(state.unlink(node, name)),
            Operation::RmDir { name } => done(state.rmdir(node, name)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let flags = rename_flags(fuser::RenameFlags::from_bits_retain(flags))?;
                done(state.rename((node, name), (new_parent, new_name), flags))
            }
            Operation::Link { node: number, name } => {
                state.link(number, node, name).map(Answer::Entry)
            }
            Operation::Open { flags } => self.open(node, flags, drops_set_id),
            Operation::Create { name, flags, mode } => self.create(node, caller, name, flags, mode),
            Operation::StatFs => {
                let (blocks, free, available) = space_of(state.store.as_deref());
                Ok(Answer::Room(blocks, free, available))
            }
            Operation::OpenDir => Ok(Answer::Opened(state.open_handle(node)?, 0, 0)),
            Operation::ReadDir { handle, cookie, size, with_attributes } => {
                self.list(handle, cookie, size, with_attributes)
            }
            Operation::ReleaseDir { handle } => {
                state.close_handle(handle);
                Ok(Answer::Empty)
            }
            Operation::FsyncDir => done(state.sync_all()),
            Operation::SetXattr { name, value, flags } => {
                done(state.set_xattr(node, name, value, flags))
            }
            Operation::GetXattr { name, size } => sized(state.xattr(node, name)?, size),
            Operation::ListXattr { size } => sized(state.xattr_names(node, uid == 0)?, size),
            Operation::RemoveXattr { name } => done(state.remove_xattr(node, name)),
            of_content => self.answer_of_content(node, drops_set_id, &of_content),
        }
    }

    fn follow_up(&self, request: &Request<'_>) -> Option<FollowUp> {
        let Operation::ReadDir { handle, .. } = request.operation else { return None };
        let handle = self.state.handle(handle).ok()?;
        handle.wants_more().then(|| {
            let state = self.state.clone();
            Box::new(move || state.read_ahead(&handle)) as FollowUp
        })
    }

    fn forget(&self, node: u64, count: u64) {
        self.state.count(RequestKind::Forget);
        self.state.forget(node, count);
    }
}

impl RingDriver {
    /// Answers a request about an open file.
    fn answer_of_content(
        &self,
        node: u64,
        drops_set_id: bool,
        operation: &Operation<'_>,
    ) -> Result<Answer, Errno> {
        let state = &*self.state;
        let size = |count: usize| Answer::Size(u32::try_from(count).unwrap_or(u32::MAX));
        let done = |done: Result<(), Errno>| done.map(|()| Answer::Empty);
        match *operation {
            Operation::Read { offset, size } => {
                state.read(node, offset, size as usize).map(Answer::Data)
            }
            Operation::Write { offset, data, flags } => {
                let flags = WriteFlags::from_bits_retain(flags);
                state.write(node, offset, data, flags).map(|()| size(data.len()))
            }
            Operation::Release => done(state.release(node)),
            Operation::Fsync => done(state.fsync(node)),
            Operation::Flush if state.flushes_at_close() => done(state.flush(node)),
            Operation::Fallocate { offset, length, mode } => {
                done(state.fallocate(node, offset, length, (mode, drops_set_id)))
            }
            Operation::Lseek { offset, whence } => {
                state.seek(node, offset, whence).map(Answer::Offset)
            }
            Operation::CopyFileRange { offset, to_node, to_offset, length } => {
                let copied =
                    state.copy((node, offset), (to_node, to_offset), length, drops_set_id)?;
                Ok(Answer::Size(u32::try_from(copied).unwrap_or(u32::MAX)))
            }
            Operation::Ioctl { is_unrestricted: false } => Err(Errno::ENOTTY),
            // The kernel does not ask again. It needs no `flush`: no program waits for a release.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn make(
        &self,
        parent: u64,
        caller: Caller,
        operation: &Operation<'_>,
    ) -> Result<FileAttr, Errno> {
        let (name, asked) = match *operation {
            Operation::SymLink { name, target } => {
                (name, CreateRequest { target, ..CreateRequest::new(FileKind::Symlink, 0o777) })
            }
            Operation::MkNod { name, mode, rdev } => (name, CreateRequest::node(mode, rdev)?),
            Operation::MkDir { name, mode } => {
                (name, CreateRequest::new(FileKind::Directory, mode))
            }
            _ => return Err(Errno::ENOSYS),
        };
        self.state.make(caller, parent, name, &asked)
    }

    fn open(&self, node: u64, flags: u32, drops_set_id: bool) -> Result<Answer, Errno> {
        let register = |file: &File| Backing::register(&self.device, file);
        let flags = OFlags::from_bits_retain(flags);
        let backing = self.state.open(node, flags, drops_set_id, register)?;
        let (flags, backing) = self.reply_flags(flags, backing.as_deref());
        Ok(Answer::Opened(0, flags, backing))
    }

    fn create(
        &self,
        parent: u64,
        caller: Caller,
        name: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<Answer, Errno> {
        let register = |file: &File| Backing::register(&self.device, file);
        let asked = CreateRequest::new(FileKind::File, mode);
        let asked = (&asked, OFlags::from_bits_retain(flags));
        let (attr, backing) = self.state.create(caller, parent, name, asked, register)?;
        let (flags, backing) = self.reply_flags(asked.1, backing.as_deref());
        Ok(Answer::Created(attr, flags, backing))
    }

    /// Flags of the reply for a file that is opened with `flags`, and the id of its backing file.
    fn reply_flags(&self, flags: OFlags, backing: Option<&Backing>) -> (u32, u32) {
        match backing.and_then(Backing::id) {
            // Never a file of a session that syncs each change: `close` need not wait.
            Some(id) => ((FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PASSTHROUGH).bits(), id),
            None => (open_flags(flags, self.state.flushes_at_close()).bits(), 0),
        }
    }

    fn list(
        &self,
        handle: u64,
        cookie: u64,
        size: u32,
        with_attributes: bool,
    ) -> Result<Answer, Errno> {
        let handle = self.state.handle(handle)?;
        if with_attributes {
            let mut entries = Entries(Listing::new(size));
            self.state.list(&handle, cookie, &mut entries)?;
            return Ok(entries.0.into());
        }
        let mut names = Names(Listing::new(size));
        self.state.list(&handle, cookie, &mut names)?;
        Ok(names.0.into())
    }
}

/// The kind of rename that the kernel requests by `flags`.
pub(crate) fn rename_flags(flags: fuser::RenameFlags) -> Result<RenameFlags, Errno> {
    match flags {
        none if none.is_empty() => Ok(RenameFlags::Replace),
        fuser::RenameFlags::RENAME_NOREPLACE => Ok(RenameFlags::NoReplace),
        fuser::RenameFlags::RENAME_EXCHANGE => Ok(RenameFlags::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

fn data(bytes: Vec<u8>) -> Answer {
    Answer::Data(Bytes::from(bytes))
}

/// `value`, or its size if the kernel requests only that.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    match value.len() {
        length if size == 0 => Ok(Answer::Size(u32::try_from(length).unwrap_or(u32::MAX))),
        length if length > size as usize => Err(Errno::ERANGE),
        _ => Ok(data(value)),
    }
}
