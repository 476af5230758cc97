// SPDX-License-Identifier: Apache-2.0
//! Carries out the requests of one connection, item by item, and writes the answers.
//!
//! Requests are decoded in place. Changes run under the lock of the known clients, one batch of
//! frames at a time. The record of the client's requests (`client_window`) is part of each change
//! that must not be repeated. Creates find their own files, and attributes and content become the same
//! again; their record follows at the end of the batch, before any change of others, so a crash that
//! loses it loses whatever was changed after them, too.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use esker_base::{Error, Kind, Result};
use esker_fs::dir::Dir;
use esker_fs::identity::{Identity, WRITE};
use esker_fs::inode::{DirId, FileId, Inode};
use esker_fs::list::DirCursor;
use esker_fs::namespace::FollowLinks;
use esker_fs::ops::RenameFlags;
use esker_fs::session::Session;
use esker_table::manifest::SetId;
use esker_table::wire::{WireDamage, WireInput, put_bytes, put_varint};
use parking_lot::MutexGuard;

use super::client_window::{ClientWindow, ItemPosition, WINDOW_MAX};
use super::counters::RunningCounters;
use super::open_directories::OpenDirectories;
use super::served_namespace::{KnownClients, ServedNamespace};
use crate::wire::{
    ANSWER_TEXT_BYTES_MAX, AttributeRequest, CHANGE_ITEMS_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES,
    FrameHeader, NAME_BYTES_MAX, PATH_BYTES_MAX, TRANSFER_BYTES_MAX, Verb, finish_frame,
    put_attributes, put_status, split_frame, start_frame,
};

/// Entries of one answer to a listing, at most.
const LIST_ENTRIES_MAX: usize = 8192;
/// Bytes of an answer after which no further item is begun.
const ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;
/// Bytes that the items of one answer may have in all.
const ITEM_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_HEADER_BYTES - (2 << 10);

/// One client's user, and what the client has open.
pub(super) struct ClientSession<'a> {
    served: &'a ServedNamespace,
    session: Session,
    client: u64,
    directories: OpenDirectories,
    /// Changes that were not carried out, because they or earlier ones lack their directories. Later
    /// changes wait for them.
    lacking: BTreeSet<u64>,
    peer: String,
}

/// What a batch of frames needs before its answers may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchOutcome {
    /// Bytes of complete frames.
    pub consumed: usize,
    /// The answers are to be sent once everything done so far survives power loss.
    pub awaits_commit: bool,
    /// The client ends, and repeats nothing.
    pub is_goodbye: bool,
}

/// The changes of a batch, under way.
struct ChangeBatch<'a> {
    clients: MutexGuard<'a, KnownClients>,
    /// Files were created that no record covers yet.
    lacks_record: bool,
}

/// Ends the connection because of a request. If that is at fault, its answer says so; requests that
/// have to wait for something get none, and are repeated.
fn refuse(header: &FrameHeader, why: Error, out: &mut Vec<u8>) -> Result<BatchOutcome> {
    if !matches!(why.kind(), Kind::Fenced | Kind::Closed | Kind::Unavailable) {
        let at = start_frame(out);
        put_status::<()>(out, &Err(Error::new(why.kind(), why.to_string())), usize::MAX);
        finish_frame(out, at, &FrameHeader::new(Verb::Goodbye, header.number));
    }
    Err(why)
}

/// Why an answer is not that of the request's items.
enum FrameRefusal {
    /// The client must open the directory.
    LacksDirectory,
    /// The connection cannot go on.
    Broken(Error),
}

impl From<WireDamage> for FrameRefusal {
    fn from(damage: WireDamage) -> Self {
        Self::Broken(damage.of("a request", 0))
    }
}

impl From<Error> for FrameRefusal {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

impl<'a> ClientSession<'a> {
    pub fn new(served: &'a ServedNamespace, identity: Identity, client: u64, peer: String) -> Self {
        let session = served.session_of(identity);
        let directories = OpenDirectories::new(session.root().clone());
        Self { served, session, client, directories, lacking: BTreeSet::new(), peer }
    }

