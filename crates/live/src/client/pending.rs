// SPDX-License-Identifier: Apache-2.0
//! Pending requests: the requests of a client that have no answer yet.

use esker_base::wire::{put_bytes, put_varint};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::xattr::XATTR_VALUE_BYTES_MAX;
use esker_fs::inode::{DirId, FileKind, NameKind};
use esker_fs::ops::{NewFile, RenameFlags, XattrSet};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;

use super::PATIENCE_MAX;
use super::live_dir::{LiveDir, LiveFile, SeatPlace};
use crate::wire::{
    AttributeRequest, CHANGE_ITEMS_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader,
    MAKE_OPENS, MoveTarget, NAME_BYTES_MAX, PATH_BYTES_MAX, RangeChange, SPREAD_DEVICE,
    SeatFileNaming, Verb, WriteMode, finish_frame, start_frame,
};

/// A request of one or several items.
///
/// Names are at most 255 bytes, paths 4,096; a request has at most 2,048 changes, and about a
/// megabyte.
#[derive(Clone, Debug)]
pub struct Request {
    verb: Verb,
    items: u16,
    is_durable: bool,
    /// The seat whose server carries it out.
    seat: u16,
    dirs: Vec<LiveDir>,
    payload: Vec<u8>,
    /// Items that are too long for any server.
    too_long: Option<&'static str>,
}

impl Request {
    fn new(verb: Verb) -> Self {
        let (dirs, payload) = (Vec::new(), Vec::new());
        Self { verb, items: 0, is_durable: false, seat: 0, dirs, payload, too_long: None }
    }

    fn within(verb: Verb, dir: LiveDir) -> Self {
        let payload = dir.id.0.to_le_bytes().to_vec();
        let (seat, dirs) = (dir.place.seat, vec![dir]);
        Self { verb, items: 0, is_durable: false, seat, dirs, payload, too_long: None }
    }

    /// A request of items at `names` in `dir`, which are at one seat.
    fn at_names(verb: Verb, dir: &LiveDir, names: &[&[u8]]) -> Self {
        let Some((first, others)) = names.split_first() else {
            return Self::within(verb, dir.clone());
        };
        let mut request = Self::within(verb, dir.part_of(first));
        let elsewhere = others.iter().find(|name| dir.seat_of(name) != request.seat);
        // The request is refused.
        request.dirs.extend(elsewhere.map(|name| dir.part_of(name)));
        request
    }

    /// The seat whose server carries the request out: that of its directory, or 0.
    #[must_use]
    pub fn seat(&self) -> u16 {
        self.seat
    }

    /// Sends the request, which has no directory, to the server of `seat`.
    #[must_use]
    pub fn for_seat(mut self, seat: u16) -> Self {
        self.seat = seat;
        self
    }

    fn item(mut self, put: impl FnOnce(&mut Self)) -> Self {
        put(&mut self);
        match self.items.checked_add(1) {
            Some(items) => self.items = items,
            None => self.too_long = Some("list of items"),
        }
        self
    }

    fn named(self, names: &[&[u8]]) -> Self {
        names.iter().fold(self, |request, name| request.item(|item| item.put_name(name)))
    }

    /// Makes the answer wait until everything that was changed survives power loss.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// Nothing, for the measurement of round trips.
    #[must_use]
    pub fn null() -> Self {
        Self::new(Verb::Null).item(|_| ())
    }

    /// Waits until every change that was answered before survives power loss.
    #[must_use]
    pub fn sync() -> Self {
        Self::new(Verb::Sync).item(|_| ()).durable()
    }

    /// The place to which the path of `place` leads, as far as it is at its seat.
    #[must_use]
    pub fn resolve(place: &SeatPlace, follow: FollowLinks) -> Self {
        let request = Self::new(Verb::Resolve).item(|item| {
            item.payload.extend_from_slice(&place.top.0.to_le_bytes());
            item.payload.push(u8::from(follow == FollowLinks::Yes));
            item.put_path(&place.path);
        });
        request.for_seat(place.seat)
    }

    /// The attributes of `names` in `dir`.
    #[must_use]
    pub fn lookup(dir: &LiveDir, names: &[&[u8]]) -> Self {
        Self::at_names(Verb::Lookup, dir, names).named(names)
    }

