//! Open files: random reads and writes of a session's regular files.
//!
//! A file that is written anew keeps its bytes in memory while they are few, and reaches a packed
//! log as a whole when it is closed, as an import would. Any other write appends to a data log and
//! puts a segment over the file's range (`esker_table::segment`): never a copy of the file, also
//! where it came from a base. What a write changes of the inode (size, times, where content is)
//! stays here, seen by all look-ups, until the file is flushed.
//!
//! Locks: the session's `content`, a file's `state`, then the session's `structure`, then which
//! files were copied up, then the tree's. `place` is a leaf.
//! Source: DESIGN §1.5; MetaKV §II (each writer's bytes in its own log, segments in an index).

mod attributes;
mod copy_up;
mod direct_file;
mod in_place;
mod open;
mod read;
mod reclaim;
mod shared;
mod space;
mod table;
mod unsealed;
mod write;

use parking_lot::{Mutex, RwLock};

use self::in_place::InPlace;
pub(crate) use self::reclaim::SharedLogs;
pub use self::shared::HandedOver;
pub(crate) use self::table::OpenFiles;
use crate::data::FileLog;
use crate::dir::Dir;
use crate::inode::Inode;

/// A file may reach up to here: what an `off_t` can say.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Files written anew are kept in memory up to this size until they are flushed.
pub const BUFFER_BYTES_MAX: usize = 1 << 20;
/// All files together keep at most about this much in memory.
pub const BUFFERS_BYTES_MAX: usize = 128 << 20;

/// A regular file that somebody has open. Its methods are those of [`crate::session::Session`]
/// that take one. It goes on working after the file's names are gone.
#[derive(Debug)]
pub struct OpenFile {
    id: u128,
    place: Mutex<Place>,
    state: RwLock<State>,
}

/// Where a file's inode record is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// At a name.
    Name(Dir, Vec<u8>),
    /// In the links directory, as the file has or had several names.
    Links,
    /// Nowhere: the last name is gone.
    Gone,
}

/// What is known of an open file.
#[derive(Debug)]
struct State {
    /// The inode as it will be once the file is flushed; of its attributes only those that writes
    /// change are kept up while it has a name.
    inode: Inode,
    /// Whether the record lacks what writes changed.
    is_dirty: bool,
    /// All content, while it is in memory only.
    buffer: Option<Vec<u8>>,
    /// Whether older segments of the file may exist that its content does not show.
    may_have_segments: bool,
    /// Whether the record shows segments that go once it says that the content is elsewhere.
    leaves_segments: bool,
    /// The log that takes this file's bytes alone.
    log: Option<FileLog>,
    /// How often the file was made shorter or its content replaced.
    cuts: u64,
    /// Bytes that were appended to data logs since the file was opened.
    appended_bytes: u64,
    /// What has the file's bytes, while somebody writes them in place. Its record always lacks
    /// something then.
    in_place: Option<InPlace>,
}

impl OpenFile {
    /// Identity of the file.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Whether nothing was written to it yet; it may be longer than empty all the same.
    pub fn is_blank(&self) -> bool {
        self.state.read().is_blank()
    }

    /// Its size in bytes now.
    ///
    /// # Errors
    /// What the store reports of one that is written in place.
    pub fn size(&self) -> esker_base::Result<u64> {
        self.state.read().size()
    }

    fn new(inode: Inode, place: Place, is_new: bool) -> Self {
        let is_inline =
            !inode.mapped && inode.extent.is_none() && inode.size == inode.content.len() as u64;
        let state = State {
            buffer: is_inline.then(|| inode.content.clone()),
            is_dirty: false,
            may_have_segments: !is_new,
            leaves_segments: false,
            log: None,
            cuts: 0,
            appended_bytes: 0,
            in_place: None,
            inode,
        };
        Self { id: state.inode.id, place: Mutex::new(place), state: RwLock::new(state) }
    }

    fn place(&self) -> Place {
        self.place.lock().clone()
    }
}

impl State {
    /// Puts what the record of the file lacks into `inode`; whether it lacks anything.
    fn overlay(&self, inode: &mut Inode) -> bool {
        if !self.is_dirty {
            return false;
        }
        self.overlay_own(inode);
        if let Some(in_place) = &self.in_place {
            in_place.file.overlay(inode);
        }
        true
    }

    /// As [`State::overlay`], but only what is to be in the record.
    fn overlay_own(&self, inode: &mut Inode) {
        let own = &self.inode;
        (inode.size, inode.mapped, inode.extent) = (own.size, own.mapped, own.extent);
        inode.branch.clone_from(&own.branch);
        inode.content.clone_from(&own.content);
        inode.mtime_ns = own.mtime_ns;
        inode.ctime_ns = inode.ctime_ns.max(own.ctime_ns);
    }
}
