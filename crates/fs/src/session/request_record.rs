// SPDX-License-Identifier: Apache-2.0
//! Request record: the progress of a client's requests, stored with the changes themselves.
//!
//! A server that repeats answers after a crash must know which requests it has carried out. It
//! attaches a client's record to a handle of the session; each change through that handle then
//! replaces the record as part of the same operation, so that a crash keeps both or neither.
//! Records are files of a directory that no path leads to, so a squash drops them.
//! Invariant: operations that make, remove or move names have one update that decides them, and
//! that one carries the record. Changes of attributes and content may have several; their record is
//! put after them, or carried by the log from their end on. Plain creates are tracked, too
//! (`create_progress`).

use std::ops::ControlFlow;

use esker_base::{Error, Kind, Result};
use esker_table::schema::{Key, RowBuffer};
use esker_table::tree::{CurrentRow, WriteBatch};

use crate::inode::{DirId, FileKind, Inode, NameKind, key};
use crate::session::create_progress::{CreateProgress, RecordOfItem};
use crate::session::{Session, put};
use crate::stack::dir::DirNode;
use crate::stack::list::DirCursor;

/// Largest content of a record, in bytes.
pub const REQUEST_RECORD_BYTES_MAX: usize = 32 << 10;

/// A server's record of the requests of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The client.
    pub client: u64,
    /// The data by which the server recognizes requests; at most [`REQUEST_RECORD_BYTES_MAX`]
    /// bytes.
    pub content: Vec<u8>,
}

/// A record in the form in which changes carry it.
#[derive(Clone, Debug)]
pub(crate) struct AttachedRecord {
    name: String,
    pub(super) inode: Inode,
}

impl AttachedRecord {
    pub(super) fn new(record: &RequestRecord, now_ns: i64) -> Self {
        let mut inode = Inode::new(NameKind::Is(FileKind::File), 0o600, now_ns);
        inode.id = u128::from(record.client);
        inode.size = record.content.len() as u64;
        inode.content.clone_from(&record.content);
        Self { name: record_name(record.client), inode }
    }

    pub(super) fn key(&self) -> Key<'_> {
        key(DirId::REQUESTS, self.name.as_bytes())
    }
}

impl Session {
    /// Makes each later change through this handle carry `record`, in place of the client's
    /// earlier one; `None` ends that. Cost: no store request.
    ///
    /// # Errors
    /// `TooLarge` over [`REQUEST_RECORD_BYTES_MAX`].
    pub fn attach_request(&mut self, record: Option<&RequestRecord>) -> Result<()> {
        self.attached = record.map(|record| self.attachable(record)).transpose()?;
        Ok(())
    }

    /// Makes the log carry what `record` returns with the files that this handle creates from now
    /// on, each as the item of [`Session::set_created_item`]. Only one handle of a session may track
    /// its creates at a time. Cost: no store request.
    ///
    /// # Panics
    /// Without [`tracks_creates`](crate::session::SessionOptions::tracks_creates).
    pub fn track_creates(&self, record: RecordOfItem) {
        self.creates().begin(record);
    }

    fn creates(&self) -> &CreateProgress {
        self.shared.creates.as_ref().expect("the options allow tracking")
    }

    /// Puts `record`, the newest of its client, and ends tracking. If there is no room, the log goes
    /// on carrying the record, until [`Session::end_owed_tracking`].
    ///
    /// # Errors
    /// As [`Session::put_request`].
    pub fn end_tracking(&self, record: &RequestRecord) -> Result<()> {
        // No older one is put in between.
        let newest = record.clone();
        self.track_creates(Box::new(move |_| newest.clone()));
        let put = self.put_request(record);
        match put {
            Ok(()) => self.creates().end(),
            Err(_) => self.creates().owe(),
        }
        put
    }

    /// Ends the tracking of a record that found no room, after it was put.
    pub fn end_owed_tracking(&self) {
        self.creates().end_owed();
    }