    /// Up to `limit` entries of `dir` after the entry `after`.
    #[must_use]
    pub fn list(dir: &LiveDir, after: &[u8], limit: usize) -> Self {
        Self::within(Verb::List, dir.clone()).item(|item| {
            item.put_name(after);
            put_varint(&mut item.payload, limit as u64);
        })
    }

    /// Up to `bytes_max` bytes of `file` from `offset`.
    #[must_use]
    pub fn read(file: &LiveFile, offset: u64, bytes_max: usize) -> Self {
        Self::of_file(Verb::Read, file, |item| {
            put_varint(&mut item.payload, offset);
            put_varint(&mut item.payload, bytes_max as u64);
        })
    }

    /// The target of the symbolic link `file`.
    #[must_use]
    pub fn read_symlink(file: &LiveFile) -> Self {
        Self::of_file(Verb::ReadSymlink, file, |_| ())
    }

    /// The attributes of `file`.
    #[must_use]
    pub fn attributes(file: &LiveFile) -> Self {
        Self::of_file(Verb::Attributes, file, |_| ())
    }

    /// The value of the extended attribute `attribute` of `file`.
    #[must_use]
    pub fn xattr(file: &LiveFile, attribute: &[u8]) -> Self {
        Self::of_file(Verb::GetXattr, file, |item| item.put_name(attribute))
    }

    /// The names of all extended attributes of `file`.
    #[must_use]
    pub fn xattr_names(file: &LiveFile) -> Self {
        Self::of_file(Verb::ListXattrs, file, |_| ())
    }

    /// New empty files with permission bits `mode`.
    #[must_use]
    pub fn create(dir: &LiveDir, mode: u32, names: &[&[u8]]) -> Self {
        Self::make(Verb::Create, dir, mode, names)
    }

    /// New directories with permission bits `mode`.
    #[must_use]
    pub fn make_directory(dir: &LiveDir, mode: u32, names: &[&[u8]]) -> Self {
        Self::make(Verb::MakeDirectory, dir, mode, names)
    }

    fn make(verb: Verb, dir: &LiveDir, mode: u32, names: &[&[u8]]) -> Self {
        names.iter().fold(Self::at_names(verb, dir, names), |request, name| {
            request.item(|item| {
                put_varint(&mut item.payload, u64::from(mode & 0o7777));
                item.put_name(name);
            })
        })
    }

    /// A new directory with permission bits `mode`, whose names are spread over all seats. The
    /// answer has its attributes.
    #[must_use]
    pub fn make_spread_directory(dir: &LiveDir, name: &[u8], mode: u32) -> Self {
        let (kind, identity) = (FileKind::Directory, Identity::of_process());
        let (uid, gid) = (identity.uid, identity.gid);
        let new = NewFile { kind, mode, uid, gid, rdev: SPREAD_DEVICE, target: &[] };
        Self::make_node(dir, name, (&new, false))
    }

    /// A symbolic link to `target`.
    #[must_use]
    pub fn make_symlink(dir: &LiveDir, target: &[u8], name: &[u8]) -> Self {
        Self::at_names(Verb::MakeSymlink, dir, &[name]).item(|item| {
            item.put_path(target);
            item.put_name(name);
        })
    }

    /// The new file `name` in `dir`, whose attributes the answer has; `opens` it if it is a regular
    /// file.
    #[must_use]
    pub fn make_node(dir: &LiveDir, name: &[u8], (new, opens): (&NewFile, bool)) -> Self {
        Self::at_names(Verb::MakeNode, dir, &[name]).item(|item| {
            let code = NameKind::Is(new.kind).number();
            let code = u8::try_from(code).expect("kinds of files are few");
            item.payload.push(if opens { code | MAKE_OPENS } else { code });
            let mode = u64::from(new.mode & 0o7777);
            let fields = [mode, new.uid.into(), new.gid.into(), new.rdev];
            fields.iter().for_each(|field| put_varint(&mut item.payload, *field));
            item.put_path(new.target);
            item.put_name(name);
        })
    }

    /// Another name of the file `old`.
    #[must_use]
    pub fn link(old: &LiveFile, target: &LiveDir, name: &[u8]) -> Self {
        Self::at_file(Verb::Link, old).with_second(target.part_of(name), |item| {
            item.put_file(old);
            item.payload.extend_from_slice(&target.id.0.to_le_bytes());
            item.put_name(name);
        })
    }

