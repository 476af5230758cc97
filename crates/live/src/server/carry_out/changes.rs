// SPDX-License-Identifier: Apache-2.0
//! Changes: requests that are carried out once, even if they arrive several times.
//!
//! The record of the client's requests (`client_window`) is part of each change of names: once its
//! effect is seen, others may act on it, and done again it would undo what they did. Creates are
//! many, so the log carries their record whenever it is written, as of the last create. It carries
//! that of changes of attributes and content, which may be several operations, from their end on: a
//! crash in the middle of one does it again. Changes of open files are in memory alone, and are done
//! again after a crash. The record is put by itself before a change that carries one, and at the end
//! of a batch.

use esker_base::wire::WireInput;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::xattr::XATTR_VALUE_BYTES_MAX;
use esker_fs::inode::{DirId, FileId, FileKind, Inode};
use esker_fs::ops::{NewFile, RenameFlags};
use esker_fs::stack::dir::Dir;
use esker_table::manifest::SetId;

use super::change_items::{
    skip_change, take_adopted, take_condition, take_flags, take_mode, take_new_file,
};
use super::file_moves::take_move;
use super::named_file::NamedFile;
use super::request_records::{carries_record, is_tracked};
use super::seat_directories::not_of_clients;
use super::{ANSWER_BYTES_MAX, ChangeBatch, ClientSession, FrameRefusal, check_goes_on, take_name};
use crate::server::client_window::{ClientWindow, ItemPosition, WINDOW_MAX};
use crate::wire::{
    CHANGE_ITEMS_MAX, FrameHeader, NamingOutcome, PATH_BYTES_MAX, Verb, finish_frame,
    put_attributes, put_status, start_frame,
};

