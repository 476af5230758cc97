// SPDX-License-Identifier: Apache-2.0
//! Seat directories: the part of changes that other seats carry out, before the changes themselves.
//!
//! A new directory may be at another seat than its name; a directory at another seat is removed there
//! first. That needs requests to other servers, which must not be made under the lock of the known
//! clients: two servers would wait for each other. So it is prepared before the lock is taken, and
//! the change finds out whether what was prepared still holds.

use std::collections::BTreeMap;

use esker_base::wire::WireInput;
use esker_base::{Error, Kind, Random, Result};
use esker_fs::inode::{DirId, FileKind, Inode};
use esker_fs::ops::{NewFile, RenameFlags};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::path_search::top_of;
use hashbrown::HashSet;
use tokio::task::block_in_place;

use super::change_items::{skip_change, take_mode, take_new_file};
use super::changes::{ItemEffect, check_header};
use super::file_moves::{FileMove, MoveOutcome};
use super::named_file::NamedFile;
use super::spread_directories::seats_of;
use super::{ClientSession, FrameRefusal, take_name};
use crate::client::{LiveDir, Request};
use crate::server::client_window::ItemPosition;
use crate::wire::{FrameHeader, SPREAD_DEVICE, SeatFileNaming, Verb};

/// The part of an item at another seat: planned, and then done.
#[derive(Debug)]
pub(super) enum SeatPreparation {
    /// A directory is made, which then gets its name; at all seats if it is spread.
    Made { seat: u16, id: DirId, planned: Box<Inode>, made_at: Vec<u16> },
    /// A directory is removed, whose name goes then; from all seats if it is spread.
    Removed { seat: u16, id: DirId },
    /// A file has got its new name, whose old one goes then.
    Moved(Box<FileMove>),
    /// The item has to be prepared again in a moment.
    Busy,
    /// The item fails.
    Refused(Error),
}

impl SeatPreparation {
    /// The requests to the servers of other seats than `own`.
    fn requests(&self, own: u16) -> Vec<(u16, Request)> {
        let (Self::Made { seat, id, .. } | Self::Removed { seat, id }) = self else {
            return Vec::new();
        };
        let request = |seat| match self {
            Self::Made { id, planned, .. } => make_root((seat, *id), planned),
            _ => removal(seat, *id),
        };
        let seats = seats_of((*seat, *id)).filter(|seat| *seat != own);
        seats.map(|seat| (seat, request(seat).durable())).collect()
    }
}

/// The root of a directory with the attributes of `planned`.
fn new_root(planned: &Inode) -> NewFile<'static> {
    let Inode { mode, uid, gid, .. } = *planned;
    NewFile { kind: FileKind::Directory, mode, uid, gid, rdev: 0, target: &[] }
}

/// Another client removes the directory at this moment.
struct IsBeingRemoved;

/// The request that makes the directory `id` at `seat`, with the attributes of `planned`.
pub(in crate::server) fn make_root((seat, id): (u16, DirId), planned: &Inode) -> Request {
    let (new, name) = (new_root(planned), id.seat_root_name());
    Request::make_node(&LiveDir::seat_roots(seat), name.as_bytes(), (&new, false))
}

/// The request that removes the directory `id` at `seat`.
fn removal(seat: u16, id: DirId) -> Request {
    Request::remove_directory(&LiveDir::seat_roots(seat), &[id.seat_root_name().as_bytes()])
}

/// Attempts to remove a spread directory whose parts are taken over by other servers meanwhile.
const ATTEMPTS_MAX: u32 = 20;
/// Attempts to move a file to a seat where a snapshot or other moves are under way: longer than a freeze
/// lasts, at a few milliseconds each.
const MOVE_ATTEMPTS_MAX: u32 = 4000;

