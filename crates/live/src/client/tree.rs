// SPDX-License-Identifier: Apache-2.0
//! Tree: a live namespace by paths, one request at a time.

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::ops::RenameFlags;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;

use super::answer::Answer;
use super::connection::{LiveClientOptions, LiveConnection};
use super::live_dir::{LiveDir, LiveFile};
use super::pending::Request;
use super::seat_walk::SeatWalk;
use crate::wire::{
    AttributeRequest, LiveAttributes, SeatPath, TRANSFER_BYTES_MAX, take_attributes,
};

/// Attempts to reach a file at another seat than its name, which others replace meanwhile.
pub const FAR_ATTEMPTS: u32 = 32;

/// The place to which a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePlace {
    /// The directory that contains it; for the root, and for a directory that is at another seat
    /// than its name, that directory itself.
    pub dir: LiveDir,
    /// Its name there; empty for these.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: LiveAttributes,
}

/// A live namespace by paths.
#[derive(Debug)]
pub struct LiveTree {
    store: SharedStore,
    name: String,
    options: LiveClientOptions,
    /// Connections by seat, made when they are first needed.
    connections: Vec<Option<LiveConnection>>,
}

impl LiveTree {
    /// Connects to the server of the root of the live namespace `name` in `store`.
    ///
    /// # Errors
    /// As [`LiveConnection::connect`].
    pub fn connect(store: &SharedStore, name: &str, options: LiveClientOptions) -> Result<Self> {
        let seats = LiveNamespace::load(&**store, name)?.seats.len();
        let connections = (0..seats).map(|_| None).collect();
        let mut tree = Self { store: store.clone(), name: name.to_owned(), options, connections };
        tree.connection_to(0)?;
        Ok(tree)
    }

    /// The connection to the server of the root, for requests of many items.
    ///
    /// # Panics
    /// Never: it was made first.
    pub fn connection(&mut self) -> &mut LiveConnection {
        self.connections[0].as_mut().expect("connected first")
    }

    /// The connection to the server of `seat`, for requests of many items.
    ///
    /// # Errors
    /// As [`LiveConnection::connect`].
    pub fn connection_to(&mut self, seat: u16) -> Result<&mut LiveConnection> {
        let Some(connection) = self.connections.get_mut(usize::from(seat)) else {
            let what = format!("a directory at seat {seat}, and {} has fewer", self.name);
            return Err(Error::new(Kind::Corrupt, what));
        };
        if connection.is_none() {
            let of = (&self.name[..], seat);
            *connection = Some(LiveConnection::connect(&self.store, of, self.options.clone())?);
        }
        Ok(connection.as_mut().expect("connected above"))
    }

    /// Number of seats.
    #[must_use]
    pub fn seats(&self) -> u16 {
        u16::try_from(self.connections.len()).expect("at most SEATS_MAX")
    }

    /// Sends `request` to the server of its seat, and returns the answer. Cost: a round trip.
    ///
    /// # Errors
    /// As [`LiveConnection::connect`] and [`LiveConnection::wait`].
    pub fn call(&mut self, request: Request) -> Result<Answer> {
        self.connection_to(request.seat())?.call(request)
    }

    /// Returns the place to which `path` leads. Cost: a round trip to each seat that it crosses.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`, `Loop`, `TooLarge`.
    pub fn resolve(&mut self, path: &[u8], follow: FollowLinks) -> Result<LivePlace> {
        let (mut walk, mut attempts) = (SeatWalk::new(path), 0);
        loop {
            let answer = self.call(walk.request(follow))?.only(SeatPath::take);
            if walk.is_at_file()
                && answer.as_ref().is_err_and(|error| is_absent(error.kind()))
                && attempts < FAR_ATTEMPTS
            {
                // The name stands for another file since.
                (walk, attempts) = (SeatWalk::new(path), attempts + 1);
                continue;
            }
            if let Some(place) = walk.take(answer?)? {
                return Ok(place);
            }
        }
    }

