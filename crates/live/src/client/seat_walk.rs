// SPDX-License-Identifier: Apache-2.0
//! Seat walk: follows a path over the seats that it crosses, one request to each.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::stack::namespace::FollowLinks;

use super::live_dir::{LiveDir, SeatPlace};
use super::pending::Request;
use super::tree::LivePlace;
use crate::wire::{PATH_BYTES_MAX, SeatPath};

/// Seats that a path may cross, with those in the targets of symbolic links.
const CROSSINGS_MAX: usize = 256;

/// A path under way.
pub(super) struct SeatWalk {
    seat: u16,
    /// The directory where the search at the seat begins.
    top: DirId,
    /// Its path, without symbolic links; empty for the root.
    canonical: Vec<u8>,
    /// The rest of the path.
    rest: Vec<u8>,
    crossings: usize,
}

impl SeatWalk {
    pub fn new(path: &[u8]) -> Self {
        let (canonical, rest) = (Vec::new(), path.to_vec());
        Self { seat: 0, top: DirId::ROOT, canonical, rest, crossings: 0 }
    }

    /// The next request.
    pub fn request(&self, follow: FollowLinks) -> Request {
        let place = SeatPlace { seat: self.seat, top: self.top, path: Arc::from(&self.rest[..]) };
        Request::resolve(&place, follow)
    }

    /// Takes the answer to the request. Returns the place once the path has ended.
    pub fn take(&mut self, answer: SeatPath) -> Result<Option<LivePlace>> {
        match answer {
            SeatPath::Found { dir, path, name, attributes } => {
                self.go_down(&path);
                let place = SeatPlace { seat: self.seat, top: self.top, path: path.into() };
                let full = match self.canonical.is_empty() {
                    true => b"/".to_vec(),
                    false => std::mem::take(&mut self.canonical),
                };
                let dir = LiveDir { id: dir, path: full.into(), place };
                return Ok(Some(LivePlace { dir, name, attributes }));
            }
            SeatPath::Elsewhere { seat, id, path, rest } => {
                self.go_down(&path);
                let seat = first_name(&rest).map_or(seat, |name| seat_of(id, seat, name));
                (self.seat, self.top, self.rest) = (seat, id, rest);
            }
            SeatPath::Above { rest } => {
                self.rest = if rest.starts_with(b"/") { rest } else { self.above(&rest) };
                self.canonical.clear();
                (self.seat, self.top) = (0, DirId::ROOT);
            }
        }
        self.crossings += 1;
        if self.crossings > CROSSINGS_MAX {
            return Err(Error::new(Kind::Loop, "a path that crosses too many seats"));
        }
        if self.rest.len() >= PATH_BYTES_MAX {
            return Err(Error::new(Kind::TooLarge, "a path that is too long with its links"));
        }
        Ok(None)
    }

    /// The path from the root to which `rest` leads, which begins with `..`. The path so far has no
    /// symbolic links, so its text has the parent.
    fn above(&self, rest: &[u8]) -> Vec<u8> {
        let end = self.canonical.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let after = rest.strip_prefix(b"..").unwrap_or(rest);
        let path = [&self.canonical[..end], after].concat();
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    fn go_down(&mut self, path: &[u8]) {
        if !path.is_empty() {
            self.canonical.push(b'/');
            self.canonical.extend_from_slice(path);
        }
    }
}

/// The seat that has `name` in the directory `id`, which is at `seat`.
fn seat_of(id: DirId, seat: u16, name: &[u8]) -> u16 {
    if id.parts() > 1 { id.part_of(name) } else { seat }
}

/// The name that `path` leads to first.
fn first_name(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.split(|&byte| byte == b'/');
    names.find(|name| !matches!(*name, b"" | b".")).filter(|name| *name != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_directory_at_another_seat_is_in_its_path() -> Result<()> {
        let mut walk = SeatWalk::new(b"/a/b/../c");
        let (path, rest) = (b"a/b".to_vec(), b"../c".to_vec());
        walk.take(SeatPath::Elsewhere { seat: 1, id: DirId(7), path, rest })?;
        assert_eq!((walk.seat, walk.top, &walk.rest[..]), (1, DirId(7), &b"../c"[..]));
        walk.take(SeatPath::Above { rest: b"../c".to_vec() })?;
        assert_eq!((walk.seat, walk.top, &walk.rest[..]), (0, DirId::ROOT, &b"/a/c"[..]));
        walk.take(SeatPath::Above { rest: b"/x".to_vec() })?;
        assert_eq!(&walk.rest[..], b"/x");
        Ok(())
    }

    #[test]
    fn a_path_does_not_cross_seats_for_ever() {
        let mut walk = SeatWalk::new(b"/a");
        let step = || SeatPath::Above { rest: b"/a".to_vec() };
        let ended = (0..=CROSSINGS_MAX).find_map(|_| walk.take(step()).err());
        assert_eq!(ended.expect("it ends").kind(), Kind::Loop);
    }
}
