// SPDX-License-Identifier: Apache-2.0
//! Moving files: the files of a seat that are being moved to other seats, and files of other seats whose
//! names here are gone.
//!
//! A file that moves has its old name until it has the new one at the other seat. Meanwhile nobody else
//! moves or removes the old one (`carry_out/file_moves.rs`). A file at another seat has a name of its own
//! among the seat roots there for each of its names here; that one is removed in the background, after
//! the one here, durably. A server that dies before leaves it, and with it the file, which nothing shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Clock, Error, Kind, Result};
use esker_fs::inode::{DirId, SeatFile};
use esker_fs::stack::identity::Identity;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::block_in_place;

use super::other_seats::{CallUnderWay, UnansweredCall};
use super::served_namespace::ServedNamespace;
use crate::client::{LiveDir, Request};
use crate::wire::NamingOutcome;

/// Time after which files whose seat did not answer are tried again.
const RELEASE_INTERVAL: Duration = Duration::from_millis(500);
/// Time after the loss of a name for which it is kept among the seat roots.
const RELEASE_DELAY: Duration = Duration::from_millis(20);
/// Moves without an answer that are remembered, at most.
const UNFINISHED_MAX: usize = 10_000;
/// Moves whose answers are awaited, at most: each has a connection.
const UNANSWERED_MAX: usize = 256;
/// Files of one request.
const RELEASED_TOGETHER: usize = 1024;

/// A name in a directory.
type Name = (DirId, Box<[u8]>);

/// The new name that a move gives a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoveGoal {
    /// The file.
    pub file: u128,
    /// The seat that has the name.
    pub seat: u16,
    /// Its directory.
    pub dir: DirId,
    /// The name.
    pub name: Box<[u8]>,
}

/// Files that are being moved from a seat, and files of other seats that lost names at it.
#[derive(Debug, Default)]
pub(super) struct MovingFiles {
    names: Mutex<HashSet<Name>>,
    ended: Condvar,
    released: Mutex<ReleasedFiles>,
    released_all: Condvar,
    lost_name: Notify,
    /// Told when a freeze waits for all releases.
    hurry: Notify,
    /// Names that a move may have left although it gave their files others.
    unfinished: Mutex<HashMap<Name, MoveGoal>>,
}

#[derive(Debug, Default)]
struct ReleasedFiles {
    waiting: Vec<SeatFile>,
    /// Moves without an answer yet, and their files, which may have got no other name.
    unanswered: Vec<(CallUnderWay, SeatFile)>,
    /// True while some are being released.
    is_busy: bool,
}

impl MovingFiles {
    /// Begins to move the file `name` of `dir`; false if it is being moved.
    pub fn begin(&self, dir: DirId, name: &[u8]) -> bool {
        self.names.lock().insert((dir, name.into()))
    }

    /// Ends the move of the file `name` of `dir`.
    pub fn end(&self, dir: DirId, name: &[u8]) {
        self.names.lock().remove(&(dir, name.into()));
        self.ended.notify_all();
    }

    /// True if no file is being moved.
    pub fn is_empty(&self) -> bool {
        self.names.lock().is_empty()
    }

    /// True if the file `name` of `dir` is being moved.
    pub fn is_moving(&self, dir: DirId, name: &[u8]) -> bool {
        let names = self.names.lock();
        !names.is_empty() && names.contains(&(dir, name.into()))
    }

    /// Returns once no file is being moved, and all that lost names are released.
    ///
    /// # Errors
    /// `Unavailable` after `patience`: a server does not answer.
    pub fn wait_for_end(&self, patience: Duration, clock: &dyn Clock) -> Result<()> {
        let began_ns = clock.monotonic_ns();
        let left = || {
            let waited_ns = clock.monotonic_ns().saturating_sub(began_ns);
            patience.saturating_sub(Duration::from_nanos(waited_ns))
        };
        let mut is_late = false;
        let mut names = self.names.lock();
        while !names.is_empty() && !is_late {
            is_late = self.ended.wait_for(&mut names, left()).timed_out();
        }
        drop(names);
        let mut released = self.released.lock();
        while (released.is_busy || !released.waiting.is_empty()) && !is_late {
            self.hurry.notify_one();
            is_late = self.released_all.wait_for(&mut released, left()).timed_out();
        }
        if is_late {
            let what =
                "files are being moved to or from a seat whose server does not answer; try again";
            return Err(Error::new(Kind::Unavailable, what));
        }
        Ok(())
    }

