// SPDX-License-Identifier: Apache-2.0
//! Content: attributes and bytes of files of a live namespace.
//!
//! Clients see each other's writes at the next open (close-to-open): an open reads the attributes
//! from the server, and drops the kernel's pages of a file that has changed since its last open. A
//! write returns once the server has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::Kind;
use esker_fs::inode::FileKind;
use esker_fs::inode::timestamp;
use esker_fuse_ring::{AttrChanges, NewTime};
use esker_live::client::{LiveFile, Request};
use esker_live::wire::{AttributeRequest, TRANSFER_BYTES_MAX, WriteMode};
use fuser::{Errno, FileAttr, FopenFlags};
use rustix::fs::OFlags;

use super::live_node::{ContentState, LiveNode};
use super::live_state::LiveState;
use crate::file::range_change;
use crate::node_table::ROOT;

impl LiveState {
    /// The current attributes of `number` for the kernel.
    pub(super) fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let [found] = self.call_all([Request::attributes(&node.reference().file())])?;
        let found = match self.attributes_in(found) {
            // A mount without a server can be looked at by commands, and ended.
            Err(errno) if number == ROOT => self.root.lock().clone().ok_or(errno)?,
            found => found?,
        };
        Ok(self.shown(&node, &found))
    }

    /// Changes attributes of `number`; returns all of them. A change of size removes set-id bits if
    /// `drops_set_id`.
    pub(super) fn set_attributes(
        &self,
        number: u64,
        wanted: &AttrChanges,
        drops_set_id: bool,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let at = |time: Option<NewTime>| match time {
            Some(NewTime::At(seconds, nanoseconds)) => {
                Some(timestamp::of_parts(seconds, i64::from(nanoseconds)))
            }
            _ => None,
        };
        let mut changes = AttributeRequest {
            mode: wanted.mode.map(|mode| mode & 0o7777),
            uid: wanted.uid,
            gid: wanted.gid,
            size: wanted.size,
            atime_ns: at(wanted.atime),
            mtime_ns: at(wanted.mtime),
            atime_now: wanted.atime == Some(NewTime::Now),
            mtime_now: wanted.mtime == Some(NewTime::Now),
        };
        if wanted.size.is_some() && drops_set_id && changes.mode.is_none() {
            changes.mode = self.mode_without_set_id(&node);
        }
        let file = node.reference();
        let change = self.change(Request::set_attributes(&file.file(), &changes));
        let requests = [change, Request::attributes(&file.file())];
        let found = self.track_change(&[node.id], || {
            let [changed, found] = self.call_all(requests)?;
            self.done(changed)?;
            let set_at = |file: &LiveFile| self.change(Request::set_attributes(file, &changes));
            self.change_other_parts(&node, set_at)?;
            self.attributes_in(found)
        })?;
        Ok(self.shown(&node, &found))
    }

    /// Makes the change of a spread directory that was made at the seat of its name at all others. An
    /// attribute that another part lacks, after a change that failed there, is removed already.
    pub(super) fn change_other_parts(
        &self,
        node: &LiveNode,
        change_at: impl Fn(&LiveFile) -> Request,
    ) -> Result<(), Errno> {
        if node.kind != FileKind::Directory {
            return Ok(());
        }
        let dir = node.dir();
        for part in dir.parts().filter(|part| part.place.seat != dir.place.seat) {
            let [changed] = self.call_all([change_at(&LiveFile::at(&part, b""))])?;
            match changed.and_then(|answer| answer.outcome()) {
                Err(error) if error.kind() == Kind::NoAttribute => {}
                changed => changed.map_err(|error| self.errno(&error))?,
            }
        }
        Ok(())
    }

    /// The mode of `node` without the set-id bits that a write by another user removes, if this
    /// mount has to remove them: a server does not for clients of the superuser.
    fn mode_without_set_id(&self, node: &LiveNode) -> Option<u32> {
        let mode = node.mode.load(Ordering::Relaxed);
        // Without group execution, set-group-id means mandatory locking and stays.
        let dropped = if mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
        (self.is_superuser && mode & dropped != 0).then_some(mode & !dropped)
    }

    /// Opens the file `number` once more. Returns the flags of the reply.
    ///
    /// # Errors
    /// `ESTALE` if the file is not at its name any more, and it was not this mount that removed it:
    /// then only an open file leads to it, by `/proc`.
    pub(super) fn open(&self, number: u64, flags: OFlags) -> Result<FopenFlags, Errno> {
        let node = self.node(number)?;
        let mut opens = node.opens.lock();
        let file = node.reference();
        let name = file.file();
        let requests = [
            Request::open(&name),
            Request::attributes(&name),
            Request::lookup(name.dir, &[name.name]),
        ];
        let [opened, found, at_name] = self.call_all(requests)?;
        self.done(opened)?;
        let found = self.attributes_in(found)?;
        if !self.is_reachable(&node, at_name) {
            // Another client has moved it, or put another file at the name: the kernel looks the
            // path up again.
            if opens.count == 0 {
                self.close_later(&node)?;
            }
            return Err(Errno::ESTALE);
        }
        let state = ContentState::of(&found);
        let is_same = self.count_open(&mut opens, state);
        if node.shown.lock().replace(state) != Some(state) {
            // Else the kernel would read up to the size that it remembers, or look that up again.
            self.prefetched.invalidate();
            self.invalidate_attributes(number);
        }
        drop(opens);
        if flags.contains(OFlags::APPEND) {
            // The kernel's pages would have the bytes where it thinks that the file ends.
            return Ok(FopenFlags::FOPEN_DIRECT_IO);
        }
        Ok(if is_same { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() })
    }

    /// Ends one open of the file `number`.
    pub(super) fn release(&self, number: u64) -> Result<(), Errno> {
        let node = self.node(number)?;
        let mut opens = node.opens.lock();
        opens.count = opens.count.saturating_sub(1);
        if opens.count > 0 {
            return Ok(());
        }
        self.open_files.fetch_sub(1, Ordering::Relaxed);
        self.close_later(&node)
    }

    /// Closes the file of `node` at the server, with the next request or in a moment: no program
    /// waits for that.
    fn close_later(&self, node: &LiveNode) -> Result<(), Errno> {
        self.call_later(Request::close(&node.reference().file()))
    }

    fn close(&self, node: &LiveNode) -> Result<(), Errno> {
        let [closed] = self.call_all([Request::close(&node.reference().file())])?;
        self.done(closed)
    }

    /// Closes all files: the mount has ended.
    pub(super) fn close_files(&self) -> Result<(), Errno> {
        let mut first = Ok(());
        for node in self.nodes.filtered(|_| true) {
            let mut opens = node.opens.lock();
            if opens.count > 0 {
                opens.count = 0;
                first = first.and(self.close(&node));
            }
        }
        first
    }

    /// Reads up to `size` bytes of the file `number` from `offset`.
    pub(super) fn read(&self, number: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let file = self.node(number)?.reference();
        let size = size.min(TRANSFER_BYTES_MAX);
        let answer = self.call(Request::read(&file.file(), offset, size))?;
        let bytes =
            answer.only(|input| Ok(input.bytes(TRANSFER_BYTES_MAX, "bytes of a file")?.to_vec()));
        bytes.map_err(|error| self.errno(&error))
    }

    /// Writes `bytes` into the file `number` from `offset` on, on behalf of a user whose writes
    /// remove set-id bits if `drops_set_id`.
    pub(super) fn write(
        &self,
        number: u64,
        offset: u64,
        (bytes, drops_set_id): (&[u8], bool),
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let file = node.reference();
        let how = WriteMode { appends: false, drops_set_id };
        let mut pieces = bytes.chunks(TRANSFER_BYTES_MAX).enumerate();
        self.track_change(&[node.id], || {
            pieces.try_for_each(|(index, piece)| {
                let at = offset + (index * TRANSFER_BYTES_MAX) as u64;
                let write = Request::write_as(&file.file(), (at, piece), how);
                let [done] = self.call_all([self.change(write)])?;
                self.done(done)
            })
        })?;
        if drops_set_id && node.has_set_id() {
            self.invalidate_attributes(number);
        }
        Ok(())
    }

    /// Writes `bytes` at the end of the file `number`, wherever that is by then. Each piece of a
    /// megabyte stays together, whoever else appends.
    pub(super) fn append(
        &self,
        number: u64,
        (bytes, drops_set_id): (&[u8], bool),
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let file = node.reference();
        let how = WriteMode { appends: true, drops_set_id };
        let append_piece = |piece: &[u8]| loop {
            let [found] = self.call_all([Request::attributes(&file.file())])?;
            let end = self.attributes_in(found)?.size;
            let write = Request::write_as(&file.file(), (end, piece), how);
            let [done] = self.call_all([self.change(write)])?;
            match done.and_then(|answer| answer.outcome()) {
                // Another client has appended meanwhile.
                Err(error) if error.kind() == Kind::Conflict => {}
                done => break done.map_err(|error| self.errno(&error)),
            }
        };
        self.track_change(&[node.id], || {
            bytes.chunks(TRANSFER_BYTES_MAX).try_for_each(append_piece)
        })?;
        self.invalidate_attributes(number);
        Ok(())
    }

    /// Changes the `length` bytes of the file `number` from `offset` on.
    pub(super) fn allocate(
        &self,
        number: u64,
        range: (u64, u64),
        (mode, drops_set_id): (i32, bool),
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let file = node.reference();
        let change = self.change(Request::allocate(&file.file(), range, range_change(mode)?));
        self.track_change(&[node.id], || {
            let [done] = self.call_all([change])?;
            self.done(done)
        })?;
        if drops_set_id && node.has_set_id() { self.drop_set_id(&node) } else { Ok(()) }
    }

    fn drop_set_id(&self, node: &Arc<LiveNode>) -> Result<(), Errno> {
        if let Some(mode) = self.mode_without_set_id(node) {
            let changes = AttributeRequest { mode: Some(mode), ..AttributeRequest::default() };
            let change = Request::set_attributes(&node.reference().file(), &changes);
            self.track_change(&[node.id], || {
                let [done] = self.call_all([self.change(change)])?;
                self.done(done)
            })?;
        }
        self.invalidate_attributes(node.number);
        Ok(())
    }
}
