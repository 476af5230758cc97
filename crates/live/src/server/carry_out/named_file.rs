// SPDX-License-Identifier: Apache-2.0
//! Named file: finds the file that an item names, by its identity if the item has one, and works on
//! it with the client's permissions.
//!
//! A client learns a name and the file there at one moment and uses both later. With the identity,
//! an item never reaches another file: it reaches the one that the client has open, or the one that
//! is still at the name, or one with further names that the client has seen at one of them. Otherwise it fails with `Conflict`, and the
//! client looks the path up again.

use std::sync::Arc;

use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Bytes, Error, Kind, Result};
use esker_fs::file::{OpenFile, SessionFile};
use esker_fs::inode::{DirId, FileKind, Inode};
use esker_fs::ops::{AttributeChanges, XattrSet};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::{EXECUTE, READ, WRITE};

use esker_fs::session::Session;

use super::changes::ItemEffect;
use super::{ClientSession, FrameRefusal, take_name};
use crate::server::client_files::ClientFile;
use crate::server::open_file_limits::AdmittedFile;
use crate::wire::{AttributeRequest, RangeChange, TRANSFER_BYTES_MAX, Verb, WriteMode};

/// The file of an item: identity, or 0 for any, and name.
#[derive(Clone, Copy)]
pub(super) struct NamedFile<'b> {
    pub id: u128,
    pub name: &'b [u8],
}

/// The way to a file.
enum FilePlace {
    /// The client has it open.
    Open(ClientFile),
    /// The directory of the item itself.
    Directory,
    /// It is at the name of the item, without its strings.
    Named(Box<Inode>),
    /// It is a file with several names, or had them, and is not at that of the item.
    Linked,
}

impl<'b> NamedFile<'b> {
    pub fn take(input: &mut WireInput<'b>) -> Result<Self, WireDamage> {
        Ok(Self { id: input.u128()?, name: take_name(input)? })
    }
}

fn moved() -> Error {
    Error::new(Kind::Conflict, "the file is not at this name any more: look the path up again")
}

/// Fails unless `file`, which has the empty name, is `dir` itself, and `dir` was not removed: another
/// file may have its name.
fn check_directory(dir: &Dir, file: &NamedFile) -> Result<()> {
    let is_it = (file.id == 0 || file.id == dir.id().0) && dir.id() != DirId::SEAT_ROOTS;
    if is_it && !dir.is_removed() { Ok(()) } else { Err(moved()) }
}

fn permitted(may: bool) -> Result<()> {
    if may { Ok(()) } else { Err(Error::new(Kind::Denied, "permission denied")) }
}

/// Removes the bits that a write by another user than the owner removes.
fn drop_set_id(file: &SessionFile) -> Result<()> {
    let mode = file.stat()?.mode;
    // Without group execution, set-group-id means mandatory locking and stays.
    let dropped = if mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
    if mode & dropped == 0 {
        return Ok(());
    }
    let changes = AttributeChanges { mode: Some(mode & !dropped), ..AttributeChanges::default() };
    file.setattr(&changes).map(drop)
}