    /// A new name for `old` in `dir`.
    #[must_use]
    pub fn rename(
        (dir, old): (&LiveDir, &[u8]),
        (target, name): (&LiveDir, &[u8]),
        flags: RenameFlags,
    ) -> Self {
        Self::at_names(Verb::Rename, dir, &[old]).with_second(target.part_of(name), |item| {
            item.payload.push(match flags {
                RenameFlags::Replace => 0,
                RenameFlags::NoReplace => 1,
                RenameFlags::Exchange => 2,
            });
            item.put_name(old);
            item.payload.extend_from_slice(&target.id.0.to_le_bytes());
            item.put_name(name);
        })
    }

    /// A new name, in a directory at another seat, for `old` in `dir`. It replaces a file that is there
    /// if `replaces`.
    #[must_use]
    pub fn rename_across(
        (dir, old): (&LiveDir, &[u8]),
        (target, name): (&LiveDir, &[u8]),
        replaces: bool,
    ) -> Self {
        Self::at_names(Verb::RenameAcross, dir, &[old]).item(|item| {
            item.put_name(old);
            item.put_target((target, name), replaces);
        })
    }

    /// Another name of the regular file `old`, in a directory at another seat.
    #[must_use]
    pub fn link_across(old: &LiveFile, target: &LiveDir, name: &[u8]) -> Self {
        Self::at_file(Verb::LinkAcross, old).item(|item| {
            item.put_file(old);
            item.put_target((target, name), false);
        })
    }

    fn put_target(&mut self, (dir, name): (&LiveDir, &[u8]), replaces: bool) {
        let SeatPlace { seat, top, path } = dir.part_of(name).place;
        let (path, name) = (path.to_vec(), name.to_vec());
        let target = MoveTarget { seat, dir: dir.id, top, path, name, replaces };
        if target.name.len() > NAME_BYTES_MAX || target.path.len() > PATH_BYTES_MAX {
            self.too_long = Some("name or path");
        }
        target.put(&mut self.payload);
    }

    /// A name for a file at another seat.
    pub(crate) fn name_seat_file(naming: &SeatFileNaming) -> Self {
        let request = Self::within(Verb::NameSeatFile, LiveDir::seat_roots(naming.target.seat));
        request.item(|item| naming.put(&mut item.payload))
    }

    fn with_second(mut self, target: LiveDir, put: impl FnOnce(&mut Self)) -> Self {
        self.dirs.push(target);
        self.item(put)
    }

    /// Removes names of files.
    #[must_use]
    pub fn unlink(dir: &LiveDir, names: &[&[u8]]) -> Self {
        Self::at_names(Verb::Unlink, dir, names).named(names)
    }

    /// Removes empty directories.
    #[must_use]
    pub fn remove_directory(dir: &LiveDir, names: &[&[u8]]) -> Self {
        Self::at_names(Verb::RemoveDirectory, dir, names).named(names)
    }

    /// Changes attributes of `file`.
    #[must_use]
    pub fn set_attributes(file: &LiveFile, changes: &AttributeRequest) -> Self {
        Self::of_file(Verb::SetAttributes, file, |item| changes.put(&mut item.payload))
    }

    /// Writes `bytes`, at most a megabyte, into `file` from `offset` on.
    #[must_use]
    pub fn write(file: &LiveFile, offset: u64, bytes: &[u8]) -> Self {
        Self::write_as(file, (offset, bytes), WriteMode::default())
    }

    /// Like [`Request::write`], in a certain way.
    #[must_use]
    pub fn write_as(file: &LiveFile, (offset, bytes): (u64, &[u8]), how: WriteMode) -> Self {
        Self::of_file(Verb::Write, file, |item| {
            put_varint(&mut item.payload, offset);
            how.put(&mut item.payload);
            put_bytes(&mut item.payload, bytes);
        })
    }

    /// Changes the `length` bytes of `file` from `offset` on.
    #[must_use]
    pub fn allocate(file: &LiveFile, (offset, length): (u64, u64), change: RangeChange) -> Self {
        Self::of_file(Verb::Allocate, file, |item| {
            put_varint(&mut item.payload, offset);
            put_varint(&mut item.payload, length);
            change.put(&mut item.payload);
        })
    }