    /// Sets the item of the request to which files created through this handle belong from now on;
    /// `None` if they belong to none.
    pub fn set_created_item(&mut self, item: Option<u16>) {
        self.created_item = item;
    }

    /// Counts the creation of a file, under the lock of the shard that has it.
    #[inline]
    pub(crate) fn count_created(&self) {
        if let Some(item) = self.created_item {
            self.creates().created(item);
        }
    }

    /// Puts `record` as a change of its own. It survives a crash only if all changes made before
    /// do.
    ///
    /// # Errors
    /// `TooLarge` over [`REQUEST_RECORD_BYTES_MAX`]; as [`Session::create`].
    pub fn put_request(&self, record: &RequestRecord) -> Result<()> {
        let attached = self.attachable(record)?;
        self.tree().update([attached.key()], None, |_, batch| {
            put(batch, &attached.key(), &attached.inode);
            Ok(())
        })
    }

    /// Removes the record of `client`, if there is one.
    ///
    /// # Errors
    /// As [`Session::create`].
    pub fn remove_request(&self, client: u64) -> Result<()> {
        let (name, now_ns) = (record_name(client), self.now_ns());
        let key = key(DirId::REQUESTS, name.as_bytes());
        self.tree().update([key], None, |[own], batch| {
            if own.is_some() {
                put(batch, &key, &Inode::tombstone(0, now_ns));
            }
            Ok(())
        })
    }

    /// Returns the records of all clients, without those of bases. Cost: the blocks that have them.
    ///
    /// # Errors
    /// `Corrupt` for a record that no server wrote; errors of the store.
    pub fn requests(&self) -> Result<Vec<RequestRecord>> {
        let mut inode = Inode::new(NameKind::Is(FileKind::Directory), 0o700, 0);
        inode.id = DirId::REQUESTS.0;
        let dir = DirNode::new(&inode, None, false, &Default::default());
        let mut names = Vec::new();
        self.namespace().list_unchecked(&dir, &DirCursor::default(), &mut |entry| {
            names.push(entry.name().to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        let records = names.iter().map(|name| self.own_request(name));
        records.filter_map(Result::transpose).collect()
    }

    /// Returns the record named `name` of this session; `None` if only a base has it.
    fn own_request(&self, name: &[u8]) -> Result<Option<RequestRecord>> {
        let client = std::str::from_utf8(name).ok().and_then(client_of);
        let client = client.ok_or_else(|| {
            let context = "a record of requests has the name of no client; run `esker verify`";
            Error::new(Kind::Corrupt, context)
        })?;
        let mut row = RowBuffer::default();
        if !self.tree().get(&key(DirId::REQUESTS, name), true, &mut row)? {
            return Ok(None);
        }
        let inode = Inode::of_buffer(&row)?;
        let is_record = inode.entry != NameKind::Tombstone;
        Ok(is_record.then_some(RequestRecord { client, content: inode.content }))
    }

    fn attachable(&self, record: &RequestRecord) -> Result<AttachedRecord> {
        if record.content.len() > REQUEST_RECORD_BYTES_MAX {
            let what = format!("a record of requests of {} bytes", record.content.len());
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(AttachedRecord::new(record, self.now_ns()))
    }

    /// Updates records like [`esker_table::tree::Tree::update`], with the attached record of
    /// requests if there is one. For the update that decides an operation.
    #[inline]
    pub(crate) fn update<const N: usize, T>(
        &self,
        keys: [Key; N],
        decide: impl FnMut([CurrentRow; N], &mut WriteBatch) -> Result<T>,
    ) -> Result<T> {
        match &self.attached {
            None => self.tree().update(keys, None, decide),
            Some(attached) => {
                let row = attached.inode.row(&attached.key());
                self.tree().update(keys, Some(&row), decide)
            }
        }
    }
}

fn record_name(client: u64) -> String {
    format!("{client:016x}")
}

fn client_of(name: &str) -> Option<u64> {
    let client = u64::from_str_radix(name, 16).ok()?;
    (record_name(client) == name).then_some(client)
}
