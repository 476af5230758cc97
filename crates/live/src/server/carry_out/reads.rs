// SPDX-License-Identifier: Apache-2.0
//! Reads: requests that change nothing. They run concurrently with all others.

use std::ops::ControlFlow;

use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::{DirId, Inode};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::EXECUTE;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::stack::path_search::{SeatSearch, path_at_seat};
use esker_table::manifest::{SetId, encode_manifest};
use tokio::task::block_in_place;

use super::named_file::NamedFile;
use super::{ANSWER_BYTES_MAX, ClientSession, FrameRefusal, check_goes_on, take_name};
use crate::server::seat_snapshot::{freeze, snapshot_seats};
use crate::wire::{
    ANSWER_TEXT_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader, NAME_BYTES_MAX,
    PATH_BYTES_MAX, SeatPath, TRANSFER_BYTES_MAX, Verb, finish_frame, put_attributes, put_status,
    start_frame,
};

/// Entries of one answer to a listing, at most.
const LIST_ENTRIES_MAX: usize = 8192;
/// Bytes that the items of one answer may have in all.
const ITEM_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_HEADER_BYTES - (2 << 10);

impl ClientSession<'_> {
    /// Carries out the items of a request that changes nothing.
    pub(super) fn read(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let at = start_frame(out);
        let mut answer = *header;
        let mut input = WireInput::new(payload);
        // Behind a change that waits for its directory, as the client sent them. Opening that has no
        // number.
        let answered_below = header.number.saturating_add(1).saturating_sub(header.window.into());
        self.lacking = self.lacking.split_off(&answered_below);
        answer.flags.follows_lack =
            self.lacking.first().is_some_and(|oldest| *oldest < header.number);
        let read = match answer.flags.follows_lack {
            true => Err(FrameRefusal::LacksDirectory),
            false => self.read_items(header, &mut input, out),
        };
        match read {
            Ok(()) => {}
            Err(FrameRefusal::Broken(error)) => return Err(error),
            Err(FrameRefusal::LacksDirectory) => {
                out.truncate(at);
                start_frame(out);
                answer.items = 0;
                answer.flags.lacks_directory = true;
            }
        }
        finish_frame(out, at, &answer);
        Ok(())
    }

    fn read_items(
        &self,
        header: &FrameHeader,
        input: &mut WireInput,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameRefusal> {
        let dir = match header.verb.is_in_directory() {
            true => Some(self.directories.get(DirId(input.u128()?))),
            false => None,
        };
        let dir = match dir {
            Some(None) => return Err(FrameRefusal::LacksDirectory),
            Some(Some(dir)) => dir,
            None => self.session.root().clone(),
        };
        let at = out.len();
        for _ in 0..header.items {
            if out.len() - at > ANSWER_BYTES_MAX {
                let what = "the answers to one request are too long; ask for fewer items";
                return Err(Error::new(Kind::TooLarge, what).into());
            }
            if self.read_item(header.verb, &dir, input, (at, out))? {
                self.served.metrics().failures.inc();
            }
        }
        self.served.metrics().reads.inc_by(u64::from(header.items));
        Ok(input.end()?)
    }

    /// Carries out one item that changes nothing. Returns true if it failed.
    fn read_item(
        &self,
        verb: Verb,
        dir: &Dir,
        input: &mut WireInput,
        (at, out): (usize, &mut Vec<u8>),
    ) -> Result<bool, FrameRefusal> {
        let session = &self.session;
        let outcome = match verb {
            Verb::Null | Verb::Sync | Verb::Goodbye => Ok(Vec::new()),
            Verb::Lookup => {
                let name = take_name(input)?;
                let found = session.namespace().lookup(dir, name, false);
                // The common case: no memory is allocated.
                if let Ok(inode) = &found {
                    self.show_seat_name(inode.seat().map(|_| inode.dir_id()));
                    put_status(out, &found, 0);
                    put_attributes(out, inode);
                    self.seen_links.add(inode);
                    self.keep_directory(dir, name, inode);
                    return Ok(false);
                }
                found.map(|_| Vec::new())
            }
            Verb::Resolve => {
                let top = DirId(input.u128()?);
                let follow = match input.u8()? {
                    0 => FollowLinks::No,
                    1 => FollowLinks::Yes,
                    _ => return Err(input.damage("whether to follow links").into()),
                };
                self.resolve(top, input.bytes(PATH_BYTES_MAX, "a path")?, follow)
            }
            Verb::List => {
                let after = input.bytes(NAME_BYTES_MAX, "a name")?;
                let limit = input.varint_max(LIST_ENTRIES_MAX, "a number of entries")?;
                self.list(dir, after, limit)
            }
            verb if verb.is_of_file() => self.read_named(verb, dir, input)?,
            verb if is_of_whole_namespace(verb) => self.read_namespace(verb, input)?,
            Verb::Status => Ok(encoded(self.served.status().to_string().as_bytes())),
            _ => return Err(input.damage("a request after the handshake").into()),
        };
        if outcome.as_ref().is_ok_and(|bytes| out.len() - at + bytes.len() > ITEM_BYTES_MAX) {
            let what = "the answers to one request are too long; ask for fewer items";
            return Err(Error::new(Kind::TooLarge, what).into());
        }
        put_status(out, &outcome, ANSWER_TEXT_BYTES_MAX);
        match outcome {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(error) => {
                check_goes_on(&error)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Carries out one item that concerns the whole namespace, and may wait for a flush or for other
    /// seats, which must not hold up other connections.
    fn read_namespace(
        &self,
        verb: Verb,
        input: &mut WireInput,
    ) -> Result<Result<Vec<u8>>, FrameRefusal> {
        Ok(match verb {
            Verb::Snapshot => {
                let name = input.bytes(NAME_BYTES_MAX, "a name")?;
                block_in_place(|| self.snapshot(name))
            }
            Verb::AdoptSet => {
                let set = SetId(input.u128()?);
                let name = take_name(input)?;
                block_in_place(|| self.adopt_set(set, name))
            }
            // For the server of another seat.
            Verb::ClosePart => {
                let (id, closes) = (DirId(input.u128()?), input.u8()? != 0);
                self.check_is_of_owner("remove directories that are spread over seats")
                    .and_then(|()| self.close_part(id, closes))
                    .map(|()| Vec::new())
            }
            Verb::Freeze => block_in_place(|| self.freeze()),
            Verb::Thaw => {
                let held = self.served.freeze().check(self.freeze, self.served.clock());
                self.served.freeze().end(self.freeze);
                held.map(|()| Vec::new())
            }
            Verb::SnapshotPart => {
                let set = SetId(input.u128()?);
                block_in_place(|| self.snapshot_part(set))
            }
            _ => return Err(input.damage("a request of the whole namespace").into()),
        })
    }

    /// Carries out one item that reads a file that it names.
    fn read_named(
        &self,
        verb: Verb,
        dir: &Dir,
        input: &mut WireInput,
    ) -> Result<Result<Vec<u8>>, FrameRefusal> {
        let file = NamedFile::take(input)?;
        Ok(match verb {
            Verb::Read => {
                let offset = input.varint()?;
                let bytes_max = input.varint_max(TRANSFER_BYTES_MAX, "bytes to read")?;
                self.read_file(dir, &file, (offset, bytes_max)).map(|bytes| encoded(&bytes))
            }
            Verb::ReadSymlink => self.target_of(dir, &file).map(|target| encoded(&target)),
            Verb::Attributes => self.inode_of(dir, &file, false).map(|inode| {
                let mut out = Vec::new();
                self.seen_links.add(&inode);
                self.show_seat_name(inode.seat().map(|_| inode.dir_id()));
                put_attributes(&mut out, &inode);
                out
            }),
            Verb::GetXattr => {
                let attribute = take_name(input)?;
                self.xattr(dir, &file, attribute).map(|value| encoded(&value))
            }
            Verb::ListXattrs => self.xattr_names(dir, &file).map(|names| encoded(&names)),
            _ => return Err(input.damage("a file to read").into()),
        })
    }

    /// Keeps a directory that was looked up open, so that the client can name it by its identity.
    pub(super) fn keep_directory(&self, parent: &Dir, name: &[u8], inode: &Inode) {
        // A directory at another seat is opened by its own server only.
        if inode.is_directory()
            && inode.seat().is_none()
            && let Ok(dir) = self.session.namespace().open_dir(parent, name, inode)
        {
            self.directories.keep(&dir);
        }
    }

    /// Makes the answer wait for a sync if it shows the name of the directory `id` at another seat, and
    /// that is not synced.
    pub(super) fn show_seat_name(&self, id: Option<DirId>) {
        let made_ns = id.and_then(|id| self.served.seats().unsynced_name(id));
        if made_ns.is_some_and(|made_ns| !self.served.commit().has_synced(made_ns)) {
            self.shows_unsynced.set(true);
        }
    }

    fn resolve(&self, top: DirId, path: &[u8], follow: FollowLinks) -> Result<Vec<u8>> {
        let session = &self.session;
        let top = match top {
            DirId::ROOT => session.root().clone(),
            DirId::SEAT_ROOTS => session.namespace().seat_roots().clone(),
            id => session.open_seat_root(id)?,
        };
        let mut out = Vec::new();
        match session.namespace().search_seat((&top, self.served.seat()), path, follow)? {
            SeatSearch::Found(found) => {
                self.directories.keep(&found.dir);
                let dir = (found.dir.id(), &path_at_seat(&found.dir)[..]);
                SeatPath::put_found(&mut out, dir, (&found.name, &found.inode));
                self.seen_links.add(&found.inode);
                if !found.name.is_empty() {
                    self.keep_directory(&found.dir, &found.name, &found.inode);
                }
            }
            SeatSearch::Elsewhere { seat, id, name: (dir, name), rest } => {
                self.show_seat_name(Some(id));
                let mut path = path_at_seat(&dir);
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                SeatPath::put_elsewhere(&mut out, (seat, id), &path, &rest);
            }
            SeatSearch::OtherPart { seat, rest } => {
                SeatPath::put_elsewhere(&mut out, (seat, top.id()), b"", &rest);
            }
            SeatSearch::Above { rest } => SeatPath::put_above(&mut out, &rest),
        }
        Ok(out)
    }

    fn list(&self, dir: &Dir, after: &[u8], limit: usize) -> Result<Vec<u8>> {
        let cursor = if after.is_empty() { DirCursor::default() } else { DirCursor::after(after) };
        let (mut entries, mut count, mut is_end) = (Vec::new(), 0u64, true);
        let (uid, gid) = dir.owner();
        // Who may only list a directory may not reach its files.
        let may_search =
            self.session.namespace().identity().may(EXECUTE, dir.mode(), uid, gid, true);
        self.session.namespace().list(dir, &cursor, &mut |entry| {
            if count == limit as u64 || entries.len() > ANSWER_BYTES_MAX {
                is_end = false;
                return Ok(ControlFlow::Break(()));
            }
            put_bytes(&mut entries, entry.name());
            let mut inode = entry.inode()?;
            self.show_seat_name(inode.seat().map(|_| inode.dir_id()));
            if may_search {
                self.seen_links.add(&inode);
            } else if inode.seat_file().is_some() {
                // Whoever knows its name at its seat can use the file: show another one.
                inode.rdev &= u64::from(u16::MAX);
            } else if inode.seat().is_some() {
                // Whoever knows the identity can use the directory: show another one.
                inode.id = DirId::child(DirId(inode.id), 0, b"").0;
            }
            put_attributes(&mut entries, &inode);
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        let mut out = vec![u8::from(is_end)];
        put_varint(&mut out, count);
        out.extend_from_slice(&entries);
        Ok(out)
    }

    /// Fails for clients of other users than the server's, who cannot write the store either, except
    /// those of the superuser.
    pub(super) fn check_is_of_owner(&self, what: &str) -> Result<()> {
        let uid = self.session.namespace().identity().uid;
        if uid == 0 || uid == self.served.session().namespace().identity().uid {
            return Ok(());
        }
        let what = format!("only the user of the server can {what}");
        Err(Error::new(Kind::NotPermitted, what))
    }

    /// Fails for clients that may not insert directories by reference.
    pub(super) fn check_may_insert(&self) -> Result<()> {
        self.check_is_of_owner(
            "insert whole directories; copy into a mount of the namespace instead",
        )
    }

    /// Makes a directory of a complete set part of the namespace.
    fn adopt_set(&self, set: SetId, name: &[u8]) -> Result<Vec<u8>> {
        self.check_may_insert()?;
        let (session, seats) = (self.served.session(), self.served.seats());
        let claim = |identity| match seats.has_others() {
            true => seats.claim_adopted(identity),
            false => Ok(()),
        };
        let identity = session.adopt_claimed_set(set, name, claim)?;
        Ok(identity.0.to_le_bytes().to_vec())
    }

    /// Publishes the current state of all seats.
    fn snapshot(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.check_is_of_owner("publish snapshots of the namespace")?;
        let name = std::str::from_utf8(name)
            .map_err(|_| Error::new(Kind::Invalid, "the name of a snapshot is text"))?;
        if self.served.seat() != 0 {
            let what = "snapshots are taken by the server of seat 0, which has the root";
            return Err(Error::new(Kind::Invalid, what));
        }
        let set = match self.served.seats().has_others() {
            true => snapshot_seats(self.served, name)?,
            false => self.served.session().snapshot(name)?,
        };
        Ok(set.0.to_le_bytes().to_vec())
    }

    /// Holds up changes at this seat for the snapshot of another one's server.
    fn freeze(&self) -> Result<Vec<u8>> {
        self.check_is_of_owner("hold up changes")?;
        freeze(self.served, self.freeze)?;
        Ok(Vec::new())
    }

    /// Takes this seat's part of a snapshot.
    fn snapshot_part(&self, set: SetId) -> Result<Vec<u8>> {
        self.check_is_of_owner("publish snapshots of the namespace")?;
        self.served.freeze().check(self.freeze, self.served.clock())?;
        let part = self.served.session().snapshot_part(set)?;
        Ok(encoded(&encode_manifest(&part)?))
    }
}

fn is_of_whole_namespace(verb: Verb) -> bool {
    use Verb::{AdoptSet, ClosePart, Freeze, Snapshot, SnapshotPart, Thaw};
    matches!(verb, Snapshot | AdoptSet | Freeze | Thaw | SnapshotPart | ClosePart)
}

fn encoded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 4);
    put_bytes(&mut out, bytes);
    out
}
