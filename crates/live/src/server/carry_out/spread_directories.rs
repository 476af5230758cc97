// SPDX-License-Identifier: Apache-2.0
//! Spread directories: directories whose names are spread over all seats by their hashes, so that all
//! servers share the work of one large directory.
//!
//! Each seat has the directory's root, with its attributes, and the names of its part. A removal first
//! closes all parts: each is empty, and no name is made in it, until it is removed or opened again, or
//! until some seconds have passed. Source: GIGA+, TR §2.1 (partitions by ranges of hashes), with all
//! partitions from the beginning.

use std::ops::ControlFlow;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_fs::inode::{DirId, FileKind};
use esker_fs::ops::NewFile;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::path_search::is_seat_root;

use super::ClientSession;
use super::seat_directories::SeatPreparation;
use crate::client::Request;
use crate::server::spread_parts::keep_parts;
use crate::wire::SPREAD_DEVICE;

/// Time after which a closed part is opened again: longer than its removal takes, which waits for each
/// seat for some seconds.
const CLOSED_MAX: Duration = Duration::from_secs(30);

/// The seats that have a part of the directory `id` at `seat`.
pub(super) fn seats_of((seat, id): (u16, DirId)) -> impl Iterator<Item = u16> {
    if id.parts() > 1 { 0..id.parts() } else { seat..seat + 1 }
}

impl ClientSession<'_> {
    /// Fails if `name` in `dir` is made at another seat, or if `dir` is being removed.
    pub(super) fn check_part(&self, dir: &Dir, name: &[u8]) -> Result<()> {
        let id = dir.id();
        if id.parts() == 1 || !is_seat_root(dir) {
            return Ok(());
        }
        if id.part_of(name) != self.served.seat() {
            let what = "a name that another seat has in this spread directory";
            return Err(Error::new(Kind::CrossDevice, what));
        }
        match self.served.seats().is_part_closed(id, self.served.clock()) {
            true => Err(Error::new(Kind::Conflict, "the directory is being removed; try again")),
            false => Ok(()),
        }
    }

    /// Closes the part of the directory `id` that this seat has, or opens it again, for the server of
    /// another seat. Does nothing if it is gone.
    pub(super) fn close_part(&self, id: DirId, closes: bool) -> Result<()> {
        if !closes {
            self.served.seats().open_part(id);
            return Ok(());
        }
        // Names are made under this lock.
        let _clients = self.served.clients().lock();
        let dir = match self.superuser.open_seat_root(id) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            opened => opened?,
        };
        let mut is_empty = true;
        self.superuser.namespace().list(&dir, &DirCursor::default(), &mut |_| {
            is_empty = false;
            Ok(ControlFlow::Break(()))
        })?;
        if !is_empty {
            return Err(Error::new(Kind::NotEmpty, "directory not empty"));
        }
        self.served.seats().close_part(id, CLOSED_MAX, self.served.clock());
        Ok(())
    }

    /// Closes all parts of a spread directory that is to be removed. A step that cannot be done any
    /// more is refused.
    pub(super) fn close_parts_to_remove(&self, step: SeatPreparation) -> SeatPreparation {
        let SeatPreparation::Removed { id, .. } = step else { return step };
        if id.parts() == 1 {
            return step;
        }
        let close = |seat| match seat == self.served.seat() {
            true => self.close_part(id, true),
            false => {
                let answers =
                    self.served.seats().call(seat, vec![Request::close_part(seat, id, true)]);
                answers.into_iter().try_for_each(|answer| answer?.outcome())
            }
        };
        for seat in 0..id.parts() {
            if let Err(error) = close(seat) {
                self.keep_after(id, &error);
                self.served.seats().end_closing(id);
                return SeatPreparation::Refused(error);
            }
        }
        step
    }

    /// Keeps the spread directory `id`, whose removal failed with `error`.
    pub(super) fn keep_after(&self, id: DirId, error: &Error) {
        // A seat that has not answered is not asked again here: its clients would wait for it.
        if error.kind() == Kind::Unavailable || !keep_parts(self.served, id) {
            self.served.seats().open_part(id);
            self.served.seats().record_unkept(id);
        }
    }

    /// Fails for a directory to make that is spread and was not prepared: it cannot be made, or could not
    /// when that was tried.
    pub(super) fn check_prepared(&self, (dir, name): (&Dir, &[u8]), new: &NewFile) -> Result<()> {
        let is_spread = new.kind == FileKind::Directory && new.rdev == SPREAD_DEVICE;
        if !is_spread || !self.served.seats().has_others() {
            return Ok(());
        }
        self.session.plan_directory(dir, name, new.mode, None)?;
        Err(Error::new(Kind::Conflict, "the name was removed meanwhile; try again"))
    }
}