    /// Opens the directory at `path`. Cost: as [`LiveTree::resolve`].
    ///
    /// # Errors
    /// As [`LiveTree::resolve`]; `NotADirectory`.
    pub fn dir(&mut self, path: &[u8]) -> Result<LiveDir> {
        let place = self.resolve(path, FollowLinks::Yes)?;
        if place.name.is_empty() {
            return Ok(place.dir);
        }
        if place.attributes.kind != esker_fs::inode::FileKind::Directory {
            let what = format!("{}: not a directory", String::from_utf8_lossy(path));
            return Err(Error::new(Kind::NotADirectory, what));
        }
        Ok(place.dir.child(&place.name, &place.attributes))
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
    /// Cost: as [`LiveTree::resolve`].
    ///
    /// # Errors
    /// As [`LiveTree::resolve`]; `IsADirectory` for the root.
    pub fn locate_file(&mut self, path: &[u8]) -> Result<(LiveDir, Vec<u8>)> {
        let place = self.resolve(path, FollowLinks::Yes)?;
        if place.name.is_empty() {
            let what = format!("{}: is a directory", String::from_utf8_lossy(path));
            return Err(Error::new(Kind::IsADirectory, what));
        }
        Ok((place.dir, place.name))
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
        let connection = self.connection_to(dir.seat_of(name))?;
        let made = connection.submit(Request::make_directory(dir, mode, &[name]))?;
        let found = connection.submit(Request::lookup(dir, &[name]))?;
        connection.wait(made)?.only(|_| Ok(()))?;
        let attributes = connection.wait(found)?.only(take_attributes)?;
        Ok(dir.child(name, &attributes))
    }

    /// Makes the directory at `path` and those above it, as far as they are missing, and opens it. Cost: some
    /// round trips for each component.
    ///
    /// # Errors
    /// `NotADirectory`, `Denied`; as [`LiveTree::dir`].
    pub fn make_directories(&mut self, path: &[u8], mode: u32) -> Result<LiveDir> {
        let ends = (1..=path.len()).filter(|&end| path.get(end).is_none_or(|&byte| byte == b'/'));
        for end in ends.filter(|&end| path[end - 1] != b'/') {
            // Also in directories in which this user makes nothing.
            match self.dir(&path[..end]) {
                Err(error) if error.kind() == Kind::NotFound => {}
                found => {
                    found?;
                    continue;
                }
            }
            let (dir, name) = self.locate(&path[..end])?;
            match self.change(Request::make_directory(&dir, mode, &[name])) {
                Err(error) if error.kind() == Kind::Exists => {}
                made => made?,
            }
        }
        // A file may have the name.
        self.dir(path)
    }

    /// Makes the directory `name` whose names are spread over all seats, and opens it, so that all
    /// servers share the work of one large directory. Links between its names may fail with
    /// `CrossDevice`. Cost: a round trip, durable at all seats.
    ///
    /// # Errors
    /// As [`LiveTree::create`]; `Unavailable` unless all servers answer.
    pub fn make_spread_directory(
        &mut self,
        dir: &LiveDir,
        name: &[u8],
        mode: u32,
    ) -> Result<LiveDir> {
        let made = self.call(Request::make_spread_directory(dir, name, mode).durable())?;
        Ok(dir.child(name, &made.only(take_attributes)?))
    }

    /// Carries out a change of one item.
    ///
    /// # Errors
    /// As the item fails.
    pub fn change(&mut self, request: Request) -> Result<()> {
        self.call(request)?.outcome()
    }

    /// Renames `old` to `name`, in another directory or the same. Cost: a round trip; three between
    /// seats, and some syncs.
    ///
    /// # Errors
    /// As `Session::rename` of `esker-fs`; `CrossDevice` for anything but a regular file between
    /// directories at different seats.
    pub fn rename(&mut self, old: (&LiveDir, &[u8]), new: (&LiveDir, &[u8])) -> Result<()> {
        if old.0.seat_of(old.1) == new.0.seat_of(new.1) {
            return self.change(Request::rename(old, new, RenameFlags::Replace));
        }
        self.change(Request::rename_across(old, new, true))
    }

    /// Gives the file `old` the further name `name` in `dir`. Cost: a round trip; three between seats, and
    /// some syncs.
    ///
    /// # Errors
    /// As `Session::link` of `esker-fs`; `CrossDevice` for anything but a regular file in a directory
    /// at another seat.
    pub fn link(&mut self, old: &LiveFile, dir: &LiveDir, name: &[u8]) -> Result<LiveAttributes> {
        self.at_file((old.dir, old.name), |tree, old_dir, old_name| {
            let old = LiveFile { dir: old_dir, name: old_name, id: old.id };
            let is_here = old_dir.seat_of(old_name) == dir.seat_of(name);
            let link = if is_here { Request::link } else { Request::link_across };
            tree.call(link(&old, dir, name))?.only(take_attributes)
        })
    }

    /// Returns the attributes of `name`. Cost: a round trip; another one for a directory or file at
    /// another seat.
    ///
    /// # Errors
    /// `NotFound`, `Denied`.
    pub fn lookup(&mut self, dir: &LiveDir, name: &[u8]) -> Result<LiveAttributes> {
        let none = || Error::corrupt("an answer of a server", 0, "no item");
        self.lookup_all(dir, &[name])?.pop().ok_or_else(none)?
    }

    /// Returns the attributes of `names`, or why each has none. Cost: as [`LiveTree::lookup`].
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn lookup_all(
        &mut self,
        dir: &LiveDir,
        names: &[&[u8]],
    ) -> Result<Vec<Result<LiveAttributes>>> {
        let request = |names: &[&[u8]]| Request::lookup(dir, names);
        let mut found =
            self.call_by_seat((dir, names), request, |answer| answer.items(take_attributes))?;
        let found_names = names.iter().zip(&mut found);
        let shown = found_names.filter_map(|(name, found)| Some((*name, found.as_mut().ok()?)));
        self.show_at_own_seats(dir, shown)?;
        Ok(found)
    }

    /// Creates empty files `names`; returns an outcome for each. Cost: a round trip to each seat that
    /// has some of them.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn create_all(
        &mut self,
        dir: &LiveDir,
        names: &[&[u8]],
        mode: u32,
    ) -> Result<Vec<Result<()>>> {
        let request = |names: &[&[u8]]| Request::create(dir, mode, names);
        self.call_by_seat((dir, names), request, Answer::outcomes)
    }