    /// Carries out the complete frames at the start of `bytes`, and appends their answers to `out`.
    ///
    /// # Errors
    /// `Corrupt` and `Invalid` for frames after which the connection cannot go on; failures of the
    /// session that end the server.
    pub fn carry_out(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<BatchOutcome> {
        let mut outcome = BatchOutcome::default();
        let mut batch: Option<ChangeBatch> = None;
        let served = self.served;
        while out.len() < ANSWER_BYTES_MAX && !outcome.is_goodbye {
            let rest = &bytes[outcome.consumed..];
            let Some((header, payload)) = split_frame(rest, FRAME_BYTES_MAX, &self.peer)? else {
                break;
            };
            outcome.consumed += payload.end;
            outcome.awaits_commit |= header.flags.is_durable || header.verb == Verb::Sync;
            RunningCounters::add(&served.counters.frames, 1);
            let payload = &rest[payload];
            let at = out.len();
            let done = if header.verb.is_change() {
                outcome.awaits_commit |= served.options().always_durable;
                let batch = batch.get_or_insert_with(|| ChangeBatch {
                    clients: served.clients().lock(),
                    lacks_record: false,
                });
                self.change(&header, payload, batch, out)
            } else {
                self.finish(batch.take())?;
                outcome.is_goodbye = header.verb == Verb::Goodbye;
                self.read(&header, payload, out)
            };
            if let Err(why) = done {
                // What was carried out before has its record, whatever becomes of this request.
                self.finish(batch.take())?;
                out.truncate(at);
                return refuse(&header, why, out);
            }
        }
        self.finish(batch.take())?;
        Ok(outcome)
    }

    /// Records the creates of a batch, and lets the changes of other connections begin.
    fn finish(&self, batch: Option<ChangeBatch>) -> Result<()> {
        match batch {
            Some(ChangeBatch { clients, lacks_record: true }) => {
                let known = clients.get(&self.client).expect("known while it is connected");
                self.session.put_request(&known.window.record())
            }
            _ => Ok(()),
        }
    }

    fn change(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        batch: &mut ChangeBatch,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let at = out.len();
        let known = batch.clients.get_mut(&self.client).expect("known while it is connected");
        let window = &mut known.window;
        self.check_number(header, window)?;
        if let Some(answer) = window.answer(header.number) {
            RunningCounters::add(&self.served.counters.repeated, u64::from(header.items));
            out.extend_from_slice(answer);
            return Ok(());
        }
        if window.is_full(header.number, header.items) {
            let what = format!(
                "{}: more answers or failures than a server remembers; connect again, and repeat \
                 what has no answer",
                self.peer
            );
            return Err(Error::new(Kind::Unavailable, what));
        }
        start_frame(out);
        let mut answer = *header;
        self.lacking = self.lacking.split_off(&window.answered_below());
        answer.flags.follows_lack =
            self.lacking.first().is_some_and(|oldest| *oldest < header.number);
        let carried_out = match answer.flags.follows_lack {
            true => Err(FrameRefusal::LacksDirectory),
            false => self.change_items(header, payload, window, out),
        };
        match carried_out {
            Ok(lacks_record) => batch.lacks_record |= lacks_record,
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
                // They are not done, whatever later requests are carried out.
                for item in 0..header.items {
                    let position = ItemPosition { number: header.number, item };
                    if !window.is_done(position) {
                        window.finish(position, false);
                    }
                }
                finish_frame(out, at, &answer);
                return Ok(());
            }
        }
        self.lacking.remove(&header.number);
        finish_frame(out, at, &answer);
        window.keep_answer(header.number, &out[at..]);
        Ok(())
    }

    fn check_number(&self, header: &FrameHeader, window: &mut ClientWindow) -> Result<()> {
        let answered_below =
            header.number.checked_add(1).and_then(|end| end.checked_sub(header.window.into()));
        match answered_below {
            Some(below) if header.number > 0 && (1..=WINDOW_MAX).contains(&header.window) => {
                window.has_answers_below(below)?;
            }
            _ => {
                let what = format!("request {} of a window of {}", header.number, header.window);
                return Err(Error::corrupt(&self.peer, 8, what));
            }
        }
        if header.items > CHANGE_ITEMS_MAX {
            let what = format!("{} changes, {CHANGE_ITEMS_MAX} allowed", header.items);
            return Err(Error::corrupt(&self.peer, 6, what));
        }
        Ok(())
    }

