// SPDX-License-Identifier: Apache-2.0
//! Seat walk: follows a path over the seats that it crosses, one request to each.
//!
//! A path may cross as many seats as it has components: each crossing leaves less of it. Others,
//! by `..` and by symbolic links, may lead back to where the path was, so their number is limited.
//! A walk therefore ends whatever the servers answer: between two crossings that count, the rest of
//! the path only becomes shorter.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::stack::namespace::FollowLinks;

use super::live_dir::{LiveDir, SeatPlace};
use super::pending::Request;
use super::tree::LivePlace;
use crate::wire::{PATH_BYTES_MAX, SeatPath};

/// Crossings of a path after which not less of it is left than before.
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
    /// Crossings that did not make it shorter.
    crossings: usize,
}

impl SeatWalk {
    pub fn new(path: &[u8]) -> Self {
        let (canonical, rest) = (Vec::new(), path.to_vec());
        Self { seat: 0, top: DirId::ROOT, canonical, rest, crossings: 0 }
    }

    /// True if the path has led to a file at another seat than its name.
    pub fn is_at_file(&self) -> bool {
        self.top == DirId::SEAT_ROOTS
    }

    /// The next request.
    pub fn request(&self, follow: FollowLinks) -> Request {
        let place = SeatPlace { seat: self.seat, top: self.top, path: Arc::from(&self.rest[..]) };
        Request::resolve(&place, follow)
    }

    /// Takes the answer to the request. Returns the place once the path has ended.
    pub fn take(&mut self, answer: SeatPath) -> Result<Option<LivePlace>> {
        let bytes_before = self.rest.len();
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
                let dir = LiveDir::seat_root(seat, id, b"");
                let seat = first_name(&rest).map_or(seat, |name| dir.seat_of(name));
                (self.seat, self.top, self.rest) = (seat, id, rest);
            }
            SeatPath::Above { rest } => {
                self.rest = if rest.starts_with(b"/") { rest } else { self.above(&rest) };
                self.canonical.clear();
                (self.seat, self.top) = (0, DirId::ROOT);
            }
        }
        self.crossings += usize::from(self.rest.len() >= bytes_before);
        if self.crossings > CROSSINGS_MAX {
            let what = "a path that returns to other seats too often, by `..` or symbolic links";
            return Err(Error::new(Kind::Loop, what));
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
    fn each_component_of_a_path_may_cross_seats() -> Result<()> {
        let path = b"/d".repeat(PATH_BYTES_MAX / 2 - 1);
        let mut walk = SeatWalk::new(&path);
        for crossed in 1..PATH_BYTES_MAX / 2 - 1 {
            let rest = path[2 * crossed + 1..].to_vec();
            let path = b"d".to_vec();
            let step = SeatPath::Elsewhere { seat: crossed as u16, id: DirId(7), path, rest };
            assert!(walk.take(step)?.is_none());
        }
        assert_eq!(&walk.rest[..], b"d");
        Ok(())
    }

    #[test]
    fn a_path_does_not_cross_seats_for_ever() {
        const BYTES: usize = 64;
        let above = || SeatPath::Above { rest: b"/a".to_vec() };
        // Links to each other whose names different parts of a spread directory have.
        let elsewhere = || SeatPath::Elsewhere {
            seat: 1,
            id: DirId::spread(2, 7),
            path: Vec::new(),
            rest: b"a".to_vec(),
        };
        for step in [&above as &dyn Fn() -> SeatPath, &elsewhere] {
            let mut walk = SeatWalk::new(b"/a");
            let ended = (0..=CROSSINGS_MAX + 1).find_map(|_| walk.take(step()).err());
            assert_eq!(ended.expect("it ends").kind(), Kind::Loop);
        }
        // The target of a link becomes shorter, and then the link is followed again.
        let mut walk = SeatWalk::new(b"/a");
        let target = (1..BYTES).rev().cycle();
        let ended = target.take((CROSSINGS_MAX + 1) * BYTES).find_map(|left| {
            let rest = vec![b'a'; left];
            walk.take(SeatPath::Elsewhere { seat: 1, id: DirId(7), path: Vec::new(), rest }).err()
        });
        assert_eq!(ended.expect("it ends").kind(), Kind::Loop);
    }
}