    /// Sets the extended attribute `attribute` of `file` to `value`, at most 64 KiB.
    #[must_use]
    pub fn set_xattr(
        file: &LiveFile,
        (attribute, value): (&[u8], &[u8]),
        condition: XattrSet,
    ) -> Self {
        Self::of_file(Verb::SetXattr, file, |item| {
            item.put_name(attribute);
            item.payload.push(match condition {
                XattrSet::Any => 0,
                XattrSet::Create => 1,
                XattrSet::Replace => 2,
            });
            item.put_bounded(value, XATTR_VALUE_BYTES_MAX, "extended attribute");
        })
    }

    /// Removes the extended attribute `attribute` of `file`.
    #[must_use]
    pub fn remove_xattr(file: &LiveFile, attribute: &[u8]) -> Self {
        Self::of_file(Verb::RemoveXattr, file, |item| item.put_name(attribute))
    }

    /// Opens `file`, whose identity is known. Until it is closed, requests of this client with its
    /// identity reach it under any name, and without one.
    #[must_use]
    pub fn open(file: &LiveFile) -> Self {
        Self::of_file(Verb::Open, file, |_| ())
    }

    /// Closes `file`.
    #[must_use]
    pub fn close(file: &LiveFile) -> Self {
        Self::of_file(Verb::Close, file, |_| ())
    }

    fn of_file(verb: Verb, file: &LiveFile, put: impl FnOnce(&mut Self)) -> Self {
        Self::at_file(verb, file).item(|item| {
            item.put_file(file);
            put(item);
        })
    }

    fn at_file(verb: Verb, file: &LiveFile) -> Self {
        match file.name {
            b"" => Self::within(verb, file.dir.clone()),
            name => Self::at_names(verb, file.dir, &[name]),
        }
    }

    /// Makes the directory `name` in the root of the complete set `set` part of the namespace,
    /// without a name. Its answer, the identity of the adopted directory, is always durable.
    #[must_use]
    pub fn adopt_set(seat: u16, set: SetId, name: &[u8]) -> Self {
        Self::new(Verb::AdoptSet).for_seat(seat).durable().item(|item| {
            item.payload.extend_from_slice(&set.0.to_le_bytes());
            item.put_name(name);
        })
    }

    /// A name for the adopted directory `identity`.
    #[must_use]
    pub fn insert_adopted(dir: &LiveDir, name: &[u8], identity: DirId) -> Self {
        Self::at_names(Verb::InsertAdopted, dir, &[name]).item(|item| {
            item.payload.extend_from_slice(&identity.0.to_le_bytes());
            item.put_name(name);
        })
    }

    /// Publishes the current state as the snapshot `name`.
    #[must_use]
    pub fn snapshot(name: &str) -> Self {
        Self::new(Verb::Snapshot).named(&[name.as_bytes()])
    }

    /// No change is carried out at the seat until [`Request::thaw`], or until this client has
    /// disconnected.
    #[must_use]
    pub(crate) fn freeze() -> Self {
        Self::new(Verb::Freeze).item(|_| ())
    }

    /// The end of [`Request::freeze`].
    #[must_use]
    pub(crate) fn thaw() -> Self {
        Self::new(Verb::Thaw).item(|_| ())
    }

    /// The part of the snapshot `set` that the seat has.
    #[must_use]
    pub(crate) fn snapshot_part(set: SetId) -> Self {
        let request = Self::new(Verb::SnapshotPart);
        request.item(|item| item.payload.extend_from_slice(&set.0.to_le_bytes()))
    }

    /// No name is made in the part of the spread directory `id` at `seat`, which must be empty, for
    /// some seconds, or again if not `closes`.
    #[must_use]
    pub(crate) fn close_part(seat: u16, id: DirId, closes: bool) -> Self {
        let request = Self::new(Verb::ClosePart).for_seat(seat);
        request.item(|item| {
            item.payload.extend_from_slice(&id.0.to_le_bytes());
            item.payload.push(u8::from(closes));
        })
    }

    /// The server's counters.
    #[must_use]
    pub fn status() -> Self {
        Self::new(Verb::Status).item(|_| ())
    }

    /// The end of the client.
    pub(super) fn goodbye() -> Self {
        Self::new(Verb::Goodbye).item(|_| ())
    }

