// SPDX-License-Identifier: Apache-2.0
//! Tree: a live namespace by paths, one request at a time.

use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::ops::RenameFlags;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;

use super::connection::{LiveClientOptions, LiveConnection};
use super::pending::{LiveDir, LiveFile, Request};
use crate::wire::{
    AttributeRequest, LiveAttributes, NAME_BYTES_MAX, TRANSFER_BYTES_MAX, take_attributes,
};

/// Entries of one request of a listing.
const LIST_ENTRIES: usize = 4096;
/// Largest text of a server's status.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: LiveAttributes,
}

/// The place to which a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePlace {
    /// The directory that contains it; for the root, the root.
    pub dir: DirId,
    /// Its name there; empty for the root.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: LiveAttributes,
}

/// A live namespace by paths.
#[derive(Debug)]
pub struct LiveTree {
    connection: LiveConnection,
}

impl LiveTree {
    /// Connects to the server of the live namespace `name` in `store`.
    ///
    /// # Errors
    /// As [`LiveConnection::connect`].
    pub fn connect(store: &SharedStore, name: &str, options: LiveClientOptions) -> Result<Self> {
        LiveConnection::connect(store, name, options).map(|connection| Self { connection })
    }

    /// The connection, for requests of many items.
    pub fn connection(&mut self) -> &mut LiveConnection {
        &mut self.connection
    }

    /// Returns the place to which `path` leads. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`, `Loop`, `TooLarge`.
    pub fn resolve(&mut self, path: &[u8], follow: FollowLinks) -> Result<LivePlace> {
        let answer = self.connection.call(Request::resolve(path, follow))?;
        answer.only(|input| {
            let dir = DirId(input.u128()?);
            let name = input.bytes(NAME_BYTES_MAX, "a name")?.to_vec();
            Ok(LivePlace { dir, name, attributes: take_attributes(input)? })
        })
    }

    /// Opens the directory at `path`. Cost: a round trip.
    ///
    /// # Errors
    /// As [`LiveTree::resolve`]; `NotADirectory`.
    pub fn dir(&mut self, path: &[u8]) -> Result<LiveDir> {
        let place = self.resolve(path, FollowLinks::Yes)?;
        if place.name.is_empty() {
            return Ok(LiveDir::root());
        }
        if place.attributes.kind != esker_fs::inode::FileKind::Directory {
            let what = format!("{}: not a directory", String::from_utf8_lossy(path));
            return Err(Error::new(Kind::NotADirectory, what));
        }
        Ok(LiveDir { id: DirId(place.attributes.id), path: Arc::from(path) })
    }

