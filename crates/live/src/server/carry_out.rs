// SPDX-License-Identifier: Apache-2.0
//! Carry out: executes the requests of one connection, a batch of frames at a time, and writes the
//! answers.
//!
//! Requests are decoded in place. The changes of a batch run under the lock of the known clients
//! (`changes`), so that their records are in the order of the changes; `reads` take no lock.

mod change_items;
mod changes;
mod file_moves;
mod named_file;
mod reads;
mod request_records;
mod seat_directories;
mod spread_directories;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::session::Session;
use esker_fs::session::request_record::RequestRecord;
use esker_fs::stack::identity::Identity;
use parking_lot::MutexGuard;

use self::file_moves::{busy, is_naming_done, is_step_of_move};
use self::seat_directories::SeatPreparation;
pub(super) use self::seat_directories::make_root;
use super::client_files::ClientFiles;
use super::open_directories::OpenDirectories;
use super::seen_links::SeenLinks;
use super::served_namespace::{KnownClients, ServedNamespace};
use crate::wire::{
    FRAME_BYTES_MAX, FrameHeader, NAME_BYTES_MAX, Verb, finish_frame, put_status, split_frame,
    start_frame,
};

/// Bytes of an answer after which no further item is begun.
const ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// One client: its user, and the directories that it has open.
pub(super) struct ClientSession<'a> {
    served: &'a ServedNamespace,
    session: Session,
    /// The session for steps whose permissions the server has checked.
    superuser: Session,
    client: u64,
    directories: OpenDirectories,
    seen_links: SeenLinks,
    files: Arc<ClientFiles>,
    /// Changes that were not carried out, because they or earlier ones lack their directories.
    /// Later changes wait for them.
    lacking: BTreeSet<u64>,
    /// True if the change under way was sent before, to this server or another.
    is_repeated: bool,
    /// Identifies the freezes of this connection.
    freeze: u64,
    /// The change under way, if other seats were asked to do their part of it.
    prepared_request: Option<u64>,
    /// What they have done for its items.
    prepared: BTreeMap<u16, SeatPreparation>,
    /// True if the change under way was done before in part.
    repeats_directories: bool,
    /// Attempts to prepare it that came to nothing.
    attempts: u32,
    /// Time until which another seat's move of a file goes first, by the monotonic clock.
    gives_way_until_ns: Cell<u64>,
    /// Directories at other seats that got no name.
    unnamed: Vec<(Vec<u16>, DirId)>,
    /// True if an answer shows the name of a directory at another seat that may not be synced: what its
    /// client does there durably must not be lost with the name.
    shows_unsynced: Cell<bool>,
    peer: String,
}

/// The outcome of a batch of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchOutcome {
    /// Bytes of complete frames.
    pub consumed: usize,
    /// The answers are to be sent once everything done so far survives power loss.
    pub awaits_commit: bool,
    /// The client ends, and repeats nothing.
    pub is_goodbye: bool,
    /// The next frame is a change, and changes have to wait.
    pub is_frozen: bool,
    /// The next frame waits for other clients of other seats.
    pub is_crowded: bool,
}

/// Whether a frame is carried out.
enum FrameAdmission {
    CarryOut,
    /// It is tried again later.
    Waits,
    /// It is answered that it was not.
    Refused,
}

/// The changes of a batch, under way.
struct ChangeBatch<'a> {
    clients: MutexGuard<'a, KnownClients>,
    /// Changes were done that no record covers yet.
    lacks_record: bool,
    /// The log carries the record of some.
    tracks: bool,
    /// It began while other changes had to wait.
    is_during_freeze: bool,
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

/// Answers each item of a change with `why`. None was carried out.
fn refuse_items(header: &FrameHeader, why: &Error, out: &mut Vec<u8>) {
    let at = start_frame(out);
    for _ in 0..header.items {
        put_status::<()>(out, &Err(Error::new(why.kind(), why.to_string())), usize::MAX);
    }
    finish_frame(out, at, header);
}