impl ClientSession<'_> {
    /// Carries out a change, unless that was done before, and appends its answer to `out`. Returns false if
    /// none of it was done for lack of room, for which a commit would wait, or of its directory.
    pub(super) fn change(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        batch: &mut ChangeBatch,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let at = out.len();
        let known = batch.clients.get_mut(&self.client).expect("known while it is connected");
        let window = &mut known.window;
        window.has_answers_below(check_header(header, &self.peer)?)?;
        if let Some(answer) = window.answer(header.number) {
            self.served.metrics().repeated.inc_by(u64::from(header.items));
            out.extend_from_slice(answer);
            return Ok(true);
        }
        if window.is_full(header.number, header.items) {
            let what = format!(
                "{}: more answers or failures than a server remembers; connect again, and repeat \
                 what has no answer",
                self.peer
            );
            return Err(Error::new(Kind::Unavailable, what));
        }
        self.is_repeated = header.flags.is_repeated;
        let recorded = self.record_registration(window).and_then(|()| self.put_owed_records());
        recorded.as_ref().map_or_else(check_goes_on, |()| Ok(()))?;
        if std::mem::replace(&mut batch.tracks, is_tracked(header.verb)) && !batch.tracks {
            self.put_record(window)?;
        }
        start_frame(out);
        let mut answer = *header;
        self.lacking = self.lacking.split_off(&window.answered_below());
        answer.flags.follows_lack =
            self.lacking.first().is_some_and(|oldest| *oldest < header.number);
        let carried_out = match answer.flags.follows_lack {
            true => Err(FrameRefusal::LacksDirectory),
            // The items that are left fail without room for these.
            false => self.change_items((header, payload), recorded.err(), window, out),
        };
        let had_room = match carried_out {
            Ok(changed) => {
                batch.lacks_record |= changed.lacks_record;
                changed.had_room
            }
            Err(FrameRefusal::Broken(error)) => {
                // Its creates may be done.
                batch.lacks_record = true;
                return Err(error);
            }
            Err(FrameRefusal::LacksDirectory) => {
                batch.lacks_record |= !carries_record(header.verb);
                self.lacking.insert(header.number);
                out.truncate(at);
                start_frame(out);
                answer.items = 0;
                answer.flags.lacks_directory = true;
                fail_items(header, window);
                finish_frame(out, at, &answer);
                return Ok(false);
            }
        };
        self.lacking.remove(&header.number);
        // Its answer waits for nothing.
        answer.flags.is_durable &= had_room;
        finish_frame(out, at, &answer);
        window.keep_answer(header.number, &out[at..]);
        Ok(had_room)
    }

    /// Carries out the items of a change that are not done; they fail if there is a `refusal`.
    fn change_items(
        &mut self,
        (header, payload): (&FrameHeader, &[u8]),
        refusal: Option<Error>,
        window: &mut ClientWindow,
        out: &mut Vec<u8>,
    ) -> Result<ChangedItems, FrameRefusal> {
        let metrics = self.served.metrics();
        let mut input = WireInput::new(payload);
        let id = DirId(input.u128()?);
        let positions = (0..header.items).map(|item| ItemPosition { number: header.number, item });
        let files = FileIds::new(self.served.set(), window, self.client, header.number);
        let text_bytes_max = ANSWER_BYTES_MAX / usize::from(header.items.max(1));
        let (mut dir, mut has_record) = (None, header.verb != Verb::Create);
        let mut failures = 0;
        let mut had_room = header.items == 0;
        for position in positions {
            if window.is_done(position) {
                had_room = true;
                metrics.repeated.inc();
                let of = (id, files.get(position.item));
                self.repeat_item(header.verb, of, &mut input, (out, text_bytes_max))?;
                continue;
            }
            if let Some(why) = &refusal {
                skip_change(header.verb, &mut input)?;
                window.finish(position, false);
                failures += 1;
                let refused: Result<ItemEffect> = Err(Error::new(why.kind(), why.to_string()));
                put_status(out, &refused, text_bytes_max);
                continue;
            }
            if dir.is_none() {
                dir = Some(self.directories.get(id).ok_or(FrameRefusal::LacksDirectory)?);
            }
            let dir = dir.as_ref().expect("found above");
            if !std::mem::replace(&mut has_record, true) {
                self.track_creates(window, position);
            }
            let of = (dir, position.item, files.get(position.item));
            let outcome = self.carry_out_item((header.verb, position), of, window, &mut input)?;
            had_room |= outcome.as_ref().err().is_none_or(|error| error.kind() != Kind::NoSpace);
            if let Err(error) = &outcome {
                window.finish(position, false);
                // From the next one on: this one is not among those that were done.
                has_record = header.verb != Verb::Create;
                failures += 1;
                check_goes_on(error)?;
            }
            if matches!(outcome, Ok(ItemEffect::InMemory | ItemEffect::Named(_))) {
                // Another server carries it out again: it has no file open, or knows by itself.
                window.finish(position, false);
            }
            self.track_done(header.verb, window);
            put_status(out, &outcome, text_bytes_max);
            if let Ok(ItemEffect::Made(inode)) = &outcome {
                self.seen_links.add(inode);
                put_attributes(out, inode);
            }
            if let Ok(ItemEffect::Named(outcome)) = &outcome {
                outcome.put(out);
            }
        }
        input.end()?;
        metrics.changes.inc_by(u64::from(header.items));
        metrics.failures.inc_by(failures);
        let lacks_record = !carries_record(header.verb) && refusal.is_none();
        Ok(ChangedItems { lacks_record, had_room })
    }

    /// Carries out the item at `position`, which then counts as done.
    fn carry_out_item(
        &mut self,
        (verb, position): (Verb, ItemPosition),
        of: (&Dir, u16, FileId),
        window: &mut ClientWindow,
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        // The record that the change carries must already count it as done.
        window.finish(position, true);
        match verb {
            Verb::Create => {
                let (mode, name) = (take_mode(input)?, take_name(input)?);
                let (dir, item, file) = of;
                self.session.set_created_item(Some(item));
                let created = self.create(dir, (name, file), mode);
                self.session.set_created_item(None);
                Ok(created)
            }
            // Another server does these again, or knows by itself that they were done.
            verb if !carries_record(verb) => {
                self.change_item(verb, of, input).inspect_err(|_| window.finish(position, false))
            }
            verb => {
                self.attach_request(Some(&window.record()))?;
                let outcome = self.change_item(verb, of, input);
                self.attach_request(None)?;
                outcome.inspect_err(|_| window.finish(position, false))
            }
        }
    }

    /// Carries out one change other than a create. A file that it makes gets the identity `file`.
    fn change_item(
        &mut self,
        verb: Verb,
        (dir, item, file): (&Dir, u16, FileId),
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        if matches!(verb, Verb::RenameAcross | Verb::LinkAcross) {
            take_move(verb, input)?;
            return Ok(self.finish_move(item));
        }
        if dir.id() == DirId::SEAT_ROOTS && !is_of_file_alone(verb) {
            return self.change_seat_root(verb, input);
        }
        if matches!(verb, Verb::MakeDirectory | Verb::RemoveDirectory | Verb::MakeNode) {
            return self.change_directory(verb, (dir, item, file), input);
        }
        let session = &self.session;
        let changed = match verb {
            Verb::MakeSymlink => {
                let target = input.bytes(PATH_BYTES_MAX, "a target")?;
                let name = take_name(input)?;
                self.check_part(dir, name)
                    .and_then(|()| session.symlink(dir, name, target).map(drop))
            }
            Verb::InsertAdopted => {
                let (identity, name) = take_adopted(input)?;
                self.check_may_insert()
                    .and_then(|()| self.check_part(dir, name))
                    .and_then(|()| session.insert_adopted(dir, name, identity))
            }
            Verb::Unlink => session
                .unlink(dir, take_name(input)?)
                .map(|removed| self.release_name_of(Some(&removed))),
            Verb::Link | Verb::Rename => return self.change_names(verb, dir, input),
            Verb::SetAttributes | Verb::Write | Verb::Allocate => {
                return self.change_file(verb, dir, input);
            }
            Verb::SetXattr => {
                let (file, attribute) = (NamedFile::take(input)?, take_name(input)?);
                let condition = take_condition(input)?;
                let value = input.bytes(XATTR_VALUE_BYTES_MAX, "a value")?;
                self.change_xattr(dir, &file, (attribute, Some((value, condition))))
            }
            Verb::RemoveXattr => {
                let (file, attribute) = (NamedFile::take(input)?, take_name(input)?);
                self.change_xattr(dir, &file, (attribute, None))
            }
            Verb::Open | Verb::Close => {
                let done = self.open_or_close(verb, dir, &NamedFile::take(input)?);
                return Ok(done.map(|()| ItemEffect::InMemory));
            }
            _ => return Err(input.damage("a change").into()),
        };
        Ok(changed.map(|()| ItemEffect::InTree))
    }

    /// Gives a file another name, or a new one.
    fn change_names(
        &self,
        verb: Verb,
        dir: &Dir,
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        if verb == Verb::Link {
            let old = NamedFile::take(input)?;
            let (target, new) = self.take_second_name(input)?;
            let may = self.check_part(&target, new);
            let linked = may.and_then(|()| self.link(dir, &old, (&target, new)));
            return Ok(linked.map(|inode| ItemEffect::Made(Box::new(inode))));
        }
        let (flags, old) = (take_flags(input)?, take_name(input)?);
        let (target, new) = self.take_second_name(input)?;
        let places = ((dir, old), (&target, new));
        let may = self.check_part(&target, new);
        let may = may.and_then(|()| self.check_rename(places.0, places.1, flags));
        let renamed = may.and_then(|()| self.session.rename(places.0, places.1, flags));
        Ok(renamed.map(|outcome| {
            if flags != RenameFlags::Exchange {
                self.release_name_of(outcome.and_then(|outcome| outcome.other).as_ref());
            }
            ItemEffect::InTree
        }))
    }

    /// Creates an empty file with the identity `file`.
    fn create(&self, dir: &Dir, (name, file): (&[u8], FileId), mode: u32) -> Result<ItemEffect> {
        if dir.id() == DirId::SEAT_ROOTS {
            return Err(not_of_clients());
        }
        self.check_part(dir, name)?;
        let created = self.session.create_identified(dir, name, mode, file);
        created.map(|()| ItemEffect::InTree)
    }

    /// Makes or removes a directory, of which another seat may have done its part, or makes a file of
    /// another kind.
    fn change_directory(
        &mut self,
        verb: Verb,
        (dir, item, file): (&Dir, u16, FileId),
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        if verb == Verb::RemoveDirectory {
            let removed = self.remove_prepared(item, (dir, take_name(input)?));
            return Ok(removed.map(|()| ItemEffect::InTree));
        }
        if verb == Verb::MakeNode {
            let (new, opens) = take_new_file(input)?;
            let name = take_name(input)?;
            return Ok(match self.name_prepared(item, (dir, name)) {
                Some(named) => named.map(|inode| ItemEffect::Made(Box::new(inode))),
                None => self
                    .check_part(dir, name)
                    .and_then(|()| self.check_prepared((dir, name), &new))
                    .and_then(|()| self.make_node(dir, (name, file), (&new, opens))),
            });
        }
        let (mode, name) = (take_mode(input)?, take_name(input)?);
        let made = match self.name_prepared(item, (dir, name)) {
            Some(named) => named.map(drop),
            None => {
                let made = self.check_part(dir, name);
                let made = made.and_then(|()| self.session.mkdir(dir, name, mode));
                made.map(|made| self.directories.keep(&made))
            }
        };
        Ok(made.map(|()| ItemEffect::InTree))
    }

    fn open_or_close(&self, verb: Verb, dir: &Dir, file: &NamedFile) -> Result<()> {
        match verb {
            Verb::Open => self.open(dir, file),
            _ => self.files.close(&self.session, file.id),
        }
    }

    /// Makes a file of any kind, with the identity `file` unless it is a directory, and opens it if
    /// asked to. Only the superuser makes files for others.
    fn make_node(
        &self,
        dir: &Dir,
        (name, file): (&[u8], FileId),
        (new, opens): (&NewFile, bool),
    ) -> Result<ItemEffect> {
        let session = &self.session;
        // A file that cannot be opened is not made.
        let opens = opens && new.kind == FileKind::File;
        let admitted = opens.then(|| self.files.admit()).transpose()?;
        let is_root = session.namespace().identity().is_root();
        let inode = match new.kind {
            FileKind::Directory if is_root => {
                // The record of a directory has no device number but that of its seat.
                let new = &NewFile { rdev: 0, ..*new };
                let (inode, made) = session.make_dir(dir, name, new)?;
                self.directories.keep(&made);
                inode
            }
            FileKind::Directory => {
                let made = session.mkdir(dir, name, new.mode)?;
                self.directories.keep(&made);
                session.namespace().stat_dir(&made)?
            }
            _ => session.make_identified(dir, name, new, file)?,
        };
        if admitted.is_some() {
            self.open_admitted(dir, &NamedFile { id: inode.id, name }, admitted)?;
        }
        Ok(ItemEffect::Made(Box::new(inode)))
    }

    /// Answers an item that was carried out before.
    fn repeat_item(
        &self,
        verb: Verb,
        (id, file): (DirId, FileId),
        input: &mut WireInput,
        (out, text_bytes_max): (&mut Vec<u8>, usize),
    ) -> Result<(), FrameRefusal> {
        if matches!(verb, Verb::MakeNode | Verb::Link | Verb::LinkAcross) {
            let dir = self.directories.get(id).ok_or(FrameRefusal::LacksDirectory)?;
            return self.find_made(verb, (&dir, file), input, (out, text_bytes_max));
        }
        skip_change(verb, input)?;
        put_status(out, &Ok(()), 0);
        Ok(())
    }

    /// Answers the repetition of a request that made a name before a takeover. The answer says what
    /// is at the name, and opens it, only if that is the file with the identity `file`, which the
    /// request made: another one there is that of another client.
    fn find_made(
        &self,
        verb: Verb,
        (dir, file): (&Dir, FileId),
        input: &mut WireInput,
        (out, text_bytes_max): (&mut Vec<u8>, usize),
    ) -> Result<(), FrameRefusal> {
        let found = if verb == Verb::LinkAcross {
            let (file, _) = take_move(verb, input)?;
            self.inode_of(dir, &file, false)
        } else if verb == Verb::Link {
            let id = NamedFile::take(input)?.id;
            let (target, name) = self.take_linked_name(input)?;
            self.made_at(&target, name).and_then(|inode| match id == 0 || inode.id == id {
                true => Ok(inode),
                false => {
                    let what = "linked before a takeover, and moved since";
                    Err(Error::new(Kind::NotFound, what))
                }
            })
        } else {
            let (new, opens) = take_new_file(input)?;
            let name = take_name(input)?;
            self.made_at(dir, name).and_then(|inode| {
                // A directory that was made at the name after it has the same use for the client.
                let is_own = match new.kind {
                    FileKind::Directory => inode.is_directory(),
                    _ => inode.id == file.0,
                };
                if !is_own {
                    let what = "made before a takeover, and replaced by another client since";
                    return Err(Error::new(Kind::Exists, what));
                }
                if opens && new.kind == FileKind::File {
                    self.open(dir, &NamedFile { id: inode.id, name })?;
                }
                self.keep_directory(dir, name, &inode);
                Ok(inode)
            })
        };
        put_status(out, &found, text_bytes_max);
        match found {
            Ok(inode) => {
                self.seen_links.add(&inode);
                put_attributes(out, &inode);
            }
            Err(error) => check_goes_on(&error)?,
        }
        Ok(())
    }

    /// Returns the inode at a name that the client made before a takeover.
    fn made_at(&self, dir: &Dir, name: &[u8]) -> Result<Inode> {
        self.session
            .namespace()
            .lookup(dir, name, false)
            .map_err(|error| error.within("made before a takeover, and moved or removed since"))
    }

    fn take_second_name<'b>(
        &self,
        input: &mut WireInput<'b>,
    ) -> Result<(Dir, &'b [u8]), FrameRefusal> {
        let id = DirId(input.u128()?);
        let target = self.directories.get(id).filter(|dir| dir.id() != DirId::SEAT_ROOTS);
        let target = target.ok_or(FrameRefusal::LacksDirectory)?;
        Ok((target, take_name(input)?))
    }

    /// As [`ClientSession::take_second_name`], of a link, which another server may have made among the
    /// seat roots.
    fn take_linked_name<'b>(
        &self,
        input: &mut WireInput<'b>,
    ) -> Result<(Dir, &'b [u8]), FrameRefusal> {
        let target = self.directories.get(DirId(input.u128()?));
        Ok((target.ok_or(FrameRefusal::LacksDirectory)?, take_name(input)?))
    }
}