    /// Opens the directory that contains the last component of `path`, which need not exist, and
    /// returns that component.
    ///
    /// # Errors
    /// As [`LiveTree::dir`]; `Invalid` if the path has no last component.
    pub fn locate<'a>(&mut self, path: &'a [u8]) -> Result<(LiveDir, &'a [u8])> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let name = &path[start..end];
        if name.is_empty() {
            return Err(Error::new(Kind::Invalid, "the root has no name"));
        }
        let parent = if start == 0 { b"/" } else { &path[..start] };
        Ok((self.dir(parent)?, name))
    }

    /// Returns the directory and name of the file to which `path` leads, following symbolic links.
    /// Cost: two round trips.
    ///
    /// # Errors
    /// As [`LiveTree::resolve`]; `IsADirectory` for the root.
    pub fn locate_file(&mut self, path: &[u8]) -> Result<(LiveDir, Vec<u8>)> {
        let place = self.resolve(path, FollowLinks::Yes)?;
        if place.name.is_empty() {
            return Err(Error::new(Kind::IsADirectory, "/: is a directory"));
        }
        // The server has opened the directory for this connection, wherever links have led.
        let located = self.locate(path)?.0;
        Ok((LiveDir { id: place.dir, path: located.path }, place.name))
    }

    /// Creates the empty file `name`. Cost: a round trip.
    ///
    /// # Errors
    /// `Exists`, `Denied`, `Invalid` or `TooLarge` names; `Fenced` if the directory was moved.
    pub fn create(&mut self, dir: &LiveDir, name: &[u8], mode: u32) -> Result<()> {
        self.change(Request::create(dir, mode, &[name]))
    }

    /// Makes the directory `name`, and opens it. Cost: a round trip.
    ///
    /// # Errors
    /// As [`LiveTree::create`].
    pub fn make_directory(&mut self, dir: &LiveDir, name: &[u8], mode: u32) -> Result<LiveDir> {
        let made = self.connection.submit(Request::make_directory(dir, mode, &[name]))?;
        let found = self.connection.submit(Request::lookup(dir, &[name]))?;
        self.connection.wait(made)?.only(|_| Ok(()))?;
        let attributes = self.connection.wait(found)?.only(take_attributes)?;
        Ok(LiveDir { id: DirId(attributes.id), path: dir.join(name).into() })
    }

    /// Carries out a change of one item.
    ///
    /// # Errors
    /// As the item fails.
    pub fn change(&mut self, request: Request) -> Result<()> {
        self.connection.call(request)?.outcome()
    }

    /// Renames `old` to `name`, in another directory or the same. Cost: a round trip.
    ///
    /// # Errors
    /// As `Session::rename` of `esker-fs`.
    pub fn rename(&mut self, old: (&LiveDir, &[u8]), new: (&LiveDir, &[u8])) -> Result<()> {
        self.change(Request::rename(old, new, RenameFlags::Replace))
    }

    /// Returns the attributes of `name`. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound`, `Denied`.
    pub fn lookup(&mut self, dir: &LiveDir, name: &[u8]) -> Result<LiveAttributes> {
        self.connection.call(Request::lookup(dir, &[name]))?.only(take_attributes)
    }

    /// Returns all entries of `dir`, in the order of the hashes of their names. Entries that come
    /// and go meanwhile may or may not be among them. Cost: a round trip for each 4,096.
    ///
    /// # Errors
    /// `Denied`; `NotFound` once the directory was removed.
    pub fn list(&mut self, dir: &LiveDir) -> Result<Vec<LiveEntry>> {
        let mut entries: Vec<LiveEntry> = Vec::new();
        loop {
            let after = entries.last().map_or(&b""[..], |entry| &entry.name);
            let answer = self.connection.call(Request::list(dir, after, LIST_ENTRIES))?;
            let (is_end, page) = answer.only(take_entries)?;
            let is_stuck = page.is_empty();
            entries.extend(page);
            if is_end || is_stuck {
                return Ok(entries);
            }
        }
    }

    /// Returns all bytes of the file `name`. Cost: a round trip for each megabyte.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`.
    pub fn read(&mut self, dir: &LiveDir, name: &[u8]) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let offset = content.len() as u64;
            let request = Request::read(&LiveFile::at(dir, name), offset, TRANSFER_BYTES_MAX);
            let piece = self
                .connection
                .call(request)?
                .only(|input| Ok(input.bytes(TRANSFER_BYTES_MAX, "bytes of a file")?.to_vec()))?;
            if piece.is_empty() {
                return Ok(content);
            }
            content.extend_from_slice(&piece);
        }
    }

    /// Writes `bytes` into the file `name` from `offset` on. Cost: a round trip for each megabyte.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`.
    pub fn write(&mut self, dir: &LiveDir, name: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        for (index, piece) in bytes.chunks(TRANSFER_BYTES_MAX).enumerate() {
            let at = offset + (index * TRANSFER_BYTES_MAX) as u64;
            self.change(Request::write(&LiveFile::at(dir, name), at, piece))?;
        }
        Ok(())
    }

    /// Returns the target of the symbolic link `name`. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it is none.
    pub fn read_symlink(&mut self, dir: &LiveDir, name: &[u8]) -> Result<Vec<u8>> {
        let answer = self.connection.call(Request::read_symlink(&LiveFile::at(dir, name)))?;
        answer.only(|input| Ok(input.bytes(crate::wire::PATH_BYTES_MAX, "a target")?.to_vec()))
    }

    /// Changes attributes of `name`. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `NotPermitted`.
    pub fn set_attributes(
        &mut self,
        dir: &LiveDir,
        name: &[u8],
        changes: &AttributeRequest,
    ) -> Result<()> {
        self.change(Request::set_attributes(&LiveFile::at(dir, name), changes))
    }

    /// Publishes the current state as the snapshot `name`, and returns its set.
    ///
    /// # Errors
    /// `Exists`; `NotPermitted` unless the client is of the server's user, or the superuser.
    pub fn snapshot(&mut self, name: &str) -> Result<SetId> {
        self.connection.call(Request::snapshot(name))?.only(|input| Ok(SetId(input.u128()?)))
    }

    /// Fails unless this client may insert directories ([`LiveTree::insert_set`]). Cost: a round
    /// trip.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_may_insert(&mut self) -> Result<()> {
        // No set has this identity.
        match self.change(Request::adopt_set(SetId::default(), b"none")) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            checked => checked,
        }
    }

    /// Makes the directory `source` in the root of `set`, a complete set with its own identities,
    /// the new directory `name` in `parent`, durably: others see nothing of it before, and all of
    /// it afterwards. One directory of a set, or of a job, can be inserted, once. Cost: three round trips, and some
    /// store requests of the server.
    ///
    /// # Errors
    /// `Exists`, `Denied`, `Invalid` or `TooLarge` names; `Invalid` for other sets; `NotPermitted`
    /// unless the client is of the server's user, or the superuser; `Fenced` if `parent` was moved.
    pub fn insert_set(
        &mut self,
        (set, source): (SetId, &[u8]),
        parent: &LiveDir,
        name: &[u8],
    ) -> Result<()> {
        // A directory that is adopted and gets no name stays with the namespace.
        match self.lookup(parent, name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            Ok(_) => {
                let what = format!("{}: exists already", String::from_utf8_lossy(name));
                return Err(Error::new(Kind::Exists, what));
            }
            Err(error) => return Err(error),
        }
        let adopted = self.connection.call(Request::adopt_set(set, source))?;
        let identity = adopted.only(|input| Ok(DirId(input.u128()?)))?;
        self.change(Request::insert_adopted(parent, name, identity).durable())
    }

    /// Returns once everything that was answered before survives power loss.
    ///
    /// # Errors
    /// `DeviceFailed`, once, if a server died that had answered changes which were not durable; as
    /// [`LiveConnection::wait`].
    pub fn sync(&mut self) -> Result<()> {
        self.change(Request::sync())
    }

    /// Returns the server's state, as JSON.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn status(&mut self) -> Result<serde_json::Value> {
        let answer = self.connection.call(Request::status())?;
        let text = answer.only(|input| Ok(input.bytes(STATUS_BYTES_MAX, "a status")?.to_vec()))?;
        serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt("the status of a server", 0, error.to_string()))
    }

    /// Ends the client: the server forgets its requests.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn close(self) -> Result<()> {
        self.connection.close()
    }
}

/// Reads the entries that a listing returns, and whether they are the last ones.
///
/// # Errors
/// Damage if the bytes are not entries.
pub fn take_entries(input: &mut WireInput) -> Result<(bool, Vec<LiveEntry>), WireDamage> {
    let is_end = input.u8()? != 0;
    let count = input.varint_max(input.left(), "as many entries as follow")?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = input.bytes(NAME_BYTES_MAX, "a name")?.to_vec();
        entries.push(LiveEntry { name, attributes: take_attributes(input)? });
    }
    Ok((is_end, entries))
}
