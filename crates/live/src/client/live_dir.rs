// SPDX-License-Identifier: Apache-2.0
//! Live directory: the directories and files of a live namespace as clients name them in requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_fs::inode::DirId;

use crate::wire::LiveAttributes;

/// A directory of a live namespace, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveDir {
    /// Its identity, which it keeps wherever it is moved.
    pub id: DirId,
    /// The path by which it was opened.
    pub path: Arc<[u8]>,
    /// The place where its seat finds it.
    pub place: SeatPlace,
}

/// A place at a seat. A server that does not have it open follows the path again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatPlace {
    /// The seat.
    pub seat: u16,
    /// The directory from which the path leads: the root, or one whose name is at another seat.
    pub top: DirId,
    /// The path from there.
    pub path: Arc<[u8]>,
}

impl LiveDir {
    /// The root directory.
    #[must_use]
    pub fn root() -> Self {
        let place = SeatPlace { seat: 0, top: DirId::ROOT, path: Arc::from(&b""[..]) };
        Self { id: DirId::ROOT, path: Arc::from(&b"/"[..]), place }
    }

    /// The directory `id` at seat 0, which has the root.
    #[must_use]
    pub fn below_root(id: DirId, path: &[u8]) -> Self {
        let path: Arc<[u8]> = Arc::from(path);
        let place = SeatPlace { seat: 0, top: DirId::ROOT, path: path.clone() };
        Self { id, path, place }
    }

    /// The directory `id`, which is at another seat than its name.
    #[must_use]
    pub fn seat_root(seat: u16, id: DirId, path: &[u8]) -> Self {
        let place = SeatPlace { seat, top: id, path: Arc::from(&b""[..]) };
        Self { id, path: Arc::from(path), place }
    }

    /// The directory of the seat roots of `seat`.
    #[must_use]
    pub fn seat_roots(seat: u16) -> Self {
        let mut dir = Self::seat_root(seat, DirId::SEAT_ROOTS, b"");
        dir.place.top = DirId::ROOT;
        dir
    }

    /// The directory and name under which its own seat has the file or directory `name` in this one, if
    /// that is another seat. `attributes` are those that a look-up returned.
    #[must_use]
    pub fn at_own_seat(&self, name: &[u8], attributes: &LiveAttributes) -> Option<(Self, Vec<u8>)> {
        match (attributes.seat_file, attributes.seat) {
            (Some(file), _) => Some((Self::seat_roots(file.seat), file.root_name().into_bytes())),
            (None, Some(_)) => Some((self.child(name, attributes), Vec::new())),
            (None, None) => None,
        }
    }

    /// The directory `name` in this one, with the attributes that a look-up returned.
    #[must_use]
    pub fn child(&self, name: &[u8], attributes: &LiveAttributes) -> Self {
        let (id, path) = (DirId(attributes.id), self.join(name));
        match attributes.seat {
            Some(seat) => Self::seat_root(seat, id, &path),
            None => {
                let place = SeatPlace {
                    seat: self.seat_of(name),
                    path: joined(&self.place.path, name).into(),
                    ..self.place
                };
                Self { id, path: path.into(), place }
            }
        }
    }

    /// True if its names are spread over several seats.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.place.top == self.id && self.id.parts() > 1
    }

    /// The seat that has `name` in the directory.
    #[must_use]
    pub fn seat_of(&self, name: &[u8]) -> u16 {
        if self.is_spread() { self.id.part_of(name) } else { self.place.seat }
    }

    /// The directory as the seat that has `name` in it knows it.
    #[must_use]
    pub fn part_of(&self, name: &[u8]) -> Self {
        self.at_seat(self.seat_of(name))
    }

    /// The directory as each seat that has names in it knows it, in the order of a listing.
    pub fn parts(&self) -> impl Iterator<Item = Self> {
        let seats = if self.is_spread() {
            0..self.id.parts()
        } else {
            self.place.seat..self.place.seat + 1
        };
        seats.map(|seat| self.at_seat(seat))
    }

    /// Groups `names` in the directory by the seats that have them; returns the indexes of each group.
    pub(super) fn names_by_seat(&self, names: &[&[u8]]) -> Vec<Vec<usize>> {
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            groups.entry(self.seat_of(name)).or_default().push(index);
        }
        groups.into_values().collect()
    }

    fn at_seat(&self, seat: u16) -> Self {
        let mut part = self.clone();
        part.place.seat = seat;
        part
    }

    /// The path of `name` in the directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Vec<u8> {
        joined(&self.path, name)
    }
}

/// A file of a live namespace, as a client names it: by its name in a directory, and by its
/// identity if that is known. With an identity, requests never reach another file that has the name
/// by then. The empty name stands for the directory itself.
#[derive(Clone, Copy, Debug)]
pub struct LiveFile<'a> {
    /// The directory.
    pub dir: &'a LiveDir,
    /// The name.
    pub name: &'a [u8],
    /// The identity; 0 if any file at the name is meant.
    pub id: u128,
}

impl<'a> LiveFile<'a> {
    /// Whichever file is at `name` in `dir`.
    #[must_use]
    pub fn at(dir: &'a LiveDir, name: &'a [u8]) -> Self {
        Self { dir, name, id: 0 }
    }
}

/// Returns the path of `name` in the directory at `path`. The empty path leads to where it starts.
pub(super) fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
    [path, slash, name].concat()
}
