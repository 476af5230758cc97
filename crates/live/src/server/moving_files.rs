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
use std::time::{Duration, Instant};

use esker_base::{Error, Kind, Result};
use esker_fs::inode::{DirId, SeatFile};
use esker_fs::stack::identity::Identity;
use hashbrown::HashSet;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::block_in_place;

use super::served_namespace::ServedNamespace;
use crate::client::{LiveDir, Request};

/// Time after which files whose seat did not answer are tried again.
const RELEASE_INTERVAL: Duration = Duration::from_millis(500);
/// Files of one request.
const RELEASED_TOGETHER: usize = 1024;

/// A name in a directory.
type Name = (DirId, Box<[u8]>);

/// Files that are being moved from a seat, and files of other seats that lost names at it.
#[derive(Debug, Default)]
pub(super) struct MovingFiles {
    names: Mutex<HashSet<Name>>,
    ended: Condvar,
    unnamed: Mutex<Vec<SeatFile>>,
    lost_name: Notify,
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

    /// Returns once no file is being moved.
    ///
    /// # Errors
    /// `Unavailable` after `patience`: a server does not answer.
    pub fn wait_for_end(&self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        let mut names = self.names.lock();
        while !names.is_empty() {
            if self.ended.wait_until(&mut names, until).timed_out() {
                let what = "a file is being moved to a server that does not answer";
                return Err(Error::new(Kind::Unavailable, what));
            }
        }
        Ok(())
    }

    /// Records that `file` lost a name at this seat, or got none.
    pub fn release(&self, file: SeatFile) {
        self.unnamed.lock().push(file);
        self.lost_name.notify_one();
    }
}

/// Removes the names among the seat roots of files that lost their names here, until the server ends.
pub(super) fn release_files_later(runtime: &Runtime, served: Arc<ServedNamespace>) {
    runtime.spawn(async move {
        loop {
            let moving = served.seats().moving();
            moving.lost_name.notified().await;
            let unnamed = std::mem::take(&mut *moving.unnamed.lock());
            // The names here must not come back after a crash.
            if served.commit().wait(served.commit().demand()).await.is_err() {
                return;
            }
            let left = block_in_place(|| release_files(&served, unnamed));
            if !left.is_empty() {
                tokio::time::sleep(RELEASE_INTERVAL).await;
                left.into_iter().for_each(|file| served.seats().moving().release(file));
            }
        }
    });
}

/// Removes the names of `files` among the seat roots; returns the files whose seats do not answer.
fn release_files(served: &ServedNamespace, files: Vec<SeatFile>) -> Vec<SeatFile> {
    let mut by_seat: BTreeMap<u16, Vec<SeatFile>> = BTreeMap::new();
    files.into_iter().for_each(|file| by_seat.entry(file.seat).or_default().push(file));
    let mut left = Vec::new();
    for (seat, files) in by_seat {
        for files in files.chunks(RELEASED_TOGETHER) {
            if !release_at(served, seat, files) {
                left.extend_from_slice(files);
            }
        }
    }
    left
}

/// As [`release_files`], for files of one seat; false if that has to be tried again.
fn release_at(served: &ServedNamespace, seat: u16, files: &[SeatFile]) -> bool {
    if seat != served.seat() {
        let names: Vec<String> = files.iter().map(SeatFile::root_name).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let unlink = Request::unlink(&LiveDir::seat_roots(seat), &names);
        return served.seats().call(seat, vec![unlink]).into_iter().all(|answer| answer.is_ok());
    }
    let _clients = served.clients().lock();
    if served.freeze().is_frozen(served.clock()) {
        return false;
    }
    let superuser = served.session_of(Identity::root());
    files.iter().all(|file| superuser.unname_among_seat_roots(file).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_moves_once_at_a_time() {
        let moving = MovingFiles::default();
        assert!(moving.is_empty() && moving.begin(DirId(1), b"a") && !moving.begin(DirId(1), b"a"));
        assert!(moving.is_moving(DirId(1), b"a") && !moving.is_moving(DirId(2), b"a"));
        let waited = moving.wait_for_end(Duration::from_millis(1)).expect_err("it moves");
        assert_eq!(waited.kind(), Kind::Unavailable);
        moving.end(DirId(1), b"a");
        moving.wait_for_end(Duration::ZERO).expect("it has ended");
    }
}
