// SPDX-License-Identifier: Apache-2.0
//! Copy-up: before a session writes its first record of a file that it shows as of a branch of its
//! stack (`lineage.rs`), it makes the file's content its own.
//!
//! The session puts segments for the whole content under the identity that it shows, over a hole
//! that hides what other layers have for that identity. No bytes are copied. Until the record
//! exists, readers take the content from the branch, which is the same.
//! Invariant: a file is copied up at most once, before anything is written to it; a second copy-up
//! would hide the writes in between. A file whose whole content was replaced first is never copied
//! up.

use esker_base::Result;
use esker_extent::Segment;
use esker_table::schema::{Key, RowBuffer};

use crate::inode::Inode;
use crate::session::Session;
use crate::stack::layers::LowerRecords;

/// Segments are looked up in ranges of this size, so that memory does not grow with the file.
const WINDOW_BYTES: u64 = 64 << 20;

impl Session {
    /// Looks up `key` in the layers below this session, for an operation that will put a record of
    /// the file found there; makes that file's content the session's own.
    pub(crate) fn below_to_change(&self, key: &Key, is_absent_below: bool) -> Result<LowerRecords> {
        let mut below = self.namespace().layers().below(key, is_absent_below)?;
        if let Some(inode) = below.inode.as_mut().filter(|inode| inode.branch.is_some())
            // If the session has its own record, the content may have changed since.
            && !self.tree().get(key, false, &mut RowBuffer::default())?
        {
            self.copy_up(inode)?;
        }
        Ok(below)
    }

    /// Makes the content of `inode` the session's own if it is not yet. Cost: reads of the branch's
    /// segments, and one log operation per [`WINDOW_BYTES`].
    pub(crate) fn copy_up(&self, inode: &mut Inode) -> Result<()> {
        if inode.branch.is_none() {
            return Ok(());
        }
        // Held across store I/O: other threads that change the file wait until its content is here.
        let mut copied_up = self.copied_up().lock();
        if !copied_up.contains(&inode.id) {
            self.extents().put_segments(&mut [Segment::hole(inode.id, 0, u64::MAX)])?;
            self.visit_content(inode, &mut |segments| {
                self.extents().put_segments(segments).map(drop)
            })?;
            copied_up.insert(inode.id);
        }
        inode.branch = None;
        Ok(())
    }

    /// Runs `put`, which redefines all content of `file`. From then on the content is the session's
    /// own and nothing of a branch is copied up over it.
    pub(super) fn put_anew(&self, file: u128, put: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.namespace().layers().is_branched() {
            return put();
        }
        let mut copied_up = self.copied_up().lock();
        put()?;
        copied_up.insert(file);
        Ok(())
    }

    /// Like [`Session::copy_up`], but returns the segments to a caller that keeps them itself.
    pub(super) fn take_content(&self, inode: &mut Inode) -> Result<Vec<Segment>> {
        let mut taken = Vec::new();
        if inode.branch.is_some() {
            let mut copied_up = self.copied_up().lock();
            self.visit_content(inode, &mut |segments| {
                taken.extend_from_slice(segments);
                Ok(())
            })?;
            copied_up.insert(inode.id);
            inode.branch = None;
        }
        Ok(taken)
    }

    /// Passes the segments of `inode` that have bytes to `take`, under the identity that is shown.
    fn visit_content(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(&mut [Segment]) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < inode.size {
            let window = at..inode.size.min(at.saturating_add(WINDOW_BYTES));
            at = window.end;
            let overlay = self.namespace().layers().segments(inode, window)?;
            let placed = overlay.pieces().iter().filter(|piece| piece.place.is_some());
            let mut segments: Vec<Segment> =
                placed.map(|piece| Segment { file: inode.id, ..*piece }).collect();
            if !segments.is_empty() {
                take(&mut segments)?;
            }
        }
        Ok(())
    }
}