    /// Carries out the items of a change. Returns true if files were created that no record covers.
    fn change_items(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        window: &mut ClientWindow,
        out: &mut Vec<u8>,
    ) -> Result<bool, FrameRefusal> {
        let counters = &self.served.counters;
        let mut input = WireInput::new(payload);
        let id = DirId(input.u128()?);
        let positions = (0..header.items).map(|item| ItemPosition { number: header.number, item });
        let files = FileIds::new(self.served.set(), window.uid(), self.client, header.number);
        let text_bytes_max = ANSWER_BYTES_MAX / usize::from(header.items.max(1));
        let mut dir = None;
        let mut failures = 0;
        for position in positions {
            if window.is_done(position) {
                skip_change(header.verb, &mut input)?;
                RunningCounters::add(&counters.repeated, 1);
                put_status(out, &Ok(()), 0);
                continue;
            }
            let dir = match &dir {
                Some(dir) => dir,
                None => {
                    let found = self.directories.get(id).ok_or(FrameRefusal::LacksDirectory)?;
                    &*dir.insert(found)
                }
            };
            // The record that the change carries says that it was done.
            window.finish(position, true);
            let outcome = match header.verb {
                Verb::Create => {
                    let (mode, name) = (take_mode(&mut input)?, take_name(&mut input)?);
                    let file = FileId(files.get(position.item));
                    self.session.create_identified(dir, name, mode, file)
                }
                // Repeated, these do the same again, or find that they did.
                verb if !carries_record(verb) => self
                    .change_item(verb, dir, &mut input)
                    .inspect_err(|_| window.finish(position, false))?,
                verb => {
                    self.session.attach_request(Some(&window.record()))?;
                    let outcome = self.change_item(verb, dir, &mut input);
                    self.session.attach_request(None)?;
                    outcome.inspect_err(|_| window.finish(position, false))?
                }
            };
            if let Err(error) = &outcome {
                window.finish(position, false);
                failures += 1;
                check_goes_on(error)?;
            }
            put_status(out, &outcome, text_bytes_max);
        }
        input.end()?;
        RunningCounters::add(&counters.changes, u64::from(header.items));
        RunningCounters::add(&counters.failures, failures);
        Ok(!carries_record(header.verb))
    }

    /// Carries out one change other than a create.
    fn change_item(
        &self,
        verb: Verb,
        dir: &Dir,
        input: &mut WireInput,
    ) -> Result<Result<()>, FrameRefusal> {
        let session = &self.session;
        Ok(match verb {
            Verb::MakeDirectory => {
                let (mode, name) = (take_mode(input)?, take_name(input)?);
                session.mkdir(dir, name, mode).map(|made| self.directories.keep(&made))
            }
            Verb::MakeSymlink => {
                let target = input.bytes(PATH_BYTES_MAX, "a target")?;
                session.symlink(dir, take_name(input)?, target).map(drop)
            }
            Verb::Unlink => session.unlink(dir, take_name(input)?).map(drop),
            Verb::RemoveDirectory => session.rmdir(dir, take_name(input)?).map(drop),
            Verb::Link => {
                let (old, target, new) = self.take_second_name(input)?;
                session.link(dir, old, &target, new).map(drop)
            }
            Verb::Rename => {
                let flags = take_flags(input)?;
                let (old, target, new) = self.take_second_name(input)?;
                session.rename((dir, old), (&target, new), flags).map(drop)
            }
            Verb::SetAttributes => {
                let name = input.bytes(NAME_BYTES_MAX, "a name")?;
                let changes = AttributeRequest::take(input)?.changes();
                match name.is_empty() && dir.id() == DirId::ROOT {
                    true => session.setattr_root(&changes),
                    false => session.setattr(dir, name, &changes).map(drop),
                }
            }
            Verb::Write => {
                let (name, offset) = (take_name(input)?, input.varint()?);
                let bytes = input.bytes(TRANSFER_BYTES_MAX, "bytes to write")?;
                self.write(dir, name, offset, bytes)
            }
            _ => return Err(input.damage("a change").into()),
        })
    }

