// SPDX-License-Identifier: Apache-2.0
//! Writing whole files: small ones into the inode, others into data logs.

use esker_base::Result;

use super::insert::NewInode;
use crate::data::{INLINE_BYTES_MAX, LARGE_FILE_BYTES};
use crate::inode::{Extent, FileKind, Inode, NameKind};
use crate::ops::setattr::{check_file, content_changed};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::identity::WRITE;
use crate::stack::path::check_name;

/// Content of a file, inline or in a data log.
pub(crate) struct FileContent {
    size: u64,
    inline: Vec<u8>,
    extent: Option<Extent>,
}

impl Session {
    /// Creates the file `name` in `dir` with the bytes that `fill` reads into its buffer, called
    /// until it returns 0. The name appears only with the complete content.
    ///
    /// Cost: a data log append; none up to [`INLINE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// As [`Session::create`]; errors of `fill`.
    pub fn create_with(
        &self,
        dir: &Dir,
        name: &[u8],
        mode: u32,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<Inode> {
        check_name(name)?;
        self.check_change(dir, name)?;
        self.bound_garbage();
        let _content = self.pin_data_logs();
        let content = self.store_content(fill)?;
        let entry = NameKind::Is(FileKind::File);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        content.put_in(&mut inode);
        let mut new = NewInode::of(inode);
        self.insert(dir, name, &mut new)?;
        Ok(new.inode)
    }

    /// Replaces the content of the file `name` in `dir` with the bytes that `fill` reads.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `IsADirectory` or `Invalid` for anything but a regular file; errors of
    /// `fill`.
    pub fn rewrite(
        &self,
        dir: &Dir,
        name: &[u8],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<Inode> {
        let check = |inode: &Inode| {
            check_file(inode, name)?;
            self.namespace().identity().check(WRITE, inode, name)
        };
        check_name(name)?;
        self.check_search(dir, name)?;
        check(&self.namespace().lookup(dir, name, false)?)?;
        self.bound_garbage();
        let _content = self.pin_data_logs();
        let content = self.store_content(fill)?;
        let now_ns = self.now_ns();
        let mut replaced = None;
        let rewritten = {
            let _structure = self.read_structure();
            self.check_search(dir, name)?;
            self.update_inode(dir, name, |inode| {
                check(inode)?;
                let before = inode.clone();
                content.put_in(inode);
                content_changed(inode, self.namespace().identity(), now_ns);
                replaced = Some((before, inode.clone()));
                Ok(())
            })
        };
        // Open files follow the shown record, even if it could not be made durable.
        let is_shown = |after: &Inode| rewritten.is_ok() || self.shows_record(dir, name, after);
        if let Some((before, after)) = replaced.filter(|(_, after)| is_shown(after)) {
            self.namespace().files().rewritten(self, &after);
            self.add_garbage_of(&before);
            if before.mapped && rewritten.is_ok() {
                // The old segments hide nothing. If they stay, for lack of room, the next write
                // that puts segments, or the removal of the file, releases them.
                let _ = self.release_segments(after.id);
            }
        }
        rewritten
    }

    /// Returns whether the record of the file `name` in `dir` is `inode`, apart from its sequence
    /// number.
    fn shows_record(&self, dir: &Dir, name: &[u8], inode: &Inode) -> bool {
        let shown = self.namespace().entry(dir, name, true).ok().flatten();
        let shown = shown.and_then(|shown| match shown.entry {
            NameKind::Link => self.namespace().linked(shown.id, true).ok(),
            _ => Some(shown),
        });
        shown.is_some_and(|shown| Inode { seq: inode.seq, ..shown } == *inode)
    }

    pub(crate) fn store_content(
        &self,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<FileContent> {
        // Small files are read whole; only those that turn out to be large get a log of their own.
        let mut head = Vec::new();
        let mut piece = vec![0; 64 << 10];
        while (head.len() as u64) < LARGE_FILE_BYTES {
            let count = fill(&mut piece)?;
            if count == 0 {
                return self.store_small(head);
            }
            head.extend_from_slice(&piece[..count]);
        }
        let mut head = head.as_slice();
        let extent = self.data().write_large(&mut |buffer| {
            if head.is_empty() {
                return fill(buffer);
            }
            let count = head.len().min(buffer.len());
            buffer[..count].copy_from_slice(&head[..count]);
            head = &head[count..];
            Ok(count)
        })?;
        Ok(FileContent { size: extent.length, inline: Vec::new(), extent: Some(extent) })
    }

    fn store_small(&self, bytes: Vec<u8>) -> Result<FileContent> {
        let size = bytes.len() as u64;
        if bytes.len() <= INLINE_BYTES_MAX {
            return Ok(FileContent { size, inline: bytes, extent: None });
        }
        let extent = Some(self.data().append(&bytes)?);
        Ok(FileContent { size, inline: Vec::new(), extent })
    }
}

impl FileContent {
    pub(crate) fn put_in(&self, inode: &mut Inode) {
        inode.size = self.size;
        self.put_content_in(inode);
    }

    /// Like [`FileContent::put_in`], but leaves the size: the file may be truncated or extended.
    pub(crate) fn put_content_in(&self, inode: &mut Inode) {
        inode.content.clone_from(&self.inline);
        inode.extent = self.extent;
        inode.mapped = false;
    }
}