impl ClientSession<'_> {
    /// True if `verb` may need another seat.
    pub(super) fn needs_preparation(&self, verb: Verb) -> bool {
        use Verb::{LinkAcross, MakeDirectory, MakeNode, RemoveDirectory, RenameAcross};
        self.served.seats().has_others()
            && matches!(
                verb,
                MakeDirectory | MakeNode | RemoveDirectory | RenameAcross | LinkAcross
            )
    }

    /// Has other seats do their part of the items of a change that are not done yet. Returns false if
    /// the change has to be tried again a little later: too many wait for other seats, or a directory
    /// is being removed. What is wrong with the request shows when it is carried out.
    pub(super) fn prepare(&mut self, header: &FrameHeader, payload: &[u8]) -> bool {
        if check_header(header, &self.peer).is_err() {
            return true;
        }
        let is_prepared = self.prepared_request == Some(header.number);
        // A change behind one that lacks its directory is sent again.
        let answered_below = header.number.saturating_add(1).saturating_sub(header.window.into());
        let follows_lack = self
            .lacking
            .range(answered_below..)
            .next()
            .is_some_and(|oldest| *oldest < header.number);
        if is_prepared || follows_lack {
            return true;
        }
        if self.gives_way_until_ns.get() > self.served.clock().monotonic_ns() {
            return false;
        }
        self.end_preparation();
        let waiting = self.items_to_do(header);
        self.repeats_directories = !waiting.iter().all(|is_waiting| *is_waiting);
        let planned = match header.verb {
            Verb::RenameAcross | Verb::LinkAcross => {
                self.plan_request(header, payload, waiting.first() != Some(&true))
            }
            verb => self.plan_items(verb, payload, &waiting),
        };
        let steps = match planned {
            Ok(Some(steps)) => steps,
            Ok(None) => return false,
            Err(_) => Vec::new(),
        };
        if !steps.is_empty() || !self.unnamed.is_empty() {
            // Requests that need no other seat, such as those of other servers, never wait for one.
            let (served, uid) = (self.served, self.session.namespace().identity().uid);
            let Some(_waiting) = served.seats().admit_waiting(uid) else {
                steps.iter().for_each(|(_, step)| self.forget_step(step));
                return false;
            };
            self.prepared = block_in_place(|| {
                self.discard_unnamed();
                self.carry_out_elsewhere(steps)
            });
            // A server that took over meanwhile does not know that its part was closed.
            let has_opened = |step: &SeatPreparation| matches!(step, SeatPreparation::Refused(error) if error.kind() == Kind::Conflict);
            let is_busy = |step: &SeatPreparation| matches!(step, SeatPreparation::Busy);
            let attempts_max = match header.verb {
                _ if self.prepared.values().any(is_busy) => MOVE_ATTEMPTS_MAX,
                Verb::RenameAcross | Verb::LinkAcross => 0,
                _ if self.prepared.values().any(has_opened) => ATTEMPTS_MAX,
                _ => 0,
            };
            if self.attempts < attempts_max {
                self.attempts += 1;
                self.end_preparation();
                return false;
            }
        }
        self.attempts = 0;
        self.prepared_request = Some(header.number);
        true
    }

    /// The items of a request that are not done.
    fn items_to_do(&self, header: &FrameHeader) -> Vec<bool> {
        let clients = self.served.clients().lock();
        let known = clients.get(&self.client).expect("known while it is connected");
        let is_answered = known.window.answer(header.number).is_some();
        let is_done = |item| known.window.is_done(ItemPosition { number: header.number, item });
        (0..header.items).map(|item| !is_answered && !is_done(item)).collect()
    }

    /// Decides what other seats do for the `waiting` items of a request, before any of them does it.
    /// Returns `None` if one of them removes a directory that another client is removing.
    fn plan_items(
        &self,
        verb: Verb,
        payload: &[u8],
        waiting: &[bool],
    ) -> Result<Option<Vec<(u16, SeatPreparation)>>, FrameRefusal> {
        let mut names = Vec::new();
        let mut input = WireInput::new(payload);
        let dir = self.directories.get(DirId(input.u128()?)).ok_or(FrameRefusal::LacksDirectory)?;
        let is_root = self.session.namespace().identity().is_root();
        for (item, is_waiting) in (0..).zip(waiting) {
            let (new, name) = match verb {
                Verb::MakeDirectory => {
                    let (mode, name) = (take_mode(&mut input)?, take_name(&mut input)?);
                    (Some((mode, None, false)), name)
                }
                Verb::MakeNode => {
                    let (new, _) = take_new_file(&mut input)?;
                    let name = take_name(&mut input)?;
                    if new.kind != FileKind::Directory {
                        continue;
                    }
                    let owner = is_root.then_some((new.uid, new.gid));
                    (Some((new.mode, owner, new.rdev == SPREAD_DEVICE)), name)
                }
                _ => (None, take_name(&mut input)?),
            };
            if *is_waiting && dir.id() != DirId::SEAT_ROOTS {
                names.push((item, new, name));
            }
        }
        let mut removed = HashSet::new();
        let mut steps = Vec::new();
        for (item, new, name) in names {
            let step = match new {
                Some(attributes) => self.plan_directory(&dir, name, attributes),
                // The second removal of a name in one request finds nothing.
                None if !removed.insert(name) => None,
                None => match self.plan_removal(&dir, name) {
                    Ok(step) => step,
                    Err(IsBeingRemoved) => {
                        steps.into_iter().for_each(|(_, step)| self.forget_step(&step));
                        return Ok(None);
                    }
                },
            };
            steps.extend(step.map(|step| (item, step)));
        }
        Ok(Some(steps))
    }

    /// Ends a step that was planned and is not done.
    pub(super) fn forget_step(&self, step: &SeatPreparation) {
        match step {
            SeatPreparation::Removed { id, .. } => self.served.seats().end_closing(*id),
            SeatPreparation::Moved(moved) => self.end_move(moved),
            _ => {}
        }
    }

    /// Chooses a seat for a new directory; `None` for this one.
    fn plan_directory(
        &self,
        dir: &Dir,
        name: &[u8],
        (mode, owner, is_spread): (u32, Option<(u32, u32)>, bool),
    ) -> Option<SeatPreparation> {
        // A directory that cannot be made is refused with its change.
        self.check_part(dir, name).ok()?;
        let planned = self.session.plan_directory(dir, name, mode, owner).ok()?;
        if is_spread {
            let (seat, id) = (self.served.seat(), self.served.seats().random_spread_id());
            return Some(SeatPreparation::Made {
                seat,
                id,
                planned: Box::new(planned),
                made_at: Vec::new(),
            });
        }
        let seat = self.served.seats().choose(self.served.entries(), self.served.clock());
        let made = || SeatPreparation::Made {
            seat,
            id: random_id(),
            planned: Box::new(planned),
            made_at: Vec::new(),
        };
        (seat != self.served.seat()).then(made)
    }

    /// Finds the seat of the directory `name` of `dir`, which no rename moves from now on; `None` if
    /// that is this one.
    fn plan_removal(
        &self,
        dir: &Dir,
        name: &[u8],
    ) -> Result<Option<SeatPreparation>, IsBeingRemoved> {
        // Renames are carried out under this lock.
        let _clients = self.served.clients().lock();
        // A directory at this seat is removed, or its removal refused, with the change.
        let found = self.session.seat_root_to_remove(dir, name).ok().flatten();
        let Some((seat, id)) = found else { return Ok(None) };
        match self.served.seats().begin_closing(id) {
            true => Ok(Some(SeatPreparation::Removed { seat, id })),
            // Another client removes it, or this one did on a connection that broke.
            false => Err(IsBeingRemoved),
        }
    }

    /// Has other seats carry out `steps`, those of one seat together. Returns what they did, by item.
    fn carry_out_elsewhere(
        &self,
        steps: Vec<(u16, SeatPreparation)>,
    ) -> BTreeMap<u16, SeatPreparation> {
        let (seats, own) = (self.served.seats(), self.served.seat());
        let (mut done, mut by_seat) = (BTreeMap::new(), BTreeMap::new());
        for (item, step) in steps {
            let step = self.close_parts_to_remove(step);
            for (seat, request) in step.requests(own) {
                let (items, requests): &mut (Vec<_>, Vec<_>) = by_seat.entry(seat).or_default();
                items.push(item);
                requests.push(request);
            }
            done.insert(item, (step, Ok(())));
        }
        for (seat, (items, requests)) in by_seat {
            // A step that has failed at one seat is not begun at others.
            if items
                .iter()
                .all(|item: &u16| done.get(item).is_none_or(|(_, so_far)| so_far.is_err()))
            {
                continue;
            }
            let answers = seats.call(seat, requests);
            for (item, answer) in items.into_iter().zip(answers) {
                let (step, so_far) = done.get_mut(&item).expect("every item has a step");
                let outcome = answer.and_then(|answer| answer.outcome());
                if outcome.as_ref().is_err_and(|error| error.kind() == Kind::Unavailable) {
                    seats.set_unanswering(seat, self.served.clock());
                }
                if let (SeatPreparation::Made { made_at, .. }, Ok(())) = (step, &outcome) {
                    made_at.push(seat);
                }
                if so_far.is_ok() {
                    *so_far = outcome;
                }
            }
        }
        let concluded = done.into_iter().map(|(item, (mut step, outcome))| {
            let outcome = outcome.and_then(|()| self.carry_out_own_part(&mut step));
            self.conclude(step, outcome).map(|step| (item, step))
        });
        concluded.flatten().collect()
    }

    /// Makes or removes the part of a spread directory that this seat has, once all others have done so, or
    /// carries out all steps of the move of a file but the last. Not with its name: of two operations the first one would count as the whole change after a crash.
    fn carry_out_own_part(&self, step: &mut SeatPreparation) -> Result<()> {
        let own = self.served.seat();
        match step {
            SeatPreparation::Made { id, planned, made_at, .. } if id.parts() > 1 => {
                made_at.push(own);
                self.superuser.make_seat_root(*id, &new_root(planned))
            }
            SeatPreparation::Removed { id, .. } if id.parts() > 1 => {
                // Names are made under this lock.
                let _clients = self.served.clients().lock();
                self.remove_root(*id)
            }
            SeatPreparation::Moved(moved) => {
                if let MoveOutcome::Busy = self.carry_out_move(moved)? {
                    self.end_move(moved);
                    *step = SeatPreparation::Busy;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes the directory `id` from the seat roots. One that is spread must be closed: a removal that
    /// comes too late takes nothing.
    fn remove_root(&self, id: DirId) -> Result<()> {
        let (seats, clock) = (self.served.seats(), self.served.clock());
        if id.parts() > 1 && !seats.is_part_closed(id, clock) {
            return match self.superuser.open_seat_root(id) {
                Err(error) if error.kind() == Kind::NotFound => Ok(()),
                _ => Err(changing()),
            };
        }
        self.superuser.remove_seat_root(id)?;
        seats.open_part(id);
        Ok(())
    }

    /// The preparation that the change finds, after the outcome of `step` at other seats.
    fn conclude(&self, step: SeatPreparation, outcome: Result<()>) -> Option<SeatPreparation> {
        let Err(error) = outcome else { return Some(step) };
        match step {
            SeatPreparation::Removed { id, .. } => {
                if id.parts() > 1 {
                    self.keep_after(id, &error);
                }
                self.served.seats().end_closing(id);
            }
            SeatPreparation::Made { id, made_at, .. } if id.parts() > 1 => {
                self.discard(&[(made_at, id)]);
            }
            SeatPreparation::Moved(moved) => self.end_move(&moved),
            // The directory is made at this seat instead.
            _ => return None,
        }
        Some(SeatPreparation::Refused(error))
    }

    /// True if a file of the change under way has got its new name at another seat.
    pub(super) fn is_moving(&self) -> bool {
        self.prepared.values().any(|step| matches!(step, SeatPreparation::Moved(_)))
    }

    /// True if another seat has done a part of the change under way.
    pub(super) fn is_prepared_elsewhere(&self) -> bool {
        !self.prepared.is_empty()
    }

    /// Ends the preparation of a change, which was carried out.
    pub(super) fn end_preparation(&mut self) {
        self.prepared_request = None;
        for (_, step) in std::mem::take(&mut self.prepared) {
            match step {
                SeatPreparation::Made { made_at, id, .. } => self.unnamed.push((made_at, id)),
                SeatPreparation::Removed { id, .. } => self.served.seats().end_closing(id),
                // It has both names, as after a crash.
                SeatPreparation::Moved(moved) => self.leave_unfinished(&moved),
                SeatPreparation::Busy | SeatPreparation::Refused(_) => {}
            }
        }
    }

    /// Removes directories at other seats that got no name. One that stays is garbage.
    pub(super) fn discard_unnamed(&mut self) {
        let unnamed = std::mem::take(&mut self.unnamed);
        self.discard(&unnamed);
    }

    fn discard(&self, directories: &[(Vec<u16>, DirId)]) {
        let own = self.served.seat();
        let mut by_seat: BTreeMap<u16, Vec<Request>> = BTreeMap::new();
        for (seats, id) in directories {
            for seat in seats.iter().filter(|seat| **seat != own) {
                let requests = by_seat.entry(*seat).or_default();
                requests.extend((id.parts() > 1).then(|| Request::close_part(*seat, *id, true)));
                requests.push(removal(*seat, *id));
            }
            if seats.contains(&own) {
                // Nobody knows its identity.
                let _ = self.superuser.remove_seat_root(*id);
            }
        }
        for (seat, requests) in by_seat {
            drop(self.served.seats().call(seat, requests));
        }
    }

    /// Makes the directory `name`, at the seat where it was prepared. Returns its inode if that is
    /// another one.
    pub(super) fn name_prepared(
        &mut self,
        item: u16,
        (dir, name): (&Dir, &[u8]),
    ) -> Option<Result<Inode>> {
        let (seat, id, planned) = match self.prepared.get(&item) {
            Some(SeatPreparation::Made { seat, id, planned, .. }) => (*seat, *id, planned),
            Some(SeatPreparation::Refused(error)) => {
                return Some(Err(Error::new(error.kind(), error.to_string())));
            }
            _ => return None,
        };
        self.served.seats().begin_name(id);
        let may = self.check_part(dir, name);
        let named = may.and_then(|()| self.session.name_seat_root(dir, name, (seat, id), planned));
        let (commit, made_ns) = (self.served.commit(), self.served.clock().monotonic_ns());
        let is_synced = |made_ns| commit.has_synced(made_ns);
        self.served.seats().end_name(id, named.is_ok().then_some(made_ns), is_synced);
        if named.is_ok() {
            self.prepared.remove(&item);
        }
        Some(named)
    }

    /// Removes the directory `name`, which is at this seat or was removed at its own.
    pub(super) fn remove_prepared(&mut self, item: u16, (dir, name): (&Dir, &[u8])) -> Result<()> {
        match self.prepared.get(&item) {
            Some(SeatPreparation::Removed { id, .. }) => {
                self.session.unname_seat_root(dir, name, *id)
            }
            Some(SeatPreparation::Refused(error)) => {
                Err(Error::new(error.kind(), error.to_string()))
            }
            _ if self.served.seats().has_others()
                && self.session.seat_root_to_remove(dir, name)?.is_some() =>
            {
                Err(changing())
            }
            _ => self.session.rmdir(dir, name).map(drop),
        }
    }

    /// Carries out a change of the directory of seat roots, for the server of another seat, or of the
    /// attributes of a directory there.
    pub(super) fn change_seat_root(
        &self,
        verb: Verb,
        input: &mut WireInput,
    ) -> Result<Result<ItemEffect>, FrameRefusal> {
        let identity = |name: &[u8]| {
            let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 32);
            let id = text.and_then(|text| u128::from_str_radix(text, 16).ok());
            let id = id.map(DirId).filter(|id| *id != DirId::ROOT && *id < DirId::SEAT_ROOTS);
            id.ok_or_else(|| Error::new(Kind::Invalid, "no identity of a directory"))
        };
        let check = || self.check_is_of_owner("make directories whose names are at other seats");
        let done = match verb {
            Verb::MakeNode => {
                let (new, _) = take_new_file(input)?;
                let id = identity(take_name(input)?);
                let made = check().and(id).and_then(|id| {
                    self.superuser.make_seat_root(id, &new)?;
                    self.superuser.namespace().stat_dir(&self.superuser.open_seat_root(id)?)
                });
                return Ok(made.map(|inode| ItemEffect::Made(Box::new(inode))));
            }
            Verb::RemoveDirectory => {
                let id = identity(take_name(input)?);
                check().and(id).and_then(|id| self.remove_root(id))
            }
            Verb::NameSeatFile => {
                let naming = SeatFileNaming::take(input)?;
                let named = check().and_then(|()| self.name_seat_file(&naming));
                return Ok(named.map(ItemEffect::Named));
            }
            Verb::Link => return self.link_seat_root(input),
            Verb::Unlink => {
                let name = take_name(input)?;
                let roots = self.superuser.namespace().seat_roots();
                check().and_then(|()| self.superuser.unlink(roots, name)).map(drop)
            }
            _ => {
                skip_change(verb, input)?;
                Err(not_of_clients())
            }
        };
        Ok(done.map(|()| ItemEffect::InTree))
    }

    /// Gives a file among the seat roots another name there, for the server of another seat, or one in a
    /// directory, for any client.
    fn link_seat_root(&self, input: &mut WireInput) -> Result<Result<ItemEffect>, FrameRefusal> {
        let (old, target) = (NamedFile::take(input)?, DirId(input.u128()?));
        let roots = self.superuser.namespace().seat_roots();
        let name = take_name(input)?;
        let linked = if target == DirId::SEAT_ROOTS {
            self.check_is_of_owner("name files at other seats")
                .and_then(|()| self.superuser.link(roots, old.name, roots, name))
        } else {
            let target = self.directories.get(target).ok_or(FrameRefusal::LacksDirectory)?;
            self.check_part(&target, name).and_then(|()| self.link(roots, &old, (&target, name)))
        };
        Ok(linked.map(|inode| ItemEffect::Made(Box::new(inode))))
    }

    /// Fails for a rename that this seat cannot carry out alone.
    pub(super) fn check_rename(
        &self,
        (dir, old): (&Dir, &[u8]),
        (target, new): (&Dir, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if !self.served.seats().has_others() {
            return Ok(());
        }
        let is_closing = |inode: &Inode| self.served.seats().is_closing(inode.dir_id());
        let across = |what: &str| Err(Error::new(Kind::CrossDevice, what));
        let (Ok(moved), replaced) = (
            self.session.namespace().lookup(dir, old, false),
            self.session.namespace().lookup(target, new, false).ok(),
        ) else {
            // The rename itself says why.
            return Ok(());
        };
        let exchanged = replaced.as_ref().filter(|_| flags == RenameFlags::Exchange);
        let directories = [Some(&moved), exchanged].into_iter().flatten();
        for directory in directories.filter(|inode| inode.is_directory()) {
            if is_closing(directory) {
                return Err(changing());
            }
            // The directories above these two are at other seats, so only those that do not change
            // them cannot make a loop.
            if top_of(dir) != top_of(target) {
                return across("directories are not moved between directories at different seats");
            }
        }
        let is_replaced = flags == RenameFlags::Replace && moved.is_directory();
        if is_replaced && replaced.is_some_and(|inode| inode.seat().is_some()) {
            return across("a directory at another seat is not replaced: remove it first");
        }
        Ok(())
    }
}

/// An identity that nobody can guess.
fn random_id() -> DirId {
    let mut bytes = [0; 16];
    Random::from_system().fill(&mut bytes);
    DirId(u128::from_le_bytes(bytes))
}

fn changing() -> Error {
    Error::new(Kind::Conflict, "the directory is being removed or was just made; try again")
}

/// The reason that a client does not change the directory of seat roots.
pub(super) fn not_of_clients() -> Error {
    Error::new(Kind::NotPermitted, "only servers change names of directories at other seats")
}