/// The reason for an answer that does not have the request's items.
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
    pub fn new(
        served: &'a ServedNamespace,
        identity: Identity,
        (client, files): (u64, Arc<ClientFiles>),
        peer: String,
    ) -> Self {
        let session = served.session_of(identity);
        let superuser = served.session_of(Identity::root());
        let directories =
            OpenDirectories::new(session.root().clone(), session.namespace().seat_roots().clone());
        let lacking = BTreeSet::new();
        Self {
            served,
            session,
            superuser,
            client,
            directories,
            seen_links: SeenLinks::new(),
            files,
            lacking,
            is_repeated: false,
            freeze: served.freeze().draw_holder(),
            prepared_request: None,
            prepared: BTreeMap::new(),
            repeats_directories: false,
            attempts: 0,
            gives_way_until_ns: Cell::new(0),
            unnamed: Vec::new(),
            shows_unsynced: Cell::new(false),
            peer,
        }
    }

    /// Makes the next change carry the record of the client's requests.
    fn attach_request(&mut self, record: Option<&RequestRecord>) -> Result<()> {
        self.superuser.attach_request(record)?;
        self.session.attach_request(record)
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
            let split = split_frame(rest, FRAME_BYTES_MAX, &self.peer);
            // Changes carried out before get their record, even if no frame follows.
            let split = split.or_else(|why| self.finish(batch.take()).and(Err(why)))?;
            let Some((header, payload)) = split else { break };
            let (consumed, payload) = (payload.end, &rest[payload]);
            let at = out.len();
            match self.admit(&header, payload, (&mut batch, &mut outcome))? {
                FrameAdmission::CarryOut => {}
                FrameAdmission::Waits => break,
                FrameAdmission::Refused => {
                    refuse_items(&header, &busy(), out);
                    outcome.consumed += consumed;
                    continue;
                }
            }
            outcome.consumed += consumed;
            // A client gives up the set that was adopted once it has the answer.
            let is_synced = matches!(header.verb, Verb::Sync | Verb::AdoptSet);
            let mut is_durable = header.flags.is_durable || is_synced;
            served.metrics().count_request(header.verb);
            let done = if let Some(batch) = batch.as_mut().filter(|_| header.verb.is_change()) {
                is_durable |= served.options().always_durable;
                // Files that are synced at the other seat must not be lost with the name, and a name that
                // came back after a crash would have no directory.
                is_durable |= self.is_prepared_elsewhere();
                is_durable |= self.needs_preparation(header.verb) && self.repeats_directories;
                let changed = self.change(&header, payload, batch, out);
                self.end_preparation();
                changed.map(|had_room| is_durable &= had_room)
            } else {
                self.finish(batch.take())?;
                outcome.is_goodbye = header.verb == Verb::Goodbye;
                self.read(&header, payload, out)
            };
            outcome.awaits_commit |= is_durable | self.shows_unsynced.take();
            if batch.as_ref().is_some_and(|batch| batch.is_during_freeze) {
                // The freeze waits for this change, and only for this one.
                self.finish(batch.take())?;
            }
            if let Err(why) = done {
                // Changes carried out before get their record, even if this request fails.
                self.finish(batch.take())?;
                out.truncate(at);
                return refuse(&header, why, out);
            }
        }
        self.finish(batch.take())?;
        Ok(outcome)
    }

    /// Decides whether a frame is carried out now. A change is prepared, and `batch` is there for it.
    fn admit(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        (batch, outcome): (&mut Option<ChangeBatch<'a>>, &mut BatchOutcome),
    ) -> Result<FrameAdmission> {
        if self.needs_preparation(header.verb) {
            self.finish(batch.take())?;
            if self.served.freeze().is_frozen(self.served.clock()) {
                outcome.is_frozen = true;
                return Ok(FrameAdmission::Waits);
            }
            if !self.prepare(header, payload) {
                outcome.is_crowded = true;
                return Ok(FrameAdmission::Waits);
            }
        }
        if header.verb.is_change() && batch.is_none() {
            *batch = self.begin_batch(self.is_moving());
            if batch.is_none()
                && is_step_of_move(header, payload)
                && self.check_is_of_owner("move files between seats").is_ok()
            {
                // The server that asks may have to end this before it can be frozen itself.
                let ends_move = match header.verb {
                    Verb::Unlink => true,
                    Verb::NameSeatFile => is_naming_done(self.served.seats(), payload),
                    _ => false,
                };
                if !ends_move {
                    return Ok(FrameAdmission::Refused);
                }
                *batch = self.begin_batch(true);
            }
            if batch.is_none() {
                // It is planned again: nothing may stay closed while this client takes its time.
                self.end_preparation();
                outcome.is_frozen = true;
                return Ok(FrameAdmission::Waits);
            }
        }
        if batch.is_some() && self.waits_for_move(header, payload) {
            self.finish(batch.take())?;
            outcome.is_crowded = true;
            return Ok(FrameAdmission::Waits);
        }
        Ok(FrameAdmission::CarryOut)
    }

    /// Takes the lock under which changes are carried out; `None` while they have to wait. A freeze waits
    /// for changes that end the move of a file (`ends_move`).
    fn begin_batch(&self, ends_move: bool) -> Option<ChangeBatch<'a>> {
        let clients = self.served.clients().lock();
        // After the lock: who freezes takes it once, so no change is under way from then on.
        let is_frozen = self.served.freeze().is_frozen(self.served.clock());
        let (lacks_record, tracks) = (false, false);
        let is_during_freeze = is_frozen;
        let batch = ChangeBatch { clients, lacks_record, tracks, is_during_freeze };
        (!is_frozen || ends_move).then_some(batch)
    }

    /// Records the changes of a batch that carried no record, and lets the changes of other
    /// connections begin.
    fn finish(&self, batch: Option<ChangeBatch>) -> Result<()> {
        match batch {
            Some(ChangeBatch { clients, lacks_record, tracks, .. }) if lacks_record || tracks => {
                let known = clients.get(&self.client).expect("known while it is connected");
                self.put_record(&known.window)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for ClientSession<'_> {
    /// Nothing waits for a client that has gone.
    fn drop(&mut self) {
        self.end_preparation();
        self.served.freeze().end(self.freeze);
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