/// Counts the items of a change that are not done as failed, even if later requests are carried out.
fn fail_items(header: &FrameHeader, window: &mut ClientWindow) {
    for item in 0..header.items {
        let position = ItemPosition { number: header.number, item };
        if !window.is_done(position) {
            window.finish(position, false);
        }
    }
}

/// Fails for a change with a number, a window or items that no client sends. Returns the number below which
/// its client has all answers.
pub(super) fn check_header(header: &FrameHeader, peer: &str) -> Result<u64> {
    let items_max = match header.verb {
        Verb::RenameAcross | Verb::LinkAcross => 1,
        _ => CHANGE_ITEMS_MAX,
    };
    if header.items > items_max {
        let what = format!("{} changes, {items_max} allowed", header.items);
        return Err(Error::corrupt(peer, 6, what));
    }
    let answered_below =
        header.number.checked_add(1).and_then(|end| end.checked_sub(header.window.into()));
    let is_window = header.number > 0 && (1..=WINDOW_MAX).contains(&header.window);
    answered_below.filter(|_| is_window).ok_or_else(|| {
        let what = format!("request {} of a window of {}", header.number, header.window);
        Error::corrupt(peer, 8, what)
    })
}

/// The outcome of the items of a change.
struct ChangedItems {
    /// Some were done that no record covers.
    lacks_record: bool,
    /// False if all failed for lack of room.
    had_room: bool,
}

