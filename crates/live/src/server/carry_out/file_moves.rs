// SPDX-License-Identifier: Apache-2.0
//! File moves: renames of regular files to directories at other seats, and links there
//! (`esker_fs::ops::seat_file`).
//!
//! ```text
//! server of the old name     the file gets a further name among the seat roots of its seat    synced
//! server of the new name     the new name stands for that, in place of what was there         synced
//! server of the old name     the old name goes, with the record of the request                synced
//! ```
//! The first two steps are prepared before the change (`seat_directories.rs`). Until it is carried out,
//! others that would remove or move the old name wait. If the first server dies after the second step,
//! the file has both names, and the client, which repeats the request, ends the rename: the second server
//! knows that it has done its part (`done_moves.rs`). A link has no third step.

use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Error, Kind, Random, Result};
use esker_fs::inode::{DirId, FileKind, Inode, NameKind, SeatFile};
use esker_fs::ops::SeatNaming;
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use tokio::runtime::Handle;

use super::change_items::take_flags;
use super::changes::ItemEffect;
use super::named_file::NamedFile;
use super::seat_directories::{SeatPreparation, not_of_clients};
use super::{ClientSession, FrameRefusal, take_name};
use crate::client::{LiveDir, LiveFile, Request};
use crate::server::moving_files::MoveGoal;
use crate::server::other_seats::{OtherSeats, UnansweredCall};
use crate::wire::{
    CHANGE_ITEMS_MAX, FrameHeader, MoveRequest, MoveTarget, NamingOutcome, SeatFileNaming, Verb,
};

/// Longest time for which a seat gives way to another that moves a file at the same time.
const GIVE_WAY_MAX_NS: u64 = 1_000_000_000;

/// A file that is being moved to another seat.
#[derive(Debug)]
pub(super) struct FileMove {
    dir: Dir,
    name: Vec<u8>,
    /// The file, or the record of its name if it is at another seat itself.
    inode: Inode,
    target: MoveTarget,
    request: MoveRequest,
    is_link: bool,
    /// True if the old name stays: it is a link, both names are of one file, or the name stands for another
    /// file than the one that this request has moved before.
    keeps_old: bool,
}

impl FileMove {
    /// The old name.
    fn old_name(&self) -> (DirId, &[u8]) {
        (self.dir.id(), &self.name)
    }

    /// The new name of the file.
    fn goal(&self) -> MoveGoal {
        let MoveTarget { seat, dir, name, .. } = &self.target;
        MoveGoal { file: self.inode.id, seat: *seat, dir: *dir, name: name[..].into() }
    }
}

/// The outcome of the steps of a move at other seats.
pub(super) enum MoveOutcome {
    /// The old name is left to be removed.
    Named,
    /// Something is under way at the other seat; the move has to begin again in a moment.
    Busy,
}

/// Reads an item of a rename or link to another seat. Only that of a link has an identity.
pub(super) fn take_move<'b>(
    verb: Verb,
    input: &mut WireInput<'b>,
) -> Result<(NamedFile<'b>, MoveTarget), WireDamage> {
    let file = match verb {
        Verb::LinkAcross => NamedFile::take(input)?,
        _ => NamedFile { id: 0, name: take_name(input)? },
    };
    Ok((file, MoveTarget::take(input)?))
}