    /// Sends each seat that has some of `names` in `dir` the `request` for those, all at once; returns
    /// the outcomes that `take` finds in the answers, in the order of `names`.
    fn call_by_seat<T>(
        &mut self,
        (dir, names): (&LiveDir, &[&[u8]]),
        request: impl Fn(&[&[u8]]) -> Request,
        take: impl Fn(&Answer) -> Result<Vec<Result<T>>>,
    ) -> Result<Vec<Result<T>>> {
        if !dir.is_spread() {
            return take(&self.call(request(names))?);
        }
        let mut under_way = Vec::new();
        for group in dir.names_by_seat(names) {
            let here: Vec<&[u8]> = group.iter().map(|index| names[*index]).collect();
            let request = request(&here);
            let seat = request.seat();
            under_way.push((seat, self.connection_to(seat)?.submit(request)?, group));
        }
        let mut outcomes: Vec<Option<Result<T>>> = Vec::new();
        outcomes.resize_with(names.len(), || None);
        for (seat, number, group) in under_way {
            let answer = self.connection_to(seat)?.wait(number)?;
            for (index, outcome) in group.into_iter().zip(take(&answer)?) {
                outcomes[index] = Some(outcome);
            }
        }
        let all: Option<Vec<_>> = outcomes.into_iter().collect();
        all.ok_or_else(|| Error::corrupt("an answer of a server", 0, "fewer items than asked for"))
    }