/// Where the effect of an item is.
pub(super) enum ItemEffect {
    /// In the tree, whose log will have it.
    InTree,
    /// In the memory of this server alone, until open files are flushed.
    InMemory,
    /// In the tree, as this file.
    Made(Box<Inode>),
    /// In the tree, as a name of a file at another seat, with a record of its own.
    Named(NamingOutcome),
}

/// True for changes of files, and not of names.
fn is_of_file_alone(verb: Verb) -> bool {
    use Verb::{Allocate, Close, Open, RemoveXattr, SetAttributes, SetXattr, Write};
    matches!(verb, Allocate | Close | Open | RemoveXattr | SetAttributes | SetXattr | Write)
}

/// Identities of the files that a request makes: hashes of what identifies the request, so that a
/// repeated one finds its files, and no user can choose the identity of a file.
struct FileIds {
    set: SetId,
    first: u128,
}

impl FileIds {
    fn new(set: SetId, window: &ClientWindow, client: u64, number: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&set.0.to_le_bytes()).update(&window.uid().to_le_bytes());
        // Without one, in a window of an earlier version, identities are as they were.
        if window.nonce() != 0 {
            hasher.update(&window.nonce().to_le_bytes());
        }
        hasher.update(&client.to_le_bytes()).update(&number.to_le_bytes());
        let digest = hasher.finalize();
        let first = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self { set, first: u128::from_le_bytes(*first) }
    }

    /// The identity of the file that `item` makes.
    fn get(&self, item: u16) -> FileId {
        FileId::hashed(self.set, self.first.wrapping_add(u128::from(item)))
    }
}