    /// Records that `file` lost a name at this seat.
    pub fn release(&self, file: SeatFile) {
        self.released.lock().waiting.push(file);
        self.lost_name.notify_one();
    }

    /// Records that `file` got no name at another seat.
    pub fn release_unnamed(&self, file: SeatFile) {
        self.release(file);
        self.hurry.notify_one();
    }

    /// Records that `file` got its name by a request without an answer, or has to be released; returns why
    /// there is none. If that stays unknown, its name among the seat roots stays.
    pub fn keep_unanswered(&self, unanswered: UnansweredCall, file: SeatFile) -> Error {
        match unanswered {
            UnansweredCall::NotSent(error) | UnansweredCall::Lost(error) => error,
            UnansweredCall::UnderWay(error, call) => {
                let mut released = self.released.lock();
                if released.unanswered.len() < UNANSWERED_MAX {
                    released.unanswered.push((call, file));
                }
                drop(released);
                self.lost_name.notify_one();
                error
            }
        }
    }

    /// Records that the file `name` may have got its new name, by a move that has not removed this one.
    pub fn set_unfinished(&self, (dir, name): (DirId, &[u8]), goal: MoveGoal) {
        let mut unfinished = self.unfinished.lock();
        if unfinished.len() >= UNFINISHED_MAX {
            unfinished.clear();
        }
        unfinished.insert((dir, name.into()), goal);
    }

    /// True if a move of the file `name` to the same `goal` may have got that far.
    pub fn is_unfinished(&self, (dir, name): (DirId, &[u8]), goal: &MoveGoal) -> bool {
        let unfinished = self.unfinished.lock();
        !unfinished.is_empty() && unfinished.get(&(dir, name.into())) == Some(goal)
    }

    /// Forgets the move of the file `name` that was not finished.
    pub fn forget_unfinished(&self, (dir, name): (DirId, &[u8])) {
        let mut unfinished = self.unfinished.lock();
        if !unfinished.is_empty() {
            unfinished.remove(&(dir, name.into()));
        }
    }

    /// True if something is to be tried again.
    fn has_left(&self) -> bool {
        let released = self.released.lock();
        !released.waiting.is_empty() || !released.unanswered.is_empty()
    }

    /// Takes the answers to moves that have arrived by now, and releases the files that got no name.
    fn take_answers(&self) {
        let mut released = self.released.lock();
        let released = &mut *released;
        released.unanswered.retain_mut(|(call, file)| match call.poll() {
            Ok(None) => true,
            Ok(Some(answer)) => {
                if !matches!(answer.only(NamingOutcome::take), Ok(NamingOutcome::Named)) {
                    released.waiting.push(*file);
                }
                false
            }
            // Whether it got its name stays unknown, so the one among the seat roots stays, too.
            Err(_) => false,
        });
    }

    /// Begins to release what waits for it.
    fn begin_release(&self) -> Vec<SeatFile> {
        let mut released = self.released.lock();
        released.is_busy = true;
        std::mem::take(&mut released.waiting)
    }

    /// Ends a release, of which `files` are left.
    fn end_release(&self, files: Vec<SeatFile>) {
        let mut released = self.released.lock();
        released.waiting.extend(files);
        released.is_busy = false;
        self.released_all.notify_all();
    }
}

