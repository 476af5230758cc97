// SPDX-License-Identifier: Apache-2.0
//! Seat search: follows a path within one seat of a live namespace, from the root or from a
//! directory whose name is at another seat.

use std::collections::VecDeque;

use esker_base::{Error, Kind, Result};

use crate::inode::{DirId, FileKind};
use crate::stack::dir::Dir;
use crate::stack::identity::EXECUTE;
use crate::stack::namespace::{FollowLinks, Namespace, PathTarget};
use crate::stack::path::{SYMLINKS_MAX, components, show};

/// Maximum bytes of what is left of a path, with the targets of symbolic links.
const REST_BYTES_MAX: usize = 64 << 10;

/// How far a path leads at one seat.
#[derive(Debug)]
pub enum SeatSearch {
    /// To its end. The directory where the search began has the empty name.
    Found(PathTarget),
    /// To the directory `id` at another seat.
    Elsewhere {
        /// The seat.
        seat: u16,
        /// The directory.
        id: DirId,
        /// The directory with its name, and the name.
        name: (Dir, Vec<u8>),
        /// The rest of the path, from the directory.
        rest: Vec<u8>,
    },
    /// To the parent of the directory where the search began, if the rest of the path begins with
    /// `..`, or to the root, if it is absolute.
    Above {
        /// The rest of the path.
        rest: Vec<u8>,
    },
}

/// The rest of a path.
struct RestOfPath {
    parts: VecDeque<Vec<u8>>,
    /// True if it leads to a directory: it ends with a slash, or with `.` or `..`.
    wants_dir: bool,
}

impl RestOfPath {
    fn new(path: &[u8]) -> Result<Self> {
        let parts = components(path)?.into_iter().map(<[u8]>::to_vec).collect();
        let wants_dir = path.ends_with(b"/") || path.ends_with(b"/.") || path == b".";
        Ok(Self { parts, wants_dir })
    }

    /// Puts the target of a symbolic link before the rest.
    fn prepend(&mut self, target: &[u8]) -> Result<()> {
        let target = Self::new(target)?;
        self.wants_dir |= self.parts.is_empty() && target.wants_dir;
        for part in target.parts.into_iter().rev() {
            self.parts.push_front(part);
        }
        Ok(())
    }

    /// The path, after `first`.
    fn text(self, first: &[u8]) -> Result<Vec<u8>> {
        let mut text = first.to_vec();
        for part in &self.parts {
            if !text.is_empty() && !text.ends_with(b"/") {
                text.push(b'/');
            }
            text.extend_from_slice(part);
        }
        if self.wants_dir && !text.is_empty() && !text.ends_with(b"/") {
            text.push(b'/');
        }
        if text.len() > REST_BYTES_MAX {
            return Err(Error::new(Kind::TooLarge, "a path that is too long with its links"));
        }
        Ok(text)
    }
}

impl Namespace {
    /// Follows `path` from `top`, the root or a seat root, as far as it is at this seat.
    ///
    /// # Errors
    /// As [`Namespace::find`].
    pub fn search_seat(&self, top: &Dir, path: &[u8], follow: FollowLinks) -> Result<SeatSearch> {
        let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
        let wants_dir = path.ends_with(b"/");
        let mut rest = RestOfPath::new(&path[start..])?;
        rest.wants_dir |= wants_dir;
        self.search_rest(top, rest, follow).map_err(|error| error.within(show(path)))
    }

    fn search_rest(
        &self,
        top: &Dir,
        mut rest: RestOfPath,
        follow: FollowLinks,
    ) -> Result<SeatSearch> {
        let mut dir = top.clone();
        let mut links = 0;
        while let Some(name) = rest.parts.pop_front() {
            if name == b".." {
                dir.check(self.identity(), EXECUTE, &name)?;
                match dir.location() {
                    Some(_) if dir.id() == top.id() => {
                        return Ok(SeatSearch::Above { rest: rest.text(b"..")? });
                    }
                    Some((parent, _)) => dir = parent,
                    None => {}
                }
                continue;
            }
            let is_last = rest.parts.is_empty();
            let inode = self.lookup(&dir, &name, true)?;
            let follows = !is_last || rest.wants_dir || follow == FollowLinks::Yes;
            if inode.kind() == Some(FileKind::Symlink) && follows {
                links += 1;
                if links > SYMLINKS_MAX {
                    return Err(Error::new(Kind::Loop, "too many symbolic links"));
                }
                rest.prepend(&inode.content)?;
                if inode.content.starts_with(b"/") {
                    if top.id() != DirId::ROOT {
                        return Ok(SeatSearch::Above { rest: rest.text(b"/")? });
                    }
                    dir = top.clone();
                }
                continue;
            }
            if let Some(seat) = inode.seat() {
                let (id, rest) = (inode.dir_id(), rest.text(b"")?);
                return Ok(SeatSearch::Elsewhere { seat, id, name: (dir, name), rest });
            }
            if is_last && !rest.wants_dir {
                return Ok(SeatSearch::Found(PathTarget { dir, name, inode }));
            }
            dir = self.open_dir(&dir, &name, &inode)?;
        }
        let inode = self.stat_dir(&dir)?;
        Ok(SeatSearch::Found(match dir.location().filter(|_| dir.id() != top.id()) {
            Some((parent, name)) => PathTarget { dir: parent, name, inode },
            None => PathTarget { dir, name: Vec::new(), inode },
        }))
    }
}

/// Returns the path of `dir` from the root or the seat root above it; empty for these.
#[must_use]
pub fn path_at_seat(dir: &Dir) -> Vec<u8> {
    let (mut names, mut at) = (Vec::new(), dir.clone());
    while let Some((parent, name)) = at.location()
        && parent.id() != DirId::SEAT_ROOTS
    {
        names.push(name);
        at = parent;
    }
    names.reverse();
    names.join(&b'/')
}

/// Returns the topmost directory of its seat above `dir`: the root, or a seat root.
#[must_use]
pub fn top_of(dir: &Dir) -> DirId {
    let mut top = dir.clone();
    while let Some(parent) = top.parent().filter(|parent| parent.id() != DirId::SEAT_ROOTS) {
        top = parent;
    }
    top.id()
}
