//! Renaming files and whole trees, in one step.
//!
//! A directory keeps its identity when it moves, so its entries need not; the name that it leaves
//! keeps a tombstone with the next generation, so that a directory made there again is another.

use esker_base::{Error, Kind, Result};

use crate::dir::Dir;
use crate::inode::{DirId, Entry, Inode, key};
use crate::ops::remove::drop_name;
use crate::path::{check_name, show};
use crate::session::{Session, State, exists, not_found};

/// How a rename treats a name that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameFlags {
    /// It is replaced.
    #[default]
    Replace,
    /// The rename fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two change places (`RENAME_EXCHANGE`).
    Exchange,
}

impl Session {
    /// Renames `old_name` in `old_dir` to `name` in `dir`. Others see it at one of the two places.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `Exists` with [`RenameFlags::NoReplace`]; `NotEmpty`, `IsADirectory`
    /// or `NotADirectory` if what is there cannot be replaced; `Invalid` if a directory would move
    /// into itself.
    pub fn rename(
        &self,
        (old_dir, old_name): (&Dir, &[u8]),
        (dir, name): (&Dir, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(old_name)?;
        check_name(name)?;
        // What moves is known only once it is looked up, and may be a directory: go alone.
        self.reshape(|| {
            self.check_change(old_dir, old_name)?;
            self.check_change(dir, name)?;
            let moved = self.entry(old_dir, old_name, true)?.ok_or_else(|| not_found(old_name))?;
            let replaced = self.entry(dir, name, true)?;
            self.check_rename((old_dir, old_name, &moved), (dir, name, replaced.as_ref()), flags)?;
            let same_place = old_dir.id() == dir.id() && old_name == name;
            let same_file = replaced.as_ref().is_some_and(|replaced| {
                replaced.entry == Entry::Link
                    && moved.entry == Entry::Link
                    && replaced.id == moved.id
            });
            if same_place || (same_file && flags != RenameFlags::Exchange) {
                return Ok(());
            }
            match (flags, replaced) {
                (RenameFlags::Exchange, Some(other)) => {
                    self.exchange((old_dir, old_name, moved), (dir, name, other))
                }
                (_, replaced) => self.move_over((old_dir, old_name, moved), (dir, name, replaced)),
            }
        })
    }

    fn check_rename(
        &self,
        (old_dir, old_name, moved): (&Dir, &[u8], &Inode),
        (dir, name, replaced): (&Dir, &[u8], Option<&Inode>),
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_sticky(old_dir, &self.inode_of(moved)?, old_name)?;
        if let Some(replaced) = replaced {
            self.check_sticky(dir, &self.inode_of(replaced)?, name)?;
        }
        if moved.is_directory() {
            self.check_moves(moved, old_dir, old_name, dir)?;
        }
        let error = |kind, what| Err(Error::new(kind, format!("{}: {what}", show(name))));
        match (flags, replaced) {
            (RenameFlags::NoReplace, Some(_)) => Err(exists(name)),
            (RenameFlags::Exchange, None) => Err(not_found(name)),
            (RenameFlags::Exchange, Some(other)) => {
                if other.is_directory() {
                    self.check_moves(other, dir, name, old_dir)?;
                }
                Ok(())
            }
            (_, None) => Ok(()),
            (_, Some(replaced)) => match (moved.is_directory(), replaced.is_directory()) {
                (true, false) => error(Kind::NotADirectory, "not a directory"),
                (false, true) => error(Kind::IsADirectory, "is a directory"),
                (true, true) if moved.id != replaced.id => {
                    let node = self.open_dir(dir, name, replaced)?;
                    if self.is_empty(&node)? {
                        return Ok(());
                    }
                    error(Kind::NotEmpty, "directory not empty")
                }
                _ => Ok(()),
            },
        }
    }

    /// The inode behind an entry.
    fn inode_of(&self, entry: &Inode) -> Result<Inode> {
        match entry.entry {
            Entry::Link => self.linked(entry.id, false),
            _ => Ok(entry.clone()),
        }
    }

    /// Fails if the directory `moved` cannot move from `from` to `to`.
    fn check_moves(&self, moved: &Inode, from: &Dir, name: &[u8], to: &Dir) -> Result<()> {
        if to.is_within(moved.dir_id()) {
            let context = format!("{}: a directory cannot move into itself", show(name));
            return Err(Error::new(Kind::Invalid, context));
        }
        // Its `..` changes, which takes permission to write to it.
        if from.id() != to.id() {
            self.identity().check(crate::identity::WRITE, moved, name)?;
        }
        Ok(())
    }

    fn move_over(
        &self,
        (old_dir, old_name, moved): (&Dir, &[u8], Inode),
        (dir, name, replaced): (&Dir, &[u8], Option<Inode>),
    ) -> Result<()> {
        let now_ns = self.now_ns();
        // A file that has other names loses one; without such a file the third key is our own.
        let linked = replaced.as_ref().filter(|replaced| replaced.entry == Entry::Link);
        let link_name = linked.map_or(0, |link| link.id).to_be_bytes();
        let keys =
            [key(old_dir.id(), old_name), key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [
            self.below(old_dir, &keys[0])?,
            self.below(dir, &keys[1])?,
            self.layers().below(&keys[2], linked.is_none())?,
        ];
        let target = self.tree().update(keys, |[old, new, shared], draft| {
            let old = State::of(old, &below[0])?;
            let new = State::of(new, &below[1])?;
            let Some(current) = old.inode.filter(|inode| inode.id == moved.id) else {
                return Err(changed(old_name));
            };
            if new.inode.as_ref().map(|inode| inode.id) != replaced.as_ref().map(|inode| inode.id) {
                return Err(changed(name));
            }
            let tombstone = Inode::tombstone(old.next_generation, now_ns);
            let target = arrived(current, new.next_generation, now_ns);
            let first = tombstone.row(&keys[0]);
            let second = target.row(&keys[1]);
            match (linked.is_some(), State::of(shared, &below[2])?.inode) {
                (true, Some(inode)) => {
                    let inode = drop_name(inode, now_ns);
                    draft.put(&mut [first, second, inode.row(&keys[2])]);
                }
                _ => draft.put(&mut [first, second]),
            }
            Ok(target)
        })?;
        if let Some(replaced) = replaced.filter(Inode::is_directory) {
            self.forget_tree(&*self.open_dir(dir, name, &replaced)?);
        }
        self.follow(&target, old_dir, dir, name);
        old_dir.touch(now_ns);
        dir.touch(now_ns);
        Ok(())
    }

    fn exchange(
        &self,
        (old_dir, old_name, one): (&Dir, &[u8], Inode),
        (dir, name, other): (&Dir, &[u8], Inode),
    ) -> Result<()> {
        let now_ns = self.now_ns();
        let keys = [key(old_dir.id(), old_name), key(dir.id(), name)];
        let below = [self.below(old_dir, &keys[0])?, self.below(dir, &keys[1])?];
        let (to_new, to_old) = self.tree().update(keys, |[old, new], draft| {
            let (old, new) = (State::of(old, &below[0])?, State::of(new, &below[1])?);
            let Some(first) = old.inode.filter(|inode| inode.id == one.id) else {
                return Err(changed(old_name));
            };
            let Some(second) = new.inode.filter(|inode| inode.id == other.id) else {
                return Err(changed(name));
            };
            let to_new = arrived(first, new.next_generation, now_ns);
            let to_old = arrived(second, old.next_generation, now_ns);
            draft.put(&mut [to_old.row(&keys[0]), to_new.row(&keys[1])]);
            Ok((to_new, to_old))
        })?;
        self.follow(&to_new, old_dir, dir, name);
        self.follow(&to_old, dir, old_dir, old_name);
        old_dir.touch(now_ns);
        dir.touch(now_ns);
        Ok(())
    }

    /// Lets an open directory that moved know its new place.
    fn follow(&self, moved: &Inode, from: &Dir, dir: &Dir, name: &[u8]) {
        if moved.is_directory() {
            let node = self.node(from, name, moved, false);
            node.set_place(dir.clone(), name.to_vec());
        }
    }
}

/// `inode` at its new name, whose next directory is of `generation`.
fn arrived(mut inode: Inode, generation: u64, now_ns: u64) -> Inode {
    inode.generation = generation;
    inode.ctime_ns = now_ns;
    inode
}

/// The error that somebody was faster.
fn changed(name: &[u8]) -> Error {
    Error::new(Kind::Conflict, format!("{}: changed while it was renamed; retry", show(name)))
}
