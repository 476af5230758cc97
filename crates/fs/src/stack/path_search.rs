// SPDX-License-Identifier: Apache-2.0
//! Path search: follows a path and the symbolic links in it, from any directory.
//!
//! In the set of a seat of a live namespace a path may lead to a directory at another seat, or, if it
//! began at one whose name is at another seat, out of it. The search then ends with the rest of the
//! path. In every other namespace it leads to its end.

use std::borrow::Cow;

use esker_base::{Error, Kind, Result};

use crate::inode::{DirId, FileKind, Inode};
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
    /// To the directory or file `id` at another seat.
    Elsewhere {
        /// The seat.
        seat: u16,
        /// The directory; that of the seat roots for a file.
        id: DirId,
        /// The directory with its name, and the name.
        name: (Dir, Vec<u8>),
        /// The rest of the path, from the directory `id`.
        rest: Vec<u8>,
    },
    /// Back to the directory where the search began, whose names are spread over several seats, and
    /// to a name that another one has.
    OtherPart {
        /// The seat.
        seat: u16,
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
struct RestOfPath<'a> {
    /// Its components, the last one first.
    parts: Vec<Cow<'a, [u8]>>,
    /// True if it leads to a directory: it ends with a slash or with `.`.
    wants_dir: bool,
    /// True if it ends with `.`.
    ends_in_dot: bool,
}

impl<'a> RestOfPath<'a> {
    fn new(path: &'a [u8]) -> Result<Self> {
        let parts = components(path)?.into_iter().rev().map(Cow::Borrowed).collect();
        let ends_in_dot = path.ends_with(b"/.") || path == b".";
        Ok(Self { parts, wants_dir: path.ends_with(b"/") || ends_in_dot, ends_in_dot })
    }

    /// Puts the target of a symbolic link before the rest.
    fn prepend(&mut self, target: &[u8]) -> Result<()> {
        let target = RestOfPath::new(target)?;
        if self.parts.is_empty() {
            self.wants_dir |= target.wants_dir;
            self.ends_in_dot |= target.ends_in_dot;
        }
        self.parts.extend(target.parts.into_iter().map(|part| Cow::Owned(part.into_owned())));
        Ok(())
    }

    /// The path, after `first`.
    fn text(&self, first: &[u8]) -> Result<Vec<u8>> {
        let mut text = first.to_vec();
        let parts = self.parts.iter().rev().map(|part| &part[..]);
        for part in parts.chain(self.wants_dir.then_some(&b""[..])) {
            if !text.is_empty() && !text.ends_with(b"/") {
                text.push(b'/');
            }
            text.extend_from_slice(part);
        }
        if text.len() > REST_BYTES_MAX {
            return Err(Error::new(Kind::TooLarge, "a path that is too long with its links"));
        }
        Ok(text)
    }
}

impl Namespace {
    /// Looks up `path`, which starts at `from` unless it begins with a slash, with content and
    /// extended attributes. An empty path leads to `from`.
    ///
    /// # Errors
    /// As [`Namespace::dir`]; `CrossDevice` if it leads to another seat.
    pub fn find_at(
        &self,
        from: &Dir,
        path: impl AsRef<[u8]>,
        follow: FollowLinks,
    ) -> Result<PathTarget> {
        let path = path.as_ref();
        let from = if path.starts_with(b"/") { self.root() } else { from };
        match self.search((self.root(), None, from), path, follow)? {
            SeatSearch::Found(found) => Ok(found),
            _ => {
                let what = format!("{}: at another seat of its live namespace", show(path));
                Err(Error::new(Kind::CrossDevice, what))
            }
        }
    }

    /// Follows `path` from `top`, the root or a seat root, also if it begins with a slash, as far as
    /// it is at this seat, `seat`.
    ///
    /// # Errors
    /// As [`Namespace::find`].
    pub fn search_seat(
        &self,
        (top, seat): (&Dir, u16),
        path: &[u8],
        follow: FollowLinks,
    ) -> Result<SeatSearch> {
        let part = (top.id().parts() > 1 && is_seat_root(top)).then_some(seat);
        self.search((top, part, top), path, follow)
    }

    /// Follows `path` from `from`, which is `top` or below it. If `top` is spread, its `part` has
    /// names of it.
    fn search(
        &self,
        tops: (&Dir, Option<u16>, &Dir),
        path: &[u8],
        follow: FollowLinks,
    ) -> Result<SeatSearch> {
        let searched = RestOfPath::new(path).and_then(|rest| self.search_rest(tops, rest, follow));
        searched.map_err(|error| error.within(show(path)))
    }

    fn search_rest(
        &self,
        (top, part, from): (&Dir, Option<u16>, &Dir),
        mut rest: RestOfPath,
        follow: FollowLinks,
    ) -> Result<SeatSearch> {
        let (mut dir, mut links) = (from.clone(), 0);
        while let Some(name) = rest.parts.pop() {
            if *name == b".."[..] {
                dir.check(self.identity(), EXECUTE, &name)?;
                match dir.location() {
                    Some(_) if dir.id() == top.id() => {
                        return Ok(SeatSearch::Above { rest: rest.text(b"..")? });
                    }
                    Some((parent, _)) => dir = parent,
                    None => dir = top.clone(),
                }
                continue;
            }
            if let Some(part) = part
                && dir.id() == top.id()
                && top.id().part_of(&name) != part
            {
                let (seat, rest) = (top.id().part_of(&name), rest.text(&name)?);
                dir.check(self.identity(), EXECUTE, &name)?;
                return Ok(SeatSearch::OtherPart { seat, rest });
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
                let (id, rest) = at_seat(&inode, &name, &rest)?;
                let name = (dir, name.into_owned());
                return Ok(SeatSearch::Elsewhere { seat, id, name, rest });
            }
            if is_last && !rest.wants_dir {
                let name = name.into_owned();
                return Ok(SeatSearch::Found(PathTarget { dir, name, inode }));
            }
            dir = self.open_dir(&dir, &name, &inode)?;
        }
        // The path ended in a directory, which is now open; its `.` is one of its names.
        if rest.ends_in_dot {
            dir.check(self.identity(), EXECUTE, b".")?;
        }
        let inode = self.stat_dir(&dir)?;
        Ok(SeatSearch::Found(match dir.location().filter(|_| dir.id() != top.id()) {
            Some((parent, name)) => PathTarget { dir: parent, name, inode },
            None => PathTarget { dir, name: Vec::new(), inode },
        }))
    }
}

/// Returns the directory at another seat at which a path goes on that has come to `name`, whose record is
/// `inode`, and the path from there.
fn at_seat(inode: &Inode, name: &[u8], rest: &RestOfPath) -> Result<(DirId, Vec<u8>)> {
    match inode.seat_file() {
        None => Ok((inode.dir_id(), rest.text(b"")?)),
        Some(file) if rest.parts.is_empty() && !rest.wants_dir => {
            Ok((DirId::SEAT_ROOTS, file.root_name().into_bytes()))
        }
        Some(_) => Err(Error::new(Kind::NotADirectory, format!("{}: not a directory", show(name)))),
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

/// True if `dir` is a directory whose name is at another seat.
#[must_use]
pub fn is_seat_root(dir: &Dir) -> bool {
    dir.parent().is_some_and(|parent| parent.id() == DirId::SEAT_ROOTS)
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