impl ClientSession<'_> {
    /// Finds `file`, in `dir` if it has a name there.
    fn find_file(&self, dir: &Dir, file: &NamedFile) -> Result<FilePlace> {
        if let Some(opened) = self.files.get(file.id) {
            return Ok(FilePlace::Open(opened));
        }
        if file.name.is_empty() {
            check_directory(dir, file)?;
            return Ok(FilePlace::Directory);
        }
        match self.named(dir, file, false)? {
            Some(inode) => Ok(FilePlace::Named(Box::new(inode))),
            None => self.linked(file.id).map(|_| FilePlace::Linked),
        }
    }

    /// The inode of `file` at its name, with its strings if `with_strings`; `None` if it can only be
    /// one with further names.
    fn named(&self, dir: &Dir, file: &NamedFile, with_strings: bool) -> Result<Option<Inode>> {
        match self.session.namespace().lookup(dir, file.name, with_strings) {
            // Its own seat has it.
            Ok(inode) if inode.seat_file().is_some() => Err(moved()),
            found if file.id == 0 => found.map(Some),
            Ok(inode) if inode.id == file.id => Ok(Some(inode)),
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            // Only by a name does a client learn that it may reach a file.
            _ if !self.seen_links.has(file.id) => Err(moved()),
            _ => Ok(None),
        }
    }

    /// The inode of a file that has several names, or had them, with its strings.
    fn linked(&self, id: u128) -> Result<Inode> {
        let links = self.superuser.namespace().links();
        match self.superuser.namespace().lookup(links, &id.to_be_bytes(), true) {
            Ok(inode) if inode.nlink > 0 => Ok(inode),
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Err(moved()),
        }
    }

    /// The current attributes of `file`; content and extended attributes only if `with_strings`.
    pub(super) fn inode_of(
        &self,
        dir: &Dir,
        file: &NamedFile,
        with_strings: bool,
    ) -> Result<Inode> {
        if let Some(opened) = self.files.get(file.id) {
            return self.session.file(&opened.file).stat();
        }
        if file.name.is_empty() {
            check_directory(dir, file)?;
            return self.session.namespace().stat_dir(dir);
        }
        self.named(dir, file, with_strings)?.map_or_else(|| self.linked(file.id), Ok)
    }

    /// Opens a file that has several names, or had them, for a step whose permissions are checked.
    fn open_linked(&self, id: u128) -> Result<Arc<OpenFile>> {
        self.superuser.open_file(self.superuser.namespace().links(), &id.to_be_bytes())
    }

    /// Opens `file`, a regular file, for this client.
    pub(super) fn open(&self, dir: &Dir, file: &NamedFile) -> Result<()> {
        self.open_admitted(dir, file, None)
    }

    /// Opens a file as [`ClientSession::open`] does, which may have been `admitted` already.
    pub(super) fn open_admitted(
        &self,
        dir: &Dir,
        file: &NamedFile,
        admitted: Option<AdmittedFile>,
    ) -> Result<()> {
        let session = &self.session;
        let (opened, inode) = match self.find_file(dir, file)? {
            FilePlace::Open(opened) => {
                let inode = session.file(&opened.file).stat()?;
                if let Ok(now) =
                    ClientFile::new(opened.file, session.namespace().identity(), &inode)
                {
                    self.files.widen(&now);
                }
                return Ok(());
            }
            FilePlace::Directory => {
                return Err(Error::new(Kind::IsADirectory, "a directory is not opened"));
            }
            FilePlace::Named(inode) => (session.open_file(dir, file.name)?, *inode),
            FilePlace::Linked => (self.open_linked(file.id)?, self.linked(file.id)?),
        };
        let admit = || admitted.map_or_else(|| self.files.admit(), Ok);
        let kept = ClientFile::new(opened.clone(), session.namespace().identity(), &inode)
            .and_then(|kept| Ok((kept, admit()?)));
        match kept {
            Ok(kept) => self.files.keep(session, kept),
            Err(refused) => session.close_file(opened).and(Err(refused)),
        }
    }

    /// Reads up to `bytes_max` bytes of `file` from `offset`.
    pub(super) fn read_file(
        &self,
        dir: &Dir,
        file: &NamedFile,
        (offset, bytes_max): (u64, usize),
    ) -> Result<Bytes> {
        if let Some(opened) = self.files.get(file.id) {
            permitted(opened.may_read)?;
            return self.session.file(&opened.file).read(offset, bytes_max);
        }
        let inode = self.inode_of(dir, file, true)?;
        let session = if self.is_opener(file, &inode) { &self.superuser } else { &self.session };
        session.namespace().read(&inode, offset, bytes_max)
    }

    /// The target of the symbolic link `file`.
    pub(super) fn target_of(&self, dir: &Dir, file: &NamedFile) -> Result<Vec<u8>> {
        let inode = self.inode_of(dir, file, true)?;
        if inode.kind() != Some(FileKind::Symlink) {
            return Err(Error::new(Kind::Invalid, "not a symbolic link"));
        }
        Ok(inode.content)
    }

    /// True if the client may have the file open without the permissions that its bits give: it knows
    /// the identity of a file of its own, which a server that took over does not have open.
    fn is_opener(&self, file: &NamedFile, inode: &Inode) -> bool {
        file.id != 0 && inode.uid == self.session.namespace().identity().uid
    }

    /// Changes attributes or content of a file.
    pub(super) fn change_file(
        &self,
        verb: Verb,
        dir: &Dir,
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        let file = NamedFile::take(input)?;
        if verb == Verb::SetAttributes {
            let request = AttributeRequest::take(input)?;
            let is_open = matches!(self.find_file(dir, &file), Ok(FilePlace::Open(_)));
            let changed = self.set_attributes(dir, &file, &request);
            // A new size comes behind writes that are done again.
            return Ok(changed.map(|()| match is_open && request.size.is_some() {
                true => ItemEffect::InMemory,
                false => ItemEffect::InTree,
            }));
        }
        let offset = input.varint()?;
        if verb == Verb::Allocate {
            let (range, how) = ((offset, input.varint()?), RangeChange::take(input)?);
            return Ok(self.allocate(dir, &file, range, how));
        }
        let how = WriteMode::take(input)?;
        let bytes = input.bytes(TRANSFER_BYTES_MAX, "bytes to write")?;
        Ok(self.write(dir, &file, (offset, bytes), how))
    }

    /// Writes `bytes` into `file` from `offset` on.
    fn write(
        &self,
        dir: &Dir,
        file: &NamedFile,
        (offset, bytes): (u64, &[u8]),
        how: WriteMode,
    ) -> Result<ItemEffect> {
        self.change_content(dir, file, |file, opened| {
            if how.appends && opened.size()? != offset {
                // An append that was done before a takeover is there.
                let may_be_there = self.is_repeated && opened.size()? > offset;
                if !may_be_there || file.read(offset, bytes.len())? != *bytes {
                    return Err(Error::new(Kind::Conflict, "the file ends elsewhere by now"));
                }
            }
            file.write(offset, bytes)?;
            if how.drops_set_id { drop_set_id(&file) } else { Ok(()) }
        })
    }

    /// Changes the `length` bytes of `file` from `offset` on.
    fn allocate(
        &self,
        dir: &Dir,
        file: &NamedFile,
        (offset, length): (u64, u64),
        RangeChange { zeroes, keeps_size }: RangeChange,
    ) -> Result<ItemEffect> {
        let end = offset
            .checked_add(length)
            .ok_or_else(|| Error::new(Kind::FileTooLarge, "a range beyond any file"))?;
        self.change_content(dir, file, |file, _| match zeroes {
            true => file.punch(offset..end, keeps_size),
            false => file.allocate(offset..end, keeps_size),
        })
    }

    /// Carries out `change` of the content of `file`; in memory while the client has it open.
    fn change_content(
        &self,
        dir: &Dir,
        file: &NamedFile,
        change: impl FnOnce(SessionFile, &OpenFile) -> Result<()>,
    ) -> Result<ItemEffect> {
        let session = &self.session;
        let opened = match self.find_file(dir, file)? {
            FilePlace::Open(opened) => {
                permitted(opened.may_write)?;
                change(session.file(&opened.file), &opened.file)?;
                return Ok(ItemEffect::InMemory);
            }
            FilePlace::Directory => {
                return Err(Error::new(Kind::IsADirectory, "a directory has no bytes to write"));
            }
            FilePlace::Named(inode) => {
                if !self.is_opener(file, &inode) {
                    session.namespace().identity().check(WRITE, &inode, file.name)?;
                }
                session.open_file(dir, file.name)?
            }
            FilePlace::Linked => {
                let inode = self.linked(file.id)?;
                if !self.is_opener(file, &inode) {
                    session.namespace().identity().check(WRITE, &inode, file.name)?;
                }
                self.open_linked(file.id)?
            }
        };
        let changed = change(session.file(&opened), &opened);
        let closed = session.close_file(opened);
        changed.and(closed).map(|()| ItemEffect::InTree)
    }

    /// Changes attributes of `file`.
    fn set_attributes(
        &self,
        dir: &Dir,
        file: &NamedFile,
        request: &AttributeRequest,
    ) -> Result<()> {
        let changes = request.changes(self.session.now_ns());
        if self.may_touch(dir, file, request)? {
            return self.change_attributes(&self.superuser, (dir, file), &changes);
        }
        self.change_attributes(&self.session, (dir, file), &changes)
    }

    /// True if `request` sets the times of `file` to the current one and nothing else, for which
    /// write permission is enough.
    fn may_touch(&self, dir: &Dir, file: &NamedFile, request: &AttributeRequest) -> Result<bool> {
        let touch = AttributeRequest {
            atime_now: request.atime_now,
            mtime_now: request.mtime_now,
            ..AttributeRequest::default()
        };
        if *request != touch || self.session.namespace().identity().is_root() {
            return Ok(false);
        }
        Ok(self
            .session
            .namespace()
            .identity()
            .check(WRITE, &self.inode_of(dir, file, false)?, file.name)
            .is_ok())
    }

    fn change_attributes(
        &self,
        session: &Session,
        (dir, file): (&Dir, &NamedFile),
        changes: &AttributeChanges,
    ) -> Result<()> {
        match self.find_file(dir, file)? {
            FilePlace::Open(opened) => self.set_open_attributes(session, &opened, changes),
            FilePlace::Directory => match dir.location() {
                Some((parent, name)) => session.setattr(&parent, &name, changes).map(drop),
                None => session.setattr_root(changes),
            },
            FilePlace::Named(_) => session.setattr(dir, file.name, changes).map(drop),
            FilePlace::Linked => {
                let opened = self.open_linked(file.id)?;
                let changed = session.file(&opened).setattr(changes).map(drop);
                session.close_file(opened).and(changed)
            }
        }
    }

    /// Changes attributes of an open file. A program may set the size of a file that it has open
    /// for writing, whatever the permission bits say by now.
    fn set_open_attributes(
        &self,
        session: &Session,
        opened: &ClientFile,
        changes: &AttributeChanges,
    ) -> Result<()> {
        let file = session.file(&opened.file);
        let is_granted =
            |inode: &Inode| session.namespace().identity().check(WRITE, inode, b"").is_ok();
        let mut others = *changes;
        if changes.size.is_some() && opened.may_write && !is_granted(&file.stat()?) {
            others.size = None;
            let size = AttributeChanges { size: changes.size, ..AttributeChanges::default() };
            self.superuser.file(&opened.file).setattr(&size)?;
        }
        if others == AttributeChanges::default() {
            return Ok(());
        }
        file.setattr(&others).map(drop)
    }

    /// Gives the file `old` in `dir` the further name `name` in `target`.
    pub(super) fn link(
        &self,
        dir: &Dir,
        old: &NamedFile,
        (target, name): (&Dir, &[u8]),
    ) -> Result<Inode> {
        let (dir, old) = self.name_of(dir, old)?;
        if dir.id() != DirId::LINKS {
            return self.session.link(&dir, &old, target, name);
        }
        // The directory of links is the superuser's; what is left to check is the new name's
        // directory.
        let (uid, gid) = target.owner();
        let may =
            self.session.namespace().identity().may(WRITE | EXECUTE, target.mode(), uid, gid, true);
        permitted(may)?;
        self.superuser.link(&dir, &old, target, name)
    }

    /// The value of an extended attribute of `file`.
    pub(super) fn xattr(&self, dir: &Dir, file: &NamedFile, attribute: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode_of(dir, file, true)?;
        let identity = self.session.namespace().identity();
        if attribute.starts_with(b"user.") {
            identity.check(READ, &inode, file.name)?;
        }
        let is_shown = identity.is_root() || !attribute.starts_with(b"trusted.");
        let value = self.session.namespace().xattrs(&inode)?.remove(attribute).filter(|_| is_shown);
        value.ok_or_else(|| Error::new(Kind::NoAttribute, "no such extended attribute"))
    }

    /// The names of the extended attributes of `file`, each followed by a zero byte.
    pub(super) fn xattr_names(&self, dir: &Dir, file: &NamedFile) -> Result<Vec<u8>> {
        let inode = self.inode_of(dir, file, true)?;
        let mut names = Vec::new();
        for name in self.session.namespace().xattrs(&inode)?.keys() {
            if self.session.namespace().identity().is_root() || !name.starts_with(b"trusted.") {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Sets an extended attribute of `file`, or removes it without a value.
    pub(super) fn change_xattr(
        &self,
        dir: &Dir,
        file: &NamedFile,
        (attribute, value): (&[u8], Option<(&[u8], XattrSet)>),
    ) -> Result<()> {
        let session = &self.session;
        match self.find_file(dir, file)? {
            FilePlace::Open(opened) => {
                let file = session.file(&opened.file);
                return match value {
                    Some((value, condition)) => file.set_xattr((attribute, value), condition),
                    None => file.remove_xattr(attribute),
                };
            }
            FilePlace::Directory if dir.location().is_none() => {
                return match value {
                    Some((value, condition)) => {
                        session.set_xattr_root((attribute, value), condition)
                    }
                    None => session.remove_xattr_root(attribute),
                };
            }
            _ => {}
        }
        let (dir, name) = self.name_of(dir, file)?;
        let session = match dir.id() == DirId::LINKS {
            false => session,
            true => {
                let inode = self.linked(file.id)?;
                let is_users =
                    attribute.starts_with(b"user.") && inode.kind() == Some(FileKind::File);
                if !is_users && !session.namespace().identity().is_root() {
                    return Err(Error::new(Kind::NotPermitted, "operation not permitted"));
                }
                session.namespace().identity().check(WRITE, &inode, file.name)?;
                &self.superuser
            }
        };
        match value {
            Some((value, condition)) => {
                session.set_xattr(&dir, &name, (attribute, value), condition)
            }
            None => session.remove_xattr(&dir, &name, attribute),
        }
    }

    /// A directory and a name under which operations reach `file` now.
    pub(super) fn name_of(&self, dir: &Dir, file: &NamedFile) -> Result<(Dir, Vec<u8>)> {
        let gone = || Error::new(Kind::NotFound, "the file has no name any more");
        Ok(match self.find_file(dir, file)? {
            FilePlace::Open(opened) => {
                self.session.file(&opened.file).record_location().ok_or_else(gone)?
            }
            FilePlace::Directory => dir.location().ok_or_else(gone)?,
            FilePlace::Named(_) => (dir.clone(), file.name.to_vec()),
            FilePlace::Linked => {
                (self.superuser.namespace().links().clone(), file.id.to_be_bytes().to_vec())
            }
        })
    }
}