    /// Replaces the attributes of those `entries` of `dir` that are at other seats by their current ones.
    /// One that is gone there, or whose server does not answer, keeps those that it was named with.
    pub(super) fn show_at_own_seats<'a>(
        &mut self,
        dir: &LiveDir,
        entries: impl Iterator<Item = (&'a [u8], &'a mut LiveAttributes)>,
    ) -> Result<()> {
        let (mut under_way, mut unserved) = (Vec::new(), Vec::new());
        for (name, attributes) in entries {
            let Some((own, own_name)) = dir.at_own_seat(name, attributes) else { continue };
            let seat = own.place.seat;
            if unserved.contains(&seat) {
                continue;
            }
            let request = Request::attributes(&LiveFile::at(&own, &own_name));
            let connection = self.connection_to(seat);
            match connection.and_then(|connection| connection.submit(request)) {
                Ok(number) => under_way.push((seat, number, attributes)),
                // Asked once: each attempt takes as long as the client's patience.
                Err(error) if error.kind() == Kind::Unavailable => unserved.push(seat),
                Err(error) => return Err(error),
            }
        }
        for (seat, number, attributes) in under_way {
            let answer = self.connection_to(seat)?.wait(number);
            match answer.and_then(|answer| answer.only(take_attributes)) {
                Ok(own) => {
                    let LiveAttributes { seat, seat_file, .. } = *attributes;
                    *attributes = LiveAttributes { seat, seat_file, ..own };
                }
                // It is being removed, or its server is gone.
                Err(error) if is_absent(error.kind()) || error.kind() == Kind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the attributes of an open directory. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound` once it was removed.
    pub fn attributes_of(&mut self, dir: &LiveDir) -> Result<LiveAttributes> {
        self.call(Request::attributes(&LiveFile::at(dir, b"")))?.only(take_attributes)
    }

    /// Calls `call` with the directory and name `name` in `dir`, or with those of the file at its own seat
    /// if that is another one.
    fn at_file<T>(
        &mut self,
        (dir, name): (&LiveDir, &[u8]),
        mut call: impl FnMut(&mut Self, &LiveDir, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let mut here = call(self, dir, name);
        for _ in 0..FAR_ATTEMPTS {
            let is_far = here.as_ref().is_err_and(|error| is_absent(error.kind()));
            if !is_far || name.is_empty() {
                break;
            }
            let found = self.call(Request::lookup(dir, &[name]))?.only(take_attributes)?;
            let far = dir.at_own_seat(name, &found).filter(|_| found.seat_file.is_some());
            let Some((own, own_name)) = far else { break };
            // Replaced since, if it is not there.
            here = call(self, &own, &own_name);
        }
        here
    }

    /// Returns all bytes of the file `name`. Cost: a round trip for each megabyte; two more for a file
    /// at another seat than its name.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`.
    pub fn read(&mut self, dir: &LiveDir, name: &[u8]) -> Result<Vec<u8>> {
        self.at_file((dir, name), |tree, dir, name| {
            let mut content = Vec::new();
            loop {
                let offset = content.len() as u64;
                let request = Request::read(&LiveFile::at(dir, name), offset, TRANSFER_BYTES_MAX);
                let answer = tree.call(request)?;
                let piece = answer.only(|input| {
                    Ok(input.bytes(TRANSFER_BYTES_MAX, "bytes of a file")?.to_vec())
                })?;
                if piece.is_empty() {
                    return Ok(content);
                }
                content.extend_from_slice(&piece);
            }
        })
    }

    /// Writes `bytes` into the file `name` from `offset` on. Cost: as [`LiveTree::read`].
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`.
    pub fn write(&mut self, dir: &LiveDir, name: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        for (index, piece) in bytes.chunks(TRANSFER_BYTES_MAX).enumerate() {
            let at = offset + (index * TRANSFER_BYTES_MAX) as u64;
            self.at_file((dir, name), |tree, dir, name| {
                tree.change(Request::write(&LiveFile::at(dir, name), at, piece))
            })?;
        }
        Ok(())
    }

    /// Returns the target of the symbolic link `name`. Cost: a round trip.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it is none.
    pub fn read_symlink(&mut self, dir: &LiveDir, name: &[u8]) -> Result<Vec<u8>> {
        let answer = self.call(Request::read_symlink(&LiveFile::at(dir, name)))?;
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
        if name.is_empty() && dir.is_spread() {
            // Each seat checks permissions in its part.
            return dir.parts().try_for_each(|part| {
                self.change(Request::set_attributes(&LiveFile::at(&part, name), changes))
            });
        }
        self.at_file((dir, name), |tree, dir, name| {
            tree.change(Request::set_attributes(&LiveFile::at(dir, name), changes))
        })
    }

    /// Publishes the current state as the snapshot `name`, and returns its set.
    ///
    /// # Errors
    /// `Exists`; `NotPermitted` unless the client is of the server's user, or the superuser.
    pub fn snapshot(&mut self, name: &str) -> Result<SetId> {
        self.call(Request::snapshot(name))?.only(|input| Ok(SetId(input.u128()?)))
    }

    /// Fails unless this client may insert directories ([`LiveTree::insert_set`]). Cost: a round
    /// trip.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_may_insert(&mut self) -> Result<()> {
        // No set has this identity.
        match self.change(Request::adopt_set(0, SetId::default(), b"none")) {
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
        let adopted = self.call(Request::adopt_set(parent.seat_of(name), set, source))?;
        let identity = adopted.only(|input| Ok(DirId(input.u128()?)))?;
        self.change(Request::insert_adopted(parent, name, identity).durable())
    }

    /// Returns once everything that was answered before survives power loss.
    ///
    /// # Errors
    /// `DeviceFailed`, once, if a server died that had answered changes which were not durable; as
    /// [`LiveConnection::wait`].
    pub fn sync(&mut self) -> Result<()> {
        for connection in self.connections.iter_mut().flatten() {
            connection.call(Request::sync().for_seat(connection.seat()))?.outcome()?;
        }
        Ok(())
    }

    /// Returns the state of the server of the root, as JSON.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn status(&mut self) -> Result<serde_json::Value> {
        self.status_of(0)
    }

    /// Returns the state of the server of `seat`, as JSON.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn status_of(&mut self, seat: u16) -> Result<serde_json::Value> {
        self.connection_to(seat)?.status()
    }

    /// Ends the client: the servers forget its requests.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn close(self) -> Result<()> {
        self.connections.into_iter().flatten().try_for_each(LiveConnection::close)
    }

    /// Ends the client without waiting for a server, for callers that have all answers.
    pub fn leave(self) {
        self.connections.into_iter().flatten().for_each(LiveConnection::leave);
    }
}

/// True for errors of requests in a directory that was removed, or is being removed.
#[must_use]
pub fn is_absent(kind: Kind) -> bool {
    matches!(kind, Kind::NotFound | Kind::Fenced | Kind::Conflict)
}