/// Removes the names among the seat roots of files that lost their names here, until the server ends.
pub(super) fn release_files_later(runtime: &Runtime, served: Arc<ServedNamespace>) {
    runtime.spawn(async move {
        loop {
            let moving = served.seats().moving();
            let lost_name = moving.lost_name.notified();
            if moving.has_left() {
                let _ = tokio::time::timeout(RELEASE_INTERVAL, lost_name).await;
            } else {
                lost_name.await;
            }
            moving.take_answers();
            // Whoever has just found the name may still reach the file.
            let _ = tokio::time::timeout(RELEASE_DELAY, moving.hurry.notified()).await;
            let files = moving.begin_release();
            // The names here must not come back after a crash.
            if !files.is_empty() && served.commit().wait(served.commit().demand()).await.is_err() {
                return;
            }
            let left = block_in_place(|| release_files(&served, files));
            served.seats().moving().end_release(left);
            // A runtime that ends meanwhile ends the task here.
            tokio::task::yield_now().await;
        }
    });
}

/// Removes the names of `files` among the seat roots; returns those that are left.
fn release_files(served: &ServedNamespace, files: Vec<SeatFile>) -> Vec<SeatFile> {
    let mut by_seat: BTreeMap<u16, Vec<SeatFile>> = BTreeMap::new();
    files.into_iter().for_each(|file| by_seat.entry(file.seat).or_default().push(file));
    // At once: one that does not answer takes some seconds.
    std::thread::scope(|scope| {
        let release = |(seat, files): (u16, Vec<SeatFile>)| {
            scope.spawn(move || {
                let mut chunks = files.chunks(RELEASED_TOGETHER);
                let mut left = Vec::new();
                for files in chunks.by_ref() {
                    left.extend(release_at(served, seat, files));
                    // A server that does not answer is not waited for again.
                    if left.len() >= files.len() {
                        break;
                    }
                }
                left.extend(chunks.flatten());
                left
            })
        };
        let releases: Vec<_> = by_seat.into_iter().map(release).collect();
        let left = releases.into_iter();
        left.flat_map(|release| release.join().expect("a release does not panic")).collect()
    })
}

/// As [`release_files`], for files of one seat.
fn release_at(served: &ServedNamespace, seat: u16, files: &[SeatFile]) -> Vec<SeatFile> {
    let outcomes = if seat == served.seat() {
        let _clients = served.clients().lock();
        let superuser = served.session_of(Identity::root());
        files.iter().map(|file| superuser.unname_among_seat_roots(file)).collect()
    } else {
        let names: Vec<String> = files.iter().map(SeatFile::root_name).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        // A name that came back after a crash would stay.
        let unlink = Request::unlink(&LiveDir::seat_roots(seat), &names).durable();
        let answer = served.seats().call_for_move(seat, vec![unlink]).pop();
        let answer = answer.and_then(Result::ok).map(|answer| answer.outcomes());
        answer.and_then(Result::ok).unwrap_or_default()
    };
    let is_gone = |outcome: Option<&Result<()>>| match outcome {
        Some(Err(error)) => error.kind() == Kind::NotFound,
        outcome => outcome.is_some(),
    };
    let kept = files.iter().enumerate().filter(|(index, _)| !is_gone(outcomes.get(*index)));
    kept.map(|(_, file)| *file).collect()
}

#[cfg(test)]
mod tests {
    use esker_base::clock::SystemClock;

    use super::*;

    #[test]
    fn a_name_moves_once_at_a_time() {
        let moving = MovingFiles::default();
        assert!(moving.is_empty() && moving.begin(DirId(1), b"a") && !moving.begin(DirId(1), b"a"));
        assert!(moving.is_moving(DirId(1), b"a") && !moving.is_moving(DirId(2), b"a"));
        let patience = Duration::from_millis(1);
        let waited = moving.wait_for_end(patience, &SystemClock).expect_err("it moves");
        assert_eq!(waited.kind(), Kind::Unavailable);
        moving.end(DirId(1), b"a");
        moving.wait_for_end(Duration::ZERO, &SystemClock).expect("it has ended");
    }
}