    /// True if it may change what others see.
    #[must_use]
    pub fn is_change(&self) -> bool {
        self.verb.is_change() && !matches!(self.verb, Verb::Open | Verb::Close)
    }

    /// The number of its items.
    #[must_use]
    pub fn items(&self) -> u16 {
        self.items
    }

    /// Fails for a request that no server accepts.
    pub(super) fn check(&self) -> Result<()> {
        let too_large = |what: String| Err(Error::new(Kind::TooLarge, what));
        if self.dirs.iter().any(|dir| dir.place.seat != self.seat) {
            return Err(Error::new(Kind::CrossDevice, "these directories are at different seats"));
        }
        if let Some(what) = self.too_long {
            return too_large(format!("a {what} that is longer than any"));
        }
        if self.verb.is_change() && self.items > CHANGE_ITEMS_MAX {
            return too_large(format!(
                "{} changes in one request; at most {CHANGE_ITEMS_MAX}",
                self.items
            ));
        }
        let bytes = FRAME_HEADER_BYTES + self.payload.len();
        if bytes > FRAME_BYTES_MAX {
            return too_large(format!("a request of {bytes} bytes; at most {FRAME_BYTES_MAX}"));
        }
        Ok(())
    }

    fn put_file(&mut self, file: &LiveFile) {
        self.payload.extend_from_slice(&file.id.to_le_bytes());
        self.put_name(file.name);
    }

    fn put_name(&mut self, name: &[u8]) {
        self.put_bounded(name, NAME_BYTES_MAX, "name");
    }

    fn put_path(&mut self, path: &[u8]) {
        self.put_bounded(path, PATH_BYTES_MAX, "path");
    }

    fn put_bounded(&mut self, bytes: &[u8], bytes_max: usize, what: &'static str) {
        if bytes.len() > bytes_max {
            self.too_long = Some(what);
        }
        put_bytes(&mut self.payload, bytes);
    }
}

/// A request that has a number, and no answer yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub number: u64,
    request: Request,
    /// When it got its number, by the monotonic clock.
    begun_ns: u64,
    repeats: u32,
    /// True once it was sent on an earlier connection.
    is_repeated: bool,
}

impl PendingRequest {
    pub fn new(number: u64, request: Request, begun_ns: u64) -> Self {
        Self { number, request, begun_ns, repeats: 0, is_repeated: false }
    }

    /// True if a server may have forgotten by `now_ns` whether it has carried the request out. A
    /// server remembers a client for longer after it has lost its connection.
    pub fn may_be_forgotten(&self, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.begun_ns);
        self.is_change() && u128::from(age_ns) > PATIENCE_MAX.as_nanos()
    }

    /// The directories that the server must have open.
    pub fn dirs(&self) -> &[LiveDir] {
        &self.request.dirs
    }

    /// Counts a repetition on one connection; returns their number.
    pub fn count_repeat(&mut self) -> u32 {
        self.repeats += 1;
        self.repeats
    }

    /// As [`Request::is_change`].
    pub fn is_change(&self) -> bool {
        self.request.is_change()
    }

    /// True if its answer waits until everything before survives power loss.
    pub fn is_durable(&self) -> bool {
        self.request.is_durable
    }

    /// False if the request would not do the same when it is repeated.
    pub fn is_repeatable(&self) -> bool {
        self.request.verb != Verb::Snapshot
    }

    /// The connection is new: forgets repetitions on the one before.
    pub fn move_to_new_connection(&mut self) {
        self.is_repeated = true;
        self.repeats = 0;
    }

    /// The verb of its answer.
    pub fn verb(&self) -> Verb {
        self.request.verb
    }

    /// Appends the frame, if the answers below `answered_below` have arrived.
    pub fn put(&self, out: &mut Vec<u8>, answered_below: u64) {
        let at = start_frame(out);
        out.extend_from_slice(&self.request.payload);
        let window = self.number + 1 - answered_below;
        let mut header = FrameHeader::new(self.request.verb, self.number);
        header.flags.is_durable = self.request.is_durable;
        header.flags.is_repeated = self.is_repeated;
        header.items = self.request.items;
        header.window = u32::try_from(window).expect("few requests are under way");
        finish_frame(out, at, &header);
    }
}
