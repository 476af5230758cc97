// SPDX-License-Identifier: Apache-2.0
//! Open files: random reads and writes of a session's regular files.
//!
//! A newly written file keeps its bytes in memory while they are few, and is appended whole to a
//! packed log when it is closed, as an import would do. Any other write appends to a data log and
//! puts a segment over the file's range (`esker_extent`); files are never copied, not even
//! those of a base. Changes that a write makes to the inode (size, times, place of content) stay
//! here, visible to all look-ups, until the file is flushed.
//!
//! Locks: the session's `content`, a file's `state`, the session's `structure`, the set of
//! copied-up files, then the tree's. `place` is a leaf.
//! Source: DESIGN §1.5; MetaKV §II (each writer's bytes in its own log, segments in an index).

mod attributes;
mod checked_read;
mod copy_up;
mod in_place;
mod open;
mod read;
mod reclaim;
mod shared;
mod space;
mod table;
mod unsealed;
mod write;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use self::in_place::InPlaceFile;
pub(crate) use self::reclaim::SharedLogs;
pub use self::shared::{HandedOver, SharedContent};
pub(crate) use self::table::OpenFiles;
use crate::data::FileLog;
use crate::inode::Inode;
use crate::session::Session;
use crate::stack::dir::Dir;

/// Maximum size of a file, the largest `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// New files up to this size are kept in memory until they are flushed.
pub const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Approximate bound on the memory of all files together.
pub const BUFFERS_BYTES_MAX: usize = 128 << 20;

/// An open regular file, which [`Session::file`] reads and changes. It keeps working after the
/// file's names are gone.
#[derive(Debug)]
pub struct OpenFile {
    id: u128,
    location: Mutex<RecordLocation>,
    state: RwLock<OpenFileState>,
}

/// An open file together with the session that opened it.
#[derive(Clone, Copy, Debug)]
pub struct SessionFile<'a> {
    session: &'a Session,
    file: &'a Arc<OpenFile>,
}

/// Place of a file's inode record.
#[derive(Clone, Debug)]
pub(crate) enum RecordLocation {
    /// At a name.
    Name(Dir, Vec<u8>),
    /// In the links directory, since the file has or had several names.
    Links,
    /// Nowhere: the last name is gone.
    Gone,
}

/// State of an open file.
#[derive(Debug)]
struct OpenFileState {
    /// The inode as it will be once the file is flushed. While the file has a name, only the
    /// attributes that writes change are kept up to date.
    inode: Inode,
    /// True if the record lacks changes made by writes.
    is_dirty: bool,
    /// All content, while it is only in memory.
    buffer: Option<Vec<u8>>,
    /// True if there may be older segments of the file that its content does not show.
    may_have_segments: bool,
    /// True if the record shows segments to be released once it says that the content is elsewhere.
    leaves_segments: bool,
    /// The log that is for this file's bytes alone.
    log: Option<FileLog>,
    /// Number of times that the file was truncated or its content replaced.
    cuts: u64,
    /// Number of times that segments beyond a new end were covered, so that their bytes are gone.
    covered_ends: u64,
    /// Bytes appended to data logs since the file was opened.
    appended_bytes: u64,
    /// Set while the file is written in place. The record then always lacks something.
    in_place: Option<InPlaceFile>,
}

impl OpenFile {
    /// Identity of the file.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.id
    }

    /// True if nothing was written to it yet; its size may still be greater than 0.
    pub fn is_blank(&self) -> bool {
        self.state.read().is_blank()
    }

    /// True while another thread changes the file, which may wait for the store.
    #[must_use]
    pub fn is_being_changed(&self) -> bool {
        self.state.is_locked_exclusive()
    }

    /// Returns the current size in bytes.
    ///
    /// # Errors
    /// Errors of the store for a file that is written in place.
    pub fn size(&self) -> esker_base::Result<u64> {
        self.state.read().size()
    }

    fn new(inode: Inode, location: RecordLocation, is_new: bool) -> Self {
        let is_inline =
            !inode.mapped && inode.extent.is_none() && inode.size == inode.content.len() as u64;
        let state = OpenFileState {
            buffer: is_inline.then(|| inode.content.clone()),
            is_dirty: false,
            may_have_segments: !is_new,
            leaves_segments: false,
            log: None,
            cuts: 0,
            covered_ends: 0,
            appended_bytes: 0,
            in_place: None,
            inode,
        };
        Self { id: state.inode.id, location: Mutex::new(location), state: RwLock::new(state) }
    }

    fn location(&self) -> RecordLocation {
        self.location.lock().clone()
    }
}

impl OpenFileState {
    /// Puts changes that the record lacks into `inode`; returns whether there were any.
    fn overlay(&self, inode: &mut Inode) -> bool {
        if !self.is_dirty {
            return false;
        }
        self.overlay_own(inode);
        if let Some(in_place) = &self.in_place {
            in_place.overlay(inode);
        }
        true
    }

    /// Like [`OpenFileState::overlay`], but only with changes that belong in the record.
    fn overlay_own(&self, inode: &mut Inode) {
        let own = &self.inode;
        (inode.size, inode.mapped, inode.extent) = (own.size, own.mapped, own.extent);
        inode.branch.clone_from(&own.branch);
        inode.content.clone_from(&own.content);
        inode.mtime_ns = own.mtime_ns;
        inode.ctime_ns = inode.ctime_ns.max(own.ctime_ns);
    }
}
