// SPDX-License-Identifier: Apache-2.0
//! Files whose segments are kept elsewhere: by the ranks of a job, each of which has a share of
//! them.
//!
//! The session here has the file's name, size and times, and possibly the bytes of this rank. The
//! keepers of the segments overlay them over those of the layers below, and put them into the trees
//! of parts that are published together; after that it is a file like any other.
//! Invariant: bytes are synced before a segment that outlives the writer refers to them. The
//! keepers of the segments ensure that ([`SharedContent::sync`]).

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_extent::{LogPlace, Segment, SegmentOverlay};

use super::OpenFile;
use crate::session::Session;

/// State of a file when its segments were handed over.
#[derive(Debug)]
pub struct HandedOver {
    /// Segments of content that the layers below do not have under the file's identity.
    pub segments: Vec<Segment>,
    /// True if layers may have segments that its content did not show.
    pub hides_older: bool,
    /// Its size in bytes.
    pub size: u64,
    /// Time of the last write.
    pub mtime_ns: i64,
}

/// The content of a session's files whose segments are kept elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct SharedContent<'a> {
    session: &'a Session,
}

impl Session {
    /// The content of files whose segments are kept elsewhere.
    #[must_use]
    pub fn shared_content(&self) -> SharedContent<'_> {
        SharedContent { session: self }
    }
}

impl SharedContent<'_> {
    /// Appends bytes of a file to which segments kept elsewhere will refer; returns their place and
    /// CRC-32C. They survive power loss after [`SharedContent::sync`]. Cost: one store write.
    ///
    /// # Errors
    /// `NoSpace` and other errors of the store; `Closed` after such a failure.
    pub fn append(&self, bytes: &[u8]) -> Result<(LogPlace, u32)> {
        self.session.check_open()?;
        let _content = self.session.pin_data_logs();
        let extent = self.session.data().append(bytes)?;
        let place = extent.log_position();
        Ok((place, extent.checksum))
    }

    /// Returns once all bytes that were appended to data logs survive power loss.
    ///
    /// # Errors
    /// Errors of the store; the session is then closed for writing.
    pub fn sync(&self) -> Result<()> {
        self.session.data().sync()
    }

    /// Takes the content of `file` out of its record: from now on only segments give its place, and
    /// the caller keeps the returned ones.
    ///
    /// # Errors
    /// `Conflict` while it is written in place; errors of the store.
    pub fn hand_over(&self, file: &Arc<OpenFile>) -> Result<HandedOver> {
        let _content = self.session.pin_data_logs();
        let mut state = file.state.write();
        if state.in_place.is_some() {
            return Err(Error::new(Kind::Conflict, "the file is being written in place"));
        }
        let (size, mtime_ns) = (state.inode.size, state.inode.mtime_ns);
        let mut handed = HandedOver { segments: Vec::new(), hides_older: false, size, mtime_ns };
        if state.inode.mapped {
            handed.segments = self.session.take_content(&mut state.inode)?;
            return Ok(handed);
        }
        self.session.release_left(&mut state)?;
        handed.hides_older = state.may_have_segments;
        if handed.hides_older {
            self.session.put_anew(file.id, || Ok(()))?;
        }
        let id = file.id;
        let segment = |length, place, checksum| {
            let (offset, place) = (0, Some(place));
            Segment { file: id, offset, length, place, checksum, seq: 0 }
        };
        let buffered = self.session.take_buffer(&mut state);
        if let Some(extent) = state.inode.extent.filter(|extent| extent.length > 0) {
            let place = extent.log_position();
            let checksum = (extent.length == extent.written).then_some(extent.checksum);
            handed.segments.push(segment(extent.length, place, checksum));
        } else {
            let bytes = buffered.unwrap_or_else(|| std::mem::take(&mut state.inode.content));
            if !bytes.is_empty() {
                let extent = self.session.data().append(&bytes)?;
                let place = extent.log_position();
                handed.segments.push(segment(extent.length, place, Some(extent.checksum)));
            }
        }
        state.inode.content.clear();
        (state.inode.mapped, state.inode.extent) = (true, None);
        state.may_have_segments = true;
        self.session.mark_content_moved(file, &mut state);
        Ok(handed)
    }

    /// Records the size and the last write time of a file whose segments are elsewhere.
    pub fn set_size(&self, file: &Arc<OpenFile>, size: u64, mtime_ns: i64) {
        let mut state = file.state.write();
        state.inode.size = size;
        state.inode.mtime_ns = mtime_ns;
        state.inode.ctime_ns = state.inode.ctime_ns.max(mtime_ns);
        self.session.mark_content_moved(file, &mut state);
    }

    /// Fills the gaps of `overlay` from the layers below this session. Cost: about a block read for
    /// each run of segments.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn add_below(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        self.session
            .namespace()
            .layers()
            .bases()
            .iter()
            .try_for_each(|base| overlay.add_tables(&base.segments))
    }
}