    fn take_second_name<'b>(
        &self,
        input: &mut WireInput<'b>,
    ) -> Result<(&'b [u8], Dir, &'b [u8]), FrameRefusal> {
        let (old, id) = (take_name(input)?, DirId(input.u128()?));
        let target = self.directories.get(id).ok_or(FrameRefusal::LacksDirectory)?;
        Ok((old, target, take_name(input)?))
    }

    fn write(&self, dir: &Dir, name: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        let session = &self.session;
        let inode = session.lookup(dir, name, false)?;
        session.identity().check(WRITE, &inode, name)?;
        let file = session.open_file(dir, name)?;
        let written = session.file(&file).write(offset, bytes);
        let closed = session.close_file(file);
        written.and(closed)
    }

    /// Carries out the items of a request that changes nothing.
    fn read(&mut self, header: &FrameHeader, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let at = start_frame(out);
        let mut answer = *header;
        let mut input = WireInput::new(payload);
        match self.read_items(header, &mut input, out) {
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
            let failed = self.read_item(header.verb, &dir, input, (at, out))?;
            RunningCounters::add(&self.served.counters.failures, u64::from(failed));
        }
        RunningCounters::add(&self.served.counters.reads, u64::from(header.items));
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
                let found = session.lookup(dir, name, false);
                // The common case: no memory is allocated.
                if let Ok(inode) = &found {
                    put_status(out, &found, 0);
                    put_attributes(out, inode);
                    self.keep_directory(dir, name, inode);
                    return Ok(false);
                }
                found.map(|_| Vec::new())
            }
            Verb::Resolve => {
                let follow = match input.u8()? {
                    0 => FollowLinks::No,
                    1 => FollowLinks::Yes,
                    _ => return Err(input.damage("whether to follow links").into()),
                };
                self.resolve(input.bytes(PATH_BYTES_MAX, "a path")?, follow)
            }
            Verb::List => {
                let after = input.bytes(NAME_BYTES_MAX, "a name")?;
                let limit = input.varint_max(LIST_ENTRIES_MAX, "a number of entries")?;
                self.list(dir, after, limit)
            }
            Verb::Read => {
                let (name, offset) = (take_name(input)?, input.varint()?);
                let bytes_max = input.varint_max(TRANSFER_BYTES_MAX, "bytes to read")?;
                self.read_file(dir, name, offset, bytes_max)
            }
            Verb::ReadSymlink => self.read_symlink(dir, take_name(input)?),
            Verb::Snapshot => {
                let name = input.bytes(NAME_BYTES_MAX, "a name")?;
                self.snapshot(name)
            }
            Verb::Status => {
                let mut text = Vec::new();
                put_bytes(&mut text, self.served.status().to_string().as_bytes());
                Ok(text)
            }
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

    /// Keeps a directory that was looked up open, so that the client can name it by its identity.
    fn keep_directory(&self, parent: &Dir, name: &[u8], inode: &Inode) {
        if inode.is_directory()
            && let Ok(dir) = self.session.open_dir(parent, name, inode)
        {
            self.directories.keep(&dir);
        }
    }

    fn resolve(&self, path: &[u8], follow: FollowLinks) -> Result<Vec<u8>> {
        let found = self.session.find(path, follow)?;
        self.directories.keep(&found.dir);
        let mut out = found.dir.id().0.to_le_bytes().to_vec();
        put_bytes(&mut out, &found.name);
        put_attributes(&mut out, &found.inode);
        if !found.name.is_empty() {
            self.keep_directory(&found.dir, &found.name, &found.inode);
        }
        Ok(out)
    }