impl ClientSession<'_> {
    /// Begins what a rename or link to another seat asks for, unless its one item `is_done`. Returns `None`
    /// if the file is being moved already.
    pub(super) fn plan_request(
        &self,
        header: &FrameHeader,
        payload: &[u8],
        is_done: bool,
    ) -> Result<Option<Vec<(u16, SeatPreparation)>>, FrameRefusal> {
        if is_done {
            return Ok(Some(Vec::new()));
        }
        let mut input = WireInput::new(payload);
        let dir = self.directories.get(DirId(input.u128()?)).ok_or(FrameRefusal::LacksDirectory)?;
        let (file, target) = take_move(header.verb, &mut input)?;
        input.end()?;
        Ok(match self.plan_move((&dir, &file), target, header) {
            Ok(step) => step.map(|step| vec![(0, step)]),
            Err(error) => Some(vec![(0, SeatPreparation::Refused(error))]),
        })
    }

    /// Begins to move or link a file, which nobody else moves or removes from now on; `None` if somebody
    /// does.
    fn plan_move(
        &self,
        (dir, file): (&Dir, &NamedFile),
        target: MoveTarget,
        header: &FrameHeader,
    ) -> Result<Option<SeatPreparation>> {
        // Changes are carried out under this lock.
        let mut clients = self.served.clients().lock();
        if self.served.freeze().is_frozen(self.served.clock()) {
            return Ok(None);
        }
        let own = self.served.seat();
        if target.seat == own || !self.served.seats().numbers().any(|seat| seat == target.seat) {
            let what = format!("a name at seat {} for a file at seat {own}", target.seat);
            return Err(Error::new(Kind::Invalid, what));
        }
        let is_link = header.verb == Verb::LinkAcross;
        let (dir, name, inode) = match is_link {
            true => self.file_to_link(dir, file)?,
            false if dir.id() == DirId::SEAT_ROOTS => return Err(not_of_clients()),
            false => {
                self.check_part(dir, file.name)?;
                let inode = self.session.file_to_move(dir, file.name)?;
                (dir.clone(), file.name.to_vec(), inode)
            }
        };
        let answered_below = header.number.saturating_add(1).saturating_sub(header.window.into());
        // A client that uses its number again makes other requests.
        let known = clients.get_mut(&self.client).expect("known while it is connected");
        self.record_registration(&mut known.window)?;
        let client = self.client ^ known.window.nonce();
        let request = MoveRequest { client, number: header.number, answered_below };
        // Last: a failure after this would have to end the move.
        if !self.served.seats().moving().begin(dir.id(), &name) {
            return Ok(None);
        }
        let moved = FileMove { dir, name, inode, target, request, is_link, keeps_old: is_link };
        Ok(Some(SeatPreparation::Moved(Box::new(moved))))
    }

    /// Returns a place of the record of `file`, and its inode, if it may get a name at another seat.
    fn file_to_link(&self, dir: &Dir, file: &NamedFile) -> Result<(Dir, Vec<u8>, Inode)> {
        let inode = self.inode_of(dir, file, false)?;
        if inode.kind() != Some(FileKind::File) {
            let what = "only regular files have names at other seats";
            return Err(Error::new(Kind::CrossDevice, what));
        }
        let (dir, name) = self.name_of(dir, file)?;
        Ok((dir, name, inode))
    }

    /// Ends the move of a file whose old name is not removed, although it may have the new one: the same
    /// rename, called again, removes it.
    pub(super) fn leave_unfinished(&self, moved: &FileMove) {
        if !moved.keeps_old {
            self.served.seats().moving().set_unfinished(moved.old_name(), moved.goal());
        }
        self.end_move(moved);
    }

    /// Ends the move of a file.
    pub(super) fn end_move(&self, moved: &FileMove) {
        self.served.seats().moving().end(moved.dir.id(), &moved.name);
    }

    /// Gives a file its new name at another seat.
    ///
    /// # Errors
    /// Why it has no new name; `Unavailable` also if that is unknown.
    pub(super) fn carry_out_move(&self, moved: &mut FileMove) -> Result<MoveOutcome> {
        let clock = self.served.clock();
        let began_ns = clock.monotonic_ns();
        let outcome = self.name_at_target(moved);
        if matches!(outcome, Ok(MoveOutcome::Busy)) && self.served.seat() > moved.target.seat {
            // Of two seats that move files to each other's names, one gives way.
            let now_ns = clock.monotonic_ns();
            let pause_ns = (2 * now_ns.saturating_sub(began_ns)).min(GIVE_WAY_MAX_NS);
            self.gives_way_until_ns.set(now_ns.saturating_add(pause_ns));
        }
        outcome
    }

    fn name_at_target(&self, moved: &mut FileMove) -> Result<MoveOutcome> {
        let (seats, own) = (self.served.seats(), self.served.seat());
        let (id, random) = (moved.inode.id, Random::from_system().next_u64());
        let named = moved.inode.seat_file();
        let file = SeatFile::new(named.map_or(own, |named| named.seat), id, random);
        if let MoveOutcome::Busy = self.name_at_own_seat(moved, named, &file)? {
            return Ok(MoveOutcome::Busy);
        }
        let Inode { mode, uid, gid, size, .. } = moved.inode;
        let moving = seats.moving();
        let naming = SeatFileNaming {
            identity: self.session.namespace().identity().clone(),
            target: moved.target.clone(),
            file,
            attributes: (mode, uid, gid, size),
            replaces_same: moving.is_unfinished(moved.old_name(), &moved.goal()),
            request: moved.request,
        };
        if !self.served.commit().has_lease() {
            // Another server may have taken over, and have ended this rename.
            self.sync()?;
        }
        let request = Request::name_seat_file(&naming).durable();
        let answer = match seats.call_to_end(moved.target.seat, request) {
            Ok(answer) => answer.only(NamingOutcome::take),
            Err(UnansweredCall::NotSent(error)) => {
                moving.release_unnamed(file);
                return Err(of_other_seat(error));
            }
            Err(unanswered) => {
                moving.set_unfinished(moved.old_name(), moved.goal());
                return Err(of_other_seat(moving.keep_unanswered(unanswered, file)));
            }
        };
        if !matches!(answer, Ok(NamingOutcome::Named)) {
            moving.release_unnamed(file);
        }
        match answer {
            Ok(outcome) => {
                moved.keeps_old |= match outcome {
                    NamingOutcome::Named => false,
                    NamingOutcome::SameFile => true,
                    NamingOutcome::DoneBefore(file) => file != id,
                };
                Ok(MoveOutcome::Named)
            }
            Err(error) if error.kind() == Kind::Unavailable => Ok(MoveOutcome::Busy),
            Err(error) => Err(of_other_seat(error)),
        }
    }

    /// Returns once everything that was changed survives power loss, and the set is still this server's.
    fn sync(&self) -> Result<()> {
        let commit = self.served.commit();
        Handle::current().block_on(commit.wait(commit.demand()))
    }

    /// Gives the file that is moved, which has the name `named` among the seat roots if it is at another
    /// seat, the further name of `file` there, durably.
    fn name_at_own_seat(
        &self,
        moved: &FileMove,
        named: Option<SeatFile>,
        file: &SeatFile,
    ) -> Result<MoveOutcome> {
        let Some(named) = named else {
            self.superuser.name_among_seat_roots(&moved.dir, &moved.name, file)?;
            self.sync()?;
            return Ok(MoveOutcome::Named);
        };
        let (roots, old_name) = (LiveDir::seat_roots(file.seat), named.root_name());
        let old = LiveFile { dir: &roots, name: old_name.as_bytes(), id: named.id };
        let link = Request::link(&old, &roots, file.root_name().as_bytes()).durable();
        // A name that is made after that, late, stays: nothing shows it.
        let answers: Result<Vec<_>> =
            self.served.seats().call_for_move(file.seat, vec![link]).into_iter().collect();
        let answers = answers.map_err(of_other_seat)?;
        match answers.into_iter().try_for_each(|answer| answer.outcome()) {
            Err(error) if error.kind() == Kind::Unavailable => return Ok(MoveOutcome::Busy),
            linked => linked.map_err(of_other_seat)?,
        }
        // The next server must know the client again.
        self.sync()?;
        Ok(MoveOutcome::Named)
    }

    /// Removes the old name of a file that has its new one at another seat, unless it is a link.
    pub(super) fn finish_move(&mut self, item: u16) -> Result<ItemEffect> {
        let moved = match self.prepared.remove(&item) {
            Some(SeatPreparation::Moved(moved)) => moved,
            Some(SeatPreparation::Refused(error)) => return Err(error),
            _ => return Err(Error::new(Kind::Conflict, "the file was moved meanwhile; try again")),
        };
        let finished = match moved.keeps_old {
            // The permissions were checked; nobody else has changed the name.
            true => self.superuser.namespace().lookup(&moved.dir, &moved.name, false),
            false => self.superuser.unlink(&moved.dir, &moved.name),
        };
        if finished.is_err() {
            self.leave_unfinished(&moved);
        } else {
            if !moved.keeps_old {
                self.release_name_of(finished.as_ref().ok());
            }
            self.served.seats().moving().forget_unfinished(moved.old_name());
            self.end_move(&moved);
        }
        Ok(match moved.is_link {
            true => ItemEffect::Made(Box::new(finished?)),
            false => finished.map(|_| ItemEffect::InTree)?,
        })
    }

    /// Releases the file at another seat, if `inode`, which has lost a name, is the record of one.
    pub(super) fn release_name_of(&self, inode: Option<&Inode>) {
        if let Some(file) = inode.and_then(Inode::seat_file) {
            self.served.seats().moving().release(file);
        }
    }

    /// Gives a file at another seat a name at this one, for the server of the old name.
    pub(super) fn name_seat_file(&self, naming: &SeatFileNaming) -> Result<NamingOutcome> {
        let (own, seats) = (self.served.seat(), self.served.seats());
        let (request, file) = (naming.request, naming.file);
        match seats.done_moves().named_file(request)? {
            // It is the same request, which has come again.
            Some(done) if done == file => return Ok(NamingOutcome::Named),
            Some(done) => return Ok(NamingOutcome::DoneBefore(done.id)),
            None => {}
        }
        // As the user: the path may lead through directories of others.
        let user = self.served.session_of(naming.identity.clone());
        let (dir, name) = (self.target_dir(&user, &naming.target)?, &naming.target.name[..]);
        self.check_part(&dir, name)?;
        if seats.moving().is_moving(dir.id(), name) {
            return Err(busy());
        }
        user.check_replaceable(&dir, name, naming.target.replaces)?;
        let (mode, uid, gid, size) = naming.attributes;
        let attributes =
            Inode { uid, gid, size, ..Inode::new(NameKind::Link, mode, user.now_ns()) };
        let mut superuser = self.served.session_of(Identity::root());
        let record = seats.done_moves().record_with(request, file);
        superuser.attach_request(Some(&record))?;
        let how = (own, naming.replaces_same);
        let named = superuser.name_seat_file((&dir, name), (&naming.file, &attributes), how)?;
        let SeatNaming::Named(replaced) = named else { return Ok(NamingOutcome::SameFile) };
        replaced.into_iter().for_each(|replaced| seats.moving().release(replaced));
        for forgotten in seats.done_moves().add(request, file, self.served.clock()) {
            // One that stays is removed by a later server.
            let _ = self.superuser.remove_request(forgotten);
        }
        Ok(NamingOutcome::Named)
    }

    /// The directory of `target`, along its path.
    fn target_dir(&self, user: &Session, target: &MoveTarget) -> Result<Dir> {
        let moved = || {
            let what = "the directory is not at its path any more: look it up again";
            Error::new(Kind::Conflict, what)
        };
        let top = match target.top {
            DirId::ROOT => user.root().clone(),
            id => user.open_seat_root(id)?,
        };
        // Without symbolic links, as servers return paths: this is done while all changes wait.
        let mut dir = top;
        for name in target.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let found = match user.namespace().lookup(&dir, name, false) {
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Invalid) => {
                    return Err(moved());
                }
                found => found?,
            };
            if !found.is_directory() || found.seat().is_some() {
                return Err(moved());
            }
            dir = user.namespace().open_dir(&dir, name, &found)?;
        }
        if dir.id() == target.dir { Ok(dir) } else { Err(moved()) }
    }

    /// True if the change removes or replaces a name of a file that is being moved to another seat.
    pub(super) fn waits_for_move(&self, header: &FrameHeader, payload: &[u8]) -> bool {
        let moving = self.served.seats().moving();
        if !matches!(header.verb, Verb::Unlink | Verb::Rename) || moving.is_empty() {
            return false;
        }
        // A request that cannot be read is refused when it is carried out.
        self.names_moving_file(header, payload).unwrap_or(false)
    }

    fn names_moving_file(&self, header: &FrameHeader, payload: &[u8]) -> Result<bool, WireDamage> {
        let moving = self.served.seats().moving();
        let mut input = WireInput::new(payload);
        let dir = DirId(input.u128()?);
        for _ in 0..header.items {
            if header.verb == Verb::Rename {
                take_flags(&mut input)?;
            }
            let mut names_moving = moving.is_moving(dir, take_name(&mut input)?);
            if header.verb == Verb::Rename {
                let target = DirId(input.u128()?);
                names_moving |= moving.is_moving(target, take_name(&mut input)?);
            }
            if names_moving {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// True for a request by which another server moves or releases files. It never waits for the end of a
/// snapshot.
pub(super) fn is_step_of_move(header: &FrameHeader, payload: &[u8]) -> bool {
    let mut input = WireInput::new(payload);
    let mut is_seat_roots = || input.u128().is_ok_and(|dir| DirId(dir) == DirId::SEAT_ROOTS);
    let is_step = match header.verb {
        Verb::NameSeatFile | Verb::Unlink => is_seat_roots(),
        // Any client may link a file among the seat roots into a directory.
        Verb::Link => {
            is_seat_roots()
                && NamedFile::take(&mut input).is_ok()
                && input.u128().is_ok_and(|dir| DirId(dir) == DirId::SEAT_ROOTS)
        }
        _ => false,
    };
    is_step && header.items <= CHANGE_ITEMS_MAX
}

/// True if `payload` asks for a name that was made before, so that it changes nothing.
pub(super) fn is_naming_done(seats: &OtherSeats, payload: &[u8]) -> bool {
    let mut input = WireInput::new(payload);
    let naming = input.u128().and_then(|_| SeatFileNaming::take(&mut input));
    let is_done = |naming: SeatFileNaming| match seats.done_moves().named_file(naming.request) {
        Ok(named) => named.is_some(),
        Err(_) => true,
    };
    naming.is_ok_and(is_done)
}

/// The error of another seat, for a client of this one: that it is fenced or closed is nothing to this seat.
fn of_other_seat(error: Error) -> Error {
    match error.kind() {
        Kind::Fenced | Kind::Closed => Error::new(Kind::Unavailable, error.to_string()),
        _ => error,
    }
}

/// The answer to a server that has to begin a move again.
pub(super) fn busy() -> Error {
    Error::new(Kind::Unavailable, "a move or a snapshot is under way; try again")
}