    fn list(&self, dir: &Dir, after: &[u8], limit: usize) -> Result<Vec<u8>> {
        let cursor = if after.is_empty() { DirCursor::default() } else { DirCursor::after(after) };
        let (mut entries, mut count, mut is_end) = (Vec::new(), 0u64, true);
        self.session.list(dir, &cursor, &mut |entry| {
            if count == limit as u64 || entries.len() > ANSWER_BYTES_MAX {
                is_end = false;
                return Ok(ControlFlow::Break(()));
            }
            put_bytes(&mut entries, entry.name());
            put_attributes(&mut entries, &entry.inode()?);
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        let mut out = vec![u8::from(is_end)];
        put_varint(&mut out, count);
        out.extend_from_slice(&entries);
        Ok(out)
    }

    fn read_file(&self, dir: &Dir, name: &[u8], offset: u64, bytes_max: usize) -> Result<Vec<u8>> {
        let inode = self.session.lookup(dir, name, true)?;
        let bytes = self.session.read(&inode, offset, bytes_max)?;
        let mut out = Vec::with_capacity(bytes.len() + 4);
        put_bytes(&mut out, &bytes);
        Ok(out)
    }

    fn read_symlink(&self, dir: &Dir, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.session.lookup(dir, name, true)?;
        if inode.kind() != Some(esker_fs::inode::FileKind::Symlink) {
            return Err(Error::new(Kind::Invalid, "not a symbolic link"));
        }
        let mut out = Vec::new();
        put_bytes(&mut out, &inode.content);
        Ok(out)
    }

    /// Publishes the current state. Only the server's user and the superuser write names.
    fn snapshot(&self, name: &[u8]) -> Result<Vec<u8>> {
        let uid = self.session.identity().uid;
        if uid != 0 && uid != self.served.session().identity().uid {
            let what = "only the user of the server can publish snapshots of the namespace";
            return Err(Error::new(Kind::NotPermitted, what));
        }
        let name = std::str::from_utf8(name)
            .map_err(|_| Error::new(Kind::Invalid, "the name of a snapshot is text"))?;
        let set = self.served.session().snapshot(name)?;
        Ok(set.0.to_le_bytes().to_vec())
    }
}

/// True if each change of this kind must carry the record of its request: done twice, it would fail,
/// or do something else. The record of other changes follows them, before any change of others.
fn carries_record(verb: Verb) -> bool {
    !matches!(verb, Verb::Create | Verb::SetAttributes | Verb::Write)
}

/// Identities of the files that a request creates: hashes of what identifies the request, so that a
/// repeated one finds its files, and no user can choose the identity of a file.
struct FileIds {
    first: u128,
}

impl FileIds {
    fn new(set: SetId, uid: u32, client: u64, number: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&set.0.to_le_bytes()).update(&uid.to_le_bytes());
        hasher.update(&client.to_le_bytes()).update(&number.to_le_bytes());
        let digest = hasher.finalize();
        let first = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self { first: u128::from_le_bytes(*first) }
    }

    /// The identity of the file that `item` creates.
    fn get(&self, item: u16) -> u128 {
        self.first.wrapping_add(u128::from(item))
    }
}

/// Fails for an error after which the session takes no more changes.
fn check_goes_on(error: &Error) -> Result<()> {
    match error.kind() {
        Kind::Fenced | Kind::Closed => Err(Error::new(error.kind(), error.to_string())),
        _ => Ok(()),
    }
}

fn take_name<'a>(input: &mut WireInput<'a>) -> Result<&'a [u8], WireDamage> {
    input.bytes(NAME_BYTES_MAX, "a name")
}

fn take_mode(input: &mut WireInput) -> Result<u32, WireDamage> {
    let mode = input.varint_max(0o7777, "permission bits")?;
    Ok(u32::try_from(mode).expect("checked"))
}

fn take_flags(input: &mut WireInput) -> Result<RenameFlags, WireDamage> {
    match input.u8()? {
        0 => Ok(RenameFlags::Replace),
        1 => Ok(RenameFlags::NoReplace),
        2 => Ok(RenameFlags::Exchange),
        _ => Err(input.damage("how to rename")),
    }
}

/// Passes over an item that was carried out before.
fn skip_change(verb: Verb, input: &mut WireInput) -> Result<(), WireDamage> {
    match verb {
        Verb::Create | Verb::MakeDirectory => {
            take_mode(input)?;
        }
        Verb::MakeSymlink => {
            input.bytes(PATH_BYTES_MAX, "a target")?;
        }
        Verb::Rename => {
            take_flags(input)?;
        }
        Verb::SetAttributes => {
            input.bytes(NAME_BYTES_MAX, "a name")?;
            AttributeRequest::take(input)?;
            return Ok(());
        }
        _ => {}
    }
    take_name(input)?;
    match verb {
        Verb::Rename | Verb::Link => {
            input.u128()?;
            take_name(input)?;
        }
        Verb::Write => {
            input.varint()?;
            input.bytes(TRANSFER_BYTES_MAX, "bytes to write")?;
        }
        _ => {}
    }
    Ok(())
}
